"""Jobs planned from configurations: one training each, with the evaluations of it. Nothing heavy is
imported here.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.machine import fast_dtype
from posbench.config import identity
from posbench.config.defaults import resolve
from posbench.config.schema import TRAINING, JobConfig, typed
from posbench.data.mix import resolved_data
from posbench.position.instantiate import trained_config, trusted_config
from posbench.runs.directory import Run
from posbench.sweep.cells import EvaluationCell, cells, check_used
from posbench.sweep.finetune import child_config

BUSY = 75  # exit code of a job whose run another process holds (EX_TEMPFAIL)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one evaluation: done, exists, noop, refused, failed or interrupted, with the
    reason; before it, legal or untested.
    """

    label: str
    status: str
    reason: str = ""


@dataclass
class Job:
    """One training with all its evaluations."""

    config: JobConfig
    run: Run
    fingerprint: str
    cfgs: list[dict] = field(default_factory=list)  # the given configurations that it was made from
    cells: list[EvaluationCell] = field(default_factory=list)
    parent: "Job | None" = None  # of a fine-tuned run that was described, not named by run=

    @property
    def user_cells(self) -> list[EvaluationCell]:
        """Cells that the user asked for, without references."""
        return [cell for cell in self.cells if not cell.reference]


@dataclass
class Result:
    """Result of one job: its exit code, the outcomes of its cells, its wall time in seconds, and
    its failure file or None.
    """

    job: Job
    code: int
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    file: Path | None = None

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def plan_jobs(cfgs: list[dict], auto: str | None = None) -> list[Job]:
    """Jobs of all configurations, in their order: distinct trainings, each with its distinct
    evaluations.

    `auto` is what dtype=auto means; None: the format that this machine multiplies fastest. Raises
    ConfigError for a wrong configuration, and for one training on two devices."""
    jobs: dict[Path, Job] = {}
    fingerprints: dict[str, str] = {}
    for cfg in cfgs:
        made = _job(cfg, fingerprints, auto)
        job = jobs.setdefault(made.run.path, made)
        if made.config.device != job.config.device:
            raise ConfigError(
                f"device={job.config.device} and device={made.config.device} are given for one training,"
                f" {job.run.id}, which is made only once: give one of them, or another results_dir"
                " to each."
            )
        # The process of the job plans it again, perhaps on a node of a cluster with another
        # processor.
        job.cfgs.append(
            {
                **cfg,
                **{
                    group: {**cfg[group], "dtype": getattr(made.config, group).dtype}
                    for group in ("train", "evaluate")
                },
            }
        )
        _merge(job, cells(job.run, made.config))
    return list(jobs.values())


def plan_methods(
    cfg: dict, served: Iterable[tuple[str, int]]
) -> tuple[Job, dict[str, EvaluationCell]]:
    """The job of a configuration with several methods, and its cells by methods.

    `served`: (methods as the JSON of extension and scale, a length at which they are evaluated).
    """
    lengths: dict[str, set[int]] = defaultdict(set)
    for methods, length in served:
        lengths[methods].add(length)
    cfgs = []
    for methods, own in lengths.items():
        extension, scale = json.loads(methods)
        evaluate = {**cfg["evaluate"], "lengths": sorted(own)}
        cfgs.append({**cfg, "extension": extension, "scale_attention": scale, "evaluate": evaluate})
    (job,) = plan_jobs(cfgs)
    return job, {json.dumps([cell.extension, cell.scale_attention]): cell for cell in job.cells}


def some_there(jobs: list[Job]) -> bool:
    """True if a file of any evaluation exists."""
    return any(cell.path.exists() for job in jobs for cell in job.cells)


def plan_existing(
    cfgs: list[dict], found: Callable[[list[Job]], bool] = some_there
) -> tuple[list[Job], str]:
    """Jobs as `plan_jobs` plans them, and "". Their results may have been made on another machine,
    where dtype=auto meant another format.

    If `found` is false for them and true for the jobs in that format, the latter are returned, with
    a sentence that says so."""
    usual = fast_dtype(cfgs[0]["device"])
    other = "fp32" if usual == "bf16" else "bf16"
    jobs = plan_jobs(cfgs, usual)
    if not found(jobs) and found(others := plan_jobs(cfgs, other)):
        return (
            others,
            f"dtype=auto means {usual} on this machine, and {other} where these results were made",
        )
    return jobs, ""


def _merge(job: Job, cells: list[EvaluationCell]) -> None:
    """Add cells to a job. Cells of one file are merged: lengths are united, and the user's cell
    replaces a reference.
    """
    known = {cell.path: cell for cell in job.cells}
    for cell in cells:
        if cell.path in known:
            other = known[cell.path]
            lengths = sorted({*cell.evaluate.lengths, *other.evaluate.lengths})
            cell = replace(
                cell,
                evaluate=replace(cell.evaluate, lengths=lengths),
                reference=cell.reference and other.reference,
            )
        known[cell.path] = cell
    job.cells = list(known.values())


def _job(given: dict, fingerprints: dict[str, str], auto: str | None) -> Job:
    from posbench.data.corpus import fingerprint, resolved_text
    from posbench.pretrained.outline import outlined

    run = None if given["run"] is None else Run(given["run"])
    given = _with_training(given, run)
    tuning, asked = given.pop("finetune", None), typed("evaluate", given["evaluate"])
    cfg = resolve(given, auto)
    check_used(asked, cfg.evaluate.protocol)
    text = resolved_text(cfg.evaluate.text, cfg.data, cfg.cache_dir)
    key = repr(cfg.data)
    if key not in fingerprints:
        fingerprints[key] = fingerprint(cfg.data, cfg.cache_dir)
    found = fingerprints[key]
    chooser = resolved_chooser(cfg.evaluate.key_run, found)
    cfg = replace(cfg, evaluate=replace(cfg.evaluate, text=text, key_run=chooser))
    run_id = identity.run_id(cfg.as_dict(), found)
    if run and run_id != run.id:
        raise ConfigError(
            f"run={cfg.run} is not the training that its config.yaml and its data describe now"
            f" (that would be {run_id}): restore config.yaml, or the text it was trained on."
        )
    job = Job(cfg, run, found) if run else _new_or_existing(cfg, found)
    if not tuning:
        return job
    tuning = typed("finetune", tuning)
    if outlined(cfg) and (tuning.encoding or tuning.scale_attention):
        raise ConfigError(
            f"model.path={cfg.model.path} is built by transformers, whose positions and logits are"
            " its own: choose finetune=longer."
        )
    child = child_config(job.config, job.run.id, tuning)
    return replace(_new_or_existing(child, found), parent=job)


def _new_or_existing(cfg: JobConfig, fingerprint: str) -> Job:
    """Job of a training whose folder its id names; of one from before own methods were named by
    their yamls, with the names in it.
    """
    results_dir = Path(cfg.results_dir)
    run = Run(results_dir / identity.run_id(cfg.as_dict(), fingerprint))
    named = {"encoding": cfg.encoding, "scale_attention": cfg.train.scale_attention}
    before = identity.without_choices(named)
    if before != named and not run.path.exists():
        train = replace(cfg.train, scale_attention=before["scale_attention"])
        cfg_before = replace(cfg, encoding=before["encoding"], train=train)
        run_before = Run(results_dir / identity.run_id(cfg_before.as_dict(), fingerprint))
        if run_before.path.exists():
            return Job(cfg_before, run_before, fingerprint)
    return Job(cfg, run, fingerprint)


def resolved_chooser(given: str | dict | None, fingerprint: str) -> dict | None:
    """A `given` evaluate.key_run, the run whose model chooses the key tokens of longppl, with its
    id, weights and training length.

    None for none. `fingerprint` is that of the evaluated text. Raises ConfigError for a folder
    without a finished training, and for a training on another text or in other tokens."""
    if given is None:
        return None
    path = given.get("path") if isinstance(given, dict) else given
    run = Run(path) if isinstance(path, str) else None
    if run is None or not run.has_config or not run.finished:
        raise ConfigError(
            f"evaluate.key_run={path} holds no finished training: give the folder of one, such as"
            " results/runs/rope-64-s0-1a2b3c4d5e."
        )
    trained = trained_config(run)
    if (
        identity.run_id(trained.as_dict(), fingerprint) != run.id
    ):  # an id stands for text and tokens too
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


def _with_training(given: dict, run: Run | None) -> dict:
    """Configuration with the training of `run`, or else with the model of its checkpoint if it
    names one.
    """
    from posbench.engines.engine import config_from_engine
    from posbench.pretrained.import_config import config_from_checkpoint

    if run is None:
        given = {**given, "data": resolved_data(given["data"])}
        cfg = (
            config_from_engine(given)
            if given["model"].get("engine")
            else config_from_checkpoint(given)
        )
    elif run.config.exists():
        trained = trusted_config(run)
        if engine := trained["model"].get("engine"):
            kind = identity.method_name(engine)
            raise ConfigError(
                f"run={given['run']} was asked of an engine, whose address a run does not decide:"
                f" give model={kind} again."
            )
        cfg = {**given, **{key: trained[key] for key in TRAINING}}
    else:
        raise ConfigError(
            f"run={given['run']} holds no training (no config.yaml there): give a directory such as"
            " results/runs/rope-64-s0-1a2b3c4d5e."
        )
    if cfg["data"].get("mix") and cfg["model"].get("checkpoint"):
        raise ConfigError(
            "data.mix is for training, and a checkpoint is evaluated as it is: leave data.mix out,"
            " or choose evaluate.tasks."
        )
    return cfg
