"""Losses of options: the evaluations of an option at a length, their job, and the search on
validation documents.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from posbench.common.errors import ConfigError
from posbench.config.identity import NO_EXTENSION, NO_SCALE
from posbench.evaluation.protocol import ReadVolume
from posbench.sweep.cost import Timing, duration_words, model_size
from posbench.sweep.jobs import Job
from posbench.sweep.launch import measure_methods
from posbench.tools.advice.decide import Losses, ranked
from posbench.tools.advice.plan import (
    AS_IT_IS,
    CUT,
    CUT_TEXT,
    UNCHANGED,
    AdvicePlan,
    Option,
    Wanted,
    survivors,
)

NO_METHODS = json.dumps([NO_EXTENSION, NO_SCALE])


@dataclass
class Measurements:
    """Losses by split of the one model that `cfg` names, the options measured, and those left out
    with the reason.
    """

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

        return make_encoding(self.job.config)

    def served(self, wanted: Wanted) -> dict[tuple[str, int], tuple[str, int]]:
        """{(option, length): (methods as JSON, length to evaluate)}. An option that is refused or
        never acts goes to `left_out`.
        """
        found: dict[tuple[str, int], tuple[str, int]] = {}
        for option, lengths in wanted:
            try:
                own = {(option.name, length): self._methods(option, length) for length in lengths}
            except ConfigError as error:
                self.left_out[option.name] = str(error)
                continue
            if option.name not in (UNCHANGED, CUT) and all(
                methods == NO_METHODS for methods, _ in own.values()
            ):
                self.left_out[option.name] = f"changes nothing up to {max(lengths):,} tokens"
                continue
            found |= own
            self.options[option.name] = option
        return found

    def _methods(self, option: Option, length: int) -> tuple[str, int]:
        from posbench.position.instantiate import make
        from posbench.position.legality import check

        extension, scale = option.at(length, self.plan.train_len)
        verdict = check(
            self.encoding,
            make(extension),
            make(scale, self.encoding.shape),
            [length],
            self.cfg["allow_untested"],
        )
        if verdict.noop:
            return NO_METHODS, length
        beyond = (
            option.name == CUT and length > self.plan.train_len
        )  # the same texts are read, whatever the length
        return json.dumps([extension, scale]), self.plan.target if beyond else length

    def measure(self, split: str, wanted: Wanted, title: str) -> None:
        """Evaluate what is missing and read the losses. Raises RunError when an evaluation
        failed.
        """
        served, plan = self.served(wanted), self.plan
        settings = {
            "protocol": ["fixed_targets"],
            "split": split,
            "max_length": plan.target,
            "windows": plan.windows[split],
        }
        settings = {**self.cfg["evaluate"], **settings, "targets": plan.targets, "floor": False}
        read = measure_methods(
            {**self.cfg, "evaluate": settings}, served.values(), self.launcher, self.command, title
        )
        nll = dict(self.losses[split].nll) if split in self.losses else {}
        for (name, length), (methods, at) in served.items():
            nll[name] = {**nll.get(name, {}), length: read[methods].stored.at("nll", at).ravel()}
        # Fixed factors come before those that follow the length: among equals the simpler is taken.
        order = sorted(
            nll, key=lambda name: (name not in (UNCHANGED, CUT), self.options[name].factor is None)
        )
        document_T = next(iter(read.values())).arrays["document"]
        self.losses[split] = Losses(document_T, {name: nll[name] for name in order})

    def search(self, families: Sequence[str]) -> None:
        """Measure on validation documents. Only the best families of the first stage go on to the
        target.
        """
        plan, probing = self.plan, self.plan.probed(families)
        cut = (CUT_TEXT, sorted({*plan.short, plan.probe, plan.target}))
        wanted = [
            (AS_IT_IS, [*plan.short, plan.probe]),
            cut,
            *((one, [plan.probe]) for one in probing),
        ]
        title = (
            f"comparing {len(families)} method{'s' * (len(families) != 1)} at {plan.probe:,} tokens"
        )
        self.measure("validation", wanted, title)
        if not any(one.name in self.options for one in probing):
            reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
            raise ConfigError(f"none of the methods has an effect on this model ({reasons}).")
        means = self.losses["validation"].means([plan.probe])
        kept = survivors(
            list(
                dict.fromkeys(
                    self.options[name].family
                    for name in ranked(means)
                    if name not in (UNCHANGED, CUT)
                )
            )
        )
        wanted = plan.compared(kept)
        if (
            means[UNCHANGED] <= means[CUT]
        ):  # else it is broken already, and only the test documents show how much at the target
            wanted = [*wanted, (AS_IT_IS, [*plan.short, plan.target])]
        self.measure(
            "validation",
            wanted,
            f"comparing the factors of {', '.join(kept)} at {plan.target:,} tokens",
        )

    def describe(self, families: Sequence[str], read: dict[str, str]) -> list[str]:
        """Lines for the three stages and their time; `read`: the windows of each split in words."""
        plan, cfg, text = (
            self.plan,
            self.job.config,
            ReadVolume(1, self.plan.target, self.plan.targets, self.plan.targets),
        )
        probing, short = plan.probed(families), ", ".join(f"{length:,}" for length in plan.short)
        self.served([(one, [plan.probe]) for one in probing])  # says what is left out
        time = Timing([self.job])
        each = time.of_text(
            self.job, cfg.evaluate.dtype, NO_EXTENSION, NO_SCALE, text
        ) / model_size(cfg).forward(text)
        return [
            f"{cfg.model.path or self.job.run.path}: {plan.train_len:,} to {plan.target:,} tokens",
            f"search: {len(probing)} options at {plan.probe:,} tokens, {read['validation']}",
            f"factors: the best methods at {short} and {plan.target:,} tokens, in the same windows",
            (
                f"test: the finalists at {', '.join(f'{length:,}' for length in plan.grid)} tokens,"
                f" {read['test']}"
            ),
            *(f"left out: {name}: {why}" for name, why in self.left_out.items()),
            f"{plan.told}; budget= multiplies the windows",
            (
                f"about {duration_words(plan.flop * each)} on this machine (by {time.basis}), less"
                " what is there already"
            ),
        ]
