"""Settings of an option: rope_parameters with each engine's options, a config.json, or the reason
why no engine supports it.
"""

import json
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import read_json, write_json
from posbench.config.identity import as_word, method_name
from posbench.config.names import as_command, nodes
from posbench.config.schema import JobConfig
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.tools.advice.decide import USES
from posbench.tools.advice.measure import Measurements
from posbench.tools.advice.plan import CUT, UNCHANGED, Option, node
from posbench.tools.explanation.facts import HF, SGLANG, VLLM
from posbench.tools.explanation.settings import read_setting
from posbench.tools.explanation.words import FLAGS, in_words


def to_set(answers: dict) -> list[str]:
    """Options to describe: those advised, and the best that engines serve if that too is better
    than to set nothing.
    """
    served = answers["long"]["served"]
    advised = [*(answers[use]["advised"] for use in USES), *([served["choice"]] if served else [])]
    return [name for name in dict.fromkeys(advised) if name not in (UNCHANGED, CUT)]


def setting(found: Measurements, option: Option, out: Path) -> dict:
    """Setting of an option for advice.json; its config.json is written into `out`."""
    from posbench.tools.export.command import config_json, hf_config, settings

    plan, cfg = found.plan, found.job.config
    extension = (
        option.at(plan.target, plan.train_len)[0]
        if option.factor
        else node("extension", option.extension)
    )
    typed = words("extension", extension)
    lacking = {"rope_parameters": None, "engines": {}, "files": [], "json": None}
    if not option.frequencies:
        scale = (
            ""
            if option.scale == "none"
            else f" {words('scale_attention', node('scale_attention', option.scale))}"
        )
        return {
            **lacking,
            "reason": (
                f"Needs own attention: rope_parameters cannot say it. In posbench: {typed}{scale}."
            ),
        }
    place = find_checkpoint(cfg.model.path, download=False).place if cfg.model.checkpoint else None
    own = (
        read_json(place / "config.json") if place and place.is_dir() else None
    )  # a GGUF file and a model trained here have none
    try:
        told = settings(cfg, extension, own)
        config = config_json(own, cfg, extension) if cfg.model.checkpoint else None
    except ConfigError as error:
        apart = (
            f"serve two configurations, the model as it is up to {plan.train_len:,} tokens and a"
            " fixed factor beyond"
        )
        reason = (
            f"rope_parameters follow the length in none but dynamic_ntk: {apart}."
            if option.by_length
            else str(error)
        )
        return {**lacking, "reason": reason}
    files = []
    if config:
        path = out / option.name.replace(" ", "-") / "config.json"
        write_json(path, config)
        files.append(f"config.json with it: {path}")
    try:
        hf_config(cfg, extension)
        command = as_command(
            f"python scripts/export_hf.py {as_word('run', found.job.run.path)} out=DIR {typed}"
        )
        files.append(f"with the weights: {command}")
    except ConfigError:
        pass  # scripts/export_hf.py refuses the model
    return {
        **lacking,
        **told,
        "engines": engine_words(cfg, told, own),
        "json": json.dumps(told["rope_parameters"]),
        "files": files,
    }


def engine_words(cfg: JobConfig, told: dict, own: dict | None) -> dict[str, dict]:
    """{engine: {"serves": whether it expresses these `settings`, "words": what to type or to set,
    or why it cannot}}.
    """
    from posbench.tools.export.command import settings

    shape = {
        "model_type": (own or {}).get("model_type", "llama"),
        "num_hidden_layers": cfg.model.n_layer,
    }
    shape["head_dim"] = cfg.model.head_width
    bare = settings(cfg, nodes("extension")["none"], own)
    keys, length = ("rope_parameters", "max_position_embeddings"), cfg.train.train_len
    before, after = (
        read_setting(shape | {key: one[key] for key in keys}, "model", length)
        for one in (bare, told)
    )
    longest = told["max_position_embeddings"]
    served = longest if longest > length else None
    tools = in_words(after, before, "model", served=served)
    found = {one.tool: {"serves": one.serves, "words": one.text} for one in tools}
    return {
        "llama.cpp" if tool == FLAGS else tool: found[tool] for tool in (HF, VLLM, SGLANG, FLAGS)
    }


def words(group: str, chosen: dict) -> str:
    """Words that choose a method, as they are typed: its name, and its arguments that differ from
    its yaml.
    """
    name = method_name(chosen)
    return " ".join(
        [
            f"{group}={name}",
            *(
                f"{group}.{key}={value}"
                for key, value in chosen.items()
                if value != nodes(group)[name][key]
            ),
        ]
    )
