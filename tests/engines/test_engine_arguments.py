"""Arguments of engines that would stop a run in the middle, or the whole process."""

import pytest
from conftest import node

from posbench.common.errors import ConfigError
from posbench.engines.engine import make_engine


@pytest.mark.parametrize(
    ("engine", "argument", "value", "least"),
    [
        ("llama_cpp", "batch_size", 0, 1),  # the steps in which a text is read
        ("llama_cpp", "ubatch_size", -1, 0),
        ("llama_cpp", "threads", -1, 1),  # llama.cpp's word for all cores, here null
        ("llama_cpp", "yarn_orig_ctx", -1, 0),
        ("llama_cpp", "grp_attn_w", 0, 1),  # which is divided by
        ("server", "retries", -1, 0),
    ],
)
def test_a_number_that_counts_nothing_is_refused_with_the_least(engine, argument, value, least):
    with pytest.raises(ConfigError, match=f"{argument}={value} must be .* at least {least}"):
        make_engine({**node("model", engine), argument: value})
    make_engine({**node("model", engine), argument: least})
