"""Training batches as a pure function of (seed, step), so that neither resuming nor several
processes need any state.

Shape letters: B windows, T tokens, D documents, W window width, E epochs.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.sources import SPLITS
from posbench.data.task import IGNORED, Examples, TaskSplit
from posbench.data.text_questions import TextQuestions
from posbench.data.tokenfile import TokenFile

if TYPE_CHECKING:
    import torch

OFFSET_STREAM, ORDER_STREAM = range(2)  # streams of random numbers of an epoch
STEPS_PER_DRAW = 4096  # lengths of steps that are drawn together
ROUNDING = 1e-9  # steps times a share may be this much below a whole number


def batches(
    split: TokenFile | TaskSplit | TextQuestions,
    lengths: list[int],
    tokens_per_step: int,
    seed: int,
    bos: int | None,
) -> "Batches | TaskBatches":
    """Batches of a split of text or of a task. Raises ConfigError as they do."""
    if isinstance(split, TaskSplit | TextQuestions):
        return TaskBatches(split, lengths, tokens_per_step, seed)
    return Batches(split, lengths, tokens_per_step, seed, bos)


class Batches:
    """Batches of non-overlapping windows inside documents.

    Each epoch has a new offset per document, a new order, and every window once. With several
    `lengths` each step has one of them, drawn by (seed, step). Documents shorter than a window
    are skipped. Raises ConfigError when no document is long enough, or when a step cannot hold
    one window."""

    def __init__(
        self,
        tokens: TokenFile,
        lengths: list[int],
        tokens_per_step: int,
        seed: int,
        bos: int | None,
    ):
        if tokens_per_step < max(lengths):
            raise ConfigError(
                f"train.tokens_per_step={tokens_per_step} cannot hold one window of"
                f" train.length={max(lengths)}: raise it."
            )
        self.tokens = tokens
        self.lengths = sorted(lengths)
        self.tokens_per_step = tokens_per_step
        self.seed = seed
        self.bos = bos
        self.windows = {
            length: WindowSequence(tokens, self._width(length), [seed, length])
            for length in self.lengths
        }
        # index into `lengths` of each step so far, extended when needed
        self._length_indices = np.zeros(0, dtype=np.int64)

    def at(
        self, step: int, share: Callable[[int], slice] | None = None
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """(inputs_BT, targets_BT) of a step, both int64.

        A target is the token after its input; with a BOS token, inputs start with it. `share(B)`
        is the slice of the B windows that this process reads, if there are several."""
        import torch

        choices = self._length_index_of_steps(step + 1)
        length = self.lengths[choices[step]]
        earlier_steps = int((choices[:step] == choices[step]).sum())  # of this length
        count = self.tokens_per_step // length
        first_B = self.windows[length].first_tokens(earlier_steps * count, count)
        if share is not None:
            first_B = first_B[share(count)]
        index_BW = first_B[:, None] + np.arange(self._width(length))
        windows_BW = torch.from_numpy(self.tokens.tokens[index_BW].astype(np.int64))
        if self.bos is None:
            return windows_BW[:, :-1].contiguous(), windows_BW[:, 1:].contiguous()
        # Here a window is a token shorter: the BOS predicts its first one, so all are targets.
        start_B1 = torch.full((len(first_B), 1), self.bos, dtype=torch.int64)
        return torch.cat([start_B1, windows_BW[:, :-1]], dim=1), windows_BW

    def _width(self, length: int) -> int:
        """Tokens of a window with `length` targets: without a BOS the first is an input alone."""
        return length + 1 if self.bos is None else length

    def n_targets(self, step: int) -> int:
        """Number of targets of a step, over all processes."""
        length = self.lengths[self._length_index_of_steps(step + 1)[step]]
        return self.tokens_per_step // length * length

    def _length_index_of_steps(self, steps: int) -> np.ndarray:
        """Index into `lengths` of each of the first `steps` steps.

        Drawn in blocks, so that no draw depends on `steps`."""
        while len(self._length_indices) < steps:
            block = len(self._length_indices) // STEPS_PER_DRAW
            random = np.random.default_rng([self.seed, block])
            draws = random.integers(len(self.lengths), size=STEPS_PER_DRAW)
            self._length_indices = np.concatenate([self._length_indices, draws])
        return self._length_indices[:steps]


class WindowSequence:
    """Endless sequence of windows of one width, epoch after epoch.

    Its random numbers depend on `key` and the epoch alone."""

    def __init__(self, tokens: TokenFile, width: int, key: list[int]):
        lengths_D = tokens.document_lengths()
        long_enough = lengths_D >= width
        if not long_enough.any():
            raise ConfigError(
                f"No document can fill a window of {width} tokens, the longest has"
                f" {lengths_D.max()}: lower train.length."
            )
        self.width = width
        self.key = key
        # `starts` ends with the number of all tokens
        self.starts_D = np.asarray(tokens.starts[:-1])[long_enough]
        self.lengths_D = lengths_D[long_enough]
        self._windows_before = [0]  # windows before each epoch, extended when needed
        # the latest epoch and its first tokens; -1 is none yet
        self._latest_epoch: tuple[int, np.ndarray] = (-1, np.zeros(0, dtype=np.int64))

    def first_tokens(self, first: int, count: int) -> np.ndarray:
        """Index of the first token of each window `first`, ..., `first + count - 1` of the
        sequence, int64 [count].
        """
        while self._windows_before[-1] < first + count:
            epoch = len(self._windows_before) - 1  # the first one that was not counted yet
            n_windows = int(((self.lengths_D - self._offsets(epoch)) // self.width).sum())
            self._windows_before.append(self._windows_before[-1] + n_windows)
        parts = []
        while count:  # a part of each epoch
            epoch = int(np.searchsorted(self._windows_before, first, side="right")) - 1
            take = min(count, self._windows_before[epoch + 1] - first)
            begin = first - self._windows_before[epoch]
            parts.append(self._first_tokens_of_epoch(epoch)[begin : begin + take])
            first += take
            count -= take
        return np.concatenate(parts)

    def _offsets(self, epoch: int) -> np.ndarray:
        """Number of tokens skipped at the start of each document [D]: less than a window, and at
        least one window remains.
        """
        free_D = np.minimum(self.width, self.lengths_D - self.width + 1)
        return np.random.default_rng([*self.key, epoch, OFFSET_STREAM]).integers(free_D)

    def _first_tokens_of_epoch(self, epoch: int) -> np.ndarray:
        """First tokens of all windows of one epoch, in its order.

        The last requested epoch is cached."""
        if self._latest_epoch[0] != epoch:
            offsets_D = self._offsets(epoch)
            counts_D = (self.lengths_D - offsets_D) // self.width
            windows_before_D = np.cumsum(counts_D) - counts_D
            number = np.arange(counts_D.sum()) - np.repeat(windows_before_D, counts_D)
            # `number` counts the windows of each document from 0
            first = np.repeat(self.starts_D + offsets_D, counts_D) + number * self.width
            np.random.default_rng([*self.key, epoch, ORDER_STREAM]).shuffle(first)
            self._latest_epoch = (epoch, first)
        return self._latest_epoch[1]


class TaskBatches:
    """Batches of a task as a pure function of (seed, step), without end and in the shape of
    `Batches`.

    `split` is that of a task, or TextQuestions. With several `lengths` each step has one of them.
    Raises ConfigError when a step cannot hold one example or a length no question."""

    def __init__(
        self, split: TaskSplit | TextQuestions, lengths: list[int], tokens_per_step: int, seed: int
    ):
        if tokens_per_step < max(lengths):
            raise ConfigError(
                f"train.tokens_per_step={tokens_per_step} cannot hold one example of"
                f" train.length={max(lengths)}: raise it."
            )
        self.split = split
        self.lengths = sorted(lengths)
        self.tokens_per_step = tokens_per_step
        self.seed = seed
        for length in self.lengths:
            split.check(length)  # raises for a length that is too short for the task
        self._latest: tuple[int, Examples] | None = None  # a step and its examples

    def at(
        self, step: int, share: Callable[[int], slice] | None = None
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """(inputs_BT, targets_BT) of a step, both int64, or the share(B) of its rows that this
        process reads.
        """
        import torch

        examples = self._examples_of_step(step)
        rows = slice(None) if share is None else share(len(examples.inputs_NT))
        inputs_BT = torch.from_numpy(examples.inputs_NT[rows])
        return inputs_BT, torch.from_numpy(examples.targets_NT[rows])

    def n_targets(self, step: int) -> int:
        """Number of targets of a step, over all processes."""
        return int((self._examples_of_step(step).targets_NT != IGNORED).sum())

    def _examples_of_step(self, step: int) -> Examples:
        """Examples of a step. Those of the latest step are kept."""
        if self._latest is None or self._latest[0] != step:
            # a stream apart from those of the splits, which begin with their index in SPLITS
            random = np.random.default_rng([len(SPLITS), self.seed, step])
            length = self.lengths[int(random.integers(len(self.lengths)))]
            count = self.tokens_per_step // length
            self._latest = (step, self.split.draw(length, count, [self.seed, step]))
        return self._latest[1]


class MixedBatches:
    """Batches of `text` and of `task`, each its own, in the shape of `Batches`."""

    def __init__(self, text: Batches, task: TaskBatches, share: float):
        self.text = text
        self.task = task
        self.share = share

    def is_task_step(self, step: int) -> bool:
        """True if a step is one of the task's."""
        return self._count_task_steps(step + 1) > self._count_task_steps(step)

    def at(
        self, step: int, share: Callable[[int], slice] | None = None
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """(inputs_BT, targets_BT) of a step, or the share(B) of its rows that this process
        reads.
        """
        batches, step_of_batches = self._batches_and_step(step)
        return batches.at(step_of_batches, share)

    def n_targets(self, step: int) -> int:
        """Number of targets of a step, over all processes."""
        batches, step_of_batches = self._batches_and_step(step)
        return batches.n_targets(step_of_batches)

    def _batches_and_step(self, step: int) -> tuple[Batches | TaskBatches, int]:
        """The batches that a step belongs to, and how many steps these had before."""
        earlier = self._count_task_steps(step)
        return (self.task, earlier) if self.is_task_step(step) else (self.text, step - earlier)

    def _count_task_steps(self, steps: int) -> int:
        """Number of the task's among the first `steps` steps."""
        return math.floor(steps * self.share + ROUNDING)
