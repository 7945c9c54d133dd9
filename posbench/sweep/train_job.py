"""Training of a job: its text, its weights or those that it begins with, and its parent before
it.
"""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json
from posbench.data import prepare
from posbench.data.corpus import Corpus, fit_corpus
from posbench.data.sources import SPLITS
from posbench.model.build import files_of, load_model, make_model, pick_device, read_theirs
from posbench.model.gpt import GPT
from posbench.model.inherit import inherit
from posbench.position.instantiate import trained_config
from posbench.position.plan import training_plans
from posbench.pretrained.outline import outlined
from posbench.results.run_metadata import or_nothing
from posbench.runs import directory as runs
from posbench.runs import provenance
from posbench.sweep import take_checkpoint as hf_weights
from posbench.sweep.cells import EvaluationCell
from posbench.sweep.jobs import Job
from posbench.sweep.recorder import Recorder
from posbench.training.checkpoint import remove_state
from posbench.training.distributed import World
from posbench.training.loop import fit

if TYPE_CHECKING:
    from posbench.model.inplace.reader import Reader


def corpus_of(job: Job) -> Corpus:
    """Corpus of a job; for a finished training, only the scored splits. Raises RunError when the
    text does not match the run's id.
    """
    scored = {"test" if cell.evaluate.text else cell.evaluate.split for cell in job.cells}
    splits = SPLITS if job.config.trains and not job.run.finished else scored or SPLITS
    corpus = prepare(job.config.data, job.config.cache_dir, splits)
    if corpus.fingerprint != job.fingerprint:
        raise RunError(
            f"The text of data={corpus.name} changed after {job.run.id} was named by it: run the"
            " same command again."
        )
    return fit_corpus(corpus, job.config)


def finish_parent(job: Job, wait: bool, world: World) -> None:
    """Train the parent of a child that has yet to begin. Raises Busy when another process trains it
    (unless `wait`).

    Raises ConfigError for several processes, which share one training alone.
    """
    parent = job.parent
    if parent is None or job.run.finished:
        return
    if parent.run.finished:
        tidy(parent.run)
        return
    if world.size > 1:
        raise ConfigError(
            f"processes={world.size} share one training, and the parent {parent.run.id} is not"
            " trained: train it first."
        )
    with parent.run.lock(wait):
        if parent.run.finished:
            return
        device, corpus = pick_device(parent.config.device), corpus_of(parent)
        with Recorder(
            parent.run, parent.config.log, recorded_config(parent, []), "train"
        ) as recorder:
            train(parent, corpus, device, recorder, world)


def tidy(run: runs.Run) -> None:
    """Delete the state of a finished training, left by a process that was killed between its
    summary and this.
    """
    if run.finished:
        remove_state(run.state)


def restore_config(job: Job) -> None:
    """Write config.yaml of a finished training again if it is missing, since a training is of no
    use without.

    The caller holds the lock of the run.
    """
    if not job.run.finished or job.run.has_config:
        return
    parent = (
        or_nothing(read_json, job.run.provenance).get("parent") or job.config.train.parent
    )  # which names the parent's weights too
    job.run.write_config(
        replace(job.config, train=replace(job.config.train, parent=parent)).as_dict()
    )
    print(f"{job.run.config} was missing: it is written again", file=sys.stderr, flush=True)


def recorded_config(job: Job, cells: list[EvaluationCell]) -> dict:
    """Configuration for wandb: all methods of the evaluations, the data fingerprint and the
    commit.
    """
    chosen = {}
    for part in ("extension", "scale_attention"):
        nodes = [getattr(cell, part) for cell in cells if not cell.reference] or [
            getattr(job.config, part)
        ]
        distinct = [node for i, node in enumerate(nodes) if node not in nodes[:i]]
        chosen[part] = distinct if len(distinct) > 1 else distinct[0]
    return {
        **job.config.as_dict(),
        **chosen,
        "data_fingerprint": job.fingerprint,
        "commit": provenance.commit(),
    }


def train(
    job: Job, corpus: Corpus, device: str, recorder: Recorder | None, world: World
) -> "GPT | Reader":
    """Model of a job: its checkpoint, or its training made or finished. Only the main process has a
    `recorder`.
    """
    if not job.config.trains:
        hf_weights.take_checkpoint(job.run, job.config, corpus.vocab_size, device, job.fingerprint)
        return load_model(job.run, job.config, corpus.vocab_size, device)
    model, begun = _begin(job, corpus.vocab_size, device)
    if world.main:
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        job.run.write_config(
            replace(job.config, train=replace(job.config.train, parent=begun)).as_dict()
        )
        found = provenance.collect_provenance(
            job.config.seed, device, job.fingerprint, n_parameters
        )
        found = {
            **found,
            "processes": world.size,
            "backend": world.backend(device),
            **({"parent": begun} if begun else {}),
        }
        job.run.write_provenance(found, resumed=job.run.has_state)
    fit(
        model,
        corpus,
        job.config.train,
        seed=job.config.seed,
        device=device,
        run=job.run,
        recorder=recorder,
        plan_for=training_plans(model.encoding, model.scale, device, job.config.seed),
        world=world,
    )
    world.leave()
    return model


def _begin(job: Job, vocab_size: int, device: str) -> tuple["GPT | Reader", dict | None]:
    """(model before its first step, what is noted of its parent). Raises RunError without the
    parent that a child began with.
    """
    noted = job.config.train.parent
    if not noted:
        return make_model(job.config, vocab_size).to(device), None
    run = job.parent.run if job.parent else runs.Run(job.run.path.parent / noted["run_id"])
    if not run.finished:
        raise RunError(
            f"{job.run.id} begins with the weights of {run.path}, which holds no finished training:"
            " train that first."
        )
    known = (
        (job.run.read_config()["train"].get("parent") or {}).get("sha256")
        if job.run.has_config
        else None
    )
    found = run.read_summary()["sha256"]
    if known not in (None, found):
        raise RunError(
            f"{run.path} has changed since {job.run.id} began with its weights (SHA-256"
            f" {found[:12]}..., {known[:12]}... then): restore it, or delete {job.run.path} to"
            " fine-tune anew."
        )
    noted, parent_cfg = (
        {**noted, "sha256": found},
        job.parent.config if job.parent else trained_config(run),
    )
    if outlined(job.config):
        return read_theirs(files_of(run, parent_cfg), job.config, device).requires_grad_(
            True
        ), noted
    model = make_model(job.config, vocab_size)
    inherit(model, load_model(run, parent_cfg, vocab_size, "cpu"), job.config.train.frozen)
    return model.to(device), noted
