"""Losses of options: their evaluations, and the search on validation documents."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from posbench.common.errors import ConfigError
from posbench.common.quantities import duration_words, plural
from posbench.config.identity import NO_EXTENSION, NO_SCALE
from posbench.evaluation.protocol import ReadVolume
from posbench.sweep.cost import Timing, model_size
from posbench.sweep.jobs import Job
from posbench.sweep.launch import measure_methods
from posbench.tools.advice.decide import WITHOUT_SETTING, Losses, names_by_mean
from posbench.tools.advice.plan import (
    AS_IT_IS,
    CUT,
    CUT_TEXT,
    UNCHANGED,
    AdvicePlan,
    Option,
    OptionsAtLengths,
    families_to_go_on,
)

NO_METHODS = json.dumps([NO_EXTENSION, NO_SCALE])


class Reading(NamedTuple):
    """Evaluation that measures an option at a length."""

    methods: str  # JSON
    length: int  # tokens that are read


@dataclass
class Measurements:
    """Losses by split of the one model that `raw` names.

    `options` are those measured, `left_out` the reasons of others.
    """

    raw: dict
    launcher: dict
    command: str
    plan: AdvicePlan
    job: Job
    losses: dict[str, Losses] = field(default_factory=dict)
    options: dict[str, Option] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @cached_property
    def encoding(self):
        """Encoding of the model, by which options are refused or without effect."""
        from posbench.model.build import make_encoding

        return make_encoding(self.job.config)

    def readings_of_acting(self, at_lengths: OptionsAtLengths) -> dict[tuple[str, int], Reading]:
        """{(option, length): the evaluation that measures it}, of options that act.

        One that is refused or never acts goes to `left_out` instead, the others to `options`.
        """
        readings: dict[tuple[str, int], Reading] = {}
        for option, lengths in at_lengths:
            try:
                of_option = {length: self._reading_of(option, length) for length in lengths}
            except ConfigError as error:
                self.left_out[option.name] = str(error)
                continue
            # Options without a setting stay where they change nothing: others are compared with
            # them.
            acts = any(reading.methods != NO_METHODS for reading in of_option.values())
            if not acts and option.name not in WITHOUT_SETTING:
                self.left_out[option.name] = f"changes nothing up to {max(lengths):,} tokens"
                continue
            for length, reading in of_option.items():
                readings[option.name, length] = reading
            self.options[option.name] = option
        return readings

    def leave_out_without_effect(self, options: Sequence[Option], length: int) -> None:
        """Put the options that are refused or never act at a length into `left_out`."""
        self.readings_of_acting([(option, [length]) for option in options])

    def _reading_of(self, option: Option, length: int) -> Reading:
        """Methods and length to evaluate for an option; no methods where it changes nothing."""
        from posbench.position.instantiate import make_method
        from posbench.position.legality import verdict_of

        extension, scale = option.methods_at(length, self.plan.train_len)
        verdict = verdict_of(
            self.encoding,
            make_method(extension),
            make_method(scale, self.encoding.shape),
            [length],
            self.raw["allow_untested"],
        )
        if verdict.noop:
            return Reading(NO_METHODS, length)
        if option.name == CUT and length > self.plan.train_len:
            length = self.plan.target  # the cut text is the same at every length beyond training
        return Reading(json.dumps([extension, scale]), length)

    def measure(self, split: str, at_lengths: OptionsAtLengths, title: str) -> None:
        """Evaluate what is missing and read the losses.

        Raises RunError when an evaluation failed.
        """
        plan = self.plan
        readings = self.readings_of_acting(at_lengths)
        evaluate = {
            **self.raw["evaluate"],
            "protocol": ["fixed_targets"],
            "split": split,
            "max_length": plan.target,
            "windows": plan.windows[split],
            "targets": plan.targets,
            "floor": False,  # the cut text is an option itself
        }
        evaluations = measure_methods(
            {**self.raw, "evaluate": evaluate},
            readings.values(),
            self.launcher,
            self.command,
            title,
        )
        nll = dict(self.losses[split].nll) if split in self.losses else {}
        for (name, length), reading in readings.items():
            stored = evaluations[reading.methods].stored
            nll[name] = {**nll.get(name, {}), length: stored.at("nll", reading.length).ravel()}
        # Fixed factors come before those that follow the length: among equals the simpler is taken.
        order = sorted(
            nll,
            key=lambda name: (name not in WITHOUT_SETTING, self.options[name].factor is None),
        )
        # All evaluations of a split score the same targets.
        document_T = next(iter(evaluations.values())).arrays["document"]
        self.losses[split] = Losses(document_T, {name: nll[name] for name in order})

    def search(self, families: Sequence[str]) -> None:
        """Measure on validation documents.

        Only the best families of the first stage go on to the target.
        """
        plan = self.plan
        probed = plan.first_stage(families)
        at_lengths = [
            (AS_IT_IS, [*plan.short_lengths, plan.probe_length]),
            (CUT_TEXT, sorted({*plan.short_lengths, plan.probe_length, plan.target})),
            *((option, [plan.probe_length]) for option in probed),
        ]
        title = f"comparing {plural(len(families), 'method')} at {plan.probe_length:,} tokens"
        self.measure("validation", at_lengths, title)
        if not any(option.name in self.options for option in probed):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items())
            raise ConfigError(f"none of the methods has an effect on this model ({reasons}).")
        means = self.losses["validation"].mean_by_option([plan.probe_length])
        order = [
            self.options[name].family
            for name in names_by_mean(means)
            if name not in WITHOUT_SETTING
        ]
        best = families_to_go_on(list(dict.fromkeys(order)))
        at_lengths = plan.second_stage(best)
        # A model that is broken already at the probe is read at the target on test documents alone.
        if means[UNCHANGED] <= means[CUT]:
            at_lengths = [*at_lengths, (AS_IT_IS, [*plan.short_lengths, plan.target])]
        title = f"comparing the factors of {', '.join(best)} at {plan.target:,} tokens"
        self.measure("validation", at_lengths, title)

    def plan_lines(self, families: Sequence[str], windows: dict[str, str]) -> list[str]:
        """Lines on the three stages and their time.

        `windows`: those of each split, in words.
        """
        plan = self.plan
        config = self.job.config
        probed = plan.first_stage(families)
        # For the lines of `left_out`: `probed` keeps all, of which the search will leave these out.
        self.leave_out_without_effect(probed, plan.probe_length)
        timing = Timing([self.job])
        # a window at the target length, whose last tokens are scored
        text = ReadVolume(
            texts=1,
            tokens_per_text=plan.target,
            rows_per_text=plan.targets,
            total_losses=plan.targets,
        )
        dtype = config.evaluate.dtype
        seconds = timing.seconds_of_text(self.job, dtype, NO_EXTENSION, NO_SCALE, text)
        seconds_per_flop = seconds / model_size(config).forward_flop(text)
        duration = duration_words(plan.flop * seconds_per_flop)
        short = ", ".join(f"{length:,}" for length in plan.short_lengths)
        grid = ", ".join(f"{length:,}" for length in plan.finalist_lengths)
        model = config.model.path or self.job.run.path
        return [
            f"{model}: {plan.train_len:,} to {plan.target:,} tokens",
            f"search: {len(probed)} options at {plan.probe_length:,} tokens, "
            f"{windows['validation']}",
            f"factors: the best methods at {short} and {plan.target:,} tokens, in the same windows",
            f"test: the finalists at {grid} tokens, {windows['test']}",
            *(f"left out: {name}: {reason}" for name, reason in self.left_out.items()),
            f"{plan.work_words}; budget= multiplies the windows",
            f"about {duration} on this machine (by {timing.basis}), less what is there already",
        ]
