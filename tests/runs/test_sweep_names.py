"""Names of sweeps: in lists, in the lines of reports, and as words that choose runs."""

import json

import pytest
from test_housekeeping import SUMMARY, make

from posbench.common.errors import ConfigError
from posbench.common.files import append_lines
from posbench.results.distinguish import distinguishing_keys, words_by_run
from posbench.results.evaluation import Evaluation
from posbench.results.inventory import list_runs
from posbench.results.run_metadata import RunMetadata
from posbench.results.sweep_names import LEDGER, runs_of_sweep
from posbench.tools.runs.command import runs


@pytest.fixture
def folder(tmp_path):
    """Run 1 trained by sweep first and used by second, run 2 by second, run 3 by none."""
    folder = tmp_path / "runs"
    for digit, name in (("1", "first"), ("2", "second"), ("3", None)):
        path = make(folder, digit, train=SUMMARY)
        config = json.loads((path / "config.yaml").read_text())
        lines = [f"{key}: {json.dumps(value)}" for key, value in {**config, "name": name}.items()]
        (path / "config.yaml").write_text("\n".join(lines))
    line = {"run_id": "rope-16-s0-1111111111", "name": "second", "status": "skipped"}
    refused = {**line, "run_id": "rope-16-s0-3333333333", "status": "refused"}
    append_lines(folder / LEDGER, [line, refused, {"run_id": 5, "name": []}])
    return folder


def test_runs_list_shows_and_chooses_them(folder, capsys):
    names = {entry.path.name[-1]: entry.names for entry in list_runs(folder)}
    assert names == {"1": ("first", "second"), "2": ("second",), "3": ()}
    runs(["list", f"results_dir={folder}", "name=sec*"])
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:2] == ["run", "name"] and len(table) == 3
    assert "first, second" in table[1]
    runs(["list", f"results_dir={folder}", "runs=*3"])
    assert "name" not in capsys.readouterr().out.splitlines()[0]
    with pytest.raises(ConfigError, match="did you mean second.*choose from first, second"):
        runs(["list", f"results_dir={folder}", "name=secnd"])


def test_a_name_stands_for_its_runs(folder):
    assert [path.name[-1] for path in runs_of_sweep(folder, "second")] == ["1", "2"]
    with pytest.raises(ConfigError, match="choose from first, second"):
        runs_of_sweep(folder, "third")


def settings(name, steps, text="a"):
    return {
        "model": {},
        "encoding": {},
        "train": {"steps": steps},
        "name": name,
        "data": {"name": text},
    }


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        # {run_id: (seed, configuration)}, and the words that tell each apart
        (
            {"a": (0, settings("long", 9)), "b": (0, settings("short", 3))},
            {"a": " (long)", "b": " (short)"},
        ),
        (  # two ways in one sweep: the name says less than the setting
            {"a": (0, settings("both", 9)), "b": (0, settings("both", 3))},
            {"a": " steps=9", "b": " steps=3"},
        ),
        (  # one of them has no name
            {"a": (0, settings("long", 9)), "b": (0, settings(None, 3))},
            {"a": " steps=9", "b": " steps=3"},
        ),
        (  # experiments of posbench's own share trainings
            {"a": (0, settings("demo", 9)), "b": (0, settings("headline", 3))},
            {"a": " steps=9", "b": " steps=3"},
        ),
        (  # seeds of equal settings are one line, whatever their sweeps
            {"a": (0, settings("first", 9)), "b": (1, settings("second", 9))},
            {},
        ),
        (  # equal settings and seeds
            {"a": (0, settings("first", 9)), "b": (0, settings("second", 9))},
            {"a": " (first)", "b": " (second)"},
        ),
        (
            {"x-1": (0, settings(None, 9)), "x-2": (0, settings(None, 9))},
            {"x-1": " run=1", "x-2": " run=2"},
        ),
        (  # texts by their names, not by a hash
            {"a": (0, settings(None, 9, "notes")), "b": (0, settings(None, 9, "diary"))},
            {"a": " data=notes", "b": " data=diary"},
        ),
    ],
)
def test_lines_have_the_names_of_sweeps_where_these_tell_as_much(tmp_path, configs, words):
    row = {
        "encoding": "rope", "encoding_args": {}, "data": "a", "tokenizer": "bytes",
        "trained_scale": "none", "finetune": None, "train_len": 64,
    }  # fmt: skip
    evaluations = [
        Evaluation([{**row, "run_id": run_id, "seed": seed}], tmp_path / "rows.csv")
        for run_id, (seed, _) in configs.items()
    ]
    origins = {
        run_id: RunMetadata(tmp_path / run_id, config, {"data_fingerprint": config["data"]["name"]})
        for run_id, (_, config) in configs.items()
    }
    words_of_runs, _ = words_by_run(evaluations, origins)
    assert {run_id: "".join(parts.values()) for run_id, parts in words_of_runs.items()} == words


def test_a_model_has_the_name_of_its_width_in_whatever_order_its_configuration_is_read():
    """config.yaml has the order of the schema, configs.jsonl of a report that of the alphabet."""
    small = {"model.d_model": 128, "model.n_layer": 4, "model.d_ff": 320, "seed": 0}
    large = {"model.d_model": 256, "model.n_layer": 6, "model.d_ff": 640, "seed": 0}
    for order in (list, sorted):
        configs = [{key: config[key] for key in order(config)} for config in (small, large)]
        assert distinguishing_keys(configs) == {"model.d_model": ["128", "256"]}
