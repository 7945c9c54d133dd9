"""Check of a loaded checkpoint: one passage after increasing amounts of text, and logits compared
with transformers.

A reader that got RoPE wrong is seen at once: the passage is the worse, the more text stands before
it, or the logits differ."""

import sys

import numpy as np
import torch

from posbench.common.errors import ConfigError, RunError
from posbench.config.schema import JobConfig
from posbench.model.gpt import GPT
from posbench.model.inplace.reader import Reader
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.transformers_model import try_load

PASSAGE, COMPARED = 256, 1024  # tokens at most
SHARES = (
    0.0,
    0.125,
    0.25,
    0.5,
    1.0,
)  # of the text that fits before the passage within the training length
# nats per token more than without any text before it, which no text of the same document costs
RISE = 0.5
DIFFERENCE = 1e-3  # of the logits' size; float32 alone makes about 1e-6


def check_checkpoint(cfg: JobConfig, model: GPT | Reader, tokens: np.ndarray) -> None:
    """Print what was found on stderr. `tokens` are those of a text, of which the first train_len
    are read.

    Raises RunError when the passage gets worse with text before it, or when logits are not those of
    transformers."""
    name = cfg.model.path
    text_T = torch.from_numpy(
        np.asarray(tokens[: model.encoding.shape.train_len], dtype=np.int64)
    ).to(next(model.parameters()).device)
    _check_offsets(name, by_offset(model, text_T))
    difference = difference_from_transformers(
        find_checkpoint(name, download=False), model, text_T[:COMPARED]
    )
    if isinstance(difference, str):
        return _say(f"logits were not compared, since {difference}")
    if not difference < DIFFERENCE:
        said = (
            f"differ from those of transformers by {difference:.1e} of their size, where rounding"
            f" explains {DIFFERENCE:g}"
        )
        raise RunError(
            f"Logits of model.path={name} {said}: compare with a third reader before any number is"
            " believed."
        )
    _say(
        f"logits at {min(COMPARED, len(text_T)):,} tokens differ from those of transformers by"
        f" {difference:.1e} of their size"
    )


@torch.no_grad()
def by_offset(model: GPT | Reader, text_T: torch.Tensor) -> dict[int, float]:
    """{tokens before the passage: its loss in nats per token}. The passage ends where the text
    ends.
    """
    size = max(2, min(PASSAGE, len(text_T) // 2))
    offsets = sorted({round(share * (len(text_T) - size)) for share in SHARES})
    losses = {}
    for offset in offsets:
        logits_RV = model(text_T[-size - offset :][None], last=size)[0, :-1]
        losses[offset] = float(
            torch.nn.functional.cross_entropy(logits_RV.float(), text_T[-size + 1 :])
        )
    return losses


def _check_offsets(name: str, losses: dict[int, float]) -> None:
    words = ", ".join(f"{loss:.3f} after {offset:,}" for offset, loss in losses.items())
    worse = [offset for offset, loss in losses.items() if not loss <= losses[0] + RISE]
    if worse:
        costs = (
            f"{losses[0]:.3f} nats per token alone and {losses[worse[0]]:.3f} after {worse[0]:,}"
            " tokens of text"
        )
        raise RunError(
            f"One passage costs {costs}: model.path={name} is not read right, or was trained for"
            " fewer (train.length=N)."
        )
    _say(f"one passage costs {words} tokens of text, in nats per token")


@torch.no_grad()
def difference_from_transformers(
    checkpoint: Checkpoint, model: GPT | Reader, text_T: torch.Tensor
) -> float | str:
    """Norm of the difference from transformers' logits over their norm, in float32; or the reason
    why there is none.
    """
    other = try_load(checkpoint, torch.float32)
    if isinstance(other, str):
        return other
    expected_TV = other(text_T[None].cpu()).logits[0]
    found_TV = model(text_T[None])[0].float().cpu()
    if found_TV.shape != expected_TV.shape:
        raise ConfigError(
            f"transformers gives logits of {list(expected_TV.shape)} for"
            f" model.path={checkpoint.name}: download it again."
        )
    return float((found_TV - expected_TV).norm() / expected_TV.norm())


def _say(what: str) -> None:
    print(f"check: {what}", file=sys.stderr, flush=True)
