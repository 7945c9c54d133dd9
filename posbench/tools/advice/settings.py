"""Settings of an option: rope_parameters, options of engines, a config.json, or a reason."""

import json
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import read_json, write_json
from posbench.config.identity import method_name, quoted_word
from posbench.config.names import shipped_yamls, with_command_names
from posbench.config.schema import JobConfig
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.tools.advice.decide import USES, WITHOUT_SETTING
from posbench.tools.advice.measure import Measurements
from posbench.tools.advice.plan import AdvicePlan, Option, method_node
from posbench.tools.explanation.facts import HF, SGLANG, VLLM
from posbench.tools.explanation.settings import read_setting
from posbench.tools.explanation.words import TOOL_FLAGS, setting_in_words


def options_to_set(answers: dict) -> list[str]:
    """Options to describe: those advised, and the best that engines can be set to.

    The latter is in the answers only if it is better than to set nothing.
    """
    names = [answers[use]["advised"] for use in USES]
    if best_served := answers["long"]["served"]:
        names.append(best_served["choice"])
    return [name for name in dict.fromkeys(names) if name not in WITHOUT_SETTING]


def setting_content(measurements: Measurements, option: Option, out: Path) -> dict:
    """Setting of an option for advice.json; its config.json is written into `out`."""
    from posbench.tools.export.command import config_json, rope_settings

    plan = measurements.plan
    config = measurements.job.config
    extension = method_node("extension", option.extension)
    # A fixed factor is the same at every length; without one the yaml's extension follows the
    # length.
    if option.factor:
        extension, _ = option.methods_at(plan.target, plan.train_len)
    if not option.only_frequencies:
        return _no_setting(
            f"Needs own attention: rope_parameters cannot say it. In posbench:"
            f" {_typed_methods(option, extension)}."
        )
    config_file = _config_file(config)
    is_checkpoint = bool(config.model.checkpoint)
    try:
        of_option = rope_settings(config, extension, config_file)
        new_config_file = config_json(config_file, config, extension) if is_checkpoint else None
    except ConfigError as error:
        # The error speaks of words to type, which cannot make a factor by length a fixed one.
        return _no_setting(_by_length_reason(plan) if option.by_length else str(error))
    files = []
    if new_config_file:
        path = out / option.name.replace(" ", "-") / "config.json"
        write_json(path, new_config_file)
        files.append(f"config.json with it: {path}")
    if command := _export_command(measurements, extension):
        files.append(f"with the weights: {command}")
    return {
        **of_option,
        "engines": engine_words(config, of_option, config_file),
        "json": json.dumps(of_option["rope_parameters"]),
        "files": files,
    }


def _no_setting(reason: str) -> dict:
    """Setting for advice.json of an option that rope_parameters cannot say, with the reason."""
    return {"rope_parameters": None, "engines": {}, "files": [], "json": None, "reason": reason}


def _typed_methods(option: Option, extension: dict) -> str:
    """Words that choose an option in posbench: "extension=rerope scale_attention=log_n"."""
    typed = typed_words("extension", extension)
    if option.scale == "none":
        return typed
    return f"{typed} {typed_words('scale_attention', method_node('scale_attention', option.scale))}"


def _by_length_reason(plan: AdvicePlan) -> str:
    """Reason why an option whose factor follows the length has no rope_parameters."""
    return (
        "rope_parameters follow the length in none but dynamic_ntk: serve two configurations, the"
        f" model as it is up to {plan.train_len:,} tokens and a fixed factor beyond."
    )


def _config_file(config: JobConfig) -> dict | None:
    """config.json of a checkpoint; a GGUF file and a model trained here have none."""
    if not config.model.checkpoint:
        return None
    place = find_checkpoint(config.model.path, download=False).folder_or_file
    return read_json(place / "config.json") if place.is_dir() else None


def _export_command(measurements: Measurements, extension: dict) -> str | None:
    """Command that writes the weights with the extension; None if export_hf.py refuses it."""
    from posbench.tools.export.command import hf_config

    try:
        hf_config(measurements.job.config, extension)
    except ConfigError:
        return None
    run = quoted_word("run", measurements.job.run.path)
    words_of_extension = typed_words("extension", extension)
    return with_command_names(f"python scripts/export_hf.py {run} out=DIR {words_of_extension}")


def engine_words(config: JobConfig, of_option: dict, config_file: dict | None) -> dict[str, dict]:
    """{engine: {"serves": whether it can be set so, "words": words to type, or the reason}}.

    `of_option` are the `rope_settings` of the option.
    """
    from posbench.tools.export.command import rope_settings

    train_len = config.train.train_len
    shape = {
        # A GGUF file and a model that was trained here have no config.json: RoPE is as in Llama's.
        "model_type": (config_file or {}).get("model_type", "llama"),
        "num_hidden_layers": config.model.n_layer,
        "head_dim": config.model.head_width,
    }
    unextended = rope_settings(config, shipped_yamls("extension")["none"], config_file)
    longest = of_option["max_position_embeddings"]
    engines = setting_in_words(
        _explained_setting(shape, of_option, train_len),
        _explained_setting(shape, unextended, train_len),
        what="model",  # stands in the words for the user's folder
        # None: the option states no longer length, so the words ask for what the setting covers.
        served=longest if longest > train_len else None,
    )
    by_tool = {engine.tool: {"serves": engine.serves, "words": engine.text} for engine in engines}
    return {
        HF: by_tool[HF],
        VLLM: by_tool[VLLM],
        SGLANG: by_tool[SGLANG],
        "llama.cpp": by_tool[TOOL_FLAGS],  # rather than by keys of its file
    }


def _explained_setting(shape: dict, of_option: dict, train_len: int):
    """Setting, as explain reads it, of a config.json with the option's keys of RoPE."""
    described = {key: of_option[key] for key in ("rope_parameters", "max_position_embeddings")}
    return read_setting(shape | described, "model", train_len)


def typed_words(group: str, method: dict) -> str:
    """Words that choose a method, such as "extension=yarn extension.beta=8".

    They have its name, and its arguments that differ from its yaml.
    """
    name = method_name(method)
    typed = [f"{group}={name}"]
    for key, value in method.items():
        if value != shipped_yamls(group)[name][key]:
            typed.append(f"{group}.{key}={value}")
    return " ".join(typed)
