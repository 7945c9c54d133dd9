"""The files of the ledger: their language, the claims in results/claims, the committed table, the script."""

import ast
import csv
import hashlib
import importlib.util
import json
import re
from collections import Counter

import pytest
import yaml
from claim_worlds import ROPE, World, claim, make_ladder
from conftest import CONFIGS, choices, node
from hydra import compose, initialize_config_dir
from script_calls import call

from posbench.claims.find import Pool
from posbench.claims.judge import reserved
from posbench.claims.language import BOTH, Cell, called, load, load_all
from posbench.claims.table import brief, from_csv, markdown
from posbench.cli.claims import defaults
from posbench.common.errors import ConfigError
from posbench.config import compose as composition
from posbench.config import identity
from posbench.config.composer import unresolved
from posbench.config.schema import typed
from posbench.report.tables import markdown_row
from posbench.runs.evaluation import Evaluation
from posbench.runs.origins import Origin
from posbench.statistics.crossed import ANOVA_FROM
from posbench.statistics.verdict_rules import sides
from posbench.sweep.jobs import plan_jobs

LEDGER = load_all(CONFIGS.parent / "results" / "claims")
REPORTED = CONFIGS.parent / "results" / "reported" / "claims"


@pytest.mark.parametrize(
    "change, says",
    [
        ({"primary": None}, "needs either primary endpoints or a test"),
        ({"refute": "above 0.1"}, "exclude each other"),
        ({"refute": None}, "none of: above X"),
        ({"confirm": "above 1 G"}, "shares of G, or neither"),
        ({"at": None}, "every cell needs a length"),
        ({"of": {"encoding": "rope", "code": "import os"}}, "code is not among"),
        ({"measure": "luck"}, "measure luck is none of"),
        ({"margin": 0.1}, "takes a margin"),
        ({"eval": "1"}, "eval is not among"),
        ({"seeds": [7, 8]}, "stage is 1, where all seeds decide that are there"),
        ({"stage": 2, "drop": "no key"}, "or one of 2, 3, 4, 5, 6, where the primaries name theirs"),
        ({"seeds": [7, 7]}, "seeds are different whole numbers"),
        ({"gate": "no"}, "gate is confirmed where a refutation"),
        ({"same_as": "H02"}, "at is not among"),
        ({"statement": None, "drop": "statement"}, "lacks 'statement'"),
    ],
)
def test_what_is_not_in_the_language_is_refused(tmp_path, change, says):
    endpoint = {"of": ROPE, "at": 4, "confirm": "above 0.2", "refute": "below 0.1"}
    whole = {"primary": {**endpoint, **change}} if "primary" not in change and "drop" not in change else change
    text = {"id": "X", "statement": "s", "source": "arXiv 1", "rule": "r", "experiment": "e", "primary": endpoint, **whole}
    text.pop(text.pop("drop", ""), None)
    (tmp_path / "X.yaml").write_text(yaml.safe_dump(text))
    with pytest.raises(ConfigError, match=f"X.yaml is no claim: .*{says}"):
        load(tmp_path / "X.yaml")


def test_secondary_endpoints_have_no_rules_and_ids_are_one_each(tmp_path):
    endpoint = {"of": ROPE, "at": 4, "confirm": "above 0.2", "refute": "below 0.1"}
    with pytest.raises(ConfigError, match="descriptive"):
        claim(tmp_path, primary=endpoint, secondary=[endpoint])
    claim(tmp_path, primary=endpoint)
    (tmp_path / "again.yaml").write_text((tmp_path / "claim.yaml").read_text())
    with pytest.raises(ConfigError, match="two claims of one id"):
        load_all(tmp_path)


def test_another_reading_of_a_comparison_has_its_cells_and_its_own_rules(tmp_path):
    endpoint = {"of": ROPE, "at": 4, "gate": "confirmed", "confirm": "above 0.2", "refute": "below 0.2"}
    text = {"statement": "s", "source": "arXiv 1", "rule": "r", "experiment": "e", "stage": 2, "seeds": [7, 9]}
    read = {"name": "little", "same_as": "X loud", "confirm": "below 0.1", "refute": "above 0.1"}
    for id, primary in (("X", {**endpoint, "name": "loud"}), ("Y", read), ("Z", {**read, "same_as": "Y little"})):
        (tmp_path / f"{id}.yaml").write_text(yaml.safe_dump({"id": id, **text, "primary": primary}))
    with pytest.raises(ConfigError, match="Z little is the same as Y little, which is no comparison of stage 2"):
        load_all(tmp_path)
    (tmp_path / "Z.yaml").unlink()
    one, other = (claim.primary[0] for claim in load_all(tmp_path))
    assert (str(one), one.seeds, one.gate) == (str(other), (7, 9), "confirmed") == (str(other), other.seeds, other.gate)
    assert (str(other.confirm), other.name) == ("below 0.1", "little")


@pytest.mark.parametrize("one", LEDGER, ids=lambda one: f"{one.stage}-{one.id}")
def test_every_claim_of_the_ledger_is_sound(one):
    """Named as its file, with a source; every cell names methods, arguments and protocols that exist; every test exists."""
    assert (CONFIGS.parent / "results" / "claims" / ("" if one.stage == 1 else f"stage{one.stage}") / f"{one.id}.yaml").exists()
    assert re.search(r"arXiv \d{4}\.\d{5}|kexue\.fm/archives/\d+|source notes 00\d|Anson et al\. 2025", one.source)
    assert one.statement.endswith(".") and (one.test or one.rule.endswith("."))
    if one.test:
        path, _, name = one.test.partition("::")
        tree = ast.parse((CONFIGS.parent / path).read_text())
        assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    for cell in {str(cell): cell for endpoint in (*one.primary, *one.secondary) for _, cell in endpoint.cells}.values():
        _check(cell)


def _check(cell: Cell):
    for group in ("encoding", "extension"):
        name, args = getattr(cell, group), getattr(cell, f"{group}_args") or {}
        if (group, name) == ("encoding", "pose") and cell.finetuned or name == "recompute_window":
            assert set(args) <= {"draw", "window"}
            continue
        assert name in choices(group) and (group, name) in defaults() and set(args) <= set(node(group, name))
    scales = {*choices("scale_attention"), *(["head_scale"] if cell.finetuned else [])}  # which only a child has
    assert {cell.scale_attention.split(" ")[0], cell.trained_scale.split(" ")[0]} <= scales
    assert importlib.util.find_spec(f"posbench.evaluators.{cell.protocol}")
    assert set(cell.config or {}) <= {"model.qk_norm", "model.n_layer", "train.length", "train.steps", "data.mix.task", "data.mix.share"}


def test_the_ledger_names_what_must_be_there():
    asked = """C1 H01 H02 H03 H08 H09 H12 H13 H14 H15 H16 H18 H19 H24 H27
    S01 S03 S05 S06 S09 S11 H04 H05 H06 H11 H17 H20 H21 H22 H23 H25 H26""".split()
    known = {one.id for one in LEDGER} | {"C1"}  # S07 holds C1
    assert not set(asked) - known, set(asked) - known


def planned(experiment):
    """What the evaluations of an experiment would be found by, without making any, and the origin of each."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        jobs = plan_jobs(composition.expand(unresolved(compose("run", [f"experiment={experiment}"])), []))
    shown = ("encoding", "extension", "scale_attention")
    for job in jobs:
        trained = identity.method_label(typed("train", job.cfg["train"]).scale_attention, "scale_attention")
        base = {"run_id": job.run.id, "seed": job.cfg["seed"], "train_len": typed("train", job.cfg["train"]).train_len, "position": None}
        parent = (job.cfg["train"]["parent"] or {}).get("run_id")
        for cell in job.cells:
            nodes = dict(zip(shown, (job.cfg["encoding"], cell.extension, cell.scale_attention), strict=True))
            row = {**base, "protocol": cell.protocol, "trained_scale": trained, "finetune": parent}
            row |= {group: identity.method_name(node) for group, node in nodes.items()}
            row["scale_attention"] = identity.method_label(cell.scale_attention, "scale_attention")
            row |= {f"{group}_args": identity.method_args(nodes[group]) for group in shown[:2]}
            rows = [{**row, "length": length} for length in cell.evaluate["lengths"]]
            yield Evaluation(rows, cell.path), Origin(job.run.path, job.cfg, {})


@pytest.mark.slow
def test_the_experiments_hold_every_cell_of_the_ledger_once(monkeypatch):
    """What `python scripts/run.py experiment=headline` and `experiment=claims` make is what the claims need: methods, seeds, lengths."""
    names = sorted({name for one in LEDGER for name in one.experiments})
    if not all((CONFIGS / "experiment" / f"{name}.yaml").exists() for name in names):
        pytest.skip("the experiments are not written yet")
    monkeypatch.setattr("posbench.data.fingerprint", lambda data, cache: "0" * 64)
    plans = {name: list(planned(name)) for name in names}
    for one in LEDGER:
        planned_here = [each for name in one.experiments for each in plans[name]]
        entries = {entry.path: entry for entry, _ in planned_here}  # a cell of both is one file
        lengths = {path: {row["length"] for e, _ in planned_here if e.path == path for row in e.rows} for path in entries}
        pool = Pool(list(entries.values()), {origin.path: origin for _, origin in planned_here}, defaults())
        for endpoint in (*one.primary, *one.secondary):
            for _, cell in endpoint.cells:
                found = pool.find(cell)
                assert set(found) >= set(endpoint.seeds) and len(found) >= 3, f"{one.id}: {cell} has seeds {list(found)}"
                for entry in found.values():
                    assert cell.at is None or round(cell.at * entry.first["train_len"]) in lengths[entry.path], (
                        f"{one.id}: {cell} at {cell.at}"
                    )
                    run_id = entry.first["finetune"] or entry.first["run_id"]
                    gate = [e for e in pool.evaluations if e.first["run_id"] == run_id and e.first["protocol"] == "fixed_targets"]
                    assert pool.reference(gate[0], "floor") and pool.reference(gate[0], "half")


def test_the_committed_table_is_made_of_the_committed_csv_by_todays_claims():
    if not (REPORTED / "claims.csv").exists():
        pytest.skip("no claims are reported yet")
    findings = from_csv(REPORTED / "claims.csv")
    assert (REPORTED / "claims.md").read_text() == markdown(findings)
    assert (REPORTED / "brief.md").read_text() == brief(findings)
    page = (CONFIGS.parent / "results" / "claims" / "README.md").read_text()
    shown = [part.partition("<!-- end of claims -->")[0].partition("\n")[2].strip() for part in page.split("<!-- claims:")[1:]]
    stages = [part.strip() for part in re.split(r"### Stage \w+\n", brief(findings)) if part.strip()]
    assert shown == stages, "put each stage of results/reported/claims/brief.md there"
    rules = {(one.stage, one.claim, one.endpoint): (one.compared, one.confirm, one.refute) for one in findings if one.primary}
    today = {(one.stage, one.id, each.name): (str(each), str(each.confirm), str(each.refute)) for one in LEDGER for each in one.primary}
    judged = {one.stage for one in findings}
    assert 1 in judged and rules == {key: rule for key, rule in today.items() if key[0] in judged}, (
        "a claim's rule was changed after it was judged: judge again, and say why"
    )


def test_the_script_judges_runs_and_executes_nothing_of_them(tmp_path, capfd):
    ladder = make_ladder(World(tmp_path / "runs"))
    for path in ladder.root.glob("*/config.yaml"):
        path.write_text(path.read_text() + "encoding: {_target_: os.system, command: touch spoiled}\n")
    done = call(capfd, tmp_path, "claims", f"runs={ladder.root}/rope-*", f"report_dir={tmp_path}/out")
    assert done.returncode == 0, done.stderr
    judged = from_csv(tmp_path / "out" / "claims.csv")
    found = {(one.claim, one.endpoint): one for one in judged if one.stage == 1}
    assert {one.verdict for one in judged if one.stage > 1 and one.primary} == {"not measured"}
    assert found["H14", ""].verdict == "confirmed" and found["H08", ""].verdict == "refuted" and found["C2", ""].verdict == "confirmed"
    assert found["H16", ""].verdict == "not measured"
    assert (tmp_path / "out" / "claims.md").read_text() == markdown(judged)
    assert "H14" in done.stdout and "confirmed" in done.stdout and not (tmp_path / "spoiled").exists()
    assert "left out" not in done.stdout
    for path in ladder.root.glob("rope-64-s2*/evals/*/*.json"):
        path.write_text(path.read_text().replace('"seed": 2', '"seed": 20'))
    done = call(capfd, tmp_path, "claims", f"runs={ladder.root}/rope-*", f"report_dir={tmp_path}/out")
    assert (
        done.returncode == 0
        and "left out: seed 20, which a later stage names" in done.stdout
        and "those from 33 on are free" in done.stdout
    )
    refused = call(capfd, tmp_path, "claims", "experiment=demo")
    assert refused.returncode == 2 and "give it runs= or results_dir=" in refused.stderr
    refused = call(capfd, tmp_path, "claims", f"runs={ladder.root}/rope-*", "encoding=alibi", "seed=77")
    assert refused.returncode == 2 and "encoding=alibi has no effect on the verdicts" in refused.stderr


def test_what_stage_one_decided_is_frozen():
    """Numbers and verdicts of its primaries, decided or not, by the hash of them all. No later run or rule may change them."""
    shown = ("claim", "endpoint", "compared", "confirm", "refute", "effect", "lower", "upper", "seeds", "p", "p_holm", "verdict")
    with open(REPORTED / "claims.csv", newline="") as file:
        stage_one = [row for row in csv.DictReader(file) if row["primary"] == "True" and row["stage"] == "1"]
    rows = [[row[column] for column in shown] for row in stage_one]
    assert Counter(row[-1] for row in rows) == {"confirmed": 9, "refuted": 2, "undecided": 21, "gated": 2}
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest() == "bfbc5bf3ecf9bcda7526d3e5137e6e189289d616f9d75149d4d57420c5648ada"


STAGE2, STAGE3, STAGE4, STAGE5, STAGE6 = ([one for one in LEDGER if one.stage == stage] for stage in (2, 3, 4, 5, 6))
# Experiments with trainings of stage two, and their children; DroPE's twin has its seeds, and models (QK-norm) that no claim asks for.
SHARED = {"claims2", "claims5", "projects", "drope_qk_norm"}


def test_stage_two_asks_what_stage_one_left_open_with_seeds_that_nothing_was_reported_of():
    first = [one for one in from_csv(REPORTED / "claims.csv") if one.stage == 1]
    decided = {(one.claim, one.endpoint) for one in first if one.verdict in ("confirmed", "refuted")}
    assert not {(one.id, each.name) for one in STAGE2 for each in one.primary} & decided
    seeds = {seed for one in STAGE2 for each in (*one.primary, *one.secondary) for seed in each.seeds}
    known = {int(seed) for path in REPORTED.parent.glob("*/trainings.csv") if path.parent.name not in SHARED for seed in _seeds(path)}
    assert seeds == set(range(5, 13)) and not seeds & known
    assert all(len(each.seeds) >= ANOVA_FROM for one in STAGE2 for each in one.primary)


def _seeds(path):
    with open(path, newline="") as file:
        return [row["seed"] for row in csv.DictReader(file)]


SHORT = [one for one in STAGE5 if one.id == "TrainShort"]


FRESH = [("claims3", STAGE3, 13), ("two_causes", STAGE4, 18), ("frontier", SHORT, 23), ("context_use", STAGE6, 28)]
# Reported of the trainings of an experiment after its claims were judged: of claims3 the models of S12 alone, on text and a task.
LATER = {"frontier": {"scale"}, "claims3": {"finetune"}}


@pytest.mark.parametrize("name, stage, first", FRESH)
def test_other_stages_have_seeds_that_neither_a_report_nor_another_stage_names(name, stage, first):
    seeds = {seed for one in stage for each in (*one.primary, *one.secondary) for seed in each.seeds}
    own = {name} | LATER.get(name, set())
    known = {int(seed) for path in REPORTED.parent.glob("*/trainings.csv") if path.parent.name not in own for seed in _seeds(path)}
    assert seeds == set(range(first, first + ANOVA_FROM)) and not seeds & known
    assert {one.experiments for one in stage} == {(name,)}


def test_fine_tuning_reports_of_no_training_that_a_claim_still_waits_for():
    """The trainings that S09 asks for are on text alone."""
    with open(REPORTED.parent / "finetune" / "rows.csv", newline="") as file:
        shared = {(row["data"], int(row["seed"])) for row in csv.DictReader(file) if int(row["seed"]) in reserved(LEDGER)}
    asked = {seed for one in STAGE3 if one.id == "S09" for each in one.primary for seed in each.seeds}
    assert shared == {("pysource+mqar", seed) for seed in asked}


def test_the_page_names_free_seeds_to_contributors():
    """claims.py leaves those of later stages out of stage one, and two trainings of one seed do not pool."""
    page = (CONFIGS.parent / "results" / "README.md").read_text().partition("## Seeds of several machines")[2]
    named = {int(seed) for words in re.findall(r"seed=([\d,]*\d)", page) for seed in words.split(",")}
    known = {int(seed) for path in REPORTED.parent.glob("*/trainings.csv") for seed in _seeds(path)}
    assert named and not named & (known | reserved(LEDGER))


def test_stage_three_asks_of_a_thousand_windows():
    assert {one.id for one in STAGE3} == {"S09", "S12"} and {each.windows for one in STAGE3 for each in one.primary} == {1024}


def test_stage_four_asks_at_sixteen_times_the_training_length():
    endpoints = [each for one in STAGE4 for each in one.primary]
    assert {each.windows for each in endpoints} == {1024}
    assert len(endpoints) == 5 and {cell.at for each in endpoints for _, cell in each.cells} == {16}
    assert all(sides(each.confirm, each.refute) == 1 for each in endpoints)


def test_stage_six_gates_nothing_since_its_models_differ_in_what_the_gate_asks():
    endpoints = [each for one in STAGE6 for each in one.primary]
    assert {(each.gate, each.windows) for each in endpoints} == {("none", 1024)} and len(endpoints) == 6
    steps = {dict(cell.config)["train.steps"] for one in STAGE6 for each in one.secondary for _, cell in each.cells}
    assert steps == {150, 500, 1500, 3000} and all(sides(each.confirm, each.refute) == 1 for each in endpoints)


def test_stage_five_takes_the_seeds_and_windows_of_stage_two_for_its_parents():
    children = [each for one in STAGE5 if one not in SHORT for each in (*one.primary, *one.secondary)]
    assert {each.seeds for each in children} == {tuple(range(5, 13)), tuple(range(5, 10))}
    assert {each.windows for one in (*STAGE2, *STAGE5) for each in one.primary} == {4096}
    assert {one.id for one in STAGE5} == {"S10", "C8", "DroPE", "HeadScale", "TrainShort"}


@pytest.mark.parametrize("stage", [STAGE2, STAGE3, STAGE4, STAGE5, STAGE6], ids=["two", "three", "four", "five", "six"])
def test_every_comparison_of_a_later_stage_is_asked_once(stage):
    asked = Counter(str(each) for one in stage for each in one.primary if not each.same_as)
    assert set(asked.values()) == {1}


GATED = {BOTH: "", "confirmed": " (gated if confirmed)", "none": " (not gated)"}


def registered(claims):
    """Markdown of all primaries of the claims."""
    columns = ("claim", "what is compared", "confirmed if", "refuted if", "seeds")
    rows = [
        [called(claim.id, one.name), f"as {one.same_as}" if one.same_as else str(one) + GATED[one.gate],
         str(one.confirm), str(one.refute), f"{one.seeds[0]} to {one.seeds[-1]}"]
        for claim in claims for one in claim.primary
    ]  # fmt: skip
    return "\n".join(map(markdown_row, [columns, [":---"] * len(columns), *rows])) + "\n"


def test_the_page_shows_what_is_registered():
    page = (CONFIGS.parent / "results" / "claims" / "README.md").read_text()
    shown = [part.partition("<!-- end of registered -->")[0].strip() for part in page.split("<!-- registered -->")[1:]]
    assert shown == [registered(stage).strip() for stage in (STAGE2, STAGE3, STAGE4, STAGE5, STAGE6)], "put registered of each stage there"


@pytest.mark.parametrize("name", ["claims2", "claims3", "two_causes", "claims5"])
def test_the_experiment_of_a_later_stage_has_the_trainings_of_the_headline_and_other_windows(name):
    bases = [yaml.safe_load((CONFIGS / "experiment" / f"{one}.yaml").read_text())["base"] for one in ("headline", name)]
    changed = {key for key in {**bases[0], **bases[1]} if bases[0].get(key) != bases[1].get(key)}
    assert changed - {"evaluate.lengths", "allow_untested"} == {"evaluate.windows", "evaluate.max_length"}
