"""Layers of two kinds: how they alternate, and what extensions and scales do to each."""

import pytest
import torch
from conftest import TRAIN_LEN, node, small_shape
from measures import LONG, outputs, same

from posbench.encodings.hybrid import Hybrid
from posbench.encodings.none import NoEncoding
from posbench.encodings.rope import Rope
from posbench.extensions.pi import Pi
from posbench.extensions.rerope import Rerope
from posbench.extensions.yarn import Yarn
from posbench.position.geometry import Trait
from posbench.position.instantiate import make_method
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
    assert extended.q_pos_T[-1] == (LONG - 1) / 4 and extended.n_seen_T.max() == TRAIN_LEN // 2


def test_hybrid_offers_what_its_extended_layers_offer():
    rope_traits = Rope(small_shape()).traits
    assert Hybrid(small_shape(), ROPE, NONE).traits == Trait(0)
    assert Hybrid(small_shape(), ROPE, NONE, extend_local=True).traits == rope_traits
    alibi = {"_target_": "posbench.encodings.alibi.Alibi"}
    assert Hybrid(small_shape(), alibi, ROPE).traits == rope_traits
    assert (
        Hybrid(small_shape(), alibi, ROPE, extend_local=True).traits
        == rope_traits & ~Trait.SPECTRUM
    )


def test_gemma3_has_a_base_for_each_kind_of_layer():
    local, full = (
        layer.encoding.spectrum().base
        for layer in make_method(node("encoding", "gemma3"), small_shape()).layers()
    )
    assert (local, full) == (1e4, 1e6)


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "original_max_position_embeddings": 512,
    "rope_theta": 1e4,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
# {preset: (transformers' family, rope_parameters of a smaller model, arguments of its YaRN)}
RELEASED = {
    "olmo3": ("Olmo3", {"sliding_attention": PLAIN, "full_attention": YARN}, {}),
    "gpt_oss": ("GptOss", {**YARN, "truncate": False}, {"truncate": False}),
    "gemma4": ("Gemma4Text", None, None),  # of the released model itself
}


@pytest.mark.parametrize("name", RELEASED)
def test_presets_have_the_layers_and_frequencies_of_the_released_models(name):
    family, rope_parameters, yarn = RELEASED[name]
    folder = {"GptOss": "gpt_oss", "Olmo3": "olmo3", "Gemma4Text": "gemma4"}[family]
    models = pytest.importorskip(f"transformers.models.{folder}.modeling_{folder}")
    sizes = {"num_hidden_layers": 12, "hidden_size": 256, "head_dim": 64, "sliding_window": 256}
    config = getattr(models, f"{family}Config")(
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters=rope_parameters,
        **sizes,
        **({"global_head_dim": 64} if name == "gemma4" else {}),
    )
    rotary = getattr(models, f"{family}RotaryEmbedding")(config)
    shape = small_shape(512, d_model=256, n_layer=12)
    changes = {"period": 6} if name == "gemma4" else {}
    encoding = make_method({**node("encoding", name), **changes}, shape)
    extension = None if yarn is None else Yarn(beta=32.0, **yarn)
    plan = make_plan(encoding, extension, length=2048)
    index_T = torch.arange(2048)[None]
    for layer, plan_layer, kind in zip(
        encoding.layers(), plan.layers, config.layer_types, strict=True
    ):
        assert layer.window == (config.sliding_window if kind == "sliding_attention" else None)
        kinds = () if name == "gpt_oss" else (kind,)
        cos, sin = rotary(torch.zeros(1), index_T, *kinds)
        amplitude = plan_layer.temperature**0.5
        pairs = cos.shape[-1] // 2 if name != "gpt_oss" else cos.shape[-1]
        table = plan_layer.bands[0].q_table * amplitude
        torch.testing.assert_close(table[0], cos[0, :, :pairs], rtol=0, atol=2e-4)
        torch.testing.assert_close(table[1], sin[0, :, :pairs], rtol=0, atol=2e-4)
