"""Rules of masks as transformers makes them, told from what they let a query see; others are
refused.
"""

import pytest
import torch
from families import text, tiny, transformers

import posbench
from posbench.common.errors import ConfigError
from posbench.model.inplace.visible import compact_mask

masking_utils = transformers.masking_utils


def rule(function, padding=None):
    mask = compact_mask(2, 10, 10, mask_function=function, attention_mask=padding).checked()
    return mask.window, mask.chunk


@pytest.mark.parametrize("size", [1, 2, 3, 24, 512, 4096, 8192, 131072])
def test_windows_and_chunks_of_any_size(size):
    assert rule(masking_utils.causal_mask_function) == (None, None)
    assert rule(masking_utils.sliding_window_causal_mask_function(size)) == (size, None)
    if size > 1:
        assert rule(
            masking_utils.chunked_causal_mask_function(size, torch.zeros(2, dtype=torch.long))
        ) == (None, size)
        padding = torch.ones(2, 10, dtype=torch.bool)
        padding[0, :3] = False
        shifted = masking_utils.chunked_causal_mask_function(size, torch.tensor([3, 0]))
        assert rule(shifted, padding) == (
            None,
            size,
        ), "chunks are counted from the first token of a row"


def test_other_rules_are_refused():
    packed = masking_utils.packed_sequence_mask_function(torch.tensor([[0, 0, 1, 1]]))
    prefix = masking_utils.or_masks(masking_utils.causal_mask_function, lambda b, h, q, k: k < 4)
    holes = masking_utils.and_masks(
        masking_utils.causal_mask_function, lambda b, h, q, k: (q - k) % 2 == 0
    )
    for function in (masking_utils.bidirectional_mask_function, packed, prefix, holes):
        with pytest.raises(ConfigError, match="another rule"):
            rule(function)


def test_positions_may_begin_anywhere():
    model, ids = posbench.extend(tiny("llama"), "yarn"), text(1, 20)
    assert torch.equal(model(ids, position_ids=torch.arange(7, 27)[None]).logits, model(ids).logits)
