"""The list of commands. Nothing heavy is imported here.

A command is a folder of posbench/tools, a line of COMMANDS, and scripts/NAME.py, whose docstring is
its help. Where Hydra composes its configuration, configs/YAML.yaml has its help and its keys."""

import importlib
import json
import os
import re
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """A command: `posbench NAME`, and the same as `python scripts/NAME.py`."""

    name: str
    place: str  # "FOLDER:function": of posbench/tools/FOLDER/command.py
    yaml: str = ""  # configs/YAML.yaml, composed by Hydra; "": the function gets the words
    writes: str = ""  # key of its folder: out, or report_dir, which may be typed as out too
    dry: bool = False  # dry=true has an effect
    words: tuple[str, ...] = ()  # put before those that are typed
    keyed: Callable[[str], str] | None = None  # a word without a key to key=value

    def function(self) -> Callable[..., int | None]:
        """Function of a request, or of the words without a yaml; imported by this call alone."""
        folder, _, name = self.place.partition(":")
        return getattr(importlib.import_module(f"posbench.tools.{folder}.command"), name)


def _keyed_model(word: str) -> str:
    key = "run" if os.path.isfile(os.path.join(word, "config.yaml")) else "model.path"
    plain = re.fullmatch(r"[\w./:+@%?|^-]+", word)
    return f"{key}={word if plain else json.dumps(word)}"


def _keyed_engine(word: str) -> str:
    return f"engine={word}"


COMMANDS = [  # in the order of posbench --help
    Command("demo", "run:run_and_report", "run", dry=True, words=("experiment=demo",)),
    Command("look", "look:look", "look", writes="report_dir", dry=True, keyed=_keyed_model),
    Command("run", "run:run", "run", dry=True),
    Command("report", "report:report", "report", writes="report_dir"),
    Command("compare", "compare:compare_words"),
    Command("runs", "runs:runs"),
    Command("advise", "advice:advise", "advise", writes="report_dir", dry=True),
    Command("anatomy", "anatomy:anatomy", "anatomy", writes="report_dir"),
    Command("benchmark", "benchmark:benchmark"),
    Command("bundle", "bundle:bundle_command"),
    Command("claims", "claims:claims", "claims", writes="report_dir"),
    Command("compat", "anatomy:compat"),
    Command("explain", "explanation:explain"),
    Command("explore", "explore:explore_command"),
    Command("export_hf", "export:export", "export_hf", writes="out"),
    Command("gallery", "anatomy:gallery"),
    Command("harness", "harness:harness", "harness", writes="out"),
    Command(
        "identify", "identify:identify", "identify", writes="out", dry=True, keyed=_keyed_engine
    ),
    Command("plot", "plot:plot_words"),
    Command("prepare_data", "prepare_data:prepare_data", "prepare_data"),
    Command("reproduce", "reproduce:reproduce", "reproduce", dry=True),
    Command("search_factors", "factors:search_factors", "search_factors", writes="out", dry=True),
]


def find_command(name: str) -> Command | None:
    """The command of a name, None if there is none."""
    return next((command for command in COMMANDS if command.name == name), None)
