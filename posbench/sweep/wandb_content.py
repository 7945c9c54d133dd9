"""Content of a run in wandb: curves, one table of all rows, charts over length, pictures.

Lines have the names that tables give them, with every argument that is not at its value in
configs/, so that a name does not depend on what else was measured. Only where the same methods were
measured in several settings does a line also have the digits of its evaluation.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.config.names import display_name
from posbench.report.labels import Labels
from posbench.runs.columns import COLUMNS
from posbench.runs.directory import Run
from posbench.runs.rows import read_eval

if TYPE_CHECKING:
    import wandb

    from posbench.report.report import Report

SHOWN = ("nll", "ppl", "bpb", "accuracy")
PARTS = ("encoding", "extension", "scale_attention")
PICTURE_DPI = 150


def log_curves(wandb_run: "wandb.Run", rows: list[dict], training_text: str | None) -> None:
    """Log rows as points over eval/length, or over position/tokens."""
    for row in rows:
        if row["depth"] is not None:
            continue  # the row over all depths has the same name
        name = curve_name(row, training_text)
        if row["position"] is None:
            curve = f"eval/{name}"
            point = {"eval/length": row["length"]}
        else:
            curve = f"position/{name}/{row['length']}"
            point = {"position/tokens": row["position"]}
        for column in SHOWN:
            if row[column] is not None:
                point[f"{curve}/{column}"] = row[column]
        wandb_run.log(point)


def log_table(wandb_run: "wandb.Run", rows: list[dict], training_text: str | None) -> None:
    """Log rows as one table, and as charts over length.

    One chart for each protocol shows the loss, or the accuracy of a task, of lines with two lengths
    or more. Its preset is on every server, and draws the lines of all runs that are shown. So a
    line is named by its methods, seed and training."""
    import wandb

    cells = [[_table_cell(row[name]) for name in COLUMNS] for row in rows]
    table = wandb.Table(columns=list(COLUMNS), data=cells, allow_mixed_types=True)
    wandb_run.log({"eval_rows": table})
    for (quantity, protocol), lines in _charts(rows, training_text).items():
        unit = "share" if quantity == "accuracy" else "nats per token"
        title = f"{quantity} by length: {protocol.replace('_', ' ')}, {unit}"
        chart = line_chart(lines, title, "tokens")
        wandb_run.log({f"{quantity}_by_length/{protocol}": chart})


def line_chart(lines: dict[str, dict[int, float]], title: str, x_name: str) -> object:
    """Chart of wandb, by a preset that every server has, of lines {name: {x: y}}."""
    import wandb

    xs = [list(points) for points in lines.values()]
    ys = [list(points.values()) for points in lines.values()]
    return wandb.plot.line_series(xs, ys, list(lines), title, x_name, split_table=True)


def _table_cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict) else value


def _charts(
    rows: list[dict], training_text: str | None
) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """{(loss or accuracy, protocol): {line: {length: value}}} of lines with two lengths or more."""
    charts: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    # A row of one depth is a part of that of all depths, and positions have their own curves.
    drawn_rows = [row for row in rows if row["depth"] is None and row["position"] is None]
    drawn_rows.sort(key=lambda row: row["length"])
    named_rows = [(row, curve_name(row, training_text)) for row in drawn_rows]
    repeated = _repeated_names(named_rows)
    for row, name in named_rows:
        quantity = "accuracy" if row["task"] else "loss"
        value = row["accuracy"] if row["task"] else row["nll"]
        if value is None:  # not finite
            continue
        protocol, _, methods = name.partition("/")
        # Four of the ten digits that end a run's id tell trainings apart, in less room.
        line = f"{methods} s{row['seed']} {row['run_id'][-10:][:4]}"
        if name in repeated:
            line += _words_of_evaluation(row)
        lines = charts.setdefault((quantity, protocol), {})
        lines.setdefault(line, {})[row["length"]] = value
    drawn = {}
    for key, lines in charts.items():
        long_lines = {line: points for line, points in lines.items() if len(points) > 1}
        if long_lines:
            drawn[key] = long_lines
    return drawn


def report_summary(report: "Report") -> dict[str, float]:
    """Loss of each method at each length for wandb, in nats per token, and that above the floor."""
    values = {}
    # Points with a window are losses of single positions, which have curves of their own.
    points = [point for section in report.sections for point in section if point.window is None]
    measured = []  # (row, name, difference to the floor)
    for point in points:
        for evaluation, row, against_floor, _ in point.seeds:
            text = training_text(report.origins[evaluation.origin].nested_config)
            measured.append((row, curve_name(row, text), against_floor))
    repeated = _repeated_names((row, name) for row, name, _ in measured)
    for row, name, against_floor in measured:
        if name in repeated:
            name += _words_of_evaluation(row)
        if row["nll"] is not None:
            values[f"eval/{name}/nll_at_{row['length']}"] = row["nll"]
        if against_floor:
            values[f"eval/{name}/above_floor_at_{row['length']}"] = against_floor.difference
    return values


def _repeated_names(named_rows: Iterable[tuple[dict, str]]) -> set[str]:
    """Names of curves that several evaluations have: the same methods in other windows, on another
    split, or in another number format.
    """
    evaluations = {(row["run_id"], row["eval_id"], name) for row, name in named_rows}
    counts = Counter((run_id, name) for run_id, _, name in evaluations)
    return {name for (_, name), count in counts.items() if count > 1}


def _words_of_evaluation(row: dict) -> str:
    """Digits that tell an evaluation apart, as in the name of its file: " eval 1a2b3c4d"."""
    return f" eval {row['eval_id'][:8]}"


def draw_pictures(report: "Report", folder: Path) -> list[Path]:
    """Pictures of losses by length and by position, and of accuracies, of what was measured.

    They are what posbench.plot draws of a frame without further words.
    """
    from posbench.report.frame import record_frame
    from posbench.report.plot import Options, draw_figure
    from posbench.report.records import CurvePoint, Score

    points = record_frame([point for section in report.sections for point in section], CurvePoint)
    scores = record_frame([score for section in report.scores for score in section], Score)
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


def log_pictures(wandb_run: "wandb.Run", paths: list[Path]) -> None:
    """Log pictures that are on disk, each by its name."""
    import wandb

    wandb_run.log({path.stem: wandb.Image(str(path)) for path in paths})


def stored_rows(run: Run) -> list[dict]:
    """Rows of all evaluations of a run. Damaged files are skipped."""
    rows = []
    for path in run.eval_files():
        with contextlib.suppress(RunError):
            rows += read_eval(path)
    return rows


def curve_name(row: dict, training_text: str | None) -> str:
    """Name of a curve: protocol and methods, such as "fixed_targets/rope ntk multiplier=4.0".

    Another text than the training's stands behind the protocol: "fixed_targets_books/rope yarn"."""
    protocol = row["protocol"]
    if row["task"]:
        protocol += f"_{row['task']}"
    text = row["data"].partition("+")[0]  # without the task of a mix
    if training_text not in (None, text):
        protocol += f"_{text}"
    encoding, *others = Labels((), all_arguments=True)({**row, "task": None})
    parts = [encoding, *(part for part in others if part != "none")]
    return f"{protocol}/{' '.join(parts)}"


def training_text(config: dict) -> str | None:
    """Name of the text in a training's configuration; None without one."""
    data = config.get("data")
    return data.get("name") if isinstance(data, dict) else None


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
