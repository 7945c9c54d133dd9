"""One query and its keys as each kind of layer sees them: distances, biases and content scores,
without a trained model.

Letters: N draws of content, C width, H heads, G key heads, K keys, D head width, F frequencies, T
tokens, P pictured channels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.extensions.none import NoExtension
from posbench.model.kernels.folding import with_decay
from posbench.position.geometry import Bias, Spectrum
from posbench.position.interfaces import Encoding, Extension, Layer, ScaleAttention
from posbench.position.layer_plan import BandPlan, LayerPlan, band_table
from posbench.position.legality import fed_length, name_of
from posbench.position.plan import make_plan


@dataclass(frozen=True)
class LayerView:
    """Layers that treat position alike in one text."""

    layer: Layer
    plan: LayerPlan
    layer_indices: list[int]  # indices of these layers
    spectrum_before: Spectrum | None  # frequencies before the extension
    spectrum_after: Spectrum | None  # and after it
    added_TC: Tensor | None  # to the embeddings

    @property
    def encoding(self) -> Encoding:
        return self.layer.encoding

    @property
    def turning_spectra(self) -> tuple[Spectrum, Spectrum] | None:
        """Frequencies at which pairs turn before and after the extension; None without any."""
        if self.spectrum_before is None:
            return None
        return self.encoding.turning(self.spectrum_before), self.encoding.turning(
            self.spectrum_after
        )

    @property
    def length(self) -> int:
        """Number of tokens that are read."""
        return len(self.plan.n_T)


@torch.no_grad()
def layer_views(
    encoding: Encoding,
    extension: Extension,
    length: int,
    scale: ScaleAttention | None = None,
    trained: ScaleAttention | None = None,
) -> list[LayerView]:
    """Distinct layers with attention in a text of `length` tokens, or in the last ones that a crop
    leaves of it; layers that the extension may act on come first.

    Raises ConfigError if there is none.
    """
    fed = fed_length(extension, encoding.shape.train_len, length)
    plan = make_plan(encoding, extension, scale, length=fed, trained_scale=trained)
    added_TC = plan.embed()
    views: dict[Layer, LayerView] = {}
    for index, (layer, layer_plan) in enumerate(zip(encoding.layers(), plan.layers, strict=True)):
        if layer.encoding.mixes:  # without attention, so no query sees keys
            continue
        if layer not in views:
            before = layer.encoding.spectrum()
            acting_extension = extension if layer.extended else NoExtension()
            after = (
                acting_extension.spectrum(before, layer_plan.span) if before is not None else None
            )
            views[layer] = LayerView(layer, layer_plan, [], before, after, added_TC)
        views[layer].layer_indices.append(index)
    if not views:
        raise ConfigError(
            f"encoding={name_of(encoding)} has no attention in any layer, so there is nothing to"
            " show: choose an encoding that has."
        )
    return sorted(views.values(), key=lambda view: not view.layer.extended)


def over_bands(
    view: LayerView, query: int, keys_K: Tensor, value: Callable[[BandPlan, Tensor], Tensor]
) -> Tensor:
    """`value(band, seen_K)` of the keys that `query` sees in each band, float64; nan for keys that
    it sees in none.
    """
    result = None
    for band in view.plan.bands:
        (seen_K,) = band.seen(torch.tensor([query]), keys_K)
        part = value(band, seen_K).double()
        if result is None:
            result = torch.full((*part.shape[:-1], len(keys_K)), torch.nan, dtype=torch.float64)
        result[..., seen_K] = part
    return result


def key_distances(view: LayerView, query: int, keys_K: Tensor) -> Tensor:
    """Distance in coordinates of each key: [K], nan for keys that `query` does not see."""

    def value(band: BandPlan, seen_K: Tensor) -> Tensor:
        return band.q_pos_T[query] - band.k_pos_T[keys_K[seen_K]]

    return over_bands(view, query, keys_K, value)


@torch.no_grad()
def key_biases(view: LayerView, query: int, keys_K: Tensor) -> Tensor | None:
    """Bias added to the scaled score of each key: [H, K], or None without a bias. What depends on
    content is that of tokens of zeros.

    Bias.ROWS weighs whole rows and adds nothing to a score.
    """
    encoding = view.encoding
    adding = encoding.biases & ~Bias.ROWS
    if not adding:
        return None

    def value(band: BandPlan, seen_K: Tensor) -> Tensor:
        k_pos_K = band.k_pos_T[keys_K[seen_K]]
        q_pos_K = band.q_pos_T[query].expand(len(k_pos_K))
        total_HK = torch.zeros(encoding.shape.n_head, len(k_pos_K), dtype=torch.float64)
        if not len(k_pos_K):
            return total_HK
        # With the addend of the whole row, which softmax does not need: the bias is shown.
        columns = encoding.columns(q_pos_K, k_pos_K, row_constant=True)
        if columns is not None:
            total_HK += (columns[0].double() * columns[1].double()).sum(dim=-1)
        if encoding.biases & Bias.DENSE:
            total_HK += encoding.bias(q_pos_K[:1], k_pos_K, view.layer.index)[:, 0]
        if Bias.GATES in encoding.biases:
            # alike for all tokens between the two
            gates_BHT = encoding.gates(*_arguments_of_zeros(view, 1))
            total_HK += gates_BHT[0].double() * (query - keys_K[seen_K])
        if Bias.CONTENT in encoding.biases:
            content_bias = encoding.content_bias(*_arguments_of_zeros(view, query + 1))
            bias_BHSK = content_bias(slice(query, query + 1), slice(0, query + 1))
            total_HK += bias_BHSK[0, :, 0][:, keys_K[seen_K]]
        return total_HK

    return over_bands(view, query, keys_K, value)


def _arguments_of_zeros(view: LayerView, length: int) -> tuple:
    """Arguments of a hook of content: an input of zeros, the layer's index, a text of zeros."""
    encoding = view.encoding
    content = (torch.zeros(1, length, encoding.shape.d_model), view.layer.index)
    if encoding.reads_tokens:
        return *content, torch.zeros(1, length, dtype=torch.int64)
    return content


@torch.no_grad()
def content_score(
    view: LayerView, query: int, keys_K: Tensor, q_NHKD: Tensor, k_NGKD: Tensor
) -> Tensor:
    """Scaled content score of each key: [N, H, K]. q_NHKD has a copy of the query for each key,
    rotated as the key's band requires.
    """
    encoding = view.encoding
    width = q_NHKD.shape[-1]

    def value(band: BandPlan, seen_K: Tensor) -> Tensor:
        """Scores at the keys of one band: [N, H, K]. q and k are turned, scaled and decayed."""
        q, k = q_NHKD[:, :, seen_K], k_NGKD[:, :, seen_K]
        k_pos_K = band.k_pos_T[keys_K[seen_K]]
        q_pos_K = band.q_pos_T[query].expand(len(k_pos_K))
        if len(k_pos_K):  # a table needs a largest position
            interpolated = band.band.interpolated
            q_table = band_table(encoding, view.spectrum_after, q_pos_K, interpolated)
            if q_table is not None:
                k_table = band_table(encoding, view.spectrum_after, k_pos_K, interpolated)
                q, k = encoding.rotate(q, k, q_table, k_table)
        q_scale_K = view.spectrum_after.scale(q_pos_K) if view.spectrum_after is not None else None
        if q_scale_K is not None:
            q = q * q_scale_K[:, None]
            k = k * view.spectrum_after.scale(k_pos_K)[:, None]
        decay_D = encoding.decay()
        if decay_D is not None:
            q, k = with_decay(q, k, decay_D, q_pos_K, k_pos_K, origin=band.q_pos_T[query])
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # a copy for each query head
        return (q.double() * k.double()).sum(dim=-1) * width**-0.5

    return over_bands(view, query, keys_K, value)


@torch.no_grad()
def even_weights(view: LayerView) -> Tensor | None:
    """Weights of the last query by distance, if q and all content scores are 0, of an encoding of
    whole rows: [H, T], else None.
    """
    encoding = view.encoding
    shape = view.encoding.shape
    if Bias.ROWS not in encoding.biases:
        return None
    query = view.length - 1
    keys_K = torch.arange(view.length)
    q_BHSD = torch.zeros(1, shape.n_head, 1, shape.head_dim)
    scores_BHSK = torch.zeros(1, shape.n_head, 1, view.length)
    bias_HK = key_biases(view, query, keys_K)
    seen_SK = ~key_distances(view, query, keys_K).isnan()[None]
    bias_HSK = None if bias_HK is None else bias_HK.nan_to_num().float()[:, None]
    # All keys at once: an extension changes nothing here, so its bands do not differ.
    weights_BHSK = encoding.weights(
        q_BHSD, scores_BHSK, bias_HSK, seen_SK, factor=1.0, layer=view.layer.index
    )
    return weights_BHSK[0, :, 0].double().masked_fill(~seen_SK, torch.nan).flip(-1)


def channel_scores(view: LayerView, delta_K: Tensor) -> Tensor:
    """Score of the keys at the index distances delta_K from the last query, in each channel of the
    first head: [P, K] in [-1, 1], nan for keys that the query does not see.

    A row is the score if q and k are 1 in one channel and 0 elsewhere, minus the score of zeros,
    divided by its largest size. Channels equal to an earlier one are left out: P remain."""
    shape = view.encoding.shape
    query = view.length - 1

    def score(content_NKD: Tensor) -> Tensor:
        """Score of the first head, if q and k of all heads have this content: [N, K]."""
        q_NHKD = content_NKD[:, None].expand(-1, shape.n_head, -1, -1)
        k_NGKD = content_NKD[:, None].expand(-1, shape.n_kv_head, -1, -1)
        return content_score(view, query, query - delta_K, q_NHKD, k_NGKD)[:, 0]

    unit_DKD = torch.eye(shape.head_dim)[:, None].expand(-1, len(delta_K), -1)
    score_DK = score(unit_DKD) - score(torch.zeros_like(unit_DKD[:1]))
    # nan, of keys that are not seen, is 0 in comparisons alone.
    largest_D1 = score_DK.nan_to_num().abs().amax(dim=-1, keepdim=True)
    score_DK = score_DK / largest_D1.clamp(min=1e-12)
    distinct_rows: list[Tensor] = []
    for row_K in score_DK:
        values_K = row_K.nan_to_num()
        if not any(torch.equal(values_K, other_K.nan_to_num()) for other_K in distinct_rows):
            distinct_rows.append(row_K)
    return torch.stack(distinct_rows)
