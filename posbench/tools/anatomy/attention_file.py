"""Attention of a trained run under some methods: the request, diagnostics.json with every number,
diagnostics.csv by head.
"""

from pathlib import Path

import pandas

from posbench.common.defuse import cell
from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic, write_json
from posbench.common.layout import aligned
from posbench.common.progress import Progress
from posbench.config.defaults import LONG, resolve
from posbench.config.schema import JobConfig
from posbench.data.corpus import Corpus
from posbench.evaluation.scorer import Scorer
from posbench.extensions.none import NoExtension
from posbench.model.gpt import GPT
from posbench.position.instantiate import make
from posbench.position.interfaces import Extension, ScaleAttention
from posbench.position.legality import check, fed_length, name_of
from posbench.scale_attention.none import NoScale
from posbench.tools.anatomy.attention import buckets, measure_attention
from posbench.tools.anatomy.from_config import method_in_words, whole

# Methods under which a model is read, in words and made, and the lengths of the texts.
Arm = tuple[dict, Extension, ScaleAttention, list[int]]
WINDOWS, LONG_WINDOWS, QUERIES = (
    32,
    8,
    64,
)  # by default: windows, of training lengths above LONG, and at most so many queries of a window
METHODS, HEAD = (
    ("extension", "scale_attention", "untested"),
    ("entropy", "entropy_half", "first", "sink", "far"),
)
COLUMNS = (
    "run",
    "encoding",
    *METHODS,
    "train_len",
    "length",
    "nll",
    "layer",
    "kind",
    "head",
    "keys",
    *HEAD,
)


def settled(cfg: dict) -> JobConfig:
    """Resolved configuration of run=DIR that reads texts of `lengths`, and one that the model
    knows; fewer than an evaluation does.

    Raises ConfigError without a run, for a run of a task, and as `whole` does.
    """
    lengths = cfg["lengths"]
    if cfg["run"] is None:
        raise ConfigError(
            f"lengths={lengths} needs a trained model: give run=DIR, or length=N for methods"
            " without one."
        )
    if cfg.get("finetune"):
        raise ConfigError(
            f"lengths={lengths} measures an existing run, but finetune= describes a child of it:"
            " give run= of the child."
        )
    for key in ("json", "figure", "length"):
        if cfg[key]:
            raise ConfigError(
                f"{key}={cfg[key]} is of methods alone, and lengths={lengths} of a trained model:"
                " leave one of them out."
            )
    for key, usual in (("text", None), ("unit", "document")):
        if (given := cfg["evaluate"].get(key, usual)) != usual:
            raise ConfigError(
                f"evaluate.{key}={given} has no effect on scripts/anatomy.py, which reads documents"
                " of data=: leave it out."
            )
    found, asked = whole({**cfg, "evaluate": {}}), cfg["evaluate"]
    if found.data["tokenizer"] == "task":
        raise ConfigError(
            f"run={cfg['run']} was trained on the task {found.data['name']}, which has no running"
            " text: name another run."
        )
    train_len = found.train.train_len
    known = max((length for length in lengths if length <= train_len), default=train_len)
    usual = {
        "windows": LONG_WINDOWS if train_len > LONG else WINDOWS,
        "targets": max(1, min(QUERIES, train_len // 8)),
    }
    few = {key: asked[key] or usual[key] for key in usual}
    found = resolve({**found.as_dict(), "evaluate": {**asked, **few, "lengths": [known, *lengths]}})
    found.evaluate.check_room()
    return found


def arm(cfg: JobConfig, lengths: list[int], model: GPT) -> tuple[Arm, str | None]:
    """Arm of a settled configuration at `lengths`, and the reason why its methods change nothing,
    else None.

    Raises ConfigError for methods that are refused, and for those that give every target a text of
    its own."""
    extension, scale, lengths = (
        make(cfg.extension),
        make(cfg.scale_attention, model.encoding.shape),
        sorted(set(lengths)),
    )
    verdict, train_len = (
        check(model.encoding, extension, scale, lengths, cfg.allow_untested),
        model.encoding.shape.train_len,
    )
    if fed_length(extension, train_len, lengths[-1]) < lengths[-1]:
        raise ConfigError(
            f"extension={name_of(extension)} reads no text of {lengths[-1]} tokens but cuts one for"
            f" each target: its attention is that of extension=none with lengths={train_len}."
        )
    words = {
        group: method_in_words(group, getattr(cfg, group))
        for group in ("extension", "scale_attention")
    }
    return ({**words, "untested": verdict.untested}, extension, scale, lengths), verdict.noop


def content(
    name: str, cfg: JobConfig, arms: list[Arm], model: GPT, corpus: Corpus, device: str
) -> dict:
    """Content of diagnostics.json: the attention of the run `name` in every arm.

    The first is the model as it was trained, at the longest of evaluate.lengths that it knows, and
    at all that are asked for without methods."""
    train_len, config = model.encoding.shape.train_len, cfg.evaluate
    plain = {"extension": "none", "scale_attention": "none", "untested": False}
    known = max(length for length in config.lengths if length <= train_len)
    asked = {length for words, *_, lengths in arms if words == plain for length in lengths}
    own = plain, NoExtension(), NoScale(model.encoding.shape), sorted({known, *asked})
    arms, found = [own, *(one for one in arms if one[0] != plain)], []
    with Progress(
        config.windows * sum(sum(lengths) for *_, lengths in arms), "attention", "tokens"
    ) as progress:
        for words, extension, scale, lengths in arms:
            evaluation = Scorer(model, corpus, extension, scale, config, device, progress.update)
            found.append(
                {**words, "measured": [measure_attention(evaluation, length) for length in lengths]}
            )
    return {
        "run": name,
        "encoding": method_in_words("encoding", cfg.encoding),
        "trained_scale": method_in_words("scale_attention", cfg.train.scale_attention),
        "train_len": train_len,
        "known": known,
        "data": corpus.name,
        "tokenizer": corpus.tokenizer,
        **{
            key: getattr(config, key)
            for key in ("split", "documents", "seed", "dtype", "max_length")
        },
        "queries": config.targets,
        "buckets": buckets(max(length for *_, lengths in arms for length in lengths)),
        "layers": [
            {"kind": name_of(layer.encoding), "window": layer.window}
            for layer in model.encoding.layers()
        ],
        "arms": found,
    }


def write_attention(found: dict, folder: Path) -> list[Path]:
    """Write diagnostics.json and, with a row for each arm, length, layer and head, diagnostics.csv
    into `folder`. Returns their paths.
    """
    paths = [folder / "diagnostics.json", folder / "diagnostics.csv"]
    write_json(paths[0], found)
    names, rows = ["_".join(map(str, dict.fromkeys(ends))) for ends in found["buckets"]], []
    shares = [f"{group}_{bucket}" for group in ("mass", "seen") for bucket in names]
    shared = {key: found[key] for key in ("run", "encoding", "train_len")}
    for one, read in ((each, text) for each in found["arms"] for text in each["measured"]):
        methods = {key: one[key] for key in METHODS} | {key: read[key] for key in ("length", "nll")}
        for number, (layer, kind) in enumerate(
            zip(read["layers"], found["layers"], strict=True), start=1
        ):
            seen = {
                f"seen_{bucket}": keys for bucket, keys in zip(names, layer["seen"], strict=False)
            }
            for head, mass in enumerate(layer["mass"]):
                own = {key: layer[key][head] for key in HEAD}
                own |= {f"mass_{bucket}": share for bucket, share in zip(names, mass, strict=False)}
                own |= {
                    "layer": number,
                    "kind": kind["kind"],
                    "head": head + 1,
                    "keys": layer["keys"],
                }
                row = {**shared, **methods, **own, **seen}
                rows.append(
                    {
                        key: cell(value) if isinstance(value, str) else value
                        for key, value in row.items()
                    }
                )
    write_atomic(
        paths[1],
        pandas.DataFrame(rows, columns=[*COLUMNS, *shares]).to_csv(
            index=False, lineterminator="\n"
        ),
    )
    return paths


def attention_in_terminal(found: dict) -> str:
    """Table of each arm and length: means over all heads, weights in percent."""
    sinks = any(
        share
        for one in found["arms"]
        for text in one["measured"]
        for layer in text["layers"]
        for share in layer["sink"]
    )
    lines = []
    for one in found["arms"]:
        for text in one["measured"]:
            heads = {
                key: [value for layer in text["layers"] for value in layer[key]]
                for key in ("entropy", "first", "sink", "far")
            }
            mean = {key: sum(values) / len(values) for key, values in heads.items()}
            shares = [
                f"{100 * mean[key]:.1f}"
                for key in ("first", "sink", "far")
                if key != "sink" or sinks
            ]
            lines.append(
                [
                    arm_name(one),
                    str(text["length"]),
                    f"{text['nll']:.3f}",
                    f"{mean['entropy']:.2f}",
                    *shares,
                ]
            )
    headings = [
        "methods",
        "tokens",
        "loss",
        "entropy",
        "first %",
        *["sink %"] * sinks,
        f"{found['train_len']} away or more %",
    ]
    title = f"{found['run']}: attention of {len(found['layers'])} layers, {windows_read(found)}"
    return f"{title}\n{aligned([headings, *lines])}"


def arm_name(one: dict) -> str:
    """Name of an arm: extension + scale, * if untested; `no extension` for the model as it is."""
    parts = [one[key] for key in ("extension", "scale_attention") if one[key] != "none"]
    return " + ".join(parts or ["no extension"]) + "*" * one["untested"]


def windows_read(found: dict) -> str:
    """Windows and queries that the numbers are means of, in words."""
    text = found["arms"][0]["measured"][0]
    of = (
        f"{text['windows']} windows of {text['documents']} document{'s' * (text['documents'] != 1)}"
    )
    return f"the last {found['queries']} queries of {of} ({found['data']}, {found['split']} split)"
