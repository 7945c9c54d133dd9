"""A model for evaluation in bf16, whose linear layers hold their weights in bf16.

Else autocast would round them in every pass. Its results are those of the model itself under
autocast, which rounds the same weights to the same numbers. Embeddings, norms, encodings and
trained scales are the model's own tensors in float32."""

import copy
import weakref

import torch
from torch import nn

from posbench.model.gpt import GPT

# {model: (state of its weights, rounded model)}
_cache: weakref.WeakKeyDictionary[GPT, tuple[tuple, GPT]] = weakref.WeakKeyDictionary()


def rounded(model: GPT) -> GPT:
    """The model with linear layers in bf16. One is kept for each model, and made anew when a weight
    of the model has changed.

    It is the model itself where methods are in place in a transformers model, which cannot be
    copied. Autocast then rounds its weights in every pass.
    """
    if not isinstance(model, GPT):
        return model
    # A weight that is changed in place counts up its version.
    weights = [layer.weight for layer in _linear_layers(model)]
    state = tuple((weight.data_ptr(), weight._version) for weight in weights)
    cached_state, _ = _cache.get(model, (None, None))
    if cached_state != state:
        _cache.pop(model, None)  # first, so that two never take memory at once
        _cache[model] = (state, _rounded_copy(model))
    return _cache[model][1]


def forget_rounded(model: GPT) -> None:
    """Free the rounded model.

    Training needs its memory, and a step that is one CUDA graph changes weights without a trace.
    """
    _cache.pop(model, None)


def _linear_layers(model: GPT) -> list[nn.Linear]:
    """Linear layers of the blocks and the head, which autocast runs in bf16.

    Those of an encoding run in float32."""
    modules = (*model.layers.modules(), model.lm_head)
    return [module for module in modules if isinstance(module, nn.Linear)]


@torch.inference_mode(False)
@torch.no_grad()
def _rounded_copy(model: GPT) -> GPT:
    """Copy of a model with linear layers in bf16; all else is shared with the model."""
    # Called within inference mode, whose tensors no later pass outside it could record.
    # deepcopy takes these as copied already, so both models hold them
    shared = [model.encoding, model.scale, *model.parameters(), *model.buffers()]
    copied = copy.deepcopy(model, memo={id(part): part for part in shared})
    for layer in _linear_layers(copied):
        for name, value in list(layer.named_parameters()):
            delattr(layer, name)
            layer.register_buffer(name, value.bfloat16())  # nothing learns it
    return copied
