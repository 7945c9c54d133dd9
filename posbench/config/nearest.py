"""Suggestions for a key that does not exist."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from posbench.common.errors import did_you_mean

# {name in transformers, other harnesses or papers: keys of posbench}. The first key that the configuration has is suggested.
ELSEWHERE = {
    "beta_fast": ("beta",),
    "high_freq_factor": ("beta",),
    "beta_slow": ("alpha",),
    "low_freq_factor": ("alpha",),
    "rope_theta": ("base",),
    "theta": ("base",),
    "factor": ("target_len", "multiplier"),
    "scaling_factor": ("target_len", "multiplier"),
    "rope_type": ("_target_",),
    "sliding_window": ("window",),
    "max_position_embeddings": ("length",),
    "block_size": ("length",),
    "seq_len": ("length",),
    "context_length": ("length",),
    "learning_rate": ("lr",),
    "batch_size": ("tokens_per_step",),
    "max_steps": ("steps",),
    "epochs": ("steps",),
    "warmup_steps": ("warmup",),
    "grad_clip": ("clip",),
    "hidden_size": ("d_model",),
    "n_embd": ("d_model",),
    "dim": ("d_model",),
    "num_hidden_layers": ("n_layer",),
    "num_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "num_key_value_heads": ("n_kv_head",),
    "intermediate_size": ("d_ff",),
}
FIXED = "extension.mode=fixed extension.target_len=TOKENS, a factor times train.length"


def suggestion(error: Exception) -> str:
    """Suffix for Hydra's error about an unknown key: " (did you mean model.n_head?)", or ""."""
    missing = error.__cause__ or error
    parent, name = getattr(missing, "parent_node", None), getattr(missing, "full_key", None)
    if not isinstance(parent, DictConfig) or not name:
        return ""
    group, _, key = str(name).rpartition(".")
    siblings = [str(one) for one in parent if one != "hydra"]
    for meant in ELSEWHERE.get(key, ()):
        if meant in siblings:
            return f" (did you mean {FIXED if (group, meant) == ('extension', 'target_len') else f'{group}.{meant}'}?)"
    if near := did_you_mean(key, siblings):
        return near.replace("mean ", f"mean {group}." if group else "mean ", 1)
    if group:
        return f" ({group} has {', '.join(one for one in siblings if one != '_target_') or 'none'})"
    root, names = parent._get_root(), (key, *ELSEWHERE.get(key, ()))
    inner = [f"{one}.{two}" for one in siblings if OmegaConf.is_dict(root[one]) for two in root[one] if two in names]
    return f" (did you mean {' or '.join(inner)}?)" if inner else ""
