"""Configuration of a job on a checkpoint, which replaces the training.

Llama, Mistral, Ministral, Qwen2, Qwen3, SmolLM3 and Phi-3 are described in full and run as
posbench's own model; of other families the sizes are enough here, since transformers builds them.
`adopt` is torch-free: it reads the description and the digests of the files, so that a run's id is
known before weights are loaded."""

import math
from dataclasses import asdict, replace

from posbench.common.errors import ConfigError, Undescribed
from posbench.config.identity import as_typed, method_name
from posbench.config.schema import ModelConfig, TrainConfig
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.outline import outline

# RoPE as theirs.
WHOLE = {"layout": "half", "fraction": 1.0, "resonance": False}
WHOLE |= dict.fromkeys(("scaling", "scaling_len", "window", "amplitude", "unturned"))
# {supported rope_type: its required keys}. Each is a set of frequencies and a factor on cos and
# sin.
SCALINGS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
    "longrope": ("long_factor", "short_factor"),
    "proportional": (),
}
CLASSES = {
    "linear": "pi.Pi",
    "proportional": "pi.Pi",
    "dynamic": "dynamic_ntk.DynamicNtk",
}  # others are called like their type
ROPE = {"_target_": "posbench.encodings.rope.Rope", "layout": "half"}
PROPORTIONAL = {"_target_": "posbench.encodings.p_rope.PRope", "layout": "half", "cut": "share"}


def adopt(cfg: dict) -> dict:
    """Job configuration with model, encoding and training length of the checkpoint in model.path,
    if one is given.

    Its own tokenizer is taken where data.tokenizer is bytes or bpe and has another number of ids.
    Raises ConfigError for a path without a checkpoint, or with one that does not say its sizes.
    """
    if engine := cfg["model"].get("engine"):
        raise ConfigError(
            f"model={method_name(engine)} gives losses alone, and this command needs a model:"
            " choose model=hf."
        )
    path = cfg["model"].get("path")
    if path is None:
        return cfg
    if not path:
        raise ConfigError(
            "model=hf evaluates a checkpoint: add model.path=FOLDER, FILE.gguf or a name of the hub"
            " to the command."
        )
    found = find_checkpoint(path)
    model, rope, said = describe(found)
    longest = said.pop("length")
    if not cfg["model"].get("own_scaling", True):
        if rope.get("scaling") is None:
            raise ConfigError(
                f"model.path={path} has no scaling that posbench takes apart: leave"
                " model.own_scaling=false out."
            )
        longest, model = rope["scaling_len"], replace(model, own_scaling=False)
        rope |= {"scaling": None, "scaling_len": None, "amplitude": None}
    encoding = cfg["encoding"]
    whole = all(
        encoding.get(key, value) in (value, rope.get(key, value)) for key, value in WHOLE.items()
    )
    if (
        method_name(encoding) != "rope"
        or not whole
        or encoding.get("base", 1e4) not in (1e4, rope.get("base", 1e4))
    ):
        raise ConfigError(
            f"{as_typed('encoding', encoding)} is not model.path={path}'s"
            f" {as_typed('encoding', rope)}: leave encoding out."
        )
    encoding = {**encoding, **rope} if method_name(rope) == "rope" else rope
    model = replace(
        model, path=found.name, checkpoint={"sha256": found.digest(cfg["cache_dir"]), **said}
    )
    return trained_elsewhere(cfg, f"model.path={path}", encoding, model, longest, found.tokenizer())


def trained_elsewhere(
    cfg: dict,
    whose: str,
    encoding: dict,
    model: ModelConfig,
    length: float | None,
    tokenizer: str | None,
) -> dict:
    """Job configuration of a model that others trained, with its training length and tokenizer
    where no other is chosen.

    Raises ConfigError for a scale that was to be trained in, and where no training length is known.
    """
    data = cfg["data"]
    if method_name(cfg["train"].get("scale_attention") or TrainConfig().scale_attention) != "none":
        raise ConfigError(f"train.scale_attention was not trained into {whose}: leave it out.")
    length = length if cfg["train"]["length"] == TrainConfig().length else cfg["train"]["length"]
    if length is None:
        raise ConfigError(
            f"{whose} does not say for how many tokens it was trained: add train.length=TOKENS."
        )
    # Other training settings have no effect, since nothing is trained or drawn: one checkpoint is
    # one run.
    train = asdict(TrainConfig(length=length, steps=0, dtype="bf16"))
    data = (
        {**data, "tokenizer": tokenizer}
        if tokenizer and data["tokenizer"] in ("bytes", "bpe")
        else data
    )
    return {
        **cfg,
        "encoding": encoding,
        "model": asdict(model),
        "train": train,
        "seed": 0,
        "data": data,
    }


def describe(found: Checkpoint) -> tuple[ModelConfig, dict, dict]:
    """(sizes, node of the encoding, {vocab_size, bos, length}): in full, or of other families as
    `Checkpoint.outline` gives them.

    Raises ConfigError for a checkpoint that does not say its sizes, or has settings that neither
    posbench nor transformers builds."""
    try:
        config = found.config()
        rope = _rope(config, found.name)
    except Undescribed:
        return found.outline()
    model, _, said = outline(config, found.place)
    whole = model.head_dim is None or model.head_dim * model.n_head == model.d_model
    shape = {
        "n_kv_head": config.get("num_key_value_heads"),
        "head_dim": None if whole else model.head_dim,
    }
    norm = {
        "norm_eps": config["rms_norm_eps"],
        "qk_norm": "rms" if config["model_type"] == "qwen3" else "none",
    }
    return replace(model, **shape, **norm, qkv_bias=config["model_type"] == "qwen2"), rope, said


def _rope(config: dict, path: str) -> dict:
    """Node of the encoding. transformers 5 keeps RoPE in rope_parameters, earlier versions use
    rope_scaling.

    Raises ConfigError for settings that encoding=rope or p_rope does not reproduce exactly.
    """
    rope = config.get("rope_parameters") or {}
    said = config.get("rope_scaling") or rope
    if nested := [key for key, value in rope.items() if isinstance(value, dict)]:
        raise Undescribed(
            f"model.path={path} has rope_parameters for {' and '.join(nested)} apart, and one for"
            " all layers is read."
        )
    part = said.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    base = float(said.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = said.get("rope_type", said.get("type", "default"))
    if config["model_type"] == "phi3" and kind in (
        "su",
        "yarn",
    ):  # names that earlier versions of Phi-3 gave to it
        kind = "longrope"
    if part != 1 and kind != "proportional" and config["model_type"] != "phi3":
        raise Undescribed(
            f"model.path={path} turns {part:g} of each head (partial_rotary_factor), which its"
            " format does not do elsewhere."
        )
    scaling = (
        {"scaling": None, "scaling_len": None}
        if kind == "default"
        else _scaling(kind, said, config, path)
    )
    shared = {"base": base, "window": _window(config), **scaling}
    unturned = [layer for layer, turned in enumerate(_rotary_layers(config)) if not turned]
    if kind == "proportional":
        if unturned:
            raise ConfigError(
                f"model.path={path} has rope_type=proportional and layers without RoPE, but only"
                " one of these is supported."
            )
        return {**PROPORTIONAL, "p": float(part), **shared}
    return {
        **ROPE,
        "fraction": float(part),
        **({"unturned": unturned} if unturned else {}),
        **shared,
    }


def _rotary_layers(config: dict) -> list[int]:
    n_layer = config["num_hidden_layers"]
    if config["model_type"] != "smollm3":
        return [1] * n_layer
    interval = config.get("no_rope_layer_interval", 4)
    return config.get("no_rope_layers") or [
        int((layer + 1) % interval != 0) for layer in range(n_layer)
    ]


def _scaling(kind: str, said: dict, config: dict, path: str) -> dict:
    """Arguments scaling (the extension that was trained in), scaling_len (training length before
    it) and, if it is not usual, amplitude.
    """
    if kind not in SCALINGS:
        raise ConfigError(
            f"model.path={path} has rope_type={kind}, and only default, {', '.join(SCALINGS)} are"
            " supported."
        )
    if missing := [key for key in SCALINGS[kind] if not said.get(key)]:
        raise ConfigError(
            f"model.path={path} has rope_type={kind} and lacks {' and '.join(missing)}: download it"
            " again."
        )
    longest = config["max_position_embeddings"]
    before = (
        config.get("original_max_position_embeddings")
        or said.get("original_max_position_embeddings")
        or longest
    )
    factor = said.get("factor") or (1.0 if kind == "proportional" else longest / before)
    divisors = [*said.get("long_factor", ()), *said.get("short_factor", ())]
    if (
        factor == 1
        and kind != "dynamic"
        and all(one == 1 for one in (*divisors, said.get("attention_factor") or 1))
    ):
        return {
            "scaling": None,
            "scaling_len": None,
        }  # no change; dynamic with 1 is NTK by the length of each text
    if kind in ("linear", "proportional"):
        before = longest / factor
    if before < 2:
        raise ConfigError(
            f"model.path={path} has rope_type={kind} and was trained for {before:g} tokens before:"
            " choose another."
        )
    if factor < 1 or (factor == 1 and kind != "dynamic"):
        raise ConfigError(
            f"model.path={path} has rope_type={kind} with factor={factor:g}, not above 1: choose"
            " another checkpoint."
        )
    target = {"_target_": f"posbench.extensions.{CLASSES.get(kind, f'{kind}.{kind.title()}')}"}
    if kind == "dynamic":
        return {
            "scaling": {**target, "factor": factor, "mode": "dynamic", "target_len": None},
            "scaling_len": longest,
        }
    arguments = (
        {"alpha": said["low_freq_factor"], "beta": said["high_freq_factor"]}
        if kind == "llama3"
        else {}
    )
    if kind == "yarn":
        arguments = _yarn(said, before, factor, path)
    elif kind == "longrope":
        usual = math.sqrt(1 + math.log(factor) / math.log(before))
        short = (
            {}
            if said["long_factor"] == said["short_factor"]
            else {"short_factors": said["short_factor"]}
        )
        arguments = {"factors": said["long_factor"], **short, **_temperature(said, usual, usual)}
    amplitude = arguments.pop("amplitude", None)
    scaling = {**target, **arguments, "mode": "fixed", "target_len": _whole_length(factor * before)}
    return {
        "scaling": scaling,
        "scaling_len": _whole_length(before),
        **({"amplitude": amplitude} if amplitude else {}),
    }


def _yarn(said: dict, before: float, factor: float, path: str) -> dict:
    """Arguments of extension=yarn. Raises ConfigError for bounds that no pair reaches."""
    alpha = said.get("beta_slow") or 1.0
    if 2 * math.pi * alpha > before:
        raise ConfigError(
            f"model.path={path} has beta_slow={alpha}, more turns than any pair makes in {before:g}"
            " tokens: choose another."
        )
    ramp = {
        "alpha": alpha,
        "beta": said.get("beta_fast") or 32.0,
        "ramp": "index",
        "truncate": said.get("truncate", True),
    }
    asked = usual = 0.1 * math.log(factor) + 1
    if said.get("mscale") and said.get("mscale_all_dim"):
        asked = (0.1 * said["mscale"] * math.log(factor) + 1) / (
            0.1 * said["mscale_all_dim"] * math.log(factor) + 1
        )
    return {**ramp, **_temperature(said, asked, usual)}


def _temperature(said: dict, asked: float, usual: float) -> dict:
    """Argument `temperature`: True for the usual factor on cos and sin, else False; `amplitude` for
    one that is neither usual nor 1.
    """
    factor = asked if said.get("attention_factor") is None else said["attention_factor"]
    known = min(abs(factor - usual), abs(factor - 1)) <= 1e-6
    return {
        "temperature": abs(factor - usual) <= 1e-6 if known else False,
        **({} if known else {"amplitude": factor}),
    }


def _whole_length(tokens: float) -> float:
    """Length as int if it is whole up to rounding; a length divided by a factor may not be."""
    return round(tokens) if abs(tokens - round(tokens)) < 1e-9 * tokens else tokens


def _window(config: dict) -> int | list[int | None] | None:
    """Sliding window of all layers, or a list if layers differ."""
    size, n_layer = config.get("sliding_window"), config["num_hidden_layers"]
    if config["model_type"] in ("llama", "mistral", "phi3"):
        return None if config["model_type"] == "llama" else size
    if config["model_type"] == "smollm3":
        sliding = [not turned for turned in _rotary_layers(config)]
    elif config["model_type"] == "ministral":
        sliding = [True] * n_layer
    else:
        sliding = [layer >= config["max_window_layers"] for layer in range(n_layer)]
    types = config.get("layer_types") or [
        "sliding_attention" if one else "full_attention" for one in sliding
    ]
    by_types = config["model_type"] == "ministral" or (
        config["model_type"] == "smollm3" and config.get("layer_types")
    )
    used = by_types or config.get("use_sliding_window")
    windows = [size if used and kind == "sliding_attention" else None for kind in types]
    return windows if len(set(windows)) > 1 else windows[0]
