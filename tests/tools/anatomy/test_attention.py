"""Where trained heads attend: beside dense weights from the formulas, beside transformers, and
scripts/anatomy.py as a user meets it.
"""

import csv
import json
import math

import dense
import numpy as np
import pytest
import torch
from conftest import (
    TRAIN_LEN,
    choices,
    legal_pairs,
    make_triple,
    node,
    scaled_sample,
    small_model,
    small_shape,
    with_attention,
)
from known_models import evaluation, file
from measures import LONG, attention_inputs, tokens
from script_calls import call

from posbench.encodings.rope import Rope
from posbench.evaluation.protocols.fixed_targets import FixedTargets
from posbench.extensions.rerope import Rerope
from posbench.model.build import load_model
from posbench.model.kernels import blocks
from posbench.model.memory import tensor_mib
from posbench.position.instantiate import make_method
from posbench.position.legality import fed_length
from posbench.position.plan import make_plan
from posbench.position.trusted import trained_config
from posbench.report.figures.style import write_figure
from posbench.scale_attention.learned_sink import LearnedSink
from posbench.tools.anatomy.attention import LayerAttention, distance_buckets, measure_attention
from posbench.tools.anatomy.attention_figure import attention_page

LENGTH, QUERIES = 3 * TRAIN_LEN + 1, 5
WHOLE = [
    name
    for name in choices("extension")
    if fed_length(make_method(node("extension", name)), TRAIN_LEN, LONG) == LONG
]
TRIPLES = [triple for triple in legal_pairs(LONG) + scaled_sample(LONG, 20) if triple[1] in WHOLE]
TRIPLES = with_attention(TRIPLES)
TEXT = file(np.random.default_rng(0).integers(0, 50, 500), [90, 20, 300, 90])


def expected(weights_HSK: np.ndarray) -> dict[str, list]:
    """The numbers of a layer, by a loop over the weights of its last queries."""
    heads, queries, length = weights_HSK.shape
    numbers = {
        "entropy": [0.0] * heads,
        "first": [0.0] * heads,
        "sink": [0.0] * heads,
        "far": [0.0] * heads,
    }
    numbers["mass"] = [[0.0] * (1 + math.ceil(math.log2(length))) for _ in range(heads)]
    for h in range(heads):
        for s in range(queries):
            positive = [weight for weight in weights_HSK[h, s] if weight > 0]
            rest = 1 - sum(positive)
            numbers["sink"][h] += rest / queries
            numbers["entropy"][h] -= (
                sum(p * math.log(p) for p in [*positive, rest] if p > 1e-9) / queries
            )
            for key, weight in enumerate(weights_HSK[h, s]):
                distance = length - queries + s - key
                if key == 0:
                    numbers["first"][h] += weight / queries
                elif weight:
                    numbers["mass"][h][0 if distance == 0 else 1 + int(math.log2(distance))] += (
                        weight / queries
                    )
                    numbers["far"][h] += weight / queries * (distance >= TRAIN_LEN)
    return numbers


def assert_equal(actual: dict, expected_numbers: dict[str, list], atol: float = 2e-5) -> None:
    for key, values in expected_numbers.items():
        # A sink's share below 1e-5 counts as rounding, and is worth ten times as many nats.
        np.testing.assert_allclose(
            actual[key], values, rtol=0, atol=10 * atol if key == "entropy" else atol, err_msg=key
        )
    assert np.allclose(
        np.sum(actual["mass"], axis=1) + actual["first"] + actual["sink"],
        1,
        atol=1e-9 + 2e-5 * any(actual["sink"]),
    )


def of_layer(triple, trained=None, sink_H=None) -> tuple[dict, dict]:
    """The numbers of one layer as measured, and from the dense weights of the formulas, whose
    values are one-hot.
    """
    encoding, extension, scale = make_triple(*triple)
    plan = make_plan(encoding, extension, scale, length=LENGTH, trained_scale=trained)
    number = next(n for n, layer in enumerate(plan.layers) if not layer.encoding.mixes)
    layer = plan.for_text(tokens(LENGTH, batch=1)).layers[number]
    module, (_, x) = (
        small_model(encoding).layers[number].self_attn,
        attention_inputs(encoding, LENGTH),
    )
    q_HTD, k_GTD = (
        (x[0] @ proj.weight.T).view(LENGTH, -1, 8).transpose(0, 1).double()
        for proj in (module.q_proj, module.k_proj)
    )
    k_HTD, eye = k_GTD.repeat_interleave(2, dim=0), torch.eye(LENGTH, dtype=torch.float64)
    weights_HTT = dense.attention(
        *triple, layer.encoding, q_HTD, k_HTD, eye, x[0].double(), TRAIN_LEN, sink_H=sink_H
    )
    attention = LayerAttention()
    attention.add_windows(layer, x, *module.queries_and_keys(x), QUERIES)
    assert attention.keys == layer.n_T[-QUERIES:].mean() and len(attention.seen_U) == len(
        distance_buckets(LENGTH)
    )
    return attention.summary(np.zeros(1)), expected(weights_HTT[:, -QUERIES:].numpy())


@pytest.mark.parametrize("triple", TRIPLES, ids="-".join)
@torch.no_grad()
def test_every_legal_triple_attends_as_its_formula_says(triple, monkeypatch):
    monkeypatch.setitem(blocks.BLOCK_QUERIES, "cpu", 3)
    monkeypatch.setattr(blocks, "LONGEST_SINGLE_BLOCK", 5)
    assert_equal(*of_layer(triple))


@torch.no_grad()
def test_learned_sinks_take_their_share():
    scale = LearnedSink(small_shape())
    scale.logit_LH[0] = torch.tensor([-2.0, 0.5, 1.7, 6.0])
    actual, expected_numbers = of_layer(("rope", "none", "none"), scale, scale.logit_LH[0].double())
    assert_equal(actual, expected_numbers)
    assert 0 < actual["sink"][0] < actual["sink"][3]


@torch.no_grad()
@pytest.mark.parametrize("name", ["none", "window", "streaming", "rerope", "random_keys"])
def test_keys_seen_are_counted_by_distance(name):
    encoding, extension, _ = make_triple("rope", name, "none")
    visible = dense.COORDINATES.get(name, dense.everything)(LENGTH, TRAIN_LEN)[2][-1].tolist()
    attention, x, module = (
        LayerAttention(),
        attention_inputs(encoding, LENGTH)[1],
        small_model(encoding).layers[0].self_attn,
    )
    attention.add_windows(
        make_plan(encoding, extension, length=LENGTH).layers[0], x, *module.queries_and_keys(x), 1
    )
    distances = [LENGTH - 1 - key for key, seen in enumerate(visible) if seen and key > 0]
    assert attention.seen_U.tolist() == [
        sum(low <= each <= high for each in distances) for low, high in distance_buckets(LENGTH)
    ]
    assert attention.keys == sum(visible)


def test_windows_are_those_of_fixed_targets_and_no_batch_changes_a_number():
    scorer, other_scorer = (
        evaluation(small_model(Rope(small_shape())), TEXT, Rerope(window=8), batch_tokens=size)
        for size in (64, 10_000)
    )
    measured, again = (measure_attention(each, 64) for each in (scorer, other_scorer))
    assert (
        measured["nll"] == pytest.approx(FixedTargets(scorer).score(64)[0].mean(), rel=1e-6)
        and measured["documents"] == 3
    )
    for layer, same in zip(measured["layers"], again["layers"], strict=True):
        for key in layer:
            np.testing.assert_allclose(
                np.array(layer[key], float), np.array(same[key], float), rtol=1e-4, atol=1e-6
            )
    assert not any(block.self_attn._forward_pre_hooks for block in scorer.model.layers)


def test_bf16_is_measured_in_the_model_that_it_reads_with():
    scorers = [
        evaluation(small_model(Rope(small_shape())), TEXT, dtype=dtype)
        for dtype in ("fp32", "bf16")
    ]
    plain, rough = (measure_attention(each, 64)["layers"] for each in scorers)
    for plain_layer, rough_layer in zip(plain, rough, strict=True):
        np.testing.assert_allclose(plain_layer["entropy"], rough_layer["entropy"], atol=0.05)
        assert plain_layer["entropy"] != rough_layer["entropy"]


def test_memory_grows_with_the_length_alone():
    text, mib = file(np.random.default_rng(0).integers(0, 50, 5000), [5000]), []
    for length in (1024, 2048):
        settings = {"lengths": [length], "max_length": length, "windows": 1, "batch_tokens": 1}
        each = evaluation(small_model(Rope(small_shape())), text, Rerope(), **settings)
        mib.append(tensor_mib(lambda each=each, length=length: measure_attention(each, length)))
    assert mib[1] < 2.2 * mib[0]


@pytest.mark.parametrize("kind", ["Llama", "SmolLM3", "Qwen3"])
@torch.no_grad()
def test_an_imported_checkpoint_attends_as_transformers_says(tmp_path, kind):
    from hf_models import VOCAB, checkpoint, imported, transformers

    path = checkpoint(tmp_path, kind)
    run = imported(path)
    scorer = evaluation(load_model(run, trained_config(run), VOCAB, "cpu"), TEXT, targets=QUERIES)
    theirs = (
        getattr(transformers, f"{kind}ForCausalLM")
        .from_pretrained(path, attn_implementation="eager")
        .eval()
    )
    protocol = FixedTargets(scorer)
    index_NL = protocol.indices_up_to_targets(
        np.arange(1, len(protocol.windows.last_N) + 1) * QUERIES - 1, 64
    )[:, :-1]
    attentions = theirs(
        torch.from_numpy(TEXT.tokens[index_NL].astype(np.int64)), output_attentions=True
    ).attentions
    for layer, weights_NHTT in zip(
        measure_attention(scorer, 64)["layers"], attentions, strict=True
    ):
        each = [
            expected(weights_HTT[:, -QUERIES:].double().numpy()) for weights_HTT in weights_NHTT
        ]
        for key in ("entropy", "first", "mass"):
            np.testing.assert_allclose(
                layer[key], np.mean([numbers[key] for numbers in each], axis=0), rtol=0, atol=2e-4
            )


def test_the_script_writes_numbers_rows_and_a_picture_of_them(world, capfd):
    words = [
        f"run={world.run(0)}",
        "extension=none,pi",
        "lengths=[32,16]",
        "evaluate.max_length=128",
        "report_dir=out",
    ]
    words += ["results_dir=runs", "cache_dir=cache"]
    done = call(capfd, world.root, "anatomy", "-m", *words, pictures=True)
    assert done.returncode == 0, done.stderr
    out = world.root / "out"
    assert {path.name for path in out.iterdir()} == {
        f"diagnostics.{kind}" for kind in ("json", "csv", "png", "svg")
    }
    content = json.loads((out / "diagnostics.json").read_text())
    read = [
        (arm["extension"], [text["length"] for text in arm["measured"]]) for arm in content["arms"]
    ]
    assert read == [("none", [16, 32]), ("pi", [16, 32])]
    with open(out / "diagnostics.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 2 * 2 * 1 * 2 and all(row["run"] == world.run(0).name for row in rows)
    for row in rows:
        assert sum(
            float(row[key] or 0)
            for key in row
            if key.startswith("mass_") or key in ("first", "sink")
        ) == pytest.approx(1)
    assert "3 documents" in done.stdout and "away or more" in done.stdout
    before = (out / "diagnostics.svg").read_bytes()
    write_figure(attention_page(content), out / "diagnostics")
    assert (out / "diagnostics.svg").read_bytes() == before
    again = call(
        capfd,
        world.root,
        "anatomy",
        f"run={world.run(0)}",
        "lengths=32",
        "results_dir=runs",
        "cache_dir=cache",
        "extension=ntk",
    )
    assert (
        again.returncode == 0
        and (world.root / "anatomy" / f"{world.run(0).name}+ntk+none" / "diagnostics.png").exists()
    ), again.stderr


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["lengths=[16,32]"], "give run=DIR"),
        (["run=RUN", "lengths=32", "json=a.json"], "leave one of them out"),
        (["run=RUN", "lengths=32", "extension=recompute_window"], "with lengths=16"),
        (["run=RUN", "lengths=32", "finetune=longer"], "give run= of the child"),
        (["run=RUN", "lengths=1"], "must each hold the evaluate.targets=2"),
        (["-m", "run=RUN", "lengths=32", "evaluate.seed=0,1"], "one run with one setting"),
        (["run=RUN", "lengths=32", "step=1"], "step=1 does not choose from run="),
        (["run=RUN", "length=32", "step=1"], "step=1 does not choose from run="),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(world, capfd, typed, message):
    typed = [word.replace("RUN", str(world.run(0))) for word in typed]
    done = call(capfd, world.root, "anatomy", *typed, "results_dir=runs", "cache_dir=cache")
    assert (
        done.returncode == 2
        and message in done.stderr
        and len(done.stderr.strip().splitlines()) == 1
    ), done.stderr


@pytest.mark.parametrize(("layers", "heads", "sink"), [(1, 1, 0.0), (4, 2, 0.1)])
def test_a_page_has_a_row_for_every_layer(layers, heads, sink):
    texts = []
    for length in (64, 256):
        shares = 1 + math.ceil(math.log2(length))
        layer = {
            "keys": 60.0,
            "seen": [1.0] * shares,
            "entropy": [1.0] * heads,
            "entropy_half": [None] * heads,
            "first": [0.1] * heads,
        }
        layer |= {
            "sink": [sink] * heads,
            "far": [0.0] * heads,
            "mass": [[(0.9 - sink) / shares] * shares] * heads,
        }
        texts.append(
            {"length": length, "windows": 2, "documents": 1, "nll": 3.0, "layers": [layer] * layers}
        )
    words = {"run": "r", "encoding": "rope", "trained_scale": "none", "data": "d", "split": "test"}
    words |= {"train_len": 64, "known": 64, "queries": 8}
    kinds = [
        {"number": number + 1, "kind": "rope", "window": None if number % 2 else 32}
        for number in range(layers)
    ]
    arm = {"extension": "none", "scale_attention": "none", "untested": False, "measured": texts}
    figure = attention_page(
        {**words, "buckets": distance_buckets(256), "layers": kinds, "arms": [arm]}
    )
    assert len(figure.axes) == 3 * layers  # as trained, entropy, the longest text
    assert figure.axes[-1].get_xlim() == (0, 10 + (sink > 0))
