"""Suggestions for a key or a choice that does not exist, and for words that Hydra cannot read."""

import re

from omegaconf import DictConfig, OmegaConf

from posbench.common.errors import did_you_mean
from posbench.config.schema import METHODS

# {key of posbench: its names in transformers, other harnesses or papers}. The first key that the configuration has is suggested.
ELSEWHERE = {
    "alpha": "beta_slow low_freq_factor",
    "base": "rope_theta theta",
    "beta": "beta_fast high_freq_factor",
    "target_len": "factor scaling_factor",
    "multiplier": "factor scaling_factor",
    "_target_": "rope_type",
    "window": "sliding_window",
    "length": "max_position_embeddings block_size seq_len context_length",
    "lr": "learning_rate",
    "tokens_per_step": "batch_size",
    "steps": "max_steps epochs",
    "warmup": "warmup_steps",
    "clip": "grad_clip",
    "d_model": "hidden_size n_embd dim",
    "n_layer": "num_hidden_layers num_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "d_ff": "intermediate_size",
}
FIXED = "extension.mode=fixed extension.target_len=TOKENS, a factor times train.length"


def of_words(said: str) -> str | None:
    """The way out of Hydra's errors about a choice that does not exist, several values, and cut words; None for others."""
    if found := re.match(r"(?:In '[^']*': )?Could not find '([^']+)/([^'/]+)'\s+Available options in '[^']*':(.*)", said, re.S):
        group, name, options = found[1], found[2], found[3].split()
        own = "; one of your own needs --config-dir FOLDER"
        return f"{group}={name} is unknown{did_you_mean(name, options)}: choose from {', '.join(options)}{own}."
    if found := re.match(r"Ambiguous value for argument '([^=']+)=([^']*)'", said):
        key, values = found.groups()
        return f"{key}={values} names several values: add -m to take each, or type '{key}=[{values}]' for one list."
    if found := re.search(r"(?:Error parsing override '([^']*)'|^(\S+): )\s*missing EQUAL at", said):
        return f"{found[1] or found[2]} is no NAME=VALUE: write it without spaces, as in encoding=rope."
    if found := re.match(r"(\S+?)(?:: |\n).*(?:no viable alternative|extraneous input|mismatched input '<EOF>')", said, re.S):
        return f"{found[1]} cannot be read to its end: quote words with brackets, and leave out spaces, as in 'evaluate.lengths=[64,128]'."
    return None


def suggestion(error: Exception) -> str:
    """Suffix for Hydra's error about an unknown key: " (did you mean model.n_head?)", or ""."""
    missing = error.__cause__ or error
    parent, name = getattr(missing, "parent_node", None), getattr(missing, "full_key", None)
    if not isinstance(parent, DictConfig) or not name:
        return ""
    group, _, key = str(name).rpartition(".")
    siblings = [str(one) for one in parent if one != "hydra"]
    known = [meant for meant, names in ELSEWHERE.items() if key in names.split()]
    for meant in known:
        if meant in siblings:
            return f" (did you mean {FIXED if (group, meant) == ('extension', 'target_len') else f'{group}.{meant}'}?)"
    if near := did_you_mean(key, siblings):
        return near.replace("mean ", f"mean {group}." if group else "mean ", 1)
    if group:
        others = [f"{one}.{key}" for one, values in parent._get_root().items() if OmegaConf.is_dict(values) and key in values]
        if others and group not in METHODS:  # arguments of one method mean something else in another
            return f" (did you mean {' or '.join(others)}?)"
        return f" ({group} has {', '.join(one for one in siblings if one != '_target_') or 'none'})"
    root = parent._get_root()
    inner = [f"{one}.{two}" for one in siblings if OmegaConf.is_dict(root[one]) for two in root[one] if two in (key, *known)]
    return f" (did you mean {' or '.join(inner)}?)" if inner else ""
