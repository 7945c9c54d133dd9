"""What needs no process: a rerun of a grid with refused and idle cells starts none."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import script_calls
from script_calls import call
from spoils import PLACES, SMALL
from test_cli import TINY

from posbench.common.errors import ConfigError
from posbench.common.outcome import Outcome
from posbench.config.schema import ModelConfig
from posbench.model.memory import check_batch
from posbench.position import legality
from posbench.position.legality import Verdict, file_of
from posbench.runs.directory import Run
from posbench.sweep import job_process
from posbench.sweep.jobs import Job
from posbench.sweep.verdict import JobVerdict, judge_job, settle
from posbench.tools.run import command as commands

GRID = [
    "-m",
    "encoding=alibi,none",
    "extension=none,ntk",
]  # alibi x ntk is refused, none x ntk changes nothing


def planned(capfd: pytest.CaptureFixture, folder: Path, *typed: str) -> list[Job]:
    """The jobs of a command, without running any."""
    jobs: list[Job] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "already_done", lambda job: jobs.append(job) or True)
        patch.setattr(commands, "record", lambda *_: None)
        patch.setattr(commands, "_show_tables", lambda *_: None)
        assert call(capfd, folder, "run", *typed, *SMALL, *PLACES).returncode == 0
    return jobs


def test_refused_and_idle_cells_of_finished_trainings_start_no_process(
    tmp_path, text_folder, capfd
):
    words = [
        *GRID,
        *TINY,
        f"data.path={text_folder}",
        f"results_dir={tmp_path}/runs",
        f"cache_dir={tmp_path}/cache",
    ]
    first = call(capfd, tmp_path, "run", *words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_calls.Here, "Popen", None)  # a process would be a failure
        again = call(capfd, tmp_path, "run", *words)
        more = call(capfd, tmp_path, "run", *words, "evaluate.lengths=[16]")
    assert (first.returncode, again.returncode, more.returncode) == (0, 0, 0)
    for done in (first, again):
        assert "has no spectrum to change" in done.stderr and "no-op" in done.stderr
    assert (
        "2 evaluations and 4 floor windows; 1 refused, 1 no-op" in first.stdout
        and "4 floor windows there already; 1 refused, 1 no-op" in again.stdout
    )
    (way,) = {done.stdout.splitlines()[-1] for done in (first, again)}
    assert (
        "scripts/report.py -m encoding=alibi,none extension=none,ntk" in way
        and "'evaluate.lengths=[16,32]'" in way
    )
    assert "2 evaluations of the grid left out: refused, or without effect" in (
        output := call(capfd, tmp_path, "report", *words).stdout
    )
    assert "not there yet" not in output
    assert (
        "2 of 8 evaluations are not there yet"
        in call(capfd, tmp_path, "report", *words, "extension=none,window").stdout
    )


def test_a_training_that_lost_its_summary_is_not_made_again_by_the_command_itself(
    world, capfd, monkeypatch
):
    (job,) = planned(capfd, world.root)
    monkeypatch.chdir(world.root)
    assert {outcome.status for outcome in settle(job, {}).outcomes} == {"exists"}
    job.run.summary.unlink()
    assert (
        not any(cell.missing_lengths() for cell in job.cells)
        and settle(job, {}) is None
        and settle(job, {}, only_finished=False) is None
    )


def test_other_seeds_are_judged_anew_only_where_the_seed_draws_weights(world, capfd, monkeypatch):
    encodings = []
    monkeypatch.setattr(
        legality,
        "verdict_of",
        lambda encoding, *_: encodings.append(file_of(encoding)) or Verdict(),
    )
    jobs = planned(
        capfd,
        world.root,
        "-m",
        "seed=0,1,2",
        "encoding=rope,learned",
        "extension=none,window",
        "allow_untested=true",
    )
    outcomes: dict[str, Outcome] = {}
    fates = [judge_job(job, outcomes) for job in jobs]
    assert len(jobs) == 6 and all(
        list(judged.cells) == job.cells for judged, job in zip(fates, jobs, strict=True)
    )
    assert encodings.count("learned") == 3 * encodings.count("rope") > 0


def test_a_fate_tells_what_was_made_from_what_was_there(world, capfd):
    (job,) = planned(capfd, world.root)
    first, *_, last = job.cells
    assert last.reference
    cells = {
        first: Outcome("a", "untested"),
        replace(first): Outcome("b", "noop", "why"),
        last: Outcome("c", "legal"),
    }
    judged = JobVerdict(job, cells=cells)
    assert judged.worth_running
    assert [outcome.status for outcome in judged.outcomes()] == ["exists", "noop"]
    assert [outcome.status for outcome in judged.outcomes([first])] == ["done", "noop"]
    refused = JobVerdict(
        job, cells={first: Outcome("a", "refused", "why"), last: Outcome("c", "legal")}
    )
    assert not refused.worth_running and not JobVerdict(job, "why").worth_running


def test_an_evaluation_that_is_refused_late_leaves_the_training_whole(
    tmp_path, text_folder, capfd, monkeypatch
):
    def refused(*_):
        raise ConfigError("too late.")

    words = [
        *TINY,
        f"data.path={text_folder}",
        f"results_dir={tmp_path}/runs",
        f"cache_dir={tmp_path}/cache",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(job_process, "evaluate", refused)
        done = call(capfd, tmp_path, "run", *words)
    (folder,) = (tmp_path / "runs").glob("rope-*")
    run = Run(folder)
    assert (
        done.returncode == 2
        and "too late." in done.stderr
        and run.finished
        and run.has_config
        and run.provenance.exists()
    )
    assert call(capfd, tmp_path, "run", *words).returncode == 0 and run.eval_files()


def test_a_training_that_is_moved_while_it_is_evaluated_is_not_said_to_be_done(
    tmp_path, text_folder, capfd, monkeypatch
):
    evaluate = job_process.evaluate
    results = tmp_path / "runs"

    def moved(*arguments):
        if not (tmp_path / "elsewhere").exists():
            results.rename(tmp_path / "elsewhere")
        return evaluate(*arguments)

    words = [
        *TINY,
        f"data.path={text_folder}",
        f"results_dir={results}",
        f"cache_dir={tmp_path}/cache",
    ]
    monkeypatch.setattr(job_process, "evaluate", moved)
    done = call(capfd, tmp_path, "run", *words)
    (folder,) = results.glob("rope-*")
    assert (
        done.returncode == 1
        and f"{folder} was moved or deleted while it was evaluated" in done.stderr
    )
    assert not Run(folder).finished and Run(tmp_path / "elsewhere" / folder.name).finished
    again = call(capfd, tmp_path, "run", *words)
    assert again.returncode == 0 and Run(folder).finished and Run(folder).has_config


def test_a_batch_that_fits_no_memory_is_refused_before_anything_is_made(
    tmp_path, text_folder, capfd
):
    words = [
        *TINY,
        f"data.path={text_folder}",
        f"results_dir={tmp_path}/runs",
        f"cache_dir={tmp_path}/cache",
    ]
    for dry in ([], ["dry=true"]):
        done = call(capfd, tmp_path, "run", *words, "train.tokens_per_step=1000000000000000", *dry)
        assert "keeps at least" in (done.stderr + done.stdout) and not list(
            tmp_path.glob("runs/rope*")
        ), done
    model = ModelConfig(d_model=1024, n_layer=10, d_ff=1024)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fitting = memory // (
        2 * 10 * 4 * 1024
    )  # 3 x 1024 and 1024 numbers of two bytes in each of ten blocks
    check_batch(model, fitting, "cpu")
    check_batch(model, 10 * fitting, "cuda")
    with pytest.raises(ConfigError, match=f"train.tokens_per_step={fitting + 1} keeps"):
        check_batch(model, fitting + 1, "cpu")
