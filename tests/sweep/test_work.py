"""Work in the same units before and after, and what a command without words says first."""

import pytest
from conftest import CONFIGS
from hydra import initialize_config_dir
from spoils import with_usual, write_text

from posbench.config.compose import Composer, Request, raw_configs_of_jobs
from posbench.config.schema import JobConfig, check_config
from posbench.sweep.jobs import plan_jobs
from posbench.sweep.work import Work, all_paths, count_work, unfinished
from posbench.tools.run import command


@pytest.fixture
def cfg(tmp_path) -> dict:
    """Configuration of a tiny training on a text that is there."""
    words = with_usual(
        f"data.path={write_text(tmp_path / 'text')}",
        f"results_dir={tmp_path / 'runs'}",
        f"cache_dir={tmp_path / 'cache'}",
        "extension=pi",
    )
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composer = Composer()
        (values,) = raw_configs_of_jobs(composer.values(words), words, composer)
    return check_config(values)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (Work(), ""),
        (Work(evaluations=1), "1 evaluation"),
        (
            Work(trainings=2, evaluations=4, floor_windows=1),
            "2 trainings, 4 evaluations and 1 floor window",
        ),
        (Work(checkpoints=1, floor_windows=2), "1 checkpoint and 2 floor windows"),
    ],
)
def test_work_in_words(work, words):
    assert str(work) == words


def test_floor_windows_are_counted_apart_until_the_user_asks_for_one(cfg):
    recompute = {"_target_": "posbench.extensions.recompute_window.RecomputeWindow", "window": None}
    jobs = plan_jobs([cfg, {**cfg, "extension": recompute}, {**cfg, "seed": 1}])
    assert count_work(jobs, unfinished(jobs)) == Work(2, 0, 3, 3)
    assert unfinished(jobs) == all_paths(jobs) and count_work(jobs, set()) == Work()


@pytest.mark.parametrize(
    ("words", "says"),
    [([], True), (["device=cpu", "log.mode=disabled"], True), (["seed=1"], False)],
)
def test_without_words_it_says_what_it_does_before_it_begins(cfg, monkeypatch, capsys, words, says):
    def begin(*arguments) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "launch", begin)
    with pytest.raises(KeyboardInterrupt):
        command.run(Request([cfg], {"name": None}, False, words=words))
    lines = capsys.readouterr().err.splitlines()
    if not says:
        assert lines == []
        return
    steps = JobConfig.of(cfg).train.steps
    assert lines[0].startswith(f"without further words: encoding=rope is trained for {steps} steps")
    assert lines[1].startswith("1 of 1 trainings to make, ")
    assert "1 evaluation and 2 floor windows, " in lines[1] and " of training by " in lines[2]


def test_a_training_keeps_the_name_that_its_text_had(cfg, tmp_path):
    (job,) = plan_jobs([cfg])
    assert job.config.data["name"] == "text"
    job.run.path.mkdir(parents=True)
    job.run.config.write_text("data: {name: local}\n")
    (again,) = plan_jobs([cfg])
    assert again.run.path == job.run.path and again.config.data["name"] == "local"
    (typed,) = plan_jobs([{**cfg, "data": {**cfg["data"], "name": "mine"}}])
    assert typed.config.data["name"] == "mine"
