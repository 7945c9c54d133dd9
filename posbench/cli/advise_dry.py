"""Plan of scripts/advise.py for dry=true: its stages with what each reads, and the time by what was measured here before."""

from __future__ import annotations

from collections.abc import Sequence

from posbench.cli.advise_candidates import OVERSHOOT, Candidate, fixed, follow, references
from posbench.cli.advise_losses import Measurements
from posbench.cli.advise_plan import KEPT, Plan
from posbench.sweep.cost_estimate import cost


def describe(found: Measurements, families: Sequence[str], documents: dict[str, int]) -> list[str]:
    """Lines for the three stages, and the estimated cost. Which methods go on is not known yet: yarn or the first families stand in."""
    plan = found.plan
    stages = stand_ins(plan, families)
    missing, jobs, lines = [], [], [f"{found.job.cfg['model']['path'] or found.job.run.path}: {plan.train_len:,} to {plan.target:,} tokens"]
    for title, split, wanted in stages:
        job, serving = found.planned(split, wanted)
        lengths = sorted({length for _, asked in wanted for length in asked})
        fit = f"{documents[split]} document{'s' * (documents[split] != 1)} long enough"
        shown = " ".join(f"{length:,}" for length in lengths)
        windows = f"{plan.windows[split]} window{'s' * (plan.windows[split] != 1)}"
        lines.append(f"{title}: {len(wanted)} options at {shown} tokens, {windows} ({fit})")
        jobs.append(job)
        missing += [(job, cell, left) for cell in {cell.path: cell for cell, _ in serving.values()}.values() if (left := cell.missing())]
    lines += [f"left out: {name}: {why}" for name, why in found.left_out.items()]
    lines.append(f"{plan.told}; budget= multiplies the windows")
    return lines + cost(jobs[:1], [job for job in jobs[:1] if not job.run.finished], missing)


def stand_ins(plan: Plan, families: Sequence[str]) -> list[tuple[str, str, list[tuple[Candidate, list[int]]]]]:
    """(title, split, what is measured) of each stage, with the first families in place of those that will turn out the best."""
    both = references()
    first = [
        *both,
        *map(follow, families),
        *(one for family in OVERSHOOT if family in families for one in fixed(family, [2 * plan.probe / plan.train_len])),
    ]
    kept = [family for family in ("yarn", "ntk", *families) if fixed(family, [2.0]) and family in families]
    kept = list(dict.fromkeys(kept))[:KEPT]
    own = [family for family in families if not follow(family).option.frequencies][:1]
    long = [one for family in kept for one in [*fixed(family, plan.long_factors(family)), follow(family)]] + [
        follow(family) for family in own
    ]
    costs = [one for family in kept for one in fixed(family, plan.factors) if one not in long]
    final = [
        *both,
        *(one for family in kept[:1] for one in [*fixed(family, plan.long_factors(family)[:1]), follow(family)]),
        *map(follow, own),
    ]
    return [
        ("search", "validation", [(one, [plan.probe]) for one in first]),
        ("factors", "validation", [*((one, [*plan.short, plan.target]) for one in long), *((one, list(plan.short)) for one in costs)]),
        ("test", "test", [(one, list(plan.grid)) for one in final]),
    ]
