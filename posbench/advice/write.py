"""Output of scripts/advise.py: the text on the terminal, advice.json, the page with its figure, and a config.json for each setting."""

import json
from collections.abc import Mapping
from pathlib import Path

from posbench.advice.content import content
from posbench.advice.decide import CUT, PLAIN, USES, Question
from posbench.advice.figure import figure
from posbench.advice.measure import Measurements
from posbench.advice.plan import Candidate
from posbench.advice.show import page, terminal
from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic, write_json
from posbench.config.identity import as_word, method_name
from posbench.config.names import as_command, nodes
from posbench.huggingface.engines import config_json, engines, settings
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.report.figures.style import save
from posbench.report.html import svg


def write(
    found: Measurements, question: Question, candidates: Mapping[str, Candidate], ranking: Mapping[str, list[str]], about: dict
) -> int:
    """Write everything and print the advice. Returns the exit code."""
    cfg, job = found.job.cfg, found.job
    out = Path(cfg["report_dir"] or Path(cfg["results_dir"]).parent / "report" / f"advice-{job.run.id}-{question.target}")
    model = Path(cfg["model"]["path"] or str(job.run.path)).name
    about = {
        "model": model,
        "run": job.run.id,
        "command": found.command,
        "data": f"{cfg['data']['name']}, {cfg['evaluate']['dtype']}",
        **about,
    }
    options = [one.option for one in candidates.values()]
    made = content(about, question, options, found.of("validation"), found.of("test"), ranking)
    made["settings"] = {name: _setting(found, candidates[name], out) for name in _to_set(made)}
    write_json(out / "advice.json", made)
    drawn = save(figure(made), out / "advice")
    drawing = svg(drawn[1].read_text(encoding="utf-8"), "advice-", f"advice on {model}")
    write_atomic(out / "advice.html", page(made, drawing))
    print(terminal(made))
    print()
    for path in (out / "advice.html", out / "advice.json", *drawn):
        print(f"{path.suffix.lstrip('.'):4} {path}")
    return 0


def _to_set(made: dict) -> list[str]:
    """Options to describe: those advised, and the best that engines serve if that too is better than to set nothing."""
    answers, served = made["answers"], made["answers"]["long"]["served"]
    advised = [*(answers[use]["advised"] for use in USES), *([served["choice"]] if served else [])]
    return [name for name in dict.fromkeys(advised) if name not in (PLAIN, CUT)]


def _setting(found: Measurements, candidate: Candidate, out: Path) -> dict:
    """Setting of an option: rope_parameters and words for each engine, or the reason why no engine expresses it."""
    plan, cfg, option = found.plan, found.job.cfg, candidate.option
    extension = candidate.at(plan.target, plan.train_len)[0] if option.factor else candidate.extension
    typed = words("extension", extension)
    lacking = {"rope_parameters": None, "engines": {}, "files": [], "json": None}
    if not option.frequencies:
        own = f"{typed} {words('scale_attention', candidate.scale)}" if method_name(candidate.scale) != "none" else typed
        return {**lacking, "reason": f"Needs own attention: rope_parameters cannot say it. In posbench: {own}."}
    checkpoint = cfg["model"].get("checkpoint")
    own = _config_of(cfg) if checkpoint else None
    try:
        told = settings(cfg, extension, own)
        config = config_json(own, cfg, extension) if checkpoint else None
    except ConfigError as error:
        apart = f"serve two configurations, the model as it is up to {plan.train_len:,} tokens and a fixed factor beyond"
        reason = f"rope_parameters follow the length in none but dynamic_ntk: {apart}." if option.by_length else str(error)
        return {**lacking, "reason": reason}
    path = out / candidate.name.replace(" ", "-") / "config.json"
    command = as_command(f"python scripts/export_hf.py {as_word('run', found.job.run.path)} out=DIR {typed}")
    files = _exported(cfg, extension, f"with the weights: {command}")
    if config:
        write_json(path, config)
        files.insert(0, f"config.json with it: {path}")
    return {**lacking, **told, "engines": engines(told, plan.target), "json": json.dumps(told["rope_parameters"]), "files": files}


def _exported(cfg: dict, extension: dict, line: str) -> list[str]:
    """`line`, which tells how to write the weights too; nothing for a model that scripts/export_hf.py refuses."""
    from posbench.huggingface.export import describe

    try:
        describe(cfg, extension)
    except ConfigError:
        return []
    return [line]


def words(group: str, node: dict) -> str:
    """Words that choose a method, as they are typed: its name, and its arguments that differ from its yaml."""
    usual = nodes(group)[method_name(node)]
    return " ".join([f"{group}={method_name(node)}", *(f"{group}.{key}={value}" for key, value in node.items() if value != usual[key])])


def _config_of(cfg: dict) -> dict | None:
    """config.json of the checkpoint; None for a GGUF file."""
    place = find_checkpoint(cfg["model"]["path"], download=False).place
    return json.loads((place / "config.json").read_text(encoding="utf-8")) if place.is_dir() else None
