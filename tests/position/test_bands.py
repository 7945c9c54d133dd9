"""Extensions that say which keys a query sees and how far they seem: their limits, their corner
cases, their identities.
"""

import math

import pytest
import torch
from conftest import TRAIN_LEN, node, small_shape
from dense_extensions import gali_ids
from measures import LONG, distances, equal, outputs, plain, same

from posbench.common.errors import ConfigError
from posbench.encodings.alibi import Alibi
from posbench.encodings.rope import Rope
from posbench.extensions.dca import Dca
from posbench.extensions.gali import Gali
from posbench.extensions.leaky_rerope import LeakyRerope
from posbench.extensions.lm_infinite import LmInfinite
from posbench.extensions.ntk import Ntk
from posbench.extensions.pi import Pi
from posbench.extensions.random_keys import RandomKeys
from posbench.extensions.rerope import Rerope
from posbench.extensions.self_extend import SelfExtend
from posbench.extensions.streaming import Streaming
from posbench.extensions.string import String
from posbench.extensions.window import Window
from posbench.position.effect import shared_texts
from posbench.position.geometry import Span
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan


@pytest.mark.parametrize(
    "extension",
    [
        SelfExtend(window=LONG),
        SelfExtend(window=4, group=1),
        Dca(chunk=LONG),
        Dca(chunk=LONG, local=3),
        String(shift=LONG),
        String(shift=5, window=5),
        Streaming(sinks=4, window=LONG - 5),
        LmInfinite(window=LONG),
        Window(LONG),
        Rerope(LONG),
        RandomKeys(LONG),
        RandomKeys(LONG, LONG, clamp=True),
        LeakyRerope(4, k=1),
        LeakyRerope(LONG, k=3),
        Pi("fixed", TRAIN_LEN),
        Ntk(2, "fixed", TRAIN_LEN),
    ],
    ids=lambda e: type(e).__name__,
)
def test_limits_that_equal_no_extension(extension):
    equal(distances(extension, LONG), plain(LONG))
    for encoding in (Rope(small_shape()), Alibi(small_shape())):
        if not extension.needs & ~encoding.traits:
            same(outputs(encoding, extension), outputs(encoding))


@pytest.mark.parametrize(
    "name", ["self_extend", "gali", "streaming", "lm_infinite", "leaky_rerope", "random_keys"]
)
def test_nothing_changes_within_the_training_length(name):
    for length in (1, 2, TRAIN_LEN):
        equal(distances(make_method(node("extension", name)), length), plain(length))


@pytest.mark.parametrize(
    ("name", "train_len"),
    [
        (name, train_len)
        for name in ("self_extend", "streaming", "dca", "leaky_rerope", "rerope")
        for train_len in (4, 8, 20, 64)
        if (name, train_len) != ("streaming", 4)  # 4 sinks, a neighbour, the query: it is refused
    ],
)
def test_distances_of_the_defaults_were_seen_in_training(name, train_len):
    for factor in (1, 2, 3, 8):
        distance_TT = distances(make_method(node("extension", name)), factor * train_len, train_len)
        assert (
            0 <= distance_TT.nan_to_num().min()
            and distance_TT.nan_to_num().max() <= train_len - 1 + 1e-9
        )
        assert (distance_TT.diagonal() == 0).all()


def test_self_extends_default_group_divides_its_window_and_covers_the_length():
    shift = torch.tensor([16.0, 63.0, 64.0, 255.0, 256.0, 511.0]).double()
    for length, group in ((64, 1), (128, 4), (256, 8), (512, 16)):
        _, far = SelfExtend().bands(Span(64, length, length))
        equal(far.k(shift), (shift / group).floor())
    _, far = SelfExtend(window=16).bands(
        Span(64, 512, 512)
    )  # a window of one's own: the smallest group
    equal(far.k(shift), (shift / 11).floor())


@pytest.mark.parametrize(
    ("size", "local"), [(10, 3), (10, 9), (10, 10), (4, 4), (6, 0), (1, 1), (1, 0)]
)
def test_dca_looks_up_the_authors_tables(size, local):
    """Keys at their place in a chunk; queries by their place in one of two tables, those of older
    chunks at the end of the second.
    """
    own_places = list(range(size))
    beyond = [min(place + size, size + local) for place in own_places]
    distance_TT = distances(Dca(size, local), 35)
    for i in range(35):
        for j in range(i + 1):
            chunks = i // size - j // size
            q = (
                own_places[i % size]
                if chunks == 0
                else beyond[i % size]
                if chunks == 1
                else beyond[size - 1]
            )
            assert distance_TT[i, j] == q - j % size, (i, j)


def test_dca_may_have_half_of_three_quarters_of_training_as_local():
    """Then local is the chunk: 24 tokens each of 3/4 64, with the distances of the authors' tables
    for these numbers, which grow with each key up to a chunk away.
    """
    span = Span(64, 256, 256)
    for by_training, by_numbers in zip(
        Dca(local=24).bands(span), Dca(24, 24).bands(span), strict=True
    ):
        index_T = torch.arange(256)
        for name in ("first", "last", "q", "k"):
            equal(getattr(by_training, name)(index_T), getattr(by_numbers, name)(index_T))
    with pytest.raises(ConfigError, match="extension.local=25 .*at most 24"):
        Dca(local=25).bands(span)


@pytest.mark.parametrize(("window", "chunk"), [(2, 1), (2, 5), (7, 16), (15, 40)])
def test_gali_places_keys_by_the_papers_algorithm(window, chunk):
    """Greedy too: the last query of a chunk meets all trained distances, and no query others."""
    distance_TT = distances(Gali(window, chunk), 100)
    for i in range(TRAIN_LEN, 100):
        end = TRAIN_LEN + chunk * (1 + (i - TRAIN_LEN) // chunk)
        ids = torch.tensor(gali_ids(end, window, TRAIN_LEN), dtype=torch.float64)
        equal(distance_TT[i, : i + 1], ids[i].ceil() - ids[: i + 1])
        assert (distance_TT[i, : i + 1].ceil() < TRAIN_LEN).all()
        assert i < end - 1 or set(distance_TT[i].tolist()) >= set(range(TRAIN_LEN))
        assert (
            i < end - 1 or distance_TT[i, i - window + 1 : i + 1].tolist() == [*range(window)][::-1]
        )


def test_gali_is_the_interpolation_of_logits_and_a_longer_text_begins_alike():
    encoding, extension = Rope(small_shape()), Gali()
    plans = {
        length: make_plan(encoding, extension, length=length) for length in (TRAIN_LEN, 40, LONG)
    }
    assert shared_texts(plans.get, plans) == {LONG: [LONG, 40, TRAIN_LEN]}
    x_BHTD = torch.randn(1, 1, LONG, 8, generator=torch.Generator().manual_seed(0))
    table = encoding.table(torch.arange(TRAIN_LEN, dtype=torch.float64), encoding.spectrum())
    layer, last = plans[LONG].layers[0], LONG - 1
    *_, far = layer.bands
    q_BHTD, k_BHTD = layer.turned(far, x_BHTD, x_BHTD)
    for key in range(int(far.last_T[last]) + 1):
        place = float(far.k_pos_T[key])
        query_BHTD = x_BHTD[:, :, [last]]
        logits = []
        for at in (math.ceil(place), math.floor(place)):
            turned = encoding.rotate(
                query_BHTD, x_BHTD[:, :, [key]], table[:, [int(far.q_pos_T[last])]], table[:, [at]]
            )
            logits.append(float((turned[0] * turned[1]).sum()))
        share = math.ceil(place) - place
        score = float((q_BHTD[0, 0, last] * k_BHTD[0, 0, key]).sum())
        assert score == pytest.approx((1 - share) * logits[0] + share * logits[1], abs=1e-5)


def test_string_moves_far_keys_nearer_and_counts_each_once():
    distance_TT = distances(String(shift=6, window=2), 20)
    assert [distance_TT[19, 19 - d].item() for d in range(10)] == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5]


def test_lm_infinite_sees_a_window_and_the_start_at_one_distance():
    distance_TT = distances(LmInfinite(n_global=3, window=8), 40)
    assert distance_TT[39].isnan().sum() == 40 - 8 - 3
    assert (distance_TT[39, :3] == 8).all() and distance_TT[39, 32] == 7


def test_random_keys_are_those_of_plain_attention_or_of_rerope_and_about_as_many_as_in_training():
    """The two causes apart: the same keys at both distances, so that either pair of methods differs
    in one thing.
    """
    real, clamped = (distances(RandomKeys(clamp=clamp), 1024, 64) for clamp in (False, True))
    seen = ~real.isnan()
    equal(real, torch.where(seen, plain(1024), torch.nan))
    equal(clamped, torch.where(seen, distances(Rerope(), 1024, 64), torch.nan))
    assert (real[1023, -32:] == plain(32)[31]).all() and seen[:64].sum() == 64 * 65 / 2
    count = seen[64:].sum(dim=1).double()
    assert abs(count.mean() - 64) < 8 and count.max() < 64 + 4 * 32**0.5
    assert (
        not (seen[1:, :-32] & ~seen[:-1, :-32]).tril(-32).any()
    )  # what was dropped does not come back
    equal(distances(RandomKeys(), 300, 64), real[:300, :300])
    plans = {
        length: make_plan(Rope(small_shape(64)), RandomKeys(), length=length)
        for length in (300, 1024)
    }
    near, far = plans[1024].layers[0].bands
    assert torch.equal(near.n_seen_T + far.n_seen_T, seen.sum(dim=1))
    assert torch.equal(far.first_seen_T[64:], seen[64:].int().argmax(dim=1))
    assert shared_texts(plans.get, plans) == {1024: [1024, 300]}


def test_random_keys_without_room_beyond_the_window_are_a_window():
    equal(distances(RandomKeys(keys=8, window=8), 50), distances(Window(8), 50))
    other = distances(RandomKeys(draw=1), 200)
    assert not torch.equal(other.isnan(), distances(RandomKeys(), 200).isnan())
