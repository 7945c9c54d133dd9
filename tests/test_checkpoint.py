"""Weights and states on disk: whole, verified, and refused in one sentence otherwise."""

import pytest
import torch
from test_train import Tiny, config, tiny

from posbench import checkpoint, optim
from posbench.errors import RunError
from posbench.files import sha256_file


def stepped(**options):
    """A model and its optimizers after one step, so that momenta exist."""
    model = tiny(**options)
    optimizers = optim.build(model, config())
    model.loss(torch.arange(8).view(1, 8), torch.arange(1, 9).view(1, 8), 8).backward()
    for optimizer in optimizers:
        optimizer.step()
    return model, optimizers


def test_a_state_comes_back_bit_by_bit(tmp_path):
    model, optimizers = stepped()
    checkpoint.save_state(tmp_path / "state.pt", model, optimizers, 7, {"recent": [(1.5, 64, 0.1)]})
    other = tiny(seed=3)
    others = optim.build(other, config())
    assert checkpoint.load_state(tmp_path / "state.pt", other, others) == (7, {"recent": [(1.5, 64, 0.1)]})
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    for a, b in zip(optimizers, others, strict=True):
        assert repr(a.state_dict()) == repr(b.state_dict())
        assert a.state_dict()["state"]


@pytest.mark.parametrize("position", [3, 64, 65, 1000, -1])
def test_one_flipped_bit_is_found(tmp_path, position):
    model, optimizers = stepped()
    path = tmp_path / "state.pt"
    checkpoint.save_state(path, model, optimizers, 1, {})
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"state\.pt is damaged.*delete it"):
        checkpoint.load_state(path, model, optimizers)


@pytest.mark.parametrize("size", [0, 30, 65, 2000])
def test_a_short_state_is_found(tmp_path, size):
    model, optimizers = stepped()
    path = tmp_path / "state.pt"
    checkpoint.save_state(path, model, optimizers, 1, {})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RunError, match="is damaged"):
        checkpoint.load_state(path, model, optimizers)


def test_a_state_of_another_model_is_refused_in_one_sentence(tmp_path, monkeypatch):
    model, optimizers = stepped()
    checkpoint.save_state(tmp_path / "state.pt", model, optimizers, 1, {})
    monkeypatch.setattr("test_train.WIDTH", 24)
    other = Tiny()
    with pytest.raises(RunError, match=r"belongs to another model \(size mismatch for embed_tokens.*16.*24.*delete it") as error:
        checkpoint.load_state(tmp_path / "state.pt", other, optim.build(other, config()))
    assert "\n" not in str(error.value)


def test_a_state_of_another_optimizer_is_refused(tmp_path):
    model, optimizers = stepped()
    checkpoint.save_state(tmp_path / "state.pt", model, optimizers, 1, {})
    with pytest.raises(RunError, match="belongs to another model"):
        checkpoint.load_state(tmp_path / "state.pt", model, optim.build(model, config(optimizer="adamw")))


def test_a_state_runs_no_code(tmp_path):
    """A state is data: what pickle would execute is refused by weights_only."""
    model, optimizers = stepped()
    with pytest.raises(Exception, match="[Ww]eights.only"):
        checkpoint.save_state(tmp_path / "state.pt", model, optimizers, 1, {"path": tmp_path})
        checkpoint.load_state(tmp_path / "state.pt", model, optimizers)


@pytest.mark.parametrize("tied", [False, True])
def test_weights_come_back_and_are_plain_safetensors(tmp_path, tied):
    from safetensors.torch import load_file

    model, _ = stepped(tied=tied)
    path = tmp_path / "model.safetensors"
    sha256 = checkpoint.save_weights(path, model)
    assert sha256 == sha256_file(path)
    assert len(load_file(path)) == len(list(model.parameters()))
    other = tiny(seed=3, tied=tied)
    checkpoint.load_weights(path, other, sha256)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    assert (other.lm_head.weight is other.embed_tokens.weight) == tied


def test_damaged_missing_and_foreign_weights_are_refused(tmp_path, monkeypatch):
    model, _ = stepped()
    path = tmp_path / "model.safetensors"
    sha256 = checkpoint.save_weights(path, model)
    monkeypatch.setattr("test_train.WIDTH", 24)
    with pytest.raises(RunError, match=r"belongs to another model \(size mismatch"):
        checkpoint.load_weights(path, Tiny(), sha256)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged.*train anew"):
        checkpoint.load_weights(path, model, sha256)
    path.unlink()
    with pytest.raises(RunError, match=r"model\.safetensors is missing.*train anew"):
        checkpoint.load_weights(path, model, sha256)


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


def test_a_log_is_cut_at_the_step_and_at_broken_lines(tmp_path):
    path = tmp_path / "train.jsonl"
    checkpoint.truncate_log(path, 3)
    assert not path.exists()
    path.write_text('{"step": 1}\n{"step": 3}\n{"step": 4}\n{"ste')
    checkpoint.truncate_log(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
    checkpoint.truncate_log(path, 0)
    assert path.read_text() == ""
