"""A stored evaluation: its setting, which is its key and is read back from no words, and arrays
that are read when they are needed.
"""

import numpy as np
import pytest
from synthetic import ASKED, LENGTHS, TARGETS, with_settings, write_eval

from posbench.common.errors import RunError
from posbench.results.evaluation import load_evaluation
from posbench.runs.setting import Setting


def stored(folder, **evaluate):
    """An evaluation whose json holds this configuration."""
    return with_settings(
        write_eval(folder, "rope", "none", "none", np.full((4, TARGETS), 3.0), LENGTHS), **evaluate
    )


def test_keys_of_later_versions_and_lengths_tell_no_settings_apart(tmp_path):
    keys = [
        load_evaluation(stored(tmp_path / str(n), **more)).key
        for n, more in enumerate(({}, {"stride": None}, {"lengths": [64]}, {"windows": 2}))
    ]
    assert keys[0] == keys[1] == keys[2] != keys[3] and keys[0][-1] == Setting(**ASKED)


def test_a_stride_tells_settings_apart_but_not_their_windows(tmp_path):
    default, strided = (
        load_evaluation(stored(tmp_path / "a")),
        load_evaluation(stored(tmp_path / "b", stride=16)),
    )
    assert default.key != strided.key and default.windows == strided.windows
    assert (default.full_from, strided.full_from) == (64 + 7, 64 + 15)
    assert (
        strided.setting_in_words == str(strided.setting)
        and "advancing by 16" in strided.setting_in_words
        and default.setting_in_words != strided.setting_in_words
    )


def test_blocks_of_the_floor_tell_settings_apart_and_are_named(tmp_path):
    default, exact, blocks = (
        load_evaluation(stored(tmp_path / str(n), **more))
        for n, more in enumerate(({}, {"floor_block": 1}, {"floor_block": 16}))
    )
    assert (
        default.key == exact.key != blocks.key
        and default.setting_in_words == exact.setting_in_words
        and default.windows == blocks.windows
    )
    assert "recompute_window in blocks of 16" in blocks.setting_in_words


@pytest.mark.parametrize("evaluate", [{"windows": [512]}, {"documents": {}}])
def test_a_setting_of_lists_is_damage(tmp_path, evaluate):
    with pytest.raises(RunError, match="is damaged"):
        load_evaluation(stored(tmp_path, **evaluate))


def test_a_setting_without_a_key_is_damage(tmp_path):
    path = stored(tmp_path)
    path.write_text(path.read_text().replace('"targets": 8, ', ""))
    with pytest.raises(RunError, match="targets"):
        load_evaluation(path)


def test_arrays_are_read_when_they_are_first_needed(tmp_path):
    path = stored(tmp_path)
    path.with_suffix(".npz").write_bytes(b"no zip")
    evaluation = load_evaluation(path)
    assert evaluation.first["length"] == 64
    with pytest.raises(RunError, match=r"\.npz is damaged"):
        evaluation.losses(64)
    fields = {
        "nll": np.ones((1, 4)),
        "length": np.array([64]),
        "document": np.zeros(4, int),
        "offset": np.arange(4),
    }
    for wrong in ({"correct": np.array(1)}, {"correct": np.ones(0)}):
        np.savez(path.with_suffix(".npz"), **fields, **wrong)
        evaluation = load_evaluation(path)
        with pytest.raises(RunError, match=r"\.npz is damaged"):
            evaluation.sums(evaluation.first, "correct")
    path.with_suffix(".npz").unlink()
    assert load_evaluation(path).arrays == {} and load_evaluation(path).losses(64) is None
