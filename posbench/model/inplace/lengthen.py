"""Changes to a model for texts beyond its training length: its configuration and learned table.

`AttentionHook.revert` takes all of them back.

Letters: T tokens, C width of the model."""

import torch
from torch import Tensor, nn

from posbench.model.inplace.attention_hook import AttentionHook
from posbench.model.inplace.own_configs import attention_configs
from posbench.position.plan import make_plan
from posbench.pretrained.outline import NAMES_IN_CONFIG

LENGTH_KEYS = NAMES_IN_CONFIG["length"]  # keys of a configuration that may hold its longest text


def lengthen(model: nn.Module, hook: AttentionHook) -> None:
    """Raise the configuration's longest text, and the learned table, to the methods' target_len."""
    if hook.target_len is None:
        return
    for config in attention_configs(model):
        for key in LENGTH_KEYS:
            longest_text = getattr(config, key, None)
            if isinstance(longest_text, int) and longest_text < hook.target_len:
                hook.set_until_revert(config, key, hook.target_len)
    if hook.table_name is not None:
        _lengthen_buffers(model, hook)
        plan = make_plan(hook.encoding, hook.extension, hook.scale, length=hook.target_len)
        put_table_rows(model, hook, plan.embed())


def _lengthen_buffers(model: nn.Module, hook: AttentionHook) -> None:
    """Lengthen buffers [1, T] that count the rows of the learned table (position_ids), or hold one
    number for each row (BERT's token_type_ids).

    The table must still have the number of rows with which it came."""
    rows_before = len(model.get_submodule(hook.table_name).weight)
    rows = hook.row_of_position_0 + hook.target_len
    if rows <= rows_before:
        return
    for module in model.modules():
        for name, buffer_1T in list(module.named_buffers(recurse=False)):
            if buffer_1T.shape != (1, rows_before) or buffer_1T.is_floating_point():
                continue
            counted_1T = torch.arange(rows, device=buffer_1T.device, dtype=buffer_1T.dtype)[None]
            constant_1T = buffer_1T[:, :1].expand(-1, rows).clone()
            for longer_1T in (counted_1T, constant_1T):
                is_continued = torch.equal(longer_1T[:, :rows_before], buffer_1T)
                if is_continued:
                    hook.set_until_revert(module, name, longer_1T)
                    break


def put_table_rows(model: nn.Module, hook: AttentionHook, rows_TC: Tensor) -> None:
    """Put rows into the model's learned table, from position 0 on, until `hook.revert`."""
    table = model.get_submodule(hook.table_name)
    rows_TC = torch.cat((table.weight.detach()[: hook.row_of_position_0], rows_TC.to(table.weight)))
    hook.set_until_revert(table, "weight", nn.Parameter(rows_TC, requires_grad=False))
