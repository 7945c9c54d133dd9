"""Hydra looks for launchers in the namespace package hydra_plugins; posbench.cli.app puts this folder on the path."""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf


class Unsaved(OmegaConf):
    """OmegaConf for Hydra's sweeper, which would write a multirun.yaml that nothing reads, into folders that cannot be written too."""

    @staticmethod
    def save(*_: object, **__: object) -> None:
        """Write nothing."""


class GridLauncher(Launcher):
    """Receives all jobs of `-m` at once, so that each training is made once however many evaluations share it.

    Its settings say where the trainings run (posbench.sweep.launch); every yaml of configs/hydra/launcher names this class.
    """

    def __init__(self, **_: object) -> None:
        pass  # Hydra resolves the settings before the sweep's own overrides are known to it

    def setup(self, *, hydra_context, task_function, config) -> None:
        self.loader, self.config = hydra_context.config_loader, config
        # The sweeper composes each cell to see that it does; composing it once more for its values would double a grid's start.
        compose, known = self.loader.load_sweep_config, {}

        def once(master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
            key = tuple(sweep_overrides)
            if key not in known:
                known[key] = compose(master_config, sweep_overrides)
            return known[key]

        self.loader.load_sweep_config = once
        # A sweeper composes all jobs once before, for launchers that do it on other machines: in a grid of hundreds half of the time.
        Sweeper.validate_batch_is_legal = lambda *_: None
        basic_sweeper.OmegaConf = Unsaved

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from posbench.cli import app as cli

        composed = [(self.loader.load_sweep_config(self.config, list(overrides)), list(overrides)) for overrides in job_overrides]
        cli.call.execute(composed, OmegaConf.to_container(self.config.hydra.launcher, resolve=True), sweep=True)
        done = JobReturn(overrides=[], status=JobStatus.COMPLETED)
        done.return_value = cli.call.code
        return [done] * len(composed)
