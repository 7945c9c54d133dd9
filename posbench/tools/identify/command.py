"""Command of scripts/identify.py: the setting that an engine really runs.

Losses of its rows are compared with those of candidates on the same tokens. plan.py lists the
candidates, compare.py has the rule of the verdict. Their evaluations are stored as any others are.
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic, write_json
from posbench.config.command_line import print_files
from posbench.config.compose import Request
from posbench.config.identity import NO_EXTENSION, NO_SCALE, method_name
from posbench.config.schema import JobConfig
from posbench.evaluation.every_token import EveryTokenProtocol
from posbench.evaluation.registry import protocol
from posbench.pretrained.import_config import config_from_checkpoint
from posbench.report.figures.style import write_figure
from posbench.sweep.cost import cost
from posbench.sweep.dry_run import check_devices
from posbench.sweep.jobs import Job, plan_jobs, plan_methods
from posbench.sweep.verdict import judge_job
from posbench.tools.identify.compare import compare_losses, judge_setting, unit_of_targets
from posbench.tools.identify.measure import (
    EngineRows,
    Readings,
    candidate_losses,
    engine_rows,
    readings_of,
)
from posbench.tools.identify.plan import (
    USUAL_BASE,
    Candidate,
    candidates_of_own_scaling,
    chosen_candidates,
    setting_candidates,
)
from posbench.tools.identify.show import (
    candidate_csv,
    candidate_figure,
    identify_content,
    identify_text,
)
from posbench.tools.request import METHOD_GROUPS, single_model_request

SCRIPT = "scripts/identify.py"
# Keys of evaluate that change a loss but by rounding; all others are as the engine's rows say.
ROUNDING_KEYS = ("dtype", "batch_tokens")


def identify(request: Request) -> None:
    """Measure the candidates, print the verdict and write identify.json, the CSV and the figure."""
    raw = _checked_request(request)
    engine = engine_rows(raw["engine"])
    lengths = sorted(set(raw["lengths"] or engine.lengths))
    engine_losses = {length: engine.losses(length) for length in lengths}
    typed = {word.partition("=")[0].lstrip("+~") for word in request.words}
    unscaled = _unscaled(raw, engine, lengths, typed)
    (job,) = plan_jobs([unscaled.raw])
    if refused := judge_job(job).refused:
        raise ConfigError(refused)
    original = job.config.train.train_len  # before a scaling of the checkpoint's own
    factor = _asked_factor(raw, engine, lengths, original, unscaled.scaled_encoding)
    candidates = _candidates(raw, factor, job.config, unscaled.scaled_encoding)
    readings = readings_of(job, lengths, candidates)
    command = shlex.join(sys.orig_argv)
    if raw["dry"]:
        check_devices([job], request.launcher)
        print("\n".join(_plan_lines(unscaled.raw, job, readings)))
        return
    losses = candidate_losses(unscaled.raw, engine.evaluation, readings, request.launcher, command)
    unit = {n: unit_of_targets(engine.window_of_targets(engine_losses[n].shape)) for n in lengths}
    verdict = judge_setting(engine_losses, losses, unit, original)
    points = {name: compare_losses(engine_losses, of, unit) for name, of in losses.items()}
    name = engine.evaluation.origin.name
    weights = Path(job.config.model.path).name
    n_targets = engine_losses[lengths[-1]].size
    n_units = len(set(unit[lengths[-1]].ravel().tolist()))
    shown = " ".join(f"{length:,}" for length in lengths)
    about = {
        "name": name,
        "weights": weights,
        "evaluation": str(engine.evaluation.path),
        "command": command,
        "asked": (
            f"{name}, asked for factor {factor:g} from {original:,} tokens, against {weights}:"
            f" {n_targets:,} tokens at {shown} ({engine.protocol},"
            f" {engine.evaluation.first['data']}, {n_units} units of intervals)."
        ),
        "factor": factor,
        "original": original,
        "lengths": lengths,
        "left_out": readings.left_out,
    }
    content = identify_content(about, verdict, points, readings.same_as)
    out = Path(raw["out"] or Path(raw["results_dir"]).parent / "report" / f"identify-{name}")
    write_json(out / "identify.json", content)
    write_atomic(out / "identify.csv", candidate_csv(content))
    figures = write_figure(candidate_figure(content), out / "identify")
    print(f"{identify_text(content)}\n")
    print_files((out / "identify.json", out / "identify.csv", *figures))


def _checked_request(request: Request) -> dict:
    """The one configuration.

    Raises ConfigError for words that the command chooses itself, or that name no engine.
    """
    raw = single_model_request(
        request,
        script_does=f"{SCRIPT} compares an engine with",
        without_tuning="and give model.path= of the checkpoint that the engine serves",
        reserved_keys=METHOD_GROUPS,
        allowed_evaluate_keys=ROUNDING_KEYS,
        why_reserved=(
            f"what {SCRIPT} finds out, or that of the engine's rows (lengths= and candidates="
            " narrow them)"
        ),
    )
    if raw["engine"] is None:
        raise ConfigError(
            f"{SCRIPT} needs the rows of an engine: give its run, as in posbench identify"
            " results/runs/ID model.path=DIR."
        )
    if raw["run"] is not None:
        raise ConfigError(
            f"run={raw['run']} is a training, and an engine serves a checkpoint: give model.path="
            " (export_hf.py makes one)."
        )
    if raw["factor"] and raw["target"]:
        raise ConfigError(
            f"factor={raw['factor']:g} and target={raw['target']} are one setting: give one of"
            " them."
        )
    return raw


class Unscaled(NamedTuple):
    """Configuration of the candidates, which lack a scaling that config.json describes.

    `scaled_encoding` is the encoding with that scaling, None without one.
    """

    raw: dict
    scaled_encoding: dict | None


def _unscaled(raw: dict, engine: EngineRows, lengths: list[int], typed: set[str]) -> Unscaled:
    """Configuration that reads the engine's tokens with the weights that it serves."""
    data = raw["data"]
    if "data" not in typed:  # else the text is another one, of which nothing is the engine's
        changed = {key: value for key, value in data.items() if f"data.{key}" in typed}
        data = {**engine.config["data"], **changed}
    path = _weights_path(raw, engine)
    unscaled = {
        **raw,
        "data": data,
        "model": {"path": path},
        "extension": NO_EXTENSION,
        "scale_attention": NO_SCALE,
        # A candidate is read whether or not a test of its pair is known, as in `readings_of`.
        "allow_untested": True,
    }
    encoding = config_from_checkpoint(unscaled)["encoding"]
    has_scaling = encoding.get("scaling") is not None
    train_len = engine.evaluation.first["train_len"]
    length = raw["train"]["length"]
    if "train.length" not in typed:
        described = encoding["scaling_len"] if has_scaling else train_len
        # What the engine was started with counts before config.json.
        length = engine.stated_setting.get("original", described)
    # Typed as [N] it is N even where N is the default, as below.
    (length,) = length if isinstance(length, list) else [length]
    # A scaling that config.json describes is one candidate, and the others are made without it.
    # False is refused for a checkpoint without a scaling.
    unscaled["model"]["own_scaling"] = not has_scaling
    # A number that equals the default would be replaced by the checkpoint's length; a list is not.
    unscaled["train"] = {**raw["train"], "length": [round(length)]}
    unscaled["evaluate"] = _evaluate_keys(raw, engine, lengths, length)
    return Unscaled(unscaled, encoding if has_scaling else None)


def _weights_path(raw: dict, engine: EngineRows) -> str:
    """Path of the weights: that of model.path=, or what the engine's run says."""
    model = engine.config["model"]
    path = raw["model"].get("path") or model.get("path") or (model.get("engine") or {}).get("path")
    if not path:
        raise ConfigError(
            f"{engine.evaluation.origin} does not say which weights its engine serves: add"
            " model.path=WEIGHTS."
        )
    return path


def _evaluate_keys(raw: dict, engine: EngineRows, lengths: list[int], train_len: int) -> dict:
    """Keys of evaluate with which candidates trained at `train_len` read the engine's tokens."""
    engine_train_len = engine.evaluation.first["train_len"]
    # Candidates are compared with the engine's rows, not with a floor.
    evaluate = {**engine.evaluate, "lengths": lengths, "floor": False}
    evaluate["protocol"] = [engine.protocol]
    for key in ROUNDING_KEYS:
        if key in raw["evaluate"]:
            evaluate[key] = raw["evaluate"][key]
    of_protocol = protocol(engine.protocol)
    for key in ("targets", "floor_block"):
        # Stored settings hold defaults too, and one that the protocol does not use is refused.
        if key not in of_protocol.uses:
            evaluate[key] = None
    if issubclass(of_protocol, EveryTokenProtocol):
        # The number of stretches is windows * training length / max_length: keep the engine's.
        evaluate["windows"] = evaluate["windows"] * engine_train_len // train_len
    return evaluate


def _asked_factor(
    raw: dict,
    engine: EngineRows,
    lengths: list[int],
    original: int,
    scaled_encoding: dict | None,
) -> float:
    """The factor that the engine was asked for. Raises ConfigError if it is not above 1."""
    if raw["factor"]:
        factor = raw["factor"]
    elif raw["target"]:
        factor = raw["target"] / original
    else:
        usual = max(lengths) / original
        if scaled_encoding:
            scaling = scaled_encoding["scaling"]
            # dynamic NTK alone has a factor in place of a target.
            if scaling.get("target_len"):
                usual = scaling["target_len"] / original
            else:
                usual = scaling.get("factor", usual)
        factor = engine.stated_setting.get("factor", usual)
    # A factor= is above 1 by its type, and one that the engine states by `stated_setting`.
    if factor <= 1:
        cause = f"the longest length, {max(lengths)},"
        if raw["target"]:
            cause = f"target={raw['target']}"
        raise ConfigError(
            f"{cause} is within the {original:,} tokens of training: say what the engine was asked"
            " for, such as factor=4."
        )
    return factor


def _candidates(
    raw: dict, factor: float, config: JobConfig, scaled_encoding: dict | None
) -> list[Candidate]:
    """Candidates of a request: those of candidates=, or all that apply to the checkpoint."""
    base = config.encoding.get("base") or USUAL_BASE
    candidates = setting_candidates(
        original=config.train.train_len, factor=factor, fed=raw["fed"], base=base
    )
    if method_name(config.encoding) == "as_trained":
        # The first one, without a scaling, turns as transformers builds it, which may have one.
        words = "the checkpoint as transformers builds it"
        candidates[0] = replace(candidates[0], words=words)
    if scaled_encoding:
        candidates = candidates_of_own_scaling(scaled_encoding) + candidates
    return chosen_candidates(candidates, raw["candidates"])


def _plan_lines(raw: dict, job: Job, readings: Readings) -> list[str]:
    """Lines of dry=true: the candidates, those left out, and the cost."""
    lines = []
    for name, same in readings.same_as.items():
        words = "; the same: ".join(candidate.words for candidate in same)
        lines.append(f"{name}: {words}")
    for name, reason in readings.left_out.items():
        lines.append(f"left out: {name}: {reason}")
    planned, cells = plan_methods(raw, readings.by_candidate_and_length.values())
    missing = []
    for cell in cells.values():
        if lengths := cell.missing_lengths():
            missing.append((planned, cell, lengths))
    to_take = [] if job.run.finished else [planned]
    return lines + cost([planned], to_take, missing)
