"""Speed and memory of every method beside plain attention: training steps, and evaluation at many times the training length.

Every case runs once in each round, and its time is divided by that of `rope` with `extension=none` in the same round. So other work of
the machine slows both. The median ratio is reported.
Memory is that of one window, or of one training step. The model is the default one.
Letters: B batch, T tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.config.names import choices
from posbench.config.schema import ModelConfig, TrainConfig
from posbench.model import precision as bf16
from posbench.model.gpt import GPT, make_shape
from posbench.model.memory import tensor_mib
from posbench.position.instantiate import make
from posbench.position.legality import check, fed_length
from posbench.position.plan import Plan, TrainingPlans, make_plan
from posbench.training import optimizers as optim

MODEL, VOCAB = ModelConfig(d_ff=320), 1024
SCORED = 8  # positions of each window that get logits, as in evaluation
BUDGET = 20.0  # seconds: a case whose first pass takes longer is not measured, here and at longer lengths, and is reported as slow
BASE = "rope"

Case = Callable[[Tensor], None]  # one training step, or one evaluation pass, over tokens [B, T]


@dataclass(frozen=True)
class Figure:
    """One measurement: `ratio` of its time to the base case's in the same rounds, `seconds` of a step or pass, `mib` of tensors."""

    kind: str  # training, or evaluation
    case: str
    length: int
    ratio: float | None
    seconds: float | None
    tokens_per_second: float | None
    mib: float | None
    note: str = ""


def transformers_llama() -> nn.Module | None:
    """LlamaForCausalLM of the default model's shape with torch's fused attention; None if transformers is not installed."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=MODEL.d_model,
        intermediate_size=MODEL.d_ff,
        num_hidden_layers=MODEL.n_layer,
        num_attention_heads=MODEL.n_head,
        num_key_value_heads=MODEL.n_head,
        max_position_embeddings=2**20,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def training(configs: list[Path], train_len: int, repeats: int, only: list[str]) -> list[Figure]:
    """Measure a training step (forward, backward, optimizers; 2,048 tokens, bf16): each encoding, each scale for training, transformers."""
    shape, cases = make_shape(MODEL, train_len), {}
    text_BT = torch.randint(0, VOCAB, (TrainConfig().tokens_per_step // train_len, train_len))
    for name, node in choices(configs, "encoding").items():
        cases[name] = _step(GPT(MODEL, make(node, shape), VOCAB))
    for name, node in choices(configs, "scale_attention").items():
        scale = make(node, shape)
        if scale.trained or scale.by_distance:
            rope = make(choices(configs, "encoding")[BASE], shape)
            cases[f"{BASE}, {name} trained in"] = _step(GPT(MODEL, rope, VOCAB, scale))
    llama = transformers_llama()
    if llama is not None:
        cases["transformers Llama"] = _llama_step(llama)
    cases = {name: call for name, call in cases.items() if not only or name in only or name == BASE}
    timings, _ = _rounds(cases, text_BT, repeats)
    return _figures("training", timings, cases, text_BT, text_BT)


def _step(model: GPT) -> Case:
    plans, optimizers = TrainingPlans(model.encoding, model.scale, "cpu", 0), optim.build(model, TrainConfig())
    steps = iter(range(10**9))

    def step(text_BT: Tensor) -> None:
        with bf16.autocast("cpu", "bf16"):
            loss = model.loss(text_BT, text_BT, plans(text_BT.shape[1], next(steps)))
        _learn(loss, optimizers)

    return step


def _llama_step(llama: nn.Module) -> Case:
    optimizers = optim.build(llama, TrainConfig())

    def step(text_BT: Tensor) -> None:
        with bf16.autocast("cpu", "bf16"):
            logits_BTV = llama(text_BT, use_cache=False).logits
            loss = nn.functional.cross_entropy(logits_BTV.float().flatten(0, 1), text_BT.flatten())
        _learn(loss, optimizers)

    return step


def _learn(loss: Tensor, optimizers: list) -> None:
    with bf16.products("cpu"):
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def evaluation(configs: list[Path], train_len: int, lengths: list[int], repeats: int, only: list[str]) -> Iterator[list[Figure]]:
    """Measure a pass over 8,192 tokens (or one window, if that is longer) in float32 for each case. Yields a list for each length."""
    models = _models(configs, train_len)
    llama = transformers_llama()
    slow: set[str] = set()
    for length in lengths:
        text_BT = torch.randint(0, VOCAB, (max(1, 8192 // length), length))
        cases: dict[str, Case] = {}
        for name, (model, extension, scale) in models.items():
            if (only and name not in only and name != BASE) or name in slow:
                continue
            try:
                check(model.encoding, extension, scale, [length], allow_untested=True)
            except ConfigError:
                continue  # not defined at this length: a learned table has no such position
            plan = make_plan(model.encoding, extension, scale, length=length, trained_scale=model.scale)
            cases[name] = _forward(model, plan)
        if llama is not None and (not only or "transformers Llama" in only):
            cases["transformers Llama"] = _llama_forward(llama)
        timings, over = _rounds(cases, text_BT, repeats)
        yield _figures("evaluation", timings, cases, text_BT, text_BT[:1]) + [
            Figure("evaluation", name, length, None, None, None, None, f"above {BUDGET:.0f} s") for name in sorted(slow | over)
        ]
        slow |= over


def _models(configs: list[Path], train_len: int) -> dict[str, tuple]:
    """Model, extension and scale of each case: every encoding alone, then RoPE with every extension and with every scale.

    Extensions that need a learned table use encoding `learned`.
    """
    shape = make_shape(MODEL, train_len)
    nodes = {group: choices(configs, group) for group in ("encoding", "extension", "scale_attention")}
    plain, unscaled = make(nodes["extension"]["none"]), make(nodes["scale_attention"]["none"], shape)
    models = {name: (GPT(MODEL, make(node, shape), VOCAB).eval(), plain, unscaled) for name, node in nodes["encoding"].items()}
    rope, learned = models[BASE][0], models["learned"][0]
    for name, node in nodes["extension"].items():
        extension = make(node)
        # A crop feeds fewer tokens, which is no longer input.
        if name != "none" and fed_length(extension, train_len, 2 * train_len) > train_len:
            base = BASE if not extension.needs & ~rope.encoding.traits else "learned"
            models[f"{base} + {name}"] = (rope if base == BASE else learned, extension, unscaled)
    for name, node in nodes["scale_attention"].items():
        scale = make(node, shape)
        if scale.trained:
            models[f"{BASE}, {name} trained in"] = (GPT(MODEL, make(nodes["encoding"][BASE], shape), VOCAB, scale).eval(), plain, unscaled)
        elif name != "none":
            models[f"{BASE}, {name}"] = (rope, plain, scale)
    return models


def _forward(model: GPT, plan: Plan) -> Case:
    def forward(text_BT: Tensor) -> None:
        with torch.inference_mode():
            model(text_BT, plan, SCORED)

    return forward


def _llama_forward(llama: nn.Module) -> Case:
    def forward(text_BT: Tensor) -> None:
        with torch.inference_mode():
            llama(text_BT, use_cache=False, logits_to_keep=SCORED)

    return forward


def _rounds(cases: dict[str, Case], text_BT: Tensor, repeats: int) -> tuple[dict[str, list[float]], set[str]]:
    """Seconds of each case in each round, and the cases above BUDGET, which are not run again."""
    over = set()
    for name, call in cases.items():  # a first call warms up
        began = time.perf_counter()
        call(text_BT)
        if time.perf_counter() - began > BUDGET:
            over.add(name)
    timings: dict[str, list[float]] = {name: [] for name in cases if name not in over}
    for _ in range(repeats):
        for name, seconds in timings.items():
            began = time.perf_counter()
            cases[name](text_BT)
            seconds.append(time.perf_counter() - began)
    return timings, over


def _figures(kind: str, timings: dict[str, list[float]], cases: dict[str, Case], text_BT: Tensor, weighed_BT: Tensor) -> list[Figure]:
    base, figures = timings[BASE], []
    for name, seconds in timings.items():
        typical = statistics.median(seconds)
        ratio = statistics.median(one / other for one, other in zip(seconds, base, strict=True))
        mib = tensor_mib(lambda name=name: cases[name](weighed_BT))
        figures.append(Figure(kind, name, text_BT.shape[1], ratio, typical, text_BT.numel() / typical, mib))
    return figures
