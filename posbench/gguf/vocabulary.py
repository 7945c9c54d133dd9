"""Lists of a vocabulary in a GGUF file, checked, and the parts of a tokenizer.json that all kinds share."""

from array import array
from dataclasses import dataclass
from pathlib import Path

from posbench.common.errors import ConfigError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True)
class Vocabulary:
    """Metadata of the GGUF file at `path`."""

    path: str | Path
    metadata: dict

    def strings(self, key: str) -> list[str]:
        """A list of strings. Raises ConfigError if it is not there."""
        found = self.metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(found, list) or not found:
            raise ConfigError(f"{self.path} has no tokenizer.ggml.{key}: give data.tokenizer=FOLDER with the tokenizer.json of this model.")
        return found

    def numbers(self, key: str, count: int, usual: array | None = None) -> array:
        """A number for each of `count` tokens, or `usual` without any. Raises ConfigError for another number of them."""
        found = self.metadata.get(f"tokenizer.ggml.{key}", usual)
        if not isinstance(found, array) or len(found) != count:
            raise self.damaged(f"has another number of token {key.removeprefix('token_')}s than of tokens")
        return found

    def damaged(self, what: str) -> ConfigError:
        """Error that says what is wrong with this vocabulary."""
        return ConfigError(
            f"{self.path} {what}, so it is not a tokenizer: download it again, or give data.tokenizer=FOLDER with a tokenizer.json."
        )


def tokenizer_content(model: dict, added: dict[int, str], types: array, normalizer: dict | None, **parts: object) -> dict:
    """Content of a tokenizer.json. The tokens `added`, by id, are found whole in a text; those of type CONTROL and UNKNOWN are special.

    The order of the keys is hashed with the content into the ids of texts, so it stays.
    """
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [{"id": index, "content": token, "special": types[index] in (CONTROL, UNKNOWN), **plain} for index, token in added.items()]
    empty = dict.fromkeys(("truncation", "padding", "post_processor"))
    return {"version": "1.0", **empty, "normalizer": normalizer, "added_tokens": tokens, **parts, "model": model}
