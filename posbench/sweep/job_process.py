"""Process of one job: a training and its evaluations. A kill or a lack of memory ends only this job.

`python -m posbench.sweep.job_process SPEC` reads {"cfgs": [...], "wait": bool} from SPEC and writes {"outcomes": [...]} to SPEC.outcome;
child_processes.py calls it, by way of torchrun_process.py where several processes share the training; then the first one does all else.
"""

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json, write_json
from posbench.common.progress import Progress
from posbench.common.signals import Signals, Stopped, die_with_parent
from posbench.config.schema import typed
from posbench.data import other_text, prepare
from posbench.data.corpus import Corpus
from posbench.data.fit_corpus import fit_corpus
from posbench.data.sources import SPLITS
from posbench.evaluation.protocols import protocol
from posbench.huggingface import weights as hf_weights
from posbench.huggingface.check_checkpoint import check_checkpoint
from posbench.model.build import load_model, make_model, pick_device
from posbench.model.gpt import GPT
from posbench.model.inherit import inherit
from posbench.position.instantiate import trusted_config
from posbench.position.plan import training_plans
from posbench.report import report
from posbench.runs import directory as runs
from posbench.runs import provenance
from posbench.runs.recorder import Recorder
from posbench.sweep.cells import Cell
from posbench.sweep.evaluate_cell import evaluate, evaluation
from posbench.sweep.fate import Fate, judge
from posbench.sweep.jobs import BUSY, Job, Outcome, plan_jobs
from posbench.training.distributed import World, join
from posbench.training.divergence import Diverged
from posbench.training.loop import fit


def run_job(job: Job, wait: bool = False, world: World | None = None) -> list[Outcome]:
    """Train and evaluate what is missing. Returns the outcome of each cell that the user asked for.

    Raises Busy when another process works on the run (unless `wait`), ConfigError and RunError for the whole job.
    """
    fate = judge(job)
    if fate.refused:
        raise ConfigError(fate.refused)
    if not fate.runs:
        return fate.outcomes()
    there = job.run.path.exists()
    _finish_parent(job, wait, world or World())
    with job.run.lock(wait):
        try:
            return fate.outcomes(_train_and_evaluate(job, fate, world or World()))
        except ConfigError:
            if not there and not job.run.finished:
                job.run.discard()
            raise


def _corpus(job: Job) -> Corpus:
    """Corpus of a job; for a finished training, only the scored splits. Raises RunError when the text does not match the run's id."""
    scored = {"test" if cell.evaluate["text"] else cell.evaluate["split"] for cell in job.cells}
    splits = SPLITS if job.trains and not job.run.finished else scored or SPLITS
    corpus = prepare(job.cfg["data"], job.cfg["cache_dir"], splits)
    if corpus.fingerprint != job.fingerprint:
        raise RunError(f"The text of data={corpus.name} changed after {job.run.id} was named by it: run the same command again.")
    return fit_corpus(corpus, job.cfg)


def _texts(job: Job, cells: Iterable[Cell], corpus: Corpus) -> dict[Cell, Corpus]:
    """Corpus that each cell reads: `corpus`, that of the training, or another text in its tokens."""
    made, found = {}, {}
    for cell in cells:
        text, split = cell.evaluate["text"], cell.evaluate["split"]
        key = text and (text["content"], split)
        if key not in made:
            made[key] = other_text.read(corpus, job.cfg, text, split) if text else corpus
        found[cell] = made[key]
    return found


def _finish_parent(job: Job, wait: bool, world: World) -> None:
    """Train the parent of a child that has yet to begin. Raises Busy when another process trains it (unless `wait`).

    Raises ConfigError for several processes, which share one training alone.
    """
    parent = job.parent
    if parent is None or job.run.finished or parent.run.finished:
        return
    if world.size > 1:
        raise ConfigError(f"processes={world.size} share one training, and the parent {parent.run.id} is not trained: train it first.")
    with parent.run.lock(wait):
        if parent.run.finished:
            return
        device, corpus = pick_device(parent.cfg["device"]), _corpus(parent)
        with Recorder(parent.run, typed("log", parent.cfg["log"]), _shown(parent, []), "train") as recorder:
            _train(parent, corpus, device, recorder, world)


def _begin(job: Job, model: GPT, vocab_size: int) -> dict | None:
    """Give a child its parent's weights. Returns what is noted of the parent: its id, its reach and the digest of its weights.

    Raises RunError if the parent is not there, or is not the one that the child began with. None for a run without a parent.
    """
    noted = job.cfg["train"].get("parent")
    if not noted:
        return None
    run = job.parent.run if job.parent else runs.Run(job.run.path.parent / noted["run_id"])
    if not run.finished:
        raise RunError(f"{job.run.id} begins with the weights of {run.path}, which holds no finished training: train that first.")
    known = (job.run.read_config()["train"].get("parent") or {}).get("sha256") if job.run.has_config else None
    found = run.read_summary()["sha256"]
    if known not in (None, found):
        raise RunError(
            f"{run.path} has changed since {job.run.id} began with its weights (SHA-256 {found[:12]}..., {known[:12]}... then): "
            f"restore it, or delete {job.run.path} to fine-tune anew."
        )
    parent = load_model(run, job.parent.cfg if job.parent else trusted_config(run), vocab_size, "cpu")
    inherit(model, parent, job.cfg["train"]["frozen"])
    return {**noted, "sha256": found}


def _train_and_evaluate(job: Job, fate: Fate, world: World) -> list[Cell]:
    """Train and evaluate what is missing. Returns the evaluated cells."""
    missing = [cell for cell in fate.legal if cell.missing()]
    if job.run.finished and not missing:
        return []
    device = pick_device(job.cfg["device"], world.rank, world.size)
    corpus = _corpus(job)
    texts = _texts(job, fate.legal, corpus)
    for cell in fate.legal:
        # Checked before the training, so that a length longer than every document is refused early.
        config = typed("evaluate", cell.evaluate)
        protocol(cell.protocol).check_text(texts[cell], config, typed("train", job.cfg["train"]).train_len)
    kind = "evaluate" if job.run.finished else "train"
    with Recorder(job.run, typed("log", job.cfg["log"]), _shown(job, missing), kind) as recorder:
        if job.run.finished:
            model = load_model(job.run, job.cfg, corpus.vocab_size, device)
        else:
            world.largest(0)  # the other processes wait for this call
            model = _train(job, corpus, device, recorder, world)
        if job.cfg.get("check") and not job.trains:
            check_checkpoint(job.cfg, model, getattr(texts[missing[0]], missing[0].evaluate["split"]).tokens)
        evaluators = [protocol(cell.protocol)(evaluation(model.eval(), texts[cell], cell, device)) for cell in missing]
        total = sum(one.cost(text) for one, cell in zip(evaluators, missing, strict=True) for text in one.texts(cell.missing()))
        total += sum(one.cost_first() for one in evaluators)
        with Progress(total, "evaluate", "tokens") as progress:
            for one, cell in zip(evaluators, missing, strict=True):
                recorder.rows(evaluate(job, one, cell, fate.cells[cell].status == "untested", progress))
        if recorder.shows_images:
            _show_report(job, recorder)
    return missing


def _shown(job: Job, cells: list[Cell]) -> dict:
    """Configuration for wandb: all methods of the evaluations, the data fingerprint and the commit."""
    chosen = {}
    for part in ("extension", "scale_attention"):
        nodes = [getattr(cell, part) for cell in cells if not cell.reference] or [job.cfg[part]]
        distinct = [node for i, node in enumerate(nodes) if node not in nodes[:i]]
        chosen[part] = distinct if len(distinct) > 1 else distinct[0]
    return {**job.cfg, **chosen, "data_fingerprint": job.fingerprint, "commit": provenance.commit()}


def _show_report(job: Job, recorder: Recorder) -> None:
    """Pass the figures and losses of all evaluations of the training to the recorder. Errors are printed, since the results are safe."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = report.collect(job.run.eval_files(), job.run.id, "", skip_damaged=True)
            recorder.summary(found.summary())
            files = report.write(found, folder)
        except Exception as error:
            print(f"no figure for wandb: {error}", file=sys.stderr)
            return
        for path in files:
            if path.suffix == ".png":
                recorder.image(path)


def _train(job: Job, corpus: Corpus, device: str, recorder: Recorder | None, world: World) -> GPT:
    if not job.trains:
        hf_weights.take(job.run, job.cfg, corpus.vocab_size, device, job.fingerprint)
        return load_model(job.run, job.cfg, corpus.vocab_size, device)
    model = make_model(job.cfg, corpus.vocab_size)
    begun = _begin(job, model, corpus.vocab_size)
    model = model.to(device)
    if world.main:
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        job.run.write_config({**job.cfg, "train": {**job.cfg["train"], "parent": begun}})
        found = provenance.collect(job.cfg["seed"], device, job.fingerprint, n_parameters)
        found = {**found, "processes": world.size, "backend": world.backend(device), **({"parent": begun} if begun else {})}
        job.run.write_provenance(found, resumed=job.run.has_state)
    fit(
        model,
        corpus,
        typed("train", job.cfg["train"]),
        seed=job.cfg["seed"],
        device=device,
        run=job.run,
        recorder=recorder,
        plan_for=training_plans(model.encoding, model.scale, device, job.cfg["seed"]),
        world=world,
    )
    world.leave()
    return model


def main(spec: str) -> int:
    """Run the job of a spec file and return the exit code."""
    wanted = read_json(spec)
    code, outcomes = 0, []
    world = join()
    try:
        (job,) = plan_jobs(wanted["cfgs"])
        if not world.main:
            with Signals(), contextlib.suppress(Stopped, Diverged):  # the main process obeys and reports both
                world.largest(0)  # waits until the main process starts to train
                _train(job, _corpus(job), pick_device(job.cfg["device"], world.rank, world.size), None, world)
            return 0
        outcomes = run_job(job, wanted["wait"], world)
    except runs.Busy:
        return BUSY
    except ConfigError as error:
        code, outcomes = 2, [Outcome("", "refused", str(error))]
    except RunError as error:
        code, outcomes = 1, [Outcome("", "failed", str(error))]
    except Stopped as stopped:
        code = stopped.code
    except KeyboardInterrupt:
        code = 130
    except Exception:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent when another process failed too; this one reports
        raise
    write_json(f"{spec}.outcome", {"outcomes": [asdict(outcome) for outcome in outcomes]})
    return code


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(sys.argv[1]))
