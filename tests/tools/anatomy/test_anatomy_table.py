"""The table of dimensionless numbers over a grid, as scripts/anatomy.py makes it."""

import math

import pytest
from conftest import node
from dissected import trained_t5
from script_calls import call

from posbench.common.csv_records import from_csv
from posbench.tools.anatomy.from_config import method_in_words
from posbench.tools.anatomy.grid_table import Row


@pytest.fixture
def grid(tmp_path, capfd, one_thread):
    """(what was said, the rows of the CSV) of one call of the script."""

    def call_and_read(*overrides: str, folder: str = "out"):
        done = call(capfd, tmp_path, "anatomy", *overrides, f"report_dir={tmp_path / folder}")
        path = tmp_path / folder / "dimensionless.csv"
        return done, from_csv(path, Row, "a table", "anatomy.py") if path.exists() else []

    return call_and_read


def turns(base: float, pairs: int, train_len: int) -> float:
    """The share of RoPE's pairs that make a full turn."""
    return sum(base ** (-c / pairs) * train_len >= 2 * math.pi for c in range(pairs)) / pairs


def test_a_grid_is_one_row_for_each_pair_that_acts(tmp_path, grid):
    axes = (
        "encoding=rope,alibi,none",
        "extension=none,pi,ntk,recompute_window",
        "evaluate.lengths=[32],[32,128]",
    )
    done, rows = grid("-m", *axes, "train.length=32", "allow_untested=true")
    assert done.returncode == 0, done.stderr
    assert [(row.encoding, row.extension) for row in rows] == [
        ("rope", "none"),
        ("rope", "pi"),
        ("rope", "ntk"),
        ("alibi", "none"),
        ("alibi", "pi"),
        ("none", "none"),
    ]
    assert {(row.train_len, row.length, row.n_head, row.head_dim, row.layers) for row in rows} == {
        (32, 128, 2, 64, "all")
    }
    assert len(done.stderr.splitlines()) == 3  # each reason once
    assert (
        "alibi has no spectrum" in done.stderr
        and done.stderr.count("no-op: encoding=none has no positions") == 2
    )
    plain, pi, ntk, alibi, shrunk, nope = rows
    assert plain.share_full_turns == turns(1e4, 32, 32) and plain.r_max == pytest.approx(
        32 / (2 * math.pi)
    )
    assert ntk.share_full_turns_after == turns(1e4 * 4 ** (64 / 62), 32, 32) < ntk.share_full_turns
    assert pi.share_full_turns_after is None  # frequencies stay
    assert pi.exact_over_train_len == 1 / 32 and pi.reach_over_trained == pytest.approx(
        127 / 4 / 31
    )
    assert (
        alibi.slope_x_length == shrunk.slope_x_length == 32 / 256 and alibi.share_full_turns is None
    )
    assert (
        nope.keys_over_train_len == 4
        and nope.exact_over_train_len is None
        and nope.slope_x_length is None
    )
    header = (tmp_path / "out" / "dimensionless.csv").read_text().splitlines()[0]
    assert header == (
        "encoding,layers,extension,encoding_args,extension_args,n_head,head_dim,train_len,length,"
        "share_full_turns,share_full_turns_after,r_max,beta_over_r_max,slope_x_length,"
        "decay_x_length,exact_over_train_len,keys_over_train_len,window_over_train_len,"
        "reach_over_trained,beta"
    )
    markdown = (tmp_path / "out" / "dimensionless.md").read_text()
    assert "| alibi | pi | 32 to 128 |  |  |  | 0.125 | 0.0312 | 4 | 1.02 |" in markdown
    assert (
        "beta/turns" not in markdown and "decay" not in markdown
    )  # columns and words of what applies nowhere
    assert all(
        str(tmp_path / "out" / f"dimensionless.{kind}") in done.stdout for kind in ("md", "csv")
    )


def test_forms_heads_and_layers_are_told_apart(tmp_path, grid):
    _, rows = grid(
        "-m", "encoding=rope", "encoding.base=27,10000", "model.n_head=2,4", "length=128"
    )
    assert [(row.encoding, row.head_dim, row.share_full_turns) for row in rows] == [
        ("rope base=27", 64, 23 / 32),
        ("rope base=27", 32, turns(27, 16, 64)),
        ("rope", 64, 9 / 32),
        ("rope", 32, 5 / 16),
    ]
    assert "| rope base=27 (4 heads of 32) |" in (tmp_path / "out" / "dimensionless.md").read_text()
    _, rows = grid(
        "-m",
        "encoding=hybrid",
        "extension=none,streaming",
        "seed=0,1",
        "length=256",
        "allow_untested=true",
        folder="layers",
    )
    assert {row.length for row in rows} == {256}  # the length that is asked for
    assert [(row.layers, row.extension, row.window_over_train_len) for row in rows] == [
        ("none in 1 of 4 layers", "none", None),
        ("rope in 3 of 4 layers", "none", 0.5),
        ("none in 1 of 4 layers", "streaming", None),
    ]


def test_trained_encodings_are_named_by_their_runs(tmp_path, grid):
    for factor in (1, 3):
        trained_t5(tmp_path / f"t5-16-s0-{factor}", factor)
    done, rows = grid(
        "-m", f"run={tmp_path}/t5-16-s0-1,{tmp_path}/t5-16-s0-3,{tmp_path}/gone", "length=32"
    )
    assert [(row.encoding, row.slope_x_length) for row in rows] == [
        ("t5-16-s0-1", 32),
        ("t5-16-s0-3", 96),
    ]  # 2 at each of 16 tokens
    assert done.returncode == 0 and "gone has no finished training" in done.stderr


def test_a_grid_gives_neither_a_picture_nor_a_table_of_nothing(tmp_path, grid):
    refused, _ = grid("-m", "encoding=none", "json=a.json")
    assert refused.returncode == 2 and "json=a.json is of one combination" in refused.stderr
    done, _ = grid("-m", "encoding=none", "extension=pi,ntk")
    assert (
        done.returncode == 0
        and "there is no table" in done.stderr
        and not (tmp_path / "out").exists()
    )


def test_methods_in_words_name_what_is_not_as_in_their_yaml():
    hybrid = node("encoding", "hybrid")
    assert (
        method_in_words("encoding", hybrid) == "hybrid"
        and method_in_words("encoding", node("encoding", "gemma3")) == "gemma3"
    )
    changed = {
        **hybrid,
        "period": 2,
        "local": {"_target_": "posbench.encodings.alibi.Alibi", "slope_scale": 16.0},
    }
    assert (
        method_in_words("encoding", changed) == "hybrid local=alibi local.slope_scale=16 period=2"
    )
    assert method_in_words("encoding", {"_target_": "own.Method", "slope": 0.5}) == "own slope=0.5"
