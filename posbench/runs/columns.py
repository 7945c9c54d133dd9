"""Columns of a result row. TABLE is their only definition; results/README.md shows the same
text.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """Column of a row: its name, its type in CSV and json, its unit ("" for none) and its
    meaning.
    """

    name: str
    kind: type
    unit: str
    meaning: str


TABLE = (
    Column("schema", int, "", "version of this table"),
    Column("run_id", str, "", "the training: readable prefix + hash of its configuration and data"),
    Column(
        "eval_id",
        str,
        "",
        "the evaluation: hash of run, protocol, methods, windows and targets (not of the lengths)",
    ),
    Column("encoding", str, "", "positional encoding the model was trained with"),
    Column("encoding_args", dict, "", "its arguments"),
    Column("extension", str, "", "context-extension applied at evaluation"),
    Column("extension_args", dict, "", "its arguments"),
    Column(
        "scale_attention",
        str,
        "",
        "scale-attention rule applied at evaluation, its arguments in braces where it has any",
    ),
    Column("trained_scale", str, "", "scale-attention rule the model was trained with"),
    Column(
        "finetune", str, "", "run_id of the parent if this run was fine-tuned from one, else empty"
    ),
    Column(
        "untested", bool, "", "true where the pair of methods is outside what its authors tested"
    ),
    Column("seed", int, "", "seed of the training"),
    Column("data", str, "", "corpus"),
    Column("tokenizer", str, "", "tokenizer"),
    Column("dtype", str, "", "number format of the evaluation"),
    Column("train_len", int, "tokens", "training length (the longest, where several were mixed)"),
    Column("length", int, "tokens", "evaluated length: tokens fed for each window"),
    Column("target_len", int, "tokens", "length the extension was configured for"),
    Column("protocol", str, "", "how windows and targets were chosen"),
    Column(
        "position", int, "tokens", "last position of the bin (protocol by_position), else empty"
    ),
    Column("task", str, "", "name of the task, empty for text"),
    Column(
        "depth",
        float,
        "",
        "where in the window the asked-for item stands, 0 start to 1 end, else empty",
    ),
    Column("n_targets", int, "tokens", "scored tokens (protocol accuracy: answers)"),
    Column("n_bytes", int, "bytes", "text the scored tokens stand for"),
    Column("n_units", int, "", "independent units behind the standard error"),
    Column(
        "sem_unit",
        str,
        "",
        "what these units are: document, else window (protocol accuracy: example)",
    ),
    Column(
        "nll",
        float,
        "nats/token",
        "mean negative log likelihood of all scored tokens (accuracy: answers); empty if it is not"
        " finite",
    ),
    Column("nll_sem", float, "nats/token", "standard error of nll, clustered by unit"),
    Column("ppl", float, "", "exp(nll); empty where it exceeds a double"),
    Column("bpb", float, "bits/byte", "sum of nll / ln 2 / n_bytes"),
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
    ),
    Column("peak_mib", float, "MiB", "peak memory of the device, or of the process on CPU"),
    Column("commit", str, "", "commit of the code, with + appended where it was changed since"),
)
COLUMNS = tuple(column.name for column in TABLE)
VOLATILE = (
    "seconds",
    "peak_mib",
    "commit",
)  # all other columns are equal when the same evaluation runs twice
KEY = ("run_id", "eval_id", "length", "position", "task", "depth")  # columns that identify a row
STATED = (
    "schema",
    "run_id",
    "eval_id",
    "encoding",
    "extension",
    "scale_attention",
    "untested",
    "seed",
    "data",
    "tokenizer",
    "dtype",
    # never empty  # fmt: skip
    "train_len",
    "length",
    "protocol",
    "n_targets",
    "n_units",
    "sem_unit",
)
COUNTED = ("train_len", "length", "n_targets", "n_units")  # at least 1
# Columns that are equal in all rows of one eval file.
SHARED = ("run_id", "eval_id", "encoding", "extension", "scale_attention", "trained_scale", "seed", "data", "tokenizer", "train_len",
          "protocol")  # fmt: skip
DERIVED = ("schema", "ppl", "bpb")


def described() -> str:
    """Line of each column: its name, its type, its unit and its meaning."""
    return "\n".join(
        f"        {one.name} ({', '.join(filter(None, (one.kind.__name__, one.unit)))}):"
        f" {one.meaning}"
        for one in TABLE
    )
