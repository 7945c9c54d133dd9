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
from posbench.config.identity import text_name
from posbench.config.schema import JobConfig
from posbench.data.build_corpus import build_corpus
from posbench.data.mix import Mix, mix_of
from posbench.data.sources import (
    ALL,
    MADE_OF_TEXT,
    SPLITS,
    TASK_TOKENIZER,
    WITHOUT_FILE,
    make_source,
)
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

TOKEN_FILES_FORMAT = 1  # increase it when the same source and tokenizer give different token files
# unused rows that an embedding may have (or a tenth of its rows, if more), since tables are padded
# for speed
SPARE_ROWS = 64
TEXT_KEYS = ("name", "path", "source")  # of evaluate.text
CONTENT_KEY = "content"  # hash of the text, which is filled in


@dataclass(frozen=True)
class Corpus:
    """Prepared data set for training and evaluation.

    A split that was not requested is None; `all` holds the documents of the three. The splits of
    a task draw examples, and its `folder` does not exist. `mix` is the task that some steps of
    the training are on."""

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


def content_key(raw_data: dict, cache_dir: Path | str | None = None, again: bool = False) -> str:
    """Hex SHA-256 of source and tokenizer, which names the folder of the token files.

    With `again` no cached file digest is used."""
    source = make_source(raw_data, cache_dir)
    source.again = again
    tokenizer = tokenizer_identity(raw_data["tokenizer"], raw_data["vocab_size"])
    return sha256_json([TOKEN_FILES_FORMAT, source.fingerprint(), tokenizer])


def fingerprint(raw_data: dict, cache_dir: Path | str | None = None) -> str:
    """Hex SHA-256 of the content, tokenizer and options of a data configuration, never of paths.

    `raw_data` is the resolved `data` group. Digests of the user's own files are cached in
    `cache_dir` if given. Raises ConfigError when the data is not available."""
    return _fingerprint_with_options(content_key(raw_data, cache_dir), raw_data)


def _fingerprint_with_options(key: str, raw_data: dict) -> str:
    """Fingerprint for a content key, with the BOS and a mixed task, which change no token file."""
    identity = [key, bool(raw_data["bos"])]
    mix = mix_of(raw_data)
    if mix:
        identity += [mix.share, mix.task.fingerprint()]
    return sha256_json(identity)


def _folder_key(raw_data: dict, trained: dict | None, cache_dir: Path, again: bool = False) -> str:
    """content_key, or, of a text without what was `trained` on, a hash of both."""
    key = content_key(raw_data, cache_dir, again)
    return sha256_json([key, content_key(trained, cache_dir, again)]) if trained else key


def prepare(
    raw_data: dict,
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
    key = _folder_key(raw_data, trained, cache_dir)
    splits = [split for split in (*SPLITS, ALL) if split in splits]
    folder = cache_dir / key[:24]
    if raw_data["tokenizer"] == TASK_TOKENIZER:
        return _task_corpus(raw_data, folder, _fingerprint_with_options(key, raw_data))
    # The usual folder holds the three splits, so it serves for fewer, where it is there.
    if ALL in splits or (len(splits) < len(SPLITS) and not folder.exists()):
        folder = cache_dir / "_".join([folder.name, *splits])
    if not folder.exists():
        with (
            disk_errors(folder),
            hold(FileLock(f"{folder}.lock"), f"preparing {raw_data['name']}", wait=True),
        ):
            # Another process may have built it while this one waited.
            if not folder.exists():
                with whole_folder(folder) as temporary:
                    build_corpus(raw_data, temporary, splits, trained, cache_dir)
                    if _folder_key(raw_data, trained, cache_dir, again=True) != key:
                        raise RunError(
                            f"The text or tokenizer of data={raw_data['name']} changed while it was"
                            " read: run the same command again."
                        )
    return _open_corpus(raw_data, folder, _fingerprint_with_options(key, raw_data), splits)


def _task_corpus(raw_data: dict, folder: Path, identity: str) -> Corpus:
    """Corpus of a task, of which no file is read."""
    if raw_data["bos"]:
        raise ConfigError(
            f"data.bos=true: data={raw_data['name']} is a task with its own first tokens; leave"
            " data.bos out."
        )
    task = make_source(raw_data)
    return Corpus(
        **{split: TaskSplit(task, split) for split in SPLITS},
        fingerprint=identity,
        name=raw_data["name"],
        tokenizer=tokenizer_name(TASK_TOKENIZER, raw_data["vocab_size"]),
        vocab_size=task.vocab_size,
        bos=None,
        folder=folder,
    )


def _open_corpus(raw_data: dict, folder: Path, identity: str, names: list[str]) -> Corpus:
    """Corpus of a folder of token files, with the splits of these names."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        verify_files(folder, manifest["files"])
        splits = {name: open_split(folder, name, manifest["splits"][name]) for name in names}
        vocab_size = int(manifest["vocab_size"])
        tokenizer = str(manifest["tokenizer"])
    except RunError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{folder}/manifest.json lists no token files ({error!r}): delete the folder and run"
            " the command again."
        ) from error
    name = raw_data["name"]
    bos = None
    if raw_data["bos"]:  # one more id, whatever tokens the tokenizer has
        bos = vocab_size
        vocab_size += 1
    mix = mix_of(
        raw_data,
        offset=vocab_size,
        text=lambda split: (splits[split], load_tokenizer(tokenizer, folder), bos),
    )
    if mix:
        vocab_size += mix.task.vocab_size
        name = f"{name}+{mix.name}"
    return Corpus(
        **{**dict.fromkeys(SPLITS), **splits},
        fingerprint=identity,
        name=name,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        bos=bos,
        folder=folder,
        mix=mix,
    )


def known_tokenizer(raw_data: dict, cache_dir: Path | str) -> Tokenizer | None:
    """Tokenizer of a text that has not been read.

    None for a BPE or characters that are yet to be made of the text. Raises ConfigError for an
    unusable one."""
    choice = raw_data["tokenizer"]
    name = tokenizer_name(choice, raw_data["vocab_size"])
    if choice not in WITHOUT_FILE:
        return read_tokenizer(name, pretrained_json(choice))
    # as `prepare` names the folder of a corpus
    folder = Path(cache_dir) / content_key(raw_data, cache_dir)[:24]
    if choice == "bytes" or folder.exists():  # for bytes nothing is read from the folder
        return load_tokenizer(name, folder)
    return None


def fit_corpus(corpus: Corpus, config: JobConfig) -> Corpus:
    """Corpus with the vocabulary size and BOS token of a job's checkpoint.

    Without a checkpoint it is returned unchanged. Raises ConfigError when the number of ids
    shows another tokenizer, or when data.bos needs a BOS token and the checkpoint has none."""
    checkpoint = config.model.checkpoint
    path = config.model.path
    if not checkpoint:
        return corpus
    ids = corpus.vocab_size
    if corpus.bos is not None:
        ids -= 1  # the corpus counts its BOS, which has an id of its own
    rows = checkpoint["vocab_size"]
    # Tables are padded for speed, large ones by hundreds of rows.
    spare_rows = max(SPARE_ROWS, rows // 10)
    if not rows - spare_rows <= ids <= rows:
        remedy = f"give data.tokenizer={path}"
        if Path(path).is_dir() and not (Path(path) / "tokenizer.json").is_file():
            remedy = (
                "it has no tokenizer.json, so give data.tokenizer=bytes, or the folder or hub name"
                " of its tokenizer"
            )
        raise ConfigError(
            f"data.tokenizer={config.data['tokenizer']} has {ids} ids and model.path={path} {rows}:"
            f" {remedy}."
        )
    if corpus.bos is not None and checkpoint["bos"] is None:
        raise ConfigError(
            f"data.bos=true needs a BOS token, but model.path={path} has none: leave data.bos out."
        )
    return replace(corpus, vocab_size=rows, bos=None if corpus.bos is None else checkpoint["bos"])


def resolved_text(choice: str | dict | None, data: dict, cache_dir: str | None) -> dict | None:
    """evaluate.text beside the `data` of the training, with its source and the hash of its content;
    None for none.

    `choice` is one of configs/data or of --config-dir by its name, {name: books, path: FOLDER} for
    one that needs the user's files, or any source of one's own: {name: mine, source: {_target_:
    CLASS, ...}}. Its documents that the training has read are left out. Raises ConfigError for an
    unknown name or key, for a text whose files are not given, and for the text of the training
    itself."""
    if choice is None:
        return None
    if data["tokenizer"] == TASK_TOKENIZER:
        raise ConfigError(
            f"evaluate.text is read in the tokens of the training, and data={data['name']} is a"
            " task: leave it out."
        )
    text = _text_node({"name": choice} if isinstance(choice, str) else choice)
    name = text["name"]
    if "path" in text and text["path"] is None:
        raise ConfigError(
            f"evaluate.text={name} needs your own files: give 'evaluate.text={{name: {name}, path:"
            " PATH}'."
        )
    content = make_source({**text, "tokenizer": data["tokenizer"]}, cache_dir).fingerprint()
    if content == make_source(data, cache_dir).fingerprint():
        raise ConfigError(
            f"evaluate.text is {name}, which is already the text of the training: leave it out, or"
            " choose another."
        )
    return {**text, CONTENT_KEY: content}


def _text_node(choice: dict) -> dict:
    """{name, path, source} of an evaluate.text, its own source or that of configs/data.

    CONTENT_KEY, which a stored configuration has, is left out: it is made again. Raises ConfigError
    for an unknown name or key."""
    from posbench.config.compose import all_yamls

    for key in choice:
        if key not in (*TEXT_KEYS, CONTENT_KEY):
            raise ConfigError(
                f"evaluate.text.{key} is not a key of evaluate.text: it takes"
                f" {', '.join(TEXT_KEYS)}."
            )
    name = choice.get("name")
    # Data of a task is no text.
    texts = {
        text: node
        for text, node in all_yamls("data").items()
        if node.get("tokenizer") != TASK_TOKENIZER
    }
    if not isinstance(name, str) or ("source" not in choice and name not in texts):
        raise ConfigError(
            f"evaluate.text={name} is not a text{did_you_mean(str(name), texts)}: choose from"
            f" {', '.join(texts)}."
        )
    if "source" in choice:
        return {key: choice[key] for key in TEXT_KEYS if key in choice}
    node = {**texts[name], **choice}
    if texts[name]["name"] is None:  # the user's own files
        node["name"] = text_name({"path": node["path"]}) or name
    return {key: node[key] for key in TEXT_KEYS if key in node}


def read_text_of(trained: Corpus, config: JobConfig, text: dict, split: str) -> Corpus:
    """`trained`, the corpus of a job's training, with one split of a resolved `text` in place of
    its own.

    Raises RunError if the text has changed since it was resolved, ConfigError if no document is
    left."""
    data = config.data
    cache_dir = trained.folder.parent
    text_data = {key: value for key, value in data.items() if key not in TEXT_KEYS}
    text_data |= {key: text[key] for key in TEXT_KEYS if key in text}
    text_data["mix"] = None  # the text alone
    if data["tokenizer"] in MADE_OF_TEXT:  # the one that was made of the training's text
        text_data["tokenizer"] = str(trained.folder / "tokenizer.json")
    # Documents that the training has read are left out. A checkpoint was trained elsewhere.
    read_in_training = None if config.model.checkpoint else data
    corpus = prepare(text_data, cache_dir, (split,), trained=read_in_training)
    if make_source(text_data, cache_dir).fingerprint() != text[CONTENT_KEY]:
        raise RunError(
            f"The text {text['name']} of evaluate.text changed during this command: run the same"
            " command again."
        )
    # The other splits are None, so that nothing reads them for this text.
    return replace(
        trained,
        **{**dict.fromkeys((*SPLITS, ALL)), split: getattr(corpus, split)},
        name=text["name"],
    )
