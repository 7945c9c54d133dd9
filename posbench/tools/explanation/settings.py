"""Setting of RoPE in a config.json for each kind of layer, as transformers 5.23 reads it, or vLLM
0.33.0 or SGLang 0.5.23.

Wrong sizes are refused. Any other value that cannot be read counts as missing, and checks.py says
so."""

from dataclasses import dataclass, field

from posbench.common.errors import ConfigError
from posbench.pretrained.outline import ROTARY_KEY_PARTS, stated_head_width, stated_size
from posbench.tools.explanation.config_json import (
    config_length,
    first_value,
    kinds_with_own_mapping,
    mapping_at,
    positive_number,
    rope_mapping,
    text_description,
)
from posbench.tools.explanation.facts import FACTS, HF, TABLES, fact_of_family
from posbench.tools.explanation.frequencies import Rope
from posbench.tools.explanation.position_keys import position_keys
from posbench.tools.explanation.read_rope import DESCRIPTION, read_rope

MOST_LAYERS = 2**14  # that are listed
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


@dataclass(frozen=True)
class LayerKind:
    """Layers with the same RoPE and window."""

    name: str
    layers: tuple[int, ...]
    rope: Rope | None  # None: nothing turns
    window: int | None = None
    mapping: dict = field(default_factory=dict)  # of config.json, with its defaults


@dataclass(frozen=True)
class Setting:
    """Use of positions by a model."""

    name: str
    family: str
    longest: float  # length that the setting states
    trained: float  # length that the checkpoint itself states
    kinds: tuple[LayerKind, ...]
    unread: tuple[str, ...] = ()  # keys about positions that are not understood

    @property
    def turning(self) -> list[LayerKind]:
        """Kinds with RoPE, those with the widest view first. Raises ConfigError for a model without
        any.
        """
        with_rope = [kind for kind in self.kinds if kind.rope]
        if not with_rope:
            raise ConfigError(
                f"{self.name} has no layer in which RoPE turns a channel, so no setting of it does"
                " anything."
            )
        return sorted(with_rope, key=lambda kind: kind.window is not None)


def read_setting(
    config: dict, name: str, trained: float | None = None, reader: str = HF
) -> Setting:
    """Setting in a config.json, as `reader` takes it. Raises ConfigError for one without RoPE, and
    for one that does not say its sizes.
    """
    unread_keys = tuple(key.key for key in position_keys(config) if key.hides_length)
    config = text_description(config)
    family = str(config.get("model_type"))
    if _lacks_rope(config, family):
        raise ConfigError(
            f"{name} ({family}) has no key of RoPE: explain says how RoPE is set, and this model"
            " has none."
        )
    longest = config_length(config) or trained
    if longest is None:
        raise ConfigError(
            f"{name} ({family}) has no max_position_embeddings, the length in whose turns RoPE is"
            " counted: add it."
        )
    # RoPE counts its turns in max_position_embeddings, whatever model_max_length says.
    rope_length = config_length({**config, "model_max_length": None}) or longest
    layers_of: dict[str, list[int]] = {}  # {name of a kind: its layers}
    for layer, name_of_kind in enumerate(_layer_types(config, family)):
        layers_of.setdefault(name_of_kind, []).append(layer)
    kinds = []
    for name_of_kind, layers in layers_of.items():
        mapping = standard_mapping(config, family, name_of_kind)
        rope = None
        if mapping is not None:
            rope = read_rope(mapping, config, rope_length, reader)
        if rope and not rope.turned:  # a share so small that no channel turns
            rope = None
        window = _window_of_kind(config, name_of_kind)
        kinds.append(LayerKind(name_of_kind, tuple(layers), rope, window, mapping or {}))
    return Setting(name, family, longest, trained or longest, tuple(kinds), unread_keys)


def _window_of_kind(config: dict, kind: str) -> float | None:
    """Tokens that layers of a kind see; None where they see all."""
    attention = kind.partition(",")[0]  # ", no RoPE" may stand behind it
    if attention == SLIDING:
        return positive_number(config.get("sliding_window"))
    if attention == CHUNKED:
        return positive_number(config.get("attention_chunk_size"))
    return None


def _lacks_rope(config: dict, family: str) -> bool:
    """True if no layer of the model has RoPE."""
    if (
        family in FACTS["unturned"]
        or config.get("position_embedding_type") in FACTS["other_positions"]
    ):
        return True
    attention = mapping_at(config, ("attn_config",))
    if config.get("alibi") is True or attention.get("alibi") is True:
        return True
    names_rope = any(part in key for key in (*config, *attention) for part in ROTARY_KEY_PARTS)
    if names_rope:
        return False
    # Without a key of RoPE its default base counts, if the model states a length; in families of
    # TABLES that is the size of a table of positions.
    return family in TABLES or "max_position_embeddings" not in config


def _layer_types(config: dict, family: str) -> list[str]:
    """Kind of every layer, with ", no RoPE" behind it where the layer has none.

    One layer stands for all where their number is not stated.
    """
    count = min(stated_size(config, "n_layer", DESCRIPTION) or 1, MOST_LAYERS)
    with_rope = _layers_with_rope(config, family, count)
    kinds = _attention_types(config, family, with_rope)
    if fact_of_family(family, "full_unturned") and SLIDING in kinds:
        # Full layers have no RoPE beside sliding ones.
        with_rope = [kind != FULL for kind in kinds]
    # no_rope_layers may list more layers than there are kinds for.
    for layer, turns in enumerate(with_rope[: len(kinds)]):
        if not turns:
            kinds[layer] += ", no RoPE"
    return kinds


def _layers_with_rope(config: dict, family: str, count: int) -> list[bool]:
    """True for each layer with RoPE. Layers beyond a list that is too short have it."""
    listed = config.get("no_rope_layers")
    if isinstance(listed, list) and listed:
        return [bool(value) for value in listed]  # 1 is RoPE, in spite of the key's name
    if family in ("smollm3", "llama4_text"):
        every = positive_number(config.get("no_rope_layer_interval"), 4)  # transformers' default
        return [(layer + 1) % every != 0 for layer in range(count)]
    return [True] * count


def _attention_types(config: dict, family: str, with_rope: list[bool]) -> list[str]:
    """Kind of attention of every layer."""
    listed = config.get("layer_types")
    if isinstance(listed, list) and listed:
        return [str(kind) for kind in listed]
    if family == "llama4_text":
        return [CHUNKED if turns else FULL for turns in with_rope]
    count = min(stated_size(config, "n_layer", DESCRIPTION) or 1, MOST_LAYERS)
    window = positive_number(config.get("sliding_window"))
    uses_window = bool(config.get("use_sliding_window"))
    every = positive_number(config.get("sliding_window_pattern"), fact_of_family(family, "every"))
    slides = fact_of_family(family, "slides")
    if window and family == "smollm3" and uses_window:
        return [FULL if turns else SLIDING for turns in with_rope]
    if window and every:
        return [SLIDING if (layer + 1) % every else FULL for layer in range(count)]
    if window and slides == "everywhere":
        return [SLIDING] * count
    if window and slides == "by_depth" and uses_window:
        first = positive_number(config.get("max_window_layers"), 28)  # transformers' default
        return [SLIDING if layer >= first else FULL for layer in range(count)]
    return [FULL] * count


def standard_mapping(config: dict, family: str, kind: str) -> dict | None:
    """Mapping of RoPE of one kind of layer with its defaults, as transformers'
    standardize_rope_params; None without RoPE.
    """
    # The mapping that config.json states: of all layers, or with one for each kind (`apart`).
    # Families of by_ratio read rope_ratio alone.
    shared = {} if family in FACTS["by_ratio"] else rope_mapping(config)
    attends = "attention" in kind and kind != "linear_attention"
    has_mapping = isinstance(shared.get(kind), dict)
    if kind.endswith("no RoPE") or not (attends or has_mapping):
        return None
    mapping = shared
    theta = _stated_base(config, family)
    bases = fact_of_family(family, "bases")
    if bases or "rope_local_base_freq" in config:
        # As in Gemma 3: sliding layers have a base of their own, and no scaling.
        full_base, sliding_base = bases or (1e6, 1e4)
        if kind == FULL:
            theta = first_value(config, "rope_theta", default=full_base)
        else:
            theta = first_value(config, "rope_local_base_freq", default=sliding_base)
        if kind != FULL:  # no scaling
            mapping = {}
        elif not config.get("rope_scaling"):
            # What is stated is rope_parameters of all layers, which such a family does not read.
            mapping = {}
    apart = kinds_with_own_mapping(shared)
    if apart:
        if kind in shared and shared[kind] is None:  # null: no RoPE; a missing kind has defaults
            return None
        mapping = shared.get(kind)
    mapping = dict(mapping) if isinstance(mapping, dict) else {}
    mapping.setdefault("rope_type", mapping.get("type", "default"))
    if mapping.get("rope_theta") is None:
        mapping["rope_theta"] = theta
    share = _stated_share(config, family)
    if share is not None:
        mapping.setdefault("partial_rotary_factor", share)
    rope_type = mapping["rope_type"]
    if family == "phi3" and rope_type in ("su", "yarn"):  # its earlier names of LongRoPE
        mapping["rope_type"] = "longrope"
    if rope_type == "mrope" and "mrope_section" in mapping:
        mapping["rope_type"] = "default"  # mrope: the name that Qwen2-VL gave to image positions
    # transformers takes this key before the same one in a mapping of all layers. For mappings by
    # kind it does not read the key.
    original = config.get("original_max_position_embeddings")
    if original is not None and not apart:
        mapping["original_max_position_embeddings"] = original
    return mapping


def _stated_base(config: dict, family: str) -> object:
    """Base beside the mapping of RoPE, by the names that families gave it, else the family's
    own.
    """
    attention = mapping_at(config, ("attn_config",))  # of DBRX
    base = first_value(config, "rope_theta", "rotary_emb_base", default=attention.get("rope_theta"))
    if base is not None:
        return base
    base = fact_of_family(family, "theta", 1e4)
    # These state no base, but its ratio to the usual one.
    if family in FACTS["by_ratio"]:
        base *= positive_number(config.get("rope_ratio"), 1.0)
    return base


def _stated_share(config: dict, family: str) -> object:
    """Share of a head's channels that turn, beside the mapping of RoPE; None where all turn."""
    share = first_value(config, "partial_rotary_factor", "rotary_pct")
    if share is not None:
        return share
    turned = positive_number(config.get("rotary_dim"))
    width = stated_head_width(config, DESCRIPTION)
    if turned and width:
        return turned / width
    return fact_of_family(family, "share")
