"""Hybrid layers: local ones with a sliding window, and full ones with another encoding.

The last of every `period` layers sees all keys. RNoPE-SWA (Yang et al. 2025, arXiv 2501.18795):
local RoPE, full NoPE, as in Cohere's Command A and SWAN-GPT (Puvvada et al. 2025, arXiv
2504.08719): the default. Gemma 3 (2025, arXiv 2503.19786): RoPE in both, local base 10^4, full base
10^6, period 6 and window 1024; configs/encoding/gemma3.yaml, with this period. With a window up to
train_len the local layers meet only distances that were in training. So extensions act on the full
layers alone (Gemma 3 does the same with PI), unless `extend_local`. Scales never act on local
layers, whose queries see no more keys than in training. A model of fewer layers than `period` is
one period. Defaults: period 4, window train_len / 2 (larger models: 1/8 and less).

Local layers may have a recurrence in place of attention, as in Qwen3-Next (Qwen 2025) and Kimi
Linear (2025, arXiv 2510.26692): these have no window, and no extension acts on them."""

import functools
import operator
from dataclasses import replace

import torch

from posbench.common.errors import ConfigError
from posbench.encodings.none import NoEncoding
from posbench.position.geometry import Shape, Size, Tokens, Trait
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding, Layer


class Hybrid(Encoding):
    """Two encodings in turn. Raises ConfigError for an encoding made for a whole model, and for a
    window or an extension of layers without attention.
    """

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
        # Within training: windows act there, and local layers meet trained distances alone.
        self.window = window or max(1, shape.train_len // 2)
        period = min(period, shape.n_layer)
        # The last of every `period` layers is full, and of fewer layers the last one.
        self.is_full = [(layer + 1) % period == 0 for layer in range(shape.n_layer)]
        self.extend_local = extend_local
        n_full = sum(self.is_full)
        local_shape = replace(shape, n_layer=shape.n_layer - n_full)
        self.local: Encoding = make_method(local, local_shape, kind=Encoding)
        self.full: Encoding = make_method(full, replace(shape, n_layer=n_full), kind=Encoding)
        for name, node, part in (("local", local, self.local), ("full", full, self.full)):
            if not _acts_inside_attention(part):
                raise ConfigError(
                    f"encoding.{name}={node['_target_']} is for a whole model: choose one that acts"
                    " inside attention."
                )
        if self.local.mixes and (window is not None or extend_local):
            raise ConfigError(
                f"encoding.window={window} and extend_local={extend_local} have no meaning beside"
                f" encoding.local={local['_target_']}, whose layers have no attention: leave both"
                " out."
            )
        # An extension needs traits that all layers have on which it acts; NoPE has none to change.
        extended = [self.full, self.local] if extend_local else [self.full]
        traits = [part.traits for part in extended if not isinstance(part, NoEncoding)]
        self.traits = functools.reduce(operator.and_, traits) if traits else Trait(0)
        if Trait.SPECTRUM in self.traits:
            # OLMo 3 has RoPE of one base in local and full layers, factor 8 from 8,192 tokens
            # (OLMo-core's full_attn_layers_only: encoding=gemma3 encoding.full.base=10000), gpt-oss
            # YaRN in all layers (extend_local).
            self.tested_with = self.tested_with | {
                "yarn": "OLMo 3 (2025); gpt-oss (OpenAI 2025, arXiv 2508.10925)"
            }
        self.scalable = self.full.scalable  # scales act on no local layer

    def layers(self) -> list[Layer]:
        """Layers of both parts, merged in the order of the model."""
        local_layers = iter(self.local.layers())
        full_layers = iter(self.full.layers())
        # Queries of a window see no more keys than in training, so no scale acts on them.
        local_rule = {"window": self.window, "extended": self.extend_local, "scaled": False}
        if self.local.mixes:  # no attention that a window could limit
            local_rule["window"] = None
        layers = []
        for is_full in self.is_full:
            if is_full:
                layers.append(next(full_layers))
            else:
                layers.append(replace(next(local_layers), **local_rule))
        return layers


def _acts_inside_attention(part: Encoding) -> bool:
    """True for an encoding that adds nothing to embeddings and treats all layers alike."""
    if part.reads_tokens:
        return False
    pos_T = torch.zeros(1, dtype=torch.float64)
    if part.embed(pos_T, part.spectrum(), part.rows()) is not None:
        return False
    return part.layers() == Encoding.layers(part)  # the default: no layer has a rule of its own
