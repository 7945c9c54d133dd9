"""FlexAttention's kernel as far as a CPU shows it: its block masks, how often these and compiled
forms are made, what runs when it fails.

That its results are those of `attend_by_blocks` is in test_methods.py. Tests import torch's
compiler themselves: it takes a second."""

from dataclasses import replace

import pytest
import torch
from conftest import TRAIN_LEN, choices, make_triple, node
from measures import attend_in, attention_inputs

from posbench.extensions.random_keys import RandomKeys
from posbench.model.kernels import dispatch as kernels
from posbench.model.kernels import flex
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.model.memory import tensor_mib
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Extension
from posbench.position.layer_plan import BandPlan
from posbench.position.plan import make_plan

CPU = torch.device("cpu")
LENGTHS = (1, 127, 129, 300, 512)
EXTENSIONS = [
    name
    for name in choices("extension")
    if type(make_method(node("extension", name))).bands is not Extension.bands
]
PAIRS = [*(("rope", extension) for extension in EXTENSIONS), ("gemma3", "none"), ("hybrid", "none")]


def band_of(first_T: torch.Tensor, last_T: torch.Tensor) -> BandPlan:
    return BandPlan(first_T, last_T, first_T.double(), first_T.double(), None, None, None)


def assert_same_blocks(band: BandPlan) -> None:
    """The block mask is the one that torch makes of the whole [T, T] mask. Keys drawn by lot are
    masked in every block of the interval.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    length, (first_T, last_T) = len(band.first_T), (band.first_T, band.last_T)
    expected_mask = create_block_mask(
        lambda b, h, i, j: (j >= first_T[i]) & (j <= last_T[i]),
        None,
        None,
        length,
        length,
        device="cpu",
    )
    *parts, mask = flex.block_mask(band, CPU).as_tuple()
    index_T = torch.arange(length)
    assert torch.equal(mask(0, 0, index_T[:, None], index_T), band.seen(index_T, index_T))
    if band.lot_T is not None:
        blocks = [
            flex.block_mask(replace(band, **lots), CPU)
            for lots in ({}, {"lot_T": None, "share_T": None})
        ]
        assert (
            torch.equal(*(block_mask.to_dense() for block_mask in blocks))
            and not blocks[0].full_kv_num_blocks.any()
        )
        return
    for a, b in zip(parts, expected_mask.as_tuple()[:-1], strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_block_masks_are_those_of_the_whole_mask(pair):
    for train_len in (
        TRAIN_LEN,
        128,
    ):  # blocks of 128 that bands cut, and bands that are whole blocks
        encoding, extension, scale = make_triple(*pair, "none", train_len=train_len)
        for length in LENGTHS:
            for layer in make_plan(encoding, extension, scale, length=length).layers:
                for band in layer.bands:
                    assert_same_blocks(band)


def test_block_masks_of_any_intervals_are_those_of_the_whole_mask():
    random = torch.Generator().manual_seed(0)
    for length in (*LENGTHS, 640):
        index_T = torch.arange(length)
        for _ in range(5):
            first_T, last_T = (
                torch.randint(0, length, (length,), generator=random) for _ in range(2)
            )
            assert_same_blocks(band_of(first_T, torch.minimum(last_T, index_T)))


def test_a_block_mask_takes_no_memory_by_the_square_of_the_tokens():
    index_T = torch.arange(8192)
    assert (
        tensor_mib(lambda: flex.block_mask(band_of(index_T * 0, index_T), CPU)) < 2
    )  # 10 T^2 bytes would be 640 MiB


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_block_mask_is_made_once_for_a_plan(monkeypatch):
    from torch.nn.attention.flex_attention import BlockMask

    calls, make = [], BlockMask.from_kv_blocks
    monkeypatch.setattr(
        BlockMask,
        "from_kv_blocks",
        lambda *args, **kwargs: calls.append(1) or make(*args, **kwargs),
    )
    encoding, extension, scale = make_triple("rope", "rerope", "none")
    plan = make_plan(encoding, extension, scale, length=48)
    *leaves, x = (*attention_inputs(encoding, 48)[0], attention_inputs(encoding, 48)[1])
    with torch.no_grad():
        for layer in [*plan.layers, *plan.layers]:
            attend_in(flex.attend_by_flex, layer, *leaves, x)
    assert len(plan.layers) == 2 and len(plan.layers[0].bands) == len(calls) == 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("clamp", [False, True])
def test_keys_drawn_by_lot_are_those_of_rows(clamp):
    encoding = make_triple("rope", "none", "none")[0]
    layer = make_plan(encoding, RandomKeys(clamp=clamp), length=150).layers[0]
    leaves, x = attention_inputs(encoding, 150)
    with torch.no_grad():
        actual_BHTD, expected_BHTD = (
            attend_in(kernel, layer, *leaves, x)
            for kernel in (flex.attend_by_flex, attend_by_blocks)
        )
    torch.testing.assert_close(actual_BHTD, expected_BHTD, rtol=0, atol=2e-5)


def test_every_shape_is_compiled_however_many_and_never_run_as_it_is(monkeypatch):
    from torch._dynamo.exc import FailOnRecompileLimitHit

    compiled = []
    double = flex.compiled_for_each_shape(
        lambda x: x + x, backend=lambda graph, _: compiled.append(1) or graph.forward
    )
    for length in range(2, 22):
        assert double(torch.ones(length)).sum() == 2 * length
    assert len(compiled) == 20  # torch's own limit is 8
    monkeypatch.setattr(flex, "MOST_COMPILED_SHAPES", 20)
    with pytest.raises(FailOnRecompileLimitHit):
        double(torch.ones(30))


def test_what_is_asked_of_the_kernel_compiles_as_one_graph(monkeypatch):
    from torch.nn.attention.flex_attention import flex_attention

    graphs = []
    compiled = flex.compiled_for_each_shape(
        flex_attention, fullgraph=True, backend=lambda graph, _: graphs.append(1) or graph.forward
    )
    monkeypatch.setattr(flex, "_flex_attention", lambda device: compiled)
    encoding, extension, scale = make_triple("fox_rope", "lm_infinite", "log_n")
    layer = make_plan(encoding, extension, scale, length=40).layers[0]
    leaves, x = attention_inputs(encoding, 40)
    with torch.no_grad():
        actual_BHTD, again, expected_BHTD = (
            attend_in(kernel, layer, *leaves, x)
            for kernel in (flex.attend_by_flex, flex.attend_by_flex, attend_by_blocks)
        )
    torch.testing.assert_close(actual_BHTD, expected_BHTD, rtol=0, atol=2e-5)
    assert (
        torch.equal(actual_BHTD, again) and len(layer.bands) > 1 and len(graphs) == 1
    )  # the bands share one compiled form


class OnCuda(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no such compiler")],
    ids=["memory", "compiler"],
)
def test_blocks_run_where_flex_fails_and_it_is_not_tried_again_with_that_plan(
    error, monkeypatch, capsys
):
    tried = []

    def fail(*_):
        tried.append(1)
        raise error

    monkeypatch.setattr(flex, "attend_by_flex", fail)
    flex._print_failure_once.cache_clear()
    encoding, extension, scale = make_triple("rope", "rerope", "none")
    plans = [make_plan(encoding, extension, scale, length=48) for _ in range(2)]
    (q, k, v), x = attention_inputs(encoding, 48)
    with torch.no_grad():
        expected_BHTD = attend_in(attend_by_blocks, plans[0].layers[0], q, k, v, x)
        for layer in [*plans[0].layers, *plans[1].layers]:
            assert torch.equal(
                kernels.attend(layer, x, q, k, v.as_subclass(OnCuda)).as_subclass(torch.Tensor),
                expected_BHTD,
            )
    assert len(tried) == len(plans)
    assert (
        capsys.readouterr().err
        == f"FlexAttention failed ({error}): the slower kernel runs instead\n"
    )
