"""scripts/search_factors.py: the evolution on losses with a known least, and the whole command on a
small checkpoint.
"""

import itertools
import json
import math
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from hf_models import theirs
from script_calls import call
from test_advise import checkpoint_and_text

import posbench
from posbench.encodings.rope import Rope
from posbench.position.geometry import Shape, Span
from posbench.position.instantiate import make_method
from posbench.tools.factors import factor_search
from posbench.tools.factors.critical import critical_space
from posbench.tools.factors.evolution import (
    FACTOR_STEP,
    MOST_OVER_FACTOR,
    MUTATION_PROBABILITY,
    Sizes,
    Space,
    crossover,
    evolve,
    never_falls,
    search_sizes,
)
from posbench.tools.factors.needles import needle_loss

PAIRS, FACTOR = 16, 4.0
BEST = [min(FACTOR, 1 + 3.7 * (pair / (PAIRS - 1)) ** 3) for pair in range(PAIRS)]
STARTS = [
    (0, *[FACTOR] * PAIRS),
    (0, *(FACTOR ** (pair / (PAIRS - 1)) for pair in range(PAIRS))),
]  # PI, and NTK-aware scaling
ANY = Space([0], math.inf)


def far(candidate) -> float:
    """Mean squared distance of the logarithms of the factors to BEST, and something for other exact
    positions than 4.
    """
    return sum(
        math.log(factor / best) ** 2 for factor, best in zip(candidate[1:], BEST, strict=True)
    ) / PAIRS + 0.05 * (candidate[0] != 4)


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_a_known_least_and_keeps_the_constraint(seed):
    losses = evolve(
        far, STARTS, Space([0, 1, 2, 4, 8], MOST_OVER_FACTOR * FACTOR), search_sizes(1), seed
    )
    best, start = min(losses, key=losses.get), min(map(far, STARTS))
    assert len(losses) == 1344 and all(map(never_falls, losses))
    assert best[0] == 4 and losses[best] < start / 20
    assert all(
        1 <= value <= MOST_OVER_FACTOR * FACTOR for candidate in losses for value in candidate[1:]
    )
    mutants = [candidate for candidate in losses if candidate not in STARTS]
    numbers = {value for candidate in mutants for value in candidate[1:]} - {
        value for candidate in STARTS for value in candidate[1:]
    }
    assert numbers and all(
        value == round(round(value / FACTOR_STEP) * FACTOR_STEP, 2) for value in numbers
    )
    small = evolve(
        far, STARTS, Space([0, 1, 2, 4, 8], MOST_OVER_FACTOR * FACTOR), search_sizes(0.1), seed
    )
    assert losses[best] < min(small.values()) < start


def test_a_space_that_can_be_counted_is_searched_to_its_end():
    grid, exact = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05], [0, 2]
    every = {
        (first, *factors)
        for first in exact
        for factors in itertools.combinations_with_replacement(grid, 3)
    }
    losses = evolve(
        lambda candidate: candidate[1] - candidate[2] + (candidate[3] - 1.03) ** 2 - candidate[0],
        [(0, 1.0, 1.0, 1.0)],
        Space(exact, 1.05),
        search_sizes(0.3),
        0,
    )
    assert set(losses) == every and min(losses, key=losses.get) == (2, 1.0, 1.05, 1.05)


def test_sizes_are_the_published_ones_times_the_root_of_the_budget():
    assert search_sizes(1) == Sizes(
        population=64, parents=32, mutations=16, crossovers=16, rounds=40
    )
    assert search_sizes(1).total == 1344
    assert (
        search_sizes(4) == Sizes(128, 64, 32, 32, 80)
        and search_sizes(1e-9).total == 6
        and MUTATION_PROBABILITY == 0.3
    )
    assert search_sizes(0.25).total == pytest.approx(1344 / 4, rel=0.1)


def test_a_crossover_has_the_numbers_of_its_parents():
    import numpy as np

    rng, better, other = np.random.default_rng(0), (0, 1.0, 2.0, 3.0), (4, 1.5, 2.5, 3.5)
    children = [crossover(better, other, [better, other], ANY, rng) for _ in range(50)]
    assert set(children) == {
        (4, 1.0, 2.0, 3.0),
        (0, 1.5, 2.0, 3.0),
        (0, 1.0, 2.5, 3.0),
        (0, 1.0, 2.0, 3.5),
    }  # the first that is legal
    steeper = [
        crossover((0, 1.0, 2.0, 3.0), (0, 3.5, 3.6, 3.7), [better], ANY, rng) for _ in range(50)
    ]
    assert all(never_falls(child) for child in steeper if child) and any(
        child and len({*child} - {*better}) > 1 for child in steeper
    )
    assert crossover(better, better, [better], ANY, rng) is None


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return checkpoint_and_text(tmp_path_factory.mktemp("search"))


MODEL = ("data=local", "data.path=text", "data.tokenizer=bytes", "model=hf", "model.path=Llama")
SMALL = ("target=128", "budget=0.002", "evaluate.windows=4", "log.mode=disabled")


def found_yaml(folder: Path) -> tuple[Path, dict]:
    (path,) = folder.glob("results/factors/hf-32-*/extension/longrope_128.yaml")
    return path, yaml.safe_load(path.read_text())


def test_the_whole_command(world, capfd):
    done = call(capfd, world, "search_factors", *MODEL, *SMALL)
    assert done.returncode == 0, done.stderr
    path, node = found_yaml(world)
    (run,), (log,) = (
        world.glob("results/runs/hf-32-*"),
        path.parents[1].glob("longrope_128-*.jsonl"),
    )
    measured = [json.loads(line) for line in log.read_text().splitlines()]
    losses = {
        line.split()[0]: float(line.split()[-1])
        for line in done.stdout.splitlines()
        if line.startswith("  ")
    }
    assert len(measured) == search_sizes(0.002).total == 8 and all(
        never_falls((0, *record["factors"])) for record in measured
    )
    assert {record["exact_first"] for record in measured} <= {0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32}
    best = min(measured, key=lambda record: record["nll"])
    assert (node["factors"], node["exact_first"]) == (best["factors"], best["exact_first"])
    assert node["mode"] == "fixed" and node["target_len"] == 128
    assert losses["found"] <= min(losses["pi's"], losses["ntk's"], losses["yarn's"])
    assert [losses[f"{name}'s"] for name in ("pi", "ntk", "yarn")] == [
        pytest.approx(record["nll"], abs=6e-5) for record in measured[:3]
    ]
    assert list(world.glob("results/cache/*/validation.tokens.bin")) and not list(
        world.glob("results/cache/*/test.tokens.bin")
    )
    # The same numbers by the way of any other evaluation.
    settings = {
        "lengths": [128],
        "max_length": 128,
        "split": "validation",
        "windows": 4,
        "targets": 16,
        "floor": False,
    }
    loaded = posbench.load(run, cache_dir=world / "results" / "cache")
    others = {
        "found": node,
        "yarn's": {"name": "longrope", "mode": "fixed", "target_len": 128},
        "pi's": {**node, "factors": [4.0] * 4, "exact_first": 0},
    }
    assert len(node["factors"]) == 4
    for name, extension in others.items():
        assert float(loaded.evaluate(extension, **settings).nll[0]) == pytest.approx(
            losses[name], abs=6e-5
        ), name
    assert float(loaded.evaluate(None, **settings).nll[0]) == pytest.approx(losses["as"], abs=6e-5)


def test_it_goes_on_where_it_was_stopped(world, capfd):
    assert call(capfd, world, "search_factors", *MODEL, *SMALL).returncode == 0
    path, node = found_yaml(world)
    (log,) = path.parents[1].glob("longrope_128-*.jsonl")
    full_log = log.read_text()
    assert (
        call(capfd, world, "search_factors", *MODEL, *SMALL).returncode == 0
        and log.read_text() == full_log
    )  # nothing is measured again
    log.write_text(full_log[: len(full_log) // 2])  # cut within a line
    path.unlink()
    done = call(capfd, world, "search_factors", *MODEL, *SMALL)
    assert done.returncode == 0 and found_yaml(world)[1] == node, done.stderr
    lines = log.read_text().splitlines()
    assert len([line for line in lines if line in full_log.splitlines()]) == 8 and len(lines) == 9
    log.write_text(full_log)
    better = {
        "nll": 0.5,
        "exact_first": 0,
        "factors": [1.0, 2.0, 3.0, 4.0],
    }  # as a search with another budget might have found it
    beyond = {
        "nll": 0.4,
        "exact_first": 3,
        "factors": [1.0, 2.0, 3.0, 4.0],
    }  # exact_first=3 was not asked for
    log.write_text("".join(json.dumps(record) + "\n" for record in (better, beyond)) + full_log)
    assert call(capfd, world, "search_factors", *MODEL, *SMALL).returncode == 0
    assert (found_yaml(world)[1]["factors"], found_yaml(world)[1]["exact_first"]) == (
        better["factors"],
        0,
    )
    log.write_text(full_log)
    more = call(capfd, world, "search_factors", *MODEL, *SMALL, "budget=0.01")
    assert more.returncode == 0 and log.read_text().startswith(full_log)
    assert min(json.loads(line)["nll"] for line in log.read_text().splitlines()) <= min(
        json.loads(line)["nll"] for line in full_log.splitlines()
    )


def test_what_it_finds_is_an_extension_for_evaluation_fine_tuning_and_export(world, capfd):
    assert (
        call(
            capfd, world, "search_factors", *MODEL, *SMALL, "exact_first=0", "out=exact"
        ).returncode
        == 0
    )
    node = yaml.safe_load((world / "exact" / "extension" / "longrope_128.yaml").read_text())
    (run,) = world.glob("results/runs/hf-32-*")
    chosen = (
        "--config-dir",
        "exact",
        f"run={run.relative_to(world)}",
        "extension=longrope_128",
        "log.mode=disabled",
    )
    assert node["exact_first"] == 0
    done = call(
        capfd,
        world,
        "run",
        *chosen,
        "evaluate.lengths=128",
        "evaluate.max_length=128",
        "evaluate.windows=2",
        "evaluate.floor=false",
    )
    assert done.returncode == 0, done.stderr
    child = call(
        capfd,
        world,
        "run",
        *chosen,
        "finetune=longer",
        "dry=true",
        "evaluate.lengths=128",
        "evaluate.max_length=128",
    )
    assert (
        child.returncode == 0
        and "hf+longrope-32to128" in child.stdout
        and "to fine-tune from" in child.stdout
    ), child
    done = call(capfd, world, "export_hf", *chosen, "out=exported")
    assert done.returncode == 0, done.stderr
    config = json.loads((world / "exported" / "config.json").read_text())
    scaling = config.get("rope_scaling") or config["rope_parameters"]
    assert scaling["rope_type"] == "longrope" and scaling["long_factor"] == pytest.approx(
        node["factors"]
    )
    shutil.rmtree(world / "exported")


def test_exact_positions_that_are_given_are_not_searched(world, capfd):
    for words, allowed in ((["exact_first=4"], {4}), (["exact_first=[4,8]"], {4, 8})):
        done = call(capfd, world, "search_factors", *MODEL, *SMALL, *words, "out=given")
        assert done.returncode == 0, done.stderr
        assert (
            yaml.safe_load((world / "given" / "extension" / "longrope_128.yaml").read_text())[
                "exact_first"
            ]
            in allowed
        )
        (log,) = (world / "given").glob("longrope_128-*.jsonl")
        assert {json.loads(line)["exact_first"] for line in log.read_text().splitlines()} <= allowed
        shutil.rmtree(world / "given")


def test_factors_of_another_search_are_not_overwritten(world, capfd):
    assert call(capfd, world, "search_factors", *MODEL, *SMALL, "out=shared").returncode == 0
    path = world / "shared" / "extension" / "longrope_128.yaml"
    before = path.read_text()
    for word in ("evaluate.windows=2", "exact_first=0", "evaluate.seed=3"):
        done = call(capfd, world, "search_factors", *MODEL, *SMALL, word, "out=shared")
        assert (
            done.returncode == 2
            and "longrope_128.yaml holds others (LongRoPE's factors for hf-32-" in done.stderr
        ), done.stderr
        assert path.read_text() == before
    # the usual search with another budget goes on
    done = call(capfd, world, "search_factors", *MODEL, *SMALL, "budget=0.004", "out=shared")
    assert done.returncode == 0, done.stderr


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(world, capfd):
    (world / "taken").write_text("a file")
    done = call(capfd, world, "search_factors", *MODEL, *SMALL, "out=taken")
    assert done.returncode == 1 and "taken" in done.stderr and "search" not in done.stderr, (
        done.stderr
    )


def test_what_it_prints_can_be_typed(world, capfd):
    done = call(capfd, world, "search_factors", *MODEL, *SMALL, 'results_dir="my results (1)/runs"')
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("evaluate:")]
    _, script, *typed = shlex.split(line.partition(":")[2])
    done = call(
        capfd,
        world,
        Path(script).stem,
        *typed,
        "dry=true",
        "evaluate.max_length=128",
        "evaluate.windows=2",
        "log.mode=disabled",
    )
    assert done.returncode == 0 and "longrope" in done.stdout, done.stderr


def test_dry_tells_the_work_and_writes_no_factors(world, capfd):
    done = call(capfd, world, "search_factors", *MODEL, "dry=true", "evaluate.windows=2", "out=dry")
    assert done.returncode == 0, done.stderr
    assert (
        "1,344 sets of factors of 2 windows of 128 tokens (16 targets each)" in done.stdout
        and "MiB" not in done.stdout
    )
    assert "1,344 evaluations, 0.3 M tokens" in done.stdout and not (world / "dry").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["target=32"], "target=32 is within the model's training length of 32 tokens"),
        (
            ["evaluate.split=test"],
            "evaluate.split=test is of no effect, since scripts/search_factors.py searches",
        ),
        (["extension=yarn"], "extension=yarn is of no effect"),
        (["extension.exact_first=4"], "extension.exact_first=4 is of no effect"),
        (
            ["report_dir=there"],
            "report_dir=there has no effect on scripts/search_factors.py, which writes into out=",
        ),
        (["finetune=longer"], "leave finetune= out"),
        (["exact_first=[]"], "exact_first=[] must be"),
        (["exact_first=-1"], "exact_first"),
        (
            ["exact_first=[0,33]", "dry=true"],
            "exact_first=33 exceeds the model's training length of 32 tokens",
        ),
        (["budget=1e12", "dry=true"], "at most 1,000"),
        (["device=cuda:99", "dry=true"], "device=cuda:99 is not available"),
        (["target=100000"], "No document has the 100001 tokens"),
    ],
)
def test_what_is_refused_is_one_sentence(world, capfd, words, message):
    done = call(capfd, world, "search_factors", *MODEL, *words)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("refused") == 1, (
        done.stderr
    )


SLOW = (0.5, 0.9, 2.0, 3.0)  # factors of a critical search before completion, by pair


def test_the_pairs_before_a_critical_one_follow_from_its_factor():
    """As NTK-aware scaling with the base that gives pair d its factor: b'^(-2d / D) = b^(-2d / D)
    / factor.
    """
    space = critical_space(2.0)
    base, pair, width = 10000.0, 2, 8
    changed = base * SLOW[pair] ** (width / (2 * pair))
    first, *factors = space.with_implied_factors((pair, *SLOW))
    expected = [(changed / base) ** (2 * c / width) for c in range(pair)]
    assert first == pair and factors == pytest.approx([*expected, 2.0, 3.0])
    assert space.is_legal((pair, *factors)) and not space.is_legal((1, *factors))
    assert not space.is_legal(space.with_implied_factors((0, 2.5, 2.5, 3.5, 3.0)))


@pytest.mark.parametrize("seed", range(3))
def test_a_critical_search_begins_at_each_candidate_and_keeps_its_space(seed):
    """The best is known: pair 9 and factors that rise from 4.4 to 6."""
    freq_F = torch.tensor([1000 ** (-c / PAIRS) for c in range(PAIRS)], dtype=torch.float64)
    space = critical_space(FACTOR)
    starts = space.starts({}, freq_F * 512 / (2 * math.pi), seed)
    periods = 2 * math.pi / freq_F
    in_theory = int((periods < 512).sum())  # the first that makes no full turn
    candidates = [c for c in range(in_theory + 1) if periods[c] >= 51.2]
    assert [start[0] for start in starts.values()] == candidates and len(candidates) > 4
    slow = [4.4 + 1.6 * (c - 9) / (PAIRS - 10) for c in range(9, PAIRS)]
    goal = space.with_implied_factors((9, *[1.0] * 9, *slow))

    def loss(candidate) -> float:
        return sum(abs(a - b) for a, b in zip(candidate[1:], goal[1:], strict=True)) / PAIRS

    losses = evolve(loss, starts.values(), space, search_sizes(1), seed)
    best = min(losses, key=losses.get)
    assert len(losses) == 1344 and all(map(space.is_legal, losses))
    assert all(space.with_implied_factors(candidate) == candidate for candidate in losses)
    assert all(
        FACTOR <= factor <= 2 * FACTOR
        for candidate in losses
        for factor in candidate[1 + candidate[0] :]
    )
    assert 9 <= best[0] <= 11 and losses[best] < min(map(loss, starts.values())) / 2


def test_needles_open_a_text_and_only_their_answers_count(world, capfd, monkeypatch):
    """The loss without an extension is transformers' of the tokens of the answers."""
    seen = []

    def spied(evaluation, examples):
        seen.append((evaluation.extension, examples, needle_loss(evaluation, examples)))
        return seen[-1][2]

    monkeypatch.setattr(factor_search, "needle_loss", spied)
    needle = (
        "objective=needle",
        "target=400",
        "budget=0.002",
        "evaluate.windows=3",
        "evaluate.dtype=fp32",
    )
    words = (*MODEL, *needle, "pairs=critical", "out=needle", "log.mode=disabled")
    done = call(capfd, world, "search_factors", *words)
    assert done.returncode == 0, done.stderr
    (extension, examples, loss), *others = seen
    assert type(extension).__name__ == "NoExtension" and all(
        reading[1] is examples for reading in others
    )
    losses = []
    model = theirs(world / "Llama")
    for inputs_T, targets_T in zip(examples.inputs_NT, examples.targets_NT, strict=True):
        text, answer = (
            bytes(ids.tolist()).decode() for ids in (inputs_T, targets_T[targets_T >= 0])
        )
        before, _, after = text.partition("One of the special magic numbers for")
        assert before.count("\n") == 1 and f" is: {answer.strip()}." in after[:60]
        assert len(inputs_T) == 400 and text.endswith(answer[:-1])
        with torch.no_grad():
            logits_TV = model(torch.tensor(inputs_T)[None]).logits[0].double()
        is_answer = torch.tensor(targets_T) >= 0
        losses += (-logits_TV.log_softmax(-1)[is_answer, targets_T[targets_T >= 0]]).tolist()
    assert len(losses) == 3 * 8 and loss == pytest.approx(sum(losses) / len(losses), abs=1e-4)
    name = "longrope_400_needle_critical"
    node = yaml.safe_load((world / f"needle/extension/{name}.yaml").read_text())
    (log,) = (world / "needle").glob(f"{name}-*.jsonl")
    measured = [json.loads(line) for line in log.read_text().splitlines()]
    best = min(measured, key=lambda record: record["nll"])
    assert (node["factors"], node["exact_first"]) == (best["factors"], 0)
    assert f"found, pair {best['critical_pair']}" in done.stdout
    again = call(capfd, world, "search_factors", *words)
    assert again.returncode == 0 and len(log.read_text().splitlines()) == len(measured)


def test_factors_beyond_training_and_the_original_frequencies_within(world, capfd):
    """The mixed context window of LongRoPE2: mode=dynamic of what was searched."""
    words = (*MODEL, *SMALL, "exact_first=0", "out=mixed")
    done = call(capfd, world, "search_factors", *words)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("the same, and")]
    assert "extension.mode=dynamic extension.target_len=null" in line
    node = yaml.safe_load((world / "mixed/extension/longrope_128.yaml").read_text())
    spectrum = Rope(Shape(16, 1, 2, 2, 32)).spectrum()
    mixed = make_method({**node, "mode": "dynamic", "target_len": None})
    fixed = make_method(node)
    for length in (8, 32, 33, 128):
        span = Span(32, length, int(mixed.target_len(length)))
        freq_F = mixed.spectrum(spectrum, span).freq_F
        expected = spectrum if length <= 32 else fixed.spectrum(spectrum, Span(32, length, 128))
        assert torch.equal(freq_F, expected.freq_F)
        assert length > 32 or mixed.temperature(span) == 1
    assert mixed.temperature(Span(32, 128, 128)) == fixed.temperature(Span(32, 128, 128))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate.tasks=[passkey]"], "evaluate.tasks=[passkey] is of no effect"),
        (["objective=needle", "evaluate.targets=8"], "evaluate.targets=8 is of no effect"),
        (["pairs=critical", "exact_first=4"], "exact_first=[4] is for pairs=all"),
        (["objective=loss"], "objective=loss"),
        (
            ["objective=needle", "evaluate.tasks=[passkey,niah_single_1]"],
            "are 2, and a search has the loss of one",
        ),
        (["objective=needle", "target=64", "dry=true"], "niah_single_2 needs"),
    ],
)
def test_objectives_and_spaces_that_do_not_fit_are_refused(world, capfd, words, message):
    done = call(capfd, world, "search_factors", *MODEL, *words)
    assert done.returncode == 2 and message in done.stderr, done.stderr
