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
from posbench.position.instantiate import make_method
from posbench.position.legality import name_of, verdict_of
from posbench.report.table_formats import Table
from posbench.scale_attention.none import NoScale
from posbench.sweep.cells import RECOMPUTE
from posbench.tools.anatomy.as_text import DIMENSIONLESS
from posbench.tools.anatomy.from_config import make_methods, method_in_words, resolve_methods
from posbench.tools.anatomy.properties import dimensionless_numbers
from posbench.tools.anatomy.query_view import layer_views

WORD_COLUMNS = ("encoding", "layers", "extension", "encoding_args", "extension_args")
SIZE_COLUMNS = ("n_head", "head_dim", "train_len", "length")
# One encoding with one extension at `length` tokens: methods in words, all their arguments json,
# and the numbers, None where one does not apply.
ROW_FIELDS = [
    *((key, str) for key in WORD_COLUMNS),
    *((key, int) for key in SIZE_COLUMNS),
    *((key, "float | None", None) for key in DIMENSIONLESS),
]
Row = make_dataclass("Row", ROW_FIELDS, frozen=True)
LEGEND_END = (
    "empty: does not apply; what is learned is as at the start, unless a run is named; gates are"
    " those of a token of zeros"
)


def grid_rows(raw_configs: list[dict]) -> tuple[list[Row], list[str]]:
    """Rows of the pairs that are legal and change something, and the reasons why others have none,
    each once.

    Seeds, protocols, scales and learning rates add no rows. Different heads and training lengths
    do, and so does each kind of layer that the extension acts on. recompute_window, the floor of
    every curve, has no row."""
    pairs: dict[str, tuple[JobConfig, int]] = {}  # {pair: (its first config, its longest length)}
    rows: list[Row] = []
    reasons: dict[str, None] = {}
    for raw in raw_configs:
        if raw["extension"]["_target_"] == RECOMPUTE:
            continue
        try:
            config = resolve_methods(raw)
            pair = _pair_key(config)
        except ConfigError as error:
            reasons[f"refused: {error}"] = None
            continue
        first, longest = pairs.get(pair, (config, 0))
        pairs[pair] = first, max(longest, raw["length"] or max(config.evaluate.lengths))
    for config, length in pairs.values():
        try:
            rows += _pair_rows(config, length, reasons)
        except ConfigError as error:
            reasons[f"refused: {error}"] = None
    return rows, list(reasons)


def _pair_key(config: JobConfig) -> str:
    """Text that is equal for equal pairs of an encoding and an extension in one shape of model."""
    shape = make_shape(config.model, config.train.train_len)
    pair = [config.run, config.encoding, config.extension, shape]
    return json.dumps(pair, sort_keys=True, default=repr)


def _pair_rows(config: JobConfig, length: int, reasons: dict[str, None]) -> list[Row]:
    """Rows of one pair, one for each kind of layer; none, and a reason, if nothing changes."""
    encoding, _ = make_methods(config)
    extension = make_method(config.extension)
    shape = encoding.shape
    verdict = verdict_of(encoding, extension, NoScale(shape), [length], config.allow_untested)
    if verdict.noop:
        reasons[f"no-op: {verdict.noop}"] = None
        return []
    name = Path(config.run).name if config.run else method_in_words("encoding", config.encoding)
    views = layer_views(encoding, extension, length)
    rows = []
    for view in views:
        # A layer that the extension leaves alone has its row beside extension=none.
        if not view.layer.extended and not isinstance(extension, NoExtension):
            continue
        layers = "all"
        if len(view.layer_indices) < shape.n_layer:
            layers = (
                f"{name_of(view.encoding)} in {len(view.layer_indices)} of {shape.n_layer} layers"
            )
        row = Row(
            encoding=name,
            layers=layers,
            extension=method_in_words("extension", config.extension),
            encoding_args=json.dumps(method_args(config.encoding)),
            extension_args=json.dumps(method_args(config.extension)),
            n_head=shape.n_head,
            head_dim=shape.head_dim,
            train_len=shape.train_len,
            length=length,
            **dimensionless_numbers(encoding, extension, view),
        )
        rows.append(row)
    return rows


def table_and_legend(rows: list[Row]) -> tuple[Table, list[str]]:
    """Table of the rows without columns that apply to none, and lines that explain it."""
    keys = [key for key in DIMENSIONLESS if any(getattr(row, key) is not None for row in rows)]
    several_shapes = len({(row.n_head, row.head_dim) for row in rows}) > 1
    title = "Dimensionless numbers"
    if not several_shapes:
        title += f", {rows[0].n_head} heads of {rows[0].head_dim} channels"
    lines = []
    for row in rows:
        tokens = f"{row.train_len} to {row.length}"
        numbers = [_number_cell(getattr(row, key)) for key in keys]
        lines.append([_row_name(row, several_shapes), row.extension, tokens, *numbers])
    headings = [DIMENSIONLESS[key][0] for key in keys]
    table = Table(title, ["encoding", "extension", "tokens", *headings], lines)
    meanings = [": ".join(DIMENSIONLESS[key]) for key in keys]
    return table, ["tokens: in training, and at evaluation", *meanings, LEGEND_END]


def _row_name(row: Row, with_shape: bool) -> str:
    """Encoding of a row with what tells it from others, such as "rope (4 heads of 64)"."""
    details = []
    if with_shape:
        details.append(f"{row.n_head} heads of {row.head_dim}")
    if row.layers != "all":
        details.append(row.layers)
    return f"{row.encoding} ({', '.join(details)})" if details else row.encoding


def _number_cell(number: float | None) -> str:
    """Number in a table; "" where it does not apply."""
    return "" if number is None else f"{number:.3g}"


def write_grid(rows: list[Row], folder: Path) -> list[Path]:
    """Write dimensionless.md and, with every digit and column, dimensionless.csv into `folder`.
    Returns their paths.
    """
    table, legend = table_and_legend(rows)
    words = "\n".join([table.markdown(), "", *(f"- {line}" for line in legend)])
    contents = {
        folder / "dimensionless.md": words + "\n",
        folder / "dimensionless.csv": to_csv(rows, Row),
    }
    for path, content in contents.items():
        write_atomic(path, content)
    return list(contents)
