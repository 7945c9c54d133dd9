"""accuracy: the share of a task's questions answered correctly, by length.

The task is the data, such as data=mqar, or mixed with it (data.mix), or one of evaluate.tasks, such
as passkey, which asks a model of text in words. At length L texts of L tokens are drawn, the same
for every method, and every token of an answer is predicted from the right ones before it. An answer
is right if each of its tokens was the likeliest: so it is what the model would write, always taking
the likeliest token, but for answers behind others of the same text, before which it might have
written a wrong one. A row is one part of the task, such as a number of pairs; evaluate.windows
texts are divided among the parts. Its targets are answers: accuracy is the share that was right,
nll the mean of -ln p(answer), in nats per answer. Where the answer is one of several tokens in the
text, the row `TASK choice` is the same among these alone: accuracy is the share of answers that
were likelier than the other choices, nll their -ln p. In words the choices are the answer and up to
evaluate.rivals other values of the text, drawn from the seed, each read in the answer's place: that
is one more text for each, so by default there are none (posbench/data/text_questions.py).

A length inside the window is evaluated too, if a question in words fits it: what a model has not
learned there says nothing about a method beyond it. Where the item that is asked for stands at
several depths, there is a row for each and one for all. A task that is the data says itself how its
texts begin; those in words begin with the BOS, if there is one. With evaluate.chat the question is
a user's message in the checkpoint's own chat template, the answer begins as the reply to it, and
rows are called `TASK chat`. Arrays are [texts, answers of all parts] for each length: nll, correct,
part, and rank, the answer's place among the choices (1 is best, 0 where there are none).

References: none but the accuracy inside the window, since a text's last w tokens would lack the
question."""

import functools
import sys
from typing import TYPE_CHECKING

import numpy as np

from posbench.common.errors import ConfigError
from posbench.config.schema import EvaluateConfig
from posbench.data.chat import around
from posbench.data.task import IGNORED, Examples, TaskSplit, TextTask, make_text_task
from posbench.data.text_questions import TextQuestions, rank_answers, texts_with_rivals
from posbench.data.tokenfile import TokenFile
from posbench.data.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer
from posbench.evaluation.protocol import Protocol, ReadVolume, mean_row
from posbench.runs.target_losses import part_of

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.evaluation.scorer import Scorer
    from posbench.position.interfaces import Extension
    from posbench.position.plan import Plan

ANSWER = 64  # tokens of an answer in words, for estimates of time
FEW, ENOUGH = (
    5,
    20,
)  # texts of a part: below FEW the run says so, and names the windows that would be ENOUGH


class Accuracy(Protocol):
    """A row for each length and part of the task, and one for each that has choices."""

    same_targets = False
    paired = False
    instead = "fixed_targets"
    asks = True
    last = False

    def __init__(self, evaluation: "Scorer"):
        self.evaluation = evaluation
        self.questions = questions(evaluation.corpus, evaluation.config)
        self.n_parts = len(
            self.questions.parts(sys.maxsize)
        )  # at any length, so that further lengths leave the texts as they are
        if self.count < FEW:
            named = " ".join(
                ["accuracy", *(node["name"] for node in evaluation.config.tasks or ())]
            )
            _tell(
                f"{named}: evaluate.windows={evaluation.config.windows} for {self.n_parts} parts is"
                f" {self.count} of each at every length, which is few:"
                f" evaluate.windows={ENOUGH * self.n_parts} asks {ENOUGH} of each"
            )

    @classmethod
    def lengths(cls, asked: EvaluateConfig, train_len: int) -> list[int]:
        inside = min(asked.lengths) <= train_len or not has_room(asked, train_len)
        return asked.lengths if inside else [train_len, *asked.lengths]

    @classmethod
    def version_of(cls, evaluate: EvaluateConfig) -> int:
        if not evaluate.tasks:
            return cls.version
        return TextTask.version + bool(evaluate.rivals)  # rivals were cut at the end of the text

    @classmethod
    def check(cls, extension: "Extension", config: EvaluateConfig, train_len: int) -> None:
        super().check(extension, config, train_len)
        for node in config.tasks or ():
            make_text_task(node)

    @classmethod
    def check_text(cls, corpus: "Corpus", config: EvaluateConfig, train_len: int) -> None:
        asked = questions(corpus, config)
        for length in config.lengths:
            asked.draw(
                length, 1, [config.seed], **asked.parts(length)[0].arguments
            )  # says what it needs
            if config.tasks:
                asked.check_depths(length, FEW, [config.seed, length])

    @classmethod
    def check_tokens(cls, config: EvaluateConfig, tokenizer: Tokenizer, bos: int | None) -> None:
        """Check, before there is text, that a question in words fits every length. Raises
        ConfigError.
        """
        asked = word_questions(config, tokenizer, bos)
        for length in config.lengths:
            asked.check_room(length, 1, [config.seed], **asked.parts(length)[0].arguments)

    @classmethod
    def reading(cls, config: EvaluateConfig, train_len: int, length: int, fed: int) -> ReadVolume:
        if not config.tasks:
            return ReadVolume(config.windows, length, length, config.windows)
        return ReadVolume(
            config.windows * texts_per_question(config), length, min(length, ANSWER), config.windows
        )

    @property
    def count(self) -> int:
        """Number of texts of each part."""
        return max(1, self.evaluation.config.windows // self.n_parts)

    def cost(self, length: int) -> int:
        return (
            length
            * self.count
            * len(self.questions.parts(length))
            * texts_per_question(self.evaluation.config)
        )

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        rows, columns, done, self.depths, self.guesses = [], [], {}, {}, {}
        for index, part in enumerate(self.questions.parts(length)):
            with self.evaluation.measured() as spent:
                examples = self.questions.draw(
                    length,
                    self.count,
                    [self.evaluation.config.seed, length, index],
                    **part.arguments,
                )
                if examples.depth_N is not None:
                    self.depths[str(part.depth)] = [
                        round(float(of(examples.depth_N)), 3) for of in (np.min, np.mean, np.max)
                    ]
                if examples.choices_NK is not None:
                    guessed = {
                        "by place": by_place(examples),
                        "by value": float((1 / (examples.choices_NK >= 0).sum(axis=1)).mean()),
                    }
                    self.guesses[part.task] = {
                        name: round(share, 4) for name, share in guessed.items()
                    }
                for label, *found in self.answers(part.task, examples):
                    done.setdefault(label, []).append((part.depth, found, spent))
        distance = self.evaluation.max_distance(self.evaluation.plan(length))
        for label, parts in done.items():
            whole = [
                (
                    None,
                    [
                        np.concatenate(each)
                        for each in zip(*(found for _, found, _ in parts), strict=True)
                    ],
                )
            ]
            for depth, found in [
                *whole,
                *((depth, found) for depth, found, _ in parts if depth is not None),
            ]:
                nll_NA, correct_NA, _ = found  # the texts are independent of each other
                row = {
                    **mean_row(nll_NA, correct_NA, np.arange(len(nll_NA)), np.zeros(1)),
                    "sem_unit": "example",
                }
                row |= {"task": label, "depth": depth, "max_distance": distance}
                row["seconds"] = sum(spent["seconds"] for *_, spent in parts) / (
                    1 if depth is None else len(parts)
                )
                row["peak_mib"] = max(spent["peak_mib"] for *_, spent in parts)
                rows.append(row)
                # Texts of all depths stand side by side, as many columns for each of the first.
                beside = [
                    np.concatenate(np.split(each, len(each) // self.count), axis=1)
                    for each in found
                ]
                number = np.full((1, beside[0].shape[1]), part_of({**row, "protocol": "accuracy"}))
                columns.append(
                    dict(zip(("nll", "correct", "rank", "part"), (*beside, number), strict=True))
                )
        return rows, {
            name: np.concatenate([one[name] for one in columns], axis=1) for name in columns[0]
        }

    def known(self) -> dict[str, dict]:
        """Of the length that `run` read last: least, mean and largest share of the haystack before
        the asked item, for each depth; and of answers in single tokens the shares that are right by
        a guess: of any of the choices, and of the token by place (`by_place`)."""
        return {
            name: facts
            for name, facts in (("depths", self.depths), ("guesses", self.guesses))
            if facts
        }

    def answers(
        self, task: str, examples: Examples
    ) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """(name of the row, nll, correctness and rank [N, A] of the answers): of the answers, and
        of the choice among those in the text.
        """
        asked_T = (examples.targets_NT != IGNORED).any(axis=0)
        n_rows = len(asked_T) - int(asked_T.argmax())
        target_NR, answer_NR, choice_NK = (
            examples.targets_NT[:, -n_rows:],
            examples.answer_NT[:, -n_rows:],
            examples.choices_NK,
        )

        def text(at_n: np.ndarray) -> tuple:
            return (
                examples.inputs_NT[at_n],
                target_NR[at_n],
                None if choice_NK is None else choice_NK[at_n],
            )

        plan = self.evaluation.plan(len(asked_T))
        nll_NR, correct_NR, *among = self.evaluation.read(
            plan, np.arange(len(target_NR)), n_rows, text
        )
        nll_NA, wrong_NA = (summed(answer_NR, one) for one in (nll_NR, ~correct_NR))
        among = [summed(answer_NR, one) for one in among]
        if examples.rival_NAKR is not None:
            among = rank_answers(nll_NA, self.against(examples, plan, n_rows))
        rank_NA = among[0].astype(np.int64) if among else np.zeros(nll_NA.shape, np.int64)
        found = [(task, nll_NA.astype(np.float32), wrong_NA == 0, rank_NA)]
        return found + (
            [(f"{task} choice", among[1].astype(np.float32), rank_NA == 1, rank_NA)]
            if among
            else []
        )

    def against(self, examples: Examples, plan: "Plan", n_rows: int) -> np.ndarray:
        """nll [N, A, K] of the rivals of each answer, each read in a text of its own; inf where
        there are fewer.
        """
        there_NAK = (examples.rival_NAKR != IGNORED).any(axis=3)
        place_M3 = np.argwhere(there_NAK)

        def text(at_m: np.ndarray) -> tuple:
            inputs_mT, targets_mT = texts_with_rivals(examples, place_M3[at_m])
            return inputs_mT, targets_mT[:, -n_rows:], None

        nll_NAK = np.full(there_NAK.shape, np.inf)
        nll_NAK[there_NAK] = self.evaluation.read(plan, np.arange(len(place_M3)), n_rows, text)[
            0
        ].sum(axis=1, dtype=np.float64)
        return nll_NAK

    def shared(self) -> dict[str, np.ndarray]:
        """Arrays [N] that all lengths share: the number of each text, for the same texts of all
        methods are paired.
        """
        return {"document": np.arange(self.count), "offset": np.full(self.count, self.n_parts)}


def questions(corpus: "Corpus", config: EvaluateConfig) -> TaskSplit | TextQuestions:
    """Questions of the task that the data is, or that is mixed with it; else of the one of
    `evaluate.tasks`, in the tokens of the data.
    """
    file = getattr(corpus, config.split)
    if isinstance(file, TaskSplit):
        return file
    if not config.tasks:
        return corpus.mix.split(config.split)
    return word_questions(config, load_tokenizer(corpus.tokenizer, corpus.folder), corpus.bos, file)


def word_questions(
    config: EvaluateConfig, tokenizer: Tokenizer, bos: int | None, file: TokenFile | None = None
) -> TextQuestions:
    """Questions of the task of `evaluate.tasks`; without the `file` of a text only the room that
    they need is known.
    """
    (node,) = config.tasks
    chat = around(config.chat) if config.chat else None
    return TextQuestions(
        make_text_task(node), node["name"], config.split, file, tokenizer, bos, chat, config.rivals
    )


def has_room(config: EvaluateConfig, length: int) -> bool:
    """True if a text of `length` bytes has room for the question of `evaluate`; no tokenizer makes
    more tokens, and none is known yet.
    """
    try:
        if config.tasks:
            word_questions(config, ByteTokenizer(), 0).check_room(length, 8, [0])
        return True
    except ConfigError:
        return False


def texts_per_question(config: EvaluateConfig) -> int:
    """Number of texts, at most, that are read for one question: its own, and one for each rival of
    its answers.
    """
    return (
        1 + sum(make_text_task(node).rivals(config.rivals) for node in config.tasks or ())
        if config.rivals
        else 1
    )


def by_place(examples: Examples) -> float:
    """Share of the answers that stand behind the latest earlier place of the token that asks: what
    copying from there gets right.
    """
    right = []
    for inputs_T, targets_T in zip(examples.inputs_NT, examples.targets_NT, strict=True):
        for at in np.flatnonzero(targets_T != IGNORED):
            before = np.flatnonzero(inputs_T[:at] == inputs_T[at])
            right.append(bool(len(before)) and inputs_T[before[-1] + 1] == targets_T[at])
    return float(np.mean(right))


@functools.cache
def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def summed(answer_NR: np.ndarray, value_NR: np.ndarray) -> np.ndarray:
    """Sums [N, A] of the values of the rows of each answer."""
    total_NA, (row_Q, column_Q) = (
        np.zeros((len(answer_NR), answer_NR.max() + 1)),
        np.nonzero(answer_NR >= 0),
    )
    np.add.at(total_NA, (row_Q, answer_NR[row_Q, column_Q]), value_NR[row_Q, column_Q])
    return total_NA
