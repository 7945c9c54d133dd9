"""Words of a tool read as that tool reads them, so that only words which give the setting back are
shown to be copied.
"""

import json
import shlex
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from posbench.tools.explanation.apply_changes import config_with_changes
from posbench.tools.explanation.changes import read_changes
from posbench.tools.explanation.config_json import mapping_at, text_path
from posbench.tools.explanation.facts import HF, SGLANG, VLLM
from posbench.tools.explanation.frequencies import Rope, frequencies
from posbench.tools.explanation.gguf_words import ARCHITECTURE_PREFIXES, converted_file
from posbench.tools.explanation.llama_cpp import Gguf, llama_setting
from posbench.tools.explanation.settings import SLIDING, Setting, read_setting
from posbench.tools.explanation.words import CONFIG_PREFIX, TOOL_FLAGS, TOOL_KEYS, ToolWords

ROUNDING = 1e-6
REASON_IF_MISREAD = "what it reads of the words that explain writes is another setting"


def confirmed_words(
    words: list[ToolWords], setting: Setting, before: Setting, model: dict | Gguf
) -> list[ToolWords]:
    """The words, without those that their tool reads as another setting on the checkpoint described
    by `model`.
    """
    result = []
    for line in words:
        if line.serves and _reads_another_setting(line, setting, before, model):
            line = replace(line, serves=False, text=REASON_IF_MISREAD)
        result.append(line)
    return result


def _reads_another_setting(
    line: ToolWords, setting: Setting, before: Setting, model: dict | Gguf
) -> bool:
    """True if the tool reads its words as another setting."""
    setting_read = read_back(line, before, model)
    if setting_read is None:  # words that do not say all of a setting cannot be checked
        return False
    # These call a kind of layers by the same name; llama.cpp knows full and sliding layers alone.
    if line.tool in (HF, VLLM, SGLANG):
        return not _turn_alike_by_name(setting, setting_read)
    return not _full_and_sliding_turn_alike(setting, setting_read)


def read_back(line: ToolWords, before: Setting, model: dict | Gguf) -> Setting | None:
    """Setting that a tool has with its words on a checkpoint; None for words that do not say all of
    it, such as those of tensors.
    """
    if line.tool in (HF, VLLM, SGLANG):
        if isinstance(model, Gguf):  # these words change a config.json, which it lacks
            return None
        config = _config_with_words(line, model)
        return read_setting(config, before.name, before.trained, line.tool)
    # Keys that need tensors say so, as `key_words` writes it.
    complete = (
        line.text.startswith(("--", *ARCHITECTURE_PREFIXES)) and " and the tensor" not in line.text
    )
    if line.tool in (TOOL_FLAGS, TOOL_KEYS) and complete:
        changes = read_changes(shlex.split(line.text))
        file = model if isinstance(model, Gguf) else converted_file(before)
        file = replace(file, keys={**file.keys, **changes.keys_of(file.architecture)})
        return llama_setting(file, before.name, changes.llama_flags, before.trained)
    return None


def _config_with_words(line: ToolWords, config: dict) -> dict:
    """A config.json with the words of transformers, vLLM or SGLang, as that tool applies them."""
    if line.tool != HF:
        return config_with_changes(config, read_changes(shlex.split(line.text)))
    path = text_path(config)
    keys = json.loads(line.text.removeprefix(CONFIG_PREFIX))
    return _config_with_text(config, path, {**mapping_at(config, path), **mapping_at(keys, path)})


def _config_with_text(config: dict, path: tuple[str, ...], text: dict) -> dict:
    """A config.json with another description of text."""
    if not path:
        return text
    return {**config, path[0]: _config_with_text(config[path[0]], path[1:], text)}


def _turn_alike_by_name(setting: Setting, setting_read: Setting) -> bool:
    """True if layers of one name turn alike and have the same factors."""
    ropes = {kind.name: kind.rope for kind in setting.turning}
    ropes_read = {kind.name: kind.rope for kind in setting_read.turning}
    if ropes.keys() != ropes_read.keys():
        return False
    return all(_ropes_turn_alike(rope, ropes_read[name]) for name, rope in ropes.items())


def _full_and_sliding_turn_alike(setting: Setting, setting_read: Setting) -> bool:
    """True if full layers are alike and sliding ones are, whatever llama.cpp calls them."""
    # Those with the widest view, even if only one of both is called sliding.
    if not _ropes_turn_alike(setting.turning[0].rope, setting_read.turning[0].rope):
        return False
    # llama.cpp may call layers otherwise, so that only one of both has sliding or full ones.
    ropes, ropes_read = _rope_by_sliding(setting), _rope_by_sliding(setting_read)
    return all(
        _ropes_turn_alike(ropes[key], ropes_read[key]) for key in ropes.keys() & ropes_read.keys()
    )


def _rope_by_sliding(setting: Setting) -> dict[bool, Rope]:
    """{True for sliding layers: RoPE of the first kind of them}."""
    kinds = reversed(setting.turning)
    return {kind.name.startswith(SLIDING): kind.rope for kind in kinds}


def _ropes_turn_alike(rope: Rope, rope_read: Rope) -> bool:
    """True if pairs turn alike, in short texts and long ones, and the factors are the same."""
    beyond = 2 * max(rope.original, rope.longest)
    for length in (1, beyond):
        theta, theta_read = frequencies(rope, length), frequencies(rope_read, length)
        if len(theta) != len(theta_read) or not _are_close(theta, theta_read):
            return False
    return _are_close((rope.amplitude, rope.sharper), (rope_read.amplitude, rope_read.sharper))


def _are_close(values: ArrayLike, others: ArrayLike) -> bool:
    """True if numbers are the same but for rounding in the tool's words."""
    return np.allclose(values, others, rtol=ROUNDING, atol=0)
