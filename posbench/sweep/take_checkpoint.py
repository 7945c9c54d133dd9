"""A finished run made of a checkpoint, and a run's weights written as one.

For the names of tensors see pretrained/weights.py; with encoding.layout=interleaved the channels of
a head are in another order."""

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from posbench.common.errors import RunError
from posbench.config.schema import JobConfig
from posbench.gguf.tensors import LazyTensor
from posbench.model.build import make_model
from posbench.model.weights import check_weights, write_safetensors
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.outline import outlined
from posbench.pretrained.weights import checked_tensors, their_name, unchanged
from posbench.runs import provenance
from posbench.runs.directory import Run


def take_checkpoint(
    run: Run, cfg: JobConfig, vocab_size: int, device: str, fingerprint: str
) -> None:
    """Make a finished run of a checkpoint, which stays where it is. The caller holds the lock of
    the run.

    Raises ConfigError when the files do not contain the tensors that their configuration describes,
    RunError when they changed since the run's id was computed."""
    began, path = time.perf_counter(), cfg.model.path
    checkpoint, tensors = checkpoint_tensors(cfg, vocab_size)
    n_parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    kinds = Counter(tensor.dtype for tensor in tensors.values())
    stored = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    said = (
        f"taking {run.id} from {path}: {n_parameters:,} parameters ({stored}), trained for"
        f" {cfg.train.train_len} tokens"
    )
    print(said, file=sys.stderr, flush=True)
    digest = checkpoint.digest(cfg.cache_dir, again=True)
    if digest != cfg.model.checkpoint["sha256"]:
        raise RunError(
            f"The weights in model.path={path} changed after {run.id} was named by them: run the"
            " same command again."
        )
    run.write_config(cfg.as_dict())
    run.write_provenance(provenance.collect_provenance(cfg.seed, device, fingerprint, n_parameters))
    none = dict.fromkeys(("loss", "validation_loss", "tokens_per_second", "peak_mib"))
    spent = {
        "steps": 0,
        "tokens": 0,
        "seconds": round(time.perf_counter() - began, 3),
        "compiled": False,
        "n_params": n_parameters,
    }
    run.write_summary(
        {**none, **spent, "sha256": digest, "checkpoint": cfg.model.checkpoint, "stored": stored}
    )


def checkpoint_tensors(cfg: JobConfig, vocab_size: int) -> tuple[Checkpoint, dict[str, LazyTensor]]:
    """(checkpoint of a run's configuration, its tensors: by our names, or those of transformers
    where that builds it).

    Raises ConfigError for damaged files, and as checked_tensors.
    """
    checkpoint = find_checkpoint(cfg.model.path)
    if outlined(cfg):
        return checkpoint, checkpoint.tensors()
    with torch.device("meta"):
        model = make_model(cfg, vocab_size)
    return checkpoint, checked_tensors(checkpoint, model, cfg.model.tied)


def read_tensors(run: Run, cfg: JobConfig) -> Iterable[tuple[str, Tensor]]:
    """(our name, tensor) of each of a finished run's weights, a tied matrix once, as they are
    stored.

    Raises RunError for weights that are missing, or are not those of train.json.
    """
    sha256 = run.read_summary()["sha256"]
    if not cfg.trains and not run.weights.exists():
        unchanged(cfg.model.path, sha256)
        _, stored = checkpoint_tensors(cfg, cfg.model.checkpoint["vocab_size"])
        return ((name, tensor.read()) for name, tensor in stored.items())
    check_weights(run.weights, sha256)
    return load_file(run.weights).items()


def write_theirs(run: Run, cfg: JobConfig, to: Path, config: dict) -> dict:
    """Write a run's weights under their names, with interleaved pairs (2c, 2c + 1) of q and k moved
    to (c, c + D/2).

    Returns the sizes for config.json.
    """
    D, interleaved = config["head_dim"], cfg.encoding.get("layout") == "interleaved"
    order_D = torch.arange(D).unflatten(0, (-1, 2)).mT.flatten()
    tensors = {}
    for name, tensor in read_tensors(run, cfg):
        if interleaved and any(
            part in name for part in (".q_proj.", ".k_proj.", ".q_gain", ".k_gain")
        ):
            tensor = tensor.unflatten(0, (-1, D))[:, order_D].flatten(0, 1)
        if config["tie_word_embeddings"] and name == "lm_head.weight":
            name = "embed_tokens.weight"
        tensors[their_name(name)] = tensor
    write_safetensors(to, tensors, {"format": "pt"})
    table_VC, up_FC = (
        tensors["model.embed_tokens.weight"],
        tensors["model.layers.0.mlp.up_proj.weight"],
    )
    return {
        "vocab_size": len(table_VC),
        "intermediate_size": len(up_FC),
        "torch_dtype": str(table_VC.dtype).removeprefix("torch."),
    }
