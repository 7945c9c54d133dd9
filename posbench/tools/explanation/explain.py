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
from posbench.pretrained.config_files import read_json_mapping
from posbench.tools.explanation.apply_changes import config_with_changes
from posbench.tools.explanation.changes import Changes, read_changes
from posbench.tools.explanation.checks import config_findings, llama_findings
from posbench.tools.explanation.facts import LLAMA, Finding
from posbench.tools.explanation.gguf_words import converted_file
from posbench.tools.explanation.llama_cpp import Gguf, gguf_from_file, llama_setting
from posbench.tools.explanation.read_back import confirmed_words
from posbench.tools.explanation.rope_parameters import CannotExpress
from posbench.tools.explanation.settings import Setting, read_setting
from posbench.tools.explanation.show import Explanation
from posbench.tools.explanation.words import ToolWords, setting_in_words


def explain_words(what: str, words: list[str]) -> Explanation:
    """Explain a checkpoint with changes. Raises ConfigError for what is not there, or a word that
    nobody knows.
    """
    changes = read_changes(words)
    name, model = find_source(what)
    if isinstance(model, Gguf):
        return _explain_gguf(what, name, model, changes)
    return _explain_config(what, name, model, changes)


def _explain_gguf(what: str, name: str, file: Gguf, changes: Changes) -> Explanation:
    """Explain a GGUF file."""
    if changes.config or changes.served_length:
        raise ConfigError(
            f"{name} has no config.json, which {changes.reader} reads: give flags or keys of"
            " llama.cpp, or the folder."
        )
    original = llama_setting(file, name)
    setting, findings = _llama_setting_and_findings(file, name, original, changes)
    words = []  # none of any tool with self-extend
    if not _moves_positions(changes):
        words = setting_in_words(setting, original, what)
        words = confirmed_words(words, setting, original, file)
    return _explanation(what, LLAMA, setting, original, findings, words, changes)


def _explain_config(what: str, name: str, config: dict, changes: Changes) -> Explanation:
    """Explain a config.json. Changes of llama.cpp are those of the file that it makes of it."""
    original = read_setting(config, name)
    changed = config_with_changes(config, changes)
    setting = read_setting(changed, name, original.trained, changes.reader)
    findings = config_findings(config, changed, setting, original, changes)
    reader = changes.reader
    if changes.llama_flags or changes.gguf_keys:
        reader = LLAMA
        file = _converted_or_refused(setting, name)
        setting, llama_file_findings = _llama_setting_and_findings(file, name, original, changes)
        findings += llama_file_findings
    words = []  # none of any tool with self-extend
    if not _moves_positions(changes):
        words = setting_in_words(setting, original, what, config)
        words = confirmed_words(words, setting, original, config)
    return _explanation(what, reader, setting, original, findings, words, changes)


def _converted_or_refused(setting: Setting, name: str) -> Gguf:
    """Keys of the file that llama.cpp makes of a setting. Raises ConfigError if it makes none."""
    try:
        return converted_file(setting)
    except CannotExpress as reason:
        raise ConfigError(
            f"{name} does not become a file of llama.cpp here ({reason}): explain its .gguf file"
            " instead."
        ) from None


def _llama_setting_and_findings(
    model: Gguf, name: str, before: Setting, changes: Changes
) -> tuple[Setting, list[Finding]]:
    """Setting that llama.cpp runs for a file with changes, and findings about these."""
    file = replace(model, keys={**model.keys, **changes.keys_of(model.architecture)})
    setting = llama_setting(file, name, changes.llama_flags, before.trained)
    return setting, llama_findings(file, setting, before, changes)


def _moves_positions(changes: Changes) -> bool:
    """True with self-extend, for which no tool has words."""
    return changes.llama_flags.get("group", 1) != 1


def _explanation(
    what: str,
    reader: str,
    setting: Setting,
    before: Setting,
    findings: list[Finding],
    words: list[ToolWords],
    changes: Changes,
) -> Explanation:
    """Explanation, with numbers for the length that is typed, or that an engine is to serve."""
    length = (
        changes.explain_options.get("length")
        or changes.served_length
        or changes.llama_flags.get("ctx")
    )
    return Explanation(
        what,
        reader,
        setting,
        before,
        length,
        tuple(findings),
        tuple(words),
        changes.explain_options,
    )


def find_source(what: str) -> tuple[str, dict | Gguf]:
    """Name to show, and the config.json or the keys of the GGUF file. Raises ConfigError where
    nothing is, or no description of a model.
    """
    path = wheel_file("explain", what) or what
    file = Path(path)
    if is_gguf(path):
        return file.name, gguf_from_file(read_gguf(path))
    if os.path.isdir(path):  # unlike Path's methods, False for a text that can be no path
        return file.resolve().name, read_json_mapping(_config_in_folder(what, file))
    if os.path.isfile(path):
        folder = file.resolve().parent.name
        name = folder if file.name == "config.json" and folder else file.name
        return name, read_json_mapping(file)
    if not HUB_NAME.fullmatch(what):
        raise ConfigError(
            f"{what} is not there: give a checkpoint's folder, a config.json, a .gguf file or a hub"
            " name (ORG/NAME)."
        )
    return what, read_json_mapping(_hub_config(what))


def _config_in_folder(what: str, folder: Path) -> Path:
    """The config.json of a folder."""
    config = folder / "config.json"
    if not config.is_file():
        files = sorted(path.name for path in folder.glob("*.gguf"))
        remedy = files[0] if files else "the folder of a checkpoint"
        raise ConfigError(f"{what} is a folder without a config.json: name {remedy}.")
    return config


def _hub_config(name: str) -> Path:
    """The config.json of a hub name."""
    from posbench.data.hub import hub_file, hub_miss

    try:
        return hub_file(name, "config.json")
    except Exception as error:  # the hub's errors have no common base class
        reason = hub_miss(error, "or give the path of its config.json.")
        raise ConfigError(
            f"{name} is neither a folder, a file, nor a hub name that answers: {reason}"
        ) from error
