"""What results/reported/README.md says of fine-tuning in numbers, and what the files say: as in prose_checks.py."""

from dataclasses import replace
from functools import cache

from conftest import CONFIGS
from prose_checks import Check
from reported_values import REPORTED, apart, scored, trainings, within

from posbench.claims.find import Pool
from posbench.claims.judge import judge
from posbench.claims.language import Endpoint, load_all
from posbench.cli.claims import defaults
from posbench.report.points import Point, read_points

ROPE, NOPE = "rope tuned from rope-64", "none tuned from none-64"
SCALED = 'none trained with head_scale {"shared":false} tuned from none-64'


def finetune() -> list[Check]:
    """Of children made for 256 tokens, at 64, 256 and 1,024."""
    names = ("yarn", "longrope", "abf", "ntk", "none", "pi")
    after, before = ([point(child(name, steps)).nll for name in names] for steps in (100, 0))
    assert after == sorted(after)

    def loses(of: str, minus: str, length: int = 256) -> list[float]:
        return apart("finetune", of, minus, length)

    parent = child("none", 0)
    skipped = [
        "pose draw=chunks tuned from rope-64 steps=100|yarn (trained in)",
        "pose draw=sorted tuned from rope-64 steps=100|yarn (trained in)",
    ]
    dropped = "none tuned from rope-64 steps=100"
    return [
        ("finetune: # children", [len(trainings("finetune"))]),
        ("YaRN # nats, searched factors #, ABF #, NTK #, no extension # and PI #, from #, #, #, #, # and #.", [*after, *before]),
        ("than YaRN by # [#, #] before", loses(child("yarn", 0), child("longrope", 0))),
        ("after 100 steps they are # [#, #] worse, and", loses(child("longrope"), child("yarn"))),
        ("and ABF # [#, #]. YaRN without", loses(child("abf"), child("yarn"))),
        ("is # [#, #] lower than no extension after 100", loses(child("none"), child("yarn", 0))),
        ("PI loses # [#, #] to no extension", loses(child("pi"), child("none"))),
        ("after 30 the interval, # to #, holds both", loses(child("pi", 30), child("none", 30))[1:]),
        ("to # nats with PI (# [#, #] more than before", [point(child("pi"), 64).nll, *loses(child("pi"), parent, 64)]),
        ("no extension costs # [#, #] there", loses(child("none"), parent, 64)),
        ("YaRN # [#, #] and searched factors # [#, #].", [*loses(child("yarn"), parent, 64), *loses(child("longrope"), parent, 64)]),
        ("ABF is # [#, #] lower than YaRN at 1,024", loses(child("yarn"), child("abf"), 1024)),
        (
            "of no extension, # [#, #], and NTK, # [#, #], that",
            [*loses(child("yarn"), child("none"), 1024), *loses(child("yarn"), child("ntk"), 1024)],
        ),
        ("The second 128 tokens bring # nat with YaRN", [point(child("yarn")).gain]),
        ("# with searched factors, # with ABF,", [point(child(name)).gain for name in ("longrope", "abf")]),
        ("# with PI, and cost # with NTK", [point(child("pi")).gain, -point(child("ntk")).gain]),
        ("and # with no extension.", [-point(child("none")).gain]),
        ("with YaRN PoSE is # [#, #] worse at 256", loses(skipped[0], child("yarn"))),
        ("and # [#, #] better than no fine-tuning;", loses(child("yarn", 0), skipped[0])),
        ("in order are # [#, #] worse than PoSE.", loses(skipped[1], skipped[0])),
        ("it loses # [#, #] to its parent at 64", loses(dropped, parent, 64)),
        ("to YaRN as it is # [#, #] at 256", loses(dropped, child("yarn", 0))),
        ("temperature makes that # [#, #] worse.", loses(f'{dropped}|none|drope_temperature {{"coefficient":0.412}}', dropped)),
        ("lowers the loss at 256 tokens by # [#, #], all", loses(f"{SCALED} steps=0", f"{SCALED} steps=100")),
        ("all weights by # [#, #]", loses(f"{NOPE} steps=0", f"{NOPE} steps=100")),
        *retrieval(),
    ]


def child(extension: str, steps: int = 100) -> str:
    """Words of a child of RoPE in tables."""
    return f"{ROPE} steps={steps}|{extension if extension == 'none' else f'{extension} (trained in)'}"


@cache
def _points() -> dict[tuple, Point]:
    """Points of models of text alone: those of text and MQAR have the same names."""
    named = read_points(REPORTED / "finetune" / "curve.csv")
    return {(f"{one.encoding}|{one.extension}", one.scale_attention, one.length): one for one in named if one.data == "pysource"}


def point(method: str, length: int = 256) -> Point:
    return _points()[method, "none", length]


def retrieval() -> list[Check]:
    def found(name: str, steps: int, times: float) -> list[float]:
        return within(scored("finetune", "mqar 8 pairs", child(name, steps), times))

    inside = [scored("finetune", f"mqar {n} pairs", child(name, 100), 0.25).accuracy for n in (4, 8) for name in ("none", "yarn")]
    return [
        ("1,024 tokens RoPE finds # [#, #] of the values of 8 pairs before", found("none", 0, 4)),
        ("# [#, #] after 100 steps without an extension", found("none", 100, 4)),
        ("# [#, #] with PI, from # [#, #],", [*found("pi", 100, 4), *found("pi", 0, 4)]),
        ("# [#, #] with YaRN, from # [#, #].", [*found("yarn", 100, 4), *found("yarn", 0, 4)]),
        ("PI costs retrieval at 64 tokens too, # [#, #] before and # [#, #] after", [*found("pi", 0, 0.25), *found("pi", 100, 0.25)]),
        ("the others find at least # there", [min(inside)]),
    ]


def drope_twin() -> list[Check]:
    """The two comparisons of DroPE's claim, of the models with QK-norm."""
    twin = {"model.qk_norm": "rms"}
    pool = Pool.read([], defaults(), [REPORTED / "drope_qk_norm"])
    (claim,) = [one for one in load_all(CONFIGS.parent / "results" / "claims") if one.id == "DroPE"]

    def moved(endpoint: Endpoint) -> Endpoint:
        cells = tuple((weight, replace(cell, config={**(cell.config or {}), **twin})) for weight, cell in endpoint.cells)
        return replace(endpoint, seeds=(5, 6, 7), cells=cells)

    own = replace(claim, primary=tuple(map(moved, claim.primary)), secondary=())
    inside, behind = ((one.effect, one.lower, one.upper) for one in judge([own], lambda _: (pool, "")))
    return [
        ("as many steps without positions lose # [#, #] bits per byte inside the window", list(inside)),
        ("temperature they are # [#, #] behind YaRN at 256 tokens", list(behind)),
    ]
