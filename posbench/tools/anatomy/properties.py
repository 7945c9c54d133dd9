"""Properties of a good encoding, measured by the scores of random content at chosen pairs, with and
without an extension.

`unique`: no two keys that a query sees have the same code (the same scores for all content).
`relative`: given the content, the score of a pair depends only on the distance of its tokens.
`any_length`: the score is the same in a text of the training length and in the longer one.
`as_trained`: the score is the same as in training without an extension.
`beyond_training`: without an extension, the encoding has positions beyond training.
`bounded`: no distance (no position, if these are added to embeddings) is a token or more beyond
the trained ones.
None: the property does not apply.

Measured without scale-attention, which acts on whole queries, with the same content at every
position and projections drawn at random.

`dimensionless_numbers` gives numbers without a unit. At any training length they show if a method
is in the regime it was published in.

Letters: N draws of content, C width, H heads, G key heads, K keys, D head width, F frequencies, T
tokens."""

import math

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.extensions.none import NoExtension
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.position.geometry import Bias, Spectrum, Trait
from posbench.position.interfaces import Encoding, Extension
from posbench.position.legality import verdict_of
from posbench.scale_attention.none import NoScale
from posbench.tools.anatomy.query_view import (
    LayerView,
    content_score,
    key_biases,
    key_distances,
    layer_views,
)

CONTENT_DRAWS = 4
KEYS_AT_ENDS = 1024  # keys at either end of a long text that are all checked


def measured_properties(
    encoding: Encoding, extension: Extension, length: int
) -> list[dict[str, bool | None]]:
    """{property: True, False, or None where it does not apply} for each kind of layer."""
    train_len = encoding.shape.train_len
    any_longer = 2 * train_len
    beyond_training = _has_positions_for(encoding, any_longer)
    extended_long = layer_views(encoding, extension, length)
    extended_short = layer_views(encoding, extension, train_len)
    as_trained = layer_views(encoding, NoExtension(), train_len)
    result = []
    for view, short, trained in zip(extended_long, extended_short, as_trained, strict=True):
        of_view: dict[str, bool | None] = dict.fromkeys(
            ("unique", "relative", "any_length", "as_trained")
        )
        if Bias.ROWS not in view.encoding.biases:  # whole rows are weighted, so no pair has a score
            of_view["unique"] = _has_unique_codes(view)
            of_view["relative"] = _depends_on_distance(view)
            if length > train_len:
                of_view["any_length"] = _last_queries_score_alike(short, view, train_len)
            if not encoding.random:  # positions drawn anew in training have no scores to keep
                of_view["as_trained"] = _last_queries_score_alike(trained, view, train_len)
        of_view["beyond_training"] = beyond_training
        of_view["bounded"] = _is_bounded(view, trained_reach(encoding))
        result.append(of_view)
    return result


def trained_reach(encoding: Encoding) -> int:
    """Largest coordinate in training, which is also the largest distance."""
    if encoding.random and encoding.limit:
        return encoding.limit - 1
    return encoding.shape.train_len - 1


def content_scores(view: LayerView, query: int, keys_K: Tensor) -> Tensor:
    """Content score plus bias of each key, for every draw of content: [N, H, K], nan for keys that
    the query does not see.
    """
    shape = view.encoding.shape
    random = torch.Generator().manual_seed(0)  # the same content in every call
    width = shape.d_model
    # Of norm 1, so that what a weight of variance 1 makes of it has variance 1.
    q_NC, k_NC = (
        torch.randn(CONTENT_DRAWS, width, generator=random) * width**-0.5 for _ in range(2)
    )
    query_WC = torch.randn(shape.n_head * shape.head_dim, width, generator=random)
    key_WC = torch.randn(shape.n_kv_head * shape.head_dim, width, generator=random)
    # K is 1 until embeddings are added: all keys have the same content, and so has the query.
    q_N1C, k_NKC = q_NC[:, None], k_NC[:, None]
    if view.added_TC is not None:
        q_N1C = q_N1C + view.added_TC[query]
        k_NKC = k_NKC + view.added_TC[keys_K]

    def heads(x_NKC: Tensor, weight_WC: Tensor) -> Tensor:
        """Projection of the content, one for each key: [N, heads, K, D]."""
        x_NHKD = (x_NKC @ weight_WC.T).unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
        return x_NHKD.expand(-1, -1, len(keys_K), -1)

    score_NHK = content_score(view, query, keys_K, heads(q_N1C, query_WC), heads(k_NKC, key_WC))
    bias_HK = key_biases(view, query, keys_K)
    return score_NHK if bias_HK is None else score_NHK + bias_HK


def _has_positions_for(encoding: Encoding, length: int) -> bool:
    """True if the encoding has positions for `length` tokens without an extension."""
    try:
        verdict_of(encoding, NoExtension(), NoScale(encoding.shape), [length], allow_untested=True)
    except ConfigError:
        return False
    return True


def _checked_keys(length: int) -> Tensor:
    """All numbers below `length`, or of a long text those at both ends and some between."""
    if length <= 4 * KEYS_AT_ENDS:
        return torch.arange(length)
    between = torch.linspace(0, length - 1, 2 * KEYS_AT_ENDS).long()
    return torch.cat(
        (torch.arange(KEYS_AT_ENDS), between, torch.arange(length - KEYS_AT_ENDS, length))
    ).unique()


def _has_unique_codes(view: LayerView) -> bool:
    """True if the last query scores no two of the keys that it sees alike for all content.

    Letter: X content draws by heads."""
    code_KX = content_scores(view, view.length - 1, _checked_keys(view.length)).flatten(0, 1).T
    code_KX = code_KX[~code_KX.isnan().any(dim=1)]  # without keys that are not seen
    # Sorting by one projection makes equal codes neighbours.
    projection_X = torch.randn(code_KX.shape[1], generator=torch.Generator().manual_seed(1))
    order_K = (code_KX @ projection_X.double()).argsort()
    difference_K = code_KX[order_K].diff(dim=0).abs().amax(dim=1)
    return bool((difference_K > 1e-9).all())  # a smaller difference is rounding


def _depends_on_distance(view: LayerView) -> bool:
    """True if earlier queries score the keys at each distance as the last one does."""
    last = view.length - 1
    earlier = {last - 1, 2 * last // 3, last // 2} - {-1, last}
    return all(_score_alike(view, query, view, last, _checked_keys(query + 1)) for query in earlier)


def _score_alike(a: LayerView, a_query: int, b: LayerView, b_query: int, delta_K: Tensor) -> bool:
    """True if two queries score keys at the same index distances alike."""
    a_NHK = content_scores(a, a_query, a_query - delta_K)
    b_NHK = content_scores(b, b_query, b_query - delta_K)
    return torch.allclose(a_NHK, b_NHK, rtol=1e-5, atol=1e-4, equal_nan=True)


def _last_queries_score_alike(a: LayerView, b: LayerView, train_len: int) -> bool:
    """True if the last queries of both score the distances of training alike."""
    delta_K = torch.arange(min(a.length, b.length, train_len))
    return _score_alike(a, a.length - 1, b, b.length - 1, delta_K)


def _is_bounded(view: LayerView, reach: int) -> bool | None:
    """True if no coordinate or distance is a token or more beyond `reach`; None without any."""
    if view.added_TC is not None:
        largest_position = view.plan.bands[0].q_pos_T.max()
        reads_table = view.encoding.rows() is not None  # which has no row beyond training
        return reads_table or bool(largest_position < reach + 1)
    if Trait.COORDINATE not in view.encoding.traits:
        return None
    seen_K = key_distances(view, view.length - 1, torch.arange(view.length))
    # nan: a key that the last query does not see. As 0 it is within reach.
    return bool(seen_K.nan_to_num().max() < reach + 1)


def dimensionless_numbers(
    encoding: Encoding, extension: Extension, view: LayerView
) -> dict[str, float]:
    """Numbers of as_text.DIMENSIONLESS that apply to one kind of layer in its text, by key."""
    train_len = encoding.shape.train_len
    numbers = _distance_numbers(encoding, view)
    if view.layer.window is not None:
        numbers["window_over_train_len"] = view.layer.window / train_len
    if view.turning_spectra is not None:
        numbers |= _turning_numbers(extension, view, train_len)
    slope_x_length = _slope_times_length(encoding, view)
    if slope_x_length is not None:
        numbers["slope_x_length"] = slope_x_length
    decay_D = view.encoding.decay()
    if decay_D is not None:
        slowest = min((rate for rate in decay_D.tolist() if rate > 0), default=0.0)
        numbers["decay_x_length"] = slowest * train_len
    return numbers


def _distance_numbers(encoding: Encoding, view: LayerView) -> dict[str, float]:
    """Numbers of the distances at which the last query sees keys, in training lengths."""
    train_len = encoding.shape.train_len
    last = view.length - 1
    seen_T = key_distances(view, last, torch.arange(last, -1, -1))
    numbers = {"keys_over_train_len": int((~seen_T.isnan()).sum()) / train_len}
    if Trait.COORDINATE not in view.encoding.traits:
        return numbers  # no distance is read, so none is exact or far
    # A key counts as moved by a token (1.0) where it is not seen.
    moved_T = (seen_T - torch.arange(view.length)).nan_to_num(nan=1.0).abs() > 1e-6
    exact = int(moved_T.nonzero()[0]) if moved_T.any() else view.length  # keys before the first
    farthest = float(seen_T.nan_to_num().max())
    numbers["exact_over_train_len"] = exact / train_len
    numbers["reach_over_trained"] = farthest / max(1, trained_reach(encoding))
    return numbers


def _turning_numbers(extension: Extension, view: LayerView, train_len: int) -> dict[str, float]:
    """Numbers of the frequencies by which the encoding turns, before and after the extension: it
    may round, scale or fade those of its spectrum.
    """
    before, after = view.turning_spectra
    numbers = {"share_full_turns": _share_full_turns(before, train_len)}
    if not torch.equal(before.freq_F, after.freq_F):
        numbers["share_full_turns_after"] = _share_full_turns(after, train_len)
    # Turns of the fastest pair in a training length.
    numbers["r_max"] = float(before.freq_F.max() * train_len / (2 * math.pi))
    if isinstance(extension, NtkByParts):
        # Its default follows from the frequencies before the encoding changes them, as in the
        # extension itself.
        numbers["beta"] = extension.turns_kept_from(view.spectrum_before.freq_F, train_len)
        numbers["beta_over_r_max"] = numbers["beta"] / numbers["r_max"]
    return numbers


def _share_full_turns(spectrum: Spectrum, train_len: int) -> float:
    """Share of the pairs that make a full turn in the training length."""
    return float((spectrum.freq_F * train_len >= 2 * math.pi).double().mean())


def _slope_times_length(encoding: Encoding, view: LayerView) -> float | None:
    """Slope of the flattest head's bias, times train_len; None without a bias.

    That is the difference of the bias between distance 0 and train_len (or the farthest key that is
    seen), without the extension.
    """
    length = encoding.shape.train_len + 1
    # A table may have no row for that distance.
    if Trait.UNBOUNDED not in encoding.traits and encoding.limit is not None:
        length = min(length, encoding.limit)
    plain_views = layer_views(encoding, NoExtension(), length)
    plain = next(other for other in plain_views if other.layer_indices == view.layer_indices)
    farthest = int(plain.plan.bands[0].first_T[-1])  # first key that the last query sees
    bias_HK = key_biases(plain, length - 1, torch.tensor([length - 1, farthest]))
    return None if bias_HK is None else float((bias_HK[:, 1] - bias_HK[:, 0]).abs().min())
