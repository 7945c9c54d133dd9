"""Methods from outside posbench: what is known of their pairs, and the shapes of their hooks."""

import pytest
import torch
from conftest import make_triple, node
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.encodings.rope import Rope
from posbench.extensions.none import NoExtension
from posbench.position.geometry import Band, Shape, Span, Trait
from posbench.position.hook_shapes import check_hooks
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding, Extension, ScaleAttention
from posbench.position.legality import check_trained_scale, verdict_of
from posbench.position.plan import make_plan
from posbench.scale_attention.none import NoScale

SHAPE = Shape(d_model=16, n_layer=2, n_head=4, n_kv_head=4, train_len=16)
LENGTHS = [16, 64]


class Mine(Rope):
    """An own encoding that inherits the tests of none."""


class Half(Extension):
    """An own extension."""

    needs = Trait.COORDINATE

    def bands(self, span: Span) -> tuple[Band, ...]:
        return (Band(q=lambda i: i / 2, k=lambda j: j / 2),)


class NamedHalf(Half):
    """One that names a test."""

    tested_with = {"alibi": "a notebook"}


class Deeper(ScaleAttention):
    """An own scale that is sharper in deeper layers."""

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        return torch.full_like(n_T, 1.0 + layer)


class Sharper(ScaleAttention):
    """One that is the same in all layers."""

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        return torch.full_like(n_T, 2.0)


def verdict(encoding: Encoding, extension: Extension, **options: bool):
    return verdict_of(encoding, extension, NoScale(SHAPE), LENGTHS, **options)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_pair_with_an_own_method_is_own_and_not_untested(allowed):
    alibi = make_triple("alibi", "none", "none")[0]
    composed = {**node("extension", "compose"), "parts": [{"_target_": f"{__name__}.Half"}]}
    for encoding, extension in (
        (Mine(SHAPE), make_triple("rope", "pi", "none")[1]),
        (alibi, Half()),
        (alibi, make_method(composed, kind=Extension)),
    ):
        judged = verdict(encoding, extension, allow_untested=allowed)
        assert judged.of_user and not judged.untested
    named = verdict(alibi, NamedHalf())
    assert not named.of_user and named.source.endswith("a notebook")
    assert not verdict(make_triple("rope", "none", "none")[0], NoExtension()).of_user
    with pytest.raises(ConfigError, match="no table|no learned table"):
        verdict(Mine(SHAPE), make_triple("rope", "table_linear", "none")[1])


def test_an_untested_pair_of_posbench_stays_one_beside_an_own_method():
    """The pair of an own extension is own; that of the encoding with a scale is as it was."""
    fire, _, log_n = make_triple("fire", "none", "log_n")
    with pytest.raises(ConfigError, match=r"^fire\+log_n is defined but no test of it is known"):
        verdict_of(fire, Half(), log_n, LENGTHS)
    judged = verdict_of(fire, Half(), log_n, LENGTHS, allow_untested=True)
    assert judged.untested and not judged.of_user


@pytest.mark.parametrize("name", ["t5", "fire", "fox", "gemma3"])
def test_hooks_of_posbench_have_the_shapes_that_are_checked(name):
    check_hooks(make_triple(name, "none", "none")[0])


def test_an_own_scale_that_differs_between_layers_is_refused():
    """A plan computes the factor of an untrained scale once, for layer 0."""
    with pytest.raises(ConfigError, match="in layer 1 than in layer 0"):
        verdict_of(Rope(SHAPE), NoExtension(), Deeper(SHAPE), LENGTHS)
    with pytest.raises(ConfigError, match="train.scale_attention=test_own_methods has another"):
        check_trained_scale(Rope(SHAPE), Deeper(SHAPE))
    assert verdict_of(Rope(SHAPE), NoExtension(), Sharper(SHAPE), LENGTHS).of_user
    factors = [
        layer.factor for layer in make_plan(Rope(SHAPE), scale=Sharper(SHAPE), length=4).layers
    ]
    assert all((factor == 2).all() for factor in factors)
