"""Which combinations run, which are refused with a way out, which provably change nothing."""

from __future__ import annotations

import pytest
from conftest import choices, make_triple, node

from posbench.compat import check
from posbench.errors import ConfigError
from posbench.make import make

LENGTHS = [16, 64]
# methods.md section 6 for the methods that exist: . defined, u untested, 0 changes nothing, x refused
TABLE = {
    #              none pi ntk rerope leaky window recompute log_n
    "none": ". 0 0 0 0 . . .",
    "learned": "x . x x x x . x",
    "sinusoidal": ". . . x x u . .",
    "rope": ". . . . . . . .",
    "alibi": ". . x u u . . u",
}
COLUMNS = ["none", "pi", "ntk", "rerope", "leaky_rerope", "window", "recompute_window"]


def verdict(encoding: str, extension: str, scale: str = "none", **options) -> str:
    triple = make_triple(encoding, extension, scale)
    try:
        found = check(*triple, LENGTHS, **options)
    except ConfigError as error:
        return "u" if "allow_untested" in str(error) else "x"
    return "0" if found.noop else "."


@pytest.mark.parametrize("encoding", TABLE)
def test_the_table_of_legal_pairs(encoding):
    found = [verdict(encoding, extension) for extension in COLUMNS] + [verdict(encoding, "none", "log_n")]
    assert " ".join(found) == TABLE[encoding]


def test_a_refusal_names_the_legal_alternatives_and_these_are_legal():
    with pytest.raises(ConfigError, match="alibi has no spectrum to change, which extension=ntk needs") as refusal:
        check(*make_triple("alibi", "ntk", "none"), LENGTHS)
    offered = str(refusal.value).split("extension=")[-1].rstrip(".").split("|")
    assert set(offered) == {"none", "pi", "window", "recompute_window"}
    assert all(verdict("alibi", extension) == "." for extension in offered)


def test_untested_pairs_run_when_allowed_and_are_marked():
    assert check(*make_triple("alibi", "rerope", "none"), LENGTHS, allow_untested=True).untested
    assert not check(*make_triple("rope", "rerope", "log_n"), LENGTHS, allow_untested=True).untested


def test_a_learned_table_ends_where_training_ended_unless_clamped():
    assert not check(*make_triple("learned", "none", "none"), [16]).noop
    with pytest.raises(ConfigError, match="no position 63"):
        check(*make_triple("learned", "none", "none"), LENGTHS)
    clamped = make({**node("encoding", "learned"), "beyond": "clamp"}, make_triple("learned", "none", "none")[0].shape)
    check(clamped, *make_triple("learned", "none", "none")[1:], LENGTHS)


def test_log_n_without_more_keys_than_in_training_is_a_noop():
    for extension in ("window", "recompute_window"):
        assert "no query sees more keys" in check(*make_triple("rope", extension, "log_n"), LENGTHS).noop


@pytest.mark.parametrize(
    ("group", "name", "key", "value"),
    [
        ("extension", "pi", "mode", "sometimes"),
        ("extension", "ntk", "mode", "fixed"),
        ("extension", "pi", "target_len", 128),
        ("extension", "ntk", "multiplier", 0.5),
        ("extension", "leaky_rerope", "k", 0.5),
        ("encoding", "rope", "layout", "thirds"),
        ("encoding", "learned", "beyond", "wrap"),
        ("encoding", "rope", "base", 0),
        ("encoding", "sinusoidal", "base", -1),
    ],
)
def test_impossible_arguments_are_refused(group, name, key, value):
    arguments = [make_triple("rope", "none", "none")[0].shape] if group == "encoding" else []
    with pytest.raises(ConfigError, match=str(value)):
        make({**node(group, name), key: value}, *arguments)


def test_every_method_states_its_source_and_has_a_yaml():
    import pkgutil

    from posbench import encodings, extensions, scale_attention

    for group, package in (("encoding", encodings), ("extension", extensions), ("scale_attention", scale_attention)):
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert modules == {node(group, name)["_target_"].split(".")[-2] for name in choices(group)}
