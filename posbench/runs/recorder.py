"""Recorder of a running job: writes its own files first, and mirrors them to wandb.

No error of wandb reaches the job. Its first exception or hang becomes one line on stderr, and recording continues in
files.
"""

import functools
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from posbench.common.files import append_lines
from posbench.config.schema import LogConfig
from posbench.runs import wandb_mirror as wandb_run
from posbench.runs.directory import Run

PATIENCE = 30.0  # seconds that wandb may take to start, and to upload at the end
FILES_ONLY, OFFLINE = "with files only", "offline, for wandb sync,"


def wandb_mode(configured: str | None) -> str:
    """Mode of wandb: WANDB_MODE, else the configuration, else online where wandb would find an API key, else offline."""
    mode = os.environ.get("WANDB_MODE") or configured
    if mode:
        return mode
    from requests.utils import get_netrc_auth

    key = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    return "online" if key or get_netrc_auth(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")) else "offline"


class Recorder(AbstractContextManager):
    """Record of one job of one run: a context manager that marks the wandb run failed when the job raises.

    `job_type` is train or evaluate. Both use the run's id in wandb: a resumed training continues the same run, and a later evaluation
    adds to it. Without a connection everything is recorded offline, for `wandb sync`; the newest folder contains all earlier ones.
    Once a server has them, an offline job gets an id of its own in the same group.
    """

    def __init__(self, run: Run, log: LogConfig, config: dict, job_type: str):
        self.run, self._own = run, wandb_run.own_text(config)
        self._rows: list[dict] = []
        self._wandb: Any = None
        self._behind = job_type == "train"  # True until the logs of earlier processes of this training are mirrored
        self._hangs = False
        wanted = wandb_mode(log.mode)
        for mode in {"disabled": (), "online": ("online", "offline")}.get(wanted, (wanted,)):
            if not self._wandb and not self._hangs:
                begin = functools.partial(wandb_run.start_mirror, run, log, config, job_type, mode, PATIENCE)
                instead = OFFLINE if mode == "online" else FILES_ONLY
                self._wandb = self._guarded(begin, f"start {mode}", 2 * PATIENCE, instead)
        if job_type == "evaluate":
            self._send(lambda wandb: wandb_run.catch_up(wandb, run, self._own, evaluations=True))

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.finish(ok=kind is None)

    def train(self, step: int, **metrics: float) -> None:
        """Append a line to train.jsonl and log it at `step`. Losses are in nats/token."""
        if self._behind:
            self._behind = False
            self._send(lambda wandb: wandb_run.catch_up(wandb, self.run, self._own))
        append_lines(self.run.train_log, [{"step": step, **metrics}])
        self._send(lambda wandb: wandb_run.log_training(wandb, step, metrics))

    def rows(self, rows: list[dict]) -> None:
        """Log rows that are already in an eval json as curves over eval/length or position/tokens.

        `finish` logs the rows of all evaluations of the run as one table.
        """
        self._rows += rows
        self._send(lambda wandb: wandb_run.log_curves(wandb, self._own, rows))

    def summary(self, values: dict[str, float]) -> None:
        self._send(lambda wandb: wandb.summary.update(values))

    @property
    def shows_images(self) -> bool:
        """True if images are uploaded. Drawing one takes seconds, so callers check first."""
        return self._wandb is not None

    def image(self, path: Path | str) -> None:
        """Log a figure that is already on disk."""
        self._send(lambda wandb: wandb_run.log_image(wandb, Path(path)))

    def finish(self, ok: bool) -> None:
        """End the wandb run, as failed unless `ok`. Data not uploaded in time stays on disk for `wandb sync`."""
        if self._rows:
            self._send(lambda wandb: wandb_run.log_table(wandb, self.run, self._own, self._rows))
        started, self._wandb = self._wandb, None
        if started:
            began = time.monotonic()
            self._guarded(lambda: started.finish(exit_code=0 if ok else 1), "finish", limit=2 * PATIENCE)
            if PATIENCE <= time.monotonic() - began < 2 * PATIENCE:  # wandb gave up in time without an error
                later = f"wandb sync --include-online {shlex.quote(str(Path(started.dir).parent))}"
                print(f"wandb could not upload everything in {PATIENCE:g} s: {later}", file=sys.stderr, flush=True)

    def _send(self, action: Callable[[Any], None]) -> None:
        if self._wandb:
            self._guarded(lambda: action(self._wandb), "log", limit=PATIENCE)

    def _guarded(self, action: Callable[[], Any], doing: str, limit: float, instead: str = FILES_ONLY) -> Any:
        """Result of `action`. If it raises or exceeds `limit` seconds: None, and one line on stderr."""
        outcome: dict[str, Any] = {}

        def attempt() -> None:
            try:
                outcome["result"] = action()
            except BaseException as error:  # wandb itself may raise SystemExit and KeyboardInterrupt
                outcome["error"] = error

        worker = threading.Thread(target=attempt, daemon=True, name=f"wandb-{doing}")
        worker.start()
        worker.join(limit)
        if "result" in outcome:
            return outcome["result"]
        self._wandb, self._hangs = None, "error" not in outcome
        said = [f"no answer in {limit:g} s"] if self._hangs else str(outcome["error"]).strip().splitlines()
        reason = said[0] if said else type(outcome["error"]).__name__
        going_on = FILES_ONLY if self._hangs else instead
        place = self.run.path if going_on == FILES_ONLY else wandb_run.home(self.run)
        print(f"wandb could not {doing} ({reason}); going on {going_on} in {place}", file=sys.stderr, flush=True)
        return None
