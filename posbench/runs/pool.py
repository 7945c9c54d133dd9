"""Pool of evaluations of runs, of folders of evidence and of CSVs."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import finite
from posbench.runs.evaluation import Evaluation, drop_duplicate_rows
from posbench.runs.evidence import read, said
from posbench.runs.origins import Origin
from posbench.runs.origins import read as origin_of
from posbench.runs.target_losses import PooledLosses


def pool(
    evaluations: Sequence[Evaluation], folders: Iterable[Path], beside: Callable[[list[Evaluation]], Iterable[Evaluation]] = lambda _: ()
) -> tuple[list[Evaluation], dict[Path, Origin], list[str]]:
    """(evaluations and those of folders of evidence, each row once; the origins of all; notes on rows that repeat).

    `beside` makes of them the evaluations that come last, those of CSVs: of a row that repeats, sums count rather than a mean. Evidence of
    a run directory that is itself here, or in an earlier folder of evidence, counts as evaluated there, so that it has one origin.

    Raises RunError if two weights stand for one training, also where its rows repeat: what was measured of one does not pair with what
    was measured of the other.
    """
    pooled, origins, left_out = list(evaluations), {}, []
    for folder in folders:
        found, known, note = read(folder)
        pooled += found
        origins |= known
        left_out += note
    pooled += beside(pooled)
    kept, notes = drop_duplicate_rows(pooled)
    origins = {path: origins.get(path) or origin_of(path) for path in dict.fromkeys(one.origin for one in pooled)}
    weights: dict[str, tuple[str, Path]] = {}
    for path, origin in origins.items():
        sha256 = str(origin.summary.get("sha256") or "")
        known, other = weights.setdefault(path.name, (sha256, path)) if sha256 else (sha256, path)
        if known != sha256:
            raise RunError(
                f"{other} and {path} are one training, made twice with different weights ({known[:10]} and {sha256[:10]}): they are no "
                "two seeds, and their evaluations do not pair. Leave one of them out."
            )
    first: dict[str, Path] = {}
    same = {path: first.setdefault(json.dumps(finite(said(origin)), sort_keys=True, default=str), path) for path, origin in origins.items()}
    for number, one in enumerate(kept):
        if isinstance(one.stored, PooledLosses):
            kept[number] = replace(one, path=same[one.origin] / one.path.relative_to(one.origin))
    return kept, {path: origins[path] for path in dict.fromkeys(one.origin for one in kept)}, left_out + notes
