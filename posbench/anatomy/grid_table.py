"""Table of a grid's dimensionless numbers: a row for each encoding with each extension that acts on it, at the longest length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from posbench.anatomy.dimensionless import dimensionless
from posbench.anatomy.from_config import in_words, parts, whole
from posbench.anatomy.query_view import kinds
from posbench.anatomy.words import DIMENSIONLESS
from posbench.common.csv_records import to_csv
from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic
from posbench.config.identity import method_args
from posbench.config.schema import typed
from posbench.extensions.none import NoExtension
from posbench.model.gpt import make_shape
from posbench.position.geometry import Shape
from posbench.position.instantiate import make
from posbench.position.interfaces import Encoding
from posbench.position.legality import check, name_of
from posbench.report.tables import Table
from posbench.scale_attention.none import NoScale
from posbench.sweep.jobs import RECOMPUTE

HEADINGS = {
    "share_full_turns": "full turns",
    "share_full_turns_after": "full turns after",
    "r_max": "turns",
    "beta_over_r_max": "beta/turns",
    "slope_x_length": "bias",
    "decay_x_length": "decay",
    "exact_over_train_len": "exact",
    "keys_over_train_len": "keys",
    "window_over_train_len": "window",
    "reach_over_trained": "reach",
}  # headings of the columns; DIMENSIONLESS explains them


@dataclass(frozen=True)
class Row:
    """One encoding with one extension at `length` tokens. Methods are in words, all their arguments json; None: does not apply."""

    encoding: str
    layers: str
    extension: str
    encoding_args: str
    extension_args: str
    n_head: int
    head_dim: int
    train_len: int
    length: int
    share_full_turns: float | None = None
    share_full_turns_after: float | None = None
    r_max: float | None = None
    beta_over_r_max: float | None = None
    slope_x_length: float | None = None
    decay_x_length: float | None = None
    exact_over_train_len: float | None = None
    keys_over_train_len: float | None = None
    window_over_train_len: float | None = None
    reach_over_trained: float | None = None


@dataclass
class Pair:
    """Encoding and extension of a grid, and the longest length that the grid evaluates them at."""

    cfg: dict
    shape: Shape
    length: int


def rows(cfgs: list[dict]) -> tuple[list[Row], list[str]]:
    """Rows of the pairs that are legal and change something, and the reasons why others have none, each once.

    Seeds, protocols, scales and learning rates add no rows. Different heads and training lengths do, and so does each kind of layer that
    the extension acts on. recompute_window, the floor of every curve, has no row.
    """
    found, reasons = [], {}
    encodings: dict[str, Encoding] = {}
    for pair in _pairs(cfgs, reasons):
        try:
            found += _rows(pair, encodings, reasons)
        except ConfigError as error:
            reasons[f"refused: {error}"] = None
    return found, list(reasons)


def _pairs(cfgs: list[dict], reasons: dict) -> list[Pair]:
    found: dict[str, Pair] = {}
    for cfg in cfgs:
        if cfg["extension"]["_target_"] == RECOMPUTE:
            continue
        try:
            cfg = whole(cfg)
            shape = make_shape(typed("model", cfg["model"]), typed("train", cfg["train"]).train_len)
        except ConfigError as error:
            reasons[f"refused: {error}"] = None
            continue
        length = cfg["length"] or max(cfg["evaluate"]["lengths"])
        pair = found.setdefault(_key(cfg["run"], cfg["encoding"], cfg["extension"], shape), Pair(cfg, shape, length))
        pair.length = max(pair.length, length)
    return list(found.values())


def _key(*values: object) -> str:
    return json.dumps(values, sort_keys=True, default=repr)


def _rows(pair: Pair, encodings: dict[str, Encoding], reasons: dict) -> list[Row]:
    cfg, shape = pair.cfg, pair.shape
    key = _key(cfg["run"], cfg["encoding"], shape)
    if key not in encodings:
        encodings[key] = parts(cfg)[0]
    encoding, extension = encodings[key], make(cfg["extension"])
    verdict = check(encoding, extension, NoScale(shape), [pair.length], cfg["allow_untested"])
    if verdict.noop:
        reasons[f"no-op: {verdict.noop}"] = None
        return []
    found = kinds(encoding, extension, pair.length)
    return [
        Row(
            encoding=in_words("encoding", cfg["encoding"]) if cfg["run"] is None else Path(cfg["run"]).name,
            layers=f"{name_of(kind.encoding)} in {len(kind.numbers)} of {shape.n_layer} layers" if len(found) > 1 else "all",
            extension=in_words("extension", cfg["extension"]),
            encoding_args=json.dumps(method_args(cfg["encoding"])),
            extension_args=json.dumps(method_args(cfg["extension"])),
            n_head=shape.n_head,
            head_dim=shape.head_dim,
            train_len=shape.train_len,
            length=pair.length,
            **dimensionless(encoding, extension, kind, pair.length),
        )
        for kind in found
        if kind.layer.extended or isinstance(extension, NoExtension)
    ]


def table(found: list[Row]) -> Table:
    """Table of the rows in words, without columns that apply to no row."""
    shown = _shown(found)
    shapes = {(row.n_head, row.head_dim) for row in found}
    heads = f", {found[0].n_head} heads of {found[0].head_dim} channels" if len(shapes) == 1 else ""
    lines = [
        [
            _name(row, len(shapes) > 1),
            row.extension,
            f"{row.train_len} to {row.length}",
            *("" if (value := getattr(row, key)) is None else f"{value:.3g}" for key in shown),
        ]
        for row in found
    ]
    return Table(f"Dimensionless numbers{heads}", ["encoding", "extension", "tokens", *(HEADINGS[key] for key in shown)], lines)


def _name(row: Row, heads: bool) -> str:
    """Name of a row's encoding, with its heads if `heads`, and its layers unless the row is for all of them."""
    said = [f"{row.n_head} heads of {row.head_dim}"] * heads + [row.layers] * (row.layers != "all")
    return row.encoding + (f" ({', '.join(said)})" if said else "")


def legend(found: list[Row]) -> list[str]:
    """Lines that explain the columns."""
    lines = [f"{HEADINGS[key]}: {DIMENSIONLESS[key]}" for key in _shown(found)]
    return [
        "tokens: in training, and at evaluation",
        *lines,
        "empty: does not apply; what is learned is as at the start, unless a run is named; gates are those of a token of zeros",
    ]


def _shown(found: list[Row]) -> list[str]:
    return [key for key in DIMENSIONLESS if any(getattr(row, key) is not None for row in found)]


def in_terminal(found: list[Row]) -> str:
    """Table and legend as plain text, up to 240 characters wide."""
    console = Console(width=240, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(table(found).rich())
        for line in legend(found):
            console.print(line, markup=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def write(found: list[Row], folder: Path) -> list[Path]:
    """Write dimensionless.md and, with every digit and column, dimensionless.csv into `folder`. Returns their paths."""
    words = "\n".join([table(found).markdown(), "", *(f"- {line}" for line in legend(found))])
    made = {folder / "dimensionless.md": words + "\n", folder / "dimensionless.csv": to_csv(found, Row)}
    for path, content in made.items():
        write_atomic(path, content)
    return list(made)
