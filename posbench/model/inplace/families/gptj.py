"""GPT-J and CodeGen: rotary positions in neighbours of the first channels, by layers' tables.

Wang and Komatsuzaki 2021, kingoflolz/mesh-transformer-jax; Nijkamp et al. 2022, arXiv 2203.13474.
The table of sines and cosines ends with the longest text of the configuration, and its frequencies
do not: what turns q and k here is made from these.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.model.inplace.families.family import Family, attention_outputs, python_module_of

BASE = 10000  # fixed in the code of both families
FLOAT32_TOLERANCE = 1e-5  # largest difference of a table in float32
ROUNDED_TOLERANCE = 1e-2  # in 16 bits


class RotaryTable(nn.Module):
    """Rotary module of the frequencies of `table_NR`: N positions, R / 2 sines and then as many
    cosines.

    Raises ConfigError for a table of other angles.
    """

    def __init__(self, table_NR: Tensor):
        super().__init__()
        n_rows, n_channels = table_NR.shape
        pair_F = torch.arange(0, n_channels, 2, dtype=torch.int64, device=table_NR.device)
        self.register_buffer("inv_freq", 1.0 / (BASE ** (pair_F.float() / n_channels)))
        position_1N = torch.arange(n_rows, device=table_NR.device)[None]
        cos_1NF, sin_1NF = self(table_NR.float(), position_1N)
        computed_NR = torch.cat((sin_1NF, cos_1NF), dim=-1)[0]
        difference = float((computed_NR - table_NR).abs().max())
        allowed = (
            FLOAT32_TOLERANCE
            if table_NR.dtype in (torch.float32, torch.float64)
            else ROUNDED_TOLERANCE
        )
        if not difference <= allowed:  # also true of NaN
            raise ConfigError(
                f"The table of sines and cosines of this model differs by {difference:.1e} from the"
                f" angles of base {BASE}, where rounding explains {allowed:g}: posbench does not"
                " support other tables."
            )

    def forward(self, x: Tensor, position_BT: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of each pair at each position: [B, T, F] each, in the format of x."""
        angle_BTF = position_BT[..., None].float() * self.inv_freq.to(position_BT.device)
        return angle_BTF.cos().to(x.dtype), angle_BTF.sin().to(x.dtype)


class GptJ(Family):
    """GPT-J."""

    name = "GPT-J"

    def __init__(self, model: nn.Module, modules: list[nn.Module]):
        super().__init__(model, modules)
        self.longest_exact_text = len(modules[0].embed_positions)
        self.rotary_table = RotaryTable(modules[0].embed_positions)
        self.rotary_modules = [self.rotary_table]

    def projected_qkv(self, module: nn.Module, hidden_BSC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of each head: [B, S, H, D]."""
        return tuple(
            projection(hidden_BSC).unflatten(-1, (module.num_attention_heads, module.head_dim))
            for projection in (module.q_proj, module.k_proj, module.v_proj)
        )

    def forward(
        self,
        function_name: str,
        module: nn.Module,
        hidden_states: Tensor,
        attention_mask: object = None,
        position_ids: Tensor | None = None,
        layer_past: object = None,
        output_attentions: bool | None = None,
        **unused: object,
    ) -> tuple[Tensor, None]:
        """The module's forward with the registry's function in place of its own scores."""
        q_BSHD, k_BSHD, v_BSHD = self.projected_qkv(module, hidden_states)
        cos_BSF, sin_BSF = self.rotary_table(hidden_states, position_ids)
        apply_rotary = python_module_of(module).apply_rotary_pos_emb
        q_BSHD, k_BSHD = (
            _with_turned_channels(x_BSHD, sin_BSF, cos_BSF, apply_rotary)
            for x_BSHD in (q_BSHD, k_BSHD)
        )
        y_BSC = attention_outputs(
            function_name,
            module,
            tuple(x_BSHD.transpose(1, 2) for x_BSHD in (q_BSHD, k_BSHD, v_BSHD)),
            layer_past,
            attention_mask,
            scaling=1 / module.scale_attn,
            dropout=module.attn_dropout.p,
            output_attentions=output_attentions,
        )
        return module.resid_dropout(module.out_proj(y_BSC)), None


class CodeGen(GptJ):
    """CodeGen, whose projection holds queries, values and keys of four shares of the heads in
    turn.
    """

    name = "CodeGen"
    SHARES = 4  # of the heads in a projection, as its checkpoints are laid out

    def projected_qkv(self, module: nn.Module, hidden_BSC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shares_BSMX = module.qkv_proj(hidden_BSC).unflatten(-1, (self.SHARES, -1))
        q_BSMX, v_BSMX, k_BSMX = shares_BSMX.chunk(3, dim=-1)
        in_order = (q_BSMX, k_BSMX, v_BSMX)
        return tuple(x_BSMX.flatten(2).unflatten(-1, (-1, module.head_dim)) for x_BSMX in in_order)


def _with_turned_channels(
    x_BSHD: Tensor, sin_BSF: Tensor, cos_BSF: Tensor, apply_rotary: Callable
) -> Tensor:
    """Queries or keys with their first 2 F channels turned by a family's own `apply_rotary`."""
    n_turned = 2 * cos_BSF.shape[-1]
    turned, unturned = x_BSHD.tensor_split([n_turned], dim=-1)
    return torch.cat((apply_rotary(turned, sin_BSF, cos_BSF), unturned), dim=-1)
