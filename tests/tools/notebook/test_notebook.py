"""A run in a notebook: rows as on the command line, nothing written, everything on first use."""

import json
import operator
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CONFIGS, choices, node, small_model, small_shape
from script_calls import call
from spoils import write_text
from test_cli import TINY

import posbench
from posbench.common.errors import ConfigError, RunError
from posbench.config.schema import SCHEMAS
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan
from posbench.runs.rows import COLUMNS, VOLATILE_COLUMNS

WORDS = [
    "extension=yarn",
    "extension.beta=5",
    "scale_attention=log_n",
    "evaluate.windows=6",
    "allow_untested=true",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder as one works in: results/runs with one tiny training, its text beside it."""
    folder = tmp_path_factory.mktemp("notebook")
    write_text(folder / "text")
    return folder


@pytest.fixture
def trained(folder, capfd, one_thread) -> Path:
    """The directory of the run."""
    if not (folder / "results").exists():
        assert call(capfd, folder, "run", *TINY, "data.path=text").returncode == 0
    (summary,) = (folder / "results" / "runs").glob("*/train.json")
    return summary.parent


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(first, second) -> None:
    import pandas  # takes a second, which collecting the tests need not wait for

    pandas.testing.assert_frame_equal(
        *(
            table.drop(columns=list(VOLATILE_COLUMNS)).reset_index(drop=True)
            for table in (first, second)
        ),
        check_exact=True,
    )


def test_rows_and_configuration_need_neither_torch_nor_the_text(trained, folder):
    code = (
        f"import sys, posbench\nrun = posbench.load({str(trained)!r})\nassert"
        " run.config['train']['steps'] == 4 and run.cfg is run.config\n"
    )
    code += (
        "assert len(run.rows) and len(posbench.rows('results/runs')) == len(run.rows)\nassert"
        " 'torch' not in sys.modules, 'torch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, timeout=60)
    assert trained.name in repr(posbench.load(trained)) and "encoding=rope" in repr(
        posbench.load(trained)
    )


@pytest.mark.parametrize("protocol", ["fixed_targets", "by_position", "sliding"])
def test_rows_are_those_of_the_command_line_and_nothing_is_written(
    trained, folder, capfd, protocol
):
    run = posbench.load(trained, device="cpu")
    before = files(folder)
    chosen = {
        "extension": {"name": "yarn", "beta": 5},
        "scale_attention": "log_n",
        "lengths": (16, 64),
        "protocol": protocol,
    }
    frame = run.evaluate(**chosen, windows=np.int64(6), allow_untested=True)
    assert files(folder) == before
    words = [*TINY, *WORDS, f"evaluate.protocol={protocol}", "evaluate.lengths=[16,64]"]
    shared_words = [
        word
        for word in words
        if not word.startswith(("model.", "train.", "data")) and word != "evaluate.windows=12"
    ]
    assert (
        call(
            capfd, folder, "run", f"run={trained}", *shared_words, "evaluate.max_length=128"
        ).returncode
        == 0
    )
    same(frame, posbench.rows(trained)[lambda rows: rows.eval_id == frame.eval_id[0]])
    assert frame.extension_args[0]["beta"] == 5


def test_methods_are_chosen_by_name_keywords_or_mapping(trained):
    run = posbench.load(trained, device="cpu")
    frame = run.evaluate("yarn", lengths=[32], beta=5)
    same(frame, run.evaluate({"name": "yarn", "beta": 5}, lengths=np.array([32])))
    same(frame, run.evaluate({**node("extension", "yarn"), "beta": 5}, lengths=range(32, 33)))
    assert (
        frame.columns.tolist() == list(COLUMNS)
        and frame.length.dtype == "int64"
        and frame.position.dtype == "Int64"
    )


def test_no_argument_of_an_extension_has_the_name_of_a_setting():
    settings = set(SCHEMAS["evaluate"].__dataclass_fields__) | {
        "scale_attention",
        "allow_untested",
        "name",
    }
    assert not [name for name in choices("extension") if settings & set(node("extension", name))]


def test_all_rows_of_a_folder_are_one_table_without_the_damaged(trained, folder, tmp_path):
    rows = posbench.rows(folder / "results" / "runs")
    assert (
        set(rows.run_id) == {trained.name}
        and rows.nll.dtype == "float64"
        and not rows.untested.any()
    )
    same(rows, posbench.rows([trained, trained]))
    csv = tmp_path / "rows.csv"
    csv.write_bytes((CONFIGS.parent / "results" / "reported" / "demo" / "rows.csv").read_bytes())
    assert len(posbench.rows([trained, csv])) == len(rows) + len(posbench.rows(csv)) > len(rows)
    damaged = tmp_path / "runs" / trained.name
    (damaged / "evals" / "fixed_targets").mkdir(parents=True)
    (damaged / "config.yaml").write_bytes((trained / "config.yaml").read_bytes())
    (damaged / "evals" / "fixed_targets" / "none+none-00000000.json").write_text("{")
    with pytest.warns(UserWarning, match="Left out: .*none.none-00000000.json"):
        same(rows, posbench.rows([trained, damaged, tmp_path / "runs"]))
    with pytest.raises(RunError, match="00000000"):
        posbench.rows(damaged)
    with pytest.raises(ConfigError, match="matches neither a training"):
        posbench.rows(tmp_path / "nowhere")


def test_the_model_reads_text_and_writes_some(trained):
    run = posbench.load(trained, device="cpu")
    ids = run.encode("word 12")
    assert ids.shape == (1, 7) and run.decode(ids) == "word 12" == run.decode(ids[0].tolist())
    assert (
        run.tokenizer.encode("word 12")
        == list(b"word 12")
        == run.tokenizer.encode(["word 12"])[0][0].tolist()
    )
    assert run.tokenizer.decode(ids) == run.tokenizer.decode(ids.numpy()) == "word 12"
    logits = run.model(ids)
    assert torch.equal(
        logits, run.model(ids, make_plan(run.model.encoding, length=7))
    ) and logits.shape == (1, 7, 256)
    assert torch.equal(logits, run.model(ids[0])) and torch.equal(
        logits, run.model(ids[0].tolist())
    )
    drawn = [run.generate("word", 20, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert run.generate("word", max_new_tokens=20) == drawn[0]
    greedy = run.generate("word", 1, temperature=0)
    assert greedy == run.decode([int(run.model(run.encode("word"))[0, -1].argmax())])
    for chosen in (
        {"extension": "pi"},
        {"extension": "recompute_window"},
        {"extension": {"name": "window", "window": 4}},
    ):
        assert isinstance(run.generate("says word " * 3, 4, **chosen), str)
    cut = run.generate(
        "a" * 9 + "says word 1234", 1, {"name": "recompute_window", "window": 4}, temperature=0
    )
    assert cut == run.generate("1234", 1, temperature=0)


WORD = {"text": "word", "n": 2}


@pytest.mark.parametrize(
    ("call_of_run", "arguments", "words"),
    [
        (
            "evaluate",
            {"extension": "yaarn"},
            r"extension=yaarn is unknown \(did you mean yarn\?\): choose from abf, ",
        ),
        (
            "evaluate",
            {"extension": "yarn", "betta": 3},
            r"betta is not an argument of extension=yarn \(did you mean beta\?\): it takes alpha, ",
        ),
        (
            "evaluate",
            {"extension": ["yarn"]},
            r"extension=\['yarn'\] does not name a method: give a name",
        ),
        ("evaluate", {"extension": {"beta": 3}}, "does not name a method"),
        (
            "evaluate",
            {"window": 3},
            r"window is not an argument of extension=none \(did you mean windows\?\)",
        ),
        ("evaluate", {"windows": "many"}, "evaluate.windows=many must be a whole number"),
        ("evaluate", {"protocol": "slidin"}, "slidin.*sliding"),
        (
            "evaluate",
            {"extension": "pi", "lengths": [4096]},
            "goes beyond evaluate.max_length=128",
        ),
        (
            "evaluate",
            {"extension": "pi", "lengths": [16]},
            "is a no-op: .*evaluate without it, or at other lengths",
        ),
        ("evaluate", {"extension": "table_linear"}, "no learned table to lengthen"),
        (
            "evaluate",
            {"scale_attention": "ssmax"},
            "must be trained in with train.scale_attention=ssmax",
        ),
        ("generate", {**WORD, "n": 0}, "n=0"),
        ("generate", {**WORD, "n": 2.5}, "n=2.5"),
        ("generate", {**WORD, "max_new_tokens": 3}, "max_new_tokens=3"),
        ("generate", {**WORD, "temperature": -1}, "temperature=-1"),
        ("generate", {**WORD, "text": ""}, "no token"),
        ("generate", {**WORD, "extension": "table_linear"}, "no learned table"),
        ("encode", {"text": ["a"]}, "list"),
        ("tokenizer.encode", {"text": 5}, "text=5"),
        ("tokenizer.decode", {"ids": ["a"]}, "ids="),
    ],
    ids=str,
)
def test_a_run_refuses(trained, call_of_run, arguments, words):
    run = posbench.load(trained, device="cpu")
    with pytest.raises(ConfigError, match=words):
        operator.attrgetter(call_of_run)(run)(**arguments)


def test_a_folder_without_a_finished_training_is_refused(folder):
    with pytest.raises(RunError, match="has no finished training"):
        posbench.load(folder)


def test_a_model_without_a_plan_reads_no_position_that_it_lacks():
    model = small_model(make_method(node("encoding", "learned"), small_shape()))
    assert model(torch.zeros(1, 16, dtype=torch.long)).shape == (1, 16, 50)
    with pytest.raises(ConfigError, match="encoding=learned has no position 16"):
        model(torch.zeros(1, 17, dtype=torch.long))


def test_a_text_begins_with_the_bos_of_the_training(trained, folder, capfd):
    assert (
        call(
            capfd, folder, "run", *TINY, "data.path=text", "data.bos=true", "results_dir=bos/runs"
        ).returncode
        == 0
    )
    (summary,) = (folder / "bos" / "runs").glob("*/train.json")
    run = posbench.load(summary.parent, device="cpu", cache_dir=folder / "results" / "cache")
    assert run.encode("a").tolist() == [[256, 97]] and run.decode(run.encode("a")) == "a"
    assert len(run.encode(run.generate("", 30, temperature=100.0))[0]) > 1
    cut = run.generate(
        "says word 1234", 1, {"name": "recompute_window", "window": 5}, temperature=0
    )
    assert cut == run.generate("1234", 1, temperature=0)


def test_the_notebook_runs(trained, folder, monkeypatch, capfd):
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(folder)
    notebook = json.loads((CONFIGS.parent / "scripts" / "notebook.ipynb").read_text())
    assert notebook["nbformat"] == 4 and not any(cell.get("outputs") for cell in notebook["cells"])
    names: dict = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert (
        names["logits"].shape[-1] == 256
        and names["farther"].extension.tolist() == ["pi", "pi"]
        and capfd.readouterr().out
    )
