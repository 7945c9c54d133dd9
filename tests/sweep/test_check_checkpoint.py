"""The check of a checkpoint that was read: right readings pass, wrong ones are told."""

import importlib.util

import numpy as np
import pytest
import torch
from gguf_models import write_gguf
from hf_models import TRAIN_LEN, VOCAB, checkpoint, imported

from posbench.common.errors import RunError
from posbench.model.build import load_model
from posbench.position.trusted import trained_config
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.sweep import check_checkpoint as checks
from posbench.sweep.check_checkpoint import (
    by_offset,
    check_checkpoint,
    difference_from_transformers,
)

TOKENS = np.random.default_rng(0).integers(0, VOCAB, 500).astype(np.uint16)
ROWS = 130


def read(path, vocab_size: int = VOCAB):
    run = imported(path)
    cfg = trained_config(run)
    return cfg, load_model(run, cfg, vocab_size, "cpu")


def test_a_checkpoint_that_is_read_right_passes(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(
        checks, "_check_offsets", lambda name, losses: None
    )  # random weights have no reason to prefer more text
    check_checkpoint(*read(checkpoint(tmp_path)), TOKENS)
    assert (
        "check: logits at 32 tokens differ from those of transformers by" in capfd.readouterr().err
    )


def test_rows_of_q_and_k_in_another_order_are_told(tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setattr(checks, "_check_offsets", lambda name, losses: None)
    file = write_gguf(checkpoint(tmp_path, vocab_size=ROWS))
    check_checkpoint(*read(file, ROWS), TOKENS)
    monkeypatch.setattr("posbench.gguf.description.permuted_heads", lambda file: {})
    with pytest.raises(
        RunError, match="differ from those of transformers by .* compare with a third reader"
    ):
        check_checkpoint(*read(file, ROWS), TOKENS)


def test_without_transformers_it_says_so(tmp_path, monkeypatch):
    path = checkpoint(tmp_path)
    _, model = read(path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert (
        difference_from_transformers(find_checkpoint(str(path)), model, torch.arange(5))
        == "transformers is not installed: pip install 'posbench[hf]'"
    )


def test_the_passage_is_the_same_behind_every_text(tmp_path):
    _, model = read(checkpoint(tmp_path))
    text_T = torch.from_numpy(TOKENS[:TRAIN_LEN].astype(np.int64))
    losses = by_offset(model, text_T)
    assert list(losses) == [0, 2, 4, 8, 16]
    with torch.no_grad():
        logits_TV = model(text_T[None])[0]
    assert losses[16] == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits_TV[15:-1][1:], text_T[17:])), abs=1e-5
    )


@pytest.mark.parametrize("losses", [{0: 3.0, 64: 3.6, 128: 2.9}, {0: 3.0, 64: float("nan")}])
def test_a_passage_that_gets_worse_behind_text_is_told(losses, capfd):
    checks._check_offsets("DIR", {0: 3.0, 64: 3.4, 128: 2.9})
    assert "3.000 after 0, 3.400 after 64, 2.900 after 128 tokens of text" in capfd.readouterr().err
    with pytest.raises(
        RunError, match="costs 3.000 nats per token alone and .* after 64 tokens.*not read right"
    ):
        checks._check_offsets("DIR", losses)
