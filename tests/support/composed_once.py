"""Hydra's composition, remembered: the same choices from the same yamls give the same
configuration, of which each caller gets a copy (by pickle, five times as fast as copy.deepcopy).

Hydra spends a tenth of a second on the yamls of one command line, and the tests type thousands.
What is typed for single values (a=3) is applied by Hydra itself to the copy. A refusal is not
remembered. The content of a yaml is remembered by its text."""

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace

from hydra._internal import config_loader_impl as loader
from hydra._internal import config_repository
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, ListConfig, OmegaConf

CONFIGS = str(Path(__file__).parents[2] / "configs")  # which no test changes
_known: dict[tuple, tuple[DefaultsList, list[bytes]]] = {}
_by_list: dict[int, list[bytes]] = {}  # pickled, as what follows
_contents: dict[str, bytes] = {}
_create, _compose = (
    loader.create_defaults_list,
    loader.ConfigLoaderImpl._compose_config_from_defaults_list,
)
_load = OmegaConf.load


def install() -> None:
    loader.create_defaults_list = _remembered_list
    loader.ConfigLoaderImpl._compose_config_from_defaults_list = _remembered_config
    OmegaConf.load = staticmethod(_remembered_content)
    config_repository.copy = SimpleNamespace(
        deepcopy=copy.copy
    )  # its list of sources is made anew and never changed


def _remembered_content(file) -> DictConfig | ListConfig:
    text = Path(file).read_text(encoding="utf-8") if isinstance(file, str | Path) else file.read()
    if text not in _contents:
        if not isinstance(file, str | Path):
            file.seek(0)
        _contents[text] = pickle.dumps(_load(file))
    return pickle.loads(_contents[text])


def _remembered_list(
    repo, config_name, overrides_list, prepend_hydra, skip_missing
) -> DefaultsList:
    overrides = Overrides(repo=repo, overrides_list=overrides_list)
    single = {id(override) for override in overrides.config_overrides}
    groups = [
        override
        for override in overrides_list
        if id(override) not in single and not override.is_sweep_override()
    ]
    key = (
        config_name,
        tuple(override.input_line for override in groups),
        prepend_hydra,
        skip_missing,
        _sources(repo),
    )
    if key not in _known:
        remembered = _create(repo, config_name, groups, prepend_hydra, skip_missing)
        _known[key] = remembered, _by_list.setdefault(id(remembered.defaults), [])
    remembered, _ = _known[key]
    return DefaultsList(
        defaults=remembered.defaults,
        defaults_tree=remembered.defaults_tree,
        config_overrides=overrides.config_overrides,
        overrides=remembered.overrides,
    )


def _remembered_config(self, defaults, repo) -> DictConfig:
    composed = _by_list.get(id(defaults))
    if composed is None:
        return _compose(self, defaults=defaults, repo=repo)
    if not composed:
        composed.append(pickle.dumps(_compose(self, defaults=defaults, repo=repo)))
    return pickle.loads(composed[0])


def _sources(repo) -> tuple:
    """Where yamls are looked for, and the state of all that a test may have written there."""
    state = [tuple(sorted(ConfigStore.instance().repo["hydra"]["launcher"]))]
    for source in repo.get_sources():
        state.append((source.provider, source.path))
        if source.scheme() == "file" and source.path != CONFIGS:
            files = sorted(Path(source.path).rglob("*.yaml"))
            state.append(
                tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files)
            )
    return tuple(state)
