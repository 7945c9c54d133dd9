"""Training of a job: its text, the weights that it begins with, and its parent before it."""

import functools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json
from posbench.config.schema import JobConfig
from posbench.data import prepare
from posbench.data.corpus import Corpus, fit_corpus
from posbench.data.sources import SPLITS
from posbench.model.build import files_of, load_model, load_reader, make_model, pick_device
from posbench.model.gpt import GPT
from posbench.model.inherit import inherit
from posbench.position.plan import training_plan_maker
from posbench.position.trusted import trained_config
from posbench.pretrained.outline import is_built_by_transformers
from posbench.results.run_metadata import read_or_empty
from posbench.runs import directory as runs
from posbench.runs import provenance
from posbench.sweep.cells import EvaluationCell
from posbench.sweep.jobs import Job
from posbench.sweep.kept_steps import KeptSteps
from posbench.sweep.losses_by_length import LossesByLength
from posbench.sweep.recorder import Recorder
from posbench.sweep.take_checkpoint import take_checkpoint
from posbench.sweep.validation import check_validation_text, stored_training, too_late_at
from posbench.training.checkpoint import remove_state
from posbench.training.distributed import World
from posbench.training.loop import fit

if TYPE_CHECKING:
    from posbench.model.inplace.reader import Reader


def corpus_of(job: Job) -> Corpus:
    """Corpus of a job; for a finished training, only the scored splits.

    Raises RunError when the text does not match the run's id.
    """
    # A cell with a text of its own (evaluate.text) needs the corpus, but none of its splits. It
    # counts as one of test, the usual split, since no split at all would mean all of them below.
    scored = {"test" if cell.evaluate.text else cell.evaluate.split for cell in job.cells}
    trains = job.config.trains and not job.run.finished
    # Without cells nothing tells which splits are meant, so all are read.
    splits = SPLITS if trains or not scored else scored
    corpus = prepare(job.config.data, job.config.cache_dir, splits)
    if corpus.fingerprint != job.fingerprint:
        raise RunError(
            f"The text of data={corpus.name} changed after {job.run.id} was named by it: run the"
            " same command again."
        )
    if trains:
        check_validation_text(corpus, job.config.train)
    return fit_corpus(corpus, job.config)


def finish_parent(job: Job, wait: bool, world: World) -> None:
    """Train the parent of a child that has yet to begin.

    Raises Busy when another process trains it (unless `wait`), ConfigError for several processes,
    which share one training alone.
    """
    parent = job.parent
    if parent is None or job.run.finished:
        return
    if parent.run.finished:
        delete_leftover_state(parent.run)  # of the state that a killed process left
        return
    if world.size > 1:
        raise ConfigError(
            f"processes={world.size} share one training, and the parent {parent.run.id} is not"
            " trained: train it first."
        )
    with parent.run.lock(wait):
        if parent.run.finished:  # made by another process while this one waited
            return
        device = pick_device(parent.config.device)
        corpus = corpus_of(parent)
        wandb_config = recorded_config(parent, [])
        with Recorder(parent.run, parent.config.log, wandb_config, "train") as recorder:
            train(parent, corpus, device, recorder, world)


def delete_leftover_state(run: runs.Run) -> None:
    """Delete the state of a finished training whose process was killed before it did so."""
    if run.finished:
        remove_state(run.state)


def restore_config(job: Job) -> None:
    """Write config.yaml of a finished training again if it is missing.

    A training is of no use without. The caller holds the lock of the run.
    """
    if not job.run.finished or job.run.has_config:
        return
    # the provenance names the parent's weights too
    parent = read_or_empty(read_json, job.run.provenance).get("parent") or job.config.train.parent
    _write_config(job, parent)
    print(f"{job.run.config} was missing: it is written again", file=sys.stderr, flush=True)


def _write_config(job: Job, parent: dict | None) -> None:
    """Write config.yaml of a training that began with the weights of `parent`."""
    job.run.write_config(_config_with_parent(job, parent).as_dict())


def _config_with_parent(job: Job, parent: dict | None) -> JobConfig:
    """Configuration of a training, with the digest of its parent's weights."""
    return replace(job.config, train=replace(job.config.train, parent=parent))


def recorded_config(job: Job, cells: list[EvaluationCell]) -> dict:
    """Configuration for wandb: all methods of the evaluations, data fingerprint and commit."""
    methods = {}
    for part in ("extension", "scale_attention"):
        nodes = []
        for cell in cells:
            node = getattr(cell, part)
            if not cell.reference and node not in nodes:
                nodes.append(node)
        if not nodes:
            methods[part] = getattr(job.config, part)
        else:
            methods[part] = nodes if len(nodes) > 1 else nodes[0]
    return {
        **job.config.as_dict(),
        **methods,
        "data_fingerprint": job.fingerprint,
        "commit": provenance.commit_of_row(),
    }


def train(
    job: Job, corpus: Corpus, device: str, recorder: Recorder | None, world: World
) -> "GPT | Reader":
    """Model of a job: its checkpoint, or its training, which begins or goes on here.

    Only the main process has a `recorder`.
    """
    if not job.config.trains:
        take_checkpoint(job.run, job.config, corpus.vocab_size, device, job.fingerprint)
        return load_model(job.run, job.config, corpus.vocab_size, device)
    parent = _parent_with_hash(job)
    model = _first_model(job, corpus.vocab_size, device)
    keep = None
    sentences_at = None
    if world.is_main:
        # read before it is written anew
        stored = stored_training(job.run)
        sentences_at = functools.partial(too_late_at, job, stored)
        _write_config(job, parent)
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        origin = provenance.collect_provenance(
            job.config.seed, device, job.fingerprint, n_parameters
        )
        origin |= {"processes": world.size, "backend": world.backend(device)}
        if parent:
            origin["parent"] = parent
        job.run.write_provenance(origin, resumed=job.run.has_state)
        config = _config_with_parent(job, parent)
        keep = KeptSteps(job.run, config, job.fingerprint, origin).keep
    losses_by_length = None
    if job.config.train.validate_lengths:
        losses_by_length = LossesByLength(model, corpus, job.config.train, device, world)
    fit(
        model,
        corpus,
        job.config.train,
        seed=job.config.seed,
        device=device,
        run=job.run,
        recorder=recorder,
        plan_for=training_plan_maker(model.encoding, model.scale, device, job.config.seed),
        world=world,
        losses_by_length=losses_by_length,
        keep=keep,
        too_late_at=sentences_at,
    )
    world.leave()
    return model


def _parent_run(job: Job) -> runs.Run:
    """Run of the parent that the configuration of a child names."""
    if job.parent:
        return job.parent.run
    return runs.Run(job.run.path.parent / job.config.train.parent["run_id"])


def _parent_with_hash(job: Job) -> dict | None:
    """Parent in the configuration of a child, with the hash of its weights; None without a parent.

    Raises RunError without the parent that a child began with.
    """
    parent = job.config.train.parent
    if not parent:
        return None
    run = _parent_run(job)
    if not run.finished:
        raise RunError(
            f"{job.run.id} begins with the weights of {run.path}, which holds no finished training:"
            " train that first."
        )
    sha256 = run.read_summary()["sha256"]
    earlier_parent = job.run.read_config()["train"].get("parent") if job.run.has_config else None
    earlier_sha256 = (earlier_parent or {}).get("sha256")
    if earlier_sha256 not in (None, sha256):  # None: the child has yet to begin
        raise RunError(
            f"{run.path} has changed since {job.run.id} began with its weights (SHA-256"
            f" {sha256[:12]}..., {earlier_sha256[:12]}... then): restore it, or delete"
            f" {job.run.path} to fine-tune anew."
        )
    return {**parent, "sha256": sha256}


def _first_model(job: Job, vocab_size: int, device: str) -> "GPT | Reader":
    """Model of a training before its first step."""
    if not job.config.train.parent:
        return make_model(job.config, vocab_size).to(device)
    run = _parent_run(job)
    parent_config = job.parent.config if job.parent else trained_config(run)
    if is_built_by_transformers(job.config):
        reader = load_reader(files_of(run, parent_config), job.config, device)
        return reader.requires_grad_(True)  # it was read as for an evaluation
    model = make_model(job.config, vocab_size)
    inherit(model, load_model(run, parent_config, vocab_size, "cpu"), job.config.train.frozen)
    return model.to(device)
