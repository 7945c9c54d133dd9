"""Losses of sets of LongRoPE's factors on validation text, and the search among them for one model and target.

The loss of an individual is that of protocol fixed_targets at the target, in this process. Each is a line of a log as soon as it is
measured, and equal settings draw equal searches, so that a search goes on where it was stopped.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.advice.factor_search import HIGHEST, Individual, Sizes, evolve
from posbench.common.errors import ConfigError
from posbench.common.files import append_lines, read_lines
from posbench.common.progress import Progress
from posbench.config.defaults import LONG
from posbench.evaluation.protocol import protocol
from posbench.sweep.finetune import LONGER
from posbench.sweep.jobs import Job, plan_jobs
from posbench.sweep.verdict import judge_job

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.position.geometry import Spectrum

MANY_WINDOWS, FEW_WINDOWS = 64, 8  # by default, and of training lengths above LONG
EXACT_FIRST = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)  # values of exact_first by default, up to the training length


def plan_search(cfg: dict) -> tuple[Job, list[int]]:
    """The job with one evaluation, that of the start at the target, and the values of exact_first. Raises ConfigError as the job does."""
    asked = cfg["evaluate"]
    (job,) = plan_jobs([{**cfg, "evaluate": {**asked, "floor": False}}])
    train_len = job.cfg.train.train_len
    target = cfg["target"] or LONGER * train_len
    if target <= train_len:
        raise ConfigError(f"target={target} is within the model's training length of {train_len} tokens: give a longer one.")
    exact = list(dict.fromkeys(cfg["exact_first"] or [first for first in EXACT_FIRST if first <= train_len]))
    if max(exact) > train_len:
        raise ConfigError(f"exact_first={max(exact)} exceeds the model's training length of {train_len} tokens: give at most {train_len}.")
    evaluate = {
        **asked,
        "protocol": ["fixed_targets"],
        "lengths": [target],
        "max_length": target,
        "floor": False,
        "windows": asked["windows"] or (FEW_WINDOWS if train_len > LONG else MANY_WINDOWS),
        "targets": asked["targets"] or max(1, train_len // 2),
    }
    (job,) = plan_jobs([{**cfg, "extension": {**cfg["extension"], "mode": "fixed", "target_len": target}, "evaluate": evaluate}])
    judged = judge_job(job)
    refused = judged.refused or next((one.reason for one in judged.cells.values() if one.status in ("refused", "noop")), "")
    if refused:
        raise ConfigError(refused)
    return job, exact


def search(
    job: Job, corpus: "Corpus", windows: int, exact: list[int], size: Sizes, log: Path
) -> tuple[dict[Individual, float], dict[str, float]]:
    """(losses of all individuals, losses by name of the model as it is and of the starts). What the log knows is not measured again."""
    from posbench.extensions.none import NoExtension
    from posbench.model.build import load_model, pick_device
    from posbench.position.instantiate import make
    from posbench.sweep.evaluate_cell import cell_evaluation

    (cell,), device = job.cells, pick_device(job.cfg.device)
    (target,) = cell.evaluate.lengths
    model = load_model(job.run, job.cfg, corpus.vocab_size, device).eval()
    given = cell_evaluation(model, corpus, cell, device)
    turning = (layer.encoding for layer in model.encoding.layers() if layer.extended)
    spectrum = next(found for one in turning if (found := one.spectrum_at(target)) is not None)
    starts = _starts(spectrum, given.train_len, target, 0 if 0 in exact else exact[0])

    def measure(**changed: object) -> float:
        nll_NS, _ = protocol(cell.protocol)(replace(given, **changed)).score(target)
        return float(nll_NS.mean(dtype="float64"))

    with Progress(size.total * windows * target, "search", "tokens") as progress:
        plain, known, best = measure(extension=NoExtension()), known_losses(log), math.inf

        def loss(one: Individual) -> float:
            nonlocal best
            found = known.get(one)
            if found is None:
                extension = make({**cell.extension, "factors": list(one[1:]), "exact_first": one[0]})
                found = measure(extension=extension, progress=progress.update)
                append_lines(log, [{"nll": found, "exact_first": one[0], "factors": one[1:]}])
            else:
                progress.update(windows * target, spared=True)
            best = min(best, found)
            progress.update(0, part=True, best=best)
            return found

        found = evolve(loss, starts.values(), exact, HIGHEST * target / given.train_len, size, cell.evaluate.seed)
    found |= {one: nll for one, nll in known.items() if one[0] in exact}  # of searches with other sizes
    return found, {"as it is": plain, **{f"{name}'s factors": found[one] for name, one in starts.items()}}


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


def known_losses(log: Path) -> dict[Individual, float]:
    """Losses of individuals in a log. A line that was cut short is left out."""
    return {(one["exact_first"], *one["factors"]): math.inf if one["nll"] is None else one["nll"] for one in read_lines(log)}
