"""Properties of a good encoding, measured by the scores of random content at chosen pairs, with and
without an extension.

`unique`: no two keys that a query sees have the same code (the same scores for all content).
`relative`: given the content, the score of a pair depends only on the distance of its tokens.
`any_length`: the score is the same in a text of the training length and in the longer one.
`as_trained`: the score is the same as in training without an extension. `beyond_training`: without
an extension, the encoding has positions beyond training. `bounded`: no distance (no position, if
these are added to embeddings) is a token or more beyond the trained ones. None: the property does
not apply. Measured without scale-attention, which acts on whole queries, with the same content at
every position and projections drawn at random.

`dimensionless` gives numbers without a unit. At any training length they show if a method is in the
regime it was published in.

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
from posbench.position.legality import check
from posbench.scale_attention.none import NoScale
from posbench.tools.anatomy.query_view import LayerView, content_score, distance, key_bias, kinds

DRAWS = 4
NEAR = 1024  # keys at either end of a long text that are all checked


def properties(
    encoding: Encoding, extension: Extension, length: int
) -> list[dict[str, bool | None]]:
    """Properties of each kind of layer, by name."""
    train_len, reach = encoding.shape.train_len, trained_reach(encoding)
    try:
        check(
            encoding, NoExtension(), NoScale(encoding.shape), [2 * train_len], allow_untested=True
        )
        beyond = True
    except ConfigError:
        beyond = False
    texts = (extension, length), (extension, train_len), (NoExtension(), train_len)
    found = []
    for kind, short, plain in zip(
        *(kinds(encoding, acting, tokens) for acting, tokens in texts), strict=True
    ):
        measurable, last = Bias.ROWS not in kind.encoding.biases, kind.length - 1
        queries = {last - 1, 2 * last // 3, last // 2} - {-1, last}
        found.append(
            {
                "unique": _unique_codes(kind) if measurable else None,
                "relative": (
                    all(_score_alike(kind, one, kind, last, _chosen(one + 1)) for one in queries)
                    if measurable
                    else None
                ),
                "any_length": (
                    _same_scores(short, kind, train_len)
                    if measurable and length > train_len
                    else None
                ),
                "as_trained": (
                    _same_scores(plain, kind, train_len)
                    if measurable and not encoding.random
                    else None
                ),
                "beyond_training": beyond,
                "bounded": _bounded(kind, reach),
            }
        )
    return found


def trained_reach(encoding: Encoding) -> int:
    """Largest coordinate in training, which is also the largest distance."""
    return (encoding.limit if encoding.random and encoding.limit else encoding.shape.train_len) - 1


def content_scores(kind: LayerView, query: int, keys_K: Tensor) -> Tensor:
    """Content score plus bias of each key, for every draw of content: [N, H, K], nan for keys that
    the query does not see.
    """
    shape, random = kind.encoding.shape, torch.Generator().manual_seed(0)
    width = shape.d_model
    q_NC, k_NC = (torch.randn(DRAWS, width, generator=random) * width**-0.5 for _ in range(2))
    query_WC = torch.randn(shape.n_head * shape.head_dim, width, generator=random)
    key_WC = torch.randn(shape.n_kv_head * shape.head_dim, width, generator=random)
    q_N1C, k_N1C = q_NC[:, None], k_NC[:, None]
    if kind.added_TC is not None:
        q_N1C, k_N1C = q_N1C + kind.added_TC[query], k_N1C + kind.added_TC[keys_K]
    q, k = (
        (x_NKC @ weight_WC.T)
        .unflatten(-1, (-1, shape.head_dim))
        .transpose(1, 2)
        .expand(-1, -1, len(keys_K), -1)
        for x_NKC, weight_WC in ((q_N1C, query_WC), (k_N1C, key_WC))
    )
    score_NHK, bias_HK = content_score(kind, query, keys_K, q, k), key_bias(kind, query, keys_K)
    return score_NHK if bias_HK is None else score_NHK + bias_HK


def _chosen(length: int) -> Tensor:
    """All numbers below `length`, or of a long text those at both ends and some between."""
    if length <= 4 * NEAR:
        return torch.arange(length)
    between = torch.linspace(0, length - 1, 2 * NEAR).long()
    return torch.cat((torch.arange(NEAR), between, torch.arange(length - NEAR, length))).unique()


def _unique_codes(kind: LayerView) -> bool:
    code_KX = content_scores(kind, kind.length - 1, _chosen(kind.length)).flatten(0, 1).T
    code_KX = code_KX[~code_KX.isnan().any(dim=1)]
    # Sorting by one projection makes equal codes neighbours.
    mixed_K = (
        code_KX @ torch.randn(code_KX.shape[1], generator=torch.Generator().manual_seed(1)).double()
    )
    apart_K = code_KX[mixed_K.argsort()].diff(dim=0).abs().amax(dim=1)
    return bool((apart_K > 1e-9).all())


def _score_alike(a: LayerView, a_query: int, b: LayerView, b_query: int, delta_K: Tensor) -> bool:
    """True if two queries score keys at the same index distances alike."""
    a_NHK, b_NHK = (
        content_scores(a, a_query, a_query - delta_K),
        content_scores(b, b_query, b_query - delta_K),
    )
    return torch.allclose(a_NHK, b_NHK, rtol=1e-5, atol=1e-4, equal_nan=True)


def _same_scores(a: LayerView, b: LayerView, train_len: int) -> bool:
    """True if the last queries of both score the distances of training alike."""
    return _score_alike(
        a, a.length - 1, b, b.length - 1, torch.arange(min(a.length, b.length, train_len))
    )


def _bounded(kind: LayerView, reach: int) -> bool | None:
    encoding = kind.encoding
    if kind.added_TC is not None:
        return encoding.rows() is not None or bool(kind.plan.bands[0].q_pos_T.max() < reach + 1)
    if Trait.COORDINATE not in encoding.traits:
        return None
    seen_K = distance(kind, kind.length - 1, torch.arange(kind.length))
    return bool(seen_K.nan_to_num().max() < reach + 1)


def dimensionless(encoding: Encoding, extension: Extension, kind: LayerView) -> dict[str, float]:
    """Numbers of as_text.DIMENSIONLESS that apply to one kind of layer in its text, by key."""
    train_len, fed = encoding.shape.train_len, kind.length
    seen_T = distance(kind, fed - 1, torch.arange(fed - 1, -1, -1))
    off_T = (seen_T - torch.arange(fed)).nan_to_num(nan=1.0).abs() > 1e-6
    numbers = {"keys_over_train_len": int((~seen_T.isnan()).sum()) / train_len}
    if (
        Trait.COORDINATE in kind.encoding.traits
    ):  # without coordinates no distance is read, so none is exact or far
        numbers["exact_over_train_len"] = (
            int(off_T.nonzero()[0]) if off_T.any() else fed
        ) / train_len
        numbers["reach_over_trained"] = float(seen_T.nan_to_num().max()) / max(
            1, trained_reach(encoding)
        )
    if kind.layer.window is not None:
        numbers["window_over_train_len"] = kind.layer.window / train_len
    if kind.turning is not None:
        before, after = kind.turning
        numbers["share_full_turns"] = _share_full_turns(before, train_len)
        if not torch.equal(before.freq_F, after.freq_F):
            numbers["share_full_turns_after"] = _share_full_turns(after, train_len)
        numbers["r_max"] = float(before.freq_F.max() * train_len / (2 * math.pi))
        if isinstance(extension, NtkByParts):
            numbers["beta"] = extension.kept_from(kind.before.freq_F, train_len)
            numbers["beta_over_r_max"] = numbers["beta"] / numbers["r_max"]
    # Bias of the last query at distance 0 and at train_len (or the farthest key it sees), without
    # the extension.
    plain_len = (
        train_len + 1
        if Trait.UNBOUNDED in encoding.traits or encoding.limit is None
        else min(train_len + 1, encoding.limit)
    )
    plain = next(
        one for one in kinds(encoding, NoExtension(), plain_len) if one.numbers == kind.numbers
    )
    bias_HK = key_bias(
        plain, plain_len - 1, torch.tensor([plain_len - 1, int(plain.plan.bands[0].first_T[-1])])
    )
    if bias_HK is not None:
        numbers["slope_x_length"] = float((bias_HK[:, 1] - bias_HK[:, 0]).abs().min())
    decay_D = kind.encoding.decay()
    if decay_D is not None:
        numbers["decay_x_length"] = (
            min((rate for rate in decay_D.tolist() if rate > 0), default=0.0) * train_len
        )
    return numbers


def _share_full_turns(spectrum: Spectrum, train_len: int) -> float:
    return float((spectrum.freq_F * train_len >= 2 * math.pi).double().mean())
