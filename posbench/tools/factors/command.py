"""Command of scripts/search_factors.py: LongRoPE's factors, searched on validation text."""

import json
import shlex
import sys
from pathlib import Path

import yaml

from posbench.common.errors import ConfigError
from posbench.common.files import disk_errors, read_bytes, write_atomic
from posbench.config.compose import Request
from posbench.config.identity import quoted_word
from posbench.config.names import with_command_names
from posbench.config.typed_args import shown
from posbench.sweep.cost import texts_left, time_words, work_words
from posbench.sweep.dry_run import check_devices
from posbench.sweep.jobs import Job
from posbench.sweep.launch import launch_one
from posbench.sweep.work import Work
from posbench.tools.factors.evolution import Sizes, search_sizes
from posbench.tools.factors.factor_search import SearchPlan, plan_search, search
from posbench.tools.factors.needles import needles_to_read
from posbench.tools.request import METHOD_GROUPS, single_model_request, windows_to_read

SCRIPT = "scripts/search_factors.py"
EXTENSION_ARGUMENTS = ("mode", "target_len", "factors", "exact_first")
CHOSEN_KEYS = (*METHOD_GROUPS, *(f"extension.{key}" for key in EXTENSION_ARGUMENTS))
# keys of evaluate that the search leaves open, for each objective
EVALUATE_KEYS = {
    "nll": ("windows", "targets", "documents", "dtype", "seed", "batch_tokens"),
    "needle": ("windows", "tasks", "dtype", "seed", "batch_tokens"),
}


def search_factors(request: Request) -> None:
    """Search, print the losses beside those of the starts, and write the factors as a yaml.

    The yaml is a choice of extension=.
    """
    why = (
        f"of no effect, since {SCRIPT} searches the factors of longrope on validation documents, in"
        " windows of target= tokens"
    )
    config = single_model_request(
        request,
        script_does=f"{SCRIPT} searches for",
        without_tuning="and fine-tune with the factors that it finds",
        reserved_keys=CHOSEN_KEYS,
        allowed_evaluate_keys=EVALUATE_KEYS[request.raw_configs[0]["objective"]],
        why_reserved=why,
    )
    plan = plan_search(config)
    job = plan.job
    (cell,) = job.cells
    sizes = search_sizes(config["budget"])
    text = needles_to_read(job) if plan.needles else windows_to_read(job, cell.evaluate)
    if config["dry"]:
        check_devices([job], {})  # the sets are measured in this process, whatever the launcher
        print("\n".join(_dry_lines(plan, sizes, text.in_words)))
        return
    usual_folder = Path(config["results_dir"]).parent / "factors" / job.run.id
    folder = Path(config["out"] or usual_folder)
    path = folder / "extension" / f"{plan.name}.yaml"
    title = f"LongRoPE's factors for {job.run.id}, searched on {text.in_words}"
    title += _narrowing_words(config)
    _check_same_search(path, title)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join(sys.orig_argv)
    if not job.run.finished:
        launch_one(job, request.launcher, command)
    log = folder / f"{plan.name}-{cell.eval_id[:8]}.jsonl"
    losses, reference_losses = search(plan, text, sizes, log)
    best = min(losses, key=losses.__getitem__)
    first_number, *factors = best  # exact_first, which the yaml has, or the critical pair
    extension_node = {
        **cell.extension,
        "factors": factors,
        "exact_first": plan.space.exact_first(best),
    }
    comments = f"# {title}: {losses[best]:.4f} nats/token\n# {command}\n"
    yaml_text = yaml.safe_dump(extension_node, sort_keys=False, default_flow_style=None, width=140)
    write_atomic(path, comments + yaml_text)
    print(f"{len(losses):,} sets of factors of {text.in_words}, nats/token:")
    found_label = f"found, pair {first_number}" if plan.space.name == "critical" else "found"
    for label, loss in {**reference_losses, found_label: losses[best]}.items():
        print(f"  {label:15} {loss:.4f}")
    print(f"yaml {path}")
    print("\n".join(_ways_to_use(job, extension_node, folder, plan.name)))


def _dry_lines(plan: SearchPlan, sizes: Sizes, windows: str) -> list[str]:
    """Lines with the number of sets that a search measures, the text that they read, and the time.

    Losses of single targets are not kept, so no disk is needed for them.
    """
    job = plan.job
    (cell,) = job.cells
    fresh = [] if job.run.finished else [job]
    missing = [(job, cell, [plan.target])] * sizes.total
    texts = texts_left(missing[:1]) * sizes.total  # all sets read the same texts
    return [
        f"{job.run.path}: {sizes.total:,} sets of factors of {windows}; budget= multiplies their"
        " number",
        work_words([job], fresh, texts, Work(evaluations=len(texts))),
        time_words([job], fresh, missing, texts),
    ]


def _narrowing_words(config: dict) -> str:
    """Words typed of a search beside text and target: ", exact_first=[0], evaluate.seed=3".

    "" for the usual search.
    """
    words = []
    if config["exact_first"] is not None:
        words.append(f"exact_first={shown(config['exact_first'])}")
    for key, usual in (("documents", None), ("seed", 0)):
        value = config["evaluate"].get(key, usual)
        if value != usual:
            words.append(f"evaluate.{key}={shown(value)}")
    return "".join(f", {word}" for word in words)


def _check_same_search(path: Path, title: str) -> None:
    """Raise ConfigError if the yaml, which would be overwritten, has factors of another model, or
    searched otherwise.

    `title` is its first line without the loss.
    """
    if not path.exists():
        return
    first_line = read_bytes(path).decode(errors="replace").partition("\n")[0]
    if not first_line.startswith(f"# {title}: "):
        raise ConfigError(
            f"{path} holds others ({shown(first_line.lstrip('# '))}): give another out=, or remove"
            " it."
        )


def _ways_to_use(job: Job, node: dict, folder: Path, name: str) -> list[str]:
    """Lines that tell how evaluation and fine-tuning take the factors."""
    target = node["target_len"]
    run_word = quoted_word("run", job.run.path)
    run = with_command_names(
        f"python scripts/run.py --config-dir {shlex.quote(str(folder))} {run_word}"
    )
    train_len = job.config.train.train_len
    lengths = f"[{train_len},{target}]"
    words = ["extension=longrope"]  # what the yaml chooses, without it
    for key, value in node.items():
        if key != "_target_" and value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            words.append(f"extension.{key}={text}")
    if node["exact_first"]:
        fine_tuning = (
            "fine-tuning and export_hf.py take factors without exact positions: search with"
            " exact_first=0 and out=, another folder"
        )
    else:
        fine_tuning = f"fine-tune:  {run} finetune=longer finetune.length={target} extension={name}"
    # A dynamic mode follows each length, and refuses target_len.
    return [
        f"evaluate:   {run} extension={name} 'evaluate.lengths={lengths}'",
        f"the same, and up to {train_len} tokens as trained:  {run} extension={name}"
        f" extension.mode=dynamic extension.target_len=null 'evaluate.lengths={lengths}'",
        fine_tuning,
        f"in words:   {shlex.join(words)}",
    ]
