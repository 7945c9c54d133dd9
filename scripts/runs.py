"""List the runs of a results folder, or delete files that are no longer needed.

python scripts/runs.py list [results_dir=results/runs] [runs='rope-*'] [name=SWEEP] [state=failed]
    [encoding=rope] [sort=loss] [json=FILE]
python scripts/runs.py gc [results_dir=results/runs] [runs='rope-*'] [name=SWEEP] [failed=true]
    [interrupted=true] [older=30d] [cache=DIR] [delete=true]

gc deletes nothing without delete=true. It lists partly written files, checkpoints of finished
trainings, runs without any progress, and wandb folders that were uploaded. failed=true and
interrupted=true add trainings that did not finish. cache=results/cache adds the token files that no
run of this results folder was trained on."""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("runs")
