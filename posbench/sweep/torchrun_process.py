"""Launcher of several processes for one job, through torchrun's API: `python -m posbench.sweep.torchrun_process N SPEC`.

child_processes.py starts it in place of job_process. The torchrun command itself would print tables and tracebacks instead of one
sentence, and turn every exit code into 1.
"""

import logging
import os
import signal
import sys
from pathlib import Path

from posbench.common.signals import die_with_parent, name_parent

DAY = "86400"  # seconds for a step and its checkpoint after a signal; torch 2.11 fixes them at 30


def main(processes: int, spec: str) -> int:
    """Run posbench.sweep.job_process on SPEC in N processes. Returns the exit code of the failed one, 128 + n after signal n."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

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
        logs_specs=DefaultLogsSpecs(str(logs), redirects={rank: Std.ALL for rank in range(1, processes)}),
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "posbench.sweep.job_process", spec)
    except SignalException as ended:
        return 128 + ended.sigval
    except KeyboardInterrupt:
        return 130
    except ChildFailedError as error:
        # Processes that ended by SIGTERM were stopped. Among those that failed by themselves, the main process knows most.
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        rank = min([rank for rank, code in codes.items() if code != -signal.SIGTERM] or codes)
        if not Path(f"{spec}.outcome").exists():
            for said in logs.rglob(f"{rank}/stderr.log"):
                print(said.read_text(errors="replace"), end="", file=sys.stderr)
        return 128 - codes[rank] if codes[rank] < 0 else codes[rank]
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
