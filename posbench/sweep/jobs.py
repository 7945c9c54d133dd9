"""Jobs planned from configurations: one training each, with the evaluations of it.

A job is planned once: as JSON it travels to the process, or the node of a cluster, that runs it.
Nothing heavy is imported here.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import json_text
from posbench.common.machine import fast_dtype
from posbench.common.outcome import Outcome
from posbench.config import identity
from posbench.config.defaults import resolved_config
from posbench.config.schema import TRAINING_PARTS, JobConfig, typed_group
from posbench.config.typed_args import shown
from posbench.data.mix import resolved_data
from posbench.position.trusted import trained_config, trusted_config
from posbench.results.run_metadata import read_or_empty
from posbench.runs.directory import Run
from posbench.sweep.cells import EvaluationCell, cells, check_used
from posbench.sweep.finetune import child_config
from posbench.sweep.kept_steps import check_kept, check_step, config_at, run_at


@dataclass
class Job:
    """One training with all its evaluations, planned: everything in it is resolved."""

    config: JobConfig
    run: Run
    fingerprint: str
    cells: list[EvaluationCell] = field(default_factory=list)
    parent: "Job | None" = None  # of a fine-tuned run that was described, not named by run=

    @property
    def user_cells(self) -> list[EvaluationCell]:
        """Cells that the user asked for, without references."""
        return [cell for cell in self.cells if not cell.reference]

    def as_dict(self) -> dict:
        """The job in values of JSON, as its process reads them."""
        content = {
            "config": self.config.as_dict(),
            "run": str(self.run.path),
            "fingerprint": self.fingerprint,
            "cells": [cell.as_dict() for cell in self.cells],
            "parent": self.parent.as_dict() if self.parent else None,
        }
        return json.loads(json_text(content))

    @classmethod
    def of(cls, content: dict) -> "Job":
        """The job of what `as_dict` gave. Raises ConfigError for values of a wrong type."""
        return cls(
            JobConfig.of(content["config"]),
            Run(content["run"]),
            content["fingerprint"],
            [EvaluationCell.of(cell) for cell in content["cells"]],
            cls.of(content["parent"]) if content["parent"] else None,
        )


@dataclass
class Result:
    """Result of one job: its exit code and the outcomes of its cells.

    `seconds` is its wall time, `file` its failure file or None.
    """

    job: Job
    code: int
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    file: Path | None = None

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def plan_jobs(raws: list[dict], auto: str | None = None) -> list[Job]:
    """Jobs of all configurations, in their order: distinct trainings with distinct evaluations.

    `auto` is what dtype=auto means; None: the format that this machine multiplies fastest. Raises
    ConfigError for a wrong configuration, and for one training on two devices."""
    jobs: dict[Path, Job] = {}
    fingerprints: dict[str, str] = {}  # of texts, kept by `_plan_job` so that each is made once
    planned_jobs = [_plan_job(raw, fingerprints, auto) for raw in raws]
    for planned in _in_common_windows(raws, planned_jobs):
        job = jobs.setdefault(planned.run.path, planned)  # the first of this training, or itself
        if planned.config.device != job.config.device:
            raise ConfigError(
                f"device={job.config.device} and device={planned.config.device} are given for one"
                f" training, {job.run.id}, which is made only once: give one of them, or another"
                " results_dir to each."
            )
        _check_same_validation(job, planned)
        _merge_cells(job, cells(job.run, planned.config))
    return list(jobs.values())


def _in_common_windows(raws: list[dict], jobs: list[Job]) -> list[Job]:
    """The jobs of configurations, of which those that differ in evaluate.lengths alone have windows
    with room for the longest of all, so that they score the same targets.

    -m evaluate.lengths=2048,8192 then scores what evaluate.lengths=[2048,8192] does. A typed
    evaluate.max_length stays.
    """
    keys = []
    rooms: dict[str, int] = defaultdict(int)  # {all but the lengths: tokens of the longest window}
    for raw, job in zip(raws, jobs, strict=True):
        evaluate = job.config.evaluate
        typed_room = raw["evaluate"].get("max_length")
        without_lengths = replace(evaluate, lengths=None, max_length=typed_room)
        key = repr(replace(job.config, evaluate=without_lengths))
        keys.append(key)
        rooms[key] = max(rooms[key], evaluate.max_length)
    return [_with_room(job, rooms[key]) for job, key in zip(jobs, keys, strict=True)]


def _with_room(job: Job, max_length: int) -> Job:
    """The job with windows of `max_length` tokens."""
    evaluate = replace(job.config.evaluate, max_length=max_length)
    return replace(job, config=replace(job.config, evaluate=evaluate))


def plan_methods(
    raw: dict, requests: Iterable[tuple[str, int]]
) -> tuple[Job, dict[str, EvaluationCell]]:
    """The job of a configuration with several methods, and its cells by methods.

    `requests`: (methods as the JSON of extension and scale, a length at which they are evaluated).
    """
    lengths: dict[str, set[int]] = defaultdict(set)
    for methods, length in requests:
        lengths[methods].add(length)
    raws = []
    for methods in lengths:
        extension, scale = json.loads(methods)
        evaluate = {**raw["evaluate"], "lengths": sorted(lengths[methods])}
        raws.append({**raw, "extension": extension, "scale_attention": scale, "evaluate": evaluate})
    (job,) = plan_jobs(raws)
    return job, {json.dumps([cell.extension, cell.scale_attention]): cell for cell in job.cells}


def _check_same_validation(job: Job, other: Job) -> None:
    """Raise ConfigError for one training that is validated, or whose steps are kept, in two ways.

    Its id does not depend on them.
    """
    for key in ("validate_lengths", "validate_extensions", "keep_steps"):
        value = getattr(job.config.train, key)
        other_value = getattr(other.config.train, key)
        if other_value != value:
            raise ConfigError(
                f"train.{key} is {shown(value)} and {shown(other_value)} for one training,"
                f" {job.run.id}, which is made only once: give one value that holds all."
            )


def any_evaluation_exists(jobs: list[Job]) -> bool:
    """True if a file of any evaluation exists."""
    return any(cell.path.exists() for job in jobs for cell in job.cells)


def plan_existing(
    raws: list[dict], exist: Callable[[list[Job]], bool] = any_evaluation_exists
) -> tuple[list[Job], str]:
    """Jobs as `plan_jobs` plans them, and "".

    Their results may have been made on another machine, where dtype=auto meant another format. If
    `exist` is false for them and true for the jobs in that format, the latter are returned, with a
    sentence that says so."""
    usual = fast_dtype(raws[0]["device"])
    jobs = plan_jobs(raws, usual)
    if exist(jobs):
        return jobs, ""
    other = "fp32" if usual == "bf16" else "bf16"
    other_jobs = plan_jobs(raws, other)
    if not exist(other_jobs):
        return jobs, ""
    note = f"dtype=auto means {usual} on this machine, and {other} where these results were made"
    return other_jobs, note


def _merge_cells(job: Job, cells: list[EvaluationCell]) -> None:
    """Add cells to a job.

    Cells of one file are merged: lengths are united, and the user's cell replaces a reference.
    """
    by_path = {cell.path: cell for cell in job.cells}
    for cell in cells:
        other = by_path.get(cell.path)
        if other:
            lengths = sorted({*cell.evaluate.lengths, *other.evaluate.lengths})
            cell = replace(
                cell,
                evaluate=replace(cell.evaluate, lengths=lengths),
                reference=cell.reference and other.reference,
            )
        by_path[cell.path] = cell
    job.cells = list(by_path.values())


def _plan_job(raw: dict, fingerprints: dict[str, str], auto: str | None) -> Job:
    """The job of one configuration, without cells. `fingerprints` keeps those of texts.

    `auto` as in `plan_jobs`.
    """
    from posbench.data.corpus import fingerprint, resolved_text

    run = None if raw["run"] is None else Run(raw["run"])  # an existing training
    raw = _with_training(raw, run)
    tuning = raw.pop("finetune", None)
    evaluate_as_typed = typed_group("evaluate", raw["evaluate"])
    config = resolved_config(raw, auto)
    check_used(evaluate_as_typed, config.evaluate.protocol)
    text = resolved_text(config.evaluate.text, config.data, config.cache_dir)
    key = repr(config.data)
    if key not in fingerprints:
        fingerprints[key] = fingerprint(config.data, config.cache_dir)
    text_fingerprint = fingerprints[key]
    chooser = resolved_key_run(config.evaluate.key_run, text_fingerprint)
    config = replace(config, evaluate=replace(config.evaluate, text=text, key_run=chooser))
    if run is None:
        job = _new_or_existing(config, text_fingerprint)
    else:
        _check_described(config, run, text_fingerprint)
        job = Job(config, run, text_fingerprint)
    if tuning:
        job = _child_job(job, tuning)
    return _job_at_step(job, config.step) if config.step else job


def _job_at_step(job: Job, step: int) -> Job:
    """Job of a training as it is after a step. Raises ConfigError for a step that it does not have,
    or, of an existing training, did not keep.
    """
    check_step(job.config, step)
    if step == job.config.train.last_step:
        return job
    if job.config.run and not job.parent:  # run= without a fine-tuning makes no step itself
        check_kept(job.run, job.config, job.fingerprint, step)
    run = run_at(job.run, job.config, job.fingerprint, step)
    return replace(job, config=config_at(job.config, step), run=run)


def _check_described(config: JobConfig, run: Run, fingerprint: str) -> None:
    """Raise ConfigError if run= is not the training that its files describe now."""
    run_id = identity.run_id(config.as_dict(), fingerprint)
    if run_id != run.id:
        raise ConfigError(
            f"run={config.run} is not the training that its config.yaml and its data describe now"
            f" (that would be {run_id}): restore config.yaml, the text it was trained on, or the"
            " name of its folder."
        )


def _child_job(parent: Job, tuning: dict) -> Job:
    """The job of a fine-tuning by its configuration. Raises ConfigError as `child_config` does."""
    from posbench.pretrained.outline import is_built_by_transformers

    finetune = typed_group("finetune", tuning)
    config = parent.config
    if is_built_by_transformers(config) and (finetune.encoding or finetune.scale_attention):
        raise ConfigError(
            f"model.path={config.model.path} is built by transformers, whose positions and logits"
            " are its own: choose finetune=longer."
        )
    child = child_config(config, parent.run.id, finetune)
    return replace(_new_or_existing(child, parent.fingerprint), parent=parent)


def _new_or_existing(config: JobConfig, fingerprint: str) -> Job:
    """Job of a training whose folder its id names. Names in a folder that is there already stay."""
    results_dir = Path(config.results_dir)
    run = Run(results_dir / identity.run_id(config.as_dict(), fingerprint))
    # A text of the user's own counts by its content, so it may have had another name. That one
    # stays: a floor is looked for in the rows of a text of the same name.
    if config.data.get("path") and run.has_config:
        name = _recorded_text_name(run, config.data)
        return Job(replace(config, data={**config.data, "name": name}), run, fingerprint)
    # Earlier versions named the user's own methods without their yamls, and so gave other ids. Such
    # a folder is gone on with.
    nodes = {"encoding": config.encoding, "scale_attention": config.train.scale_attention}
    nodes_before = identity.without_choice_keys(nodes)
    if nodes_before != nodes and not run.path.exists():
        train = replace(config.train, scale_attention=nodes_before["scale_attention"])
        config_before = replace(config, encoding=nodes_before["encoding"], train=train)
        run_before = Run(results_dir / identity.run_id(config_before.as_dict(), fingerprint))
        if run_before.path.exists():
            return Job(config_before, run_before, fingerprint)
    return Job(config, run, fingerprint)


def _recorded_text_name(run: Run, data: dict) -> str:
    """Name of a text in a run's config.yaml; that of `data` where that is not its path's name."""
    recorded = (read_or_empty(run.read_config).get("data") or {}).get("name")
    was_typed = data["name"] != identity.text_name({"path": data["path"]})
    return data["name"] if was_typed or not isinstance(recorded, str) else recorded


def resolved_key_run(chooser: str | dict | None, fingerprint: str) -> dict | None:
    """evaluate.key_run with the id, weights and training length of that run; None for none.

    Its model chooses the key tokens of longppl. `fingerprint` is that of the evaluated text. Raises
    ConfigError for a folder without a finished training, and for a training on another text or in
    other tokens."""
    if chooser is None:
        return None
    # A stored configuration has the dict that is returned here.
    path = chooser.get("path") if isinstance(chooser, dict) else chooser
    run = Run(path) if isinstance(path, str) else None
    if run is None or not run.has_config or not run.finished:
        raise ConfigError(
            f"evaluate.key_run={path} holds no finished training: give the folder of one, such as"
            " results/runs/rope-64-s0-1a2b3c4d5e."
        )
    trained = trained_config(run)
    # an id stands for text and tokens too
    if identity.run_id(trained.as_dict(), fingerprint) != run.id:
        raise ConfigError(
            f"evaluate.key_run={path} was trained on another text or in other tokens (or its folder"
            " was renamed): name a training on the same text, since a model can only choose among"
            " tokens that it knows."
        )
    return {
        "path": str(run.path),
        "run_id": run.id,
        "sha256": run.read_summary()["sha256"],
        "train_len": trained.train.train_len,
    }


def _with_training(raw: dict, run: Run | None) -> dict:
    """Configuration with the training of `run`, or with the model of its checkpoint, if any."""
    from posbench.engines.engine import config_from_engine
    from posbench.pretrained.import_config import config_from_checkpoint

    if run is None:
        raw = {**raw, "data": resolved_data(raw["data"])}
        asks_engine = bool(raw["model"].get("engine"))
        raw = config_from_engine(raw) if asks_engine else config_from_checkpoint(raw)
    elif run.config.exists():
        trained = trusted_config(run)
        engine = trained["model"].get("engine")
        if engine:
            raise ConfigError(
                f"run={raw['run']} was asked of an engine, whose address a run does not decide:"
                f" give model={identity.method_name(engine)} again."
            )
        raw = {**raw, **{key: trained[key] for key in TRAINING_PARTS}}
    else:
        raise ConfigError(
            f"run={raw['run']} holds no training (no config.yaml there): give a directory such as"
            " results/runs/rope-64-s0-1a2b3c4d5e."
        )
    if raw["data"].get("mix") and raw["model"].get("checkpoint"):
        raise ConfigError(
            "data.mix is for training, and a checkpoint is evaluated as it is: leave data.mix out,"
            " or choose evaluate.tasks."
        )
    return raw
