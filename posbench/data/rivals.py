"""Rivals of an answer in words: other values that stand in the same text, each written in the answer's place behind the same text.

A rival has tokens of its own, so it is read from a further text, which has as many tokens and is the same up to the answer. What stands
behind the rival is not scored. Every text has room for its longest value, so that rivals are scored whole: -ln p of a string is the sum
over its tokens, whatever their number, as that of the answer is.

Letters: N texts, T tokens, A answers, K rivals, R tokens of a rival, M rivals of all texts.
"""

from collections.abc import Callable

import numpy as np

from posbench.data.task import IGNORED, Examples


def drawn(
    random: np.random.Generator, texts: list[tuple[list[str], list[str]]], most: int, encode: Callable[[str], np.ndarray]
) -> np.ndarray | None:
    """Tokens [N, A, K, R] of at most `most` rivals of each answer, IGNORED where there are none; None where an answer has no rival.

    `texts` are (answers, values that stand in the text). Fewer rivals are the first of more.
    """
    chosen = []
    for answers, values in texts:
        for answer in answers:
            found = [values[at] for at in random.permutation(len(values)).tolist() if values[at] != answer]
            chosen.append([encode(value) for value in found[:most]])
    if not all(chosen):
        return None
    longest = max(len(ids) for rivals in chosen for ids in rivals)
    rival_QKR = np.full((len(chosen), max(map(len, chosen)), longest), IGNORED)
    for row, rivals in enumerate(chosen):
        for at, ids in enumerate(rivals):
            rival_QKR[row, at, : len(ids)] = ids
    return rival_QKR.reshape(len(texts), -1, *rival_QKR.shape[1:])


def written(examples: Examples, place_M3: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets [M, T] of further texts. `place_M3`: numbers of the text, of the answer and of the rival in its place."""
    inputs_MT = examples.inputs_NT[place_M3[:, 0]]
    targets_MT = np.full(inputs_MT.shape, IGNORED)
    for row, (text, answer, rival) in enumerate(place_M3.tolist()):
        at = int((examples.answer_NT[text] == answer).argmax())
        ids = examples.rival_NAKR[text, answer, rival]
        ids = ids[ids != IGNORED]
        targets_MT[row, at : at + len(ids)] = ids
        inputs_MT[row, at + 1 : at + len(ids)] = ids[:-1]
    return inputs_MT, targets_MT


def compared(nll_NA: np.ndarray, nll_NAK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank of each answer among its rivals (1 is best, equals count against it) and its nll if there were no others; inf: no rival."""
    rank_NA = 1 + ((nll_NAK <= nll_NA[..., None]) & (nll_NAK < np.inf)).sum(axis=2)
    return rank_NA, nll_NA + np.logaddexp.reduce(np.concatenate([-nll_NA[..., None], -nll_NAK], axis=2), axis=2)
