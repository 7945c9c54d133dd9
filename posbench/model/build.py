"""From configuration to objects: methods, encodings, models, and trainings on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json
from posbench.common.machine import check_processes
from posbench.config.schema import ModelConfig, typed
from posbench.data.corpus import Corpus
from posbench.data.fit_corpus import fit_corpus
from posbench.model.gpt import GPT, make_shape
from posbench.model.memory import check_size
from posbench.model.weights import load_weights
from posbench.position.instantiate import checked, make, trusted_config
from posbench.position.interfaces import Encoding, Extension, ScaleAttention
from posbench.position.legality import check_trained_scale
from posbench.runs.directory import Run
from posbench.scale_attention.none import NoScale


def pick_device(name: str, rank: int = 0, size: int = 1) -> str:
    """Device of process `rank` of `size`. `auto` is cuda if there is one. Each process gets its own GPU, or all share the CPU.

    Raises ConfigError for a device that torch does not have, or has fewer of than processes.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if size > 1 and name != "cpu":
        check_processes(size, name)
        name = f"cuda:{rank}"
        torch.cuda.set_device(name)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device={name} is not there ({str(error).splitlines()[0]}): choose device=cpu or device=auto.") from error
    return name


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context in which the CPU's random numbers depend on `seed` alone. Those drawn after it are unaffected."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def make_encoding(cfg: dict) -> Encoding:
    """Make the encoding of a resolved job configuration."""
    model: ModelConfig = typed("model", cfg["model"])
    shape = make_shape(model, typed("train", cfg["train"]).train_len)
    check_size(model)
    with seeded(cfg["seed"]):
        return make(cfg["encoding"], shape, kind=Encoding)


def check_methods(cfgs: list[dict]) -> None:
    """Check the methods of all configurations. Raises ConfigError for a wrong class or an argument of a wrong type."""
    seen = []
    for cfg in cfgs:
        trained = typed("train", cfg["train"]).scale_attention
        for name, node, kind in (
            ("encoding", cfg["encoding"], Encoding),
            ("train.scale_attention", trained, ScaleAttention),
            ("extension", cfg["extension"], Extension),
            ("scale_attention", cfg["scale_attention"], ScaleAttention),
        ):
            if (name, node) not in seen:
                seen.append((name, node))
                checked(node, kind, name)


def make_trained_scale(cfg: dict, encoding: Encoding) -> ScaleAttention | None:
    """Make train.scale_attention, or return None for `none`. Raises ConfigError for one that training cannot use."""
    scale = make(typed("train", cfg["train"]).scale_attention, encoding.shape, kind=ScaleAttention)
    check_trained_scale(encoding, scale)
    return None if isinstance(scale, NoScale) else scale


def make_model(cfg: dict, vocab_size: int) -> GPT:
    """Make a fresh model. Its weights outside the encoding are the same for every encoding, so all are compared from one start."""
    encoding = make_encoding(cfg)
    scale = make_trained_scale(cfg, encoding)
    config: ModelConfig = typed("model", cfg["model"])
    with seeded(cfg["seed"]):
        return GPT(config, encoding, vocab_size, scale)


@dataclass(frozen=True)
class Loaded:
    """Finished training: its model (in evaluation mode), its text, and its configuration."""

    model: GPT
    corpus: Corpus
    cfg: dict


def load(path: str | Path, device: str = "auto", cache_dir: str | Path | None = None, trusted: Iterable[str] = ()) -> Loaded:
    """Load the model, text and configuration of a run's directory, for example in a notebook.

    It works from any working directory. Without `cache_dir`, tokens are read from `cache` beside the folder of runs (results/cache for
    results/runs), if that exists. A relative data.path that leads nowhere from here is tried from the folders above the run. Only
    classes of posbench, of this command's --config-dir and of the packages `trusted` are instantiated. Raises ConfigError for other
    classes, RunError if there is no finished training, if it is damaged, or if its text has changed since.
    """
    from posbench.data import prepare

    run = Run(path)
    if not run.finished:
        raise RunError(f"{path} holds no finished training: train it with scripts/run.py first.")
    cfg = trusted_config(run, trusted)
    beside = run.path.resolve().parent.parent / "cache"
    corpus = prepare(_reached(cfg["data"], run), cache_dir or (beside if beside.is_dir() else "results/cache"))
    noted = read_json(run.provenance) if run.provenance.exists() else None
    known = noted.get("data_fingerprint") if isinstance(noted, dict) else None
    if known not in (None, corpus.fingerprint):
        raise RunError(f"The text of data={corpus.name} is no longer the one that {run.id} was trained on: restore it.")
    corpus = fit_corpus(corpus, cfg)
    return Loaded(load_model(run, cfg, corpus.vocab_size, pick_device(device)), corpus, cfg)


def _reached(cfg_data: dict, run: Run) -> dict:
    """`cfg_data` with a path that exists: as it is, else relative to the nearest folder above the run. Without one it is unchanged."""
    path = cfg_data.get("path")
    if not path or os.path.exists(path):
        return cfg_data
    above = (folder / path for folder in run.path.resolve().parents)
    return {**cfg_data, "path": str(next(filter(os.path.exists, above), path))}


def load_model(run: Run, cfg: dict, vocab_size: int, device: str) -> GPT:
    """Load the trained model of a finished run and verify it against the checksum in train.json."""
    model = make_model(cfg, vocab_size)
    load_weights(run.weights, model, run.read_summary()["sha256"])
    return model.to(device).eval()
