"""submitit's executor with the settings of a launcher, a yaml of configs/hydra/launcher."""

import shutil
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError

if TYPE_CHECKING:
    import submitit

# posbench's own keys of a launcher; the rest go to submitit
POSBENCH_KEYS = {"_target_", "via", "n_jobs", "submitit_folder", "max_num_timeout"}
# submitit's, for every cluster
SHARED_KEYS = set("name timeout_min mem_gb cpus_per_task gpus_per_node stderr_to_stdout".split())
PROGRAMS = {"slurm": ("sbatch", "srun", "squeue"), "local": ()}


def make_executor(launcher: dict) -> "submitit.AutoExecutor":
    """Executor for the cluster that a launcher names by `via`: slurm or local.

    Raises ConfigError where it cannot be had, and for settings that it does not take.
    """
    via = launcher["via"]
    try:
        import submitit
    except ImportError as error:
        raise ConfigError(
            f"hydra/launcher=submitit_{via} needs submitit, which is not installed: pip install"
            " submitit."
        ) from error
    for program in PROGRAMS[via]:
        if not shutil.which(program):
            raise ConfigError(
                f"hydra/launcher=submitit_slurm needs SLURM, and there is no {program} on this"
                " machine's PATH: type the command on a login node of the cluster, or choose"
                " hydra/launcher=grid."
            )
    # submitit marks a setting of one kind of cluster by its name.
    times = {f"{via}_max_num_timeout": launcher["max_num_timeout"]}
    try:
        executor = submitit.AutoExecutor(folder=launcher["submitit_folder"], cluster=via, **times)
        executor.update_parameters(**_parameters(launcher))
    except (AssertionError, NameError, TypeError, ValueError) as error:
        raise ConfigError(
            f"submitit does not take these hydra.launcher settings: {str(error).splitlines()[0]}"
        ) from error
    return executor


def _parameters(launcher: dict) -> dict:
    """Parameters of submitit for the keys of a launcher, such as {"slurm_partition": "gpu"}."""
    via = launcher["via"]
    parameters = {}
    for key, value in launcher.items():
        if key not in POSBENCH_KEYS and value is not None:
            parameters[key if key in SHARED_KEYS else f"{via}_{key}"] = value
    if via == "slurm" and "cpus_per_task" in parameters:
        # Since SLURM 22.05, srun does not inherit it from sbatch.
        cpus = f"--cpus-per-task={parameters['cpus_per_task']}"
        parameters["slurm_srun_args"] = [*parameters.get("slurm_srun_args", []), cpus]
    return parameters
