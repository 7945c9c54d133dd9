"""Jobs planned from configurations: one training each, with the evaluations of it. Nothing heavy is imported here."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.machine import fast_dtype
from posbench.config import identity
from posbench.config.identity import method_name
from posbench.config.names import chosen_node
from posbench.config.schema import resolve, typed
from posbench.data.chat import chat_template
from posbench.data.mix import resolved
from posbench.data.sources import TASK
from posbench.evaluation.protocol import protocol
from posbench.position.instantiate import trusted_config
from posbench.runs.directory import Run
from posbench.runs.rows import read_eval
from posbench.runs.setting import Setting
from posbench.sweep.finetune import child_config

RECOMPUTE = "posbench.extensions.recompute_window.RecomputeWindow"
KEYS = ("key_gain", "key_loss", "key_context")  # of evaluate: how a protocol chooses its targets, if it does
NO_SCALE = {"_target_": "posbench.scale_attention.none.NoScale"}
BUSY = 75  # exit code of a job whose run another process holds (EX_TEMPFAIL)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one evaluation: done, exists, noop, refused, failed or interrupted, with the reason; before it, legal or untested."""

    label: str
    status: str
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Cell:
    """One evaluation: a protocol, an extension and a scale, and the file of its rows."""

    protocol: str
    extension: dict
    scale_attention: dict
    evaluate: dict
    allow_untested: bool
    eval_id: str
    path: Path
    reference: bool = False  # True if the protocol needs it and the user did not ask for it

    @property
    def label(self) -> str:
        """Name for the ledger and messages: protocol, extension and scale."""
        tasks = [task["name"] for task in self.evaluate["tasks"] or []]
        protocol = " ".join([self.protocol, *tasks, *(["chat"] if self.evaluate["chat"] else [])])
        return f"{protocol} {identity.method_label(self.extension)} + {identity.method_label(self.scale_attention, 'scale_attention')}"

    def missing(self) -> list[int]:
        """Lengths that the file does not contain yet."""
        if not self.path.exists():
            return self.evaluate["lengths"]
        done = {row["length"] for row in read_eval(self.path)}
        return [length for length in self.evaluate["lengths"] if length not in done]


@dataclass
class Job:
    """One training with all its evaluations."""

    cfg: dict
    run: Run
    fingerprint: str
    cfgs: list[dict] = field(default_factory=list)  # the given configurations that it was made from
    cells: list[Cell] = field(default_factory=list)
    parent: "Job | None" = None  # of a fine-tuned run that was described, not named by run=

    @property
    def trains(self) -> bool:
        """False for a checkpoint that is evaluated as it is."""
        return not self.cfg["model"].get("checkpoint") or bool(self.cfg["train"].get("parent"))

    @property
    def user_cells(self) -> list[Cell]:
        """Cells that the user asked for, without references."""
        return [cell for cell in self.cells if not cell.reference]


@dataclass
class Result:
    """Result of one job: its exit code, the outcomes of its cells, its wall time in seconds, and its failure file or None."""

    job: Job
    code: int
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    file: Path | None = None

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def plan_jobs(cfgs: list[dict], auto: str | None = None) -> list[Job]:
    """Jobs of all configurations, in their order: distinct trainings, each with its distinct evaluations.

    `auto` is what dtype=auto means; None: the format that this machine multiplies fastest.
    """
    jobs: dict[Path, Job] = {}
    fingerprints: dict[str, str] = {}
    for cfg in cfgs:
        made = _job(cfg, fingerprints, auto)
        job = jobs.setdefault(made.run.path, made)
        # The process of the job plans it again, perhaps on a node of a cluster with another processor.
        job.cfgs.append({**cfg, **{group: {**cfg[group], "dtype": made.cfg[group]["dtype"]} for group in ("train", "evaluate")}})
        _merge(job, _cells(job, made.cfg))
    return list(jobs.values())


def some_there(jobs: list[Job]) -> bool:
    """True if a file of any evaluation exists."""
    return any(cell.path.exists() for job in jobs for cell in job.cells)


def plan_existing(cfgs: list[dict], found: Callable[[list[Job]], bool] = some_there) -> tuple[list[Job], str]:
    """Jobs as `plan_jobs` plans them, and "". Their results may have been made on another machine, where dtype=auto meant another format.

    If `found` is false for them and true for the jobs in that format, these, and a sentence that says so.
    """
    usual = fast_dtype(cfgs[0]["device"])
    other = "fp32" if usual == "bf16" else "bf16"
    jobs = plan_jobs(cfgs, usual)
    if not found(jobs) and found(others := plan_jobs(cfgs, other)):
        return others, f"dtype=auto means {usual} on this machine, and {other} where these results were made"
    return jobs, ""


def _merge(job: Job, cells: list[Cell]) -> None:
    """Add cells to a job. Cells of one file are merged: lengths are united, and the user's cell replaces a reference."""
    known = {cell.path: cell for cell in job.cells}
    for cell in cells:
        if cell.path in known:
            other = known[cell.path]
            lengths = sorted({*cell.evaluate["lengths"], *other.evaluate["lengths"]})
            cell = replace(cell, evaluate={**cell.evaluate, "lengths": lengths}, reference=cell.reference and other.reference)
        known[cell.path] = cell
    job.cells = list(known.values())


def _job(cfg: dict, fingerprints: dict[str, str], auto: str | None) -> Job:
    from posbench.data import fingerprint
    from posbench.pretrained.import_config import adopt

    if cfg["run"] is not None:
        run = Run(cfg["run"])
        if not run.config.exists():
            raise ConfigError(
                f"run={cfg['run']} holds no training (no config.yaml there): give a directory such as results/runs/rope-64-s0-1a2b3c4d5e."
            )
        trained = trusted_config(run)
        cfg = {**cfg, **{key: trained[key] for key in ("encoding", "model", "data", "train", "seed")}}
    else:
        cfg = adopt({**cfg, "data": resolved(cfg["data"])})
    if cfg["data"].get("mix") and cfg["model"].get("checkpoint"):
        raise ConfigError("data.mix is for training, and a checkpoint is evaluated as it is: leave data.mix out, or choose evaluate.tasks.")
    tuning = cfg.get("finetune")
    cfg = resolve({key: value for key, value in cfg.items() if key != "finetune"}, auto)
    key = repr(cfg["data"])
    if key not in fingerprints:
        fingerprints[key] = fingerprint(cfg["data"], cfg["cache_dir"])
    found = fingerprints[key]
    run_id = identity.run_id(cfg, found)
    if cfg["run"] is not None and run_id != run.id:
        raise ConfigError(
            f"run={cfg['run']} is not the training that its config.yaml and its data describe now (that would be {run_id}): restore "
            "config.yaml, or the text it was trained on."
        )
    job = Job(cfg, run if cfg["run"] is not None else Run(Path(cfg["results_dir"]) / run_id), found)
    if not tuning:
        return job
    child = child_config(cfg, run_id, typed("finetune", tuning))
    return Job(child, Run(Path(cfg["results_dir"]) / identity.run_id(child, found)), found, parent=job)


def _cells(job: Job, cfg: dict) -> list[Cell]:
    cells, protocols = [], cfg["evaluate"]["protocol"]
    if cfg["evaluate"]["tasks"] and not any(protocol(name).asks for name in protocols):
        raise ConfigError(f"evaluate.tasks are asked by accuracy alone, and evaluate.protocol={protocols}: add accuracy to it.")
    if cfg["evaluate"]["chat"] and not cfg["evaluate"]["tasks"]:
        raise ConfigError("evaluate.chat=true asks evaluate.tasks in a chat template, and there are none: choose some, or leave it out.")
    keys = [key for key in KEYS if cfg["evaluate"][key] is not None]
    if keys and not any(protocol(name).keys for name in protocols):
        raise ConfigError(f"evaluate.{keys[0]} chooses the targets of longppl alone, and evaluate.protocol={protocols}: add longppl to it.")
    for name in protocols:
        asked = protocol(name)
        for one in (name, *asked.beside):
            for each in each_task(cfg, one):
                cells.append(make_cell(job, each, one, cfg["extension"], cfg["scale_attention"], reference=one != name))
        if asked.floor and cfg["evaluate"]["floor"]:
            cells += _references(job, cfg, asked.floor)
    return cells


def each_task(cfg: dict, name: str) -> list[dict]:
    """Configurations of the evaluations of a protocol: one for each task that it asks in words, else `cfg` alone.

    Raises ConfigError for a protocol that cannot read the data, and for an unknown task.
    """
    asks, given, data = protocol(name).asks, cfg["evaluate"]["tasks"], cfg["data"]
    if data["tokenizer"] == TASK and (given or not asks):
        said = "evaluate.tasks are asked in words" if asks else f"evaluate.protocol={name} reads text"
        raise ConfigError(
            f"{said}, and data={data['name']} is a task: " + ("leave them out." if asks else "choose evaluate.protocol=accuracy.")
        )
    if not asks or data["tokenizer"] == TASK or (data.get("mix") and not given):
        return [cfg]
    if not given:
        raise ConfigError(
            f"evaluate.protocol={name} asks questions, and data={data['name']} is text: choose some, such as "
            "'evaluate.tasks=[passkey,niah_single_1]', or train on a task, such as data=mqar or 'data.mix={task: mqar, share: 0.5}'."
        )
    named = [{"name": one} if isinstance(one, str) else one for one in given]
    found = [{"name": one.get("name") or method_name(one), **chosen_node("task", one, {})} for one in named]
    return [{**cfg, "evaluate": {**cfg["evaluate"], "tasks": [one], "chat": _chat(cfg)}} for one in found]


def _chat(cfg: dict) -> bool | dict:
    """The chat template that the checkpoint's tokenizer has, if one is asked for. Raises ConfigError where there is none."""
    asked, data = cfg["evaluate"]["chat"], cfg["data"]
    if asked is True and data["bos"]:
        raise ConfigError("evaluate.chat=true and data.bos=true: a chat begins as its template says; leave one of them out.")
    if isinstance(asked, dict):
        raise ConfigError("evaluate.chat is a mapping, and templates are read from checkpoints: say evaluate.chat=true, or leave it out.")
    return chat_template(data["tokenizer"]) if asked else False


def _references(job: Job, cfg: dict, name: str) -> list[Cell]:
    """Reference cells: the floor of every curve, and the half window behind G, which proves that the model uses its context.

    From twice the training length on (or the training length plus a stride, if more) both feed the same tokens at every length, so
    one length suffices. A smaller max_length serves if it gives every target the training length of context. Otherwise there is no
    floor, and the report says so.
    """
    train_len, evaluate = typed("train", cfg["train"]).train_len, _evaluate(cfg, name)
    length = min(train_len + max(train_len, evaluate["stride"] or 0), evaluate["max_length"])
    if length < Setting.of(evaluate).shortest_exact(train_len):
        return []
    cfg = {**cfg, "evaluate": {**cfg["evaluate"], "lengths": [length]}}
    windows = (None, max(1, train_len // 2))
    return [make_cell(job, cfg, name, {"_target_": RECOMPUTE, "window": window}, NO_SCALE, reference=True) for window in windows]


def make_cell(job: Job, cfg: dict, name: str, extension: dict, scale: dict, reference: bool = False) -> Cell:
    """One evaluation of a job by its resolved configuration; `name` of the protocol."""
    evaluate = _evaluate(cfg, name)
    evaluation = identity.eval_id(name, extension, scale, evaluate, job.run.id, protocol(name).version)
    path = job.run.eval_path(name, identity.method_name(extension), identity.method_name(scale), evaluation)
    return Cell(name, extension, scale, evaluate, cfg["allow_untested"], evaluation, path, reference)


def _evaluate(cfg: dict, name: str) -> dict:
    """Settings of one protocol: without those it does not use, such as a stride or blocks, and with its own lengths."""
    train_len, one, asked = typed("train", cfg["train"]).train_len, protocol(name), cfg["evaluate"]
    stride = (asked["stride"] or max(1, train_len // 4)) if one.strided else None
    block = 1 if one.instead else asked["floor_block"]
    unused = dict.fromkeys(KEYS) | (dict.fromkeys(("targets", "max_length", "documents")) if one.asks else {"tasks": None, "chat": False})
    own = {"stride": stride, "floor_block": block, "lengths": one.lengths(asked["lengths"], train_len), **one.settings(asked, train_len)}
    return {**asked, **unused, **own}
