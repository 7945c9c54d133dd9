"""Time of the evaluations of checkpoints, text by text: by stored evaluations that read such texts, else by one layer measured now.

The stored ones are of the same model size, method, number format and about the same length (the nearest power of two), and took LEAST
seconds or more. Those of the same model size and number format also correct what is measured now, perhaps beside other work: by how long
the longest of their texts took and how long it would take by the same measurement.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError
from posbench.config.identity import method_name
from posbench.evaluation.reading import Reading
from posbench.sweep.cells import Cell
from posbench.sweep.jobs import Job
from posbench.sweep.work import Size, Work, vocabulary, work

if TYPE_CHECKING:
    from posbench.evaluation.probe import Probe

LEAST = 1  # seconds from which the time of work is about proportional to it; below, what is done once decides


class Texts:
    """Seconds per FLOP of texts that stored evaluations read, by model size, method, number format and length."""

    def __init__(self) -> None:
        self.found: dict[Hashable, list[float]] = defaultdict(list)
        self.longest: dict[Hashable, tuple[int, Hashable, Reading, dict, dict]] = {}  # tokens, key in found, and what was read how

    def add(self, model: Size, config: dict, crop: int, train_len: int, seconds: dict[int, float]) -> None:
        """Store the texts of one evaluation, whose `seconds` are {length: seconds of its own text}."""
        known: set[Reading] = set()
        for length, took in sorted(seconds.items()):
            (one,) = work(model, config["protocol"], config["extension"], config["evaluate"], crop, train_len, [length]).reading
            if one not in known:  # beyond the crop every length reads the same texts, once
                known.add(one)
                if took >= LEAST:
                    key = _key(model, config["extension"], config["evaluate"], one)
                    self.found[key].append(took / model.forward(one))
                    read = one.tokens, key, one, config["extension"], config["scale_attention"]
                    self.longest[key[:2]] = max(self.longest.get(key[:2], read), read, key=lambda read: read[0])

    def correction(self, probe: "Probe", model: Size, dtype: str) -> float:
        """Time that the longest stored text of a model size and number format took, over the one that a probe tells; 1 if there is none."""
        if (model, dtype) not in self.longest:
            return 1.0
        _, key, reading, extension, scale = self.longest[model, dtype]
        return statistics.median(self.found[key]) * model.forward(reading) / probe.seconds(reading, extension, scale)

    def rate(self, model: Size, cell: Cell, reading: Reading) -> float | None:
        """Median of the seconds per FLOP of texts like those of a reading; None if there are none."""
        rates = self.found.get(_key(model, cell.extension, cell.evaluate, reading))
        return statistics.median(rates) if rates else None


def _key(model: Size, extension: dict, evaluate: dict, reading: Reading) -> tuple[Hashable, ...]:
    return model, evaluate["dtype"], method_name(extension), round(math.log2(reading.tokens))


def checkpoint_time(texts: Texts, cells: Iterable[tuple[Job, Cell, Work]]) -> tuple[float | None, str]:
    """(seconds, what they rest on) of evaluations of checkpoints; None if their device is not there to be measured."""
    total, stored, probes, corrections = 0.0, False, {}, {}
    for job, cell, planned in cells:
        for reading in planned.reading:
            rate = texts.rate(planned.model, cell, reading)
            if rate is not None:
                stored = True
                total += rate * planned.model.forward(reading)
                continue
            from posbench.evaluation.probe import Probe

            key = job.run.path, cell.evaluate["dtype"]
            try:
                if key not in probes:
                    probes[key] = Probe(job.cfg, vocabulary(job.cfg), key[1])
                    corrections[key] = texts.correction(probes[key], planned.model, key[1])
                total += corrections[key] * probes[key].seconds(reading, cell.extension, cell.scale_attention)
            except ConfigError as error:
                return None, str(error)
    basis = ["stored evaluations of texts like these"] * stored + ["one layer measured just now"] * bool(probes)
    return total, f"by {' and '.join(basis)}"
