"""Commands of scripts/anatomy.py, compat.py and gallery.py."""

import sys
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.config.command_line import list_files, options
from posbench.config.compose import Request
from posbench.config.identity import method_name
from posbench.config.names import CONFIGS

COMPAT = {"reasons": False, "train_len": 64, "lengths": [], "config_dir": ""}


def anatomy(request: Request) -> None:
    """Dissect one combination of methods, or every combination of a grid, or measure a run's
    attention.
    """
    measure = _attention if request.cfgs[0]["lengths"] else _grid if request.sweep else _one
    list_files(measure(request, request.cfgs[0]))


def _folder(cfg: dict, name: str = "") -> Path:
    return Path(cfg["report_dir"] or Path(cfg["results_dir"]).parent / "anatomy" / name)


def _grid(request: Request, cfg: dict) -> list[Path]:
    from posbench.common.layout import aligned
    from posbench.tools.anatomy.grid_table import grid_numbers, grid_rows, write_grid

    for key in ("json", "figure"):
        if cfg[key]:
            raise ConfigError(
                f"{key}={cfg[key]} is of one combination, and a grid gives a table: leave {key}"
                " out, or -m and experiment=."
            )
    found, reasons = grid_rows(request.cfgs)
    for reason in reasons:
        print(reason, file=sys.stderr)
    if not found:
        print(
            "no combination of this grid is legal and changes something: there is no table",
            file=sys.stderr,
        )
        return []
    table, legend = grid_numbers(found)
    print("\n".join([table.title, aligned([table.columns, *table.rows]), *legend]))
    return write_grid(found, _folder(cfg, request.experiment["name"] or cfg["log"]["group"]))


def _attention(request: Request, cfg: dict) -> list[Path]:
    """Measure the attention of one run under every combination of methods, print a table, and write
    the files and the picture.
    """
    from posbench.data.sources import ALL
    from posbench.report.figures.style import save
    from posbench.tools.anatomy import attention_file
    from posbench.tools.anatomy.attention_figure import attention_page
    from posbench.tools.notebook.loaded_run import LoadedRun

    if len({(one["run"], str(one["lengths"]), str(one["evaluate"])) for one in request.cfgs}) > 1:
        raise ConfigError(
            "lengths= measures one run with one setting of evaluate: only methods may be several,"
            " such as extension=none,yarn."
        )
    cfgs = [attention_file.settled(one) for one in request.cfgs]
    first = cfgs[0]
    run = LoadedRun(first.run, first.device, first.cache_dir)
    corpus = run.prepared([ALL]) if first.evaluate.split == ALL else run.corpus
    arms = []
    for one in cfgs:
        try:
            arm, noop = attention_file.arm(one, cfg["lengths"], run.model)
        except ConfigError as error:
            if not request.sweep:
                raise
            print(f"refused: {error}", file=sys.stderr)
            continue
        if noop:
            print(f"no-op: {noop}", file=sys.stderr)
        arms.append(arm)
    found = attention_file.content(run.id, first, arms, run.model, corpus, run.device)
    print(attention_file.attention_in_terminal(found))
    methods = [method_name(node) for one in cfgs for node in (one.extension, one.scale_attention)]
    paths = attention_file.write_attention(
        found, _folder(cfg, "+".join([run.id, *dict.fromkeys(methods)]))
    )
    return [*paths, *save(attention_page(found), paths[0].with_suffix(""))]


def _one(request: Request, cfg: dict) -> list[Path]:
    """Print the summary of one combination and write the files named by json= and figure=, or both
    in report_dir or the default folder.
    """
    from posbench.common.files import write_json
    from posbench.position.instantiate import make
    from posbench.position.legality import check
    from posbench.report.figures.style import save
    from posbench.tools.anatomy.as_text import summary
    from posbench.tools.anatomy.dissect import dissect
    from posbench.tools.anatomy.figure import anatomy_page
    from posbench.tools.anatomy.from_config import parts, whole

    encoding, trained = parts(whole(cfg))
    extension, scale = make(cfg["extension"]), make(cfg["scale_attention"], encoding.shape)
    length = cfg["length"] or 16 * encoding.shape.train_len
    verdict = check(encoding, extension, scale, [length], cfg["allow_untested"])
    if verdict.noop:
        print(f"no-op: {verdict.noop}", file=sys.stderr)
    found = dissect(encoding, extension, scale, length, trained)
    numbers = found.numbers | {
        "untested": verdict.untested,
        "noop": verdict.noop,
        "run": cfg["run"],
    }
    print("\n".join(summary(numbers)))
    default = _folder(cfg) / (
        "+".join(numbers[key] for key in ("encoding", "extension", "scale_attention")) + ".json"
    )
    written = [Path(cfg["json"] or default)] if cfg["json"] or not cfg["figure"] else []
    for path in written:
        write_json(path, numbers)
    if cfg["figure"] or not cfg["json"]:
        stem = Path(cfg["figure"] or default)
        stem = stem.with_suffix("") if stem.suffix.lower() in (".png", ".svg", ".json") else stem
        written += save(anatomy_page(replace(found, numbers=numbers)), stem)
    return written


def compat(arguments: list[str]) -> None:
    """Print the table, or with `reasons` one line for each pair: a reason (refused, untested,
    no-op) or a source (legal).
    """
    chosen = options(arguments, COMPAT)
    if chosen["config_dir"] and not Path(chosen["config_dir"]).is_dir():
        raise ConfigError(
            f"config_dir={chosen['config_dir']} is not a folder: name the one that holds your"
            " yamls."
        )
    from posbench.tools.anatomy.legality_table import WORDS, judge_all, legality_markdown

    train_len = chosen["train_len"]
    folders = [Path(CONFIGS), *([Path(chosen["config_dir"])] if chosen["config_dir"] else [])]
    sys.path[:0] = map(str, folders[1:])
    pairs = list(judge_all(folders, train_len, chosen["lengths"] or [train_len, 16 * train_len]))
    if not chosen["reasons"]:
        print(legality_markdown(pairs), end="")
        return
    for pair in pairs:
        if pair.reason:
            print(
                f"{WORDS[pair.fate]:4} encoding={pair.encoding} {pair.kind}={pair.other}:"
                f" {pair.reason}"
            )


def gallery(arguments: list[str]) -> None:
    """Draw the sheet and print the files."""
    chosen = options(arguments, {"out": "results/gallery"})
    from posbench.report.figures.style import save
    from posbench.tools.anatomy.gallery import dissected, sheet

    shown = {group: dissected(group) for group in ("encoding", "extension", "scale_attention")}
    list_files(save(sheet(shown), Path(chosen["out"]) / "gallery"))
