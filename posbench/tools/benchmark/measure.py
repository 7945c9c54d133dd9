"""Speed and memory of every method beside plain attention: training steps, and evaluation at many
times the training length.

Every case runs once in each round, and its time is divided by that of `rope` with `extension=none`
in the same round. So other work of the machine slows both. The median ratio is reported. Memory is
that of one window, or of one training step. The model is the default one. Letters: B batch, T
tokens."""

import copy
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.common.machine import fast_dtype
from posbench.config.names import group_yamls
from posbench.config.schema import ModelConfig, TrainConfig
from posbench.extensions.none import NoExtension
from posbench.model import precision as bf16
from posbench.model.gpt import GPT, make_shape
from posbench.model.memory import keep_freed, tensor_mib
from posbench.position.instantiate import make
from posbench.position.legality import check, fed_length
from posbench.position.plan import make_plan, training_plans
from posbench.scale_attention.none import NoScale
from posbench.training import optimizers as optim
from posbench.training.distributed import World
from posbench.training.graph import StepGraphs, why_eager

MODEL, VOCAB = ModelConfig(), 1024
VOCABULARIES, TRAINED = (
    (1024, 4096, 50257),
    (64, 256, 512),
)  # entries, and tokens of a sequence, beside transformers
SCORED = 8  # positions of each window that get logits, as in evaluation
BUDGET = (
    120.0  # seconds: a pass over 16,384 tokens of 135 M parameters takes half of it on two cores
)
BASE, GATED, LAUNCHED, LLAMA = "rope", "rope, output gate", "rope, launched", "transformers Llama"

Case = Callable[[Tensor], object]  # one training step, or one evaluation pass, over tokens [B, T]


@dataclass(frozen=True)
class Figure:
    """One measurement: `ratio` of its time to the base case's in the same rounds, `seconds` of a
    step or pass, `mib` of tensors.

    `of_theirs`: ratio of its time to that of transformers' model of the same checkpoint.
    """

    kind: str  # training, evaluation, checkpoint, or token
    case: str
    length: int
    ratio: float | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    mib: float | None = None
    note: str = ""
    of_theirs: float | None = None


def transformers_llama(vocab: int = VOCAB) -> nn.Module | None:
    """LlamaForCausalLM of the default model's shape with torch's fused attention; None if
    transformers is not installed.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=MODEL.d_model,
        intermediate_size=MODEL.d_ff,
        num_hidden_layers=MODEL.n_layer,
        num_attention_heads=MODEL.n_head,
        max_position_embeddings=2**20,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def training(train_len: int, repeats: int, only: list[str], device: str = "cpu") -> list[Figure]:
    """Measure a training step (2,048 tokens, in dtype=auto, Muon included): each encoding, each
    scale for training, transformers.
    """
    text_BT = torch.randint(
        0, VOCAB, (TrainConfig().tokens_per_step // train_len, train_len), device=device
    )
    cases = {
        name: _gpt_step(model, device)
        for name, model in _trainable(train_len).items()
        if _wanted(name, only)
    }
    llama = transformers_llama()
    if llama is not None and _wanted(LLAMA, only):
        cases[LLAMA] = _llama_step(llama, device)
    return measure("training", cases, text_BT, repeats, BASE)


def _trainable(train_len: int) -> dict[str, GPT]:
    """Model of each case of training: every encoding alone, and RoPE with every scale that is
    trained in and with an output gate.
    """
    shape = make_shape(MODEL, train_len)
    models = {
        name: GPT(MODEL, make(node, shape), VOCAB) for name, node in group_yamls("encoding").items()
    }
    for name, node in group_yamls("scale_attention").items():
        scale = make(node, shape)
        if scale.trained or scale.by_distance or scale.sinks:
            models[f"{BASE}, {name} trained in"] = GPT(
                MODEL, make(group_yamls("encoding")[BASE], shape), VOCAB, scale
            )
    return models | {
        GATED: GPT(
            replace(MODEL, output_gate="elementwise"),
            make(group_yamls("encoding")[BASE], shape),
            VOCAB,
        )
    }


def beside_transformers(repeats: int, device: str = "cpu") -> Iterator[list[Figure]]:
    """Measure a training step (2,048 tokens) of RoPE and of transformers' model, which takes
    torch's Muon, by vocabulary and length.

    The kind of a figure is `trained NUMBER` with that of the entries. Yields a list for each pair,
    none without transformers."""
    for vocab, length in itertools.product(VOCABULARIES, TRAINED):
        llama, rope = (
            transformers_llama(vocab),
            GPT(MODEL, make(group_yamls("encoding")[BASE], make_shape(MODEL, length)), vocab),
        )
        if llama is not None:
            text_BT = torch.randint(
                0, vocab, (TrainConfig().tokens_per_step // length, length), device=device
            )
            cases = {BASE: _gpt_step(rope, device), LLAMA: _llama_step(llama, device)}
            if text_BT.is_cuda:  # beside the graph
                cases[LAUNCHED] = _gpt_step(copy.deepcopy(rope), device, graphed=False)
            yield measure(f"trained {vocab}", cases, text_BT, repeats, BASE)


def _wanted(name: str, only: list[str]) -> bool:
    return (
        not only
        or name == BASE
        or name.removesuffix(" trained in").replace(" + ", ", ").rpartition(", ")[2] in only
    )


def _gpt_step(model: GPT, device: str, graphed: bool = True) -> Case:
    plans, steps = training_plans(model.encoding, model.scale, device, 0), itertools.count()
    step = _step(
        model,
        lambda text_BT: model.loss(text_BT, text_BT, plans(text_BT.shape[1], next(steps))),
        device,
    )
    if not graphed or why_eager(TrainConfig(), model.encoding, torch.device(device), World()):
        return step
    return StepGraphs(step, model.zero_grad)


def _llama_step(llama: nn.Module, device: str) -> Case:
    def loss(text_BT: Tensor) -> Tensor:
        logits_BTV = llama(text_BT, use_cache=False).logits
        return nn.functional.cross_entropy(logits_BTV.float().flatten(0, 1), text_BT.flatten())

    return _step(llama, loss, device, torch.optim.Muon)


def _step(
    model: nn.Module,
    loss: Callable[[Tensor], Tensor],
    device: str,
    muon: type[torch.optim.Muon] = optim.Muon,
) -> Case:
    optimizers, dtype = optim.build(model.to(device), TrainConfig(), muon), fast_dtype(device)
    for group in (
        itertools.chain(*(one.param_groups for one in optimizers)) if muon is not optim.Muon else ()
    ):
        group["lr"] = float(group["lr"])  # which torch's Muon would wait for if it lay on a GPU
    keep_freed()

    def step(text_BT: Tensor) -> tuple[Tensor, Tensor]:
        with bf16.autocast(device, dtype):
            value = loss(text_BT)
        with bf16.products(device, dtype):
            value.backward()
        for optimizer in optimizers:
            with bf16.muon(device, dtype):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return value.detach(), value.detach()

    return step


def evaluation(
    train_len: int, lengths: list[int], repeats: int, only: list[str], device: str = "cpu"
) -> Iterator[list[Figure]]:
    """Measure a pass over 8,192 tokens (or one window, if that is longer) in float32 for each case.
    Yields a list for each length.
    """
    models, llama = _models(train_len, device), transformers_llama()
    for length in lengths:
        text_BT = torch.randint(0, VOCAB, (max(1, 8192 // length), length), device=device)
        cases: dict[str, Case] = {}
        for name, (model, extension, scale) in models.items():
            if not _wanted(name, only):
                continue
            try:
                check(model.encoding, extension, scale, [length], allow_untested=True)
            except ConfigError:
                continue  # not defined at this length: a learned table has no such position
            plan = make_plan(
                model.encoding,
                extension,
                scale,
                length=length,
                device=device,
                trained_scale=model.scale,
            )
            cases[name] = functools.partial(model, plan=plan, last=SCORED)
        if llama is not None and _wanted(LLAMA, only):
            cases[LLAMA] = functools.partial(
                llama.to(device), use_cache=False, logits_to_keep=SCORED
            )
        with torch.inference_mode():
            yield measure("evaluation", cases, text_BT, repeats, BASE, window_BT=text_BT[:1])


def _models(train_len: int, device: str) -> dict[str, tuple]:
    """Model, extension and scale of each case: those of `_trainable`, then RoPE (or a learned
    table) with every extension and scale.
    """
    plain, unscaled = NoExtension(), NoScale(make_shape(MODEL, train_len))
    trained = {
        name: model.eval().to(device)
        for name, model in _trainable(train_len).items()
        if model.scale is None or model.scale.trained
    }
    rope = trained[BASE]
    models = {name: (model, plain, unscaled) for name, model in trained.items()}
    for name, node in group_yamls("extension").items():
        extension = make(node)
        # A crop feeds fewer tokens, which is no longer input.
        if name != "none" and fed_length(extension, train_len, 2 * train_len) > train_len:
            base = "learned" if extension.needs & ~rope.encoding.traits else BASE
            models[f"{base} + {name}"] = (trained[base], extension, unscaled)
    for name, node in group_yamls("scale_attention").items():
        scale = make(node, rope.encoding.shape)
        if name != "none" and not scale.trained:
            models[f"{BASE}, {name}"] = (rope, plain, scale)
    return models


def measure(
    kind: str,
    cases: dict[str, Case],
    text_BT: Tensor,
    repeats: int,
    base: str,
    theirs: str = "",
    window_BT: Tensor | None = None,
) -> list[Figure]:
    """Figures of the cases, with ratios to `base` and to `theirs`, and the memory of `window_BT`
    (by default of all the tokens).

    The first pass of a case is for its memory. One that takes longer than BUDGET is the only one of
    its case, and gives its time."""
    window_BT, first, mib = text_BT if window_BT is None else window_BT, {}, {}
    for name, case in cases.items():
        if torch.is_grad_enabled():
            case(text_BT)  # makes the states of its optimizers
        weigh = functools.partial(tensor_mib, functools.partial(case, window_BT), window_BT.device)
        first[name] = (
            timed(lambda _, name=name, weigh=weigh: mib.update({name: weigh()}), window_BT)
            * len(text_BT)
            / len(window_BT)
        )
    rounds: dict[str, list[float]] = {
        name: [] for name, seconds in first.items() if seconds <= BUDGET
    }
    for _ in range(repeats):
        for name, seconds in rounds.items():
            seconds.append(timed(cases[name], text_BT))

    def ratio(name: str, other: str) -> float | None:
        if name in rounds and other in rounds:
            return statistics.median(
                one / another for one, another in zip(rounds[name], rounds[other], strict=True)
            )
        return first[name] / first[other] if other in first else None

    figures = []
    for name in cases:
        typical, note = (
            (statistics.median(rounds[name]), "") if name in rounds else (first[name], "one pass")
        )
        speed = text_BT.numel() / typical
        figures.append(
            Figure(
                kind,
                name,
                text_BT.shape[1],
                ratio(name, base),
                typical,
                speed,
                mib[name],
                note,
                ratio(name, theirs),
            )
        )
    return figures


def timed(case: Case, text_BT: Tensor) -> float:
    """Time of one step or pass, to the end of what a GPU was given to do."""
    began = time.perf_counter()
    case(text_BT)
    if text_BT.is_cuda:
        torch.cuda.synchronize(text_BT.device)
    return time.perf_counter() - began
