"""Command of scripts/search_factors.py: LongRoPE's factors for one model and length, searched on validation documents alone.

The loss of an individual is that of protocol fixed_targets at the target, in this process. Each is a line of a log as soon as it is
measured, and the same command draws the same search, so that it goes on where it was stopped. The best of all in the log is taken.
"""

import json
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.advice.factor_losses import factor_losses, known_losses
from posbench.advice.factor_search import HIGHEST, Individual, evolve, sizes
from posbench.cli import one_protocol
from posbench.common.appending import append_lines
from posbench.common.errors import ConfigError, RunError
from posbench.common.files import disk_errors, read_bytes, write_atomic
from posbench.common.progress import Progress
from posbench.config.compose import Request
from posbench.config.defaults import LONG
from posbench.config.identity import as_word, method_name
from posbench.config.names import as_command
from posbench.config.schema import typed
from posbench.config.typed_args import shown
from posbench.data import other_text
from posbench.evaluation.protocols import protocol
from posbench.sweep.cells import Cell
from posbench.sweep.cost_estimate import cost
from posbench.sweep.dry_run import check_devices
from posbench.sweep.fate import judge
from posbench.sweep.finetune import LONGER
from posbench.sweep.jobs import Job, plan_jobs
from posbench.sweep.launch import launch

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.evaluation.windows import Windows

WINDOWS, LONG_WINDOWS = 64, 8  # by default, and of training lengths above LONG
EXACT = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)  # values of exact_first by default, up to the training length
CHOSEN = ("lengths", "max_length", "protocol", "floor")  # of evaluate, which the target decides


def search_factors(request: Request) -> int:
    """Search, print the losses beside those of the starts, and write the factors as a choice of extension=. Returns the exit code."""
    cfg = _checked(request)
    job, exact = _planned(cfg)
    (cell,), size, command = job.cells, sizes(cfg["budget"]), shlex.join(sys.orig_argv)
    corpus = _corpus(job)
    windows = protocol(cell.protocol).place(corpus.validation, typed("evaluate", cell.evaluate), typed("train", job.cfg["train"]).train_len)
    read = _read(cell, corpus, windows)
    if cfg["dry"]:
        check_devices([job], {})  # the sets are measured in this process, whatever the launcher
        print(f"{job.run.path}: {size.total:,} sets of factors of {read}; budget= multiplies their number")
        told = cost([job], [] if job.run.finished else [job], [(job, cell, cell.evaluate["lengths"])] * size.total)
        print("\n".join([*told[:-1], told[-1].rpartition("; ")[0]]))  # no losses of single targets are kept, so their disk is not needed
        return 0
    folder = Path(cfg["out"] or Path(cfg["results_dir"]).parent / "factors" / job.run.id)
    name = f"longrope_{cell.evaluate['lengths'][0]}"
    path, title = folder / "extension" / f"{name}.yaml", f"LongRoPE's factors for {job.run.id}, searched on {read}"
    with disk_errors(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
    _check_own(path, title)
    if not job.run.finished:
        (result,) = launch([job], {"n_jobs": 1, **request.launcher}, command)
        if result.failures:
            raise RunError(f"{job.run.id}: {result.failures[0].reason}")
    log = folder / f"{name}-{cell.eval_id[:8]}.jsonl"
    tokens = len(windows.last_N) * cell.evaluate["lengths"][0]
    with Progress(size.total * tokens, "search", "tokens") as progress:
        measure, starts, plain = factor_losses(job, cell, corpus, exact, progress.update)
        known, best = known_losses(log, {len(one) for one in starts.values()}), math.inf

        def loss(one: Individual) -> float:
            nonlocal best
            found = known.get(one)
            if found is None:
                found = measure(one)
                append_lines(log, [{"nll": found, "exact_first": one[0], "factors": one[1:]}])
            else:
                progress.update(tokens, spared=True)
            best = min(best, found)
            progress.update(0, part=True, best=best)
            return found

        highest = HIGHEST * cell.evaluate["lengths"][0] / typed("train", job.cfg["train"]).train_len
        found = evolve(loss, starts.values(), exact, highest, size, cell.evaluate["seed"])
    found |= {one: nll for one, nll in known.items() if one[0] in exact}  # of searches with other sizes
    won = min(found, key=found.__getitem__)
    node = {**cell.extension, "factors": list(won[1:]), "exact_first": won[0]}
    losses = {"as it is": plain, **{f"{name}'s factors": found[one] for name, one in starts.items()}, "found": found[won]}
    write_atomic(path, _yaml(node, [f"{title}: {found[won]:.4f} nats/token", command]))
    print(f"{len(found):,} sets of factors of {read}, nats/token:")
    print("\n".join(f"  {name:15} {nll:.4f}" for name, nll in losses.items()))
    print(f"yaml {path}\n" + "\n".join(_words(job, cell, node, folder, path.stem)))
    return 0


def _checked(request: Request) -> dict:
    """The one configuration. Raises ConfigError for words that the command chooses itself, or that name no model."""
    cfg, me = request.cfgs[0], "scripts/search_factors.py"
    if request.sweep or cfg["runs"] is not None:
        raise ConfigError(f"{me} searches for one model: give it run= or model.path=, without -m, experiment= and runs=.")
    if cfg.get("finetune"):
        raise ConfigError(f"{me} searches for a model that is there: leave finetune= out, and fine-tune with the factors that it finds.")
    for group, only in (("extension", "longrope"), ("scale_attention", "none")):
        if method_name(cfg[group]) != only:
            raise ConfigError(f"{group}={method_name(cfg[group])} has no factors for {me} to find: leave it out.")
    if cfg["evaluate"].get("split") != "validation":
        raise ConfigError(f"evaluate.split={cfg['evaluate']['split']} would choose factors on the text that judges them: leave it out.")
    other_text.refuse(cfg, me)
    one_protocol.refuse(cfg, CHOSEN, "what target= decides here")
    for key in ("factors", "target_len"):
        if cfg["extension"][key] is not None:
            raise ConfigError(f"extension.{key}={cfg['extension'][key]} is what {me} chooses (target=TOKENS): leave it out.")
    if cfg["extension"]["exact_first"]:
        raise ConfigError(f"extension.exact_first={cfg['extension']['exact_first']} is searched too: give exact_first=, its values.")
    return cfg


def _planned(cfg: dict) -> tuple[Job, list[int]]:
    """The job with one evaluation, that of the start at the target, and the values of exact_first. Raises ConfigError as the job does."""
    (job,) = plan_jobs([{**cfg, "evaluate": {**cfg["evaluate"], "floor": False}}])
    train_len, asked = typed("train", job.cfg["train"]).train_len, cfg["evaluate"]
    target = cfg["target"] or LONGER * train_len
    if target <= train_len:
        raise ConfigError(f"target={target} lies within the {train_len} tokens that the model was trained for: ask for a longer one.")
    exact = list(dict.fromkeys(cfg["exact_first"] or [first for first in EXACT if first <= train_len]))
    if max(exact) > train_len:
        raise ConfigError(f"exact_first={max(exact)} lies beyond the {train_len} tokens of the model's training: give at most {train_len}.")
    settings = {"protocol": ["fixed_targets"], "lengths": [target], "max_length": target, "floor": False}
    settings |= {"windows": asked["windows"] or (LONG_WINDOWS if train_len > LONG else WINDOWS)}
    settings |= {"targets": asked["targets"] or max(1, train_len // 2)}
    extension = {**cfg["extension"], "mode": "fixed", "target_len": target}
    (job,) = plan_jobs([{**cfg, "extension": extension, "evaluate": {**asked, **settings}}])
    fate = judge(job)
    refused = fate.refused or next((f"{one.reason}" for one in fate.cells.values() if one.status in ("refused", "noop")), "")
    if refused:
        raise ConfigError(refused)
    return job, exact


def _corpus(job: Job) -> "Corpus":
    """Validation text of a job."""
    from posbench.data import prepare
    from posbench.data.fit_corpus import fit_corpus

    return fit_corpus(prepare(job.cfg["data"], job.cfg["cache_dir"], ("validation",)), job.cfg)


def _check_own(path: Path, title: str) -> None:
    """Raise ConfigError if a yaml is there already that does not begin with `title`: factors of another model, or searched otherwise."""
    begins = read_bytes(path).decode(errors="replace").partition("\n")[0] if path.exists() else f"# {title}"
    if not begins.startswith(f"# {title}"):
        raise ConfigError(f"{path} holds others ({shown(begins.lstrip('# '))}): give another out=, or remove it.")


def _read(cell: Cell, corpus: "Corpus", windows: "Windows") -> str:
    """Words for the text that an individual is measured on."""
    count, targets = len(set(windows.document_N.tolist())), cell.evaluate["targets"]
    documents = f"{count} validation document{'s' * (count != 1)} of {corpus.name}"
    return f"{len(windows.last_N)} windows of {cell.evaluate['lengths'][0]} tokens ({targets} targets each) in {documents}"


def _yaml(node: dict, comments: list[str]) -> str:
    import yaml

    return "".join(f"# {line}\n" for line in comments) + yaml.safe_dump(node, sort_keys=False, default_flow_style=None, width=140)


def _words(job: Job, cell: Cell, node: dict, folder: Path, name: str) -> list[str]:
    """Lines that tell how evaluation and fine-tuning take the factors."""
    target, train_len = cell.evaluate["lengths"][0], typed("train", job.cfg["train"]).train_len
    begun = as_command(f"python scripts/run.py --config-dir {shlex.quote(str(folder))} {as_word('run', job.run.path)}")
    words = [
        f"extension.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in node.items()
        if key != "_target_" and value is not None
    ]
    tuned = "fine-tuning and export_hf.py take factors without exact positions: search with exact_first=0"
    if not node["exact_first"]:
        tuned = f"fine-tune:  {begun} finetune=longer finetune.length={target} extension={name}"
    return [
        f"evaluate:   {begun} extension={name} 'evaluate.lengths=[{train_len},{target}]'",
        tuned,
        f"in words:   extension=longrope {shlex.join(words)}",
    ]
