"""Launcher plugin. Hydra searches the namespace package hydra_plugins, and posbench.cli.app puts this folder on the path."""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf


class Unsaved(OmegaConf):
    """OmegaConf for Hydra's sweeper, without its multirun.yaml: nothing reads that file, and in a read-only folder it fails."""

    @staticmethod
    def save(*_: object, **__: object) -> None:
        """Write nothing."""


class GridLauncher(Launcher):
    """Launcher that gets all jobs of `-m` at once, so that each training is made once, however many evaluations share it.

    Its settings determine where the trainings run (posbench.sweep.launch). Every yaml of configs/hydra/launcher names this class.
    """

    def __init__(self, **_: object) -> None:
        pass  # Hydra resolves these settings before it knows the sweep's own overrides, so `launch` reads them

    def setup(self, *, hydra_context, task_function, config) -> None:
        self.loader, self.config = hydra_context.config_loader, config
        # The sweeper composes each cell to check it. Composing it again for its values would double the time to start a grid.
        compose, known = self.loader.load_sweep_config, {}

        def once(master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
            key = tuple(sweep_overrides)
            if key not in known:
                known[key] = compose(master_config, sweep_overrides)
            return known[key]

        self.loader.load_sweep_config = once
        # A sweeper first composes all jobs once, for launchers that compose on other machines. For hundreds of jobs that is half the time.
        Sweeper.validate_batch_is_legal = lambda *_: None
        basic_sweeper.OmegaConf = Unsaved

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from posbench.cli import app as cli

        composed = [(self.loader.load_sweep_config(self.config, list(overrides)), list(overrides)) for overrides in job_overrides]
        cli.call.execute(composed, OmegaConf.to_container(self.config.hydra.launcher, resolve=True), sweep=True)
        done = JobReturn(overrides=[], status=JobStatus.COMPLETED)
        done.return_value = cli.call.code
        return [done] * len(composed)
