"""The gated delta rule in chunks beside the recurrence step by step, and the layers beside those of
transformers.
"""

import pytest
import torch
from conftest import choices, make_triple, node, small_model, small_shape
from measures import LONG, same, tokens
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.gated_deltanet import GatedDeltaNet
from posbench.encodings.kimi_delta import KimiDelta
from posbench.evaluation.scorer import Scorer
from posbench.position import delta_rule
from posbench.position.delta_rule import gated_delta_rule
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding
from posbench.position.legality import verdict_of
from posbench.position.plan import make_plan
from posbench.tools.anatomy.dissect import dissect

RECURRENT = ["gated_deltanet", "kimi_delta"]


def arguments(length: int, rates: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v, log a and b of two texts and three heads, 5 channels of keys and 7 of values."""
    random = torch.Generator().manual_seed(length)
    shapes = [(5,), (5,), (7,), (rates,), ()]
    q, k, v, a, b = (
        torch.randn(2, 3, length, *shape, generator=random, dtype=dtype) for shape in shapes
    )
    unit = torch.nn.functional.normalize
    return [unit(q, dim=-1), unit(k, dim=-1), v, -a.exp(), b.sigmoid()]


def step_by_step(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, b: Tensor) -> Tensor:
    """S = S diag(a) (I - b k k^T) + b v k^T, o = S q, as the papers write it."""
    state = torch.zeros(*v.shape[:2], v.shape[-1], k.shape[-1], dtype=v.dtype)
    identity = torch.eye(k.shape[-1], dtype=v.dtype)
    outputs = []
    for t in range(q.shape[2]):
        key, beta = k[:, :, t], b[:, :, t, None, None]
        forgotten = state * log_a[:, :, t, None].exp()
        erase = identity - beta * key[..., None] * key[..., None, :]
        state = forgotten @ erase + beta * v[:, :, t, :, None] * key[..., None, :]
        outputs.append((state @ q[:, :, t, :, None])[..., 0])
    return torch.stack(outputs, dim=2)


@pytest.mark.parametrize("rates", [1, 5])
@pytest.mark.parametrize("length", [1, 15, 16, 65, 150])
def test_chunks_and_their_gradients_are_the_recurrence(length, rates, monkeypatch):
    monkeypatch.setattr(delta_rule, "PIECE_TOKENS", 64)
    leaves = [leaf.requires_grad_() for leaf in arguments(length, rates)]
    result, expected = gated_delta_rule(*leaves), step_by_step(*leaves)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    weigh = torch.randn(expected.shape, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad((result * weigh).sum(), leaves),
        torch.autograd.grad((expected * weigh).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("rates", [1, 5])
def test_equal_keys_and_fast_forgetting_stay_exact_in_float32(rates):
    """Keys that are all equal, each replaced wholly; a state that is forgotten between two tokens,
    of which exp(sum) alone would overflow.
    """
    q, k, v, log_a, b = arguments(150, rates, torch.float32)
    k = k[:, :, :1].expand_as(k)
    for decay in (torch.zeros_like(log_a), 100 * log_a):
        result = gated_delta_rule(q, k, v, decay, torch.ones_like(b))
        wide = [part.double() for part in (q, k, v, decay, torch.ones_like(b))]
        same(result, step_by_step(*wide).float(), atol=1e-5)


@pytest.mark.parametrize("name", ["torch_chunk", "torch_recurrent"])
def test_a_rate_for_each_head_is_the_rule_of_qwen3_next(name):
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    q, k, v, log_a, b = arguments(150, 1, torch.float32)
    by_token = [part.transpose(1, 2) for part in (q, k, v, log_a.squeeze(-1), b)]
    theirs, _ = getattr(qwen, f"{name}_gated_delta_rule")(*by_token)
    same(gated_delta_rule(q * 5**-0.5, k, v, log_a, b), theirs.transpose(1, 2))


def released_layers() -> list[tuple[Encoding, nn.Module, dict[str, str]]]:
    """(encoding, layer of transformers at the same sizes, {its weight: ours}) of both models."""
    shape = small_shape()  # 4 heads of 8 channels, width 32
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    next_config = qwen.Qwen3NextConfig(
        hidden_size=32,
        num_hidden_layers=4,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    kimi_config = kimi.KimiLinearConfig(
        hidden_size=32,
        num_hidden_layers=4,
        linear_num_heads=4,
        linear_head_dim=8,
        rms_norm_eps=1e-6,
    )
    return [
        (GatedDeltaNet(shape), qwen.Qwen3NextGatedDeltaNet(next_config, 0)),
        (KimiDelta(shape), kimi.KimiLinearDeltaAttention(kimi_config, 0)),
    ]


@torch.no_grad()
def their_weights(theirs: nn.Module, kind: str) -> dict[str, Tensor]:
    """Weights of a layer of transformers under our names."""
    weights = {"conv.weight_KW": theirs.conv1d.weight[:, 0].T}
    if kind == "GatedDeltaNet":
        # Rows are grouped by the heads of keys: q, k, two heads of v, two of the gate.
        groups = theirs.in_proj_qkvz.weight.unflatten(0, (4, -1)).split([8, 8, 16, 16], dim=1)
        q, k, v, gate = (group.flatten(0, 1) for group in groups)
        b, a = (
            group.flatten(0, 1)
            for group in theirs.in_proj_ba.weight.unflatten(0, (4, -1)).split([2, 2], dim=1)
        )
        weights |= {"q_proj": q, "k_proj": k, "v_proj": v, "gate_proj": gate, "b_proj": b}
        weights |= {"a_proj": a, "o_proj": theirs.out_proj.weight}
        weights |= {"log_rate_H": theirs.A_log, "step_bias_H": theirs.dt_bias}
        weights["norm"] = theirs.norm.weight
    else:
        weights |= {
            name: getattr(theirs, name).weight
            for name in ("q_proj", "k_proj", "v_proj", "b_proj", "o_proj")
        }
        weights |= {"gate_in_proj": theirs.g_a_proj.weight, "gate_out_proj": theirs.g_b_proj.weight}
        forget = theirs.forget_gate
        weights |= {"a_in_proj": forget.f_a_proj.weight, "a_out_proj": forget.f_b_proj.weight}
        weights |= {"log_rate_H": forget.A_log.flatten(), "step_bias_W": forget.dt_bias}
        weights["norm"] = theirs.o_norm.weight
    return {
        name if "." in name or "_H" in name or "_W" in name else f"{name}.weight": weight
        for name, weight in weights.items()
    }


@torch.no_grad()
@pytest.mark.parametrize("number", [0, 1])
def test_layers_are_those_of_qwen3_next_and_kimi_linear(number):
    encoding, theirs = released_layers()[number]
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        parameter.normal_(std=0.3)
    mixer = encoding.mixer(0)
    mixer.load_state_dict(their_weights(theirs, type(encoding).__name__))
    x_BTC = torch.randn(2, 100, 32)
    result, expected = mixer(x_BTC), theirs.float()(x_BTC)
    assert expected.std() > 0.01
    same(result, expected, atol=5e-5)


@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear"])
def test_the_last_of_four_layers_has_attention_as_released(name):
    encoding = make_method(node("encoding", name), small_shape(n_layer=8))
    kinds = [layer.encoding.mixes for layer in encoding.layers()]
    assert kinds == [True, True, True, False] * 2
    model = small_model(encoding, n_layer=8)
    assert [hasattr(block, "mixer") for block in model.layers] == kinds
    assert [hasattr(block, "self_attn") for block in model.layers] == [not kind for kind in kinds]
    if name == "qwen3_next":
        qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
        types = qwen.Qwen3NextConfig(num_hidden_layers=8).layer_types
        assert [kind == "linear_attention" for kind in types] == kinds


@torch.no_grad()
@pytest.mark.parametrize("name", [*RECURRENT, "qwen3_next", "kimi_linear"])
def test_the_last_positions_alone_are_those_of_the_whole_text(name):
    model = small_model(make_method(node("encoding", name), small_shape()))
    text_BT = tokens(LONG)
    same(model(text_BT, last=3), model(text_BT)[:, -3:])


@pytest.mark.parametrize("name", RECURRENT)
def test_nothing_acts_on_a_model_without_attention_but_a_crop(name):
    for extension in choices("extension"):
        pair = make_triple(name, extension, "none")
        crops = extension == "recompute_window"
        assert bool(verdict_of(*pair, [LONG]).noop) != (crops or extension == "none"), extension
    for scale in ("log_n", "off_by_one"):
        assert verdict_of(*make_triple(name, "none", scale), [LONG]).noop
    encoding, extension, scale = make_triple(name, "none", "none")
    with pytest.raises(ConfigError, match="no attention"):
        dissect(encoding, extension, scale, LONG)


def test_methods_act_on_the_attention_of_a_hybrid_alone():
    encoding, extension, scale = make_triple("qwen3_next", "rerope", "off_by_one")
    plan = make_plan(encoding, extension, scale, length=LONG)
    assert [len(layer.bands) for layer in plan.layers] == [1, 2]
    assert [layer.has_sink for layer in plan.layers] == [False, True]
    assert Scorer.max_distance(None, plan) == plan.layers[1].bands[1].q_pos_T.max()
    numbers = dissect(encoding, extension, scale, LONG).numbers
    assert numbers["without_attention"] == [0]
    assert [layer["numbers"] for layer in numbers["layers"]] == [[1]]
