"""Random tiny models of the families that compute attention themselves, and their own code with
dense attention in float64.

Biases of ALiBi are handed to a model's own code as whole matrices [H, L, L]. A rotary model has its
angles taken away, and its softmax replaced by `families.Dense`. Nothing of posbench takes part."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from dense import SCALES, coordinates
from families import TRAIN_LEN, VOCAB, Dense, Family, transformers
from torch import Tensor, nn

MASKED = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Own:
    """A family's model_type and configuration, the slopes of its heads (None: rotary), and where it
    turns.
    """

    model_type: str
    config: dict
    slopes: tuple[float, ...] | None = None
    turned: Family | None = None


FALCON = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": TRAIN_LEN,
}
GPTJ = {"n_embd": 64, "n_layer": 3, "n_head": 4, "rotary_dim": 8, "n_positions": TRAIN_LEN}
RW = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
FOUR = (2**-2, 2**-4, 2**-6, 2**-8)
BY_EIGHT = tuple(2.0**-h for h in range(1, 9))
# Six heads: of the slopes of eight, BLOOM has those of four and then the 1st and 3rd; MPT every
# second, then the 1st and 3rd.
SIX_OF_BLOOM = (*FOUR, BY_EIGHT[0], BY_EIGHT[2])
SIX_OF_MPT = (BY_EIGHT[1], BY_EIGHT[3], BY_EIGHT[5], BY_EIGHT[7], BY_EIGHT[0], BY_EIGHT[2])
OWN = {
    "bloom": Own(
        "bloom", {"hidden_size": 64, "n_layer": 3, "n_head": 4, "seq_length": TRAIN_LEN}, FOUR
    ),
    "bloom of six heads": Own(
        "bloom",
        {"hidden_size": 96, "n_layer": 3, "n_head": 6, "seq_length": TRAIN_LEN},
        SIX_OF_BLOOM,
    ),
    "mpt": Own("mpt", {"d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": TRAIN_LEN}, FOUR),
    "mpt of six heads": Own(
        "mpt",
        {
            "d_model": 96,
            "n_layers": 3,
            "n_heads": 6,
            "max_seq_len": TRAIN_LEN,
            "attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.3},
        },
        SIX_OF_MPT,
    ),
    "falcon": Own("falcon", FALCON, turned=Family()),
    "falcon of two key heads": Own(
        "falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, turned=Family()
    ),
    "falcon of four key heads": Own(
        "falcon",
        {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True},
        turned=Family(),
    ),
    "falcon_rw": Own("falcon", {**FALCON, **RW}, tuple(slope / 4 for slope in FOUR)),
    "gptj": Own("gptj", GPTJ, turned=Family(share=0.5, neighbours=True)),
    "codegen": Own(
        "codegen", {**GPTJ, "n_ctx": TRAIN_LEN}, turned=Family(share=0.5, neighbours=True)
    ),
}
SLOPED = tuple(kind for kind, spec in OWN.items() if spec.slopes)
TURNED = tuple(kind for kind, spec in OWN.items() if spec.turned)
UNLIMITED = tuple(
    kind for kind, spec in OWN.items() if spec.model_type in ("bloom", "falcon")
)  # read longer texts as they came


def tiny_own(kind: str, attn_implementation: str | None = None, **changed: object) -> nn.Module:
    """A model of random weights, whose norms and biases are random too."""
    torch.manual_seed(0)
    spec = OWN[kind]
    ids = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(spec.model_type, **ids, **{**spec.config, **changed})
    chosen = {"attn_implementation": attn_implementation} if attn_implementation else {}
    model = (
        transformers.AutoModelForCausalLM.from_config(config, **chosen).eval().requires_grad_(False)
    )
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
        elif "embed" not in name and "wte" not in name:
            parameter.copy_(0.15 * torch.randn_like(parameter))
    model.generation_config.eos_token_id = None
    return model


@torch.no_grad()
def dense_logits(
    kind: str, ids_1T: Tensor, extension: str = "none", scale: str = "none", **changed: object
) -> Tensor:
    """Logits [1, T, V] of a tiny model, in float64, by its own code."""
    model, spec = tiny_own(kind, **changed).double(), OWN[kind]
    length = ids_1T.shape[1]
    q_pos, k_pos, visible = coordinates(extension, length, TRAIN_LEN)
    visible = visible & torch.ones(length, length, dtype=torch.bool).tril()
    factor_T = torch.ones(length, dtype=torch.float64)
    if scale in SCALES:
        factor_T = SCALES[scale](visible.sum(dim=1).double(), length, TRAIN_LEN)
    if spec.slopes is None:
        context = _turned_densely(model, spec, extension, scale, length)
    else:
        distance_TT = (q_pos - k_pos).double()
        bias_HTT = torch.stack([-slope * distance_TT for slope in spec.slopes]).masked_fill(
            ~visible, MASKED
        )
        context = _biased_densely(model, spec.model_type, bias_HTT, factor_T)
    with context:
        return model(ids_1T, attention_mask=torch.ones_like(ids_1T), use_cache=False).logits


@contextmanager
def _biased_densely(
    model: nn.Module, model_type: str, bias_HTT: Tensor, factor_T: Tensor
) -> Iterator[None]:
    """Context in which a model adds whole matrices to its scores, whose other part is multiplied by
    a factor of each query.
    """
    base = model.base_model
    layers = base.blocks if model_type == "mpt" else base.h
    if model_type == "mpt":
        for layer in layers:
            layer.attn.softmax_scale = layer.attn.softmax_scale * factor_T[:, None]
        base.build_mpt_alibi_tensor = lambda *_, **unused: bias_HTT
        yield
        return
    for layer in layers:
        _multiply_queries(layer.self_attention, factor_T)
    if model_type == "bloom":
        base.build_alibi_tensor = lambda *_, **unused: bias_HTT
        yield
        return
    code = sys.modules[type(base).__module__]
    width = layers[0].self_attention.head_dim
    with mock.patch.object(code, "build_alibi_tensor", lambda *_, **unused: bias_HTT * width**0.5):
        yield


def _multiply_queries(module: nn.Module, factor_T: Tensor) -> None:
    name = "_reshape" if hasattr(module, "_reshape") else "_split_heads"
    split = getattr(module, name)
    factor = factor_T[:, None] if name == "_reshape" else factor_T[:, None, None]

    def multiplied(mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = split(mixed)
        return query * factor, key, value

    setattr(module, name, multiplied)


@contextmanager
def _turned_densely(
    model: nn.Module, spec: Own, extension: str, scale: str, length: int
) -> Iterator[None]:
    base = model.base_model
    width = model.config.hidden_size // model.config.num_attention_heads
    channels = round(spec.turned.share * width)
    theta = [10000.0 ** (-2 * c / channels) for c in range(channels // 2)]
    dense = Dense(
        spec.turned,
        extension,
        scale,
        dict.fromkeys(range(len(base.h)), theta),
        has_global_layers=True,
    )
    causal = torch.zeros(1, 1, length, length).masked_fill(
        torch.ones(length, length).triu(1).bool(), -1.0
    )

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return dense(module, query, key, value, causal)[0].transpose(1, 2)

    if spec.model_type == "falcon":
        base.rotary_emb.register_forward_hook(
            lambda module, args, answer: (torch.ones_like(answer[0]), torch.zeros_like(answer[1]))
        )
        layer = base.h[0].self_attention
        function = mock.patch.object(
            torch.nn.functional,
            "scaled_dot_product_attention",
            lambda query, key, value, **unused: attention(layer, query, key, value),
        )
        with function:
            yield
        return
    for layer in base.h:
        module = layer.attn
        sin = torch.zeros(length, channels // 2, dtype=torch.float64)
        module.embed_positions = torch.cat((sin, torch.ones_like(sin)), dim=1)
        module._attn = lambda query, key, value, mask, module=module: (
            attention(module, query, key, value),
            None,
        )
    yield
