"""Random tiny models of transformers' families, what is known of their positions, and attention on
whole matrices in float64.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import dense_extensions  # noqa: F401 (fills the tables)
import pytest
import torch
from dense import FREQUENCIES, INTERPOLATED, SCALES, TEMPERATURE, coordinates
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
VOCAB, TRAIN_LEN, WINDOW = 96, 64, 24
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": TRAIN_LEN,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    "head_dim": None,
}  # fmt: skip
MAMBA = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16}


@dataclass(frozen=True)
class Family:
    """Configuration of a tiny model, and where it turns: the share of a head, in halves or
    neighbours, of its first or last channels.
    """

    config: dict = field(default_factory=dict)
    share: float = 1.0
    neighbours: bool = False
    last: bool = False
    unturned: tuple[int, ...] = ()
    backwards: bool = False
    amplitude: float = 1.0


SLIDING = {"sliding_window": WINDOW}
FOURTH = (3,)
FAMILIES = {
    "llama": Family(),
    "mistral": Family(SLIDING),
    "mixtral": Family({"num_local_experts": 4, "num_experts_per_tok": 2}),
    "ministral": Family({**SLIDING, "layer_types": None}),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_moe": Family(EXPERTS),
    "qwen3_next": Family({**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 32}, share=0.25),
    "gemma2": Family({**SLIDING, "attn_logit_softcapping": 0.3}),
    "gemma3_text": Family({**SLIDING, "num_hidden_layers": 6}),
    "olmo2": Family(),
    "olmo3": Family(SLIDING),
    "phi": Family({"num_key_value_heads": 4}, share=0.5),
    "phi3": Family({"pad_token_id": 0}),
    "gpt_neox": Family(share=0.25),
    "stablelm": Family({"num_key_value_heads": 4}, share=0.25),
    "persimmon": Family({"num_key_value_heads": 4}, share=0.5),
    "nemotron": Family(share=0.5),
    "glm4": Family({"pad_token_id": 0}, share=0.5, neighbours=True),
    "granite": Family({"attention_multiplier": 0.2}),
    "starcoder2": Family(SLIDING),
    "cohere": Family(neighbours=True),
    "cohere2": Family(SLIDING, neighbours=True, unturned=FOURTH),
    "smollm3": Family({"pad_token_id": 0}, unturned=FOURTH),
    "exaone4": Family({**SLIDING, "sliding_window_pattern": 4}, unturned=FOURTH),
    "gpt_oss": Family({**SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2},
        amplitude=0.1 * math.log(32) + 1),
    "deepseek_v3": Family(LATENT, share=1 / 3, last=True),
    "falcon_h1": Family(MAMBA),
    "llama4_text": Family(
        {"attention_chunk_size": WINDOW, "num_local_experts": 2, "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2},
        neighbours=True, unturned=FOURTH,
    ),
    "gpt2": Family({"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": TRAIN_LEN}),
    "opt": Family({"ffn_dim": 96, "word_embed_proj_dim": 64, "num_key_value_heads": None,
        "head_dim": None, "intermediate_size": None}),
    "nanochat": Family(backwards=True),
    "qwen2_moe": Family({**EXPERTS, "shared_expert_intermediate_size": 32}),
    "jetmoe": Family({"num_key_value_heads": 2, "kv_channels": 16, "num_local_experts": 4,
        "num_experts_per_tok": 2, "head_dim": None}),
}  # fmt: skip
LEARNED = ("gpt2", "opt")


def tiny(kind: str, **changed: object) -> nn.Module:
    """A model of a family, of random weights, whose norms and biases are random too."""
    torch.manual_seed(0)
    settings = {"vocab_size": VOCAB} if kind == "gpt2" else SIZES
    settings = {**settings, **FAMILIES[kind].config, **changed}
    config = transformers.AutoConfig.for_model(
        kind, **{key: value for key, value in settings.items() if value is not None}
    )
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if isinstance(value := getattr(config, name, None), int) and value >= config.vocab_size:
            setattr(config, name, 1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and ("norm" in name or name.endswith(("bias", "sinks"))):
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def text(batch: int, length: int) -> Tensor:
    return torch.randint(2, VOCAB, (batch, length), generator=torch.Generator().manual_seed(1))


@dataclass
class Dense:
    """Attention of a family under an extension and a scale, from queries and keys that were not
    turned.
    """

    family: Family
    extension: str
    scale: str
    theta: dict[int, list[float]]  # frequencies of each layer
    has_global_layers: bool  # these see the whole text, and the extension acts on them alone

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor,
        scaling: float | None = None,
        softcap: float | None = None, s_aux: Tensor | None = None, **unused: object,
    ) -> tuple[Tensor, None]:  # fmt: skip
        (heads, length, width), theta = query.shape[1:], self.theta.get(module.layer_idx)
        q, k, v = (
            states[0].double().repeat_interleave(heads // states.shape[1], dim=0)
            for states in (query, key, value)
        )
        seen = attention_mask[0, 0] == 0
        acts = not self.has_global_layers or bool(seen[-1, 0])
        extension, scale = (self.extension, self.scale) if acts else ("none", "none")
        q_pos, k_pos, visible = coordinates(extension, length, TRAIN_LEN)
        visible = visible & seen
        turned = round(self.family.share * width)
        start = width - turned if self.family.last else 0
        part = slice(start, start + turned)
        scores = torch.einsum("hid,hjd->hij", q, k)
        if theta is not None and module.layer_idx not in self.family.unturned:
            a, b = (
                _complex(tensor_HTD[:, :, part], self.family.neighbours) for tensor_HTD in (q, k)
            )
            if self.family.backwards:
                a, b = a.conj(), b.conj()
            change = FREQUENCIES.get(extension)
            if change:
                base = (theta[0] / theta[1]) ** len(theta)
                theta = change(theta, base, turned, length, TRAIN_LEN)
            pairs = a[:, :, None] * b[:, None].conj()
            distance = q_pos - k_pos
            rotated = _turned_products(pairs, distance, theta)
            if extension in INTERPOLATED:
                shorter, longer = (
                    _turned_products(pairs, whole_distance, theta)
                    for whole_distance in (distance.floor(), distance.ceil())
                )
                rotated = shorter + (longer - shorter) * (distance % 1)
            rotated = rotated * self.family.amplitude**2
            scores = scores - torch.einsum("hid,hjd->hij", q[:, :, part], k[:, :, part]) + rotated
        scores = scores * (width**-0.5 if scaling is None else scaling)
        if scale in SCALES:
            scores = scores * SCALES[scale](visible.sum(dim=1).double(), length, TRAIN_LEN)[:, None]
        if extension in TEMPERATURE:
            scores = scores * TEMPERATURE[extension](length, TRAIN_LEN)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~visible, -math.inf)
        if s_aux is not None:
            scores = torch.cat(
                (scores, s_aux.double()[:, None, None].expand(-1, length, 1)), dim=-1
            )
        weights = scores.softmax(dim=-1)[..., :length]
        return (weights @ v).transpose(0, 1)[None].to(value.dtype).contiguous(), None


def _turned_products(pairs: Tensor, distance: Tensor, theta: list[float]) -> Tensor:
    angle = distance[..., None] * torch.tensor(theta, dtype=torch.float64)
    return (pairs * torch.polar(torch.ones_like(angle), angle)).real.sum(-1)


def _complex(x: Tensor, neighbours: bool) -> Tensor:
    pairs = x.unflatten(-1, (-1, 2)) if neighbours else x.unflatten(-1, (2, -1)).mT
    return torch.view_as_complex(pairs.contiguous())


def _rotary(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if "RotaryEmbedding" in type(module).__name__]


def frequencies(model: nn.Module) -> dict[int, list[float]]:
    """Frequencies of each layer, as its rotary module holds them."""
    types = getattr(model.config, "layer_types", None) or []
    by_layer = {}
    for module in _rotary(model):
        for layer in range(model.config.num_hidden_layers):
            name = next(
                (
                    candidate
                    for candidate in (f"{types[layer]}_inv_freq" if types else "", "inv_freq")
                    if hasattr(module, candidate)
                ),
                None,
            )
            if name:
                by_layer[layer] = getattr(module, name).double().tolist()
    return by_layer


@contextmanager
def densely(
    model: nn.Module, kind: str, extension: str = "none", scale: str = "none"
) -> Iterator[None]:
    """Context in which a model attends by `Dense`, with the masks that transformers makes for its
    own eager attention.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    masks: list[bool] = []

    def look(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor,
        **unused: object,
    ) -> tuple[Tensor, None]:
        masks.append(bool(attention_mask[0, 0, -1, 0] == 0))
        return (
            value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
            .transpose(1, 2)
            .contiguous(),
            None,
        )

    def straight(module: nn.Module, args: tuple, answer: object) -> object:
        return (
            torch.ones_like(answer)
            if isinstance(answer, Tensor)
            else (torch.ones_like(answer[0]), torch.zeros_like(answer[1]))
        )

    def through(function: Callable) -> None:
        AttentionInterface.register("dense_test", function)
        AttentionMaskInterface.register("dense_test", eager_mask)
        model.config._attn_implementation = "dense_test"

    handles = [module.register_forward_hook(straight) for module in _rotary(model)]
    try:
        through(look)
        model(text(1, 2 * WINDOW), use_cache=False)
        through(Dense(FAMILIES[kind], extension, scale, frequencies(model), any(masks)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        model.config._attn_implementation = before
        AttentionInterface._global_mapping.pop("dense_test", None)
        AttentionMaskInterface._global_mapping.pop("dense_test", None)


def difference(actual: Tensor, expected: Tensor) -> float:
    """Largest difference in standard deviations of what is expected."""
    return float(((actual - expected).abs().max() / expected.std()).detach())
