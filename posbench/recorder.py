"""What a job tells the world while it runs: its own files first, wandb beside them.

Nothing that wandb does or fails to do reaches the job: its first exception or hang becomes one line on stderr, and
recording goes on in files.
"""

from __future__ import annotations

import json
import netrc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from posbench.config import LogConfig
from posbench.files import append_line
from posbench.rows import COLUMNS
from posbench.runs import Run, method_name

PATIENCE = 30.0  # seconds wandb may take to start, and to upload at the end
SHOWN = ("nll", "ppl", "bpb", "accuracy")


def wandb_mode(configured: str | None) -> str:
    """online, offline or disabled: WANDB_MODE, else the configuration, else online for whoever is logged in, else offline."""
    return os.environ.get("WANDB_MODE") or configured or ("online" if _logged_in() else "offline")


def _logged_in() -> bool:
    """True when wandb would find an API key; asks neither wandb nor the network, and never reads the key itself into a log."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    candidates = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for name in candidates:
        try:
            if host in netrc.netrc(os.path.expanduser(name)).hosts:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


class Recorder:
    """Records one job of one run; a context manager that marks the wandb run failed when the job raises.

    `job_type` is train or eval. A training keeps the run's id in wandb, so that a resumed one goes on in the same run; an evaluation of a
    finished run gets an id of its own in the same group.
    """

    def __init__(self, run: Run, log: LogConfig, config: dict, job_type: str):
        self.run = run
        self._rows: list[dict] = []
        self._wandb: Any = None
        mode = wandb_mode(log.mode)
        if mode != "disabled":
            self._wandb = self._guarded(lambda: _start(run, log, config, job_type, mode), "start", limit=2 * PATIENCE)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.finish(ok=kind is None)

    def train(self, step: int, **metrics: float) -> None:
        """Append a line to train.jsonl and log it at `step`; losses in nats/token."""
        append_line(self.run.train_log, {"step": step, **metrics})
        self._send(lambda wandb: wandb.log({f"train/{name}": value for name, value in metrics.items()}, step=step))

    def rows(self, rows: list[dict]) -> None:
        """Show rows (already on disk as an eval json) as curves over eval/length (or over position/tokens), and at the end as one table."""
        self._rows += rows
        self._send(lambda wandb: _log_curves(wandb, rows))

    @property
    def shows_images(self) -> bool:
        """Whether a figure would go anywhere: drawing one costs seconds."""
        return self._wandb is not None

    def image(self, path: Path | str) -> None:
        """Show a figure that is already on disk."""

        def log(wandb: Any) -> None:
            import wandb as library

            wandb.log({Path(path).stem: library.Image(str(path))})

        self._send(log)

    def finish(self, ok: bool) -> None:
        """End the wandb run, as failed unless `ok`; what could not be uploaded in time stays on disk for `wandb sync`."""
        if self._rows:
            self._send(lambda wandb: _log_table(wandb, self._rows))
        started, self._wandb = self._wandb, None
        if started:
            self._guarded(lambda: started.finish(exit_code=0 if ok else 1), "finish", limit=2 * PATIENCE)

    def _send(self, action: Callable[[Any], None]) -> None:
        if self._wandb:
            self._guarded(lambda: action(self._wandb), "log", limit=PATIENCE)

    def _guarded(self, action: Callable[[], Any], doing: str, limit: float) -> Any:
        """Result of `action`, or None after one line on stderr when it raises or takes longer than `limit` seconds."""
        outcome: dict[str, Any] = {}

        def attempt() -> None:
            try:
                outcome["result"] = action()
            except BaseException as error:  # wandb raises SystemExit and KeyboardInterrupt of its own where it meets trouble
                outcome["error"] = error

        worker = threading.Thread(target=attempt, daemon=True, name=f"wandb-{doing}")
        worker.start()
        worker.join(limit)
        if "result" in outcome:
            return outcome["result"]
        said = str(outcome["error"]).strip().splitlines() if "error" in outcome else [f"no answer in {limit:g} s"]
        reason = said[0] if said else type(outcome["error"]).__name__
        self._wandb = None
        print(f"wandb could not {doing} ({reason}); going on with files only in {self.run.path}", file=sys.stderr, flush=True)
        return None


def _start(run: Run, log: LogConfig, config: dict, job_type: str, mode: str) -> Any:
    import wandb

    directory = run.path.parent / ".wandb"
    directory.mkdir(parents=True, exist_ok=True)
    identity = run.id if job_type == "train" else f"{run.id}-{job_type}-{time.time_ns():x}"
    # finish_timeout came after the oldest wandb we allow; without it the guard around finish() is what ends a hang.
    wished = {"silent": True, "console": "off", "init_timeout": PATIENCE, "finish_timeout": PATIENCE, "disable_git": True}
    settings = wandb.Settings(**{key: value for key, value in wished.items() if key in wandb.Settings.model_fields})
    wandb.setup(settings)  # its login speaks before init would have silenced it
    parts = ("encoding", "extension", "scale_attention")
    tags = [job_type, *(f"{part}={method_name(config[part])}"[:64] for part in parts if config.get(part))]
    started = wandb.init(
        project=log.project, entity=log.entity, group=log.group or run.id, id=identity, name=identity, job_type=job_type, tags=tags,
        config=config, dir=str(directory), mode=mode, resume="allow", reinit="create_new", settings=settings,
    )  # fmt: skip
    for family, step in (("eval", "length"), ("position", "tokens")):
        started.define_metric(f"{family}/{step}")
        started.define_metric(f"{family}/*", step_metric=f"{family}/{step}")
    return started


def _log_curves(started: Any, rows: list[dict]) -> None:
    for row in rows:
        numbers = "".join(f"_{key}{value:g}" for key, value in row["extension_args"].items() if isinstance(value, int | float))
        position, method = row["position"], f"{row['protocol']}/{row['extension']}{numbers}+{row['scale_attention']}"
        curve = f"eval/{method}" if position is None else f"position/{method}/{row['length']}"
        step = {"eval/length": row["length"]} if position is None else {"position/tokens": position}
        started.log({**step, **{f"{curve}/{name}": row[name] for name in SHOWN if row[name] is not None}})


def _log_table(started: Any, rows: list[dict]) -> None:
    import wandb

    cells = [[json.dumps(row[name]) if isinstance(row[name], dict) else row[name] for name in COLUMNS] for row in rows]
    started.log({"eval_rows": wandb.Table(columns=list(COLUMNS), data=cells, allow_mixed_types=True)})
