"""Parts of a checkpoint that an export keeps beside weights and RoPE: ids of special tokens, chat template, generation settings."""

import shutil
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import write_json
from posbench.config.schema import JobConfig
from posbench.data.chat import of_gguf
from posbench.data.tokenizer_files import pretrained_file
from posbench.gguf.header import is_gguf, read_gguf
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.config_files import read_mapping

IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}  # {key of config.json: its name in a GGUF file}
OF_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}


def source(trained: JobConfig) -> Checkpoint | None:
    """Checkpoint that a run, or the parent of a fine-tuned one, was made of; None for a training from the start, or if it is gone."""
    if not trained.model.checkpoint:
        return None
    try:
        return find_checkpoint(trained.model.path, download=False)
    except ConfigError:
        return None


def special_ids(checkpoint: Checkpoint) -> dict[str, int | list[int]]:
    """Ids of special tokens that a checkpoint names, by their keys in config.json."""
    if is_gguf(checkpoint.place):
        said = read_gguf(checkpoint.place).metadata
        found = {key: said.get(f"tokenizer.ggml.{name}_token_id") for key, name in IDS.items()}
    else:
        said = read_mapping(checkpoint.place / "config.json")
        found = {key: said.get(key) for key in IDS}
    return {key: value for key, value in found.items() if _is_count(value) or (isinstance(value, list) and all(map(_is_count, value)))}


def keep_generation(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy generation_config.json, which says where a generated text ends, if there is one."""
    if (file := checkpoint.place / "generation_config.json").is_file():
        shutil.copyfile(file, folder / file.name)


def keep_tokenizer(tokenizer: str, folder: Path) -> None:
    """Write what belongs to the tokenizer.json in `folder`: special tokens and chat template, of one that was not trained here."""
    own, file = dict(PLAIN), None if tokenizer == "bpe" else pretrained_file(tokenizer)
    if file and is_gguf(file):
        said = of_gguf(file)
        own |= {"chat_template" if key == "template" else key: value for key, value in said.items() if isinstance(value, str)}
    elif file:
        for one in [file.parent / name for name in OF_TOKENIZER if (file.parent / name).is_file()]:
            shutil.copyfile(one, folder / one.name)
    if not (folder / OF_TOKENIZER[0]).exists():
        write_json(folder / OF_TOKENIZER[0], own)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
