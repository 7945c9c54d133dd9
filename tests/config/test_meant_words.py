"""Words that can mean one thing only, and names that are made from them."""

import pytest
from conftest import CONFIGS, choices, node
from hydra import initialize_config_dir

from posbench.config.compose import (
    Composer,
    Request,
    raw_configs_of_jobs,
    resolved_values,
    with_fixed_mode,
)
from posbench.config.identity import text_name
from posbench.config.names import chosen_node
from posbench.config.schema import check_config

SCALED = [name for name in choices("extension") if "target_len" in node("extension", name)]


@pytest.mark.parametrize("name", SCALED)
def test_a_target_alone_makes_a_factor_fixed(name):
    words = [f"extension={name}", "extension.target_len=512"]
    extension = {**node("extension", name), "target_len": 512}
    fixed = with_fixed_mode({"extension": extension}, words)["extension"]
    assert fixed == {**extension, "mode": "fixed"}
    assert chosen_node("extension", name, {"target_len": 512}) == fixed
    contradiction = [*words, "extension.mode=dynamic"]
    assert with_fixed_mode({"extension": extension}, contradiction)["extension"] == extension


def test_there_are_such_extensions():
    assert {"pi", "ntk", "yarn", "self_extend", "table_linear"} <= set(SCALED)


def test_a_target_of_a_part_and_of_a_grid_is_fixed_too():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composer = Composer()
        word = "extension.parts.frequencies.target_len=512"
        (cfg,) = cells(composer, ["extension=compose", word])
        assert cfg["extension"]["parts"]["frequencies"]["mode"] == "fixed"
        experiment = {
            "name": "x",
            "grid": [{"extension": ["pi", "yarn"], "extension.target_len": 512}],
        }
        values = {**composer.values([]), "experiment": experiment}
        grid = raw_configs_of_jobs(values, [], WithoutExperiment(composer))
        assert [cfg["extension"]["mode"] for cfg in grid] == ["fixed", "fixed"]
        assert all(cfg["name"] == "x" and cfg["log"]["group"] == "x" for cfg in grid)


class WithoutExperiment:
    """A composer of words without that of an experiment, which has no yaml here."""

    def __init__(self, composer: Composer):
        self.composer = composer

    def values(self, words: list[str]) -> dict:
        return self.composer.values(words[1:])


def cells(composer: Composer, words: list[str]) -> list[dict]:
    return raw_configs_of_jobs(composer.values(words), words, composer)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("notes.jsonl", "notes"),
        ("/a/b/my notes.txt", "my_notes"),
        ("novels/", "novels"),
        ("a/v1.2/", "v1.2"),
        ("part.jsonl.gz", "part"),
        ("a+b.md", "a_b"),
        (".txt", "text"),
        (None, None),
    ],
)
def test_own_text_is_called_by_its_path(path, name):
    assert text_name({"path": path, "name": None}) == name
    assert text_name({"path": path, "name": "typed"}) == "typed"
    assert check_config({"data": {"path": path, "name": None}})["data"]["name"] == name


@pytest.mark.parametrize(
    ("typed", "experiment", "name", "title"),
    [
        (None, {"name": None}, "", ""),
        (None, {"name": "demo", "title": "Trained on 64"}, "demo", "Trained on 64"),
        (None, {"name": "mine"}, "mine", "mine"),
        ("long", {"name": "demo", "title": "Trained on 64"}, "long", "long"),
        ("long", {"name": None}, "long", "long"),
    ],
)
def test_a_typed_name_replaces_name_and_title_of_an_experiment(typed, experiment, name, title):
    values = {"log": {"group": None}, "name": typed}
    cfg = resolved_values(values, experiment["name"])
    request = Request([cfg], experiment, True)
    assert (request.name, request.title) == (name, title)
    assert cfg["log"]["group"] == (name or None)
    group_typed = resolved_values({**values, "log": {"group": "mine"}}, experiment["name"])
    assert group_typed["log"]["group"] == "mine"
