"""Speed and memory of a checkpoint, without and with extensions, beside transformers' model of it.

A pass reads one window. Then one token is read after a cache of that length in transformers' model,
as it is and with the same methods in place (posbench.extend). Every case runs once in each round,
and its time is divided by those of the plain model and of transformers in the same round. Weights
are counted apart. Tokens are random, and the last SCORED_POSITIONS get logits, as in an evaluation
with fixed targets.

Letters: B batch, T tokens.
"""

import copy
import functools
from collections.abc import Iterator
from dataclasses import asdict, replace

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.config.names import shipped_yamls
from posbench.config.schema import JobConfig, TrainConfig
from posbench.model import precision as bf16
from posbench.model.build import load_reader, make_model
from posbench.model.gpt import GPT
from posbench.model.inplace import extend as inplace
from posbench.model.inplace.reader import Reader
from posbench.model.rounded import rounded
from posbench.position.instantiate import make_method
from posbench.position.legality import fed_length, verdict_of
from posbench.position.plan import Plan, make_plan
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.pretrained.import_config import config_from_checkpoint
from posbench.pretrained.outline import is_built_by_transformers
from posbench.pretrained.transformers_model import load_or_reason
from posbench.pretrained.weights import load_checkpoint
from posbench.scale_attention.none import NoScale
from posbench.tools.benchmark.measure import SCORED_POSITIONS, Case, Measurement, measure_cases

PLAIN_CASE = "none"
THEIR_CASE = "transformers"
# One of each kind of attention.
USUAL_EXTENSIONS = ("yarn", "rerope", "dca", "window", "streaming", "lm_infinite")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def load_model_path(path: str) -> GPT | Reader:
    """Model of a model.path, in float32.

    Raises ConfigError for a checkpoint that posbench cannot read.
    """
    raw = config_from_checkpoint(
        {
            "model": {"path": path},
            "encoding": shipped_yamls("encoding")["rope"],
            # The rest is needed by the function and read by nobody here.
            "train": asdict(TrainConfig()),
            "data": {"tokenizer": "none", "vocab_size": 0},
            "cache_dir": None,
        }
    )
    config = JobConfig.of({key: raw[key] for key in ("encoding", "model", "train", "seed")})
    checkpoint = config.model.checkpoint
    if is_built_by_transformers(config):  # an architecture that posbench has no model of
        return load_reader(find_checkpoint(path, download=False), config, "cpu")
    with torch.device("meta"):
        model = make_model(config, checkpoint["vocab_size"])
    load_checkpoint(path, checkpoint["sha256"], model, config.model.tied)
    return model.eval().requires_grad_(False)


def measure_checkpoint(
    path: str, dtype: str, lengths: list[int], repeats: int, only: list[str], device: str = "cpu"
) -> Iterator[list[Measurement]]:
    """Measure every case at every length. Yields a list for each length.

    A case that is not defined there, or changes nothing, has the reason as its note. Raises
    ConfigError for a dtype that is none, and for a checkpoint that posbench cannot read.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype} must be bf16 or fp32.")
    model = load_model_path(path).to(device)
    reader = rounded(model) if dtype == "bf16" else model
    checkpoint = find_checkpoint(path, download=False)
    theirs = load_or_reason(checkpoint, DTYPES[dtype], attn_implementation="sdpa")
    extensions = [name for name in only or USUAL_EXTENSIONS if name not in (PLAIN_CASE, THEIR_CASE)]
    for length in lengths:
        shape = (1, length)
        generator = torch.Generator().manual_seed(length)
        text_BT = torch.randint(0, model.lm_head.out_features, shape, generator=generator)
        text_BT = text_BT.to(device)
        cases: dict[str, Case] = {}
        left_out = {}  # {case: reason}
        for name in (PLAIN_CASE, *extensions):  # the plain case is extension=none
            try:
                cases[name] = _pass_with_extension(model, reader, name, length, dtype, device)
            except ConfigError as error:
                left_out[name] = str(error)
        with torch.inference_mode():
            if isinstance(theirs, str):  # the reason why there is no model
                left_out[THEIR_CASE] = theirs
            else:
                their_pass = {"use_cache": False, "logits_to_keep": SCORED_POSITIONS}
                cases[THEIR_CASE] = functools.partial(theirs.to(device), **their_pass)
            measurements = measure_cases(
                "checkpoint", cases, text_BT, repeats, PLAIN_CASE, THEIR_CASE
            )
            if not isinstance(theirs, str):
                measurements += _measure_tokens(theirs, list(cases), text_BT, repeats)
        for name, reason in left_out.items():
            measurements.append(Measurement("checkpoint", name, length, note=reason))
        yield measurements


def _pass_with_extension(
    model: GPT | Reader, reader: GPT | Reader, name: str, length: int, dtype: str, device: str
) -> Case:
    """Pass with an extension. Raises ConfigError with the reason if there is nothing to measure."""
    extension = make_method(shipped_yamls("extension")[name])
    scale = NoScale(model.encoding.shape)
    noop = verdict_of(model.encoding, extension, scale, [length], allow_untested=True).noop
    if fed_length(extension, model.encoding.shape.train_len, length) < length:
        raise ConfigError("has a text of its own for each target")
    if noop:
        raise ConfigError("changes nothing")
    plan = make_plan(model.encoding, extension, scale, length=length, device=device)
    return functools.partial(_read_pass, reader, plan, dtype)


def _read_pass(model: GPT | Reader, plan: Plan, dtype: str, text_BT: Tensor) -> Tensor:
    """Logits of the last SCORED_POSITIONS of a text that is read in a number format."""
    with bf16.autocast(text_BT.device, dtype):
        return model(text_BT, plan, SCORED_POSITIONS)


def _measure_tokens(
    theirs: nn.Module, names: list[str], text_BT: Tensor, repeats: int
) -> list[Measurement]:
    """Measurements of one token after a cache of random keys and values.

    It is read by transformers' model, and by copies of it with methods in place.
    """
    length = text_BT.shape[1]
    cases = {}
    for name in names:
        model = theirs
        if name != THEIR_CASE:
            # deepcopy takes what this memo holds for copied, so the weights exist once.
            shared_weights = {id(weight): weight for weight in theirs.parameters()}
            model = copy.deepcopy(theirs, shared_weights)
            try:
                inplace.extend(model, name, target_len=length)
            except ConfigError:
                continue
        cache = _random_cache(model, length)
        cases[name] = functools.partial(model, past_key_values=cache, use_cache=True)
    measurements = measure_cases("token", cases, text_BT[:, :1], repeats, PLAIN_CASE, THEIR_CASE)
    return [replace(measurement, length=length) for measurement in measurements]


def _random_cache(model: nn.Module, length: int) -> object:
    """Cache of `length` random keys and values."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    ids_BT = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    model(input_ids=ids_BT, past_key_values=cache, use_cache=True)  # the first token of each layer
    for index, layer in enumerate(cache.layers):
        if getattr(layer, "keys", None) is not None:  # a layer without attention has none
            keys = torch.randn_like(layer.keys.expand(-1, -1, length - 1, -1))
            values = torch.randn_like(layer.values.expand(-1, -1, length - 1, -1))
            cache.update(keys, values, index)
    return cache
