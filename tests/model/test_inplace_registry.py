"""posbench.extend on every causal family of transformers' registry: exact with a cache, or refused
in a sentence.
"""

import re

import pytest
import torch
from registry import BEYOND, SAME, TARGET, TRAIN_LEN, difference, kinds, outcome, tiny

import posbench
from posbench.common.errors import ConfigError

# Of every way in which families differ: at least these are extended.
EXACT = """
    apertus bart bert bloom codegen deepseek_v3 diffllama falcon gemma3 gemma3_text gemma4_text gpt2
    gpt_neox gpt_oss gptj granitemoehybrid hrm_text jamba kimi_linear llama llama4_text mistral
    mixtral mpt opt phi3 qwen2 qwen3 qwen3_5_text qwen3_next roberta smollm3
""".split()


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds())
def test_a_family_is_exact_or_refused_in_a_sentence_and_left_as_it_came(kind):
    result = outcome(kind)
    print(result.line)
    assert not result.fault
    if kind in EXACT:
        assert result.exact
    assert "\n" not in result.refused
    assert "does not hand its attention" not in result.refused, (
        "a reason that says what the model does"
    )


def text(length):
    return torch.randint(2, 96, (1, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["hrm_text", "diffllama"])
def test_a_module_that_attends_several_times_is_one_layer(kind):
    model = tiny(kind)
    expected = model(text(BEYOND)).logits
    posbench.extend(model)
    assert difference(model(text(BEYOND)).logits, expected) < SAME
    posbench.extend(model, "rerope")
    logits = model(text(BEYOND)).logits
    assert difference(logits, expected) > 10 * SAME
    cache = model(text(BEYOND)[:, :-1], use_cache=True).past_key_values
    assert (
        difference(model(text(BEYOND)[:, -1:], past_key_values=cache).logits, logits[:, -1:]) < SAME
    )


@pytest.mark.parametrize("kind", ["bert", "bart", "roberta", "opt"])
def test_a_learned_table_is_lengthened_with_all_that_counts_its_rows(kind):
    model = tiny(kind)
    rows = (
        TRAIN_LEN if kind != "roberta" else TRAIN_LEN - 2
    )  # as many as RoBERTa's configuration counts, with two that no token has
    expected = model(text(rows)).logits
    posbench.extend(model, "table_linear", target_len=TARGET)
    assert difference(model(text(rows)).logits, expected) > 100 * SAME
    logits = model(text(BEYOND)).logits
    cache = model(text(BEYOND)[:, :-1], use_cache=True).past_key_values
    assert (
        difference(model(text(BEYOND)[:, -1:], past_key_values=cache).logits, logits[:, -1:]) < SAME
    )
    posbench.restore(model)
    assert torch.equal(model(text(rows)).logits, expected)


@pytest.mark.parametrize("kind", ["jamba", "kimi_linear", "granitemoehybrid"])
def test_a_model_without_positions_takes_scales_and_masks(kind):
    model = tiny(kind)
    expected = model(text(BEYOND)).logits
    for methods in ((None, "log_n"), ("streaming", None), ("lm_infinite", None), ("window", None)):
        posbench.extend(model, *methods)
        assert difference(model(text(BEYOND)).logits, expected) > SAME, methods


def test_a_cache_that_drops_what_a_whole_text_sees_is_named():
    import transformers

    model, ids = tiny("moshi"), text(BEYOND)

    def read(cache):
        cache = model(ids[:, :-1], past_key_values=cache, use_cache=True).past_key_values
        return model(ids[:, -1:], past_key_values=cache).logits

    assert difference(read(None), model(ids).logits[:, -1:]) > 0.1, "as it came"
    assert difference(read(transformers.DynamicCache()), model(ids).logits[:, -1:]) < SAME
    posbench.extend(model, "rerope")
    with pytest.raises(ConfigError, match="cache has dropped the first"):
        read(None)
    assert difference(read(transformers.DynamicCache()), model(ids).logits[:, -1:]) < SAME


@pytest.mark.parametrize(("kind", "words"), [
    ("gpt2", "GPT2LMHeadModel has a learned table of positions and no rotary positions"),
    ("bloom", "BloomForCausalLM has ALiBi's biases and no rotary positions"),
])  # fmt: skip
def test_a_refused_extension_names_what_the_model_has_and_what_works(kind, words):
    model = posbench.extend(tiny(kind), train_len=TRAIN_LEN)
    with pytest.raises(ConfigError, match=words) as error:
        posbench.extend(model, "yarn", target_len=TARGET)
    offered = re.search(r"choose extension=([a-z_|]+)", str(error.value))[1].split("|")
    assert len(offered) > 2
    for extension in offered:
        posbench.extend(model, extension, target_len=TARGET)
    assert "as_trained" not in str(error.value)


def test_the_example_of_the_documentation_runs():
    example = [
        line.strip()
        for line in posbench.extend.__doc__.splitlines()
        if line.strip().startswith(("posbench.", "model.g"))
    ]
    assert len(example) == 5 and any('{"name"' in line for line in example)
    model = tiny("llama")
    inputs = {"input_ids": text(80), "max_new_tokens": 2}
    for line in example:
        exec(
            line.replace("16384", str(TARGET)),
            {"posbench": posbench, "model": model, "inputs": inputs},
        )
    assert posbench.extend(model) is model
