"""Types of the values of a configuration: how they may be written, and every argument of every
method.
"""

import inspect
import math
from typing import Annotated, Literal

import pytest
from conftest import CONFIGS, node, small_shape
from hydra import compose, initialize_config_dir
from test_configs import METHODS

from posbench.common.errors import ConfigError
from posbench.config.compose import unresolved_values
from posbench.config.identity import training_identity
from posbench.config.schema import check_config, typed_group
from posbench.config.typed_args import Check, convert, typed_arguments
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding


@pytest.fixture(scope="module", autouse=True)
def composer():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield


@pytest.mark.parametrize(("group", "name"), METHODS, ids=map("=".join, METHODS))
def test_every_argument_of_every_method_is_refused_by_name_where_its_type_is_wrong(group, name):
    written = node(group, name)
    parameters = inspect.signature(make_class(written)).parameters
    for key in written:
        if key == "_target_":
            continue
        wrong = [
            [["x"]],
            math.nan,
            5 if key == "scaling" or isinstance(written[key], dict) else {"a": 1},
        ]
        wrong += ["abc"] if not isinstance(parameters[key].default, str) else [5]
        for value in wrong:
            with pytest.raises(ConfigError, match=rf"^{group}\.{key}=.* must be ") as refusal:
                make_method(
                    {**written, key: value}, *([] if group == "extension" else [small_shape()])
                )
            assert "\n" not in str(refusal.value)


def make_class(written: dict) -> type:
    from hydra.utils import get_class

    return get_class(written["_target_"])


Half = Annotated[int, Check("even", lambda number: number % 2 == 0)]


class UserMethod(Encoding):
    """A user's method: mostly without annotations, with a default of None, and with whatever else
    it may be given.
    """

    def __init__(
        self,
        shape,
        slope=4,
        name="x",
        on=True,
        free=None,
        width: int = None,
        kind: Literal["a", "b"] = "a",
        n: Half = 2,
        **others,
    ):  # noqa: RUF013
        super().__init__(shape)


def test_a_users_class_is_held_to_what_it_says_and_no_more():
    arguments = {
        "slope": 4.5,
        "name": "y",
        "on": False,
        "free": [1],
        "width": None,
        "kind": "b",
        "n": 4,
        "unheard": object(),
    }
    assert typed_arguments("encoding", UserMethod, arguments, ("shape",)) == arguments


def test_whole_numbers_and_truths_are_taken_however_they_are_written():
    assert convert("x", 64.0, int) == 64 and isinstance(convert("x", 64.0, int), int)
    assert convert("x", 1, bool) is True and convert("x", True, int | None | bool) is True
    assert isinstance(
        convert("x", 10000, float), int
    )  # as it was given: classes and hashes do not tell 10000 from 10000.0
    assert convert("x", 1, str | int) == 1 and convert("x", 2**64 - 1, int) == 2**64 - 1


def test_ids_do_not_tell_an_int_from_the_float_it_equals():
    """What stands in the files of existing runs, too: an integer for a float was written as a
    float.
    """
    as_ints = {"lr": 1, "weight_decay": 0, "betas": [0, 0.95], "length": 64.0, "steps": 1e3}
    as_written = {"lr": 1.0, "weight_decay": 0.0, "betas": [0.0, 0.95], "length": 64, "steps": 1000}
    from_ints, from_written = (typed_group("train", values) for values in (as_ints, as_written))
    assert (
        repr(from_ints) == repr(from_written)
        and isinstance(from_ints.lr, float)
        and isinstance(from_ints.betas[0], float)
        and isinstance(from_ints.steps, int)
    )
    rest = {"model": {}, "seed": 0}
    first, second = (
        training_identity({**rest, "encoding": {"base": base}, "train": {"length": 64}}, "f")
        for base in (10000, 10000.0)
    )
    assert first == second and type(first["encoding"]["base"]) is type(second["encoding"]["base"])


@pytest.mark.parametrize(("short", "long"), [("1k", "1024"), ("16K", "16384"), ("1m", "1048576")])
def test_a_length_may_be_typed_in_thousands(short, long):
    """And is the same number, so that ids are the same."""
    words = ["encoding=gemma3", "extension=yarn", "extension.mode=fixed", "finetune=longer"]
    keys = [
        "extension.target_len",
        "train.length",
        "evaluate.max_length",
        "encoding.window",
        "finetune.length",
        "target",
    ]
    words += [*(f"{key}={{0}}" for key in keys), "evaluate.lengths=[{0},64]"]
    pair = [
        check_config(unresolved_values(compose("advise", [word.format(size) for word in words])))
        for size in (short, long)
    ]
    assert pair[0] == pair[1] and pair[0]["target"] == pair[0]["evaluate"]["lengths"][0] == int(
        long
    )
    assert repr(training_identity(pair[0], "")) == repr(training_identity(pair[1], ""))
