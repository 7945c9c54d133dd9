"""The list of commands. Nothing heavy is imported here.

A command is a folder of posbench/tools, a line of COMMANDS, and scripts/NAME.py, whose docstring is
its help. Where Hydra composes its configuration, configs/YAML.yaml has its help and its keys. The
line names the command's group, under which posbench --help and scripts/README.md list it."""

import importlib
import json
import os
import re
from collections.abc import Callable
from typing import NamedTuple

# In the order of posbench --help.
EVERYDAY = "everyday"
MODELS = "models"
DATA_AND_RUNS = "data and runs"
MAINTAINERS = "for maintainers"
GROUPS = (EVERYDAY, MODELS, DATA_AND_RUNS, MAINTAINERS)  # in the order of posbench --help


class Command(NamedTuple):
    """A command: `posbench NAME`, and the same as `python scripts/NAME.py`."""

    name: str
    group: str  # one of GROUPS
    function_place: str  # "FOLDER:function": of posbench/tools/FOLDER/command.py
    yaml: str = ""  # configs/YAML.yaml, composed by Hydra; "": the function gets the words
    folder_key: str = ""  # key of its folder: out, or report_dir, which may be typed as out too
    takes_dry: bool = False  # dry=true has an effect
    words: tuple[str, ...] = ()  # put before those that are typed
    add_key: Callable[[str], str] | None = None  # a word without a key to key=value

    @property
    def takes_name(self) -> bool:
        """True if the name of a sweep has an effect: on what is run, or on a folder of results."""
        return self.takes_dry or self.name in ("report", "anatomy")

    def function(self) -> Callable[..., int | None]:
        """Function of a request, or of the words without a yaml; imported by this call alone."""
        folder, _, name = self.function_place.partition(":")
        return getattr(importlib.import_module(f"posbench.tools.{folder}.command"), name)


def _keyed_model(word: str) -> str:
    """Word for a model that was typed without a key: a run's folder, else a checkpoint."""
    key = "run" if os.path.isfile(os.path.join(word, "config.yaml")) else "model.path"
    plain = re.fullmatch(r"[\w./:+@%?|^-]+", word)
    return f"{key}={word if plain else json.dumps(word)}"


def _keyed_engine(word: str) -> str:
    """Word for an engine's rows that were typed without a key: a run, or an eval json."""
    return f"engine={word}"


COMMANDS = [  # in the order of posbench --help
    Command(
        "demo", EVERYDAY, "run:run_and_report", "run", takes_dry=True, words=("experiment=demo",)
    ),
    Command("run", EVERYDAY, "run:run", "run", takes_dry=True),
    Command("report", EVERYDAY, "report:report", "report", folder_key="report_dir"),
    Command("compare", EVERYDAY, "compare:compare_words"),
    Command("plot", EVERYDAY, "plot:plot_words"),
    Command("explore", EVERYDAY, "explore:explore_command"),
    Command(
        "look",
        EVERYDAY,
        "look:look",
        "look",
        folder_key="report_dir",
        takes_dry=True,
        add_key=_keyed_model,
    ),
    Command("explain", MODELS, "explanation:explain"),
    Command("advise", MODELS, "advice:advise", "advise", folder_key="report_dir", takes_dry=True),
    Command(
        "identify",
        MODELS,
        "identify:identify",
        "identify",
        folder_key="out",
        takes_dry=True,
        add_key=_keyed_engine,
    ),
    Command("harness", MODELS, "harness:harness", "harness", folder_key="out"),
    Command("export_hf", MODELS, "export:export", "export_hf", folder_key="out"),
    Command("anatomy", MODELS, "anatomy:anatomy", "anatomy", folder_key="report_dir"),
    Command(
        "search_factors",
        MODELS,
        "factors:search_factors",
        "search_factors",
        folder_key="out",
        takes_dry=True,
    ),
    Command("runs", DATA_AND_RUNS, "runs:runs"),
    Command("prepare_data", DATA_AND_RUNS, "prepare_data:prepare_data", "prepare_data"),
    Command("claims", MAINTAINERS, "claims:claims", "claims", folder_key="report_dir"),
    Command("reproduce", MAINTAINERS, "reproduce:reproduce", "reproduce", takes_dry=True),
    Command("gallery", MAINTAINERS, "anatomy:gallery"),
    Command("compat", MAINTAINERS, "anatomy:compat"),
    Command("benchmark", MAINTAINERS, "benchmark:benchmark"),
    Command("bundle", MAINTAINERS, "bundle:bundle_command"),
]


def find_command(name: str) -> Command | None:
    """The command of a name, None if there is none."""
    return next((command for command in COMMANDS if command.name == name), None)
