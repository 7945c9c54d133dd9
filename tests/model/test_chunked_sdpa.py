"""Bands in pieces: the pieces hold each pair once, equal the dense oracle and `attend_by_blocks`,
run where they should, and take linear memory.
"""

import itertools
from dataclasses import replace

import dense
import pytest
import torch
from conftest import TRAIN_LEN, choices, legal_pairs, make_triple, node, small_shape
from measures import attention_inputs

from posbench.encodings.rope import Rope
from posbench.model import precision
from posbench.model.kernels import chunked_sdpa, dispatch
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.model.memory import tensor_mib
from posbench.position.instantiate import make_method
from posbench.position.legality import fed_length
from posbench.position.plan import make_plan

LONG = 4 * TRAIN_LEN
DRAWN = "random_keys"  # its intervals hold keys that are not seen, which no piece can leave out
PAIRS = [pair for pair in legal_pairs(LONG) if pair[0] in ("rope", "alibi", "xpos", "pope", "none")]
PAIRS = [
    pair
    for pair in PAIRS
    if pair[1] != DRAWN
    and fed_length(make_method(node("extension", pair[1])), TRAIN_LEN, LONG) == LONG
]
SIZE_NAMES = (
    "MOST_PIECE_QUERIES",
    "TRIANGLE_STEP",
    "WIDEST_MASKED_INTERVAL",
    "MASKED_PIECE_QUERIES",
)
# Of SIZE_NAMES, for short texts.
SIZES = {
    "many": (7, 2, 3, 2),
    "wide": (20, 4, 5, 3),
    "narrow": (20, 4, 99, 6),
}
BANDED = (
    "rerope",
    "leaky_rerope",
    "self_extend",
    "dca",
    "gali",
    "string",
    "lm_infinite",
    "streaming",
    "window",
    "compose",
)


def resize(monkeypatch, sizes: tuple[int, ...]) -> None:
    for name, size in zip(SIZE_NAMES, sizes, strict=True):
        monkeypatch.setattr(chunked_sdpa, name, size)


def layer_of(triple: tuple[str, str, str], length: int, train_len: int = TRAIN_LEN):
    encoding, extension, scale = make_triple(*triple, train_len=train_len)
    return make_plan(encoding, extension, scale, length=length).layers[0]


def each(series: chunked_sdpa.PieceSeries) -> list[chunked_sdpa.PieceSeries]:
    """Pieces of a series."""
    return [
        replace(
            series,
            first_query=series.first_query + n * series.query_step,
            first_key=series.first_key + n * series.key_step,
            n_pieces=1,
        )
        for n in range(series.n_pieces)
    ]


def pairs(pieces: list[chunked_sdpa.PieceSeries], length: int) -> torch.Tensor:
    """Number of pieces that hold each pair: [T, T]."""
    held_TT = torch.zeros(length, length, dtype=torch.long)
    for piece in pieces:
        row_S, key_K = torch.arange(piece.n_queries)[:, None], torch.arange(piece.n_keys)
        after, before = piece.kind in ("lower", "diagonal"), piece.kind in ("upper", "diagonal")
        seen = (
            (key_K <= row_S + piece.n_keys - piece.n_queries)
            if after
            else torch.ones(piece.n_queries, piece.n_keys, dtype=torch.bool)
        )
        seen = seen & (key_K >= row_S) if before else seen
        held_TT[
            piece.first_query : piece.first_query + piece.n_queries,
            piece.first_key : piece.first_key + piece.n_keys,
        ] += seen
    return held_TT


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("extension", choices("extension"))
def test_the_pieces_of_a_band_hold_each_of_its_pairs_once(extension, sizes, monkeypatch):
    resize(monkeypatch, SIZES[sizes])
    for length in (1, 2, TRAIN_LEN, 3 * TRAIN_LEN + 1):
        for band in layer_of(("rope", extension, "none"), length).bands:
            for first in {0, length // 2, length - 1}:
                index_T = torch.arange(length)
                expected_TK = (
                    (index_T >= band.first_T[:, None])
                    & (index_T <= band.last_T[:, None])
                    & (index_T[:, None] >= first)
                )
                pieces = chunked_sdpa.pieces_of_band(band.first_T, band.last_T, first)
                assert torch.equal(pairs(pieces, length), expected_TK.long())
                assert torch.equal(
                    pairs(
                        [
                            piece
                            for series in chunked_sdpa.joined_into_series(pieces)
                            for piece in each(series)
                        ],
                        length,
                    ),
                    expected_TK.long(),
                )


def test_intervals_without_long_runs_are_left_to_rows():
    random, index_T = torch.Generator().manual_seed(0), torch.arange(2000)
    assert (
        chunked_sdpa.pieces_of_band(
            torch.randint(0, 2000, (2000,), generator=random).minimum(index_T), index_T, 0
        )
        is None
    )
    layer = layer_of(("rope", "window", "none"), 2000)
    jumping = replace(layer.bands[0], first_T=index_T // 2)
    assert chunked_sdpa.can_chunk(layer, 0) and not chunked_sdpa.can_chunk(
        replace(layer, bands=(jumping,)), 0
    )
    assert not chunked_sdpa.can_chunk(layer_of(("rope", DRAWN, "none"), 2000), 0)


@pytest.mark.parametrize("triple", PAIRS, ids="-".join)
@torch.no_grad()
def test_pieces_equal_the_dense_oracle(triple, monkeypatch):
    length = 3 * TRAIN_LEN + 1
    layer = layer_of(triple, length)
    (q, k, v), x = attention_inputs(layer.encoding, length)
    wide = [t[0].double().repeat_interleave(4 // t.shape[1], dim=0) for t in (q, k, v)]
    expected = dense.attention(*triple, layer.encoding, *wide, x[0].double(), TRAIN_LEN)
    for sizes in SIZES.values():
        resize(monkeypatch, sizes)
        for band in layer.bands:
            band.cache.clear()
        assert chunked_sdpa.can_chunk(layer, 0)
        torch.testing.assert_close(
            chunked_sdpa.chunked_sdpa(layer, q, k, v)[0].double(), expected, rtol=0, atol=2e-5
        )


@pytest.mark.parametrize(
    ("extension", "train_len"),
    [*((name, 1200) for name in BANDED), *itertools.product(BANDED[:2], [100, 3000])],
)
@torch.no_grad()
def test_long_texts_equal_rows(extension, train_len):
    """Windows below and above a block, two texts, a factor on the scores, and the last queries
    alone.
    """
    length = 2500
    layer = layer_of(("rope", extension, "log_n"), length, train_len)
    (q, k, v), _ = attention_inputs(layer.encoding, length)
    q, k, v = (torch.cat((t, t.flip(2))) for t in (q, k, v))
    expected_BHTD = attend_by_blocks(layer, q, k, v)
    for first in (0, 1300, length - 3):
        actual_BHTD = chunked_sdpa.chunked_sdpa(layer, q, k, v, first)
        assert (actual_BHTD - expected_BHTD[:, :, first:]).norm() < 2e-6 * expected_BHTD[
            :, :, first:
        ].norm()
        torch.testing.assert_close(actual_BHTD, expected_BHTD[:, :, first:], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "pair",
    [("rope", "dca"), ("rope", "lm_infinite"), ("alibi", "streaming"), ("alibi", "window")],
    ids="-".join,
)
@torch.no_grad()
def test_bf16_deviates_by_its_rounding(pair, monkeypatch):
    monkeypatch.setattr(precision, "has_amx", lambda: True)
    layer = layer_of((*pair, "none"), 2500, 1200)
    (q, k, v), _ = attention_inputs(layer.encoding, 2500)
    expected_BHTD = chunked_sdpa.chunked_sdpa(layer, q, k, v.bfloat16().float())
    actual_BHTD = chunked_sdpa.chunked_sdpa(layer, q, k, v.bfloat16())
    assert actual_BHTD.dtype == torch.bfloat16
    deviation_BHT = (actual_BHTD - expected_BHTD).norm(dim=-1) / expected_BHTD.norm(dim=-1)
    assert 1e-4 < deviation_BHT.mean() < 0.007 and deviation_BHT.max() < 0.05


@torch.no_grad()
def test_calls_of_few_pairs_give_the_same_and_tell_their_progress(monkeypatch):
    reports = []
    layer = replace(layer_of(("rope", "dca", "none"), 1500, 400), report_progress=reports.append)
    (q, k, v), _ = attention_inputs(layer.encoding, 1500)
    expected_BHTD = chunked_sdpa.chunked_sdpa(layer, q, k, v)
    assert len(reports) > 5 and reports == sorted(reports) and 0 < reports[0] < reports[-1] < 1
    monkeypatch.setattr(chunked_sdpa, "PAIRS_PER_CALL", 1000)
    torch.testing.assert_close(
        chunked_sdpa.chunked_sdpa(layer, q, k, v), expected_BHTD, rtol=0, atol=2e-6
    )


CHOSEN = {
    "bands": (("rope", "rerope", "none"), {}, "chunked_sdpa"),
    "a window": (("alibi", "window", "none"), {}, "chunked_sdpa"),
    "random keys": (("rope", DRAWN, "none"), {}, "attend_by_blocks"),
    "the last queries": (("rope", "none", "none"), {"last": 9}, "chunked_sdpa"),
    "the plain triangle": (("rope", "none", "none"), {}, "attend_fused"),
    "a short text": (
        ("rope", "rerope", "none"),
        {"length": precision.LONGEST_UNCHUNKED},
        "attend_by_blocks",
    ),
    "training": (("rope", "rerope", "none"), {"learns": True}, "attend_by_blocks"),
    "gates": (("fox", "window", "none"), {}, "attend_by_blocks"),
    "a bias by distance": (("t5", "window", "none"), {}, "attend_by_blocks"),
    "whole rows": (("stick_breaking", "window", "none"), {}, "attend_by_blocks"),
    "a scale by distance": (("rope", "window", "scale_invariant"), {}, "attend_by_blocks"),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_the_plan_the_length_and_the_gradient_choose_the_kernel(case, monkeypatch):
    triple, settings, expected_kernel = CHOSEN[case]
    length, ran = settings.get("length", precision.LONGEST_UNCHUNKED + 1), []
    for name in ("attend_fused", "chunked_sdpa", "attend_by_blocks"):
        kernel = getattr(dispatch, name)
        monkeypatch.setattr(
            dispatch,
            name,
            lambda *a, name=name, kernel=kernel, **k: ran.append(name) or kernel(*a, **k),
        )
    layer = layer_of(triple, length)
    leaves, x = attention_inputs(layer.encoding, length)
    with torch.set_grad_enabled(settings.get("learns", False)):
        dispatch.attend(layer, x, *leaves, n_last=settings.get("last"))
    assert ran == [expected_kernel]


@pytest.mark.parametrize("extension", BANDED)
def test_memory_grows_with_the_length_alone(extension):
    mib = []
    for length in (2048, 4096):
        layer = layer_of(("rope", extension, "none"), length, 1500)
        (q, k, v), _ = attention_inputs(Rope(small_shape()), length)
        with torch.inference_mode():
            mib.append(
                tensor_mib(
                    lambda layer=layer, q=q, k=k, v=v: chunked_sdpa.chunked_sdpa(layer, q, k, v)
                )
            )
    assert mib[1] < 2.2 * mib[0]
