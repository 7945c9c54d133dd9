"""Ledger of claims as CSV, and as Markdown made from the CSV alone."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from posbench.common import csv_records
from posbench.report.comparison_tables import p_text
from posbench.report.records import grouped
from posbench.report.table_formats import Table, markdown_row
from posbench.results.stages import STAGES
from posbench.tools.claims.judge import BY_TEST, NOT_MEASURED, Finding
from posbench.tools.claims.language import endpoint_name

VERDICT_ORDER = ("confirmed", "refuted", "undecided", "gated", NOT_MEASURED)
# The end of a note on an endpoint that was not measured; other notes lack it.
COMMAND_IN_NOTE = re.compile(r".*: (python scripts/.+)")
# {(stage, experiment): folder beside the page}: headline was measured again later.
FOLDERS_BESIDE_PAGE = {(1, "headline"): "headline"}
COLUMNS = (
    "claim",
    "what is claimed",
    "effect [95 %]",
    "confirms",
    "refutes",
    "G above",
    "seeds x documents",
    "p, by Holm, q",
    "verdict",
)


def read_findings(path: Path | str) -> list[Finding]:
    """Read the findings of a CSV. Raises RunError for another file."""
    return csv_records.from_csv(path, Finding, "a ledger of claims", "scripts/claims.py")


def terminal_table(findings: Sequence[Finding], width: int | None = None) -> str:
    """Verdicts of measured stages and commands for the rest, `width` (None: 240) columns wide."""
    from rich.console import Console

    columns = ["claim", "effect [95 %]", "G above", "verdict", "what is claimed"]
    rows = []
    for finding in _findings_with_row(_of_measured_stages(findings)):
        row = _table_row(finding)
        if finding.stage > 1:
            row["claim"] = f"{finding.stage}: {row['claim']}"
        rows.append([row[column] for column in columns])
    console = Console(width=width or 240, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(Table("Claims", columns, rows, name_columns=len(columns)).rich(tight=True))
        for command, number in _unmeasured_by_command(findings).items():
            console.print(f"{number} not measured: {command}", markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _unmeasured_by_command(findings: Sequence[Finding]) -> Counter:
    """Number of primaries that are not measured, by the command that measures them."""
    counted: Counter = Counter()
    for finding in findings:
        if finding.primary and finding.verdict == NOT_MEASURED:
            # of a note such as "REASON: python scripts/..."
            command = COMMAND_IN_NOTE.match(finding.note)
            counted[command[1] if command else finding.note] += 1
    return counted


def _findings_with_row(findings: Sequence[Finding]) -> list[Finding]:
    """Findings that have a row in the table: primaries, and claims decided by a test."""
    return [finding for finding in findings if finding.primary or finding.note == BY_TEST]


def ledger_markdown(findings: Sequence[Finding]) -> str:
    """Markdown of the measured stages: the verdicts of each, then the comparisons of each claim."""
    findings = _of_measured_stages(findings)
    stages = grouped(findings, lambda finding: finding.stage)
    parts = ["# Claims"]
    if len(stages) > 1:
        parts.append(
            "Stages are families apart: each has its own correction, and a verdict of one says"
            " nothing of the other's."
        )
    for stage in sorted(stages):
        if len(stages) > 1:
            parts.append(f"## Stage {STAGES[stage]}")
        parts += _verdict_counts(stages[stage])
        parts.append(_rules_in_words(stages[stage]))
        parts.append(_markdown_table(stages[stage], COLUMNS))
    for of_claim in grouped(findings, lambda finding: (finding.stage, finding.claim)).values():
        parts.append(_claim_section(of_claim))
    return "\n\n".join(parts) + "\n"


def _of_measured_stages(findings: Sequence[Finding]) -> list[Finding]:
    """Findings of stages of which anything was measured or tested; all if there are none."""
    stages = {finding.stage for finding in findings if finding.seeds or finding.note == BY_TEST}
    return [finding for finding in findings if finding.stage in stages] or list(findings)


def _verdict_counts(findings: Sequence[Finding]) -> list[str]:
    """Paragraphs on how many endpoints of a stage have which verdict."""
    rows = _findings_with_row(findings)
    primaries = [finding for finding in rows if finding.primary]
    counted = Counter(finding.verdict for finding in primaries)
    verdicts = ", ".join(
        f"{counted[verdict]} {verdict}" for verdict in VERDICT_ORDER if counted[verdict]
    )
    summary = f"Of {len(primaries)} primary endpoints: {verdicts}."
    n_tests = len(rows) - len(primaries)
    if n_tests:
        summary += f" {n_tests} numerical claims are decided by tests."
    paragraphs = [summary]
    n_lost = sum(map(_lost_by_correction, primaries))
    if n_lost:
        paragraphs.append(
            f"{n_lost} of the undecided are decided by their own interval alone, and not after"
            " the correction."
        )
    return paragraphs + _shared_comparisons(primaries)


def _lost_by_correction(finding: Finding) -> bool:
    """True if the finding's own interval decides it, and the correction does not let it stand."""
    return finding.by_interval not in (None, finding.verdict)


def _rules_in_words(findings: Sequence[Finding]) -> str:
    """Paragraph on units, interval and correction of one stage."""
    of_stage = _rules_of_stage_one if findings[0].stage == 1 else _rules_of_later_stages
    interval_and_correction = of_stage(findings)
    return (
        "Effects, margins and G in bits per byte unless a unit is given; in brackets after a"
        f" margin, nats per token. Every target weighs alike. {interval_and_correction} Flat means"
        " that the interval lies inside +-margin. q is Benjamini and Hochberg's: of the verdicts"
        " with q below 0.05 at most one in twenty is expected to be wrong, where Holm's correction"
        " allows one wrong verdict in one of twenty ledgers."
    )


def _rules_of_stage_one(findings: Sequence[Finding]) -> str:
    n_tested = sum(finding.p_holm is not None for finding in findings)
    return (
        "The interval is one: seeds crossed with documents (two-way clustered, Student's t"
        " with seeds - 1 degrees of freedom), or documents where there is one seed. A verdict"
        " needs the whole 95 % interval on one side of the margin that the claim's yaml holds,"
        f" and must stand after Holm's correction over the {n_tested} primaries that were"
        " measured and passed the gate (the lower 95 % bound of G above 0 for every training"
        " that a claim rests on); else it is undecided at this scale."
    )


def _rules_of_later_stages(findings: Sequence[Finding]) -> str:
    """Sentences on the rules of stages after the first, with the number of comparisons that share
    Holm's correction.
    """
    tested = {finding.compared for finding in findings if finding.p_holm is not None}
    unmeasured = {finding.compared for finding in findings if finding.verdict == NOT_MEASURED}
    n_waiting = len(unmeasured - tested)
    unmeasured_count = ""
    if n_waiting:
        unmeasured_count = (
            f" The {n_waiting} that are not measured yet count with p = 1, so that what stands now"
            " stands then."
        )
    return (
        "The interval is seeds crossed with documents, from five seeds on by the analysis of"
        " variance with Satterthwaite's degrees of freedom. A verdict needs all seeds that its"
        " yaml names, p below 0.05 (of one side where the rules are the two sides of one bound"
        " of a comparison that is read once, else of two), and must stand after Holm's"
        f" correction over the {len(tested) + n_waiting} comparisons"
        " that did not fail the gate (the lower 95 % bound of G above 0 for every training,"
        " and of an accuracy that every training has learned the task inside its window, but"
        " where a yaml says which verdict needs it); endpoints that read one comparison count"
        f" once.{unmeasured_count}"
    )


def _shared_comparisons(primaries: Sequence[Finding]) -> list[str]:
    """Sentence on primaries with the same comparison, which are one piece of evidence, if any."""
    comparisons = grouped(primaries, lambda finding: finding.compared)
    shared = [same for same in comparisons.values() if len(same) > 1]
    if not shared:
        return []
    fewer = ""
    for verdict in VERDICT_ORDER:
        compared = [finding.compared for finding in primaries if finding.verdict == verdict]
        if len(set(compared)) < len(compared):
            fewer += f", the {len(compared)} {verdict} are {len(set(compared))}"
    names = "; ".join(" and ".join(map(_endpoint_label, same)) for same in shared)
    return [
        f"One comparison each: {names}. So {len(primaries)} endpoints are"
        f" {len(comparisons)} comparisons{fewer}."
    ]


def _endpoint_label(finding: Finding) -> str:
    return endpoint_name(finding.claim, finding.endpoint)


def brief_markdown(findings: Sequence[Finding]) -> str:
    """Markdown of the verdicts of measured stages alone, in fewer columns."""
    columns = ("claim", "what is claimed", "effect [95 %]", "G above", "verdict")
    stages = grouped(_of_measured_stages(findings), lambda finding: finding.stage)
    parts = []
    for stage in sorted(stages):
        if len(stages) > 1:
            parts.append(f"### Stage {STAGES[stage]}")
        parts.append(_markdown_table(stages[stage], columns))
    return "\n\n".join(parts) + "\n"


def _markdown_table(findings: Sequence[Finding], columns: Sequence[str]) -> str:
    lines = [markdown_row(columns), markdown_row([":---"] * len(columns))]
    for finding in _findings_with_row(findings):
        row = _table_row(finding)
        lines.append(markdown_row([row[column] for column in columns]))
    return "\n".join(lines)


def _table_row(finding: Finding) -> dict[str, str]:
    """Cells of a finding by column of COLUMNS."""
    row = dict.fromkeys(COLUMNS, "")
    row["claim"] = _endpoint_label(finding)
    row["what is claimed"] = finding.statement
    row["verdict"] = finding.verdict
    if not finding.primary:  # a claim that a test decides, which has no measured effect
        row["verdict"] += f" {BY_TEST}"
        return row
    if _lost_by_correction(finding):
        row["verdict"] += f" ({finding.by_interval} alone)"
    row["effect [95 %]"] = _effect_with_interval(finding)
    row["confirms"] = _rule_with_nats(finding, finding.confirm)
    row["refutes"] = _rule_with_nats(finding, finding.refute)
    if finding.gain_lower is not None:
        row["G above"] = f"{finding.gain_lower:.3f}"
    if finding.seeds:
        row["seeds x documents"] = f"{len(finding.seeds.split())} x {finding.documents}"
    ps = [p for p in (finding.p, finding.p_holm, finding.q) if p is not None]
    row["p, by Holm, q"] = ", ".join(map(p_text, ps))
    return row


def _effect_with_interval(finding: Finding) -> str:
    """Effect with its interval, such as "-0.033 [-0.050, -0.016]"; "" if it was not measured."""
    if finding.effect is None:
        return ""
    # A length is not signed and spans orders of magnitude. bits/byte is the unit where none stands.
    number_format = ".3g" if finding.unit == "x train_len" else "+.3f"
    low = _effect_number(finding.lower, number_format)
    high = _effect_number(finding.upper, number_format)
    unit = "" if finding.unit == "bits/byte" else f" {finding.unit}"
    return f"{_effect_number(finding.effect, number_format)} [{low}, {high}]{unit}"


def _effect_number(value: float, number_format: str) -> str:
    """An effect or its bound; "-" for a bound that is not known."""
    if value == math.inf:
        return "beyond"  # the longest length evaluated
    return "-" if math.isnan(value) else f"{value:{number_format}}"


def _rule_with_nats(finding: Finding, rule: str) -> str:
    """Rule with its bounds also in nats/token, if they are in bits/byte and the text is known."""
    words = rule.split()
    if finding.unit != "bits/byte" or finding.nats is None or words[-1:] == ["G"]:
        return rule
    in_nats = " ".join(f"{float(bound) * finding.nats:.3g}" for bound in words[1:])
    return f"{rule} ({in_nats})"


def _claim_section(findings: list[Finding]) -> str:
    """Section on a claim: statement, source, rule, and a line for each endpoint."""
    first = findings[0]
    mark = "##" if first.stage == 1 else "###"  # later stages have a heading of their own
    lines = [f"{mark} {first.claim}: {first.statement}", "", f"{first.source}.", ""]
    lines += [f"Rule: {first.rule}", ""]
    for finding in findings:
        if finding.note == BY_TEST:
            lines.append(f"- {finding.verdict} by `pytest {finding.compared}`")
        else:
            lines.append(f"- {_endpoint_line(finding)}")
    return "\n".join(lines)


def _endpoint_line(finding: Finding) -> str:
    """Line on an endpoint: comparison, verdict, effect, seeds, note and rows."""
    line = f"{finding.endpoint}: " if finding.endpoint else ""
    line += f"{finding.compared}:"
    if finding.primary:
        line += f" **{finding.verdict}**"
    else:
        line += " (descriptive)" if finding.over else " (descriptive) not measured:"
    if finding.effect is not None:
        line += f" {_effect_with_interval(finding)},"
    if finding.over:
        line += (
            f" over {finding.over} (seeds {finding.seeds}; {finding.documents} documents,"
            f" {finding.targets} targets)."
        )
    if finding.by_seed:
        effects = " ".join(f"{float(effect):+.3f}" for effect in finding.by_seed.split())
        line += f" By seed: {effects}."
    if finding.note:
        line += f" {finding.note[0].upper()}{finding.note[1:]}."
    if finding.evaluations:
        eval_ids = " ".join(eval_id[:8] for eval_id in finding.evaluations.split())
        line += f" Rows: {_row_links(finding)}, eval_id {eval_ids}."
    return line


def _row_links(finding: Finding) -> str:
    """Links from the folder of claims.md to the rows of a finding's experiments."""
    links = []
    for experiment in finding.experiment.split():
        folder = FOLDERS_BESIDE_PAGE.get((finding.stage, experiment), f"../{experiment}")
        links.append(f"[{experiment}]({folder}/rows.csv)")
    return ", ".join(links)
