"""Setting of RoPE in a config.json for each kind of layer, as transformers 5.23 reads it, or vLLM 0.33.0 or SGLang 0.5.23.

Wrong sizes are refused. Any other value that cannot be read counts as missing, and checks.py says so.
vLLM's and SGLang's readings differ where `read_rope` asks for the reader, as their layers/rotary_embedding do.
"""

from dataclasses import dataclass, field, replace

from posbench.common.errors import ConfigError
from posbench.explanation.facts import TABLES, TYPES, of_family
from posbench.explanation.frequencies import Rope, longrope_amplitude, yarn_amplitude
from posbench.pretrained.outline import NAMES, TURNING, size_of

HF, VLLM, SGLANG, LLAMA = "transformers", "vLLM", "SGLang", "llama.cpp"
MOST_LAYERS = 2**14  # that are listed
HERE = "The description"  # in an error
FULL, SLIDING = "full_attention", "sliding_attention"
LONG = ("yarn", "longrope", "llama3")  # types that count from original_max_position_embeddings


@dataclass(frozen=True)
class LayerKind:
    """Layers with the same RoPE and window. `rope` is None without RoPE; `said` are the words of config.json behind it."""

    name: str
    layers: tuple[int, ...]
    rope: Rope | None
    window: int | None = None
    said: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """Use of positions by a model. `trained` is the length that the checkpoint itself states, `longest` that of the setting."""

    name: str
    family: str
    longest: float
    trained: float
    kinds: tuple[LayerKind, ...]

    @property
    def turning(self) -> list[LayerKind]:
        """Kinds with RoPE, those with the widest view first. Raises ConfigError for a model without any."""
        found = sorted((kind for kind in self.kinds if kind.rope), key=lambda kind: kind.window is not None)
        if not found:
            raise ConfigError(f"{self.name} has no layer in which RoPE turns a channel, so no setting of it does anything.")
        return found


def number(value: object, default: float | None = None) -> float | None:
    """A positive number, else the default."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15
    return value if good else default


def base_of(value: object, default: float = 1e4) -> float:
    """A base of frequencies, which is above 1, else the default."""
    return value if (number(value) or 0) > 1 else default


def first_of(config: dict, *keys: str, default: object = None) -> object:
    """The value of the first of these keys that is there and not null, else the default."""
    return next((config[key] for key in keys if config.get(key) is not None), default)


def flat(config: dict) -> dict:
    """A description of text alone: the part of a model of text and images that describes its text, over the rest."""
    part = config.get("text_config")
    found = {**config, **(part if isinstance(part, dict) else {})}
    found.pop("text_config", None)
    if found.get("model_type") in ("gemma3", "gemma3n", "gemma4", "llama4"):
        found["model_type"] += "_text"
    return found


def longest_of(config: dict) -> float | None:
    """Length that a config.json states."""
    return next((found for name in NAMES["length"] if (found := number(config.get(name)))), None)


def rope_words(config: dict) -> dict:
    """The mapping of RoPE that transformers reads: rope_scaling, and only without it rope_parameters."""
    found = config.get("rope_scaling") or config.get("rope_parameters")
    return found if isinstance(found, dict) else {}


def nested(words: dict) -> list[str]:
    """Kinds of layers that a mapping of RoPE keeps apart."""
    return [key for key, value in words.items() if isinstance(value, dict) or (value is None and key.endswith("_attention"))]


def read_setting(config: dict, name: str, trained: float | None = None, reader: str = HF) -> Setting:
    """Setting in a config.json, as `reader` takes it. Raises ConfigError for one without RoPE, and for one that does not say its sizes."""
    config = flat(config)
    family = str(config.get("model_type"))
    told = [key for key in config if any(part in key for part in TURNING)]
    if not told and (family in TABLES or config.get("alibi") is True or "max_position_embeddings" not in config):
        raise ConfigError(f"{name} ({family}) has no key of RoPE: explain says how RoPE is set, and this model has none.")
    longest = longest_of(config) or trained
    if longest is None:
        raise ConfigError(f"{name} ({family}) has no max_position_embeddings, the length in whose turns RoPE is counted: add it.")
    kinds: dict[str, list[int]] = {}
    for layer, kind in enumerate(_layer_types(config, family)):
        kinds.setdefault(kind, []).append(layer)
    found = []
    for kind, layers in kinds.items():
        said = standardized(config, family, kind)
        rope = None if said is None else read_rope(said, config, longest, reader)
        rope = rope if rope and rope.turned else None
        sliding = kind.partition(",")[0] in (SLIDING, "chunked_attention")
        window = number(config.get("sliding_window" if kind.startswith(SLIDING) else "attention_chunk_size")) if sliding else None
        found.append(LayerKind(kind, tuple(layers), rope, window, said or {}))
    return Setting(name, family, longest, trained or longest, tuple(found))


def _layer_types(config: dict, family: str) -> list[str]:
    """Kind of every layer, with ", no RoPE" behind it where the layer has none."""
    count = min(size_of(config, "n_layer", HERE) or 1, MOST_LAYERS)
    listed, window = config.get("layer_types"), number(config.get("sliding_window"))
    pattern, slides = number(config.get("sliding_window_pattern"), of_family(family, "every")), of_family(family, "slides")
    turned = config["no_rope_layers"] if isinstance(config.get("no_rope_layers"), list) else []
    if not turned and family in ("smollm3", "llama4_text"):
        every = number(config.get("no_rope_layer_interval"), 4)
        turned = [int((layer + 1) % every != 0) for layer in range(count)]
    if isinstance(listed, list) and listed:
        kinds = [str(one) for one in listed]
    elif family == "llama4_text":
        kinds = ["chunked_attention" if one else FULL for one in turned]
    elif window and family == "smollm3" and config.get("use_sliding_window"):
        kinds = [FULL if one else SLIDING for one in turned]
    elif window and pattern:
        kinds = [SLIDING if (layer + 1) % pattern else FULL for layer in range(count)]
    elif window and slides == "everywhere":
        kinds = [SLIDING] * count
    elif window and slides == "by_depth" and config.get("use_sliding_window"):
        kinds = [SLIDING if layer >= number(config.get("max_window_layers"), 28) else FULL for layer in range(count)]
    else:
        kinds = [FULL] * count
    if of_family(family, "full_unturned") and SLIDING in kinds:
        turned = [kind != FULL for kind in kinds]
    return [kind + ("" if layer >= len(turned) or turned[layer] else ", no RoPE") for layer, kind in enumerate(kinds)]


def standardized(config: dict, family: str, kind: str) -> dict | None:
    """Words of RoPE of one kind of layer with their defaults, as transformers' standardize_rope_params; None without RoPE."""
    if kind.endswith("no RoPE") or "attention" not in kind or kind == "linear_attention":
        return None
    words = rope_words(config)
    apart, own = nested(words), None
    theta = first_of(config, "rope_theta", "rotary_emb_base", default=of_family(family, "theta", 1e4))
    bases = of_family(family, "bases")
    if bases or "rope_local_base_freq" in config:
        bases = bases or (1e6, 1e4)
        if kind == FULL:
            own, theta = words if config.get("rope_scaling") else {}, first_of(config, "rope_theta", default=bases[0])
        else:
            own, theta = {}, first_of(config, "rope_local_base_freq", default=bases[1])
    if apart:
        own = words.get(kind)
        if own is None and kind in words:
            return None
        own = own if isinstance(own, dict) else {}
    own = dict(words if own is None else own)
    own.setdefault("rope_type", own.get("type", "default"))
    if own.get("rope_theta") is None:
        own["rope_theta"] = theta
    share = first_of(config, "partial_rotary_factor", "rotary_pct", default=of_family(family, "share"))
    if share is not None:
        own.setdefault("partial_rotary_factor", share)
    if family == "phi3" and own["rope_type"] in ("su", "yarn"):
        own["rope_type"] = "longrope"
    if config.get("original_max_position_embeddings") is not None and not apart:
        own["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return own


def read_rope(said: dict, config: dict, longest: float, reader: str = HF) -> Rope:
    """RoPE of words with defaults. Raises ConfigError for a model that does not say the width of a head."""
    kind = said["rope_type"] if said["rope_type"] in TYPES else "longrope" if said["rope_type"] == "su" else "default"
    original = number(said.get("original_max_position_embeddings"), longest) if kind in LONG else longest
    factor = number(said.get("factor")) or (longest / original if kind in ("yarn", "longrope") else 1.0)
    width, heads, head_dim = (size_of(config, one, HERE) for one in ("d_model", "n_head", "head_dim"))
    head_dim = number(config.get("qk_rope_head_dim")) or head_dim or (width // heads if width and heads and width % heads == 0 else None)
    if head_dim is None:
        sizes = f"hidden_size={width} and num_attention_heads={heads} do not say it"
        raise ConfigError(f"{HERE} lacks head_dim, and {sizes}: is it a checkpoint's config.json?")
    latent = number(config.get("qk_rope_head_dim")) and number(config.get("qk_nope_head_dim"))
    share = min(1.0, number(said.get("partial_rotary_factor"), 1.0))
    rope = Rope(int(head_dim), base_of(said.get("rope_theta")), longest, original, kind, share, factor, beside=int(latent or 0))
    given = number(said.get("attention_factor"))
    if kind == "yarn":
        scale, whole = (number(said.get(key)) for key in ("mscale", "mscale_all_dim"))
        asked = yarn_amplitude(factor, scale) / yarn_amplitude(factor, whole) if scale and whole else yarn_amplitude(factor)
        # transformers looks for truncate beside the kinds of layers, where it is never written.
        cut = said.get("truncate", True) is not False or (reader == HF and bool(nested(rope_words(config))))
        bounds = {"beta_fast": number(said.get("beta_fast"), 32.0), "beta_slow": number(said.get("beta_slow"), 1.0), "truncate": cut}
        rope = replace(rope, **bounds, sharper=yarn_amplitude(factor, whole) ** 2 if latent and whole else 1.0)
        if reader == SGLANG:
            mix = said.get("extrapolation_factor")
            given, rope = asked * number(said.get("attn_factor"), 1.0), replace(rope, mix=mix if isinstance(mix, int | float) else 1.0)
        return replace(rope, amplitude=given or asked)
    if kind == "llama3":
        return replace(rope, low=number(said.get("low_freq_factor"), 1.0), high=number(said.get("high_freq_factor"), 4.0))
    if kind == "longrope":
        lists, pairs = {}, -(-rope.turned // 2)
        for key in ("long", "short"):
            value = said.get(f"{key}_factor")
            good = isinstance(value, list) and len(value) == pairs and all(map(number, value))
            lists[key] = tuple(value) if good else (1.0,) * pairs
        if reader == VLLM and longest > original:
            lists["short"] = lists["long"]
        if reader != HF:
            given, factor = number(said.get("long_mscale")), longest / original
        return replace(rope, amplitude=given or longrope_amplitude(factor, original), **lists)
    if kind == "dynamic" and reader != HF:  # one base for all lengths
        known = number(said.get("max_trained_positions"), longest) if reader == VLLM else longest / factor
        grown = factor * longest / known - (factor - 1)
        return replace(rope, kind="default", factor=1.0, base=rope.base * grown ** (rope.turned / max(1, rope.turned - 2)))
    return replace(rope, factor=1.0) if kind == "proportional" and reader != HF else rope
