"""Hydra looks for launchers in the namespace package hydra_plugins; posbench.cli puts this folder on the path."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf


class GridLauncher(Launcher):
    """Receives all jobs of `-m` at once, so that each training is made once however many evaluations share it.

    Its settings say where the trainings run (posbench.launch); every yaml of configs/hydra/launcher names this class.
    """

    def __init__(self, **_: object) -> None:
        pass  # Hydra resolves the settings before the sweep's own overrides are known to it

    def setup(self, *, hydra_context, task_function, config) -> None:
        self.loader, self.config = hydra_context.config_loader, config
        # A sweeper composes all jobs once before, for launchers that do it on other machines: in a grid of hundreds half of the time.
        Sweeper.validate_batch_is_legal = lambda *_: None

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from posbench import cli

        composed = [(self.loader.load_sweep_config(self.config, list(overrides)), list(overrides)) for overrides in job_overrides]
        cli.call.execute(composed, OmegaConf.to_container(self.config.hydra.launcher, resolve=True), sweep=True)
        done = JobReturn(overrides=[], status=JobStatus.COMPLETED)
        done.return_value = cli.call.code
        return [done] * len(composed)
