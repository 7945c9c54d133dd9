"""Plan of an advice by arithmetic alone: options, lengths, factors, windows and stages.

The same words make the same plan. An option has a fixed factor, the factor of each text's length,
or attention of its own. Stages: every family once, beyond the training length, on validation
documents; there the best few families at the target with each factor; then the finalists on test
documents at all lengths. budget=1 is BUDGET_FLOP FLOP, of which the search has a share; no stage
has fewer than its least number of windows, so a long target can take more than its budget, which
the plan says.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.defaults import usual_targets
from posbench.config.names import shipped_yamls
from posbench.evaluation.protocol import ReadVolume
from posbench.sweep.cost import ModelSize

# The two options that need no setting.
UNCHANGED = "as it is"
CUT = "cut"
# change frequencies by a factor, which may be fixed
SCALED_FAMILIES = (
    "pi",
    "ntk",
    "yarn",
    "llama3",
)
# Changes frequencies by the length of the text alone, with a factor that overshoots.
FOLLOWING_FAMILIES = ("dynamic_ntk",)
# Better with a larger factor than the length's (posbench/extensions/ntk.py), so compared with
# twice that too.
OVERSHOOTING_FAMILIES = ("ntk",)
# Attention of their own, or a factor on the logits that no engine has.
OWN_ATTENTION_FAMILIES = (
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
SINK_FAMILIES = ("streaming", "lm_infinite")
USUAL_FACTORS = (2.0, 4.0)  # compared in each plan, whatever its target
FAMILIES = (*SCALED_FAMILIES, *FOLLOWING_FAMILIES, *OWN_ATTENTION_FAMILIES)
# Work of one text of some families, as a multiple of the plain model's.
WORK_OF_FAMILY = {
    **dict.fromkeys(("rerope", "self_extend", "dca", "string"), 1.7),
    **dict.fromkeys(SINK_FAMILIES, 0.6),
}
BUDGET_FLOP = 1e15  # about an hour on two cores with AMX, in bf16
SEARCH_SHARE = 0.4  # share of the budget
FEWEST_WINDOWS = {"validation": 1, "test": 3}
MOST_WINDOWS = {"validation": 128, "test": 512}
# Families that go on to the target: with frequencies alone, and with attention of their own.
KEPT_SCALED = 2
KEPT_OWN = 1
WORK_OF_OWN = 2.3  # of a family with attention of its own, and a sink beside it
WORK_OF_FINALISTS = (
    3.5  # finalists beside the two references, as multiples of the plain model's work
)


@dataclass(frozen=True)
class Option:
    """Something a user may do: its name, its methods without a factor, and its factor if fixed.

    `only_frequencies`: whether frequencies alone express it.
    """

    name: str
    family: str
    factor: float | None = None
    only_frequencies: bool = False
    extension: str = "none"
    scale: str = "none"

    @property
    def by_length(self) -> bool:
        """True if the factor follows the length of each text."""
        return self.only_frequencies and self.factor is None

    def methods_at(self, length: int, train_len: int) -> tuple[dict, dict]:
        """Extension and scale at one length.

        A factor that follows the length is a fixed one there, so both forms share evaluations.
        """
        if length <= train_len:
            # Within the training length log-n is 1, and there is nothing to cut. A fixed factor of
            # frequencies stays: what it costs there is measured.
            scale = method_node("scale_attention", "none")
            extension = method_node("extension", "none" if self.name == CUT else self.extension)
        else:
            scale = method_node("scale_attention", self.scale)
            extension = method_node("extension", self.extension)
        # Frequencies take a fixed factor, also those of a pair such as ntk+log_n.
        if "mode" in extension and (self.only_frequencies or "+" in self.family):
            target = max(length, train_len)
            if self.factor is not None:
                target = round(self.factor * train_len)
            extension |= {"mode": "fixed", "target_len": target}
        return extension, scale


# What a stage measures: options, each with its lengths.
OptionsAtLengths = Sequence[tuple[Option, Sequence[int]]]
AS_IT_IS = Option(UNCHANGED, UNCHANGED)
CUT_TEXT = Option(CUT, CUT, extension="recompute_window")


def method_node(group: str, name: str) -> dict:
    """Content of a method's yaml, to be changed at will."""
    return copy.deepcopy(shipped_yamls(group)[name])


def option_by_length(family: str) -> Option:
    """A family without a fixed factor: one that follows the length of each text, or none at all."""
    if family in SCALED_FAMILIES or family in FOLLOWING_FAMILIES:
        return Option(
            name=f"{family} by length", family=family, only_frequencies=True, extension=family
        )
    # The others have attention of their own, or a factor on the logits.
    if family == "log_n":  # a scale without an extension
        return Option(name=family, family=family, scale="log_n")
    extension, _, scale = family.partition("+")
    return Option(name=family, family=family, extension=extension, scale=scale or "none")


def options_with_factors(family: str, factors: Iterable[float]) -> list[Option]:
    """A family with each of the factors; none for a family that has no fixed form here."""
    if family not in SCALED_FAMILIES:
        return []
    return [
        Option(f"{family} x{factor:g}", family, factor, only_frequencies=True, extension=family)
        for factor in factors
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
    """Lengths in tokens, factors and numbers of windows.

    `short_lengths` are within the training length, at `probe_length` families are compared,
    `finalist_lengths` are those of the third stage.
    """

    train_len: int
    target: int
    probe_length: int
    short_lengths: tuple[int, ...]
    finalist_lengths: tuple[int, ...]
    factors: tuple[float, ...]
    targets: int
    windows: dict[str, int]  # by split
    flop: float  # of the whole plan
    tolerance: float  # nats/token, the cost that counts as none

    def lengths_of_use(self, use: str) -> Sequence[int]:
        """Lengths over which a use is judged."""
        return self.short_lengths if use == "short" else (self.target,)

    @property
    def work_words(self) -> str:
        """Work of the whole plan in words, and its time on the machine that BUDGET_FLOP is of."""
        tera = self.flop / 1e12
        work = f"{tera:,.0f}" if tera >= 100 else f"{tera:.3g}"  # .3g writes a thousand as 1e+03
        minutes = self.flop / BUDGET_FLOP * 60
        time = f"about {minutes:,.0f} min" if minutes >= 1 else "less than a minute"
        return f"at most {work} TFLOP: {time} on two cores with AMX"

    def long_factors(self, family: str) -> tuple[float, ...]:
        """Factors of a family that are compared at the target: those that reach it.

        A family that does not overshoot gains nothing by a larger factor than that of the target,
        so of these it keeps only USUAL_FACTORS.
        """
        reached = self.target / self.train_len
        most = (
            max(self.factors) if family in OVERSHOOTING_FAMILIES else max(*USUAL_FACTORS, reached)
        )
        return tuple(factor for factor in self.factors if reached <= factor <= most)

    def first_stage(self, families: Iterable[str]) -> list[Option]:
        """Options of the first stage: every family by length.

        Those of OVERSHOOTING_FAMILIES come with a fixed factor too.
        """
        # Twice the one that reaches the probe, which suits families that overshoot.
        factor = 2 * self.probe_length / self.train_len
        options = []
        for family in families:
            options.append(option_by_length(family))
            if family in OVERSHOOTING_FAMILIES:
                options += options_with_factors(family, [factor])
        return options

    def second_stage(self, families: Sequence[str]) -> OptionsAtLengths:
        """Second stage: every factor within the training length, for its cost.

        Those of `long_factors` are read at the target too, and so is the form that follows the
        length.
        """
        reaching = []
        for family in families:
            reaching += [
                *options_with_factors(family, self.long_factors(family)),
                option_by_length(family),
            ]
        at_lengths = [(option, [*self.short_lengths, self.target]) for option in reaching]
        for family in families:
            for option in options_with_factors(family, self.factors):
                if option not in reaching:
                    at_lengths.append((option, self.short_lengths))
        return at_lengths

    def third_stage(self, final: Sequence[str], options: Mapping[str, Option]) -> OptionsAtLengths:
        """Third stage: the finalists at all lengths.

        Beside them, at the short lengths, all factors of a finalist's family: a served model may
        be given any of them, and what it loses on short texts is the cost of that factor.
        """
        at_lengths = [(options[name], self.finalist_lengths) for name in final]
        # Families of frequencies alone: others take no factor from outside.
        families = {options[name].family for name in final if options[name].only_frequencies}
        for option in options.values():
            if option.factor and option.family in families and option.name not in final:
                at_lengths.append((option, self.short_lengths))
        return at_lengths


def families_to_go_on(order: Sequence[str]) -> list[str]:
    """Families that go on to the target, of all in their order.

    They are the best by frequencies alone, and the best with attention of its own. Sinks see no
    more than the training length, so near the cut text's loss they always are; they go on beside
    another, if they are better.
    """
    by_frequencies = [family for family in order if family not in OWN_ATTENTION_FAMILIES]
    reading_all = [
        family
        for family in order
        if family in OWN_ATTENTION_FAMILIES and family not in SINK_FAMILIES
    ]
    better_sinks = []
    for family in order:
        if reading_all and family == reading_all[0]:
            break  # sinks after it are worse
        if family in SINK_FAMILIES:
            better_sinks.append(family)
    with_own_attention = {*reading_all[:KEPT_OWN], *better_sinks[:1]}
    return by_frequencies[:KEPT_SCALED] + [
        family for family in order if family in with_own_attention
    ]


def plan_advice(
    size: ModelSize,
    train_len: int,
    target: int | None,
    budget: float,
    families: Sequence[str],
    tolerance: float = 0.01,
) -> AdvicePlan:
    """Plan for a model of a size. `budget` is in units of BUDGET_FLOP, `tolerance` in nats.

    Raises ConfigError for a target that is not beyond the training length.
    """
    target = target or 2 * train_len
    if target <= train_len:
        raise ConfigError(
            f"target={target} is within the model's training length of {train_len:,} tokens: give a"
            " longer one."
        )
    targets = usual_targets(train_len)
    # Short texts are a quarter of the training length and all of it. A text has at least as many
    # tokens as targets.
    short = tuple(sorted({max(targets, train_len // 4), train_len}))
    # Doublings that lie between training and target; 2^40 is beyond any.
    doubled = [train_len * 2**n for n in range(1, 40) if train_len * 2**n < target]
    reached = target / train_len
    # Besides the factor of the target its double is tried, for families that overshoot.
    factors = {*USUAL_FACTORS, reached, 2 * reached}
    unsized = AdvicePlan(
        train_len=train_len,
        target=target,
        probe_length=min(target, 2 * train_len),  # beyond training, and cheaper than a far target
        short_lengths=short,
        finalist_lengths=(*short, *doubled, target),
        factors=tuple(sorted(factors)),
        targets=targets,
        windows={},
        flop=0.0,
        tolerance=tolerance,
    )
    budgets = {"validation": SEARCH_SHARE * budget, "test": (1 - SEARCH_SHARE) * budget}
    work = _work_of_a_window(unsized, size, families)
    windows = {}
    for split, share in budgets.items():
        n_windows = int(share * BUDGET_FLOP // work[split])
        windows[split] = min(MOST_WINDOWS[split], max(FEWEST_WINDOWS[split], n_windows))
    flop = sum(windows[split] * work[split] for split in windows)
    return replace(unsized, windows=windows, flop=flop)


def _work_of_a_window(
    plan: AdvicePlan, size: ModelSize, families: Sequence[str]
) -> dict[str, float]:
    """FLOP of all options at all their lengths on one window, by split."""

    def forward(length: int) -> float:
        text = ReadVolume(
            texts=1, tokens_per_text=length, rows_per_text=min(plan.targets, length), total_losses=0
        )
        return size.forward_flop(text)

    short_texts = sum(map(forward, plan.short_lengths))
    # Beyond LONG_TRAINING the usual targets are two blocks of the floor, each with a text.
    cut = 2 * forward(plan.train_len)
    n_scaled = min(KEPT_SCALED, sum(name in SCALED_FAMILIES for name in families))
    n_own = min(KEPT_OWN, sum(name not in SCALED_FAMILIES for name in families))
    probing = 1.0  # texts at the probe, the model as it is among them
    for name in families:
        probing += WORK_OF_FAMILY.get(name.split("+")[0], 1.0)  # a scale beside it costs nothing
        if name in OVERSHOOTING_FAMILIES:  # read with a fixed factor too
            probing += 1
    # The longest lists of factors at the target: of a family that overshoots, and of one that does
    # not. With fewer than KEPT_SCALED families that go on, their share counts.
    n_long = sum(len(plan.long_factors(family)) for family in ("ntk", "yarn"))
    at_target = (n_scaled / KEPT_SCALED * n_long + WORK_OF_OWN * n_own) * forward(plan.target)
    as_it_is = 1  # the model without a setting
    at_short = (as_it_is + n_scaled * len(plan.factors) + n_own) * short_texts
    # `third_stage`: finalists at all lengths, and every factor of their family at the short ones.
    judged = (as_it_is + WORK_OF_FINALISTS) * sum(map(forward, plan.finalist_lengths))
    judged += len(plan.factors) * short_texts
    return {
        "validation": probing * forward(plan.probe_length) + cut + at_target + at_short,
        "test": judged + cut,
    }
