"""What the later sections of results/reported/README.md say in numbers, and what the files say: as in prose_checks.py."""

import csv
import json
import math
from statistics import fmean, stdev

from prose_checks import FAR, Check
from reported_values import REPORTED, apart, at, claim, context, full_turns, of_seeds, paired, rows, validation, wide, yarn_pairs

NONE_64, NONE_256, REROPE_256 = ("none", 64), ("none", 256), ("rerope", 256)  # extension and length of attention/diagnostics.csv


def _identity(row: dict) -> tuple:
    return row["run_id"], row["eval_id"], row["length"]


def _made_anew(folder: str, *others: str) -> int:
    """Number of rows of a folder that others hold too; -1 if one has another loss there."""
    new = {_identity(row): row["nll"] for other in others for row in rows(other)}
    again = [new[_identity(row)] == row["nll"] for row in rows(folder) if _identity(row) in new]
    return len(again) if all(again) else -1


def catalogue() -> list[Check]:
    speed = {
        (one["kind"], one["case"], one["length"]): one["ratio"]
        for one in json.loads((REPORTED / "benchmark" / "benchmark.json").read_text())["figures"]
    }

    def rise(method: str, times: int) -> float:
        return at("catalogue", method, times)

    def inside(method: str) -> float:
        return at("catalogue", method, 1, "nll")

    def cost(method: str) -> float:
        return at("catalogue", method, 1, "change")

    sandwich, fox = ([-rise(name, times) for times in FAR] for name in ("sandwich", "fox_rope"))
    forms = [rise(f"rope|{name}", times) for name in ("dynamic_ntk", "ntk_mixed", "ntk_fixed", "ntk") for times in FAR[1:]]
    spread = stdev(of_seeds("headline", "rope|recompute_window window=null", 2).values())
    return [
        ("inside the window (#; RoPE #) and gains the more", [inside("dape"), inside("rope")]),
        ("# below its floor at 2x, # at 16x, where its # nats", [-rise("dape", 2), -rise("dape", 16), at("catalogue", "dape", 16, "nll")]),
        ("takes # times as long", [speed["evaluation", "dape", 1024]]),
        (
            "gains as steadily, # at 2x and # at 16x, with # nats",
            [*(-rise("stick_breaking", n) for n in (2, 16)), inside("stick_breaking")],
        ),
        ("nats inside the window (RoPE #), nothing extended", [inside("rope")]),
        ("Sandwich is # to # below its floor", [min(sandwich), max(sandwich)]),
        ("from a loss that is # higher inside the window, FoX", [inside("sandwich") - inside("rope")]),
        ("FoX with RoPE # to #, where FoX without RoPE gains #", [min(fox), max(fox), -at("headline", "fox", 16)]),
        ("are # below the floor at 2x, undecided at 4x and 8x, and # above it at 16x", [-rise("gemma3", 2), rise("gemma3", 16)]),
        ("(# above its floor at 16x), from a loss that is # higher", [rise("pope", 16), inside("pope") - inside("rope")]),
        ("Self-Extend: # and # below the floor at 2x", [-rise("rope|longrope", 2), -rise("rope|leaky_rerope", 2)]),
        (
            "(dynamic #, mixed #, fixed #, plain #) and no better than # above it",
            [*(rise(f"rope|{name}", 2) for name in ("dynamic_ntk", "ntk_mixed", "ntk_fixed", "ntk")), math.floor(20 * min(forms)) / 20],
        ),
        *[("alone and composed with YaRN, loses #, ABF", [cost(f"rope|{name}")]) for name in ("dca", "compose")],
        ("ABF without fine-tuning # and STRING, which is meant for use within the window, #.", [cost("rope|abf"), cost("rope|string")]),
        ("stands # above the floor there", [rise("rope", 1)]),
        ("standard deviation is # nat, so a difference inside the window below # (", [spread, 2.776 * math.sqrt(2) * spread]),
    ]


def newer() -> list[Check]:
    rope, sink = "rope output_gate=none", 'rope trained with learned_sink {"init":0.0}'
    large = 'mistral_large4 trained with ssmax {"bias":true}'
    failing = ["clipped_rope", "lerope", "smollm3", "mistral_large4", large, sink, "rope trained with off_by_one"]
    failing += ["rope output_gate=headwise", "rope output_gate=elementwise"]
    far = [[at("newer", name, times) for name in failing] for times in (2, 16)]
    seeds = of_seeds("headline", "rope", 2).values()
    radix = [apart("newer", f"{rope}|yarn_radix", f"{rope}|yarn", length) for length in (256, 512)]

    def inside(name: str) -> float:
        return at("newer", name, 1, "nll") - at("newer", rope, 1, "nll")

    others = {name: inside(name) for name in [*failing, "nape"]}
    assert (min(others, key=others.get), max(others, key=others.get)) == (sink, "nape")
    return [
        ("All # rows of RoPE that both hold", [_made_anew("catalogue", "newer")]),
        (
            "is # and # below its floor at 2x and 4x. Whether it holds farther out is undecided, with # +- # at 16x",
            [-at("newer", "nape", 2), -at("newer", "nape", 4), *wide("newer", "nape", 16)],
        ),
        ("gates are # to # above their floors at 2x and # to # at 16x", [edge for found in far for edge in (min(found), max(found))]),
        ("have losses from # to # there", [min(seeds), max(seeds)]),
        (
            "of RoPE: # and # below the floor at 2x (RoPE #)",
            [-at("newer", f"{name}|yarn", 2) for name in ("lerope", "smollm3", rope)],
        ),
        (
            "temperature, is # below at 2x and fails from 4x, by # there and # at 16x",
            [-at("newer", f"{large}|yarn temperature=false", 2), *(at("newer", f"{large}|yarn temperature=false", n) for n in (4, 16))],
        ),
        ("YaRN-radix is # [#, #] from YaRN at 4x and # [#, #] worse at 8x", [*radix[0], *radix[1]]),
        (
            "undecided at 2x, # above the floor at 4x and # at 16x, from a loss that is # higher than RoPE's inside",
            [at("newer", "random_float", 4), at("newer", "random_float", 16), inside("random_float")],
        ),
        ("leave RoPE # above its floor at 2x", [at("newer", f"{rope}|random_keys", 2)]),
        ("Inside the window the others are within # of RoPE", [max(map(abs, others.values()))]),
    ]


def rates() -> list[Check]:
    slow, fast = "hybrid lr=0.01", "hybrid lr=0.02"
    moved = validation("tuned", slow) - validation("tuned", fast)
    lowered = paired("tuned", f"{slow}|none|log_n", f"{fast}|none|log_n", 16)
    tuning = {rate: at("tuning", f"rope lr={rate}", 1, "nll") for rate in ("0.01", "0.02")}
    return [
        ("inside the window by # +- # (", paired("tuned", fast, slow, 1)),
        ("(# against # nats), undecided", [at("tuned", fast, 1, "nll"), at("tuned", slow, 1, "nll")]),
        ("and lower it by # +- # at 16x with log-n", lowered),
        ("the rates differ by #", [moved]),
        ("Its # nats at 8x with log-n", [at("tuned", f"{fast}|none|log_n", 8, "nll")]),
        ("at the doubled rate is # above its floor", [at("tuning", "rope lr=0.02", 2)]),
        ("at the default # and at half of it #", [at("tuning", "rope lr=0.01", 2), at("tuning", "rope lr=0.005", 2)]),
        ("on the # tuning targets alone", [rows("tuning")[0]["n_targets"]]),
        ("the doubled rate is # better for RoPE too", [tuning["0.01"] - tuning["0.02"]]),
        ("where on whole windows it is # worse", [validation("tuning", "rope lr=0.02") - validation("tuning", "rope lr=0.01")]),
    ]


def ladder() -> list[Check]:
    def tuned(of: str, minus: str, times: int, sign: int = 1) -> list[float]:
        value, half = paired("ladder", f"rope|{of} mode=dynamic", f"rope|{minus} mode=dynamic", times)
        return [sign * value, half]

    def fixed(name: str) -> list[float]:
        return wide("ladder", f"rope|{name} mode=fixed target_len=1024", 1, "change")

    (_, one, eight), (_, five, four) = yarn_pairs(10.0), yarn_pairs(None)
    pairs = [one, 32, eight, five, four]
    value, half = paired("ladder", "rope|rerope window=48", "rope|rerope window=null", 16)
    return [
        ("lowers ReRoPE's loss at 16x by # +- #", [-value, half]),
        ("and NTK's by # +- #", tuned("ntk multiplier=8.0", "ntk multiplier=1.0", 16, -1)),
        ("Tuned NTK is # +- # from the floor at 2x", wide("ladder", "rope|ntk multiplier=8.0", 2)),
        ("and # above it at 4x. YaRN", [at("ladder", "rope|ntk multiplier=8.0", 4)]),
        *[("YaRN is # +- # worse at 4x and at 8x", tuned("yarn beta=10.0", "yarn beta=null", times)) for times in (4, 8)],
        ("(the largest, at 4x, is # +- #)", tuned("self_extend window=32", "self_extend window=null", 4)),
        ("PI loses # +- #, YaRN # +- # and NTK # +- #", [*fixed("pi"), *fixed("yarn"), *fixed("ntk")]),
        ("Self-Extend's # +- # is undecided", fixed("self_extend")),
        ("the fastest pair makes # turns", [64 / (2 * math.pi)]),
        ("They keep # of # pairs and divide # in part, the default keeps # and divides # in part", pairs),
    ]


def matched() -> list[Check]:
    def rise(method: str, times: int) -> float:
        return at("matched", method, times)

    def inside(method: str) -> float:
        return at("matched", method, 1, "nll")

    def base(name: str, times: int, sign: int = 1) -> list[float]:
        value, half = paired("matched", f"rope base=27.0|{name}", f"rope base=10000.0|{name}", times)
        return [sign * value, half]

    def slopes(times: int) -> list[float]:
        return paired("matched", "alibi slope_scale=1.0", "alibi slope_scale=16.0", times)

    def yarn(value: float, times: int, sign: int) -> list[float]:
        mean_, half = paired("matched", f"rope base={value}|yarn beta=32.0", f"rope base={value}|yarn beta=null", times)
        return [sign * mean_, half]

    worse = [base(name, times)[0] for name in ("yarn beta=null", "rerope") for times in (1, *FAR)]
    steep, narrow, wider = ([-rise(name, times) for times in FAR] for name in ("alibi slope_scale=16.0", "sandwich", "sandwich dim=192"))
    steeper = paired("matched", "alibi slope_scale=16.0", "rope base=10000.0", 1)
    alibi = [inside("alibi slope_scale=16.0"), inside("alibi")]
    gains = [at("matched", name, 1, "gain") for name in ("rope base=27.0", "rope")]
    return [
        ("(#; # with base 10,000)", [full_turns(27.0), full_turns(10000.0)]),
        ("with base 10,000), is # +- # worse inside its window", base("none", 1)),
        ("(G # against #), and without an extension it fails at once (# at 2x)", [*gains, rise("rope base=27.0", 2)]),
        ("is with it # +- # from the floor at 2x", wide("matched", "rope base=27.0|ntk", 2)),
        ("and # above it at 16x (with base 10,000", [rise("rope base=27.0|ntk", 16)]),
        ("(with base 10,000 # +- # and #)", [*wide("matched", "rope|ntk", 2), rise("rope|ntk", 16)]),
        ("for NTK by # +- # at 8x and # +- # at 16x", [*base("ntk", 8, -1), *base("ntk", 16, -1)]),
        ("PI is # above the floor at 2x (#)", [rise("rope base=27.0|pi", 2), rise("rope|pi", 2)]),
        ("in loss they are # to # worse at every length", [min(worse), max(worse)]),
        *[("it is worse by # +- # at 4x and 8x", yarn(10000.0, times, 1)) for times in (4, 8)],
        ("better by # +- # at 16x at base 27", yarn(27.0, 16, -1)),
        ("is # +- # better inside the window (seed by seed; # against #)", [*slopes(1), *alibi]),
        ("# to # below its floor from 2x to 16x, and # +- # from RoPE (#)", [min(steep), max(steep), *steeper, inside("rope")]),
        ("it is # nat worse than RoPE there, # here", [claim("C7", nats=True)[0], steeper[0]]),
        ("differences below # inside the window are", [0.09]),
        ("fails as RoPE does (# at 2x, # at 16x)", [rise("t5 max_distance=128", 2), rise("t5 max_distance=128", 16)]),
        ("inside the window it gains # at 2x", [-rise("t5", 2)]),
        ("fails at 2x (#); matched", [rise("xpos B=512", 2)]),
        ("undecided there (# +- #) and fails from 4x", wide("matched", "xpos", 2)),
        ("undecided at 16x (# +- #). Up to", wide("matched", "fire threshold=512.0", 16)),
        ("its loss inside is # higher, and it is # to #", [inside("sandwich dim=192") - inside("sandwich"), min(wider), max(wider)]),
        ("where 128 gains # to #", [min(narrow), max(narrow)]),
        *[("below 1,024 do (# each)", [rise(name, 4)]) for name in ("randomized", "randomized max_len=2048")],
        ("inside the window they differ by #", [inside("randomized max_len=2048") - inside("randomized")]),
    ]


def books() -> list[Check]:
    doubled = {
        tokens: [[float(line[key]) for key in ("doubling", "doubling_half_width")] for line in context("books", tokens)]
        for tokens in (32, 64)
    }
    return [
        ("brings # +- # nat per byte to novels and # +- # to the rest", [*doubled[32][0], *doubled[32][1]]),
        ("second half of its window # +- # and # +- #", [*doubled[64][0], *doubled[64][1]]),
    ]


def attention() -> list[Check]:
    """Of attention/diagnostics.csv: means over the heads, and the head that looks at the previous token."""
    with open(REPORTED / "attention" / "diagnostics.csv", newline="") as file:
        lines = list(csv.DictReader(file))

    def mean(extension: str, length: int, column: str) -> float:
        return fmean(float(one[column]) for one in lines if (one["extension"], one["length"]) == (extension, str(length)))

    def previous(extension: str, length: int) -> float:
        at_length = [one for one in lines if (one["extension"], one["length"]) == (extension, str(length))]
        trained = [one for one in lines if (one["extension"], one["length"]) == ("none", "64")]
        head = max(trained, key=lambda one: float(one["mass_1"]))
        (own,) = [one for one in at_length if (one["layer"], one["head"]) == (head["layer"], head["head"])]
        return 100 * float(own["mass_1"])

    return [
        ("rises from # to # without an extension; under ReRoPE it is #.", [mean(*one, "nll") for one in (NONE_64, NONE_256, REROPE_256)]),
        ("Without an extension # % of the weight then", [100 * mean(*NONE_256, "far")]),
        (
            "goes from # to # nats; under ReRoPE # % and #.",
            [mean(*NONE_64, "entropy"), mean(*NONE_256, "entropy"), 100 * mean(*REROPE_256, "far"), mean(*REROPE_256, "entropy")],
        ),
        (
            "the previous token # % of its weight in training gives it # % at 256 tokens, and # % under",
            [previous(*one) for one in (NONE_64, NONE_256, REROPE_256)],
        ),
    ]
