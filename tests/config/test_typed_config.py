"""Wrong types and forms anywhere in the configuration: one sentence with the key, the value and
what is legal, before anything is built.
"""

import copy
import inspect
import math
import sys
from functools import reduce
from typing import Annotated, Literal

import pytest
from conftest import CONFIGS, node, small_shape
from hydra import compose, initialize_config_dir
from spoils import SMALL, with_usual, write_text
from test_configs import METHODS

from posbench.common.errors import ConfigError
from posbench.config import compose as composition
from posbench.config.compose import unresolved_values
from posbench.config.identity import training_identity
from posbench.config.schema import check_config, typed_group
from posbench.config.typed_args import Check, class_named, convert, typed_arguments
from posbench.data.sources import make_source
from posbench.model.build import check_methods, make_encoding
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding
from posbench.sweep.jobs import plan_jobs

WHOLE, NUMBER, TEXT, MAPPING, TRUTH = (
    "a whole number",
    "a finite number",
    "text",
    "a mapping",
    "true or false",
)
LENGTHS = "a whole number or a list of whole numbers"
WRONG = [  # words, what is named, what is legal
    *((f"{key}={value}", TEXT)
      for key in ("results_dir", "cache_dir", "device")
      for value in ("5", "null", "[a]", "{a: 1}")),
    *((f"{key}={value}", f"{TEXT} or null")
      for key in ("run", "report_dir", "out") for value in ("5", "[a]", "{a: 1}")),
    *((f"runs={value}", "a list of words or null") for value in ("5", "[5]", "{a: 1}")),
    *((f"data.path={value}", f"{TEXT} or null") for value in ("5", "[a]", "{a: 1}")),
    *((f"data.tokenizer={value}", TEXT) for value in ("5", "null", "[a]", "{a: 1}")),
    *((f"data.source={value}", MAPPING) for value in ("5", "null")),
    *((f"data.source.test_share={value}", NUMBER)
      for value in ("abc", "null", "[1]", "{a: 1}", "nan")),
    *((f"data.vocab_size={value}", WHOLE) for value in ("abc", "null", "[1]", "{a: 1}", "300.5")),
    ("data.source.column=5", TEXT), ("data.bos=5", TRUTH), ("data.source._target_=5", "a class"),
    ("data.source._target_=posbench.runs.directory.Run", "posbench.runs.directory.Run"),
    ("data.source._target_=nobody.Here", "imported"),
    ("device=meta", "auto, cpu"), ("dry=5", TRUTH), ("allow_untested=abc", TRUTH),
    ("jobs=abc", WHOLE), ("processes=1.5", WHOLE),
    ("seed=99999999999999999999999999", "64 bits"), ("seed=18446744073709551616", "64 bits"),
    ("seed=null", WHOLE), ("seed=[0]", WHOLE),
    *((f"train.length={value}", LENGTHS)
      for value in ("null", "abc", "64.5", "[a]", "[[16]]", "{a: 1}", "[16.5]", "true")),
    ("train.length=[]", "at least 2 tokens"), ("train.length=[1]", "at least 2 tokens"),
    ("train.steps=64.5", WHOLE), ("train.steps=inf", WHOLE), ("train.lr=abc", NUMBER),
    ("train.lr=[1]", NUMBER),
    ("train.betas=[0.9]", "two numbers"), ("train.betas=[0.9, 0.95, 0.99]", "two numbers"),
    ("train.betas=[0.9, 1.0]", "below 1"),
    ("train.betas=[-0.1, 0.9]", "0 or more"), ("train.betas=3", "a list of finite numbers"),
    ("train.betas=[a, b]", "finite numbers"),
    ("train.momentum=-1.0", "0 or more"), ("train.seed_data=-1", "0 or more"),
    ("model.n_kv_head=-1", "above 0"),
    ("model.d_ff=-5", "above 0"), ("model.init_std=-1.0", "0 or more"),
    ("model.norm_eps=-1.0", "0 or more"), ("model.tied=abc", TRUTH),
    ("evaluate.lengths=[a]", "a list of whole numbers or null"), ("evaluate.windows=0.5", WHOLE),
    ("evaluate.max_length=-8", "above 0"),
    ("evaluate.protocol=[]", "fixed_targets"), ("log.mode=off", "disabled"),
    ("encoding._target_=5", "a class"),
    ("encoding._target_=posbench.extensions.pi.Pi", "Encoding"),
    ("encoding._target_=posbench.runs.directory.Run", "Encoding"),
    ("extension._target_=posbench.encodings.rope.Rope", "Extension"),
    ("scale_attention._target_=posbench.model.gpt.GPT", "ScaleAttention"),
    ("encoding.base=abc", NUMBER), ("encoding.base=null", NUMBER), ("encoding.base=[1]", NUMBER),
    ("model.d_model=1000000000", "GiB"),
]  # fmt: skip
BESIDE = [
    ("extension=window", "extension.window=abc", WHOLE),
    ("extension=window", "extension.window=32.5", WHOLE),
    ("encoding=hybrid", "encoding.local=5", MAPPING),
    ("encoding=gemma3", "encoding.local.base=abc", NUMBER),
    ("extension=compose", "extension.parts.frequencies.alpha=abc", NUMBER),
    ("train.scale_attention=ssmax", "train.scale_attention.bias=abc", TRUTH),
]
SOURCES = [
    ("books", "skip_test_bytes", -1, "skip_test_bytes=-1 must be 0 or more"),
    ("wikitext103", "splits.train", 5, "splits={.*must be a mapping of mappings"),
    ("wikitext103", "splits.train.take", -1, "splits.train={.*} must skip and take 0 or more rows"),
    ("wikitext103", "splits.test.skip", None, "splits.test.skip=null must be a whole number"),
    ("pysource", "wheels.sympy", 5, "wheels={.*must be a mapping of mappings"),
    ("pysource", "wheels.sympy.version", 1.14, "wheels.sympy.version=1.14 must be text"),
    ("pysource", "validation", 5, "validation=5 must be a list of words"),
]
ALL = [("encoding=rope", *row) for row in WRONG] + BESIDE


@pytest.fixture(scope="module", autouse=True)
def composer():
    """Composes words part by part, as a sweep does; test_composer.py compares it with Hydra."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield composition.Composer()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("typed") / "text")


def judge(composer, text, *words: str) -> None:
    """What run.py does with a command before any job begins."""
    usual = [*SMALL, f"data.path={text}", f"results_dir={text}/runs", f"cache_dir={text}/cache"]
    typed_words = [composition.hydra_form(word) for word in with_usual(*words, usual=usual)]
    values = copy.deepcopy(composer.values(typed_words))
    raw_configs = [
        check_config(cfg) for cfg in composition.raw_configs_of_jobs(values, typed_words, composer)
    ]
    jobs = plan_jobs(raw_configs)
    check_methods(raw_configs)
    for job in jobs:
        make_encoding(job.config)


@pytest.mark.parametrize(("chosen", "wrong", "legal"), ALL, ids=[wrong for _, wrong, _ in ALL])
def test_a_wrong_type_is_one_sentence_with_key_value_and_what_is_legal(
    composer, text, chosen, wrong, legal
):
    with pytest.raises(ConfigError) as refusal:
        judge(composer, text, chosen, wrong)
    message = str(refusal.value)
    assert (
        "\n" not in message
        and legal in message
        and (wrong in message or "nobody.Here cannot be imported" in message)
    ), message


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nobody.Mine", "cannot be imported (ModuleNotFoundError: No module named 'nobody'): "),
        (
            "own_ext.Mien",
            "cannot be imported (AttributeError: module 'own_ext' has no attribute 'Mien'): ",
        ),
        ("own_bad.Mine", "cannot be imported (RuntimeError: two lines): "),
        ("own_ext..Mine", "cannot be imported (ValueError: invalid format: 'own_ext..Mine'): "),
        ("own_ext.value", "is of type int and is not a class"),
        ("own_ext", "is of type module and is not a class"),
    ],
)
def test_a_class_that_cannot_be_had_is_one_sentence(tmp_path, monkeypatch, target, message):
    (tmp_path / "own_ext.py").write_text("class Mine: pass\nvalue = 3\n")
    (tmp_path / "own_bad.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        class_named(target)
    assert str(refusal.value).startswith(f"{target} {message}") and "\n" not in str(refusal.value)
    sys.modules.pop("own_ext", None)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    SOURCES,
    ids=[f"{name} {key}={value}" for name, key, value, _ in SOURCES],
)
def test_a_wrong_argument_of_a_source_is_named(text, name, key, value, message):
    data = composition.resolved_values(unresolved_values(compose("run", [f"data={name}"])))["data"]
    *way, last = key.split(".")
    reduce(dict.__getitem__, way, data["source"])[last] = value
    with pytest.raises(ConfigError, match=rf"^data\.source\.{message}"):
        make_source({**data, "path": str(text)} if "path" in data else data)


def test_what_these_spoil_is_legal_as_it_stands(composer, text):
    judge(composer, text, *SMALL)


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


class Own(Encoding):
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


def test_a_users_own_class_is_held_to_what_it_says_and_no_more():
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
    assert typed_arguments("encoding", Own, arguments, ("shape",)) == arguments


@pytest.mark.parametrize(
    ("key", "value", "legal"),
    [
        ("slope", "abc", NUMBER),
        ("name", 5, TEXT),
        ("on", "abc", TRUTH),
        ("width", "abc", f"{WHOLE} or null"),
        ("width", 4.5, f"{WHOLE} or null"),
        ("kind", "c", "one of a, b"),
        ("n", 3, "even"),
        ("n", "x", WHOLE),
    ],
)
def test_wrong_arguments_of_a_users_own_class_are_refused(key, value, legal):
    with pytest.raises(ConfigError, match=rf"encoding\.{key}={value} must be {legal}"):
        typed_arguments("encoding", Own, {key: value}, ("shape",))


def test_whole_numbers_and_truths_are_taken_however_they_are_written():
    assert convert("x", 64.0, int) == 64 and isinstance(convert("x", 64.0, int), int)
    assert convert("x", 1, bool) is True and convert("x", True, int | None | bool) is True
    assert isinstance(
        convert("x", 10000, float), int
    )  # as it was given: classes and hashes do not tell 10000 from 10000.0
    assert convert("x", 1, str | int) == 1 and convert("x", 2**64 - 1, int) == 2**64 - 1


@pytest.mark.parametrize(
    ("value", "hint", "legal"),
    [
        (True, int, WHOLE),
        (True, float, NUMBER),
        ("1", int, WHOLE),
        (10**400, float, NUMBER),
        (math.inf, int, WHOLE),
        ([1, "a"], list[int], "a list of whole numbers"),
        (2, bool, TRUTH),
    ],
    ids=lambda value: str(value)[:20],
)
def test_no_value_is_taken_for_another_kind(value, hint, legal):
    with pytest.raises(ConfigError, match=f"^x=.* must be {legal}"):
        convert("x", value, hint)


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


def test_terminal_escapes_and_endless_values_do_not_reach_a_sentence():
    for value in ("\x1b[31m" + "x" * 500, ["\x1b[31m" * 100]):
        with pytest.raises(ConfigError) as refusal:
            convert("train.steps", value, int)
        assert "\x1b" not in str(refusal.value) and len(str(refusal.value)) < 150


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


CHECKED = [
    ("advise", "evaluate.lengths=[16kb]", "whole numbers"),
    ("advise", "target=k", WHOLE),
    ("advise", "target=1.5k", WHOLE),
    ("advise", "train.steps=1k", WHOLE),
    ("advise", "seed=1k", WHOLE),
    ("run", "device=gpu", "device=gpu must be .*did you mean cuda"),
    ("run", "device='gpu:0'", "device=gpu:0 must be .*did you mean cuda"),
    ("run", "device=GPU", "device=GPU must be .*did you mean cuda"),
    ("run", "device=nvidia", "device=nvidia must be .*did you mean cuda"),
    ("run", "device=meta", "device=meta must be .*such as cuda:1, or another kind"),
    ("run", "device='cuda:x'", "device=cuda:x must be .*such as cuda:1, or another kind"),
    ("run", "device='cpu '", "device=cpu  must be .*such as cuda:1, or another kind"),
]


@pytest.mark.parametrize(
    ("script", "word", "message"), CHECKED, ids=[f"{script} {word}" for script, word, _ in CHECKED]
)
def test_what_is_no_number_of_tokens_and_no_device_is_refused(script, word, message):
    with pytest.raises(ConfigError, match=message):
        check_config(unresolved_values(compose(script, [word])))
