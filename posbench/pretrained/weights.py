"""Weights of a checkpoint for posbench's model. They are read in place: a run keeps no copy of
them.

Their tensors differ from ours by the prefix `model.` and the names of the norms of q and k.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.gguf.tensors import LazyTensor
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint

if TYPE_CHECKING:
    from torch import nn

NORMS = {"norm.q_gain": "q_norm.weight", "norm.k_gain": "k_norm.weight"}

UNUSED = {"rope_freqs.weight"}  # part of the configuration
# {end of the name of a tensor: ends of those whose rows it holds one after the other}, in Phi-3
FUSED = {
    "qkv_proj.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
    "gate_up_proj.weight": ("gate_proj.weight", "up_proj.weight"),
}


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


def checked_tensors(
    checkpoint: Checkpoint, model: "nn.Module", tied: bool
) -> dict[str, LazyTensor]:
    """{our name: tensor} of a checkpoint, a tied matrix once. Nothing but headers is read, and a
    tied matrix that occurs twice.

    Raises ConfigError when the files do not contain exactly the tensors that the checkpoint's
    configuration describes, or when the two of a tied matrix differ."""
    expected = {name: list(value.shape) for name, value in model.state_dict().items()}
    stored = {}
    for name, tensor in checkpoint.tensors().items():
        if parts := _parts(our_name(name), tensor, expected):
            stored |= parts
        elif "rotary_emb" not in name and name not in UNUSED:  # old stored angles
            raise ConfigError(
                f"model.path={checkpoint.name} has {name}, which this model lacks: choose a"
                " checkpoint without it."
            )
    if tied:
        del expected["lm_head.weight"]
        head = stored.pop("lm_head.weight", None)  # the table itself, or a copy of it
        if head is not None:
            table = stored.setdefault("embed_tokens.weight", head)
            if (
                table is not head
                and table.shape == head.shape
                and not table.read().float().equal(head.read().float())
            ):
                raise ConfigError(
                    f"{checkpoint.name} has tie_word_embeddings=true and another lm_head.weight:"
                    " correct its config.json."
                )
    for name, shape in expected.items():
        found = stored.get(name)
        if found is None or found.shape != shape or not found.floating:
            what = "is missing" if found is None else f"is {found.shape} of {found.dtype}"
            raise ConfigError(
                f"{checkpoint.name}: {name} {what}, where its config describes {shape} of 16 or 32"
                " bits: download it again."
            )
    return stored


def _parts(name: str, tensor: LazyTensor, expected: dict[str, list[int]]) -> dict[str, LazyTensor]:
    """{our name: tensor}, or {our name: rows} of one that holds those of several; {} for a name
    that the model lacks or another size.
    """
    stem, end = name.rpartition(".")[0].rpartition(".")[0], ".".join(name.split(".")[-2:])
    names = [f"{stem}.{part}" for part in FUSED.get(end, ())]
    if not names or not all(one in expected for one in names):
        return {name: tensor} if name in expected else {}
    rows = [expected[one][0] for one in names]
    if tensor.shape != [sum(rows), expected[names[0]][1]]:
        return {}
    starts = [sum(rows[:index]) for index in range(len(rows))]
    return {
        one: replace(
            tensor,
            shape=[n, tensor.shape[1]],
            read=lambda start=start, end=start + n: tensor.read()[start:end].clone(),
        )
        for one, start, n in zip(names, starts, rows, strict=True)
    }


def unchanged(path: str, sha256: str) -> Checkpoint:
    """Checkpoint of a run's model.path, whose files must still hash to `sha256`. Raises RunError
    when they were moved or changed.
    """
    remedy = "put them back, or make a run of where they lie now by run.py model=hf model.path=PATH"
    try:
        checkpoint = find_checkpoint(path, download=False)
        found = checkpoint.digest(None, again=True)
    except ConfigError as error:
        raise RunError(
            f"The weights of this run are no longer in model.path={path}"
            f" ({str(error).rstrip('.')}): {remedy}."
        ) from error
    if found != sha256:
        raise RunError(
            f"The weights in model.path={path} changed (SHA-256 {sha256[:12]}... to"
            f" {found[:12]}...): {remedy}."
        )
    return checkpoint


def load_checkpoint(path: str, sha256: str, model: "nn.Module", tied: bool) -> None:
    """Read a checkpoint, in float32, into `model`, made on the meta device. Raises RunError as
    `unchanged` does.
    """
    stored = checked_tensors(unchanged(path, sha256), model, tied)
    model.load_state_dict(
        {name: tensor.read().float() for name, tensor in stored.items()}, strict=False, assign=True
    )
    if tied:
        model.lm_head.weight = model.embed_tokens.weight
