"""posbench help: every key and choice of the configuration is explained."""

import pytest
from conftest import CONFIGS, choices
from omegaconf import OmegaConf

from posbench.cli.key_help import explain_words
from posbench.common.errors import ConfigError

GROUPS = ("encoding", "extension", "scale_attention", "finetune", "task", "data", "model")


def test_every_key_of_a_job_is_explained():
    files = {"train.": "train/default", "evaluate.": "evaluate/default", "model.": "model/small", "log.": "log/default", "": "run"}
    for prefix, file in files.items():
        for key in set(OmegaConf.load(CONFIGS / f"{file}.yaml")) - {"defaults", "hydra"}:
            first, *said = explain_words([f"{prefix}{key}"]).splitlines()
            assert first.startswith(f"{prefix}{key} = ") and (said or prefix not in ("train.", "evaluate.")), key


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_is_explained_with_its_keys(group):
    listed = explain_words([group])
    for name in choices(group):
        assert f"  {group}={name} " in listed
        found = explain_words([f"{group}={name}"])
        for key, value in OmegaConf.to_container(OmegaConf.load(CONFIGS / group / f"{name}.yaml")).items():
            if key not in ("_target_", "defaults") and not isinstance(value, dict | list):
                assert f"{group}.{key} = " in found, key


def test_every_option_of_a_script_is_explained():
    for name in ("advise", "identify", "look", "search_factors", "harness", "anatomy"):
        first, *said = explain_words([name]).splitlines()
        own = set(OmegaConf.load(CONFIGS / f"{name}.yaml")) - {"defaults", "hydra", "evaluate"}
        assert f"scripts/{name}.py" in first and own <= {line.partition(" ")[0] for line in said}, name


def test_a_script_without_options_of_its_own_says_where_it_is_described():
    assert explain_words(["plot"]).startswith("Draw one figure") and "posbench plot --help" in explain_words(["plot"])


def test_defaults_and_comments_are_those_of_the_yaml():
    assert explain_words(["extension.beta"]).startswith("extension.beta = 4.0   (extension=llama3)\n    turns from which a pair is kept")
    found = explain_words(["seed"])
    assert found.startswith("seed = 0\n") and "\nevaluate.seed = 0\n    places the windows" in found


def test_an_unknown_word_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean evaluate.windows"):
        explain_words(["evaluate.windws"])
    with pytest.raises(ConfigError, match="did you mean extension=yarn"):
        explain_words(["extension=yran"])
