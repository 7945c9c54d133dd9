"""Table of a grid's dimensionless numbers: a row for each encoding with each extension that acts on
it, at the longest length.
"""

import json
from dataclasses import make_dataclass
from pathlib import Path

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
from posbench.tools.anatomy.as_text import DIMENSIONLESS
from posbench.tools.anatomy.from_config import method_in_words, parts, whole
from posbench.tools.anatomy.properties import dimensionless
from posbench.tools.anatomy.query_view import kinds

WORDS, SIZES = (
    ("encoding", "layers", "extension", "encoding_args", "extension_args"),
    ("n_head", "head_dim", "train_len", "length"),
)
# One encoding with one extension at `length` tokens: methods in words, all their arguments json,
# and the numbers, None where one does not apply.
FIELDS = [
    *((key, str) for key in WORDS),
    *((key, int) for key in SIZES),
    *((key, "float | None", None) for key in DIMENSIONLESS),
]
Row = make_dataclass("Row", FIELDS, frozen=True)


def grid_rows(cfgs: list[dict]) -> tuple[list[Row], list[str]]:
    """Rows of the pairs that are legal and change something, and the reasons why others have none,
    each once.

    Seeds, protocols, scales and learning rates add no rows. Different heads and training lengths
    do, and so does each kind of layer that the extension acts on. recompute_window, the floor of
    every curve, has no row."""
    pairs: dict[
        str, tuple[JobConfig, int]
    ] = {}  # each encoding with each extension, and the longest length that the grid has of it
    found, reasons = [], {}
    for cfg in cfgs:
        if cfg["extension"]["_target_"] == RECOMPUTE:
            continue
        try:
            one = whole(cfg)
            shape = make_shape(one.model, one.train.train_len)
        except ConfigError as error:
            reasons[f"refused: {error}"] = None
            continue
        key = json.dumps(
            [one.run, one.encoding, one.extension, shape], sort_keys=True, default=repr
        )
        first, longest = pairs.get(key, (one, 0))
        pairs[key] = first, max(longest, cfg["length"] or max(one.evaluate.lengths))
    for one, length in pairs.values():
        try:
            found += _pair_rows(one, length, reasons)
        except ConfigError as error:
            reasons[f"refused: {error}"] = None
    return found, list(reasons)


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
            encoding=(
                method_in_words("encoding", cfg.encoding) if cfg.run is None else Path(cfg.run).name
            ),
            layers=(
                f"{name_of(kind.encoding)} in {len(kind.numbers)} of {shape.n_layer} layers"
                if len(found) > 1
                else "all"
            ),
            extension=method_in_words("extension", cfg.extension),
            encoding_args=json.dumps(method_args(cfg.encoding)),
            extension_args=json.dumps(method_args(cfg.extension)),
            n_head=shape.n_head,
            head_dim=shape.head_dim,
            train_len=shape.train_len,
            length=length,
            **dimensionless(encoding, extension, kind),
        )
        for kind in found
        if kind.layer.extended or isinstance(extension, NoExtension)
    ]


def grid_numbers(found: list[Row]) -> tuple[Table, list[str]]:
    """Table of the rows in words, without columns that apply to no row, and lines that explain
    it.
    """
    shown = [key for key in DIMENSIONLESS if any(getattr(row, key) is not None for row in found)]
    shapes = {(row.n_head, row.head_dim) for row in found}
    heads = f", {found[0].n_head} heads of {found[0].head_dim} channels" if len(shapes) == 1 else ""
    lines = []
    for row in found:
        told = [f"{row.n_head} heads of {row.head_dim}"] * (len(shapes) > 1) + [row.layers] * (
            row.layers != "all"
        )
        numbers = ("" if (value := getattr(row, key)) is None else f"{value:.3g}" for key in shown)
        lines.append(
            [
                row.encoding + f" ({', '.join(told)})" * bool(told),
                row.extension,
                f"{row.train_len} to {row.length}",
                *numbers,
            ]
        )
    table = Table(
        f"Dimensionless numbers{heads}",
        ["encoding", "extension", "tokens", *(DIMENSIONLESS[key][0] for key in shown)],
        lines,
    )
    last = (
        "empty: does not apply; what is learned is as at the start, unless a run is named; gates"
        " are those of a token of zeros"
    )
    return table, [
        "tokens: in training, and at evaluation",
        *(": ".join(DIMENSIONLESS[key]) for key in shown),
        last,
    ]


def write_grid(found: list[Row], folder: Path) -> list[Path]:
    """Write dimensionless.md and, with every digit and column, dimensionless.csv into `folder`.
    Returns their paths.
    """
    table, legend = grid_numbers(found)
    words = "\n".join([table.markdown(), "", *(f"- {line}" for line in legend)])
    made = {
        folder / "dimensionless.md": words + "\n",
        folder / "dimensionless.csv": to_csv(found, Row),
    }
    for path, content in made.items():
        write_atomic(path, content)
    return list(made)
