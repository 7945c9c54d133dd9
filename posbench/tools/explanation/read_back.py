"""Words of a tool read as that tool reads them, so that only words which give the setting back are
shown to be copied.
"""

import json
import shlex
from dataclasses import replace

import numpy as np

from posbench.tools.explanation.apply_changes import applied
from posbench.tools.explanation.changes import read_changes
from posbench.tools.explanation.config_json import at_path, text_path
from posbench.tools.explanation.facts import HF, SGLANG, VLLM
from posbench.tools.explanation.frequencies import Rope, frequencies
from posbench.tools.explanation.gguf_words import KEYS_BEFORE, converted
from posbench.tools.explanation.llama_cpp import Gguf, llama_setting
from posbench.tools.explanation.settings import SLIDING, LayerKind, Setting, read_setting
from posbench.tools.explanation.words import CONFIG, FLAGS, KEYS, ToolWords

ROUNDING = 1e-6
DIFFERS = "what it reads of the words that explain writes is another setting"


def confirmed(
    words: list[ToolWords], setting: Setting, before: Setting, model: dict | Gguf
) -> list[ToolWords]:
    """The words, without those that their tool reads as another setting on the checkpoint described
    by `model`.
    """
    result = []
    for line in words:
        again = read_back(line, before, model) if line.serves else None
        differs = again is not None and not _alike(
            setting, again, by_name=line.tool in (HF, VLLM, SGLANG)
        )
        result.append(replace(line, serves=False, text=DIFFERS) if differs else line)
    return result


def read_back(line: ToolWords, before: Setting, model: dict | Gguf) -> Setting | None:
    """Setting that a tool has with its words on a checkpoint; None for words that do not say all of
    it, such as those of tensors.
    """
    if line.tool == HF:
        if isinstance(model, Gguf):
            return None
        path, keys = text_path(model), json.loads(line.text.removeprefix(CONFIG))
        edited = {**at_path(model, path), **at_path(keys, path)}
        return read_setting(_with_text(model, path, edited), before.name, before.trained)
    if line.tool in (VLLM, SGLANG):
        if isinstance(model, Gguf):
            return None
        changes = read_changes(shlex.split(line.text))
        return read_setting(applied(model, changes), before.name, before.trained, line.tool)
    if (
        line.tool in (FLAGS, KEYS)
        and line.text.startswith(("--", *KEYS_BEFORE))
        and " and the tensor" not in line.text
    ):
        changes = read_changes(shlex.split(line.text))
        file = model if isinstance(model, Gguf) else converted(before)
        file = replace(file, keys={**file.keys, **changes.keys_of(file.architecture)})
        return llama_setting(file, before.name, changes.flags, before.trained)
    return None


def _with_text(config: dict, path: tuple[str, ...], text: dict) -> dict:
    """A config.json with another description of text."""
    if not path:
        return text
    return {**config, path[0]: _with_text(config[path[0]], path[1:], text)}


def _alike(setting: Setting, again: Setting, by_name: bool) -> bool:
    """True if layers of one name turn alike and have the same factors; of llama.cpp, which names
    them otherwise, full and sliding ones.
    """
    ours, theirs = _kinds(setting.turning, by_name), _kinds(again.turning, by_name)
    if by_name and ours.keys() != theirs.keys():
        return False
    if not by_name and not _same(setting.turning[0].rope, again.turning[0].rope):
        return False
    return all(_same(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())


def _kinds(kinds: list[LayerKind], by_name: bool) -> dict[str, Rope]:
    return {
        kind.name if by_name else str(kind.name.startswith(SLIDING)): kind.rope
        for kind in reversed(kinds)
    }


def _same(rope: Rope, again: Rope) -> bool:
    factors = np.allclose(
        (rope.amplitude, rope.sharper), (again.amplitude, again.sharper), rtol=ROUNDING, atol=0
    )
    for length in (1, 2 * max(rope.original, rope.longest)):
        one, two = frequencies(rope, length), frequencies(again, length)
        if len(one) != len(two) or not np.allclose(one, two, rtol=ROUNDING, atol=0):
            return False
    return bool(factors)
