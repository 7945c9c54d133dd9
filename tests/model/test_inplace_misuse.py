"""What a user may do with an extended model: the logits are right, or a sentence says why there are
none.
"""

import copy

import pytest
import torch
from families import TRAIN_LEN, difference, text, tiny, transformers

import posbench
from posbench.common.errors import ConfigError

SAME = 1e-4
KNOWN = 80  # tokens in a cache
LENGTH = 90


def test_a_model_with_the_same_configuration_object_is_not_changed():
    model = tiny("llama")
    other = type(model)(model.config).eval()
    ids = text(1, LENGTH)
    logits, other_logits = model(ids).logits, other(ids).logits
    config = model.config
    posbench.extend(model, "rerope", target_len=TRAIN_LEN * 2)
    assert torch.equal(other(ids).logits, other_logits)
    assert other.config.max_position_embeddings == TRAIN_LEN
    assert torch.equal(other.generate(ids, max_new_tokens=3, do_sample=False)[:, :LENGTH], ids)
    posbench.extend(other, "streaming")
    extended = [either(ids).logits for either in (model, other)]
    model.config.pad_token_id = 7
    posbench.restore(other)
    assert torch.equal(other(ids).logits, other_logits)
    assert torch.equal(model(ids).logits, extended[0])
    assert difference(extended[0], logits) > 1e-3 and difference(extended[1], other_logits) > 1e-3
    posbench.restore(model)
    assert model.config is config and other.config is config
    assert all(layer.self_attn.config is config for layer in model.model.layers)
    assert torch.equal(model(ids).logits, logits)
    assert config.pad_token_id == 7, "what the user set meanwhile stays"
    assert config.max_position_embeddings == TRAIN_LEN


def test_a_model_made_from_the_configuration_of_an_extended_one_is_refused():
    model, ids = posbench.extend(tiny("llama"), "rerope"), text(1, LENGTH)
    other = transformers.AutoModelForCausalLM.from_config(model.config).eval()
    with pytest.raises(ConfigError, match="attends by the methods of another model"):
        other(ids)
    with pytest.raises(ConfigError, match="another model"):
        posbench.extend(other, "rerope")
    posbench.restore(model)
    assert torch.equal(
        other(ids).logits, posbench.restore(posbench.extend(other, "rerope"))(ids).logits
    )


def filled(model, ids):
    return model(ids[:, :KNOWN], use_cache=True).past_key_values


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next"])
def test_a_cache_is_read_only_by_the_methods_that_filled_it(kind):
    model, ids = tiny(kind), text(1, LENGTH)
    as_it_came = filled(model, ids)
    posbench.extend(model, "streaming")
    of_streaming = filled(model, ids)
    copied = copy.deepcopy(of_streaming)
    expected = model(ids).logits[:, KNOWN:]
    for cache in (of_streaming, copied):
        assert difference(model(ids[:, KNOWN:], past_key_values=cache).logits, expected) < SAME
    with pytest.raises(ConfigError, match="filled before the present methods"):
        model(ids[:, KNOWN:], past_key_values=as_it_came)
    posbench.extend(model, "rerope" if kind != "qwen3_next" else "lm_infinite")
    for cache in (as_it_came, of_streaming, copied):
        with pytest.raises(ConfigError, match="filled before the present methods"):
            model(ids[:, KNOWN:], past_key_values=cache)
        with pytest.raises(ConfigError, match="filled before the present methods"):
            model.model(ids[:, KNOWN:], past_key_values=cache)
        with pytest.raises(ConfigError, match="filled before the present methods"):
            model.generate(ids, past_key_values=cache, max_new_tokens=2)
    of_decoder = model.model(ids[:, :KNOWN], use_cache=True).past_key_values
    expected = model(ids).logits[:, KNOWN:]
    assert difference(model(ids[:, KNOWN:], past_key_values=of_decoder).logits, expected) < SAME
    of_rerope = filled(model, ids)
    posbench.restore(model)
    for cache in (of_rerope, of_decoder, of_streaming):
        with pytest.raises(ConfigError, match="the restored model cannot read it"):
            model(ids[:, KNOWN:], past_key_values=cache)
    expected = model(ids).logits[:, KNOWN:]
    assert difference(model(ids[:, KNOWN:], past_key_values=as_it_came).logits, expected) < SAME


def test_an_empty_cache_is_taken_whoever_made_or_emptied_it():
    model, ids = tiny("llama"), text(1, LENGTH)
    static = transformers.StaticCache(model.config, max_cache_len=128)
    model(ids[:, :KNOWN], past_key_values=static)
    posbench.extend(model, "rerope")
    with pytest.raises(ConfigError, match="filled before the present methods"):
        model(ids[:, KNOWN:], past_key_values=static)
    static.reset()
    for cache in (static, transformers.DynamicCache()):
        logits = model(ids, past_key_values=cache).logits
        assert difference(logits, model(ids).logits) < SAME


def test_a_mask_shorter_than_the_text_is_refused_unless_it_hides_nothing():
    model, ids = posbench.extend(tiny("llama"), "rerope"), text(2, LENGTH)
    mask = torch.ones(2, LENGTH - 20, dtype=torch.long)
    assert torch.equal(model(ids, attention_mask=mask).logits, model(ids).logits)
    full_mask = torch.ones(2, LENGTH, dtype=torch.long)
    full_mask[0, :3] = 0
    cache = model(
        ids[:, :KNOWN], attention_mask=full_mask[:, :KNOWN], use_cache=True
    ).past_key_values
    new = torch.ones(2, LENGTH - KNOWN, dtype=torch.long)
    new[0, :2] = 0
    with pytest.raises(
        ConfigError, match="attention_mask has 10 columns and the text has 90 tokens"
    ):
        model(ids[:, KNOWN:], attention_mask=new, past_key_values=cache)
    logits = model(ids[:, KNOWN:], attention_mask=full_mask, past_key_values=cache).logits
    assert difference(logits, model(ids, attention_mask=full_mask).logits[:, KNOWN:]) < SAME


@pytest.mark.slow
def test_torch_compile_leaves_the_attention_as_it_is():
    model = posbench.extend(tiny("llama", num_hidden_layers=1), "rerope")
    compiled = torch.compile(model, backend="eager")
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[0, :3] = 0
    for ids, keywords in (
        (text(1, LENGTH), {}),
        (text(1, KNOWN), {}),
        (text(1, LENGTH), {"attention_mask": mask}),
    ):
        assert difference(compiled(ids, **keywords).logits, model(ids, **keywords).logits) < SAME
    cache = compiled(ids[:, :KNOWN], use_cache=True).past_key_values
    logits = compiled(ids[:, KNOWN:], past_key_values=cache).logits
    assert difference(logits, model(ids).logits[:, KNOWN:]) < SAME
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("kind", "method"), [("llama", "pi"), ("gemma3_text", "pi"), ("gpt2", "table_linear")]
)
def test_a_refused_second_call_keeps_the_first_methods_and_their_caches(kind, method):
    model, ids = posbench.extend(tiny(kind), method, target_len=128), text(1, LENGTH)
    logits, cache = model(ids).logits, filled(model, ids)
    for keywords in ({}, {"train_len": 32}):
        with pytest.raises(ConfigError):
            posbench.extend(
                model, "table_linear" if kind != "gpt2" else "yarn", target_len=256, **keywords
            )
        with pytest.raises(ConfigError, match="unknown"):
            posbench.extend(model, "yarm", **keywords)
        with pytest.raises(ConfigError, match="must be a whole number of tokens"):
            posbench.extend(model, method, train_len="64")
        assert torch.equal(model(ids).logits, logits)
        longest = "n_positions" if kind == "gpt2" else "max_position_embeddings"
        assert getattr(model.config, longest) == 128
    later_logits = model(ids[:, KNOWN:], past_key_values=cache).logits
    assert difference(later_logits, logits[:, KNOWN:]) < SAME
    posbench.restore(model)
    assert getattr(model.config, longest) == TRAIN_LEN
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
