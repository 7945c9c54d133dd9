"""Command of scripts/identify.py: which setting an engine really runs, by the losses of its rows
and of candidates on the same tokens.

plan.py lists the candidates, compare.py has the rule of the verdict. Their evaluations are stored
as any others are."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic, write_json
from posbench.config.command_line import list_files
from posbench.config.compose import Request
from posbench.config.identity import NO_EXTENSION, NO_SCALE, method_name
from posbench.config.schema import JobConfig
from posbench.evaluation.protocol import EveryTokenProtocol, protocol
from posbench.pretrained.import_config import adopt
from posbench.report.figures.style import save
from posbench.sweep.cells import USES
from posbench.sweep.cost import cost
from posbench.sweep.dry_run import check_devices
from posbench.sweep.jobs import plan_jobs, plan_methods
from posbench.sweep.verdict import judge_job
from posbench.tools.identify.compare import compare_losses, judge_setting, unit_runs
from posbench.tools.identify.measure import EngineRows, candidate_losses, engine_rows, serve
from posbench.tools.identify.plan import (
    USUAL_BASE,
    Candidate,
    chosen_candidates,
    own_candidates,
    setting_candidates,
)
from posbench.tools.identify.show import (
    candidate_csv,
    candidate_figure,
    identify_content,
    identify_text,
)
from posbench.tools.request import METHODS, single_model_request

SCRIPT = "scripts/identify.py"
OURS = (
    "dtype",
    "batch_tokens",
)  # of evaluate, which change a loss but by rounding; all else is as the engine's rows say


def identify(request: Request) -> None:
    """Measure the candidates, print the verdict and write identify.json, the CSV and the figure."""
    cfg = _identifiable(request)
    engine = engine_rows(cfg["engine"])
    lengths = sorted(set(cfg["lengths"] or engine.lengths))
    theirs = {length: engine.losses(length) for length in lengths}
    typed = {word.partition("=")[0].lstrip("+~") for word in request.words}
    plain, own = _asked(cfg, engine, lengths, typed)
    (job,) = plan_jobs([plain])
    if refused := judge_job(job).refused:
        raise ConfigError(refused)
    original = job.config.train.train_len  # before a scaling of the checkpoint's own
    factor, listed = _candidates(cfg, engine, lengths, job.config, own)
    served, equal, left_out = serve(job, lengths, listed)
    command = shlex.join(sys.orig_argv)
    if cfg["dry"]:
        check_devices([job], request.launcher)
        planned, cells = plan_methods(plain, served.values())
        missing = [(planned, cell, left) for cell in cells.values() if (left := cell.missing())]
        lines = [
            f"{name}: {'; the same: '.join(one.words for one in same)}"
            for name, same in equal.items()
        ]
        lines += [f"left out: {name}: {why}" for name, why in left_out.items()]
        print("\n".join(lines + cost([planned], [] if job.run.finished else [planned], missing)))
        return
    ours = candidate_losses(plain, engine.evaluation, served, request.launcher, command)
    unit = {length: unit_runs(engine.window(losses.shape)) for length, losses in theirs.items()}
    judged, rms = judge_setting(theirs, ours, unit, original)
    points = {name: compare_losses(theirs, losses, unit) for name, losses in ours.items()}
    name, weights = engine.evaluation.origin.name, Path(job.config.model.path).name
    counted, targets = len(set(unit[lengths[-1]].ravel().tolist())), theirs[lengths[-1]].size
    shown = " ".join(f"{length:,}" for length in lengths)
    asked = (
        f"{name}, asked for factor {factor:g} from {original:,} tokens, against {weights}:"
        f" {targets:,} tokens at {shown} ({engine.protocol}, {engine.evaluation.first['data']},"
        f" {counted} units of intervals)."
    )
    about = {
        "name": name,
        "weights": weights,
        "evaluation": str(engine.evaluation.path),
        "command": command,
        "asked": asked,
    }
    about |= {"factor": factor, "original": original, "lengths": lengths, "left_out": left_out}
    made = identify_content(about, judged, rms, points, equal)
    out = Path(cfg["out"] or Path(cfg["results_dir"]).parent / "report" / f"identify-{name}")
    write_json(out / "identify.json", made)
    write_atomic(out / "identify.csv", candidate_csv(made))
    drawn = save(candidate_figure(made), out / "identify")
    print(f"{identify_text(made)}\n")
    list_files((out / "identify.json", out / "identify.csv", *drawn))


def _identifiable(request: Request) -> dict:
    """The one configuration. Raises ConfigError for words that the command chooses itself, or that
    name no engine.
    """
    found = (
        f"what {SCRIPT} finds out, or that of the engine's rows (lengths= and candidates= narrow"
        " them)"
    )
    checkpoint = "and give model.path= of the checkpoint that the engine serves"
    cfg = single_model_request(
        request, f"{SCRIPT} compares an engine with", checkpoint, METHODS, OURS, found
    )
    if cfg["engine"] is None:
        raise ConfigError(
            f"{SCRIPT} needs the rows of an engine: give its run, as in posbench identify"
            " results/runs/ID model.path=DIR."
        )
    if cfg["run"] is not None:
        raise ConfigError(
            f"run={cfg['run']} is a training, and an engine serves a checkpoint: give model.path="
            " (export_hf.py makes one)."
        )
    if cfg["factor"] and cfg["target"]:
        raise ConfigError(
            f"factor={cfg['factor']:g} and target={cfg['target']} are one setting: give one of"
            " them."
        )
    return cfg


def _asked(
    cfg: dict, engine: EngineRows, lengths: list[int], typed: set[str]
) -> tuple[dict, dict | None]:
    """(configuration of the candidates, which lack a scaling that config.json describes; the
    encoding with that scaling, or None).
    """
    data, own = cfg["data"], engine.config["data"]
    if "data" not in typed:
        data = {**own, **{key: value for key, value in data.items() if f"data.{key}" in typed}}
    own_model = engine.config["model"]
    path = (
        cfg["model"].get("path")
        or own_model.get("path")
        or (own_model.get("engine") or {}).get("path")
    )
    if not path:
        raise ConfigError(
            f"{engine.evaluation.origin} does not say which weights its engine serves: add"
            " model.path=WEIGHTS."
        )
    asked = {**cfg, "data": data, "model": {"path": path}}
    asked |= {"extension": NO_EXTENSION, "scale_attention": NO_SCALE, "allow_untested": True}
    described = adopt(asked)["encoding"]
    scaled = described.get("scaling") is not None
    trained = engine.evaluation.first["train_len"]
    original = engine.stated.get("original", described["scaling_len"] if scaled else trained)
    length = cfg["train"]["length"] if "train.length" in typed else original
    (length,) = length if isinstance(length, list) else [length]
    evaluate = {
        **engine.evaluate,
        **{key: cfg["evaluate"][key] for key in OURS if key in cfg["evaluate"]},
    }
    evaluate |= {"lengths": lengths, "protocol": [engine.protocol], "floor": False}
    kind = protocol(engine.protocol)
    evaluate |= {
        key: None for key in ("targets", "floor_block") if not USES[key][1](kind)
    }  # were filled in
    if issubclass(kind, EveryTokenProtocol):
        evaluate["windows"] = evaluate["windows"] * trained // length  # as many stretches
    train = {
        **cfg["train"],
        "length": [round(length)],
    }  # a list of one length is not taken for the default
    asked |= {
        "model": {"path": path, "own_scaling": not scaled},
        "train": train,
        "evaluate": evaluate,
    }
    return asked, described if scaled else None


def _candidates(
    cfg: dict, engine: EngineRows, lengths: list[int], model: JobConfig, own: dict | None
) -> tuple[float, list[Candidate]]:
    """The factor that the engine was asked for, and the candidates. Raises ConfigError for a factor
    that is not above 1.
    """
    original = model.train.train_len
    usual = max(lengths) / original
    if own:
        usual = (own["scaling"].get("target_len") or 0) / original or own["scaling"].get(
            "factor", usual
        )  # the latter of dynamic NTK
    factor = cfg["factor"] or (
        cfg["target"] / original if cfg["target"] else engine.stated.get("factor", usual)
    )
    if factor <= 1:
        given = (
            f"target={cfg['target']}" if cfg["target"] else f"the longest length, {max(lengths)},"
        )
        raise ConfigError(
            f"{given} is within the {original:,} tokens of training: say what the engine was asked"
            " for, such as factor=4."
        )
    listed = setting_candidates(
        original, factor, cfg["fed"], model.encoding.get("base") or USUAL_BASE
    )
    if (
        method_name(model.encoding) == "as_trained"
    ):  # turns as transformers builds it, with a scaling that config.json may have
        listed[0] = replace(listed[0], words="the checkpoint as transformers builds it")
    every = [*(own_candidates(own) if own else ()), *listed]
    return factor, chosen_candidates(every, cfg["candidates"])
