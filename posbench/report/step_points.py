"""Losses by length while models trained, as points of a report: read from the logs of trainings,
and of a folder of a report from its validation.csv."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.config import identity
from posbench.report.labels import Facts, Labels
from posbench.report.records import SEEDS_KEY, StepPoint, grouped, read_points
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata
from posbench.results.validations import StepLoss, read_step_losses

VALIDATION = "validation"  # in place of a protocol, and the name of the CSV
Losses = dict[int, dict[int, float]]  # {step: {seed: nats/token}} of a line


def step_points(
    evaluations: Iterable[Evaluation],
    origins: Mapping[Path, RunMetadata],
    label: Labels,
    folders: Iterable[Path] = (),
) -> list[StepPoint]:
    """Points of the trainings of evaluations, and those in folders of reports, each once."""
    # reversed: a training is labelled by the first of its evaluations.
    rows = {evaluation.origin: evaluation.first for evaluation in reversed(list(evaluations))}
    lines: dict[StepPoint, Losses] = {}  # by a point without step, seeds and loss
    for path, losses in _longest_logs(origins).items():
        row = rows[path]
        for loss in losses:
            by_step = lines.setdefault(_point_without_step(row, label, loss), {})
            by_step.setdefault(loss.step, {})[row["seed"]] = loss.nll
    points = [point for line, by_step in lines.items() for point in _points_of_line(line, by_step)]
    for folder in folders:
        path = folder / f"{VALIDATION}.csv"
        if path.is_file():
            points += read_points(path, StepPoint)
    return [at_place[0] for at_place in grouped(points, _place_key).values()]


def _place_key(point: StepPoint) -> tuple:
    """Key of a point's place in a report."""
    return (*point.section, point.method, point.length, point.step)


def _longest_logs(origins: Mapping[Path, RunMetadata]) -> dict[Path, list[StepLoss]]:
    """{run: losses in its log} of runs that have some.

    A kept step's log is the beginning of that of the whole training, which alone is read.
    """
    longest: dict[str, tuple[Path, list[StepLoss]]] = {}
    for path, metadata in origins.items():
        losses = read_step_losses(path)
        key = _whole_training_id(metadata)
        if losses and (key not in longest or losses[-1].step > longest[key][1][-1].step):
            longest[key] = path, losses
    return dict(longest.values())


def _whole_training_id(metadata: RunMetadata) -> str:
    """Id that the trainings to the steps of one training share; the run's own if it is unknown."""
    train = metadata.nested_config.get("train")
    try:
        return identity.run_id(
            {**metadata.nested_config, "train": {**train, "step": None}}, metadata.fingerprint
        )
    # Configurations of earlier versions, or damaged ones, of which nothing is certain.
    except (ConfigError, KeyError, TypeError, AttributeError, ValueError):
        return metadata.id


def _point_without_step(row: dict, label: Labels, loss: StepLoss) -> StepPoint:
    """Point of a line of the training behind a row, without step, seeds and loss."""
    return StepPoint(
        protocol=VALIDATION,
        data=row["data"],
        tokenizer=row["tokenizer"],
        train_len=row["train_len"],
        setting=f"room for {loss.max_length} tokens, validation split",
        encoding=label.training(row),
        extension=loss.extension,
        length=loss.length,
        n_targets=loss.targets,
        facts=Facts(
            label.facts(row).encoding,
            loss.extension.partition(" ")[0],
            encoding_label=label.training(row),
        ),
    )


def _points_of_line(line: StepPoint, by_step: Losses) -> list[StepPoint]:
    """Points of a line over seeds: of the steps that all seeds have, if there are any."""
    n_seeds = len({seed for by_seed in by_step.values() for seed in by_seed})
    shared = {step: by_seed for step, by_seed in by_step.items() if len(by_seed) == n_seeds}
    points = []
    for step, by_seed in sorted((shared or by_step).items()):
        seeds = sorted(by_seed)
        losses = [by_seed[seed] for seed in seeds]
        mean = math.fsum(losses) / len(losses)
        low = high = None
        if len(losses) > 1:
            low, high = min(losses), max(losses)
        by_number = {SEEDS_KEY: tuple(seeds), "nll": tuple(losses)}
        point = replace(line, step=step, n_seeds=len(seeds), nll=mean, low=low, high=high)
        points.append(replace(point, by_seed=by_number))
    return points
