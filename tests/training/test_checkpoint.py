"""Weights and states on disk: whole, verified, and refused in one sentence otherwise."""

import ctypes
import hashlib
import io
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from spoils import flip
from test_train import Tiny, config, tiny

import posbench
from posbench.common.errors import RunError
from posbench.common.files import sha256_file
from posbench.model import weights
from posbench.model.weights import write_safetensors
from posbench.results.cleanup import TEMPORARY_NAME
from posbench.runs.directory import Run
from posbench.training import checkpoint
from posbench.training import optimizers as optim


def stepped(**options):
    """A model and its optimizers after one step, so that momenta exist."""
    model = tiny(**options)
    optimizers = optim.make_optimizers(model, config())
    model.loss(torch.arange(8).view(1, 8), torch.arange(1, 9).view(1, 8), 8).backward()
    for optimizer in optimizers:
        optimizer.step()
    return model, optimizers


def test_a_state_comes_back_bit_by_bit(tmp_path):
    model, optimizers = stepped()
    checkpoint.save_state(tmp_path / "state.pt", model, optimizers, 7, {"recent": [(1.5, 64, 0.1)]})
    other = tiny(seed=3)
    others = optim.make_optimizers(other, config())
    assert checkpoint.load_state(tmp_path / "state.pt", other, others) == (
        7,
        {"recent": [(1.5, 64, 0.1)]},
    )
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    for a, b in zip(optimizers, others, strict=True):
        assert repr(a.state_dict()) == repr(b.state_dict())
        assert a.state_dict()["state"]


@pytest.mark.parametrize("damage", [3, 64, -1, slice(0, 0), slice(0, 2000)], ids=str)
def test_one_flipped_bit_and_a_cut_are_found(tmp_path, damage):
    model, optimizers = stepped()
    path = tmp_path / "state.pt"
    checkpoint.save_state(path, model, optimizers, 1, {})
    content = bytearray(path.read_bytes())
    if isinstance(damage, slice):
        content = content[damage]
    else:
        content[damage] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"state\.pt is damaged.*delete it"):
        checkpoint.load_state(path, model, optimizers)


def signed(path: Path, state: object) -> Path:
    """A state's file of any content with the checksum that belongs to it: whoever can write one can
    write the other.
    """
    body = io.BytesIO()
    torch.save(state, body)
    path.write_bytes(hashlib.sha256(body.getvalue()).hexdigest().encode() + b"\n" + body.getvalue())
    return path


def test_a_state_of_something_else_is_refused_in_one_sentence(tmp_path, monkeypatch):
    model, optimizers = stepped()
    path = tmp_path / "state.pt"
    checkpoint.save_state(path, model, optimizers, 1, {})
    monkeypatch.setattr("test_train.WIDTH", 24)
    other = Tiny()
    cases = [
        (
            path,
            other,
            optim.make_optimizers(other, config()),
            r" \(size mismatch for embed_tokens.*16.*24.*delete it",
        )
    ]
    cases += [(path, model, optim.make_optimizers(model, config(optimizer="adamw")), "")]
    parts = ([], {"model": {}, "optimizers": [], "step": 1})
    cases += [
        (signed(tmp_path / f"{at}.pt", content), model, optimizers, "")
        for at, content in enumerate(parts)
    ]
    for file, into, with_, message in cases:
        with pytest.raises(RunError, match=f"belongs to another model{message}") as error:
            checkpoint.load_state(file, into, with_)
        assert "\n" not in str(error.value)


def test_the_file_is_what_safetensors_would_write(tmp_path):
    from safetensors.torch import save, save_model

    torch.manual_seed(0)
    kinds = (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
    )
    tensors = {
        f"{'ba'[i % 2]}.{kind}": torch.randn(3, 5).mul(9).to(kind)
        for i, kind in enumerate((*kinds, torch.bool))
    }
    tensors |= {
        "turned": torch.randn(4, 3).T,
        "part": torch.randn(9)[2:5],
        "scalar": torch.tensor(1.5),
        "none": torch.empty(0, 3),
        "\xe9": torch.ones(1),
    }
    for i, metadata in enumerate(({}, {"format": "pt"})):
        write_safetensors(tmp_path / f"{i}.safetensors", tensors, metadata)
        expected = save(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, metadata or None
        )
        assert (tmp_path / f"{i}.safetensors").read_bytes() == expected
    for tied in (False, True):
        model, _ = stepped(tied=tied)
        save_model(model, str(tmp_path / "theirs"))
        sha256 = weights.save_weights(tmp_path / "ours", model)
        assert (tmp_path / "ours").read_bytes() == (
            tmp_path / "theirs"
        ).read_bytes() and sha256 == sha256_file(tmp_path / "ours")
        other = tiny(seed=3, tied=tied)
        weights.load_weights(tmp_path / "ours", other, sha256)
        assert all(map(torch.equal, other.state_dict().values(), model.state_dict().values()))
        assert (other.lm_head.weight is other.embed_tokens.weight) == tied


def test_no_file_of_another_name_is_made_while_weights_are_written(tmp_path):
    """A process may be killed at any moment; what it leaves must be known by its name."""
    libc = ctypes.CDLL(None)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    created = 0x100
    assert libc.inotify_add_watch(watch, os.fsencode(tmp_path), created) > 0
    weights.save_weights(tmp_path / "model.safetensors", stepped(tied=True)[0])
    events = os.read(watch, 65536)
    os.close(watch)
    names = [name for name in re.split(rb"[\x00-\x1f]+", events) if len(name) > 3]
    assert names and all(
        TEMPORARY_NAME.fullmatch(name.decode()) and name.startswith(b".model-") for name in names
    ), names
    for path in Path(posbench.__file__).parent.rglob("*.py"):
        assert not re.search(r"\bsave_(file|model)\(", path.read_text()), (
            f"{path.name}: safetensors' own writer"
        )


def test_damaged_missing_and_foreign_weights_are_refused(tmp_path, monkeypatch):
    model, _ = stepped()
    path = tmp_path / "model.safetensors"
    sha256 = weights.save_weights(path, model)
    monkeypatch.setattr("test_train.WIDTH", 24)
    with pytest.raises(RunError, match=r"belongs to another model \(size mismatch"):
        weights.load_weights(path, Tiny(), sha256)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged.*retrain"):
        weights.load_weights(path, model, sha256)
    path.unlink()
    with pytest.raises(RunError, match=r"model\.safetensors is missing.*retrain"):
        weights.load_weights(path, model, sha256)


def test_a_failed_write_leaves_the_state_before_it(tmp_path, monkeypatch):
    model, optimizers = stepped()
    path = tmp_path / "state.pt"
    checkpoint.save_state(path, model, optimizers, 1, {})
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="No space left to write"):
        checkpoint.save_state(path, model, optimizers, 2, {})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def two_generations(folder):
    """States of steps 1 and 2, the second with other weights; returns the newer one's path, model
    and optimizers.
    """
    model, optimizers = stepped()
    path = folder / "state.pt"
    checkpoint.save_state(path, model, optimizers, 1, {})
    with torch.no_grad():
        model.norm.weight.add_(1)
    checkpoint.save_state(path, model, optimizers, 2, {})
    return path, model, optimizers


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_damaged_state_gives_way_to_the_one_before_it(tmp_path, capfd, damage):
    path, model, optimizers = two_generations(tmp_path)
    newer = model.norm.weight.detach().clone()
    damage(path)
    assert Run(path.parent).has_state
    assert checkpoint.load_state(path, model, optimizers) == (1, {})
    assert torch.equal(model.norm.weight, newer - 1)
    lines = capfd.readouterr().err.splitlines()
    assert (
        len(lines) == 1
        and str(path) in lines[0]
        and "going on from the state before it" in lines[0]
    )
    checkpoint.save_state(path, model, optimizers, 3, {})
    flip(path)
    assert checkpoint.load_state(path, model, optimizers)[0] == 1


def test_two_damaged_states_are_one_sentence_and_stay(tmp_path):
    path, model, optimizers = two_generations(tmp_path)
    for file in tmp_path.iterdir():
        flip(file)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(
        RunError,
        match=r"state\.pt is damaged.*state\.previous\.pt is damaged.*restore one.*delete both",
    ) as error:
        checkpoint.load_state(path, model, optimizers)
    assert "\n" not in str(error.value)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before and len(
        before
    ) == 2
    checkpoint.remove_state(path)
    assert not list(tmp_path.iterdir()) and not Run(path.parent).has_state


def test_what_the_disk_gives_back_is_compared_before_the_old_state_goes(tmp_path, monkeypatch):
    path, model, optimizers = two_generations(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr("os.fsync", lambda descriptor: os.pwrite(descriptor, b"rotten", 1000))
    with pytest.raises(RunError, match="The state written to .*the previous state is kept"):
        checkpoint.save_state(path, model, optimizers, 3, {})
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path, monkeypatch, capfd):
    path, model, optimizers = two_generations(tmp_path)
    rename, calls = os.replace, []

    def dies(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.replace", dies)
        checkpoint.save_state(path, model, optimizers, 3, {})
    assert not path.exists()
    assert checkpoint.load_state(path, model, optimizers)[0] == 2
    assert "is missing: going on from the state before it" in capfd.readouterr().err


def test_a_kill_at_any_moment_leaves_a_state_that_loads(tmp_path):
    model, optimizers = stepped()
    path, draw, reached = tmp_path / "state.pt", random.Random(0), 0
    checkpoint.save_state(path, model, optimizers, 0, {})
    for _ in range(25):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for step in range(reached + 1, reached + 10**6):
                    checkpoint.save_state(path, model, optimizers, step, {})
                    os.write(write_end, b".")
            finally:
                os._exit(1)
        os.read(read_end, 1)  # one was written, however slow the disk
        time.sleep(draw.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        step, _ = checkpoint.load_state(path, model, optimizers)
        assert step > reached
        reached = step
        os.close(read_end), os.close(write_end)
    checkpoint.remove_state(path)
    assert not list(tmp_path.iterdir())


def test_a_state_of_another_program_executes_nothing(tmp_path):
    """The checksum does not protect: weights_only does."""

    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    model, optimizers = stepped()
    with pytest.raises(RunError, match="which weights_only refuses"):
        checkpoint.load_state(
            signed(tmp_path / "state.pt", {"model": Hostile()}), model, optimizers
        )
    assert not (tmp_path / "executed").exists()


def test_a_log_is_cut_at_the_step_and_at_broken_lines(tmp_path):
    path = tmp_path / "train.jsonl"
    checkpoint.truncate_log(path, 3)
    assert not path.exists()
    path.write_text('{"step": 1}\n{"step": 3}\n{"step": 4}\n{"ste')
    checkpoint.truncate_log(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
    checkpoint.truncate_log(path, 0)
    assert path.read_text() == ""


def test_a_state_that_is_a_fifo_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "state.pt")
    with pytest.raises(RunError, match=r"state\.pt is not a regular file: delete it"):
        checkpoint.load_state(tmp_path / "state.pt", tiny(), [])
