"""Words of a tool read as that tool reads them, so that only words which give the setting back are
shown to be copied.
"""

import json
import shlex
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from posbench.tools.explanation.apply_changes import applied
from posbench.tools.explanation.changes import read_changes
from posbench.tools.explanation.config_json import at_path, text_path
from posbench.tools.explanation.facts import HF, SGLANG, VLLM
from posbench.tools.explanation.frequencies import Rope, frequencies
from posbench.tools.explanation.gguf_words import KEYS_BEFORE, converted
from posbench.tools.explanation.llama_cpp import Gguf, llama_setting
from posbench.tools.explanation.settings import SLIDING, Setting, read_setting
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
        if line.serves and _differs(line, setting, before, model):
            line = replace(line, serves=False, text=DIFFERS)
        result.append(line)
    return result


def _differs(line: ToolWords, setting: Setting, before: Setting, model: dict | Gguf) -> bool:
    """True if the tool reads its words as another setting."""
    again = read_back(line, before, model)
    if again is None:
        return False
    if line.tool in (HF, VLLM, SGLANG):
        return not _same_by_name(setting, again)
    return not _same_full_and_sliding(setting, again)


def read_back(line: ToolWords, before: Setting, model: dict | Gguf) -> Setting | None:
    """Setting that a tool has with its words on a checkpoint; None for words that do not say all of
    it, such as those of tensors.
    """
    if line.tool in (HF, VLLM, SGLANG):
        if isinstance(model, Gguf):
            return None
        config = _with_words(line, model)
        return read_setting(config, before.name, before.trained, line.tool)
    complete = line.text.startswith(("--", *KEYS_BEFORE)) and " and the tensor" not in line.text
    if line.tool in (FLAGS, KEYS) and complete:
        changes = read_changes(shlex.split(line.text))
        file = model if isinstance(model, Gguf) else converted(before)
        file = replace(file, keys={**file.keys, **changes.keys_of(file.architecture)})
        return llama_setting(file, before.name, changes.flags, before.trained)
    return None


def _with_words(line: ToolWords, config: dict) -> dict:
    """A config.json with the words of transformers, vLLM or SGLang, as that tool applies them."""
    if line.tool != HF:
        return applied(config, read_changes(shlex.split(line.text)))
    path = text_path(config)
    keys = json.loads(line.text.removeprefix(CONFIG))
    return _with_text(config, path, {**at_path(config, path), **at_path(keys, path)})


def _with_text(config: dict, path: tuple[str, ...], text: dict) -> dict:
    """A config.json with another description of text."""
    if not path:
        return text
    return {**config, path[0]: _with_text(config[path[0]], path[1:], text)}


def _same_by_name(setting: Setting, again: Setting) -> bool:
    """True if layers of one name turn alike and have the same factors."""
    ropes = {kind.name: kind.rope for kind in setting.turning}
    ropes_again = {kind.name: kind.rope for kind in again.turning}
    if ropes.keys() != ropes_again.keys():
        return False
    return all(_same(rope, ropes_again[name]) for name, rope in ropes.items())


def _same_full_and_sliding(setting: Setting, again: Setting) -> bool:
    """True if full layers are alike and sliding ones are, whatever llama.cpp calls them."""
    if not _same(setting.turning[0].rope, again.turning[0].rope):
        return False
    ropes, ropes_again = _by_sliding(setting), _by_sliding(again)
    return all(_same(ropes[key], ropes_again[key]) for key in ropes.keys() & ropes_again.keys())


def _by_sliding(setting: Setting) -> dict[bool, Rope]:
    """{True for sliding layers: RoPE of the first kind of them}."""
    kinds = reversed(setting.turning)
    return {kind.name.startswith(SLIDING): kind.rope for kind in kinds}


def _same(rope: Rope, again: Rope) -> bool:
    """True if pairs turn alike, in short texts and long ones, and the factors are the same."""
    beyond = 2 * max(rope.original, rope.longest)
    for length in (1, beyond):
        theta, theta_again = frequencies(rope, length), frequencies(again, length)
        if len(theta) != len(theta_again) or not _close(theta, theta_again):
            return False
    return _close((rope.amplitude, rope.sharper), (again.amplitude, again.sharper))


def _close(values: ArrayLike, others: ArrayLike) -> bool:
    return np.allclose(values, others, rtol=ROUNDING, atol=0)
