"""Explaining of a model's positions: what its description says, changed as typed, as the tool of those words reads it."""

from dataclasses import replace

from posbench.common.errors import ConfigError
from posbench.explanation.changes import Changes, read_changes
from posbench.explanation.checks import Finding, config_findings, llama_findings
from posbench.explanation.llama_cpp import Gguf, llama_setting
from posbench.explanation.result import Explanation
from posbench.explanation.settings import HF, LLAMA, THETA, VLLM, Setting, flat, nested, read_setting, rope_words
from posbench.explanation.show import screen
from posbench.explanation.source import find_source
from posbench.explanation.words import Cannot, config_of, converted, in_words

VLLM_THETA = dict.fromkeys(("qwen2", "qwen3", "exaone4"), 1e6)  # of its model files, where a mapping lacks rope_theta; others: 10000


def explain_words(what: str, words: list[str]) -> Explanation:
    """Explain a checkpoint with changes. Raises ConfigError for what is not there, or a word that nobody knows."""
    changes, source = read_changes(words), find_source(what)
    name, content = source.name, source.content
    of_file = isinstance(content, Gguf)
    own = setting = llama_setting(content, name) if of_file else read_setting(content, name)
    _check_turning(own)
    findings: list[Finding] = []
    served = bool(changes.config or changes.served)
    if served or not of_file:
        config = config_of(own) if of_file else content
        changed = applied(config, changes)
        setting = read_setting(changed, name, own.trained, changes.reader)
        _check_turning(setting)
        findings += config_findings(config, changed, setting, own, changes)
    by_llama = of_file and not served
    if changes.flags or changes.keys or by_llama:
        try:
            model = content if by_llama else converted(setting)
        except Cannot as why:
            raise ConfigError(f"{name} does not become a file of llama.cpp here ({why}): explain its .gguf file instead.") from None
        file = replace(model, keys={**model.keys, **changes.keys})
        setting = llama_setting(file, name, changes.flags, own.trained)
        findings += llama_findings(file, setting, own, changes)
        by_llama = True
    length = changes.options.get("length") or changes.served or changes.flags.get("ctx")
    reader, words = LLAMA if by_llama else changes.reader, [] if changes.flags.get("group", 1) != 1 else in_words(setting, own, what)
    found = Explanation(what, reader, setting, own, length, tuple(findings), tuple(words), changes.options)
    return replace(found, text=screen(found))


def _check_turning(setting: Setting) -> None:
    """Raise ConfigError for a model without a layer whose channels turn."""
    if not setting.turning:
        raise ConfigError(f"{setting.name} has no layer in which RoPE turns a channel, so no setting of it does anything.")


def applied(config: dict, changes: Changes) -> dict:
    """A config.json with the changes, as the tool of their words applies them.

    vLLM replaces rope_parameters as a whole, SGLang merges it into the old one; both have moved rope_theta into it before.
    """
    if changes.reader == HF:
        return {**flat(config), **changes.config} if changes.config else config
    found, given = flat(config), dict(changes.config)
    words = dict(rope_words(found))
    apart = nested(words)
    if not apart:
        words.setdefault("rope_type", words.get("type", "default"))
        found.setdefault("rope_theta", THETA.get(str(found.get("model_type")), 1e4))
        for key in ("rope_theta", "partial_rotary_factor"):
            if found.get(key) is not None:
                words.setdefault(key, found[key])
            if words.get(key) is not None:
                found.pop(key, None)
                given.pop(key, None)  # the mapping has it already, and comes first
    new = given.pop("rope_parameters", None) or given.pop("rope_scaling", None)
    given.pop("rope_scaling", None)
    found.pop("rope_scaling", None)
    if isinstance(new, dict):
        words = {"rope_theta": VLLM_THETA.get(str(found.get("model_type")), 1e4), **new} if changes.reader == VLLM else {**words, **new}
    return {**found, **given, "rope_parameters": words}
