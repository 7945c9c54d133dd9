"""Table of a grid's dimensionless numbers: a row for each encoding with each extension that acts on it, at the longest length."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, make_dataclass
from pathlib import Path

from posbench.anatomy.as_text import DIMENSIONLESS, table_lines
from posbench.anatomy.from_config import method_in_words, parts, whole
from posbench.anatomy.properties import dimensionless
from posbench.anatomy.query_view import kinds
from posbench.common.csv_records import to_csv
from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic
from posbench.config.identity import method_args
from posbench.config.schema import JobConfig
from posbench.extensions.none import NoExtension
from posbench.model.gpt import make_shape
from posbench.position.instantiate import make
from posbench.position.legality import check, name_of
from posbench.report.tables import Table
from posbench.scale_attention.none import NoScale
from posbench.sweep.cells import RECOMPUTE


@dataclass(frozen=True)
class MethodPair:
    """One encoding with one extension at `length` tokens. Methods are in words, all their arguments json."""

    encoding: str
    layers: str
    extension: str
    encoding_args: str
    extension_args: str
    n_head: int
    head_dim: int
    train_len: int
    length: int


# A pair and its dimensionless numbers; None: does not apply.
Row = make_dataclass("Row", [(key, "float | None", None) for key in DIMENSIONLESS], bases=(MethodPair,), frozen=True)


def grid_rows(cfgs: list[dict]) -> tuple[list[Row], list[str]]:
    """Rows of the pairs that are legal and change something, and the reasons why others have none, each once.

    Seeds, protocols, scales and learning rates add no rows. Different heads and training lengths do, and so does each kind of layer that
    the extension acts on. recompute_window, the floor of every curve, has no row.
    """
    found, reasons = [], {}
    for cfg, length in _at_longest(cfgs, reasons):
        try:
            found += _pair_rows(cfg, length, reasons)
        except ConfigError as error:
            reasons[f"refused: {error}"] = None
    return found, list(reasons)


def _at_longest(cfgs: list[dict], reasons: dict) -> Iterable[tuple[JobConfig, int]]:
    """(configuration, longest length that the grid evaluates it at) of each encoding with each extension."""
    found: dict[str, tuple[JobConfig, int]] = {}
    for cfg in cfgs:
        if cfg["extension"]["_target_"] == RECOMPUTE:
            continue
        try:
            one = whole(cfg)
            shape = make_shape(one.model, one.train.train_len)
        except ConfigError as error:
            reasons[f"refused: {error}"] = None
            continue
        key = json.dumps([one.run, one.encoding, one.extension, shape], sort_keys=True, default=repr)
        first, longest = found.get(key, (one, 0))
        found[key] = first, max(longest, cfg["length"] or max(one.evaluate.lengths))
    return found.values()


def _pair_rows(cfg: JobConfig, length: int, reasons: dict) -> list[Row]:
    encoding, extension = parts(cfg)[0], make(cfg.extension)
    shape = encoding.shape
    verdict = check(encoding, extension, NoScale(shape), [length], cfg.allow_untested)
    if verdict.noop:
        reasons[f"no-op: {verdict.noop}"] = None
        return []
    found = kinds(encoding, extension, length)
    return [
        Row(
            encoding=method_in_words("encoding", cfg.encoding) if cfg.run is None else Path(cfg.run).name,
            layers=f"{name_of(kind.encoding)} in {len(kind.numbers)} of {shape.n_layer} layers" if len(found) > 1 else "all",
            extension=method_in_words("extension", cfg.extension),
            encoding_args=json.dumps(method_args(cfg.encoding)),
            extension_args=json.dumps(method_args(cfg.extension)),
            n_head=shape.n_head,
            head_dim=shape.head_dim,
            train_len=shape.train_len,
            length=length,
            **dimensionless(encoding, extension, kind, length),
        )
        for kind in found
        if kind.layer.extended or isinstance(extension, NoExtension)
    ]


def grid_numbers(found: list[Row]) -> Table:
    """Table of the rows in words, without columns that apply to no row."""
    shown = _shown_columns(found)
    shapes = {(row.n_head, row.head_dim) for row in found}
    heads = f", {found[0].n_head} heads of {found[0].head_dim} channels" if len(shapes) == 1 else ""
    lines = []
    for row in found:
        numbers = ("" if (value := getattr(row, key)) is None else f"{value:.3g}" for key in shown)
        lines.append([_pair_name(row, len(shapes) > 1), row.extension, f"{row.train_len} to {row.length}", *numbers])
    return Table(f"Dimensionless numbers{heads}", ["encoding", "extension", "tokens", *(DIMENSIONLESS[key][0] for key in shown)], lines)


def _pair_name(row: Row, heads: bool) -> str:
    """Name of a row's encoding, with its heads if `heads`, and its layers unless the row is for all of them."""
    said = [f"{row.n_head} heads of {row.head_dim}"] * heads + [row.layers] * (row.layers != "all")
    return row.encoding + (f" ({', '.join(said)})" if said else "")


def legend(found: list[Row]) -> list[str]:
    """Lines that explain the columns."""
    return [
        "tokens: in training, and at evaluation",
        *(": ".join(DIMENSIONLESS[key]) for key in _shown_columns(found)),
        "empty: does not apply; what is learned is as at the start, unless a run is named; gates are those of a token of zeros",
    ]


def _shown_columns(found: list[Row]) -> list[str]:
    return [key for key in DIMENSIONLESS if any(getattr(row, key) is not None for row in found)]


def grid_in_terminal(found: list[Row]) -> str:
    """Table and legend as plain text, up to 240 characters wide."""
    return "\n".join([*table_lines(grid_numbers(found)), *legend(found)])


def write_grid(found: list[Row], folder: Path) -> list[Path]:
    """Write dimensionless.md and, with every digit and column, dimensionless.csv into `folder`. Returns their paths."""
    words = "\n".join([grid_numbers(found).markdown(), "", *(f"- {line}" for line in legend(found))])
    made = {folder / "dimensionless.md": words + "\n", folder / "dimensionless.csv": to_csv(found, Row)}
    for path, content in made.items():
        write_atomic(path, content)
    return list(made)
