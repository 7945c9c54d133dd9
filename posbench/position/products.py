"""Products of matrices on a CPU whose digits do not depend on the number of threads.

A job gets more threads alone than beside another job, and its losses must be the same. MKL makes
four rows of a product together, and what is left of three rows or fewer in another order of the
same sums. Threads share out the rows, so for 5 to 51 rows (with 2 to 32 threads) it depends on
their number which rows are left, unless the rows are a multiple of four. torch's attention gives
each thread a buffer of its own, and what is left of few queries depends on where it lies. Measured
with torch 2.13 and MKL 2024.2, in float32 and float64; bf16, which oneDNN multiplies, has the same
digits for any number of threads. tests/model/test_threads.py compares the bits.

Letters: N rows, C and F widths, S queries, K keys, W width of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROW_GROUP = 4  # rows
MANY_ROWS = 1024  # rows from which nothing was ever left over differently


class Linear(nn.Linear):
    """nn.Linear that adds rows of zeros to few rows, up to a multiple of ROW_GROUP."""

    def forward(self, x_NC: Tensor) -> Tensor:
        """Product whose digits on a CPU do not depend on the number of threads."""
        if x_NC.device.type != "cpu":
            return super().forward(x_NC)
        n_rows = x_NC.shape[:-1].numel()
        missing = -n_rows % ROW_GROUP
        # Rows that are left over beside groups of four are summed in another order, and which rows
        # these are depends on the number of threads. Of many rows it was never seen to matter.
        if not missing or n_rows >= MANY_ROWS:
            return super().forward(x_NC)
        more_NC = F.pad(x_NC.reshape(n_rows, x_NC.shape[-1]), (0, 0, 0, missing))
        return super().forward(more_NC)[:n_rows].unflatten(0, x_NC.shape[:-1])


def with_whole_row_groups(q_SW: Tensor, mask_SK: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Queries [..., S, W] and their mask [..., 1 or S, K] for torch's attention, with copies of the
    last up to a multiple of ROW_GROUP, so that their digits do not depend on the number of threads.
    """
    n_rows = q_SW.shape[-2]
    missing = -n_rows % ROW_GROUP
    # From MANY_ROWS on, digits were never seen to differ.
    if not missing or n_rows >= MANY_ROWS or q_SW.device.type != "cpu":
        return q_SW, mask_SK
    row_S = torch.arange(n_rows + missing).clamp(max=n_rows - 1)
    if mask_SK is not None and mask_SK.shape[-2] > 1:
        mask_SK = mask_SK[..., row_S, :]
    return q_SW[..., row_S, :], mask_SK
