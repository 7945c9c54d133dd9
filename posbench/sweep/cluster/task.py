"""Task of a cluster: one training with its evaluations. submitit runs this module on the node, in a process of its own."""

import os
import signal
import sys
import traceback
from dataclasses import asdict

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json, write_json
from posbench.sweep.child_processes import run_jobs
from posbench.sweep.jobs import Outcome, plan_jobs

AGAIN = signal.SIGUSR2  # signal that submitit makes SLURM send before the time limit


class Task:
    """Callable that runs the job of a spec file (written by queue.py) and writes its outcome to SPEC.outcome.

    SIGTERM, from scancel or a preemption, saves and ends without an outcome: the cluster decides if the task starts again.
    SIGUSR2, shortly before the time limit, saves and puts the task back into the queue, at most max_num_timeout times.
    """

    def checkpoint(self, spec: str):
        """Submission for a restarted task: the same call, since a run continues from its own checkpoint. Called by submitit."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, spec)

    def __call__(self, spec: str) -> None:
        wanted = read_json(spec)
        os.environ.update(wanted["environment"])
        put_back, told = signal.getsignal(AGAIN), []

        def stop(number: int, _: object) -> None:
            told.append(number)
            os.kill(os.getpid(), signal.SIGTERM)  # the job saves and ends first; then the task is put back

        signal.signal(AGAIN, stop)
        code, seconds, file = 1, 0.0, None
        try:
            (job,) = plan_jobs(wanted["cfgs"])
            (result,) = run_jobs([job], 1, wanted["command"])
            code, seconds, file, outcomes = result.code, result.seconds, result.file, result.outcomes
        except ConfigError as error:
            code, outcomes = 2, [Outcome("", "refused", str(error))]
        except RunError as error:
            outcomes = [Outcome("", "failed", str(error))]
        except Exception as error:
            traceback.print_exc()
            outcomes = [Outcome("", "failed", f"{type(error).__name__}: {error}")]
        except KeyboardInterrupt as interrupt:
            if not told:
                sys.exit(128 + (interrupt.args[0] if interrupt.args else signal.SIGINT))
            try:
                put_back(AGAIN, None)  # ends this process, unless the task has used all its restarts
            except RuntimeError as error:
                outcomes = [Outcome("", "failed", f"{error} All is saved: the same command goes on from there.")]
        found = {"code": code, "seconds": seconds, "file": file and str(file.resolve()), "outcomes": [asdict(one) for one in outcomes]}
        write_json(f"{spec}.outcome", found)
        if any(outcome.status == "failed" for outcome in outcomes):
            sys.exit(1)  # squeue, sacct and --dependency then see a failed task
