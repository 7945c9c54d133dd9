"""Losses by position as bars of text, for a terminal: a row of bars for each method, all on one
scale.

Letters: N texts, T positions.
"""

from collections.abc import Mapping

import numpy as np

WIDTH, LINES = 48, 3  # characters of a row of bars, and its height
BARS, TOKENS = (48, 24, 16, 12), 1000  # numbers of bars, and the losses that the mean of one needs
EIGHTHS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
PLAIN = " .:|"
NAME = 12  # characters


def loss_bars(losses: Mapping[str, np.ndarray], train_len: int, blocks: str = EIGHTHS) -> str:
    """Picture of {method: losses [N, T] after each number of tokens}; a bar is the mean over its
    positions.

    `blocks` are the characters of a cell, from empty to full.
    """
    texts, length = next(iter(losses.values())).shape
    number = min(length, next((n for n in BARS if texts * length >= n * TOKENS), BARS[-1]))
    parts, wide = np.array_split(np.arange(length), number), max(1, WIDTH // number)
    heights = {
        name: np.array([loss_NT[:, part].mean() for part in parts])
        for name, loss_NT in losses.items()
    }
    known = np.concatenate([column[np.isfinite(column)] for column in heights.values()])
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    lines = [f"nats/token by position, {length // number:,} to a bar, from {low:.2f} to {high:.2f}"]
    full = len(blocks) - 1
    for name, column in heights.items():
        share = np.clip(
            np.nan_to_num((column - low) / max(high - low, 1e-9), nan=1.0, posinf=1.0), 0, 1
        )
        steps, loss_NT = 1 + np.round(share * (LINES * full - 1)).astype(int), losses[name]
        beyond = f"{loss_NT[:, train_len:].mean():.2f} beyond" if length > train_len else ""
        told = ["", f"{loss_NT[:, :train_len].mean():.2f} to {min(train_len, length):,}", beyond]
        for line in range(LINES):
            cells = np.clip(steps - (LINES - 1 - line) * full, 0, full)
            bars = "".join(wide * blocks[cell] for cell in cells)
            lines.append(
                f"{name if line == LINES - 1 else '':{NAME}} {bars}  {told[line]}".rstrip()
            )
    return "\n".join([*lines, _axis(length, train_len, parts, wide)])


def _axis(length: int, train_len: int, parts: list[np.ndarray], wide: int) -> str:
    """The first and the last position below the bars, and the training length where it lies."""
    words, last = list(f"{1:<{wide * len(parts)}}"), f"{length:,}"
    ends = {len(words): last}
    if train_len < length:
        at = wide * (next(n for n, part in enumerate(parts) if part[-1] + 1 >= train_len) + 1)
        if at + len(last) < len(words) and at >= len(said := f"trained to {train_len:,}|") + 2:
            ends[at] = said
    for end, said in ends.items():
        words[max(0, end - len(said)) : end] = said
    return f"{'':{NAME}} {''.join(words)}"
