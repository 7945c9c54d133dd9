"""Reader of eval files: each evaluation with its arrays, each row once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import read_json
from posbench.runs.evaluation import Evaluation, shortest_exact
from posbench.runs.origins import clean
from posbench.runs.rows import agree, eval_rows, key
from posbench.runs.target_losses import read_npz

STRIDE = ", advancing by "


def load_all(paths: Iterable[Path], skip_damaged: bool) -> tuple[list[Evaluation], list[str]]:
    """(evaluations, notes about the damaged ones left out).

    Raises RunError for a damaged file, with `skip_damaged` only if all are damaged.
    """
    loaded, damaged = [], []
    for path in paths:
        try:
            loaded.append(load(path))
        except RunError as error:
            if not skip_damaged:
                raise
            damaged.append(error)
    if damaged and not loaded:
        raise damaged[0]
    return loaded, [f"Left out: {clean(str(error))}" for error in damaged]


def load(path: Path | str) -> Evaluation:
    """Evaluation from one eval json and the npz beside it. Raises RunError when either is damaged or their lengths differ."""
    path = Path(path)
    beside = path.with_suffix(".npz")
    try:
        content = clean(read_json(path))
        rows = eval_rows(content, path)
        evaluate = content.get("config", {}).get("evaluate")
        rows = [{**row, "setting": _setting(evaluate)} for row in rows]
        full_from = shortest_exact(evaluate, rows[0]["train_len"]) if evaluate and rows else None
    except RunError:
        raise
    except (OSError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error!r}): delete it and evaluate again.") from error
    if not rows:
        raise RunError(f"{path} holds no rows: delete it and evaluate again.")
    if not beside.exists():
        return Evaluation(rows, None, path, full_from=full_from)
    try:
        arrays = read_npz(beside, ("length", "nll", "document", "offset"))
        if "nll" not in arrays:  # a protocol whose lengths have different targets: no pairs possible
            return Evaluation(rows, None, path, full_from=full_from)
        lengths, shape = set(arrays["length"].tolist()), (len(arrays["length"]), len(arrays["document"]))
        if arrays["nll"].shape != shape or len(arrays["offset"]) != shape[1] or not {row["length"] for row in rows} <= lengths:
            raise ValueError(f"losses {arrays['nll'].shape} of lengths {sorted(lengths)}, which are not those of {path.name}")
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds for damaged files
        raise RunError(f"{beside} is damaged ({error}): delete it and {path.name}, and evaluate again.") from error
    return Evaluation(rows, arrays, path, full_from=full_from)


def _setting(evaluate: dict | None) -> str | None:
    """Evaluation settings in words. Rows with different settings never share a table."""
    if not evaluate:
        return None
    windows = f"{evaluate['windows']} windows asked for, {evaluate['targets']} targets each, room for {evaluate['max_length']} tokens"
    windows += f"{STRIDE}{evaluate['stride']}" if evaluate.get("stride") else ""
    windows += f", in documents `{evaluate['documents']}`" if evaluate.get("documents") else ""
    return f"{windows}, {evaluate['split']} split, {evaluate['dtype']}, seed {evaluate['seed']} of the windows"


def without_stride(setting: str | None) -> str | None:
    """Setting without its stride, which may differ between protocols that score the same windows."""
    return setting and re.sub(rf"{STRIDE}\d+", "", setting)


def once(evaluations: list[Evaluation]) -> tuple[list[Evaluation], list[str]]:
    """(evaluations without rows that an earlier one also holds, notes). Rows repeat when a run lies in two folders."""
    known: dict[tuple, dict] = {}
    kept, twice, other = [], 0, 0
    for evaluation in evaluations:
        new = [row for row in evaluation.rows if key(row) not in known]
        again = [(known[key(row)], row) for row in evaluation.rows if key(row) in known]
        twice += len(again)
        other += sum(not agree(*both) for both in again)
        known = {**{key(row): row for row in evaluation.rows}, **known}
        kept += [replace(evaluation, rows=new)] if new else []
    differ = f", {other} of them with other numbers" if other else ", with the same numbers"
    return kept, [f"{twice} rows are in more than one folder{differ}: the first found counts."] if twice else []
