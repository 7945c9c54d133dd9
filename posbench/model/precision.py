"""Arithmetic in bf16, and the number formats of attention.

These are the format of torch's fused kernel, and of weights and values in posbench's own kernels. A
CPU without bf16 instructions multiplies in float32, because torch's emulation is 20 times slower
than that. dtype=auto means float32 there (posbench.common.machine.fast_dtype), Muon included;
dtype=bf16 gives the numbers of other machines.

Letters: B batch, T tokens, G key heads, D head width.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Tokens up to which a CPU attends by causal.py or `attend_by_blocks`: pieces of `chunked_sdpa` are
# no faster there. Beyond them torch's kernel in bf16 takes 0.3 to 0.65 of its time in float32 with
# AMX (heads 128 to 32 wide).
LONGEST_UNCHUNKED = 1024
MATRIX_PRODUCTS = {
    getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")
}
COMPOSED_PRODUCTS = {
    getattr(torch.ops.aten, name).default for name in ("linear", "matmul", "einsum")
}


class Float32Products(TorchDispatchMode):
    """Mode that multiplies in float32 and rounds the result to bf16 once, as bf16 instructions do,
    which also sum in float32.
    """

    def __torch_dispatch__(
        self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        """Result of an operation. Only products of bf16 on a CPU are another than torch's."""
        kwargs = kwargs or {}
        if (
            func in MATRIX_PRODUCTS
            and args[0].dtype == torch.bfloat16
            and args[0].device.type == "cpu"
        ):
            wide_args = [arg.float() if isinstance(arg, Tensor) else arg for arg in args]
            return func(*wide_args, **kwargs).bfloat16()
        if func in COMPOSED_PRODUCTS:
            # In inference mode these are not decomposed before they arrive here; their products
            # arrive then.
            with self:
                return func.decompose(*args, **kwargs)
        return func(*args, **kwargs)


class MuonInFloat32(TorchFunctionMode):
    """Mode in which Muon, which rounds to bf16 whatever it is given, stays in float32."""

    def __torch_function__(
        self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if func is Tensor.bfloat16:
            return args[0].to(torch.float32, copy=True)  # a copy, since Muon divides it in place
        return func(*args, **(kwargs or {}))


@functools.cache
def has_bf16_products() -> bool:
    """True if this CPU has bf16 instructions, by torch's own test (AVX-512 on x86)."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def lacks_bf16_products(device: torch.device | str, dtype: str) -> bool:
    """True if `dtype` is bf16 and `device` is a CPU that multiplies it in float32."""
    return dtype == "bf16" and torch.device(device).type == "cpu" and not has_bf16_products()


def bf16_products(device: torch.device | str, dtype: str) -> AbstractContextManager:
    """Context for bf16 products outside autocast, in the backward pass."""
    return Float32Products() if lacks_bf16_products(device, dtype) else contextlib.nullcontext()


def muon_precision(device: torch.device | str, dtype: str) -> AbstractContextManager:
    """Context for Muon, which uses bf16 whatever the model's dtype; on a CPU without bf16 float32
    if that is the model's dtype.
    """
    if dtype == "fp32" and lacks_bf16_products(device, "bf16"):
        return MuonInFloat32()
    return bf16_products(device, "bf16")


@contextmanager
def autocast(device: torch.device | str, dtype: str) -> Iterator[None]:
    """Context of torch.autocast to bf16 if `dtype` is bf16; no effect for fp32.

    Raises ValueError for auto, which planning replaces."""
    if dtype == "auto":
        raise ValueError("dtype=auto is not resolved: see posbench.config.defaults.resolved_config")
    kind = torch.device(device).type
    # No cache on a GPU: a cast that it keeps from before would be no part of a recorded step (CUDA
    # graph), and each weight is used once in a pass anyway.
    with (
        torch.autocast(kind, torch.bfloat16, enabled=dtype == "bf16", cache_enabled=kind == "cpu"),
        bf16_products(device, dtype),
    ):
        yield


def dtype_of_fused_kernel(v_BGTD: Tensor, gated: bool) -> torch.dtype:
    """Format of q, k and v in torch's fused kernel. v comes in the model's format; q and k come in
    float32.
    """
    if gated:  # their gradient is a sum over all later tokens
        return torch.float32
    if v_BGTD.device.type != "cpu":
        return v_BGTD.dtype
    # With gradients and up to LONGEST_UNCHUNKED tokens causal.py runs instead. With AVX-512 alone
    # bf16 is no faster in torch's kernel.
    fast = (
        v_BGTD.dtype == torch.bfloat16
        and not torch.is_grad_enabled()
        and v_BGTD.shape[2] > LONGEST_UNCHUNKED
        and has_amx()
    )
    return torch.bfloat16 if fast else torch.float32


def dtype_of_values(v_BGTD: Tensor, gated: bool = False) -> torch.dtype:
    """Format in which posbench's own kernels multiply weights and values: bf16 on a CPU that does,
    if v comes in it; else float32.
    """
    fast = (
        v_BGTD.dtype == torch.bfloat16
        and v_BGTD.device.type == "cpu"
        and not gated  # their gradient is a sum over all later tokens
        and has_bf16_products()
    )
    return torch.bfloat16 if fast else torch.float32


@functools.cache
def has_amx() -> bool:
    """True if this CPU multiplies tiles of bf16 and torch lets it: the fused kernel in bf16 fails
    if ATEN_CPU_CAPABILITY says AVX2.
    """
    return (
        torch.cpu._is_amx_tile_supported() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )
