"""Explaining of a model's positions: what its description says, changed as typed, as the tool of
those words reads it.
"""

import os
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.wheel_file import wheel_file
from posbench.gguf.header import is_gguf, read_gguf
from posbench.pretrained.checkpoint import HUB_NAME
from posbench.pretrained.config_files import read_mapping
from posbench.tools.explanation.apply_changes import applied
from posbench.tools.explanation.changes import read_changes
from posbench.tools.explanation.checks import config_findings, llama_findings
from posbench.tools.explanation.facts import LLAMA, Finding
from posbench.tools.explanation.gguf_words import converted
from posbench.tools.explanation.llama_cpp import Gguf, llama_setting, read_keys
from posbench.tools.explanation.read_back import confirmed
from posbench.tools.explanation.rope_parameters import Cannot
from posbench.tools.explanation.settings import read_setting
from posbench.tools.explanation.show import Explanation
from posbench.tools.explanation.words import in_words


def explain_words(what: str, words: list[str]) -> Explanation:
    """Explain a checkpoint with changes. Raises ConfigError for what is not there, or a word that
    nobody knows.
    """
    changes, (name, content) = read_changes(words), find_source(what)
    of_file = isinstance(content, Gguf)
    own = setting = llama_setting(content, name) if of_file else read_setting(content, name)
    findings: list[Finding] = []
    if of_file and (changes.config or changes.served):
        raise ConfigError(
            f"{name} has no config.json, which {changes.reader} reads: give flags or keys of"
            " llama.cpp, or the folder."
        )
    if not of_file:
        changed = applied(content, changes)
        setting = read_setting(changed, name, own.trained, changes.reader)
        findings += config_findings(content, changed, setting, own, changes)
    by_llama = of_file or bool(changes.flags or changes.keys)
    if by_llama:
        try:
            model = content if of_file else converted(setting)
        except Cannot as why:
            raise ConfigError(
                f"{name} does not become a file of llama.cpp here ({why}): explain its .gguf file"
                " instead."
            ) from None
        file = replace(model, keys={**model.keys, **changes.keys_of(model.architecture)})
        setting = llama_setting(file, name, changes.flags, own.trained)
        findings += llama_findings(file, setting, own, changes)
    length = changes.options.get("length") or changes.served or changes.flags.get("ctx")
    words = []
    if (
        changes.flags.get("group", 1) == 1
    ):  # self-extend moves positions, which no tool has words for
        words = in_words(setting, own, what, None if of_file else content)
        words = confirmed(words, setting, own, content)
    reader = LLAMA if by_llama else changes.reader
    return Explanation(
        what, reader, setting, own, length, tuple(findings), tuple(words), changes.options
    )


def find_source(what: str) -> tuple[str, dict | Gguf]:
    """Name to show, and the config.json or the keys of the GGUF file. Raises ConfigError where
    nothing is, or no description of a model.
    """
    file = wheel_file("explain", what) or what
    if is_gguf(file):
        return Path(file).name, read_keys(read_gguf(file))
    if os.path.isdir(file):
        config = Path(file) / "config.json"
        if not config.is_file():
            held = sorted(path.name for path in Path(file).glob("*.gguf"))
            raise ConfigError(
                f"{what} is a folder without a config.json: name"
                f" {held[0] if held else 'the folder of a checkpoint'}."
            )
        return Path(file).resolve().name, read_mapping(config)
    if os.path.isfile(file):
        parent = Path(file).resolve().parent.name
        return (
            parent if Path(file).name == "config.json" and parent else Path(file).name
        ), read_mapping(Path(file))
    if not HUB_NAME.fullmatch(what):
        raise ConfigError(
            f"{what} is not there: give a checkpoint's folder, a config.json, a .gguf file or a hub"
            " name (ORG/NAME)."
        )
    from posbench.data.hub import hub_file, hub_miss

    try:
        path = hub_file(what, "config.json")
    except Exception as error:  # the hub's errors have no common base class
        remedy = "or give the path of its config.json."
        raise ConfigError(
            f"{what} is neither a folder, a file, nor a hub name that answers:"
            f" {hub_miss(error, remedy)}"
        ) from error
    return what, read_mapping(path)
