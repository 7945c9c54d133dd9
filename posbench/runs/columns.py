"""Columns of a result row. TABLE is their only definition; results/README.md shows the same
text.

A column that is added later states the schema `since` which files have it, and the value `missing`
of rows of earlier files: these stay readable.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """Column of a row: its name, its type in CSV and json, its unit ("" for none), its meaning, and
    what holds for its values.
    """

    name: str
    kind: type
    unit: str
    meaning: str
    never_empty: bool = False
    least: int | None = None  # smallest legal value
    identifies: bool = False  # among the columns that together identify a row
    shared: bool = False  # equal in all rows of one eval file
    volatile: bool = False  # differs when the same evaluation runs twice
    derived: bool = False  # computed from other columns
    since: int = 1  # schema of the first files that have it
    missing: Any = None  # value in rows of earlier files


TABLE = (
    Column("schema", int, "", "version of this table", never_empty=True, derived=True),
    Column(
        "run_id",
        str,
        "",
        "the training: readable prefix + hash of its configuration and data",
        never_empty=True,
        identifies=True,
        shared=True,
    ),
    Column(
        "eval_id",
        str,
        "",
        "the evaluation: hash of run, protocol, methods, windows and targets (not of the lengths)",
        never_empty=True,
        identifies=True,
        shared=True,
    ),
    Column(
        "encoding",
        str,
        "",
        "positional encoding the model was trained with",
        never_empty=True,
        shared=True,
    ),
    Column("encoding_args", dict, "", "its arguments"),
    Column(
        "extension",
        str,
        "",
        "context-extension applied at evaluation",
        never_empty=True,
        shared=True,
    ),
    Column("extension_args", dict, "", "its arguments"),
    Column(
        "scale_attention",
        str,
        "",
        "scale-attention rule applied at evaluation, its arguments in braces where it has any",
        never_empty=True,
        shared=True,
    ),
    Column(
        "trained_scale", str, "", "scale-attention rule the model was trained with", shared=True
    ),
    Column(
        "finetune", str, "", "run_id of the parent if this run was fine-tuned from one, else empty"
    ),
    Column(
        "untested",
        bool,
        "",
        "true where the pair of methods is outside what its authors tested",
        never_empty=True,
    ),
    Column("seed", int, "", "seed of the training", never_empty=True, shared=True),
    Column("data", str, "", "corpus", never_empty=True, shared=True),
    Column("tokenizer", str, "", "tokenizer", never_empty=True, shared=True),
    Column("dtype", str, "", "number format of the evaluation", never_empty=True),
    Column(
        "train_len",
        int,
        "tokens",
        "training length (the longest, where several were mixed)",
        never_empty=True,
        least=1,
        shared=True,
    ),
    Column(
        "length",
        int,
        "tokens",
        "evaluated length: tokens fed for each window",
        never_empty=True,
        least=1,
        identifies=True,
    ),
    Column("target_len", int, "tokens", "length the extension was configured for"),
    Column(
        "protocol", str, "", "how windows and targets were chosen", never_empty=True, shared=True
    ),
    Column(
        "position",
        int,
        "tokens",
        "last position of the bin (protocol by_position), else empty",
        identifies=True,
    ),
    Column("task", str, "", "name of the task, empty for text", identifies=True),
    Column(
        "depth",
        float,
        "",
        "where in the window the asked-for item stands, 0 start to 1 end, else empty",
        identifies=True,
    ),
    Column(
        "n_targets",
        int,
        "tokens",
        "scored tokens (protocol accuracy: answers)",
        never_empty=True,
        least=1,
    ),
    Column("n_bytes", int, "bytes", "text the scored tokens stand for"),
    Column(
        "n_units", int, "", "independent units behind the standard error", never_empty=True, least=1
    ),
    Column(
        "sem_unit",
        str,
        "",
        "what these units are: document, else window (protocol accuracy: example)",
        never_empty=True,
    ),
    Column(
        "nll",
        float,
        "nats/token",
        "mean negative log likelihood of all scored tokens (accuracy: answers); empty if it is not"
        " finite",
    ),
    Column("nll_sem", float, "nats/token", "standard error of nll, clustered by unit"),
    Column("ppl", float, "", "exp(nll); empty where it exceeds a double", derived=True),
    Column("bpb", float, "bits/byte", "sum of nll / ln 2 / n_bytes", derived=True),
    Column(
        "accuracy",
        float,
        "",
        "share of scored tokens whose most likely token was right (accuracy: of answers, all"
        " tokens)",
    ),
    Column("max_distance", float, "tokens", "largest coordinate distance any scored query saw"),
    Column(
        "seconds",
        float,
        "s",
        "wall time of this length; next to none where a longer text held its numbers (protocol"
        " by_position)",
        volatile=True,
    ),
    Column(
        "peak_mib",
        float,
        "MiB",
        "peak memory of the device, or of the process on CPU",
        volatile=True,
    ),
    Column(
        "commit",
        str,
        "",
        "commit of the code, with + appended where it was changed since",
        volatile=True,
    ),
    Column(
        "step",
        int,
        "steps",
        "step of the training that the weights are of; empty: its last, or a checkpoint",
        shared=True,
        since=2,
    ),
)


def _names_with_role(role: str) -> tuple[str, ...]:
    """Names of the columns that have a role, such as "shared"."""
    return tuple(column.name for column in TABLE if getattr(column, role))


SCHEMA = max(column.since for column in TABLE)  # version of the table
COLUMNS = tuple(column.name for column in TABLE)
KEY_COLUMNS = _names_with_role("identifies")
NEVER_EMPTY_COLUMNS = _names_with_role("never_empty")
SHARED_COLUMNS = _names_with_role("shared")
VOLATILE_COLUMNS = _names_with_role("volatile")
DERIVED_COLUMNS = _names_with_role("derived")


def completed_row(
    row: Mapping[str, Any], schema: int, table: tuple[Column, ...] = TABLE
) -> dict[str, Any]:
    """A row of a file of an earlier schema, with the columns that were added since.

    Raises ValueError for an unknown column, and for one that the file should have.
    """
    complete_row = dict(row)
    for column in table:
        if column.since > schema:
            complete_row.setdefault(column.name, column.missing)
    different = {*complete_row} ^ {column.name for column in table}
    if different:
        raise ValueError(f"columns that differ from schema {schema}: {sorted(different)}")
    return complete_row


def columns_text() -> str:
    """Line of each column: its name, its type, its unit and its meaning."""
    lines = []
    for column in TABLE:
        unit = f", {column.unit}" if column.unit else ""
        lines.append(f"        {column.name} ({column.kind.__name__}{unit}): {column.meaning}")
    return "\n".join(lines)
