"""Command of scripts/explore.py: words to reports, and these to one page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.config.command_line import options
from posbench.config.names import CONFIGS, as_command
from posbench.results.search import find_results, is_evidence, shortest_endings

OPTIONS = {"out": "explore.html", "title": ""}
COMMITTED = CONFIGS.parent / "results" / "reported"


Named = dict[
    str,
    Any,
    # results of one word, as `collect` takes them: eval files, their lengths, CSVs and folders of
    # evidence
]


def explore_command(words: list[str]) -> None:
    """Write the page that the words ask for, and print its path."""
    from posbench.common.files import write_atomic
    from posbench.report.explore import explore_page

    names = [word for word in words if word.partition("=")[0] not in OPTIONS]
    chosen = options([word for word in words if word not in names], OPTIONS)
    if not names:
        raise ConfigError(
            "There is nothing to explore: name folders of runs or reports, CSVs, or experiments"
            " such as headline."
        )
    out = Path(chosen["out"])
    if out.suffix.lower() != ".html":
        raise ConfigError(f"out={out} is no page: give it the ending .html.")
    short = ["/".join(Path(name).parts[-2:]) for name in names]
    title = chosen["title"] or ", ".join(
        short if len(short) < 5 else [*short[:3], f"and {len(short) - 3} others"]
    )
    reports, notes = collected({name: named(name) for name in dict.fromkeys(names)}, title)
    text = explore_page(title, reports, notes)
    write_atomic(out, text)
    print(f"{out} ({len(text.encode()) / 1e6:.1f} MB): open it in a browser")


def named(word: str) -> Named:
    """Results that a word names. Raises ConfigError if it names none."""
    experiments = {path.stem for path in (CONFIGS / "experiment").glob("*.yaml")}
    committed = {path.name for path in COMMITTED.glob("*") if is_evidence(path)}
    if Path(word).exists() or word not in experiments | committed:
        try:
            found = find_results([word])
        except ConfigError as error:
            near = did_you_mean(word, sorted(experiments | committed))
            raise ConfigError(
                f"{word} is no folder of runs or of a report, no CSV, and no experiment{near}: give"
                " one of these."
            ) from error
        return {"paths": found.eval_files(), "csvs": found.csvs, "evidence": found.evidence}
    lengths = of_grid(word) if word in experiments and Path("results/runs").is_dir() else {}
    if any(path.exists() for path in lengths):
        return {"paths": list(lengths), "lengths": lengths}
    if word in committed:
        return {"evidence": [COMMITTED / word]}
    made = as_command(f"python scripts/run.py experiment={word}")
    raise ConfigError(
        f"Nothing of experiment {word} is in results/runs yet: run '{made}' first, or name a"
        " folder."
    )


def of_grid(name: str) -> dict[Path, Sequence[int]]:
    """{eval file: its lengths} of an experiment in results/runs."""
    import hydra

    from posbench.config.compose import Composer, expand
    from posbench.config.schema import check_config
    from posbench.sweep.jobs import plan_existing

    word = f"experiment={name}"
    with hydra.initialize_config_dir(str(CONFIGS.resolve()), job_name="report", version_base="1.3"):
        composer = Composer("report")
        jobs, _ = plan_existing(
            [check_config(cfg) for cfg in expand(composer.values([word]), [word], composer)]
        )
    return {cell.path: cell.evaluate.lengths for job in jobs for cell in job.cells}


def collected(parts: dict[str, Named], title: str) -> tuple[dict[str, object], list[str]]:
    """({"": the report of everything}, []), or, where the same training is in two of the parts,
    {name: report} of each and a note.
    """
    from posbench.report.report import collect

    def report(*some: Named) -> object:
        given = {
            kind: [path for one in some for path in one.get(kind, ())]
            for kind in ("paths", "csvs", "evidence")
        }
        lengths = {path: own for one in some for path, own in one.get("lengths", {}).items()}
        return collect(
            title=title,
            command=as_command("python scripts/run.py"),
            skip_damaged=True,
            lengths=lengths,
            **given,
        )

    if len(parts) == 1:
        return {"": report(*parts.values())}, []
    each = {name: report(part) for name, part in parts.items()}
    known = [
        {evaluation.first["run_id"] for evaluation in one.evaluations if not evaluation.rows_alone}
        for one in each.values()
    ]
    twice = sum(map(len, known)) - len(set().union(*known))
    if not twice:
        try:
            return {"": report(*parts.values())}, []
        except RunError as error:
            why = str(error)
    else:
        why = f"{twice} training{'s are' if twice > 1 else ' is'} in more than one of them"
    names = shortest_endings([Path(name) for name in each])
    return {names[Path(name)]: one for name, one in each.items()}, [
        f"Each of {', '.join(names.values())} has lines of its own: {why}"
    ]
