"""Altered evidence is noticed: by what reads it for a report, a figure, a page, a bundle or a
verdict, and by bundle check=true.
"""

import json
import shutil

import numpy as np
import pytest
from alterations import ALTERATIONS, edit_configs, edit_rows, scaled
from conftest import CONFIGS
from synthetic import Built, write_run

import posbench
from posbench.common.errors import RunError
from posbench.report.frame import frame_by_source
from posbench.report.report import collect_report
from posbench.report.write_report import FILES_OF_EVERY_REPORT, rewrite_hashes
from posbench.results.evidence import write_evidence
from posbench.results.hashes import HASHES
from posbench.runs.rows import eval_content, read_eval
from posbench.tools.bundle.command import bundle_command
from posbench.tools.claims.find import Pool
from posbench.tools.explore.command import explore_command

DEMO = CONFIGS.parent / "results" / "reported" / "demo"
# What nothing else in a folder tells: only a list of hashes notices it.
LIST_ALONE = {
    "rows: commit",
    "rows: max_distance",
    "rows: target_len",
    "rows: seconds",
    "rows: peak_mib",
    "rows: no settings",
    "sums: one loss by a billionth",
    "documents: no bytes",
    "configs: machines",
    "configs: name of the data",
    "configs: seed of the windows, in the configuration",
    "configs: no configuration",
    "configs: a training twice",
    "curve.svg: a number",
}


@pytest.fixture
def folder(tmp_path):
    """A copy of the demo's evidence, tables and one figure, with their list."""
    target = tmp_path / "demo"
    target.mkdir()
    for name in (*FILES_OF_EVERY_REPORT, "curve.svg"):
        if (DEMO / name).exists():
            shutil.copy(DEMO / name, target)
    rewrite_hashes(target)
    return target


def notices(reader, folder) -> bool:
    """True if a reader refuses the folder in one sentence, or says in a note what is altered."""
    try:
        report = reader(folder)
    except RunError as error:
        assert "\n" not in str(error)
        return True
    return any(
        "changed after the report was written" in note for note in getattr(report, "notes", ())
    )


def read(folder):
    return collect_report([], "t", "report.py", evidence=[folder])


def check(folder):
    bundle_command([str(folder), "check=true"])


def test_there_are_enough_and_what_is_whole_is_read_without_a_word(folder, capsys):
    assert len(ALTERATIONS) >= 90 and LIST_ALONE <= ALTERATIONS.keys()
    assert read(folder).notes == []
    check(folder)
    assert "all tables are those of rows and sums" in capsys.readouterr().out


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_alteration_is_noticed_by_report_and_by_the_check(folder, name):
    ALTERATIONS[name](folder)
    assert notices(read, folder)
    assert notices(check, folder)


@pytest.mark.parametrize("name", [name for name in ALTERATIONS if not name.startswith(HASHES)])
def test_without_a_list_the_check_notices_what_does_not_follow(folder, name):
    (folder / HASHES).unlink()
    ALTERATIONS[name](folder)
    assert notices(check, folder) == (name not in LIST_ALONE)


@pytest.mark.parametrize(
    "name",
    [
        "rows: nll of a method",
        "rows: a second row with another nll",
        "sums: rows renumbered",
        "configs: steps",
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_every_reader_notices(folder, name, listed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if not listed:
        (folder / HASHES).unlink()
    ALTERATIONS[name](folder)
    readers = {
        "plot": lambda: frame_by_source([folder]),
        "frame": lambda: posbench.frame([folder]),
        "explore": lambda: explore_command([str(folder)]),
        "bundle": lambda: bundle_command([str(folder), "out=x.zip"]),
        "claims": lambda: Pool.read([], {}, [folder]),
    }
    for reader in readers.values():
        with pytest.raises(RunError):
            reader()
    assert not list(tmp_path.glob("*.zip")) and not list(tmp_path.glob("*.html"))


def test_rows_are_not_read_past_the_list(folder):
    """Neither as a frame of rows, nor as a CSV, nor where the sums are removed to have the rows
    read alone.
    """
    ALTERATIONS["rows: nll of a method"](folder)
    with pytest.raises(RunError, match="hashes.json lists"):
        posbench.rows(folder)
    (folder / "sums.npz").unlink()
    with pytest.raises(
        (RunError, posbench.common.errors.ConfigError), match="hashes.json lists|is missing"
    ):
        frame_by_source([folder])


def test_a_folder_without_a_list_is_read_and_said_to_be_unvouched(folder, capsys):
    (folder / HASHES).unlink()
    assert read(folder).notes == []
    check(folder)
    assert "It has no hashes.json" in capsys.readouterr().out


def test_a_changed_figure_is_a_note_and_no_error(folder):
    ALTERATIONS["curve.svg: a number"](folder)
    (note,) = read(folder).notes
    assert "curve.svg" in note and "changed after the report was written" in note


def test_a_list_that_is_written_anew_hides_no_contradiction(folder):
    """Whoever writes the list again vouches for the files, and must let all else follow."""
    edit_rows(folder, scaled)
    rewrite_hashes(folder)
    assert notices(read, folder)


def test_report_writes_the_list_last_and_one_that_was_cut_short_has_none(tmp_path, monkeypatch):
    paths = write_run(tmp_path / "runs", "rope")
    built = Built(paths, tmp_path / "out", "t", "x")
    assert built.files[-1].name == HASHES
    listed = json.loads((tmp_path / "out" / HASHES).read_text())["files"]
    assert set(listed) == {path.name for path in built.files} - {HASHES} and {
        "explore.html",
        "report.html",
        "rows.csv",
    } <= set(listed)
    monkeypatch.setattr("posbench.report.write_report.explore_page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Built(paths[:3], tmp_path / "out", "t", "x")
    assert not (tmp_path / "out" / HASHES).exists()


def test_committed_lists_are_those_of_the_files():
    for configs in (CONFIGS.parent / "results" / "reported").glob("*/configs.jsonl"):
        before = (configs.parent / HASHES).read_bytes()
        rewrite_hashes(configs.parent)
        assert (configs.parent / HASHES).read_bytes() == before, "run `make pages`"


@pytest.fixture
def evaluation(tmp_path):
    """The eval json of a method, written by this version, beside its arrays."""
    path = write_run(tmp_path / "runs", "rope")[2]
    content = json.loads(path.read_text())
    path.write_text(json.dumps(eval_content(content["rows"], content["config"])))
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"nll": 0.5},
        {"accuracy": 0.9},
        {"dtype": "bf16"},
        {"n_bytes": 7},
        {"max_distance": 1.0},
        {"commit": "x"},
        {"extension": "yarn"},
        {"nll_sem": 0.001},
    ],
)
def test_an_edited_eval_json_is_noticed_by_report_and_by_run(evaluation, change):
    content = json.loads(evaluation.read_text())
    content["rows"] = [{**row, **change} for row in content["rows"]]
    evaluation.write_text(json.dumps(content))
    for reader in (read_eval, lambda path: collect_report([path], "t", "x")):
        with pytest.raises(RunError, match="was changed after|invalid rows"):
            reader(evaluation)


@pytest.mark.parametrize("factor", [0.9, 1.01])
def test_a_loss_of_an_older_eval_json_must_be_the_mean_of_the_losses_beside_it(tmp_path, factor):
    path = write_run(tmp_path / "runs", "rope")[2]
    content = json.loads(path.read_text())
    for row in content["rows"]:
        row["nll"] *= factor
        row["ppl"], row["bpb"] = float(np.exp(row["nll"])), row["bpb"] * factor
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match="the losses beside it give"):
        collect_report([path], "t", "x")
    with pytest.raises(RunError, match="the losses beside it give"):
        Pool.read([path], {})


def test_new_evidence_keeps_what_its_ids_are_made_of(folder, tmp_path):
    """An evaluation that knows its settings has them beside its id, so that neither can be
    another.
    """
    evaluate = {
        "windows": 256,
        "targets": 8,
        "max_length": 1024,
        "split": "test",
        "dtype": "bf16",
        "seed": 0,
    }
    none = {
        "extension": {"_target_": "posbench.extensions.none.NoExtension"},
        "scale_attention": {"_target_": "posbench.scale_attention.none.NoScale"},
    }
    row = next(
        row
        for row in read(folder).rows
        if row["extension"] == row["scale_attention"] == "none" and row["encoding"] == "rope"
    )

    def learn(lines, seed=0):
        config = {
            "protocol": "fixed_targets",
            "version": 1,
            **none,
            "evaluate": {**evaluate, "seed": seed},
        }
        (line,) = [line for line in lines if row["eval_id"] in line["evaluations"]]
        line["evaluations"][row["eval_id"]]["config"] = config

    (folder / HASHES).unlink()
    edit_configs(folder, learn)
    report = read(folder)
    built = tmp_path / "again"
    built.mkdir()
    write_evidence(built, report.evaluations, report.origins)
    assert (
        '"version": 1' in (built / "configs.jsonl").read_text()
        and '"protocol": "fixed_targets"' in (built / "configs.jsonl").read_text()
    )
    edit_configs(folder, lambda lines: learn(lines, seed=1))
    with pytest.raises(RunError, match="the settings of evaluation"):
        read(folder)
