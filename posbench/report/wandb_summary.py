"""Figures of a report for the summary of a wandb run."""

from __future__ import annotations

from posbench.report.points import section_of
from posbench.report.report import Report
from posbench.runs.wandb_mirror import curve_name


def summary(found: Report) -> dict[str, float]:
    """Loss of each method at each length, and its difference to the floor if there is one, in nats per token."""
    floors = {(point.section, point.length): point.floor for curve in found.sections for point in curve}
    values: dict[str, float] = {}
    for evaluation, row in ((one, row) for one in found.evaluations for row in one.rows):
        if row["position"] is not None or row["depth"] is not None or row["nll"] is None:
            continue
        name, floor = f"eval/{curve_name(row)}", floors.get((section_of(evaluation), row["length"]))
        values[f"{name}/nll_at_{row['length']}"] = row["nll"]
        if row["protocol"] == "accuracy":
            values[f"{name}/accuracy_at_{row['length']}"] = row["accuracy"]
        if floor is not None:
            values[f"{name}/above_floor_at_{row['length']}"] = row["nll"] - floor
    return values
