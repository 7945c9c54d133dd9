"""Attention of a trained run under some methods: the request, diagnostics.json with every number,
diagnostics.csv by head.
"""

from pathlib import Path
from typing import NamedTuple

import pandas

from posbench.common.defuse import cell
from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic, write_json
from posbench.common.layout import aligned
from posbench.common.progress import Progress
from posbench.common.quantities import plural
from posbench.config.defaults import LONG_TRAINING, resolved_config
from posbench.config.schema import JobConfig
from posbench.data.corpus import Corpus
from posbench.evaluation.scorer import Scorer
from posbench.extensions.none import NoExtension
from posbench.model.gpt import GPT
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding, Extension, ScaleAttention
from posbench.position.legality import fed_length, name_of, verdict_of
from posbench.scale_attention.none import NoScale
from posbench.tools.anatomy.attention import distance_buckets, measure_attention
from posbench.tools.anatomy.from_config import method_in_words, resolve_methods

# by default; the second of training lengths above LONG_TRAINING
USUAL_WINDOWS, USUAL_LONG_WINDOWS = 32, 8
MOST_USUAL_QUERIES = 64  # by default the most of a window
METHOD_KEYS = ("extension", "scale_attention", "untested")
HEAD_KEYS = ("entropy", "entropy_half", "first", "sink", "far")
SIZE_KEYS = ("train_len", "length", "nll", "layer", "kind", "head", "keys")
CSV_COLUMNS = ("run", "encoding", *METHOD_KEYS, *SIZE_KEYS, *HEAD_KEYS)
# of evaluate, kept in the file
EVALUATE_KEYS = (
    "split",
    "documents",
    "seed",
    "dtype",
    "max_length",
)


class Arm(NamedTuple):
    """Methods under which a model is read, in `words` and made, and the lengths of the texts."""

    words: dict  # values of METHOD_KEYS
    extension: Extension
    scale: ScaleAttention
    lengths: list[int]
    noop: str | None = None  # reason why the methods change nothing


def resolve_run(raw: dict) -> JobConfig:
    """Resolved configuration of run=DIR that reads texts of `lengths` and of one length within
    training, by default in fewer windows than an evaluation.

    Raises ConfigError without a run, for a run of a task, and as `resolve_methods` does.
    """
    _check_request(raw)
    lengths = raw["lengths"]
    evaluate = raw["evaluate"]
    config = resolve_methods({**raw, "evaluate": {}})  # whose sizes follow from the training length
    if config.data["tokenizer"] == "task":
        raise ConfigError(
            f"run={raw['run']} was trained on the task {config.data['name']}, which has no running"
            " text: name another run."
        )
    train_len = config.train.train_len
    within_training = max((length for length in lengths if length <= train_len), default=train_len)
    usual = {
        "windows": USUAL_LONG_WINDOWS if train_len > LONG_TRAINING else USUAL_WINDOWS,
        # an eighth, as evaluate.targets of an evaluation
        "targets": max(1, min(MOST_USUAL_QUERIES, train_len // 8)),
    }
    sizes = {key: evaluate[key] or value for key, value in usual.items()}
    # A length within training may stand there twice: an arm reads each of its lengths once.
    evaluate = {**evaluate, **sizes, "lengths": [within_training, *lengths]}
    config = resolved_config({**config.as_dict(), "evaluate": evaluate})
    config.evaluate.check_room()
    return config


def _check_request(raw: dict) -> None:
    """Raise ConfigError for a request without a run, and for keys of another kind of request."""
    lengths = raw["lengths"]
    if raw["run"] is None:
        raise ConfigError(
            f"lengths={lengths} needs a trained model: give run=DIR, or length=N for methods"
            " without one."
        )
    if raw.get("finetune"):
        raise ConfigError(
            f"lengths={lengths} measures an existing run, but finetune= describes a child of it:"
            " give run= of the child."
        )
    for key in ("json", "figure", "length"):
        if raw[key]:
            raise ConfigError(
                f"{key}={raw[key]} is of methods alone, and lengths={lengths} of a trained model:"
                " leave one of them out."
            )
    for key, usual in (("text", None), ("unit", "document")):
        value = raw["evaluate"].get(key, usual)
        if value != usual:
            raise ConfigError(
                f"evaluate.{key}={value} has no effect on scripts/anatomy.py, which reads documents"
                " of data=: leave it out."
            )


def make_arm(config: JobConfig, lengths: list[int], model: GPT) -> Arm:
    """Arm of a resolved configuration at `lengths`.

    Raises ConfigError for methods that are refused, and for those that give every target a text of
    its own."""
    shape = model.encoding.shape
    extension = make_method(config.extension)
    scale = make_method(config.scale_attention, shape)
    lengths = sorted(set(lengths))
    verdict = verdict_of(model.encoding, extension, scale, lengths, config.allow_untested)
    if fed_length(extension, shape.train_len, lengths[-1]) < lengths[-1]:
        raise ConfigError(
            f"extension={name_of(extension)} reads no text of {lengths[-1]} tokens but cuts one for"
            f" each target: its attention is that of extension=none with"
            f" lengths={shape.train_len}."
        )
    words = {
        "extension": method_in_words("extension", config.extension),
        "scale_attention": method_in_words("scale_attention", config.scale_attention),
        "untested": verdict.untested,
    }
    return Arm(words, extension, scale, lengths, verdict.noop)


def diagnostics_content(
    name: str, config: JobConfig, arms: list[Arm], model: GPT, corpus: Corpus, device: str
) -> dict:
    """Content of diagnostics.json: the attention of the run `name` in every arm.

    The first arm is the model without methods: at the longest of evaluate.lengths within training,
    and at every length of an arm whose methods are none. Raises ConfigError for a model without
    attention."""
    if not _layers_with_attention(model.encoding):
        raise ConfigError(
            f"run={name} has no attention in any layer, which lengths= measures: choose a run that"
            " has."
        )
    evaluate = config.evaluate
    train_len = model.encoding.shape.train_len
    # resolve_run has put one there.
    within_training = max(length for length in evaluate.lengths if length <= train_len)
    arms = _with_trained_arm(arms, model, within_training)
    lengths = [length for arm in arms for length in arm.lengths]
    measured = []
    with Progress(evaluate.windows * sum(lengths), "attention", "tokens") as progress:
        for arm in arms:
            scorer = Scorer(
                model, corpus, arm.extension, arm.scale, evaluate, device, progress.update
            )
            texts = [measure_attention(scorer, length) for length in arm.lengths]
            measured.append({**arm.words, "measured": texts})
    return {
        "run": name,
        "encoding": method_in_words("encoding", config.encoding),
        "trained_scale": method_in_words("scale_attention", config.train.scale_attention),
        "train_len": train_len,
        "known": within_training,
        "data": corpus.name,
        "tokenizer": corpus.tokenizer,
        **{key: getattr(evaluate, key) for key in EVALUATE_KEYS},
        "queries": evaluate.targets,
        "buckets": distance_buckets(max(lengths)),
        "layers": _layers_with_attention(model.encoding),
        "arms": measured,
    }


def _layers_with_attention(encoding: Encoding) -> list[dict]:
    """Number from 1, kind and window of each layer that has attention."""
    layers = []
    for number, layer in enumerate(encoding.layers(), start=1):
        if not layer.encoding.mixes:
            kind = name_of(layer.encoding)
            layers.append({"number": number, "kind": kind, "window": layer.window})
    return layers


def _with_trained_arm(arms: list[Arm], model: GPT, length: int) -> list[Arm]:
    """The arms, first that of the model as it was trained, at `length` and at all lengths that are
    asked for without methods.
    """
    words = {"extension": "none", "scale_attention": "none", "untested": False}
    lengths = {length}
    for arm in arms:
        if arm.words == words:
            lengths.update(arm.lengths)
    trained = Arm(words, NoExtension(), NoScale(model.encoding.shape), sorted(lengths))
    return [trained, *(arm for arm in arms if arm.words != words)]


def write_attention(diagnostics: dict, folder: Path) -> list[Path]:
    """Write diagnostics.json and, with a row for each arm, length, layer and head, diagnostics.csv
    into `folder`. Returns their paths.
    """
    # Names of buckets by their ends, such as "1" and "2_3".
    names = []
    for low, high in diagnostics["buckets"]:
        names.append(str(low) if low == high else f"{low}_{high}")
    shares = [f"{group}_{bucket}" for group in ("mass", "seen") for bucket in names]
    rows = []
    for arm in diagnostics["arms"]:
        for measured in arm["measured"]:
            for described, layer in zip(diagnostics["layers"], measured["layers"], strict=True):
                values = {
                    **{key: diagnostics[key] for key in ("run", "encoding", "train_len")},
                    **{key: arm[key] for key in METHOD_KEYS},
                    **{key: measured[key] for key in ("length", "nll")},
                    "layer": described["number"],
                    "kind": described["kind"],
                }
                rows += [{**values, **row} for row in _head_rows(layer, names)]
    table = pandas.DataFrame(rows, columns=[*CSV_COLUMNS, *shares])
    paths = [folder / "diagnostics.json", folder / "diagnostics.csv"]
    write_json(paths[0], diagnostics)
    write_atomic(paths[1], table.map(cell).to_csv(index=False, lineterminator="\n"))
    return paths


def _head_rows(layer: dict, bucket_names: list[str]) -> list[dict]:
    """{column: value} of each head of a layer. A shorter text has fewer buckets."""
    shared = {"keys": layer["keys"]}
    for bucket, keys in zip(bucket_names, layer["seen"], strict=False):
        shared[f"seen_{bucket}"] = keys
    rows = []
    for head, mass in enumerate(layer["mass"]):
        row = {**shared, "head": head + 1, **{key: layer[key][head] for key in HEAD_KEYS}}
        for bucket, share in zip(bucket_names, mass, strict=False):
            row[f"mass_{bucket}"] = share
        rows.append(row)
    return rows


def attention_in_terminal(diagnostics: dict) -> str:
    """Table of each arm and length: means over all heads, weights in percent."""
    texts = [(arm, text) for arm in diagnostics["arms"] for text in arm["measured"]]
    sinks = any(any(layer["sink"]) for _, text in texts for layer in text["layers"])
    shares = ["first", "sink", "far"] if sinks else ["first", "far"]
    headings = {
        "first": "first %",
        "sink": "sink %",
        "far": f"{diagnostics['train_len']} away or more %",
    }
    lines = [["methods", "tokens", "loss", "entropy", *(headings[key] for key in shares)]]
    for arm, text in texts:
        line = [arm_name(arm), str(text["length"]), f"{text['nll']:.3f}"]
        line.append(f"{_head_mean(text, 'entropy'):.2f}")
        lines.append(line + [f"{100 * _head_mean(text, key):.1f}" for key in shares])
    layers = len(diagnostics["layers"])
    title = f"{diagnostics['run']}: attention of {layers} layers, {windows_read(diagnostics)}"
    return f"{title}\n{aligned(lines)}"


def _head_mean(text: dict, key: str) -> float:
    """Mean over all heads of all layers of one value of a text that was read."""
    values = [value for layer in text["layers"] for value in layer[key]]
    return sum(values) / len(values)


def arm_name(arm: dict) -> str:
    """Name of an arm: extension + scale, * if untested; `no extension` for the model as it is.

    >>> arm_name({"extension": "yarn", "scale_attention": "log_n", "untested": True})
    'yarn + log_n*'
    """
    parts = [arm[key] for key in ("extension", "scale_attention") if arm[key] != "none"]
    name = " + ".join(parts or ["no extension"])
    return f"{name}*" if arm["untested"] else name


def windows_read(diagnostics: dict) -> str:
    """Windows and queries that the numbers are means of, such as "the last 8 queries of 32 windows
    of 4 documents (pysource, val split)".
    """
    text = diagnostics["arms"][0]["measured"][0]  # any: all are read in the same windows
    documents = plural(text["documents"], "document")
    return (
        f"the last {diagnostics['queries']} queries of {text['windows']} windows of {documents}"
        f" ({diagnostics['data']}, {diagnostics['split']} split)"
    )
