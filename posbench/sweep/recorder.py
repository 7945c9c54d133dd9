"""Recorder of a running job: writes its own files first, and shows the run in wandb beside them."""

import contextlib
import sys
import tempfile
from pathlib import Path

from posbench.common.files import append_lines
from posbench.config.schema import LogConfig
from posbench.runs.directory import Run
from posbench.sweep import wandb_content
from posbench.sweep.wandb_mirror import Mirror
from posbench.sweep.wandb_validation import ValidationChart, training_values


class Recorder(contextlib.AbstractContextManager):
    """Record of one job of one run: a context manager that marks the wandb run failed on an error.

    `job_type` is train or evaluate. Both use the run's id in wandb: a resumed training continues
    the same run, and a later evaluation adds to it. Offline, a later evaluation is a run of its own
    in the same group, and so is a job whose server does not accept it."""

    def __init__(self, run: Run, log: LogConfig, config: dict, job_type: str):
        self.run = run
        self._training_text = wandb_content.training_text(config)
        self._mirror = Mirror(run, log, config, job_type)
        self._validation_chart = ValidationChart(run)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.finish(ok=kind is None)

    def train(self, step: int, **metrics: object) -> None:
        """Append a line to train.jsonl and log it at `step`. Losses are in nats/token."""
        append_lines(self.run.train_log, [{"step": step, **metrics}])
        logged = training_values(metrics)
        self._mirror.send(lambda wandb_run: wandb_run.log(logged, step=step))
        if self._validation_chart.add(metrics):
            self._mirror.send(self._validation_chart.log)

    def rows(self, rows: list[dict]) -> None:
        """Log rows that are already in an eval json, as curves over length or position."""
        text = self._training_text
        self._mirror.send(lambda wandb_run: wandb_content.log_curves(wandb_run, rows, text))

    def show_results(self) -> None:
        """Log all evaluations of the run, read from its files: rows, charts, losses and pictures.

        An error is printed, since the results are safe.
        """
        if not self._mirror.is_open:
            return
        from posbench.report.report import collect_report

        text = self._training_text
        rows = wandb_content.stored_rows(self.run)
        self._mirror.send(lambda wandb_run: wandb_content.log_table(wandb_run, rows, text))
        with tempfile.TemporaryDirectory() as folder:
            try:
                report = collect_report(
                    self.run.eval_files(), title=self.run.id, command="", skip_damaged=True
                )
                summary = wandb_content.report_summary(report)
                pictures = wandb_content.draw_pictures(report, Path(folder))
            except Exception as error:
                print(f"no figure for wandb: {error}", file=sys.stderr, flush=True)
                return
            self._mirror.send(lambda wandb_run: wandb_run.summary.update(summary))
            self._mirror.send(lambda wandb_run: wandb_content.log_pictures(wandb_run, pictures))

    def finish(self, ok: bool) -> None:
        """End the wandb run, as failed unless `ok`."""
        if self._validation_chart.is_behind:
            self._mirror.send(self._validation_chart.log)
        self._mirror.finish(ok)
