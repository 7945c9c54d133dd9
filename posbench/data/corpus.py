"""Corpus of a data configuration: memory-mapped tokens, built once even if several processes need
them, and the hashes that identify it.

Hashes need no text, so that the id of a run is known at once.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.common.files import disk_errors, sha256_json, whole_folder
from posbench.common.locks import hold
from posbench.config.schema import JobConfig
from posbench.data.build_corpus import build_corpus
from posbench.data.mix import Mix, mix_of
from posbench.data.sources import ALL, SPLITS, TASK, make_source
from posbench.data.task import TaskSplit
from posbench.data.tokenfile import TokenFile, open_split, verify_files
from posbench.data.tokenizers import (
    Tokenizer,
    load_tokenizer,
    pretrained_json,
    read_tokenizer,
    tokenizer_identity,
    tokenizer_name,
)

FORMAT = 1  # increase it when the same source and tokenizer give different token files
# unused rows that an embedding may have (or a tenth of its rows, if more), since tables are padded
# for speed
SPARE = 64
KEYS = ("name", "path", "source")  # of evaluate.text
CONTENT = "content"  # hash of the text, which is filled in


@dataclass(frozen=True)
class Corpus:
    """Prepared data set for training and evaluation. A split that was not requested is None; `all`
    holds the documents of the three.

    The splits of a task draw examples, and its `folder` does not exist. `mix` is the task that some
    steps of the training are on."""

    train: TokenFile | TaskSplit | None
    validation: TokenFile | TaskSplit | None
    test: TokenFile | TaskSplit | None
    fingerprint: str
    name: str
    tokenizer: str
    vocab_size: int  # including the BOS token and the tokens of `mix`
    bos: int | None  # the id behind those of the text, when data.bos is true
    folder: Path  # holds the token files, the tokenizer and manifest.json
    all: TokenFile | None = None
    mix: Mix | None = None


def content_key(cfg_data: dict, cache_dir: Path | str | None = None, again: bool = False) -> str:
    """Hex SHA-256 of source and tokenizer, which names the folder of the token files. With `again`
    no cached file digest is used.
    """
    source = make_source(cfg_data, cache_dir)
    source.again = again
    return sha256_json(
        [
            FORMAT,
            source.fingerprint(),
            tokenizer_identity(cfg_data["tokenizer"], cfg_data["vocab_size"]),
        ]
    )


def fingerprint(cfg_data: dict, cache_dir: Path | str | None = None) -> str:
    """Hex SHA-256 of the content, tokenizer and options of a data configuration, never of paths.

    `cfg_data` is the resolved `data` group. Digests of the user's own files are cached in
    `cache_dir` if given. Raises ConfigError when the data is not available."""
    return _with_options(content_key(cfg_data, cache_dir), cfg_data)


def _with_options(key: str, cfg_data: dict) -> str:
    """Fingerprint for a content key. The BOS choice and a mixed task are added here, since they
    change no token file.
    """
    mix = mix_of(cfg_data)
    return sha256_json(
        [key, bool(cfg_data["bos"]), *([mix.share, mix.task.fingerprint()] if mix else [])]
    )


def _folder_key(cfg_data: dict, trained: dict | None, cache_dir: Path, again: bool = False) -> str:
    """content_key, or, of a text without what was `trained` on, a hash of both."""
    own = content_key(cfg_data, cache_dir, again)
    return sha256_json([own, content_key(trained, cache_dir, again)]) if trained else own


def prepare(
    cfg_data: dict,
    cache_dir: Path | str,
    splits: Iterable[str] = SPLITS,
    trained: dict | None = None,
) -> Corpus:
    """Tokenize a text into `cache_dir` if it is not there yet, verify the files and memory-map
    them.

    Other `splits` than all three are tokenized into a folder of their own. A task needs no files.
    With `trained`, the data configuration of another text, documents of its training split are left
    out. Raises ConfigError when the data is not available, RunError when files in `cache_dir` are
    damaged or the disk is full."""
    cache_dir = Path(cache_dir)
    key = _folder_key(cfg_data, trained, cache_dir)
    splits = [split for split in (*SPLITS, ALL) if split in splits]
    folder = cache_dir / key[:24]
    if cfg_data["tokenizer"] == TASK:
        if cfg_data["bos"]:
            raise ConfigError(
                f"data.bos=true: data={cfg_data['name']} is a task with its own first tokens; leave"
                " data.bos out."
            )
        task, named = make_source(cfg_data), tokenizer_name(TASK, cfg_data["vocab_size"])
        drawn = (TaskSplit(task, split) for split in SPLITS)
        return Corpus(
            *drawn,
            _with_options(key, cfg_data),
            cfg_data["name"],
            named,
            task.vocab_size,
            None,
            folder,
        )
    if ALL in splits or (len(splits) < len(SPLITS) and not folder.exists()):
        folder = cache_dir / "_".join([folder.name, *splits])
    if not folder.exists():
        with (
            disk_errors(folder),
            hold(FileLock(f"{folder}.lock"), f"preparing {cfg_data['name']}", wait=True),
        ):
            if not folder.exists():
                with whole_folder(folder) as temporary:
                    build_corpus(cfg_data, temporary, splits, trained, cache_dir)
                    if _folder_key(cfg_data, trained, cache_dir, again=True) != key:
                        what = f"The text or tokenizer of data={cfg_data['name']}"
                        raise RunError(
                            f"{what} changed while it was read: run the same command again."
                        )
    return _open(cfg_data, folder, _with_options(key, cfg_data), splits)


def _open(cfg_data: dict, folder: Path, identity: str, wanted: list[str]) -> Corpus:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        verify_files(folder, manifest["files"])
        splits = {split: open_split(folder, split, manifest["splits"][split]) for split in wanted}
        size, tokenizer = int(manifest["vocab_size"]), str(manifest["tokenizer"])
    except RunError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{folder}/manifest.json lists no token files ({error!r}): delete the folder and run"
            " the command again."
        ) from error
    bos = size if cfg_data["bos"] else None
    size, name = size + (bos is not None), cfg_data["name"]
    if mix := mix_of(
        cfg_data,
        offset=size,
        text=lambda split: (splits[split], load_tokenizer(tokenizer, folder), bos),
    ):
        size, name = size + mix.task.vocab_size, f"{name}+{mix.name}"
    return Corpus(**{**dict.fromkeys(SPLITS), **splits}, fingerprint=identity, name=name, tokenizer=tokenizer, vocab_size=size, bos=bos,
                  folder=folder, mix=mix)  # fmt: skip


def known_tokenizer(cfg_data: dict, cache_dir: Path | str) -> Tokenizer | None:
    """Tokenizer of a text that has not been read; None for a BPE that is yet to be trained. Raises
    ConfigError for an unusable one.
    """
    choice, name = (
        cfg_data["tokenizer"],
        tokenizer_name(cfg_data["tokenizer"], cfg_data["vocab_size"]),
    )
    if choice not in ("bytes", "bpe"):
        return read_tokenizer(name, pretrained_json(choice))
    folder = Path(cache_dir) / content_key(cfg_data, cache_dir)[:24]
    return load_tokenizer(name, folder) if choice == "bytes" or folder.exists() else None


def fit_corpus(corpus: Corpus, cfg: JobConfig) -> Corpus:
    """Corpus with the vocabulary size and BOS token of a job's checkpoint. Without a checkpoint it
    is returned unchanged.

    Raises ConfigError when the number of ids shows another tokenizer, or when data.bos needs a BOS
    token and the checkpoint has none."""
    checkpoint, path = cfg.model.checkpoint, cfg.model.path
    if not checkpoint:
        return corpus
    ids, rows = corpus.vocab_size - (corpus.bos is not None), checkpoint["vocab_size"]
    if not rows - max(SPARE, rows // 10) <= ids <= rows:
        raise ConfigError(
            f"data.tokenizer={cfg.data['tokenizer']} has {ids} ids and model.path={path} {rows}:"
            f" give data.tokenizer={path}."
        )
    if corpus.bos is not None and checkpoint["bos"] is None:
        raise ConfigError(
            f"data.bos=true needs a BOS token, but model.path={path} has none: leave data.bos out."
        )
    return replace(corpus, vocab_size=rows, bos=None if corpus.bos is None else checkpoint["bos"])


def resolved_text(given: str | dict | None, data: dict, cache_dir: str | None) -> dict | None:
    """A `given` evaluate.text beside the `data` of the training, with its source and the hash of
    its content; None for none.

    It is a choice of configs/data or of --config-dir by its name, {name: books, path: FOLDER} for
    one that needs the user's files, or any source of one's own: {name: mine, source: {_target_:
    CLASS, ...}}. Its documents that the training has read are left out. Raises ConfigError for an
    unknown name or key, for a text whose files are not given, and for the text of the training
    itself."""
    from posbench.config.compose import yamls

    if given is None:
        return None
    if data["tokenizer"] == TASK:
        raise ConfigError(
            f"evaluate.text is read in the tokens of the training, and data={data['name']} is a"
            " task: leave it out."
        )
    given = {"name": given} if isinstance(given, str) else given
    if unknown := [key for key in given if key not in (*KEYS, CONTENT)]:
        raise ConfigError(
            f"evaluate.text.{unknown[0]} is not a key of evaluate.text: it takes {', '.join(KEYS)}."
        )
    name = given.get("name")
    known = {one: node for one, node in yamls("data").items() if node.get("tokenizer") != TASK}
    if not isinstance(name, str) or ("source" not in given and name not in known):
        raise ConfigError(
            f"evaluate.text={name} is not a text{did_you_mean(str(name), known)}: choose from"
            f" {', '.join(known)}."
        )
    usual = (
        {key: value for key, value in known.get(name, {}).items() if key in KEYS}
        if "source" not in given
        else {}
    )
    text = {**usual, **{key: given[key] for key in KEYS if key in given}}
    if "path" in text and text["path"] is None:
        raise ConfigError(
            f"evaluate.text={name} needs your own files: give 'evaluate.text={{name: {name}, path:"
            " PATH}'."
        )
    found = make_source({**text, "tokenizer": data["tokenizer"]}, cache_dir).fingerprint()
    if found == make_source(data, cache_dir).fingerprint():
        raise ConfigError(
            f"evaluate.text={name} is already the text of the training: leave it out, or choose"
            " another."
        )
    return {**text, CONTENT: found}


def read_text_of(trained: Corpus, cfg: JobConfig, text: dict, split: str) -> Corpus:
    """`trained`, the corpus of a job's training, with one split of a resolved `text` in place of
    its own.

    Raises RunError if the text has changed since it was resolved, ConfigError if no document is
    left."""
    data = cfg.data
    tokenizer = (
        str(trained.folder / "tokenizer.json") if data["tokenizer"] == "bpe" else data["tokenizer"]
    )
    own = {key: value for key, value in data.items() if key not in KEYS}
    other = {
        **own,
        **{key: text[key] for key in KEYS if key in text},
        "tokenizer": tokenizer,
        "mix": None,
    }
    found = prepare(other, trained.folder.parent, (split,), None if cfg.model.checkpoint else data)
    if make_source(other, trained.folder.parent).fingerprint() != text[CONTENT]:
        raise RunError(
            f"The text of evaluate.text={text['name']} changed during this command: run the same"
            " command again."
        )
    return replace(
        trained,
        **{**dict.fromkeys((*SPLITS, ALL)), split: getattr(found, split)},
        name=text["name"],
    )
