"""Recorder of a running job: writes its own files first, and mirrors a training with its
evaluations as one run in wandb.

No error of wandb reaches the job. Its first exception or hang becomes one line on stderr, and
recording continues in files."""

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from posbench.common.defuse import printable
from posbench.common.errors import RunError, first_line
from posbench.common.files import append_lines, read_lines
from posbench.config.names import closest_yaml, display_name
from posbench.config.schema import LogConfig
from posbench.runs.columns import COLUMNS
from posbench.runs.directory import Run
from posbench.runs.rows import read_eval

if TYPE_CHECKING:
    from posbench.report.report import Report

PATIENCE = 30.0  # seconds that wandb may take to start, and to upload at the end
WANDB_SERVER = "https://api.wandb.ai"
FILES_ONLY, OFFLINE = "with files only", "offline, for wandb sync,"
CONNECT_SECONDS = 5.0  # for a server to answer; wandb itself would try for more than a minute
FLUSH_SECONDS = (
    1.0  # that a killed job's file may miss; wandb's default of 15 s is much for a small training
)
SHOWN = ("nll", "ppl", "bpb", "accuracy")
PARTS = ("encoding", "extension", "scale_attention")


def wandb_mode(configured: str | None) -> str:
    """Mode of wandb: WANDB_MODE, else the configuration, else online where wandb would find an API
    key, else offline.
    """
    mode = os.environ.get("WANDB_MODE") or configured
    if mode:
        return mode
    from requests.utils import get_netrc_auth

    key = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    return (
        "online"
        if key or get_netrc_auth(os.environ.get("WANDB_BASE_URL", WANDB_SERVER))
        else "offline"
    )


class Recorder(contextlib.AbstractContextManager):
    """Record of one job of one run: a context manager that marks the wandb run failed when the job
    raises.

    `job_type` is train or evaluate. Both use the run's id in wandb: a resumed training continues
    the same run, and a later evaluation adds to it. Without a connection everything is recorded
    offline, for `wandb sync`; the newest folder contains all earlier ones. Once a server has them,
    an offline job gets an id of its own in the same group."""

    def __init__(self, run: Run, log: LogConfig, config: dict, job_type: str):
        self.run, self._own = run, own_text(config)
        self._rows: list[dict] = []
        self._wandb: Any = None
        self._behind = (
            job_type == "train"
        )  # True until the logs of earlier processes of this training are mirrored
        self._hangs = False
        wanted = wandb_mode(log.mode)
        for mode in {"disabled": (), "online": ("online", "offline")}.get(wanted, (wanted,)):
            if not self._wandb and not self._hangs:
                begin = functools.partial(start_mirror, run, log, config, job_type, mode)
                instead = OFFLINE if mode == "online" else FILES_ONLY
                self._wandb = self._guarded(begin, f"start {mode}", 2 * PATIENCE, instead)
                if self._wandb and mode == "online":
                    print(online_line(self._wandb), file=sys.stderr, flush=True)
        if job_type == "evaluate":
            self._send(catch_up, run, self._own, True)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.finish(ok=kind is None)

    def train(self, step: int, **metrics: float) -> None:
        """Append a line to train.jsonl and log it at `step`. Losses are in nats/token."""
        if self._behind:
            self._behind = False
            self._send(catch_up, self.run, self._own, False)
        append_lines(self.run.train_log, [{"step": step, **metrics}])
        self._send(log_training, step, metrics)

    def rows(self, rows: list[dict]) -> None:
        """Log rows that are already in an eval json as curves over eval/length or position/tokens.

        `finish` logs the rows of all evaluations of the run as one table.
        """
        self._rows += rows
        self._send(log_curves, self._own, rows)

    def summary(self, values: dict[str, float]) -> None:
        self._send(lambda wandb: wandb.summary.update(values))

    @property
    def shows_images(self) -> bool:
        """True if images are uploaded. Drawing one takes seconds, so callers check first."""
        return self._wandb is not None

    def image(self, path: Path | str) -> None:
        """Log a figure that is already on disk."""
        import wandb

        self._send(lambda started: started.log({Path(path).stem: wandb.Image(str(path))}))

    def finish(self, ok: bool) -> None:
        """End the wandb run, as failed unless `ok`. Data not uploaded in time stays on disk for
        `wandb sync`.
        """
        if self._rows:
            self._send(log_table, self.run, self._own, self._rows)
        started, self._wandb = self._wandb, None
        if started:
            began = time.monotonic()
            self._guarded(
                lambda: started.finish(exit_code=0 if ok else 1), "finish", limit=2 * PATIENCE
            )
            if (
                PATIENCE <= time.monotonic() - began < 2 * PATIENCE
            ):  # wandb gave up in time without an error
                later = f"wandb sync --include-online {shlex.quote(str(Path(started.dir).parent))}"
                print(
                    f"wandb could not upload everything in {PATIENCE:g} s: {later}",
                    file=sys.stderr,
                    flush=True,
                )

    def _send(self, action: Callable[..., None], *given: object) -> None:
        if self._wandb:
            self._guarded(lambda: action(self._wandb, *given), "log", limit=PATIENCE)

    def _guarded(
        self, action: Callable[[], Any], doing: str, limit: float, instead: str = FILES_ONLY
    ) -> Any:
        """Result of `action`. If it raises or exceeds `limit` seconds: None, and one line on
        stderr.
        """
        outcome: dict[str, Any] = {}

        def attempt() -> None:
            try:
                outcome["result"] = action()
            except (
                BaseException
            ) as error:  # wandb itself may raise SystemExit and KeyboardInterrupt
                outcome["error"] = error

        worker = threading.Thread(target=attempt, daemon=True, name=f"wandb-{doing}")
        worker.start()
        worker.join(limit)
        if "result" in outcome:
            return outcome["result"]
        self._wandb, self._hangs = None, "error" not in outcome
        reason = f"no answer in {limit:g} s" if self._hangs else first_line(outcome["error"])
        going_on = FILES_ONLY if self._hangs else instead
        place = self.run.path if going_on == FILES_ONLY else home(self.run)
        print(
            f"wandb could not {doing} ({reason}); going on {going_on} in {place}",
            file=sys.stderr,
            flush=True,
        )
        return None


def online_line(started: Any) -> str:
    """Sentence for a run that wandb sends to a server, with the address of its page where wandb
    knows it.
    """
    page = getattr(started, "url", None) or os.environ.get("WANDB_BASE_URL", WANDB_SERVER)
    return f"wandb sends this run to {printable(page)}; log.mode=offline keeps it on this machine"


def home(run: Run) -> Path:
    """Folder of wandb's own files for all runs of a results folder."""
    return run.path.parent / ".wandb"


def start_mirror(run: Run, log: LogConfig, config: dict, job_type: str, mode: str) -> Any:
    """Begin a wandb run, online or offline. Raises wandb's own errors, and ConnectionError for a
    server that does not answer.
    """
    directory = home(run)
    directory.mkdir(parents=True, exist_ok=True)
    # Tables wait here for `wandb sync`: beside their run, since another machine has no access to
    # this home folder.
    os.environ.setdefault("WANDB_DATA_DIR", str(directory.absolute() / "data"))
    os.environ.setdefault(
        "WANDB_ERROR_REPORTING", "false"
    )  # error reports to wandb would delay the end without a network
    import wandb

    known = any(map(_on_server, _attempts(run)))
    # A server renumbers steps that a file adds to a known run, and an id that failed online is used
    # up.
    identity = f"{run.id}-{job_type}-{time.time_ns():x}" if known and mode == "offline" else run.id
    later = known and mode == "online" and job_type == "evaluate"
    job_type = "train" if identity == run.id else job_type
    # The oldest allowed wandb lacks some of these. A hang is ended by the guard around each call.
    wished = {
        "silent": True,
        "console": "off",
        "init_timeout": PATIENCE,
        "finish_timeout": PATIENCE,
        "disable_git": True,
    }
    wished["x_transaction_log_flush_interval"] = FLUSH_SECONDS
    settings = wandb.Settings(
        **{key: value for key, value in wished.items() if key in wandb.Settings.model_fields}
    )
    library = wandb.setup(settings)  # silences the login, which comes before init
    if mode == "online":
        _connect(library.settings.base_url)
    started = wandb.init(
        project=log.project, entity=log.entity, group=None if later else log.group or run.id, id=identity, name=identity,
        job_type=job_type, tags=None if later else [job_type, *_tags(config)],
        config={key: value for key, value in config.items() if not (later and key in PARTS[1:])},
        dir=str(directory), mode=mode, resume="allow", reinit="create_new", settings=settings,
    )  # fmt: skip
    if later:  # a later evaluation keeps group and configuration of the training
        _add_tags(started, _tags(config))
    for family, step in (("eval", "length"), ("position", "tokens")):
        started.define_metric(f"{family}/{step}")
        started.define_metric(f"{family}/*", step_metric=f"{family}/{step}")
    return started


def log_training(started: Any, step: int, figures: dict) -> None:
    """Log the values of one training step."""
    started.log({f"train/{name}": value for name, value in figures.items()}, step=step)


def catch_up(started: Any, run: Run, own: str | None, evaluations: bool) -> None:
    """Log the steps of earlier processes of this training again, and delete their offline folders.

    With `evaluations`, log earlier evaluations too, unless a server already knows the run. The file
    of a killed process lacks its last second and stops `wandb sync` before the next file. Steps
    repeated from the checkpoint would count as later ones. So one file gets everything from
    train.jsonl, which has every step once. A server skips the steps that it knows."""
    attempts = [path for path in _attempts(run) if path != Path(started.dir).parent]
    if evaluations and any(map(_on_server, attempts)):
        return
    for figures in read_lines(run.train_log):
        log_training(started, figures.pop("step"), figures)
    if evaluations:
        rows = stored_rows(run)
        log_curves(started, own, rows)
        _add_tags(
            started,
            [
                f"extension={closest_yaml('extension', row['extension'], row['extension_args'])}"
                for row in rows
            ],
        )
    for path in attempts:
        if not _on_server(path):
            shutil.rmtree(path, ignore_errors=True)


def stored_rows(run: Run) -> list[dict]:
    """Rows of all evaluations of a run. Damaged files are skipped."""
    found = []
    for path in run.eval_files():
        with contextlib.suppress(RunError):
            found += read_eval(path)
    return found


def own_text(config: dict) -> str | None:
    """Name of the text in a training's configuration; None without one."""
    data = config.get("data")
    return data.get("name") if isinstance(data, dict) else None


def curve_name(row: dict, own: str | None) -> str:
    """Name of a curve: protocol and methods, such as fixed_targets/ntk_multiplier2+log_n.

    The text stands behind the protocol where it is not the training's `own`:
    fixed_targets_books/yarn+none."""
    numbers = "".join(
        f"_{key}{value:g}"
        for key, value in row["extension_args"].items()
        if isinstance(value, int | float)
    )
    text = row["data"].partition("+")[0]  # without the task of a mix
    protocol = (
        row["protocol"]
        + (f"_{row['task']}" if row["task"] else "")
        + (f"_{text}" if own not in (None, text) else "")
    )
    return f"{protocol}/{row['extension']}{numbers}+{row['scale_attention']}"


def report_summary(report: "Report") -> dict[str, float]:
    """Loss of each method at each length for wandb, and its difference to the floor if there is
    one, in nats per token.
    """
    values = {}
    seeds = (
        seed
        for section in report.sections
        for point in section
        if point.window is None
        for seed in point.seeds
    )
    for evaluation, row, against_floor, _ in seeds:
        name = f"eval/{curve_name(row, own_text(report.origins[evaluation.origin].nested))}"
        if row["nll"] is not None:
            values[f"{name}/nll_at_{row['length']}"] = row["nll"]
        if against_floor:
            values[f"{name}/above_floor_at_{row['length']}"] = against_floor.difference
    return values


def log_curves(started: Any, own: str | None, rows: list[dict]) -> None:
    """Log rows as points over eval/length, or over position/tokens."""
    for row in rows:
        if row["depth"] is not None:
            continue  # the row over all depths has the same name
        position, method = row["position"], curve_name(row, own)
        curve = f"eval/{method}" if position is None else f"position/{method}/{row['length']}"
        step = {"eval/length": row["length"]} if position is None else {"position/tokens": position}
        started.log(
            {**step, **{f"{curve}/{name}": row[name] for name in SHOWN if row[name] is not None}}
        )


def log_table(started: Any, run: Run, own: str | None, fresh: list[dict]) -> None:
    """Log the rows of all evaluations of a run, in which `fresh` rows replace the stored ones, as
    one table and as charts.

    A chart over length for each protocol shows the loss, or the accuracy of a task, of lines with
    two lengths or more. Its preset is on every server, and draws the lines of all runs that are
    shown. So a line is named by its methods, seed and training."""
    import wandb

    made = {(row["eval_id"], row["length"]) for row in fresh}
    rows = [row for row in stored_rows(run) if (row["eval_id"], row["length"]) not in made] + fresh
    cells = [
        [json.dumps(row[name]) if isinstance(row[name], dict) else row[name] for name in COLUMNS]
        for row in rows
    ]
    started.log(
        {"eval_rows": wandb.Table(columns=list(COLUMNS), data=cells, allow_mixed_types=True)}
    )
    charts: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in sorted(rows, key=lambda row: row["length"]):
        kind, value = ("accuracy", row["accuracy"]) if row["task"] else ("loss", row["nll"])
        if row["depth"] is None and row["position"] is None and value is not None:
            protocol, _, methods = curve_name(row, own).partition("/")
            line = f"{row['encoding']} {methods} s{row['seed']} {run.id[-10:][:4]}"
            charts.setdefault((kind, protocol), {}).setdefault(line, {})[row["length"]] = value
    for (kind, protocol), found in charts.items():
        if lines := {line: points for line, points in found.items() if len(points) > 1}:
            xs, ys = (
                [[*points] for points in lines.values()],
                [[*points.values()] for points in lines.values()],
            )
            title = (
                f"{kind} by length: {protocol.replace('_', ' ')},"
                f" {'share' if kind == 'accuracy' else 'nats per token'}"
            )
            drawn = wandb.plot.line_series(xs, ys, list(lines), title, "tokens", split_table=True)
            started.log({f"{kind}_by_length/{protocol}": drawn})


def _connect(server: str) -> None:
    address = urlparse(server)
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    if address.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return  # only the proxy knows what is reachable
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"{host}:{port} cannot be reached: {error}") from error


def _add_tags(started: Any, tags: list[str]) -> None:
    started.tags = tuple(dict.fromkeys([*(started.tags or ()), *(tag[:64] for tag in tags)]))


def _tags(config: dict) -> list[str]:
    """Tags of a job's methods, each once. A job may have a list of extensions and scales."""
    chosen = ((part, config.get(part) or []) for part in PARTS)
    tags = (
        f"{part}={display_name(part, node)}"[:64]
        for part, nodes in chosen
        for node in (nodes if isinstance(nodes, list) else [nodes])
    )
    return list(dict.fromkeys(tags))


def _attempts(run: Run) -> list[Path]:
    """wandb's folders of this training, from earlier processes and this one."""
    pattern = re.compile(rf"(offline-)?run-\d{{8}}_\d{{6}}-{re.escape(run.id)}(-train-[0-9a-f]+)?")
    found = (home(run) / "wandb").glob(f"*run-*-{run.id}*")
    return sorted(
        path
        for path in found
        if pattern.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
    )


def _on_server(path: Path) -> bool:
    """True if a server may know the data of this folder: it was written online, or `wandb sync` has
    begun with it.
    """
    return not path.name.startswith("offline-") or any(path.glob("*.wandb.sync*"))
