"""Layers of two kinds: how they alternate, and what extensions and scales do to each."""

import torch
from conftest import TRAIN_LEN, node, small_shape
from measures import LONG, outputs, same

from posbench.encodings.hybrid import Hybrid
from posbench.encodings.none import NoEncoding
from posbench.encodings.rope import Rope
from posbench.extensions.pi import Pi
from posbench.extensions.rerope import Rerope
from posbench.position.geometry import Trait
from posbench.position.instantiate import make
from posbench.position.plan import make_plan
from posbench.scale_attention.log_n import LogN

ROPE, NONE = (
    {"_target_": f"posbench.encodings.{name}"} for name in ("rope.Rope", "none.NoEncoding")
)


def test_hybrid_layers_alternate_and_count_their_own():
    fox = {"_target_": "posbench.encodings.fox.Fox"}
    encoding = Hybrid(small_shape(n_layer=10), fox, ROPE, window=5)
    layers = encoding.layers()
    assert [layer.encoding is encoding.full for layer in layers] == [
        (i + 1) % 4 == 0 for i in range(10)
    ]
    assert [layer.index for layer in layers] == [0, 1, 2, 0, 3, 4, 5, 1, 6, 7]
    assert [layer.window for layer in layers[2:4]] == [5, None]
    assert len(encoding.local.gate) == 8 and encoding.full.shape.n_layer == 2
    assert Hybrid(small_shape(), ROPE, NONE).window == TRAIN_LEN // 2


def test_hybrid_limits_are_its_parts():
    same(outputs(Hybrid(small_shape(), ROPE, NONE, period=1)), outputs(NoEncoding(small_shape())))
    same(outputs(Hybrid(small_shape(), ROPE, ROPE, window=LONG)), outputs(Rope(small_shape())))
    same(
        outputs(Hybrid(small_shape(), ROPE, ROPE, window=LONG, extend_local=True), Pi()),
        outputs(Rope(small_shape()), Pi()),
    )


def test_extensions_and_scales_leave_the_local_layers_alone():
    encoding = Hybrid(small_shape(), ROPE, ROPE)
    plain, plan = (
        make_plan(encoding, *methods, length=LONG).layers
        for methods in ((), (Rerope(), LogN(small_shape())))
    )
    assert torch.equal(plan[0].bands[0].q_table, plain[0].bands[0].q_table)
    assert len(plan[0].bands) == 1 and plan[0].factor is None
    assert len(plan[1].bands) == 2 and plan[1].factor is not None
    extended = (
        make_plan(Hybrid(small_shape(), ROPE, ROPE, extend_local=True), Pi(), length=LONG)
        .layers[0]
        .bands[0]
    )
    assert extended.q_pos_T[-1] == (LONG - 1) / 4 and extended.seen_T.max() == TRAIN_LEN // 2


def test_hybrid_offers_what_its_extended_layers_offer():
    whole = Rope(small_shape()).traits
    assert Hybrid(small_shape(), ROPE, NONE).traits == Trait(0)
    assert Hybrid(small_shape(), ROPE, NONE, extend_local=True).traits == whole
    alibi = {"_target_": "posbench.encodings.alibi.Alibi"}
    assert Hybrid(small_shape(), alibi, ROPE).traits == whole
    assert Hybrid(small_shape(), alibi, ROPE, extend_local=True).traits == whole & ~Trait.SPECTRUM


def test_gemma3_has_a_base_for_each_kind_of_layer():
    local, full = (
        layer.encoding.spectrum().base
        for layer in make(node("encoding", "gemma3"), small_shape()).layers()
    )
    assert (local, full) == (1e4, 1e6)
