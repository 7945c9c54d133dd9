"""The command line: Hydra composes, this module decides what runs and with which exit code.

0 done (a sweep whose cells are all refused or no-ops too), 1 a job failed, 2 the user's configuration is refused,
128 + n ended by signal n. Only hydra is imported before a job starts, so that --help, --cfg and completion are quick.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "plugins"))  # before Hydra looks for plugins

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from posbench.errors import ConfigError, RunError
from posbench.files import sha256_json
from posbench.options import unread

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


@dataclass(frozen=True)
class Request:
    """What was asked of a script: each job's plain configuration, the experiment they come from, whether they are a sweep, and the yaml
    of the launcher that says where they run."""

    cfgs: list[dict]
    experiment: dict
    sweep: bool
    launcher: dict = field(default_factory=dict)


Command = Callable[[Request], int]


@dataclass
class Call:
    """What one call of a script is doing: Hydra gives an application no way to return a code or to see a sweep whole."""

    command: Command
    entered: bool = False
    code: int = 0

    def execute(self, composed: list[tuple[DictConfig, list[str]]], launcher: dict, sweep: bool) -> None:
        """Run the command once for all jobs of (configuration, overrides typed); mistakes end as one sentence."""
        self.entered = True
        try:
            for gone in (override for _, overrides in composed for override in overrides if override.startswith("~")):
                raise ConfigError(f"{gone} takes out what is needed: give it another value instead.")
            experiment = OmegaConf.to_container(composed[0][0].experiment)
            cfgs = [cfg for job, overrides in composed for cfg in expand(job, overrides)]
            sweep = sweep or "grid" in experiment
            if sweep:
                _name_group(cfgs)
            self.code = self.command(Request(cfgs, experiment, sweep, launcher))
            sys.stdout.flush()
        except ConfigError as error:
            print(f"refused: {error}", file=sys.stderr)
            self.code = 2
        except RunError as error:
            print(f"failed: {error}", file=sys.stderr)
            self.code = 1
        except BrokenPipeError:
            self.code = unread()
        except KeyboardInterrupt as interrupt:
            print("interrupted: the same command goes on from there", file=sys.stderr)
            self.code = 128 + (interrupt.args[0] if interrupt.args else 2)


call: Call


def expand(cfg: DictConfig, overrides: list[str]) -> list[dict]:
    """The jobs of one composed configuration: itself, or its experiment's grid. What is typed on the command line wins.

    Raises ConfigError for a grid that does not compose.
    """
    experiment = OmegaConf.to_container(cfg.experiment)
    if not experiment.get("grid"):
        return [plain(cfg)]
    base, grid = experiment.get("base") or {}, experiment["grid"]
    if not experiment.get("name"):
        raise ConfigError("The experiment has no name: add `name:` with the name of its file to the yaml.")
    if not isinstance(base, dict) or not isinstance(grid, list) or not all(isinstance(block, dict) for block in grid):
        raise ConfigError(f"experiment={cfg.experiment.name} needs a grid that is a list of blocks (key: value or list), and base a block.")
    typed = {item.split("=", 1)[0].lstrip("+~"): item for item in overrides}
    typed.pop("experiment", None)
    cfgs, known = {}, {}
    for block in grid:
        axes = [[(key, value) for value in (values if isinstance(values, list) else [values])] for key, values in block.items()]
        for choice in itertools.product(*axes):
            chosen = {key: f"{key}={_text(value)}" for key, value in {**base, **dict(choice)}.items()}
            job = plain(compose([f"experiment={cfg.experiment.name}", *map(_group, {**chosen, **typed}.values())], known))
            cfgs[json.dumps(job, sort_keys=True)] = job
    return list(cfgs.values())


def _group(override: str) -> str:
    """train.scale_attention=NAME chooses from the group scale_attention, for which Hydra has a longer name."""
    name = "train.scale_attention="
    return f"scale_attention@{override}" if override.startswith(name) else override


def _name_group(cfgs: list[dict]) -> None:
    """Give a sweep without a name one for wandb, the same whenever it is typed again."""
    parts = ("encoding", "extension", "scale_attention", "model", "data", "train", "evaluate", "seed")
    name = f"sweep-{sha256_json([[cfg.get(part) for part in parts] for cfg in cfgs])[:8]}"
    for cfg in cfgs:
        cfg["log"]["group"] = cfg["log"]["group"] or name


def compose(overrides: list[str], known: dict[tuple[str, ...], DictConfig] | None = None) -> DictConfig:
    """What --cfg job would print with these overrides, but for Hydra's own part. Raises ConfigError for what does not compose.

    `known` keeps what groups chosen together compose to: in a grid many cells differ in values alone, which are set on a copy.
    """
    loader, known = GlobalHydra.instance().config_loader(), {} if known is None else known
    try:
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
        chosen = [loader.repository.group_exists(override.key_or_group) for override in parsed]
        groups = tuple(override.input_line for override, group in zip(parsed, chosen, strict=True) if group)
        if groups not in known:
            cfg = loader.load_configuration(config_name="run", overrides=list(groups), run_mode=RunMode.RUN)
            known[groups] = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
            OmegaConf.set_struct(known[groups], True)
        cfg = copy.deepcopy(known[groups])
        ConfigLoaderImpl._apply_overrides_to_config([one for one, group in zip(parsed, chosen, strict=True) if not group], cfg)
        return cfg
    except Exception as error:
        raise ConfigError(f"{overrides[0]} does not compose: {_sentence(error)}") from error


def _text(value: object) -> str:
    return "null" if value is None else json.dumps(value).replace('"', "") if not isinstance(value, str) else value


def plain(cfg: DictConfig) -> dict:
    """A composed configuration as plain values, without Hydra's own part and the experiment it came from.

    Raises ConfigError for a value that must be given and was not.
    """
    kept = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    try:
        values = OmegaConf.to_container(kept, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = error.full_key or str(error).splitlines()[0]
        raise ConfigError(f"{key} has no value: give it on the command line, or choose another option of its group.") from error
    experiment = values.pop("experiment")
    values["log"]["group"] = values["log"]["group"] or experiment.get("name")
    return values


def run_script(command: Command, config_name: str = "run") -> None:
    """Compose configs/CONFIG_NAME.yaml with sys.argv and hand all its jobs to `command`; exits with the command's code."""
    global call
    call = Call(command)
    sys.argv[1:] = map(_group, sys.argv[1:])
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
    try:
        application()
    except (HydraException, OmegaConfBaseException, YAMLError, AttributeError, TypeError, ValueError) as error:
        if call.entered:
            raise
        print(f"refused: {_sentence(error)}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if call.entered:
            raise
        print(f"failed: {error.filename} cannot be made ({error.strerror}): choose another results_dir.", file=sys.stderr)
        sys.exit(1)
    sys.exit(call.code)


def _sentence(error: Exception) -> str:
    """What Hydra says in several lines as one: what it refuses, and what there is instead."""
    if isinstance(error, AttributeError | TypeError | ValueError) and not isinstance(error, HydraException | OmegaConfBaseException):
        return f"What was typed does not compose ({error}): is every yaml that it names a mapping of keys to values?"
    said = str(error).split("\nConfig search path")[0].split("\nSee http")[0]
    if said.startswith("Could not override"):
        return f"{said.splitlines()[0].rstrip('.')}: there is no such key; --cfg job prints all of them."
    if isinstance(error, OverrideParseException) and error.override not in said:
        said = f"{error.override}: {said}"
    head, _, options = said.partition("\t")
    return f"{'; '.join(filter(None, map(str.strip, head.splitlines())))} {', '.join(options.split())}".strip().rstrip(".") + "."


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
