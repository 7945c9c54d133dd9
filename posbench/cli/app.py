"""Command line: Hydra composes the configuration, this module runs the command and sets the exit
code.

Exit codes: 0 done (also a sweep whose cells are all refused or no-ops), 1 a job failed, 2 the
configuration is refused, 128 + n ended by signal n. Only hydra is imported before there is
something to do, so that --help, --cfg and completion are fast."""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from posbench.cli.commands import COMMANDS, Command
from posbench.common.errors import ConfigError, RunError
from posbench.config.command_line import exit_code
from posbench.config.compose import (
    Composer,
    Request,
    check_words,
    expand,
    experiment_of,
    loader,
    long_name,
    name_group,
    of_swept,
    swept,
    unresolved,
)
from posbench.config.hydra_errors import sentence
from posbench.config.names import CONFIGS
from posbench.config.schema import LISTS, check_config
from posbench.config.typed_args import shown

SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
ANSWERED = (
    "help",
    "hydra_help",
    "cfg",
    "info",
    "shell_completion",
    "resolve",
)  # flags that Hydra answers without a job


def run_with_hydra(command: Command) -> None:
    """Compose the yaml of a command with sys.argv, hand it all jobs, and exit with its code."""
    sys.argv[1:1] = command.words
    sys.exit(exit_code(lambda: _run(command)))


def _run(command: Command) -> int | None:
    flags = _flags_first(command)
    ConfigRepository.get_group_options = (
        _choices  # Hydra calls it for listings, completion and glob(*)
    )
    # registers the plugins of Hydra and of installed packages, with schemas of launchers that
    # refuse posbench's yamls
    Plugins.instance()
    for path in (CONFIGS / "hydra" / "launcher").glob("*.yaml"):
        ConfigStore.instance().repo["hydra"]["launcher"].pop(path.name, None)
    if flags.config_dir:  # classes may lie beside the user's yamls, for children too
        sys.path.insert(0, os.path.abspath(flags.config_dir))
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (sys.path[0], os.environ.get("PYTHONPATH")))
        )
    if any(getattr(flags, name) for name in ANSWERED):
        os.environ["HYDRA_FULL_ERROR"] = (
            "1"  # makes Hydra raise its errors instead of printing many lines
        )
        with _one_sentence():
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=command.yaml)(
                lambda _: None
            )()
        return 0
    with hydra.initialize_config_dir(
        os.path.abspath(flags.config_path or CONFIGS), job_name=command.yaml, version_base="1.3"
    ):
        with _one_sentence():
            composed = _composed(flags, flags.config_name or command.yaml)
        return _execute(command, *composed)


def _composed(
    flags: argparse.Namespace, config_name: str
) -> tuple[list[tuple[dict, list[str]]], Composer, dict, bool]:
    """[(unresolved values, words typed)] of all jobs, the Composer for the cells of their grids,
    the launcher's yaml, True for a sweep.
    """
    sweep, words, found = flags.multirun, flags.overrides, loader(flags.config_dir)
    later = (
        of_swept(words) if sweep else []
    )  # this composition has none of the values that a sweep takes
    first = [word for word in words if word not in later]
    cfg = found.load_configuration(config_name, first, RunMode.MULTIRUN if sweep else RunMode.RUN)
    HydraConfig.instance().set_config(cfg)  # for ${hydra:...} in a yaml
    launcher, sweeper = (
        OmegaConf.to_container(node, resolve=True)
        for node in (cfg.hydra.launcher, cfg.hydra.sweeper)
    )
    for target in (launcher.pop("_target_", None), sweeper["_target_"]):
        if target not in (None, SWEEPER):
            raise ConfigError(
                f"{target} is not supported for trainings: choose hydra/launcher=grid, basic,"
                " joblib or submitit_slurm."
            )
    composer, typed = (
        Composer(config_name, cfg.hydra.overrides.hydra),
        [word for word in words if word not in cfg.hydra.overrides.hydra],
    )
    if not sweep:
        return [(unresolved(cfg), typed)], composer, launcher, sweep
    axes = [f"{key}={value}" for key, value in (sweeper["params"] or {}).items()]
    jobs, groups = [], {word.lstrip("+~").partition(".")[0] for word in later}
    for job in swept([*axes, *typed]):
        with _one_sentence(" ".join(word for word in job if word.partition("=")[0] in groups)):
            jobs.append((composer.values(job), job))
    return jobs, composer, launcher, sweep


def _execute(
    command: Command,
    composed: list[tuple[dict, list[str]]],
    composer: Composer,
    launcher: dict,
    sweep: bool,
) -> int | None:
    for job, overrides in composed:
        check_words(job, overrides)
    experiment = experiment_of(*composed[0])
    expanded = [
        ([check_config(cfg) for cfg in expand(job, overrides, composer)], overrides)
        for job, overrides in composed
    ]
    cfgs = [cfg for cells, _ in expanded for cfg in cells]
    if any(cfg["run"] or cfg["model"].get("path") or cfg["model"].get("engine") for cfg in cfgs):
        from posbench.cli.check_trained import check_given

        check_given(expanded, experiment)
    _check_effects(command, cfgs)
    sweep = sweep or "grid" in experiment
    if sweep:
        name_group(cfgs)
    return command.function()(Request(cfgs, experiment, sweep, launcher, composed[0][1]))


def _check_effects(command: Command, cfgs: list[dict]) -> None:
    """Raise ConfigError for a word of configs/run.yaml that has no effect on this command."""
    effective = {  # key: names of the commands that it has an effect on
        "dry": [other.name for other in COMMANDS if other.dry],
        "out": [other.name for other in COMMANDS if other.writes == "out"],
    }
    for key, names in effective.items():
        values = [cfg[key] for cfg in cfgs if cfg[key]]
        if values and command.name not in names:
            raise ConfigError(
                f"{key}={shown(values[0])} has no effect on scripts/{command.name}.py, only on"
                f" {', '.join(names)}: leave it out."
            )
    report_dir = cfgs[0]["report_dir"]
    if report_dir and command.writes == "out":
        raise ConfigError(
            f"report_dir={report_dir} has no effect on scripts/{command.name}.py, which writes into"
            f" out=: give out={report_dir} instead."
        )


@contextlib.contextmanager
def _one_sentence(of: str = "") -> Iterator[None]:
    """Turn the errors of Hydra, and of what it reads, into a ConfigError or RunError of one
    sentence, which begins with `of`.
    """
    try:
        yield
    except (ConfigError, RunError, BrokenPipeError):
        raise
    except (
        HydraException,
        OmegaConfBaseException,
        YAMLError,
        AttributeError,
        TypeError,
        ValueError,
    ) as error:
        said = sentence(error)
        raise ConfigError(said if said.startswith(of) else f"{of}: {said}") from error
    except OSError as error:  # behind those of Hydra's that are OSErrors too
        raise RunError(
            f"{error.filename or os.curdir} cannot be read ({error.strerror}): make it readable, or"
            " remove it."
        ) from error


def _flags_first(command: Command) -> argparse.Namespace:
    """Flags of sys.argv, and the words as `overrides`. In sys.argv the flags move before the words,
    as Hydra needs them.
    """
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        unknown = [word for word in message.split() if word.startswith("-")]
        message = (
            f"{unknown[0]} is not a flag"
            if message.startswith("unrecognized") and unknown
            else message
        )
        raise ConfigError(f"{message}: --help shows how {Path(sys.argv[0]).name} is called.")

    parser.error = refuse
    parsed, flags = parser.parse_intermixed_args(sys.argv[1:]), sys.argv[1:]
    if parsed.experimental_rerun:
        refuse("--experimental-rerun reads files that posbench does not write")
    if parsed.package is not None and not parsed.cfg:
        refuse(
            f"--package {parsed.package} chooses the part that --cfg prints, and there is no --cfg"
        )
    for word in parsed.overrides:
        flags.remove(word)
    parsed.multirun = parsed.multirun or "hydra.mode=MULTIRUN" in parsed.overrides
    parsed.overrides = [
        long_name(_with_key(word, command, parsed.multirun)) for word in parsed.overrides
    ]
    sys.argv[1:] = flags + parsed.overrides
    return parsed


def _with_key(word: str, command: Command, sweep: bool) -> str:
    """A word as Hydra reads it.

    A word without a key is that of the command's `keyed`, a report's out= is its report_dir, and
    where nothing is swept lengths=64,128 is a list."""
    key, equals, value = word.partition("=")
    if command.keyed and not equals:
        return command.keyed(word)
    if key == "out" and command.writes == "report_dir":
        return f"report_dir={value}"
    is_list = key.lstrip("+") in LISTS and "," in value and not re.search(r"[][(){}]", value)
    return f"{key}=[{value}]" if is_list and not sweep else word


_EVERY = ConfigRepository.get_group_options


def _choices(self: ConfigRepository, *args: Any, **options: Any) -> list[str]:
    """Choices of a group without the yamls whose name begins with _, which only serve as parts of
    others.
    """
    return [name for name in _EVERY(self, *args, **options) if not name.startswith("_")]
