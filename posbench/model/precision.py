"""Arithmetic in bf16. A CPU without instructions for it multiplies in float32 here: torch's own way is 20 times slower than float32."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")}
MADE_OF_THEM = {getattr(torch.ops.aten, name).default for name in ("linear", "matmul", "einsum")}


class Widened(TorchDispatchMode):
    """Multiplies in float32 and rounds the result to bf16 once: as the instructions do, which add up in float32 too."""

    def __torch_dispatch__(self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None) -> object:
        if func in PRODUCTS and args[0].dtype == torch.bfloat16 and args[0].device.type == "cpu":
            return func(*(arg.float() if isinstance(arg, Tensor) else arg for arg in args), **(kwargs or {})).bfloat16()
        if func in MADE_OF_THEM:  # arrives whole in inference mode
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@functools.cache
def native() -> bool:
    """Whether this CPU has such instructions, by the test that torch itself goes by (AVX-512 on x86)."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def slow(device: torch.device | str, dtype: str) -> bool:
    """Whether products of that dtype are made in float32 there."""
    return dtype == "bf16" and torch.device(device).type == "cpu" and not native()


def products(device: torch.device | str, dtype: str = "bf16") -> AbstractContextManager:
    """Around what multiplies bf16 matrices outside autocast: the backward pass, and Muon, which does so whatever the model's dtype."""
    return Widened() if slow(device, dtype) else contextlib.nullcontext()


@contextmanager
def autocast(device: torch.device | str, dtype: str) -> Iterator[None]:
    """torch.autocast to bf16 where `dtype` is bf16; nothing where it is fp32."""
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=dtype == "bf16"), products(device, dtype):
        yield
