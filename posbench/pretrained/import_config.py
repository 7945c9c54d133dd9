"""Configuration of a job on a checkpoint, which replaces the training.

Llama, Mistral, Ministral, Qwen2, Qwen3, SmolLM3 and Phi-3 are described in full and run as
posbench's own model; of other families the sizes are enough here, since transformers builds them.
`config_from_checkpoint` is torch-free: it reads the description and the digests of the files, so
that a run's id is known before weights are loaded."""

import math
from dataclasses import asdict, replace

from posbench.common.errors import ConfigError, Undescribed
from posbench.config.identity import method_name, typed_words
from posbench.config.schema import TrainConfig
from posbench.data.sources import WITHOUT_FILE
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.outline import Outline, outline_from_config

# Arguments of encoding=rope that every such checkpoint has.
PLAIN_ROPE = {
    "layout": "half",
    "fraction": 1.0,
    "resonance": False,
    "scaling": None,
    "scaling_len": None,
    "window": None,
    "amplitude": None,
    "unturned": None,
}
USUAL_BASE = 1e4
# {supported rope_type: keys that it must have}. Each is a set of frequencies and a factor on cos
# and sin.
NEEDED_KEYS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
    "longrope": ("long_factor", "short_factor"),
    "proportional": (),
}
# {rope_type: class of the extension}; others are called like their type, such as yarn.Yarn
EXTENSION_CLASSES = {
    "linear": "pi.Pi",
    "proportional": "pi.Pi",
    "dynamic": "dynamic_ntk.DynamicNtk",
}
ROPE_NODE = {"_target_": "posbench.encodings.rope.Rope", "layout": "half"}
P_ROPE_NODE = {"_target_": "posbench.encodings.p_rope.PRope", "layout": "half", "cut": "share"}
UNSCALED = {"scaling": None, "scaling_len": None}
EQUAL_FACTORS = 1e-6  # two factors on cos and sin that differ by no more are one


def config_from_checkpoint(raw: dict) -> dict:
    """Job configuration with model, encoding and training length of the checkpoint in model.path,
    if one is given.

    Its own tokenizer is taken where data.tokenizer is bytes or bpe and has another number of ids.
    Raises ConfigError for a path without a checkpoint, or with one that does not say its sizes.
    """
    engine = raw["model"].get("engine")
    if engine:
        raise ConfigError(
            f"model={method_name(engine)} gives losses alone, and this command needs a model:"
            " choose model=hf."
        )
    path = raw["model"].get("path")
    if path is None:  # a model to be trained
        return raw
    if not path:  # "" as configs/model/hf.yaml has it
        raise ConfigError(
            "model=hf evaluates a checkpoint: add model.path=FOLDER, FILE.gguf or a name of the hub"
            " to the command."
        )
    checkpoint = find_checkpoint(path)
    outline = outline_of(checkpoint)
    if not raw["model"].get("own_scaling", True):
        outline = _without_scaling(outline, path)
    encoding = _fitted_encoding(raw["encoding"], outline.encoding, path)
    facts = {
        "sha256": checkpoint.digest(raw["cache_dir"]),
        "vocab_size": outline.vocab_size,
        "bos": outline.bos,
    }
    model = replace(outline.model, path=checkpoint.name, checkpoint=facts)
    outline = outline._replace(model=model, encoding=encoding)
    return config_of_foreign_model(raw, f"model.path={path}", outline, checkpoint.tokenizer())


def _without_scaling(outline: Outline, path: str) -> Outline:
    """Outline of a model as it was before a scaling was trained in. ConfigError without a scaling.

    Its training length is scaling_len, that of the training before."""
    rope = outline.encoding
    if rope.get("scaling") is None:
        raise ConfigError(
            f"model.path={path} has no scaling that posbench takes apart: leave"
            " model.own_scaling=false out."
        )
    unscaled = {**rope, **UNSCALED}
    if "amplitude" in rope:  # which p_rope lacks
        unscaled["amplitude"] = None
    return outline._replace(
        model=replace(outline.model, own_scaling=False),
        encoding=unscaled,
        length=rope["scaling_len"],
    )


def _fitted_encoding(encoding: dict, rope: dict, path: str) -> dict:
    """Node of the encoding: the checkpoint's, `rope`, with the arguments of encoding=rope that were
    typed.

    An argument fits if it is the default, which encoding=rope has without any typing, or the
    checkpoint's. Raises ConfigError for an encoding that does not fit."""
    fits = method_name(encoding) == "rope"
    for key, default in {**PLAIN_ROPE, "base": USUAL_BASE}.items():
        if encoding.get(key, default) not in (default, rope.get(key, default)):
            fits = False
    if not fits:
        raise ConfigError(
            f"{typed_words('encoding', encoding)} is not model.path={path}'s"
            f" {typed_words('encoding', rope)}: leave encoding out."
        )
    if method_name(rope) != "rope":  # p_rope, which has other arguments
        return rope
    return {**encoding, **rope}


def config_of_foreign_model(
    raw: dict, source: str, outline: Outline, tokenizer: str | None
) -> dict:
    """Job configuration of a model that others trained, whose facts are in `outline`.

    `source` names it, such as "model.path=FOLDER"; its training length and tokenizer hold where no
    other is chosen. Raises ConfigError for a scale that was to be trained in, and where no training
    length is known."""
    train = raw["train"]
    defaults = TrainConfig()
    if method_name(train.get("scale_attention") or defaults.scale_attention) != "none":
        raise ConfigError(f"train.scale_attention was not trained into {source}: leave it out.")
    length = outline.length if train["length"] == defaults.length else train["length"]
    if length is None:
        raise ConfigError(
            f"{source} does not say for how many tokens it was trained: add train.length=TOKENS."
        )
    data = raw["data"]
    if tokenizer and data["tokenizer"] in WITHOUT_FILE:
        data = {**data, "tokenizer": tokenizer}
    return {
        **raw,
        "encoding": outline.encoding,
        "model": asdict(outline.model),
        # Other training settings have no effect, since nothing is trained or drawn. They are fixed,
        # dtype too, so that one checkpoint is one run.
        "train": asdict(TrainConfig(length=length, steps=0, dtype="bf16")),
        "seed": 0,
        "data": data,
    }


def outline_of(checkpoint: Checkpoint) -> Outline:
    """Outline of a checkpoint: in full, or of other families as `Checkpoint.outline` gives it.

    Raises ConfigError for a checkpoint that does not say its sizes, or has settings that neither
    posbench nor transformers builds."""
    try:
        config = checkpoint.config()
        encoding = _encoding_node(config, checkpoint.name)
    except Undescribed:
        return checkpoint.outline()
    outline = outline_from_config(config, checkpoint.folder_or_file)
    model = outline.model
    has_usual_width = model.head_dim is None or model.head_dim * model.n_head == model.d_model
    # A run's id hashes these as the file says them: null where a default holds.
    model = replace(
        model,
        n_kv_head=config.get("num_key_value_heads"),
        head_dim=None if has_usual_width else model.head_dim,
        norm_eps=config["rms_norm_eps"],
        qk_norm="rms" if config["model_type"] == "qwen3" else "none",
        qkv_bias=config["model_type"] == "qwen2",
    )
    return outline._replace(model=model, encoding=encoding)


def _encoding_node(config: dict, path: str) -> dict:
    """Node of the encoding that config.json describes. transformers 5 keeps RoPE in
    rope_parameters, earlier versions use rope_scaling.

    Raises ConfigError for settings that encoding=rope or p_rope does not reproduce exactly.
    """
    rope = config.get("rope_parameters") or {}
    kinds_of_layers = [key for key, value in rope.items() if isinstance(value, dict)]
    if kinds_of_layers:
        raise Undescribed(
            f"model.path={path} has rope_parameters for {' and '.join(kinds_of_layers)} apart, and"
            " one for all layers is read."
        )
    keys = config.get("rope_scaling") or rope
    is_phi3 = config["model_type"] == "phi3"
    fraction = keys.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    base = keys.get("rope_theta") or config.get("rope_theta") or USUAL_BASE
    kind = keys.get("rope_type", keys.get("type", "default"))
    if is_phi3 and kind in ("su", "yarn"):  # names that earlier versions of Phi-3 gave to it
        kind = "longrope"
    # Of these families Phi-3 alone turns a part of each head; P-RoPE's share is no part of a head.
    if fraction != 1 and kind != "proportional" and not is_phi3:
        raise Undescribed(
            f"model.path={path} turns {fraction:g} of each head (partial_rotary_factor), which its"
            " format does not do elsewhere."
        )
    scaling = UNSCALED if kind == "default" else _scaling_arguments(kind, keys, config, path)
    common_arguments = {"base": float(base), "window": _sliding_windows(config), **scaling}
    unturned_layers = [layer for layer, turned in enumerate(_rotary_layers(config)) if not turned]
    if kind == "proportional":
        if unturned_layers:
            raise ConfigError(
                f"model.path={path} has rope_type=proportional and layers without RoPE, but only"
                " one of these is supported."
            )
        return {**P_ROPE_NODE, "p": float(fraction), **common_arguments}
    node = {**ROPE_NODE, "fraction": float(fraction)}
    if unturned_layers:
        node["unturned"] = unturned_layers
    return node | common_arguments


def _rotary_layers(config: dict) -> list[int]:
    """For each layer 1 if it turns q and k, else 0; no_rope_layers has 1 for layers with RoPE too.

    SmolLM3 alone has layers that do not turn: one of every 4, as in transformers, where the
    description says no other interval."""
    n_layer = config["num_hidden_layers"]
    if config["model_type"] != "smollm3":
        return [1] * n_layer
    if config.get("no_rope_layers"):
        return config["no_rope_layers"]
    interval = config.get("no_rope_layer_interval", 4)
    return [int((layer + 1) % interval != 0) for layer in range(n_layer)]


def _scaling_arguments(kind: str, keys: dict, config: dict, path: str) -> dict:
    """Arguments scaling (the extension that was trained in), scaling_len (training length before
    it) and, if it is not usual, amplitude.

    `keys` are those of rope_scaling or rope_parameters."""
    if kind not in NEEDED_KEYS:
        raise ConfigError(
            f"model.path={path} has rope_type={kind}, and only default, {', '.join(NEEDED_KEYS)}"
            " are supported."
        )
    missing = [key for key in NEEDED_KEYS[kind] if not keys.get(key)]
    if missing:
        raise ConfigError(
            f"model.path={path} has rope_type={kind} and lacks {' and '.join(missing)}: download it"
            " again."
        )
    longest = config["max_position_embeddings"]
    original_key = "original_max_position_embeddings"
    original_len = config.get(original_key) or keys.get(original_key) or longest  # tokens
    # transformers' defaults: a proportional RoPE is not scaled, others reach the longest text
    factor = keys.get("factor") or (1.0 if kind == "proportional" else longest / original_len)
    if _is_scaling_by_1(kind, keys, factor):
        return UNSCALED
    if kind in ("linear", "proportional"):  # these say no original length, so it follows
        original_len = longest / factor
    _check_factor(kind, original_len, factor, path)
    extension_class = EXTENSION_CLASSES.get(kind, f"{kind}.{kind.title()}")
    target = {"_target_": f"posbench.extensions.{extension_class}"}
    if kind == "dynamic":  # it changes nothing up to `longest`, and has no longest text
        return {
            "scaling": {**target, "factor": factor, "mode": "dynamic", "target_len": None},
            "scaling_len": longest,
        }
    arguments, amplitude = _extension_arguments(kind, keys, original_len, factor, path)
    fixed = {"mode": "fixed", "target_len": _whole_length(factor * original_len)}
    scaling = {
        "scaling": {**target, **arguments, **fixed},
        "scaling_len": _whole_length(original_len),
    }
    if amplitude:
        scaling["amplitude"] = amplitude
    return scaling


def _is_scaling_by_1(kind: str, keys: dict, factor: float) -> bool:
    """True for a scaling by 1, which changes nothing.

    One that is dynamic is NTK by the length of each text even so."""
    factors = [*keys.get("long_factor", ()), *keys.get("short_factor", ())]
    factors += [factor, keys.get("attention_factor") or 1]
    return kind != "dynamic" and all(value == 1 for value in factors)


def _check_factor(kind: str, original_len: float, factor: float, path: str) -> None:
    """Raise ConfigError for a factor that does not lengthen a text of `original_len` tokens."""
    if original_len < 2:  # LongRoPE divides by its logarithm
        raise ConfigError(
            f"model.path={path} has rope_type={kind} and was trained for {original_len:g} tokens"
            " before: choose another."
        )
    # a dynamic scaling by 1 is NTK by the length of each text
    if factor < 1 or (factor == 1 and kind != "dynamic"):
        raise ConfigError(
            f"model.path={path} has rope_type={kind} with factor={factor:g}, not above 1: choose"
            " another checkpoint."
        )


def _extension_arguments(
    kind: str, keys: dict, original_len: float, factor: float, path: str
) -> tuple[dict, float | None]:
    """(arguments of the extension of a fixed scaling, amplitude where that is not usual)."""
    if kind == "llama3":
        return {"alpha": keys["low_freq_factor"], "beta": keys["high_freq_factor"]}, None
    if kind == "yarn":
        return _yarn_arguments(keys, original_len, factor, path)
    if kind == "longrope":
        # the paper's and transformers'
        usual_amplitude = math.sqrt(1 + math.log(factor) / math.log(original_len))
        temperature, amplitude = _temperature_and_amplitude(
            keys, unstated=usual_amplitude, usual=usual_amplitude
        )
        arguments = {"factors": keys["long_factor"]}
        if keys["long_factor"] != keys["short_factor"]:
            arguments["short_factors"] = keys["short_factor"]
        return {**arguments, "temperature": temperature}, amplitude
    return {}, None  # linear and proportional scalings are their factor alone


def _yarn_arguments(
    keys: dict, original_len: float, factor: float, path: str
) -> tuple[dict, float | None]:
    """(arguments of extension=yarn, amplitude where that is not usual).

    Raises ConfigError for bounds that no pair reaches."""
    alpha = keys.get("beta_slow") or 1.0
    fastest_turn = 2 * math.pi  # tokens that the first pair needs for one turn
    if alpha * fastest_turn > original_len:
        raise ConfigError(
            f"model.path={path} has beta_slow={alpha}, more turns than any pair makes in"
            f" {original_len:g} tokens: choose another."
        )
    log_factor = math.log(factor)
    usual_amplitude = 0.1 * log_factor + 1  # of the published models and transformers
    amplitude = usual_amplitude
    if keys.get("mscale") and keys.get("mscale_all_dim"):  # of DeepSeek, as transformers has them
        all_dims = 0.1 * keys["mscale_all_dim"] * log_factor + 1
        amplitude = (0.1 * keys["mscale"] * log_factor + 1) / all_dims
    temperature, unusual_amplitude = _temperature_and_amplitude(
        keys, unstated=amplitude, usual=usual_amplitude
    )
    arguments = {
        "alpha": alpha,
        "beta": keys.get("beta_fast") or 32.0,
        "ramp": "index",  # as in transformers; the paper's is over turns
        "truncate": keys.get("truncate", True),
        "temperature": temperature,
    }
    return arguments, unusual_amplitude


def _temperature_and_amplitude(
    keys: dict, unstated: float, usual: float
) -> tuple[bool, float | None]:
    """(argument `temperature`, amplitude) for a factor on cos and sin.

    The argument is true for the `usual` factor, which the extension computes; the amplitude is None
    if the factor is usual, or 1. `unstated` is the factor where attention_factor states none."""
    stated_factor = keys.get("attention_factor")
    factor = unstated if stated_factor is None else stated_factor
    if abs(factor - usual) <= EQUAL_FACTORS:
        return True, None
    if abs(factor - 1) <= EQUAL_FACTORS:
        return False, None
    return False, factor


def _whole_length(tokens: float) -> float:
    """Length as int if it is whole up to rounding; a length divided by a factor may not be."""
    return round(tokens) if abs(tokens - round(tokens)) < 1e-9 * tokens else tokens


def _sliding_windows(config: dict) -> int | list[int | None] | None:
    """Sliding window of all layers in tokens, None without; a list of these if layers differ.

    Each family reads its keys as its configuration in transformers does."""
    family = config["model_type"]
    window = config.get("sliding_window")
    n_layer = config["num_hidden_layers"]
    stated_types = config.get("layer_types")
    if family == "llama":
        return None
    if family in ("mistral", "phi3"):
        return window
    if family == "ministral":  # it has no use_sliding_window
        has_windows = True
        usual_types = ["sliding_attention"] * n_layer
    elif family == "smollm3":  # stated types hold there whatever use_sliding_window says
        has_windows = bool(stated_types or config.get("use_sliding_window"))
        usual_types = [
            "full_attention" if turned else "sliding_attention" for turned in _rotary_layers(config)
        ]
    else:  # Qwen's use_sliding_window=false switches stated types off too
        has_windows = config.get("use_sliding_window")
        n_full = config["max_window_layers"]
        usual_types = [
            "sliding_attention" if layer >= n_full else "full_attention" for layer in range(n_layer)
        ]
    windows = [
        window if has_windows and layer_type == "sliding_attention" else None
        for layer_type in stated_types or usual_types
    ]
    return windows if len(set(windows)) > 1 else windows[0]
