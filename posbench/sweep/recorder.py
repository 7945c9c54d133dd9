"""Recorder of a running job: writes its own files first, and mirrors the run in wandb.

No error of wandb reaches the job. Its first exception or hang becomes one line on stderr, and
recording continues in files. What an offline run holds, `wandb sync` sends later."""

import contextlib
import json
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError, first_line
from posbench.common.files import append_lines
from posbench.config.names import display_name
from posbench.config.schema import LogConfig
from posbench.runs.columns import COLUMNS
from posbench.runs.directory import Run
from posbench.runs.rows import read_eval

if TYPE_CHECKING:
    from posbench.report.report import Report

PATIENCE = 30.0  # seconds that wandb may take to log, and to upload at the end
START_SECONDS = 10.0  # that a server may take to accept a run
FLUSH_SECONDS = 1.0  # that a killed job's file may miss; wandb's default is 15
WANDB_SERVER = "https://api.wandb.ai"
SHOWN = ("nll", "ppl", "bpb", "accuracy")
PARTS = ("encoding", "extension", "scale_attention")
PICTURE_DPI = 150


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


class Recorder(contextlib.AbstractContextManager):
    """Record of one job of one run: a context manager that marks the wandb run failed on an error.

    `job_type` is train or evaluate. Both use the run's id in wandb: a resumed training continues
    the same run, and a later evaluation adds to it. Offline, a later evaluation is a run of its own
    in the same group."""

    def __init__(self, run: Run, log: LogConfig, config: dict, job_type: str):
        self.run = run
        self._training_text = training_text(config)
        self._rows: list[dict] = []
        self._wandb: Any = None
        mode = wandb_mode(log.mode)
        if mode == "disabled":
            return
        self._wandb = self._guarded(
            lambda: start_mirror(run, log, config, job_type, mode), f"start {mode}", 2 * PATIENCE
        )
        if self._wandb and mode == "online":
            print(online_line(self._wandb), file=sys.stderr, flush=True)

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
        if self._wandb is None:
            return
        from posbench.report.report import collect

        with tempfile.TemporaryDirectory() as folder:
            try:
                report = collect(self.run.eval_files(), self.run.id, "", skip_damaged=True)
                summary = report_summary(report)
                pictures = draw_pictures(report, Path(folder))
            except Exception as error:
                print(f"no figure for wandb: {error}", file=sys.stderr)
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
        mirror = self._wandb
        self._wandb = None
        if mirror is None:
            return
        began = time.monotonic()
        self._guarded(lambda: mirror.finish(exit_code=0 if ok else 1), "finish", 2 * PATIENCE)
        if PATIENCE <= time.monotonic() - began < 2 * PATIENCE:  # it gave up without an error
            folder = shlex.quote(str(Path(mirror.dir).parent))
            print(
                f"wandb could not upload everything in {PATIENCE:g} s: wandb sync --include-online"
                f" {folder}",
                file=sys.stderr,
                flush=True,
            )

    def _send(self, action: Callable[[Any], None]) -> None:
        if self._wandb:
            mirror = self._wandb
            self._guarded(lambda: action(mirror), "log", PATIENCE)

    def _guarded(self, action: Callable[[], Any], doing: str, limit: float) -> Any:
        """Result of `action`. If it raises or exceeds `limit` seconds: None, and a line on stderr.

        After that nothing is sent to wandb any more.
        """
        result: list[Any] = []
        errors: list[BaseException] = []

        def attempt() -> None:
            try:
                result.append(action())
            except BaseException as error:  # wandb may raise SystemExit and KeyboardInterrupt
                errors.append(error)

        worker = threading.Thread(target=attempt, daemon=True, name=f"wandb-{doing}")
        worker.start()
        worker.join(limit)
        if result:
            return result[0]
        self._wandb = None
        reason = first_line(errors[0]) if errors else f"no answer in {limit:g} s"
        print(
            f"wandb could not {doing} ({reason}); going on with files only in {self.run.path}",
            file=sys.stderr,
            flush=True,
        )
        return None


def online_line(mirror: Any) -> str:
    """Sentence for a run that wandb sends to a server, with the address of its page if known."""
    page = getattr(mirror, "url", None) or os.environ.get("WANDB_BASE_URL", WANDB_SERVER)
    return f"wandb sends this run to {printable(page)}; log.mode=offline keeps it on this machine"


def start_mirror(run: Run, log: LogConfig, config: dict, job_type: str, mode: str) -> Any:
    """Begin a wandb run, online or offline. Raises wandb's own errors."""
    directory = run.path.parent / ".wandb"  # wandb's own files of all runs beside it
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
    # A file that adds to a run would replace its summary when it is synced.
    is_apart = job_type == "evaluate" and mode != "online"
    wandb_id = f"{run.id}-evaluate-{time.time_ns():x}" if is_apart else run.id
    mirror = wandb.init(
        project=log.project,
        entity=log.entity,
        group=log.group or run.id,
        id=wandb_id,
        name=wandb_id,
        job_type="train" if wandb_id == run.id else job_type,
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


def draw_pictures(report: "Report", folder: Path) -> list[Path]:
    """Pictures of losses by length and by position, and of accuracies, of what was measured.

    They are what posbench.plot draws of a frame without further words.
    """
    from posbench.report.frame import frame
    from posbench.report.plot import Options, draw_figure
    from posbench.report.records import CurvePoint, Score

    points = frame([point for section in report.sections for point in section], CurvePoint)
    scores = frame([score for section in report.scores for score in section], Score)
    paths = []
    for name, table, options in (
        ("loss", points, Options(title=report.title)),
        ("loss_by_position", points, Options(x="position", title=report.title)),
        ("accuracy", scores, Options(title=report.title)),
    ):
        with contextlib.suppress(ConfigError):  # nothing of this kind was measured
            figure, _ = draw_figure(table, options)
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=PICTURE_DPI)
            paths.append(path)
    return paths


def stored_rows(run: Run) -> list[dict]:
    """Rows of all evaluations of a run. Damaged files are skipped."""
    rows = []
    for path in run.eval_files():
        with contextlib.suppress(RunError):
            rows += read_eval(path)
    return rows


def training_text(config: dict) -> str | None:
    """Name of the text in a training's configuration; None without one."""
    data = config.get("data")
    return data.get("name") if isinstance(data, dict) else None


def curve_name(row: dict, training_text: str | None) -> str:
    """Name of a curve: protocol and methods, such as fixed_targets/ntk_multiplier2+log_n.

    Another text than the training's stands behind the protocol: fixed_targets_books/yarn+none."""
    protocol = row["protocol"]
    if row["task"]:
        protocol += f"_{row['task']}"
    text = row["data"].partition("+")[0]  # without the task of a mix
    if training_text not in (None, text):
        protocol += f"_{text}"
    extension = row["extension"]
    for key, value in row["extension_args"].items():
        if isinstance(value, int | float):
            extension += f"_{key}{value:g}"
    return f"{protocol}/{extension}+{row['scale_attention']}"


def report_summary(report: "Report") -> dict[str, float]:
    """Loss of each method at each length for wandb, in nats per token, and that above the floor."""
    values = {}
    points = [point for section in report.sections for point in section if point.window is None]
    for point in points:
        for evaluation, row, against_floor, _ in point.seeds:
            text = training_text(report.origins[evaluation.origin].nested)
            name = f"eval/{curve_name(row, text)}"
            if row["nll"] is not None:
                values[f"{name}/nll_at_{row['length']}"] = row["nll"]
            if against_floor:
                values[f"{name}/above_floor_at_{row['length']}"] = against_floor.difference
    return values


def log_curves(mirror: Any, training_text: str | None, rows: list[dict]) -> None:
    """Log rows as points over eval/length, or over position/tokens."""
    for row in rows:
        if row["depth"] is not None:
            continue  # the row over all depths has the same name
        method = curve_name(row, training_text)
        if row["position"] is None:
            curve = f"eval/{method}"
            point = {"eval/length": row["length"]}
        else:
            curve = f"position/{method}/{row['length']}"
            point = {"position/tokens": row["position"]}
        for name in SHOWN:
            if row[name] is not None:
                point[f"{curve}/{name}"] = row[name]
        mirror.log(point)


def log_table(mirror: Any, run: Run, training_text: str | None, fresh: list[dict]) -> None:
    """Log the rows of all evaluations of a run, of which `fresh` replace stored ones.

    They are one table, and charts over length: one for each protocol shows the loss, or the
    accuracy of a task, of lines with two lengths or more. Its preset is on every server, and draws
    the lines of all runs that are shown. So a line is named by its methods, seed and training."""
    import wandb

    replaced = {(row["eval_id"], row["length"]) for row in fresh}
    stored = [row for row in stored_rows(run) if (row["eval_id"], row["length"]) not in replaced]
    rows = stored + fresh
    cells = [[_table_cell(row[name]) for name in COLUMNS] for row in rows]
    table = wandb.Table(columns=list(COLUMNS), data=cells, allow_mixed_types=True)
    mirror.log({"eval_rows": table})
    for (quantity, protocol), lines in _charts(run, training_text, rows).items():
        xs = [list(points) for points in lines.values()]
        ys = [list(points.values()) for points in lines.values()]
        unit = "share" if quantity == "accuracy" else "nats per token"
        title = f"{quantity} by length: {protocol.replace('_', ' ')}, {unit}"
        chart = wandb.plot.line_series(xs, ys, list(lines), title, "tokens", split_table=True)
        mirror.log({f"{quantity}_by_length/{protocol}": chart})


def _table_cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict) else value


def _charts(
    run: Run, training_text: str | None, rows: list[dict]
) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """{(loss or accuracy, protocol): {line: {length: value}}} of lines with two lengths or more."""
    charts: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in sorted(rows, key=lambda row: row["length"]):
        quantity = "accuracy" if row["task"] else "loss"
        value = row["accuracy"] if row["task"] else row["nll"]
        if row["depth"] is not None or row["position"] is not None or value is None:
            continue
        protocol, _, methods = curve_name(row, training_text).partition("/")
        line = f"{row['encoding']} {methods} s{row['seed']} {run.id[-10:][:4]}"
        lines = charts.setdefault((quantity, protocol), {})
        lines.setdefault(line, {})[row["length"]] = value
    drawn = {}
    for key, lines in charts.items():
        long_lines = {line: points for line, points in lines.items() if len(points) > 1}
        if long_lines:
            drawn[key] = long_lines
    return drawn


def method_tags(config: dict) -> list[str]:
    """Tags of a job's methods, such as "extension=yarn", each once.

    A job may have a list of extensions and scales.
    """
    tags = []
    for part in PARTS:
        nodes = config.get(part) or []
        for node in nodes if isinstance(nodes, list) else [nodes]:
            tags.append(f"{part}={display_name(part, node)}"[:64])  # wandb allows no longer ones
    return list(dict.fromkeys(tags))
