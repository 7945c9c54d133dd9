"""Command of scripts/advise.py: settings for reading longer texts, chosen on validation and judged
on test documents.

Three stages of evaluations, all stored as any others are: plan.py says what each reads, decide.py
how the choice is made."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic, write_json
from posbench.config.command_line import list_files
from posbench.config.compose import Request
from posbench.sweep.cost import model_size
from posbench.sweep.dry_run import check_devices
from posbench.sweep.jobs import plan_jobs
from posbench.sweep.verdict import judge_job
from posbench.tools.advice.decide import advice_content, finalists, rankings
from posbench.tools.advice.measure import Measurements
from posbench.tools.advice.plan import chosen_families, plan_advice
from posbench.tools.request import METHODS, single_model_request, windows_to_read

SCRIPT = "scripts/advise.py"
EVALUATE = (
    "documents",
    "floor_block",
    "dtype",
    "seed",
    "batch_tokens",
)  # that the plan leaves open


def advise(request: Request) -> None:
    """Search, judge, print the advice and write advice.json, the page and config.json."""
    chosen = f"what {SCRIPT} chooses (target=, budget= and methods= set the bounds)"
    cfg = single_model_request(
        request,
        f"{SCRIPT} advises on",
        "or give run= of the fine-tuned one",
        METHODS,
        EVALUATE,
        chosen,
    )
    (job,) = plan_jobs([cfg])
    if refused := judge_job(job).refused:
        raise ConfigError(refused)
    families = chosen_families(cfg["methods"])
    plan = plan_advice(
        model_size(job.config),
        job.config.train.train_len,
        cfg["target"],
        cfg["budget"],
        families,
        cfg["tolerance"],
    )
    room = {"max_length": plan.target, "targets": plan.targets}
    asked = {
        split: replace(job.config.evaluate, split=split, windows=count, **room)
        for split, count in plan.windows.items()
    }
    read = {split: windows_to_read(job, one).in_words for split, one in asked.items()}
    found = Measurements(cfg, request.launcher, shlex.join(sys.orig_argv), plan, job)
    if cfg["dry"]:
        check_devices([job], request.launcher)
        print("\n".join(found.describe(families, read)))
        return
    print(
        f"{plan.train_len:,} to {plan.target:,} tokens, {plan.told} (dry=true tells the plan)",
        file=sys.stderr,
        flush=True,
    )
    found.search(families)
    ranking = rankings(found.losses["validation"], plan)
    final = finalists(ranking, found.options, found.losses["validation"], plan)
    found.measure(
        "test", plan.judged(final, found.options), f"judging {len(final)} options on test documents"
    )
    _write(found, ranking)


def _write(found: Measurements, ranking: dict[str, list[str]]) -> None:
    from posbench.report.figures.style import save
    from posbench.report.html_parts import svg
    from posbench.tools.advice.settings import setting, to_set
    from posbench.tools.advice.show import advice_figure, advice_page, advice_text

    cfg, run, plan = found.job.config, found.job.run, found.plan
    out = Path(
        cfg.report_dir or Path(cfg.results_dir).parent / "report" / f"advice-{run.id}-{plan.target}"
    )
    about = {
        "model": Path(cfg.model.path or str(run.path)).name,
        "run": run.id,
        "command": found.command,
        "data": f"{cfg.data['name']}, {cfg.evaluate.dtype}",
        "probe": plan.probe,
        "windows": plan.windows,
        "left_out": found.left_out,
    }
    made = advice_content(
        about, plan, found.options, found.losses["validation"], found.losses["test"], ranking
    )
    made["settings"] = {
        name: setting(found, found.options[name], out) for name in to_set(made["answers"])
    }
    write_json(out / "advice.json", made)
    drawn = save(advice_figure(made), out / "advice")
    drawing = svg(drawn[1].read_text(encoding="utf-8"), "advice-", f"advice on {made['model']}")
    write_atomic(out / "advice.html", advice_page(made, drawing))
    print(f"{advice_text(made)}\n")
    list_files((out / "advice.html", out / "advice.json", *drawn))
