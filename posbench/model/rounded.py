"""A model for evaluation in bf16, whose linear layers hold their weights in bf16.

Else autocast would round them in every pass. Its results are those of the model itself under
autocast, which rounds the same weights to the same numbers. Embeddings, norms, encodings and
trained scales are the model's own tensors in float32."""

import copy
import weakref

import torch
from torch import nn

from posbench.model.gpt import GPT

_made: weakref.WeakKeyDictionary[GPT, tuple[tuple, GPT]] = (
    weakref.WeakKeyDictionary()
)  # {model: (state of its weights, rounded model)}


def rounded(model: GPT) -> GPT:
    """The model with linear layers in bf16. One is kept for each model, and made anew when a weight
    of the model has changed.
    """
    state = tuple((layer.weight.data_ptr(), layer.weight._version) for layer in _linears(model))
    if _made.get(model, (None,))[0] != state:
        _made.pop(model, None)  # first, so that two never take memory at once
        _made[model] = state, _make(model)
    return _made[model][1]


def _linears(model: GPT) -> list[nn.Linear]:
    """Linear layers of the blocks and the head, which autocast runs in bf16. Those of an encoding
    run in float32.
    """
    return [
        layer for layer in (*model.layers.modules(), model.lm_head) if isinstance(layer, nn.Linear)
    ]


@torch.inference_mode(False)
@torch.no_grad()
def _make(model: GPT) -> GPT:
    shared = [model.encoding, model.scale, *model.parameters(), *model.buffers()]
    made = copy.deepcopy(model, {id(one): one for one in shared})
    for layer in _linears(made):
        for name, value in list(layer.named_parameters()):
            delattr(layer, name)
            layer.register_buffer(name, value.bfloat16())  # nothing learns it
    return made
