"""Every causal family in transformers' registry: a random tiny model of each, and what
posbench.extend does with it.

`python tests/support/registry.py [KIND ...]` prints the table, a line for each family.
"""

import copy
import math
import sys
import time
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import posbench
from posbench.common.errors import ConfigError
from posbench.pretrained.outline import NAMES_IN_CONFIG

transformers = pytest.importorskip("transformers")
LENGTHS = NAMES_IN_CONFIG["length"]
VOCAB = 96
TRAIN_LEN = 64
TARGET = 128
BEYOND = 96  # tokens of a text beyond the training length
INSIDE = 24
SINGLE = 6
SAME = 1e-4  # largest difference of logits, in their standard deviations

# Sizes of a tiny model, wherever a configuration has a number of this name.
SIZES = {
    "attention_head_dim": 16, "attention_hidden_size": 64, "attention_window_size": 24,
    "backbone_hidden_size": 64, "d_head": 16, "d_inner": 96, "d_model": 64,
    "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "decoder_layers": 4, "dff": 96,
    "dim_ff": 96, "dim_head": 16, "emb_dim": 64, "embedding_dim": 64, "embedding_size": 64,
    "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "encoder_layers": 4,
    "expert_ffn_hidden_size": 32, "ffn_dim": 96, "ffn_hidden_size": 96, "head_dim": 16,
    "hidden_size": 64, "hidden_size_per_layer_input": 16, "index_head_dim": 16, "index_n_heads": 4,
    "index_topk": 32, "input_embedding_size": 64, "intermediate_size": 96,
    "intermediate_size_mlp": 96, "kv_channels": 16, "kv_lora_rank": 32, "linear_head_dim": 16,
    "linear_key_head_dim": 16, "linear_num_heads": 4, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_value_head_dim": 16, "local_attention": 24,
    "local_attention_window_len": 24, "lru_width": 64, "mamba_d_head": 16, "mamba_d_ssm": 64,
    "mamba_d_state": 16, "mamba_head_dim": 16, "mamba_n_heads": 8, "mamba_num_heads": 8,
    "max_position_embeddings": TRAIN_LEN, "max_seq_len": TRAIN_LEN,
    "max_target_positions": TRAIN_LEN, "model_max_length": TRAIN_LEN, "moe_intermediate_size": 32,
    "n_ctx": TRAIN_LEN, "n_embd": 64, "n_group": 1, "n_head": 4, "n_heads": 4, "n_layer": 4,
    "n_layers": 4, "n_positions": TRAIN_LEN, "n_routed_experts": 4, "num_attention_heads": 4,
    "num_blocks": 4, "num_experts": 4, "num_experts_per_tok": 2, "num_heads": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 2, "num_kv_heads": 2, "num_kv_shared_layers": 0,
    "num_layers": 4, "num_local_experts": 4, "output_embedding_size": 64, "q_lora_rank": 32,
    "qk_head_dim": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "query_pre_attn_scalar": 16,
    "rotary_dim": 8, "router_hidden_size": 16, "shared_expert_intermediate_size": 32,
    "sliding_window": 24, "sliding_window_size": 24, "swa_head_dim": 16,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "topk_group": 1, "v_head_dim": 16,
    "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "window_size": 24,
    "word_embed_proj_dim": 64,
}  # fmt: skip
TOKENS = ("bos_token_id", "cls_token_id", "eos_token_id", "pad_token_id", "sep_token_id")
FIRST_TOKEN = 2  # ids from here on have no meaning of their own
THETA = {"rope_type": "default", "rope_theta": 1e4}
BOTH = {"full_attention": THETA, "sliding_attention": THETA}
# What a family needs beside, or in place of, the sizes.
OTHERS = {
    "bailing_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "big_bird": {"attention_type": "original_full"},
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {"rope_parameters": BOTH},
    "ctrl": {"n_positions": TRAIN_LEN},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 96}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_shared_experts": 1, "num_key_value_heads": 4, "n_routed_experts": 4,
        "num_experts_per_tok": 2},
    "dots3_note_text": {"use_dsa": False, "head_dim": 24},
    "falcon_h1": {"mamba_n_heads": 4},
    "gemma4_assistant": {"text_config": {
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
        "num_kv_shared_layers": 4,
    }},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "num_dense_layers": 1},
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention"] * 2, "num_experts": 8, "n_group": 1,
        "topk_group": 1},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "prophetnet": {"num_decoder_layers": 4, "num_encoder_layers": 2},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"] * 2, "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16, "indexer_budget": 32, "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 64,
    },
    "reformer": {"attn_layers": ["local", "lsh"], "axial_pos_embds": False,
        "attention_head_size": 16, "num_buckets": 4},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {
        "attention_head_dim": 32, "attention_hidden_size": 128, "num_hidden_layers": 6,
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
METHODS = (
    ("rerope", "none", None), ("yarn", "none", TARGET), ("streaming", "none", None),
    ("none", "log_n", None),
    ("table_linear", "none", TARGET),
)  # fmt: skip


def kinds() -> list[str]:
    """Model types of the registry of causal models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _small(config: object) -> dict[str, object]:
    """Arguments of a tiny configuration of the class of `config`."""
    settings = config.to_dict()
    small: dict[str, object] = {}
    for name, size in SIZES.items():
        if type(settings.get(name)) is int:
            small[name] = size
    if "head_dim" in settings and settings["head_dim"] is None:
        small["head_dim"] = SIZES["head_dim"]
    if (
        "qk_rope_head_dim" in small
    ):  # of latent attention: the part that turns, and every head has keys
        small.update(
            head_dim=SIZES["qk_rope_head_dim"], num_key_value_heads=SIZES["num_attention_heads"]
        )
    for name in TOKENS:
        if type(settings.get(name)) is int:
            small[name] = 1
    if "is_decoder" in settings:
        small["is_decoder"] = True
    for name in getattr(type(config), "sub_configs", {}):
        part = vars(config).get(name)
        if hasattr(part, "to_dict"):
            small[name] = _small(part)
    return small


def _merged(settings: dict, others: dict) -> dict:
    merged = dict(settings)
    for name, value in others.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = {**merged[name], **value}
        else:
            merged[name] = value
    return merged


def tiny(kind: str) -> nn.Module:
    """A model of a family of the registry, of random weights."""
    torch.manual_seed(0)
    model_class = transformers.AutoModelForCausalLM._model_mapping[
        type(transformers.AutoConfig.for_model(kind))
    ]
    config_class = model_class.config_class or type(transformers.AutoConfig.for_model(kind))
    config = config_class(**_merged(_small(config_class()), OTHERS.get(kind, {})))
    model = model_class._from_config(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and ("norm" in name or name.endswith(("bias", "sinks"))):
            parameter.add_(0.2 * torch.randn_like(parameter))
        elif parameter.ndim > 1:
            parameter.mul_(2.0)  # so that attention is no mean of all tokens
    return model


@dataclass
class Outcome:
    """What posbench.extend does with a family.

    `exact` names the methods under which a cache gives the logits of the whole text, `refused` the
    sentence that refuses the model, or the methods, `fault` what is neither. `parameters` is a
    number, `seconds` the time that it took."""

    kind: str
    exact: list[str] = field(default_factory=list)
    refused: str = ""
    fault: str = ""
    missing: str = ""  # why no tiny model of this family is made here
    as_it_came: float = 0.0  # difference of a cache to the whole text in the model as it came
    parameters: int = 0
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """A row of the table, such as "| llama | exact | rerope, yarn, streaming, log_n |"."""
        if self.fault:
            return f"| {self.kind} | FAULT | {self.fault} |"
        if self.missing:
            return f"| {self.kind} | not built | {self.missing} |"
        if self.exact:
            note = (
                f" (a cache as it came: {self.as_it_came:.0e})"
                if SAME < self.as_it_came < math.inf
                else ""
            )
            return f"| {self.kind} | exact | {', '.join(self.exact)}{note} |"
        return f"| {self.kind} | refused | {self.refused} |"


def _ids(length: int) -> Tensor:
    return torch.randint(
        FIRST_TOKEN, VOCAB, (1, length), generator=torch.Generator().manual_seed(1)
    )


def _whole(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits.float()


def _cached(model: nn.Module, ids: Tensor) -> Tensor:
    """Logits of a text with a cache, whose last SINGLE tokens are read one by one."""
    start = 0
    cache = None
    pieces = []
    for stop in range(ids.shape[1] - SINGLE, ids.shape[1] + 1):
        output = model(input_ids=ids[:, start:stop], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        pieces.append(output.logits.float())
        start = stop
    return torch.cat(pieces, dim=1)


def difference(logits: Tensor, expected: Tensor) -> float:
    return float((logits - expected).abs().max() / expected.std())


def _hooks(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


def _own_difference(model: nn.Module, ids: Tensor) -> float:
    """Difference of a cache of the model as it came to the whole text; infinite where it has none
    that goes on.
    """
    try:
        return difference(_cached(model, ids), _whole(model, ids))
    except Exception:  # whatever a model's own code raises
        return float("inf")


@torch.no_grad()
def outcome(kind: str) -> Outcome:
    began = time.monotonic()
    result = Outcome(kind)
    try:
        model = tiny(kind)
        inside = _whole(model, _ids(INSIDE))
        assert inside.shape[:2] == (1, INSIDE), "reads no plain text"
    except Exception as error:  # whatever a family's own code raises
        result.missing = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150]}"
        return result
    result.parameters = sum(parameter.numel() for parameter in model.parameters())
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    config, hooks = copy.deepcopy(model.config.to_dict()), _hooks(model)
    try:
        _extended(model, result)
    except Exception as error:
        result.fault = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
    if getattr(model, "_posbench", None) is not None:
        posbench.restore(model)
    if not torch.equal(_whole(model, _ids(INSIDE)), inside):
        result.fault = "other logits than before"
    if any(not torch.equal(value, weights[name]) for name, value in model.state_dict().items()):
        result.fault = "other weights than before"
    if model.config.to_dict() != config or _hooks(model) != hooks:
        result.fault = "another configuration, or hooks, than before"
    result.seconds = time.monotonic() - began
    return result


def _extended(model: nn.Module, result: Outcome) -> None:
    """Extend a model by each method, and note in `result` under which the cache is exact."""
    config = model.config.get_text_config()
    configured = any(isinstance(getattr(config, name, None), int) for name in LENGTHS)
    train_len = None if configured else TRAIN_LEN
    try:
        posbench.extend(model, train_len=train_len)
    except ConfigError as error:
        result.refused = str(error)
        return
    limit = model._posbench.train_len if model._posbench.table_name is not None else BEYOND
    posbench.restore(model)
    result.as_it_came = _own_difference(model, _ids(min(limit, BEYOND)))
    for extension, scale, target_len in METHODS:
        name = extension if scale == "none" else scale
        try:
            posbench.extend(model, extension, scale, target_len=target_len, train_len=train_len)
        except ConfigError as error:
            result.refused = result.refused or str(error)
            continue
        ids = _ids(BEYOND if target_len else limit)
        try:
            cached_difference = difference(_cached(model, ids), _whole(model, ids))
        except ConfigError as error:
            result.refused = result.refused or str(error)
            continue
        allowed = max(SAME, 2 * result.as_it_came) if math.isfinite(result.as_it_came) else SAME
        if not cached_difference <= allowed:
            result.fault = (
                f"{name}: a cache differs by {cached_difference:.1e}, as it came by"
                f" {result.as_it_came:.1e}"
            )
            return
        result.exact.append(name)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or kinds():
        row = outcome(name)
        print(row.line, f"{row.parameters / 1e6:.1f}M {row.seconds:.0f}s", flush=True)
