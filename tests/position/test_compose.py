"""Extensions that act together: in which order, and which of them cannot."""

import math

import pytest
import torch
from conftest import node, small_shape
from measures import LONG, ROPE, SPAN, distances, equal, freq, outputs, plain

from posbench.common.errors import ConfigError
from posbench.encodings.rope import Rope
from posbench.extensions.compose import Compose
from posbench.extensions.llama3 import Llama3
from posbench.extensions.longrope import Longrope
from posbench.extensions.ntk import Ntk
from posbench.extensions.yarn import Yarn
from posbench.position.geometry import Span, Trait
from posbench.position.instantiate import make_method


def part(name: str, **arguments) -> dict:
    return {**node("extension", name), **arguments}


def test_composed_frequencies_follow_each_other_and_temperatures_multiply():
    both = Compose([part("ntk"), part("llama3")])
    equal(freq(both), Llama3().spectrum(Ntk().spectrum(ROPE, SPAN), SPAN).freq_F, atol=1e-15)
    warm = Compose({"a": part("yarn"), "b": part("longrope")})
    assert warm.temperature(SPAN) == pytest.approx(
        Yarn().temperature(SPAN) * Longrope().temperature(SPAN)
    )


def test_composed_distances_are_mapped_before_they_are_interpolated():
    for parts in ([part("rerope", window=6), part("pi")], [part("pi"), part("rerope", window=6)]):
        extension = Compose(parts)
        equal(distances(extension, LONG), plain(LONG).clamp(max=6) / 4)
        assert extension.needs == Trait.COORDINATE | Trait.RELATIVE


def test_composed_parts_keep_their_own_target():
    extension = Compose(
        [part("pi", mode="fixed", target_len=128), part("ntk", mode="fixed", target_len=640)]
    )
    assert extension.target_len(256) == 640
    span = Span(64, 256, extension.target_len(256))
    equal(freq(extension, span=span), freq(Ntk(), span=Span(64, 640, 640)))
    (band,) = extension.bands(span)
    assert band.q(torch.tensor([10.0])).item() == 5


def test_frequencies_changed_before_the_pieces_of_dynamic_ntk_act_in_each_piece():
    """theta'_c = 500000^(-c / m) s^(-c / (m - 1)) where s = end of the piece / 64; a mask beside
    them changes no angle.
    """
    extension = Compose(
        [part("abf"), part("dynamic_ntk", factor=1.0, fed=64), part("window", window=8)]
    )
    assert extension.fed == 64
    pairs = len(ROPE.freq_F)
    pair_F = torch.arange(pairs, dtype=torch.float64)
    pos_T = torch.tensor([10.0, 100.0, 200.0], dtype=torch.float64)
    angle_TF = extension.spectrum(ROPE, SPAN).angles(pos_T)
    for row, (position, factor) in enumerate([(10, 1), (100, 2), (200, 4)]):
        slower_F = 500000 ** (-pair_F / pairs) * factor ** (-pair_F / (pairs - 1))
        equal(angle_TF[row], position * slower_F, atol=1e-12)


def test_composed_parts_are_trained_in_as_fixed_only_where_each_part_is():
    """A quarter of the slowest frequency, by YaRN to 4 times 64 tokens, at every length; its
    temperature (0.1 ln 4 + 1)^2 is one factor on q and one on k. A part that follows the length
    is refused or followed as it is alone.
    """
    shape = small_shape(256)
    slowest = Rope(shape).spectrum().freq_F[-1]

    def trained_in(*parts: dict) -> Rope:
        return Rope(shape, scaling=part("compose", parts=list(parts)), scaling_len=64)

    fixed = trained_in(part("yarn", mode="fixed", target_len=256))
    assert fixed.amplitude == pytest.approx(0.1 * math.log(4) + 1)
    for length in (16, 256, 1024):
        assert fixed.spectrum_at(length).freq_F[-1] == pytest.approx(slowest / 4)
    for parts in ([part("yarn")], [part("abf"), part("pi")], [part("compose", parts=[part("pi")])]):
        with pytest.raises(ConfigError, match="compose is not a fixed set of frequencies"):
            trained_in(*parts)
    by_length = trained_in(part("ntk"))
    assert Trait.SPECTRUM not in by_length.traits and by_length.amplitude == 1
    for length in (64, 256, 1024):
        expected = slowest * 64 / length
        assert by_length.spectrum_at(length).freq_F[-1] == pytest.approx(expected)


def test_one_part_composed_is_that_part():
    encoding = Rope(small_shape())
    for name in ("yarn", "pi", "streaming", "dca", "none", "ntk"):
        composed, alone = Compose([part(name)]), make_method(part(name))
        torch.testing.assert_close(
            outputs(encoding, composed), outputs(encoding, alone), rtol=0, atol=1e-5
        )
        assert composed.needs == alone.needs and composed.tested_with == alone.tested_with
    nested = Compose([part("compose"), part("pi")])
    assert len(nested.bands(SPAN)) == 3
    table = Compose([part("table_hierarchical"), part("pi")])
    assert len(table.rows(torch.zeros(8, 2), Span(8, 20, 20))) == 20 and table.needs & Trait.TABLE
    assert Compose([part("recompute_window"), part("ntk")]).crop(SPAN) == 64


PIECES_IN_PARTS = part("compose", parts=[part("dynamic_ntk", fed=64)])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [part("rerope"), part("dca")],
            "Rerope and Dca, and each of them says which keys a query sees",
        ),
        ([part("window"), part("compose")], "Window and Compose"),
        ([part("recompute_window"), part("recompute_window")], "crops the text"),
        (
            [part("dynamic_ntk", fed=64), part("yarn")],
            "DynamicNtk with fed=64 before Yarn, .*: leave out fed, or name Yarn first",
        ),
        ([part("dynamic_ntk", fed=64), part("dynamic_ntk", fed=32)], "before DynamicNtk"),
        ([PIECES_IN_PARTS, part("abf")], "Compose with fed=64 before Abf"),
        ([part("dynamic_ntk", fed=64), part("pi")], "and Pi, which moves the positions"),
        ([part("streaming"), part("dynamic_ntk", fed=64)], "and Streaming, which moves"),
        ({}, "parts is empty"),
    ],
)
def test_parts_that_cannot_act_together_are_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        Compose(parts)
