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
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.sources import SPLITS
from posbench.data.task import IGNORED, NOISE, Examples, Question, TaskVariant, TextTask
from posbench.data.tokenfile import TokenFile
from posbench.data.tokenizers import Encode, Tokenizer, behind_bos, continuation_encoder

# questions that are drawn in training until one fits; `check` refuses a length where not most of
# them do
TRIES = 1000


@dataclass(frozen=True)
class TextQuestions:
    """Questions of a task in the tokens of a model, in place of a `TaskSplit`. `bos` begins every
    text, if it is there.

    With `around`, what stands before and behind the message of a user, all but the answer and its
    beginning is that message. Of each answer up to `rivals` rivals are drawn. In `training` a
    question that does not fit is drawn again, so that no step fails."""

    task: TextTask
    name: str
    split: str
    file: TokenFile | None
    tokenizer: Tokenizer
    bos: int | None
    around: tuple[str, str] | None = None
    rivals: int = 0
    training: bool = False

    def parts(self, length: int) -> list[TaskVariant]:
        """Parts that are evaluated apart at a length."""
        return self.task.parts(f"{self.name} chat" if self.around else self.name)

    def draw(self, length: int, count: int, key: list[int], depth: float | None = None) -> Examples:
        """`count` examples of `length` tokens. Raises ConfigError if a question does not fit, or no
        document can be its haystack.
        """
        room = 0  # tokens behind the answer, so that every other value fits in its place whole
        while True:
            random = self._random(key)
            made = [self._example(random, length, depth, room) for _ in range(count)]
            texts = [words for *_, words, _ in made]
            needed = max(self._longer(*words) for words in texts) if self.rivals else 0
            if needed <= room:
                break
            room = needed
        rival_NAKR = draw_rivals(random, texts, self.rivals, self._ids) if self.rivals else None
        depth_N = None if depth is None else np.array([measured for *_, measured in made])
        return Examples(
            *(np.stack([one[part] for one in made]) for part in range(3)),
            rival_NAKR=rival_NAKR,
            depth_N=depth_N,
        )

    def _longer(self, answers: list[str], values: list[str]) -> int:
        """Tokens by which the longest value of a text exceeds its last answer."""
        return max((len(self._ids(value)) for value in values), default=0) - len(
            self._ids(answers[-1])
        )

    def check_room(
        self, length: int, count: int, key: list[int], depth: float | None = None
    ) -> None:
        """Raise ConfigError if one of `count` questions, the first of which `draw` draws by `key`,
        does not fit. No document is read.
        """
        random = self._random(key)
        for _ in range(count):
            self._tokenized(random, length, depth)

    def _random(self, key: list[int]) -> np.random.Generator:
        return np.random.default_rng([(*SPLITS, "all").index(self.split), *key])

    def check_depths(self, length: int, count: int, key: list[int]) -> None:
        """Raise ConfigError if an asked item stands nearer to another depth than to its own, in the
        mean of `count` texts of each depth.
        """
        parts = [part for part in self.parts(length) if part.depth is not None]
        found = [
            self.draw(length, count, [*key, at], **part.arguments).depth_N.mean()
            for at, part in enumerate(parts)
        ]
        for part, depth in zip(parts, found, strict=True):
            if abs(depth - part.depth) >= 0.5 / (len(parts) - 1):
                raise ConfigError(
                    f"evaluate.lengths holds {length}, where the haystack of"
                    f" evaluate.tasks={self.name} has too few places: what is asked for at depth"
                    f" {part.depth:g} stands at {depth:.2f}. Leave it out, or take fewer depths"
                    f" than {len(parts)}."
                )

    def check(self, length: int) -> None:
        """Raise ConfigError if one of eight questions does not fit `length` tokens, or no document
        can be the haystack.
        """
        self.check_room(length, 8, [0])
        self.draw(length, 1, [0])

    def _fitting(
        self, random: np.random.Generator, length: int, depth: float | None, room: int
    ) -> tuple:
        """`_tokenized` of a question that fits. In training others are drawn until one does, TRIES
        times.
        """
        for _ in range(TRIES if self.training else 0):
            with contextlib.suppress(ConfigError):
                return self._tokenized(random, length, depth, room)
        return self._tokenized(random, length, depth, room)

    def _tokenized(
        self, random: np.random.Generator, length: int, depth: float | None, room: int = 0
    ) -> tuple:
        """A question, tokens of all its parts but the haystack, and their number and `room`. Raises
        ConfigError above `length`.
        """
        asked = self.task.ask(random, depth)
        before, behind = self.around or ("", "")
        head = behind_bos(self.tokenizer.ids(before + asked.head), self.bos)
        tail = self._ids(
            asked.tail + behind + (asked.start.lstrip() if self.around else asked.start)
        )
        items = [
            (place, (self._ids(f" {text}"), self._ids(f"{text}\n")))
            for place, text in sorted(asked.items, key=lambda item: item[0])
        ]
        answer = [(self._ids(words), number) for words, number in asked.answer]
        needed = (
            len(head)
            + len(tail)
            + sum(max(map(len, forms)) for _, forms in items)
            + sum(len(ids) for ids, _ in answer)
            + room
        )
        if needed > length:
            if self.training:
                where, way = (
                    f"data.mix.task={self.name}",
                    f"train.length={length} has fewer: raise it, or choose a shorter question.",
                )
            else:
                where, way = (
                    f"evaluate.tasks={self.name}",
                    f"evaluate.lengths holds {length}: leave it out.",
                )
            raise ConfigError(f"{where} needs {needed} tokens with this tokenizer, and {way}")
        return asked, head, items, tail, answer, needed

    def _example(
        self, random: np.random.Generator, length: int, depth: float | None, room: int
    ) -> tuple:
        """Inputs, targets and numbers of answers [T] of a text, its answers and values in words,
        and the measured depth of what is asked.

        `room` tokens stand behind the answer.
        """
        asked, head, items, tail, answer, needed = self._fitting(random, length, depth, room)
        fewest = sum(min(map(len, forms)) for _, forms in items)
        spare = sum(max(map(len, forms)) for _, forms in items) - fewest
        hay_F, ends, others = self._haystack(random, length + 1 - needed + spare, asked)
        ends = ends[
            (ends == 0) | (ends > spare)
        ]  # however much is cut at the start, items keep what stands before them
        placed = []
        for place, (sentence, line) in items:
            at = int(ends[np.abs(ends - place * len(hay_F)).argmin()])
            placed.append(
                (at, line if not at or self._last(int(hay_F[at - 1])) == "\n" else sentence)
            )
        before = sum(len(ids) for _, ids in placed) - fewest
        own = next(
            (at for (place, _), (at, _) in zip(items, placed, strict=True) if place == depth), 0
        )
        measured, pieces = max(0, own - before) / max(1, len(hay_F) - before), [head]
        for at, ids in placed:
            pieces += [hay_F[before:at], ids]
            before = max(before, at)
        said = np.concatenate([ids for ids, _ in answer])
        behind = np.full(room, said[-1])  # no answer reads it
        text = np.concatenate([*pieces, hay_F[before:], tail, said, behind]).astype(np.int64)
        numbers = np.concatenate(
            [*(np.full(len(ids), number) for ids, number in answer), np.full(room, -1)]
        )
        answer_T = np.r_[np.full(length - len(numbers), -1), numbers]
        whole = [
            sentence for begin, sentence in others if begin >= spare
        ]  # of the haystack, whatever is cut
        values = asked.values([*(sentence for _, sentence in asked.items), *whole])
        return (
            text[:-1],
            np.where(answer_T < 0, IGNORED, text[1:]),
            answer_T,
            (asked.answers, values),
            measured,
        )

    def _haystack(
        self, random: np.random.Generator, size: int, asked: Question
    ) -> tuple[np.ndarray, np.ndarray, list[tuple[int, str]]]:
        """`size` tokens, the numbers of tokens after which an item may stand, ascending, and
        sentences by where they begin.
        """
        if self.task.haystack == "corpus":
            return *self._document(random, size), []
        units, said, total = [], [], 0
        sentences = asked.others if self.task.haystack == "items" else None
        while total < size:
            said.append(next(sentences) if sentences else NOISE[len(units) % len(NOISE)])
            units.append(self._ids(f" {said[-1]}"))
            total += len(units[-1])
        ends = np.cumsum([0, *map(len, units)]) - (total - size)
        hay_F = np.concatenate([np.zeros(0, np.int64), *units])[total - size :]
        return (
            hay_F,
            np.r_[0, ends[ends > 0]],
            list(zip(ends.tolist(), said, strict=False)) if sentences else [],
        )

    def _document(self, random: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        room_D = np.maximum(self.file.document_lengths() - size + 1, 0)
        if not room_D.any():
            where, lower = (
                ("data.mix.task", "train.length")
                if self.training
                else ("evaluate.tasks", "evaluate.lengths")
            )
            needed = f"a document of {size} tokens, and the {self.split} split has none"
            raise ConfigError(
                f"{where}={self.name} takes its haystack from {needed}: lower {lower}, or take"
                " longer documents."
            )
        document = int(random.choice(len(room_D), p=room_D / room_D.sum()))
        start = int(self.file.starts[document]) + int(random.integers(room_D[document]))
        hay_F = np.asarray(self.file.tokens[start : start + size]).astype(np.int64)
        ids = hay_F.tolist()
        ends = [at for at in range(1, size + 1) if self._ends(ids[at - 1 : at + 1])]
        return hay_F, np.array([0, *(ends or [size])])

    @functools.cached_property
    def _ids(self) -> Encode:
        """Function from a piece behind the head to its token ids. Sentences of the noise come again
        and again.
        """
        return functools.lru_cache(10_000)(continuation_encoder(self.tokenizer))

    def _ends(self, ids: list[int]) -> bool:
        """True if a line ends with the first of one or two tokens, or a sentence that a blank or
        nothing follows.
        """
        last = self._last(ids[0])
        if last != "\n" and last not in tuple(".!?"):
            return False
        behind = self.tokenizer.decode(ids)[len(self.tokenizer.decode(ids[:1])) :]
        return last == "\n" or not behind or behind[0].isspace()

    @functools.cached_property
    def _last(self) -> Callable[[int], str]:
        """Function from a token to its last character but for blanks, "" where there is none."""
        return functools.cache(lambda token: self.tokenizer.decode([token]).rstrip(" ")[-1:])


def draw_rivals(
    random: np.random.Generator, texts: list[tuple[list[str], list[str]]], most: int, encode: Encode
) -> np.ndarray | None:
    """Tokens [N, A, K, R] of at most `most` rivals of each answer, IGNORED where there are none;
    None where an answer has no rival.

    `texts` are (answers, values that stand in the text). Fewer rivals are the first of more.
    """
    chosen = []
    for answers, values in texts:
        for answer in answers:
            found = [
                values[at]
                for at in random.permutation(len(values)).tolist()
                if values[at] != answer
            ]
            chosen.append([encode(value) for value in found[:most]])
    if not all(chosen):
        return None
    longest = max(len(ids) for rivals in chosen for ids in rivals)
    rival_QKR = np.full((len(chosen), max(map(len, chosen)), longest), IGNORED)
    for row, rivals in enumerate(chosen):
        for at, ids in enumerate(rivals):
            rival_QKR[row, at, : len(ids)] = ids
    return rival_QKR.reshape(len(texts), -1, *rival_QKR.shape[1:])


def texts_with_rivals(examples: Examples, place_M3: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets [M, T] of further texts. `place_M3`: numbers of the text, of the answer
    and of the rival in its place.
    """
    inputs_MT = examples.inputs_NT[place_M3[:, 0]]
    targets_MT = np.full(inputs_MT.shape, IGNORED)
    for row, (text, answer, rival) in enumerate(place_M3.tolist()):
        at = int((examples.answer_NT[text] == answer).argmax())
        ids = examples.rival_NAKR[text, answer, rival]
        ids = ids[ids != IGNORED]
        targets_MT[row, at : at + len(ids)] = ids
        inputs_MT[row, at + 1 : at + len(ids)] = ids[:-1]
    return inputs_MT, targets_MT


def rank_answers(nll_NA: np.ndarray, nll_NAK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank of each answer among its rivals (1 is best, equals count against it) and its nll if
    there were no others; inf: no rival.
    """
    rank_NA = 1 + ((nll_NAK <= nll_NA[..., None]) & (nll_NAK < np.inf)).sum(axis=2)
    return rank_NA, nll_NA + np.logaddexp.reduce(
        np.concatenate([-nll_NA[..., None], -nll_NAK], axis=2), axis=2
    )
