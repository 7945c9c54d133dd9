"""The loop, with a tiny model and with the real one: what is learnt, what is logged, and that
interruption changes nothing.
"""

import contextlib
import copy
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import forked
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from posbench.common.errors import RunError
from posbench.common.files import append_lines, read_json, sha256_file
from posbench.common.locks import Busy
from posbench.common.signals import Stopped
from posbench.config.schema import ModelConfig, TrainConfig
from posbench.data.batches import batches
from posbench.data.copy import Copy
from posbench.data.task import IGNORED, TaskSplit
from posbench.data.tokenfile import TokenFile
from posbench.model import precision as bf16
from posbench.model.weights import save_weights
from posbench.runs.directory import Run
from posbench.training import optimizers as optim
from posbench.training.distributed import World
from posbench.training.loop import fit
from posbench.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")
VOCAB, WIDTH = 11, 16


class Tiny(nn.Module):
    """Predicts a token from the one before it; has one parameter of every kind the optimizers tell
    apart.
    """

    def __init__(self, tied: bool = False):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens_BT, plan, rows_R=None):
        x_BTC = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            x_BTC = x_BTC + layer(F.silu(x_BTC))
        return self.lm_head(self.norm(x_BTC))

    def loss(self, tokens_BT, targets_BT, plan):
        assert plan == tokens_BT.shape[1]
        return F.cross_entropy(self(tokens_BT, plan).float().flatten(0, 1), targets_BT.flatten())

    def save(self, file):
        return save_weights(file, self)


class Log:
    """A recorder that kills its own process after logging step `at`."""

    def __init__(self, path: Path, number: int | None = None, at: int = -1):
        self.path, self.number, self.at = path, number, at

    def train(self, step, **figures):
        append_lines(self.path, [{"step": step, **figures}])
        if step == self.at:
            os.kill(os.getpid(), self.number)


def tiny(seed: int = 0, **options) -> Tiny:
    torch.manual_seed(seed)
    return Tiny(**options)


def token_file(n: int, documents: int, step: int = 3) -> TokenFile:
    """Documents in which each token is the one before plus `step`, modulo the vocabulary: a rule
    that can be learnt exactly.
    """
    tokens = (np.arange(n) * step % VOCAB).astype(np.uint16)
    starts = np.linspace(0, n, documents + 1).astype(np.int64)
    return TokenFile(tokens, np.ones(n, np.uint8), starts, [f"d{i}" for i in range(documents)])


def make_corpus(**changes) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "train": token_file(2000, 4),
            "validation": token_file(600, 2),
            "bos": None,
            "vocab_size": VOCAB,
            "mix": None,
        }
        | changes
    )


def config(**changes) -> TrainConfig:
    small = {
        "length": 8,
        "steps": 12,
        "tokens_per_step": 64,
        "warmup": 2,
        "log_every": 2,
        "checkpoint_every": 5,
        "validate_windows": 6,
    }
    return TrainConfig(**small | {"dtype": "bf16"} | changes)


def train(
    folder: Path,
    cfg: TrainConfig,
    model: nn.Module | None = None,
    corpus=None,
    number=None,
    at=-1,
    **options,
) -> dict:
    run = Run(folder)
    with run.lock():
        return fit(
            model or tiny(),
            corpus or make_corpus(),
            cfg,
            **{
                "seed": 0,
                "device": "cpu",
                "run": run,
                "recorder": Log(run.train_log, number, at),
                "plan_for": lambda n, step: n,
            }
            | options,
        )


def task_corpus() -> SimpleNamespace:
    return make_corpus(
        **{split: TaskSplit(Copy(VOCAB), split) for split in ("train", "validation")}
    )


def child(folder: str, name: str, at: str, optimizer: str, corpus: SimpleNamespace) -> None:
    """Runs in a process of its own: ends itself by signal `name` after logging step `at`."""
    train(
        Path(folder),
        config(optimizer=optimizer),
        number=signal.Signals[name],
        at=int(at),
        corpus=corpus,
    )


def run_child(
    folder: Path,
    name: str,
    at: int,
    optimizer: str = "muon",
    corpus: str = "test_train.make_corpus",
) -> subprocess.CompletedProcess:
    """A training in a process of its own; `corpus` names the function that makes its corpus."""
    module = corpus.partition(".")[0]
    code = (
        f"import test_train, {module}; test_train.child({str(folder)!r}, {name!r}, {at},"
        f" {optimizer!r}, {corpus}())"
    )
    # Bytes are equal only for equal numbers of threads.
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    environment = os.environ | threads | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return forked.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )


def log_of(folder: Path) -> list[dict]:
    """train.jsonl without what a clock decides."""
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines
    ]


@pytest.mark.parametrize(("name", "at", "saved", "optimizer", "corpus"), [
    ("SIGKILL", 8, 5, "muon", make_corpus),
    ("SIGKILL", 8, 5, "adamw", task_corpus),
    ("SIGTERM", 6, 6, "muon", make_corpus),
])  # fmt: skip
def test_an_interrupted_run_ends_in_the_same_bytes(tmp_path, name, at, saved, optimizer, corpus):
    train(tmp_path / "whole", config(optimizer=optimizer), corpus=corpus())
    killed = run_child(tmp_path / "cut", name, at, optimizer, f"test_train.{corpus.__name__}")
    number = signal.Signals[name]
    assert killed.returncode == (-number if name == "SIGKILL" else 128 + number), killed.stderr
    assert "Traceback" not in killed.stderr
    assert (
        not (tmp_path / "cut/train.json").exists()
        and not (tmp_path / "cut/model.safetensors").exists()
    )
    if name != "SIGKILL":
        assert f"{name}: stopped after step {saved} of 12" in killed.stderr

    other = tiny(seed=9)  # its first weights are replaced by those of the state
    train(tmp_path / "cut", config(optimizer=optimizer), model=other, corpus=corpus())
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (
        tmp_path / "whole/model.safetensors"
    ).read_bytes()
    assert log_of(tmp_path / "cut") == log_of(tmp_path / "whole")
    assert [line["step"] for line in log_of(tmp_path / "cut")] == [2, 4, 6, 8, 10, 12]
    assert not (tmp_path / "cut/state.pt").exists()


def trainer(
    model: nn.Module | None = None, corpus: SimpleNamespace | None = None, seed: int = 0, **changes
) -> Trainer:
    return Trainer(
        model or tiny(),
        corpus or make_corpus(),
        config(dtype="fp32", **changes),
        seed,
        torch.device("cpu"),
        lambda n, step: n,
    )


@pytest.mark.parametrize("corpus", [make_corpus, task_corpus])
def test_the_gradient_is_that_of_the_mean_over_all_targets_however_a_batch_is_divided(corpus):
    """Examples of a task ask for unequally many tokens."""
    inputs_BT, targets_BT = batches(corpus().train, [8], 64, 0, None).at(0)
    assert (len(set((targets_BT != IGNORED).sum(1).tolist())) > 1) == (corpus is task_corpus)
    model = tiny()
    loss = model.loss(inputs_BT, targets_BT, 8)
    loss.backward()
    for micro_batches, shares in ((1, 1), (3, 1), (8, 1), (100, 1), (1, 2), (2, 2), (1, 3), (1, 8)):
        divided, total = tiny(), 0.0
        for share in range(shares):
            training = trainer(divided, corpus(), micro_batches=micro_batches)
            rows = training.batches.at(0, World(share, shares).share)
            total += training._backward(*rows, training._target_shares(rows[1])).item()
        assert total == pytest.approx(loss.item(), rel=1e-5)
        for actual, expected in zip(divided.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_a_signal_during_the_last_step_is_obeyed_once_the_run_is_complete(tmp_path):
    with pytest.raises(Stopped) as stopped:
        train(tmp_path, config(), number=signal.SIGTERM, at=12)
    assert stopped.value.code == 128 + 15
    assert read_json(tmp_path / "train.json")["steps"] == 12
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_before_the_first_step_ends_with_a_sentence(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(
        "posbench.training.checkpoint.truncate_log", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    )
    with pytest.raises(Stopped) as stopped:
        train(tmp_path, config())
    assert (
        stopped.value.code == 128 + 15
        and "SIGTERM: stopped after step 0 of 12: the same command" in capfd.readouterr().err
    )
    assert not (tmp_path / "train.jsonl").exists() and not list(tmp_path.glob("*.pt"))


def test_a_run_that_ends_while_finishing_logs_its_last_step_once(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(Tiny, "save", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        train(tmp_path, config(checkpoint_every=12))
    assert (tmp_path / "state.pt").exists() and log_of(tmp_path)[-1]["step"] == 12
    train(tmp_path, config(checkpoint_every=12))
    assert [line["step"] for line in log_of(tmp_path)] == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(("optimizer", "tied"), [("muon", False), ("adamw", True)])
def test_a_rule_is_learnt_and_the_summary_is_true(tmp_path, optimizer, tied):
    cfg = config(
        optimizer=optimizer, steps=150, lr=3e-2, checkpoint_every=0, dtype="fp32", length=[8, 16]
    )
    summary = train(tmp_path, cfg, model=tiny(tied=tied))
    assert summary == read_json(tmp_path / "train.json")
    assert summary["validation_loss"] < 0.05 < math.log(VOCAB)  # nothing learnt: log 11
    assert summary["loss"] < 0.05 and summary["steps"] == 150 and summary["tokens"] == 150 * 64
    assert summary["n_params"] == sum(p.numel() for p in Tiny(tied=tied).parameters())
    assert summary["sha256"] == sha256_file(tmp_path / "model.safetensors")
    assert summary["tokens_per_second"] == pytest.approx(
        summary["tokens"] / summary["seconds"], rel=0.01
    )
    assert not (tmp_path / "state.pt").exists() and summary["peak_mib"] > 1


def test_clipping_bounds_the_norm_and_logs_what_it_was():
    training = trainer(clip=0.01)
    training._backward(*training.batches.at(0), None)
    before = math.sqrt(
        sum(p.grad.double().square().sum().item() for p in training.model.parameters())
    )
    norm = training._clip_gradients()
    after = math.sqrt(
        sum(p.grad.double().square().sum().item() for p in training.model.parameters())
    )
    assert float(norm) == pytest.approx(before, rel=1e-5) and before > 0.1
    assert after == pytest.approx(0.01, rel=1e-3)


def test_validation_is_the_mean_over_its_windows_and_knows_no_seed():
    # 3 windows a batch, 7 in all: the last batch counts for one window.
    corpus = make_corpus(validation=token_file(600, 2, step=5))
    trainers = [
        trainer(corpus=corpus, seed=seed, tokens_per_step=24, validate_windows=7) for seed in (0, 1)
    ]
    parts = [trainers[0].held_out.at(step) for step in range(3)]
    inputs_BT, targets_BT = (torch.cat(tensors)[:7] for tensors in zip(*parts, strict=True))
    with torch.no_grad():
        nll = (
            F.cross_entropy(
                trainers[0].model(inputs_BT, 8).flatten(0, 1), targets_BT.flatten(), reduction="sum"
            )
            / 56
        )
    assert trainers[0].validate() == pytest.approx(nll.item(), rel=1e-6)
    assert trainers[1].validate() == trainers[0].validate()


def test_validation_and_logging_come_when_asked_for(tmp_path):
    train(tmp_path, config(validate_every=3, log_every=5))
    keys = {line["step"]: sorted(line) for line in log_of(tmp_path)}
    full = ["grad_norm", "loss", "lr", "step", "tokens"]
    validated = ["step", "validation_loss"]
    last = sorted([*full, "validation_loss"])
    assert keys == {3: validated, 5: full, 6: validated, 9: validated, 10: full, 12: last}


def test_cadence_changes_no_weight(tmp_path):
    sums = {
        train(tmp_path / str(i), config(**changes))["sha256"]
        for i, changes in enumerate(
            # fmt: skip
            [
                {},
                {"log_every": 1},
                {"validate_every": 1},
                {"checkpoint_every": 1},
                {"validate_windows": 0},
            ]
        )
    }
    assert len(sums) == 1


def test_the_order_of_the_data_follows_its_own_seed(tmp_path):
    def weights(name, **options):
        seed = options.pop("seed")
        return train(tmp_path / name, config(**options), seed=seed)["sha256"]

    assert weights("a", seed=0) != weights("b", seed=1)
    assert weights("c", seed=0, seed_data=7) == weights("d", seed=1, seed_data=7)


def test_the_global_random_state_plays_no_part(tmp_path):
    first = train(tmp_path / "a", config(), model=tiny())["sha256"]
    model = tiny()
    torch.manual_seed(123)
    np.random.seed(5)
    assert train(tmp_path / "b", config(), model=model)["sha256"] == first


class Fails(Tiny):
    """Adds `what(model)` to the loss of the calls numbered in `when`, from 1."""

    def __init__(self, what, when):
        super().__init__()
        self.what, self.when, self.calls = what, when, 0

    def loss(self, *args):
        self.calls += 1
        return super().loss(*args) + (self.what(self) if self.calls in self.when else 0.0)


def failing(what, *when) -> Fails:
    torch.manual_seed(0)
    return Fails(what, when)


def not_a_number(model):
    return model.norm.weight.sum() * float("nan")


def endless_slope(model):
    """0, with a gradient that is not a number."""
    return (model.norm.weight.sum() * 0).sqrt()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (not_a_number, r"loss is nan at step 4 .* lower train\.lr"),
        (endless_slope, "weights .* not finite after step 4"),
    ],
)
def test_a_failure_is_recorded_and_the_last_good_state_kept(tmp_path, what, message):
    undisturbed = train(tmp_path / "whole", config(log_every=1))
    for model in (
        failing(what, 4),
        failing(what, 1),
    ):  # once more from the state: the same end, told once
        with pytest.raises(RunError, match=message) as error:
            train(tmp_path / "bad", config(log_every=1, checkpoint_every=1), model=model)
        *log, last = log_of(tmp_path / "bad")
        assert last == {"step": 4, "stopped": str(error.value)} and [line["step"] for line in log][
            :3
        ] == [1, 2, 3]
        assert sum("stopped" in line for line in log) == 0
        assert (
            not (tmp_path / "bad/train.json").exists()
            and not (tmp_path / "bad/model.safetensors").exists()
        )
    # The kept state is step 3's: without the cause, training goes on to the same bytes.
    assert (
        train(tmp_path / "bad", config(log_every=1, checkpoint_every=1), model=tiny(seed=9))[
            "sha256"
        ]
        == undisturbed["sha256"]
    )
    assert log_of(tmp_path / "bad") == log_of(tmp_path / "whole")


def test_weights_that_the_last_step_broke_are_not_the_result(tmp_path):
    with pytest.raises(RunError, match="not finite after step 12"):
        train(tmp_path, config(validate_windows=0), model=failing(endless_slope, 12))
    assert not (tmp_path / "model.safetensors").exists() and "stopped" in log_of(tmp_path)[-1]


def test_a_training_that_is_worse_than_knowing_nothing_for_long_is_stopped(tmp_path):
    def lost(model):
        return 3.01 * math.log(VOCAB)

    cfg = config(steps=160, log_every=50, checkpoint_every=30)
    with pytest.raises(
        RunError,
        match=(
            r"at step 120 and has been above 7\.19 nats/token .* for 100 steps with learning rate"
        ),
    ):
        train(tmp_path / "lost", cfg, model=failing(lost, *range(21, 161)))
    assert log_of(tmp_path / "lost")[-1]["step"] == 120
    assert train(tmp_path / "saved", cfg, model=failing(lost, *range(21, 120)))["steps"] == 160
    with pytest.raises(Stopped):
        train(
            tmp_path / "cut",
            cfg,
            model=failing(lost, *range(21, 161)),
            number=signal.SIGTERM,
            at=50,
        )
    with pytest.raises(RunError, match="at step 120 "):
        train(tmp_path / "cut", cfg, model=failing(lost, *range(161)))


def test_without_a_compiler_training_goes_on_and_says_so_once(tmp_path, monkeypatch, capfd):
    import torch._inductor.config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    eager = train(tmp_path / "eager", config())
    capfd.readouterr()
    with inductor.patch({"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False}):
        summary = train(tmp_path / "compiled", config(compile=True))
    lines = [
        line
        for line in capfd.readouterr().err.splitlines()
        if not line.startswith(("train ", "training "))
    ]
    assert len(lines) == 1 and "train.compile=true failed" in lines[0], lines
    assert summary["compiled"] is False and summary["sha256"] == eager["sha256"]


def test_learning_rate_in_closed_form():
    cfg = config(steps=10, warmup=4)
    assert [optim.rate_multiplier(step, cfg) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert [optim.rate_multiplier(step, cfg) for step in (4, 7, 10)] == [1.0, 0.5, 0.0]
    cosine = config(steps=10, warmup=4, schedule="cosine")
    assert [optim.rate_multiplier(step, cosine) for step in (4, 6, 7, 8, 10)] == pytest.approx(
        [1.0, 0.75, 0.5, 0.25, 0.0]
    )
    assert optim.rate_multiplier(0, config(steps=3, warmup=0)) == 1.0
    assert optim.rate_multiplier(2, config(steps=3, warmup=40)) == 3 / 40


def named_groups(model: nn.Module, cfg: TrainConfig) -> dict[str, tuple[str, float]]:
    names = {id(param): name for name, param in model.named_parameters()}
    return {
        names[id(param)]: (type(optimizer).__name__, group["weight_decay"])
        for optimizer in optim.make_optimizers(model, cfg)
        for group in optimizer.param_groups
        for param in group["params"]
    }


def test_each_parameter_has_its_rule():
    model = tiny()
    model.encoding = nn.Linear(3, 3, bias=True)
    shared = {
        "embed_tokens.weight": ("AdamW", 0.0),
        "norm.weight": ("AdamW", 0.0),
        "lm_head.weight": ("AdamW", 0.05),
        "encoding.weight": ("AdamW", 0.05),
        "encoding.bias": ("AdamW", 0.0),
    }
    for optimizer, rule in (("muon", "Muon"), ("adamw", "AdamW")):
        assert named_groups(model, config(optimizer=optimizer)) == shared | {
            f"layers.{n}.weight": (rule, 0.05) for n in range(2)
        }
    tied = named_groups(tiny(tied=True), config())
    assert tied["embed_tokens.weight"] == ("AdamW", 0.0) and "lm_head.weight" not in tied


def test_both_rates_follow_the_schedule():
    optimizers = optim.make_optimizers(tiny(), config(lr=4e-3, muon_lr=2e-2))
    optim.set_rate(optimizers, 0.5)
    optim.set_rate(optimizers, 0.25)
    assert [group["lr"] for optimizer in optimizers for group in optimizer.param_groups] == [
        5e-3,
        1e-3,
        1e-3,
    ]


def test_a_muon_step_is_orthogonal():
    """Keller Jordan's rule: the update of a square matrix has singular values near 1 (0.7 to 1.2
    after five iterations), times lr.
    """
    model = tiny()
    before = copy.deepcopy(model.layers[0].weight.data)
    trainer(model, warmup=0, weight_decay=0.0).advance()
    values = torch.linalg.svdvals((model.layers[0].weight.data - before) / 2e-2)
    assert 0.6 < values[2].item() < 1.3 and 0.6 < values[0].item() < 1.3


def test_the_real_model_trains_and_resumes(tmp_path):
    from posbench.encodings.rope import Rope
    from posbench.model.gpt import GPT, make_shape
    from posbench.position.plan import make_plan

    def run(name, **options):
        torch.manual_seed(0)
        model_config = ModelConfig(d_model=32, n_layer=2, n_head=2)
        encoding = Rope(make_shape(model_config, 16))
        model = GPT(model_config, encoding, VOCAB)
        cfg = config(length=16, tokens_per_step=128, steps=60)
        return train(
            tmp_path / name,
            cfg,
            model=model,
            plan_for=lambda n, step: make_plan(encoding, length=n),
            **options,
        )

    undisturbed = run("whole")
    assert undisturbed["validation_loss"] < 0.1 < math.log(VOCAB)
    with pytest.raises(Stopped):
        run("cut", number=signal.SIGTERM, at=30)
    assert run("cut")["sha256"] == undisturbed["sha256"]


class Disturbs(Log):
    """A recorder that calls `disturb` after logging step `at`."""

    def __init__(self, run: Run, at: int, disturb):
        super().__init__(run.train_log)
        self.step, self.disturb = at, disturb

    def train(self, step, **figures):
        super().train(step, **figures)
        if step == self.step:
            self.disturb()


def described(folder: Path, at: int, disturb) -> tuple[dict, Run]:
    """Summary of a training of 12 steps with a configuration and a provenance, disturbed after step
    `at`, and its run.
    """
    run = Run(folder)
    with run.lock():
        run.write_config({"seed": 0, "train": {"steps": 12}})
        run.write_provenance({"data_fingerprint": "f"})
        summary = fit(
            tiny(),
            make_corpus(),
            config(),
            seed=0,
            device="cpu",
            run=run,
            recorder=Disturbs(run, at, disturb),
            plan_for=lambda n, step: n,
        )
    return summary, run


@pytest.mark.parametrize(
    "at", [2, 8, 12]
)  # before the first checkpoint at step 5, between two, and after the last step
@pytest.mark.parametrize(
    "lost", ["config", "edited", "provenance", "both", "moved", "deleted", "parent"]
)
def test_a_training_that_loses_its_files_while_it_runs_is_whole_at_its_end(
    tmp_path, capfd, at, lost
):
    undisturbed, expected = described(tmp_path / "whole" / "run", 0, None)
    folder = tmp_path / "results" / "run"

    def disturb():
        if lost in ("config", "both"):
            (folder / "config.yaml").unlink()
        if lost == "edited":
            (folder / "config.yaml").write_text("seed: 1\n")
        if lost in ("provenance", "both"):
            (folder / "provenance.json").unlink()
        if lost == "moved":
            folder.rename(tmp_path / "elsewhere")
        if lost == "deleted":
            shutil.rmtree(folder)
        if lost == "parent":
            folder.parent.rename(tmp_path / "moved_results")

    summary, run = described(folder, at, disturb)
    assert (
        summary["sha256"] == undisturbed["sha256"] == sha256_file(run.weights)
        and run.finished
        and not run.has_state
    )
    assert run.read_config() == expected.read_config()
    assert read_json(run.provenance) == read_json(expected.provenance)
    assert str(folder) in capfd.readouterr().err  # and the user is told


def test_a_training_whose_place_another_process_took_leaves_it_alone(tmp_path):
    folder = tmp_path / "run"
    other_run = Run(folder)

    with contextlib.ExitStack() as stack:

        def disturb():
            folder.rename(tmp_path / "elsewhere")
            stack.enter_context(other_run.lock())
            other_run.write_config({"seed": 0, "train": {"steps": 12}})

        with pytest.raises(Busy, match="working on"):
            described(folder, 12, disturb)
    assert not other_run.finished and (tmp_path / "elsewhere" / "state.pt").exists()


def test_nothing_positional_decays():
    from conftest import choices, make_triple

    from posbench.model.gpt import GPT
    from posbench.scale_attention.ssmax import Ssmax

    for name in choices("encoding"):
        encoding = make_triple(name, "none", "none")[0]
        model = GPT(
            ModelConfig(d_model=32, n_layer=2, n_head=4, n_kv_head=2),
            encoding,
            50,
            Ssmax(encoding.shape, bias=True),
        )
        positional = {
            id(param) for part in (model.encoding, model.scale) for param in part.parameters()
        }
        for optimizer in optim.make_optimizers(model, TrainConfig()):
            for group in optimizer.param_groups:
                assert not group["weight_decay"] or not positional & {
                    id(param) for param in group["params"]
                }, name


def test_every_training_length_is_compiled_however_many(monkeypatch):
    compiled, compile_ = [], torch.compile
    count = {"backend": lambda graph, _: compiled.append(1) or graph.forward}
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compile_(function, **options, **count)
    )
    lengths = list(range(4, 15))
    training = trainer(length=lengths, compile=True)
    for n in lengths:
        training.loss(torch.ones(2, n, dtype=torch.long), torch.ones(2, n, dtype=torch.long), n)
    assert (
        training.compiled and len(compiled) == len(lengths) + 1
    )  # 11, where torch's own limit is 8, and one of a whole batch


def test_what_cannot_be_compiled_on_a_cpu_without_bf16_is_said_with_the_way_out(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(bf16, "has_bf16_products", lambda: False)
    assert train(tmp_path, config(dtype="bf16", compile=True))["compiled"] is False
    assert (
        "training goes on without it" in (stderr := capfd.readouterr().err)
        and "train.dtype=fp32" in stderr
    )
