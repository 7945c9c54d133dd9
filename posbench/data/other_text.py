"""Another text than the training's for an evaluation (evaluate.text), read in the tokens that the model was trained on.

It is a choice of configs/data or of --config-dir by its name, {name: books, path: FOLDER} for one that needs the user's files, or any
source of one's own: {name: mine, source: {_target_: CLASS, ...}}. Its documents that the training has read are left out.
"""

from dataclasses import replace

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.config.schema import JobConfig
from posbench.data.corpus import Corpus, prepare
from posbench.data.sources import ALL, SPLITS, TASK, make_source

KEYS = ("name", "path", "source")
CONTENT = "content"  # hash of the text, which is filled in


def resolved_text(given: str | dict | None, data: dict, cache_dir: str | None) -> dict | None:
    """A `given` evaluate.text beside the `data` of the training, with its source and the hash of its content; None for none.

    Raises ConfigError for an unknown name or key, for a text whose files are not given, and for the text of the training itself.
    """
    from posbench.config.compose import yamls

    if given is None:
        return None
    if data["tokenizer"] == TASK:
        raise ConfigError(f"evaluate.text is read in the tokens of the training, and data={data['name']} is a task: leave it out.")
    given = {"name": given} if isinstance(given, str) else given
    if unknown := [key for key in given if key not in (*KEYS, CONTENT)]:
        raise ConfigError(f"evaluate.text.{unknown[0]} is not a key of evaluate.text: it takes {', '.join(KEYS)}.")
    name = given.get("name")
    known = {one: node for one, node in yamls("data").items() if node.get("tokenizer") != TASK}
    if not isinstance(name, str) or ("source" not in given and name not in known):
        raise ConfigError(f"evaluate.text={name} is not a text{did_you_mean(str(name), known)}: choose from {', '.join(known)}.")
    usual = {key: value for key, value in known.get(name, {}).items() if key in KEYS} if "source" not in given else {}
    text = {**usual, **{key: given[key] for key in KEYS if key in given}}
    if "path" in text and text["path"] is None:
        raise ConfigError(f"evaluate.text={name} needs your own files: give 'evaluate.text={{name: {name}, path: PATH}}'.")
    found = make_source({**text, "tokenizer": data["tokenizer"]}, cache_dir).fingerprint()
    if found == make_source(data, cache_dir).fingerprint():
        raise ConfigError(f"evaluate.text={name} is already the text of the training: leave it out, or choose another.")
    return {**text, CONTENT: found}


def refuse(cfg: dict, reader: str) -> None:
    """Raise ConfigError for evaluate.text and evaluate.unit, which a `reader` of the data's own documents does not know."""
    for key, usual in (("text", None), ("unit", "document")):
        if (given := cfg["evaluate"].get(key, usual)) != usual:
            raise ConfigError(f"evaluate.{key}={given} has no effect on {reader}, which reads documents of data=: leave it out.")


def read_text_of(trained: Corpus, cfg: JobConfig, text: dict, split: str) -> Corpus:
    """`trained`, the corpus of a job's training, with one split of a resolved `text` in place of its own.

    Raises RunError if the text has changed since it was resolved, ConfigError if no document is left.
    """
    data = cfg.data
    tokenizer = str(trained.folder / "tokenizer.json") if data["tokenizer"] == "bpe" else data["tokenizer"]
    own = {key: value for key, value in data.items() if key not in KEYS}
    other = {**own, **{key: text[key] for key in KEYS if key in text}, "tokenizer": tokenizer, "mix": None}
    found = prepare(other, trained.folder.parent, (split,), None if cfg.model.checkpoint else data)
    if make_source(other, trained.folder.parent).fingerprint() != text[CONTENT]:
        raise RunError(f"The text of evaluate.text={text['name']} changed during this command: run the same command again.")
    return replace(trained, **{**dict.fromkeys((*SPLITS, ALL)), split: getattr(found, split)}, name=text["name"])
