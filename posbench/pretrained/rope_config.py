"""Conversion of RoPE in a Hugging Face config.json (Llama, Mistral, Qwen2, Qwen3) to arguments of encoding=rope. Torch-free."""

from __future__ import annotations

import math

from posbench.common.errors import ConfigError

# {supported rope_type: its required keys}. Each is a set of frequencies and a factor on cos and sin.
SCALINGS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
    "longrope": ("long_factor", "short_factor"),
}


def rope_arguments(config: dict, path: str) -> dict:
    """Arguments base, scaling, scaling_len and window. transformers 5 keeps RoPE in rope_parameters, earlier versions use rope_scaling.

    Raises ConfigError for settings that encoding=rope does not reproduce exactly.
    """
    rope = config.get("rope_parameters") or {}
    said = config.get("rope_scaling") or rope
    part = config.get("partial_rotary_factor") or said.get("partial_rotary_factor") or 1.0
    if part != 1:
        raise ConfigError(f"model.path={path} turns {part:g} of each head (partial_rotary_factor), which its format does not do elsewhere.")
    base = float(rope.get("rope_theta") or said.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = said.get("rope_type", said.get("type", "default"))
    scaling, scaling_len = (None, None) if kind == "default" else _scaling(kind, said, config, path)
    return {"base": base, "scaling": scaling, "scaling_len": scaling_len, "window": _window(config)}


def _scaling(kind: str, said: dict, config: dict, path: str) -> tuple[dict, float]:
    """(extension that was trained in, training length before it)."""
    if kind == "dynamic":
        raise ConfigError(
            f"model.path={path} has rope_type=dynamic, which is other frequencies at each length and none that were trained: take "
            "rope_scaling (or rope_type and factor in rope_parameters) out of its config.json, and choose extension=dynamic_ntk here."
        )
    if kind not in SCALINGS:
        raise ConfigError(f"model.path={path} has rope_type={kind}, and only default, {', '.join(SCALINGS)} are read.")
    if missing := [key for key in SCALINGS[kind] if not said.get(key)]:
        raise ConfigError(f"model.path={path} has rope_type={kind} and does not say {' and '.join(missing)}: download it again.")
    longest = config["max_position_embeddings"]
    before = config.get("original_max_position_embeddings") or said.get("original_max_position_embeddings") or longest
    factor = said.get("factor") or longest / before
    if kind == "linear":
        before = longest / factor
    if before < 2:
        raise ConfigError(
            f"model.path={path} has rope_type={kind} that was trained for {before:g} tokens before: choose another checkpoint."
        )
    if factor <= 1:
        raise ConfigError(
            f"model.path={path} has rope_type={kind} with factor={factor:g}, which extends nothing: choose another checkpoint."
        )
    arguments = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}[kind](said, before, factor)
    if isinstance(arguments, str):
        raise ConfigError(f"model.path={path} has rope_type={kind} with {arguments}, which is not done here: choose another checkpoint.")
    target = f"posbench.extensions.{'pi.Pi' if kind == 'linear' else f'{kind}.{kind.title()}'}"
    return {"_target_": target, **arguments, "mode": "fixed", "target_len": _whole(factor * before)}, _whole(before)


def _linear(said: dict, before: float, factor: float) -> dict:
    return {}


def _llama3(said: dict, before: float, factor: float) -> dict:
    return {"alpha": said["low_freq_factor"], "beta": said["high_freq_factor"]}


def _yarn(said: dict, before: float, factor: float) -> dict | str:
    """Arguments of extension=yarn, or words for the setting that prevents them."""
    alpha = said.get("beta_slow") or 1.0
    if 2 * math.pi * alpha > before:
        return f"beta_slow={alpha}, more turns than any pair makes in {before:g} tokens"
    if said.get("mscale") and said.get("mscale_all_dim"):
        return "mscale and mscale_all_dim"
    ramp = {"alpha": alpha, "beta": said.get("beta_fast") or 32.0, "ramp": "index", "truncate": said.get("truncate", True)}
    temperature = _temperature(said, 0.1 * math.log(factor) + 1)
    return temperature if isinstance(temperature, str) else {**ramp, **temperature}


def _longrope(said: dict, before: float, factor: float) -> dict | str:
    if said["long_factor"] != said["short_factor"]:
        return "other factors for short texts than for long ones"
    temperature = _temperature(said, math.sqrt(1 + math.log(factor) / math.log(before)))
    return temperature if isinstance(temperature, str) else {"factors": said["long_factor"], **temperature}


def _temperature(said: dict, usual: float) -> dict | str:
    """Argument `temperature`: True for the usual factor, False for 1; words for any other factor."""
    factor = usual if said.get("attention_factor") is None else said["attention_factor"]
    if min(abs(factor - usual), abs(factor - 1)) > 1e-6:
        return f"attention_factor={factor} instead of {usual:g}"
    return {"temperature": abs(factor - 1) > 1e-6}


def _whole(tokens: float) -> float:
    """Length as int if it is whole up to rounding; a length divided by a factor may not be."""
    return round(tokens) if abs(tokens - round(tokens)) < 1e-9 * tokens else tokens


def _window(config: dict) -> int | list[int | None] | None:
    """Sliding window of all layers, or a list if layers differ."""
    size, n_layer = config.get("sliding_window"), config["num_hidden_layers"]
    if config["model_type"] in ("llama", "mistral"):
        return size if config["model_type"] == "mistral" else None
    types = config.get("layer_types") or [
        "sliding_attention" if layer >= config["max_window_layers"] else "full_attention" for layer in range(n_layer)
    ]
    windows = [size if config.get("use_sliding_window") and kind == "sliding_attention" else None for kind in types]
    return windows if len(set(windows)) > 1 else windows[0]
