"""Which combinations run, which are refused with a way out, which provably change nothing."""

import re

import pytest
from conftest import CONFIGS, TRAIN_LEN, choices, judged_triple, make_triple, node
from omegaconf import OmegaConf

from posbench.common.errors import ConfigError
from posbench.engines.engine import SERVED_ENCODING as SERVED
from posbench.extensions.longrope import Longrope
from posbench.position.instantiate import make_method
from posbench.position.legality import name_of, verdict_of
from posbench.pretrained.outline import AS_TRAINED

LENGTHS = [16, 64]
# methods.md section 6: . defined, u untested, 0 changes nothing, x refused. Written from there by
# hand, with these readings of it: near and far bands (rerope, dca, ...) need a score that is a
# function of distance, so fire, fope and dape (whole rows) refuse what the section calls untested,
# as randomised positions do, whose coordinates no longer count tokens; a gate, a count or a whole
# row has no second set of coordinates, so fox x pi and cope x pi, sinks are refused; sandwich has
# no spectrum here; YaRN on encodings without frequencies is its temperature. It calls sinusoidal
# and fope with pi, and sinusoidal with ntk, defined: no test of these is known.
COLUMNS = "none pi ntk yarn rerope self_extend dca window streaming log_n table_linear".split()
TABLE = {
    "learned": "x . x x x x x x x . .",
    "sinusoidal": ". u u u x x x u x . x",
    "rope": ". . . . . . . . . . x",
    "p_rope": ". . . . . . . . . . x",
    "xpos": ". . u u u u u . u . x",
    # at 16 tokens it keeps the fastest pair alone, which NTK leaves as it is
    "fope": ". u 0 . x x x . x . x",
    "pope": ". . u u . . . . . . x",
    "alibi": ". . x x u u u . . u x",
    "kerple": ". u x x u u u . . u x",
    "sandwich": ". u x x u u u . . u x",
    "t5": ". u x x u u u . . u x",
    "fire": ". u x x x x x u x u x",
    "none": ". 0 0 u 0 0 0 . . . 0",
    "fox": ". x x x x x x . u u x",
    "fox_rope": ". . . . . . . . u u x",
    "cope": ". x x x x x x u x u x",
    "stick_breaking": ". 0 0 0 0 0 0 . x x 0",
    "dape": ". u x x x x x . x u x",
    "hybrid": ". 0 0 u 0 0 0 u u . 0",
    "randomized": ". u u u x x x u x . x",
}


def verdict(
    encoding: str, extension: str, scale: str = "none", lengths: list[int] = LENGTHS, **options
) -> str:
    try:
        judged = verdict_of(*judged_triple(encoding, extension, scale), lengths, **options)
    except ConfigError as error:
        return "u" if "allow_untested" in str(error) else "x"
    return "0" if judged.noop else "."


@pytest.mark.parametrize("encoding", TABLE)
def test_the_table_of_legal_pairs(encoding):
    verdicts = {name: verdict(encoding, name) for name in COLUMNS if name != "log_n"} | {
        "log_n": scaled(encoding)
    }
    assert dict(zip(COLUMNS, TABLE[encoding].split(), strict=True)) == {
        name: verdicts[name] for name in COLUMNS
    }


def scaled(encoding: str) -> str:
    """log_n with no extension; with PI where a table reaches no further by itself."""
    return verdict(encoding, "pi" if encoding == "learned" else "none", "log_n")


def test_a_refusal_names_the_legal_alternatives_and_these_are_legal():
    with pytest.raises(
        ConfigError, match="alibi has no spectrum to change, which extension=ntk needs"
    ) as refusal:
        verdict_of(*make_triple("alibi", "ntk", "none"), LENGTHS)
    offered = str(refusal.value).split("extension=")[-1].rstrip(".").split("|")
    assert set(offered) == {"none", "pi", "window", "recompute_window", "streaming", "lm_infinite"}
    assert all(verdict("alibi", extension) == "." for extension in offered)


@pytest.mark.parametrize("encoding", choices("encoding"))
def test_what_a_refusal_advises_is_accepted_as_it_stands(encoding):
    """As typed: encoding=NAME, one of its own yamls, with each extension named; within the training
    length, where a table has not ended.
    """
    for extension in choices("extension"):
        try:
            verdict_of(*judged_triple(encoding, extension, "none"), [16])
        except ConfigError as refusal:
            name, offered = re.search(
                r"with encoding=(\w+) choose extension=([\w|]+)", str(refusal)
            ).groups()
            assert name == encoding and all(
                verdict(name, choice, lengths=[16]) in ".0" for choice in offered.split("|")
            )


@pytest.mark.parametrize(
    ("encoding", "changed"),
    [("fox_rope", {"base": 500.0}), ("gemma3", {"window": 4, "period": 2}), ("fox", {"bias": 5.0})],
)
def test_a_method_is_called_by_the_choice_it_was_made_from(encoding, changed):
    shape = make_triple("rope", "none", "none")[0].shape
    method = make_method({**node("encoding", encoding), **changed}, shape)
    assert (
        name_of(method) == encoding
        and name_of(type(method)) == type(method).__module__.split(".")[-1]
    )


def test_untested_pairs_run_when_allowed_and_are_marked():
    assert verdict_of(
        *make_triple("alibi", "rerope", "none"), LENGTHS, allow_untested=True
    ).untested
    assert not verdict_of(
        *make_triple("rope", "rerope", "log_n"), LENGTHS, allow_untested=True
    ).untested


def test_a_learned_table_ends_where_training_ended_unless_clamped():
    assert not verdict_of(*make_triple("learned", "none", "none"), [16]).noop
    clamped = make_method(
        {**node("encoding", "learned"), "beyond": "clamp"},
        make_triple("learned", "none", "none")[0].shape,
    )
    verdict_of(clamped, *make_triple("learned", "none", "none")[1:], LENGTHS)


def test_longrope_whose_first_positions_are_the_whole_text_is_a_noop():
    rope, _, scale = make_triple("rope", "none", "none")
    for temperature in (True, False):
        extension = Longrope(
            exact_first=TRAIN_LEN, mode="fixed", target_len=64, temperature=temperature
        )
        assert (
            verdict_of(rope, extension, scale, [8, TRAIN_LEN]).noop
            and not verdict_of(rope, extension, scale, [8, TRAIN_LEN + 1]).noop
        )


def test_log_n_without_more_keys_than_in_training_is_a_noop():
    for extension in ("window", "recompute_window"):
        assert (
            "no query sees more keys"
            in verdict_of(*make_triple("rope", extension, "log_n"), LENGTHS).noop
        )


def test_nothing_that_turns_is_no_position_at_all():
    still = make_method(
        {**node("encoding", "p_rope"), "p": 0.0}, make_triple("rope", "none", "none")[0].shape
    )
    for extension in ("pi", "ntk", "rerope"):
        assert verdict_of(still, *make_triple("rope", extension, "none")[1:], LENGTHS).noop
    assert not verdict_of(still, *make_triple("rope", "window", "none")[1:], LENGTHS).noop


def test_short_texts_count_where_an_extension_changes_them_alone():
    short = {
        **node("extension", "longrope"),
        "factors": [1.0] * 4,
        "short_factors": [2.0] * 4,
        "temperature": False,
    }
    encoding, _, scale = make_triple("rope", "none", "none")
    assert not verdict_of(encoding, make_method(short), scale, [8, 64]).noop


def test_drawn_positions_refuse_bands_in_any_layer():
    rope = {"_target_": "posbench.encodings.rope.Rope"}
    layers = {"_target_": "posbench.encodings.hybrid.Hybrid", "local": rope, "full": rope}
    encoding, shape = (
        make_triple("randomized", "none", "none")[0],
        make_triple("rope", "none", "none")[0].shape,
    )
    encoding = make_method({**node("encoding", "randomized"), "base": layers}, shape)
    assert encoding.layers()[0].window == 8  # half the tokens of training, not of the coordinates
    with pytest.raises(ConfigError, match="does not score by distance alone"):
        verdict_of(
            encoding, *make_triple("rope", "rerope", "none")[1:], LENGTHS, allow_untested=True
        )


@pytest.mark.parametrize("name", ["pi", "ntk_fixed", "yarn", "llama3", "ntk_by_parts"])
def test_a_target_is_a_whole_number_of_tokens(name):
    """A factor that a checkpoint has trained in need not be whole tokens; one that is evaluated is
    a column of whole numbers.
    """
    encoding, _, scale = make_triple("rope", "none", "none")
    verdict_of(
        encoding,
        make_method({**node("extension", name), "mode": "fixed", "target_len": 96.0}),
        scale,
        [96],
    )


def test_every_method_states_its_source_and_has_a_yaml():
    import pkgutil

    from posbench import encodings, extensions, scale_attention

    for group, package in (
        ("encoding", encodings),
        ("extension", extensions),
        ("scale_attention", scale_attention),
    ):
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        targets = {node(group, name)["_target_"] for name in choices(group)}
        children = [
            OmegaConf.load(path).get(group) for path in (CONFIGS / "finetune").glob("*.yaml")
        ]  # what only a child can have
        targets |= {child["_target_"] for child in children if child and "_target_" in child}
        targets |= {AS_TRAINED, SERVED}  # what only a checkpoint or an engine has
        assert modules == {
            target.split(".")[-2] for target in targets if target.startswith(package.__name__)
        }


def test_the_verdict_on_a_legal_pair_names_its_source():
    assert verdict_of(*make_triple("rope", "self_extend", "log_n"), LENGTHS).source.startswith(
        "self_extend: the paper; log_n: Su 2023"
    )
    assert (
        verdict_of(*make_triple("lerope", "yarn", "none"), LENGTHS).source
        == "lerope: Mistral Large 4 (Mistral AI 2026)"
    )
    assert verdict_of(*make_triple("rope", "recompute_window", "none"), LENGTHS).source == ""
    assert (
        verdict_of(*make_triple("sinusoidal", "ntk", "none"), LENGTHS, allow_untested=True).source
        == ""
    )
