"""Commands of scripts/anatomy.py, compat.py and gallery.py."""

import sys
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.config.command_line import print_files, read_options
from posbench.config.compose import Request
from posbench.config.identity import method_name
from posbench.config.names import CONFIGS_FOLDER

COMPAT_OPTIONS = {"reasons": False, "train_len": 64, "lengths": [], "config_dir": ""}
# Endings of pictures that are not written; another one, such as of a/v1.2, is part of the name.
OTHER_PICTURES = (".pdf", ".eps", ".jpg", ".jpeg", ".gif", ".webp", ".tif", ".tiff")


def anatomy(request: Request) -> None:
    """Dissect one combination of methods, or every combination of a grid, or measure a run's
    attention.
    """
    first = request.raw_configs[0]
    if first["lengths"]:
        written = _measure_attention(request)
    elif request.sweep:
        written = _tabulate_grid(request)
    else:
        written = _dissect_one(first, request.name)
    print_files(written)


def _default_folder(raw: dict, name: str = "") -> Path:
    """Folder for files without a path of their own: report_dir=, else anatomy/NAME."""
    return Path(raw["report_dir"] or Path(raw["results_dir"]).parent / "anatomy" / name)


def _tabulate_grid(request: Request) -> list[Path]:
    """Print the table of a grid's dimensionless numbers, and write it."""
    from posbench.common.layout import aligned
    from posbench.tools.anatomy.grid_table import grid_rows, table_and_legend, write_grid

    first = request.raw_configs[0]
    for key in ("json", "figure"):
        if first[key]:
            raise ConfigError(
                f"{key}={first[key]} is of one combination, and a grid gives a table: leave {key}"
                " out, or -m and experiment=."
            )
    rows, reasons = grid_rows(request.raw_configs)
    for reason in reasons:
        print(reason, file=sys.stderr)
    if not rows:
        print(
            "no combination of this grid is legal and changes something: there is no table",
            file=sys.stderr,
        )
        return []
    table, legend = table_and_legend(rows)
    print("\n".join([table.title, aligned([table.columns, *table.rows]), *legend]))
    return write_grid(rows, _default_folder(first, request.name or first["log"]["group"]))


def _measure_attention(request: Request) -> list[Path]:
    """Measure the attention of one run under every combination of methods, print a table, and write
    the files and the picture.
    """
    from posbench.data.sources import ALL
    from posbench.report.figures.style import write_figure
    from posbench.tools.anatomy import attention_file
    from posbench.tools.anatomy.attention_figure import attention_page
    from posbench.tools.notebook.loaded_run import LoadedRun

    settings = {
        (raw["run"], str(raw["lengths"]), str(raw["evaluate"])) for raw in request.raw_configs
    }
    if len(settings) > 1:
        raise ConfigError(
            "lengths= measures one run with one setting of evaluate: only methods may be several,"
            " such as extension=none,yarn."
        )
    configs = [attention_file.resolve_run(raw) for raw in request.raw_configs]
    first = configs[0]
    lengths = request.raw_configs[0]["lengths"]
    run = LoadedRun(first.run, first.device, first.cache_dir)
    # run.corpus has the three splits, and not ALL, which is a file of its own.
    corpus = run.prepared([ALL]) if first.evaluate.split == ALL else run.corpus
    arms = []
    for config in configs:
        try:
            arm = attention_file.make_arm(config, lengths, run.model)
        except ConfigError as error:
            if not request.sweep:
                raise
            print(f"refused: {error}", file=sys.stderr)
            continue
        if arm.noop:
            print(f"no-op: {arm.noop}", file=sys.stderr)
        arms.append(arm)
    diagnostics = attention_file.diagnostics_content(
        run.id, first, arms, run.model, corpus, run.device
    )
    print(attention_file.attention_in_terminal(diagnostics))
    methods = []
    for config in configs:
        methods += [method_name(config.extension), method_name(config.scale_attention)]
    name = request.name or "+".join([run.id, *dict.fromkeys(methods)])
    folder = _default_folder(request.raw_configs[0], name)
    paths = attention_file.write_attention(diagnostics, folder)
    return [*paths, *write_figure(attention_page(diagnostics), paths[0].with_suffix(""))]


def _dissect_one(raw: dict, name: str) -> list[Path]:
    """Print the summary of one combination and write the files named by json= and figure=; with
    neither both, in the folder of `name` (_default_folder).
    """
    from posbench.common.files import write_json
    from posbench.position.instantiate import make_method
    from posbench.position.legality import verdict_of
    from posbench.report.figures.style import write_figure
    from posbench.tools.anatomy.as_text import summary_lines
    from posbench.tools.anatomy.dissect import dissect
    from posbench.tools.anatomy.figure import anatomy_page
    from posbench.tools.anatomy.from_config import make_methods, resolve_methods

    figure = raw["figure"]
    if figure and Path(figure).suffix.lower() in OTHER_PICTURES:
        stem = Path(figure).with_suffix("")
        raise ConfigError(
            f"figure={figure} is written as .png and .svg, and in no other format: give"
            f" figure={stem}."
        )
    encoding, trained_scale = make_methods(resolve_methods(raw))
    extension = make_method(raw["extension"])
    scale = make_method(raw["scale_attention"], encoding.shape)
    length = raw["length"] or 16 * encoding.shape.train_len  # as configs/anatomy.yaml says of null
    verdict = verdict_of(encoding, extension, scale, [length], raw["allow_untested"])
    if verdict.noop:
        print(f"no-op: {verdict.noop}", file=sys.stderr)
    dissected = dissect(encoding, extension, scale, length, trained_scale)
    numbers = dissected.numbers | {
        "untested": verdict.untested,
        "noop": verdict.noop,
        "own": verdict.of_user,  # a class of the user's own is among the methods
        "run": raw["run"],
    }
    print("\n".join(summary_lines(numbers)))
    methods = [numbers[key] for key in ("encoding", "extension", "scale_attention")]
    default = _default_folder(raw, name) / f"{'+'.join(methods)}.json"
    written = []
    if raw["json"] or not figure:
        path = Path(raw["json"] or default)
        write_json(path, numbers)
        written.append(path)
    if figure or not raw["json"]:
        stem = Path(figure or default)
        if stem.suffix.lower() in (".png", ".svg", ".json"):
            stem = stem.with_suffix("")
        written += write_figure(anatomy_page(replace(dissected, numbers=numbers)), stem)
    return written


def compat(arguments: list[str]) -> None:
    """Print the table, or with `reasons` one line for each pair: a reason (refused, untested,
    own, no-op) or a source (legal).
    """
    settings = read_options(arguments, COMPAT_OPTIONS)
    folders = [Path(CONFIGS_FOLDER)]
    if settings["config_dir"]:
        folder = Path(settings["config_dir"])
        if not folder.is_dir():
            raise ConfigError(
                f"config_dir={settings['config_dir']} is not a folder: name the one that holds your"
                " yamls."
            )
        folders.append(folder)
        sys.path.insert(0, str(folder))  # of the classes that its yamls name
    from posbench.tools.anatomy.legality_table import FATE_WORDS, judge_all, legality_markdown

    train_len = settings["train_len"]
    lengths = settings["lengths"] or [train_len, 16 * train_len]
    pairs = list(judge_all(folders, train_len, lengths))
    if not settings["reasons"]:
        print(legality_markdown(pairs), end="")
        return
    for pair in pairs:
        if pair.reason:
            methods = f"encoding={pair.encoding} {pair.kind}={pair.other}"
            print(f"{FATE_WORDS[pair.fate]:4} {methods}: {pair.reason}")


def gallery(arguments: list[str]) -> None:
    """Draw the sheet and print the files."""
    settings = read_options(arguments, {"out": "results/gallery"})
    from posbench.report.figures.style import write_figure
    from posbench.tools.anatomy.gallery import gallery_figure, tiles_of_group

    tiles = {group: tiles_of_group(group) for group in ("encoding", "extension", "scale_attention")}
    print_files(write_figure(gallery_figure(tiles), Path(settings["out"]) / "gallery"))
