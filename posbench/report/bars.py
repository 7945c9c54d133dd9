"""Losses by position as bars of text, for a terminal: a row of bars for each method, all on one
scale.

Letters: N texts, T positions.
"""

from collections.abc import Iterable, Mapping

import numpy as np

ROW_WIDTH = 48  # characters of a row of bars
ROW_HEIGHT = 3  # lines of a row of bars
BAR_COUNTS = (48, 24, 16, 12)  # numbers of bars, the finest first
LEAST_LOSSES_OF_BAR = 1000  # losses that the mean of a bar needs
EIGHTH_BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
PLAIN_BLOCKS = " .:|"
NAME_WIDTH = 12  # characters


def loss_bars(losses: Mapping[str, np.ndarray], train_len: int, blocks: str = EIGHTH_BLOCKS) -> str:
    """Picture of {method: losses [N, T] after each number of tokens}; a bar is the mean over its
    positions.

    `blocks` are the characters of a cell, from empty to full.
    """
    n_texts, length = next(iter(losses.values())).shape
    bins = np.array_split(np.arange(length), _number_of_bars(n_texts, length))
    bar_width = max(1, ROW_WIDTH // len(bins))
    means = {
        name: np.array([loss_NT[:, positions].mean() for positions in bins])
        for name, loss_NT in losses.items()
    }
    low, high = _finite_range(means.values())
    span = f"{length // len(bins):,} to a bar, from {low:.2f} to {high:.2f}"
    lines = [f"nats/token by position, {span}"]
    for name, mean in means.items():
        share = (mean - low) / max(high - low, 1e-9)  # 1e-9: all losses may be equal
        # A loss that is not finite has the highest bar.
        share = np.clip(np.nan_to_num(share, nan=1.0, posinf=1.0), 0, 1)
        rows = _lines_of_row(share, blocks, bar_width)
        names = [""] * (ROW_HEIGHT - 1) + [name]  # beside the lowest of its lines
        notes = _texts_beside_row(losses[name], train_len)
        for name_column, row, note in zip(names, rows, notes, strict=True):
            lines.append(f"{name_column:{NAME_WIDTH}} {row}  {note}".rstrip())
    last_positions = [int(positions[-1]) + 1 for positions in bins]
    return "\n".join([*lines, _axis_line(last_positions, train_len, bar_width)])


def _number_of_bars(n_texts: int, length: int) -> int:
    """Bars of which each has enough losses, and at least one position."""
    for count in BAR_COUNTS:
        if n_texts * length >= count * LEAST_LOSSES_OF_BAR:
            return min(length, count)
    return min(length, BAR_COUNTS[-1])


def _finite_range(columns: Iterable[np.ndarray]) -> tuple[float, float]:
    """Smallest and largest finite value; 0, 0 without any."""
    values = np.concatenate([column[np.isfinite(column)] for column in columns])
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _lines_of_row(share: np.ndarray, blocks: str, bar_width: int) -> list[str]:
    """Lines of a row of bars, from the top, whose heights are shares of it from 0 to 1."""
    full = len(blocks) - 1
    steps = 1 + np.round(share * (ROW_HEIGHT * full - 1)).astype(int)  # even the lowest is seen
    lines = []
    for line in reversed(range(ROW_HEIGHT)):
        cells = np.clip(steps - line * full, 0, full)
        lines.append("".join(bar_width * blocks[cell] for cell in cells))
    return lines


def _texts_beside_row(loss_NT: np.ndarray, train_len: int) -> list[str]:
    """Text beside each line of a row of bars: its mean loss inside the window and beyond."""
    length = loss_NT.shape[1]
    inside = f"{loss_NT[:, :train_len].mean():.2f} to {min(train_len, length):,}"
    beyond = f"{loss_NT[:, train_len:].mean():.2f} beyond" if length > train_len else ""
    return ["", inside, beyond]


def _axis_line(last_positions: list[int], train_len: int, bar_width: int) -> str:
    """The first and the last position below the bars, and the training length where it lies."""
    width = bar_width * len(last_positions)
    length = last_positions[-1]
    last = f"{length:,}"
    labels = {width: last}  # {column that it ends before: text}
    if train_len < length:
        bar = next(index for index, end in enumerate(last_positions) if end >= train_len)
        end = bar_width * (bar + 1)
        text = f"trained to {train_len:,}|"
        if end + len(last) < width and end >= len(text) + 2:  # it overlaps neither position
            labels[end] = text
    axis = list(f"{1:<{width}}")
    for end, text in labels.items():
        axis[max(0, end - len(text)) : end] = text
    return f"{'':{NAME_WIDTH}} {''.join(axis)}"
