"""A run of wandb beside a run's own files. No error of wandb reaches the job.

Its first exception or hang becomes one line on stderr, and the job goes on with its files. What an
offline run holds, `wandb sync` sends later."""

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.common.defuse import printable
from posbench.common.errors import first_line
from posbench.config.schema import LogConfig
from posbench.runs.directory import Run
from posbench.sweep.wandb_content import method_tags

if TYPE_CHECKING:
    import wandb

PATIENCE = 30.0  # seconds that wandb may take to log, and to upload at the end
START_SECONDS = 10.0  # that a server may take to accept a run
FLUSH_SECONDS = 1.0  # that a killed job's file may miss; wandb's default is 15
MODE_VARIABLE = "WANDB_MODE"  # of the environment, which wins over log.mode
WANDB_SERVER = "https://api.wandb.ai"


class WandbError(Exception):
    """wandb raised, or did not answer in time; the message is one line."""


class Mirror:
    """Run of wandb for a job of a run. With mode=disabled, or after an error, it does nothing."""

    def __init__(self, run: Run, log: LogConfig, config: dict, job_type: str) -> None:
        self._run = run
        self._log = log
        self._config = config
        self._job_type = job_type
        self._wandb_run: wandb.Run | None = None
        mode = wandb_mode(log.mode)
        if mode != "disabled":
            # A file that adds to a run would replace its summary when it is synced.
            apart = job_type == "evaluate" and mode != "online"
            self._start(mode, apart)

    @property
    def is_open(self) -> bool:
        """True while something can be sent."""
        return self._wandb_run is not None

    def send(
        self, action: Callable[["wandb.Run"], Any], doing: str = "log", seconds: float | None = None
    ) -> None:
        """Do `action` with the run of wandb, if there is one. After an error there is none."""
        wandb_run = self._wandb_run
        if wandb_run is None:
            return
        try:
            within(seconds or PATIENCE, lambda: action(wandb_run))
        except WandbError as error:
            self._give_up(doing, error)

    def finish(self, ok: bool) -> None:
        """End the run of wandb, as failed unless `ok`.

        Data not uploaded in time stays on disk for `wandb sync`.
        """
        wandb_run = self._wandb_run
        exit_code = 0 if ok else 1
        began = time.monotonic()
        # wandb gives up by itself after PATIENCE (finish_timeout), so this waits for longer.
        self.send(lambda wandb_run: wandb_run.finish(exit_code=exit_code), "finish", 2 * PATIENCE)
        # After an error `send` has dropped the run. Without one, wandb may have given up.
        if self._wandb_run and time.monotonic() - began >= PATIENCE:
            folder = shlex.quote(str(Path(wandb_run.dir).parent))
            command = f"wandb sync --include-online {folder}"
            _say(f"wandb could not upload everything in {PATIENCE:g} s: {command}")
        self._wandb_run = None

    def _start(self, mode: str, apart: bool) -> None:
        """Begin a run with the id of the training or, `apart` from it, with an id of its own.

        If a server does not accept it, begin it offline.
        """
        folder = self._run.path.parent / ".wandb"
        try:
            # wandb gives up by itself after START_SECONDS (init_timeout), so its own error comes
            # first.
            self._wandb_run = within(2 * PATIENCE, lambda: self._begin(folder, mode, apart))
        except WandbError as error:
            if mode != "online":
                self._give_up(f"start {mode}", error)
                return
            # wandb refuses the id of a run that it failed to start, so the next has one of its own.
            self._start("offline", apart=True)
            if self.is_open:
                going_on = f"going on offline, for wandb sync, in {folder}"
                _say(f"wandb could not start online ({error}); {going_on}")
            return
        if mode == "online":
            page = getattr(self._wandb_run, "url", None)
            page = page or os.environ.get("WANDB_BASE_URL", WANDB_SERVER)
            word = MODE_VARIABLE if os.environ.get(MODE_VARIABLE) else "log.mode"
            offline = f"{word}=offline keeps it on this machine"
            _say(f"wandb sends this run to {printable(page)}; {offline}")

    def _begin(self, folder: Path, mode: str, apart: bool) -> "wandb.Run":
        """Start the training's own run of wandb or, with `apart`, a new one beside it.

        wandb keeps its files in `folder`. Raises wandb's own errors.
        """
        wandb = _quiet_wandb(folder)
        run_id = self._run.id
        wandb_id = f"{run_id}-{self._job_type}-{time.time_ns():x}" if apart else run_id
        wandb_run = wandb.init(
            project=self._log.project,
            entity=self._log.entity,
            group=self._log.group or run_id,
            id=wandb_id,
            name=wandb_id,
            job_type=self._job_type if apart else "train",  # the run of the training it adds to
            config=self._config,
            dir=str(folder),
            mode=mode,
            resume="allow",  # a training that goes on is the same run of wandb
            reinit="create_new",
        )
        tags = [*(wandb_run.tags or ()), self._job_type, *method_tags(self._config)]
        wandb_run.tags = tuple(dict.fromkeys(tags))
        for family, step in (("eval", "length"), ("position", "tokens")):
            wandb_run.define_metric(f"{family}/{step}")
            wandb_run.define_metric(f"{family}/*", step_metric=f"{family}/{step}")
        return wandb_run

    def _give_up(self, doing: str, error: WandbError) -> None:
        self._wandb_run = None
        files_only = f"going on with files only in {self._run.path}"
        _say(f"wandb could not {doing} ({error}); {files_only}")


def wandb_mode(configured: str | None) -> str:
    """Mode of wandb: WANDB_MODE, else the configuration, else online if wandb has an API key.

    Without a key: offline.
    """
    mode = os.environ.get(MODE_VARIABLE) or configured
    if mode:
        return mode
    from requests.utils import get_netrc_auth

    server = os.environ.get("WANDB_BASE_URL", WANDB_SERVER)
    key = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    return "online" if key or get_netrc_auth(server) else "offline"


def within(seconds: float, action: Callable[[], Any]) -> Any:
    """Result of `action`, which runs in a thread.

    Raises WandbError for whatever it raises, and if it has not ended after `seconds`.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            results.append(action())
        except BaseException as error:  # wandb may raise SystemExit and KeyboardInterrupt
            errors.append(error)

    thread = threading.Thread(target=attempt, daemon=True, name="wandb")
    thread.start()
    thread.join(seconds)
    if errors:
        raise WandbError(first_line(errors[0])) from errors[0]
    if not results:
        raise WandbError(f"no answer in {seconds:g} s")
    return results[0]


def _quiet_wandb(folder: Path) -> Any:
    """The module wandb, which prints nothing and keeps all its files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    # Tables wait here for `wandb sync`: beside their run, since another machine has no access to
    # this home folder.
    os.environ.setdefault("WANDB_DATA_DIR", str(folder.absolute() / "data"))
    # error reports to wandb would delay the end without a network
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    options = {
        "silent": True,
        "console": "off",
        "init_timeout": START_SECONDS,
        "finish_timeout": PATIENCE,
        "disable_git": True,
        "x_transaction_log_flush_interval": FLUSH_SECONDS,
    }
    # The oldest allowed wandb lacks some of these.
    supported = {key: value for key, value in options.items() if key in wandb.Settings.model_fields}
    wandb.setup(wandb.Settings(**supported))  # before init, since the login would print
    return wandb


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
