"""Command of scripts/explain.py: print the explanation of a setting, and write it."""

from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import write_json
from posbench.config.command_line import list_files


def explain(arguments: list[str]) -> None:
    """Print the explanation and the paths of what was written."""
    from posbench.tools.explanation.explain import explain_words

    if not arguments or arguments[0].startswith("-") or "=" in arguments[0]:
        raise ConfigError(
            "Say first what to explain: a checkpoint's folder, a config.json, a .gguf file or a hub"
            " name; then the changes."
        )
    what, *words = arguments
    found = explain_words(what, words)
    options, written = found.options, []
    if (suffix := Path(options.get("figure", "")).suffix) not in ("", ".png", ".svg"):
        raise ConfigError(
            f"figure={options['figure']}: explain writes .png and .svg together, and no {suffix}:"
            " give one of these endings."
        )
    print(found.text)
    if file := options.get("json"):
        write_json(Path(file), found.as_json())
        written.append(Path(file))
    if file := options.get("figure"):
        from posbench.report.figures.style import save
        from posbench.tools.explanation.show import explanation_figure

        written += save(explanation_figure(found), Path(file).with_suffix(""))
    if written:
        print()
    list_files(written)
