"""Weights of a checkpoint in Hugging Face format, read and written. Heavy libraries are imported inside the functions.

Their tensors differ from ours by the prefix `model.`, the names of the norms of q and k, and, for encoding.layout=interleaved, the order
of a head's channels.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import sha256_json
from posbench.huggingface.config_files import read_mapping
from posbench.runs.directory import Run

NORMS = {"norm.q_gain": "q_norm.weight", "norm.k_gain": "k_norm.weight"}


def weight_files(path: str) -> list[Path]:
    """Safetensors files of a checkpoint, sorted. Raises ConfigError when there is none, or when one of the index is missing."""
    folder = Path(path)
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        found = read_mapping(index).get("weight_map")
        if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
            raise ConfigError(f"{index} has no weight_map from tensors to names of files: download it again.")
        names = set(found.values())
    for name in sorted(names):
        if Path(name).name != name:
            raise ConfigError(f"{index} names {name}, which lies outside its folder: download the checkpoint again.")
        if not os.path.isfile(folder / name):
            raise ConfigError(f"model.path={path} holds no {name}: weights are read from safetensors files, download or convert them.")
    return [folder / name for name in sorted(names)]


def checkpoint_digest(path: str, cache_dir: str | Path | None, again: bool = False) -> str:
    """Hex SHA-256 of a checkpoint's weights. With `again` the files are read now, and cached digests are ignored."""
    from posbench.data.sources import file_digests

    digests = file_digests(weight_files(path), Path(cache_dir) / "digests.json" if cache_dir else None, again)
    return digests[0] if len(digests) == 1 else sha256_json(digests)


def our_name(name: str) -> str:
    """Our name of one of their tensors."""
    name = name.removeprefix("model.")
    for ours, theirs in NORMS.items():
        name = name.replace(theirs, ours)
    return name


def their_name(name: str) -> str:
    """Their name of one of our tensors."""
    for ours, theirs in NORMS.items():
        name = name.replace(ours, theirs)
    return name if name.startswith("lm_head.") else f"model.{name}"


def take(run: Run, cfg: dict, vocab_size: int, device: str, fingerprint: str) -> None:
    """Write a checkpoint as a finished run. Weights keep their precision. The caller holds the lock of the run.

    Raises ConfigError when the files do not contain the tensors that config.json describes, RunError when they changed since the run's
    id was computed.
    """
    import torch

    from posbench.model.build import make_model
    from posbench.model.safetensors_file import write_safetensors
    from posbench.runs import provenance

    began, path = time.perf_counter(), cfg["model"]["path"]
    with torch.device("meta"):
        model = make_model(cfg, vocab_size)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    expected = {name: list(value.shape) for name, value in model.state_dict().items()}
    if cfg["model"]["tied"]:
        del expected["lm_head.weight"]
    train_len = model.encoding.shape.train_len
    print(f"taking {run.id} from {path}: {n_parameters:,} parameters, trained for {train_len} tokens", file=sys.stderr, flush=True)
    # Tensors are memory-mapped and written directly, so that no copy of all weights is in memory.
    tensors = _tensors(path, expected)
    run.write_config(cfg)
    run.write_provenance(provenance.collect(cfg["seed"], device, fingerprint, n_parameters))
    sha256 = write_safetensors(run.weights, tensors, {"format": "pt"})
    if checkpoint_digest(path, cfg.get("cache_dir"), again=True) != cfg["model"]["checkpoint"]["sha256"]:
        run.weights.unlink()
        raise RunError(f"The weights in model.path={path} changed after {run.id} was named by them: run the same command again.")
    run.write_summary(
        {
            **dict.fromkeys(("loss", "validation_loss", "tokens_per_second", "peak_mib")),
            **{"steps": 0, "tokens": 0, "seconds": round(time.perf_counter() - began, 3), "compiled": False, "n_params": n_parameters},
            "sha256": sha256,
            "checkpoint": cfg["model"]["checkpoint"],
        }
    )


def _tensors(path: str, expected: dict[str, list[int]]) -> dict:
    from safetensors import SafetensorError, safe_open

    tensors = {}
    for file in weight_files(path):
        try:
            with safe_open(file, framework="pt") as content:
                for name in content.keys():  # noqa: SIM118 (no dict)
                    if our_name(name) in expected:
                        tensors[our_name(name)] = content.get_tensor(name)
                    elif name != "lm_head.weight" and "rotary_emb" not in name:  # a tied copy, or old stored angles
                        raise ConfigError(f"{file} holds {name}, which this model does not have: choose a checkpoint without it.")
        except SafetensorError as error:
            raise ConfigError(f"{file} cannot be read ({error}): download it again.") from error
    for name, shape in expected.items():
        found = tensors.get(name)
        if found is None or list(found.shape) != shape or not found.is_floating_point() or found.element_size() < 2:
            what = "is missing" if found is None else f"is {list(found.shape)} of {found.dtype}"
            raise ConfigError(f"model.path={path}: {name} {what}, where config.json describes {shape} of 16 or 32 bits: download it again.")
    return tensors


def write_theirs(weights: Path, to: Path, config: dict, interleaved: bool) -> dict:
    """Write a run's weights under their names, with interleaved pairs (2c, 2c + 1) of q and k moved to (c, c + D/2).

    Returns the sizes for config.json.
    """
    import torch
    from safetensors import safe_open

    from posbench.model.safetensors_file import write_safetensors

    D = config["head_dim"]
    order_D = torch.arange(D).unflatten(0, (-1, 2)).mT.flatten()
    tensors = {}
    if not weights.is_file():
        raise RunError(f"{weights} is missing: give another run=, or train this one to its end.")
    with safe_open(weights, framework="pt") as content:
        for name in content.keys():  # noqa: SIM118 (no dict)
            tensor = content.get_tensor(name)
            if interleaved and any(part in name for part in (".q_proj.", ".k_proj.", ".q_gain", ".k_gain")):
                tensor = tensor.unflatten(0, (-1, D))[:, order_D].flatten(0, 1)
            if config["tie_word_embeddings"] and name == "lm_head.weight":
                name = "embed_tokens.weight"
            tensors[their_name(name)] = tensor
    write_safetensors(to, tensors, {"format": "pt"})
    table_VC, up_FC = tensors["model.embed_tokens.weight"], tensors["model.layers.0.mlp.up_proj.weight"]
    return {"vocab_size": len(table_VC), "intermediate_size": len(up_FC), "torch_dtype": str(table_VC.dtype).removeprefix("torch.")}
