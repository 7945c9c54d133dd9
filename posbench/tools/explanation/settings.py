"""Setting of RoPE in a config.json for each kind of layer, as transformers 5.23 reads it, or vLLM
0.33.0 or SGLang 0.5.23.

Wrong sizes are refused. Any other value that cannot be read counts as missing, and checks.py says
so."""

from dataclasses import dataclass, field

from posbench.common.errors import ConfigError
from posbench.pretrained.outline import NAMES, TURNING, size_of, stated_width
from posbench.tools.explanation.config_json import (
    at_path,
    first_of,
    flat,
    longest_of,
    nested,
    number,
    rope_words,
)
from posbench.tools.explanation.facts import FACTS, HF, TABLES, of_family
from posbench.tools.explanation.frequencies import Rope
from posbench.tools.explanation.position_keys import position_keys
from posbench.tools.explanation.read_rope import HERE, read_rope

MOST_LAYERS = 2**14  # that are listed
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class LayerKind:
    """Layers with the same RoPE and window. `rope` is None without RoPE; `said` are the words of
    config.json behind it.
    """

    name: str
    layers: tuple[int, ...]
    rope: Rope | None
    window: int | None = None
    said: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """Use of positions by a model. `trained` is the length that the checkpoint itself states,
    `longest` that of the setting.
    """

    name: str
    family: str
    longest: float
    trained: float
    kinds: tuple[LayerKind, ...]
    unread: tuple[str, ...] = ()  # keys about positions that are not understood

    @property
    def turning(self) -> list[LayerKind]:
        """Kinds with RoPE, those with the widest view first. Raises ConfigError for a model without
        any.
        """
        found = sorted(
            (kind for kind in self.kinds if kind.rope), key=lambda kind: kind.window is not None
        )
        if not found:
            raise ConfigError(
                f"{self.name} has no layer in which RoPE turns a channel, so no setting of it does"
                " anything."
            )
        return found


def read_setting(
    config: dict, name: str, trained: float | None = None, reader: str = HF
) -> Setting:
    """Setting in a config.json, as `reader` takes it. Raises ConfigError for one without RoPE, and
    for one that does not say its sizes.
    """
    description, config = config, flat(config)
    family = str(config.get("model_type"))
    if _unturned(config, family):
        raise ConfigError(
            f"{name} ({family}) has no key of RoPE: explain says how RoPE is set, and this model"
            " has none."
        )
    longest = longest_of(config) or trained
    if longest is None:
        raise ConfigError(
            f"{name} ({family}) has no max_position_embeddings, the length in whose turns RoPE is"
            " counted: add it."
        )
    states_rope_length = any(number(config.get(key)) for key in NAMES["length"])
    rope_length = (
        longest_of({**config, "model_max_length": None}) if states_rope_length else longest
    )
    kinds: dict[str, list[int]] = {}
    for layer, kind in enumerate(_layer_types(config, family)):
        kinds.setdefault(kind, []).append(layer)
    found = []
    for kind, layers in kinds.items():
        said = standardized(config, family, kind)
        rope = None if said is None else read_rope(said, config, rope_length, reader)
        rope = rope if rope and rope.turned else None
        sliding = kind.partition(",")[0] in (SLIDING, "chunked_attention")
        window = (
            number(
                config.get("sliding_window" if kind.startswith(SLIDING) else "attention_chunk_size")
            )
            if sliding
            else None
        )
        found.append(LayerKind(kind, tuple(layers), rope, window, said or {}))
    unread = tuple(key.key for key in position_keys(description) if key.decides)
    return Setting(name, family, longest, trained or longest, tuple(found), unread)


def _unturned(config: dict, family: str) -> bool:
    """True if no layer of the model has RoPE."""
    if (
        family in FACTS["unturned"]
        or config.get("position_embedding_type") in FACTS["other_positions"]
    ):
        return True
    attention = at_path(config, ("attn_config",))
    if config.get("alibi") is True or attention.get("alibi") is True:
        return True
    if any(part in key for key in (*config, *attention) for part in TURNING):
        return False
    return family in TABLES or "max_position_embeddings" not in config


def _layer_types(config: dict, family: str) -> list[str]:
    """Kind of every layer, with ", no RoPE" behind it where the layer has none."""
    count = min(size_of(config, "n_layer", HERE) or 1, MOST_LAYERS)
    listed, window = config.get("layer_types"), number(config.get("sliding_window"))
    pattern, slides = (
        number(config.get("sliding_window_pattern"), of_family(family, "every")),
        of_family(family, "slides"),
    )
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
        kinds = [
            SLIDING if layer >= number(config.get("max_window_layers"), 28) else FULL
            for layer in range(count)
        ]
    else:
        kinds = [FULL] * count
    if of_family(family, "full_unturned") and SLIDING in kinds:
        turned = [kind != FULL for kind in kinds]
    return [
        kind + ("" if layer >= len(turned) or turned[layer] else ", no RoPE")
        for layer, kind in enumerate(kinds)
    ]


def standardized(config: dict, family: str, kind: str) -> dict | None:
    """Words of RoPE of one kind of layer with their defaults, as transformers'
    standardize_rope_params; None without RoPE.
    """
    words = {} if family in FACTS["by_ratio"] else rope_words(config)
    turns = ("attention" in kind and kind != "linear_attention") or isinstance(
        words.get(kind), dict
    )
    if kind.endswith("no RoPE") or not turns:
        return None
    apart, own = nested(words), None
    theta = _stated_base(config, family)
    bases = of_family(family, "bases")
    if bases or "rope_local_base_freq" in config:
        bases = bases or (1e6, 1e4)
        if kind == FULL:
            own, theta = (
                words if config.get("rope_scaling") else {},
                first_of(config, "rope_theta", default=bases[0]),
            )
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
    share = _stated_share(config, family)
    if share is not None:
        own.setdefault("partial_rotary_factor", share)
    if family == "phi3" and own["rope_type"] in ("su", "yarn"):
        own["rope_type"] = "longrope"
    if (
        own["rope_type"] == "mrope" and "mrope_section" in own
    ):  # the name that Qwen2-VL gave to positions of images
        own["rope_type"] = "default"
    if config.get("original_max_position_embeddings") is not None and not apart:
        own["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return own


def _stated_base(config: dict, family: str) -> object:
    """Base beside the mapping of RoPE, by the names that families gave it, else the family's
    own.
    """
    attention = at_path(config, ("attn_config",))  # of DBRX
    stated = first_of(config, "rope_theta", "rotary_emb_base", default=attention.get("rope_theta"))
    if stated is not None:
        return stated
    base = of_family(family, "theta", 1e4)
    return base * number(config.get("rope_ratio"), 1.0) if family in FACTS["by_ratio"] else base


def _stated_share(config: dict, family: str) -> object:
    """Share of a head's channels that turn, beside the mapping of RoPE; None where all turn."""
    stated = first_of(config, "partial_rotary_factor", "rotary_pct")
    if stated is not None:
        return stated
    turned, width = number(config.get("rotary_dim")), stated_width(config, HERE)
    if turned and width:
        return turned / width
    return of_family(family, "share")
