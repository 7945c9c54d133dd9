"""Every effect of the ledger follows from committed rows: recomputed from means alone, without the
code that judged it.
"""

import functools
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from claim_worlds import committed_ledger
from conftest import CONFIGS

from posbench.runs.rows import read_csv
from posbench.tools.claims.judge import Finding, comparison_words
from posbench.tools.claims.language import ClaimCell, Endpoint
from posbench.tools.claims.table import read_findings

REPORTED = CONFIGS.parent / "results" / "reported"
ROWS = {  # folders with the rows of a stage
    1: ("claims", "claims/headline"),
    2: ("claims2", "claims5"),
    3: ("claims3",),
    4: ("two_causes",),
    5: ("claims5", "claims2", "frontier"),
    6: ("context_use",),
    7: ("press2022",),
    8: ("prose", "size"),
    9: ("retrieval", "recall", "algorithms"),
    10: ("content",),
}
FINDINGS = [
    finding
    for finding in read_findings(REPORTED / "claims" / "claims.csv")
    if finding.effect is not None
]
ENDPOINTS = {
    (claim.stage, claim.id, endpoint.name, comparison_words(claim, endpoint)): endpoint
    for claim in committed_ledger()
    for endpoint in (*claim.primary, *claim.secondary)
}


@functools.cache
def rows_of(folder: str) -> list[dict]:
    rows = read_csv(REPORTED / folder / "rows.csv")
    return [row for row in rows if row["position"] is None and row["depth"] is None]


@functools.cache
def tables(stage: int) -> tuple[dict[str, dict], dict[str, list[dict]]]:
    """({eval_id: {(length, task): row}}, {run_id: its rows of recompute_window with the whole
    window}) of a stage.
    """
    evaluations: dict[str, dict] = defaultdict(dict)
    floors: dict[str, list[dict]] = defaultdict(list)
    for row in (row for folder in ROWS[stage] for row in rows_of(folder)):
        evaluations[row["eval_id"]].setdefault((row["length"], row["task"]), row)
        if row["extension"] == "recompute_window" and row["extension_args"].get("window") is None:
            floors[row["run_id"]].append(row)
    return evaluations, floors


def bits_per_byte(row: dict) -> float:
    return row["nll"] * row["n_targets"] / math.log(2) / row["n_bytes"]


def floor_of(row: dict, floors: dict[str, list[dict]]) -> dict:
    """Row of the same targets of the same training with exactly the trained window of context."""
    of_targets = row["n_targets"], row["n_bytes"]
    same = [
        floor
        for floor in floors[row["run_id"]]
        if (floor["n_targets"], floor["n_bytes"]) == of_targets
    ]
    return min(same, key=lambda floor: floor["length"])


def evaluations_of(finding: Finding, endpoint: Endpoint) -> list[list[str]]:
    """The eval ids of each cell by seed. A finding lists them cell by cell, those of a cell that
    comes again once.
    """
    ids = iter(finding.evaluations.split())
    methods: dict[str, list[str]] = {}
    ids_of_cells = []
    for _, cell in endpoint.cells:
        # One evaluation has the rows of all tasks.
        method = repr(replace(cell, at=None, times=1.0, task=None))
        if method not in methods:
            methods[method] = [next(ids) for _ in finding.seeds.split()]
        ids_of_cells.append(methods[method])
    assert next(ids, None) is None
    return ids_of_cells


def values_of(
    finding: Finding, endpoint: Endpoint, cell: ClaimCell, eval_ids: list[str], at: float
) -> list[float]:
    """The measure of one cell at a multiple of the training length, by seed."""
    evaluations, floors = tables(finding.stage)
    values = []
    for eval_id, seed in zip(eval_ids, finding.seeds.split(), strict=True):
        any_row = next(iter(evaluations[eval_id].values()))
        row = evaluations[eval_id][round(at * any_row["train_len"]), cell.task]
        assert (row["seed"], row["protocol"], bool(row["finetune"])) == (
            int(seed),
            cell.protocol,
            cell.finetuned,
        )
        if endpoint.measure == "accuracy":
            values.append(row["accuracy"])
        elif endpoint.measure == "loss":
            values.append(bits_per_byte(row))
        else:
            values.append(bits_per_byte(row) - bits_per_byte(floor_of(row, floors)))
    return values


def recomputed(finding: Finding) -> tuple[float, list[float]]:
    """(effect, effect by seed, [] of a usable length) from the means of rows."""
    endpoint = ENDPOINTS[finding.stage, finding.claim, finding.endpoint, finding.compared]
    eval_ids = evaluations_of(finding, endpoint)
    if endpoint.measure == "usable_length":
        return usable_length(finding, endpoint, eval_ids[0]), []
    by_seed = [0.0] * len(finding.seeds.split())
    for (weight, cell), ids in zip(endpoint.cells, eval_ids, strict=True):
        for number, value in enumerate(values_of(finding, endpoint, cell, ids, cell.at)):
            by_seed[number] += weight * value
    return sum(by_seed) / len(by_seed), by_seed


def usable_length(finding: Finding, endpoint: Endpoint, eval_ids: list[str]) -> float:
    """First multiple of the training length at which the mean rise exceeds the margin; inf if none
    does.
    """
    ((_, cell),) = endpoint.cells
    rows = tables(finding.stage)[0][eval_ids[0]]
    for at in sorted(
        {
            length / row["train_len"]
            for (length, _), row in rows.items()
            if length >= row["train_len"]
        }
    ):
        rises = values_of(finding, endpoint, cell, eval_ids, at)
        if sum(rises) / len(rises) > endpoint.margin:
            return at
    return math.inf


@pytest.mark.parametrize(
    "finding",
    FINDINGS,
    ids=lambda finding: f"stage{finding.stage}-{finding.claim}-{finding.endpoint}".replace(
        " ", "_"
    ),
)
def test_an_effect_follows_from_committed_rows(finding):
    effect, by_seed = recomputed(finding)
    assert effect == pytest.approx(finding.effect, abs=1e-6)
    if by_seed:
        assert by_seed == pytest.approx(
            [float(value) for value in finding.by_seed.split()], abs=2e-5
        )


def test_no_effect_is_left_out():
    assert len(FINDINGS) == 412
    assert {finding.stage for finding in FINDINGS} == set(ROWS)


def test_the_rows_that_stage_one_was_judged_on_stand_beside_its_page_with_their_trainings():
    folder = REPORTED / "claims" / "headline"
    runs = {row["run_id"] for row in read_csv(folder / "rows.csv")}
    listed = Path(folder / "trainings.csv").read_text(encoding="utf-8")
    assert len(runs) == 20 and all(run in listed for run in runs)
    page = (REPORTED / "claims" / "claims.md").read_text(encoding="utf-8")
    stage_one = page.partition("\n### ")[0]
    assert "](headline/rows.csv)" in page and "../headline/rows.csv" not in stage_one


def holm_over_all_stages() -> dict[tuple, float]:
    """{(stage, claim, endpoint): p after one Holm correction over the stages}, of decided claims.

    In stage one every endpoint counts, later every comparison, also one that is not measured."""
    primary = [
        finding
        for finding in read_findings(REPORTED / "claims" / "claims.csv")
        if finding.primary and finding.verdict != "gated"
    ]
    question_of = {  # what counts once
        id(finding): (finding.stage, finding.compared if finding.stage > 1 else number)
        for number, finding in enumerate(primary)
    }
    adjusted = {}
    largest = 0.0
    tested = [finding for finding in primary if finding.p is not None]
    for finding in sorted(tested, key=lambda finding: finding.p):
        left = {
            question_of[id(other)] for other in primary if other.p is None or other.p >= finding.p
        }
        largest = max(largest, len(left) * finding.p)
        if finding.verdict in ("confirmed", "refuted"):
            adjusted[finding.stage, finding.claim, finding.endpoint] = largest
    return adjusted


def test_the_page_counts_what_one_correction_over_all_stages_would_leave_undecided():
    adjusted = holm_over_all_stages()
    undecided = {key for key, p in adjusted.items() if p >= 0.05}
    page = (REPORTED / "claims" / "README.md").read_text(encoding="utf-8")
    assert f"would leave {len(undecided)} of these {len(adjusted)} undecided" in page
    assert {key for key in undecided if key[0] <= 2} == {
        (1, "H18", ""),
        (2, "H19", "published slopes"),
        (2, "S05", "ReRoPE equals YaRN"),
    }
