"""Refusals of sweeps: launchers that cannot start, and validations and steps as they are typed."""

import sys

import pytest
from test_cli import cli  # noqa: F401
from test_launchers import settings
from test_validation import WATCHED

from posbench.common.errors import ConfigError
from posbench.sweep.launch import launch

LAUNCHED = {  # modules that are not installed, launcher, its wrong settings: part of the message
    "no joblib": (["joblib"], "joblib", {}, "hydra/launcher=joblib needs .*: pip install joblib"),
    "no submitit, slurm": (
        ["submitit"],
        "submitit_slurm",
        {},
        "hydra/launcher=submitit_slurm needs .*: pip install submitit",
    ),
    "no submitit, local": (
        ["submitit"],
        "submitit_local",
        {},
        "hydra/launcher=submitit_local needs .*: pip install submitit",
    ),
    "no sbatch": ([], "submitit_slurm", {}, "no sbatch .* login node"),
    "no jobs": ([], "joblib", {"n_jobs": 0}, "n_jobs=0"),
    "a word for minutes": ([], "submitit_local", {"timeout_min": "long"}, "timeout_min"),
}


@pytest.mark.parametrize(
    ("missing", "launcher", "wrong", "message"), LAUNCHED.values(), ids=LAUNCHED
)
def test_a_launcher_does_not_start(monkeypatch, tmp_path, missing, launcher, wrong, message):
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=message):
        launch([], {**settings(launcher, tmp_path), **wrong}, "")


@pytest.mark.parametrize(
    ("launcher", "way_out"),
    [
        ("joblib", "hydra.launcher.n_jobs=3"),
        ("submitit_slurm", "hydra.launcher.array_parallelism=3"),
    ],
)
def test_jobs_beside_a_launcher_that_does_not_read_it(cli, launcher, way_out):  # noqa: F811
    done = cli("dry=true", "jobs=3", f"hydra/launcher={launcher}", code=2)
    assert f"jobs=3 has no effect with hydra/launcher={launcher}: give {way_out}" in done.stderr
    cli("dry=true", f"hydra/launcher={launcher}", way_out)


@pytest.mark.parametrize(("words", "sentence"), [
    (["train.validate_lengths=1,16"], "must each hold the 2 scored tokens"),
    (["train.validate_lengths=16,100k"], "needs a document of 102401 tokens in the validation"),
    (["train.validate_extensions=yarn"], "has no lengths to extend to: give train.validate_len"),
    (["train.validate_lengths=16,32", "train.validate_windows=0"], "asks for none: give some"),
    ([*WATCHED, "encoding=alibi"], "train.validate_extensions=yarn at train.validate_lengths="),
    (["train.validate_extensions=yarm", "train.validate_lengths=16"], "did you mean yarn?"),
    (["train.keep_steps=2,5"], "holds 5, and the training ends after train.steps=4"),
    (["train.keep_steps=0"], "must be"),
    (["step=9"], "step=9 is beyond the training, whose last step is 4"),
    (["train.step=3"], "give step=STEP instead"),
    (["data=copy", "data.tokenizer=task", "train.validate_lengths=16"], "copy is a task"),
    (["-m", "train.keep_steps=[1],[2]"], "is made only once: give one value that holds all"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(cli, words, sentence):  # noqa: F811
    common = not any(word.startswith("data=") for word in words)
    done = cli(
        *words, *["log.mode=disabled", "train.length=16"] * (not common), code=2, common=common
    )
    assert sentence in done.stderr
    assert not list(cli.folder.glob("runs/*/train.jsonl"))
