"""Methods of the user's own are named by the yaml by which they were chosen: in ids, folders, rows,
tables and reports.
"""

import json

import pytest
from test_cli import cli  # noqa: F401  (a fixture)

from posbench.config import compose
from posbench.config.identity import canonical, method_args, method_name, run_id
from posbench.report.records import read_points

EXTENSIONS = """
from posbench.position.geometry import Band, Trait
from posbench.position.interfaces import Extension


class Half(Extension):
    needs = Trait.COORDINATE

    def __init__(self, by: float = 2.0):
        self.by = by

    def bands(self, span):
        def shrink(index_T):
            return index_T / self.by

        return (Band(q=shrink, k=shrink),)


class Tenth(Half):
    pass
"""
ENCODINGS = """
from posbench.encodings.alibi import Alibi


class Gentle(Alibi):
    pass


class Steep(Alibi):
    def __init__(self, shape, slope_scale: float = 16.0):
        super().__init__(shape, slope_scale)
"""
YAMLS = {
    "extension/half.yaml": "_target_: two.Half\nby: 2.0\n",
    "extension/tenth.yaml": "_target_: two.Tenth\nby: 10.0\n",
    "extension/fifth.yaml": "_target_: two.Half\nby: 5.0\n",
    "encoding/gentle.yaml": "_target_: brk.Gentle\n",
    "encoding/steep.yaml": "_target_: brk.Steep\nslope_scale: 16.0\n",
    "scale_attention/sharp.yaml": "_target_: sharp.Sharp\nfactor: 1.2\n",
    "experiment/mine.yaml": (
        "name: mine\ngrid:\n  - {encoding: [gentle, steep], extension: [none, half, tenth]}\n"
    ),
}
SCALE = """
import torch

from posbench.position.interfaces import ScaleAttention


class Sharp(ScaleAttention):
    def __init__(self, shape, factor: float = 1.0):
        super().__init__(shape)
        self.factor = factor

    def forward(self, n_T, span, layer):
        return torch.full(n_T.shape, self.factor)
"""
UNTESTED = "allow_untested=true"


@pytest.fixture
def mine(tmp_path):
    """Words that declare a folder with two classes in each of two modules, and a yaml for each
    class.
    """
    folder = tmp_path / "mine"
    for name, text in YAMLS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, code in {"two": EXTENSIONS, "brk": ENCODINGS, "sharp": SCALE}.items():
        (folder / f"{name}.py").write_text(code)
    return "--config-dir", str(folder)


def lines_of(cli) -> set[tuple[str, str, int]]:  # noqa: F811
    """(encoding, extension, number of seeds) of the lines of a written report."""
    points = read_points(cli.folder / "report" / "curve.csv")
    return {(point.encoding, point.extension, point.n_seeds) for point in points}


def test_two_extensions_of_one_file_are_two_lines_of_a_report(cli, mine):  # noqa: F811
    words = (*mine, "-m", "extension=none,half,tenth,fifth", UNTESTED)
    cli(*words)
    cli(*words, script="report")
    expected_lines = {("rope", name, 1) for name in ("none", "half", "tenth", "fifth")}
    assert lines_of(cli) == expected_lines
    (run,) = cli.runs()
    evaluations = {path.name.rpartition("-")[0] for path in run.glob("evals/fixed_targets/*.json")}
    assert evaluations == {
        "none+none",
        "half+none",
        "tenth+none",
        "fifth+none",
        "recompute_window+none",
    }
    row, *_ = cli.rows("fifth+none-*.json")
    assert (row["extension"], row["extension_args"]) == ("fifth", {"by": 5.0})
    # from files alone: the folder of the yamls is not declared
    cli(f"run={run}", f"report_dir={cli.folder}/report", script="report", common=False)
    assert lines_of(cli) == expected_lines


def test_seeds_of_own_encodings_are_pooled_under_the_name_of_their_yaml(cli, mine):  # noqa: F811
    words = (*mine, "-m", "encoding=gentle,steep", "seed=0,1")
    cli(*words)
    assert sorted(run.name[:-11] for run in cli.runs()) == [
        "gentle-16-s0",
        "gentle-16-s1",
        "steep-16-s0",
        "steep-16-s1",
    ]
    report = cli(*words, script="report")
    assert (
        lines_of(cli) == {("gentle", "none", 2), ("steep", "none", 2)}
        and "run=" not in report.stdout
    )
    checked = cli(str(cli.folder / "report"), "check=true", script="bundle", common=False)
    assert "4 trainings; all tables are those of rows and sums" in checked.stdout
    assert "nothing to do" in cli(*words).stdout
    for run in cli.runs():
        assert "nothing to do" in cli(*mine, f"run={run}").stdout


def test_the_cells_of_an_experiment_and_a_scale_are_named_alike(cli, mine):  # noqa: F811
    cli(*mine, "experiment=mine", UNTESTED)
    assert sorted(run.name[:-11] for run in cli.runs()) == ["gentle-16-s0", "steep-16-s0"]
    cli(*mine, "experiment=mine", UNTESTED, script="report")
    assert lines_of(cli) == {
        (encoding, extension, 1)
        for encoding in ("gentle", "steep")
        for extension in ("none", "half", "tenth")
    }
    cli(*mine, "encoding=steep", "scale_attention=sharp", UNTESTED)
    row, *_ = cli.rows("none+sharp-*.json")
    assert row["scale_attention"] == 'sharp {"factor":1.2}' and row["encoding"] == "steep"


def test_a_child_keeps_the_names_that_were_trained_into_it(cli, mine):  # noqa: F811
    words = (
        *mine,
        "encoding=rope",
        "extension=half",
        "finetune=longer",
        "finetune.steps=1",
        "evaluate.lengths=64",
        UNTESTED,
    )
    cli(*words)
    (child,) = (run for run in cli.runs() if "to" in run.name)
    assert child.name.startswith("rope+half-16to64-s0-")
    assert "half (trained in)" in cli(*words[:2], "-m", *words[2:], script="report").stdout


def test_runs_of_before_keep_their_names(cli, mine, monkeypatch):  # noqa: F811
    with monkeypatch.context() as before:
        before.setattr(
            compose, "with_choice_keys", lambda values, choices: values
        )  # as long as a module gave the name
        cli(*mine, "encoding=steep", "extension=half", UNTESTED)
    (old,) = cli.runs()
    assert old.name.startswith("brk-16-s0-")
    assert "nothing to do" in cli(*mine, "encoding=steep", "extension=half", UNTESTED).stdout
    cli(*mine, "encoding=steep", "extension=half", "evaluate.lengths=[16,64]", UNTESTED)
    assert cli.runs() == [old]
    (path,) = old.glob("evals/fixed_targets/two+none-*.json")
    rows = json.loads(path.read_text())["rows"]
    assert [(row["length"], row["encoding"], row["extension"]) for row in rows] == [
        (n, "brk", "two") for n in (16, 32, 64)
    ]
    cli(*mine, "encoding=steep", "extension=tenth", UNTESTED)  # what is new in it has the new name
    assert {row["encoding"] for row in cli.rows("tenth+none-*.json")} == {"brk"}


def test_a_name_changes_no_hash_and_is_no_argument():
    plain = {"_target_": "two.Half", "by": 2.0}
    named = {**plain, "_name_": "half"}
    assert (method_name(plain), method_name(named)) == ("two", "half")
    assert method_args(named) == {"by": 2.0}
    assert canonical({"extension": named, "inner": [named]}) == canonical(
        {"extension": plain, "inner": [plain]}
    )
    training = {"model": {}, "train": {"length": 64}, "seed": 0}
    old, new = (run_id({**training, "encoding": node}, "f") for node in (plain, named))
    assert (old.partition("-")[0], new.partition("-")[0]) == ("two", "half")
    assert old.rpartition("-")[2] == new.rpartition("-")[2]


@pytest.mark.parametrize("name", ["../../elsewhere", ".hidden", "a b", "", 16, None])
def test_a_name_that_is_no_name_of_a_file_is_not_taken(name):
    assert method_name({"_target_": "two.Half", "_name_": name}) == "two"


def test_posbench_s_own_classes_keep_their_names():
    """Whatever yaml chose them: two spellings of one setting are one line, and what is checked by
    name stays what it is.
    """
    assert (
        method_name({"_target_": "posbench.extensions.none.NoExtension", "_name_": "half"})
        == "none"
    )
    nodes = {
        "extension": {"_target_": "posbench.extensions.pi.Pi"},
        "encoding": {"_target_": "mine.Rope"},
    }
    assert (
        compose.with_choice_keys(nodes, {"extension": "half", "encoding": "rope"}) == nodes
    )  # a name of posbench's is not another's
    named = compose.with_choice_keys(nodes, {"extension": "half", "encoding": "other way"})
    assert named["encoding"] == {"_target_": "mine.Rope", "_name_": "other_way"}
    assert "_name_" not in nodes["encoding"]
