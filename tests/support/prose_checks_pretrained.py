"""What results/reported/README.md says of SmolLM2 in numbers, and what the files say: as in prose_checks.py."""

import json
import math

from prose_checks import Check
from reported_values import REPORTED, at, wide

from posbench.report.points import read_points


def advice() -> list[Check]:
    """Of advice.json: differences on the test books, and losses on the validation book."""
    said = json.loads((REPORTED / "advice" / "advice.json").read_text())

    def difference(kind: str, name: str, length: int) -> list[float]:
        (option,) = [one for one in said[kind] if one["name"] == name]
        (point,) = [one for one in option["points"] if one["length"] == length]
        value, low, high = point["difference"]
        return [value, (high - low) / 2]

    def above(name: str) -> float:
        losses = {one["name"]: one["nll"]["16384"] for one in said["search"]}
        return losses[name] - losses["cut"]

    searched = [one["name"] for one in said["search"] if one["name"] not in ("as it is", "cut")]
    texts, followed = said["texts"], difference("options", "yarn by length", 16384)
    assert followed == difference("options", "yarn x2", 16384) and difference("options", "yarn by length", 8192) == [0, 0]
    assert min(map(above, searched)) > 0 and [said["answers"][use]["advised"] for use in ("short", "both")] == ["as it is", "cut"]
    return [
        ("# options of # methods were", [len(searched), len({name.split(" ")[0] for name in searched})]),
        ("on # test books with # targets each", [texts["test"]["documents"], texts["test"]["targets"] / texts["test"]["documents"]]),
        ("factor 2 costs # +- # nat per token at 2,048", difference("factors", "yarn x2", 2048)),
        ("and # +- # at 8,192, with", difference("factors", "yarn x2", 8192)),
        ("factor 4 # +- # and # +- #.", [*difference("factors", "yarn x4", 2048), *difference("factors", "yarn x4", 8192)]),
        ("loses # +- # to that", difference("options", "as it is", 16384)),
        ("it is # +- # above the cut text", followed),
        ("LM-Infinite was # above it, sinks with a window #", [above("lm_infinite"), above("streaming")]),
        ("Self-Extend #, PI #.", [above("self_extend"), above("pi by length")]),
    ]


def gemma3() -> list[Check]:
    """Of the tables by position of both models."""

    def losses(folder: str) -> dict[str, list[float]]:
        rows = [line.strip("| ").split(" | ") for line in (REPORTED / folder / "table.md").read_text().splitlines() if " | none | " in line]
        return {cells[1]: [float(one) for one in cells[3:]] for cells in reversed(rows) if len(cells) == 8}  # the first table

    own = losses("gemma3")
    changes = [[one - plain for one, plain in zip(own[name], own["none"], strict=True)] for name in ("pi", "yarn", "rerope", "streaming")]
    assert all(0.015 < one < 0.025 for one in changes[0][:3]) and all(0 <= one < 0.01 for one in changes[1][:3])
    assert all(abs(one) < 0.0025 for some in changes[2:] for one in some[:3]) and min(own, key=lambda name: own[name][-1]) == "rerope"
    return [("gently (# up to 46,341 tokens, where SmolLM2 is at # in the last part)", [own["none"][3], losses("pretrained")["none"][4]])]


def far(method: str, folder: str = "smollm2", times: float = 2) -> list[float]:
    """Loss of a method on RoPE minus the floor at so many times the training length, 16,384 tokens if twice."""
    return wide(folder, f"rope|{method}", times)


def each(methods: tuple[str, ...], folder: str = "smollm2", times: float = 2) -> list[float]:
    """`far` of several methods, one after the other."""
    return [value for method in methods for value in far(method, folder, times)]


def cost(method: str, target_len: int, times: float = 1 / 4, folder: str = "smollm2") -> list[float]:
    """Loss of a method with a fixed factor minus that without it, at so many times the training length."""
    return wide(folder, f"rope|{method} target_len={target_len}", times, "change")


def costs(target_len: int, times: float = 1 / 4, folder: str = "smollm2") -> list[float]:
    """`cost` of YaRN and of NTK."""
    return [*cost("yarn", target_len, times, folder), *cost("ntk", target_len, times, folder)]


def smollm2() -> list[Check]:
    """Of SmolLM2-135M-Instruct on source."""
    texts = [point for point in read_points(REPORTED / "smollm2" / "position.csv") if point.window is None]
    every = {(point.extension, point.length): point.nll for point in texts}
    mean = [math.exp(every["dca", length]) for length in (4096, 8192, 16384)]
    gain, lower = (at("smollm2", "rope", 2, name) for name in ("gain", "gain_lower"))
    short, whole = costs(32768), costs(32768, 1)
    ruled = {name: wide("smollm2", f"rope|{name}", 1 / 4, "change") for name in ("ntk_by_parts", "llama3")}
    steep = ("rerope", "yarn target_len=32768", "dynamic_ntk", "ntk target_len=32768", "pi target_len=32768")
    return [
        ("brings the model # nat per token, with a lower bound of #:", [gain, lower]),
        ("breaks: # +- # above the floor at 16,384", far("none")),
        ("log-n makes that # +- # worse", wide("smollm2", "rope|none|log_n", 2, "change")),
        ("tokens alone lose # +- #; with", far("window")),
        ("first tokens beside them it is # +- #. LM-Infinite", far("streaming")),
        ("one more than training had, is at # +- #. The", far("lm_infinite")),
        (
            "Self-Extend is # +- # above the floor, leaky ReRoPE # +- #, DCA # +- #, ReRoPE # +- #, dynamic NTK # +- #, STRING # +- #.",
            each(("self_extend", "leaky_rerope", "dca", "rerope", "dynamic_ntk", "string")),
        ),
        ("DCA is at # +- # and ReRoPE at # +- #.", [*far("dca|log_n"), *far("rerope|log_n")]),
        ("factor 2 is # +- # above it, and costs # +- # at 2,048", [*far("ntk_by_parts"), *ruled["ntk_by_parts"]]),
        ("the training length, it breaks: # +- #. Llama", far("ntk_by_parts", times=4)),
        ("rule is # +- # above it, and costs # +- # there.", [*far("llama3"), *ruled["llama3"]]),
        ("stay # +- # and # +- # above the floor, and", [*far("yarn target_len=16384"), *far("ntk target_len=16384")]),
        ("and cost # +- # and # +- # at 2,048 tokens. With", costs(16384)),
        ("these cost # +- # and # +- # there, and # +- # and # +- # at 8,192", [*short, *whole]),
        ("PI loses # +- #, and # +- # at 2,048 (", [*far("pi target_len=16384"), *cost("pi", 16384)]),
        ("with factor 4 # +- #)", cost("pi", 32768)),
        (
            "at 32,768 tokens no extension is # +- # above the floor, a window # +- #. All else",
            [*far("none", times=4), *far("window", times=4)],
        ),
        (
            "else that reads the whole text is above it too: Self-Extend by # +- #, leaky ReRoPE # +- #, DCA # +- #, ReRoPE # +- #, YaRN",
            each(("self_extend", "leaky_rerope", "dca", "rerope"), times=4),
        ),
        (
            "ReRoPE # +- #, YaRN with factor 4 # +- #, dynamic NTK # +- #, NTK with factor 4 # +- #, PI with factor 4 # +- #. Sinks",
            each(steep, times=4),
        ),
        ("Sinks beside a window, at # +- #, and LM-Infinite, at # +- #, are", [*far("streaming", times=4), *far("lm_infinite", times=4)]),
        ("DCA # perplexity at 4,096 tokens, # at 8,192 and # at 16,384", mean),
        ("that is # nat less at the last step", [every["dca", 8192] - every["dca", 16384]]),
        ("same targets its loss rises there, by # nat", [at("smollm2", "rope|dca", 2, "nll") - at("smollm2", "rope|dca", 1, "nll")]),
        (
            "with which RoPE breaks, # nats on the same targets, is # by that mean",
            [at("smollm2", "rope", 2, "nll") - at("smollm2", "rope", 1, "nll"), every["none", 16384] - every["none", 8192]],
        ),
    ]


def smollm2_books() -> list[Check]:
    """Of SmolLM2-135M-Instruct on books."""
    books = "smollm2_books"
    near = [far(name, books) for name in ("self_extend", "leaky_rerope", "dca", "rerope", "dynamic_ntk")]
    short, whole = costs(32768, folder=books), costs(32768, 1, books)
    gain, lower = (at("smollm2_gate", "rope", 1 / 4, name) for name in ("gain", "gain_lower"))
    ruled = {name: wide(books, f"rope|{name}", 1 / 4, "change") for name in ("ntk_by_parts", "llama3")}
    return [
        ("window brings # nat per token, with a lower bound of #. In", [at(books, "rope", 2, name) for name in ("gain", "gain_lower")]),
        ("it brings #, with one-sided 95 % bounds of # and #, so", [gain, lower, 2 * gain - lower]),  # symmetric, by Student's t
        ("2,048 tokens lose # +- # to all", wide("smollm2_gate", "rope", 1 / 4)),
        ("breaks here too, # +- # above the floor at 16,384", far("none", books)),
        ("and log-n alone does not mend it: # +- #. A window", far("none|log_n", books)),
        (
            "over the last 8,192 tokens loses # +- #; sinks beside it lose # +- #, LM-Infinite # +- #.",
            each(("window", "streaming", "lm_infinite"), books),
        ),
        ("Self-Extend at # +- #, leaky ReRoPE at # +- #, DCA at # +- #, ReRoPE at # +- #,", [value for one in near[:-1] for value in one]),
        ("nor is DCA with log-n, at # +- #. ReRoPE", far("dca|log_n", books)),
        ("ReRoPE with log-n is above it, at # +- #. So is", far("rerope|log_n", books)),
        ("dynamic NTK, whose distances are the real ones, at # +- #, and so is STRING, at # +- #.", [*near[-1], *far("string", books)]),
        (
            "not told from it either, at # +- #, and costs # +- # at 2,048",
            [*far("ntk_by_parts", books), *ruled["ntk_by_parts"]],
        ),
        ("rule, at # +- #, is above it, and costs # +- # there.", [*far("llama3", books), *ruled["llama3"]]),
        ("remain # +- # and # +- # above the floor;", [*far("yarn target_len=16384", books), *far("ntk target_len=16384", books)]),
        ("their cost at 2,048 tokens is # +- # and # +- #. With", costs(16384, folder=books)),
        ("With factor 4 it is # +- # and # +- #, and at 8,192 tokens # +- # and # +- #. PI", [*short, *whole]),
        ("at 32,768 tokens no extension is # +- # above the floor;", far("none", books, 4)),
        (
            "a window loses # +- #, sinks beside it lose # +- #, LM-Infinite # +- #, Self-Extend # +- #, DCA # +- #, ReRoPE # +- #, YaRN",
            each(("window", "streaming", "lm_infinite", "self_extend", "dca", "rerope"), books, 4),
        ),
        (
            "YaRN with factor 4 # +- #, dynamic NTK # +- #, NTK with factor 4 # +- #, PI with factor 4 # +- #. What",
            each(("yarn target_len=32768", "dynamic_ntk", "ntk target_len=32768", "pi target_len=32768"), books, 4),
        ),
        ("but leaky ReRoPE, at # +- #, is not", far("leaky_rerope", books, 4)),
        (
            "PI is # +- # above it, and costs # +- # at 2,048 tokens, where factor 4 costs # +- #.",
            [*far("pi target_len=16384", books), *cost("pi", 16384, 1 / 4, books), *cost("pi", 32768, 1 / 4, books)],
        ),
    ]


def smollm2_far() -> list[Check]:
    """Of SmolLM2-135M-Instruct in texts of 32,768 to 131,072 tokens of books."""
    folder = "smollm2_far"

    def at_each(method: str, *times: float) -> list[float]:
        return [value for one in times for value in far(method, folder, one)]

    gain, lower = (at(folder, "rope", 4, name) for name in ("gain", "gain_lower"))
    grows = "{} # +- # above the floor at four times the training length, # +- # at eight and # +- # at sixteen"
    return [
        (
            "is: # +- # above it at 131,072 tokens, as LM-Infinite, # +- #; a window alone loses # +- #.",
            each(("streaming", "lm_infinite", "window"), folder, 16),
        ),
        (grows.format("Self-Extend is"), at_each("self_extend", 4, 8, 16)),
        ("DCA # +- #, # +- # and # +- #; ReRoPE # +- #, # +- # and # +- #;", [*at_each("dca", 4, 8, 16), *at_each("rerope", 4, 8, 16)]),
        ("told from it at four times (# +- #), # +- # and # +- #.", at_each("leaky_rerope", 4, 8, 16)),
        ("YaRN with factor 16 is # +- # above the floor at 32,768 tokens and # +- # at 131,072", at_each("yarn", 4, 16)),
        ("NTK with factor 16 # +- # and # +- #, dynamic NTK # +- # and # +- #.", [*at_each("ntk", 4, 16), *at_each("dynamic_ntk", 4, 16)]),
        ("No extension is # +- # above it there.", at_each("none", 16)),
        ("The gate fails: the second half of its window brings # nat per token, with a lower bound of #, so", [gain, lower]),
    ]
