"""Command of scripts/export_hf.py: a run, with the extension to use, in Hugging Face format.

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
from posbench.config.schema import JobConfig, ModelConfig
from posbench.data import prepare
from posbench.data.chat import chat_of_gguf
from posbench.data.sources import MADE_OF_TEXT, TASK_TOKENIZER
from posbench.data.tokenizers import pretrained_file
from posbench.gguf.header import is_gguf, read_gguf
from posbench.model.build import make_encoding
from posbench.position.interfaces import Encoding
from posbench.position.trusted import trained_config
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.config_files import read_json_mapping
from posbench.pretrained.outline import is_built_by_transformers
from posbench.runs.directory import Run
from posbench.sweep.kept_steps import check_whole
from posbench.sweep.take_checkpoint import write_theirs
from posbench.tools.export.rope_keys import rope_keys

CLASS_NAMES = {"smollm3": "SmolLM3"}  # names that are no capitalised model_type
# {key of config.json: its name in a GGUF file}
SPECIAL_ID_KEYS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
GENERATION_FILE = "generation_config.json"  # which says where a generated text ends
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = (
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


def export(request: Request) -> int:
    """Write the training run=DIR as a checkpoint into the folder out=DIR."""
    raw = request.raw_configs[0]
    _check_request(request)
    run = Run(raw["run"])
    trained = trained_config(run)
    if is_built_by_transformers(trained):
        raise ConfigError(
            f"run={raw['run']} is built by transformers: from_pretrained reads model.path, or a"
            " fine-tuned run itself."
        )
    check_whole(run, trained, raw["step"])
    content = hf_config(trained, raw["extension"])
    with whole_folder(Path(raw["out"]).resolve()) as folder:
        # keys of the sizes that the weights have
        content |= write_theirs(run, trained, folder / "model.safetensors", content)
        content |= _bos_key(trained, content["vocab_size"])
        checkpoint = _source_checkpoint(trained)
        if checkpoint:
            content |= _special_ids(checkpoint)
            generation = checkpoint.folder_or_file / GENERATION_FILE
            if generation.is_file():
                shutil.copyfile(generation, folder / GENERATION_FILE)
        tokenizer_words = _copy_tokenizer(trained.data, raw["cache_dir"], folder)
        write_json(folder / "config.json", content)
    if trained.data["bos"]:  # which a tokenizer made of the text does not have
        tokenizer_words += f"\na text begins with the BOS, token {content['bos_token_id']}, as in"
        tokenizer_words += " training"
    scaling = content["rope_scaling"] or {}
    print(
        f"{raw['out']}: {content['architectures'][0]}, rope_type"
        f" {scaling.get('rope_type', 'default')}, up to"
        f" {content['max_position_embeddings']} tokens\n{tokenizer_words}"
    )
    return 0


def _check_request(request: Request) -> None:
    """Raise ConfigError for a request that is not one finished training, a new folder, no scale."""
    raw = request.raw_configs[0]
    if len(request.raw_configs) > 1 or not raw["run"] or not raw["out"]:
        raise ConfigError(
            "An export needs one training: give run=results/runs/ID and out=FOLDER, and at most one"
            " extension."
        )
    if not Run(raw["run"]).finished:
        raise ConfigError(
            f"run={raw['run']} has no finished training: give a directory of results/runs that"
            " has a train.json."
        )
    out = Path(raw["out"]).resolve()
    if os.path.exists(out) and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"out={out} exists already and is not empty: give a new folder, or remove it."
        )
    scale = method_name(raw["scale_attention"])
    if scale != "none":  # for which config.json has no key
        raise ConfigError(f"scale_attention={scale} cannot be exported: leave it out.")


def _bos_key(trained: JobConfig, vocab_size: int) -> dict[str, int | None]:
    """{"bos_token_id": id} of a training with a BOS token, else {}.

    The BOS token stands behind those of the text, and before those of a mixed task.
    """
    if not trained.data["bos"]:
        return {}
    task_tokens = (trained.data.get("mix") or {}).get("vocab_size", 0)
    behind_text = vocab_size - task_tokens - 1
    return {"bos_token_id": (trained.model.checkpoint or {}).get("bos", behind_text)}


def hf_config(trained: JobConfig, extension: dict) -> dict:
    """Content of config.json for a training's configuration and an extension.

    Sizes known from the weights are added later. Raises ConfigError for settings that the format
    cannot express.
    """
    model = trained.model
    encoding = make_encoding(trained)
    rope = rope_keys(trained, extension)
    kind = _model_type(model, encoding)
    content = {
        "architectures": [f"{CLASS_NAMES.get(kind, kind.title())}ForCausalLM"],
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
    }
    if encoding.unturned:
        # Against its name the key has 1 for layers with RoPE.
        content["no_rope_layers"] = [
            int(layer not in encoding.unturned) for layer in range(model.n_layer)
        ]
        content["pad_token_id"] = None  # SmolLM3's default is an id of its own, larger vocabulary
    content |= _window_keys(encoding.windows, kind)
    # The classes' defaults are ids of other vocabularies. Those of this one are added later.
    return {**content, "bos_token_id": None, "eos_token_id": None}


def _model_type(model: ModelConfig, encoding: Encoding) -> str:
    """model_type of the class of transformers that computes as the model does, such as "qwen3".

    Raises ConfigError where there is none.
    """
    if model.qk_norm not in ("none", "rms") or (model.qk_norm == "rms" and model.qkv_bias):
        raise ConfigError(
            f"model.qk_norm={model.qk_norm} with qkv_bias={model.qkv_bias} cannot be exported: the"
            " format has rms or biases."
        )
    if model.output_gate != "none":
        raise ConfigError(
            f"model.output_gate={model.output_gate} cannot be exported: the format has none."
        )
    windows = set(encoding.windows)  # of the layers; None: a layer without one
    unturned = sorted(encoding.unturned)
    if model.qk_norm == "rms":
        kind = "qwen3"
    elif model.qkv_bias:
        kind = "qwen2"
    elif windows == {None}:
        kind = "llama"
    else:
        kind = "mistral"
    # SmolLM3's class alone leaves layers unturned, and it has neither norms of q and k nor biases.
    if unturned and kind.startswith("qwen"):
        keys = f"model.qk_norm={model.qk_norm} and model.qkv_bias={model.qkv_bias}"
        raise ConfigError(
            f"encoding.unturned={unturned} cannot be exported with {keys}: the format has it with"
            " none and false alone."
        )
    if unturned:
        kind = "smollm3"
    # Mistral gives its window to every layer; the other classes have one that layers may lack.
    if len(windows - {None}) > 1 or (kind == "mistral" and len(windows) > 1):
        supported = (
            "one window, and one that some layers have for model.qk_norm=rms, model.qkv_bias=true"
            " or encoding.unturned"
        )
        raise ConfigError(
            f"encoding.window={encoding.windows} cannot be exported: the format supports"
            f" {supported}."
        )
    if kind == "llama" and model.d_model % model.n_head:
        raise ConfigError(
            f"model.d_model={model.d_model} is not a multiple of model.n_head={model.n_head}, as"
            " the format requires."
        )
    return kind


def _window_keys(windows: list[int | None], kind: str) -> dict:
    """Keys of config.json for the sliding window of each layer; {} if all layers see everything."""
    # _model_type has refused windows of several sizes.
    sizes = [size for size in windows if size is not None]
    if not sizes:
        return {}
    if kind == "mistral":
        return {"sliding_window": sizes[0]}
    types = ["full_attention" if size is None else "sliding_attention" for size in windows]
    return {
        "use_sliding_window": True,
        "sliding_window": sizes[0],
        # the only key that early versions of transformers 4 read
        "max_window_layers": types.index("sliding_attention"),
        "layer_types": types,
    }


def _copy_tokenizer(data: dict, cache_dir: str, folder: Path) -> str:
    """Copy the tokenizer if it has a file, with special tokens and chat template.

    Returns a sentence about it for the user.
    """
    if data["tokenizer"] == "bytes":
        return "no tokenizer: a token's id is the value of its byte"
    if data["tokenizer"] == TASK_TOKENIZER:
        return f"no tokenizer: data={data['name']} is a task, whose tokens stand for no text"
    try:
        prepared = prepare(data, cache_dir).folder
    except (ConfigError, RunError) as error:
        return f"no tokenizer, since the text is not there: {error}"
    shutil.copyfile(prepared / "tokenizer.json", folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    # A tokenizer made of the text has no chat template; another has it in files beside it.
    file = None if data["tokenizer"] in MADE_OF_TEXT else pretrained_file(data["tokenizer"])
    if file and is_gguf(file):
        for key, value in chat_of_gguf(file).items():
            if isinstance(value, str):
                # The other keys have the names that tokenizer_config.json gives them.
                settings["chat_template" if key == "template" else key] = value
    elif file:
        for name in TOKENIZER_FILES:
            if (file.parent / name).is_file():
                shutil.copyfile(file.parent / name, folder / name)
    if not (folder / TOKENIZER_CONFIG).exists():
        write_json(folder / TOKENIZER_CONFIG, settings)
    return "tokenizer.json lies beside it: AutoTokenizer reads it"


def _source_checkpoint(trained: JobConfig) -> Checkpoint | None:
    """Checkpoint that a run, or the parent of a fine-tuned one, was made of.

    None for a training from the start, or if it is gone.
    """
    if not trained.model.checkpoint:
        return None
    try:
        return find_checkpoint(trained.model.path, download=False)
    except ConfigError:
        return None


def _special_ids(checkpoint: Checkpoint) -> dict[str, int | list[int]]:
    """Ids of special tokens that a checkpoint names, by their keys in config.json."""
    if is_gguf(checkpoint.folder_or_file):
        metadata = read_gguf(checkpoint.folder_or_file).metadata
        ids = {
            key: metadata.get(f"tokenizer.ggml.{name}_token_id")
            for key, name in SPECIAL_ID_KEYS.items()
        }
    else:
        content = read_json_mapping(checkpoint.folder_or_file / "config.json")
        ids = {key: content.get(key) for key in SPECIAL_ID_KEYS}
    return {key: value for key, value in ids.items() if _is_id(value)}


def _is_id(value: object) -> bool:
    """True for a token's id, and for a list of them."""
    if isinstance(value, list):
        return all(_is_count(entry) for entry in value)
    return _is_count(value)


def _is_count(value: object) -> bool:
    """True for a whole number from 0 on, which True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def rope_settings(trained: JobConfig, extension: dict, own_config: dict | None = None) -> dict:
    """Settings with which a checkpoint runs with an extension: keys of config.json.

    `own_config` is the checkpoint's config.json, None for a GGUF file. rope_parameters is what
    transformers 5 reads, rope_theta and rope_scaling what earlier versions read. Raises ConfigError
    where no set of frequencies expresses it."""
    keys = rope_keys(trained, extension, own_config)
    parameters = {"rope_type": "default", "rope_theta": keys["rope_theta"]}
    rotated_fraction = trained.encoding.get("fraction", 1.0)  # of each head
    if rotated_fraction != 1:
        parameters["partial_rotary_factor"] = rotated_fraction
    parameters |= keys["rope_scaling"] or {}  # with another rope_type
    return {"rope_parameters": parameters, **keys}


def config_json(own_config: dict | None, trained: JobConfig, extension: dict) -> dict:
    """config.json of a checkpoint that runs with an extension.

    It is the checkpoint's `own_config` with other keys of RoPE, or a new one for a GGUF file.
    Raises ConfigError as `rope_settings` does, and for a config.json that keeps RoPE for several
    kinds of layers apart."""
    rope = rope_settings(trained, extension, own_config)
    parameters = rope["rope_parameters"]
    if own_config is None:
        checkpoint = trained.model.checkpoint
        source = _source_checkpoint(trained)
        return {
            **hf_config(trained, extension),
            "vocab_size": checkpoint["vocab_size"],
            "intermediate_size": trained.model.d_ff,
            "bos_token_id": checkpoint["bos"],
            **(_special_ids(source) if source else {}),
            "rope_parameters": parameters,
        }
    if any(isinstance(value, dict) for value in (own_config.get("rope_parameters") or {}).values()):
        raise ConfigError(
            "config.json has separate RoPE settings for several kinds of layers: edit it by hand."
        )
    content = {**own_config, **rope}
    # Phi-3's files have these two beside rope_scaling, not in it, and there transformers reads them
    # first: they must not keep their old values.
    for key in ("original_max_position_embeddings", "partial_rotary_factor"):
        if key in parameters:
            content[key] = parameters[key]
    return content
