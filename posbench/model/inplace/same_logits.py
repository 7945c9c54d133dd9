"""Check that a model with posbench's attention has the logits that it had as it came.

Random texts are read before and after. Letters: R last tokens of a text, V vocabulary."""

import inspect
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.model.inplace.attention_hook import AttentionHook

# Largest difference of logits that rounding explains, in their standard deviations. In 16 bits
# single logits differ by more, so their mean difference is compared.
LARGEST_DIFFERENCE = {torch.float32: 1e-4, torch.float64: 1e-4}
LARGEST_MEAN_DIFFERENCE = 0.05
LONGEST_COMPARED = 2048  # tokens of the longest text that is read, since longer ones take time
COMPARED_LOGITS = 16  # logits compared at the end of a text


class TextLogits(NamedTuple):
    """A random text of `length` tokens, and its last logits by the model as it came: [R, V]."""

    length: int
    logits_RV: Tensor


def compared_lengths(hook: AttentionHook) -> list[int]:
    """Lengths of texts to compare beside the shortest one: one length, or none where all that would
    show something take too long.

    It lies beyond windows, chunks and the training length, unless a table or a family ends."""
    if hook.family is not None and hook.family.longest_exact_text is not None:
        # Half of the length, since float32 angles differ by 1e-4 at 2,000 tokens.
        return [min(hook.train_len, hook.family.longest_exact_text, LONGEST_COMPARED // 2)]
    if hook.table_name is not None:
        return [min(hook.train_len, LONGEST_COMPARED)]
    limits = [hook.train_len]  # lengths behind which a model may treat positions otherwise
    for layer in hook.encoding.layers():
        limits += [size for size in (layer.window, layer.chunk) if size]
    # by a quarter, and by a few tokens where that is next to nothing
    lengths_beyond = [limit * 5 // 4 + 8 for limit in limits]
    affordable = [length for length in lengths_beyond if length <= LONGEST_COMPARED]
    return [max(affordable)] if affordable else []


def random_text_with_logits(model: nn.Module, length: int) -> TextLogits:
    """Random text of `length` tokens with its logits. Raises ConfigError if some are not finite."""
    logits_RV = _random_text_logits(model, length)
    if not logits_RV.isfinite().all():
        damaged = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
        cause = f": so has its weight {damaged[0]}" if damaged else ""
        raise ConfigError(
            f"{type(model).__name__} as it came has NaN or infinite logits after {length} random"
            f" tokens{cause}."
        )
    return TextLogits(length, logits_RV)


def check_same_logits(model: nn.Module, text: TextLogits) -> None:
    """Raise ConfigError if the model's logits of a text are not those of the model as it came."""
    deviation = text.logits_RV.std().clamp(min=1e-12)
    logits_RV = _random_text_logits(model, text.length)
    difference_RV = (logits_RV - text.logits_RV).abs() / deviation
    if model.dtype in LARGEST_DIFFERENCE:
        difference = float(difference_RV.max())
        allowed = LARGEST_DIFFERENCE[model.dtype]
    else:  # 16 bits, in which single logits differ by more
        difference = float(difference_RV.mean())
        allowed = LARGEST_MEAN_DIFFERENCE
    if not difference <= allowed:  # also true of NaN
        raise ConfigError(
            f"{type(model).__name__} through posbench's attention, without an extension, has logits"
            f" that differ by {difference:.1e} of their standard deviation after {text.length}"
            f" tokens, where rounding explains {allowed:g}: what it does with positions is not all"
            " measured, so it is left as it came."
        )


@torch.no_grad()
def _random_text_logits(model: nn.Module, length: int) -> Tensor:
    """Last logits of a random text, the same for each length: [R, V], float32."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(length)
    ids_BT = torch.randint(vocabulary, (1, length), generator=generator).to(model.device)
    options = {}
    # A model that takes it computes no other logits.
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = COMPARED_LOGITS
    return model(input_ids=ids_BT, use_cache=False, **options).logits[0, -COMPARED_LOGITS:].float()
