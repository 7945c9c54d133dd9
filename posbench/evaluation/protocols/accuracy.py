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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posbench.common.errors import ConfigError
from posbench.config.schema import EvaluateConfig
from posbench.data.chat import text_around_message
from posbench.data.task import IGNORED, Examples, TaskSplit, TextTask, make_text_task
from posbench.data.text_questions import TextQuestions, rank_answers, texts_with_rivals
from posbench.data.tokenfile import TokenFile
from posbench.data.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer
from posbench.evaluation.protocol import QUESTION_KEYS, Protocol, ReadVolume, mean_row
from posbench.runs.target_losses import part_of

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.evaluation.scorer import Scorer
    from posbench.position.interfaces import Extension
    from posbench.position.plan import Plan

ANSWER_TOKENS = 64  # tokens of an answer in words, for estimates of time
FEW_TEXTS = 5  # texts of a part, below which the run says so
ENOUGH_TEXTS = 20  # texts of a part that it then recommends


class Answers(NamedTuple):
    """nll, correctness and rank [N, A] of the answers of texts."""

    nll_NA: np.ndarray
    correct_NA: np.ndarray
    rank_NA: np.ndarray


@dataclass(frozen=True)
class ScoredPart:
    """Answers to the questions of one depth (None: of a task without depths), and the seconds and
    memory that they took.
    """

    depth: float | None
    answers: Answers
    spent: dict[str, float]


class Accuracy(Protocol):
    """A row for each length and part of the task, and one for each that has choices."""

    uses = QUESTION_KEYS
    needs_questions = True
    same_targets = False
    paired = False
    replacement = "fixed_targets"

    def __init__(self, evaluation: "Scorer"):
        self.evaluation = evaluation
        self.questions = questions(evaluation.corpus, evaluation.config)
        # Those of any length, so that further lengths leave the texts as they are.
        self.n_parts = len(self.questions.parts(sys.maxsize))
        if self.texts_per_part < FEW_TEXTS:
            _print_once(self._note_on_few_texts())

    def _note_on_few_texts(self) -> str:
        """Note on a number of texts that says little of each part (depth, number of pairs)."""
        config = self.evaluation.config
        tasks = [task["name"] for task in config.tasks or ()]
        return (
            f"{' '.join(['accuracy', *tasks])}: evaluate.windows={config.windows} for"
            f" {self.n_parts} parts is {self.texts_per_part} of each at every length, which is few:"
            f" evaluate.windows={ENOUGH_TEXTS * self.n_parts} asks {ENOUGH_TEXTS} of each"
        )

    @classmethod
    def lengths(cls, evaluate: EvaluateConfig, train_len: int) -> list[int]:
        """The lengths asked for; the training length too where all are longer, since its answers
        tell whether the task was learned, but not where no question fits it.
        """
        if min(evaluate.lengths) <= train_len or not has_room_for_question(evaluate, train_len):
            return evaluate.lengths
        return [train_len, *evaluate.lengths]

    @classmethod
    def version_of(cls, evaluate: EvaluateConfig) -> int:
        if not evaluate.tasks:
            return cls.version
        if evaluate.rivals:
            return TextTask.version + 1  # rivals were cut at the end of the text
        return TextTask.version

    @classmethod
    def check(cls, extension: "Extension", config: EvaluateConfig, train_len: int) -> None:
        super().check(extension, config, train_len)
        for node in config.tasks or ():
            make_text_task(node)

    @classmethod
    def check_text(cls, corpus: "Corpus", config: EvaluateConfig, train_len: int) -> None:
        """Raise ConfigError, before any training, for a length that the task or its depths do not
        fit.
        """
        source = questions(corpus, config)
        for length in config.lengths:
            # Drawing any text says what the task needs: where one part fits, all of a length do.
            first_part = source.parts(length)[0]
            source.draw(length, count=1, key=[config.seed], **first_part.arguments)
            if config.tasks:
                source.check_depths(length, FEW_TEXTS, [config.seed, length])

    @classmethod
    def check_tokens(cls, config: EvaluateConfig, tokenizer: Tokenizer, bos: int | None) -> None:
        """Check, before there is text, that a question in words fits every length. Raises
        ConfigError.
        """
        source = word_questions(config, tokenizer, bos)
        for length in config.lengths:
            # Parts differ in depth alone, which takes no room.
            first_part = source.parts(length)[0]
            source.check_room(length, count=1, key=[config.seed], **first_part.arguments)

    @classmethod
    def read_volume(
        cls,
        config: EvaluateConfig,
        train_len: int,
        length: int,
        fed: int,
        n_windows: int | None = None,
    ) -> ReadVolume:
        """Volume of reading, with a loss for each question. `fed` is `length`: an extension that
        crops is refused (`replacement`).
        """
        if n_windows is None:
            n_windows = cls.planned_windows(config, train_len)
        # Without evaluate.tasks the data or its mix is a task, whose answers may begin anywhere.
        if not config.tasks:
            return ReadVolume(
                n_windows, tokens_per_text=length, rows_per_text=length, total_losses=n_windows
            )
        texts = n_windows * texts_per_question(config)
        return ReadVolume(
            texts,
            tokens_per_text=length,
            rows_per_text=min(length, ANSWER_TOKENS),
            total_losses=n_windows,
        )

    @property
    def texts_per_part(self) -> int:
        """Number of texts of each part."""
        return max(1, self.evaluation.config.windows // self.n_parts)

    def n_windows(self, length: int) -> int:
        """Number of questions at one length."""
        return self.texts_per_part * len(self.questions.parts(length))

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        """Rows of a length, and {name: array [n_questions, columns of all rows]}."""
        max_distance = self.evaluation.max_distance(self.evaluation.plan(length))
        rows = []
        arrays_of_rows = []  # of each row {name: array [n_questions, columns of the row]}
        for label, parts in self._scored_parts(length).items():
            for row, answers in _rows_with_answers(label, parts):
                rows.append({**row, "max_distance": max_distance})
                arrays_of_rows.append(self._arrays_of_row(row, answers))
        arrays = {
            name: np.concatenate([of_row[name] for of_row in arrays_of_rows], axis=1)
            for name in arrays_of_rows[0]
        }
        return rows, arrays

    def _scored_parts(self, length: int) -> dict[str, list[ScoredPart]]:
        """{name of rows: the parts of the task that it is of}. Also notes depths and guesses of the
        texts.
        """
        self.depths: dict[str, list[float]] = {}
        self.guesses: dict[str, dict[str, float]] = {}
        scored: dict[str, list[ScoredPart]] = {}
        for index, part in enumerate(self.questions.parts(length)):
            seed = [self.evaluation.config.seed, length, index]
            with self.evaluation.seconds_and_memory() as spent:
                examples = self.questions.draw(length, self.texts_per_part, seed, **part.arguments)
                if examples.depth_N is not None:
                    self.depths[str(part.depth)] = _least_mean_largest(examples.depth_N)
                if examples.choices_NK is not None:
                    self.guesses[part.task] = _shares_right_by_guess(examples)
                for label, answers in self.answers(part.task, examples).items():
                    scored.setdefault(label, []).append(ScoredPart(part.depth, answers, spent))
        return scored

    def _arrays_of_row(self, row: dict, answers: Answers) -> dict[str, np.ndarray]:
        """Arrays [texts of a part, columns] of a row. Row i has the answers of text i of the first
        depth, then those of text i of the next, and so on. `part` has one row, alike for all texts.
        """
        n_depths = len(answers.nll_NA) // self.texts_per_part
        nll, correct, rank = (
            np.concatenate(np.split(array_NA, n_depths), axis=1) for array_NA in answers
        )
        # `part_of` reads a complete row, and this one has no protocol yet.
        part = np.full((1, nll.shape[1]), part_of({**row, "protocol": "accuracy"}))
        return {"nll": nll, "correct": correct, "rank": rank, "part": part}

    def length_facts(self) -> dict[str, dict]:
        """Of the length that `run` read last: least, mean and largest share of the haystack before
        the asked item, for each depth; and of answers in single tokens the shares that are right by
        a guess: of any of the choices, and of the token by place (`share_right_by_place`)."""
        facts = {"depths": self.depths, "guesses": self.guesses}
        return {name: values for name, values in facts.items() if values}

    def answers(self, task: str, examples: Examples) -> dict[str, Answers]:
        """{name of the row: answers}: of the answers, and of the choice among those in the text."""
        is_target_T = (examples.targets_NT != IGNORED).any(axis=0)
        n_rows = len(is_target_T) - int(is_target_T.argmax())  # from the first target to the end
        target_NR = examples.targets_NT[:, -n_rows:]
        answer_NR = examples.answer_NT[:, -n_rows:]
        choice_NK = examples.choices_NK

        def text(at_n: np.ndarray) -> tuple:
            """Inputs, targets and choices of some texts, as score_texts asks for them."""
            choice_nK = None if choice_NK is None else choice_NK[at_n]
            return examples.inputs_NT[at_n], target_NR[at_n], choice_nK

        plan = self.evaluation.plan(len(is_target_T))
        scores = self.evaluation.score_texts(plan, np.arange(len(target_NR)), n_rows, text)
        # Rank and nll of the answer among the choices follow where there are choices.
        nll_NR, correct_NR, *rank_and_nll = scores
        nll_NA = sums_by_answer(answer_NR, nll_NR)
        correct_NA = sums_by_answer(answer_NR, ~correct_NR) == 0  # no token of the answer is wrong
        # Choices are single tokens, and so are their answers: each sum is over one token.
        rank_and_nll = [sums_by_answer(answer_NR, values_NR) for values_NR in rank_and_nll]
        # In words there are rivals instead, of any number of tokens.
        if examples.rival_NAKR is not None:
            rank_and_nll = rank_answers(nll_NA, self.rivals_nll(examples, plan, n_rows))
        if not rank_and_nll:  # no choice among answers, so no rank
            rank_NA = np.zeros(nll_NA.shape, np.int64)
            return {task: Answers(nll_NA.astype(np.float32), correct_NA, rank_NA)}
        rank_NA = rank_and_nll[0].astype(np.int64)
        choice_nll_NA = rank_and_nll[1].astype(np.float32)
        return {
            task: Answers(nll_NA.astype(np.float32), correct_NA, rank_NA),
            f"{task} choice": Answers(choice_nll_NA, rank_NA == 1, rank_NA),
        }

    def rivals_nll(self, examples: Examples, plan: "Plan", n_rows: int) -> np.ndarray:
        """nll [N, A, K] of the rivals of each answer, each read in a text of its own; inf where
        there are fewer.
        """
        exists_NAK = (examples.rival_NAKR != IGNORED).any(axis=3)
        place_M3 = np.argwhere(exists_NAK)

        def text(at_m: np.ndarray) -> tuple:
            inputs_mT, targets_mT = texts_with_rivals(examples, place_M3[at_m])
            no_choices = None
            return inputs_mT, targets_mT[:, -n_rows:], no_choices

        nll_MR, _ = self.evaluation.score_texts(plan, np.arange(len(place_M3)), n_rows, text)
        nll_NAK = np.full(exists_NAK.shape, np.inf)
        nll_NAK[exists_NAK] = nll_MR.sum(axis=1, dtype=np.float64)
        return nll_NAK

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Arrays [N] that all lengths share: as `document` the number of each text, since texts of
        one number are the same for all methods and paired; as `offset` the number of parts, so
        that results with another number of them are not paired with these.
        """
        return {
            "document": np.arange(self.texts_per_part),
            "offset": np.full(self.texts_per_part, self.n_parts),
        }


def _rows_with_answers(label: str, parts: list[ScoredPart]) -> Iterator[tuple[dict, Answers]]:
    """Rows with their answers: one of all parts, then one of each depth."""
    seconds = sum(part.spent["seconds"] for part in parts)
    peak_mib = max(part.spent["peak_mib"] for part in parts)
    all_answers = Answers(
        *(np.concatenate(arrays) for arrays in zip(*(part.answers for part in parts), strict=True))
    )
    row = _accuracy_row(label, None, all_answers, seconds, peak_mib)  # None: of all depths
    yield row, all_answers
    mean_seconds = seconds / len(parts)  # shared alike among the depths
    for part in parts:
        if part.depth is not None:
            row = _accuracy_row(label, part.depth, part.answers, mean_seconds, peak_mib)
            yield row, part.answers


def _accuracy_row(
    label: str, depth: float | None, answers: Answers, seconds: float, peak_mib: float
) -> dict:
    text_N = np.arange(len(answers.nll_NA))  # texts are independent of each other
    # Without bytes there are no bits per byte, which an answer has no use for.
    means = mean_row(
        answers.nll_NA, answers.correct_NA, text_N, n_bytes=np.zeros(1), unit="example"
    )
    return {**means, "task": label, "depth": depth, "seconds": seconds, "peak_mib": peak_mib}


def _least_mean_largest(depth_N: np.ndarray) -> list[float]:
    """Least, mean and largest depth, rounded."""
    return [round(float(depth), 3) for depth in (depth_N.min(), depth_N.mean(), depth_N.max())]


def _shares_right_by_guess(examples: Examples) -> dict[str, float]:
    """{guess: share of the answers that it gets right}."""
    choices_N = (examples.choices_NK >= 0).sum(axis=1)
    return {
        "by place": round(share_right_by_place(examples), 4),
        "by value": round(float((1 / choices_N).mean()), 4),
    }


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
    chat = text_around_message(config.chat) if config.chat else None
    task = make_text_task(node)
    return TextQuestions(
        task,
        node["name"],
        config.split,
        file,
        tokenizer,
        bos,
        before_and_behind=chat,
        rivals=config.rivals,
    )


def has_room_for_question(config: EvaluateConfig, length: int) -> bool:
    """True if a text of `length` bytes has room for the question of `evaluate`; no tokenizer makes
    more tokens, and none is known yet.
    """
    if not config.tasks:
        return True
    try:
        bos = 0  # any number: it takes one token
        # Several questions, since they differ in length; always the same ones.
        word_questions(config, ByteTokenizer(), bos).check_room(length, count=8, key=[0])
    except ConfigError:
        return False
    return True


def texts_per_question(config: EvaluateConfig) -> int:
    """Number of texts, at most, that are read for one question: its own, and one for each rival of
    its answers.
    """
    if not config.rivals:
        return 1
    return 1 + sum(make_text_task(node).rivals(config.rivals) for node in config.tasks or ())


def share_right_by_place(examples: Examples) -> float:
    """Share of the answers that stand behind the latest earlier place of the token that asks: what
    copying from there gets right.
    """
    right = []
    for inputs_T, targets_T in zip(examples.inputs_NT, examples.targets_NT, strict=True):
        for at in np.flatnonzero(targets_T != IGNORED):
            before = np.flatnonzero(inputs_T[:at] == inputs_T[at])
            right.append(len(before) > 0 and inputs_T[before[-1] + 1] == targets_T[at])
    return float(np.mean(right))


@functools.cache
def _print_once(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def sums_by_answer(answer_NR: np.ndarray, value_NR: np.ndarray) -> np.ndarray:
    """Sums [N, A] of the values of the rows of each answer."""
    total_NA = np.zeros((len(answer_NR), answer_NR.max() + 1))
    row_Q, column_Q = np.nonzero(answer_NR >= 0)
    np.add.at(total_NA, (row_Q, answer_NR[row_Q, column_Q]), value_NR[row_Q, column_Q])
    return total_NA
