"""Losses of candidates on the tokens of an engine's rows."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import read_json
from posbench.evaluation.registry import protocol
from posbench.position.trusted import trusted_config
from posbench.results.evaluation import Evaluation, load_evaluation
from posbench.runs.directory import Run
from posbench.sweep.jobs import Job
from posbench.sweep.launch import measure_methods
from posbench.tools.identify.plan import Candidate

Losses = dict[int, np.ndarray]  # {length: [N, S]}


@dataclass(frozen=True)
class EngineRows:
    """Stored evaluation of an engine, with its run's configuration and its keys of evaluate."""

    evaluation: Evaluation
    config: dict
    evaluate: dict

    @property
    def protocol(self) -> str:
        return self.evaluation.first["protocol"]

    @property
    def lengths(self) -> list[int]:
        return sorted({row["length"] for row in self.evaluation.rows})

    @property
    def stated_setting(self) -> dict[str, float]:
        """The `factor` and the `original` length that the engine was started with, if its run has
        them.
        """
        options = self.config["encoding"]
        setting = {}
        # llama.cpp takes the factor as rope_scale, or its inverse as rope_freq_scale.
        factor = options.get("rope_scale") or 1 / (options.get("rope_freq_scale") or 1)
        if factor > 1:
            setting["factor"] = factor
        if original := options.get("yarn_orig_ctx"):
            setting["original"] = original
        return setting

    def losses(self, length: int) -> np.ndarray:
        """Loss of each target at one length [N, S].

        Raises ConfigError without them, and if some are not finite.
        """
        losses_NS = self.evaluation.stored.at("nll", length)
        if losses_NS is None:
            lengths = ",".join(map(str, self.lengths))
            raise ConfigError(
                f"lengths={length}: {self.evaluation.path} has no rows of {length}: choose from"
                f" {lengths}."
            )
        n_missing = int((~np.isfinite(losses_NS)).sum())
        if n_missing:
            raise ConfigError(
                f"{self.evaluation.path} holds {n_missing} losses that are not finite at {length}:"
                " leave it out of lengths=."
            )
        return losses_NS

    def window_of_targets(self, shape: tuple[int, int]) -> np.ndarray:
        """Number of each target's window, for losses of this shape.

        Consecutive tokens of a document are of one window.
        """
        arrays = self.evaluation.arrays
        if shape[1] > 1:  # a row for each window, else one for each token
            return np.broadcast_to(np.arange(shape[0])[:, None], shape)
        begins = (np.diff(arrays["document"]) != 0) | (np.diff(arrays["offset"]) != 1)
        return np.concatenate(([0], np.cumsum(begins)))[:, None]


def engine_rows(name: str) -> EngineRows:
    """The one evaluation of a run, or that of an eval json.

    Raises ConfigError where there is none or several.
    """
    path = Path(name)
    is_eval_file = path.is_file()  # RUN/evals/PROTOCOL/NAME.json
    run = Run(path.parents[2] if is_eval_file and len(path.parents) > 2 else path)
    if not run.has_config:
        raise ConfigError(
            f"engine={name} is neither the folder of a run nor one of its"
            " evals/PROTOCOL/NAME.json: give one of them."
        )
    config = trusted_config(run)
    paths = [path] if is_eval_file else run.eval_files()
    evaluations = [entry for entry in map(load_evaluation, paths) if _has_text_losses(entry)]
    if not is_eval_file:
        # A text that posbench cuts says nothing of how the engine extends one.
        evaluations = [e for e in evaluations if e.first["extension"] != "recompute_window"]
    if not evaluations:
        raise ConfigError(
            f"engine={name} holds no losses of single tokens of a text: let that engine evaluate"
            " fixed_targets first."
        )
    if len(evaluations) > 1:
        files = " or ".join(str(entry.path) for entry in evaluations[:3])
        raise ConfigError(
            f"engine={name} holds {len(evaluations)} evaluations: name the file of one of them,"
            f" such as {files}."
        )
    evaluation = evaluations[0]
    return EngineRows(evaluation, config, read_json(evaluation.path)["config"]["evaluate"])


def _has_text_losses(entry: Evaluation) -> bool:
    """True for an evaluation with losses of single targets of running text."""
    return (
        bool(entry.arrays and entry.setting)
        and not protocol(entry.first["protocol"]).needs_questions
    )


class Reading(NamedTuple):
    """Evaluation that gives the losses of a candidate at a length."""

    methods: str  # JSON
    tokens: int  # that are read


@dataclass
class Readings:
    """Readings of candidates.

    `by_candidate_and_length`: {(candidate, length): Reading}, of equal plans of a length the same.
    `same_as`: {candidate: itself and those of the very same plans at all lengths}. `left_out`:
    {candidate: reason}.
    """

    by_candidate_and_length: dict[tuple[str, int], Reading] = field(default_factory=dict)
    same_as: dict[str, list[Candidate]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def readings_of(job: Job, lengths: Sequence[int], candidates: Sequence[Candidate]) -> Readings:
    """Readings that give the losses of a model's candidates at some lengths.

    Raises ConfigError if all candidates are equal.
    """
    from posbench.model.build import make_encoding
    from posbench.position.effect import fingerprint
    from posbench.position.instantiate import make_method
    from posbench.position.legality import verdict_of
    from posbench.position.plan import make_plan

    encoding = make_encoding(job.config)
    readings = Readings()
    names: dict[tuple, str] = {}  # {fingerprints at all lengths: first candidate}
    by_plan: dict[object, Reading] = {}  # {fingerprint at a length: its first reading}
    for candidate in candidates:
        try:
            extension = make_method(candidate.extension)
            scale = make_method(candidate.scale, encoding.shape)
            # for its ConfigError where a candidate is illegal
            verdict_of(encoding, extension, scale, list(lengths), allow_untested=True)
            read_lengths = [min(length, candidate.cut or length) for length in lengths]
            plans = [make_plan(encoding, extension, scale, length=n) for n in read_lengths]
        except ConfigError as error:
            readings.left_out[candidate.name] = str(error)
            continue
        fingerprints = tuple(map(fingerprint, plans))
        name = names.setdefault(fingerprints, candidate.name)
        readings.same_as.setdefault(name, []).append(candidate)
        if name == candidate.name:
            methods = json.dumps([candidate.extension, candidate.scale])
            for length, n_read, plan in zip(lengths, read_lengths, fingerprints, strict=True):
                reading = by_plan.setdefault(plan, Reading(methods, n_read))
                readings.by_candidate_and_length[name, length] = reading
    if len(readings.same_as) < 2:
        raise ConfigError(
            f"all candidates are the same up to {max(lengths):,} tokens: let the engine read texts"
            f" beyond the training length of {job.config.train.train_len:,}."
        )
    return readings


def candidate_losses(
    raw: dict, engine: Evaluation, readings: Readings, launcher: dict, command: str
) -> dict[str, Losses]:
    """{candidate: its losses}, after what is missing was evaluated.

    One candidate comes first, to compare its tokens with the engine's. Raises RunError if an
    evaluation failed, ConfigError for other tokens.
    """
    every_reading = list(readings.by_candidate_and_length.values())
    n_candidates = len(readings.same_as)  # without those of the same plans as another
    first_title = "the first candidate, whose tokens are compared before the others are read"
    for part, title in (
        (every_reading[:1], first_title),
        (every_reading, f"{n_candidates} candidates"),
    ):
        evaluated = measure_methods(raw, part, launcher, command, title)
        for entry in evaluated.values():
            if entry.stored.documents != engine.stored.documents:
                raise ConfigError(
                    f"{engine.path} scored other tokens than {raw['model']['path']} reads in"
                    f" data={raw['data']['name']}: give that engine's weights or text (data=,"
                    " data.path=)."
                )
    losses: dict[str, Losses] = defaultdict(dict)
    for (name, length), reading in readings.by_candidate_and_length.items():
        losses[name][length] = evaluated[reading.methods].stored.at("nll", reading.tokens)
    return losses
