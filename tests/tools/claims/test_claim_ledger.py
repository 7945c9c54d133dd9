"""The files of the ledger: their language, the claims in results/claims, the committed table, the
script.
"""

import ast
import csv
import hashlib
import importlib.util
import json
import re
from collections import Counter

import pytest
import yaml
from claim_worlds import ROPE, World, committed_ledger, make_ladder
from conftest import CONFIGS, choices, node
from hydra import initialize_config_dir
from script_calls import call

from posbench.report.table_formats import markdown_row
from posbench.tools.claims.command import default_arguments, pool_lookup
from posbench.tools.claims.judge import comparison_words
from posbench.tools.claims.language import (
    BOTH_VERDICTS,
    STAGES,
    Claim,
    ClaimCell,
    endpoint_name,
    load_claims,
)
from posbench.tools.claims.table import (
    VERDICT_ORDER,
    brief_markdown,
    ledger_markdown,
    read_findings,
)

LEDGER = committed_ledger()
REPORTED = CONFIGS.parent / "results" / "reported" / "claims"


def test_another_reading_of_a_comparison_has_its_cells_and_its_own_rules(tmp_path):
    endpoint = {
        "of": ROPE,
        "at": 4,
        "gate": "confirmed",
        "confirm": "above 0.2",
        "refute": "below 0.2",
    }
    text = {
        "statement": "s",
        "source": "arXiv 1",
        "rule": "r",
        "experiment": "e",
        "stage": 2,
        "seeds": [7, 9],
    }
    read = {"name": "little", "same_as": "X loud", "confirm": "below 0.1", "refute": "above 0.1"}
    for id, primary in (("X", {**endpoint, "name": "loud"}), ("Y", read)):
        (tmp_path / f"{id}.yaml").write_text(yaml.safe_dump({"id": id, **text, "primary": primary}))
    loud, little = (claim.primary[0] for claim in load_claims(tmp_path))
    assert (
        (str(loud), loud.seeds, loud.gate)
        == (str(little), (7, 9), "confirmed")
        == (str(little), little.seeds, little.gate)
    )
    assert (str(little.confirm), little.name) == ("below 0.1", "little")


def test_every_claim_of_the_ledger_is_sound():
    """Named as its file, with a source; every cell names methods, arguments and protocols that
    exist; every test exists.
    """
    for entry in LEDGER:
        _check_claim(entry)
    for cell in {
        str(cell): cell
        for entry in LEDGER
        for each in (*entry.primary, *entry.secondary)
        for _, cell in each.cells
    }.values():
        _check(cell)


def _check_claim(entry: Claim):
    assert (
        CONFIGS.parent
        / "results"
        / "claims"
        / ("" if entry.stage == 1 else f"stage{entry.stage}")
        / f"{entry.id}.yaml"
    ).exists()
    assert re.search(
        r"arXiv \d{4}\.\d{5}|kexue\.fm/archives/\d+|source notes 00\d|Anson et al\. 2025",
        entry.source,
    )
    assert entry.statement.endswith(".") and (entry.test or entry.rule.endswith("."))
    if entry.test:
        path, _, name = entry.test.partition("::")
        tree = ast.parse((CONFIGS.parent / path).read_text())
        assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def _check(cell: ClaimCell):
    for group in ("encoding", "extension"):
        name, args = getattr(cell, group), getattr(cell, f"{group}_args") or {}
        if (group, name) == ("encoding", "pose") and cell.finetuned or name == "recompute_window":
            assert set(args) <= {"draw", "window"}
            continue
        assert (
            name in choices(group)
            and (group, name) in default_arguments()
            and set(args) <= set(node(group, name))
        )
    scales = {
        *choices("scale_attention"),
        *(["head_scale"] if cell.finetuned else []),
    }  # which only a child has
    assert {cell.scale_attention.split(" ")[0], cell.trained_scale.split(" ")[0]} <= scales
    assert importlib.util.find_spec(f"posbench.evaluation.protocols.{cell.protocol}")
    assert set(cell.config or {}) <= {
        "model.qk_norm",
        "model.n_layer",
        "model.d_model",
        "train.length",
        "train.steps",
        "data.mix.task",
        "data.mix.share",
        "data.name",
    }


def test_the_committed_table_is_made_of_the_committed_csv_by_todays_claims():
    if not (REPORTED / "claims.csv").exists():
        pytest.skip("no claims are reported yet")
    findings = read_findings(REPORTED / "claims.csv")
    assert (REPORTED / "claims.md").read_text() == ledger_markdown(findings)
    assert (REPORTED / "brief.md").read_text() == brief_markdown(findings)
    page = (CONFIGS.parent / "results" / "claims" / "README.md").read_text()
    counted = Counter(
        (STAGES[finding.stage], finding.verdict) for finding in findings if finding.primary
    )
    shown = re.findall(r"^\| \[(\w+)\]\(\S+\) \|.*?\|(.*)\|$", page, re.M)
    assert shown == [
        (stage, "|".join(f" {counted[stage, word] or ''} " for word in VERDICT_ORDER))
        for stage in STAGES.values()
    ]
    rules = {
        (finding.stage, finding.claim, finding.endpoint): (
            finding.compared,
            finding.confirm,
            finding.refute,
        )
        for finding in findings
        if finding.primary
    }
    today = {
        (entry.stage, entry.id, each.name): (
            comparison_words(entry, each),
            str(each.confirm),
            str(each.refute),
        )
        for entry in LEDGER
        for each in entry.primary
    }
    judged = {finding.stage for finding in findings}
    assert 1 in judged and rules == {
        key: rule for key, rule in today.items() if key[0] in judged
    }, "a claim's rule was changed after it was judged: judge again, and say why"


def test_the_script_judges_runs_and_executes_nothing_of_them(tmp_path, capfd):
    ladder = make_ladder(World(tmp_path / "runs"))
    for path in ladder.root.glob("*/config.yaml"):
        path.write_text(
            path.read_text() + "encoding: {_target_: os.system, command: touch spoiled}\n"
        )
    done = call(
        capfd, tmp_path, "claims", f"runs={ladder.root}/rope-*", f"report_dir={tmp_path}/out"
    )
    assert done.returncode == 0, done.stderr
    judged = read_findings(tmp_path / "out" / "claims.csv")
    findings = {
        (finding.claim, finding.endpoint): finding for finding in judged if finding.stage == 1
    }
    assert {finding.verdict for finding in judged if finding.stage > 1 and finding.primary} == {
        "not measured"
    }
    assert (
        findings["H14", ""].verdict == "confirmed"
        and findings["H08", ""].verdict == "refuted"
        and findings["C2", ""].verdict == "confirmed"
    )
    assert findings["H16", ""].verdict == "not measured"
    assert (tmp_path / "out" / "claims.md").read_text() == ledger_markdown(judged)
    assert (
        "H14" in done.stdout and "confirmed" in done.stdout and not (tmp_path / "spoiled").exists()
    )
    assert "left out" not in done.stdout
    for path in ladder.root.glob("rope-64-s2*/evals/*/*.json"):
        path.write_text(path.read_text().replace('"seed": 2', '"seed": 20'))
    done = call(
        capfd, tmp_path, "claims", f"runs={ladder.root}/rope-*", f"report_dir={tmp_path}/out"
    )
    assert (
        "left out: seeds 20, which a later stage names" in done.stdout
        and "those from 61 on are free" in done.stdout
    )


def test_what_stage_one_decided_is_frozen():
    """Numbers and verdicts of its primaries, decided or not, by the hash of them all. No later run
    or rule may change them.
    """
    shown = (
        "claim",
        "endpoint",
        "compared",
        "confirm",
        "refute",
        "effect",
        "lower",
        "upper",
        "seeds",
        "p",
        "p_holm",
        "verdict",
    )
    with open(REPORTED / "claims.csv", newline="") as file:
        stage_one = [
            row for row in csv.DictReader(file) if row["primary"] == "True" and row["stage"] == "1"
        ]
    rows = [[row[column] for column in shown] for row in stage_one]
    assert Counter(row[-1] for row in rows) == {
        "confirmed": 9,
        "refuted": 2,
        "undecided": 21,
        "gated": 2,
    }
    assert (
        hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        == "bfbc5bf3ecf9bcda7526d3e5137e6e189289d616f9d75149d4d57420c5648ada"
    )


GATED = {BOTH_VERDICTS: "", "confirmed": " (gated if confirmed)", "none": " (not gated)"}


def registered(claims):
    """Markdown of all primaries of the claims."""
    columns = ("claim", "what is compared", "confirmed if", "refuted if", "seeds")
    rows = [
        [endpoint_name(claim.id, primary.name),
            f"as {primary.same_as}" if primary.same_as else str(primary) + GATED[primary.gate],
         str(primary.confirm), str(primary.refute), f"{primary.seeds[0]} to {primary.seeds[-1]}"]
        for claim in claims for primary in claim.primary
    ]  # fmt: skip
    return "\n".join(map(markdown_row, [columns, [":---"] * len(columns), *rows])) + "\n"


@pytest.mark.parametrize("stage", [2, 3, 4, 5, 6, 7, 8, 9, 10])
def test_the_page_of_a_stage_shows_what_is_registered(stage):
    page = CONFIGS.parent / "results" / "claims" / f"stage{stage}" / "README.md"
    _, _, shown = page.read_text().partition("<!-- registered -->")
    shown, _, _ = shown.partition("<!-- end of registered -->")
    claims = [claim for claim in LEDGER if claim.stage == stage]
    assert shown.strip() == registered(claims).strip(), "put registered of the stage there"


def test_claims_of_an_experiment_whose_text_is_not_here_are_not_measured(tmp_path, capsys):
    config = {"runs": None, "results_dir": str(tmp_path), "cache_dir": str(tmp_path)}
    prose = next(claim for claim in LEDGER if claim.experiments == ("prose",))
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        pool, _ = pool_lookup(config)(prose)
    assert not pool.evaluations
    assert "experiment=prose is left out" in capsys.readouterr().out


def test_the_same_models_on_another_text_are_another_comparison():
    """Stage eight reads models of five million parameters on books and on source."""
    words = {}
    for claim in LEDGER:
        if claim.id in ("Prose", "Size"):
            words[claim.id] = comparison_words(claim, claim.primary[0])
    assert words["Size"] == "rise of (rope + yarn + model.d_model=256 at 2x)"
    assert words["Prose"] == words["Size"] + " on books"
