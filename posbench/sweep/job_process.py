"""Process of one job after the other: a training and its evaluations.

A kill or a lack of memory ends only this job.

`python -m posbench.sweep.job_process SPEC` reads {"job": a planned job, "wait": bool} from SPEC and
writes {"outcomes": [...]} to SPEC.outcome; worker.py calls it, and sends further specs. `python -m
posbench.sweep.job_process N SPEC` does that in N processes that share a training: the first one
does all else, and ends with it."""

import contextlib
import logging
import os
import signal
import stat
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json, write_json
from posbench.common.locks import Busy
from posbench.common.outcome import BUSY, Outcome, outcome_of
from posbench.common.signals import Signals, Stopped, die_with_parent, end_at_second, name_parent
from posbench.data.corpus import Corpus, read_text_of
from posbench.engines.ask import running_engine
from posbench.evaluation.registry import protocol
from posbench.model.build import load_model, pick_device
from posbench.model.memory import forget
from posbench.sweep.cells import EvaluationCell
from posbench.sweep.check_checkpoint import check_checkpoint
from posbench.sweep.evaluate_cell import cell_evaluation, evaluate, progress_of
from posbench.sweep.jobs import Job
from posbench.sweep.recorder import Recorder
from posbench.sweep.train_job import (
    corpus_of,
    delete_leftover_state,
    finish_parent,
    recorded_config,
    restore_config,
    train,
)
from posbench.sweep.verdict import JobVerdict, judge_job
from posbench.sweep.worker import SECRET, end_line
from posbench.training.distributed import World, join
from posbench.training.trainer import Diverged

DAY = "86400"  # seconds for a step and its checkpoint after a signal; torch 2.11 fixes them at 30
# bytes that jobs may leave behind in their process, beyond what the first one did, before another
# one takes over
MOST_LEFT_BEHIND = 2**30


def run_job(job: Job, wait: bool, world: World) -> list[Outcome]:
    """Train and evaluate what is missing. Returns the outcome of each cell that the user asked for.

    Raises Busy when another process works on the run (unless `wait`), ConfigError and RunError for
    the whole job."""
    judged = judge_job(job)
    if judged.refused:
        raise ConfigError(judged.refused)
    if not judged.worth_running:
        return judged.outcomes()
    had_folder = job.run.path.exists()  # else a refused job leaves none behind
    finish_parent(job, wait, world)
    with job.run.lock(wait):
        delete_leftover_state(job.run)
        restore_config(job)
        try:
            evaluated = _train_and_evaluate(job, judged, world)
            _check_place(job)  # somebody may have moved or deleted the run meanwhile
            return judged.outcomes(evaluated)
        except ConfigError:
            if not had_folder and not job.run.finished:
                job.run.discard()
            raise


def _check_place(job: Job) -> None:
    """Raise RunError if the training was moved or deleted while it was evaluated."""
    restore_config(job)  # if that file alone was deleted
    if not job.run.finished:
        raise RunError(
            f"{job.run.path} was moved or deleted while it was evaluated: move what is in"
            f" {job.run.evals} now to evals of the moved training, or run the same command again,"
            " which trains it anew."
        )


def _train_and_evaluate(job: Job, judged: JobVerdict, world: World) -> list[EvaluationCell]:
    """Train and evaluate what is missing. Returns the evaluated cells."""
    missing = [cell for cell, lengths in judged.missing_lengths.items() if lengths]
    if job.run.finished and not missing:
        return []
    device = pick_device(job.config.device, world.rank, world.size)
    corpus = corpus_of(job)
    texts = _text_of_cells(job, judged.legal, corpus)
    job_type = "evaluate" if job.run.finished else "train"
    with (
        contextlib.ExitStack() as stack,
        Recorder(job.run, job.config.log, recorded_config(job, missing), job_type) as recorder,
    ):
        if job.config.model.engine:
            engine = running_engine(job.run, job.config, device, job.fingerprint)
            model = stack.enter_context(engine)
        elif job.run.finished:
            model = load_model(job.run, job.config, corpus.vocab_size, device)
        else:
            # The others wait in `_train_beside`, so that this one alone has prepared the corpus.
            world.wait_for_all()
            model = train(job, corpus, device, recorder, world)
        if job.config.check and not job.config.trains:
            # The text of the first evaluation: any would do.
            split = getattr(texts[missing[0]], missing[0].evaluate.split)
            check_checkpoint(job.config, model, split.tokens)
        model.eval()
        evaluators = [
            protocol(cell.protocol)(cell_evaluation(model, texts[cell], cell, device))
            for cell in missing
        ]
        lengths = [judged.missing_lengths[cell] for cell in missing]
        with progress_of(job, evaluators, lengths) as progress:
            for evaluator, cell in zip(evaluators, missing, strict=True):
                untested = judged.cells[cell].status == "untested"
                recorder.rows(evaluate(job, evaluator, cell, untested, progress))
        recorder.show_results()
    return missing


def _text_of_cells(
    job: Job, cells: list[EvaluationCell], corpus: Corpus
) -> dict[EvaluationCell, Corpus]:
    """Text of each cell: one of its own, read once, or that of the training.

    Checked before the training, so that a length longer than every document is refused early.
    """
    read: dict[tuple, Corpus] = {}
    texts = {}
    for cell in cells:
        text = cell.evaluate.text
        split = cell.evaluate.split
        if not text:
            texts[cell] = corpus
        else:
            key = (text["content"], split)
            if key not in read:
                read[key] = read_text_of(corpus, job.config, text, split)
            texts[cell] = read[key]
        protocol(cell.protocol).check_text(texts[cell], cell.evaluate, job.config.train.train_len)
    return texts


def main(spec: str) -> int:
    """Run the job of a spec file and return the exit code."""
    content = read_json(spec)
    world = join()
    outcomes = []
    code = 0
    try:
        job = Job.of(content["job"])
        if not world.is_main:
            _train_beside(job, world)
            return 0
        outcomes = run_job(job, content["wait"], world)
    except Busy:
        return BUSY
    except (Exception, KeyboardInterrupt, Stopped) as error:
        is_unforeseen = not isinstance(error, ConfigError | RunError | KeyboardInterrupt | Stopped)
        if is_unforeseen and not world.is_main:  # its traceback goes to the log of its rank
            raise
        if is_unforeseen:
            # torchrun sends it to all processes once one has failed: this one reports first
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            traceback.print_exc()
        code, outcome = outcome_of(error)
        if outcome:
            outcomes = [outcome]
    # Whichever process meets a foreseen error tells its sentence.
    write_json(f"{spec}.outcome", {"outcomes": [asdict(outcome) for outcome in outcomes]})
    return code


def _train_beside(job: Job, world: World) -> None:
    """Take part in a training of which another process is the main one.

    That one obeys signals, and reports a divergence.
    """
    with Signals(), contextlib.suppress(Stopped, Diverged):
        world.wait_for_all()  # until the main process starts to train
        device = pick_device(job.config.device, world.rank, world.size)
        # The main process alone records.
        train(job, corpus_of(job), device, recorder=None, world=world)


def run_server(spec: str) -> int:
    """Run the job of a spec file, of a worker then those that come on stdin, until one fails.

    Returns the last exit code.
    """
    secret = os.environ.pop(SECRET, None)  # a process that the job starts must not have it
    if secret is None or not stat.S_ISFIFO(os.fstat(0).st_mode):
        return main(spec)
    specs = os.fdopen(os.dup(0))  # stdin, from which the parent gives further specs
    # a library that asks a question must not take a spec for the answer
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    first_held = None
    try:
        while True:
            code = main(spec)
            if code not in (0, BUSY):
                return code
            held = forget()  # bytes that are still in use once the job's are let go
            if first_held is None:
                first_held = held
            stays = held < first_held + MOST_LEFT_BEHIND
            sys.stderr.flush()
            line = f"{end_line(secret, code, stays)}\n"  # known by the secret among other lines
            os.write(2, line.encode())  # sys.stderr may be another's by now
            spec = specs.readline().strip() if stays else ""
            if not spec:
                return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def run_in_processes(processes: int, spec: str) -> int:
    """Run the job of a spec file in several processes, by torchrun's API.

    Returns the exit code of the failed one, 128 + n after signal n. The torchrun command itself
    would print tables and tracebacks instead of one sentence, and turn every exit code into 1."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # A worker of one process reads specs of further jobs from stdin. This one ends with its job.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    logging.disable(logging.CRITICAL)  # torchrun's tables and tracebacks
    name_parent(os.environ)  # the processes stop when this one dies
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # After a signal a step is finished and saved, for which the usual 30 seconds are too few.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", DAY)
    logs = Path(spec).parent / "logs"
    redirects = {rank: Std.ALL for rank in range(1, processes)}  # the main one alone is shown
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        max_restarts=0,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        logs_specs=DefaultLogsSpecs(str(logs), redirects=redirects),
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "posbench.sweep.job_process", spec)
    except SignalException as stopped:
        return 128 + stopped.sigval
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        rank = _reporting_rank(codes)
        if not Path(f"{spec}.outcome").exists():  # nobody has told the reason
            for log in logs.rglob(f"{rank}/stderr.log"):
                print(log.read_text(errors="replace"), end="", file=sys.stderr)
        code = codes[rank]
        return 128 - code if code < 0 else code  # -n is the end by signal n
    return 0


def _reporting_rank(codes: dict[int, int]) -> int:
    """Rank of the process that knows most of a failure, by {rank: exit code} of those that failed.

    Processes that ended by SIGTERM were stopped. Among those that failed by themselves, the main
    process knows most.
    """
    failed = [rank for rank, code in codes.items() if code != -signal.SIGTERM]
    return min(failed or codes)  # rank 0 is the main process


if __name__ == "__main__":
    die_with_parent()
    *processes, path = sys.argv[1:]
    if processes:
        sys.exit(run_in_processes(int(processes[0]), path))
    end_at_second()
    sys.exit(run_server(path))
