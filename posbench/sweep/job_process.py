"""Process of one job after the other: a training and its evaluations. A kill or a lack of memory
ends only this job.

`python -m posbench.sweep.job_process SPEC` reads {"cfgs": [...], "wait": bool} from SPEC and writes
{"outcomes": [...]} to SPEC.outcome; worker.py calls it, and sends further specs. `python -m
posbench.sweep.job_process N SPEC` does that in N processes that share a training: the first one
does all else, and ends with it."""

import contextlib
import logging
import os
import signal
import stat
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json, write_json
from posbench.common.locks import Busy
from posbench.common.signals import Signals, Stopped, die_with_parent, end_at_second, name_parent
from posbench.data.corpus import read_text_of
from posbench.engines.ask import running
from posbench.evaluation.registry import protocol
from posbench.model.build import load_model, pick_device
from posbench.model.memory import forget
from posbench.report.report import collect
from posbench.report.write_report import write as write_report
from posbench.sweep.cells import EvaluationCell
from posbench.sweep.check_checkpoint import check_checkpoint
from posbench.sweep.evaluate_cell import cell_evaluation, evaluate, progress_of
from posbench.sweep.jobs import BUSY, Job, Outcome, plan_jobs
from posbench.sweep.recorder import Recorder, report_summary
from posbench.sweep.train_job import (
    corpus_of,
    finish_parent,
    recorded_config,
    restore_config,
    tidy,
    train,
)
from posbench.sweep.verdict import JobVerdict, judge_job
from posbench.sweep.worker import SECRET, ended
from posbench.training.distributed import World, join
from posbench.training.trainer import Diverged

DAY = "86400"  # seconds for a step and its checkpoint after a signal; torch 2.11 fixes them at 30
LEFT = (
    2**30
    # bytes that jobs may leave behind in their process, beyond what the first one did, before another
    # one takes over
)


def run_job(job: Job, wait: bool, world: World) -> list[Outcome]:
    """Train and evaluate what is missing. Returns the outcome of each cell that the user asked for.

    Raises Busy when another process works on the run (unless `wait`), ConfigError and RunError for
    the whole job."""
    judged = judge_job(job)
    if judged.refused:
        raise ConfigError(judged.refused)
    if not judged.runs:
        return judged.outcomes()
    there = job.run.path.exists()
    finish_parent(job, wait, world)
    with job.run.lock(wait):
        tidy(job.run)
        restore_config(job)
        try:
            evaluated = _train_and_evaluate(job, judged, world)
            _check_place(job)
            return judged.outcomes(evaluated)
        except ConfigError:
            if not there and not job.run.finished:
                job.run.discard()
            raise


def _check_place(job: Job) -> None:
    """Raise RunError if the training is no longer there: its directory was moved or deleted while
    it was evaluated.
    """
    restore_config(job)
    if not job.run.finished:
        raise RunError(
            f"{job.run.path} was moved or deleted while it was evaluated: move what is in"
            f" {job.run.evals} now to evals of the moved training, or run the same command again,"
            " which trains it anew."
        )


def _train_and_evaluate(job: Job, judged: JobVerdict, world: World) -> list[EvaluationCell]:
    """Train and evaluate what is missing. Returns the evaluated cells."""
    missing = [cell for cell, lengths in judged.missing.items() if lengths]
    if job.run.finished and not missing:
        return []
    device = pick_device(job.config.device, world.rank, world.size)
    corpus, read, texts = corpus_of(job), {}, {}
    for cell in judged.legal:
        text, split = cell.evaluate.text, cell.evaluate.split
        key = text and (text["content"], split)
        if key not in read:
            read[key] = read_text_of(corpus, job.config, text, split) if text else corpus
        texts[cell] = read[key]
        # Checked before the training, so that a length longer than every document is refused early.
        protocol(cell.protocol).check_text(texts[cell], cell.evaluate, job.config.train.train_len)
    kind = "evaluate" if job.run.finished else "train"
    with (
        contextlib.ExitStack() as stack,
        Recorder(job.run, job.config.log, recorded_config(job, missing), kind) as recorder,
    ):
        if job.config.model.engine:
            model = stack.enter_context(running(job.run, job.config, device, job.fingerprint))
        elif job.run.finished:
            model = load_model(job.run, job.config, corpus.vocab_size, device)
        else:
            world.largest(0)  # the other processes wait for this call
            model = train(job, corpus, device, recorder, world)
        if job.config.check and not job.config.trains:
            check_checkpoint(
                job.config, model, getattr(texts[missing[0]], missing[0].evaluate.split).tokens
            )
        evaluators = [
            protocol(cell.protocol)(cell_evaluation(model.eval(), texts[cell], cell, device))
            for cell in missing
        ]
        with progress_of(job, evaluators, [judged.missing[cell] for cell in missing]) as progress:
            for one, cell in zip(evaluators, missing, strict=True):
                recorder.rows(
                    evaluate(job, one, cell, judged.cells[cell].status == "untested", progress)
                )
        if recorder.shows_images:
            _show_report(job, recorder)
    return missing


def _show_report(job: Job, recorder: Recorder) -> None:
    """Pass the losses and figures of all evaluations of the training to the recorder. Errors are
    printed, since the results are safe.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = collect(job.run.eval_files(), job.run.id, "", skip_damaged=True)
            recorder.summary(report_summary(found))
            files = write_report(found, folder)
        except Exception as error:
            print(f"no figure for wandb: {error}", file=sys.stderr)
            return
        for path in files:
            if path.suffix == ".png":
                recorder.image(path)


def main(spec: str) -> int:
    """Run the job of a spec file and return the exit code."""
    wanted = read_json(spec)
    code, outcomes = 0, []
    world = join()
    try:
        (job,) = plan_jobs(wanted["cfgs"])
        if not world.main:
            with (
                Signals(),
                contextlib.suppress(Stopped, Diverged),
            ):  # the main process obeys and reports both
                world.largest(0)  # waits until the main process starts to train
                train(
                    job,
                    corpus_of(job),
                    pick_device(job.config.device, world.rank, world.size),
                    None,
                    world,
                )
            return 0
        outcomes = run_job(job, wanted["wait"], world)
    except Busy:
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
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # sent when another process failed too; this one reports
        raise
    write_json(f"{spec}.outcome", {"outcomes": [asdict(outcome) for outcome in outcomes]})
    return code


def serve(spec: str) -> int:
    """Run the job of a spec file, of a worker then those that come on stdin, until one fails.
    Returns the last exit code.
    """
    secret = os.environ.pop(SECRET, None)  # a process that the job starts must not have it
    if secret is None or not stat.S_ISFIFO(os.fstat(0).st_mode):
        return main(spec)
    orders, code, first = os.fdopen(os.dup(0)), 0, None
    os.dup2(
        os.open(os.devnull, os.O_RDONLY), 0
    )  # a library that asks a question must not take an order for the answer
    with contextlib.suppress(KeyboardInterrupt):
        while spec:
            code = main(spec)
            if code not in (0, BUSY):
                return code
            held = forget()
            first = held if first is None else first
            stays = held < first + LEFT
            sys.stderr.flush()
            os.write(
                2, f"{ended(secret, code, stays)}\n".encode()
            )  # sys.stderr may be another's by now
            spec = orders.readline().strip() if stays else ""
        return code
    return 128 + signal.SIGINT


def share(processes: int, spec: str) -> int:
    """Run the job of a spec file in several processes, by torchrun's API. Returns the exit code of
    the failed one, 128 + n after signal n.

    The torchrun command itself would print tables and tracebacks instead of one sentence, and turn
    every exit code into 1."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # it takes no further spec
    logging.disable(logging.CRITICAL)
    name_parent(os.environ)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", DAY)
    logs = Path(spec).parent / "logs"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        max_restarts=0,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        logs_specs=DefaultLogsSpecs(
            str(logs), redirects={rank: Std.ALL for rank in range(1, processes)}
        ),
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "posbench.sweep.job_process", spec)
    except SignalException as stopped:
        return 128 + stopped.sigval
    except KeyboardInterrupt:
        return 130
    except ChildFailedError as error:
        # Processes that ended by SIGTERM were stopped. Among those that failed by themselves, the
        # main process knows most.
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        rank = min([rank for rank, code in codes.items() if code != -signal.SIGTERM] or codes)
        if not Path(f"{spec}.outcome").exists():
            for said in logs.rglob(f"{rank}/stderr.log"):
                print(said.read_text(errors="replace"), end="", file=sys.stderr)
        return 128 - codes[rank] if codes[rank] < 0 else codes[rank]
    return 0


if __name__ == "__main__":
    die_with_parent()
    *processes, path = sys.argv[1:]
    if processes:
        sys.exit(share(int(processes[0]), path))
    end_at_second()
    sys.exit(serve(path))
