"""The model against other people's Llama, and its own options."""

import pytest
import torch
from conftest import small_model, small_shape

from posbench.common.errors import ConfigError
from posbench.config.schema import JobConfig
from posbench.encodings.rope import Rope
from posbench.encodings.t5 import T5
from posbench.position.plan import make_plan


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_a_rope_model_is_transformers_llama(tied):
    transformers = pytest.importorskip("transformers")
    model = small_model(Rope(small_shape()), tied=tied, d_ff=48)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    llama = transformers.LlamaForCausalLM(config).eval()
    weights = {
        (name if name.startswith("lm_head") else f"model.{name}"): value
        for name, value in model.state_dict().items()
    }
    assert not llama.load_state_dict(weights, strict=True).missing_keys
    text_BT = torch.randint(0, 50, (2, 40))
    torch.testing.assert_close(
        model(text_BT, make_plan(model.encoding, length=40)),
        llama(text_BT).logits,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("qk_norm", ["rms", "l2", "key_l2"])
@torch.no_grad()
def test_qk_norm_bounds_what_it_says(qk_norm):
    model = small_model(Rope(small_shape()), qk_norm=qk_norm)
    norm = model.layers[0].self_attn.norm
    q, k = norm(torch.randn(1, 4, 5, 8) * 7, torch.randn(1, 2, 5, 8) * 7)
    length = torch.tensor(8.0).sqrt()
    torch.testing.assert_close(k.norm(dim=-1), length.expand(1, 2, 5), rtol=1e-4, atol=1e-4)
    assert torch.allclose(q.norm(dim=-1), length, atol=1e-3) == (qk_norm != "key_l2")
    assert model(torch.randint(0, 50, (1, 9)), make_plan(model.encoding, length=9)).isfinite().all()


@pytest.mark.parametrize("encoding", [Rope, T5])
@pytest.mark.parametrize("last", [1, 3, 15, 20, 50])
@torch.no_grad()
def test_the_last_positions_are_those_of_the_whole(last, encoding):
    """Also more of them than there are."""
    model = small_model(encoding(small_shape()))
    plan, text_BT = make_plan(model.encoding, length=20), torch.randint(0, 50, (3, 20))
    torch.testing.assert_close(
        model(text_BT, plan, last), model(text_BT, plan)[:, -last:], rtol=1e-4, atol=1e-4
    )


def test_a_fresh_model_guesses_uniformly():
    from posbench.model.build import make_model

    model = make_model(JobConfig(), 100)
    text_BT = torch.randint(0, 100, (2, 16))
    assert model.loss(
        text_BT, text_BT, make_plan(model.encoding, length=16)
    ).item() == pytest.approx(4.60517, abs=1e-4)


def test_weights_depend_on_the_seed_alone_and_not_on_the_encoding():
    from posbench.model.build import make_model

    def weights(encoding: str, seed: int) -> dict:
        target = f"posbench.encodings.{encoding}.{encoding.title()}"
        return make_model(JobConfig(encoding={"_target_": target}, seed=seed), 100).state_dict()

    rope, again, learned, other = (
        weights("rope", 0),
        weights("rope", 0),
        weights("learned", 0),
        weights("rope", 1),
    )
    assert all(
        torch.equal(value, again[name]) and torch.equal(value, learned[name])
        for name, value in rope.items()
    )
    assert not torch.equal(
        rope["layers.0.mlp.up_proj.weight"], other["layers.0.mlp.up_proj.weight"]
    )


@pytest.mark.parametrize(("d_model", "n_head", "n_kv_head"), [(30, 4, None), (32, 4, 3)])
def test_heads_that_do_not_divide_are_refused(d_model, n_head, n_kv_head):
    with pytest.raises(ConfigError, match="is not a multiple of"):
        small_shape(d_model=d_model, n_head=n_head, n_kv_head=n_kv_head)
