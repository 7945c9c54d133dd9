"""Numbers do not depend on how many threads a job got: the same bits with one thread and with
two.
"""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import TRAIN_LEN, choices, legal_pairs, make_triple, small_model

from posbench.config.schema import ModelConfig, TrainConfig
from posbench.model import precision as bf16
from posbench.model.gpt import GPT, make_shape
from posbench.position.plan import make_plan
from posbench.position.products import ROW_GROUP, Linear, with_whole_row_groups
from posbench.training import optimizers

ROWS = (1, 2, 3, 8)


@pytest.fixture(autouse=True)
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def same_bits(compute) -> bool:
    """True if tensors are equal with one thread and with two."""
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(compute())
    return all(
        torch.equal(by_one_thread, by_two_threads)
        for by_one_thread, by_two_threads in zip(*results, strict=True)
    )


def read(model, methods, length, batch=3, dtype="fp32"):
    """Losses of the last rows of texts of one length, as evaluations score them; for each number of
    rows.
    """
    encoding, extension, scale = methods
    texts_BT = torch.randint(0, 50, (batch, length + 1), generator=torch.Generator().manual_seed(2))
    plan = make_plan(encoding, extension, scale=scale, trained_scale=scale, length=length)
    losses = []
    for n_rows in (n_rows for n_rows in ROWS if n_rows <= length):
        with torch.inference_mode(), bf16.autocast("cpu", dtype):
            logits_NV = model(texts_BT[:, :-1], plan, n_rows).float().flatten(0, 1)
            losses.append(
                F.cross_entropy(logits_NV, texts_BT[:, -n_rows:].flatten(), reduction="none")
            )
    return losses


@pytest.mark.parametrize("encoding", choices("encoding"))
def test_losses_of_every_encoding_and_of_its_extensions(encoding):
    plain = (encoding, "none", "none")
    long = 4 * TRAIN_LEN
    tried = [(plain, 2), (plain, TRAIN_LEN)]
    tried += [
        (pair, long)
        for pair in legal_pairs(long)
        if pair[0] == encoding and pair[1] in ("none", "ntk", "window", "rerope")
    ]
    for triple, length in tried:
        methods = make_triple(*triple)
        model = small_model(methods[0])
        assert same_bits(partial(read, model, methods, length)), (triple, length)


@pytest.fixture(scope="module")
def usual():
    """Model and methods of the usual width, heads 64 wide, which MKL multiplies otherwise than
    those of tests.
    """
    config = ModelConfig(d_model=128, n_layer=2, n_head=2, n_kv_head=None, d_ff=320)
    encoding, extension, scale = make_triple(
        "rope", "none", "none", d_model=128, n_head=2, n_kv_head=None
    )
    torch.manual_seed(0)
    model = GPT(config, encoding, 256)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    assert make_shape(config, TRAIN_LEN).head_dim == 64
    return model, (encoding, extension, scale)


@pytest.mark.parametrize("length", [2, 3, 32, 64, 129, 1100])
def test_losses_of_texts_that_are_read_for_their_last_tokens(usual, length):
    """recompute_window reads so: with one query of the last layer the losses of two threads were
    others in the eighth digit.
    """
    model, methods = usual
    assert same_bits(partial(read, model, methods, length, batch=2 if length > 1000 else 5))


def test_torchs_kernel_with_whole_groups_and_its_mask():
    generator = torch.Generator().manual_seed(0)
    for heads, width, keys, rows in itertools.product(
        (2, 5), (16, 17, 64, 66), (1, 16, 64, 129), (1, 2, 3, 4, 5)
    ):
        q, k, v = (torch.randn(1, heads, n, width, generator=generator) for n in (rows, keys, keys))
        mask = torch.randn(1, 1, rows, keys, generator=generator)
        queries, masks = with_whole_row_groups(q, mask)

        def attend(queries=queries, masks=masks, k=k, v=v, rows=rows):
            return [
                F.scaled_dot_product_attention(queries, k, v, attn_mask=masks, scale=1.0)[
                    :, :, :rows
                ]
            ]

        assert same_bits(attend), (heads, width, keys, rows)
        expected_BHTD = ((q.double() @ k.double().mT) + mask).softmax(-1) @ v.double()
        assert queries.shape[-2] == -(-rows // ROW_GROUP) * ROW_GROUP and torch.allclose(
            attend()[0].double(), expected_BHTD, atol=1e-5
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_linear_layer_of_any_number_of_rows(dtype):
    layer = Linear(128, 96).to(dtype)
    for n_rows in range(1, 53):
        x_NC = torch.randn(1, n_rows, 128, generator=torch.Generator().manual_seed(n_rows)).to(
            dtype
        )
        with torch.inference_mode():
            assert same_bits(lambda x_NC=x_NC: [layer(x_NC)]), n_rows
            expected_BNC = F.linear(x_NC.double(), layer.weight.double(), layer.bias.double())
            assert torch.allclose(
                layer(x_NC).double(), expected_BNC, atol=0.1 if dtype == torch.bfloat16 else 1e-5
            )


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_step_of_training(usual, dtype):
    untrained, (encoding, extension, scale) = usual
    tokens_BT = torch.randint(0, 256, (8, 65), generator=torch.Generator().manual_seed(3))
    config = TrainConfig(steps=4)
    start = {name: value.clone() for name, value in untrained.state_dict().items()}

    def trained():
        untrained.load_state_dict(start)
        plan = make_plan(encoding, extension, scale=scale, trained_scale=scale, length=64)
        steps = optimizers.make_optimizers(untrained, config)
        for _ in range(2):
            with bf16.autocast("cpu", dtype):
                loss = untrained.loss(tokens_BT[:, :-1], tokens_BT[:, 1:], plan)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(untrained.parameters(), 1.0)
            for optimizer in steps:
                optimizer.step()
                optimizer.zero_grad()
        return [loss.detach(), *(value.clone() for value in untrained.state_dict().values())]

    assert same_bits(trained)
