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
from posbench.pretrained.outline import is_built_by_transformers
from posbench.pretrained.weights import checked_tensors, find_unchanged, name_in_transformers
from posbench.runs import provenance
from posbench.runs.directory import Run

ROTATED = (".q_proj.", ".k_proj.", ".q_gain", ".k_gain")  # parts of names: channels in pairs


def take_checkpoint(
    run: Run, config: JobConfig, vocab_size: int, device: str, fingerprint: str
) -> None:
    """Make a finished run of a checkpoint, which stays where it is.

    The caller holds the lock of the run. Raises ConfigError when the files do not contain the
    tensors that their configuration describes, RunError when they changed since the run's id was
    computed.
    """
    began = time.perf_counter()
    path = config.model.path
    checkpoint, tensors = checkpoint_tensors(config, vocab_size)
    n_parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    dtypes = Counter(tensor.dtype for tensor in tensors.values())
    stored = ", ".join(f"{count} {dtype}" for dtype, count in dtypes.most_common())
    print(
        f"taking {run.id} from {path}: {n_parameters:,} parameters ({stored}), trained for"
        f" {config.train.train_len} tokens",
        file=sys.stderr,
        flush=True,
    )
    bos = config.model.checkpoint["bos"]
    reads_own_tokens = config.data["tokenizer"] == checkpoint.tokenizer()
    lacks_bos = bos is not None and not config.data["bos"] and reads_own_tokens
    if lacks_bos and checkpoint.begins_texts_with(bos):
        print(
            f"running text is read without the BOS, token {bos}, that the tokenizer of {path} puts"
            " first: data.bos=true adds it, which some families, such as Gemma, need",
            file=sys.stderr,
            flush=True,
        )
    digest = checkpoint.digest(config.cache_dir, reread=True)
    if digest != config.model.checkpoint["sha256"]:
        raise RunError(
            f"The weights in model.path={path} changed after {run.id} was named by them: run the"
            " same command again."
        )
    run.write_config(config.as_dict())
    run.write_provenance(
        provenance.collect_provenance(config.seed, device, fingerprint, n_parameters)
    )
    summary = {
        "loss": None,
        "validation_loss": None,
        "tokens_per_second": None,
        "peak_mib": None,
        "steps": 0,
        "tokens": 0,
        "seconds": round(time.perf_counter() - began, 3),
        "compiled": False,
        "n_params": n_parameters,
        "sha256": digest,
        "checkpoint": config.model.checkpoint,
        "stored": stored,
    }
    run.write_summary(summary)


def checkpoint_tensors(
    config: JobConfig, vocab_size: int
) -> tuple[Checkpoint, dict[str, LazyTensor]]:
    """(checkpoint of a run's configuration, {name: tensor}).

    Names are ours, or those of transformers where that builds the model. Raises ConfigError for
    damaged files, and as checked_tensors.
    """
    checkpoint = find_checkpoint(config.model.path)
    if is_built_by_transformers(config):
        return checkpoint, checkpoint.tensors()
    with torch.device("meta"):
        model = make_model(config, vocab_size)
    return checkpoint, checked_tensors(checkpoint, model, config.model.tied)


def read_tensors(run: Run, config: JobConfig) -> Iterable[tuple[str, Tensor]]:
    """(our name, tensor as stored) of each of a finished run's weights, a tied matrix once.

    Raises RunError for weights that are missing, or are not those of train.json.
    """
    sha256 = run.read_summary()["sha256"]
    # The run of a checkpoint has no weights of its own: they are where model.path has them.
    if not config.trains and not run.weights.exists():
        find_unchanged(config.model.path, sha256)
        _, stored = checkpoint_tensors(config, config.model.checkpoint["vocab_size"])
        return ((name, tensor.read()) for name, tensor in stored.items())
    check_weights(run.weights, sha256)
    return load_file(run.weights).items()


def write_theirs(run: Run, config: JobConfig, to: Path, their_config: dict) -> dict:
    """Write a run's weights by the names of transformers, and return the sizes for config.json.

    Interleaved pairs of channels (2c, 2c + 1) of q and k are moved to (c, c + D/2).
    """
    D = their_config["head_dim"]
    is_interleaved = config.encoding.get("layout") == "interleaved"
    # The channels 0, 2, 4, ..., then 1, 3, 5, ...
    order_D = torch.arange(D).unflatten(0, (-1, 2)).mT.flatten()
    tensors = {}
    for name, tensor in read_tensors(run, config):
        if is_interleaved and any(part in name for part in ROTATED):
            tensor = tensor.unflatten(0, (-1, D))[:, order_D].flatten(0, 1)
        # Of a tied matrix we keep the name of the head, transformers that of the embeddings.
        if their_config["tie_word_embeddings"] and name == "lm_head.weight":
            name = "embed_tokens.weight"
        tensors[name_in_transformers(name)] = tensor
    write_safetensors(to, tensors, {"format": "pt"})
    table_VC = tensors["model.embed_tokens.weight"]
    up_FC = tensors["model.layers.0.mlp.up_proj.weight"]
    return {
        "vocab_size": len(table_VC),
        "intermediate_size": len(up_FC),
        "torch_dtype": str(table_VC.dtype).removeprefix("torch."),
    }
