"""Attention of a trained model, head by head: entropy, weight by distance, on the first token and
on no key.

A text is read as an evaluation reads it, by the kernel that it would choose; beside it the weights
of the last S queries are computed a block at a time. Memory grows with the length alone.

Letters: B batch, T tokens, H heads, S queries, K keys, U buckets of distance, N windows, C width.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from posbench.evaluation.protocols.fixed_targets import FixedTargets
from posbench.evaluation.scorer import Scorer
from posbench.model.attention import Attention
from posbench.model.gpt import GPT
from posbench.model.inplace.reader import Reader
from posbench.model.kernels.dispatch import attention_weights
from posbench.model.rounded import rounded
from posbench.position.layer_plan import BandPlan, LayerPlan
from posbench.statistics.clustered import clustered_mean, student_quantile

WEIGHT_ROUNDING = 1e-5  # weights in float32 that miss a sum of 1 by less have no sink


@dataclass
class LayerAttention:
    """Attention of one layer: means over the queries of each window, float64."""

    keys: float = 0.0  # that a query sees, on average
    seen_U: Tensor | None = None  # of them in each bucket
    entropy_NH: list[Tensor] = field(default_factory=list)
    far_NH: list[Tensor] = field(default_factory=list)
    mass_NHU: list[Tensor] = field(default_factory=list)  # last bucket: the first token

    def add_windows(
        self, plan: LayerPlan, x_BTC: Tensor | None, q_BHTD: Tensor, k_BGTD: Tensor, queries: int
    ) -> None:
        """Add the last queries of a batch of windows, from queries and keys, and the input that
        gates are made from, if there are any.
        """
        batch, heads, length, _ = q_BHTD.shape
        first_token = len(distance_buckets(length))  # its bucket, the last one
        index_T = torch.arange(length, device=q_BHTD.device)
        entropy_BH = q_BHTD.new_zeros(batch, heads, dtype=torch.float64)
        far_BH = torch.zeros_like(entropy_BH)
        mass_BHU = q_BHTD.new_zeros(batch, heads, first_token + 1, dtype=torch.float64)
        for start, bands in attention_weights(plan, x_BTC, q_BHTD, k_BGTD, queries):
            total_BHS = 0.0
            for keys, weights_BHSK in bands:
                weights_BHSK = weights_BHSK.double()
                query_S = index_T[start : start + weights_BHSK.shape[2]]
                # Keys after the query have no weight. The exponent is the bucket: 0 at distance 0,
                # 1 at 1, 2 at 2 and 3, 3 at 4 to 7.
                distance_SK = (query_S[:, None] - index_T[keys]).clamp(min=0)
                bucket_SK = torch.frexp(distance_SK.double()).exponent.long()
                # The first token, the usual sink, is a share of its own, and never far.
                bucket_SK = bucket_SK.masked_fill(index_T[keys] == 0, first_token)
                mass_BHSU = mass_BHU.new_zeros(*weights_BHSK.shape[:3], first_token + 1)
                mass_BHSU.scatter_add_(-1, bucket_SK.expand_as(weights_BHSK), weights_BHSK)
                far_SK = (distance_SK >= plan.span.train_len) & (bucket_SK < first_token)
                mass_BHU += mass_BHSU.sum(dim=2)
                entropy_BH += torch.special.entr(weights_BHSK).sum(dim=(2, 3))
                far_BH += (weights_BHSK * far_SK).sum(dim=(2, 3))
                total_BHS = total_BHS + mass_BHSU.sum(dim=-1)
            # The weight that no key has, a sink's, is one outcome more.
            entropy_BH += torch.special.entr(_missing_weight(total_BHS)).sum(dim=2)
        self.entropy_NH.extend((entropy_BH / queries).cpu())
        self.far_NH.extend((far_BH / queries).cpu())
        self.mass_NHU.extend((mass_BHU / queries).cpu())
        # Not added up, since all windows of a length are alike in these.
        self.keys = float(plan.n_T[-queries:].mean())
        self.seen_U = _seen_keys_by_bucket(plan, queries)

    def summary(self, document_N: np.ndarray) -> dict:
        """Values of `measure_attention` for this layer. document_N: the document of each window."""
        mass_HU = torch.stack(self.mass_NHU).mean(dim=0)  # the last bucket is the first token's
        means = []
        halves = []
        for entropy_N in torch.stack(self.entropy_NH).T.numpy():
            mean, error, documents = clustered_mean(entropy_N, document_N)
            means.append(mean)
            halves.append(student_quantile(0.975, documents - 1) * error if documents > 1 else None)
        return {
            "keys": self.keys,
            "seen": self.seen_U.tolist(),
            "entropy": means,
            "entropy_half": halves,
            "first": mass_HU[:, -1].tolist(),
            "sink": _missing_weight(mass_HU.sum(dim=-1)).tolist(),
            "far": torch.stack(self.far_NH).mean(dim=0).tolist(),
            "mass": mass_HU[:, :-1].tolist(),
        }


def measure_attention(evaluation: Scorer, length: int) -> dict:
    """Attention of the last evaluate.targets queries of every window of fixed_targets, in texts of
    `length` tokens, and their loss.

    `layers`: for each layer with attention the keys that a query sees, of these in each bucket
    (`seen`), and for each head the entropy in nats with the half width of its 95 % interval over
    documents (None for one document), and the shares of weight on the first token (`first`), on no
    key (`sink`: a sink's column, the remainder of stick-breaking) and in each bucket of
    `distance_buckets` (`mass`), which do not hold the first token; so first + sink + mass is 1.
    `far`: the part of the mass at distances of the training length and more, which training had
    not. The entropy is that of a query's keys and, as one outcome more, the sink."""
    protocol = FixedTargets(evaluation)
    with _recording_layers(evaluation, protocol.windows.n_targets) as layers:
        nll_NS, _ = protocol.score(length)
    return {
        "length": length,
        "windows": len(nll_NS),
        "documents": len(set(protocol.windows.document_N.tolist())),
        "nll": float(nll_NS.mean(dtype=np.float64)),
        "layers": [layer.summary(protocol.windows.document_N) for layer in layers],
    }


def distance_buckets(length: int) -> list[list[int]]:
    """First and last index distance of each bucket of a text.

    >>> distance_buckets(8)
    [[0, 0], [1, 1], [2, 3], [4, 7]]
    """
    powers = range((length - 1).bit_length())
    return [[0, 0], *([2**power, 2 ** (power + 1) - 1] for power in powers)]


@contextmanager
def _recording_layers(evaluation: Scorer, queries: int) -> Iterator[list[LayerAttention]]:
    """Context in which every text that the model reads adds to the attention of each layer."""
    # An evaluation in bf16 reads by the copy with rounded weights, so that is the one to watch.
    model = rounded(evaluation.model) if evaluation.config.dtype == "bf16" else evaluation.model
    attends = [not layer.encoding.mixes for layer in model.encoding.layers()]
    layers = [LayerAttention() for _ in range(sum(attends))]
    with ExitStack() as stack:
        if isinstance(model, Reader):

            def watch(index: int, plan: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor) -> None:
                # What posbench puts in place reads no input of the layer, so x_BTC is None.
                layers[index].add_windows(plan, None, q_BHTD, k_BGTD, queries)

            model.hook.observe_layer = watch
            stack.callback(setattr, model.hook, "observe_layer", None)
        elif isinstance(model, GPT):
            blocks = itertools.compress(model.layers, attends)
            for block, layer in zip(blocks, layers, strict=True):

                def add(module: Attention, inputs: tuple, layer: LayerAttention = layer) -> None:
                    x_BTC, plan = inputs[:2]
                    layer.add_windows(plan, x_BTC, *module.queries_and_keys(x_BTC), queries)

                stack.callback(block.self_attn.register_forward_pre_hook(add).remove)
        yield layers


def _seen_keys_by_bucket(plan: LayerPlan, queries: int) -> Tensor:
    """Mean number of keys but the first token that the last queries see in each bucket: [U].

    Weight on the first token, the usual sink, is a share of its own."""
    length = len(plan.n_T)

    def of_band(band: BandPlan) -> Tensor:
        """Number of visible keys in each bucket, summed over the last queries: [U]."""
        # A distance has its bucket as its exponent, as in LayerAttention.add_windows.
        seen_U = torch.zeros(len(distance_buckets(length)), dtype=torch.float64)
        for query in range(length - queries, length):
            # Without the first token, whose weight is a share of its own.
            key_K = torch.arange(1, query + 1)
            (seen_K,) = band.seen(torch.tensor([query]), key_K)
            bucket_K = torch.frexp((query - key_K[seen_K]).double()).exponent
            seen_U += bucket_K.bincount(minlength=len(seen_U))
        return seen_U

    total_U = 0
    for band in plan.bands:  # a key is seen in one band at most
        total_U = total_U + band.made_once(("buckets", queries), lambda band=band: of_band(band))
    return total_U / queries


def _missing_weight(total: Tensor) -> Tensor:
    """Weight that a total lacks to 1."""
    missing = 1 - total
    return missing.where(missing > WEIGHT_ROUNDING, 0)
