"""Loss against context inside the training window, without any extension.

Every target is predicted from exactly c tokens (recompute_window), c up to the training length, on the targets of all other rows.
"""

from collections import defaultdict
from collections.abc import Iterable

from posbench.report.curves import interval, means
from posbench.report.labels import Labels
from posbench.report.records import SECTION, ContextPoint, section_of
from posbench.report.references import Paired, References, Seed, compare
from posbench.report.tables import EMPTY, LEVEL, Table, TableCell, number, number_cell, plus_minus, verdict
from posbench.runs.evaluation import Evaluation


def steps(references: References, label: Labels) -> list[ContextPoint]:
    """Steps of all encodings and contexts, from trainings with three or more contexts (`References.ladders`).

    Raises RunError if two evaluations of one training scored different targets.
    """
    seeds: dict[tuple, list[dict[int, Evaluation]]] = defaultdict(list)
    for ladder in references.ladders.values():
        one = next(iter(ladder.values()))
        seeds[(*section_of(one), label(one.first)[0], one.source)].append(ladder)
    found = [(key, own, sorted({context for ladder in own for context in ladder})) for key, own in seeds.items()]
    return [_record(key, context, [one for one in own if context in one], label) for key, own, contexts in found for context in contexts]


def _record(key: tuple, context: int, own: list[dict[int, Evaluation]], label: Labels) -> ContextPoint:
    rows = [ladder[context].exact_row() for ladder in own]
    first = rows[0]
    train_len, unit = first["train_len"], first["sem_unit"]
    halved = context // 2 if context % 2 == 0 or context == train_len else 0
    difference, half_width, over = interval([_change(ladder, context, train_len) for ladder in own], unit)
    doubling, doubling_half_width, doubled_over = interval([_change(ladder, halved, context) for ladder in own], unit)
    return ContextPoint(
        **dict(zip((*SECTION, "encoding", "source"), key, strict=True)),
        context=context,
        n_seeds=len(rows),
        **{name: first[name] for name in ("n_targets", "n_units", "sem_unit")},
        **means(rows, ("nll", "bpb")),
        difference=difference,
        half_width=half_width,
        doubling=doubling,
        doubling_half_width=doubling_half_width,
        over=over or doubled_over,
        facts=label.facts(first, own[0][context].setting),
        seeds=[Seed(ladder[context], row) for ladder, row in zip(own, rows, strict=True)],
    )


def _change(ladder: dict[int, Evaluation], context: int, other: int) -> Paired | None:
    """Loss with `context` tokens minus that with `other`; None if one was not measured."""
    if context not in ladder or other not in ladder:
        return None
    one, two = ladder[context], ladder[other]
    return compare(one, one.exact_row(), two, two.exact_row())


def by_name(section: Iterable[ContextPoint]) -> dict[str, dict[int, ContextPoint]]:
    """Steps by name and context, both in the given order."""
    found: dict[str, dict[int, ContextPoint]] = {}
    for step in section:
        found.setdefault(step.name, {})[step.context] = step
    return found


def table(section: list[ContextPoint]) -> Table:
    """Table of the loss by encoding and context, and G."""
    contexts, train_len = sorted({step.context for step in section}), section[0].train_len
    rows = [
        [TableCell(name), *(number_cell(own[c].nll) if c in own else EMPTY for c in contexts), gain_cell(own.get(train_len))]
        for name, own in by_name(section).items()
    ]
    columns = ["encoding", *map(str, contexts), f"G ({train_len // 2} -> {train_len})"]
    return Table("Loss with exactly c tokens of context (nats/token)", columns, rows, names=1)


def gain_cell(last: ContextPoint | None) -> TableCell:
    """Cell of G, the doubling of the step with train_len tokens; marked if its interval contains zero."""
    if last is None or last.doubling is None:
        return EMPTY
    mark = verdict(last.doubling, last.doubling_half_width)
    return TableCell(number(last.doubling), last.doubling, plus_minus(last.doubling_half_width), mark if mark == LEVEL else "")
