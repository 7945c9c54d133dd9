"""Work of the evaluations that are to be made, without the texts that a stopped one has kept (posbench/runs/unfinished.py)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from posbench.config.schema import typed
from posbench.evaluation.protocols import protocol
from posbench.evaluation.reading import Reading
from posbench.position.instantiate import make
from posbench.runs.unfinished import PART, made_by, texts_kept
from posbench.sweep.cells import Cell
from posbench.sweep.jobs import Job
from posbench.sweep.work import Work, size, work


def planned_work(missing: Iterable[tuple[Job, Cell, list[int]]]) -> list[Work]:
    """Work of the missing lengths of evaluations. What a stopped one has kept is taken off once, however often its cell is given."""
    kept: dict[Path, Counter[int]] = {}
    found = []
    for job, cell, lengths in missing:
        if cell.path not in kept:
            kept[cell.path] = _kept(job, cell)
        found.append(_work(job, cell, lengths, kept[cell.path]))
    return found


def _work(job: Job, cell: Cell, lengths: list[int], kept: Counter[int]) -> Work:
    from posbench.position.legality import fed_length

    train_len = typed("train", job.cfg["train"]).train_len
    crop = fed_length(make(cell.extension), train_len, max(lengths))
    one = protocol(cell.protocol)
    texts = _texts(job, cell, lengths) if one.nested else lengths
    found = work(size(job.cfg), cell.protocol, cell.extension, cell.evaluate, crop, train_len, lengths, texts)
    return replace(found, reading=[*one.reading_first(typed("evaluate", cell.evaluate), train_len), *_without(found.reading, kept)])


def _texts(job: Job, cell: Cell, lengths: list[int]) -> Iterable[int]:
    """Lengths of the texts that a nested protocol reads for `lengths`, as its evaluation finds them."""
    from posbench.model.build import make_encoding, make_trained_scale
    from posbench.position.effect import together
    from posbench.position.plan import make_plan

    encoding, extension = make_encoding(job.cfg), make(cell.extension)
    scales = {"scale": make(cell.scale_attention, encoding.shape), "trained_scale": make_trained_scale(job.cfg, encoding)}
    return together(lambda length: make_plan(encoding, extension, **scales, length=length), lengths)


def _kept(job: Job, cell: Cell) -> Counter[int]:
    """Number of texts of each length that a stopped evaluation of a cell has kept."""
    path = cell.path.with_suffix(PART)
    if not path.exists():
        return Counter()
    from posbench.model.build import pick_device

    return texts_kept(path, made_by(pick_device(job.cfg["device"])))


def _without(readings: list[Reading], kept: Counter[int]) -> list[Reading]:
    """Readings without the texts of `kept`, which are taken out of it."""
    left = []
    for reading in readings:
        found = min(kept[reading.tokens], reading.texts)
        kept[reading.tokens] -= found
        if found < reading.texts:
            left.append(replace(reading, texts=reading.texts - found))
    return left
