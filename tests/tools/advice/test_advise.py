"""scripts/advise.py on a small checkpoint: the whole command, what it writes, its plan, and what it
refuses.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import node
from hf_models import adopted, checkpoint
from script_calls import call
from spoils import write_text
from test_report_html import Page

from posbench.common.errors import ConfigError
from posbench.common.outcome import Outcome
from posbench.config.schema import JobConfig
from posbench.encodings.rope import Rope
from posbench.position.geometry import Shape
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan as position_plan
from posbench.results.evaluation import load_evaluation
from posbench.runs.directory import Run
from posbench.sweep.cost import ModelSize
from posbench.sweep.jobs import Job, Result
from posbench.tools.advice.measure import NO_METHODS, Measurements, Reading
from posbench.tools.advice.plan import (
    AS_IT_IS,
    BUDGET_FLOP,
    CUT,
    CUT_TEXT,
    FAMILIES,
    FEWEST_WINDOWS,
    SCALED_FAMILIES,
    UNCHANGED,
    families_to_go_on,
    option_by_length,
    options_with_factors,
    plan_advice,
)
from posbench.tools.advice.settings import setting_content

SMOLLM2 = ModelSize(
    layer_parameters=3_538_944, n_layer=30, head_parameters=49_152 * 576, tied=True, width=576
)
SMALL = ("budget=1e-9", "methods=[yarn,ntk,dynamic_ntk,rerope,streaming]", "log.mode=disabled")


def checkpoint_and_text(folder: Path) -> Path:
    """`folder` with a checkpoint of 32 tokens and a text, for the commands that run in it."""
    checkpoint(folder, vocab_size=256)
    write_text(folder / "text", train=1, validation=3, test=4)
    return folder


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    return checkpoint_and_text(tmp_path_factory.mktemp("advice"))


@pytest.fixture
def script(advised, capfd):
    data = (
        "data=local",
        f"data.path={advised}/text",
        "data.tokenizer=bytes",
        f"model.path={advised}/Llama",
    )

    def run(*words: str, pictures: bool = False):
        return call(capfd, advised, "advise", *data, *SMALL, *words, pictures=pictures)

    return run


def stored(folder: Path) -> list:
    return [
        load_evaluation(path) for path in folder.glob("results/runs/*/evals/fixed_targets/*.json")
    ]


def test_the_whole_command(advised, script):
    done = script("target=128", pictures=True)
    assert done.returncode == 0, done.stderr
    (out,) = advised.glob("results/report/advice-hf-32-*-128")
    content = json.loads((out / "advice.json").read_text())
    assert set(content["answers"]) == {"short", "long", "both"}
    assert all(
        head in done.stdout
        for head in (
            "Short texts (to 32 tokens)",
            "Long texts (128 tokens)",
            "Both",
            "usable to",
            "advice.html",
        )
    )
    table = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("as it is", "yarn", "ntk", "rerope", "streaming"))
    ]
    assert table and max(map(len, table)) <= 80

    evaluations = stored(advised)
    assert {evaluation.setting.split for evaluation in evaluations} == {"validation", "test"}
    by_split = {
        split: [evaluation for evaluation in evaluations if evaluation.setting.split == split]
        for split in ("validation", "test")
    }
    assert all(
        len({evaluation.setting.windows for evaluation in of_split}) == 1
        for of_split in by_split.values()
    )
    chosen_on = {option["name"] for option in content["search"]}
    judged_on = {option["name"] for option in content["options"]}
    assert chosen_on > judged_on  # the test documents see the finalists alone
    assert set(content["ranking"]["long"][:2]) <= judged_on  # and the next best is one of them
    served = content["answers"]["long"]["served"]
    wins = {answer["advised"] for answer in content["answers"].values()} | (
        {served["choice"]} if served else set()
    )
    assert set(content["settings"]) == wins - {
        UNCHANGED,
        CUT,
    }  # nothing that loses is printed as a setting

    page = Page(out / "advice.html")
    assert "What to set" in page.text and "http" not in "".join(
        page.values("src") + page.values("href")
    )
    assert (out / "advice.svg").exists() and (out / "advice.png").stat().st_size > 1000

    before = {
        path: path.stat().st_mtime_ns for path in advised.glob("results/runs/*/evals/*/*.json")
    }
    again = script("target=128")
    assert again.stdout == done.stdout and "to make" not in again.stderr
    assert before == {
        path: path.stat().st_mtime_ns for path in advised.glob("results/runs/*/evals/*/*.json")
    }
    its_numbers_are_those_of_the_stored_losses(content, by_split["test"])


def its_numbers_are_those_of_the_stored_losses(content: dict, test: list) -> None:
    plain = next(evaluation for evaluation in test if evaluation.first["extension"] == "none")
    floor = next(
        evaluation for evaluation in test if evaluation.first["extension"] == "recompute_window"
    )
    option = next(entry for entry in content["options"] if entry["name"] == UNCHANGED)
    for point in option["points"]:
        assert point["nll"] == pytest.approx(plain.losses(point["length"]).mean(), rel=1e-6)
        base = plain.losses(point["length"]) if point["length"] <= 32 else floor.losses(128)
        difference = np.subtract(plain.losses(point["length"]), base, dtype=np.float64).mean()
        assert point["difference"][0] == pytest.approx(difference, abs=1e-6)
    for factor in content["factors"]:
        (measured,) = {
            evaluation.path: evaluation for evaluation in test if _is(evaluation.first, factor)
        }.values()
        assert [point["nll"] for point in factor["points"]] == pytest.approx(
            [measured.losses(n).mean() for n in content["short"]], rel=1e-6
        )


def _is(row: dict, option: dict) -> bool:
    return (
        row["extension"] == option["family"]
        and row["extension_args"].get("target_len") == option["factor"] * 32
    )


def test_dry_tells_the_plan_and_writes_nothing(advised, script):
    before = set(advised.rglob("*"))
    done = script("target=64", "dry=true")
    assert done.returncode == 0, done.stderr
    assert (
        "32 to 64 tokens" in done.stdout
        and "3 windows of 64 tokens (4 targets each) in 3 test documents" in done.stdout
        and "measured just now), less what is there already" in done.stdout
    )
    absent = script("target=64", "dry=true", "device=cuda:99")
    assert absent.returncode == 2 and "device=cuda:99 is not available" in absent.stderr
    assert not [
        path
        for path in set(advised.rglob("*")) - before
        if path.suffix == ".json" and "evals" in path.parts
    ]


def test_each_kind_of_option_says_what_to_set(advised, tmp_path):
    """Frequencies alone: for engines. A factor that follows the length: two configurations.
    Anything else: own attention.
    """
    cfg = adopted(advised / "Llama")
    request = asked_of(cfg, tmp_path)
    settings = {name: setting_content(request, option, tmp_path) for name, option in (
        ("yarn x4", options_with_factors("yarn", [4.0])[0]), ("yarn by length",
        option_by_length("yarn")), ("dynamic_ntk", option_by_length("dynamic_ntk")),
        ("rerope+log_n", option_by_length("rerope+log_n")), ("log_n", option_by_length("log_n")),
    )}  # fmt: skip
    assert (
        settings["yarn x4"]["rope_parameters"]["factor"] == 4
        and settings["dynamic_ntk"]["rope_parameters"]["rope_type"] == "dynamic"
    )
    written = json.loads((tmp_path / "yarn-x4" / "config.json").read_text())
    assert (
        written["rope_parameters"] == settings["yarn x4"]["rope_parameters"]
        and written["max_position_embeddings"] == 128
    )
    assert (
        "extension=yarn extension.mode=fixed extension.target_len=128"
        in settings["yarn x4"]["files"][1]
    )
    assert (
        "serve two configurations, the model as it is up to 32 tokens"
        in settings["yarn by length"]["reason"]
    )
    assert settings["rerope+log_n"]["reason"].endswith(
        "In posbench: extension=rerope scale_attention=log_n."
    )
    assert "Needs own attention" in settings["log_n"]["reason"]


def asked_of(cfg: JobConfig, folder: Path) -> Measurements:
    return Measurements(
        cfg,
        {},
        "",
        plan_advice(SMOLLM2, 32, 128, 1.0, FAMILIES),
        Job(cfg, Run(folder / "hf-32-s0-0000000000"), ""),
    )


@pytest.mark.parametrize(("kind", "written"), [("SmolLM3", True), ("Phi3", False)])
def test_a_model_with_layers_or_channels_that_do_not_turn_has_settings(tmp_path, kind, written):
    """The half of a head that turns has a place in the config.json of a Phi-3 alone, which
    scripts/export_hf.py does not write.
    """
    half = {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
        },
        "hidden_size": 64,
    }
    cfg = adopted(checkpoint(tmp_path, kind, vocab_size=256, **({} if written else half)))
    setting = setting_content(
        asked_of(cfg, tmp_path), options_with_factors("pi", [4.0])[0], tmp_path
    )
    assert setting["rope_parameters"]["rope_type"] == ("linear" if written else "longrope")
    assert [line.startswith("config.json") for line in setting["files"]] == [True, False][
        : 1 + written
    ]


def test_an_evaluation_that_failed_ends_the_command_with_its_reason(advised, script, monkeypatch):
    failed = Outcome("fixed_targets yarn + none", "failed", "out of memory")
    monkeypatch.setattr(
        "posbench.sweep.launch.launch",
        lambda jobs, launcher, command: [Result(jobs[0], 1, [failed])],
    )
    done = script("target=96")
    assert (
        done.returncode == 1 and "failed: fixed_targets yarn + none: out of memory" in done.stderr
    )


def test_methods_of_which_none_acts_are_refused(advised, script, monkeypatch):
    monkeypatch.setattr(
        "posbench.tools.advice.measure.Measurements._reading_of", _nothing_but_references
    )
    done = script("target=64", "methods=[yarn]")
    assert (
        done.returncode == 2
        and "none of the methods has an effect on this model (yarn by length: changes nothing"
        in done.stderr
    )


def _nothing_but_references(self, option, length):
    if option == CUT_TEXT and length > 32:
        return Reading(json.dumps(option.methods_at(length, 32)), 64)
    return Reading(NO_METHODS, length)


REFUSED = {
    "target=32": "is within the model's training length of 32 tokens",
    "target=5000": (
        "target=5000 in the validation split of data=text: No document has the 5001 tokens"
    ),
    "extension=ntk": "is what scripts/advise.py chooses",
    "evaluate.windows=7": "evaluate.windows=7 is what scripts/advise.py chooses",
    "finetune=longer": "leave finetune= out",
    "budget=0": "budget=0",
    "runs=x": "advises on one model",
    "methods=[]": "methods=[] must be one method or several",
    "evaluate.tasks=passkey": "evaluate.tasks=passkey is what scripts/advise.py chooses",
    "evaluate.documents=nothing*": "evaluate.documents=nothing* matches none of the 3 documents",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_it_cannot_do_is_refused_in_a_sentence(script, word):
    done = script(word)
    assert done.returncode == 2 and REFUSED[word] in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )


@pytest.mark.parametrize("family", SCALED_FAMILIES)
@pytest.mark.parametrize("length", [8, 16, 17, 64])
def test_a_factor_that_follows_the_length_is_the_fixed_one_there(family, length):
    """So both forms share evaluations, and nothing is derived that was not measured."""
    encoding = Rope(Shape(16, 1, 2, 2, 16))
    extension, _ = option_by_length(family).methods_at(length, 16)
    ours, theirs = (
        position_plan(encoding, make_method(method), length=length)
        for method in (extension, node("extension", family))
    )
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        assert all(
            torch.equal(our_band.q_table, their_band.q_table)
            for our_band, their_band in zip(a.bands, b.bands, strict=True)
        )
        assert (a.factor is None) == (b.factor is None) and (
            a.factor is None or torch.equal(a.factor, b.factor)
        )


def test_a_factor_that_reaches_an_odd_target_is_the_target_itself():
    """3,100 / 3,000 * 3,000 is not 3,100 in floating point, which ntk refuses and no row could
    hold.
    """
    plan = plan_advice(SMOLLM2, 3000, 3100, 1.0, FAMILIES)
    for family in SCALED_FAMILIES:
        at = {
            option.methods_at(3100, 3000)[0]["target_len"]
            for option in options_with_factors(family, plan.factors)
            if option.factor == 3100 / 3000
        }
        assert at == {3100} and all(isinstance(target, int) for target in at)
        assert option_by_length(family).methods_at(3100, 3000)[0]["target_len"] == 3100


def test_a_fixed_factor_stays_at_every_length():
    (option,) = options_with_factors("yarn", [4.0])
    assert option.methods_at(8, 16) == option.methods_at(64, 16)
    assert option.methods_at(8, 16)[0]["target_len"] == 64
    assert not options_with_factors("rerope", [4.0])


def test_the_best_families_go_on_and_sinks_only_beside_another():
    assert families_to_go_on(
        ["yarn", "streaming", "lm_infinite", "rerope", "ntk", "dca", "pi"]
    ) == [
        "yarn",
        "ntk",
        "streaming",
        "rerope",
    ]
    assert families_to_go_on(["rerope", "streaming", "pi"]) == ["pi", "rerope"]
    assert families_to_go_on(["lm_infinite", "streaming"]) == ["lm_infinite"]


def test_finalists_are_read_at_all_lengths_and_their_families_factors_within_the_training_length():
    plan = plan_advice(SMOLLM2, 32, 128, 1.0, FAMILIES)
    options = {
        option.name: option
        for option in [AS_IT_IS, CUT_TEXT, *options_with_factors("yarn", plan.factors)]
    }
    lengths_by_option = {
        option.name: list(lengths)
        for option, lengths in plan.third_stage([UNCHANGED, CUT, "yarn x4"], options)
    }
    assert (
        lengths_by_option[UNCHANGED]
        == lengths_by_option[CUT]
        == lengths_by_option["yarn x4"]
        == [8, 32, 64, 128]
    )
    assert lengths_by_option["yarn x2"] == lengths_by_option["yarn x8"] == [8, 32]


def test_the_plan_grows_with_the_budget_and_never_falls_below_its_least():
    plans = [plan_advice(SMOLLM2, 8192, 16384, budget, FAMILIES) for budget in (1e-6, 1, 4, 40)]
    assert plans[0].windows == FEWEST_WINDOWS
    for small, large in zip(plans, plans[1:], strict=False):
        assert all(small.windows[split] <= large.windows[split] for split in FEWEST_WINDOWS)
    assert plans[1].windows["test"] < plans[2].windows["test"] < plans[3].windows["test"]
    assert plans[3].flop <= 40 * BUDGET_FLOP


def test_the_plan_of_a_real_model():
    plan = plan_advice(SMOLLM2, 8192, 32768, 1.0, FAMILIES)
    assert (plan.probe_length, plan.short_lengths, plan.finalist_lengths) == (
        16384,
        (2048, 8192),
        (2048, 8192, 16384, 32768),
    )
    assert plan.factors == (2.0, 4.0, 8.0) and plan.targets == 1024
    assert plan.long_factors("ntk") == (4.0, 8.0) and plan.long_factors("yarn") == (4.0,)
    assert plan.windows["test"] >= 3 and plan.flop < 1.4 * BUDGET_FLOP
    assert (
        plan.work_words.startswith(f"at most {round(plan.flop / 1e12):,} TFLOP: about 8")
        and plan.flop > 1e15
    )
    assert (
        replace(plan, flop=1.234e9).work_words
        == "at most 0.00123 TFLOP: less than a minute on two cores with AMX"
    )
    assert replace(plan, target=16384, probe_length=16384) != plan_advice(
        SMOLLM2, 8192, None, 1.0, FAMILIES
    )
    assert plan_advice(SMOLLM2, 8192, None, 1.0, FAMILIES).target == 16384
    with pytest.raises(ConfigError, match="is within the model's training length"):
        plan_advice(SMOLLM2, 8192, 8192, 1.0, FAMILIES)
