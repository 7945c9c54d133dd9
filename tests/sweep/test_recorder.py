import json
import re
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from conftest import node
from synthetic import LENGTHS, TARGETS, with_settings, write_eval
from test_rows import VALUES, stored

from posbench.config.names import CONFIGS_FOLDER
from posbench.config.schema import LogConfig
from posbench.report.report import collect_report
from posbench.runs.directory import Run
from posbench.runs.plain_yaml import read_yaml
from posbench.runs.rows import make_row, read_eval
from posbench.sweep import wandb_content, wandb_mirror
from posbench.sweep.recorder import Recorder
from posbench.sweep.wandb_mirror import wandb_mode

CONFIG = {"encoding": {"_target_": "posbench.encodings.rope.Rope"}, "seed": 0}


@pytest.fixture(autouse=True)
def logged_out(monkeypatch, tmp_path):
    for name in (
        "WANDB_MODE",
        "WANDB_API_KEY",
        "WANDB_IDENTITY_TOKEN_FILE",
        "WANDB_BASE_URL",
        "NETRC",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def run(tmp_path):
    (tmp_path / "runs" / "rope-64-s0-abc").mkdir(parents=True)
    return Run(tmp_path / "runs" / "rope-64-s0-abc")


class FakeRun:
    """Stands in for a wandb run and remembers what it was told."""

    def __init__(self):
        self.logged, self.steps, self.exit_code, self.dir, self.summary, self.tags = (
            [],
            [],
            None,
            "nowhere/files",
            {},
            ("train",),
        )

    def define_metric(self, *names, **options):
        pass

    def log(self, values, step=None):
        self.logged.append(values)
        self.steps.append(step)

    def finish(self, exit_code):
        self.exit_code = exit_code


@pytest.fixture
def fake(monkeypatch):
    """A wandb whose init can be replaced; `started` holds the runs it began, `asked` what they were
    asked for.
    """
    module = types.ModuleType("wandb")
    module.started, module.asked = [], []
    module.Settings = type(
        "Settings", (), {"model_fields": {"silent": 0}, "__init__": lambda self, **values: None}
    )
    module.setup = lambda settings: types.SimpleNamespace(
        settings=types.SimpleNamespace(base_url="http://127.0.0.1")
    )
    module.Table = lambda **content: content
    module.plot = types.SimpleNamespace(
        line_series=lambda xs, ys, keys, *titles, **how: {"xs": xs, "ys": ys, "keys": keys}
    )

    def init(**options):
        module.asked.append(options)
        module.started.append(FakeRun())
        return module.started[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_modes(monkeypatch, tmp_path):
    assert (wandb_mode(None), wandb_mode("online"), wandb_mode("disabled")) == (
        "offline",
        "online",
        "disabled",
    )
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".netrc").write_text("machine elsewhere.org login user password x\n")
    assert wandb_mode(None) == "offline"
    (tmp_path / "home" / ".netrc").write_text("machine api.wandb.ai login user password x\n")
    assert (wandb_mode(None), wandb_mode("offline")) == ("online", "offline")
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert wandb_mode(None) == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert wandb_mode(None) == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode("online") == "disabled"


@pytest.mark.parametrize("variable", ["WANDB_API_KEY", "WANDB_MODE"])
def test_the_way_to_keep_a_run_offline_works(run, fake, monkeypatch, capsys, variable):
    monkeypatch.setenv(variable, "online")  # a key may be any text
    with Recorder(run, LogConfig(), CONFIG, "train"):
        pass
    way_out = re.search(r"; (\S+)=offline keeps it on this machine", capsys.readouterr().err)[1]
    mode = None
    if way_out == "log.mode":
        mode = "offline"
    else:
        monkeypatch.setenv(way_out, "offline")
    with Recorder(run, LogConfig(mode=mode), CONFIG, "train"):
        pass
    assert [asked["mode"] for asked in fake.asked] == ["online", "offline"]


def test_the_demo_is_offline_where_a_key_is_set(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert (
        wandb_mode(read_yaml(CONFIGS_FOLDER / "experiment" / "demo.yaml")["base"]["log.mode"])
        == "offline"
    )


def test_disabled_does_not_import_wandb(run):
    code = (
        "import sys; from posbench.sweep.recorder import Recorder\nfrom posbench.config.schema"
        " import LogConfig; from posbench.runs.directory import Run\nwith"
        f" Recorder(Run({str(run.path)!r}), LogConfig(mode='disabled'), {{}}, 'train') as recorder:"
        " recorder.train(1, loss=2.5)\nprint('wandb' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
    assert json.loads(run.train_log.read_text()) == {"step": 1, "loss": 2.5}


def test_names_of_curves():
    windows = [
        {"extension": "recompute_window", "extension_args": {"window": window}}
        for window in (None, 32)
    ]
    usual = {"extension_args": node("extension", "yarn")}
    texts = [usual | {"data": name} for name in ("pysource", "pysource+mqar", "books")]
    none = {"extension": "none", "extension_args": {}}
    others = [
        usual | {"extension_args": {**usual["extension_args"], "alpha": 2.0}},
        usual | {"scale_attention": "log_n"},
        none,
        none | {"task": "mqar", "protocol": "accuracy"},
        none | {"encoding": "none", "encoding_args": {}},
    ]
    changes = [*windows, *texts, *others]
    assert [
        wandb_content.curve_name(make_row(**VALUES | change), "pysource") for change in changes
    ] == [
        "fixed_targets/rope recompute_window",
        "fixed_targets/rope recompute_window window=32",
        "fixed_targets/rope yarn",
        "fixed_targets/rope yarn",
        "fixed_targets_books/rope yarn",
        "fixed_targets/rope yarn alpha=2.0",
        "fixed_targets/rope yarn log_n",
        "fixed_targets/rope",
        "accuracy_mqar/rope",
        "fixed_targets/none",
    ]


def test_an_evaluation_adds_to_the_run_of_its_training(run, fake):
    stored(run, extension="pi", extension_args={}, eval_id="before")
    config = {**CONFIG, "extension": {"_target_": "posbench.extensions.ntk.Ntk"}}
    with Recorder(run, LogConfig(mode="online", group="g"), config, "evaluate") as job:
        job.rows([make_row(**VALUES)])
        stored(run)
        job.show_results()
    (options,), (mirror,) = fake.asked, fake.started
    assert (options["id"], options["group"], options["resume"]) == (run.id, "g", "allow")
    assert mirror.tags == ("train", "evaluate", "encoding=rope", "extension=ntk")
    curve, table, *_ = mirror.logged
    assert "eval/length" in curve and len(table["eval_rows"]["data"]) == 2


def test_pictures_are_drawn_from_the_rows_of_the_run(tmp_path):
    floor_N = np.full(TARGETS, 3.0)
    args = {"window": None}
    losses = [floor_N] * 3
    paths = [
        write_eval(tmp_path, "rope", "recompute_window", "none", losses, LENGTHS[1:], args=args)
    ]
    losses = [floor_N + 0.25 * i for i in range(4)]
    paths.append(write_eval(tmp_path, "rope", "ntk", "none", losses, LENGTHS, args={}))
    pictures = wandb_content.draw_pictures(collect_report(paths, "a run", ""), tmp_path)
    assert [path.name for path in pictures] == ["loss.png"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")


def test_the_summary_has_each_length_and_its_difference_to_the_floor(tmp_path):
    floor_N = np.full(TARGETS, 3.0)
    paths = [
        write_eval(
            tmp_path,
            "rope",
            "recompute_window",
            "none",
            [floor_N] * 3,
            LENGTHS[1:],
            args={"window": None},
        )
    ]
    paths.append(
        write_eval(
            tmp_path,
            "rope",
            "ntk",
            "none",
            [floor_N + 0.25 * i for i in range(4)],
            LENGTHS,
            args={"multiplier": 2.0},
        )
    )
    summary = wandb_content.report_summary(collect_report(paths, "", ""))
    shown = {
        key: value
        for key, value in summary.items()
        if "/rope ntk multiplier=2.0/" in key and key.endswith(f"_{LENGTHS[-1]}")
    }
    name = "eval/fixed_targets/rope ntk multiplier=2.0"
    assert shown == {
        f"{name}/nll_at_{LENGTHS[-1]}": 3.75,
        f"{name}/above_floor_at_{LENGTHS[-1]}": 0.75,
    }


def test_two_evaluations_of_one_method_are_two_lines(run, fake, tmp_path):
    """The same method in other windows; the same lengths of both were mixed in one line."""
    losses_of = {"a" * 16: (2.0, 3.0, 4.0, 5.0), "b" * 16: (2.5, 3.5, 4.5, 5.5)}
    paths = []
    for eval_id, losses in losses_of.items():
        losses_LN = [np.full(TARGETS, loss) for loss in losses]
        path = write_eval(tmp_path, "rope", "pi", "none", losses_LN, LENGTHS, eval_id=eval_id)
        windows = {"a" * 16: 512, "b" * 16: 32}[eval_id]
        paths.append(with_settings(path, eval_id[0], windows=windows))
        paths[-1].write_text(paths[-1].read_text().replace(f"{eval_id}-{eval_id[0]}", eval_id))
    rows = [row for path in paths for row in read_eval(path)]
    with Recorder(run, LogConfig(mode="online"), CONFIG, "evaluate"):
        wandb_content.log_table(fake.started[0], rows, "pysource")
    (chart,) = (
        logged["loss_by_length/fixed_targets"]
        for logged in fake.started[0].logged
        if "loss_by_length/fixed_targets" in logged
    )
    lines = dict(zip(chart["keys"], chart["ys"], strict=True))
    assert lines == {
        "rope pi s0 0123 eval aaaaaaaa": [2.0, 3.0, 4.0, 5.0],
        "rope pi s0 0123 eval bbbbbbbb": [2.5, 3.5, 4.5, 5.5],
    }
    summary = wandb_content.report_summary(collect_report(paths, "", ""))
    assert summary["eval/fixed_targets/rope pi eval aaaaaaaa/nll_at_512"] == 5.0
    assert summary["eval/fixed_targets/rope pi eval bbbbbbbb/nll_at_512"] == 5.5


def test_a_failing_job_is_marked_failed_and_its_error_goes_on(run, fake):
    with (
        pytest.raises(ZeroDivisionError),
        Recorder(run, LogConfig(mode="offline"), CONFIG, "train"),
    ):
        _ = 1 / 0
    assert fake.started[0].exit_code == 1


def raising(**options):
    raise SystemExit("no key\nand a long story")


def hanging(**options):
    time.sleep(60)


@pytest.mark.parametrize(
    ("mode", "init", "tried", "reason"),
    [
        ("online", raising, "offline", "no key"),  # offline is tried after it
        ("offline", raising, "offline", "no key"),
        ("online", hanging, "offline", "no answer in 0.2 s"),
        ("offline", hanging, "offline", "no answer in 0.2 s"),
    ],
)
def test_a_wandb_that_does_not_start_costs_a_line(
    run, fake, monkeypatch, capfd, mode, init, tried, reason
):
    monkeypatch.setattr(wandb_mirror, "PATIENCE", 0.1)
    fake.init = init
    with Recorder(run, LogConfig(mode=mode), CONFIG, "train") as job:
        job.train(1, loss=2.0)
        job.rows([make_row(**VALUES)])
        job.show_results()
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        f"wandb could not start {tried} ({reason}); going on with files only in {run.path}"
    ]
    assert json.loads(run.train_log.read_text()) == {"step": 1, "loss": 2.0}


def test_a_server_that_refuses_leaves_an_offline_run_and_a_line(run, fake, capfd):
    accepted = fake.init

    def refused(**options):
        return raising() if options["mode"] == "online" else accepted(**options)

    fake.init = refused
    with Recorder(run, LogConfig(mode="online"), CONFIG, "train") as job:
        job.train(1, loss=2.0)
    assert [options["mode"] for options in fake.asked] == ["offline"]
    assert fake.started[0].logged == [{"train/loss": 2.0}] and fake.started[0].exit_code == 0
    (line,) = capfd.readouterr().err.splitlines()
    folder = run.path.parent / ".wandb"
    assert (
        line
        == f"wandb could not start online (no key); going on offline, for wandb sync, in {folder}"
    )


def test_tags_name_every_method_of_a_job(run, fake):
    methods = [{"_target_": f"posbench.extensions.{name}.Any"} for name in ("pi", "ntk", "pi")]
    Recorder(run, LogConfig(mode="offline"), {**CONFIG, "extension": methods}, "train").finish(
        ok=True
    )
    assert fake.started[0].tags == ("train", "encoding=rope", "extension=pi", "extension=ntk")


@pytest.mark.parametrize("method", ["log", "finish"])
def test_a_wandb_that_fails_midway_costs_one_line(run, fake, capfd, method):
    with Recorder(run, LogConfig(mode="online"), CONFIG, "train") as job:
        job.train(1, loss=2.0)

        def broken(*values, **options):
            raise ConnectionError("gone")

        setattr(fake.started[0], method, broken)
        job.train(2, loss=1.5)
        job.train(3, loss=1.0)
    sent, failed = capfd.readouterr().err.splitlines()
    assert sent.startswith("wandb sends this run to ")
    assert failed == f"wandb could not {method} (gone); going on with files only in {run.path}"
    assert [json.loads(line)["step"] for line in run.train_log.read_text().splitlines()] == [
        1,
        2,
        3,
    ]
