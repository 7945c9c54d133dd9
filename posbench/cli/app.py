"""The command line: Hydra composes, this module decides what runs and with which exit code.

0 done (a sweep whose cells are all refused or no-ops too), 1 a job failed, 2 the user's configuration is refused,
128 + n ended by signal n. Only hydra is imported before a job starts, so that --help, --cfg and completion are quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

sys.path.append(str(Path(__file__).parents[1] / "plugins"))  # before Hydra looks for plugins

import hydra
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from posbench.cli.key_values import guarded, working_directory
from posbench.common.errors import ConfigError, RunError
from posbench.config.compose import CONFIGS, expand, experiment_of, long_name, name_group, sentence
from posbench.config.request import Request
from posbench.config.schema import check

Command = Callable[[Request], int]


@dataclass
class Call:
    """What one call of a script is doing: Hydra gives an application no way to return a code or to see a sweep whole."""

    command: Command
    config_name: str
    entered: bool = False
    code: int = 0

    def execute(self, composed: list[tuple[DictConfig, list[str]]], launcher: dict, sweep: bool) -> None:
        """Run the command once for all jobs of (configuration, overrides typed); whatever it ends with is one sentence."""
        self.entered = True
        results_dir = OmegaConf.select(composed[0][0], "results_dir", throw_on_resolution_failure=False)
        self.code = guarded(lambda: self._execute(composed, launcher, sweep), results_dir) or self.code

    def _execute(self, composed: list[tuple[DictConfig, list[str]]], launcher: dict, sweep: bool) -> None:
        for gone in (override for _, overrides in composed for override in overrides if override.startswith("~")):
            raise ConfigError(f"{gone} takes out what is needed: give it another value instead.")
        experiment = experiment_of(*composed[0])
        expanded = [([check(cfg) for cfg in expand(job, overrides, self.config_name)], overrides) for job, overrides in composed]
        cfgs = [cfg for cells, _ in expanded for cfg in cells]
        if any(cfg["run"] for cfg in cfgs):
            from posbench.cli import given_run

            given_run.check(expanded, experiment)
        sweep = sweep or "grid" in experiment
        if sweep:
            name_group(cfgs)
        self.code = self.command(Request(cfgs, experiment, sweep, launcher))


call: Call


def run_script(command: Command, config_name: str = "run") -> None:
    """Compose configs/CONFIG_NAME.yaml with sys.argv and hand all its jobs to `command`; exits with the command's code."""
    global call
    working_directory()
    call = Call(command, config_name)
    if code := guarded(_flags_first):
        sys.exit(code)
    sys.argv[1:] = map(long_name, sys.argv[1:])
    ConfigRepository.get_group_options = _choices  # read for listings, completion and glob(*)
    _importable_config_dir()
    _own_launchers()

    @hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=config_name)
    def application(cfg: DictConfig) -> None:
        composed = HydraConfig.get()
        # Hydra asks a launcher only for -m; here it has its say about an experiment's grid and a single job too.
        launcher = OmegaConf.to_container(composed.launcher, resolve=True)
        call.execute([(cfg, list(composed.overrides.task))], launcher, sweep=False)
        if composed.mode == RunMode.MULTIRUN and call.code:
            # A launcher that is none of posbench's may run this in a process of its own and sees only exceptions.
            raise RuntimeError(f"posbench ended with exit code {call.code}: see the lines above")

    os.environ["HYDRA_FULL_ERROR"] = "1"  # what Hydra refuses is then raised here instead of being told in many lines
    sys.exit(guarded(lambda: _composed(application)) or call.code)


def _composed(application: Callable[[], None]) -> None:
    """Call Hydra's `application`. Raises ConfigError and RunError for what ends before the command begins."""
    try:
        application()
    except (HydraException, OmegaConfBaseException, YAMLError, AttributeError, TypeError, ValueError) as error:
        if call.entered:
            raise
        raise ConfigError(sentence(error)) from error
    except OSError as error:
        if call.entered or isinstance(error, BrokenPipeError):
            raise
        raise RunError(f"{error.filename} cannot be made ({error.strerror}): choose another results_dir.") from error
    except RuntimeError:
        if not call.code:
            raise


def _flags_first() -> None:
    """Hydra takes no flag between two words (a=b -m c=d). Raises ConfigError for a flag that it does not know."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        unknown = [word for word in message.split() if word.startswith("-")]
        message = f"{unknown[0]} is no flag" if message.startswith("unrecognized") and unknown else message
        raise ConfigError(f"{message}: --help shows how {Path(sys.argv[0]).name} is called.")

    parser.error = refuse
    words, flags = parser.parse_intermixed_args(sys.argv[1:]).overrides, sys.argv[1:]
    for word in words:
        flags.remove(word)
    sys.argv[1:] = flags + words


_EVERY = ConfigRepository.get_group_options


def _choices(self: ConfigRepository, *args: Any, **options: Any) -> list[str]:
    """What a group offers: a yaml whose name begins with _ is what others are made of."""
    return [name for name in _EVERY(self, *args, **options) if not name.startswith("_")]


def _own_launchers() -> None:
    """configs/hydra/launcher is all there is to launchers of these names: Hydra would check them against the settings of its own."""
    Plugins.instance()  # registers Hydra's and those installed
    known = ConfigStore.instance().repo["hydra"]["launcher"]
    for path in (CONFIGS / "hydra" / "launcher").glob("*.yaml"):
        known.pop(path.name, None)


def _importable_config_dir() -> None:
    """--config-dir DIR (-cd) holds the user's own yamls; their classes may lie beside them."""
    for i, argument in enumerate(sys.argv):
        name, _, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            folder = value or (sys.argv[i + 1] if i + 1 < len(sys.argv) else "")
            if folder:
                sys.path.insert(0, os.path.abspath(folder))
                # For the children: whichever classes the parent may name, they must find.
                os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.path.abspath(folder), os.environ.get("PYTHONPATH"))))
