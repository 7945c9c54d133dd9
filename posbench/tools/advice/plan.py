"""Plan of an advice by arithmetic alone: options, lengths, factors, numbers of windows, and the
stages that measure them.

The same words make the same plan. An option has a fixed factor, the factor of each text's length,
or attention of its own. Stages: every family once, beyond the training length, on validation
documents; there the best few families at the target with each factor; then the finalists on test
documents at all lengths. budget=1 is BUDGET_FLOP FLOP, of which the search has a share; no stage
has fewer than its least number of windows, so a long target can take more than its budget, which
the plan says."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.names import nodes
from posbench.evaluation.protocol import ReadVolume
from posbench.sweep.cost import ModelSize

UNCHANGED, CUT = "as it is", "cut"  # the two options that need no setting
SCALED = ("pi", "ntk", "yarn", "llama3")  # change frequencies by a factor, which may be fixed
FOLLOWS = (
    "dynamic_ntk",
)  # changes frequencies by the length of the text alone, with a factor that overshoots
OVERSHOOT = (
    "ntk",
    # better with a larger factor than the length's (posbench/extensions/ntk.py), so compared with twice
    # that too
)
# Attention of their own, or a factor on the logits that no engine has.
OWN_ATTENTION = (
    "log_n",
    "ntk+log_n",
    "rerope",
    "rerope+log_n",
    "self_extend",
    "dca",
    "string",
    "streaming",
    "lm_infinite",
)
SINKS = ("streaming", "lm_infinite")
FAMILIES = (*SCALED, *FOLLOWS, *OWN_ATTENTION)
# Work of one text of some families, as a multiple of the plain model's.
WORK = {
    **dict.fromkeys(("rerope", "self_extend", "dca", "string"), 1.7),
    **dict.fromkeys(SINKS, 0.6),
}
BUDGET_FLOP = 1e15  # about an hour on two cores with AMX, in bf16
SEARCH = 0.4  # share of the budget
FEWEST_WINDOWS, MOST_WINDOWS = (
    {"validation": 1, "test": 3},
    {"validation": 128, "test": 512},
)  # windows
KEPT_SCALED, KEPT_OWN = (
    2,
    1,
)  # families that go on to the target: with frequencies alone, and with attention of their own
FINALISTS = 3.5  # finalists beside the two references, as multiples of the plain model's work


@dataclass(frozen=True)
class Option:
    """Something a user may do: its name, its methods without a factor, its factor if that is fixed,
    if frequencies alone express it.
    """

    name: str
    family: str
    factor: float | None = None
    frequencies: bool = False
    extension: str = "none"
    scale: str = "none"

    @property
    def by_length(self) -> bool:
        """True if the factor follows the length of each text."""
        return self.frequencies and self.factor is None

    def at(self, length: int, train_len: int) -> tuple[dict, dict]:
        """(extension, scale) at one length. A factor that follows the length is a fixed one there,
        so both forms share evaluations.
        """
        inside = length <= train_len
        extension = node("extension", "none" if inside and self.name == CUT else self.extension)
        if "mode" in extension and (self.frequencies or "+" in self.family):
            target = (
                max(length, train_len) if self.factor is None else round(self.factor * train_len)
            )
            extension |= {"mode": "fixed", "target_len": target}
        return extension, node(
            "scale_attention", "none" if inside else self.scale
        )  # log-n is 1 within the training length


Wanted = Sequence[
    tuple[Option, Sequence[int]]
]  # what a stage measures: options, each with its lengths
AS_IT_IS, CUT_TEXT = Option(UNCHANGED, UNCHANGED), Option(CUT, CUT, extension="recompute_window")


def node(group: str, name: str) -> dict:
    """Content of a method's yaml, to be changed at will."""
    return copy.deepcopy(nodes(group)[name])


def follow(family: str) -> Option:
    """A family whose factor follows the length of each text, or one without a factor."""
    method, _, scale = family.partition("+")
    method, scale = ("none", "log_n") if method == "log_n" else (method, scale or "none")
    frequencies = family in SCALED or family in FOLLOWS
    return Option(
        f"{family} by length" if frequencies else family, family, None, frequencies, method, scale
    )


def fixed(family: str, factors: Iterable[float]) -> list[Option]:
    """A family with each of the factors; none for a family that has no fixed form here."""
    return [
        Option(f"{family} x{factor:g}", family, factor, True, family)
        for factor in factors
        if family in SCALED
    ]


def chosen_families(methods: Sequence[str] | None) -> tuple[str, ...]:
    """Families of methods=, or all of them. Raises ConfigError for an unknown one."""
    for name in methods or ():
        if name not in FAMILIES:
            raise ConfigError(
                f"methods={name} is unknown{did_you_mean(name, FAMILIES)}: choose from"
                f" {', '.join(FAMILIES)}."
            )
    return tuple(name for name in FAMILIES if not methods or name in methods)


@dataclass(frozen=True)
class AdvicePlan:
    """Lengths in tokens: `short` within the training length, `probe` where families are compared,
    `grid` for the finalists.
    """

    train_len: int
    target: int
    probe: int
    short: tuple[int, ...]
    grid: tuple[int, ...]
    factors: tuple[float, ...]
    targets: int
    windows: dict[str, int]  # by split
    flop: float  # of the whole plan
    tolerance: float  # nats/token, the cost that counts as none

    def lengths(self, use: str) -> Sequence[int]:
        """Lengths over which a use is judged."""
        return self.short if use == "short" else (self.target,)

    @property
    def told(self) -> str:
        """Work of the whole plan in words, and its time on the machine that BUDGET_FLOP is of."""
        minutes, tera = self.flop / BUDGET_FLOP * 60, self.flop / 1e12
        took = f"about {minutes:,.0f} min" if minutes >= 1 else "less than a minute"
        work = f"{tera:,.0f}" if tera >= 100 else f"{tera:.3g}"  # .3g writes a thousand as 1e+03
        return f"at most {work} TFLOP: {took} on two cores with AMX"

    def long_factors(self, family: str) -> tuple[float, ...]:
        """Factors of a family that are compared at the target: those that reach it, beyond 4 only
        one that overshoots.
        """
        reached = self.target / self.train_len
        most = max(self.factors) if family in OVERSHOOT else max(4.0, reached)
        return tuple(factor for factor in self.factors if reached <= factor <= most)

    def probed(self, families: Iterable[str]) -> list[Option]:
        """Options of the first stage: every family by length, and those of OVERSHOOT with a fixed
        factor too.
        """
        factor = 2 * self.probe / self.train_len
        return [
            one
            for family in families
            for one in [follow(family), *(fixed(family, [factor]) if family in OVERSHOOT else [])]
        ]

    def compared(self, families: Sequence[str]) -> Wanted:
        """Second stage: each factor that reaches the target there too, the others within the
        training length.
        """
        long = [
            one
            for family in families
            for one in [*fixed(family, self.long_factors(family)), follow(family)]
        ]
        costs = [
            one for family in families for one in fixed(family, self.factors) if one not in long
        ]
        return [
            *((one, [*self.short, self.target]) for one in long),
            *((one, self.short) for one in costs),
        ]

    def judged(self, final: Sequence[str], options: Mapping[str, Option]) -> Wanted:
        """Third stage: the finalists at all lengths, and the cost of every factor of a finalist's
        family.
        """
        families = {options[name].family for name in final if options[name].frequencies}
        costs = [
            one
            for one in options.values()
            if one.family in families and one.factor and one.name not in final
        ]
        return [
            *((options[name], self.grid) for name in final),
            *((one, self.short) for one in costs),
        ]


def survivors(order: Sequence[str]) -> list[str]:
    """Families that go on to the target, of all in their order: the best by frequencies alone, and
    the best with attention of its own.

    Sinks see no more than the training length, so near the cut text's loss they always are; they go
    on beside another, if they are better."""
    own = [family for family in order if family in OWN_ATTENTION]
    reading = [family for family in own if family not in SINKS][:KEPT_OWN]
    sinks = [
        family
        for family in own
        if family in SINKS and (not reading or own.index(family) < own.index(reading[0]))
    ][:1]
    scaled = [family for family in order if family not in own][:KEPT_SCALED]
    return scaled + [family for family in order if family in (*reading, *sinks)]


def plan_advice(
    size: ModelSize,
    train_len: int,
    target: int | None,
    budget: float,
    families: Sequence[str],
    tolerance: float = 0.01,
) -> AdvicePlan:
    """Plan for a model of a size. Raises ConfigError for a target that is not beyond the training
    length.
    """
    target = target or 2 * train_len
    if target <= train_len:
        raise ConfigError(
            f"target={target} is within the model's training length of {train_len:,} tokens: give a"
            " longer one."
        )
    targets = max(1, train_len // 8)
    short = tuple(sorted({max(targets, train_len // 4), train_len}))
    probe = min(target, 2 * train_len)
    doubled = [train_len * 2**n for n in range(1, 40) if train_len * 2**n < target]
    grid = (*short, *doubled, target)
    reached = target / train_len
    factors = tuple(
        sorted(
            {
                factor
                for factor in (2.0, 4.0, reached, 2 * reached)
                if factor <= max(4.0, 2 * reached)
            }
        )
    )

    def forward(length: int) -> float:
        return size.forward(ReadVolume(1, length, min(targets, length), 0))

    within, cut = sum(map(forward, short)), 2 * forward(train_len)
    scaled = min(KEPT_SCALED, sum(name in SCALED for name in families))
    own = min(KEPT_OWN, sum(name not in SCALED for name in families))
    long = sum(factor >= reached for factor in factors) + sum(
        reached <= factor <= max(4.0, reached) for factor in factors
    )
    probing = sum(WORK.get(name.split("+")[0], 1.0) + (name in OVERSHOOT) for name in families) + 1
    at_target = (scaled / KEPT_SCALED * long + 2.3 * own) * forward(target)
    searched = (
        probing * forward(probe) + cut + at_target + (scaled * len(factors) + own + 1) * within
    )
    tested = (1 + FINALISTS) * sum(map(forward, grid)) + cut + len(factors) * within
    spent = {"validation": (SEARCH * budget, searched), "test": ((1 - SEARCH) * budget, tested)}
    windows = {
        split: min(
            MOST_WINDOWS[split], max(FEWEST_WINDOWS[split], int(share * BUDGET_FLOP // each))
        )
        for split, (share, each) in spent.items()
    }
    flop = sum(windows[split] * each for split, (_, each) in spent.items())
    return AdvicePlan(
        train_len, target, probe, short, grid, factors, targets, windows, flop, tolerance
    )
