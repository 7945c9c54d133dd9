"""Speed and memory of every method beside plain attention and transformers, as ratios within one run.

python scripts/benchmark.py                                     all methods, into results/benchmark (table.md, benchmark.json, figure)
python scripts/benchmark.py only=t5,fox lengths=64,1024 repeats=9
"""

from __future__ import annotations

import itertools
import os
from dataclasses import asdict
from pathlib import Path

import posbench  # noqa: F401  (before torch)
from posbench.cli.key_values import options, run

DEFAULTS = {"train_len": 64, "lengths": [2**n for n in range(6, 14)], "repeats": 5, "only": "", "out": "results/benchmark"}


def main(arguments: list[str]) -> None:
    """Measure, and write each result as soon as it is there."""
    chosen = options(arguments, DEFAULTS)
    train_len, repeats, lengths = chosen["train_len"], chosen["repeats"], chosen["lengths"]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the memory profiler, which announces every start
    import platform

    import torch

    from posbench.benchmark.measure import evaluation, training
    from posbench.benchmark.report import draw, markdown
    from posbench.common.files import write_atomic, write_json
    from posbench.runs.provenance import commit

    out, only = Path(chosen["out"]), [name for name in chosen["only"].split(",") if name]
    threads = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    machine = f"{platform.machine()}, {threads}, commit {commit()}, {repeats} rounds."
    figures = []
    passes = evaluation(train_len, lengths, repeats, only)
    for found in itertools.chain([training(train_len, 4 * repeats, only)], passes):
        for one in found:
            ratio = one.note if one.ratio is None else f"{one.ratio:6.2f} x {one.seconds * 1e3:9.1f} ms {one.mib:8.0f} MiB"
            print(f"{one.kind:10} {one.length:6} {one.case:32} {ratio}", flush=True)
        figures += found
        write_json(out / "benchmark.json", {"machine": machine, "figures": [asdict(one) for one in figures]})
    write_atomic(out / "table.md", markdown(figures, machine))
    for path in (out / "table.md", *draw(figures, out / "benchmark")):
        print(path)


if __name__ == "__main__":
    run(main)
