"""LeRoPE: RoPE whose frequencies are learned.

They are theta_c e^(a_c), one number a_c for each pair, 0 at the start, shared by all layers.
Mistral AI 2026 (Mistral Large 4), as in transformers' models/mistral_large4, the only source: a
model with YaRN from 512 tokens, every fourth layer without rotation, and logits times a_h ln n +
b_h: configs/encoding/mistral_large4.yaml, with train.scale_attention=ssmax
train.scale_attention.bias=true and, beyond the training length, extension=yarn
extension.temperature=false. As in that code an extension changes the frequencies of the grid, and
e^(a_c) multiplies what it makes of them. The angles of a table are float64 and turned in every
pass, so that a_c has a gradient."""

import torch
from torch import Tensor, nn

from posbench.encodings.rope import Rope
from posbench.position.geometry import Base, Layout, Period, Shape, Spectrum


class LeRope(Rope):
    """Rotary positions with a learned factor on each frequency; no weight decay. For the other
    arguments see rope.py.
    """

    tested_with = {"yarn": "Mistral Large 4 (Mistral AI 2026)"}

    def __init__(
        self,
        shape: Shape,
        base: Base = 10000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
        scaling: dict | None = None,
        scaling_len: float | None = None,
        amplitude: float | None = None,
        unturned: list[int] | Period | None = None,
    ):
        super().__init__(
            shape,
            base,
            layout,
            fraction,
            scaling=scaling,
            scaling_len=scaling_len,
            amplitude=amplitude,
            unturned=unturned,
        )
        self.log_scale_F = nn.Parameter(torch.zeros(self.rotary_dim // 2))

    @torch.no_grad()
    def turning(self, spectrum: Spectrum) -> Spectrum:
        factor_F = self.log_scale_F.double().exp().cpu()
        return spectrum.changed(lambda freq_F: freq_F * factor_F)

    def table(self, pos_T: Tensor, spectrum: Spectrum) -> Tensor:
        """Angles before the learned factor: [1, T, F], float64."""
        return spectrum.angles(pos_T)[None]

    def between(self, upper_table: Tensor, lower_table: Tensor, share_T: Tensor) -> Tensor:
        """Angles of both tables and the share, since angles are not what scores are linear in: [3,
        T, F].
        """
        share_1TF = share_T[:, None].to(upper_table).expand_as(upper_table)
        return torch.cat((upper_table, lower_table, share_1TF))

    def rotate(
        self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        return super().rotate(
            q_BHTD,
            k_BGTD,
            self._cos_and_sin_of_angles(q_table),
            self._cos_and_sin_of_angles(k_table),
        )

    def _cos_and_sin_of_angles(self, table: Tensor) -> Tensor:
        """cos and sin of the angles, times the amplitude of the scaling: [2, T, F], float32."""
        # [3, T, F] of `between`: angles of two whole coordinates, and the share of the lower one.
        if len(table) > 1:
            upper_table, lower_table, share_1TF = table.split(1)
            return self._cos_and_sin_of_angles(upper_table).lerp(
                self._cos_and_sin_of_angles(lower_table), share_1TF.float()
            )
        angle_1TF = table * self.log_scale_F.double().exp()
        return (torch.cat((angle_1TF.cos(), angle_1TF.sin())) * self.amplitude).float()
