"""Losses of sets of LongRoPE's factors on validation text, and the sets that a search starts from."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.advice.factor_search import Individual
from posbench.common.files import read_bytes
from posbench.evaluation.protocols import protocol
from posbench.sweep.cells import Cell
from posbench.sweep.jobs import Job

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.position.geometry import Spectrum


def factor_losses(
    job: Job, cell: Cell, corpus: "Corpus", exact: list[int], told: Callable[..., None]
) -> tuple[Callable[[Individual], float], dict[str, Individual], float]:
    """Function from an individual to its loss in nats per token, the individuals of the start by name, and the loss without any.

    `exact` holds the values of exact_first. `told` is called as Evaluation.progress while an individual is measured.
    """
    from posbench.extensions.none import NoExtension
    from posbench.model.build import load_model, pick_device
    from posbench.position.instantiate import make
    from posbench.sweep.evaluate_cell import evaluation

    device, (target,) = pick_device(job.cfg["device"]), cell.evaluate["lengths"]
    model = load_model(job.run, job.cfg, corpus.vocab_size, device).eval()
    given = evaluation(model, corpus, cell, device)

    def loss(**changed: object) -> float:
        nll_NS, _ = protocol(cell.protocol)(replace(given, **changed)).score(target)
        return float(nll_NS.mean(dtype="float64"))

    def measure(one: Individual) -> float:
        return loss(extension=make({**cell.extension, "factors": list(one[1:]), "exact_first": one[0]}), progress=told)

    turning = (layer.encoding for layer in model.encoding.layers() if layer.extended)
    spectrum = next(found for one in turning if (found := one.spectrum_at(target)) is not None)
    return measure, _starts(spectrum, given.train_len, target, 0 if 0 in exact else exact[0]), loss(extension=NoExtension())


def _starts(spectrum: "Spectrum", train_len: int, target: int, first: int) -> dict[str, Individual]:
    """Individuals with `first` exact positions and the factors of PI, NTK-aware scaling and YaRN."""
    from posbench.extensions.ntk import Ntk
    from posbench.extensions.ntk_by_parts import NtkByParts
    from posbench.position.geometry import Span

    span = Span(train_len, target, target)
    found = {"pi": (first, *[span.factor] * len(spectrum.freq_F))}
    for name, extension in (("ntk", Ntk()), ("yarn", NtkByParts(ramp="index"))):
        divisor_F = spectrum.freq_F / extension.spectrum(spectrum, span).freq_F
        found[name] = (first, *divisor_F.nan_to_num(span.factor).cummax(0).values.tolist())  # a pair that does not turn has any factor
    return found


def known_losses(log: Path, sizes: set[int]) -> dict[Individual, float]:
    """Losses of individuals in a log; `sizes`: their numbers of values. A line that was cut short, or is damaged, is left out."""
    found = {}
    for line in read_bytes(log).splitlines() if log.exists() else ():
        try:
            one = json.loads(line)
            individual, nll = (one["exact_first"], *one["factors"]), math.inf if one["nll"] is None else one["nll"]
            numbers = isinstance(individual[0], int) and all(map(math.isfinite, individual))
            if numbers and len(individual) in sizes and nll >= 0:
                found[individual] = nll
        except (ValueError, KeyError, TypeError):
            continue
    return found
