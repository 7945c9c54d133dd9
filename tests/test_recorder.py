import json
import subprocess
import sys
import time
import types

import pytest
from test_rows import VALUES

from posbench import recorder
from posbench.config import LogConfig
from posbench.recorder import Recorder, wandb_mode
from posbench.rows import make_row
from posbench.runs import Run

CONFIG = {"encoding": {"_target_": "posbench.encodings.rope.Rope"}, "seed": 0}


@pytest.fixture(autouse=True)
def logged_out(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def run(tmp_path):
    (tmp_path / "runs" / "rope-64-s0-abc").mkdir(parents=True)
    return Run(tmp_path / "runs" / "rope-64-s0-abc")


class FakeRun:
    """Stands in for a wandb run and remembers what it was told."""

    def __init__(self):
        self.logged, self.steps, self.exit_code = [], [], None

    def define_metric(self, *names, **options):
        pass

    def log(self, values, step=None):
        self.logged.append(values)
        self.steps.append(step)

    def finish(self, exit_code):
        self.exit_code = exit_code


@pytest.fixture
def fake(monkeypatch):
    """A wandb whose init can be replaced; `started` holds the runs it began, `asked` what they were asked for."""
    module = types.ModuleType("wandb")
    module.started, module.asked = [], []
    module.Settings = type("Settings", (), {"model_fields": {"silent": 0}, "__init__": lambda self, **values: None})
    module.setup = lambda settings: None
    module.Table = lambda **content: content

    def init(**options):
        module.asked.append(options)
        module.started.append(FakeRun())
        return module.started[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_modes(monkeypatch, tmp_path):
    assert (wandb_mode(None), wandb_mode("online"), wandb_mode("disabled")) == ("offline", "online", "disabled")
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


def test_disabled_does_not_import_wandb(run):
    code = (
        "import sys; from posbench.recorder import Recorder; from posbench.config import LogConfig; from posbench.runs import Run\n"
        f"with Recorder(Run({str(run.path)!r}), LogConfig(mode='disabled'), {{}}, 'train') as recorder: recorder.train(1, loss=2.5)\n"
        "print('wandb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    assert json.loads(run.train_log.read_text()) == {"step": 1, "loss": 2.5}


def test_real_wandb_offline_keeps_steps_curves_and_table(run, capfd):
    with Recorder(run, LogConfig(mode="offline"), CONFIG, "train") as job:
        job.train(50, loss=2.5)
        job.rows([make_row(**VALUES)])
    (stored,) = run.path.parent.glob(".wandb/wandb/offline-run-*/run-rope-64-s0-abc.wandb")
    content = stored.read_bytes()
    for word in (b"train/loss", b"eval/length", b"eval/fixed_targets/yarn+none/nll", b"eval_rows", b"encoding=rope"):
        assert word in content
    assert json.loads(run.train_log.read_text()) == {"step": 50, "loss": 2.5}
    assert capfd.readouterr() == ("", "")


def test_what_wandb_is_told(run, fake):
    with Recorder(run, LogConfig(mode="online", project="p", group="g"), CONFIG, "train") as job:
        job.train(50, loss=2.5)
        job.rows([make_row(**VALUES), make_row(**{**VALUES, "position": 9, "length": 512})])
        job.rows([make_row(**{**VALUES, "extension": "recompute_window", "extension_args": {"window": w}}) for w in (None, 32)])
    (asked,), (told,) = fake.asked, fake.started
    assert (asked["id"], asked["mode"], asked["project"], asked["group"], asked["config"]) == (run.id, "online", "p", "g", CONFIG)
    assert (told.logged[0], told.steps[0]) == ({"train/loss": 2.5}, 50)
    assert told.logged[1]["eval/length"] == 128 and told.logged[1]["eval/fixed_targets/yarn+none/nll"] == VALUES["nll"]
    assert told.logged[2]["position/tokens"] == 9
    curves = [{key for key in logged if key.endswith("/nll")} for logged in told.logged[3:5]]
    assert curves == [{"eval/fixed_targets/recompute_window+none/nll"}, {"eval/fixed_targets/recompute_window_window32+none/nll"}]
    assert len(told.logged[5]["eval_rows"]["data"]) == 4 and told.exit_code == 0


def test_a_later_evaluation_gets_an_id_of_its_own(run, fake):
    for _ in range(2):
        Recorder(run, LogConfig(mode="offline"), CONFIG, "evaluate").finish(ok=True)
    first, second = (asked["id"] for asked in fake.asked)
    assert first != second and first.startswith(run.id + "-evaluate-")


def test_a_failing_job_is_marked_failed_and_its_error_goes_on(run, fake):
    with pytest.raises(ZeroDivisionError), Recorder(run, LogConfig(mode="offline"), CONFIG, "train"):
        _ = 1 / 0
    assert fake.started[0].exit_code == 1


def raising(**options):
    raise SystemExit("no key\nand a long story")


def hanging(**options):
    time.sleep(60)


@pytest.mark.parametrize(("init", "reason"), [(raising, "no key"), (hanging, "no answer in 0.2 s")])
def test_a_wandb_that_does_not_start_costs_one_line(run, fake, monkeypatch, capfd, init, reason):
    monkeypatch.setattr(recorder, "PATIENCE", 0.1)
    fake.init = init
    with Recorder(run, LogConfig(mode="online"), CONFIG, "train") as job:
        job.train(1, loss=2.0)
        job.rows([make_row(**VALUES)])
        job.image("nothing.png")
    assert capfd.readouterr().err == f"wandb could not start ({reason}); going on with files only in {run.path}\n"
    assert json.loads(run.train_log.read_text()) == {"step": 1, "loss": 2.0}


@pytest.mark.parametrize("method", ["log", "finish"])
def test_a_wandb_that_fails_midway_costs_one_line(run, fake, capfd, method):
    with Recorder(run, LogConfig(mode="online"), CONFIG, "train") as job:
        job.train(1, loss=2.0)

        def broken(*values, **options):
            raise ConnectionError("gone")

        setattr(fake.started[0], method, broken)
        job.train(2, loss=1.5)
        job.train(3, loss=1.0)
    assert capfd.readouterr().err == f"wandb could not {method} (gone); going on with files only in {run.path}\n"
    assert [json.loads(line)["step"] for line in run.train_log.read_text().splitlines()] == [1, 2, 3]
