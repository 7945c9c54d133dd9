"""Frequencies, temperatures and slopes beside the libraries that people run."""

import itertools

import numpy as np
import pytest
import torch

from posbench.encodings.alibi import alibi_slopes
from posbench.encodings.p_rope import PRope
from posbench.encodings.rope import Rope
from posbench.extensions.dynamic_ntk import DynamicNtk
from posbench.extensions.llama3 import Llama3
from posbench.extensions.longrope import Longrope
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.extensions.pi import Pi
from posbench.extensions.yarn import Yarn
from posbench.position.geometry import Shape, Span
from posbench.position.interfaces import Extension
from posbench.scale_attention.ministral import Ministral

GRID = list(itertools.product((8, 32, 64, 96, 128), (1e4, 5e5), (64, 512, 4096), (2, 3.5, 8, 32)))


def shape(dim: int, train_len: int) -> Shape:
    return Shape(d_model=dim, n_layer=1, n_head=1, n_kv_head=1, train_len=train_len)


def reference(
    kind: str, dim: int, base: float, train_len: int, length: int, **parameters
) -> tuple[np.ndarray, float]:
    """transformers' frequencies and factor of cos and sin."""
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    longest = train_len
    if kind in ("yarn", "longrope", "llama3"):
        parameters["original_max_position_embeddings"], longest = (
            train_len,
            round(train_len * parameters["factor"]),
        )
    parameters = {"rope_type": kind, "rope_theta": base, **parameters}
    config = LlamaConfig(
        hidden_size=dim,
        num_attention_heads=1,
        max_position_embeddings=longest,
        rope_parameters=parameters,
    )
    freq_F, factor = rope_utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    return freq_F.double().numpy(), factor


def ours(
    extension: Extension, dim: int, base: float, train_len: int, length: int
) -> tuple[np.ndarray, float]:
    """Frequencies and factor on the logits."""
    span = Span(train_len, length, extension.target_len(length))
    return extension.spectrum(
        Rope(shape(dim, train_len), base).spectrum(), span
    ).freq_F.numpy(), extension.temperature(span)


def compare(
    extension: Extension,
    kind: str,
    dim: int,
    base: float,
    train_len: int,
    length: int,
    **parameters,
) -> None:
    freq_F, temperature = ours(extension, dim, base, train_len, length)
    wanted_F, factor = reference(kind, dim, base, train_len, length, **parameters)
    # The library's ramps are float32 too, which shows as a share of the frequency that they divide.
    slack_F = 1e-6 * wanted_F + 1e-7 * ours(Extension(), dim, base, train_len, length)[0]
    assert (abs(freq_F - wanted_F) <= slack_F).all(), (dim, base, train_len, length)
    assert temperature == pytest.approx(factor**2, rel=1e-6)


def test_pi_is_linear_scaling():
    for dim, base, train_len, factor in GRID:
        length = int(factor * train_len)
        (band,) = Pi().bands(Span(train_len, length, length))
        pos_T = torch.tensor([1.0, length / 3, length - 1], dtype=torch.float64)
        angle_TF = Rope(shape(dim, train_len), base).spectrum().angles(band.q(pos_T)).numpy()
        wanted_F, _ = reference("linear", dim, base, train_len, length, factor=length / train_len)
        np.testing.assert_allclose(angle_TF, np.outer(pos_T, wanted_F), rtol=1e-6)


@pytest.mark.parametrize("f", [1.0, 2.0, 4.0])
def test_dynamic_ntk(f):
    for dim, base, train_len, factor in GRID:
        for length in (train_len - 1, train_len, int(factor * train_len)):
            compare(DynamicNtk(f), "dynamic", dim, base, train_len, length, factor=f)


@pytest.mark.parametrize(("fed", "length"), [(1, 40), (7, 40), (32, 33), (100, 40)])
def test_dynamic_ntk_beside_a_cache_turns_each_piece_as_transformers_does_at_its_end(fed, length):
    dim, base, train_len = 16, 1e4, 16
    span = Span(train_len, length, length)
    angle_TF = (
        DynamicNtk(4.0, fed=fed)
        .spectrum(Rope(shape(dim, train_len), base).spectrum(), span)
        .angles(torch.arange(length))
        .numpy()
    )
    for token in range(length):
        end = min(length, (token // fed + 1) * fed)
        np.testing.assert_allclose(
            angle_TF[token],
            token * reference("dynamic", dim, base, train_len, end, factor=4.0)[0],
            rtol=2e-6,
        )


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 32), (1, 4), (2, 8)])
def test_yarn(truncate, alpha, beta):
    for dim, base, train_len, factor in GRID:
        length = int(factor * train_len)
        parameters = {
            "factor": length / train_len,
            "beta_fast": beta,
            "beta_slow": alpha,
            "truncate": truncate,
        }
        compare(
            Yarn(alpha, beta, truncate=truncate), "yarn", dim, base, train_len, length, **parameters
        )


def test_longrope_with_given_factors():
    random = np.random.default_rng(0)
    for dim, base, train_len, factor in GRID:
        length = int(factor * train_len)
        long, short = (sorted(random.uniform(1, 1 + top, dim // 2)) for top in (factor, 0.5))
        parameters = {"factor": length / train_len, "long_factor": long, "short_factor": short}
        extension = Longrope(long, short, mode="fixed", target_len=length)
        for read_length in (train_len, length):
            compare(extension, "longrope", dim, base, train_len, read_length, **parameters)


@pytest.mark.parametrize(("alpha", "beta"), [(1, 4), (2, 16)])
def test_llama3(alpha, beta):
    for dim, base, train_len, factor in GRID:
        length = int(factor * train_len)
        parameters = {
            "factor": length / train_len,
            "low_freq_factor": alpha,
            "high_freq_factor": beta,
        }
        compare(Llama3(alpha, beta), "llama3", dim, base, train_len, length, **parameters)
        compare(NtkByParts(alpha, beta), "llama3", dim, base, train_len, length, **parameters)


@pytest.mark.parametrize("p", [0.25, 0.5, 0.75, 1.0])
def test_p_rope_interpolated_is_proportional_scaling(p):
    for dim, base, train_len, factor in GRID:
        encoding = PRope(shape(dim, train_len), p, base=base)
        (band,) = Pi().bands(Span(train_len, train_len, int(factor * train_len)))
        pos_T = torch.tensor([7.0], dtype=torch.float64)
        table = encoding.table(band.q(pos_T), encoding.spectrum())
        parameters = {"factor": int(factor * train_len) / train_len, "partial_rotary_factor": p}
        wanted_F, _ = reference("proportional", dim, base, train_len, train_len, **parameters)
        np.testing.assert_allclose(table[1, 0].numpy(), np.sin(7 * wanted_F), atol=2e-6)


def test_ministral_scale():
    modeling = pytest.importorskip("transformers.models.ministral3.modeling_ministral3")
    index_T = torch.arange(300)
    wanted_T = modeling.get_llama_4_attn_scale(index_T[None], 0.1, 64).flatten()
    found_T = Ministral(shape(8, 64))(index_T.double() + 1, Span(64, 300, 300), 0)
    torch.testing.assert_close(found_T.float(), wanted_T)


@pytest.mark.parametrize("n_head", range(1, 65))
def test_alibi_slopes_of_any_number_of_heads(n_head):
    x_transformers = pytest.importorskip("x_transformers.x_transformers")
    assert alibi_slopes(n_head) == pytest.approx(
        x_transformers.AlibiPositionalBias._get_slopes(n_head)
    )
