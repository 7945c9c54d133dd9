"""Pictures of anatomies: a panel for what says something, equal files, and a gallery of every
method.
"""

import functools
from dataclasses import replace

import pytest
from conftest import choices
from dissected import anatomy

from posbench.report.figures.style import write_figure
from posbench.tools.anatomy import gallery
from posbench.tools.anatomy.figure import anatomy_page


@pytest.mark.parametrize(
    ("triple", "panels"),
    [
        (("rope", "none", "none"), 4),  # frequencies, distances, channels, decay
        (("rope", "yarn", "log_n"), 5),  # and logits
        (("alibi", "none", "none"), 2),  # distances, bias
        (("sinusoidal", "none", "none"), 4),  # frequencies, positions, table, similarity
        (("none", "none", "none"), 1),
        (("stick_breaking", "none", "none"), 2),  # distances, weights
        (("stick_breaking", "string", "none"), 2),  # of several bands, though it changes nothing
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_page_has_the_panels_that_say_something(triple, panels):
    shown = [axes for axes in anatomy_page(anatomy(*triple, length=512)).axes if axes.axison]
    assert len(shown) == panels and all(axes.get_title(loc="left") for axes in shown)


def test_equal_anatomies_are_equal_files(tmp_path):
    files = [
        write_figure(anatomy_page(anatomy("rope", "pi", length=128)), tmp_path / name)
        for name in ("a", "b")
    ]
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_the_gallery_shows_every_method(monkeypatch):
    # Each method is tried with each yaml.
    monkeypatch.setattr(gallery, "shipped_yamls", functools.cache(gallery.shipped_yamls))
    monkeypatch.setattr(gallery, "SHAPE", replace(gallery.SHAPE, d_model=64))
    groups = ("encoding", "extension", "scale_attention")
    tiles = {group: gallery.tiles_of_group(group) for group in groups}
    for group in groups:
        without_attention = {"gated_deltanet", "kimi_delta"}
        shown = sorted(tile.name for tile in tiles[group])
        assert shown == [name for name in choices(group) if name not in without_attention]
    assert len(gallery.gallery_figure(tiles).axes) == sum(map(len, tiles.values()))
