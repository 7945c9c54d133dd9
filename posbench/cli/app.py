"""Command line: Hydra composes the configuration, this module runs the command and sets the exit code.

Exit codes: 0 done (also a sweep whose cells are all refused or no-ops), 1 a job failed, 2 the configuration is refused,
128 + n ended by signal n. Only hydra is imported before a job starts, so that --help, --cfg and completion are fast.
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
from posbench.config.composer import Composer, unresolved
from posbench.config.request import Request
from posbench.config.schema import check

Command = Callable[[Request], int]


@dataclass
class Call:
    """State of one call of a script. Hydra lets an application neither return a code nor see all jobs of a sweep."""

    command: Command
    config_name: str
    entered: bool = False
    code: int = 0

    def execute(self, composed: list[tuple[dict, list[str]]], composer: Composer, launcher: dict, sweep: bool) -> None:
        """Run the command once for all jobs, given as (unresolved values, overrides typed). Every error is printed as one sentence."""
        self.entered = True
        self.code = guarded(lambda: self._execute(composed, composer, launcher, sweep), composed[0][0].get("results_dir")) or self.code

    def _execute(self, composed: list[tuple[dict, list[str]]], composer: Composer, launcher: dict, sweep: bool) -> None:
        for gone in (override for _, overrides in composed for override in overrides if override.startswith("~")):
            raise ConfigError(f"{gone} takes out what is needed: give it another value instead.")
        experiment = experiment_of(*composed[0])
        expanded = [([check(cfg) for cfg in expand(job, overrides, composer)], overrides) for job, overrides in composed]
        cfgs = [cfg for cells, _ in expanded for cfg in cells]
        if any(cfg["run"] or cfg["model"].get("path") for cfg in cfgs):
            from posbench.cli import given_run

            given_run.check(expanded, experiment)
        sweep = sweep or "grid" in experiment
        if sweep:
            name_group(cfgs)
        self.code = self.command(Request(cfgs, experiment, sweep, launcher))


call: Call


def run_script(command: Command, config_name: str = "run") -> None:
    """Compose configs/CONFIG_NAME.yaml with sys.argv, pass all its jobs to `command`, and exit with its code."""
    global call
    working_directory()
    call = Call(command, config_name)
    if code := guarded(_flags_first):
        sys.exit(code)
    sys.argv[1:] = map(long_name, sys.argv[1:])
    ConfigRepository.get_group_options = _choices  # Hydra calls it for listings, completion and glob(*)
    _importable_config_dir()
    _own_launchers()

    @hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=config_name)
    def application(cfg: DictConfig) -> None:
        composed = HydraConfig.get()
        # Hydra uses a launcher only for -m; here it applies to an experiment's grid and a single job as well.
        launcher = OmegaConf.to_container(composed.launcher, resolve=True)
        composer = Composer(config_name, composed.overrides.hydra)
        call.execute([(unresolved(cfg), list(composed.overrides.task))], composer, launcher, sweep=False)
        if composed.mode == RunMode.MULTIRUN and call.code:
            # A foreign launcher may run this in a process of its own, which can report only exceptions.
            raise RuntimeError(f"posbench ended with exit code {call.code}: see the lines above")

    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise its errors instead of printing many lines
    sys.exit(guarded(lambda: _composed(application)) or call.code)


def _composed(application: Callable[[], None]) -> None:
    """Call Hydra's `application`. Raises ConfigError or RunError for errors before the command begins."""
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
    """Move flags in sys.argv before the words, since Hydra allows none between two (a=b -m c=d).

    Raises ConfigError for an unknown flag.
    """
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
    """Choices of a group without the yamls whose name begins with _, which only serve as parts of others."""
    return [name for name in _EVERY(self, *args, **options) if not name.startswith("_")]


def _own_launchers() -> None:
    """Remove Hydra's schemas of the launchers in configs/hydra/launcher, which would refuse the settings of posbench's yamls."""
    Plugins.instance()  # registers the plugins of Hydra and of installed packages
    known = ConfigStore.instance().repo["hydra"]["launcher"]
    for path in (CONFIGS / "hydra" / "launcher").glob("*.yaml"):
        known.pop(path.name, None)


def _importable_config_dir() -> None:
    """Make the folder of --config-dir (-cd) importable: classes may lie beside the user's yamls."""
    for i, argument in enumerate(sys.argv):
        name, _, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            folder = value or (sys.argv[i + 1] if i + 1 < len(sys.argv) else "")
            if folder:
                sys.path.insert(0, os.path.abspath(folder))
                # Children must find the same classes.
                os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.path.abspath(folder), os.environ.get("PYTHONPATH"))))
