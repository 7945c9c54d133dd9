"""Configuration of a job on a checkpoint, which replaces the training.

Llama, Mistral, Ministral, Qwen2, Qwen3, SmolLM3 and Phi-3 are described in full and run as posbench's own model; of other families the
sizes are enough here, since transformers builds them. `adopt` is torch-free: it reads the description and the digests of the files, so
that a run's id is known before weights are loaded.
"""

from dataclasses import asdict, replace

from posbench.common.errors import ConfigError, Undescribed
from posbench.config.identity import as_typed, method_name
from posbench.config.schema import ModelConfig, TrainConfig
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.outline import outline
from posbench.pretrained.rope_config import rope_arguments

# RoPE as theirs.
WHOLE = {"layout": "half", "fraction": 1.0, "resonance": False}
WHOLE |= dict.fromkeys(("scaling", "scaling_len", "window", "amplitude", "unturned"))


def adopt(cfg: dict) -> dict:
    """Job configuration with model, encoding and training length of the checkpoint in model.path, if one is given.

    Its own tokenizer is taken where data.tokenizer is bytes or bpe and has another number of ids.
    Raises ConfigError for a path without a checkpoint, or with one that does not say its sizes.
    """
    if engine := cfg["model"].get("engine"):
        raise ConfigError(f"model={method_name(engine)} gives losses alone, and this command needs a model: choose model=hf.")
    path = cfg["model"].get("path")
    if path is None:
        return cfg
    if not path:
        raise ConfigError("model=hf evaluates a checkpoint: add model.path=FOLDER, FILE.gguf or a name of the hub to the command.")
    found = find_checkpoint(path)
    model, rope, said = describe(found)
    longest = said.pop("length")
    if not cfg["model"].get("own_scaling", True):
        model, rope, longest = _without_scaling(model, rope, path)
    digest, encoding = found.digest(cfg["cache_dir"]), cfg["encoding"]
    whole = all(encoding.get(key, value) in (value, rope.get(key, value)) for key, value in WHOLE.items())
    if method_name(encoding) != "rope" or not whole or encoding.get("base", 1e4) not in (1e4, rope.get("base", 1e4)):
        raise ConfigError(
            f"{as_typed('encoding', encoding)} is not what model.path={path} was trained with "
            f"({as_typed('encoding', rope)}): leave encoding out, and choose among extensions."
        )
    encoding = {**encoding, **rope} if method_name(rope) == "rope" else rope
    if method_name(cfg["train"].get("scale_attention") or TrainConfig().scale_attention) != "none":
        raise ConfigError(f"train.scale_attention was not trained into model.path={path}: use scale_attention, which acts at evaluation.")
    length = cfg["train"]["length"]
    length = longest if length == TrainConfig().length else length
    if length is None:
        raise ConfigError(f"model.path={path} has no training length: add train.length=TOKENS.")
    # Other training settings have no effect, since nothing is trained or drawn: one checkpoint is one run.
    train = asdict(TrainConfig(length=length, steps=0, dtype="bf16"))
    return {
        **cfg,
        "encoding": encoding,
        "model": asdict(replace(model, path=found.name, checkpoint={"sha256": digest, **said})),
        "train": train,
        "seed": 0,
        "data": _data(cfg["data"], found),
    }


def _without_scaling(model: ModelConfig, rope: dict, path: str) -> tuple[ModelConfig, dict, float]:
    """Model, encoding and training length of a checkpoint before the scaling in its config.json. Raises ConfigError where there is none."""
    if rope.get("scaling") is None:
        raise ConfigError(
            f"model.path={path} has no scaling that posbench takes apart, so model.own_scaling=false has no effect: leave it out."
        )
    return replace(model, own_scaling=False), {**rope, "scaling": None, "scaling_len": None, "amplitude": None}, rope["scaling_len"]


def _data(data: dict, checkpoint: Checkpoint) -> dict:
    """`data` with the checkpoint's own tokenizer; without one, or if another is named, as it is."""
    own = checkpoint.tokenizer() if data["tokenizer"] in ("bytes", "bpe") else None
    return {**data, "tokenizer": own} if own else data


def describe(found: Checkpoint) -> tuple[ModelConfig, dict, dict]:
    """(sizes, node of the encoding, {vocab_size, bos, length}): in full, or of other families as `Checkpoint.outline` gives them.

    Raises ConfigError for a checkpoint that does not say its sizes, or has settings that neither posbench nor transformers builds.
    """
    try:
        config = found.config()
        rope = rope_arguments(config, found.name)
    except Undescribed:
        return found.outline()
    model, _, said = outline(config, found.place)
    whole = model.head_dim is None or model.head_dim * model.n_head == model.d_model
    shape = {"n_kv_head": config.get("num_key_value_heads"), "head_dim": None if whole else model.head_dim}
    norm = {"norm_eps": config["rms_norm_eps"], "qk_norm": "rms" if config["model_type"] == "qwen3" else "none"}
    return replace(model, **shape, **norm, qkv_bias=config["model_type"] == "qwen2"), rope, said
