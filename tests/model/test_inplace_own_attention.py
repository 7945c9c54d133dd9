"""BLOOM, MPT, Falcon, GPT-J and CodeGen compute attention themselves: posbench.extend on random
tiny models of each.
"""

import copy
import functools
import json

import pytest
import torch
from families import TRAIN_LEN, difference, text
from own_attention import OWN, SLOPED, TURNED, UNLIMITED, dense_logits, tiny_own

import posbench
from posbench.common.errors import ConfigError
from posbench.encodings.alibi import Alibi
from posbench.model.inplace.reader import Reader
from posbench.model.kernels.dispatch import attention_weights

SAME = 1e-4  # standard deviations of the logits
CLOSE = 1e-5  # without an extension
BEYOND = 128  # tokens: twice the training length, so that PI halves positions
GREEDY = {"max_new_tokens": 4, "do_sample": False}
FOR_ALL = (
    ("pi", "none"),
    ("rerope", "log_n"),
    ("streaming", "none"),
    ("lm_infinite", "none"),
    ("none", "log_n"),
)
FOR_TURNED = (("yarn", "log_n"), ("ntk", "none"), ("self_extend", "none"))
PAIRS = [
    *((kind, *pair) for kind in OWN for pair in FOR_ALL),
    *((kind, *pair) for kind in TURNED for pair in FOR_TURNED),
]


@functools.cache
def tiny_in_place(kind: str):
    """A tiny model that is measured once for all methods."""
    return posbench.extend(tiny_own(kind))


def layers_of(model):
    return posbench.model.inplace.extend.hook_of(model).encoding.layers()


@pytest.mark.parametrize("kind", OWN)
def test_logits_without_an_extension_are_those_of_transformers_and_restored_to_the_bit(kind):
    model = tiny_own(kind)
    attributes = [set(vars(module)) for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    texts = [
        text(2, length) for length in (20, TRAIN_LEN, BEYOND if kind in UNLIMITED else TRAIN_LEN)
    ]
    expected = [model(ids).logits for ids in texts]
    posbench.extend(model)
    for ids, logits in zip(texts, expected, strict=True):
        assert difference(model(ids).logits, logits) < CLOSE
    posbench.extend(model, "rerope", "log_n")
    assert difference(model(text(1, BEYOND)).logits, expected[-1][:1, :1]) > SAME
    posbench.restore(model)
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert all(
        torch.equal(model(ids).logits, logits) for ids, logits in zip(texts, expected, strict=True)
    )
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", SLOPED)
def test_slopes_are_those_of_the_formula(kind):
    for layer in layers_of(tiny_in_place(kind)):
        assert isinstance(layer.encoding, Alibi)
        assert torch.allclose(layer.encoding.slope_H, torch.tensor(OWN[kind].slopes), rtol=1e-6)


@pytest.mark.parametrize(("kind", "extension", "scale"), PAIRS)
def test_methods_are_dense_attention_in_float64(kind, extension, scale):
    ids = text(1, BEYOND)
    logits = posbench.extend(tiny_in_place(kind), extension, scale)(ids).logits
    assert difference(logits, dense_logits(kind, ids, extension, scale)) < SAME


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("extension", ["none", "pi", "streaming", "rerope", "lm_infinite"])
def test_a_token_after_a_cache_has_the_logits_of_the_whole_text(kind, extension):
    fixed = {"target_len": BEYOND} if extension == "pi" else {}
    model = posbench.extend(tiny_in_place(kind), extension, **fixed)
    ids, cache = text(2, BEYOND), None
    full_logits = model(ids).logits
    for start, stop in (
        (0, 20),
        (20, 90),
        (90, 91),
        (91, BEYOND),
    ):  # prefill, in parts, and one token
        answer = model(ids[:, start:stop], past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        assert difference(answer.logits, full_logits[:, start:stop]) < SAME, start


@pytest.mark.parametrize("kind", OWN)
def test_generation_with_padding_is_that_of_whole_texts_read_anew(kind):
    model = posbench.extend(tiny_in_place(kind), "rerope", "log_n")
    ids, mask = text(2, 80), torch.ones(2, 80, dtype=torch.long)
    mask[1, :9] = 0
    generated = model.generate(ids, attention_mask=mask, **GREEDY)
    assert torch.equal(
        generated, model.generate(ids, attention_mask=mask, use_cache=False, **GREEDY)
    )
    assert torch.equal(generated[1, 9:], model.generate(ids[1:, 9:], **GREEDY)[0])
    assert torch.equal(
        generated, model.generate(ids, attention_mask=mask, cache_implementation="static", **GREEDY)
    )
    beams = [
        model.generate(ids, attention_mask=mask, use_cache=cached, num_beams=3, **GREEDY)
        for cached in (True, False)
    ]
    assert torch.equal(*beams)
    mask[0, 70:] = 0
    logits = model(ids, attention_mask=mask).logits
    assert difference(logits[0, :70], model(ids[:1, :70]).logits[0]) < SAME
    assert difference(logits[1, 9:], model(ids[1:, 9:]).logits[0]) < SAME


def test_the_cache_of_grouped_queries_holds_each_key_head_once():
    for kind, heads in (
        ("falcon", 1),
        ("falcon of two key heads", 2),
        ("falcon of four key heads", 4),
    ):
        cache = tiny_in_place(kind)(text(1, 20), use_cache=True).past_key_values
        assert cache.layers[0].keys.shape[1] == heads


def test_falcon_rounds_its_biases_beyond_256_tokens_as_transformers_does():
    sixteen = {
        "hidden_size": 128,
        "num_attention_heads": 16,
        "num_hidden_layers": 2,
    }  # slopes that are no powers of two
    model, ids = tiny_own("falcon_rw", max_position_embeddings=600, **sixteen), text(1, 700)
    expected = model(ids).logits
    assert difference(posbench.extend(model)(ids).logits, expected) < SAME
    for layer in layers_of(model):
        layer.encoding.rounded = None
    assert difference(model(ids).logits, expected) > 10 * SAME, (
        "without the rounding it would be seen"
    )


def test_bloom_in_bfloat16_has_the_logits_of_float32_where_transformers_rounds_its_biases():
    ids = text(1, 1000)
    expected = tiny_own("bloom of six heads")(ids).logits
    model = tiny_own("bloom of six heads", seq_length=1000).to(torch.bfloat16)
    as_it_came, extended = model(ids).logits, posbench.extend(model)(ids).logits
    errors = [
        float((logits.float() - expected).abs().mean() / expected.std())
        for logits in (as_it_came, extended)
    ]
    assert errors[1] < 0.01 and errors[0] > 0.05, "transformers adds biases of 500 in steps of 2"


@pytest.mark.parametrize(
    "kind", ["bloom", "mpt of six heads", "falcon of two key heads", "gptj", "codegen"]
)
def test_heads_are_seen_as_transformers_computes_their_weights(kind):
    model, ids, weights_by_layer = tiny_own(kind, attn_implementation="eager"), text(1, 60), {}
    expected = model(ids, output_attentions=True, use_cache=False).attentions
    reader = Reader(model, TRAIN_LEN)

    def watch(index, plan, q_BHTD, k_BGTD):
        weights_by_layer[index] = torch.zeros(1, q_BHTD.shape[1], 60, 60)
        for start, bands in attention_weights(plan, None, q_BHTD, k_BGTD, 60):
            for keys, weights in bands:
                weights_by_layer[index][:, :, start : start + weights.shape[2], keys] += weights

    reader.hook.observe_layer = watch
    reader(ids)
    assert len(weights_by_layer) == len(expected)
    for index, weights in weights_by_layer.items():
        assert (weights - expected[index][..., :60]).abs().max() < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("kind", OWN)
def test_on_a_gpu_the_logits_are_those_of_the_cpu(kind):
    ids, device_logits = text(2, BEYOND), []
    for device in ("cpu", "cuda"):
        model = posbench.extend(tiny_own(kind), "rerope", "log_n").to(
            device
        )  # what was measured moves with the model
        full_logits = model(ids.to(device)).logits
        cache = model(ids[:, :90].to(device), use_cache=True).past_key_values
        assert (
            difference(
                model(ids[:, 90:].to(device), past_key_values=cache).logits, full_logits[:, 90:]
            )
            < 1e-3
        )
        device_logits.append(full_logits.cpu())
    assert difference(device_logits[1], device_logits[0]) < 1e-3


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_16_bits_are_taken_within_their_rounding(kind, dtype):
    model, ids = tiny_own(kind).to(dtype), text(1, 50)
    expected = model(ids).logits.float()
    posbench.extend(model, "rerope")
    model.generate(text(1, 80), **GREEDY)
    logits = posbench.extend(model)(ids).logits
    assert logits.dtype == dtype
    assert (logits.float() - expected).abs().mean() < 0.02 * expected.std()


@pytest.mark.parametrize(
    "kind", ["bloom", "mpt", "falcon of two key heads", "falcon_rw", "gptj", "codegen"]
)
def test_a_model_is_trained_with_methods_in_place(kind):
    ids, gradients = text(2, TRAIN_LEN), []
    for in_place in (False, True):
        model = tiny_own(kind).requires_grad_(True)
        if in_place:
            posbench.extend(model)
        model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in gradients[0].items():
        assert (gradients[1][name] - expected).norm() < 1e-4 * expected.norm() + 1e-7, name
    posbench.extend(model, "rerope", "log_n")
    model(text(2, BEYOND), labels=text(2, BEYOND), use_cache=False).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", OWN)
def test_an_evaluation_reads_a_model_as_it_is(kind):
    model = tiny_own(kind)
    expected = model(text(2, TRAIN_LEN)).logits
    reader = Reader(model, TRAIN_LEN)
    assert difference(reader(text(2, TRAIN_LEN)), expected) < CLOSE
    assert difference(reader(text(2, TRAIN_LEN), last=3), expected[:, -3:]) < CLOSE


@pytest.mark.parametrize("kind", ["bloom", "mpt", "falcon_rw", "gptj"])
def test_saving_while_extended_saves_the_model_as_it_came(kind, tmp_path):
    model = tiny_own(kind)
    model.save_pretrained(tmp_path / "before")
    posbench.extend(model, "pi", target_len=BEYOND)
    generated = model.generate(text(1, 70), **GREEDY)
    model.save_pretrained(tmp_path / "after")
    assert torch.equal(model.generate(text(1, 70), **GREEDY), generated)
    before, after = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("before", "after")
    )
    assert before == after
    with pytest.raises(ConfigError, match="cannot be copied"):
        copy.deepcopy(model)
    assert torch.equal(
        copy.deepcopy(posbench.restore(model))(text(1, 20)).logits, model(text(1, 20)).logits
    )


def test_two_models_of_a_family_do_not_disturb_each_other():
    first, second, ids = tiny_own("falcon_rw"), tiny_own("falcon_rw"), text(1, BEYOND)
    expected = first(ids).logits
    posbench.extend(first, "streaming")
    assert torch.equal(second(ids).logits, expected)
    posbench.extend(second, "rerope")
    posbench.restore(first)
    assert torch.equal(first(ids).logits, expected)
    assert difference(second(ids).logits, expected) > SAME


def test_eager_falcon_adds_its_biases_twice_in_transformers(monkeypatch):
    from transformers.models.falcon import modeling_falcon

    ids = text(1, 30)
    once, twice = (
        tiny_own("falcon_rw", attn_implementation=name)(ids).logits for name in ("sdpa", "eager")
    )
    assert difference(twice, once) > SAME
    build = modeling_falcon.build_alibi_tensor
    monkeypatch.setattr(
        modeling_falcon, "build_alibi_tensor", lambda *args, **options: build(*args, **options) / 2
    )
    assert difference(tiny_own("falcon_rw", attn_implementation="eager")(ids).logits, once) < CLOSE
