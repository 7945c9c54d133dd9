"""Several processes of one job, by torchrun's own launcher: `python -m posbench.sweep.torchrun_process N SPEC`.

child_processes.py starts it in place of job_process.

The torchrun command would print tables and tracebacks where a user expects one sentence, and turn every exit code into 1.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from posbench.common.signals import die_with_parent, name_parent

DAY = "86400"  # seconds that a step and its checkpoint may take after a signal; 30 in torch 2.11, which has no say in it


def main(processes: int, spec: str) -> int:
    """Run posbench.sweep.job_process on SPEC in so many processes; the exit code is that of the one that failed, 128 + n after signal n."""
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
        # The others were ended by SIGTERM. Of several that failed by themselves the main process says most.
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
