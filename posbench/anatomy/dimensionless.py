"""Numbers without a unit. At any training length they show if a method is in the regime it was published in.

Letters: F frequencies, H heads, T tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posbench.anatomy.properties import trained_reach
from posbench.anatomy.query_view import Kind, bias, distance, kinds
from posbench.extensions.none import NoExtension
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.position.geometry import Spectrum, Trait
from posbench.position.interfaces import Encoding, Extension


def dimensionless(encoding: Encoding, extension: Extension, kind: Kind, length: int) -> dict[str, float]:
    """Numbers of words.DIMENSIONLESS that apply to one kind of layer in a text of `length` tokens, by key."""
    train_len, fed = encoding.shape.train_len, kind.length
    seen_T = distance(kind, fed - 1, torch.arange(fed - 1, -1, -1))
    off_T = (seen_T - torch.arange(fed)).nan_to_num(nan=1.0).abs() > 1e-6
    numbers = {"keys_over_train_len": int((~seen_T.isnan()).sum()) / train_len}
    if Trait.COORDINATE in kind.encoding.traits:  # without coordinates no distance is read, so none is exact or far
        numbers["exact_over_train_len"] = (int(off_T.nonzero()[0]) if off_T.any() else fed) / train_len
        numbers["reach_over_trained"] = float(seen_T.nan_to_num().max()) / max(1, trained_reach(encoding))
    if kind.layer.window is not None:
        numbers["window_over_train_len"] = kind.layer.window / train_len
    if kind.before is not None:
        numbers["share_full_turns"] = _share_full_turns(kind.before, train_len)
        if not torch.equal(kind.before.freq_F, kind.after.freq_F):
            numbers["share_full_turns_after"] = _share_full_turns(kind.after, train_len)
        numbers["r_max"] = float(kind.before.freq_F.max() * train_len / (2 * math.pi))
        if isinstance(extension, NtkByParts):
            numbers["beta_over_r_max"] = extension.kept_from(kind.before.freq_F, train_len) / numbers["r_max"]
    at_train_len = _unextended_bias(encoding, kind, train_len)
    if at_train_len is not None:
        numbers["slope_x_length"] = float((at_train_len[:, 1] - at_train_len[:, 0]).abs().min())
    decay_D = kind.encoding.decay()
    if decay_D is not None:
        numbers["decay_x_length"] = min((rate for rate in decay_D.tolist() if rate > 0), default=0.0) * train_len
    return numbers


def _share_full_turns(spectrum: Spectrum, train_len: int) -> float:
    return float((spectrum.freq_F * train_len >= 2 * math.pi).double().mean())


def _unextended_bias(encoding: Encoding, kind: Kind, train_len: int) -> Tensor | None:
    """Bias of the last query at distance 0 and at train_len (or the farthest key it sees), without an extension: [H, 2], or None."""
    length = train_len + 1 if Trait.UNBOUNDED in encoding.traits or encoding.limit is None else min(train_len + 1, encoding.limit)
    same = next(one for one in kinds(encoding, NoExtension(), length) if one.numbers == kind.numbers)
    return bias(same, length - 1, torch.tensor([length - 1, int(same.plan.bands[0].first_T[-1])]))
