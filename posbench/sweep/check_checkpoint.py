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
from posbench.pretrained.transformers_model import load_or_reason

PASSAGE = 256  # tokens at most
COMPARED = 1024  # tokens at most
# of the text that fits before the passage within the training length
SHARES = (0.0, 0.125, 0.25, 0.5, 1.0)
# nats per token more than without any text before it, which no text of the same document costs
RISE = 0.5
DIFFERENCE = 1e-3  # of the logits' size; float32 alone makes about 1e-6


def check_checkpoint(config: JobConfig, model: GPT | Reader, tokens: np.ndarray) -> None:
    """Print the results on stderr. The first train_len of `tokens`, those of a text, are read.

    Raises RunError when the passage gets worse with text before it, or when logits are not those of
    transformers."""
    name = config.model.path
    device = next(model.parameters()).device
    text = np.asarray(tokens[: model.encoding.shape.train_len], dtype=np.int64)
    text_T = torch.from_numpy(text).to(device)
    _check_offsets(name, by_offset(model, text_T))
    checkpoint = find_checkpoint(name, download=False)
    difference = difference_from_transformers(checkpoint, model, text_T[:COMPARED])
    if isinstance(difference, str):  # the reason why there is none
        _say(f"logits were not compared, since {difference}")
        return
    if not difference < DIFFERENCE:  # nan is too much as well
        raise RunError(
            f"Logits of model.path={name} differ from those of transformers by {difference:.1e} of"
            f" their size, where rounding explains {DIFFERENCE:g}: compare with a third reader"
            " before any number is believed."
        )
    _say(
        f"logits at {min(COMPARED, len(text_T)):,} tokens differ from those of transformers by"
        f" {difference:.1e} of their size"
    )


@torch.no_grad()
def by_offset(model: GPT | Reader, text_T: torch.Tensor) -> dict[int, float]:
    """{tokens before the passage: its loss in nats per token}. The passage ends the text."""
    size = max(2, min(PASSAGE, len(text_T) // 2))
    offsets = sorted({round(share * (len(text_T) - size)) for share in SHARES})
    losses = {}
    for offset in offsets:
        # The first token of the passage has nothing before it at offset 0, so it is not scored.
        logits_RV = model(text_T[-size - offset :][None], last=size)[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits_RV.float(), text_T[-size + 1 :])
        losses[offset] = float(loss)
    return losses


def _check_offsets(name: str, losses: dict[int, float]) -> None:
    """Print the losses of a passage. Raises RunError if one is higher than that without text."""
    for offset, loss in losses.items():
        if not loss <= losses[0] + RISE:  # nan is worse too
            raise RunError(
                f"One passage costs {losses[0]:.3f} nats per token alone and {loss:.3f} after"
                f" {offset:,} tokens of text: model.path={name} is not read right, or was trained"
                " for fewer (train.length=N)."
            )
    costs = ", ".join(f"{loss:.3f} after {offset:,}" for offset, loss in losses.items())
    _say(f"one passage costs {costs} tokens of text, in nats per token")


@torch.no_grad()
def difference_from_transformers(
    checkpoint: Checkpoint, model: GPT | Reader, text_T: torch.Tensor
) -> float | str:
    """Norm of the difference from transformers' logits over their norm, in float32.

    The reason in words if transformers cannot be had.
    """
    other = load_or_reason(checkpoint, torch.float32)
    if isinstance(other, str):  # the reason why it cannot be loaded
        return other
    expected_TV = other(text_T[None].cpu()).logits[0]
    logits_TV = model(text_T[None])[0].float().cpu()
    if logits_TV.shape != expected_TV.shape:
        raise ConfigError(
            f"transformers gives logits of {list(expected_TV.shape)} for"
            f" model.path={checkpoint.name}: download it again."
        )
    return float((logits_TV - expected_TV).norm() / expected_TV.norm())


def _say(result: str) -> None:
    print(f"check: {result}", file=sys.stderr, flush=True)
