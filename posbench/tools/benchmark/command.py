"""Command of scripts/benchmark.py: speed and memory of methods, or of a checkpoint, in files."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.command_line import options, unbracketed
from posbench.config.names import group_yamls

DEFAULTS = {
    **{
        "train_len": 64,
        "lengths": [2**n for n in range(6, 14)],
        "repeats": 5,
        "only": "",
        "out": "results/benchmark",
    },
    **{"model.path": "", "dtype": "bf16", "device": "auto"},
}
TRAINING = 4  # rounds of training steps for each of evaluation
OF_CHECKPOINT = {"lengths": [2048, 8192, 16384], "repeats": 3}


def benchmark(arguments: list[str]) -> None:
    """Measure, and write each result as soon as it is there. Raises ConfigError for a word that
    would do nothing.
    """
    chosen, typed = options(arguments, DEFAULTS), {word.partition("=")[0] for word in arguments}
    chosen["only"] = unbracketed(chosen["only"])
    path = chosen["model.path"]
    if not path and "dtype" in typed:
        raise ConfigError("dtype= is for a checkpoint: add model.path=PATH, or leave it out.")
    if path and "train_len" in typed:
        raise ConfigError(
            f"train_len= is for the small model: model.path={path} is not trained, so leave it out."
        )
    if path:
        chosen |= {key: value for key, value in OF_CHECKPOINT.items() if key not in typed}
    groups = ("extension",) if path else ("encoding", "extension", "scale_attention")
    known = [
        *(name for group in groups for name in group_yamls(group)),
        *(["transformers"] if path else []),
    ]
    for name in filter(None, chosen["only"].split(",")):
        if name not in known:
            what = "not an extension" if path else "no encoding, extension or attention scale"
            raise ConfigError(
                f"only={name} is {what}{did_you_mean(name, known)}: mend it, or leave it out."
            )
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # silences the memory profiler, which announces every start
    import platform

    import torch

    from posbench.common.files import write_atomic, write_json
    from posbench.common.machine import fast_dtype
    from posbench.model.build import pick_device
    from posbench.runs.provenance import commit
    from posbench.tools.benchmark import report

    device, out, figures = pick_device(chosen["device"]), Path(chosen["out"]), []
    on = (
        torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else f"{torch.get_num_threads()} threads"
    )
    rounds = f"{chosen['repeats']} rounds"
    read = (
        f"{rounds} in {chosen['dtype']}"
        if path
        else f"{rounds}, {TRAINING * chosen['repeats']} of training in {fast_dtype(device)}"
    )
    machine = f"{platform.machine()}, {on}, torch {torch.__version__}, commit {commit()}, {read}."
    for found in _passes(path, device, chosen):
        for one in found:
            ratio = (
                one.note
                if one.ratio is None
                else f"{one.ratio:6.2f} x {one.seconds * 1e3:9.1f} ms {one.mib:8.0f} MiB"
            )
            print(f"{one.kind:10} {one.length:6} {one.case:32} {ratio}", flush=True)
        figures += found
        write_json(
            out / "benchmark.json",
            {"machine": machine, "figures": [asdict(one) for one in figures]},
        )
    table = (
        report.checkpoint_markdown(figures, path, machine)
        if path
        else report.speed_table(figures, machine)
    )
    write_atomic(out / "table.md", table)
    for file in (out / "table.md", *([] if path else report.draw(figures, out / "benchmark"))):
        print(file)


def _passes(path: str, device: str, chosen: dict) -> Iterator[list]:
    from posbench.tools.benchmark import checkpoint, measure

    lengths, repeats, only = (
        chosen["lengths"],
        chosen["repeats"],
        [name for name in chosen["only"].split(",") if name],
    )
    if path:
        yield from checkpoint.measure_checkpoint(
            path, chosen["dtype"], lengths, repeats, only, device
        )
        return
    if not only or measure.BASE in only:  # first, since a training has few tensors beside it
        yield from measure.beside_transformers(2 * repeats, device)
    yield measure.training(chosen["train_len"], TRAINING * repeats, only, device)
    yield from measure.evaluation(chosen["train_len"], lengths, repeats, only, device)
