"""Time to read texts, measured in a second or two on one layer of a model's size with random
weights, for dry runs of a checkpoint.

Attention is measured with the method itself, on one key head, at the text's own length or as much
of it as takes about a second, and counted by the pairs of query and key that the method reads. All
other products are measured by token.

Letters: B batch, T tokens, H heads, G key heads, D head width, C width, R scored rows, V
vocabulary."""

import functools
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F

from posbench.config.schema import JobConfig
from posbench.evaluation.protocol import ReadVolume
from posbench.model import precision as bf16
from posbench.model.build import make_encoding, pick_device
from posbench.model.gpt import GPT
from posbench.model.kernels.dispatch import attend
from posbench.model.rounded import rounded
from posbench.position.instantiate import make
from posbench.position.layer_plan import LayerPlan
from posbench.position.plan import make_plan

TOKENS = 1024  # of the text that the layer reads
ROWS, ENTRIES = 1024, 8192  # scored rows, and entries of the vocabulary that they are compared with
FLOP = 6e10  # most FLOP of attention on one key head: a second of a core, or two
LONGER = 1.25  # text over training length from which a method's geometry beyond the window counts


class EvaluationSpeed:
    """Seconds of this machine for texts of one model in one number format. Raises ConfigError for a
    device that is not there.
    """

    def __init__(self, cfg: JobConfig, vocab_size: int, dtype: str):
        self.config, self.dtype, self.vocab_size = cfg.model, dtype, vocab_size
        self.encoding, self.device = make_encoding(cfg), pick_device(cfg.device)
        self.known: dict[tuple, float] = {}  # seconds of a layer on one key head, by its geometry

    def seconds(self, reading: ReadVolume, extension: dict, scale: dict) -> float:
        """Seconds of a reading. The last layer computes only the rows that are scored."""
        config, methods = self.config, (make(extension), make(scale, self.encoding.shape))
        plans = (
            make_plan(self.encoding, *methods, length=n, device=self.device)
            for n in (reading.tokens, self._shorter(reading.tokens))
        )
        whole, shorter = (plan.layers for plan in plans)
        attention = (
            sum(map(_pairs_read, whole)) / config.n_layer * self._pair(shorter) * config.kv_heads
        )
        layers = config.n_layer - 1 + reading.rows / reading.tokens
        return reading.texts * (
            layers * (reading.tokens * self.token + attention) + reading.rows * self.row
        )

    @functools.cached_property
    def model(self) -> GPT:
        """One layer, and a head of some entries, as an evaluation runs them."""
        model = (
            GPT(replace(self.config, n_layer=1), self.encoding, min(ENTRIES, self.vocab_size))
            .to(self.device)
            .eval()
        )
        return rounded(model) if self.dtype == "bf16" else model

    @functools.cached_property
    def token(self) -> float:
        """Seconds of one token in a layer, without its attention."""
        block, config = self.model.layers[0], self.config
        x_BTC = torch.randn(1, TOKENS, config.d_model, device=self.device)
        layer = make_plan(self.encoding, length=TOKENS, device=self.device).layers[0]
        return (
            max(
                1e-9,
                self._time(lambda: block(x_BTC, layer)) - self._attention(layer, config.kv_heads),
            )
            / TOKENS
        )

    @functools.cached_property
    def row(self) -> float:
        """Seconds of one scored row: the output head and its loss."""
        head = self.model.lm_head
        x_RC, target_R = (
            torch.randn(ROWS, self.config.d_model, device=self.device),
            torch.zeros(ROWS, dtype=torch.long, device=self.device),
        )

        def read() -> torch.Tensor:
            logits_RV = head(x_RC).float()
            return F.cross_entropy(logits_RV, target_R, reduction="none") + logits_RV.argmax(-1)

        return self._time(read) / ROWS * self.vocab_size / head.out_features

    def _pair(self, layers: tuple[LayerPlan, ...]) -> float:
        """Seconds of a pair of query and key on one key head."""
        for layer in layers:
            if (geometry := _geometry(layer)) not in self.known:
                self.known[geometry] = self._attention(layer, 1)
        return sum(self.known[_geometry(layer)] for layer in layers) / sum(map(_pairs_read, layers))

    def _shorter(self, length: int) -> int:
        groups, width = self.config.n_head // self.config.kv_heads, self.encoding.shape.head_dim
        affordable = (
            FLOP / (2 * groups * width)
        ) ** 0.5  # 4 per channel and pair, half of the square
        return min(
            length, max(TOKENS, int(min(affordable, LONGER * self.encoding.shape.train_len)))
        )

    def _attention(self, layer: LayerPlan, key_heads: int) -> float:
        config, length, width = self.config, len(layer.n_T), self.encoding.shape.head_dim
        heads = key_heads * (config.n_head // config.kv_heads)
        made = functools.partial(torch.randn, device=self.device)
        q_BHTD, k_BGTD, v_BGTD = (
            made(1, count, length, width) for count in (heads, key_heads, key_heads)
        )
        x_BTC, v_BGTD = (
            made(1, length, config.d_model),
            v_BGTD.bfloat16() if self.dtype == "bf16" else v_BGTD,
        )
        return self._time(lambda: attend(layer, x_BTC, q_BHTD, k_BGTD, v_BGTD))

    @torch.inference_mode()
    def _time(self, work: Callable[[], torch.Tensor]) -> float:
        """Seconds of the shortest of three calls, of long ones two: the first also prepares, and
        other work may stall any of them.
        """
        spent: list[float] = []
        while len(spent) < 2 or (len(spent) < 3 and sum(spent) < 0.5):
            began = time.perf_counter()
            with bf16.autocast(self.device, self.dtype):
                work()
            if self.device.startswith("cuda"):
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - began)
        return min(spent)


def _pairs_read(layer: LayerPlan) -> int:
    """Number of pairs of query and key that a kernel reads in a layer, seen or not."""
    return int(sum(band.width_T.sum() for band in layer.bands))


def _geometry(layer: LayerPlan) -> tuple:
    """Key of layers that take the same time: the keys that each band reads, and whether a scale
    acts on single scores or adds a sink.
    """
    seen = [
        (int(band.first_T.sum()), int(band.last_T.sum()), int(band.seen_T.sum()))
        for band in layer.bands
    ]
    return len(layer.n_T), layer.causal, len(layer.distance_rules), layer.has_sink, *seen
