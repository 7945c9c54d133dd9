"""Recorder of a running job: writes its own files first, and mirrors the run in wandb.

No error of wandb reaches the job. Its first exception or hang becomes one line on stderr, and
recording continues in files. What an offline run holds, `wandb sync` sends later."""

import contextlib
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posbench.common.defuse import printable
from posbench.common.errors import first_line
from posbench.common.files import append_lines
from posbench.config.schema import LogConfig
from posbench.runs.directory import Run
from posbench.sweep.wandb_content import (
    draw_pictures,
    log_curves,
    log_table,
    method_tags,
    report_summary,
    training_text,
)

PATIENCE = 30.0  # seconds that wandb may take to log, and to upload at the end
START_SECONDS = 10.0  # that a server may take to accept a run
FLUSH_SECONDS = 1.0  # that a killed job's file may miss; wandb's default is 15
WANDB_SERVER = "https://api.wandb.ai"


def wandb_mode(configured: str | None) -> str:
    """Mode of wandb: WANDB_MODE, else the configuration, else online if wandb has an API key.

    Without a key: offline.
    """
    mode = os.environ.get("WANDB_MODE") or configured
    if mode:
        return mode
    from requests.utils import get_netrc_auth

    server = os.environ.get("WANDB_BASE_URL", WANDB_SERVER)
    key = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    return "online" if key or get_netrc_auth(server) else "offline"


class WandbError(Exception):
    """wandb raised, or did not answer in time; the message is one line."""


class WandbHangs(WandbError):
    """wandb did not answer in time: its thread still runs, so nothing more is asked of it."""


class Recorder(contextlib.AbstractContextManager):
    """Record of one job of one run: a context manager that marks the wandb run failed on an error.

    `job_type` is train or evaluate. Both use the run's id in wandb: a resumed training continues
    the same run, and a later evaluation adds to it. Offline, a later evaluation is a run of its own
    in the same group, and so is a job whose server does not accept it."""

    def __init__(self, run: Run, log: LogConfig, config: dict, job_type: str):
        self.run = run
        self._training_text = training_text(config)
        self._rows: list[dict] = []
        self._mirror: Any = None
        mode = wandb_mode(log.mode)
        if mode != "disabled":
            # A file that adds to a run would replace its summary when it is synced.
            apart = job_type == "evaluate" and mode != "online"
            self._start(log, config, job_type, mode, apart)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.finish(ok=kind is None)

    def train(self, step: int, **metrics: float) -> None:
        """Append a line to train.jsonl and log it at `step`. Losses are in nats/token."""
        append_lines(self.run.train_log, [{"step": step, **metrics}])
        logged = {f"train/{name}": value for name, value in metrics.items()}
        self._send(lambda mirror: mirror.log(logged, step=step))

    def rows(self, rows: list[dict]) -> None:
        """Log rows that are already in an eval json as curves over eval/length or position/tokens.

        `finish` logs the rows of all evaluations of the run as one table.
        """
        self._rows += rows
        self._send(lambda mirror: log_curves(mirror, self._training_text, rows))

    def show_results(self) -> None:
        """Log losses and pictures of all evaluations of the run, read from its files.

        An error is printed, since the results are safe.
        """
        if self._mirror is None:
            return
        from posbench.report.report import collect

        with tempfile.TemporaryDirectory() as folder:
            try:
                report = collect(self.run.eval_files(), self.run.id, "", skip_damaged=True)
                summary = report_summary(report)
                pictures = draw_pictures(report, Path(folder))
            except Exception as error:
                _say(f"no figure for wandb: {error}")
                return
            self._send(lambda mirror: mirror.summary.update(summary))
            for path in pictures:
                self.image(path)

    def image(self, path: Path | str) -> None:
        """Log a figure that is already on disk."""

        def send(mirror: Any) -> None:
            import wandb

            mirror.log({Path(path).stem: wandb.Image(str(path))})

        self._send(send)

    def finish(self, ok: bool) -> None:
        """End the wandb run, as failed unless `ok`.

        Data not uploaded in time stays on disk for `wandb sync`.
        """
        if self._rows:
            self._send(lambda mirror: log_table(mirror, self.run, self._training_text, self._rows))
        mirror = self._mirror
        if mirror is None:
            return
        exit_code = 0 if ok else 1
        began = time.monotonic()
        self._send(lambda mirror: mirror.finish(exit_code=exit_code), "finish", 2 * PATIENCE)
        self._mirror = None
        if PATIENCE <= time.monotonic() - began < 2 * PATIENCE:  # it gave up without an error
            folder = shlex.quote(str(Path(mirror.dir).parent))
            command = f"wandb sync --include-online {folder}"
            _say(f"wandb could not upload everything in {PATIENCE:g} s: {command}")

    def _start(self, log: LogConfig, config: dict, job_type: str, mode: str, apart: bool) -> None:
        """Begin the mirror. If a server does not accept the run, begin it offline."""
        try:
            self._mirror = within(
                2 * PATIENCE, lambda: start_mirror(self.run, log, config, job_type, mode, apart)
            )
        except WandbError as error:
            if mode != "online" or isinstance(error, WandbHangs):
                self._files_only(f"start {mode}", error)
                return
            # wandb does not give the id of a run that it could not start again
            self._start(log, config, job_type, "offline", apart=True)
            if self._mirror:
                folder = wandb_folder(self.run)
                going_on = f"going on offline, for wandb sync, in {folder}"
                _say(f"wandb could not start online ({error}); {going_on}")
            return
        if mode == "online":
            _say(online_line(self._mirror))

    def _send(
        self, action: Callable[[Any], None], doing: str = "log", seconds: float | None = None
    ) -> None:
        """Do `action` with the mirror, if there is one. If it fails, there is none from then on."""
        mirror = self._mirror
        if mirror is None:
            return
        try:
            within(seconds or PATIENCE, lambda: action(mirror))
        except WandbError as error:
            self._files_only(doing, error)

    def _files_only(self, doing: str, error: WandbError) -> None:
        self._mirror = None
        _say(f"wandb could not {doing} ({error}); going on with files only in {self.run.path}")


def within(seconds: float, action: Callable[[], Any]) -> Any:
    """Result of `action`, which runs in a thread. Raises WandbError for whatever it raises.

    Raises WandbHangs after `seconds`."""
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
        raise WandbHangs(f"no answer in {seconds:g} s")
    return results[0]


def online_line(mirror: Any) -> str:
    """Sentence for a run that wandb sends to a server, with the address of its page if known."""
    page = getattr(mirror, "url", None) or os.environ.get("WANDB_BASE_URL", WANDB_SERVER)
    return f"wandb sends this run to {printable(page)}; log.mode=offline keeps it on this machine"


def wandb_folder(run: Run) -> Path:
    """Folder of wandb's own files for all runs of a results folder."""
    return run.path.parent / ".wandb"


def start_mirror(
    run: Run, log: LogConfig, config: dict, job_type: str, mode: str, apart: bool
) -> Any:
    """Begin a wandb run, with the id of `run` or apart from it. Raises wandb's own errors."""
    directory = wandb_folder(run)
    directory.mkdir(parents=True, exist_ok=True)
    # Tables wait here for `wandb sync`: beside their run, since another machine has no access to
    # this home folder.
    os.environ.setdefault("WANDB_DATA_DIR", str(directory.absolute() / "data"))
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
    settings = wandb.Settings(**supported)
    wandb.setup(settings)  # silences the login, which comes before init
    wandb_id = f"{run.id}-{job_type}-{time.time_ns():x}" if apart else run.id
    mirror = wandb.init(
        project=log.project,
        entity=log.entity,
        group=log.group or run.id,
        id=wandb_id,
        name=wandb_id,
        job_type=job_type if apart else "train",
        config=config,
        dir=str(directory),
        mode=mode,
        resume="allow",
        reinit="create_new",
        settings=settings,
    )
    tags = [*(mirror.tags or ()), job_type, *method_tags(config)]
    mirror.tags = tuple(dict.fromkeys(tags))
    for family, step in (("eval", "length"), ("position", "tokens")):
        mirror.define_metric(f"{family}/{step}")
        mirror.define_metric(f"{family}/*", step_metric=f"{family}/{step}")
    return mirror


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
