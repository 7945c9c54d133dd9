"""Refusals of configurations: whole lines, and values, classes and sources of a wrong type or form,
each with what the sentence says.
"""

import copy
import math
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest
from conftest import CONFIGS
from hydra import compose, initialize_config_dir
from script_calls import call
from spoils import SMALL, with_usual, write_text
from test_typed_config import UserMethod

from posbench.common.errors import ConfigError
from posbench.config import compose as composition
from posbench.config.compose import check_optimizer, unresolved_values
from posbench.config.schema import check_config
from posbench.config.typed_args import class_named, convert, typed_arguments
from posbench.data.sources import make_source
from posbench.model.build import check_methods, make_encoding
from posbench.sweep.jobs import plan_jobs

LINES = [
    ("encoding=nope", "(did you mean none?)"),
    ("encoding=RoPE", "(did you mean rope?)"),
    ("extension=NTK-aware", "(did you mean ntk?)"),
    ("scale_attention=yarn", "(did you mean yarn_temperature?)"),
    ("data=text", "(did you mean local data.path=PATH?)"),
    ("data=notes/mine.txt", "type your own text as data=local data.path=notes/mine.txt"),
    ("model=ORG/NAME", "type a checkpoint as model=hf model.path=ORG/NAME"),
    ("model=gpt2", "a checkpoint is given as model=hf model.path=PATH_OR_NAME"),
    ("evaluate.protocol=perplexity", "(did you mean disjoint?)"),
    ("evaluate.protocol=passkey", "(did you mean accuracy, with evaluate.tasks=[passkey]?)"),
    ("--encoding rope", "values are typed without dashes, as encoding=VALUE"),
    ("--learning-rate=1", "values are typed without dashes, as train.lr=1"),
    ("max_iters=9", "(did you mean train.steps?)"),
    ("pe=rope", "(did you mean encoding?)"),
    ("extension=yarn extension.factor=4", "(did you mean extension.target_len, in tokens: "),
    ("encoding.dim=4", "(it is of encoding=sandwich)"),
    ("dropout=0.1", "models are trained without dropout: leave it out"),
    ("extension=pi,yarn", "names several values: add -m to take each."),
    ("seed=[0,1]", "(for a job with each, type -m seed=0,1)"),
    ("encoding=[rope,alibi]", "for a job with each, type -m encoding=rope,alibi"),
    ("seed=0,1", "names several values: add -m to take each."),
    ("data.tokenizer=byte", "(did you mean bytes?)"),
    ("data.tokenizer=char data.vocab_size=65", "data.vocab_size=65 has no effect on data."),
    ("data.tokenizer=gpt2 data.vocab_size=65", "no effect on data.tokenizer=gpt2, whose"),
    ("train.optimizer=adamw train.muon_lr=0.1", "0.1 is Muon's and has no effect on"),
    ("-m train.optimizer=adamw train.momentum=0.8,0.9", "0.8 is Muon's and has no effect on"),
    ("extension=yarn extension.mode=fixed", "add extension.target_len=TOKENS"),
    ("name=a/b", "name=a/b must be a name of at most 60 letters"),
    ("-m name=a,b", "name=a,b gives 2 names to one sweep"),
]


# A script closes Hydra, so whole lines stand before what `composer` holds open.
@pytest.mark.parametrize(("line", "message"), LINES, ids=[line for line, _ in LINES])
def test_a_line_is_refused_with_the_word_that_was_meant(tmp_path, capfd, line, message):
    done = call(capfd, tmp_path, "run", *line.split(), "dry=true")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr, (
        done.stderr
    )


def test_a_value_that_one_job_of_a_sweep_reads_is_taken():
    words = ["train.muon_lr=0.1"]
    check_optimizer([{"train": {"optimizer": name}} for name in ("adamw", "muon")], words)
    with pytest.raises(ConfigError, match="train.muon_lr=0.1 is Muon's"):
        check_optimizer([{"train": {"optimizer": "adamw"}}] * 2, words)


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
ALL = [("encoding=rope", *row) for row in WRONG] + BESIDE


@pytest.fixture(scope="module")
def composer() -> Iterator[composition.Composer]:
    """Composes words part by part, as a sweep does; test_composer.py compares it with Hydra."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield composition.Composer()


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("typed") / "text")


def judge(composer: composition.Composer, text: Path, *words: str) -> None:
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


def test_what_these_spoil_is_legal_as_it_stands(composer, text):
    judge(composer, text, *SMALL)


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


CLASSES = [
    ("nobody.Mine", "cannot be imported (ModuleNotFoundError: No module named 'nobody'): "),
    (
        "own_ext.Mien",
        "cannot be imported (AttributeError: module 'own_ext' has no attribute 'Mien'): ",
    ),
    ("own_bad.Mine", "cannot be imported (RuntimeError: two lines): "),
    ("own_ext..Mine", "cannot be imported (ValueError: invalid format: 'own_ext..Mine'): "),
    ("own_ext.value", "is of type int and is not a class"),
    ("own_ext", "is of type module and is not a class"),
]


@pytest.mark.parametrize(("target", "message"), CLASSES)
def test_a_class_that_cannot_be_had_is_one_sentence(tmp_path, monkeypatch, target, message):
    (tmp_path / "own_ext.py").write_text("class Mine: pass\nvalue = 3\n")
    (tmp_path / "own_bad.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        class_named(target)
    assert str(refusal.value).startswith(f"{target} {message}") and "\n" not in str(refusal.value)
    sys.modules.pop("own_ext", None)


SOURCES = [
    ("books", "skip_test_bytes", -1, "skip_test_bytes=-1 must be 0 or more"),
    ("wikitext103", "splits.train", 5, "splits={.*must be a mapping of mappings"),
    ("wikitext103", "splits.train.take", -1, "splits.train={.*} must skip and take 0 or more rows"),
    ("wikitext103", "splits.test.skip", None, "splits.test.skip=null must be a whole number"),
    ("pysource", "wheels.sympy", 5, "wheels={.*must be a mapping of mappings"),
    ("pysource", "wheels.sympy.version", 1.14, "wheels.sympy.version=1.14 must be text"),
    ("pysource", "validation", 5, "validation=5 must be a list of words"),
]


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    SOURCES,
    ids=[f"{name} {key}={value}" for name, key, value, _ in SOURCES],
)
def test_a_wrong_argument_of_a_source_is_named(composer, text, name, key, value, message):
    data = composition.resolved_values(unresolved_values(compose("run", [f"data={name}"])))["data"]
    *way, last = key.split(".")
    reduce(dict.__getitem__, way, data["source"])[last] = value
    with pytest.raises(ConfigError, match=rf"^data\.source\.{message}"):
        make_source({**data, "path": str(text)} if "path" in data else data)


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
def test_what_is_no_number_of_tokens_and_no_device_is_refused(composer, script, word, message):
    with pytest.raises(ConfigError, match=message):
        check_config(unresolved_values(compose(script, [word])))


OF_A_USER = [  # argument of UserMethod, its value, what is legal
    ("slope", "abc", NUMBER),
    ("name", 5, TEXT),
    ("on", "abc", TRUTH),
    ("width", "abc", f"{WHOLE} or null"),
    ("width", 4.5, f"{WHOLE} or null"),
    ("kind", "c", "one of a, b"),
    ("n", 3, "even"),
    ("n", "x", WHOLE),
]


@pytest.mark.parametrize(("key", "value", "legal"), OF_A_USER)
def test_a_wrong_argument_of_a_users_class_is_refused(key, value, legal):
    with pytest.raises(ConfigError, match=rf"encoding\.{key}={value} must be {legal}"):
        typed_arguments("encoding", UserMethod, {key: value}, ("shape",))


ESCAPE = "\x1b[31m"
LONGEST_MESSAGE = 140  # characters
KINDS = [  # value, type that it is for, what is legal
    (True, int, WHOLE),
    (True, float, NUMBER),
    ("1", int, WHOLE),
    (10**400, float, NUMBER),
    (math.inf, int, WHOLE),
    ([1, "a"], list[int], "a list of whole numbers"),
    (2, bool, TRUTH),
    (ESCAPE + "x" * 500, int, WHOLE),
    ([ESCAPE * 100], int, WHOLE),
]


@pytest.mark.parametrize(("value", "hint", "legal"), KINDS, ids=lambda value: str(value)[:20])
def test_no_value_is_taken_for_another_kind_and_the_sentence_is_short(value, hint, legal):
    with pytest.raises(ConfigError, match=f"^x=.* must be {legal}") as refusal:
        convert("x", value, hint)
    message = str(refusal.value)
    assert "\x1b" not in message and len(message) < LONGEST_MESSAGE
