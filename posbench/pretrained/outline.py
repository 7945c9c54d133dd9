"""Outline of a checkpoint outside posbench's own model: sizes for planning only, by their names in
config.json.

The model itself is built by transformers, and its positions are measured when it is loaded
(posbench/model/inplace). Torch-free."""

from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.config.schema import JobConfig, ModelConfig

NAMES = {
    "d_model": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "n_layer": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "n_head": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "n_kv_head": ("num_key_value_heads", "num_kv_heads"),
    "d_ff": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "moe_intermediate_size"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "length": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "vocab_size": ("vocab_size",),
}
NEEDED = ("d_model", "n_layer", "n_head", "vocab_size")
LARGEST = 2**40
ALONE = (
    "xglm",
    # families that attend by themselves, without a file in posbench/model/inplace/families;
    # transformers 5.23
)
ALIBI = ("bloom", "mpt")  # families without any other positions
FALCON_LENGTH = 2048  # of transformers, where config.json states none: the first models'
TURNING = ("rope", "rotary")  # parts of the keys of a config.json whose model turns q and k
ENCODING = "posbench.encodings.as_trained.AsTrained"


def outline(config: dict, file: Path) -> tuple[ModelConfig, dict, dict]:
    """(sizes, node of the encoding, {vocab_size, bos, length}) of a description. Raises ConfigError
    where it does not say them.
    """
    config = {**config, **(config.get("text_config") or {})}
    if config.get("model_type") in ALONE:
        raise ConfigError(
            f"{file} is of type {config['model_type']}, whose attention transformers does not"
            " register: choose another."
        )
    if config.get("is_encoder_decoder"):
        raise ConfigError(f"{file} describes a model with an encoder: choose a causal one.")
    found = {ours: size_of(config, ours, file) for ours in NAMES}
    if missing := [NAMES[one][0] for one in NEEDED if found[one] is None]:
        raise ConfigError(f"{file} lacks {' and '.join(missing)}: is it a checkpoint's?")
    own = (
        "qk_nope_head_dim",
        "qk_rope_head_dim",
    )  # of latent attention, whose heads are both together
    if all(isinstance(config.get(one), int) for one in own):
        found["head_dim"] = sum(config[one] for one in own)
    if config.get("model_type") == "falcon":
        found["length"] = found["length"] or FALCON_LENGTH
        found["n_kv_head"] = _falcon_key_heads(
            config, found["n_kv_head"] or found["n_head"], found["n_head"]
        )
    heads, shared = found["n_head"], found["n_kv_head"]
    model = ModelConfig(
        d_model=found["d_model"],
        n_layer=found["n_layer"],
        n_head=heads,
        n_kv_head=shared if shared and heads % shared == 0 else heads,
        d_ff=found["d_ff"] or 4 * found["d_model"],
        head_dim=found["head_dim"]
        or (None if found["d_model"] % heads == 0 else found["d_model"] // heads),
        tied=bool(config.get("tie_word_embeddings", True)),
    )
    bos = config.get("bos_token_id")
    known = {
        "vocab_size": found["vocab_size"],
        "bos": bos if isinstance(bos, int) and bos < found["vocab_size"] else None,
    }
    kind = _kind(config, found["length"])
    encoding = {"_target_": ENCODING, "kind": kind, "scaling": None, "scaling_len": None}
    return model, encoding, {**known, "length": found["length"]}


def _kind(config: dict, length: int | None) -> str:
    """Kind of the positions, an argument of AsTrained: "alibi", "learned" or "turned"."""
    family = config.get("model_type")
    if family in ALIBI or (family == "falcon" and config.get("alibi")):
        return "alibi"
    turning = family == "falcon" or any(part in key for key in config for part in TURNING)
    return "turned" if turning or length is None else "learned"


def _falcon_key_heads(config: dict, stated: int, heads: int) -> int:
    if config.get("new_decoder_architecture"):
        return stated
    return 1 if config.get("multi_query", True) else heads


def size_of(config: dict, ours: str, file: Path | str) -> int | None:
    """A size by its names in config.json, None where it has none. Raises ConfigError for one that
    is no whole number above 0.
    """
    for name in NAMES[ours]:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
            raise ConfigError(
                f"{file} has {name}={value!r:.60}, where a whole number above 0 belongs:"
                " correct it."
            )
        return value
    return None


def outlined(cfg: JobConfig) -> bool:
    """True if the model of a job's configuration is built by transformers, with its positions as it
    was trained.
    """
    return cfg.encoding.get("_target_") == ENCODING
