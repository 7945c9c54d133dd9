"""A model with methods in place goes on as a model of transformers: cache, padding, generate,
saving, several at once.
"""

import copy
import functools
import gc
import json
import pickle

import pytest
import torch
from conftest import node
from families import FAMILIES, LEARNED, TRAIN_LEN, WINDOW, difference, text, tiny, transformers

import posbench
from posbench.common.errors import ConfigError
from posbench.extensions.compose import Compose
from posbench.extensions.rerope import Rerope

SAME, BEYOND, TARGET = 1e-4, 96, 128
FIXED = ("pi", "ntk", "yarn", "dynamic_ntk", "self_extend")  # with target_len
OTHER = ("rerope", "dca", "gali", "streaming", "lm_infinite", "window")
SOME = (
    "llama",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v3",
    "glm4",
    "llama4_text",
    "smollm3",
    "falcon_h1",
    "qwen3_next",
)
GREEDY = {"max_new_tokens": 3, "do_sample": False}


@functools.cache
def tiny_in_place(kind: str):
    """A tiny model that is measured once for all methods."""
    return posbench.extend(tiny(kind))


def extended(kind: str, extension: str, scale: str = "none"):
    """A tiny model with methods in place, or None where they change nothing there."""
    fixed = {"target_len": TARGET} if extension in FIXED or kind in LEARNED else {}
    try:
        return posbench.extend(tiny_in_place(kind), extension, scale, **fixed)
    except ConfigError as error:
        assert "changes nothing" in str(error) or "sees every pair" in str(error)
        return None


@pytest.mark.parametrize(
    ("kind", "extension"),
    [
        *(("llama", method) for method in ("none", *FIXED, *OTHER)),
        *((kind, method) for kind in SOME[1:] for method in ("none", "yarn", "dca", "streaming")),
    ],
)
def test_a_token_after_a_cache_has_the_logits_of_the_whole_text(kind, extension):
    for scale in ("none", "log_n") if kind == "llama" else ("log_n",):
        model = extended(kind, extension, scale)
        if model is None:
            continue
        ids, cache = text(2, BEYOND), None
        for start, stop in (
            (0, 20),
            (20, 90),
            (90, 91),
            (91, BEYOND),
        ):  # prefill, in parts, and token by token
            output = model(ids[:, start:stop], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            assert difference(output.logits, model(ids[:, :stop]).logits[:, start:]) < SAME, (
                scale,
                start,
            )


@pytest.mark.parametrize("kind", FAMILIES)
def test_generation_is_that_of_whole_texts_read_anew(kind):
    extension = "table_linear" if kind in LEARNED else "yarn"
    model = extended(kind, extension) or extended(kind, "none", "log_n")
    ids, mask = text(2, 70), torch.ones(2, 70, dtype=torch.long)
    mask[1, :9] = 0
    generated = model.generate(ids, attention_mask=mask, **GREEDY)
    assert torch.equal(
        generated, model.generate(ids, attention_mask=mask, use_cache=False, **GREEDY)
    )
    assert torch.equal(generated[1, 9:], model.generate(ids[1:, 9:], **GREEDY)[0])
    static = model.generate(ids, attention_mask=mask, cache_implementation="static", **GREEDY)
    assert torch.equal(generated, static)


def test_beams_and_samples_are_those_of_whole_texts():
    model = extended("llama", "self_extend")
    ids, mask = text(2, 80), torch.ones(2, 80, dtype=torch.long)
    mask[0, :5] = 0
    for settings in ({"num_beams": 3, **GREEDY}, {"do_sample": True, "max_new_tokens": 10}):
        generated = []
        for cached in (True, False):
            torch.manual_seed(3)
            generated.append(model.generate(ids, attention_mask=mask, use_cache=cached, **settings))
        assert torch.equal(*generated)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "llama4_text", "gpt_oss"])
def test_padding_on_either_side_changes_nothing(kind):
    model = extended(kind, "yarn") or extended(kind, "none", "log_n")
    ids, mask = text(3, 90), torch.ones(3, 90, dtype=torch.long)
    mask[1, :17], mask[2, 70:] = 0, 0
    logits = model(ids, attention_mask=mask).logits
    for row, part in ((0, slice(None)), (1, slice(17, None)), (2, slice(None, 70))):
        assert difference(logits[row, part], model(ids[row : row + 1, part]).logits[0]) < SAME


def test_a_factor_of_each_length_needs_a_target_or_no_cache():
    model, ids = posbench.extend(tiny("llama"), "pi"), text(1, 70)
    longer = {**GREEDY, "max_new_tokens": 5}
    generated = model.generate(ids, use_cache=False, **longer)
    with pytest.raises(ConfigError, match="target_len=TOKENS, or generate with use_cache=False"):
        model.generate(ids, **GREEDY)
    short = text(1, 40)  # within the training length the factor is 1
    assert torch.equal(
        model.generate(short, **GREEDY), model.generate(short, use_cache=False, **GREEDY)
    )
    posbench.extend(model, "pi", target_len=TARGET)
    assert not torch.equal(generated, model.generate(ids, **longer))


@pytest.mark.parametrize(
    ("extension", "scale"),
    [("compose", "none"), ("rerope", "log_n_global"), ("rerope", "yarn_temperature")],
)
def test_whatever_treats_earlier_tokens_otherwise_later_needs_no_cache(extension, scale):
    model, ids = posbench.extend(tiny("llama"), extension, scale), text(1, BEYOND)
    cache = model(ids[:, :90], use_cache=True).past_key_values
    with pytest.raises(ConfigError, match="generate with use_cache=False"):
        for token in range(90, BEYOND):
            cache = model(
                ids[:, token : token + 1], past_key_values=cache, use_cache=True
            ).past_key_values


def test_a_cache_that_ends_within_a_piece_is_refused_by_a_method_of_pieces():
    fed = {"_target_": "posbench.extensions.dynamic_ntk.DynamicNtk", "factor": 2.0, "fed": 64}
    model, ids = posbench.extend(tiny("llama"), fed), text(1, 129)
    within_piece = model(ids[:, :120], use_cache=True).past_key_values
    with pytest.raises(ConfigError, match="After 121 tokens .* generate with use_cache=False"):
        model(ids[:, 120:121], past_key_values=within_piece)
    # Whole pieces stay as they were turned, so a cache of these is exact.
    whole_pieces = model(ids[:, :128], use_cache=True).past_key_values
    next_token = model(ids[:, 128:], past_key_values=whole_pieces).logits
    assert difference(next_token, model(ids).logits[:, 128:]) < SAME


LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"factor": 2.0, "long_factor": [2.0] * 8, "short_factor": [1.0] * 8}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 32},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "longrope", **LONGROPE, "original_max_position_embeddings": 32},
        {"rope_type": "dynamic", "factor": 2.0},
    ],
)
def test_a_scaling_that_was_trained_in_is_measured_also_one_of_each_length(scaling):
    model = tiny("qwen3_moe", rope_parameters={**scaling, "rope_theta": 1e4})
    expected = {length: model(text(1, length)).logits for length in (20, 80, 120)}
    posbench.extend(model)
    for length in (20, 120, 80):
        assert difference(model(text(1, length)).logits, expected[length]) < SAME


def test_two_models_do_not_disturb_each_other():
    def registered():
        return {
            name
            for name in transformers.AttentionInterface._global_mapping
            if name.startswith("posbench")
        }

    gc.collect()
    before = registered()
    first, second, ids = tiny("llama"), tiny("llama"), text(1, 90)
    original = first(ids).logits
    posbench.extend(first, "rerope")
    assert torch.equal(second(ids).logits, original)
    posbench.extend(second, "streaming")
    first_logits, second_logits = first(ids).logits, second(ids).logits
    assert difference(first_logits, second_logits) > 1e-3
    assert torch.equal(posbench.restore(second)(ids).logits, original)
    assert torch.equal(first(ids).logits, first_logits)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(
            ConfigError, match=r"cannot be copied or pickled: posbench\.restore it first"
        ):
            copied(first)
    assert torch.equal(copy.deepcopy(posbench.restore(first))(ids).logits, original)
    del first, second
    gc.collect()
    assert registered() == before


def test_extending_again_changes_the_methods_alone():
    model, ids = posbench.extend(tiny("llama"), "rerope"), text(1, 90)
    logits = model(ids).logits
    assert torch.equal(posbench.extend(model, "rerope")(ids).logits, logits)
    assert torch.equal(posbench.extend(model, Rerope())(ids).logits, logits)
    assert torch.equal(
        posbench.extend(model, {"name": "rerope", "window": TRAIN_LEN // 2})(ids).logits, logits
    )
    assert difference(posbench.extend(model, "rerope", train_len=32)(ids).logits, logits) > 1e-4


def test_the_target_reaches_each_part_of_compose():
    """One part is that part, whose factor is then that of the target for shorter texts too."""
    model, ids = posbench.extend(tiny("llama"), "yarn", target_len=TARGET), text(1, TRAIN_LEN + 8)
    fixed = model(ids).logits
    yarn = node("extension", "yarn")
    for parts in (
        [yarn],
        {"a": None, "b": yarn},
        [{**node("extension", "compose"), "parts": [yarn]}],
    ):
        for chosen in ({"name": "compose", "parts": parts}, Compose(parts)):
            posbench.extend(model, chosen, target_len=TARGET)
            assert torch.equal(model(ids).logits, fixed)
        assert difference(posbench.extend(model, chosen)(ids).logits, fixed) > 1e-4
    own_target = {**yarn, "mode": "fixed", "target_len": 2 * TARGET}
    posbench.extend(model, {"name": "compose", "parts": [own_target]}, target_len=TARGET)
    assert difference(model(ids).logits, fixed) > 1e-4


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "gemma3_text"])
def test_saving_while_extended_saves_the_model_as_it_came(kind, tmp_path):
    model = tiny(kind)
    model.save_pretrained(tmp_path / "before")
    posbench.extend(model, "pi", target_len=TARGET)
    longest = "n_positions" if kind == "gpt2" else "max_position_embeddings"
    assert getattr(model.config, longest) == TARGET, (
        "what reads the longest text off the configuration, such as lm-eval, sees the target"
    )
    ids = text(1, 70)
    generated = model.generate(ids, **GREEDY)
    model.save_pretrained(tmp_path / "after")
    assert torch.equal(model.generate(ids, **GREEDY), generated)
    before, after = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("before", "after")
    )
    assert before == after
    for file in (tmp_path / "after").glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "before" / file.name).read_bytes()
    posbench.restore(model)
    assert getattr(model.config, longest) == TRAIN_LEN
    model.save_pretrained(tmp_path / "restored")
    assert json.loads((tmp_path / "restored" / "config.json").read_text()) == before


def test_what_is_set_afterwards_is_refused():
    model, ids = posbench.extend(tiny("llama"), "rerope"), text(1, 90)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ConfigError, match=r"posbench\.restore"):
        model(ids)
    posbench.restore(model)
    model.train()
    model.config.attention_dropout = 0.1
    posbench.extend(model)
    assert model.training


def test_prefill_of_a_long_text_takes_linear_memory():
    from posbench.model.memory import tensor_mib

    model = posbench.extend(tiny("llama", num_hidden_layers=1), "rerope", target_len=16384)
    peaks = [
        tensor_mib(lambda length=length: model(text(1, length), logits_to_keep=1))
        for length in (2048, 4096, 8192)
    ]
    assert peaks[2] / peaks[1] < 2.2, peaks
    assert peaks[1] / peaks[0] < 2.2, peaks


def test_windows_keep_a_cache_of_their_size():
    model = extended("gemma3_text", "pi")
    cache = model(text(1, BEYOND), use_cache=True).past_key_values
    assert min(layer.keys.shape[2] for layer in cache.layers) <= WINDOW


@pytest.mark.gpu
@pytest.mark.parametrize(
    "kind", ["llama", "gemma3_text", "gpt_oss", "deepseek_v3", "llama4_text", "gpt2"]
)
def test_on_a_gpu_the_logits_are_those_of_the_cpu(kind):
    extension = {"gpt2": "table_linear", "llama4_text": "none"}.get(kind, "yarn")
    ids, device_logits = text(2, BEYOND), []
    for device in ("cpu", "cuda"):
        model = posbench.extend(tiny(kind).to(device), extension, "log_n", target_len=TARGET)
        full_logits = model(ids.to(device)).logits
        part = model(ids[:, :90].to(device), use_cache=True).past_key_values
        assert (
            difference(
                model(ids[:, 90:].to(device), past_key_values=part).logits, full_logits[:, 90:]
            )
            < 1e-3
        )
        device_logits.append(full_logits.cpu())
    assert difference(device_logits[1], device_logits[0]) < 1e-3


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "glm4"])
def test_a_model_is_trained_with_methods_in_place(kind):
    ids, gradients = text(2, 70), []
    for place in (False, True):
        model = tiny(kind).requires_grad_(True)
        if place:
            posbench.extend(model)
        model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append(
            {
                name: parameter.grad
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            }
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, expected in gradients[0].items():
        assert (gradients[1][name] - expected).norm() < 1e-4 * expected.norm() + 1e-8, name
    posbench.extend(model, "rerope", "log_n")
    model(ids, labels=ids, use_cache=False).loss.backward()
    assert all(
        parameter.grad.isfinite().all()
        for parameter in model.parameters()
        if parameter.grad is not None
    )


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_16_bits_are_taken_within_their_rounding(kind, dtype):
    model, ids = tiny(kind).to(dtype), text(1, 50)
    original = model(ids).logits.float()
    posbench.extend(model, *(["table_linear"] if kind in LEARNED else ["yarn"]), target_len=TARGET)
    model.generate(text(1, 80), **GREEDY)
    posbench.extend(model)
    logits = model(ids).logits
    assert (
        logits.dtype == dtype and (logits.float() - original).abs().mean() < 0.02 * original.std()
    )
