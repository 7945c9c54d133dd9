"""Hybrid layers: local layers with a sliding window; the last of every `period` layers sees all
keys, with another encoding.

RNoPE-SWA (Yang et al. 2025, arXiv 2501.18795): local RoPE, full NoPE, as in Cohere's Command A and
SWAN-GPT (Puvvada et al. 2025, arXiv 2504.08719): the default. Gemma 3 (2025, arXiv 2503.19786):
RoPE in both, local base 10^4, full base 10^6, period 6 and window 1024;
configs/encoding/gemma3.yaml, with this period. With a window up to train_len the local layers meet
only distances that were in training. So extensions act on the full layers alone (Gemma 3 does the
same with PI), unless `extend_local`. Scales never act on local layers, whose queries see no more
keys than in training. A model of fewer layers than `period` is one period. Defaults: period 4,
window train_len / 2 (larger models: 1/8 and less)."""

from dataclasses import replace

import torch

from posbench.common.errors import ConfigError
from posbench.encodings.none import NoEncoding
from posbench.position.geometry import Shape, Size, Tokens, Trait
from posbench.position.instantiate import make
from posbench.position.interfaces import Encoding, Layer


class Hybrid(Encoding):
    """Two encodings in turn. Raises ConfigError for an encoding made for a whole model."""

    tested_with = {"pi": "Gemma 3 (2025, arXiv 2503.19786)"}

    def __init__(
        self,
        shape: Shape,
        local: dict,
        full: dict,
        period: Size = 4,
        window: Tokens | None = None,
        extend_local: bool = False,
    ):
        super().__init__(shape)
        self.window = window or max(1, shape.train_len // 2)
        period = min(period, shape.n_layer)
        self.is_full = [(layer + 1) % period == 0 for layer in range(shape.n_layer)]
        self.extend_local = extend_local
        n_full = sum(self.is_full)
        self.local: Encoding = make(
            local, replace(shape, n_layer=shape.n_layer - n_full), kind=Encoding
        )
        self.full: Encoding = make(full, replace(shape, n_layer=n_full), kind=Encoding)
        for name, node, part in (("local", local, self.local), ("full", full, self.full)):
            embeds = (
                part.embed(torch.zeros(1, dtype=torch.float64), part.spectrum(), part.rows())
                is not None
            )
            if embeds or part.layers() != Encoding.layers(part):
                raise ConfigError(
                    f"encoding.{name}={node['_target_']} is for a whole model: choose one that acts"
                    " inside attention."
                )
        extended = [
            part
            for part in (self.full, self.local)[: 1 + extend_local]
            if not isinstance(part, NoEncoding)
        ]
        self.traits = extended[0].traits if extended else Trait(0)
        for part in extended[1:]:
            self.traits &= part.traits
        if Trait.SPECTRUM in self.traits:
            # OLMo 3 has RoPE of one base in local and full layers, factor 8 from 8,192 tokens
            # (OLMo-core's full_attn_layers_only: encoding=gemma3 encoding.full.base=10000), gpt-oss
            # YaRN in all layers (extend_local).
            self.tested_with = self.tested_with | {
                "yarn": "OLMo 3 (2025); gpt-oss (OpenAI 2025, arXiv 2508.10925)"
            }
        self.scalable = self.full.scalable

    def layers(self) -> list[Layer]:
        local, full = iter(self.local.layers()), iter(self.full.layers())
        return [
            (
                next(full)
                if is_full
                else replace(
                    next(local), window=self.window, extended=self.extend_local, scaled=False
                )
            )
            for is_full in self.is_full
        ]
