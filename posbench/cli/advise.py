"""Command of scripts/advise.py: what to set so that one model reads longer texts, chosen on validation and judged on test documents.

Three stages of evaluations, all stored as any others are; advise_plan.py says what each reads. The rule of the choice is in
posbench/advice/decide.py.
"""

import shlex
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase

from posbench.advice.decide import CUT, PLAIN, Question, finalists, rankings
from posbench.advice.measure import Measurements
from posbench.advice.plan import (
    BROKEN,
    KEPT,
    KEPT_OWN,
    OWN,
    SCALED,
    SINKS,
    Candidate,
    Plan,
    chosen,
    fixed,
    follow,
    make_plan,
    probed,
    references,
)
from posbench.advice.verdicts import ranked
from posbench.cli import one_protocol
from posbench.common.errors import ConfigError
from posbench.config.compose import Request
from posbench.config.identity import method_name
from posbench.config.schema import typed
from posbench.data import other_text, prepare
from posbench.sweep.cost import model_size
from posbench.sweep.cost_estimate import cost
from posbench.sweep.dry_run import check_devices
from posbench.sweep.fate import judge
from posbench.sweep.jobs import Job, plan_jobs

SPLITS = ("validation", "test")
DECIDED = ("lengths", "max_length", "windows", "protocol", "split", "floor", "targets")  # of evaluate, which the plan chooses


def advise(request: Request) -> int:
    """Search, judge, print the advice and write advice.json, the page and config.json. Returns the exit code."""
    cfg = _checked(request)
    (job,) = plan_jobs([cfg])
    if refused := judge(job).refused:
        raise ConfigError(refused)
    families, train_len = chosen(cfg["methods"]), typed("train", job.cfg["train"]).train_len
    plan = make_plan(model_size(job.cfg), train_len, cfg["target"], cfg["budget"], families)
    documents = _documents(job, plan)
    found = Measurements(cfg, request.launcher, shlex.join(sys.orig_argv), plan, job)
    if cfg["dry"]:
        check_devices([job], request.launcher)
        print("\n".join(describe(found, families, documents)))
        return 0
    print(f"{plan.train_len:,} to {plan.target:,} tokens, {plan.told} (dry=true tells the plan)", file=sys.stderr, flush=True)
    question = Question(train_len, plan.target, plan.short, cfg["tolerance"])
    candidates = {one.name: one for one in search(found, families)}
    validation = found.of("validation")
    ranking = rankings(validation, question)
    final = finalists(ranking, {name: one.option for name, one in candidates.items()}, validation, question)
    means = validation.means([plan.probe])
    above = means[PLAIN] - means[CUT]
    if broken := plan.probe < plan.target and above > BROKEN:
        at = f"at {plan.probe:,} tokens of validation text its loss is {above:.1f} nats above that of the cut text"
        found.left_out[PLAIN] = f"not read at {plan.target:,} tokens, since {at}"
    found.measure("test", judged(final, candidates, plan, broken), f"judging {len(final)} options on test documents")
    from posbench.advice.write import write

    about = {"probe": plan.probe, "windows": plan.windows, "left_out": found.left_out}
    return write(found, question, candidates, ranking, about)


def search(found: Measurements, families: tuple[str, ...]) -> list[Candidate]:
    """Measure on validation documents; returns the candidates. Only the best families of the first stage go on to the target."""
    plan, both = found.plan, references()
    probing = probed(families, 2 * plan.probe / plan.train_len)
    wanted = [(both[0], [*plan.short, plan.probe]), (both[1], sorted({*plan.short, plan.probe, plan.target}))]
    title = f"comparing {len(families)} method{'s' * (len(families) != 1)} at {plan.probe:,} tokens"
    found.measure("validation", wanted + [(one, [plan.probe]) for one in probing], title)
    if not any(one.name in found.options for one in probing):
        reasons = "; ".join(f"{name}: {why}" for name, why in found.left_out.items())
        raise ConfigError(f"none of the methods acts on this model ({reasons}).")
    means = found.of("validation").means([plan.probe])
    kept = survivors(list(dict.fromkeys(one.option.family for name in ranked(means) for one in probing if one.name == name)))
    wanted = compared(kept, plan)
    if means[PLAIN] <= means[CUT]:  # else it is broken already, and only the test documents show how much at the target
        wanted.append((both[0], [*plan.short, plan.target]))
    found.measure("validation", wanted, f"comparing the factors of {', '.join(kept)} at {plan.target:,} tokens")
    every = [*both, *probing, *(one for family in kept for one in fixed(family, plan.factors))]
    return list({one.name: one for one in every}.values())


def compared(families: Sequence[str], plan: Plan) -> list[tuple[Candidate, list[int]]]:
    """Measurements of the second stage: each factor that reaches the target there too, the others within the training length."""
    long = [one for family in families for one in [*fixed(family, plan.long_factors(family)), follow(family)]]
    costs = [one for family in families for one in fixed(family, plan.factors) if one not in long]
    return [*((one, [*plan.short, plan.target]) for one in long), *((one, list(plan.short)) for one in costs)]


def describe(found: Measurements, families: Sequence[str], documents: dict[str, int]) -> list[str]:
    """Lines for the three stages, and the estimated cost. Which methods go on is not known yet: yarn or the first families stand in."""
    plan = found.plan
    missing, lines = [], [f"{found.job.cfg['model']['path'] or found.job.run.path}: {plan.train_len:,} to {plan.target:,} tokens"]
    for title, split, wanted in stand_ins(plan, families):
        job, serving = found.planned(split, wanted)
        lengths = sorted({length for _, asked in wanted for length in asked})
        fit = f"{documents[split]} document{'s' * (documents[split] != 1)} long enough"
        shown = " ".join(f"{length:,}" for length in lengths)
        windows = f"{plan.windows[split]} window{'s' * (plan.windows[split] != 1)}"
        lines.append(f"{title}: {len(wanted)} options at {shown} tokens, {windows} ({fit})")
        missing += [(job, cell, left) for cell in {cell.path: cell for cell, _ in serving.values()}.values() if (left := cell.missing())]
    lines += [f"left out: {name}: {why}" for name, why in found.left_out.items()]
    lines.append(f"{plan.told}; budget= multiplies the windows")
    return lines + cost([found.job], [] if found.job.run.finished else [found.job], missing)


def stand_ins(plan: Plan, families: Sequence[str]) -> list[tuple[str, str, list[tuple[Candidate, list[int]]]]]:
    """(title, split, what is measured) of each stage, with the first families in place of those that will turn out the best."""
    both = references()
    first = [*both, *probed(families, 2 * plan.probe / plan.train_len)]
    kept = [family for family in dict.fromkeys(("yarn", "ntk", *families)) if family in families and family in SCALED][:KEPT]
    own = [one for one in map(follow, families) if not one.option.frequencies][:1]
    best = [one for family in kept[:1] for one in [*fixed(family, plan.long_factors(family)[:1]), follow(family)]]
    return [
        ("search", "validation", [(one, [plan.probe]) for one in first]),
        ("factors", "validation", [*compared(kept, plan), *((one, [*plan.short, plan.target]) for one in own)]),
        ("test", "test", [(one, list(plan.grid)) for one in [*both, *best, *own]]),
    ]


def survivors(order: list[str]) -> list[str]:
    """Families that go on to the target, of all in their order: the best by frequencies alone, and the best with attention of its own.

    Sinks see no more than the training length, so near the cut text's loss they always are; they go on beside another, if they are better.
    """
    own = [family for family in order if family in OWN]
    reading = [family for family in own if family not in SINKS][:KEPT_OWN]
    sinks = [family for family in own if family in SINKS and (not reading or own.index(family) < own.index(reading[0]))][:1]
    return [family for family in order if family not in OWN][:KEPT] + [family for family in order if family in (*reading, *sinks)]


def judged(final: list[str], candidates: dict[str, Candidate], plan: Plan, broken: bool) -> list[tuple[Candidate, list[int]]]:
    """Measurements for the test documents: the finalists at all lengths, and the cost of every factor of a finalist's family.

    A model that is `broken` as it is before the target is not read there.
    """
    families = {candidates[name].option.family for name in final if candidates[name].option.frequencies}
    costs = [one for one in candidates.values() if one.option.family in families and one.option.factor and one.name not in final]
    own = {name: [length for length in plan.grid if name != PLAIN or length < plan.target or not broken] for name in final}
    return [(candidates[name], own[name]) for name in final] + [(one, list(plan.short)) for one in costs]


def _checked(request: Request) -> dict:
    """The one configuration. Raises ConfigError for words that the command chooses itself, or that name no model."""
    cfg = request.cfgs[0]
    if request.sweep or cfg["runs"] is not None:
        raise ConfigError("scripts/advise.py advises on one model: give it model.path= or run=, without -m, experiment= and runs=.")
    if cfg.get("finetune"):
        raise ConfigError("scripts/advise.py advises on a model that is there: leave finetune= out, or give run= of the fine-tuned one.")
    for group in ("extension", "scale_attention"):
        if method_name(cfg[group]) != "none":
            raise ConfigError(
                f"{group}={method_name(cfg[group])} is what scripts/advise.py chooses: leave it out, or narrow it with methods=."
            )
    other_text.refuse(cfg, "scripts/advise.py")
    one_protocol.refuse(cfg, DECIDED, "what target= and budget= choose here")
    return cfg


def _documents(job: Job, plan: Plan) -> dict[str, int]:
    """{split: documents that are long enough}. Raises ConfigError for a text whose splits lack them."""
    found, named = {}, job.cfg["evaluate"]["documents"]
    for split in SPLITS:
        corpus = prepare(job.cfg["data"], job.cfg["cache_dir"], (split,))
        file = getattr(corpus, split)
        fit = [named is None or fnmatchcase(name, named) for name in file.names]
        lengths = [int(length) for length, fits in zip(file.document_lengths(), fit, strict=True) if fits]
        found[split] = sum(length > plan.target for length in lengths)
        if not found[split]:
            if named is not None and not lengths:
                raise ConfigError(f"evaluate.documents={named} fits no {split} document of data={corpus.name}: give another glob.")
            most = max(lengths, default=0) - 1
            shorter = f", or a shorter target={most}" if most > plan.train_len else ""
            raise ConfigError(
                f"data={corpus.name} has no {split} document of the {plan.target + 1:,} tokens that target={plan.target} needs (the "
                f"longest of {len(lengths)} has {most + 1:,}): give longer documents of both splits, such as data=books data.path=DIR"
                f"{shorter}."
            )
    return found
