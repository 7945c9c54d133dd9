"""Protocol accuracy: against the plainest loop, against greedy decoding by transformers, and in
whole commands.
"""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import node, small_model, small_shape
from test_cli import cli  # noqa: F401

from posbench.common.errors import ConfigError
from posbench.common.files import read_json
from posbench.config.schema import EvaluateConfig
from posbench.data.copy import EOS, SEP, Copy
from posbench.data.mqar import Mqar
from posbench.data.task import IGNORED, TaskSplit
from posbench.data.tokenfile import TokenFile
from posbench.encodings.rope import Rope
from posbench.evaluation.protocols.accuracy import Accuracy, share_right_by_place
from posbench.evaluation.scorer import Scorer
from posbench.extensions.none import NoExtension
from posbench.extensions.ntk import Ntk
from posbench.extensions.rerope import Rerope
from posbench.position.plan import make_plan
from posbench.runs.rows import read_eval
from posbench.runs.target_losses import load_arrays, part_of, save_arrays
from posbench.scale_attention.log_n import LogN

SMALL = [
    "model.d_model=32",
    "model.n_layer=2",
    "train.length=16",
    "train.tokens_per_step=256",
    "data.vocab_size=24",
    "log.mode=disabled",
]
SMALL += [
    "train.steps=4",
    "train.validate_windows=4",
    "device=cpu",
    "results_dir=runs",
    "cache_dir=cache",
]


def evaluator(task, extension=None, model=None, **options) -> Accuracy:
    config = EvaluateConfig(
        **{"lengths": [16, 40], "windows": 12, "batch_tokens": 100, "dtype": "fp32", **options}
    )
    corpus = SimpleNamespace(test=TaskSplit(task, "test"), bos=None)
    return Accuracy(
        Scorer(
            model or small_model(Rope(small_shape())),
            corpus,
            extension or NoExtension(),
            LogN(small_shape()),
            config,
            "cpu",
        )
    )


@pytest.mark.parametrize(
    "extension", [NoExtension(), Ntk(), Rerope()], ids=lambda method: type(method).__name__
)
@pytest.mark.parametrize("task", [Mqar(50, [1, 3]), Copy(50)], ids=lambda task: task.name)
def test_rows_and_arrays_are_those_of_one_question_at_a_time(task, extension, tmp_path):
    accuracy, by_length = evaluator(task, extension), {}
    for length in (16, 40):
        rows, by_length[length] = accuracy.run(length)
        arrays, plan = (
            by_length[length],
            make_plan(
                accuracy.evaluation.model.encoding, extension, LogN(small_shape()), length=length
            ),
        )
        for index, (name, part) in enumerate(
            (task_part.task, task_part.arguments) for task_part in task.parts(length)
        ):
            examples = accuracy.evaluation.file.draw(
                length, accuracy.texts_per_part, [0, length, index], **part
            )
            nll, right, ranks, among = {}, {}, {}, {}
            for row in range(accuracy.texts_per_part):
                with torch.no_grad():
                    logits = accuracy.evaluation.model(
                        torch.from_numpy(examples.inputs_NT[row : row + 1]), plan
                    )[0].double()
                for at in np.flatnonzero(examples.targets_NT[row] != IGNORED):
                    key, target = (
                        (row, examples.answer_NT[row, at]),
                        int(examples.targets_NT[row, at]),
                    )
                    nll[key] = nll.get(key, 0.0) - torch.log_softmax(logits[at], -1)[target].item()
                    right[key] = right.get(key, True) and int(logits[at].argmax()) == target
                    if examples.choices_NK is not None:
                        chosen = logits[at][examples.choices_NK[row]]
                        ranks[key] = int((chosen >= logits[at, target]).sum())
                        among[key] = float(chosen.logsumexp(0) - logits[at, target])
            sized = {
                label: (values, truths)
                for label, values, truths in (
                    (name, nll, right),
                    (f"{name} choice", among, {k: r == 1 for k, r in ranks.items()}),
                )
                if values
            }
            for label, (values, truths) in sized.items():
                (row,) = (row for row in rows if row["task"] == label)
                columns = arrays["part"][0] == part_of(
                    {**row, "protocol": "accuracy", "depth": None}
                )
                keys = sorted(values)
                np.testing.assert_allclose(
                    arrays["nll"][:, columns].ravel(),
                    [values[key] for key in keys],
                    rtol=1e-4,
                    atol=1e-4,
                )
                assert arrays["correct"][:, columns].ravel().tolist() == [
                    truths[key] for key in keys
                ]
                assert (
                    row["nll"] == pytest.approx(np.mean(list(values.values())), rel=1e-4)
                    and row["sem_unit"] == "example"
                )
                assert (
                    row["accuracy"] == np.mean(list(truths.values()))
                    and row["n_targets"] == len(keys)
                    and row["n_units"] == accuracy.texts_per_part
                )
                assert arrays["rank"][:, columns].ravel().tolist() == [
                    ranks.get(key, 0) for key in keys
                ]
        assert len(rows) == (
            2 * 2 - 1 if isinstance(task, Mqar) else 1
        )  # of one pair there is no choice
    save_arrays(tmp_path / "a.npz", accuracy.shared_arrays(), by_length)
    loaded = load_arrays(tmp_path / "a.npz")
    assert all(
        np.array_equal(loaded[n][name], by_length[n][name])
        for n in by_length
        for name in ("nll", "correct", "part", "rank")
    )


@pytest.mark.parametrize(("name", "n_rivals"), [("niah_multikey_1", 3), ("niah_multivalue", 2)])
def test_rivals_of_words_are_scored_in_the_answers_place_one_text_at_a_time(name, n_rivals):
    ids = np.frombuffer(b"This is a line of text. It says little.\n" * 100, np.uint8)
    file = TokenFile(ids, np.ones(len(ids), np.uint8), np.array([0, len(ids)]), ["text"])
    config = {
        "windows": 5,
        "tasks": [{"name": name, **node("task", name)}],
        "rivals": n_rivals,
        "batch_tokens": 2000,
    }
    corpus = SimpleNamespace(test=file, bos=None, tokenizer="bytes", folder=None)
    model, length, read = small_model(Rope(small_shape()), vocab_size=256), 801, []
    config = EvaluateConfig(lengths=[length], dtype="fp32", **config)
    accuracy = Accuracy(
        Scorer(
            model,
            corpus,
            Ntk(),
            LogN(small_shape()),
            config,
            "cpu",
            progress=lambda n, part=False: read.append(n),
        )
    )
    rows, arrays = accuracy.run(length)
    plan = make_plan(model.encoding, Ntk(), LogN(small_shape()), length=length)
    ranks, nlls = [], []
    for index, part in enumerate(accuracy.questions.parts(length)):
        examples = accuracy.questions.draw(
            length, accuracy.texts_per_part, [0, length, index], **part.arguments
        )
        for inputs, targets, number, rival_AKR in zip(
            examples.inputs_NT,
            examples.targets_NT,
            examples.answer_NT,
            examples.rival_NAKR,
            strict=True,
        ):
            full_text = [*inputs, targets[-1]]
            for answer, rival_KR in enumerate(rival_AKR):
                right_value = targets[number == answer].tolist()
                first, losses = int((number == answer).argmax()) + 1, []
                for value in [
                    right_value,
                    *(rival[rival != IGNORED].tolist() for rival in rival_KR),
                ]:
                    with torch.no_grad():  # no text behind the value, in the plan of the whole text
                        text = [*full_text[:first], *value, *[0] * (length - first - len(value))][
                            :length
                        ]
                        logits = model(torch.tensor([text]), plan)[0].double().log_softmax(-1)
                    losses.append(
                        -sum(float(logits[first - 1 + at, token]) for at, token in enumerate(value))
                    )
                ranks.append(sum(loss <= losses[0] for loss in losses))
                nlls.append(losses[0] + float(torch.tensor(losses).neg().logsumexp(0)))
    columns = arrays["part"][0] == part_of(
        {"protocol": "accuracy", "task": f"{name} choice", "depth": None}
    )
    order = arrays["rank"][:, columns]
    (choice,) = (row for row in rows if row["task"] == f"{name} choice" and row["depth"] is None)
    assert sorted(order.ravel()) == sorted(ranks) and len(set(ranks)) > 1
    assert choice["accuracy"] == np.mean(np.array(ranks) == 1) and choice["nll"] == pytest.approx(
        np.mean(nlls), rel=1e-4
    )
    assert (
        sum(read)
        == accuracy.tokens_to_read(length)
        == 5 * length * (1 + n_rivals * (1 if name == "niah_multikey_1" else 4))
    )
    reading = Accuracy.read_volume(config, 64, length, length)
    assert reading.texts * reading.tokens_per_text == sum(read)


def test_texts_do_not_depend_on_other_lengths_and_cost_is_what_is_read():
    read = []
    accuracy, other = evaluator(Mqar(50, [1, 3])), evaluator(Mqar(50, [1, 3]), lengths=[12, 24, 40])
    accuracy.evaluation.progress = lambda n, part=False: read.append(n)
    assert (
        accuracy.run(40)[1]["nll"].tolist() == other.run(40)[1]["nll"].tolist()
        and sum(read) == accuracy.tokens_to_read(40) == 40 * 12
    )


@pytest.mark.parametrize(
    ("windows", "message"), [(9, "evaluate.windows=9 for 2 parts is 4 of each"), (10, "")]
)
def test_few_texts_of_a_part_are_told_once(windows, message, capsys):
    for _ in range(2):
        evaluator(Mqar(50, [1, 3]), windows=windows)
    stderr = capsys.readouterr().err
    assert message in stderr and stderr.count("\n") == bool(message)


def test_the_training_length_is_asked_too_unless_a_shorter_one_is():
    def lengths(requested: list[int], train_len: int, **settings) -> list[int]:
        return Accuracy.lengths(EvaluateConfig(lengths=requested, **settings), train_len)

    assert lengths([128, 256], 64) == [64, 128, 256] and lengths([32, 256], 64) == [32, 256]
    words = {"tasks": [{"name": "passkey", **node("task", "passkey")}]}
    assert lengths([512], 64, **words) == [512] and lengths([8192], 512, **words) == [512, 8192]
    with pytest.raises(ConfigError, match="needs 12 tokens"):
        evaluator(Mqar(50, [3]), lengths=[8, 16]).run(8)


def test_right_answers_are_what_transformers_would_write():
    """A Llama that copies only now and then: of each prompt the greedy continuation, token by token
    without any right one fed.
    """
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = small_shape()
    model, task = small_model(Rope(shape), vocab_size=7), Copy(7)
    split, optimizer = TaskSplit(task, "train"), torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(150):
        examples = split.draw(16, 32, [step])
        optimizer.zero_grad()
        plan = make_plan(model.encoding, length=16)
        model.loss(
            torch.from_numpy(examples.inputs_NT), torch.from_numpy(examples.targets_NT), plan
        ).backward()
        optimizer.step()
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    wide = model.layers[0].mlp.gate_proj.out_features
    config = transformers.LlamaConfig(
        vocab_size=7, intermediate_size=wide, rms_norm_eps=1e-5, **sizes, tie_word_embeddings=False
    )
    oracle = transformers.LlamaForCausalLM(config).eval()
    weights = {
        f"model.{name}" if not name.startswith("lm_head") else name: value
        for name, value in model.state_dict().items()
    }
    missing = oracle.load_state_dict(
        {name: value for name, value in weights.items() if "encoding" not in name}, strict=False
    )
    assert not missing.missing_keys and not missing.unexpected_keys
    accuracy = evaluator(task, model=model.eval(), windows=60, lengths=[8])
    accuracy.evaluation.scale = LogN(small_shape(10_000))  # which changes nothing at 8 tokens
    rows, arrays = accuracy.run(8)
    examples = accuracy.evaluation.file.draw(8, 60, [0, 8, 0], full=True)
    begin = examples.inputs_NT[0].tolist().index(SEP) + 1  # all strings are as long as fits
    assert (examples.inputs_NT[:, begin - 1] == SEP).all()
    prompts = torch.from_numpy(examples.inputs_NT[:, :begin])
    answers = [row[row != IGNORED].tolist() for row in examples.targets_NT]
    written = oracle.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=len(answers[0]),
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    continued = written[:, begin:].tolist()
    right = [row == answer for row, answer in zip(continued, answers, strict=True)]
    assert (
        arrays["correct"].ravel().tolist() == right
        and 0 < sum(right) < 60
        and rows[0]["accuracy"] == np.mean(right)
    )


def test_a_task_is_trained_evaluated_and_reported_by_one_command(cli, tmp_path):  # noqa: F811
    words = (
        "data=mqar",
        "data.source.pairs=[2]",
        *SMALL,
        "evaluate.windows=6",
        "evaluate.lengths=[16,24]",
    )
    done = cli(*words, "extension=ntk", common=False)
    assert "Accuracy: mqar 2 pairs" in done.stdout and "never learned" in done.stdout
    (path,) = tmp_path.rglob("evals/accuracy/*.json")
    rows = read_eval(path)
    assert [(row["length"], row["task"]) for row in rows] == [
        (n, task) for n in (16, 24) for task in ("mqar 2 pairs", "mqar 2 pairs choice")
    ]
    assert {(row["data"], row["tokenizer"], row["n_units"], row["n_targets"]) for row in rows} == {
        ("mqar", "task-24", 6, 12)
    }
    before = path.read_bytes()
    cli(*words, "extension=ntk", common=False)
    assert path.read_bytes() == before
    cli(*words[:-1], "evaluate.lengths=[16,32]", "extension=ntk", common=False)
    cli(*words, common=False)
    report = cli(
        "-m", *words, "extension=none,ntk", "report_dir=report", script="report", common=False
    )
    assert "Accuracy: mqar 2 pairs" in report.stdout
    assert {"accuracy.csv", "accuracy.png", "accuracy.svg", "report.html"} <= {
        file.name for file in (tmp_path / "report").iterdir()
    }
    assert "Accuracy by length" in (tmp_path / "report" / "report.html").read_text()
    assert [row for row in read_eval(path) if row["length"] in (16, 24)] == rows and len(
        read_eval(path)
    ) == 6
    assert read_json(path)["config"]["evaluate"]["max_length"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("data=mqar", "data.source.pairs=[2]", *SMALL, "evaluate.protocol=fixed_targets"),
            "data=mqar is a task",
        ),
        (("evaluate.protocol=accuracy", "log.mode=disabled"), "is text: choose some"),
        (
            ("data=mqar", *SMALL, "data.source.pairs=[2]", "evaluate.lengths=[4]"),
            "needs 8 tokens, not 4",
        ),
        (
            ("data=copy", *SMALL, "extension=recompute_window"),
            "use 'evaluate.protocol=\\[fixed_targets\\]'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(words, message, cli):  # noqa: F811
    done = cli(*words, code=2, common=False)
    assert re.search(message, done.stdout + done.stderr)


@pytest.mark.parametrize(("filler", "shares"), [("no_key", (1.0, 1.0)), ("any", (0.956, 0.691))])
def test_what_a_guess_gets_right_is_stated_beside_the_accuracy(filler, shares):
    """Where fillers draw keys too, another token stands behind the latest place of the key in 4.4
    and 30.9 % of questions.
    """
    task = TaskSplit(Mqar(256, [8], filler=filler), "test")
    for length, share in zip((64, 1024), shares, strict=True):
        assert share_right_by_place(
            task.draw(length, 400, [0], **task.parts(length)[0].arguments)
        ) == pytest.approx(share, abs=0.025)
    accuracy = evaluator(Mqar(50, [1, 3], filler=filler), NoExtension())
    accuracy.run(40)
    three = accuracy.length_facts()["guesses"][accuracy.questions.parts(40)[-1].task]
    assert three["by value"] == pytest.approx(1 / 3, abs=1e-4) and 0 < three["by place"] <= 1
