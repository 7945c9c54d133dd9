"""The gate on the output of attention: Qwen3-Next's own attention, the formula by heads, and what
it leaves as it is.
"""

import pytest
import torch
from conftest import small_model, small_shape
from measures import tokens

from posbench.config.schema import ModelConfig
from posbench.encodings.rope import Rope
from posbench.model.attention import Attention
from posbench.model.rounded import rounded
from posbench.position.plan import make_plan

LENGTH, WIDTH = 21, 8


def attention_of(kind: str, **changed) -> Attention:
    torch.manual_seed(0)
    attention = Attention(
        ModelConfig(d_model=32, n_layer=1, n_head=4, n_kv_head=2, output_gate=kind, **changed)
    )
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            parameter.normal_(mean=float("gain" in name), std=0.3)
    return attention


@torch.no_grad()
def test_the_elementwise_gate_is_that_of_qwen3_next():
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    config = qwen.Qwen3NextConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=WIDTH,
        rms_norm_eps=1e-5,
        attn_implementation="eager",
    )
    theirs, ours = qwen.Qwen3NextAttention(config, 0), attention_of("elementwise", qk_norm="rms")
    for name in ("k_proj", "v_proj", "o_proj"):
        getattr(theirs, name).weight.copy_(getattr(ours, name).weight)
    # Theirs is one matrix: for each head the rows of its queries, then those of its gate.
    both = (getattr(ours, name).weight.unflatten(0, (4, WIDTH)) for name in ("q_proj", "gate_proj"))
    theirs.q_proj.weight.copy_(torch.cat(tuple(both), dim=1).flatten(0, 1))
    theirs.q_norm.weight.copy_(ours.norm.q_gain - 1)
    theirs.k_norm.weight.copy_(ours.norm.k_gain - 1)
    encoding, x_BTC = Rope(small_shape(n_layer=1)), torch.randn(2, LENGTH, 32)
    angle_TF = encoding.spectrum().angles(torch.arange(LENGTH)).float()
    turns = [
        torch.cat((wave_TF, wave_TF), dim=-1)[None] for wave_TF in (angle_TF.cos(), angle_TF.sin())
    ]
    mask = torch.full((1, 1, LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)
    expected_BTC, _ = theirs(x_BTC, turns, mask)
    actual_BTC = ours(x_BTC, make_plan(encoding, length=LENGTH).layers[0])
    torch.testing.assert_close(actual_BTC, expected_BTC, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("last", [None, 3])
@pytest.mark.parametrize("kind", ["elementwise", "headwise"])
@torch.no_grad()
def test_a_gate_multiplies_each_channel_or_each_head(kind, last):
    gated, x_BTC, plan = (
        attention_of(kind),
        torch.randn(2, LENGTH, 32),
        make_plan(Rope(small_shape(n_layer=1)), length=LENGTH).layers[0],
    )
    plain = attention_of("none")
    plain.load_state_dict(
        {name: value for name, value in gated.state_dict().items() if "gate" not in name}
    )
    gate_BTN = 1 / (1 + torch.exp(-(x_BTC @ gated.gate_proj.weight.T)))
    gate_BTC = gate_BTN if kind == "elementwise" else gate_BTN.repeat_interleave(WIDTH, dim=-1)
    plain.o_proj = torch.nn.Identity()
    rows = slice(-(last or LENGTH), None)
    expected_BTC = (plain(x_BTC, plan) * gate_BTC)[:, rows] @ gated.o_proj.weight.T
    torch.testing.assert_close(gated(x_BTC, plan, last), expected_BTC, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_gated_model_rounds_its_gates_and_is_causal():
    encoding = Rope(small_shape())
    model = small_model(encoding, output_gate="elementwise")
    plan, text_BT = make_plan(encoding, length=LENGTH), tokens(LENGTH)
    full_logits = model(text_BT, plan)
    other_BT = text_BT.clone()
    other_BT[:, 10] = (other_BT[:, 10] + 1) % 50
    torch.testing.assert_close(
        model(other_BT, plan)[:, :10], full_logits[:, :10], rtol=0, atol=1e-5
    )
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(
            rounded(model)(text_BT, plan), model(text_BT, plan), rtol=0, atol=0
        )
