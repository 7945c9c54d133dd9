"""scripts/identify.py on small checkpoints: engines that do each thing, a scaling of the
checkpoint's own, output, and what it refuses.
"""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hf_models import checkpoint
from safetensors.torch import load_file, save_file
from script_calls import call
from spoils import write_text
from test_oracles import ours, reference

from posbench.position.instantiate import make_method
from posbench.results.evaluation import load_evaluation
from posbench.tools.identify import command as command
from posbench.tools.identify.compare import CANNOT_TELL, IDENTIFIED, NONE_OF_THEM, judge_setting
from posbench.tools.identify.plan import setting_candidates

TEXT = ("data=local", "data.path=text", "data.tokenizer=bytes")
SETTING = (
    "evaluate.max_length=128",
    "evaluate.windows=24",
    "evaluate.targets=16",
    "evaluate.floor=false",
    "log.mode=disabled",
)
QUIET = ("log.mode=disabled", "evaluate.dtype=fp32")  # as the engine computes
FIXED = ("extension.mode=fixed", "extension.target_len=128")
METHODS = {
    "none": ("extension=none",),
    "pi": ("extension=pi", *FIXED),
    "yarn": ("extension=yarn", "extension.beta=32", *FIXED),
    "window": ("extension=window",),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A checkpoint, the same weights whose config.json has YaRN with factor 4, other weights, and a
    text.
    """
    folder = tmp_path_factory.mktemp("identify")
    checkpoint(folder, vocab_size=256)
    write_text(folder / "text", train=1, validation=1, test=4)
    scaled = folder / "scaled"
    shutil.copytree(folder / "Llama", scaled)
    config = json.loads((scaled / "config.json").read_text())
    base = config["rope_parameters"]["rope_theta"]
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": base,
    }
    (scaled / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": 128, "rope_parameters": yarn})
    )
    shutil.copytree(folder / "Llama", folder / "other")
    weights = {
        name: weight.flip(0).contiguous()
        for name, weight in load_file(folder / "other" / "model.safetensors").items()
    }
    save_file(weights, folder / "other" / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def engine(world, capfd):
    """Run of posbench that stands for an engine with these weights and this method; its folder."""

    def run(name: str, weights: str = "Llama", lengths: str = "[32,128]", *words: str) -> Path:
        results = f"engines/{weights}-{name}-{lengths.strip('[]').replace(',', '-')}"
        settings = (
            f"model.path={weights}",
            "model=hf",
            f"evaluate.lengths={lengths}",
            f"results_dir={results}",
        )
        done = call(
            capfd,
            world,
            "run",
            *TEXT,
            *SETTING,
            "evaluate.dtype=fp32",
            *settings,
            *METHODS[name],
            *words,
        )
        assert done.returncode == 0, done.stderr
        results = next(
            (word.partition("=")[2] for word in words if word.startswith("results_dir=")), results
        )
        return next((world / results).glob("hf-*"))

    return run


@pytest.fixture
def identify(world, capfd):
    def run_command(run, *words: str, **how):
        return call(capfd, world, "identify", str(run), *QUIET, *words, **how)

    return run_command


def content(world: Path, run: Path) -> dict:
    return json.loads(
        (world / "results" / "report" / f"identify-{run.name}" / "identify.json").read_text()
    )


# the others: test_wrong_servers.py
@pytest.mark.parametrize("truth", ["none", "yarn", "window"])
def test_each_thing_that_an_engine_does_is_found(world, engine, identify, truth):
    run = engine(truth)
    done = identify(run, "model.path=Llama", "factor=4")
    assert done.returncode == 0, done.stderr
    identified = content(world, run)
    assert (identified["kind"], identified["best"]) == (IDENTIFIED, truth) and identified[
        "candidates"
    ][0]["rms"] < 1e-4
    assert identified["verdict"].endswith(
        f"by {identified['candidates'][1]['points'][-1]['rms']:#.3g} rms."
    )  # at the longest length, as the best's
    sentences = {
        "none": "ignores the setting",
        "yarn": "runs YaRN with factor 4 as written",
        "window": "a window of 32 tokens",
    }
    assert sentences.get(truth, "This engine runs") in " ".join(done.stdout.split())


def test_what_is_written_are_the_numbers_of_the_stored_losses(world, engine, identify):
    run = engine("yarn")
    done = identify(run, "model.path=Llama", "factor=4", "out=told", pictures=True)
    (stored,) = run.glob("evals/fixed_targets/*.json")
    theirs = load_evaluation(stored)
    plain = next(
        evaluation
        for evaluation in map(
            load_evaluation, world.glob("results/runs/*/evals/*/none+none-*.json")
        )
        if evaluation.first["extension"] == "none"
    )
    with open(world / "told" / "identify.csv", newline="") as file:
        rows = {(row["candidate"], int(row["length"])): row for row in csv.DictReader(file)}
    for length in (32, 128):
        difference = theirs.losses(length).astype(float) - plain.losses(length)
        assert float(rows["none", length]["difference"]) == pytest.approx(
            difference.mean(), abs=1e-6
        )
        assert float(rows["none", length]["rms"]) == pytest.approx(
            np.sqrt((difference**2).mean()), rel=1e-6
        )
    # Cut to its last 32 tokens a text of 128 has the losses of one of 32.
    assert float(rows["cut", 128]["difference"]) == pytest.approx(
        (theirs.losses(128).astype(float) - plain.losses(32)).mean(), abs=1e-6
    )
    assert (world / "told" / "identify.svg").exists() and (
        world / "told" / "identify.png"
    ).stat().st_size > 1000
    again = identify(run, "model.path=Llama", "factor=4", "out=told")
    assert again.stdout == done.stdout and "to make" not in again.stderr


def test_each_candidate_in_turn_with_rounding_and_off_the_list(engine, identify, monkeypatch):
    """Of a real model's losses: with 0.1 nats rms of noise each candidate is found, and what lies
    far from all others is none of them.
    """
    calls = []
    monkeypatch.setattr(
        command,
        "judge_setting",
        lambda *arguments: calls.append(arguments) or judge_setting(*arguments),
    )
    identify(engine("none"), "model.path=Llama", "factor=4")
    theirs, candidates, unit, original = calls[0]
    rng, off = np.random.default_rng(0), 0
    assert original == 32 and len(candidates) >= 18
    for truth, losses in candidates.items():
        noisy = {
            length: exact + 0.1 / np.sqrt(3) * rng.standard_t(3, exact.shape)
            for length, exact in losses.items()
        }
        verdict, _ = judge_setting(noisy, candidates, unit, original)
        assert verdict["kind"] in (IDENTIFIED, CANNOT_TELL) and truth in (
            verdict["best"],
            *verdict["untold"],
        ), (
            truth,
            verdict,
        )
        others = {name: other_losses for name, other_losses in candidates.items() if name != truth}
        nearest = min(
            np.sqrt(
                np.mean(
                    [np.square(other_losses[length] - losses[length]).mean() for length in losses]
                )
            )
            for other_losses in others.values()
        )
        if nearest > 0.3:
            off += 1
            assert (
                verdict["kind"] == IDENTIFIED
                and judge_setting(noisy, others, unit, original)[0]["kind"] == NONE_OF_THEM
            ), truth
    assert off >= 10


@pytest.mark.parametrize(
    ("weights", "truth", "best"),
    [("scaled", "none", "own"), ("Llama", "none", "none"), ("Llama", "pi", "pi")],
)
def test_a_scaling_of_the_checkpoints_own_is_used_ignored_or_replaced(
    world, engine, identify, weights, truth, best
):
    """An engine that serves the same weights without the scaling is another config.json, so the
    candidates are checked from outside.
    """
    run = engine(truth, weights)
    done = identify(run, "model.path=scaled")
    assert done.returncode == 0, done.stderr
    identified = content(world, run)
    assert (
        identified["kind"],
        identified["best"],
        identified["factor"],
        identified["original"],
    ) == (
        IDENTIFIED,
        best,
        4,
        32,
    )
    assert identified["candidates"][0]["rms"] < 1e-4
    assert {"own", "own_twice", "none", "yarn_double"} <= {
        candidate["name"] for candidate in identified["candidates"]
    }
    assert (best != "own") or "yarn" in identified["candidates"][0][
        "same"
    ]  # the scaling is YaRN with factor 4


@pytest.mark.parametrize("protocol", ["by_position", "sliding"])
def test_other_protocols(world, engine, identify, protocol):
    run = engine(
        "pi",
        "Llama",
        "[32,96]",
        "evaluate.targets=null",
        f"evaluate.protocol={protocol}",
        f"results_dir=engines/{protocol}",
    )
    done = identify(run, "model.path=Llama", "factor=4", "candidates=[none,pi,yarn]")
    assert done.returncode == 0, done.stderr
    identified = content(world, run)
    assert (identified["kind"], identified["best"]) == (IDENTIFIED, "pi") and identified[
        "candidates"
    ][0]["rms"] < 1e-4


def test_other_weights_are_none_of_them(world, engine, identify):
    run = engine("none", "other")
    assert "None of 2" in " ".join(identify(run, "model.path=Llama", "factor=4").stdout.split())


def test_within_the_training_length_not_everything_can_be_told(world, engine, identify):
    run = engine("none", "Llama", "[32]")
    output = " ".join(identify(run, "model.path=Llama", "factor=4").stdout.split())
    assert (
        "ignores" not in output
        and "those of no scaling, the same at these lengths as cut, window, dynamic_ntk," in output
    )
    assert content(world, run)["candidates"][0]["same"].keys() > {"dynamic_ntk", "window"}
    done = identify(run, "model.path=Llama", "factor=4", "candidates=[none,cut,dynamic_ntk]")
    assert done.returncode == 2 and "all candidates are the same up to 32 tokens" in done.stderr


def test_dry_lists_the_candidates_and_evaluates_nothing(world, engine, identify):
    done = identify(
        engine("none"), "model.path=Llama", "factor=8", "dry=true", "results_dir=dry/runs"
    )
    assert (
        done.returncode == 0
        and "yarn_half: YaRN with factor 4\n" in done.stdout
        and "evaluations" in done.stdout
    )
    assert not (world / "dry").exists()


def test_what_it_refuses(world, engine, identify, capfd):
    run = engine("yarn")
    (stored,) = run.glob("evals/fixed_targets/*.json")
    for words, message in {
        ("lengths=[64]",): "has no rows of 64: choose from 32,128",
        ("factor=0.5",): "factor=0.5 must be a number above 1",
        ("factor=4", "target=128"): "are one setting",
        ("candidates=[yarm]",): "candidates=yarm is unknown (did you mean yarn?)",
        ("candidates=[yarn]",): "leaves nothing to compare it with",
        (
            "evaluate.windows=3",
        ): "evaluate.windows=3 is what scripts/identify.py finds out, or that of the engine's rows",
        ("extension=pi",): "extension=pi is what scripts/identify.py finds out",
        ("model.path=nowhere",): "nowhere",
        ("report_dir=there",): "which writes into out=",
        ("data=local", "data.path=other_text"): "scored other tokens than",
    }.items():
        shutil.copytree(world / "text", world / "other_text", dirs_exist_ok=True)
        (world / "other_text" / "test" / "0.txt").write_text("Quite another text. " * 40)
        model = [] if words[0].startswith("model.path") else ["model.path=Llama"]
        done = identify(run, *model, *words)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, (
            words,
            done.stderr,
        )
    done = call(
        capfd,
        world,
        "run",
        *TEXT,
        *SETTING,
        "model=hf",
        "model.path=Llama",
        "model.own_scaling=false",
    )
    assert done.returncode == 2 and "leave model.own_scaling=false out" in done.stderr
    assert "needs the rows of an engine" in identify("model.path=Llama").stderr
    engine(
        "yarn", "Llama", "[32,128]", "evaluate.max_length=96", "evaluate.lengths=[32,96]"
    )  # in the same run
    done = identify(run, "model.path=Llama")
    assert (
        done.returncode == 2 and "holds 2 evaluations: name the file of one of them" in done.stderr
    )
    assert identify(stored, "model.path=Llama").returncode == 0


def test_losses_that_are_not_there_or_not_finite(world, engine, identify):
    run = world / "spoiled" / "hf-copy"
    shutil.copytree(engine("none"), run)
    (arrays,) = run.glob("evals/fixed_targets/*.npz")
    stored = dict(np.load(arrays))
    stored["nll"][1, 3] = np.nan
    np.savez(arrays, **stored)
    done = identify(run, "model.path=Llama", "factor=4")
    assert (
        done.returncode == 2 and "1 losses that are not finite at 128: leave it out" in done.stderr
    )
    arrays.unlink()
    done = identify(run, "model.path=Llama", "factor=4")
    assert done.returncode == 2 and "holds no losses of single tokens" in done.stderr


@pytest.mark.parametrize(("name", "original", "factor"), [
    ("yarn", 64, 4.0), ("yarn_half", 64, 2.0), ("yarn_double", 64, 8.0),
    ("yarn_long_original", 256, 4.0), ("yarn_short_original", 32, 4.0),
    ("yarn_untruncated", 64, 4.0), ("llama3", 64, 4.0), ("dynamic_ntk_fixed", 64, 4.0),
])  # fmt: skip
def test_candidates_are_what_transformers_does_with_that_setting(name, original, factor):
    """A model of 64 tokens, asked for factor 4: its candidates beside transformers' own functions
    with the mistaken values.
    """
    candidate = {candidate.name: candidate for candidate in setting_candidates(64, 4.0, 512)}[name]
    freq_F, temperature = ours(make_method(candidate.extension), 64, 1e4, 64, 256)
    kind = {"dynamic": "dynamic", "llama3": "llama3"}.get(name.split("_")[0], "yarn")
    more = {
        "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "yarn": {"truncate": name != "yarn_untruncated"},
    }.get(kind, {})
    wanted_F, amplitude = reference(kind, 64, 1e4, original, 256, factor=factor, **more)
    np.testing.assert_allclose(freq_F, wanted_F, rtol=2e-6)
    assert temperature == pytest.approx(amplitude**2)


def test_a_lost_base_is_transformers_setting_without_rope_theta():
    candidate = {
        candidate.name: candidate for candidate in setting_candidates(8192, 4.0, 512, base=1e5)
    }["yarn_base_lost"]
    freq_F, temperature = ours(make_method(candidate.extension), 64, 1e5, 8192, 2048)
    wanted_F, amplitude = reference("yarn", 64, 1e4, 8192, 2048, factor=4.0)
    np.testing.assert_allclose(freq_F, wanted_F, rtol=2e-6)
    assert temperature == pytest.approx(amplitude**2)
    assert "base_lost" not in {candidate.name for candidate in setting_candidates(64, 4.0, 512)}
