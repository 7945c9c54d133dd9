"""posbench help: every key and choice of the configuration is explained."""

from pathlib import Path

import pytest
from conftest import CONFIGS, choices
from hydra import initialize_config_dir
from hydra.types import RunMode
from omegaconf import OmegaConf

from posbench.cli.key_help import explain_words, keys_and_folders
from posbench.config.compose import hydra_loader

GROUPS = ("encoding", "extension", "scale_attention", "finetune", "task", "data", "model")


def test_every_key_of_a_job_is_explained():
    files = {
        "train.": "train/default",
        "evaluate.": "evaluate/default",
        "model.": "model/small",
        "log.": "log/default",
        "": "run",
    }
    for prefix, file in files.items():
        for key in set(OmegaConf.load(CONFIGS / f"{file}.yaml")) - {"defaults", "hydra"}:
            first, *lines = explain_words([f"{prefix}{key}"]).splitlines()
            assert first.startswith(f"{prefix}{key} = ") and (
                lines or prefix not in ("train.", "evaluate.")
            ), key


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_is_explained_with_its_keys(group):
    listed = explain_words([group])
    for name in choices(group):
        assert f"  {group}={name} " in listed
        explanation = explain_words([f"{group}={name}"])
        for key, value in OmegaConf.to_container(
            OmegaConf.load(CONFIGS / group / f"{name}.yaml")
        ).items():
            if key not in ("_target_", "defaults") and not isinstance(value, dict | list):
                assert f"{group}.{key} = " in explanation, key


def test_every_option_of_a_script_is_explained():
    for name in ("advise", "identify", "look", "search_factors", "harness", "anatomy"):
        first, *lines = explain_words([name]).splitlines()
        keys = set(OmegaConf.load(CONFIGS / f"{name}.yaml")) - {"defaults", "hydra", "evaluate"}
        assert f"scripts/{name}.py" in first and keys <= {
            line.partition(" ")[0] for line in lines
        }, name


def test_a_choice_is_listed_without_its_commands():
    lines = explain_words(["experiment"]).splitlines()
    assert len(lines) > 30
    assert not [line for line in lines if "python scripts" in line or "make " in line]


def test_a_script_without_options_of_its_own_says_where_it_is_described():
    assert explain_words(["plot"]).startswith(
        "Draw one figure"
    ) and "posbench plot --help" in explain_words(["plot"])


def test_defaults_and_comments_are_those_of_the_yaml():
    assert explain_words(["extension.beta"]).startswith(
        "extension.beta = 4.0   (extension=llama3)\n    turns from which a pair is kept"
    )
    explanation = explain_words(["seed"])
    assert (
        explanation.startswith("seed = 0\n")
        and "\nevaluate.seed = 0\n    places the windows" in explanation
    )


def keys_of(node: dict, prefix: str = ""):
    """(dotted key, value) of a composed configuration, without what lies deeper than a source's own
    keys.
    """
    for key, value in node.items():
        if isinstance(value, dict) and prefix.count(".") < 2:
            yield from keys_of(value, f"{prefix}{key}.")
        elif key != "_target_" and not isinstance(value, list | dict):
            yield f"{prefix}{key}", value


def test_the_first_default_is_that_of_a_plain_run():
    with initialize_config_dir(str(CONFIGS), job_name="run", version_base="1.3"):
        composed = hydra_loader(None).load_configuration("run", [], RunMode.RUN)
    values = OmegaConf.to_container(composed, resolve=False)
    keys = dict(
        keys_of({key: node for key, node in values.items() if key not in ("hydra", "experiment")})
    )
    assert len(keys) > 90 and keys["model.d_model"] == 128 and keys["data.tokenizer"] == "bpe"
    for key, value in keys.items():
        first = explain_words([key]).splitlines()[0]
        shown = first.removeprefix(f"{key} = ").partition("   (")[0]
        assert OmegaConf.create(f"value: {shown}").value == value, first


def test_every_default_of_a_key_is_listed_with_its_choices():
    assert explain_words(["model.d_model"]).splitlines() == [
        "model.d_model = 128   (model=small)",
        "model.d_model = 768   (model=125m)",
        "model.d_model = 512   (model=30m)",
    ]


@pytest.mark.parametrize("group", [*GROUPS, "experiment"])
def test_no_text_is_cut_within_a_sentence(group):
    for line in explain_words([group]).splitlines():
        assert not line.endswith(("et al.", "e.g.", "i.e.", "vs.")) and line.count(
            "("
        ) == line.count(")"), line


def test_own_yamls_are_explained(tmp_path):
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "mine.yaml").write_text(
        "_target_: my_file.Mine\nslope: 0.1 # at the start\n"
    )
    (tmp_path / "my_file.py").write_text('"""Mine: a bias of my own."""\n')
    for words in (
        ["--config-dir", str(tmp_path), "encoding=mine"],
        ["encoding=mine", f"--config-dir={tmp_path}"],
    ):
        explanation = explain_words(*keys_and_folders(words))
        assert (
            explanation
            == "encoding=mine: Mine: a bias of my own.\nencoding.slope = 0.1   (encoding=mine)\n   "
            " at the start"
        )
    words, folders = keys_and_folders(["--config-dir", str(tmp_path), "encoding"])
    explanation = explain_words(words, folders)
    assert "encoding=mine " in explanation and "encoding=rope " in explanation
    assert keys_and_folders(["--config-dir", ".", "encoding"]) == (["encoding"], [CONFIGS, Path()])
