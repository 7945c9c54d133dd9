"""Ledger of claims as CSV, and as Markdown made from the CSV alone."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from posbench.common import csv_records
from posbench.report.records import grouped
from posbench.report.tables import Table, markdown_row
from posbench.tools.claims.judge import NOT_MEASURED, Finding
from posbench.tools.claims.language import STAGES, endpoint_name

ORDER = ("confirmed", "refuted", "undecided", "gated", NOT_MEASURED)
WAY = re.compile(
    r".*: (python scripts/.+)"
)  # the end of a note on what was not measured; other notes lack it
JUDGED_ON = {
    (1, "headline"): "headline"
}  # {(stage, experiment): folder beside the page}: headline was measured again later
HEAD = (
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


def terminal(findings: Sequence[Finding], width: int | None = None) -> str:
    """Table of verdicts of measured stages for a terminal `width` characters wide (None: 240), and
    what is not measured.
    """
    from rich.console import Console

    console = Console(width=width or 240, no_color=True, highlight=False)
    shown = ["claim", "effect [95 %]", "G above", "verdict", "what is claimed"]
    found = _heads(_measured_stages(findings)[1])
    rows = [
        {**_table_row(one), "claim": (f"{one.stage}: " if one.stage > 1 else "") + _label(one)}
        for one in found
    ]
    table = Table(
        "Claims", shown, [[row[column] for column in shown] for row in rows], names=len(shown)
    )
    with console.capture() as captured:
        console.print(table.rich(tight=True))
        notes = (one.note for one in findings if one.primary and one.verdict == NOT_MEASURED)
        missing = Counter(way[1] if (way := WAY.match(note)) else note for note in notes)
        for way, number in missing.items():
            console.print(f"{number} not measured: {way}", markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _heads(findings: Sequence[Finding]) -> list[Finding]:
    """Findings that have a row in the table: primaries, and claims decided by a test."""
    return [one for one in findings if one.primary or one.note == "by test"]


def ledger_markdown(findings: Sequence[Finding]) -> str:
    """Markdown of the stages of the ledger that were measured: the verdicts of each, then the
    comparisons of each claim.
    """
    stages, findings = _measured_stages(findings)
    parts = ["# Claims"]
    if len(stages) > 1:
        parts.append(
            "Stages are families apart: each has its own correction, and a verdict of one says"
            " nothing of the other's."
        )
    for stage in stages:
        own = [one for one in findings if one.stage == stage]
        parts += [f"## Stage {STAGES[stage]}"] * (len(stages) > 1)
        parts += [*_counted(own), _rules(own), _markdown(own, HEAD)]
    parts += map(_details, grouped(findings, lambda one: (one.stage, one.claim)).values())
    return "\n\n".join(parts) + "\n"


def _measured_stages(findings: Sequence[Finding]) -> tuple[list[int], list[Finding]]:
    """(stages of which anything was measured or tested, their findings); all without any."""
    seen = {one.stage for one in findings if one.seeds or one.note == "by test"} or {
        one.stage for one in findings
    }
    return sorted(seen), [one for one in findings if one.stage in seen]


def _counted(findings: Sequence[Finding]) -> list[str]:
    shown = _heads(findings)
    primaries = [one for one in shown if one.primary]
    counted = Counter(one.verdict for one in primaries)
    tests = (
        f" {len(shown) - len(primaries)} numerical claims are decided by tests."
        if len(shown) > len(primaries)
        else ""
    )
    said = (
        f"Of {len(primaries)} primary endpoints:"
        f" {', '.join(f'{counted[word]} {word}' for word in ORDER if counted[word])}.{tests}"
    )
    taken = sum(one.by_interval not in (None, one.verdict) for one in primaries)
    alone = (
        f"{taken} of the undecided are decided by their own interval alone, and not after the"
        " correction."
    )
    return [said, *[alone] * bool(taken), *_doubles(primaries)]


def _rules(findings: Sequence[Finding]) -> str:
    """Paragraph on units, interval and correction of one stage."""
    tested = [one for one in findings if one.p_holm is not None]
    if findings[0].stage == 1:
        how = (
            "The interval is one: seeds crossed with documents (two-way clustered, Student's t"
            " with seeds - 1 degrees of freedom), or documents where there is one seed. A verdict"
            " needs the whole 95 % interval on one side of the margin that the claim's yaml holds,"
            f" and must stand after Holm's correction over the {len(tested)} primaries that were"
            " measured and passed the gate (the lower 95 % bound of G above 0 for every training"
            " that a claim rests on); else it is undecided at this scale."
        )
    else:
        waiting = len(
            {one.compared for one in findings if one.verdict == NOT_MEASURED}
            - {one.compared for one in tested}
        )
        later = (
            f" The {waiting} that are not measured yet count with p = 1, so that what stands now"
            " stands then."
            if waiting
            else ""
        )
        how = (
            "The interval is seeds crossed with documents, from five seeds on by the analysis of"
            " variance with Satterthwaite's degrees of freedom. A verdict needs all seeds that its"
            " yaml names, p below 0.05 (of one side where the rules are the two sides of one bound"
            " of a comparison that is read once, else of two), and must stand after Holm's"
            f" correction over the {len({one.compared for one in tested}) + waiting} comparisons"
            " that did not fail the gate (the lower 95 % bound of G above 0 for every training,"
            " and of an accuracy that every training has learned the task inside its window, but"
            " where a yaml says which verdict needs it); endpoints that read one comparison count"
            f" once.{later}"
        )
    return (
        "Effects, margins and G in bits per byte unless a unit is given; in brackets after a"
        f" margin, nats per token. Every target weighs alike. {how} Flat means that the interval"
        " lies inside +-margin. q is Benjamini and Hochberg's: of the verdicts with q below 0.05"
        " at most one in twenty is expected to be wrong, where Holm's correction allows one wrong"
        " verdict in one of twenty ledgers."
    )


def _doubles(primaries: Sequence[Finding]) -> list[str]:
    """Sentence on primaries with the same comparison, which are one piece of evidence; none without
    any.
    """
    asked = grouped(primaries, lambda one: one.compared)
    doubles = [" and ".join(map(_label, same)) for same in asked.values() if len(same) > 1]
    if not doubles:
        return []
    found = {word: [one.compared for one in primaries if one.verdict == word] for word in ORDER}
    fewer = [
        f", the {len(of)} {word} are {len(set(of))}"
        for word, of in found.items()
        if len(set(of)) < len(of)
    ]
    return [
        f"One comparison each: {'; '.join(doubles)}. So {len(primaries)} endpoints are {len(asked)}"
        f" comparisons{''.join(fewer)}."
    ]


def _label(one: Finding) -> str:
    return endpoint_name(one.claim, one.endpoint)


def brief(findings: Sequence[Finding]) -> str:
    """Markdown of the verdicts of measured stages alone, in fewer columns."""
    columns = ("claim", "what is claimed", "effect [95 %]", "G above", "verdict")
    stages, findings = _measured_stages(findings)
    parts = []
    for stage in stages:
        parts += [f"### Stage {STAGES[stage]}"] * (len(stages) > 1)
        parts.append(_markdown([one for one in findings if one.stage == stage], columns))
    return "\n\n".join(parts) + "\n"


def _markdown(findings: Sequence[Finding], columns: Sequence[str]) -> str:
    rows = [[row[column] for column in columns] for row in map(_table_row, _heads(findings))]
    return "\n".join(map(markdown_row, [columns, [":---"] * len(columns), *rows]))


def _table_row(one: Finding) -> dict[str, str]:
    """Cells of a finding by column of HEAD."""
    row = {**dict.fromkeys(HEAD, ""), "claim": _label(one), "what is claimed": one.statement}
    if not one.primary:
        return {**row, "verdict": f"{one.verdict} by test"}
    alone = f" ({one.by_interval} alone)" if one.by_interval not in (None, one.verdict) else ""
    return {
        **row,
        "effect [95 %]": _effect(one),
        "confirms": _margin(one, one.confirm),
        "refutes": _margin(one, one.refute),
        "G above": "" if one.gain_lower is None else f"{one.gain_lower:.3f}",
        "seeds x documents": f"{len(one.seeds.split())} x {one.documents}" if one.seeds else "",
        "p, by Holm, q": ", ".join(
            "<0.001" if p < 0.001 else f"{p:.3f}"
            for p in (one.p, one.p_holm, one.q)
            if p is not None
        ),
        "verdict": one.verdict + alone,
    }


def _effect(one: Finding) -> str:
    if one.effect is None:
        return ""
    unit = "" if one.unit == "bits/byte" else f" {one.unit}"
    form, ends = ".3g" if one.unit == "x train_len" else "+.3f", (one.lower, one.upper, one.effect)
    low, high, value = (
        "beyond" if end == math.inf else "-" if math.isnan(end) else f"{end:{form}}" for end in ends
    )
    return f"{value} [{low}, {high}]{unit}"


def _margin(one: Finding, rule: str) -> str:
    """Rule with its bounds also in nats/token, if they are in bits/byte and the text is known."""
    words = rule.split()
    if one.unit != "bits/byte" or one.nats is None or words[-1:] == ["G"]:
        return rule
    return f"{rule} ({' '.join(f'{float(word) * one.nats:.3g}' for word in words[1:])})"


def _details(findings: list[Finding]) -> str:
    first = findings[0]
    lines = [
        f"##{'#' * (first.stage > 1)} {first.claim}: {first.statement}",
        "",
        f"{first.source}.",
        "",
        f"Rule: {first.rule}",
        "",
    ]
    for one in findings:
        name = f"{one.endpoint}: " if one.endpoint else ""
        if one.note == "by test":
            lines.append(f"- {one.verdict} by `pytest {one.compared}`")
            continue
        verdict = (
            f" **{one.verdict}**"
            if one.primary
            else " (descriptive)"
            if one.over
            else " (descriptive) not measured:"
        )
        effect = f" {_effect(one)}," if one.effect is not None else ""
        over = (
            f" over {one.over} (seeds {one.seeds}; {one.documents} documents, {one.targets}"
            " targets)."
            if one.over
            else ""
        )
        seeds = (
            f" By seed: {' '.join(f'{float(value):+.3f}' for value in one.by_seed.split())}."
            if one.by_seed
            else ""
        )
        note = f" {one.note[0].upper()}{one.note[1:]}." if one.note else ""
        folders = {
            folder: JUDGED_ON.get((one.stage, folder), f"../{folder}")
            for folder in one.experiment.split()
        }
        rows = ", ".join(f"[{folder}]({path}/rows.csv)" for folder, path in folders.items())
        found = (
            f" Rows: {rows}, eval_id"
            f" {' '.join(eval_id[:8] for eval_id in one.evaluations.split())}."
            if one.evaluations
            else ""
        )
        lines.append(f"- {name}{one.compared}:{verdict}{effect}{over}{seeds}{note}{found}")
    return "\n".join(lines)
