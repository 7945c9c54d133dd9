"""Command of scripts/plot.py: words to a figure in files."""

from dataclasses import fields
from pathlib import Path

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.command_line import list_files
from posbench.report.figures.style import FORMATS, save
from posbench.report.frame import by_source
from posbench.report.plot import Options, draw_figure, listed, one_of
from posbench.tools.explore.command import COMMITTED

NAMES = [one.name for one in fields(Options) if one.name != "labels"]
PIXELS = {"column": 400, "page": 300, "slide": 320}  # an inch of a png


def plot_words(words: list[str]) -> None:
    """Draw the figure that the words describe, and print its files and its caption."""
    paths, given = (
        [word for word in words if "=" not in word],
        [word for word in words if "=" in word],
    )
    if not paths:
        raise ConfigError(
            "Nothing to draw is named: give folders of runs or of reports, CSVs, or reported"
            " experiments such as demo."
        )
    paths = [
        str(COMMITTED / path) if not Path(path).exists() and (COMMITTED / path).is_dir() else path
        for path in paths
    ]
    labels = [word.removeprefix("labels.") for word in given if word.startswith("labels.")]
    chosen = dict(word.partition("=")[::2] for word in given if not word.startswith("labels."))
    limits = {name: _ends(name, chosen.pop(name)) for name in ("xlim", "ylim") if name in chosen}
    renamed = dict(
        word.rpartition("=")[::2] for word in labels
    )  # arguments in a name have a = too, so the last one divides
    options = Options(
        **{name: chosen.pop(name) for name in NAMES if name in chosen}, **limits, labels=renamed
    )
    out, formats = chosen.pop("out", None), chosen.pop("format", None)
    asked = by_source(paths, "accuracy") if options.y == "accuracy" else by_source(paths)
    table = (
        asked
        if len(asked)
        else by_source(paths, "curve" if options.y == "accuracy" else "accuracy")
    )
    empty = (
        [f"Left out, since it holds nothing of this kind: {', '.join(table.attrs['empty'])}."]
        if table.attrs.get("empty")
        else []
    )
    for name, value in chosen.items():
        if name not in table:
            known = [*NAMES, "labels.NAME", "format", "out", *table.columns]
            raise ConfigError(
                f"{name} is no word of a figure{did_you_mean(name, known)}: choose from"
                f" {', '.join(known)}."
            )
        text = table[name].map(
            lambda one: (
                "none"
                if one is None or one != one
                else f"{one:g}"
                if isinstance(one, float)
                else str(one)
            )
        )
        table = table[text.isin([one_of(name, one, text) for one in listed(value)])]
    stem, formats = _files(
        out, formats, "-".join([Path(paths[0]).resolve().stem, options.y or "curve"])
    )
    figure, caption = draw_figure(table, options)
    list_files(save(figure, stem, formats, {"dpi": PIXELS[options.size]}, fonts="none"))
    print(*caption(), *empty, sep="\n")


def _ends(name: str, text: str) -> tuple[float | None, float | None]:
    """Two ends of an axis; an empty one is left as it is."""
    try:
        low, high = (float(end) if end.strip() else None for end in text.strip("()[]").split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if low is not None and high is not None and not low < high:
        raise ConfigError(
            f"{name}={text} must be two numbers, the smaller first, such as {name}=0,4; {name}=0,"
            " sets one end."
        )
    return low, high


def _files(out: str | None, formats: str | None, name: str) -> tuple[Path, list[str]]:
    path = Path(out or "results/plot")
    named = path.suffix.lstrip(".") if out and not out.endswith("/") and not path.is_dir() else ""
    wanted = [one_of("format", one, FORMATS) for one in listed(formats or "")]
    if not named:
        return path / name, wanted or ["pdf", "png"]
    if not wanted or named in FORMATS:
        one_of("format", named, FORMATS)
        return path.with_suffix(""), list(dict.fromkeys([named, *wanted]))
    return path, wanted
