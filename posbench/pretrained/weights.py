"""Weights of a checkpoint for posbench's model. They are read in place: a run keeps no copy of
them.

Their tensors differ from ours by the prefix `model.` and the names of the norms of q and k.
"""

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.gguf.tensors import LazyTensor
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint

if TYPE_CHECKING:
    from torch import Tensor, nn

NORM_NAMES = {"norm.q_gain": "q_norm.weight", "norm.k_gain": "k_norm.weight"}
UNUSED_TENSORS = {"rope_freqs.weight"}  # part of the configuration
# {end of the name of a tensor: ends of those whose rows it holds one after the other}, in Phi-3
FUSED_TENSORS = {
    "qkv_proj.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
    "gate_up_proj.weight": ("gate_proj.weight", "up_proj.weight"),
}


def name_in_posbench(name: str) -> str:
    """Our name of one of their tensors.

    >>> name_in_posbench("model.layers.0.self_attn.q_norm.weight")
    'layers.0.self_attn.norm.q_gain'
    """
    name = name.removeprefix("model.")
    for ours, theirs in NORM_NAMES.items():
        name = name.replace(theirs, ours)
    return name


def name_in_transformers(name: str) -> str:
    """Their name of one of our tensors."""
    for ours, theirs in NORM_NAMES.items():
        name = name.replace(ours, theirs)
    return name if name.startswith("lm_head.") else f"model.{name}"


def checked_tensors(
    checkpoint: Checkpoint, model: "nn.Module", tied: bool
) -> dict[str, LazyTensor]:
    """{our name: tensor} of a checkpoint, a tied matrix once.

    Nothing but headers is read, and a tied matrix that occurs twice. Raises ConfigError when the
    files do not contain exactly the tensors that the checkpoint's configuration describes, or
    when the two of a tied matrix differ."""
    expected = {name: list(value.shape) for name, value in model.state_dict().items()}
    stored = _stored_tensors(checkpoint, expected)
    if tied:
        del expected["lm_head.weight"]
        _join_tied(checkpoint, stored)
    for name, shape in expected.items():
        tensor = stored.get(name)
        if tensor is None:
            fault = "is missing"
        elif tensor.shape != shape or not tensor.floating:
            fault = f"is {tensor.shape} of {tensor.dtype}"
        else:
            continue
        raise ConfigError(
            f"{checkpoint.name}: {name} {fault}, where its config describes {shape} of 16 or 32"
            " bits: download it again."
        )
    return stored


def _stored_tensors(
    checkpoint: Checkpoint, expected: dict[str, list[int]]
) -> dict[str, LazyTensor]:
    """{our name: tensor} of all that lies in the files. `expected` is {our name: shape}."""
    stored = {}
    for name, tensor in checkpoint.tensors().items():
        ours = _split_fused(name_in_posbench(name), tensor, expected)
        stored |= ours
        is_unused = "rotary_emb" in name or name in UNUSED_TENSORS  # old files store their angles
        if not ours and not is_unused:
            raise ConfigError(
                f"model.path={checkpoint.name} has {name}, which this model lacks: choose a"
                " checkpoint without it."
            )
    return stored


def _join_tied(checkpoint: Checkpoint, stored: dict[str, LazyTensor]) -> None:
    """Leave one tensor of a tied matrix in `stored`: the table's. A checkpoint stores it as the
    table, as the head or as both.

    Raises ConfigError where both are there and differ."""
    head = stored.pop("lm_head.weight", None)
    if head is None:
        return
    table = stored.setdefault("embed_tokens.weight", head)
    # The caller checks the shape of the table.
    if table is head or table.shape != head.shape:
        return
    if not table.read().float().equal(head.read().float()):
        raise ConfigError(
            f"{checkpoint.name} has tie_word_embeddings=true and another lm_head.weight:"
            " correct its config.json."
        )


def _split_fused(
    name: str, tensor: LazyTensor, expected: dict[str, list[int]]
) -> dict[str, LazyTensor]:
    """{our name: tensor}, or {our name: rows} of one that holds those of several.

    A tensor qkv_proj holds the rows of q_proj, then of k_proj and v_proj. Empty for a name that the
    model lacks, and for a joint tensor of another size."""
    stem, _, end = name.rpartition(".")
    stem, _, module = stem.rpartition(".")
    names = [f"{stem}.{part}" for part in FUSED_TENSORS.get(f"{module}.{end}", ())]
    if not names or not all(part in expected for part in names):
        return {name: tensor} if name in expected else {}
    width = expected[names[0]][1]
    rows = [expected[part][0] for part in names]
    if tensor.shape != [sum(rows), width]:
        return {}
    ours = {}
    end_row = 0
    for part, n_rows in zip(names, rows, strict=True):
        read = functools.partial(_read_rows, tensor, end_row, end_row + n_rows)
        ours[part] = replace(tensor, shape=[n_rows, width], read=read)
        end_row += n_rows
    return ours


def _read_rows(tensor: LazyTensor, start: int, end: int) -> "Tensor":
    """Rows start to end - 1 of a tensor, without the memory of the others."""
    return tensor.read()[start:end].clone()


def find_unchanged(path: str, sha256: str) -> Checkpoint:
    """Checkpoint of a run's model.path, whose files must still hash to `sha256`.

    Raises RunError when they were moved or changed."""
    remedy = "put them back, or make a run of where they lie now by run.py model=hf model.path=PATH"
    try:
        checkpoint = find_checkpoint(path, download=False)
        digest = checkpoint.digest(cache_dir=None, reread=True)
    except ConfigError as error:
        raise RunError(
            f"The weights of this run are no longer in model.path={path}"
            f" ({str(error).rstrip('.')}): {remedy}."
        ) from error
    if digest != sha256:
        raise RunError(
            f"The weights in model.path={path} changed (SHA-256 {sha256[:12]}... to"
            f" {digest[:12]}...): {remedy}."
        )
    return checkpoint


def load_checkpoint(path: str, sha256: str, model: "nn.Module", tied: bool) -> None:
    """Read a checkpoint, in float32, into `model`, made on the meta device.

    Raises RunError as `find_unchanged` does."""
    stored = checked_tensors(find_unchanged(path, sha256), model, tied)
    weights = {name: tensor.read().float() for name, tensor in stored.items()}
    # Names were checked above; the head of a tied model is no tensor of its own.
    model.load_state_dict(weights, strict=False, assign=True)
    if tied:
        model.lm_head.weight = model.embed_tokens.weight
