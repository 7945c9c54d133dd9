"""Command of scripts/explain.py: print the explanation of a setting, and write it."""

from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import write_json
from posbench.config.command_line import print_files


def explain(arguments: list[str]) -> None:
    """Print the explanation and the paths of what was written."""
    from posbench.tools.explanation.explain import explain_words

    if not arguments or arguments[0].startswith("-") or "=" in arguments[0]:
        raise ConfigError(
            "Say first what to explain: a checkpoint's folder, a config.json, a .gguf file or a hub"
            " name; then the changes."
        )
    what, *words = arguments
    explanation = explain_words(what, words)
    figure = explanation.options.get("figure")
    file = explanation.options.get("json")
    ending = Path(figure or "").suffix
    if ending not in ("", ".png", ".svg"):
        raise ConfigError(
            f"figure={figure}: explain writes .png and .svg together, and no {ending}: give one of"
            " these endings."
        )
    print(explanation.text)
    written = []
    if file:
        write_json(Path(file), explanation.as_json())
        written.append(Path(file))
    if figure:
        from posbench.report.figures.style import write_figure
        from posbench.tools.explanation.show import explanation_figure

        written += write_figure(explanation_figure(explanation), Path(figure).with_suffix(""))
    if written:
        print()
    print_files(written)
