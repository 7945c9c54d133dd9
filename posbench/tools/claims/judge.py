"""Judgement of claims: effects with intervals, verdicts against margins, a correction by stage.

Holm's correction is over the primaries of a stage that pass the gate.

Stage one keeps the rules by which it was judged: intervals by clustering whatever the number of
seeds, each endpoint a question of its own, two sides. Later stages take the analysis of variance
from five seeds on, count a comparison once, and ask one side where the rules are the two sides of
one bound. Seeds that they name take no part in stage one. Their comparisons that are not measured
yet count in the correction with p = 1, so that a verdict which stands already stands when the rest
is measured.

The gate of an accuracy at a task is that every training has learned the task inside its window; of
all else, that it uses its window (G).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from posbench.common.errors import RunError
from posbench.report.learned import LEAST_LEARNED_SHARE, task_that_shows_learning
from posbench.report.scores import TASK_PROTOCOL as ASKED
from posbench.results.evaluation import Evaluation
from posbench.statistics.crossed import ANOVA_FROM, Estimate, Sums, estimate
from posbench.statistics.usable_length import Usable
from posbench.statistics.verdict_rules import (
    ALPHA,
    Judged,
    benjamini_hochberg,
    decide,
    holm,
    n_sides,
)
from posbench.tools.claims.find import (
    USUAL_TEXT,
    MissingEvaluation,
    Pool,
    check_same_targets,
    row_at,
    sums_at_full_window,
    sums_at_lengths,
    text_of_experiment,
)
from posbench.tools.claims.language import BOTH_VERDICTS, MEASURES, Claim, ClaimCell, Endpoint

NOT_MEASURED = "not measured"
BY_TEST = "by test"  # note of a claim that a test decides
WeightedSums = list[tuple[float, Sums]]  # weighted means whose sum is an effect


@dataclass(frozen=True)
class Finding:
    """Row of claims.csv: the result of an endpoint. Numbers are None if it was not measured."""

    claim: str
    endpoint: str
    primary: bool
    statement: str
    source: str
    rule: str
    experiment: str
    compared: str
    unit: str
    confirm: str
    refute: str
    stage: int = 1
    sides: int = 2  # of p: 1 where confirm and refute are the two sides of one bound
    effect: float | None = None  # in `unit`; inf: beyond the longest length evaluated
    lower: float | None = None
    upper: float | None = None
    over: str | None = None
    by_seed: str | None = None  # effect of each seed, in the order of `seeds`
    seeds: str | None = None
    documents: int | None = None
    targets: int | None = None
    nats: float | None = None  # nats/token in one bit/byte of these targets
    # the lowest lower 95 % bound of G among the trainings, bits/byte
    gain_lower: float | None = None
    p: float | None = None
    p_holm: float | None = None
    q: float | None = None  # of Benjamini and Hochberg
    by_interval: str | None = None  # the verdict of this p alone
    verdict: str = ""  # after the gate and Holm; empty for a descriptive endpoint
    note: str = ""
    evaluations: str = ""  # eval ids, as in rows.csv


def judge(
    claims: Sequence[Claim], pool_and_command: Callable[[Claim], tuple[Pool, str]]
) -> list[Finding]:
    """Findings of all endpoints, each stage a family.

    `pool_and_command` gives the evaluations of a claim, and the command that makes missing ones.
    """
    # How many primaries of a stage read each comparison.
    n_readings = Counter(
        (claim.stage, comparison_words(claim, endpoint))
        for claim in claims
        for endpoint in claim.primary
    )
    later_seeds = seeds_of_later_stages(claims)
    findings = []
    for claim in claims:
        findings += _judge_claim(claim, pool_and_command, later_seeds, n_readings)
    for stage in sorted({finding.stage for finding in findings}):
        _correct_stage(findings, stage)
    return findings


def comparison_words(claim: Claim, endpoint: Endpoint) -> str:
    """Words of what an endpoint compares, such as "rise of (rope at 2x) on books": the same models
    on another text are another comparison.
    """
    texts = {text_of_experiment(name) for name in claim.experiments} - {USUAL_TEXT}
    return f"{endpoint} on {', '.join(sorted(texts))}" if texts else str(endpoint)


def seeds_of_later_stages(claims: Iterable[Claim]) -> set[int]:
    """Seeds that primaries of later stages name, which take no part in stage one."""
    return {seed for claim in claims for endpoint in claim.primary for seed in endpoint.seeds}


def _correct_stage(findings: list[Finding], stage: int) -> None:
    """Correct the verdicts of a stage for their number, in place.

    In later stages a comparison that is still to be measured counts too, with p = 1."""
    tested = []  # indices of findings
    unmeasured = set()  # comparisons
    for index, finding in enumerate(findings):
        if finding.stage != stage:
            continue
        if finding.p is not None:  # a gated, a secondary and an unmeasured one have none
            tested.append(index)
        # Stage one keeps its rules, by which only what is measured counts.
        elif stage > 1 and finding.verdict == NOT_MEASURED:
            unmeasured.add(finding.compared)
    without_any_p = sorted(unmeasured - {findings[index].compared for index in tested})
    _correct_family(findings, tested, without_any_p)


def _correct_family(
    findings: list[Finding], tested: Sequence[int], unmeasured: Sequence[str]
) -> None:
    """Correct the verdicts of one family, in place.

    `tested` are indices of findings, `unmeasured` comparisons of the family that are not measured.
    """
    family = [findings[index] for index in tested]
    # What counts once: in stage one every endpoint, by its number in the family; in later stages
    # every comparison, by its words.
    groups = [
        finding.compared if finding.stage > 1 else number for number, finding in enumerate(family)
    ]
    p_of_groups: dict[object, float] = {}  # the largest p of those that read one comparison
    for group, finding in zip(groups, family, strict=True):
        p_of_groups[group] = max(finding.p, p_of_groups.get(group, 0.0))
    for group in unmeasured:
        p_of_groups[group] = 1.0
    q_of_groups = dict(zip(p_of_groups, benjamini_hochberg([*p_of_groups.values()]), strict=True))
    ps = [finding.p for finding in family] + [1.0] * len(unmeasured)
    adjusted_ps = holm(ps, [*groups, *unmeasured])
    # The adjusted p of what is unmeasured stand behind the others, and are left off.
    for index, group, p_holm in zip(tested, groups, adjusted_ps, strict=False):
        finding = findings[index]
        verdict = finding.by_interval
        note = finding.note
        if verdict != "undecided" and p_holm >= ALPHA:
            unit = "comparisons" if finding.stage > 1 else "primaries"
            lost = f"{verdict} by its own interval, not after Holm over {len(p_of_groups)} {unit}"
            note = _joined_notes(note, lost)
            verdict = "undecided"
        findings[index] = replace(
            finding, p_holm=p_holm, q=q_of_groups[group], verdict=verdict, note=note
        )


def _judge_claim(
    claim: Claim,
    pool_and_command: Callable[[Claim], tuple[Pool, str]],
    later_seeds: set[int],
    n_readings: Counter,
) -> list[Finding]:
    """Findings of a claim. `n_readings` counts the primaries that read a comparison; only where one
    does may its rules be the two sides of one test.
    """
    if claim.test:
        return [_decided_by_test(claim)]
    pool, command = pool_and_command(claim)
    endpoints = [(True, endpoint) for endpoint in claim.primary]
    endpoints += [(False, endpoint) for endpoint in claim.secondary]
    findings = []
    for primary, endpoint in endpoints:
        finding = _finding_without_numbers(claim, endpoint, primary)
        # Stage one keeps its two sides, and a secondary endpoint has no verdict.
        if claim.stage > 1 and primary and n_readings[claim.stage, finding.compared] == 1:
            finding = replace(finding, sides=n_sides(endpoint.confirm, endpoint.refute))
        try:
            finding = _judge_endpoint(endpoint, pool, finding, later_seeds)
        except MissingEvaluation as error:
            finding = _marked_not_measured(finding, f"{error}: {command}")
        except RunError as error:  # what is there is damaged or ambiguous, so no command is named
            finding = _marked_not_measured(finding, str(error))
        findings.append(finding)
    return findings


def _decided_by_test(claim: Claim) -> Finding:
    """Finding of a claim that a test of this repository decides, which has no numbers."""
    return Finding(
        claim=claim.id,
        endpoint="",
        primary=False,
        statement=claim.statement,
        source=claim.source,
        rule=claim.rule,
        stage=claim.stage,
        experiment="",
        compared=claim.test,
        unit="",
        confirm="",
        refute="",
        verdict=claim.shows,
        note=BY_TEST,
    )


def _finding_without_numbers(claim: Claim, endpoint: Endpoint, primary: bool) -> Finding:
    """Finding of an endpoint, still without numbers."""
    return Finding(
        claim=claim.id,
        endpoint=endpoint.name,
        primary=primary,
        statement=claim.statement,
        source=claim.source,
        rule=claim.rule,
        stage=claim.stage,
        experiment=" ".join(claim.experiments),
        compared=comparison_words(claim, endpoint),
        unit=MEASURES[endpoint.measure],
        confirm=str(endpoint.confirm or ""),
        refute=str(endpoint.refute or ""),
    )


def _marked_not_measured(finding: Finding, note: str) -> Finding:
    """Finding with the reason why it has no numbers; a descriptive one has no verdict anyway."""
    return replace(finding, verdict=NOT_MEASURED if finding.primary else "", note=note)


class SeedsOfCell(NamedTuple):
    """Evaluations of a cell, one for each seed, and its signed weight in the comparison."""

    weight: float
    cell: ClaimCell
    entries: list[Evaluation]


class CommonCells(NamedTuple):
    """Cells of an endpoint, restricted to their common `seeds`."""

    seeds: list[int]
    cells: list[SeedsOfCell]
    note: str  # on seeds that lack a cell

    @property
    def entries(self) -> list[Evaluation]:
        """Evaluations of all cells."""
        return [entry for cell in self.cells for entry in cell.entries]


class Gate(NamedTuple):
    """Proof that the trainings use their window, and the reason where it is lacking."""

    gain_lower: float | None  # lowest lower bound of G, bits/byte; None for accuracies alone
    fault: str  # "" if the gate is passed


def _judge_endpoint(
    endpoint: Endpoint, pool: Pool, finding: Finding, later_seeds: set[int]
) -> Finding:
    """`finding` with numbers and verdict. Raises MissingEvaluation if an evaluation is not
    there.

    An endpoint that names no seeds leaves out `later_seeds`, with which later stages decide.
    """
    common = _cells_of_common_seeds(endpoint, pool, later_seeds)
    check_same_targets(common.entries)
    gate = _gate_of_trainings(common, pool)
    # Number of seeds from which on the interval is by analysis of variance: in stage one none.
    anova_from = ANOVA_FROM if finding.stage > 1 else math.inf
    terms: WeightedSums = []
    # `judged` is the effect that the rules judge, and `comparison` has the documents and targets
    # that are counted beside it.
    if endpoint.measure == "usable_length":
        (of_cell,) = common.cells  # `_check_measure` of the language lets it have no other
        usable = _usable_length(of_cell, pool, endpoint.margin, anova_from)
        judged: Judged = usable
        comparison = usable.rises[max(usable.rises)]  # the rise at the longest length
        by_seed = ""
    else:
        for cell in common.cells:
            terms += _terms_of_measure(endpoint.measure, cell, pool)
        judged = comparison = estimate(terms, anova_from)
        by_seed = " ".join(f"{number:.6g}" for number in comparison.by_seed)
    finding = _with_effect(finding, common, gate, judged, comparison, by_seed)
    if not finding.primary:  # it is shown without a verdict
        return finding
    if gate.fault and endpoint.gate == BOTH_VERDICTS:
        return replace(finding, verdict="gated", note=_joined_notes(finding.note, gate.fault))
    # A usable length, which has no terms, may be infinite: no length exceeds the margin.
    if terms and not math.isfinite(judged.value):
        return _undecided(finding, "a loss is not finite")

    def effect_and_bound(bound: float) -> tuple[Judged, float]:
        """The effect and the bound to compare it with. A bound that is a share of G, the gain from
        the window, is subtracted from the effect, and the rest compared with 0.
        """
        if not endpoint.confirm.of_gain:
            return judged, bound
        # G of the trainings of `of`, which is the first cell.
        gain = pool.gain_terms(common.cells[0].entries)
        less = [(-bound * weight, sums) for weight, sums in gain]
        return estimate([*terms, *less], anova_from), 0.0

    verdict, p = decide(endpoint.confirm, endpoint.refute, effect_and_bound, finding.sides)
    if gate.fault and verdict == endpoint.gate:  # the one verdict that needs trained models
        return _undecided(finding, f"not {verdict}: {gate.fault}")
    return replace(finding, p=p, by_interval=verdict, verdict=verdict)


def _cells_of_common_seeds(endpoint: Endpoint, pool: Pool, later_seeds: set[int]) -> CommonCells:
    """Evaluations of the seeds that all cells of an endpoint have.

    Raises MissingEvaluation without a common seed, and if one of the seeds that decide lacks a
    cell.
    """
    seeds_of_cells = []
    for weight, cell in endpoint.cells:
        by_seed = pool.evaluations_by_seed(cell, endpoint.windows, endpoint.seeds)
        # Seeds that a later stage names decide there, and an endpoint without seeds leaves them.
        if not endpoint.seeds:
            by_seed = {seed: by_seed[seed] for seed in by_seed if seed not in later_seeds}
        seeds_of_cells.append((weight, cell, by_seed))
    seed_sets = [set(by_seed) for _, _, by_seed in seeds_of_cells]
    seeds = sorted(set.intersection(*seed_sets))
    if lacking := sorted(set(endpoint.seeds) - set(seeds)):
        raise MissingEvaluation(
            f"seeds {', '.join(map(str, lacking))} have not all cells, and {endpoint} is judged by"
            " all of its seeds or not at all"
        )
    if not seeds:
        listed = "; ".join(str(sorted(seed_set)) for seed_set in seed_sets)
        raise MissingEvaluation(f"the cells have no seed in common ({listed})")
    note = ""
    if lone := sorted(set.union(*seed_sets) - set(seeds)):
        note = f"seeds {', '.join(map(str, lone))} have not all cells and are left out"
    cells = [
        SeedsOfCell(weight, cell, [by_seed[seed] for seed in seeds])
        for weight, cell, by_seed in seeds_of_cells
    ]
    return CommonCells(seeds, cells, note)


def _gate_of_trainings(common: CommonCells, pool: Pool) -> Gate:
    """The lowest bound of G among the trainings, and the reason why one has not learned, if any.

    Of an accuracy the answers inside the window show what was learned, of a loss G does.
    """
    gains = []
    accuracies = []
    for _, cell, entries in common.cells:
        for entry in entries:
            if cell.protocol == ASKED:
                row = row_at(entry, entry.first["train_len"], task_that_shows_learning(cell.task))
                accuracies.append(row["accuracy"])
            else:
                gains.append(pool.gain_lower(entry))
    fault = ""
    gain_lower = min(gains, default=None)
    if any(math.isnan(gain) for gain in gains):
        gain_lower = None
        fault = "G has no lower 95 % bound, as of a single document: use more evaluate.windows"
    elif gain_lower is not None and gain_lower <= 0:
        fault = "the lower 95 % bound of G is not above 0: the model does not use its window"
    elif accuracies and min(accuracies) < LEAST_LEARNED_SHARE:
        fault = (
            f"a training is right in {min(accuracies):.3f} of the answers inside its window, below"
            f" {LEAST_LEARNED_SHARE}: it has not learned the task"
        )
    return Gate(gain_lower, fault)


def _with_effect(
    finding: Finding,
    common: CommonCells,
    gate: Gate,
    judged: Judged,
    comparison: Estimate,
    by_seed: str,
) -> Finding:
    """`finding` with its numbers. Seeds and documents of `comparison` are those that count."""
    lower, upper = judged.interval()
    first = common.entries[0].first
    eval_ids = dict.fromkeys(entry.first["eval_id"] for entry in common.entries)
    return replace(
        finding,
        effect=judged.value,
        lower=lower,
        upper=upper,
        over=comparison.over,
        by_seed=by_seed,
        seeds=" ".join(map(str, common.seeds)),
        documents=comparison.n_documents,
        targets=comparison.n_targets,
        # Nats per target of one bit per byte; None for answers, which have no bytes.
        nats=math.log(2) * first["n_bytes"] / first["n_targets"] or None,
        gain_lower=gate.gain_lower,
        note=common.note,
        evaluations=" ".join(eval_ids),
    )


def _undecided(finding: Finding, reason: str) -> Finding:
    """Finding with the verdict undecided; p = 1 keeps it in its family's correction."""
    note = _joined_notes(finding.note, reason)
    return replace(finding, p=1.0, by_interval="undecided", verdict="undecided", note=note)


def _terms_of_measure(measure: str, of_cell: SeedsOfCell, pool: Pool) -> WeightedSums:
    """Weighted means whose sum is the measure of one cell.

    A rise is the loss less that of the floor, which reads the same targets with the full window."""
    weight, cell, entries = of_cell
    length = round(cell.at * entries[0].first["train_len"])
    quantity = "correct" if measure == "accuracy" else "nll"
    measured = sums_at_lengths(entries, [length] * len(entries), quantity, cell.task)
    terms = [(weight * measured.factor, measured.sums)]
    if measure == "rise":
        floors = [pool.recompute_reference(entry, "floor") for entry in entries]
        check_same_targets([*entries, *floors])
        floor = sums_at_full_window(floors)
        terms.append((-weight * floor.factor, floor.sums))
    return terms


def _usable_length(of_cell: SeedsOfCell, pool: Pool, margin: float, anova_from: float) -> Usable:
    """Usable length over the training length. Raises MissingEvaluation for fewer than three
    lengths.

    `margin` is the rise in bits/byte that still counts as usable, `anova_from` as in `estimate`.
    """
    _, cell, entries = of_cell
    train_len = entries[0].first["train_len"]
    lengths = set.intersection(*({row["length"] for row in entry.rows} for entry in entries))
    multiples = sorted(length / train_len for length in lengths if length >= train_len)
    if len(multiples) < 3:  # two would be the training length and one other
        raise MissingEvaluation(
            f"{cell} has {len(multiples)} lengths from the training length on, a usable length"
            " needs a grid"
        )
    rises = {}
    for multiple in multiples:
        at_multiple = SeedsOfCell(weight=1.0, cell=replace(cell, at=multiple), entries=entries)
        rises[multiple] = estimate(_terms_of_measure("rise", at_multiple, pool), anova_from)
    return Usable(rises, margin)


def _joined_notes(note: str, more: str) -> str:
    return f"{note}; {more}" if note else more
