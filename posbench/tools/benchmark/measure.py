"""Speed and memory of every method beside plain attention, in training and in evaluation.

Every case runs once in each round, and its time is divided by that of `rope` with `extension=none`
in the same round. So other work of the machine slows both. The median ratio is reported. Memory is
that of one window, or of one training step. The model is the default one.

Letters: B batch, T tokens.
"""

import copy
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.common.machine import fast_dtype
from posbench.config.names import shipped_yamls
from posbench.config.schema import ModelConfig, TrainConfig
from posbench.extensions.none import NoExtension
from posbench.model import precision as bf16
from posbench.model.gpt import GPT, make_shape
from posbench.model.memory import keep_freed_memory, tensor_mib
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding, Extension, ScaleAttention
from posbench.position.legality import fed_length, verdict_of
from posbench.position.plan import make_plan, training_plan_maker
from posbench.scale_attention.none import NoScale
from posbench.training import optimizers as optim
from posbench.training.distributed import World
from posbench.training.graph import StepGraphs, why_eager

MODEL = ModelConfig()
VOCAB_SIZE = 1024
# Beside transformers: entries of vocabularies, and tokens of a sequence.
VOCAB_SIZES = (1024, 4096, 50257)
SEQUENCE_LENGTHS = (64, 256, 512)
SCORED_POSITIONS = 8  # positions of each window that get logits, as in evaluation
# Seconds: a pass over 16,384 tokens of 135 M parameters takes half of it on two cores.
MOST_SECONDS = 120.0
BASE_CASE = "rope"
GATED_CASE = "rope, output gate"
LAUNCHED_CASE = "rope, launched"
LLAMA_CASE = "transformers Llama"

Case = Callable[[Tensor], object]  # one training step, or one evaluation pass, over tokens [B, T]


@dataclass(frozen=True)
class Measurement:
    """Time and memory of one case at one length.

    `ratio` is that of its time to the base case's in the same rounds, `seconds` are of a step or
    pass, `mib` of tensors. `of_theirs`: ratio of its time to that of transformers' model of the
    same checkpoint.
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


def transformers_llama(vocab: int = VOCAB_SIZE) -> nn.Module | None:
    """LlamaForCausalLM of the default model's shape with torch's fused attention.

    None if transformers is not installed.
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
        max_position_embeddings=2**20,  # longer than any text that is measured
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def measure_training(
    train_len: int, repeats: int, only: list[str], device: str = "cpu"
) -> list[Measurement]:
    """Measure a training step (2,048 tokens, in dtype=auto, Muon included).

    The cases are each encoding, each scale for training, and transformers.
    """
    cases = {}
    for name, model in _models_of_training(train_len).items():
        if _is_chosen(name, only):
            cases[name] = _gpt_step(model, device)
    llama = transformers_llama()
    if llama is not None and _is_chosen(LLAMA_CASE, only):
        cases[LLAMA_CASE] = _llama_step(llama, device)
    return measure_cases(
        "training", cases, _step_text(VOCAB_SIZE, train_len, device), repeats, BASE_CASE
    )


def _step_text(vocab: int, length: int, device: str) -> Tensor:
    """Random tokens [B, T] of one training step."""
    n_sequences = TrainConfig().tokens_per_step // length
    return torch.randint(0, vocab, (n_sequences, length), device=device)


def _models_of_training(train_len: int) -> dict[str, GPT]:
    """Model of each case of training.

    Every encoding stands alone; RoPE comes with every scale that is trained in and with an output
    gate too.
    """
    shape = make_shape(MODEL, train_len)
    models = {}
    for name, node in shipped_yamls("encoding").items():
        models[name] = GPT(MODEL, make_method(node, shape), VOCAB_SIZE)
    for name, node in shipped_yamls("scale_attention").items():
        scale = make_method(node, shape)
        # Rules by distance and sinks have kernels of their own, whose backward pass is measured.
        if scale.trained or scale.by_distance or scale.sinks:
            models[f"{BASE_CASE}, {name} trained in"] = GPT(
                MODEL, _rope_encoding(train_len), VOCAB_SIZE, scale
            )
    gated = replace(MODEL, output_gate="elementwise")
    models[GATED_CASE] = GPT(gated, _rope_encoding(train_len), VOCAB_SIZE)
    return models


def _rope_encoding(train_len: int) -> Encoding:
    """Encoding of the base case, plain RoPE."""
    return make_method(shipped_yamls("encoding")[BASE_CASE], make_shape(MODEL, train_len))


def measure_beside_transformers(repeats: int, device: str = "cpu") -> Iterator[list[Measurement]]:
    """Measure a training step (2,048 tokens) of RoPE and of transformers' model.

    The latter takes torch's Muon. The kind of a measurement is `trained NUMBER` with that of the
    vocabulary's entries. Yields a list for each vocabulary and length, none without transformers.
    """
    for vocab, length in itertools.product(VOCAB_SIZES, SEQUENCE_LENGTHS):
        llama = transformers_llama(vocab)
        if llama is None:
            return
        rope = GPT(MODEL, _rope_encoding(length), vocab)
        text_BT = _step_text(vocab, length, device)
        cases = {BASE_CASE: _gpt_step(rope, device), LLAMA_CASE: _llama_step(llama, device)}
        if text_BT.is_cuda:  # beside the graph
            cases[LAUNCHED_CASE] = _gpt_step(copy.deepcopy(rope), device, graphed=False)
        yield measure_cases(f"trained {vocab}", cases, text_BT, repeats, BASE_CASE)


def _is_chosen(case: str, only: list[str]) -> bool:
    """True if only= has the method of a case, which is the last in "rope + yarn"."""
    if not only or case == BASE_CASE:
        return True
    method = case.removesuffix(" trained in").replace(" + ", ", ").rpartition(", ")[2]
    return method in only


def _gpt_step(model: GPT, device: str, graphed: bool = True) -> Case:
    """Training step of our model, as one CUDA graph where a training has one, unless `graphed` is
    false. Only its time counts, so that the text is its own target.
    """
    plans = training_plan_maker(model.encoding, model.scale, device, seed=0)
    steps = itertools.count()

    def loss(text_BT: Tensor) -> Tensor:
        return model.loss(text_BT, text_BT, plans(text_BT.shape[1], next(steps)))

    step = _training_step(model, loss, device)
    # `why_eager` gives the reason why a training's steps would not be launched as one graph.
    if not graphed or why_eager(TrainConfig(), model.encoding, torch.device(device), World()):
        return step
    return StepGraphs(step, model.zero_grad)


def _llama_step(llama: nn.Module, device: str) -> Case:
    def loss(text_BT: Tensor) -> Tensor:
        logits_BTV = llama(text_BT, use_cache=False).logits
        return nn.functional.cross_entropy(logits_BTV.float().flatten(0, 1), text_BT.flatten())

    return _training_step(llama, loss, device, torch.optim.Muon)


def _training_step(
    model: nn.Module,
    loss: Callable[[Tensor], Tensor],
    device: str,
    muon: type[torch.optim.Muon] = optim.Muon,
) -> Case:
    """Training step of a model, with forward and backward pass and its optimizers."""
    optimizers = optim.make_optimizers(model.to(device), TrainConfig(), muon)
    dtype = fast_dtype(device)
    if muon is not optim.Muon:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                # Rates are tensors on the GPU. torch's Muon would read them back in every step.
                group["lr"] = float(group["lr"])
    keep_freed_memory()  # as a training does

    def step(text_BT: Tensor) -> tuple[Tensor, Tensor]:
        with bf16.autocast(device, dtype):
            loss_of_step = loss(text_BT)
        with bf16.bf16_products(device, dtype):
            loss_of_step.backward()
        for optimizer in optimizers:
            with bf16.muon_precision(device, dtype):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        # StepGraphs takes steps that give a loss and the norm of the gradients. Here is no norm.
        return loss_of_step.detach(), loss_of_step.detach()

    return step


def measure_evaluation(
    train_len: int, lengths: list[int], repeats: int, only: list[str], device: str = "cpu"
) -> Iterator[list[Measurement]]:
    """Measure a pass over 8,192 tokens in float32 for each case; over one window if that is longer.

    Yields a list for each length.
    """
    models = {
        name: methods
        for name, methods in _models_of_evaluation(train_len, device).items()
        if _is_chosen(name, only)
    }
    llama = transformers_llama() if _is_chosen(LLAMA_CASE, only) else None
    for length in lengths:
        text_BT = torch.randint(0, VOCAB_SIZE, (max(1, 8192 // length), length), device=device)
        cases = _evaluation_passes(models, length, device)
        if llama is not None:
            cases[LLAMA_CASE] = functools.partial(
                llama.to(device), use_cache=False, logits_to_keep=SCORED_POSITIONS
            )
        window_BT = text_BT[:1]  # of which the memory is measured
        with torch.inference_mode():
            yield measure_cases(
                "evaluation", cases, text_BT, repeats, BASE_CASE, window_BT=window_BT
            )


class Methods(NamedTuple):
    """A model with the methods that it is evaluated with."""

    model: GPT
    extension: Extension
    scale: ScaleAttention


def _evaluation_passes(models: dict[str, Methods], length: int, device: str) -> dict[str, Case]:
    """Evaluation pass of each case that is defined at a length."""
    cases: dict[str, Case] = {}
    for name, (model, extension, scale) in models.items():
        try:
            verdict_of(model.encoding, extension, scale, [length], allow_untested=True)
        except ConfigError:
            continue  # a learned table has no such position
        plan = make_plan(
            model.encoding,
            extension,
            scale,
            length=length,
            device=device,
            trained_scale=model.scale,
        )
        cases[name] = functools.partial(model, plan=plan, last=SCORED_POSITIONS)
    return cases


def _models_of_evaluation(train_len: int, device: str) -> dict[str, Methods]:
    """Methods of each case of evaluation.

    They are the models of training, then RoPE (or a learned table) with every extension and scale.
    """
    plain = NoExtension()
    unscaled = NoScale(make_shape(MODEL, train_len))
    trained = {}
    for name, model in _models_of_training(train_len).items():
        # A scale without learned numbers needs no training, and is added to RoPE below.
        if model.scale is None or model.scale.trained:
            trained[name] = model.eval().to(device)
    rope = trained[BASE_CASE]
    models = {name: Methods(model, plain, unscaled) for name, model in trained.items()}
    for name, node in shipped_yamls("extension").items():
        extension = make_method(node)
        # An extension that crops feeds no text beyond training, so there is nothing to measure.
        any_longer = 2 * train_len
        if name != "none" and fed_length(extension, train_len, any_longer) > train_len:
            # An extension of table rows needs a trait that RoPE has not.
            base = "learned" if extension.needs & ~rope.encoding.traits else BASE_CASE
            models[f"{base} + {name}"] = Methods(trained[base], extension, unscaled)
    for name, node in shipped_yamls("scale_attention").items():
        scale = make_method(node, rope.encoding.shape)
        if name != "none" and not scale.trained:
            models[f"{BASE_CASE}, {name}"] = Methods(rope, plain, scale)
    return models


def measure_cases(
    kind: str,
    cases: dict[str, Case],
    text_BT: Tensor,
    repeats: int,
    base: str,
    theirs: str = "",
    window_BT: Tensor | None = None,
) -> list[Measurement]:
    """Measurements of the cases, with ratios to the cases `base` and `theirs`.

    Memory is that of `window_BT`, by default of all the tokens. The first pass of a case is for its
    memory. One that takes longer than MOST_SECONDS is the only one of its case, and gives its time.
    """
    window_BT = text_BT if window_BT is None else window_BT
    n_windows = len(text_BT) / len(window_BT)
    first = {}  # {case: seconds of the first pass, for all tokens}
    mib = {}  # {case: memory}
    for name, case in cases.items():
        if torch.is_grad_enabled():  # a training step
            case(text_BT)  # makes the states of its optimizers
        began = time.perf_counter()
        mib[name] = tensor_mib(functools.partial(case, window_BT), window_BT.device)
        _wait_for_gpu(window_BT)
        first[name] = (time.perf_counter() - began) * n_windows
    rounds: dict[str, list[float]] = {}
    for name, seconds in first.items():
        if seconds <= MOST_SECONDS:
            rounds[name] = []
    for _ in range(repeats):
        for name, seconds_of_case in rounds.items():
            seconds_of_case.append(seconds_of_pass(cases[name], text_BT))

    def ratio(name: str, other: str) -> float | None:
        if name in rounds and other in rounds:
            pairs = zip(rounds[name], rounds[other], strict=True)
            return statistics.median(seconds / of_other for seconds, of_other in pairs)
        return first[name] / first[other] if other in first else None

    measurements = []
    for name in cases:
        seconds = statistics.median(rounds[name]) if name in rounds else first[name]
        measurements.append(
            Measurement(
                kind,
                name,
                text_BT.shape[1],
                ratio=ratio(name, base),
                seconds=seconds,
                tokens_per_second=text_BT.numel() / seconds,
                mib=mib[name],
                note="" if name in rounds else "one pass",
                of_theirs=ratio(name, theirs),
            )
        )
    return measurements


def seconds_of_pass(case: Case, text_BT: Tensor) -> float:
    """Time of one step or pass, to the end of the work that a GPU was given."""
    began = time.perf_counter()
    case(text_BT)
    _wait_for_gpu(text_BT)
    return time.perf_counter() - began


def _wait_for_gpu(text_BT: Tensor) -> None:
    """Wait until a GPU has done the work that it was given; a CPU has done it at once."""
    if text_BT.is_cuda:
        torch.cuda.synchronize(text_BT.device)
