"""Command of scripts/search_factors.py: LongRoPE's factors for one model and length, searched on
validation documents alone.
"""

import json
import shlex
import sys
from pathlib import Path

import yaml

from posbench.common.errors import ConfigError
from posbench.common.files import disk_errors, read_bytes, write_atomic
from posbench.config.compose import Request
from posbench.config.identity import as_word
from posbench.config.names import as_command
from posbench.config.typed_args import shown
from posbench.sweep.cost import cost
from posbench.sweep.dry_run import check_devices
from posbench.sweep.jobs import Job
from posbench.sweep.launch import launch_one
from posbench.tools.factors.factor_search import plan_search, search, search_sizes
from posbench.tools.request import METHODS, single_model_request, windows_to_read

SCRIPT = "scripts/search_factors.py"
CHOSEN = (
    *METHODS,
    *(f"extension.{key}" for key in ("mode", "target_len", "factors", "exact_first")),
)
EVALUATE = (
    "windows",
    "targets",
    "documents",
    "dtype",
    "seed",
    "batch_tokens",
)  # that the search leaves open


def search_factors(request: Request) -> None:
    """Search, print the losses beside those of the starts, and write the factors as a choice of
    extension=.
    """
    chosen = (
        f"of no effect, since {SCRIPT} searches the factors of longrope on validation documents, in"
        " windows of target= tokens"
    )
    cfg = single_model_request(
        request,
        f"{SCRIPT} searches for",
        "and fine-tune with the factors that it finds",
        CHOSEN,
        EVALUATE,
        chosen,
    )
    job, exact = plan_search(cfg)
    (cell,), size, command = job.cells, search_sizes(cfg["budget"]), shlex.join(sys.orig_argv)
    (target,) = cell.evaluate.lengths
    corpus, count, read = windows_to_read(job, cell.evaluate)
    if cfg["dry"]:
        check_devices([job], {})  # the sets are measured in this process, whatever the launcher
        print(
            f"{job.run.path}: {size.total:,} sets of factors of {read}; budget= multiplies their"
            " number"
        )
        told = cost([job], [] if job.run.finished else [job], [(job, cell, [target])] * size.total)
        print(
            "\n".join([*told[:-1], told[-1].rpartition("; ")[0]])
        )  # no losses of single targets are kept, so their disk is not needed
        return
    folder = Path(cfg["out"] or Path(cfg["results_dir"]).parent / "factors" / job.run.id)
    name, title = f"longrope_{target}", f"LongRoPE's factors for {job.run.id}, searched on {read}"
    path = folder / "extension" / f"{name}.yaml"
    begins = (
        read_bytes(path).decode(errors="replace").partition("\n")[0]
        if path.exists()
        else f"# {title}"
    )
    if not begins.startswith(f"# {title}"):  # factors of another model, or searched otherwise
        raise ConfigError(
            f"{path} holds others ({shown(begins.lstrip('# '))}): give another out=, or remove it."
        )
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not job.run.finished:
        launch_one(job, request.launcher, command)
    found, losses = search(
        job, corpus, count, exact, size, folder / f"{name}-{cell.eval_id[:8]}.jsonl"
    )
    best = min(found, key=found.__getitem__)
    node = {**cell.extension, "factors": list(best[1:]), "exact_first": best[0]}
    comments = f"# {title}: {found[best]:.4f} nats/token\n# {command}\n"
    write_atomic(
        path, comments + yaml.safe_dump(node, sort_keys=False, default_flow_style=None, width=140)
    )
    print(f"{len(found):,} sets of factors of {read}, nats/token:")
    print(
        "\n".join(f"  {one:15} {nll:.4f}" for one, nll in [*losses.items(), ("found", found[best])])
    )
    print(f"yaml {path}\n" + "\n".join(_ways_to_use(job, node, folder, name)))


def _ways_to_use(job: Job, node: dict, folder: Path, name: str) -> list[str]:
    """Lines that tell how evaluation and fine-tuning take the factors."""
    target, train_len = node["target_len"], job.config.train.train_len
    begun = as_command(
        f"python scripts/run.py --config-dir {shlex.quote(str(folder))}"
        f" {as_word('run', job.run.path)}"
    )
    given = {key: value for key, value in node.items() if key != "_target_" and value is not None}
    words = [
        f"extension.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in given.items()
    ]
    tuned = (
        "fine-tuning and export_hf.py take factors without exact positions: search with"
        " exact_first=0"
    )
    if not node["exact_first"]:
        tuned = f"fine-tune:  {begun} finetune=longer finetune.length={target} extension={name}"
    return [
        f"evaluate:   {begun} extension={name} 'evaluate.lengths=[{train_len},{target}]'",
        tuned,
        f"in words:   extension=longrope {shlex.join(words)}",
    ]
