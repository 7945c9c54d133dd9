"""Outline of a checkpoint outside posbench's own model: sizes for planning only, by their names in
config.json.

The model itself is built by transformers, and its positions are measured when it is loaded
(posbench/model/inplace). Torch-free."""

from pathlib import Path
from typing import NamedTuple

from posbench.common.errors import ConfigError
from posbench.config.schema import JobConfig, ModelConfig

NAMES_IN_CONFIG = {
    "d_model": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "n_layer": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "n_head": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "n_kv_head": ("num_key_value_heads", "num_kv_heads"),
    "d_ff": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "moe_intermediate_size"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "length": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "vocab_size": ("vocab_size",),
}
NEEDED_SIZES = ("d_model", "n_layer", "n_head", "vocab_size")
LARGEST_SIZE = 2**40
# families that attend by themselves, without a file in posbench/model/inplace/families;
# transformers 5.23
UNREGISTERED_FAMILIES = ("xglm",)
ALIBI_FAMILIES = ("bloom", "mpt")  # families without any other positions
FALCON_LENGTH = 2048  # of transformers, where config.json states none: the first models'
# parts of the keys of a config.json whose model turns q and k
ROTARY_KEY_PARTS = ("rope", "rotary")
# of latent attention, whose heads are both together
LATENT_WIDTHS = ("qk_nope_head_dim", "qk_rope_head_dim")
AS_TRAINED = "posbench.encodings.as_trained.AsTrained"


class Outline(NamedTuple):
    """Facts of a checkpoint: sizes, node of the encoding, id of its BOS, and the length in tokens
    that it was trained for; None where it states none.
    """

    model: ModelConfig
    encoding: dict
    vocab_size: int
    bos: int | None
    length: float | None


def outline_from_config(config: dict, file: Path) -> Outline:
    """Outline of the model that the content of a config.json describes.

    Raises ConfigError where it does not say the sizes."""
    # a model of text and images describes its part for text in a mapping of its own
    config = {**config, **(config.get("text_config") or {})}
    family = config.get("model_type")
    if family in UNREGISTERED_FAMILIES:
        raise ConfigError(
            f"{file} is of type {family}, whose attention transformers does not register: choose"
            " another."
        )
    if config.get("is_encoder_decoder"):
        raise ConfigError(f"{file} describes a model with an encoder: choose a causal one.")
    sizes = {size: stated_size(config, size, file) for size in NAMES_IN_CONFIG}
    missing = [NAMES_IN_CONFIG[size][0] for size in NEEDED_SIZES if sizes[size] is None]
    if missing:
        raise ConfigError(f"{file} lacks {' and '.join(missing)}: is it a checkpoint's?")
    heads = sizes["n_head"]
    kv_heads = sizes["n_kv_head"] or heads
    length = sizes["length"]
    if family == "falcon":
        kv_heads = _falcon_key_heads(config, kv_heads, heads)
        length = length or FALCON_LENGTH
    head_dim = stated_head_width(config, file)
    # With latent attention a head has a part without RoPE and one with it.
    if all(isinstance(config.get(key), int) for key in LATENT_WIDTHS):
        # Widths of 0 are those of a configuration without latent attention: head_dim holds.
        head_dim = sum(config[key] for key in LATENT_WIDTHS) or head_dim
    model = ModelConfig(
        d_model=sizes["d_model"],
        n_layer=sizes["n_layer"],
        n_head=heads,
        # ModelConfig takes divisors of n_head alone; families may have other numbers
        n_kv_head=kv_heads if heads % kv_heads == 0 else heads,
        d_ff=sizes["d_ff"] or 4 * sizes["d_model"],  # as GPT-2, which states none
        head_dim=head_dim,
        tied=bool(config.get("tie_word_embeddings", True)),  # transformers' default
    )
    kind = _kind_of_positions(config, length)
    encoding = {"_target_": AS_TRAINED, "kind": kind, "scaling": None, "scaling_len": None}
    bos = config.get("bos_token_id")
    if not isinstance(bos, int) or bos >= sizes["vocab_size"]:  # a list, or of another tokenizer
        bos = None
    return Outline(model, encoding, sizes["vocab_size"], bos, length)


def stated_head_width(config: dict, file: Path | str) -> int | None:
    """Channels of a head: head_dim, or the model's width by its heads; None where neither is said.

    >>> stated_head_width({"hidden_size": 64, "num_attention_heads": 4}, "config.json")
    16
    """
    head_dim = stated_size(config, "head_dim", file)
    width = stated_size(config, "d_model", file)
    heads = stated_size(config, "n_head", file)
    if head_dim:
        return head_dim
    return width // heads if width and heads and width % heads == 0 else None


def _kind_of_positions(config: dict, length: int | None) -> str:
    """Kind of the positions, an argument of AsTrained: "alibi", "learned" or "turned"."""
    family = config.get("model_type")
    if family in ALIBI_FAMILIES or (family == "falcon" and config.get("alibi")):
        return "alibi"
    turns = family == "falcon" or any(part in key for key in config for part in ROTARY_KEY_PARTS)
    return "turned" if turns or length is None else "learned"


def _falcon_key_heads(config: dict, kv_heads: int, heads: int) -> int:
    """Key heads of a Falcon: `kv_heads` are those that its description states, or `heads`."""
    if config.get("new_decoder_architecture"):
        return kv_heads
    is_multi_query = config.get("multi_query", True)  # transformers' default
    return 1 if is_multi_query else heads


def stated_size(config: dict, size: str, file: Path | str) -> int | None:
    """A size, such as "n_layer", by its names in config.json; None where it has none.

    Raises ConfigError for one that is no whole number above 0."""
    for name in NAMES_IN_CONFIG[size]:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST_SIZE:
            raise ConfigError(
                f"{file} has {name}={value!r:.60}, where a whole number above 0 belongs:"
                " correct it."
            )
        return value
    return None


def is_built_by_transformers(config: JobConfig) -> bool:
    """True if transformers builds the model of a job, with its positions as it was trained."""
    return config.encoding.get("_target_") == AS_TRAINED
