"""Launcher plugin. Hydra searches the namespace package hydra_plugins, and posbench.cli.app puts this folder on the path."""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf


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
        self.config = config
        # A sweeper first composes all jobs once, for launchers that compose on other machines. `launch` does it faster, and once.
        Sweeper.validate_batch_is_legal = lambda *_: None
        basic_sweeper.OmegaConf = Unsaved

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from posbench.cli import app as cli
        from posbench.config.composer import Composer

        composer = Composer(self.config.hydra.job.config_name, self.config.hydra.overrides.hydra)
        composed = [(composer.values(list(overrides)), list(overrides)) for overrides in job_overrides]
        cli.call.execute(composed, composer, OmegaConf.to_container(self.config.hydra.launcher, resolve=True), sweep=True)
        done = JobReturn(overrides=[], status=JobStatus.COMPLETED)
        done.return_value = cli.call.code
        return [done] * len(composed)
