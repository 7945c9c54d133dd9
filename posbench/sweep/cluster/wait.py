"""Wait for trainings on a cluster (SLURM, or submitit's local stand-in), with progress and the result of each."""

import sys
import time
from collections import deque

from posbench.sweep.cluster.queue import Queue, Submitted
from posbench.sweep.jobs import Job, Result
from posbench.sweep.live_progress import Live

LOOK_SECONDS = 1.0  # between two checks for outcomes


def run_on(queue: Queue, jobs: list[Job], done: int = 0) -> list[Result]:
    """Run jobs as tasks of a cluster, one per training, and wait for all of them. `done` as in `run_jobs`.

    A task of an earlier command that is still queued is not submitted again. Raises RunError when the cluster refuses the jobs,
    KeyboardInterrupt for Ctrl-C, after which the tasks continue on the cluster.
    """
    left, results = deque(jobs), []
    tasks = queue.attach(left)
    if tasks:
        print(f"{len(tasks)} of {len(jobs) + done} trainings are in the queue already", file=sys.stderr)
    live = Live(len(jobs) + done, done, 1)
    try:
        while left or tasks:
            while left and len(tasks) < queue.room:
                tasks += queue.submit([left.popleft() for _ in range(min(len(left), queue.room - len(tasks), queue.array))])
            time.sleep(LOOK_SECONDS)
            for task, result in queue.ended(tasks):
                tasks.remove(task)
                _show_task(live, task, True)
                live.finish(result)
                results.append(result)
            for task in tasks:
                _show_task(live, task, queue.states.get(task.id) == "RUNNING")
    except KeyboardInterrupt:
        print(f"\nno longer waiting: {queue.going_on(tasks)}; the same command waits for them again", file=sys.stderr, flush=True)
        raise
    finally:
        live.close(not left and not tasks)
    return results


def _show_task(live: Live, task: Submitted, running: bool) -> None:
    if running and not task.running:
        live.start(task.job.run.id)
    elif task.running and not running:
        live.put_back(task.job.run.id)  # preempted, or at its time limit: queued again
    task.running = running
    live.parallel = max(live.parallel, len(live.started))
