"""What the claims engine says of fabricated evaluations of known truth."""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from claim_worlds import NATS, ROPE, World, claim, make_ladder
from synthetic import DOCUMENTS, TARGETS, with_settings, write_eval

from posbench.common.csv_records import to_csv
from posbench.common.errors import RunError
from posbench.runs.rows import eval_content, read_eval
from posbench.runs.target_losses import part_of
from posbench.tools.claims.command import default_arguments
from posbench.tools.claims.find import Pool, text_of_experiment
from posbench.tools.claims.judge import Finding, _gate_of_trainings, judge
from posbench.tools.claims.language import Claim
from posbench.tools.claims.table import (
    brief_markdown,
    ledger_markdown,
    read_findings,
    terminal_table,
)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def ladder(world):
    return make_ladder(world)


def test_a_rise_in_bits_per_byte(ladder):
    finding = ladder.finding(confirm="above 0.2", refute="below 0.1")
    assert (
        finding.effect == pytest.approx(1.2 / NATS, abs=0.03)
        and finding.lower < 1.2 / NATS < finding.upper
    )
    assert (finding.verdict, finding.by_interval, finding.unit, finding.over) == (
        "confirmed",
        "confirmed",
        "bits/byte",
        "seeds x documents",
    )
    assert (finding.seeds, finding.documents, finding.targets, finding.nats) == (
        "0 1 2",
        DOCUMENTS,
        TARGETS,
        pytest.approx(NATS),
    )
    assert finding.gain_lower == pytest.approx(0.1 / NATS, abs=0.02)
    assert np.mean([float(value) for value in finding.by_seed.split()]) == pytest.approx(
        finding.effect, rel=1e-4
    )
    # The row's own columns say the same: bpb of the cell less bpb of the floor, averaged over
    # seeds.
    rows = [
        row
        for path in ladder.root.glob("*/evals/*/*.json")
        for row in read_eval(path)
        if row["encoding"] == "rope"
    ]
    plain = np.mean(
        [row["bpb"] for row in rows if row["extension"] == "none" and row["length"] == 256]
    )
    floor = np.mean(
        [
            row["bpb"]
            for row in rows
            if row["extension_args"] == {"window": None} and row["length"] == 128
        ]
    )
    assert finding.effect == pytest.approx(plain - floor, rel=1e-5)


def test_verdicts_both_ways_and_undecided(ladder):
    alibi, edge = {"encoding": "alibi"}, f"{1.2 / NATS:.4f}"
    for at, of, confirm, refute, verdict in (
        (8, ROPE, "below 0.013", "above 0.066", "refuted"),
        (4, ROPE, f"above {edge}", f"below {edge}", "undecided"),  # the truth lies on the margin
        (4, {**ROPE, "extension": "rerope"}, "below -0.013", "above -0.013", "confirmed"),
        (8, alibi, "within 0.05", "outside -0.1 0.1", "confirmed"),
        (
            8,
            alibi,
            "within 0.0005",
            "outside -0.1 0.1",
            "undecided",
        ),  # not different from 0, and not shown to be 0
    ):
        assert ladder.finding(of=of, at=at, confirm=confirm, refute=refute).verdict == verdict, (
            confirm
        )


def test_contrasts_weights_and_interactions(ladder):
    def effect(**endpoint):
        return ladder.finding(**{"at": 8, **endpoint}).effect * NATS

    pi, rerope = {**ROPE, "extension": "pi"}, {**ROPE, "extension": "rerope"}
    assert effect(of=pi, minus=ROPE) == pytest.approx(0.5 - 1.6, abs=0.06)
    assert effect(of=pi, minus={**ROPE, "times": 0.25}) == pytest.approx(0.5 - 0.4, abs=0.06)
    assert effect(of={**ROPE, "at": 2}, minus={**ROPE, "at": 1}) == pytest.approx(0.8, abs=0.06)
    assert effect(
        of=ROPE, minus=pi, against={"of": rerope, "minus": {"encoding": "alibi"}}
    ) == pytest.approx(1.1 + 0.05, abs=0.08)
    levels = [ladder.floors[name, seed].mean() for name in ("rope", "alibi") for seed in range(3)]
    raw = effect(measure="loss", of=ROPE, minus={"encoding": "alibi"})
    assert raw == pytest.approx(
        1.6 + np.mean(levels[:3]) - np.mean(levels[3:]), abs=0.06
    )  # levels of trainings do not cancel, rises do


def test_usable_length(ladder):
    primary = {
        "measure": "usable_length",
        "at": None,
        "margin": 0.05,
        "confirm": "between 1.1 1.6",
        "refute": "outside 1.1 1.6",
    }
    # 0.05 bits/byte = 0.069 nat: held at 80 (0.03), left at 96 (0.2).
    finding = ladder.finding(**primary)
    assert (finding.effect, finding.lower, finding.upper, finding.verdict) == (
        1.5,
        1.5,
        1.5,
        "confirmed",
    )
    flat = ladder.finding(
        **{**primary, "of": {"encoding": "alibi"}, "confirm": "above 8", "refute": "below 8"}
    )
    assert flat.lower == math.inf and "beyond" in ledger_markdown([flat])


def test_margins_as_shares_of_g(ladder):
    """rerope gains 0.05 nat, G is 0.1: more than a quarter of G, less than four fifths."""
    of = {**ROPE, "extension": "rerope"}
    few, most = (
        ladder.finding(of=of, confirm=f"below -{share} G", refute=f"above -{share} G")
        for share in (0.2, 0.8)
    )
    assert (few.verdict, most.verdict) == ("confirmed", "refuted") and few.effect == pytest.approx(
        -0.05 / NATS, abs=0.02
    )


TASK = "mqar 4 pairs"


def ask(world, seed, extension, right, lengths=(64, 1024), tasks=(TASK, TASK)):
    """Answers to four questions in each of 100 texts, of which the shares `right` are right at the
    lengths.
    """
    shape, rng = (100, 4), np.random.default_rng([seed, len(extension)])
    losses = np.zeros((len(lengths), TARGETS))
    changed = {"protocol": "accuracy", "task": TASK, "n_bytes": 0, "n_targets": 400, "n_units": 100}
    eval_path = write_eval(
        world.root / "elsewhere", "rope", extension, "none", losses, lengths, seed, **changed
    )
    content, arrays = (
        json.loads(eval_path.read_text()),
        {"length": np.array(lengths), "document": np.arange(100), "offset": np.zeros(100, int)},
    )
    for row, length, share, task in zip(
        content["rows"], lengths, right, tasks[-len(lengths) :], strict=True
    ):
        row |= {"eval_id": f"asked-{row['eval_id']}", "accuracy": share, "task": task}
        arrays |= {
            f"nll_{length}": np.zeros(shape, np.float32),
            f"correct_{length}": rng.permutation(400).reshape(shape) < 400 * share,
        }
        arrays[f"part_{length}"] = np.full((1, 4), part_of(row))
    path = world.root / eval_path.parents[2].name / "evals" / "accuracy" / eval_path.name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    np.savez(path.with_suffix(".npz"), **arrays)


def test_an_accuracy_at_a_task_is_gated_by_what_was_learned_inside_the_window(world, tmp_path):
    """G takes no part: these models do not use their window on text."""
    for seed in range(5):
        world.train("rope", seed, gain=0.0)
        ask(world, seed, "rerope", (0.97, 0.9))
        ask(world, seed, "streaming", (0.97, 0.6))
    rerope, streaming = (
        {**ROPE, "extension": name, "protocol": "accuracy", "task": TASK}
        for name in ("rerope", "streaming")
    )

    def finding_of(**edge):
        return world.judge(
            second(
                tmp_path, range(5), measure="accuracy", of=rerope, minus=streaming, at=16, **edge
            )
        )[0]

    finding = finding_of(confirm="above 0.1", refute="below 0.1")
    assert (
        finding.verdict,
        finding.gain_lower,
        finding.nats,
        finding.documents,
        finding.targets,
    ) == (
        "confirmed",
        None,
        None,
        100,
        400,
    )
    assert finding.effect == pytest.approx(0.3, abs=0.05) and "share of targets" in ledger_markdown(
        [finding]
    )
    assert finding_of(confirm="above 0.5", refute="below 0.5").verdict == "refuted"
    ask(world, 3, "streaming", (0.4, 0.1))
    finding = finding_of(confirm="above 0.1", refute="below 0.1")
    assert (
        finding.verdict == "gated"
        and "right in 0.400 of the answers inside its window, below 0.5" in finding.note
    )
    ask(world, 3, "streaming", (0.1,), lengths=(1024,))
    assert "lacks length 64" in finding_of(confirm="above 0.1", refute="below 0.1").note


def test_questions_outside_of_the_window_are_gated_by_those_inside(world, tmp_path):
    """Such questions do not exist at the training length: the task without the window's name says
    what was learned there.
    """
    outside = f"{TASK} outside 64"
    for seed in range(5):
        world.train("rope", seed, gain=0.0)
        ask(world, seed, "rerope", (0.97, 0.9), tasks=(TASK, outside))
        ask(world, seed, "streaming", (0.97, 0.1), tasks=(TASK, outside))
    rerope, streaming = (
        {**ROPE, "extension": name, "protocol": "accuracy", "task": outside}
        for name in ("rerope", "streaming")
    )
    rules = {
        "measure": "accuracy",
        "of": rerope,
        "minus": streaming,
        "at": 16,
        "confirm": "above 0.1",
        "refute": "below 0.1",
    }
    (finding,) = world.judge(second(tmp_path, range(5), **rules))
    assert finding.verdict == "confirmed" and finding.effect == pytest.approx(0.8, abs=0.05)
    ask(world, 3, "streaming", (0.4, 0.1), tasks=(TASK, outside))
    (finding,) = world.judge(second(tmp_path, range(5), **rules))
    assert (
        finding.verdict == "gated"
        and "right in 0.400 of the answers inside its window" in finding.note
    )


@pytest.mark.parametrize("gain, verdict", [(0.1, "confirmed"), (0.0, "gated")])
def test_g_is_read_by_tiled_targets_where_fixed_targets_were_not_scored(
    world, tmp_path, gain, verdict
):
    for seed in range(3):
        floor_N = 3 + world.noise(0.3)
        half_N = floor_N + gain + world.noise(0.01)
        for window, loss_N in ((None, floor_N), (32, half_N)):
            write_eval(
                world.root,
                "rope",
                "recompute_window",
                "none",
                [loss_N] * 2,
                (128, 256),
                seed,
                {"window": window},
                protocol="tiled_targets",
            )
        write_eval(
            world.root,
            "rope",
            "none",
            "none",
            [floor_N, floor_N + 0.5],
            (64, 256),
            seed,
            protocol="tiled_targets",
        )
        run = world.root / f"rope-64-s{seed}-0123456789"
        (run / "config.yaml").write_text(
            yaml.safe_dump({"train": {"length": 64}, "model": {"qk_norm": "none"}})
        )
    of = {**ROPE, "protocol": "tiled_targets"}
    (finding,) = world.judge(
        second(tmp_path, range(3), of=of, at=4, confirm="above 0.1", refute="below 0.1")
    )
    assert finding.verdict == verdict and finding.gain_lower == pytest.approx(gain / NATS, abs=0.04)


def test_a_model_that_does_not_use_its_window_is_gated(world):
    for seed in range(3):
        world.train("rope", seed, gain=0.0 if seed == 1 else 0.1)
        world.evaluate("rope", seed, "none", 2.0)
    finding = world.finding(confirm="above 0.2", refute="below 0.1")
    assert (
        finding.verdict == "gated"
        and finding.p is None
        and finding.effect > 1
        and finding.gain_lower < 0.02
    )


@pytest.mark.parametrize("bounds", [(math.nan, -1.0), (-1.0, math.nan), (math.nan, math.nan)])
def test_a_training_without_a_bound_of_g_is_gated_in_any_order(bounds):
    """A single document gives no bound, and nan is neither above zero nor the least of two."""
    cell = SimpleNamespace(protocol="fixed_targets")
    common = SimpleNamespace(cells=[(1.0, cell, [0, 1])])
    pool = SimpleNamespace(gain_lower=lambda entry: bounds[entry])
    gate = _gate_of_trainings(common, pool)
    assert gate.fault and gate.gain_lower is None


def test_one_seed_is_over_documents_and_lone_seeds_are_left_out(world):
    for seed in (0, 4):
        world.train("rope", seed)
        world.evaluate("rope", seed, "none", 1.0)
    world.evaluate("rope", 4, "pi", 0.3)
    finding = world.finding(
        of={**ROPE, "extension": "pi"}, minus=ROPE, at=2, confirm="below 0", refute="above 0"
    )
    assert (finding.seeds, finding.over, finding.verdict) == (
        "4",
        "documents (one seed)",
        "confirmed",
    )
    assert "seeds 0 have not all cells" in finding.note


def test_what_is_not_there_is_said_with_the_way_to_make_it(ladder):
    def note(**endpoint):
        finding = ladder.finding(**{"at": 8, **endpoint})
        assert (finding.verdict, finding.p, finding.effect) == ("not measured", None, None)
        return finding.note

    assert note(of={**ROPE, "extension": "yarn"}) == "no evaluation of rope + yarn: make it"
    assert "lacks length 1024: make it" in note(of=ROPE, at=16)
    assert "no evaluation of rope + model.qk_norm=rms" in note(
        of={**ROPE, "config": {"model.qk_norm": "rms"}}
    )
    next(ladder.root.glob("alibi-64-s0*/evals/*/none+none*.npz")).unlink()
    assert "is not there, and losses of single targets decide" in note(of={"encoding": "alibi"})
    for path in ladder.root.glob("rope-64-s*/evals/*/recompute*.npz"):
        path.unlink()
    assert "is not there, and losses of single targets decide" in note(of=ROPE)
    for path in ladder.root.glob("rope-64-s*/evals/*/recompute*"):
        path.unlink()
    assert "lacks recompute_window" in note(of=ROPE)


def test_arguments_that_are_not_named_are_those_of_configs(world, tmp_path):
    for seed in range(2):
        world.train("rope", seed)
        world.evaluate(
            "rope",
            seed,
            "ntk",
            0.5,
            args={"multiplier": 1.0, "mode": "dynamic", "target_len": None},
        )
        world.evaluate(
            "rope",
            seed,
            "ntk",
            0.1,
            args={"multiplier": 2.0, "mode": "dynamic", "target_len": None},
        )

    def effect(pool_defaults, **args):
        pool = Pool.read(world.root.glob("*/evals/*/*.json"), pool_defaults)
        cell = {**ROPE, "extension": "ntk", **({"extension_args": args} if args else {})}
        ntk_claim = claim(
            tmp_path, primary={"of": cell, "at": 4, "confirm": "above 0", "refute": "below 0"}
        )
        return judge([ntk_claim], lambda claim: (pool, ""))[0]

    assert effect(default_arguments()).effect * NATS == pytest.approx(0.5, abs=0.05)
    assert effect(default_arguments(), multiplier=2).effect * NATS == pytest.approx(0.1, abs=0.05)
    assert effect(default_arguments(), multiplier=3).verdict == "not measured"


def test_other_documents_than_those_of_the_test_split_decide_nothing(world):
    """Neither alone nor beside the evaluation that decides, which they are then not taken for."""
    world.train("rope", 0)
    world.evaluate("rope", 0, "none", 0.5)
    for path in list(world.root.glob("*/evals/*/*.json")):
        with_settings(path, "other", documents="*/other/*"), with_settings(path)
    finding = world.finding()
    assert finding.verdict == "confirmed" and "other" not in finding.evaluations
    for path in world.root.glob("*/evals/*/*+*"):
        if not path.name.startswith("other-"):
            path.unlink()
    assert world.finding().note == "no evaluation of rope: make it"


def test_other_targets_are_never_paired(ladder):
    path = next(ladder.root.glob("rope-64-s1*/evals/*/pi+none*.npz"))
    stored = dict(np.load(path))
    np.savez(path, **{**stored, "offset": stored["offset"] + 1})
    for measure in ("loss", "rise"):
        finding = ladder.finding(measure=measure, of={**ROPE, "extension": "pi"}, minus=ROPE, at=2)
        assert finding.verdict == "not measured" and "scored different targets" in finding.note


def test_configurations_tell_trainings_apart(world):
    """Mixed training lengths and QK-norm are never taken for the plain model, and are found where
    they are asked for.
    """
    world.train("rope", 0)
    world.evaluate("rope", 0, "none", 0.5)
    for name, config in {
        "norm": {"model": {"qk_norm": "rms"}},
        "mixed": {"train": {"length": [16, 32, 64]}},
    }.items():
        other = World(world.root.parent / name)
        other.train("rope", 0, **config)
        other.evaluate("rope", 0, "none", 1.0 if name == "norm" else 2.0)
        for path in (other.root).glob("*"):
            path.rename(world.root / f"{path.name}{name}")
    for path in world.root.glob("*/evals/*/*.json"):
        text = json.loads(path.read_text())
        run_id = path.parents[2].name
        path.write_text(
            json.dumps(eval_content([{**row, "run_id": run_id} for row in text["rows"]], {}))
        )

    def effect(**config):
        return world.finding(of={**ROPE, **({"config": config} if config else {})}).effect * NATS

    assert effect() == pytest.approx(0.5, abs=0.1)
    assert effect(**{"model.qk_norm": "rms"}) == pytest.approx(1.0, abs=0.1)
    assert effect(**{"train.length": [16, 32, 64]}) == pytest.approx(2.0, abs=0.1)


def test_a_child_is_found_by_what_it_was_tuned_with_and_gated_by_its_parent(world):
    """Never taken for its parent, nor a training of another length for the usual one; its own G,
    which it may lack, plays no part.
    """
    world.train("rope", 0)
    world.evaluate("rope", 0, "pi", 1.0)
    for steps, shift in ((30, 0.2), (100, 0.1)):
        other = World(world.root.parent / f"steps{steps}")
        other.floors = world.floors
        path = other.evaluate("rope", 0, "none", shift, lengths=(64, 256))
        text = json.loads(path.read_text())
        scaling = {"_target_": "posbench.extensions.pi.Pi", "mode": "fixed"}
        child_values = {
            "run_id": f"rope+pi-s0-{steps}",
            "train_len": 256,
            "finetune": "rope-64-s0-0123456789",
        }
        child_values["encoding_args"] = {"scaling": scaling, "scaling_len": 64}
        path.write_text(
            json.dumps(eval_content([{**row, **child_values} for row in text["rows"]], {"seed": 0}))
        )
        path.parents[2].rename(world.root / child_values["run_id"])
        config = {"train": {"length": 256, "steps": steps}, "model": {"qk_norm": "none"}}
        (world.root / child_values["run_id"] / "config.yaml").write_text(yaml.safe_dump(config))

    def finding_of(**cell):
        edges, pi = {"confirm": "below -0.2", "refute": "above -0.2"}, {**ROPE, "extension": "pi"}
        return world.finding(
            measure="loss", of={**pi, **cell}, minus={**pi, "at": 4}, at=None, **edges
        )

    tuned = {"finetuned": True, "extension_args": {"mode": "fixed"}, "at": 1}
    finding = finding_of(**tuned, config={"train.length": 256, "train.steps": 100})
    assert finding.effect is not None, finding.note
    assert (
        finding.effect * NATS == pytest.approx(0.1 - 1.0, abs=0.05)
        and finding.gain_lower > 0
        and finding.verdict == "confirmed"
    )
    assert finding_of(
        **tuned, config={"train.length": 256, "train.steps": 30}
    ).effect * NATS == pytest.approx(0.2 - 1.0, abs=0.05)
    assert "fits two evaluations" in finding_of(**tuned, config={"train.length": 256}).note
    assert (
        finding_of(**{**tuned, "finetuned": False}, config={"train.length": 256}).verdict
        == "not measured"
    )
    assert finding_of(at=4).effect == 0  # the parent itself


def test_a_training_of_an_unreadable_configuration_fits_no_cell_and_a_missing_key_has_its_default(
    world,
):
    for seed, shift in ((0, 0.5), (1, 9.0)):
        world.train("rope", seed)
        path = world.evaluate("rope", seed, "none", shift)
    (path.parents[2] / "config.yaml").write_text("model: [")
    assert (
        world.finding().seeds
        == world.finding(of={**ROPE, "config": {"model.qkv_bias": False}}).seeds
        == "0"
    )
    for config in ({"model.qkv_bias": True}, {"train.steps": 1000}):
        assert world.finding(of={**ROPE, "config": config}).verdict == "not measured"


def test_the_gate_is_of_the_windows_that_a_claim_is_of(world, tmp_path):
    world.train("rope", 0, gain=0.1)
    world.evaluate("rope", 0, "none", 0.5)
    for path in world.root.glob("*/evals/*/*.json"):
        with_settings(path, targets=60)
    few = World(tmp_path / "few")
    few.train("rope", 0, gain=-0.5)
    for path in few.root.glob(
        "*/evals/*/*.json"
    ):  # the same training, by a few windows: first in the order of names
        path = with_settings(path, "2", windows=2, targets=60)
        for file in (path, path.with_suffix(".npz")):
            file.rename(next(world.root.glob("*/evals/*")) / f"a-{file.name}")
    finding = world.finding(confirm="above 0.1", refute="below 0.1")
    assert (finding.verdict, finding.gain_lower > 0) == ("confirmed", True)


def test_a_claim_has_a_floor_from_the_length_on_from_which_a_report_has_one(world):
    world.train("rope", 0, at=(96,))
    world.evaluate("rope", 0, "none", 0.5, lengths=(64, 96))
    assert (
        "lacks a length of at least 128 tokens" in world.finding(at=1.5).note
    )  # nothing says how many tokens of a window are scored
    for path in world.root.glob("*/evals/*/*.json"):
        # 64 + 8 - 1 tokens give each of the 8 targets its full window.
        with_settings(path, max_length=96)
    finding = world.finding(at=1.5)
    assert finding.verdict == "confirmed" and finding.effect * NATS == pytest.approx(0.5, abs=0.05)
    assert finding.gain_lower * NATS == pytest.approx(0.1, abs=0.05)


def test_holm_takes_a_verdict_back_and_says_so(ladder, tmp_path):
    """Alone p = 0.03 is enough; among twenty it is not, and the effect, interval and p stay as they
    are.
    """
    cell = {"of": {**ROPE, "extension": "rerope"}, "at": 4}
    finding = ladder.finding(**cell, confirm="below 0", refute="above 0")
    edge = f"{finding.effect + 0.6 * (finding.upper - finding.lower):.5f}"
    close_claim = claim(
        tmp_path, primary={**cell, "confirm": f"below {edge}", "refute": f"above {edge}"}
    )
    assert ladder.judge(close_claim)[0].verdict == "confirmed"
    many = ladder.judge(*(replace(close_claim, id=f"X{n}") for n in range(20)))
    assert {(each.by_interval, each.verdict) for each in many} == {("confirmed", "undecided")}
    assert many[0].p_holm == pytest.approx(min(1, 20 * many[0].p)) and many[0].q == pytest.approx(
        many[0].p
    )
    assert "not after Holm over 20" in many[
        0
    ].note and f"{many[0].p_holm:.3f}, {many[0].q:.3f} |" in ledger_markdown(many)
    assert brief_markdown(many).count("| undecided (confirmed alone) |") == 20


def test_claims_that_compare_the_same_are_counted_once(ladder, tmp_path):
    """Three claims on two comparisons: both verdicts on the first are one piece of evidence."""
    first = claim(
        tmp_path, primary={"of": ROPE, "at": 4, "confirm": "above 0.2", "refute": "below 0.1"}
    )
    other = claim(
        tmp_path, primary={"of": ROPE, "at": 8, "confirm": "above 0.2", "refute": "below 0.1"}
    )
    text = ledger_markdown(
        ladder.judge(replace(first, id="X1"), replace(first, id="X2"), replace(other, id="X3"))
    )
    assert (
        "One comparison each: X1 and X2. So 3 endpoints are 2 comparisons, the 3 confirmed are 2."
        in text
    )
    assert "One comparison" not in ledger_markdown(ladder.judge(first, replace(other, id="X3")))


def test_disjoint_windows_of_other_targets_are_compared_by_document(world):
    """Losses of every token, other tokens at each length: only documents are shared."""
    lengths = (64, 1024)
    for seed in range(3):
        world.train("alibi", seed)
        for protocol, shifts in (("fixed_targets", (0, 0)), ("disjoint", (0.3, 0.1))):
            world.evaluate(
                "alibi",
                seed,
                "none",
                shifts,
                lengths=lengths,
                protocol=protocol,
                args={"of": protocol},
            )
    for path in world.root.glob("*/evals/*/none+none*.json"):
        text = path.read_text()
        path.write_text(re.sub(r'"extension_args": \{[^}]*\}', '"extension_args": {}', text))
    early = {"encoding": "alibi", "protocol": "disjoint"}
    against = {"of": {"encoding": "alibi", "at": 16}, "minus": {"encoding": "alibi", "at": 1}}
    edges = {"confirm": "below -0.0066", "refute": "above -0.0066"}
    finding = world.finding(
        measure="loss", of={**early, "at": 16}, minus={**early, "at": 1}, against=against, **edges
    )
    assert finding.effect * NATS == pytest.approx(-0.2, abs=0.06) and finding.verdict == "confirmed"


def test_the_csv_keeps_every_digit_and_the_markdown_is_made_of_it(ladder, tmp_path):
    measured = claim(
        tmp_path, primary=[
            {"name": "a | b", "of": ROPE, "at": 4, "confirm": "above 0.2", "refute": "below 0.1"},
            {"name": "c", "of": {**ROPE, "extension": "yarn"}, "at": 4, "confirm": "above 0.2",
                "refute": "below 0.1"},
        ], secondary=[{"of": ROPE, "at": 8}],
    )  # fmt: skip
    tested = Claim(
        "T",
        "s",
        "arXiv 1",
        "r",
        test="tests/statistics/test_decisions.py::test_holm_by_hand",
        shows="refuted",
    )
    findings = ladder.judge(measured, tested)
    path = tmp_path / "claims.csv"
    path.write_text(to_csv(findings, Finding))
    assert read_findings(path) == findings and ledger_markdown(
        read_findings(path)
    ) == ledger_markdown(findings)
    text = ledger_markdown(findings)
    assert (
        "2 primary endpoints: 1 confirmed, 1 not measured." in text
        and "a \\| b" in text
        and "refuted by test" in text
    )
    assert (
        f"above 0.2 ({0.2 * NATS:.3g})" in text
        and "(descriptive)" in text
        and "[e](../e/rows.csv), eval_id" in text
    )


def second(tmp_path, seeds=(0, 1, 2), **primary):
    """A claim of stage two, as load_all reads it."""
    return replace(
        claim(tmp_path, stage=2, seeds=list(seeds), primary={"of": ROPE, "at": 4, **primary}),
        id="Y",
    )


def test_stages_are_families_apart_and_a_comparison_counts_once(ladder, tmp_path):
    edge = {"confirm": "above 0.2", "refute": "below 0.2"}
    later = second(tmp_path, **edge)
    (primary,) = later.primary
    again = replace(
        later,
        id="Z",
        primary=(replace(primary, confirm=primary.refute, refute=primary.confirm, same_as="Y"),),
    )
    other = replace(second(tmp_path, **edge, at=8), id="W")
    ladder.train("rope", 3)
    ladder.evaluate("rope", 3, "none", 1.0)
    first = claim(
        tmp_path, primary={"of": ROPE, "at": 4, "confirm": "above 0.2", "refute": "below 0.2"}
    )
    alone, *findings = ladder.judge(first, later, again, other)
    assert (alone.stage, alone.seeds, alone.sides, alone.p_holm) == (
        1,
        "3",
        2,
        alone.p,
    )  # seeds of stage two take no part in stage one
    assert [(each.stage, each.seeds, each.sides, each.verdict) for each in findings] == [
        (2, "0 1 2", 2, "confirmed"), (2, "0 1 2", 2, "refuted"), (2, "0 1 2", 1, "confirmed"),
    ]  # fmt: skip
    # Two comparisons: the smallest p times two, the last as it is.
    least, most = (
        sorted(findings, key=lambda each: each.p)[0],
        sorted(findings, key=lambda each: each.p)[-1],
    )
    assert least.p_holm == pytest.approx(2 * least.p) and most.p_holm == pytest.approx(
        max(most.p, least.p_holm)
    )
    text = ledger_markdown([alone, *findings])
    assert "## Stage one" in text and "## Stage two" in text and "over the 2 comparisons" in text
    assert (
        terminal_table([alone, *findings]).count("2: ") == 3
        and brief_markdown([alone, *findings]).count("| claim |") == 2
    )


def test_what_is_not_measured_yet_counts_in_the_correction_of_a_later_stage(ladder, tmp_path):
    """With p = 1, so that no verdict falls when it is measured; the first stage counts what was
    measured alone.
    """
    edge = {"confirm": "above 0.2", "refute": "below 0.2"}
    later = second(tmp_path, **edge)
    missing = [replace(second(tmp_path, (0, 9), **edge, at=at), id=f"M{at}") for at in (2, 8)]
    (alone,), findings = ladder.judge(later), ladder.judge(later, *missing)
    assert [each.verdict for each in findings] == ["confirmed", "not measured", "not measured"]
    assert (findings[0].p_holm, findings[0].q) == (
        pytest.approx(3 * alone.p),
        pytest.approx(3 * alone.p),
    )
    first = claim(tmp_path, primary={"of": ROPE, "at": 4, **edge})
    absent = replace(
        claim(tmp_path, primary={"of": {"encoding": "alibi", "extension": "pi"}, "at": 4, **edge}),
        id="N",
    )
    measured, other = ladder.judge(first, absent)
    assert measured.p_holm == measured.p and other.verdict == "not measured"
    text = ledger_markdown(findings)
    assert (
        "over the 3 comparisons" in text
        and "The 2 that are not measured yet count with p = 1" in text
    )
    third = [replace(each, stage=3) for each in findings[1:]]  # a stage of which nothing is there
    assert (
        ledger_markdown([*findings, *third]) == text
        and brief_markdown([*findings, *third]) == brief_markdown(findings)
        and "3: " not in terminal_table([*findings, *third])
    )


def test_a_registered_endpoint_is_judged_by_all_of_its_seeds_or_not_at_all(ladder, tmp_path):
    (finding,) = ladder.judge(
        second(tmp_path, (0, 1, 2, 5), confirm="above 0.2", refute="below 0.2")
    )
    assert finding.verdict == "not measured" and "seeds 5 have not all cells" in finding.note
    (finding,) = ladder.judge(second(tmp_path, (0, 1), confirm="above 0.2", refute="below 0.2"))
    assert (finding.seeds, finding.note) == ("0 1", "")


def test_a_registered_endpoint_takes_evaluations_of_its_windows_alone(world, tmp_path):
    """The same methods and seeds by 512 windows and by 4: which of them decides is registered."""
    for seed in range(3):
        world.train("rope", seed)
        world.evaluate("rope", seed, "none", 1.0)
    for path in list(world.root.glob("*/evals/*/*.json")):
        for windows in (4, 512):
            with_settings(path, str(windows), windows=windows)
        path.unlink()
    edge = {"confirm": "above 0.2", "refute": "below 0.2"}
    later = second(tmp_path, **edge)

    def finding_of(windows):
        return world.judge(replace(later, primary=(replace(later.primary[0], windows=windows),)))[0]

    assert finding_of(4).verdict == "confirmed" and {
        name[-2:] for name in finding_of(4).evaluations.split()
    } == {"-4"}
    assert (
        "no evaluation of rope with 8 windows" in finding_of(8).note
        and "fits two evaluations" in finding_of(None).note
    )


def test_where_two_texts_fit_the_one_of_the_experiment_decides(world, tmp_path):
    """experiment=prose and experiment=size have the same models, on books and on source."""
    for seed in range(3):
        world.train("rope", seed)
        world.evaluate("rope", seed, "none", 1.0)
        other = World(tmp_path / "books")
        other.floors = world.floors
        run_id = f"rope-64-s{seed}-9876543210"
        path = other.evaluate("rope", seed, "none", 0.5, data="books", run_id=run_id)
        config = (world.root / f"rope-64-s{seed}-0123456789" / "config.yaml").read_text()
        folder = path.parents[2].rename(world.root / run_id)
        (folder / "config.yaml").write_text(config)
    pool = Pool.read(sorted(world.root.glob("*/evals/*/*.json")), {})
    (endpoint,) = claim(
        tmp_path, primary={"of": ROPE, "at": 4, "confirm": "above 0", "refute": "below 0"}
    ).primary
    (_, cell) = endpoint.cells[0]
    with pytest.raises(RunError, match="fits two evaluations"):
        pool.evaluations_by_seed(cell)
    for text in ("pysource", "books"):
        by_seed = replace(pool, texts={text}).evaluations_by_seed(cell)
        assert [entry.first["data"] for entry in by_seed.values()] == [text] * 3
    assert text_of_experiment("prose") == "books" and text_of_experiment("size") == "pysource"


def test_a_gate_of_confirmations_lets_refutations_through_and_keeps_the_family(world, tmp_path):
    for seed in range(3):
        world.train("rope", seed, gain=0.0)
        world.evaluate("rope", seed, "none", 2.0)
    refuted, confirmed = (
        {"confirm": "below 0.2", "refute": "above 0.2"},
        {"confirm": "above 0.2", "refute": "below 0.2"},
    )
    (against,), (in_favour,), (both,), (never,) = (
        world.judge(second(tmp_path, **edge))
        for edge in (
            {"gate": "confirmed", **refuted},
            {"gate": "confirmed", **confirmed},
            refuted,
            {"gate": "none", **confirmed},
        )
    )
    assert (against.verdict, in_favour.verdict, both.verdict, never.verdict) == (
        "refuted",
        "undecided",
        "gated",
        "confirmed",
    )
    assert (
        against.gain_lower < 0.02
        and (in_favour.p, in_favour.p_holm) == (1, 1)
        and "not confirmed: the lower" in in_favour.note
    )


def test_stage_two_takes_the_analysis_of_variance_from_five_seeds_on(world, tmp_path):
    for seed in range(5):
        world.train("rope", seed)
        world.evaluate("rope", seed, "none", 1.0)
    edge = {"confirm": "above 0.2", "refute": "below 0.2"}
    first = claim(tmp_path, primary={"of": ROPE, "at": 4, **edge})
    (old,), (new,) = world.judge(first), world.judge(second(tmp_path, range(5), **edge))
    assert old.effect == new.effect and (old.lower, old.upper) != (new.lower, new.upper)
