"""Number formats of attention on a CPU: of torch's fused kernel, and of weights and values in posbench's own kernels.

Letters: B batch, T tokens, G key heads, D head width.
"""

import functools

import torch
from torch import Tensor

from posbench.model.precision import native

# Tokens up to which a CPU attends by causal.py or `rows`: pieces of `chunked_sdpa` are no faster there. Beyond them torch's kernel in bf16
# takes 0.3 to 0.65 of its time in float32 with AMX (heads 128 to 32 wide).
SHORT = 1024


def of_fused(v_BGTD: Tensor, gated: bool) -> torch.dtype:
    """Format of q, k and v in torch's fused kernel. v comes in the model's format; q and k come in float32."""
    if gated:  # their gradient is a sum over all later tokens
        return torch.float32
    if v_BGTD.device.type != "cpu":
        return v_BGTD.dtype
    # With AVX-512 alone bf16 is no faster in torch's kernel.
    fast = v_BGTD.dtype == torch.bfloat16 and not torch.is_grad_enabled() and v_BGTD.shape[2] > SHORT and amx()
    return torch.bfloat16 if fast else torch.float32


def of_values(v_BGTD: Tensor, gated: bool = False) -> torch.dtype:
    """Format in which posbench's own kernels multiply weights and values: bf16 on a CPU that does, if v comes in it; else float32."""
    fast = v_BGTD.dtype == torch.bfloat16 and v_BGTD.device.type == "cpu" and not gated and native()
    return torch.bfloat16 if fast else torch.float32


@functools.cache
def amx() -> bool:
    """True if this CPU multiplies tiles of bf16 and torch lets it: the fused kernel in bf16 fails if ATEN_CPU_CAPABILITY says AVX2."""
    return torch.cpu._is_amx_tile_supported() and torch.backends.cpu.get_cpu_capability() == "AVX512"
