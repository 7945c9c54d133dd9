"""A pretended GPU: tensors that say they are on `cuda` and refuse those of the CPU as real ones do,
while all is computed on the CPU.

`with Pretended(): ...` sees every call of torch, but not what torch does within one.
"""

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
# What takes a tensor of the other device: as source of a copy, or as indices into a tensor of the
# GPU.
COPIES, INDEXES = (
    {"copy_", "__setitem__", "_has_compatible_shallow_copy_type"},
    {"__getitem__", "index_put_", "index_put"},
)
# What takes not even a single number of the CPU among tensors of the GPU.
WHOLE = {
    "cat",
    "stack",
    "matmul",
    "mm",
    "bmm",
    "einsum",
    "linear",
    "embedding",
    "scaled_dot_product_attention",
    "cross_entropy",
}

# What waits for all that the GPU has to do, to tell a number.
WAITING = {
    "item",
    "tolist",
    "nonzero",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "equal",
    "masked_select",
}


class Mixed(RuntimeError):
    """Tensors of two devices in one call, or one that has to come to the CPU first."""


class Pretended(TorchFunctionMode):
    """Keeps the two devices apart. On the way back gradients come without a mark, so that there
    only results are marked.
    """

    back = False

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[
            str
        ] = []  # between the devices: "to cuda", "to cpu", or the name of what waits for a number

    def __torch_function__(
        self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        name, kwargs = _name(func), dict(kwargs or {})
        first = args[0] if args else None
        if on_cuda(first) and name in ("device", "is_cuda", "is_cpu", "get_device"):
            return {"device": CUDA, "is_cuda": True, "is_cpu": False, "get_device": 0}[name]
        if on_cuda(first) and name in ("numpy", "__array__"):
            raise Mixed("can't convert cuda:0 device type tensor to numpy")
        if name in ("to", "cpu", "cuda"):
            result = _moved(name, *args, **kwargs)
            if on_cuda(result) != on_cuda(first):
                self.copies.append("to cuda" if on_cuda(result) else "to cpu")
            return result
        if on_cuda(first) and name in WAITING:
            self.copies.append(name)
        if name == "backward":
            self.back = True
            try:
                with self:  # what is computed again meanwhile is seen too
                    return _engine_run_backward(
                        (first,),
                        (torch.ones_like(first),),
                        False,
                        False,
                        (),
                        allow_unreachable=True,
                        accumulate_grad=True,
                    )
            finally:
                self.back = False
        device = kwargs.pop("device", None)
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        if not self.back:
            _check(name, tensors)
        is_cuda = _there(name, tensors) if device is None else torch.device(device).type == "cuda"
        if is_cuda and kwargs.get("generator") is not None:
            raise Mixed(f"{name}: expected a 'cuda' device type for generator but found 'cpu'")
        result = func(*args, **kwargs, **({} if device is None else {"device": CPU}))
        for tensor in _tensors([result]) if is_cuda else ():
            _mark(tensor)
        if name == "data" and len(args) == 2 and on_cuda(args[1]):
            _mark(first)
        return result


def on_cuda(tensor: object) -> bool:
    """Whether it is a tensor that says so."""
    return isinstance(tensor, Tensor) and tensor.__dict__.get("pretended", False)


def _tensors(values: Iterable) -> Iterator[Tensor]:
    """The tensors among `values` and within their tuples, lists and dicts."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list | dict):
            yield from _tensors(value.values() if isinstance(value, dict) else value)


def _mark(tensor: Tensor) -> Tensor:
    tensor.__dict__["pretended"] = True
    return tensor


def _name(func: Callable) -> str:
    """Of a function; of an attribute that is read or written, the attribute's."""
    return func.__self__.__name__ if func.__name__ in ("__get__", "__set__") else func.__name__


def _there(name: str, tensors: list[Tensor]) -> bool:
    """Whether what a call returns is on the GPU."""
    return (
        on_cuda(tensors[0]) if tensors and name in COPIES | INDEXES else any(map(on_cuda, tensors))
    )


def _check(name: str, tensors: list[Tensor]) -> None:
    """Raise Mixed where the GPU would."""
    on_gpu, on_cpu = [t for t in tensors if on_cuda(t)], [t for t in tensors if not on_cuda(t)]
    if not on_gpu or name in COPIES or name == "data" or (name in INDEXES and on_cuda(tensors[0])):
        return
    if any(tensor.ndim or name in WHOLE for tensor in on_cpu):
        raise Mixed(
            f"{name}: expected all tensors to be on the same device, but found cuda:0 and cpu"
        )


def _moved(name: str, tensor: Tensor, *words: object, **kwargs: object) -> Tensor:
    """A copy on another device, of another dtype where one is asked for."""
    target = {"cpu": CPU, "cuda": CUDA}.get(name, kwargs.get("device"))
    dtype = kwargs.get("dtype")
    for word in words:
        if isinstance(word, str | torch.device):
            target = torch.device(word)
        elif isinstance(word, Tensor):
            target, dtype = (CUDA if on_cuda(word) else CPU), word.dtype
        elif isinstance(word, torch.dtype):
            dtype = word
    before = on_cuda(tensor)
    after = before if target is None else torch.device(target).type == "cuda"
    moved = tensor if dtype is None else tensor.to(dtype)
    if after != before and moved is tensor:
        moved = tensor.clone()
    return _mark(moved) if after else moved


def attention(
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    score_mod: Callable | None,
    block_mask: object,
    scale: float,
    enable_gqa: bool,
    **_: object,
) -> tuple[Tensor, SimpleNamespace]:
    """What FlexAttention computes, by the whole [T, T], with every index on the GPU: no kernel of
    its own could be compiled here.
    """
    assert all(map(on_cuda, (t for t in block_mask.as_tuple() if isinstance(t, Tensor))))
    B, H, T, _ = q_BHTD.shape
    assert enable_gqa == (k_BGTD.shape[1] != H)
    b, h, i, j = torch.meshgrid(
        *(torch.arange(n, device="cuda") for n in (B, H, T, T)), indexing="ij"
    )
    k_BHTD, v_BHTD = (t.repeat_interleave(H // t.shape[1], dim=1) for t in (k_BGTD, v_BGTD))
    scores = q_BHTD.float() @ k_BHTD.float().mT * scale
    scores = scores if score_mod is None else score_mod(scores, b, h, i, j)
    scores = scores.masked_fill(~block_mask.mask_mod(b, h, i, j), -torch.inf)
    y_BHTD = scores.softmax(dim=-1).nan_to_num() @ v_BHTD.float()
    return y_BHTD.to(q_BHTD.dtype), SimpleNamespace(lse=scores.logsumexp(dim=-1))
