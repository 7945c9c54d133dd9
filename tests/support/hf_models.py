"""Small trainings, and small checkpoints in Hugging Face format, for the tests of both
directions.
"""

from pathlib import Path

import pytest
import torch
from conftest import node

from posbench.config.compose import Request
from posbench.config.defaults import resolved_config
from posbench.config.identity import run_id
from posbench.config.schema import JobConfig, TrainConfig
from posbench.model.build import load_model, make_model
from posbench.model.weights import save_weights
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan
from posbench.position.trusted import trained_config
from posbench.pretrained.import_config import config_from_checkpoint
from posbench.runs.directory import Run
from posbench.sweep import take_checkpoint as hf_weights
from posbench.tools.export.command import export

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

VOCAB, TRAIN_LEN, LENGTHS = 50, 32, (5, 32, 33, 100)
FIXED = {"mode": "fixed", "target_len": 128}


def method(group: str, name: str, **changed) -> dict:
    return {**node(group, name), **changed}


def job(encoding: dict | None = None, model: dict | None = None, **changed) -> dict:
    """A configuration as Hydra would compose it."""
    source = {"_target_": "posbench.data.local.LocalFiles"}
    data = {
        "tokenizer": "bytes",
        "vocab_size": 1024,
        "bos": False,
        "name": "local",
        "path": "/nowhere",
        "source": source,
    }
    return {
        "encoding": encoding or node("encoding", "rope"),
        "extension": node("extension", "none"),
        "scale_attention": node("scale_attention", "none"),
        "model": {
            "d_model": 32,
            "n_layer": 2,
            "n_head": 2,
            "n_kv_head": 1,
            "d_ff": 48,
            **(model or {}),
        },
        "data": data,
        "train": {"length": TRAIN_LEN},
        "evaluate": {},
        "log": {},
        "seed": 0,
        **changed,
    }


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Every parameter random, norms and biases too, so that none can be forgotten unseen."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.normal_(mean=float(parameter.ndim == 1), std=0.3)


def trained(folder: Path, cfg: dict | JobConfig) -> Run:
    """A finished run of random weights."""
    run, cfg = Run(folder / "run"), resolved_config(cfg) if isinstance(cfg, dict) else cfg
    model = make_model(cfg, VOCAB)
    randomize(model)
    with run.lock():
        run.write_config(cfg.as_dict())
        run.write_summary({"sha256": save_weights(run.weights, model)})
    return run


def exported(training: Run, extension: dict | None = None, **changed) -> Path:
    out = training.path.parent / "out"
    cfg = {
        "run": str(training.path),
        "out": str(out),
        "extension": extension or node("extension", "none"),
        "cache_dir": str(training.path),
        "step": None,
    }
    export(
        Request([{**cfg, "scale_attention": node("scale_attention", "none"), **changed}], {}, False)
    )
    return out


@torch.no_grad()
def assert_equal_logits(
    run: Run,
    theirs: torch.nn.Module,
    extension: dict | None = None,
    vocab_size: int = VOCAB,
    relative: bool = False,
) -> None:
    """Compare at all LENGTHS: each logit, or with `relative` all of a length together, where large
    weights make single ones chaotic.
    """
    ours = load_model(run, trained_config(run), vocab_size, "cpu")
    for length in LENGTHS:  # ascending: their dynamic type remembers the longest text
        text_BT = torch.randint(0, vocab_size, (2, length))
        plan = make_plan(
            ours.encoding, make_method(extension) if extension else None, length=length
        )
        logits, expected = ours(text_BT, plan), theirs(text_BT).logits
        if relative:
            assert (logits - expected).norm() < 1e-4 * expected.norm()
        else:
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": TRAIN_LEN,
}  # fmt: skip
THEIRS = {
    "Llama": {"tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "Mistral": {
        "head_dim": 12,
        "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "Ministral": {"head_dim": 12, "sliding_window": 7},
    "Qwen2": {"bos_token_id": None},
    "Qwen3": {"head_dim": 16},
    "SmolLM3": {
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "num_hidden_layers": 5,
        "tie_word_embeddings": True,
    },
    "Phi3": {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
}


def checkpoint(
    folder: Path,
    kind: str = "Llama",
    shard: str = "1GB",
    dtype: torch.dtype = torch.float32,
    **changed,
) -> Path:
    """A random model of theirs, on disk."""
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **THEIRS[kind], **changed})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    randomize(model)
    model.to(dtype).save_pretrained(folder / kind, max_shard_size=shard)
    return folder / kind


def theirs(path: Path) -> torch.nn.Module:
    """The model as transformers reads it."""
    return transformers.AutoModelForCausalLM.from_pretrained(path).eval()


def adopted(path: Path, **changed) -> JobConfig:
    cfg = {
        **job(
            model={"path": str(path)},
            train={"length": TrainConfig().length},
            cache_dir=str(path.parent),
        ),
        **changed,
    }
    return resolved_config(config_from_checkpoint(cfg))


def imported(path: Path) -> Run:
    cfg = adopted(path)
    run = Run(path.parent / run_id(cfg.as_dict(), "f"))
    with run.lock():
        hf_weights.take_checkpoint(run, cfg, cfg.model.checkpoint["vocab_size"], "cpu", "f")
    assert run.finished and run.provenance.exists()
    return run
