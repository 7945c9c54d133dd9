"""A training, or a checkpoint, and the extension to use with it in Hugging Face format; the command
of scripts/export_hf.py.

A training becomes LlamaForCausalLM, Qwen3ForCausalLM if q and k are normalised, Qwen2ForCausalLM if
they have biases, SmolLM3ForCausalLM if some layers do not turn, or MistralForCausalLM with a
sliding window. rope_keys.py describes RoPE."""

import os
import shutil
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import whole_folder, write_json
from posbench.config.compose import Request
from posbench.config.identity import method_name
from posbench.config.schema import JobConfig
from posbench.data import prepare
from posbench.data.chat import of_gguf
from posbench.data.sources import TASK
from posbench.data.tokenizers import pretrained_file
from posbench.gguf.header import is_gguf, read_gguf
from posbench.model.build import make_encoding
from posbench.position.instantiate import trained_config
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.config_files import read_mapping
from posbench.pretrained.outline import outlined
from posbench.runs.directory import Run
from posbench.sweep.take_checkpoint import write_theirs
from posbench.tools.export.rope_keys import rope_keys

CLASSES = {"smollm3": "SmolLM3"}  # names that are no capitalised model_type
IDS = {
    "bos_token_id": "bos",
    "eos_token_id": "eos",
    "pad_token_id": "padding",
}  # {key of config.json: its name in a GGUF file}
OF_TOKENIZER = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


def export(request: Request) -> int:
    """Write the training run=DIR as a checkpoint into the folder out=DIR."""
    cfg = request.cfgs[0]
    if len(request.cfgs) > 1 or not cfg["run"] or not cfg["out"]:
        raise ConfigError(
            "An export needs one training: give run=results/runs/ID and out=FOLDER, and at most one"
            " extension."
        )
    run, out = Run(cfg["run"]), Path(cfg["out"]).resolve()
    if not run.finished:
        raise ConfigError(
            f"run={cfg['run']} has no finished training: give a directory of results/runs that has"
            " a train.json."
        )
    if os.path.exists(out) and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"out={out} exists already and is not empty: give a new folder, or remove it."
        )
    if method_name(cfg["scale_attention"]) != "none":
        raise ConfigError(
            f"scale_attention={method_name(cfg['scale_attention'])} cannot be exported: leave it"
            " out."
        )
    trained = trained_config(run)
    if outlined(trained):
        raise ConfigError(
            f"run={cfg['run']} is built by transformers: from_pretrained reads model.path, or a"
            " fine-tuned run itself."
        )
    config = hf_config(trained, cfg["extension"])
    with whole_folder(out) as folder:
        config |= write_theirs(run, trained, folder / "model.safetensors", config)
        if trained.data["bos"]:
            behind = (trained.data.get("mix") or {}).get(
                "vocab_size", 0
            )  # tokens of the mixed task
            config["bos_token_id"] = (trained.model.checkpoint or {}).get(
                "bos", config["vocab_size"] - behind - 1
            )
        if checkpoint := _source(trained):
            config |= _special_ids(checkpoint)
            if (
                said := checkpoint.place / "generation_config.json"
            ).is_file():  # which says where a generated text ends
                shutil.copyfile(said, folder / said.name)
        tokenizer = _tokenizer(trained.data, cfg["cache_dir"], folder)
        write_json(folder / "config.json", config)
    kind = (config["rope_scaling"] or {}).get("rope_type", "default")
    print(
        f"{cfg['out']}: {config['architectures'][0]}, rope_type {kind}, up to"
        f" {config['max_position_embeddings']} tokens\n{tokenizer}"
    )
    return 0


def hf_config(trained: JobConfig, extension: dict) -> dict:
    """Content of config.json for a training's configuration and an extension. Sizes known from the
    weights are added later.

    Raises ConfigError for settings that the format cannot express.
    """
    model, encoding, rope = trained.model, make_encoding(trained), rope_keys(trained, extension)
    if model.qk_norm not in ("none", "rms") or (model.qk_norm == "rms" and model.qkv_bias):
        raise ConfigError(
            f"model.qk_norm={model.qk_norm} with qkv_bias={model.qkv_bias} cannot be exported: the"
            " format has rms or biases."
        )
    if model.output_gate != "none":
        raise ConfigError(
            f"model.output_gate={model.output_gate} cannot be exported: the format has none."
        )
    windows, unturned = set(encoding.windows), sorted(encoding.unturned)
    kind = (
        "qwen3"
        if model.qk_norm == "rms"
        else "qwen2"
        if model.qkv_bias
        else "llama"
        if windows == {None}
        else "mistral"
    )
    if unturned and kind.startswith("qwen"):
        own = f"model.qk_norm={model.qk_norm} and model.qkv_bias={model.qkv_bias}"
        raise ConfigError(
            f"encoding.unturned={unturned} cannot be exported with {own}: the format has it with"
            " none and false alone."
        )
    kind = "smollm3" if unturned else kind
    if len(windows - {None}) > 1 or (kind == "mistral" and len(windows) > 1):
        only = (
            "one window, and one that some layers have for model.qk_norm=rms, model.qkv_bias=true"
            " or encoding.unturned"
        )
        raise ConfigError(
            f"encoding.window={encoding.windows} cannot be exported: the format supports {only}."
        )
    if kind == "llama" and model.d_model % model.n_head:
        raise ConfigError(
            f"model.d_model={model.d_model} is not a multiple of model.n_head={model.n_head}, as"
            " the format requires."
        )
    return {
        "architectures": [f"{CLASSES.get(kind, kind.title())}ForCausalLM"],
        "model_type": kind,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layer,
        "num_attention_heads": model.n_head,
        "num_key_value_heads": encoding.shape.n_kv_head,
        "head_dim": encoding.shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied,
        **rope,
        **(
            {
                "no_rope_layers": [int(i not in encoding.unturned) for i in range(model.n_layer)],
                "pad_token_id": None,
            }
            if unturned
            else {}
        ),
        **_window_keys(encoding.windows, kind),
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _window_keys(windows: list[int | None], kind: str) -> dict:
    size = next((size for size in windows if size is not None), None)
    if size is None or kind == "mistral":
        return {} if size is None else {"sliding_window": size}
    types = ["full_attention" if size is None else "sliding_attention" for size in windows]
    first = types.index(
        "sliding_attention"
    )  # the only key that early versions of transformers 4 read
    return {
        "use_sliding_window": True,
        "sliding_window": size,
        "max_window_layers": first,
        "layer_types": types,
    }


def _tokenizer(data: dict, cache_dir: str, folder: Path) -> str:
    """Copy the tokenizer if it has a file, with special tokens and chat template. Returns a
    sentence about it for the user.
    """
    if data["tokenizer"] == "bytes":
        return "no tokenizer: a token's id is the value of its byte"
    if data["tokenizer"] == TASK:
        return f"no tokenizer: data={data['name']} is a task, whose tokens stand for no text"
    try:
        prepared = prepare(data, cache_dir).folder
    except (ConfigError, RunError) as error:
        return f"no tokenizer, since the text is not there: {error}"
    shutil.copyfile(prepared / "tokenizer.json", folder / "tokenizer.json")
    file = None if data["tokenizer"] == "bpe" else pretrained_file(data["tokenizer"])
    said = of_gguf(file) if file and is_gguf(file) else {}
    words = {
        "chat_template" if key == "template" else key: value
        for key, value in said.items()
        if isinstance(value, str)
    }
    for one in (file.parent / name for name in OF_TOKENIZER if file and not is_gguf(file)):
        if one.is_file():
            shutil.copyfile(one, folder / one.name)
    if not (folder / OF_TOKENIZER[0]).exists():
        write_json(
            folder / OF_TOKENIZER[0], {"tokenizer_class": "PreTrainedTokenizerFast", **words}
        )
    return "tokenizer.json lies beside it: AutoTokenizer reads it"


def _source(trained: JobConfig) -> Checkpoint | None:
    """Checkpoint that a run, or the parent of a fine-tuned one, was made of; None for a training
    from the start, or if it is gone.
    """
    if not trained.model.checkpoint:
        return None
    try:
        return find_checkpoint(trained.model.path, download=False)
    except ConfigError:
        return None


def _special_ids(checkpoint: Checkpoint) -> dict[str, int | list[int]]:
    """Ids of special tokens that a checkpoint names, by their keys in config.json."""
    if is_gguf(checkpoint.place):
        said = read_gguf(checkpoint.place).metadata
        found = {key: said.get(f"tokenizer.ggml.{name}_token_id") for key, name in IDS.items()}
    else:
        said = read_mapping(checkpoint.place / "config.json")
        found = {key: said.get(key) for key in IDS}
    return {
        key: value
        for key, value in found.items()
        if _is_count(value) or (isinstance(value, list) and all(map(_is_count, value)))
    }


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def settings(trained: JobConfig, extension: dict, own: dict | None = None) -> dict:
    """Settings with which a checkpoint runs with an extension: keys of config.json.

    `own` is the checkpoint's config.json, None for a GGUF file. rope_parameters is what
    transformers 5 reads, rope_theta and rope_scaling what earlier versions read. Raises ConfigError
    where no set of frequencies expresses it."""
    kept, share = rope_keys(trained, extension, own), trained.encoding.get("fraction", 1.0)
    part = {"partial_rotary_factor": share} if share != 1 else {}
    return {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": kept["rope_theta"],
            **part,
            **(kept["rope_scaling"] or {}),
        },
        **kept,
    }


def config_json(own: dict | None, trained: JobConfig, extension: dict) -> dict:
    """config.json of a checkpoint that runs with an extension: its `own` with other keys of RoPE,
    or a new one for a GGUF file.

    Raises ConfigError as `settings` does, and for a config.json that keeps RoPE for several kinds
    of layers apart."""
    found = settings(trained, extension, own)
    if own is None:
        checkpoint, file = trained.model.checkpoint, _source(trained)
        sizes = {
            "vocab_size": checkpoint["vocab_size"],
            "intermediate_size": trained.model.d_ff,
            "bos_token_id": checkpoint["bos"],
        }
        ids = _special_ids(file) if file else {}
        return {
            **hf_config(trained, extension),
            **sizes,
            **ids,
            "rope_parameters": found["rope_parameters"],
        }
    if any(isinstance(value, dict) for value in (own.get("rope_parameters") or {}).values()):
        raise ConfigError(
            "config.json has separate RoPE settings for several kinds of layers: edit it by hand."
        )
    said = found["rope_parameters"]
    # Beside RoPE's keys transformers gives these two priority, or reads them with rope_scaling:
    # Phi-3 keeps them there.
    beside = {
        key: said[key]
        for key in ("original_max_position_embeddings", "partial_rotary_factor")
        if key in said
    }
    return {**own, **found, **beside}
