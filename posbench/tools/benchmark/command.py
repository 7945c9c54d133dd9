"""Command of scripts/benchmark.py: speed and memory of methods, or of a checkpoint, in files."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.command_line import read_options, without_brackets
from posbench.config.names import shipped_yamls
from posbench.config.schema import TrainConfig

if TYPE_CHECKING:
    from posbench.tools.benchmark.measure import Measurement

DEFAULTS = {
    "train_len": 64,
    "lengths": [2**n for n in range(6, 14)],
    "repeats": 5,
    "only": "",
    "out": "results/benchmark",
    "model.path": "",
    "dtype": "bf16",
    "device": "auto",
}
# rounds for each of evaluation
TRAINING_ROUNDS = 4  # of training steps
ROUNDS_BESIDE_TRANSFORMERS = 2  # of training steps beside transformers'
CHECKPOINT_DEFAULTS = {"lengths": [2048, 8192, 16384], "repeats": 3}


def benchmark(arguments: list[str]) -> None:
    """Measure, and write each result as soon as it is there.

    Raises ConfigError for a word that would do nothing.
    """
    chosen = _checked_options(arguments)
    path = chosen["model.path"]
    # Silences the memory profiler, which announces every start.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")

    from posbench.common.files import write_atomic, write_json
    from posbench.model.build import pick_device
    from posbench.tools.benchmark import report

    device = pick_device(chosen["device"])
    machine = _machine_sentence(chosen, device)
    out = Path(chosen["out"])
    measurements = []
    for of_pass in _measurements(path, device, chosen):
        for measurement in of_pass:
            print(_measurement_line(measurement), flush=True)
            measurements.append(measurement)
        figures = [asdict(measurement) for measurement in measurements]
        write_json(out / "benchmark.json", {"machine": machine, "figures": figures})
    table_file = out / "table.md"
    if path:
        write_atomic(table_file, report.checkpoint_markdown(measurements, path, machine))
        print(table_file)
        return
    write_atomic(table_file, report.speed_table(measurements, machine))
    for file in (table_file, *report.draw_benchmark(measurements, out / "benchmark")):
        print(file)


def _checked_options(arguments: list[str]) -> dict:
    """Options of the words, with `only` as a list. Raises ConfigError for a word without effect."""
    chosen = read_options(arguments, DEFAULTS)
    typed = {word.partition("=")[0] for word in arguments}
    path = chosen["model.path"]
    if not path and "dtype" in typed:
        raise ConfigError("dtype= is for a checkpoint: add model.path=PATH, or leave it out.")
    if path and "train_len" in typed:
        raise ConfigError(
            f"train_len= is for the small model: model.path={path} is not trained, so leave it out."
        )
    step = TrainConfig().tokens_per_step
    if chosen["train_len"] > step:
        raise ConfigError(
            f"train_len={chosen['train_len']} exceeds the {step} tokens of a training step, so no"
            " sequence fits into one: give a shorter one."
        )
    if path:
        for key, value in CHECKPOINT_DEFAULTS.items():
            if key not in typed:
                chosen[key] = value
    chosen["only"] = [name for name in without_brackets(chosen["only"]).split(",") if name]
    if path:
        # transformers' model is always measured: its name alone leaves out all extensions.
        names = [*shipped_yamls("extension"), "transformers"]
        none_of = "not an extension"
    else:
        names = [
            *shipped_yamls("encoding"),
            *shipped_yamls("extension"),
            *shipped_yamls("scale_attention"),
        ]
        none_of = "no encoding, extension or attention scale"
    for name in chosen["only"]:
        if name not in names:
            raise ConfigError(
                f"only={name} is {none_of}{did_you_mean(name, names)}: mend it, or leave it out."
            )
    return chosen


def _machine_sentence(chosen: dict, device: str) -> str:
    """Sentence on the processor, the versions and the number of rounds."""
    import platform

    import torch

    from posbench.common.machine import fast_dtype
    from posbench.runs.provenance import commit_of_row

    if device.startswith("cuda"):
        processor = torch.cuda.get_device_name(device)
    else:
        processor = f"{torch.get_num_threads()} threads"
    repeats = chosen["repeats"]
    if chosen["model.path"]:  # is only read; the small model is read in float32, and trained
        rounds = f"{repeats} rounds in {chosen['dtype']}"
    else:
        rounds = (
            f"{repeats} rounds, {TRAINING_ROUNDS * repeats} of training in {fast_dtype(device)}"
        )
    versions = f"torch {torch.__version__}, commit {commit_of_row()}"
    return f"{platform.machine()}, {processor}, {versions}, {rounds}."


def _measurement_line(measurement: "Measurement") -> str:
    """Such as "training       64 fox          1.31 x      12.1 ms      102 MiB"."""
    result = measurement.note
    if measurement.ratio is not None:
        milliseconds = measurement.seconds * 1e3
        result = f"{measurement.ratio:6.2f} x {milliseconds:9.1f} ms {measurement.mib:8.0f} MiB"
    return f"{measurement.kind:10} {measurement.length:6} {measurement.case:32} {result}"


def _measurements(path: str, device: str, chosen: dict) -> Iterator[list["Measurement"]]:
    """Measurements, a list as soon as they are there: of a checkpoint, or of the small model."""
    from posbench.tools.benchmark import checkpoint, measure

    lengths = chosen["lengths"]
    repeats = chosen["repeats"]
    only = chosen["only"]
    if path:
        dtype = chosen["dtype"]
        yield from checkpoint.measure_checkpoint(path, dtype, lengths, repeats, only, device)
        return
    # First, while few other tensors live beside the two models.
    if not only or measure.BASE_CASE in only:
        rounds = ROUNDS_BESIDE_TRANSFORMERS * repeats
        yield from measure.measure_beside_transformers(rounds, device)
    yield measure.measure_training(chosen["train_len"], TRAINING_ROUNDS * repeats, only, device)
    yield from measure.measure_evaluation(chosen["train_len"], lengths, repeats, only, device)
