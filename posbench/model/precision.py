"""Arithmetic in bf16. A CPU without bf16 instructions multiplies in float32, because torch's emulation is 20 times slower than that."""

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
    """Mode that multiplies in float32 and rounds the result to bf16 once, as bf16 instructions do, which also sum in float32."""

    def __torch_dispatch__(self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None) -> object:
        if func in PRODUCTS and args[0].dtype == torch.bfloat16 and args[0].device.type == "cpu":
            return func(*(arg.float() if isinstance(arg, Tensor) else arg for arg in args), **(kwargs or {})).bfloat16()
        if func in MADE_OF_THEM:  # in inference mode these are not decomposed before they arrive here
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@functools.cache
def native() -> bool:
    """True if this CPU has bf16 instructions, by torch's own test (AVX-512 on x86)."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def slow(device: torch.device | str, dtype: str) -> bool:
    """True if `dtype` is bf16 and `device` is a CPU that multiplies it in float32."""
    return dtype == "bf16" and torch.device(device).type == "cpu" and not native()


def products(device: torch.device | str, dtype: str = "bf16") -> AbstractContextManager:
    """Context for bf16 products outside autocast: the backward pass, and Muon, which uses bf16 whatever the model's dtype."""
    return Widened() if slow(device, dtype) else contextlib.nullcontext()


@contextmanager
def autocast(device: torch.device | str, dtype: str) -> Iterator[None]:
    """Context of torch.autocast to bf16 if `dtype` is bf16; no effect for fp32."""
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=dtype == "bf16"), products(device, dtype):
        yield
