"""Positions of untrained methods, or attention of a trained model, in numbers and a figure.

python scripts/anatomy.py encoding=rope extension=yarn length=4096
python scripts/anatomy.py experiment=headline                           one table of a grid; also with -m
python scripts/anatomy.py run=DIR 'lengths=[64,1024]' extension=yarn      where each head of a trained model attends; also with -m
"""

import sys
from pathlib import Path

from posbench.cli.app import run_script
from posbench.common.errors import ConfigError
from posbench.config.compose import Request
from posbench.config.identity import method_name


def anatomy(request: Request) -> int:
    """Dissect one combination of methods, or every combination of a grid, or measure a run's attention. Returns the exit code."""
    if request.cfgs[0]["lengths"]:
        _attention(request)
    elif request.sweep:
        _grid(request)
    else:
        _one(request.cfgs[0])
    return 0


def _grid(request: Request) -> None:
    """Print one table of a grid and write it to two files."""
    from posbench.anatomy.as_text import table_lines
    from posbench.anatomy.grid_table import grid_numbers, grid_rows, write_grid

    cfg = request.cfgs[0]
    for key in ("json", "figure"):
        if cfg[key]:
            raise ConfigError(f"{key}={cfg[key]} is of one combination, and a grid gives a table: leave {key} out, or -m and experiment=.")
    found, reasons = grid_rows(request.cfgs)
    for reason in reasons:
        print(reason, file=sys.stderr)
    if not found:
        print("no combination of this grid is legal and changes something: there is no table", file=sys.stderr)
        return
    table, legend = grid_numbers(found)
    print("\n".join([*table_lines(table), *legend]))
    name = request.experiment["name"] or cfg["log"]["group"]
    for path in write_grid(found, Path(cfg["report_dir"] or Path(cfg["results_dir"]).parent / "anatomy" / name)):
        print(f"{path.suffix.lstrip('.'):4} {path}")


def _attention(request: Request) -> None:
    """Measure the attention of one run under every combination of methods, print a table, and write the files and the picture."""
    from posbench.anatomy import attention_figure, attention_file
    from posbench.cli.notebook import LoadedRun
    from posbench.data.sources import ALL

    if len({(cfg["run"], str(cfg["lengths"]), str(cfg["evaluate"])) for cfg in request.cfgs}) > 1:
        raise ConfigError(
            "lengths= measures one run with one setting of evaluate: only methods may be several, such as extension=none,yarn."
        )
    cfgs = [attention_file.settled(cfg) for cfg in request.cfgs]
    first = cfgs[0]
    run = LoadedRun(first.run, first.device, first.cache_dir)
    corpus = run.prepared([ALL]) if first.evaluate.split == ALL else run.corpus
    arms = []
    for cfg in cfgs:
        try:
            one, noop = attention_file.arm(cfg, request.cfgs[0]["lengths"], run.model)
        except ConfigError as error:
            if not request.sweep:
                raise
            print(f"refused: {error}", file=sys.stderr)
            continue
        if noop:
            print(f"no-op: {noop}", file=sys.stderr)
        arms.append(one)
    found = attention_file.content(run.id, first, arms, run.model, corpus, run.device)
    print(attention_file.attention_in_terminal(found))
    methods = [method_name(node) for cfg in cfgs for node in (cfg.extension, cfg.scale_attention)]
    name = "+".join([run.id, *dict.fromkeys(methods)])
    paths = attention_file.write_attention(found, Path(first.report_dir or Path(first.results_dir).parent / "anatomy" / name))
    for path in [*paths, *attention_figure.draw_attention(paths[0])]:
        print(f"{path.suffix.lstrip('.'):4} {path}")


def _one(cfg: dict) -> None:
    from posbench.anatomy.dissect import dissect
    from posbench.anatomy.from_config import parts, whole
    from posbench.position.instantiate import make
    from posbench.position.legality import check

    chosen = whole(cfg)
    encoding, trained = parts(chosen)
    extension, scale = make(cfg["extension"]), make(cfg["scale_attention"], encoding.shape)
    length = cfg["length"] or 16 * encoding.shape.train_len
    verdict = check(encoding, extension, scale, [length], cfg["allow_untested"])
    if verdict.noop:
        print(f"no-op: {verdict.noop}", file=sys.stderr)
    found = dissect(encoding, extension, scale, length, trained)
    found.numbers.update({"untested": verdict.untested, "noop": verdict.noop, "run": cfg["run"]})
    _write(found, cfg)


def _write(found, cfg: dict) -> None:
    """Print the summary and write the files named by json= and figure=, or both in report_dir or the default folder."""
    from posbench.anatomy.as_text import summary
    from posbench.anatomy.figure import draw_anatomy
    from posbench.common.files import write_json

    numbers = found.numbers
    print("\n".join(summary(numbers)))
    name = "+".join(numbers[key] for key in ("encoding", "extension", "scale_attention"))
    default = Path(cfg["report_dir"] or Path(cfg["results_dir"]).parent / "anatomy") / f"{name}.json"
    if cfg["json"] or not cfg["figure"]:
        path = Path(cfg["json"] or default)
        write_json(path, numbers)
        print(f"json {path}")
    if cfg["figure"] or not cfg["json"]:
        stem = Path(cfg["figure"] or default)
        stem = stem.with_suffix("") if stem.suffix.lower() in (".png", ".svg", ".json") else stem
        for path in draw_anatomy(found, stem):
            print(f"{path.suffix.lstrip('.'):4} {path}")


if __name__ == "__main__":
    run_script(anatomy, "anatomy")
