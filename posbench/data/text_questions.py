"""Text tasks in a model's tokens, in the form of a task's split.

Each part of a text is tokenized by itself, as in running text, and the haystack is cut at its start
so that the text has exactly the tokens that were asked for. Items stand where a sentence or line of
the haystack ends: behind a line as a line of their own, behind a sentence that a blank follows as a
sentence of their own.

Rivals of an answer are other values that stand in the same text, each written in the answer's place
behind the same text. A rival has tokens of its own, so it is read from a further text, which has as
many tokens and is the same up to the answer. What stands behind the rival is not scored. Every text
has room for its longest value, so that rivals are scored whole: -ln p of a string is the sum over
its tokens, whatever their number, as that of the answer is.

Letters: N examples, T tokens, F tokens of the haystack, A answers, K rivals, R tokens of a rival, M
rivals of all texts."""

import contextlib
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.sources import ALL, SPLITS
from posbench.data.task import IGNORED, NOISE_SENTENCES, Examples, Question, TaskVariant, TextTask
from posbench.data.tokenfile import TokenFile
from posbench.data.tokenizers import Encode, Tokenizer, behind_bos, continuation_encoder

# questions that are drawn in training until one fits; `check` refuses a length where not most of
# them do
MOST_DRAWS = 1000
QUESTIONS_CHECKED = 8  # questions that `check` draws


class _Item(NamedTuple):
    """Asked or hidden sentence: its depth, and its tokens as a sentence and as a line."""

    depth: float
    sentence: np.ndarray
    line: np.ndarray

    @property
    def min_tokens(self) -> int:
        """Tokens of the shorter form."""
        return min(len(self.sentence), len(self.line))

    @property
    def max_tokens(self) -> int:
        """Tokens of the longer form."""
        return max(len(self.sentence), len(self.line))


class _TokenizedQuestion(NamedTuple):
    """A question and the tokens of its parts. `needed` counts them, and the room behind the answer
    for a longer rival.
    """

    question: Question
    head: np.ndarray
    items: list[_Item]  # by depth
    tail: np.ndarray
    answer: list[tuple[np.ndarray, int]]  # (tokens, number of the answer or -1)
    needed: int


class _Haystack(NamedTuple):
    """Tokens, numbers of tokens after which an item may stand, ascending, and (number of tokens
    before it, sentence) of sentences of the items' kind."""

    tokens_F: np.ndarray
    ends: np.ndarray
    sentences: list[tuple[int, str]]


class _Text(NamedTuple):
    """An example, its answers and the values in it in words, and the depth of what is asked."""

    inputs_T: np.ndarray
    targets_T: np.ndarray
    answer_T: np.ndarray
    answers: list[str]
    values: list[str]
    depth: float


@dataclass(frozen=True)
class TextQuestions:
    """Questions of a task in the tokens of a model, in place of a `TaskSplit`.

    `bos` begins every text, if it is there. With `before_and_behind`, what a chat template writes
    before and behind the message of a user, all but the answer and its beginning is that message.
    Of each answer up to `rivals` rivals are drawn. In `training` a question that does not fit is
    drawn again, so that no step fails."""

    task: TextTask
    name: str
    split: str
    file: TokenFile | None
    tokenizer: Tokenizer
    bos: int | None
    before_and_behind: tuple[str, str] | None = None
    rivals: int = 0
    training: bool = False

    def parts(self, length: int) -> list[TaskVariant]:
        """Parts that are evaluated apart at a length."""
        return self.task.parts(f"{self.name} chat" if self.before_and_behind else self.name)

    def draw(self, length: int, count: int, key: list[int], depth: float | None = None) -> Examples:
        """`count` examples of `length` tokens.

        Raises ConfigError if a question does not fit, or no document can be its haystack."""
        room = 0  # tokens behind the answer, so that every other value fits in its place
        while True:
            random = self._random(key)
            texts = [self._draw_text(random, length, depth, room) for _ in range(count)]
            needed = max(map(self._excess_of_longest_value, texts)) if self.rivals else 0
            if needed <= room:
                break
            room = needed  # the same draws again, with more room
        rival_NAKR = None
        if self.rivals:
            words = [(text.answers, text.values) for text in texts]
            rival_NAKR = draw_rivals(random, words, self.rivals, self._continuation_ids)
        return Examples(
            np.stack([text.inputs_T for text in texts]),
            np.stack([text.targets_T for text in texts]),
            np.stack([text.answer_T for text in texts]),
            rival_NAKR=rival_NAKR,
            depth_N=None if depth is None else np.array([text.depth for text in texts]),
        )

    def _excess_of_longest_value(self, text: _Text) -> int:
        """Tokens by which the longest value of a text exceeds its last answer."""
        longest = max((len(self._continuation_ids(value)) for value in text.values), default=0)
        return longest - len(self._continuation_ids(text.answers[-1]))

    def check(self, length: int) -> None:
        """Raise ConfigError if one of a few questions does not fit `length` tokens, or no document
        can be the haystack.
        """
        self.check_room(length, count=QUESTIONS_CHECKED, key=[0])
        self.draw(length, count=1, key=[0])

    def check_room(
        self, length: int, count: int, key: list[int], depth: float | None = None
    ) -> None:
        """Raise ConfigError if one of `count` questions does not fit. The first is the one that
        `draw` draws first by `key`. No document is read.
        """
        random = self._random(key)
        for _ in range(count):
            self._draw_tokenized_question(random, length, depth)

    def check_depths(self, length: int, count: int, key: list[int]) -> None:
        """Raise ConfigError if an asked item stands nearer to another depth than to its own, in the
        mean of `count` texts of each depth.
        """
        parts = [part for part in self.parts(length) if part.depth is not None]
        depths = [
            self.draw(length, count, [*key, at], **part.arguments).depth_N.mean()
            for at, part in enumerate(parts)
        ]
        for part, depth in zip(parts, depths, strict=True):
            # Depths are spread evenly from 0 to 1, and TextTask refuses a single one.
            half_step = 0.5 / (len(parts) - 1)
            if abs(depth - part.depth) >= half_step:
                raise ConfigError(
                    f"evaluate.lengths holds {length}, where the haystack of"
                    f" evaluate.tasks={self.name} has too few places: what is asked for at depth"
                    f" {part.depth:g} stands at {depth:.2f}. Leave it out, or take fewer depths"
                    f" than {len(parts)}."
                )

    def _random(self, key: list[int]) -> np.random.Generator:
        return np.random.default_rng([(*SPLITS, ALL).index(self.split), *key])

    def _draw_fitting_question(
        self, random: np.random.Generator, length: int, depth: float | None, room: int
    ) -> _TokenizedQuestion:
        """A question that fits with `room` tokens behind its answer. In training others are drawn
        until one does, MOST_DRAWS times.
        """
        for _ in range(MOST_DRAWS if self.training else 0):
            with contextlib.suppress(ConfigError):
                return self._draw_tokenized_question(random, length, depth, room)
        return self._draw_tokenized_question(random, length, depth, room)

    def _draw_tokenized_question(
        self, random: np.random.Generator, length: int, depth: float | None, room: int = 0
    ) -> _TokenizedQuestion:
        """The next question, tokenized. Raises ConfigError where it and `room` tokens behind its
        answer, which a longer rival would take, are more than `length`.
        """
        question = self.task.ask(random, depth)
        before, behind = self.before_and_behind or ("", "")  # of the user's message in a chat
        # a chat template ends where the reply begins, which no blank opens
        answer_start = question.start.lstrip() if self.before_and_behind else question.start
        # The head begins the text; all other parts continue it.
        head = behind_bos(self.tokenizer.ids(before + question.head), self.bos)
        tail = self._continuation_ids(question.tail + behind + answer_start)
        items = [
            _Item(
                place,
                sentence=self._continuation_ids(f" {text}"),
                line=self._continuation_ids(f"{text}\n"),
            )
            for place, text in sorted(question.items, key=lambda item: item[0])
        ]
        # the number of the answer that the words belong to, or -1 for words between answers
        answer = [(self._continuation_ids(words), number) for words, number in question.answer]
        answer_tokens = sum(len(ids) for ids, _ in answer)
        item_tokens = sum(item.max_tokens for item in items)
        needed = len(head) + item_tokens + len(tail) + answer_tokens + room
        if needed > length:
            raise self._too_long(needed, length)
        return _TokenizedQuestion(question, head, items, tail, answer, needed)

    def _too_long(self, needed: int, length: int) -> ConfigError:
        """Refusal of a question that needs more tokens than a length has."""
        if self.training:
            key = "data.mix.task"
            advice = f"train.length={length} has fewer: raise it, or choose a shorter question."
        else:
            key = "evaluate.tasks"
            advice = f"evaluate.lengths holds {length}: leave it out."
        return ConfigError(
            f"{key}={self.name} needs {needed} tokens with this tokenizer, and {advice}"
        )

    def _draw_text(
        self, random: np.random.Generator, length: int, depth: float | None, room: int
    ) -> _Text:
        """One text of `length` tokens and the last target. `room` tokens stand behind the answer.

        The haystack is drawn for the shorter forms of all items. Once their forms are known, it is
        cut at its start by what they have more."""
        question, head, items, tail, answer, needed = self._draw_fitting_question(
            random, length, depth, room
        )
        shortest = sum(item.min_tokens for item in items)
        spare = sum(item.max_tokens for item in items) - shortest  # the most that may be cut
        # `needed` counts the longer forms, and the last target is one token more than `length`
        haystack = self._draw_haystack(random, length + 1 - needed + spare, question)
        placed = self._place_items(items, haystack, spare)
        cut = sum(len(ids) for _, ids in placed) - shortest
        # The item at `depth` is the one that is asked for. Without a `depth` its place is unused.
        at_of_depths = {item.depth: at for item, (at, _) in zip(items, placed, strict=True)}
        at = max(0, at_of_depths.get(depth, 0) - cut)  # tokens before the asked item
        answer_ids = np.concatenate([ids for ids, _ in answer])
        pieces = [
            head,
            *_haystack_with_items(haystack.tokens_F, placed, cut),
            tail,
            answer_ids,
            np.full(room, answer_ids[-1]),  # any token: no answer reads it
        ]
        ids_T1 = np.concatenate(pieces).astype(np.int64)
        numbers = [np.full(len(ids), number) for ids, number in answer]
        answer_T = np.full(length, -1)  # nothing is asked
        end = length - room
        answer_T[end - len(answer_ids) : end] = np.concatenate(numbers)
        # sentences that are there whatever is cut
        sentences = [sentence for _, sentence in question.items]
        sentences += [sentence for begin, sentence in haystack.sentences if begin >= spare]
        return _Text(
            ids_T1[:-1],
            np.where(answer_T < 0, IGNORED, ids_T1[1:]),
            answer_T,
            question.answers,
            question.values(sentences),
            depth=at / max(1, len(haystack.tokens_F) - cut),
        )

    def _place_items(
        self, items: list[_Item], haystack: _Haystack, spare: int
    ) -> list[tuple[int, np.ndarray]]:
        """(tokens of the haystack before it, its tokens) of each item.

        An item stands behind the sentence or line whose end is nearest to its depth, in the form of
        what is before it. Up to `spare` tokens will be cut from the start, so an item stands at the
        start or behind all of these."""
        hay_F = haystack.tokens_F
        ends = haystack.ends[(haystack.ends == 0) | (haystack.ends > spare)]
        placed = []
        for item in items:
            at = int(ends[np.abs(ends - item.depth * len(hay_F)).argmin()])
            behind_line = at == 0 or self._last_character(int(hay_F[at - 1])) == "\n"
            placed.append((at, item.line if behind_line else item.sentence))
        return placed

    def _draw_haystack(
        self, random: np.random.Generator, size: int, question: Question
    ) -> _Haystack:
        """Haystack of `size` tokens.

        One of sentences is cut at its front, so that it ends with a whole one before the
        question."""
        if self.task.haystack == "corpus":
            return self._draw_from_document(random, size)
        others = question.others if self.task.haystack == "items" else None
        source = itertools.cycle(NOISE_SENTENCES) if others is None else others  # both are endless
        pieces = []
        sentences = []
        total = 0
        while total < size:
            sentences.append(next(source))
            pieces.append(self._continuation_ids(f" {sentences[-1]}"))
            total += len(pieces[-1])
        cut = total - size
        hay_F = np.concatenate([np.zeros(0, np.int64), *pieces])[cut:]  # also without a piece
        ends = np.cumsum([0, *map(len, pieces)]) - cut
        places = np.r_[0, ends[ends > 0]]  # the start, and the ends that were not cut off
        if others is None:
            return _Haystack(hay_F, places, sentences=[])  # noise holds no values
        # A sentence begins where one ends; the first below 0 if its front was cut off.
        begins = zip(ends.tolist(), sentences, strict=False)
        return _Haystack(hay_F, places, list(begins))

    def _draw_from_document(self, random: np.random.Generator, size: int) -> _Haystack:
        """Haystack of a run of tokens of one document. ConfigError without one that is so long."""
        n_starts_D = np.maximum(self.file.document_lengths() - size + 1, 0)
        if not n_starts_D.any():
            key, lengths = "evaluate.tasks", "evaluate.lengths"
            if self.training:
                key, lengths = "data.mix.task", "train.length"
            raise ConfigError(
                f"{key}={self.name} takes its haystack from a document of {size} tokens, and the"
                f" {self.split} split has none: lower {lengths}, or take longer documents."
            )
        # every run of `size` tokens has the same probability
        document = int(random.choice(len(n_starts_D), p=n_starts_D / n_starts_D.sum()))
        start = int(self.file.starts[document]) + int(random.integers(n_starts_D[document]))
        hay_F = np.asarray(self.file.tokens[start : start + size]).astype(np.int64)
        ids = hay_F.tolist()
        ends = [
            at for at in range(1, size + 1) if self._ends_line_or_sentence(ids[at - 1 : at + 1])
        ]
        # Where no line or sentence ends, an item stands at the start or the end.
        places = [0, *ends] if ends else [0, size]
        return _Haystack(hay_F, np.array(places), sentences=[])

    @functools.cached_property
    def _continuation_ids(self) -> Encode:
        """Function from a piece behind the head to its token ids.

        Sentences of the noise come again and again."""
        return functools.lru_cache(10_000)(continuation_encoder(self.tokenizer))

    def _ends_line_or_sentence(self, ids: list[int]) -> bool:
        """True if a line ends with the first of one or two tokens, or a sentence that a blank or
        nothing follows.
        """
        last = self._last_character(ids[0])
        if last not in ("\n", ".", "!", "?"):
            return False
        behind = self.tokenizer.decode(ids)[len(self.tokenizer.decode(ids[:1])) :]
        return last == "\n" or not behind or behind[0].isspace()

    @functools.cached_property
    def _last_character(self) -> Callable[[int], str]:
        """Function from a token to its last character but for blanks, "" where there is none."""
        return functools.cache(lambda token: self.tokenizer.decode([token]).rstrip(" ")[-1:])


def _haystack_with_items(
    hay_F: np.ndarray, placed: list[tuple[int, np.ndarray]], start: int
) -> list[np.ndarray]:
    """Pieces of a haystack from token `start` on with the items (tokens before it, its tokens).

    An item at 0 stands before all that is left."""
    pieces = []
    for at, ids in placed:
        pieces += [hay_F[start:at], ids]
        start = max(start, at)
    return [*pieces, hay_F[start:]]


def draw_rivals(
    random: np.random.Generator, texts: list[tuple[list[str], list[str]]], most: int, encode: Encode
) -> np.ndarray | None:
    """Tokens [N, A, K, R] of at most `most` rivals of each answer, IGNORED where there are none;
    None where an answer has no rival.

    `texts` are (answers, values that stand in the text), with equally many answers each. K is the
    most rivals of an answer, R the most tokens of a rival. With a smaller `most`, the rivals
    are the first of those with a larger one.
    """
    rivals_of_answers = []
    for answers, values in texts:
        for answer in answers:
            shuffled = [values[at] for at in random.permutation(len(values)).tolist()]
            rivals = [value for value in shuffled if value != answer]
            rivals_of_answers.append([encode(value) for value in rivals[:most]])
    if not all(rivals_of_answers):
        return None
    most_rivals = max(map(len, rivals_of_answers))
    longest = max(len(ids) for rivals in rivals_of_answers for ids in rivals)
    # Q: the answers of all texts, N A
    rival_QKR = np.full((len(rivals_of_answers), most_rivals, longest), IGNORED)
    for row, rivals in enumerate(rivals_of_answers):
        for at, ids in enumerate(rivals):
            rival_QKR[row, at, : len(ids)] = ids
    return rival_QKR.reshape(len(texts), -1, *rival_QKR.shape[1:])


def texts_with_rivals(examples: Examples, place_M3: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets [M, T] of further texts.

    `place_M3`: numbers of the text, of the answer and of the rival in its place."""
    inputs_MT = examples.inputs_NT[place_M3[:, 0]]
    targets_MT = np.full(inputs_MT.shape, IGNORED)
    for row, (text, answer, rival) in enumerate(place_M3.tolist()):
        at = int((examples.answer_NT[text] == answer).argmax())  # its first target
        ids = examples.rival_NAKR[text, answer, rival]
        ids = ids[ids != IGNORED]
        targets_MT[row, at : at + len(ids)] = ids
        inputs_MT[row, at + 1 : at + len(ids)] = ids[:-1]  # a target is the next input
    return inputs_MT, targets_MT


def rank_answers(nll_NA: np.ndarray, nll_NAK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank of each answer among its rivals (1 is best, equals count against it) and its nll if
    there were no others; inf: no rival.
    """
    as_good_NAK = (nll_NAK <= nll_NA[..., None]) & (nll_NAK < np.inf)
    rank_NA = 1 + as_good_NAK.sum(axis=2)
    # -ln of the answer's share of the probability of all of them
    logprob_NAK1 = np.concatenate([-nll_NA[..., None], -nll_NAK], axis=2)
    return rank_NA, nll_NA + np.logaddexp.reduce(logprob_NAK1, axis=2)
