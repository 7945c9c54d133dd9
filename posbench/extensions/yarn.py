"""YaRN: NTK-by-parts (see ntk_by_parts) and a temperature.

Logits are multiplied by (0.1 ln s + 1)^2, s = target_len / train_len once that exceeds 1. Peng et
al. 2023, arXiv 2309.00071. Paper and code differ in the ramp: `ramp: index` is what shipped models
run (the default here), `ramp: turns` the paper's. The code multiplies cos and sin by 0.1 ln s + 1,
so logits by its square. With partial RoPE that reaches only the channels that turn; here it reaches
all. `temperature: false` leaves the temperature to scale_attention. In short training the rounding
of the ramp (`truncate`) makes many betas equal: with 64 turned channels of base 10^4 and 64 tokens
all from 7.64 on, 10 as well as the published 32, keep the first pair and change the other 31."""

import math
from typing import Literal

from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.position.geometry import Mode, Span


class Yarn(NtkByParts):
    """By parts, and sharper."""

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float | None = None,
        ramp: Literal["index", "turns"] = "index",
        truncate: bool = True,
        temperature: bool = True,
        mode: Mode = "dynamic",
        target_len: float | None = None,
    ):
        # beta None: by the training length
        super().__init__(
            alpha, beta, ramp=ramp, truncate=truncate, mode=mode, target_len=target_len
        )
        self.has_temperature = temperature  # True: the method's own temperature, False: none

    def temperature(self, span: Span) -> float:
        return (0.1 * math.log(span.factor) + 1) ** 2 if self.has_temperature else 1.0
