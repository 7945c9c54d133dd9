"""A command line that Hydra composes: its words to jobs, which the command gets.

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
from typing import Any, NamedTuple, NoReturn

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
from posbench.config.command_line import run_for_exit_code
from posbench.config.compose import (
    Composer,
    Request,
    check_one_name,
    check_optimizer,
    check_typed_keys,
    check_vocabulary,
    experiment_of,
    hydra_form,
    hydra_loader,
    key_of,
    raw_configs_of_jobs,
    set_wandb_group,
    sets_below,
    unresolved_values,
    words_of_jobs,
    words_of_swept_groups,
)
from posbench.config.hydra_errors import CHOICE_GROUPS, error_sentence
from posbench.config.names import CONFIGS_FOLDER
from posbench.config.peer_words import KEYS_ELSEWHERE, normalized_word
from posbench.config.schema import LIST_KEYS, check_config
from posbench.config.typed_args import shown

ONLY_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
# flags that Hydra answers without a job
FLAGS_OF_HYDRA = ("help", "hydra_help", "cfg", "info", "shell_completion", "resolve")


class ComposedJob(NamedTuple):
    """Values of a job as Hydra composes them, unresolved, and the words that choose them."""

    values: dict
    words: list[str]


class Composed(NamedTuple):
    """All jobs of a command, and what the cells of their grids are composed with."""

    jobs: list[ComposedJob]
    composer: Composer
    launcher: dict  # its yaml
    sweep: bool


def run_with_hydra(command: Command) -> None:
    """Compose the yaml of a command with sys.argv, hand it all jobs, and exit with its code."""
    sys.argv[1:1] = command.words
    sys.exit(run_for_exit_code(lambda: _run(command)))


def _run(command: Command) -> int | None:
    """Do what sys.argv asks of a command: print what Hydra answers, or compose jobs and execute it.
    Returns the exit code.
    """
    flags = _parsed_flags(command)
    _adapt_hydra()
    if flags.config_dir:
        _make_importable(flags.config_dir)
    # --help and the like, which Hydra answers
    if any(getattr(flags, name) for name in FLAGS_OF_HYDRA):
        # makes Hydra raise its errors instead of printing many lines
        os.environ["HYDRA_FULL_ERROR"] = "1"
        main = hydra.main(
            version_base="1.3", config_path=str(CONFIGS_FOLDER), config_name=command.yaml
        )
        with _errors_as_one_sentence():
            main(lambda _: None)()
        return 0
    folder = os.path.abspath(flags.config_path or CONFIGS_FOLDER)
    with hydra.initialize_config_dir(folder, job_name=command.yaml, version_base="1.3"):
        with _errors_as_one_sentence():
            composed = _compose(flags, flags.config_name or command.yaml)
        return _execute(command, composed)


def _adapt_hydra() -> None:
    """Hide yamls that are parts of others, and schemas of launchers, which refuse posbench's."""
    # Hydra calls it for listings, completion and glob(*)
    ConfigRepository.get_group_options = _visible_choices
    Plugins.instance()  # registers the schemas
    for path in (CONFIGS_FOLDER / "hydra" / "launcher").glob("*.yaml"):
        ConfigStore.instance().repo["hydra"]["launcher"].pop(path.name, None)


def _make_importable(config_dir: str) -> None:
    """Find classes that lie beside the user's yamls, in this process and its children."""
    folders = [os.path.abspath(config_dir)]
    sys.path.insert(0, folders[0])
    if os.environ.get("PYTHONPATH"):
        folders.append(os.environ["PYTHONPATH"])
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)


def _compose(flags: argparse.Namespace, config_name: str) -> Composed:
    """Jobs of the words in `flags`: one, or with -m one for each combination of their values."""
    sweep = flags.multirun
    words = flags.overrides
    # This composition is of what all jobs share. The keys of a swept group may lack in some of its
    # choices, so their words are composed for each job, below.
    words_of_choices = words_of_swept_groups(words) if sweep else []
    shared_words = [word for word in words if word not in words_of_choices]
    mode = RunMode.MULTIRUN if sweep else RunMode.RUN
    raw = hydra_loader(flags.config_dir).load_configuration(config_name, shared_words, mode)
    HydraConfig.instance().set_config(raw)  # for ${hydra:...} in a yaml
    launcher = OmegaConf.to_container(raw.hydra.launcher, resolve=True)
    sweeper = OmegaConf.to_container(raw.hydra.sweeper, resolve=True)
    # posbench's launchers name no class, so one that does is of a plugin.
    for target in (launcher.pop("_target_", None), sweeper["_target_"]):
        if target not in (None, ONLY_SWEEPER):
            raise ConfigError(
                f"{target} is not supported for trainings: choose hydra/launcher=grid, basic,"
                " joblib or submitit_slurm."
            )
    hydras_words = raw.hydra.overrides.hydra
    job_words = [word for word in words if word not in hydras_words]
    composer = Composer(config_name, hydras_words)
    if not sweep:
        return Composed([ComposedJob(unresolved_values(raw), job_words)], composer, launcher, sweep)
    words_of_yaml = [  # hydra.sweeper.params: what a yaml sweeps
        f"{key}={value}" for key, value in (sweeper["params"] or {}).items()
    ]
    jobs = []
    for words_of_job in words_of_jobs([*words_of_yaml, *job_words]):
        choices = [
            f"{key_of(choice)}={choice.partition('=')[2]}"
            for choice in words_of_job
            if any(sets_below(word, choice) for word in words_of_choices)
        ]
        # Quoted by an error, which is of a key that this choice lacks.
        with _errors_as_one_sentence(" ".join(choices)):
            jobs.append(ComposedJob(composer.values(words_of_job), words_of_job))
    return Composed(jobs, composer, launcher, sweep)


def _execute(command: Command, composed: Composed) -> int | None:
    """Check the jobs and call the command with all cells of their grids. Returns the exit code."""
    for job in composed.jobs:
        check_typed_keys(job.values, job.words)
    names = [job.values.get("name") for job in composed.jobs]
    check_one_name(names)
    first = composed.jobs[0]
    experiment = experiment_of(first.values, first.words)
    raw_configs = []
    for job in composed.jobs:
        cells = [
            check_config(raw)
            for raw in raw_configs_of_jobs(job.values, job.words, composed.composer)
        ]
        if any(
            raw["run"] or raw["model"].get("path") or raw["model"].get("engine") for raw in cells
        ):
            from posbench.cli.check_trained import check_trained

            check_trained(cells, job.words, experiment)
        raw_configs.extend(cells)
    _refuse_words_without_effect(command, raw_configs, names[0])
    check_vocabulary(raw_configs, first.words)
    check_optimizer(raw_configs, first.words)
    sweep = composed.sweep or "grid" in experiment
    if sweep:
        set_wandb_group(raw_configs)
    request = Request(raw_configs, experiment, sweep, composed.launcher, first.words)
    return command.function()(request)


def _refuse_words_without_effect(
    command: Command, raw_configs: list[dict], name: str | None
) -> None:
    """Raise ConfigError for a word of configs/run.yaml that has no effect on this command.

    `name` is that of the sweep, if it was typed."""
    if name and not command.takes_name:
        raise ConfigError(
            f"name={shown(name)} names a sweep and has no effect on scripts/{command.name}.py:"
            " leave it out."
        )
    effective = {  # key: names of the commands that it has an effect on
        "dry": [other.name for other in COMMANDS if other.takes_dry],
        "out": [other.name for other in COMMANDS if other.folder_key == "out"],
    }
    for key, names in effective.items():
        values = [raw[key] for raw in raw_configs if raw[key]]
        if values and command.name not in names:
            raise ConfigError(
                f"{key}={shown(values[0])} has no effect on scripts/{command.name}.py, only on"
                f" {', '.join(names)}: leave it out."
            )
    report_dir = raw_configs[0]["report_dir"]
    if report_dir and command.folder_key == "out":
        raise ConfigError(
            f"report_dir={report_dir} has no effect on scripts/{command.name}.py, which writes into"
            f" out=: give out={report_dir} instead."
        )


@contextlib.contextmanager
def _errors_as_one_sentence(words: str = "") -> Iterator[None]:
    """Turn errors of Hydra, and of what it reads, into one sentence that begins with `words`."""
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
        message = error_sentence(error)
        if not message.startswith(words):
            message = f"{words}: {message}"
        raise ConfigError(message) from error
    except OSError as error:  # behind those of Hydra's that are OSErrors too
        raise RunError(
            f"{error.filename or os.curdir} cannot be read ({error.strerror}): make it readable, or"
            " remove it."
        ) from error


def _parsed_flags(command: Command) -> argparse.Namespace:
    """Flags of sys.argv, and its words as `overrides`. Flags move first, as Hydra needs them."""
    parser = get_args_parser()
    parser.error = _refuse_flag
    parsed = parser.parse_intermixed_args(sys.argv[1:])
    if parsed.experimental_rerun:
        _refuse_flag("--experimental-rerun reads files that posbench does not write")
    if parsed.package is not None and not parsed.cfg:
        _refuse_flag(
            f"--package {parsed.package} chooses the part that --cfg prints, and there is no --cfg"
        )
    flags = sys.argv[1:]
    for word in parsed.overrides:
        flags.remove(word)
    parsed.multirun = parsed.multirun or "hydra.mode=MULTIRUN" in parsed.overrides
    parsed.overrides = [
        hydra_form(_with_key(word, command, parsed.multirun)) for word in parsed.overrides
    ]
    sys.argv[1:] = flags + parsed.overrides
    return parsed


def _refuse_flag(message: str) -> NoReturn:
    """Raise ConfigError with a message, or one of argparse on an unknown flag."""
    unknown = [word for word in message.split() if word.startswith("-")]
    if message.startswith("unrecognized") and unknown:
        message = f"{unknown[0]} is not a flag"
        name, _, value = unknown[0].lstrip("-").partition("=")
        name = normalized_word(name)
        word = f"{KEYS_ELSEWHERE.get(name, name)}={value or 'VALUE'}"
        raise ConfigError(
            f"{message}: values are typed without dashes, as {word}; --help shows how"
            f" {Path(sys.argv[0]).name} is called."
        )
    raise ConfigError(f"{message}: --help shows how {Path(sys.argv[0]).name} is called.")


def _with_key(word: str, command: Command, sweep: bool) -> str:
    """A word as Hydra reads it.

    A word without a key is that of the command's `add_key`, a report's out= is its report_dir, and
    where nothing is swept lengths=64,128 is a list."""
    key, equals, value = word.partition("=")
    if command.add_key and not equals:
        return command.add_key(word)
    if key in CHOICE_GROUPS and value.startswith("["):
        choices = value.strip("[]").replace(" ", "")
        raise ConfigError(
            f"{word} lists several choices, and a job has one: for a job with each, type -m"
            f" {key}={choices}."
        )
    if key == "out" and command.folder_key == "report_dir":
        return f"report_dir={value}"
    # With brackets it is a list, a dict or a function of Hydra's already.
    has_commas_alone = "," in value and not re.search(r"[][(){}]", value)
    is_list = key.lstrip("+") in LIST_KEYS and has_commas_alone  # +key= adds a key
    return f"{key}=[{value}]" if is_list and not sweep else word


_ALL_CHOICES = ConfigRepository.get_group_options


def _visible_choices(self: ConfigRepository, *args: Any, **options: Any) -> list[str]:
    """Choices of a group without the yamls whose name begins with _, which only serve as parts of
    others.
    """
    return [name for name in _ALL_CHOICES(self, *args, **options) if not name.startswith("_")]
