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
from posbench.position.instantiate import make_method
from posbench.position.layer_plan import LayerPlan
from posbench.position.plan import make_plan

MEASURED_TOKENS = 1024  # of the text that the layer reads
MEASURED_ROWS = 1024  # that are scored
MEASURED_ENTRIES = 8192  # of the vocabulary that they are compared with
MOST_FLOP = 6e10  # most FLOP of attention on one key head: a second of a core, or two
LONG_SECONDS = 0.5  # of two calls, after which no third is made
# Text over training length from which a method's geometry beyond the window counts.
LONG_MULTIPLE = 1.25


class EvaluationSpeed:
    """Seconds of this machine for texts of one model in one number format. Raises ConfigError for a
    device that is not there.
    """

    def __init__(self, config: JobConfig, vocab_size: int, dtype: str):
        self.config = config.model
        self.dtype = dtype
        self.vocab_size = vocab_size
        self.encoding = make_encoding(config)
        self.device = pick_device(config.device)
        # {_time_key of a layer: its seconds on one key head}
        self.seconds_by_time_key: dict[tuple, float] = {}

    def seconds(self, reading: ReadVolume, extension: dict, scale: dict) -> float:
        """Seconds of a reading. The last layer computes only the rows that are scored."""
        config = self.config
        methods = make_method(extension), make_method(scale, self.encoding.shape)
        layers, shorter_layers = (
            make_plan(self.encoding, *methods, length=length, device=self.device).layers
            for length in (reading.tokens_per_text, self._measured_length(reading.tokens_per_text))
        )
        pairs_per_layer = sum(map(_pairs_read, layers)) / config.n_layer  # in the mean
        # The time of a pair is measured on a shorter text, whose attention takes a second or two.
        # A pair counts for one key head and all its query heads.
        attention = pairs_per_layer * self._seconds_per_pair(shorter_layers) * config.kv_heads
        n_layers = config.n_layer - 1 + reading.rows_per_text / reading.tokens_per_text
        of_layers = n_layers * (reading.tokens_per_text * self.seconds_per_token + attention)
        return reading.texts * (of_layers + reading.rows_per_text * self.seconds_per_row)

    @functools.cached_property
    def model(self) -> GPT:
        """One layer, and a head of some entries, as an evaluation runs them."""
        config = replace(self.config, n_layer=1)
        entries = min(MEASURED_ENTRIES, self.vocab_size)
        model = GPT(config, self.encoding, entries).to(self.device).eval()
        return rounded(model) if self.dtype == "bf16" else model

    @functools.cached_property
    def seconds_per_token(self) -> float:
        """Seconds of one token in a layer, without its attention."""
        block = self.model.layers[0]
        x_BTC = torch.randn(1, MEASURED_TOKENS, self.config.d_model, device=self.device)
        layer = make_plan(self.encoding, length=MEASURED_TOKENS, device=self.device).layers[0]
        of_block = self._shortest_seconds(lambda: block(x_BTC, layer))
        of_attention = self._attention_seconds(layer, self.config.kv_heads)
        # Above 0, since both times are measured and the difference of noise may be below.
        return max(1e-9, of_block - of_attention) / MEASURED_TOKENS

    @functools.cached_property
    def seconds_per_row(self) -> float:
        """Seconds of one scored row: the output head and its loss."""
        head = self.model.lm_head
        x_RC = torch.randn(MEASURED_ROWS, self.config.d_model, device=self.device)
        target_R = torch.zeros(MEASURED_ROWS, dtype=torch.long, device=self.device)

        def read() -> torch.Tensor:
            # Scoring takes both, the loss and the likeliest token; their sum means nothing.
            logits_RV = head(x_RC).float()
            return F.cross_entropy(logits_RV, target_R, reduction="none") + logits_RV.argmax(-1)

        # The measured head has MEASURED_ENTRIES of a larger vocabulary.
        return self._shortest_seconds(read) / MEASURED_ROWS * self.vocab_size / head.out_features

    def _seconds_per_pair(self, layers: tuple[LayerPlan, ...]) -> float:
        """Seconds of a pair of query and key on one key head."""
        seconds = 0.0
        for layer in layers:
            key = _time_key(layer)
            if key not in self.seconds_by_time_key:
                self.seconds_by_time_key[key] = self._attention_seconds(layer, key_heads=1)
            seconds += self.seconds_by_time_key[key]
        return seconds / sum(map(_pairs_read, layers))

    def _measured_length(self, length: int) -> int:
        """Length of the text at which attention is measured, in tokens."""
        shape = self.encoding.shape
        # Attention is measured on one key head with its query heads.
        query_heads = self.config.n_head // self.config.kv_heads
        # 4 FLOP per channel and pair, half of the square.
        affordable = (MOST_FLOP / (2 * query_heads * shape.head_dim)) ** 0.5
        measured = int(min(affordable, LONG_MULTIPLE * shape.train_len))
        return min(length, max(MEASURED_TOKENS, measured))

    def _attention_seconds(self, layer: LayerPlan, key_heads: int) -> float:
        """Seconds of the attention of a layer with so many key heads."""
        length = len(layer.n_T)
        width = self.encoding.shape.head_dim
        heads = key_heads * (self.config.n_head // self.config.kv_heads)
        q_BHTD, k_BGTD, v_BGTD = (
            torch.randn(1, count, length, width, device=self.device)
            for count in (heads, key_heads, key_heads)
        )
        x_BTC = torch.randn(1, length, self.config.d_model, device=self.device)
        if self.dtype == "bf16":  # as in Attention, whose q and k are in float32 for the rotation
            v_BGTD = v_BGTD.bfloat16()
        return self._shortest_seconds(lambda: attend(layer, x_BTC, q_BHTD, k_BGTD, v_BGTD))

    @torch.inference_mode()
    def _shortest_seconds(self, work: Callable[[], torch.Tensor]) -> float:
        """Seconds of the fastest of three calls, or of two if these take LONG_SECONDS: the first
        also prepares, and other work may stall any of them.
        """
        spent: list[float] = []
        while len(spent) < 2 or (len(spent) < 3 and sum(spent) < LONG_SECONDS):
            began = time.perf_counter()
            with bf16.autocast(self.device, self.dtype):
                work()
            if self.device.startswith("cuda"):
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - began)
        return min(spent)


def _pairs_read(layer: LayerPlan) -> int:
    """Number of pairs of query and key that a kernel reads in a layer, seen or not."""
    return int(sum(band.n_interval_keys_T.sum() for band in layer.bands))


def _time_key(layer: LayerPlan) -> tuple:
    """Key of layers that take the same time: the keys that each band reads, and whether a scale
    acts on single scores, adds a sink or weighs whole rows.
    """
    seen = [
        (int(band.first_T.sum()), int(band.last_T.sum()), int(band.n_seen_T.sum()))
        for band in layer.bands
    ]
    scales = (len(layer.distance_rules), layer.has_sink, layer.row_weighing_scale is not None)
    return len(layer.n_T), layer.causal, *scales, *seen
