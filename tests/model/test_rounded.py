"""Evaluation in bf16: weights rounded once, and sums in place, give what autocast gives with
gradients.
"""

import gc
import weakref

import pytest
import torch

from posbench.config.names import shipped_yamls
from posbench.config.schema import ModelConfig
from posbench.model import precision as bf16
from posbench.model.gpt import GPT, make_shape
from posbench.model.rounded import rounded
from posbench.position import rotation as cache
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan

VOCAB = 61
KINDS = {
    "plain": ("rope", {}),
    "tied": ("rope", {"tied": True, "n_kv_head": 1, "qkv_bias": True}),
    "rms": ("rope", {"qk_norm": "rms"}),
    "interleaved": ({"layout": "interleaved"}, {}),
    "part": ({"fraction": 0.5}, {}),
    "gates": ("fox_rope", {}),
    "mixed": ("fope", {}),
    "added": ("sinusoidal", {}),
}


def model_of(kind: str = "plain") -> GPT:
    encoding, changed = KINDS[kind]
    node = (
        shipped_yamls("encoding")[encoding]
        if isinstance(encoding, str)
        else {**shipped_yamls("encoding")["rope"], **encoding}
    )
    config = ModelConfig(d_model=32, n_head=2, n_layer=2, d_ff=48, **changed)
    torch.manual_seed(0)
    model = GPT(config, make_method(node, make_shape(config, 64)), VOCAB)
    for parameter in model.layers.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    torch.nn.init.normal_(model.lm_head.weight)
    return model.eval()


def logits(
    model: GPT, text_BT: torch.Tensor, dtype: str = "bf16", last: int | None = None
) -> torch.Tensor:
    plan = make_plan(model.encoding, length=text_BT.shape[1])
    with bf16.autocast("cpu", dtype):
        return model(text_BT, plan, last).detach()


@pytest.mark.parametrize("piece", [cache.MOST_NUMBERS, 40])  # a piece of 40 numbers is one token
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_with_gradients(kind, piece, monkeypatch):
    """To rounding where gradients take another kernel, whose scores and weights are float32 as
    well; else bit for bit.
    """
    model, text_BT = model_of(kind), torch.randint(0, VOCAB, (2, 33))
    for dtype in ("bf16", "fp32"):
        bound = 2**-6 if dtype == "bf16" else 1e-5
        same = dtype == "bf16" and kind != "gates" and bf16.has_bf16_products()
        within = (
            torch.equal if same else lambda a, b, bound=bound: (a - b).norm() <= bound * b.norm()
        )
        expected, of_last = logits(model, text_BT, dtype), logits(model, text_BT, dtype, last=20)
        monkeypatch.setattr(cache, "MOST_NUMBERS", piece)
        with torch.inference_mode():
            assert within(logits(model, text_BT, dtype), expected)
            assert within(logits(model, text_BT, dtype, last=20), of_last)
            if dtype == "bf16":
                assert within(logits(rounded(model), text_BT), expected)
        monkeypatch.undo()


def test_the_model_stays_as_it_was():
    model, text_BT = model_of("tied"), torch.randint(0, VOCAB, (1, 20))
    before, state = (
        logits(model, text_BT, "fp32"),
        {name: value.clone() for name, value in model.state_dict().items()},
    )
    other = rounded(model)
    with torch.inference_mode():
        logits(other, text_BT)
    assert torch.equal(logits(model, text_BT, "fp32"), before)
    assert list(model.state_dict()) == list(state) and all(
        value.equal(state[name]) for name, value in model.state_dict().items()
    )
    assert not any(value.dtype == torch.bfloat16 for value in model.parameters())


def test_only_products_of_the_blocks_and_the_head_are_in_bf16_and_all_else_is_shared():
    for kind in KINDS:
        model = model_of(kind)
        rounded_weights, weights = (
            network.state_dict(keep_vars=True) for network in (rounded(model), model)
        )
        products = {name for name in weights if "_proj." in name or name == "lm_head.weight"}
        assert {
            name for name, value in rounded_weights.items() if value.dtype == torch.bfloat16
        } == products
        assert all(rounded_weights[name] is weights[name] for name in weights.keys() - products)
        assert rounded(model).encoding is model.encoding


def test_it_is_made_once_and_again_when_a_weight_changed():
    model, text_BT = model_of(), torch.randint(0, VOCAB, (1, 20))
    first = rounded(model)
    assert rounded(model) is first
    with torch.no_grad():
        model.layers[1].mlp.up_proj.weight.mul_(2)
    assert rounded(model) is not first
    assert torch.equal(logits(rounded(model), text_BT), logits(model, text_BT))
    model.load_state_dict(
        {name: torch.ones_like(value) for name, value in model.state_dict().items()}, assign=True
    )
    assert torch.equal(logits(rounded(model), text_BT), logits(model, text_BT))


def test_it_leaves_with_the_model():
    model = model_of()
    gone = weakref.ref(rounded(model))
    del model
    gc.collect()
    assert gone() is None


def test_pieces_are_all_of_it(monkeypatch):
    monkeypatch.setattr(cache, "MOST_NUMBERS", 10)
    for shape, dim in (
        ((3, 7, 2), 1),
        ((1, 1), 0),
        ((2, 4, 999), 1),
        ((0, 5), 1),
        ((5, 0), 0),
        ((4, 0), 1),
    ):
        slices = cache.small_slices(torch.zeros(shape), dim)
        assert [i for some in slices for i in range(shape[dim])[some]] == list(range(shape[dim]))
    assert len(cache.small_slices(torch.zeros(100, 10), 0)) == 100
