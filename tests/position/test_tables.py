"""What is added to embeddings: sinusoids, and learned tables made longer."""

import torch
from conftest import TRAIN_LEN, small_shape
from measures import LONG, outputs

from posbench.encodings.learned import Learned
from posbench.extensions.table_hierarchical import TableHierarchical
from posbench.extensions.table_linear import TableLinear
from posbench.position.geometry import Span
from posbench.position.plan import make_plan


def test_a_stretched_table_ends_on_its_last_row():
    encoding = Learned(small_shape())
    for length in (TRAIN_LEN + 1, 40, LONG):
        added_TC = make_plan(encoding, TableLinear(), length=length).embed()
        torch.testing.assert_close(added_TC[[0, -1]], encoding.weight[[0, -1]])
        middle = (length - 1) * 0.5 * (TRAIN_LEN - 1) / (length - 1)
        if length % 2:
            wanted_C = encoding.weight[int(middle) : int(middle) + 2].mean(0)
            torch.testing.assert_close(added_TC[length // 2], wanted_C)
    torch.testing.assert_close(
        outputs(encoding, TableLinear(), length=TRAIN_LEN), outputs(encoding, length=TRAIN_LEN)
    )


def test_a_hierarchical_table_keeps_its_first_rows_and_counts_in_two_digits():
    encoding, extension, alpha = Learned(small_shape(8)), TableHierarchical(0.3), 0.3
    rows_NC = encoding.weight
    for length in (1, 8, 9, 64):
        longer_NC = extension.rows(rows_NC, Span(8, length, length))
        assert torch.equal(longer_NC[:8], rows_NC)
    parts = [(rows_NC[a] - alpha * rows_NC[0]) / (1 - alpha) for a in range(8)]
    for index in range(64):
        wanted_C = alpha * parts[index // 8] + (1 - alpha) * parts[index % 8]
        torch.testing.assert_close(longer_NC[index], wanted_C, rtol=0, atol=1e-7)
    (gradient_NC,) = torch.autograd.grad(longer_NC[63].sum(), encoding.weight)
    assert (gradient_NC[7] != 0).all()
    assert outputs(Learned(small_shape()), TableHierarchical()).isfinite().all()
