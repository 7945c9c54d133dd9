"""Settings and config.json with which transformers runs a checkpoint with an extension. Torch-free except for `settings`.

Phi-3 knows no rope type but default and longrope, so that all else is written as divisors there.
"""

from posbench.common.errors import ConfigError
from posbench.config.schema import JobConfig


def settings(trained: JobConfig, extension: dict, own: dict | None = None) -> dict:
    """Settings with which a checkpoint runs with an extension: keys of config.json.

    `own` is the checkpoint's config.json, None for a GGUF file. rope_parameters is what transformers 5 reads, rope_theta and rope_scaling
    what earlier versions read. Raises ConfigError where no set of frequencies expresses it.
    """
    from posbench.huggingface.rope_keys import rope_keys

    kept, share = rope_keys(trained, extension, own), trained.encoding.get("fraction", 1.0)
    part = {"partial_rotary_factor": share} if share != 1 else {}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": kept["rope_theta"], **part, **(kept["rope_scaling"] or {})}, **kept}


def config_json(own: dict | None, trained: JobConfig, extension: dict) -> dict:
    """config.json of a checkpoint that runs with an extension: its `own` with other keys of RoPE, or a new one for a GGUF file.

    Raises ConfigError as `settings` does, and for a config.json that keeps RoPE for several kinds of layers apart.
    """
    found = settings(trained, extension, own)
    if own is None:
        from posbench.huggingface.export import hf_config
        from posbench.huggingface.kept_files import source, special_ids

        checkpoint, file = trained.model.checkpoint, source(trained)
        sizes = {"vocab_size": checkpoint["vocab_size"], "intermediate_size": trained.model.d_ff, "bos_token_id": checkpoint["bos"]}
        ids = special_ids(file) if file else {}
        return {**hf_config(trained, extension), **sizes, **ids, "rope_parameters": found["rope_parameters"]}
    if any(isinstance(value, dict) for value in (own.get("rope_parameters") or {}).values()):
        raise ConfigError("config.json has separate RoPE settings for several kinds of layers: edit it by hand.")
    said = found["rope_parameters"]
    # Beside RoPE's keys transformers gives these two priority, or reads them with rope_scaling: Phi-3 keeps them there.
    beside = {key: said[key] for key in ("original_max_position_embeddings", "partial_rotary_factor") if key in said}
    return {**own, **found, **beside}
