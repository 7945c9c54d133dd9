"""Cells that are composed part by part are what Hydra composes from all of their words."""

import pytest
from conftest import CONFIGS
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode

from posbench.config.compose import Composer, unresolved_values

ELSEWHERE = "# @package _global_\ntrain: {steps: 7}\nextension: {_target_: mine.Mine}\n"
CELLS = (
    ["encoding=alibi", "extension=pi", "seed=3"],
    ["encoding=fox", "scale_attention@train.scale_attention=ssmax", "train=default",
        "train.steps=9"],
    ["scale_attention=log_n", "scale_attention@train.scale_attention=ssmax",
        "train.betas=[0.8,0.9]", "run=null"],
    ["data=local", "data.path=a", "extension=ntk", "extension.mode=fixed", "+extension.more=1",
        "model={n_layer: 2}"],
    ["experiment=headline", "extension=yarn", "results_dir=${cache_dir}/x", "evaluate.lengths=64"],
    ["encoding=rope", "encoding=alibi"],
    ["data=mqar", "evaluate=default", "finetune=pose", "log=default", "model=30m", "train=cpu"],
    ["experiment=mine", "train=default", "extension=pi", "dry=true"],
)  # fmt: skip
REFUSED = (
    ["extension=bad", "encoding=worse"],
    ["encoding.basee=3"],
    ["train=3"],
    ["seed.x=1"],
    ["a=[b"],
)


@pytest.fixture(scope="module")
def composer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine") / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text(ELSEWHERE)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield Composer("run", [f"hydra.searchpath=[file://{folder.parent}]"])


def values_by_hydra(composer: Composer, words: list[str]) -> dict:
    return unresolved_values(
        GlobalHydra.instance()
        .config_loader()
        .load_configuration("run", [*composer.hydra, *words], RunMode.RUN)
    )


@pytest.mark.parametrize("words", CELLS, ids=lambda words: words[0])
def test_parts_side_by_side_are_what_hydra_composes(composer, words):
    expected = values_by_hydra(composer, words)
    assert repr(composer.values(words)) == repr(expected)
    assert repr(composer.values(words)) == repr(expected)  # nothing that is kept was changed


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: words[0])
def test_hydra_refuses_the_same_in_the_same_words(composer, words):
    with pytest.raises((HydraException, ValueError)) as expected:
        values_by_hydra(composer, words)
    with pytest.raises((HydraException, ValueError)) as actual:
        composer.values(words)
    assert str(actual.value) == str(expected.value)
