"""Losses of options: the evaluations of an option at a length, their job, and the search on validation documents."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np

from posbench.advice.decide import Losses, ranked
from posbench.advice.plan import AS_IT_IS, CUT, CUT_TEXT, UNCHANGED, AdvicePlan, Option, Wanted, survivors
from posbench.common.errors import ConfigError, RunError
from posbench.config.identity import NO_EXTENSION, NO_SCALE
from posbench.data import prepare
from posbench.runs.evaluation import load_evaluation
from posbench.sweep.cells import Cell
from posbench.sweep.cost_estimate import cost
from posbench.sweep.jobs import Job, plan_methods
from posbench.sweep.launch import launch_one

NO_METHODS = json.dumps([NO_EXTENSION, NO_SCALE])
BROKEN_BY = 1.0  # nats per token above the cut text from which the model as it is is not read at the target


@dataclass
class Measurements:
    """Losses by split of the one model that `cfg` names, the options measured, and those left out with the reason."""

    cfg: dict
    launcher: dict
    command: str
    plan: AdvicePlan
    job: Job
    losses: dict[str, Losses] = field(default_factory=dict)
    options: dict[str, Option] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @cached_property
    def encoding(self):
        """Encoding of the model, which says what acts on it."""
        from posbench.model.build import make_encoding

        return make_encoding(self.job.cfg)

    def served(self, wanted: Wanted) -> dict[tuple[str, int], tuple[str, int]]:
        """{(option, length): (methods as JSON, length to evaluate)}. An option that is refused or never acts goes to `left_out`."""
        found: dict[tuple[str, int], tuple[str, int]] = {}
        for option, lengths in wanted:
            try:
                own = {(option.name, length): self._methods(option, length) for length in lengths}
            except ConfigError as error:
                self.left_out[option.name] = str(error)
                continue
            if option.name not in (UNCHANGED, CUT) and all(methods == NO_METHODS for methods, _ in own.values()):
                self.left_out[option.name] = f"changes nothing up to {max(lengths)} tokens"
                continue
            found |= own
            self.options[option.name] = option
        return found

    def _methods(self, option: Option, length: int) -> tuple[str, int]:
        from posbench.position.instantiate import make
        from posbench.position.legality import check

        extension, scale = option.at(length, self.plan.train_len)
        verdict = check(self.encoding, make(extension), make(scale, self.encoding.shape), [length], self.cfg["allow_untested"])
        if verdict.noop:
            return NO_METHODS, length
        beyond = option.name == CUT and length > self.plan.train_len  # the same texts are read, whatever the length
        return json.dumps([extension, scale]), self.plan.target if beyond else length

    def planned(self, split: str, wanted: Wanted) -> tuple[Job, dict[tuple[str, int], tuple[Cell, int]]]:
        """The job that makes what is wanted, and the evaluation and length that serve each (option, length)."""
        served, plan = self.served(wanted), self.plan
        settings = {"protocol": ["fixed_targets"], "split": split, "max_length": plan.target, "windows": plan.windows[split]}
        settings = {**self.cfg["evaluate"], **settings, "targets": plan.targets, "floor": False}
        job, cells = plan_methods({**self.cfg, "evaluate": settings}, served.values())
        return job, {key: (cells[methods], length) for key, (methods, length) in served.items()}

    def measure(self, split: str, wanted: Wanted, title: str) -> None:
        """Evaluate what is missing and read the losses. Raises RunError when an evaluation failed."""
        job, serving = self.planned(split, wanted)
        if missing := sum(len(cell.missing()) for cell in job.cells):
            print(f"{title}: {missing} evaluations to make", file=sys.stderr, flush=True)
        launch_one(job, self.launcher, self.command)
        read = {cell.path: load_evaluation(cell.path) for cell, _ in serving.values()}
        first = next(iter(read.values()))
        nll = dict(self.losses[split].nll) if split in self.losses else {}
        for (name, length), (cell, at) in serving.items():
            if not read[cell.path].same_targets(first):
                raise RunError(f"{cell.path} scored different targets than {first.path}: delete both and run the same command again.")
            nll[name] = {**nll.get(name, {}), length: read[cell.path].losses(at).astype(np.float64)}
        # Fixed factors come before those that follow the length: among equals the simpler is taken.
        order = sorted(nll, key=lambda name: (name not in (UNCHANGED, CUT), self.options[name].factor is None))
        self.losses[split] = Losses(first.arrays["document"], {name: nll[name] for name in order})

    def search(self, families: Sequence[str]) -> None:
        """Measure on validation documents. Only the best families of the first stage go on to the target."""
        plan, probing = self.plan, self.plan.probed(families)
        cut = (CUT_TEXT, sorted({*plan.short, plan.probe, plan.target}))
        wanted = [(AS_IT_IS, [*plan.short, plan.probe]), cut, *((one, [plan.probe]) for one in probing)]
        title = f"comparing {len(families)} method{'s' * (len(families) != 1)} at {plan.probe:,} tokens"
        self.measure("validation", wanted, title)
        if not any(one.name in self.options for one in probing):
            reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
            raise ConfigError(f"none of the methods has an effect on this model ({reasons}).")
        means = self.losses["validation"].means([plan.probe])
        kept = survivors(list(dict.fromkeys(self.options[name].family for name in ranked(means) if name not in (UNCHANGED, CUT))))
        wanted = plan.compared(kept)
        if means[UNCHANGED] <= means[CUT]:  # else it is broken already, and only the test documents show how much at the target
            wanted = [*wanted, (AS_IT_IS, [*plan.short, plan.target])]
        self.measure("validation", wanted, f"comparing the factors of {', '.join(kept)} at {plan.target:,} tokens")

    def judge(self, final: Sequence[str]) -> None:
        """Measure the finalists on test documents; at the target not the model as it is, if it is broken before."""
        plan, means = self.plan, self.losses["validation"].means([self.plan.probe])
        above = means[UNCHANGED] - means[CUT]
        if broken := plan.probe < plan.target and above > BROKEN_BY:
            at = f"at {plan.probe:,} tokens of validation text its loss is {above:.1f} nats above that of the cut text"
            self.left_out[UNCHANGED] = f"not read at {plan.target:,} tokens, since {at}"
        self.measure("test", plan.judged(final, self.options, broken), f"judging {len(final)} options on test documents")

    def describe(self, families: Sequence[str], documents: dict[str, int]) -> list[str]:
        """Lines for the three stages, and the estimated cost. Which methods go on is not known yet: the plan's stand-ins are described."""
        plan, job = self.plan, self.job
        missing, lines = [], [f"{job.cfg.model.path or job.run.path}: {plan.train_len:,} to {plan.target:,} tokens"]
        for title, split, wanted in plan.stand_ins(families):
            planned, serving = self.planned(split, wanted)
            shown = " ".join(f"{length:,}" for length in sorted({length for _, asked in wanted for length in asked}))
            windows = f"{plan.windows[split]} window{'s' * (plan.windows[split] != 1)}"
            fit = f"{documents[split]} document{'s' * (documents[split] != 1)} long enough"
            lines.append(f"{title}: {len(wanted)} options at {shown} tokens, {windows} ({fit})")
            cells = {cell.path: cell for cell, _ in serving.values()}
            missing += [(planned, cell, left) for cell in cells.values() if (left := cell.missing())]
        lines += [f"left out: {name}: {why}" for name, why in self.left_out.items()]
        lines.append(f"{plan.told}; budget= multiplies the windows")
        return lines + cost([job], [] if job.run.finished else [job], missing)


def long_enough(job: Job, plan: AdvicePlan) -> dict[str, int]:
    """{split: documents that are long enough}. Raises ConfigError for a text whose splits lack them."""
    found, named = {}, job.cfg.evaluate.documents
    for split in plan.windows:
        corpus = prepare(job.cfg.data, job.cfg.cache_dir, (split,))
        file = getattr(corpus, split)
        fit = [named is None or fnmatchcase(name, named) for name in file.names]
        lengths = [int(length) for length, fits in zip(file.document_lengths(), fit, strict=True) if fits]
        found[split] = sum(length > plan.target for length in lengths)
        if not found[split]:
            if named is not None and not lengths:
                raise ConfigError(f"evaluate.documents={named} matches no {split} document of data={corpus.name}: give another glob.")
            most = max(lengths, default=0) - 1
            shorter = f", or a shorter target={most}" if most > plan.train_len else ""
            raise ConfigError(
                f"data={corpus.name} has no {split} document of the {plan.target + 1:,} tokens that target={plan.target} needs (the "
                f"longest of {len(lengths)} has {most + 1:,}): give longer documents of both splits, such as data=books data.path=DIR"
                f"{shorter}."
            )
    return found
