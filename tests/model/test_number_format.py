"""Attention in bf16 on a CPU: where it is chosen, where float32 stays, and that it is as exact as
bf16 allows.
"""

import pytest
import torch
import torch.nn.functional as F
from conftest import make_triple
from measures import attend_in, attention_inputs

from posbench.model import precision
from posbench.model.kernels import causal, dispatch
from posbench.position.layer_plan import LayerPlan
from posbench.position.plan import make_plan

LONG = precision.LONGEST_UNCHUNKED + 1


@pytest.fixture
def formats(monkeypatch) -> list[torch.dtype]:
    """Formats in which torch's fused kernel was called."""
    dtypes, fused = [], F.scaled_dot_product_attention
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda q, *args, **kwargs: dtypes.append(q.dtype) or fused(q, *args, **kwargs),
    )
    return dtypes


def attended(encoding: str, length: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Output of a layer whose v comes in `dtype`."""
    method, extension, scale = make_triple(encoding, "none", "none")
    (q, k, v), x = attention_inputs(method, length)
    return dispatch.attend(
        make_plan(method, extension, scale, length=length).layers[0], x, q, k, v.to(dtype)
    )


@pytest.mark.parametrize(
    ("encoding", "length", "dtype", "amx", "learns", "expected_dtype"),
    [
        ("rope", LONG, torch.bfloat16, True, False, torch.bfloat16),
        ("alibi", LONG, torch.bfloat16, True, False, torch.bfloat16),
        ("rope", LONG - 1, torch.bfloat16, True, False, None),
        ("rope", LONG, torch.float32, True, False, torch.float32),
        ("rope", LONG, torch.bfloat16, False, False, None),
        ("rope", causal.LONGEST_IN_BF16 + 1, torch.bfloat16, False, False, torch.float32),
        ("rope", LONG, torch.bfloat16, True, True, None),
        ("rope", LONG, torch.float32, True, True, None),
        ("fox", LONG, torch.bfloat16, True, False, torch.float32),
    ],
    ids=[
        "long",
        "columns",
        "short",
        "evaluated in float32",
        "no AMX",
        "no AMX and longer",
        "training",
        "training in float32",
        "gates",
    ],
)
def test_torchs_kernel_is_for_float32_and_long_texts_with_amx(
    encoding, length, dtype, amx, learns, expected_dtype, formats, monkeypatch
):
    monkeypatch.setattr(precision, "has_amx", lambda: amx)
    monkeypatch.setattr(precision, "has_bf16_products", lambda: True)
    with torch.set_grad_enabled(learns):
        assert attended(encoding, length, dtype).dtype == dtype
    assert set(formats) == ({expected_dtype} if expected_dtype else set())  # else causal.py attends


@pytest.mark.parametrize(
    ("tiles", "used", "expected"),
    [(True, "AVX512", True), (False, "AVX512", False), (True, "AVX2", False)],
)
def test_amx_must_be_there_and_torch_must_use_it(tiles, used, expected, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: used)
    assert precision.has_amx.__wrapped__() is expected


@torch.no_grad()
def test_short_texts_are_the_same_bit_for_bit_with_amx_and_without(monkeypatch):
    outputs = {}
    for amx in (True, False):
        monkeypatch.setattr(precision, "has_amx", lambda amx=amx: amx)
        outputs[amx] = [attended("rope", length) for length in (64, LONG - 1, LONG)]
    same = [
        torch.equal(with_it, without)
        for with_it, without in zip(outputs[True], outputs[False], strict=True)
    ]
    assert same == [True, True, False]


@pytest.mark.parametrize("encoding", ["rope", "alibi", "xpos", "pope"])
@torch.no_grad()
def test_bf16_deviates_by_its_rounding(encoding, monkeypatch):
    """Of q, k, the weights and the result, each by up to 2^-9. Positions in columns keep float32's
    exactness: in bf16 257 is 256 or 258.
    """
    monkeypatch.setattr(precision, "has_amx", lambda: True)
    method, extension, scale = make_triple(encoding, "none", "none", train_len=1024)
    (q, k, v), x = attention_inputs(method, 2 * LONG)
    layer = make_plan(method, extension, scale, length=2 * LONG).layers[0]
    assert dispatch.can_fuse(layer)
    expected_BHTD = attend_in(dispatch.attend_fused, layer, q, k, v.bfloat16().float(), x)
    deviation_BHT = (
        attend_in(dispatch.attend_fused, layer, q, k, v.bfloat16(), x) - expected_BHTD
    ).norm(dim=-1) / expected_BHTD.norm(dim=-1)
    assert 1e-4 < deviation_BHT.mean() < 0.006 and deviation_BHT.max() < 0.03


@pytest.mark.parametrize(("width", "inside"), [(16, True), (8, False)])
@torch.no_grad()
def test_a_scale_that_is_left_to_the_kernel_changes_no_digit(width, inside, monkeypatch):
    """Beside heads of another width, a scale or a sink q is scaled before."""
    scales, fused = [], F.scaled_dot_product_attention
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: scales.append(kwargs["scale"]) or fused(*args, **kwargs),
    )
    encoding, extension, scale = make_triple("rope", "none", "none", d_model=4 * width)
    layer, random = (
        make_plan(encoding, extension, scale, length=100).layers[0],
        torch.Generator().manual_seed(0),
    )
    qkv = [torch.randn(1, heads, 100, width, generator=random) for heads in (4, 2, 2)]
    outputs = []
    for bare in (True, False):
        monkeypatch.setattr(LayerPlan, "is_bare", property(lambda layer, bare=bare: bare))
        outputs.append(dispatch.attend_fused(layer, *qkv))
    assert torch.equal(*outputs) and scales == [width**-0.5 if inside else 1.0, 1.0]


def test_only_scores_without_anything_more_are_bare():
    triples = {
        ("rope", "none", "none"): True,
        ("rope", "rerope", "none"): True,
        ("rope", "none", "log_n"): False,
    }
    triples |= {(name, "none", "none"): False for name in ("alibi", "xpos", "fox", "t5")} | {
        ("rope", "none", "off_by_one"): False
    }
    for triple, bare in triples.items():
        assert make_plan(*make_triple(*triple), length=LONG).layers[0].is_bare == bare, triple
