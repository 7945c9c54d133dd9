"""Speed and memory of a checkpoint: one window without and with extensions, and in transformers'
model of the same file.

Then one token after a cache of that length in transformers' model, as it is and with the same
methods in place (posbench.extend). Every case runs once in each round, and its time is divided by
those of the plain model and of transformers in the same round. Weights are counted apart. Tokens
are random, and the last SCORED positions get logits, as in an evaluation with fixed targets.
Letters: B batch, T tokens."""

import copy
import functools
from collections.abc import Iterator
from dataclasses import asdict, replace

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.config.names import group_yamls
from posbench.config.schema import JobConfig, TrainConfig
from posbench.model import precision as bf16
from posbench.model.build import make_model, read_theirs
from posbench.model.gpt import GPT
from posbench.model.inplace import extend as inplace
from posbench.model.inplace.reader import Reader
from posbench.model.rounded import rounded
from posbench.position.instantiate import make
from posbench.position.legality import check, fed_length
from posbench.position.plan import Plan, make_plan
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.pretrained.import_config import config_from_checkpoint
from posbench.pretrained.outline import outlined
from posbench.pretrained.transformers_model import try_load
from posbench.pretrained.weights import load_checkpoint
from posbench.scale_attention.none import NoScale
from posbench.tools.benchmark.measure import SCORED, Figure, measure

PLAIN, THEIRS = "none", "transformers"
FEW = (
    "yarn",
    "rerope",
    "dca",
    "window",
    "streaming",
    "lm_infinite",
)  # one of each kind of attention
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def load(path: str) -> GPT | Reader:
    """Model of a model.path, in float32. Raises ConfigError for a checkpoint that posbench cannot
    read.
    """
    unread = {
        "train": asdict(TrainConfig()),
        "data": {"tokenizer": "none", "vocab_size": 0},
        "cache_dir": None,
    }
    found = config_from_checkpoint(
        {"model": {"path": path}, "encoding": group_yamls("encoding")["rope"], **unread}
    )
    cfg = JobConfig.of({key: found[key] for key in ("encoding", "model", "train", "seed")})
    checkpoint = cfg.model.checkpoint
    if outlined(cfg):
        return read_theirs(find_checkpoint(path, download=False), cfg, "cpu")
    with torch.device("meta"):
        model = make_model(cfg, checkpoint["vocab_size"])
    load_checkpoint(path, checkpoint["sha256"], model, cfg.model.tied)
    return model.eval().requires_grad_(False)


def measure_checkpoint(
    path: str, dtype: str, lengths: list[int], repeats: int, only: list[str], device: str = "cpu"
) -> Iterator[list[Figure]]:
    """Measure every case at every length. Yields a list for each length; a case that is not defined
    there, or changes nothing, is left out.

    Raises ConfigError for a dtype that is none, and for a checkpoint that posbench cannot read.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype} must be bf16 or fp32.")
    model, chosen = (
        load(path).to(device),
        [name for name in only or FEW if name not in (PLAIN, THEIRS)],
    )
    reader = rounded(model) if dtype == "bf16" else model
    other = try_load(
        find_checkpoint(path, download=False), DTYPES[dtype], attn_implementation="sdpa"
    )
    for length in lengths:
        seeded = torch.Generator().manual_seed(length)
        text_BT = torch.randint(0, model.lm_head.out_features, (1, length), generator=seeded).to(
            device
        )
        cases, left_out = {}, {}
        for name in (PLAIN, *chosen):
            extension, scale = make(group_yamls("extension")[name]), NoScale(model.encoding.shape)
            try:
                noop = check(model.encoding, extension, scale, [length], allow_untested=True).noop
            except ConfigError as error:
                left_out[name] = str(error)
                continue
            if fed_length(extension, model.encoding.shape.train_len, length) < length:
                left_out[name] = "has a text of its own for each target"
            elif noop:
                left_out[name] = "changes nothing"
            else:
                plan = make_plan(model.encoding, extension, scale, length=length, device=device)
                cases[name] = functools.partial(_ours, reader, plan, dtype)
        if isinstance(other, str):
            left_out[THEIRS] = other
        else:
            cases[THEIRS] = functools.partial(
                other.to(device), use_cache=False, logits_to_keep=SCORED
            )
        with torch.inference_mode():
            figures = measure("checkpoint", cases, text_BT, repeats, PLAIN, THEIRS)
            figures += (
                [] if isinstance(other, str) else _tokens(other, list(cases), text_BT, repeats)
            )
        yield figures + [
            Figure("checkpoint", name, length, note=note) for name, note in left_out.items()
        ]


def _tokens(other: nn.Module, names: list[str], text_BT: Tensor, repeats: int) -> list[Figure]:
    """Figures of one token after a cache of random keys and values, in their model and in copies of
    it with methods in place.
    """
    length, cases = text_BT.shape[1], {}
    for name in names:
        model = other
        if name != THEIRS:
            model = copy.deepcopy(
                other, {id(one): one for one in other.parameters()}
            )  # shares the weights
            try:
                inplace.extend(model, name, target_len=length)
            except ConfigError:
                continue
        cases[name] = functools.partial(
            model, past_key_values=_cache(model, length), use_cache=True
        )
    return [
        replace(one, length=length)
        for one in measure("token", cases, text_BT[:, :1], repeats, PLAIN, THEIRS)
    ]


def _cache(model: nn.Module, length: int) -> object:
    from transformers import DynamicCache

    cache, ids_BT = (
        DynamicCache(config=model.config),
        torch.zeros(1, 1, dtype=torch.long, device=model.device),
    )
    model(input_ids=ids_BT, past_key_values=cache, use_cache=True)
    for index, layer in enumerate(cache.layers):
        if getattr(layer, "keys", None) is not None:
            cache.update(
                *(
                    torch.randn_like(one.expand(-1, -1, length - 1, -1))
                    for one in (layer.keys, layer.values)
                ),
                index,
            )
    return cache


def _ours(model: GPT | Reader, plan: Plan, dtype: str, text_BT: Tensor) -> Tensor:
    with bf16.autocast(text_BT.device, dtype):
        return model(text_BT, plan, SCORED)
