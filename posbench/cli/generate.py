"""Text drawn from a trained model, token by token, at lengths beyond its training too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError
from posbench.config.names import chosen_node

if TYPE_CHECKING:
    from posbench.cli.notebook import LoadedRun


def generate(run: LoadedRun, text: str, n: int, methods: tuple, temperature: float, seed: int, allow_untested: bool) -> str:
    """See LoadedRun.generate. `methods`: extension and scale_attention. Each step reads the whole text: no cache of keys is kept."""
    import torch

    from posbench.position.instantiate import make
    from posbench.position.interfaces import Extension, ScaleAttention
    from posbench.position.legality import check, fed_length
    from posbench.position.plan import make_plan

    if not isinstance(n, int) or n < 1 or temperature < 0:
        raise ConfigError(f"n={n} must be a whole number of at least 1, and temperature={temperature} at least 0.")
    encoding, bos = run.model.encoding, run.corpus.bos
    extension = make(chosen_node("extension", methods[0], {}), kind=Extension)
    scale = make(chosen_node("scale_attention", methods[1], {}), encoding.shape, kind=ScaleAttention)
    ids = run.encode(text)[0].tolist()
    if not ids:
        raise ConfigError("text='' gives no token to begin with: give some text.")
    check(encoding, extension, scale, [len(ids) + n - 1], allow_untested)
    generator = torch.Generator().manual_seed(seed)
    begun = len(ids)
    for _ in range(n):
        fed = ids[-fed_length(extension, encoding.shape.train_len, len(ids)) :]
        if bos is not None:
            fed[0] = bos  # as a window begins in training
        plan = make_plan(encoding, extension, scale, length=len(fed), device=run.device, trained_scale=run.model.scale)
        with torch.inference_mode():
            logits_V = run.model(torch.tensor([fed], device=run.device), plan, last=1)[0, 0].float().cpu()
            if bos is not None:
                logits_V[bos] = -torch.inf  # it stands at the start alone
        if temperature:
            ids.append(int(torch.multinomial(torch.softmax(logits_V / temperature, 0), 1, generator=generator)))
        else:
            ids.append(int(logits_V.argmax()))
    return run.decode(ids[begun:])
