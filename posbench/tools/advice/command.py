"""Command of scripts/advise.py: settings for reading longer texts.

They are chosen on validation and judged on test documents, in three stages of evaluations, all
stored as any others are: plan.py says what each reads, decide.py how the choice is made.
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic, write_json
from posbench.config.command_line import print_files
from posbench.config.compose import Request
from posbench.sweep.cost import model_size
from posbench.sweep.dry_run import check_devices
from posbench.sweep.jobs import Job, plan_jobs
from posbench.sweep.verdict import judge_job
from posbench.tools.advice.decide import advice_content, finalists, rankings_by_use
from posbench.tools.advice.measure import Measurements
from posbench.tools.advice.plan import AdvicePlan, chosen_families, plan_advice
from posbench.tools.request import METHOD_GROUPS, single_model_request, windows_to_read

SCRIPT = "scripts/advise.py"
# Keys of evaluate that the plan leaves open.
EVALUATE = ("documents", "floor_block", "dtype", "seed", "batch_tokens")


def advise(request: Request) -> None:
    """Search, judge, print the advice and write advice.json, the page and config.json."""
    raw = single_model_request(
        request,
        script_does=f"{SCRIPT} advises on",
        without_tuning="or give run= of the fine-tuned one",
        reserved_keys=METHOD_GROUPS,
        allowed_evaluate_keys=EVALUATE,
        why_reserved=f"what {SCRIPT} chooses (target=, budget= and methods= set the bounds)",
    )
    (job,) = plan_jobs([raw])
    if refused := judge_job(job).refused:
        raise ConfigError(refused)
    families = chosen_families(raw["methods"])
    plan = plan_advice(
        model_size(job.config),
        job.config.train.train_len,
        raw["target"],
        raw["budget"],
        families,
        raw["tolerance"],
    )
    windows = _windows_in_words(job, plan)  # which refuses documents that are too short
    command = shlex.join(sys.orig_argv)
    measurements = Measurements(raw, request.launcher, command, plan, job)
    if raw["dry"]:
        check_devices([job], request.launcher)
        print("\n".join(measurements.plan_lines(families, windows)))
        return
    print(
        f"{plan.train_len:,} to {plan.target:,} tokens, {plan.work_words} (dry=true tells the"
        " plan)",
        file=sys.stderr,
        flush=True,
    )
    measurements.search(families)
    validation = measurements.losses["validation"]
    ranking = rankings_by_use(validation, plan)
    final = finalists(ranking, measurements.options, validation, plan)
    measurements.measure(
        "test",
        plan.third_stage(final, measurements.options),
        f"judging {len(final)} options on test documents",
    )
    _write(measurements, ranking)


def _windows_in_words(job: Job, plan: AdvicePlan) -> dict[str, str]:
    """{split: its windows in words}. Raises ConfigError if documents are too short."""
    words = {}
    for split, n_windows in plan.windows.items():
        evaluate = replace(
            job.config.evaluate,
            split=split,
            windows=n_windows,
            max_length=plan.target,
            targets=plan.targets,
        )
        words[split] = windows_to_read(job, evaluate).in_words
    return words


def _write(measurements: Measurements, ranking: dict[str, list[str]]) -> None:
    """Write advice.json, the page and the figures, and print the advice."""
    from posbench.report.figures.style import write_figure
    from posbench.report.html_parts import inlined_svg
    from posbench.tools.advice.settings import options_to_set, setting_content
    from posbench.tools.advice.show import advice_figure, advice_page, advice_text

    config = measurements.job.config
    run = measurements.job.run
    plan = measurements.plan
    reports = Path(config.results_dir).parent / "report"
    out = Path(config.report_dir or reports / f"advice-{run.id}-{plan.target}")
    about = {
        "model": Path(config.model.path or str(run.path)).name,
        "run": run.id,
        "command": measurements.command,
        "data": f"{config.data['name']}, {config.evaluate.dtype}",
        "probe": plan.probe_length,
        "windows": plan.windows,
        "left_out": measurements.left_out,
    }
    content = advice_content(
        about,
        plan,
        measurements.options,
        measurements.losses["validation"],
        measurements.losses["test"],
        ranking,
    )
    content["settings"] = {}
    for name in options_to_set(content["answers"]):
        option = measurements.options[name]
        content["settings"][name] = setting_content(measurements, option, out)
    write_json(out / "advice.json", content)
    figures = write_figure(advice_figure(content), out / "advice")  # png and svg
    drawing = inlined_svg(
        figures[1].read_text(encoding="utf-8"), "advice-", f"advice on {content['model']}"
    )
    write_atomic(out / "advice.html", advice_page(content, drawing))
    print(f"{advice_text(content)}\n")
    print_files((out / "advice.html", out / "advice.json", *figures))
