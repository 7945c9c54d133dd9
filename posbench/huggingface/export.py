"""Command of scripts/export_hf.py: write a training and the extension to use with it as a checkpoint in Hugging Face format.

The model is LlamaForCausalLM, Qwen3ForCausalLM if q and k are normalised, or Qwen2ForCausalLM if they have biases. config.json describes
RoPE in the keys that transformers 4 and 5 both read (rope_theta, rope_scaling). Their longrope has one divisor per pair, so it can hold
any set of frequencies, and it is used for those without a type of their own. They multiply cos and sin with a factor, which is the
square root of our temperature.
"""

import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import write_json
from posbench.common.folders import whole_folder
from posbench.config.compose import Request
from posbench.config.identity import as_typed, method_name
from posbench.config.schema import typed
from posbench.data import prepare
from posbench.data.sources import TASK
from posbench.encodings.rope import Rope
from posbench.extensions.dynamic_ntk import DynamicNtk
from posbench.extensions.ntk import Ntk
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.huggingface.weights import write_theirs
from posbench.model.build import make_encoding
from posbench.position.fixed_frequencies import frequencies
from posbench.position.geometry import Span
from posbench.position.instantiate import make, trusted_config
from posbench.position.interfaces import Extension
from posbench.position.legality import check, file_of, name_of
from posbench.runs.directory import Run
from posbench.scale_attention.none import NoScale


def export(request: Request) -> int:
    """Write the training run=DIR as a checkpoint into the folder out=DIR."""
    cfg = request.cfgs[0]
    if len(request.cfgs) > 1 or not cfg["run"] or not cfg["out"]:
        raise ConfigError("An export is of one training: give run=results/runs/ID and out=FOLDER, and at most one extension.")
    run, out = Run(cfg["run"]), Path(cfg["out"]).resolve()
    if not run.finished:
        raise ConfigError(f"run={cfg['run']} holds no finished training: give a directory of results/runs that has a train.json.")
    if os.path.exists(out) and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out} is there already and not empty: give a new folder, or remove it.")
    if method_name(cfg["scale_attention"]) != "none":
        raise ConfigError(f"scale_attention={method_name(cfg['scale_attention'])} has no place in the format: leave it out.")
    trained = trusted_config(run)
    config = describe(trained, cfg["extension"])
    with whole_folder(out) as folder:
        config |= write_theirs(run, trained, folder / "model.safetensors", config)
        if trained["data"]["bos"]:
            behind = (trained["data"].get("mix") or {}).get("vocab_size", 0)  # tokens of the mixed task
            config["bos_token_id"] = (trained["model"].get("checkpoint") or {}).get("bos", config["vocab_size"] - behind - 1)
        tokenizer = _tokenizer(trained["data"], cfg["cache_dir"], folder)
        write_json(folder / "config.json", config)
    kind = (config["rope_scaling"] or {}).get("rope_type", "default")
    print(f"{cfg['out']}: {config['architectures'][0]}, rope_type {kind}, up to {config['max_position_embeddings']} tokens\n{tokenizer}")
    return 0


def describe(trained: dict, extension: dict) -> dict:
    """Content of config.json for a training's configuration and an extension. Sizes known from the weights are added later.

    Raises ConfigError for settings that the format cannot express.
    """
    model, train = typed("model", trained["model"]), typed("train", trained["train"])
    encoding, method = make_encoding(trained), make(extension)
    name = file_of(encoding)
    if name not in ("rope", "p_rope") or encoding.rotary_dim != encoding.shape.head_dim or encoding.resonance or encoding.unturned:
        raise ConfigError(
            f"{as_typed('encoding', trained['encoding'])} has no place in the format: it knows encoding=rope, whole, and p_rope."
        )
    if method_name(train.scale_attention) != "none":
        raise ConfigError(f"train.scale_attention={method_name(train.scale_attention)} has no place in the format: it knows none.")
    if model.qk_norm not in ("none", "rms") or (model.qk_norm == "rms" and model.qkv_bias):
        raise ConfigError(
            f"model.qk_norm={model.qk_norm} with model.qkv_bias={model.qkv_bias} has no place in the format: it knows rms or biases."
        )
    if model.output_gate != "none":
        raise ConfigError(f"model.output_gate={model.output_gate} has no place in the format: it knows none.")
    windows = set(encoding.windows)
    kind = "qwen3" if model.qk_norm == "rms" else "qwen2" if model.qkv_bias else "llama" if windows == {None} else "mistral"
    if len(windows - {None}) > 1 or (kind == "mistral" and len(windows) > 1):
        raise ConfigError(
            f"encoding.window={encoding.windows} has no place in the format: it knows one window, and one that some layers have for "
            "model.qk_norm=rms or model.qkv_bias=true."
        )
    check(encoding, method, NoScale(encoding.shape), [4 * train.train_len], allow_untested=True)
    theta, scaling, longest = _rope(encoding, method, name_of(method))
    if kind == "llama" and model.d_model % model.n_head:
        raise ConfigError(f"model.d_model={model.d_model} is no multiple of model.n_head={model.n_head}, and the format wants one.")
    return {
        "architectures": [f"{kind.title()}ForCausalLM"],
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
        "max_position_embeddings": longest,
        "rope_theta": theta,
        "rope_scaling": scaling,
        **_window(encoding.windows, kind),
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _window(windows: list[int | None], kind: str) -> dict:
    """Keys for the sliding window of some or all layers."""
    size = next((size for size in windows if size is not None), None)
    if size is None or kind == "mistral":
        return {} if size is None else {"sliding_window": size}
    types = ["full_attention" if size is None else "sliding_attention" for size in windows]
    first = types.index("sliding_attention")  # the only key that early versions of transformers 4 read
    return {"use_sliding_window": True, "sliding_window": size, "max_window_layers": first, "layer_types": types}


def _rope(encoding: Rope, extension: Extension, name: str) -> tuple[float, dict | None, int]:
    """(rope_theta, rope_scaling, max_position_embeddings) of an encoding with an extension."""
    scaled = encoding.scaling is not None
    if scaled and name == "none" and name_of(encoding) == "rope":
        # The trained scaling is an extension of the earlier model.
        source = Rope(replace(encoding.shape, train_len=encoding.scaling_len), encoding.base, encoding.layout)
        theta, scaling, _ = _rope(source, encoding.scaling, name_of(encoding.scaling))
        if scaling and "attention_factor" in scaling:
            scaling["attention_factor"] = encoding.amplitude
        # Of dynamic they compute the factor from the longest length, which a fine-tuning left where it was.
        dynamic = scaling and scaling["rope_type"] == "dynamic"
        return theta, scaling, encoding.scaling_len if dynamic else encoding.shape.train_len
    trained, L, width = encoding.spectrum(), encoding.shape.train_len, encoding.shape.head_dim
    if trained is None:
        raise ConfigError("encoding=p_rope that turns no pair has no place in the format: train it with a larger encoding.p.")
    if not encoding.spectrum_at(1).freq_F.equal(trained.freq_F):
        raise ConfigError(
            f"encoding.scaling={name_of(encoding.scaling)} has other frequencies for short texts, beside which extension={name} has no "
            "place in the format: choose extension=none."
        )
    turned = 2 * len(trained.freq_F)
    whole, longest = turned == width, max(L, extension.target_len(L))
    ntk = isinstance(extension, DynamicNtk) or (isinstance(extension, Ntk) and extension.multiplier == 1)
    if ntk and whole and not scaled and extension.fixed_target is None:
        return encoding.base, {"rope_type": "dynamic", "factor": float(getattr(extension, "factor", 1.0))}, L
    near, far, beyond = (_seen(encoding, extension, name, length) for length in (L, 4 * L, 16 * L))
    if not far[0].equal(beyond[0]) or not near[2] == far[2] == beyond[2]:
        raise ConfigError(
            f"extension={name} has another factor at each length, and the format has one: "
            "add extension.mode=fixed extension.target_len=TOKENS."
        )
    (far_F, base, temperature), near_F = far, near[0]
    part = {} if whole else {"rope_type": "proportional", "partial_rotary_factor": _share(turned, width)}
    pair_F = torch.arange(len(far_F), dtype=torch.float64)
    slower_F = base ** (-2 * pair_F / trained.rotary_dim) / far_F
    if near_F.equal(far_F) and temperature == 1 and torch.allclose(slower_F, slower_F[:1], rtol=1e-9):
        theta, slower = base, float(slower_F[0])
        if abs(slower - 1) < 1e-9:
            return theta, part or None, longest
        return theta, {"rope_type": "linear", **part, "factor": slower}, longest
    if not whole:
        raise ConfigError(f"extension={name} with encoding=p_rope has no place in the format: choose none, pi, ntk or abf.")
    # All remaining cases need a factor on cos and sin, or a divisor per pair.
    shared = {"factor": longest / L, "original_max_position_embeddings": L}
    sharper = {"attention_factor": math.sqrt(temperature)}
    if not scaled and isinstance(extension, NtkByParts) and extension.ramp == "index" and 2 * math.pi * extension.alpha <= L:
        bounds = {"beta_slow": extension.alpha, "beta_fast": extension.kept_from(trained.freq_F, L), "truncate": extension.truncate}
        return encoding.base, {"rope_type": "yarn", **shared, **sharper, **bounds}, longest
    if not scaled and isinstance(extension, NtkByParts) and extension.ramp == "turns" and temperature == 1:
        bounds = {"low_freq_factor": extension.alpha, "high_freq_factor": extension.kept_from(trained.freq_F, L)}
        return encoding.base, {"rope_type": "llama3", **shared, **bounds}, longest
    plain_F = encoding.base ** (-2 * pair_F / width)
    divisors = {"long_factor": (plain_F / far_F).tolist(), "short_factor": (plain_F / near_F).tolist()}
    return encoding.base, {"rope_type": "longrope", **shared, **sharper, **divisors}, longest


def _seen(encoding: Rope, extension: Extension, name: str, length: int) -> tuple[Tensor, float, float]:
    """(radians per token of each pair, their base, temperature) at one length."""
    span = Span(encoding.shape.train_len, length, extension.target_len(length))
    spectrum = frequencies(extension, encoding.spectrum_at(length), span)
    if spectrum is None:
        raise ConfigError(
            f"extension={name} is no set of frequencies, which is all that the format can say: choose none, pi, ntk, "
            "dynamic_ntk, yarn, llama3, longrope or another that changes frequencies or divides positions."
        )
    return spectrum.freq_F, spectrum.base, extension.temperature(span) * encoding.amplitude**2


def _share(turned: int, width: int) -> float:
    """Share of a head from which `proportional`, which rounds down, takes exactly `turned` channels."""
    share = turned / width
    return share if int(share * width // 2) == turned // 2 else math.nextafter(share, 1)


def _tokenizer(data: dict, cache_dir: str, folder: Path) -> str:
    """Copy the tokenizer if it has a file. Returns a sentence about it for the user."""
    if data["tokenizer"] == "bytes":
        return "no tokenizer: a token's id is the value of its byte"
    if data["tokenizer"] == TASK:
        return f"no tokenizer: data={data['name']} is a task, whose tokens stand for no text"
    try:
        prepared = prepare(data, cache_dir).folder
    except (ConfigError, RunError) as error:
        return f"no tokenizer, since the text is not there: {error}"
    shutil.copyfile(prepared / "tokenizer.json", folder / "tokenizer.json")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return "tokenizer.json lies beside it: AutoTokenizer reads it"
