"""An evaluation whose rows are returned and not written."""

import functools
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from posbench.cli.given_run import TRAINING
from posbench.common.errors import ConfigError
from posbench.config.defaults import resolve
from posbench.config.names import chosen_node
from posbench.config.schema import EvaluateConfig
from posbench.data import fingerprint, other_text
from posbench.data.sources import ALL
from posbench.evaluation.protocols import protocol
from posbench.runs.frame import frame
from posbench.sweep import key_run
from posbench.sweep.cells import each_task, make_cell
from posbench.sweep.fate import judge
from posbench.sweep.jobs import Job

if TYPE_CHECKING:
    import pandas

    from posbench.cli.notebook import LoadedRun


def evaluate(run: "LoadedRun", extension: Any, scale_attention: Any, given: dict, allow_untested: bool) -> "pandas.DataFrame":
    """See LoadedRun.evaluate. `given`: settings of configs/evaluate and arguments of the extension by name."""
    from posbench.sweep.evaluate_cell import evaluation, make_rows, per_token, progress_of

    job = _plan(run, extension, scale_attention, given, allow_untested)
    fate, cells = judge(job), job.cells
    if fate.refused:
        raise ConfigError(fate.refused)
    for verdict in fate.cells.values():
        if verdict.status == "refused":
            raise ConfigError(verdict.reason)
        if verdict.status == "noop":
            raise ConfigError(f"{verdict.label} is a no-op: {verdict.reason}; evaluate without it, or at other lengths.")
    asked = job.cfg["evaluate"]
    corpus = run.prepared([ALL]) if asked["split"] == ALL and not asked["text"] else run.corpus
    corpus = other_text.read(corpus, {**job.cfg, "data": run.reached()}, asked["text"], asked["split"]) if asked["text"] else corpus
    evaluators = [protocol(cell.protocol)(evaluation(run.model, corpus, cell, run.device)) for cell in cells]
    found = []
    with progress_of(job, evaluators, [cell.evaluate["lengths"] for cell in cells]) as progress:
        for one, (cell, verdict) in zip(evaluators, fate.cells.items(), strict=True):
            rows = {}
            for text, own in one.texts(cell.evaluate["lengths"]).items():
                one.evaluation.progress = functools.partial(progress.update, each=per_token(job, one, text))
                for length in own:
                    values, _ = one.run(length)
                    rows[length] = make_rows(values, job, cell, verdict.status == "untested", one.evaluation, length)
            found += [row for length in sorted(rows) for row in rows[length]]
    return frame(found)


def _plan(run: "LoadedRun", extension: Any, scale_attention: Any, given: dict, allow_untested: bool) -> Job:
    """The job of the run, with the cells that were asked for without their references."""
    known = [field.name for field in fields(EvaluateConfig)]
    arguments = {key: _plain(value) for key, value in given.items() if key not in known}
    settings = {key: _plain(value) for key, value in given.items() if key in known}
    cfg = resolve({
        **{part: run.config[part] for part in TRAINING},
        "extension": chosen_node("extension", extension, arguments, known),
        "scale_attention": chosen_node("scale_attention", scale_attention, {}),
        "evaluate": {**(run.config.get("evaluate") or {}), **settings},
        "allow_untested": allow_untested,
        "log": {},
        "device": run.device,
    })  # fmt: skip
    cfg["evaluate"]["text"] = other_text.resolved({**cfg, "data": run.reached()})
    if chooser := cfg["evaluate"]["key_run"]:
        cfg["evaluate"]["key_run"] = key_run.resolved(chooser, fingerprint(run.reached()))
    job = Job(cfg, run.directory, fingerprint="")  # which is read when something is trained
    methods = cfg["extension"], cfg["scale_attention"]
    job.cells = [make_cell(job.run, each, name, *methods) for name in cfg["evaluate"]["protocol"] for each in each_task(cfg, name)]
    return job


def _plain(value: Any) -> Any:
    """numpy numbers and arrays as Python's, a tuple or a range as a list."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_plain(one) for one in value] if isinstance(value, list | tuple | range) else value
