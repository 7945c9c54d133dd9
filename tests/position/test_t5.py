"""T5's buckets beside those of transformers, and its table."""

import pytest
import torch
from bias_models import SHAPE
from conftest import TRAIN_LEN, small_shape

from posbench.encodings.t5 import T5, bucket_starts
from posbench.extensions.pi import Pi
from posbench.position.plan import make_plan


@pytest.mark.parametrize(
    ("n_buckets", "max_distance"), [(32, 128), (32, 1024), (32, 100), (16, 500), (33, 777), (64, 4096), (17, 27), (2, 9), (8, 5)]
)
def test_t5_buckets_equal_transformers(n_buckets, max_distance):
    reference = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention._relative_position_bucket
    delta = torch.arange(5001)
    theirs = reference(-delta, bidirectional=False, num_buckets=n_buckets, max_distance=max_distance)
    ours = torch.bucketize(delta, torch.tensor(bucket_starts(n_buckets, max_distance)), right=True)
    exact, wide = n_buckets // 2, n_buckets - n_buckets // 2
    for d in delta[ours != theirs].tolist():  # their float32 logarithm falls short of a whole number that d is exactly at
        assert d**wide == max_distance ** (int(ours[d]) - exact) * exact ** (wide - int(ours[d]) + exact) and theirs[d] == ours[d] - 1


def test_t5_reads_its_table_by_bucket_and_whole_tokens():
    encoding = T5(SHAPE, n_buckets=4, max_distance=16, init_std=1.0)
    table = encoding.weight[0].detach()
    # buckets 0, 1, then [2, 16) in two equal parts of ln d: 2..5 and from sqrt(32) = 5.66 on
    delta = torch.tensor([[0.0, 0.99, 1.0], [5.5, 6.0, 99.0]])
    expected = table[torch.tensor([[0, 0, 1], [2, 3, 3]])].permute(2, 0, 1)
    torch.testing.assert_close(encoding.profile(delta, 1), expected, rtol=0, atol=0)


def test_t5_under_pi_meets_no_rounding_at_whole_distances():
    encoding = T5(SHAPE, n_buckets=32, init_std=1.0)
    band = make_plan(encoding, Pi(), length=49 * TRAIN_LEN).layers[0].bands[0]
    slope, offset = band.line
    delta = torch.arange(49 * TRAIN_LEN, dtype=torch.float64) * slope + offset
    bucket = torch.bucketize(delta.float(), encoding.start_N, right=True)
    assert bucket.tolist() == [d // 49 for d in range(49 * TRAIN_LEN)]  # the exact half of the buckets


def test_t5_starts_as_said_and_one_table_serves_all_layers():
    torch.manual_seed(0)
    assert T5(SHAPE).weight.shape == (1, 32, 4) and T5(SHAPE, share_layers=False).weight.shape == (2, 32, 4)
    assert T5(small_shape(4096)).start_N[-1] < 4096 <= T5(small_shape(4096)).start_N[-1] * 2
    assert T5(SHAPE, init_std=0).weight.abs().max() == 0
    assert T5(small_shape(64, n_head=16, n_kv_head=16), n_buckets=512).weight.std().item() == pytest.approx(0.02, rel=0.05)
