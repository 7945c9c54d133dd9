"""Losses of candidates for scripts/advise.py: which evaluations serve a candidate at a length, the job that makes them, their arrays."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from posbench.advice.decide import CUT, PLAIN, Losses, Option
from posbench.advice.plan import Candidate, Plan
from posbench.common.errors import ConfigError, RunError
from posbench.config.identity import NO_EXTENSION, NO_SCALE
from posbench.runs.evaluation import load
from posbench.sweep.cells import Cell
from posbench.sweep.jobs import Job, plan_jobs
from posbench.sweep.launch import launch

NONE = json.dumps([NO_EXTENSION, NO_SCALE])
Wanted = Iterable[tuple[Candidate, Sequence[int]]]


@dataclass
class Measurements:
    """Losses by split, option and length, of the one model that `cfg` names, and the options left out with the reason."""

    cfg: dict
    launcher: dict
    command: str
    plan: Plan
    job: Job
    losses: dict[str, dict[str, dict[int, np.ndarray]]] = field(default_factory=lambda: {"validation": {}, "test": {}})
    documents: dict[str, np.ndarray] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    options: dict[str, Option] = field(default_factory=dict)

    @cached_property
    def encoding(self):
        """Encoding of the model, which says what acts on it."""
        from posbench.model.build import make_encoding

        return make_encoding(self.job.cfg)

    def of(self, split: str) -> Losses:
        """Losses of a split so far. Fixed factors come before those that follow the length: among equals the simpler is taken."""
        order = sorted(self.losses[split], key=lambda name: (name not in (PLAIN, CUT), self.options[name].factor is None))
        return Losses(self.documents[split], {name: self.losses[split][name] for name in order})

    def served(self, wanted: Wanted) -> dict[tuple[str, int], tuple[str, int]]:
        """{(option, length): (methods as JSON, length to evaluate)}. A candidate that is refused or never acts goes to `left_out`."""
        found: dict[tuple[str, int], tuple[str, int]] = {}
        for candidate, lengths in wanted:
            try:
                own = {(candidate.name, length): self._methods(candidate, length) for length in lengths}
            except ConfigError as error:
                self.left_out[candidate.name] = str(error)
                continue
            if candidate.name not in (PLAIN, CUT) and all(methods == NONE for methods, _ in own.values()):
                self.left_out[candidate.name] = f"changes nothing up to {max(lengths)} tokens"
                continue
            found |= own
            self.options[candidate.name] = candidate.option
        return found

    def _methods(self, candidate: Candidate, length: int) -> tuple[str, int]:
        from posbench.position.instantiate import make
        from posbench.position.legality import check

        extension, scale = candidate.at(length, self.plan.train_len)
        verdict = check(self.encoding, make(extension), make(scale, self.encoding.shape), [length], self.cfg["allow_untested"])
        if verdict.noop:
            return NONE, length
        beyond = candidate.name == CUT and length > self.plan.train_len  # the same texts are read, whatever the length
        return json.dumps([extension, scale]), self.plan.target if beyond else length

    def planned(self, split: str, wanted: Wanted) -> tuple[Job, dict[tuple[str, int], tuple[Cell, int]]]:
        """The job that makes what is wanted, and the evaluation and length that serve each (option, length)."""
        served = self.served(wanted)
        lengths: dict[str, set[int]] = defaultdict(set)
        for methods, length in served.values():
            lengths[methods].add(length)
        (job,) = plan_jobs([self._cfg(split, *json.loads(methods), sorted(own)) for methods, own in lengths.items()])
        cells = {json.dumps([cell.extension, cell.scale_attention]): cell for cell in job.cells}
        return job, {key: (cells[methods], length) for key, (methods, length) in served.items()}

    def _cfg(self, split: str, extension: dict, scale: dict, lengths: list[int]) -> dict:
        plan = self.plan
        evaluate = {**self.cfg["evaluate"], "protocol": ["fixed_targets"], "split": split, "lengths": lengths, "max_length": plan.target}
        evaluate |= {"windows": plan.windows[split], "targets": plan.targets, "floor": False}
        return {**self.cfg, "extension": extension, "scale_attention": scale, "evaluate": evaluate}

    def measure(self, split: str, wanted: Wanted, title: str) -> None:
        """Evaluate what is missing and read the losses. Raises RunError when an evaluation failed."""
        job, serving = self.planned(split, wanted)
        missing = sum(len(cell.missing()) for cell in job.cells)
        if missing:
            print(f"{title}: {missing} evaluations to make", file=sys.stderr, flush=True)
        (result,) = launch([job], {"n_jobs": 1, **self.launcher}, self.command)
        for outcome in result.outcomes:
            if outcome.status not in ("done", "exists"):
                error = ConfigError if outcome.status == "refused" else RunError
                raise error(f"{outcome.label or job.run.id}: {outcome.reason}")
        read = {cell.path: load(cell.path) for cell, _ in serving.values()}
        first = next(iter(read.values()))
        for (name, length), (cell, at) in serving.items():
            if not read[cell.path].same_targets(first):
                raise RunError(f"{cell.path} scored other targets than {first.path}: delete both and run the same command again.")
            self.losses[split].setdefault(name, {})[length] = read[cell.path].losses(at).astype(np.float64)
        self.documents[split] = first.arrays["document"]
