"""Changes to a model for texts beyond its training length: its configuration and learned table.

`AttentionHook.revert` takes all of them back.

Letters: T tokens, C width of the model."""

import torch
from torch import Tensor, nn

from posbench.model.inplace.attention_hook import AttentionHook
from posbench.model.inplace.own_configs import attention_configs
from posbench.position.plan import make_plan
from posbench.pretrained.outline import NAMES

LENGTH_KEYS = NAMES["length"]  # keys of a configuration that may hold its longest text


def lengthen(model: nn.Module, hook: AttentionHook) -> None:
    """Raise the configuration's longest text, and the learned table, to the methods' target_len."""
    if hook.target_len is None:
        return
    for config in attention_configs(model):
        for key in LENGTH_KEYS:
            longest = getattr(config, key, None)
            if isinstance(longest, int) and longest < hook.target_len:
                hook.change(config, key, hook.target_len)
    if hook.table is not None:
        _lengthen_buffers(model, hook)
        plan = make_plan(hook.encoding, hook.extension, hook.scale, length=hook.target_len)
        put_table(model, hook, plan.embed())


def _lengthen_buffers(model: nn.Module, hook: AttentionHook) -> None:
    """Lengthen buffers [1, T] that count the rows of the learned table, or hold one number
    (BERT's).

    The number of rows of the table must not have changed yet."""
    rows_before = len(model.get_submodule(hook.table).weight)
    rows = hook.offset + hook.target_len  # position 0 is row `offset`
    if rows <= rows_before:
        return
    for module in model.modules():
        for name, buffer_1T in list(module.named_buffers(recurse=False)):
            if buffer_1T.shape != (1, rows_before) or buffer_1T.is_floating_point():
                continue
            counted_1T = torch.arange(rows, device=buffer_1T.device, dtype=buffer_1T.dtype)[None]
            constant_1T = buffer_1T[:, :1].expand(-1, rows).clone()
            for longer_1T in (counted_1T, constant_1T):
                if torch.equal(longer_1T[:, :rows_before], buffer_1T):
                    hook.change(module, name, longer_1T)
                    break


def put_table(model: nn.Module, hook: AttentionHook, rows_TC: Tensor) -> None:
    """Put rows into the model's learned table, from position 0 on, until `hook.revert`."""
    table = model.get_submodule(hook.table)
    rows_TC = torch.cat((table.weight.detach()[: hook.offset], rows_TC.to(table.weight)))
    hook.change(table, "weight", nn.Parameter(rows_TC, requires_grad=False))
