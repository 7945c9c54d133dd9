"""Tasks in words: every text has exactly the tokens asked for, its item where it was put, and its
answer at the end.
"""

import functools
import re
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from conftest import CONFIGS, node
from test_cli import cli  # noqa: F401

from posbench.common.errors import ConfigError
from posbench.common.files import read_json
from posbench.config.schema import EvaluateConfig
from posbench.data.task import IGNORED, NOISE_SENTENCES, make_text_task
from posbench.data.text_questions import TextQuestions, texts_with_rivals
from posbench.data.tokenfile import TokenFile
from posbench.data.tokenizers import (
    ByteTokenizer,
    PretrainedTokenizer,
    continuation_encoder,
    train_bpe,
)
from posbench.evaluation.registry import protocol
from posbench.runs.rows import read_eval
from posbench.runs.setting import Setting

TASKS = sorted(path.stem for path in (CONFIGS / "task").glob("*.yaml"))
ANSWERS = {"niah_multivalue": 4, "niah_multiquery": 4}
TEXT = "".join(f"This is line {number} of a long text. It says little!\n" for number in range(2000))


@pytest.fixture(scope="module", params=["bytes", "bpe", "words"])
def tokenizer(request):
    if request.param == "bytes":
        return ByteTokenizer()
    if request.param == "bpe":
        return train_bpe([TEXT, *NOISE_SENTENCES], 300)
    model = tokenizers.Tokenizer(
        tokenizers.models.BPE()
    )  # with digits apart and leading spaces, as in SmolLM2
    split = [
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(split)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model.train_from_iterator(
        [TEXT],
        tokenizers.trainers.BpeTrainer(
            vocab_size=320, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return PretrainedTokenizer(model, "words")


def marked(kind: str) -> PretrainedTokenizer:
    """A tokenizer that writes a mark before every text, as those that were SentencePiece's: by its
    normalizer or its pre-tokenizer.
    """
    letters = ["\u2581", *map(chr, range(33, 127)), "\n", "\u2581\u2581", "\u2581T", "is"]
    merges = [("\u2581", "\u2581"), ("\u2581", "T"), ("i", "s")]
    model = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: at for at, letter in enumerate(letters)}, merges)
    )
    if kind == "normalizer":
        parts = [
            tokenizers.normalizers.Prepend("\u2581"),
            tokenizers.normalizers.Replace(" ", "\u2581"),
        ]
        model.normalizer = tokenizers.normalizers.Sequence(parts)
    else:
        model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=kind)
    model.add_special_tokens(["<|user|>"])
    return PretrainedTokenizer(model, kind)


def questions(name: str, tokenizer, bos: int | None = None, **changed) -> TextQuestions:
    return TextQuestions(
        make_text_task({"name": name, **node("task", name), **changed}),
        name,
        "test",
        tokenized(tokenizer),
        tokenizer,
        bos,
    )


@functools.cache
def tokenized(tokenizer) -> TokenFile:
    """TEXT as one document, in tokens that no test changes."""
    ((ids, n_bytes),) = tokenizer.encode([TEXT])
    return TokenFile(ids, n_bytes, np.array([0, len(ids)]), ["text"])


@pytest.mark.parametrize("name", TASKS)
def test_texts_have_the_tokens_asked_for_and_end_with_the_answer(name, tokenizer):
    text_questions = questions(name, tokenizer)
    for length in (2600, 2601):
        parts = text_questions.parts(length)
        for part in parts:
            examples = text_questions.draw(length, 2, [0, 3], **part.arguments)
            assert examples.inputs_NT.shape == (2, length)
            if part in (parts[0], parts[-1]):
                again = text_questions.draw(length, 2, [0, 3], **part.arguments)
                assert np.array_equal(examples.inputs_NT, again.inputs_NT)
            for inputs, targets, number in zip(
                examples.inputs_NT, examples.targets_NT, examples.answer_NT, strict=True
            ):
                is_answer = targets != IGNORED
                assert np.array_equal(is_answer, number >= 0) and is_answer[-1]
                assert np.array_equal(
                    targets[:-1][is_answer[:-1]], inputs[1:][is_answer[:-1]]
                )  # fed behind it, but for the last
                text = tokenizer.decode(inputs.tolist())
                answers = [
                    tokenizer.decode(targets[number == n].tolist()) for n in range(number.max() + 1)
                ]
                body = text.rpartition("\nWhat")[0]
                assert len(answers) == ANSWERS.get(name, 1)
                for answer in answers:
                    assert answer[0] == " " and answer[1:] in body
            assert part.depth == part.arguments.get("depth")


@pytest.mark.parametrize("kind", ["normalizer", "always", "first"])
@pytest.mark.parametrize("around", [None, ("<|user|>\n", "<|user|>\n")])
def test_pieces_have_the_tokens_of_running_text(kind, around):
    text_questions = replace(questions("passkey", marked(kind)), before_and_behind=around)
    drawn = text_questions.draw(900, 1, [0], depth=0.5)
    ids = np.r_[drawn.inputs_NT[0], drawn.targets_NT[0, -1]]
    text = "".join(map(text_questions.tokenizer.model.id_to_token, ids))
    assert (
        text_questions.tokenizer.ids(
            text.replace("\u2581", " ").removeprefix(" ").replace("> ", ">")
        ).tolist()
        == ids.tolist()
    )
    assert re.search("key\u2581is\u2581([0-9]+)$", text)


def test_a_piece_is_as_it_stands_where_nothing_is_written_before_a_text(tokenizer):
    for piece in (" 28602", "\nWhat is", "x", ""):
        assert continuation_encoder(tokenizer)(piece).tolist() == tokenizer.ids(piece).tolist()


@pytest.mark.parametrize("haystack", ["noise", "corpus"])
def test_the_item_stands_at_its_depth_between_whole_sentences(haystack):
    text_questions = questions("passkey", ByteTokenizer(), haystack=haystack)
    places = []
    for part in text_questions.parts(3000):
        (inputs,) = text_questions.draw(3000, 1, [5], **part.arguments).inputs_NT
        text = ByteTokenizer().decode(inputs.tolist())
        head, needle, rest = text.partition("The pass key is ")
        start, hay = (
            head.partition("\n")[0] + "\n",
            rest.partition(" is the pass key.")[2].partition("\nWhat is")[0],
        )
        before = head[len(start) :]
        places.append(len(before) / (len(before) + len(hay)))
        assert needle and (not before or before.rstrip(" ")[-1] in ".!\n")
        assert rest.partition(" is the pass key.")[2][0] in (
            "\n" if not before or before[-1] == "\n" else " \n"
        )
    np.testing.assert_allclose(places, [0, 0.25, 0.5, 0.75, 1], atol=0.02)
    measured = [
        text_questions.draw(3000, 1, [5], **part.arguments).depth_N[0]
        for part in text_questions.parts(3000)
    ]
    np.testing.assert_allclose(measured, places, atol=1e-3)


def test_depths_that_coincide_are_refused():
    """Of four needles of 110 bytes each, two places are nearest to three depths."""
    text_questions = questions("niah_multikey_3", ByteTokenizer())
    with pytest.raises(
        ConfigError, match=r"holds 700, where .* at depth 0\.\d+ stands at 0\.\d+\. Leave it out"
    ):
        text_questions.check_depths(700, 5, [0, 700])
    text_questions.check_depths(6000, 5, [0, 6000])
    questions("niah_multikey_3", ByteTokenizer(), depths=2).check_depths(700, 5, [0, 700])
    questions("niah_multivalue", ByteTokenizer()).check_depths(900, 1, [0, 900])


LINES = "def f():\n    return np.zeros(3)  # nothing. Really?\n\n"


@pytest.mark.parametrize("name", ["passkey", "niah_multikey_1", "niah_multivalue"])
def test_an_item_is_a_sentence_or_a_line_of_its_own(name, tokenizer):
    """Neither glued to the line behind it, nor in the middle of a word that holds a dot."""
    plain = questions(name, tokenizer, haystack="corpus")
    ids, n_bytes = tokenizer.encode([(TEXT[:120] + LINES) * 200])[0]
    text_questions, kinds = (
        replace(plain, file=TokenFile(ids, n_bytes, np.array([0, len(ids)]), ["text"])),
        set(),
    )
    for length in (1500, 1501):
        for part in text_questions.parts(length):
            for inputs in text_questions.draw(length, 6, [2], **part.arguments).inputs_NT:
                text = tokenizer.decode(inputs.tolist())
                items = list(
                    re.finditer(
                        r"The pass key is \d+\. Remember it\. \d+ is the pass key\.|One of the"
                        r" [^.]*? is: \d+\.",
                        text,
                    )
                )
                assert len(items) == {"passkey": 1}.get(name, 4)
                for item in items:
                    before, behind = text[: item.start()], text[item.end() :]
                    line = before.endswith("\n")
                    kinds.add(line)
                    assert (
                        behind.startswith("\n")
                        if line
                        else re.search(r"[.!?] $", before) and behind[0].isspace()
                    )
    assert kinds == {False, True}


def test_other_texts_have_another_id_and_tasks_with_tokens_of_their_own_keep_theirs():
    accuracy, tasks = protocol("accuracy"), [{"name": "passkey", **node("task", "passkey")}]
    texts, compared = (EvaluateConfig(tasks=tasks, rivals=n) for n in (0, 3))
    assert accuracy.version_of(EvaluateConfig()) == accuracy.version == 1
    assert accuracy.version_of(texts) == 2 and accuracy.version_of(compared) == 3
    evaluate = {
        "windows": 4,
        "targets": None,
        "max_length": None,
        "split": "test",
        "dtype": "fp32",
        "seed": 0,
    }
    assert "asked for, version 2 of the protocol, test split" in str(
        Setting.of(evaluate, 2)
    ) and "version" not in str(Setting.of(evaluate))


def test_what_is_hidden_is_what_is_asked():
    tokenizer = ByteTokenizer()

    def text(name: str, length: int = 6000) -> tuple[str, str]:
        text_questions = questions(name, tokenizer)
        examples = text_questions.draw(length, 1, [1], **text_questions.parts(length)[-1].arguments)
        full_text = tokenizer.decode([*examples.inputs_NT[0], examples.targets_NT[0, -1]])
        body, _, question = full_text.rpartition("\n")
        return body, question

    needle = r"special magic (\w+) for ([\w-]+) is: ([\w-]+)\."
    for name, count in (
        ("niah_single_1", 1),
        ("niah_single_2", 1),
        ("niah_single_3", 1),
        ("niah_multikey_1", 4),
        ("niah_multivalue", 4),
    ):
        body, question = text(name)
        items = re.findall(needle, body)
        assert len(items) == count
        key = re.search(r"for ([\w-]+) mentioned", question)[1]
        expected_values = [value for _, item_key, value in items if item_key == key]
        assert question.endswith(", ".join(expected_values)) and len(expected_values) == (
            4 if name == "niah_multivalue" else 1
        )
    body, question = text("niah_multikey_2")
    items = re.findall(needle, body)
    key = re.search(r"for ([\w-]+) mentioned", question)[1]
    assert len(items) > 50 and [value for _, item_key, value in items if item_key == key] == [
        question.rpartition(" ")[2]
    ]
    body, question = text("niah_multiquery")
    values = {key: value for _, key, value in re.findall(needle, body)}
    about = re.search(r"for (.*?) mentioned", question)[1].split(" and ")
    assert (
        question.endswith(", ".join(values[key] for key in about))
        and len(about) == len(values) == 4
    )


def test_rivals_are_other_values_of_the_same_text(tokenizer):
    n_rivals = {}
    for name in TASKS:
        plain = questions(name, tokenizer)
        with_two, with_five = replace(plain, rivals=2), replace(plain, rivals=5)
        part = with_two.parts(2600)[-1].arguments
        plain_texts, of_two, of_five = (
            each.draw(2600, 2, [4], **part) for each in (plain, with_two, with_five)
        )
        # What lies behind the answer has room for longer rivals.
        room = int((of_two.answer_NT[0, ::-1] >= 0).argmax())
        assert room or np.array_equal(plain_texts.inputs_NT, of_two.inputs_NT)
        assert plain_texts.rival_NAKR is None and np.array_equal(
            of_two.inputs_NT, of_five.inputs_NT
        )
        most = n_rivals[name] = with_two.task.rivals(2)
        if not most:
            assert of_two.rival_NAKR is None
            continue
        n_answers = ANSWERS.get(name, 1)
        assert of_two.rival_NAKR.shape[:3] == (2, n_answers, 2) and most == 2 * n_answers
        shown = [
            [[tokenizer.decode(ids[ids != IGNORED]) for ids in rivals] for rivals in text]
            for text in of_two.rival_NAKR
        ]
        again = [
            [[tokenizer.decode(ids[ids != IGNORED]) for ids in rivals[:2]] for rivals in text]
            for text in of_five.rival_NAKR
        ]
        assert shown == again and with_two.task.rivals(5) == n_answers * (
            5 if with_two.task.haystack == "items" else of_five.rival_NAKR.shape[2]
        )
        for inputs, targets, number, rivals in zip(
            of_two.inputs_NT,
            of_two.targets_NT,
            of_two.answer_NT,
            shown,
            strict=True,
        ):
            body = tokenizer.decode(inputs.tolist()[: int((number == 0).argmax())])
            for at, two_rivals in enumerate(rivals):
                answer = tokenizer.decode(targets[number == at].tolist())
                assert len({answer, *two_rivals}) == 3 and all(
                    f" is:{value}." in body for value in two_rivals
                )  # whole, so by chance equal
        place_M3 = np.argwhere((of_two.rival_NAKR != IGNORED).any(axis=3))
        _, targets_MT = texts_with_rivals(
            of_two, place_M3
        )  # each scored whole, whatever its number of tokens
        assert np.array_equal(
            (targets_MT != IGNORED).sum(1),
            (of_two.rival_NAKR != IGNORED).sum(3)[tuple(place_M3.T)],
        )
    singles = {"passkey", "passkey_ended", "niah_single_1", "niah_single_2", "niah_single_3"}
    assert {name for name, most in n_rivals.items() if not most} == singles


def test_a_pass_key_ends_with_its_full_stop_where_that_is_asked():
    """A longer number whose first digits are the key is right without it: the digit in place of the
    full stop is no target.
    """
    plain, ended = (
        questions(name, ByteTokenizer()).draw(600, 40, [0], depth=0.5)
        for name in ("passkey", "passkey_ended")
    )
    answers = [
        [bytes(row[row >= 0].tolist()).decode() for row in drawn.targets_NT]
        for drawn in (plain, ended)
    ]
    assert answers[1] == [f"{key}." for key in answers[0]] and {len(key) for key in answers[0]} >= {
        5,
        6,
    }


def test_a_bos_begins_every_text_and_splits_differ():
    with_bos, without = (questions("passkey", ByteTokenizer(), bos) for bos in (256, None))
    bos_texts, plain_texts = (each.draw(800, 3, [0], depth=0.5) for each in (with_bos, without))
    assert (
        (bos_texts.inputs_NT[:, 0] == 256).all()
        and (bos_texts.inputs_NT[:, 1:] < 256).all()
        and bos_texts.inputs_NT.shape == plain_texts.inputs_NT.shape
    )
    other = TextQuestions(
        without.task, "passkey", "validation", without.file, without.tokenizer, None
    )
    assert not np.array_equal(other.draw(800, 3, [0], depth=0.5).inputs_NT, plain_texts.inputs_NT)


def test_a_model_of_text_is_asked_by_one_command(cli, tmp_path):  # noqa: F811
    words = [
        "train.length=512",
        "train.steps=1",
        "train.tokens_per_step=512",
        "train.validate_windows=1",
        "evaluate.lengths=[512,600]",
    ]
    words += [
        "evaluate.protocol=[accuracy,fixed_targets]",
        "evaluate.max_length=600",
        "evaluate.windows=10",
        "evaluate.floor=false",
    ]
    done = cli(*words, "evaluate.tasks=[passkey,niah_single_1]")
    output, few = (
        done.stdout,
        (
            "evaluate.windows=10 for 5 parts is 2 of each at every length, which is few:"
            " evaluate.windows=100 asks 20 of each"
        ),
    )
    assert all(
        done.stderr.count(f"accuracy {name}: {few}") == 1 for name in ("passkey", "niah_single_1")
    )
    assert (
        "Accuracy: passkey" in output
        and "Accuracy: niah_single_1" in output
        and "Loss (nats/token)" in output
    )
    paths = sorted(tmp_path.rglob("evals/accuracy/*.json"))
    rows = [read_eval(path) for path in paths]
    assert [read_json(path)["config"]["version"] for path in paths] == [2, 2]
    assert sorted(table[0]["task"] for table in rows) == ["niah_single_1", "passkey"]
    for table in rows:
        assert [(row["length"], row["depth"]) for row in table] == [
            (n, d) for n in (512, 600) for d in (None, 0.0, 0.25, 0.5, 0.75, 1.0)
        ]
        assert [(row["n_targets"], row["n_units"]) for row in table] == [
            (n, n) for n in (10, 2, 2, 2, 2, 2)
        ] * 2
        assert table[0]["nll"] == pytest.approx(np.mean([row["nll"] for row in table[1:6]]))


def test_rivals_are_asked_for_by_one_command_and_give_other_tasks_no_other_id(cli, tmp_path):  # noqa: F811
    words = [
        "train.length=64",
        "train.steps=1",
        "evaluate.protocol=accuracy",
        "evaluate.windows=5",
        "evaluate.max_length=800",
    ]
    words += ["evaluate.lengths=[800]", "evaluate.tasks=[passkey,niah_multivalue]"]
    cli(*words)
    before = sorted(tmp_path.rglob("evals/accuracy/*.json"))
    assert "in the text:\nniah_multivalue" in cli(*words, "evaluate.rivals=2").stdout
    both = cli("runs=runs", "report_dir=report", script="report", common=False).stdout
    assert (
        both.count("Accuracy: niah_multivalue") == 2 and both.count("2 rivals of each answer") == 1
    )
    (new,) = set(tmp_path.rglob("evals/accuracy/*.json")) - set(before)
    answer_row, choice_row = read_eval(new)
    assert [(row["task"], row["n_targets"]) for row in (answer_row, choice_row)] == [
        ("niah_multivalue", 20),
        ("niah_multivalue choice", 20),
    ]
    assert read_json(new)["config"]["evaluate"]["rivals"] == 2
    (plain,) = [rows for rows in map(read_eval, before) if rows[0]["task"] == "niah_multivalue"]
    assert [row["nll"] for row in plain] == [answer_row["nll"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate.protocol=accuracy"], "data=text is text: choose some"),
        (
            ["evaluate.protocol=accuracy", "evaluate.tasks=[passkeys]"],
            "passkeys is unknown.*passkey",
        ),
        (
            ["evaluate.tasks=[passkey]"],
            (
                "evaluate.tasks=.passkey. sets questions, and .* has none: leave it out, or add"
                " accuracy"
            ),
        ),
        (
            ["evaluate.rivals=3"],
            "evaluate.rivals=3 is for questions of evaluate.tasks, and there are none",
        ),
        (
            ["evaluate.protocol=accuracy", "evaluate.tasks=[passkey]", "evaluate.rivals=3"],
            "none of evaluate.tasks=passkey has any",
        ),
    ],
)
def test_words_that_mean_nothing_are_refused(words, message, cli):  # noqa: F811
    done = cli(*words, code=2)
    assert re.search(message, done.stdout + done.stderr)


def test_a_task_of_the_users_own_is_asked_by_the_name_of_its_yaml(cli, tmp_path):  # noqa: F811
    (tmp_path / "mine" / "task").mkdir(parents=True)
    yaml = "_target_: posbench.data.passkey.Passkey\nhaystack: noise\ndepths: 5\n"
    (tmp_path / "mine" / "task" / "number.yaml").write_text(yaml)
    words = ["--config-dir", str(tmp_path / "mine"), "evaluate.protocol=accuracy", "dry=true"]
    words += ["train.length=512", "evaluate.lengths=[512]", "evaluate.max_length=512"]
    listed = cli(*words, "evaluate.tasks=[number]").stdout
    assert "accuracy number none + none: lengths 512" in listed
    refusal = cli(*words, "evaluate.tasks=[numbers]", code=2).stderr
    assert "task=numbers is unknown (did you mean number?)" in refusal
