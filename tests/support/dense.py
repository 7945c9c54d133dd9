"""The oracle: each method from its paper's formula on whole [L, L] matrices in float64, sharing no
code with posbench.

An extension says at which coordinates each pair (i, j) is seen, which pairs are visible, and what
becomes of frequencies; an encoding turns that into attention weights. Everything is plain torch in
float64, so gradients are the oracle's too. Learned numbers are read from the module under test;
formulas are not. Methods register themselves in the tables below (dense_bias.py, dense_rotary.py,
dense_extensions.py)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

# extension -> (length, train_len) -> coordinate of query [L, L], of key [L, L], visible [L, L];
# default parameters
COORDINATES: dict[str, Callable[[int, int], tuple[Tensor, Tensor, Tensor]]] = {}
# extension -> (theta_c for c = 0.., base, rotary dimension, length, train_len) -> theta'_c
FREQUENCIES: dict[str, Callable[[list[float], float, int, int, int], list[float]]] = {}
# extension -> (length, train_len) -> factor on the logits
TEMPERATURE: dict[str, Callable[[int, int], float]] = {}
# extensions whose scores at fractional distances lie on the line between those at whole ones
INTERPOLATED: set[str] = set()
# encoding -> Case -> weights [H, L, L]
ENCODINGS: dict[str, Callable[[Case], Tensor]] = {}
# scale -> (index distance [L, L]) -> factor and addend of the content score
RULES: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {}
# scale -> (keys seen by each query [L], length, train_len) -> factor [L]
SCALES: dict[str, Callable[[Tensor, int, int], Tensor]] = {}
# scale -> logit of its sink
SINKS: dict[str, float] = {}


@dataclass
class Case:
    """One attention layer: q and k [H, L, D] as projected (heads of k repeated), x [L, C] they came
    from.
    """

    module: nn.Module
    q_HTD: Tensor
    k_HTD: Tensor
    x_TC: Tensor
    q_pos: Tensor
    k_pos: Tensor
    visible: Tensor
    factor_T: Tensor
    train_len: int
    extension: str
    layer: int = 0
    rule: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    sink_H: Tensor | None = None
    # Weights of rows of scores [H, L, L or, with a sink, L + 1]; None: softmax.
    row_weights: Callable[[Tensor], Tensor] | None = None
    raw: bool = False  # scores in place of weights, hidden ones very low

    @property
    def distance(self) -> Tensor:
        return self.q_pos - self.k_pos

    @property
    def n_head(self) -> int:
        return self.q_HTD.shape[0]

    @property
    def length(self) -> int:
        return self.q_HTD.shape[1]

    def frequencies(self, theta: list[float], base: float, dim: int) -> list[float]:
        """theta after the extension."""
        change = FREQUENCIES.get(self.extension)
        return change(theta, base, dim, self.length, self.train_len) if change else theta

    def content(
        self, q_HTD: Tensor | None = None, k_HTD: Tensor | None = None, dim: int | None = None
    ) -> Tensor:
        """q . k / sqrt(D), times the factor of each query."""
        q_HTD, k_HTD = (
            self.q_HTD if q_HTD is None else q_HTD,
            self.k_HTD if k_HTD is None else k_HTD,
        )
        dim = dim or self.q_HTD.shape[-1]
        return self.scaled(torch.einsum("hid,hjd->hij", q_HTD, k_HTD) / math.sqrt(dim))

    def scaled(self, scores: Tensor) -> Tensor:
        """Content scores with every factor on them."""
        scores = scores * self.factor_T[..., None]
        if self.rule is None:
            return scores
        i, j = grid(self.length)
        multiply, add = self.rule((i - j).clamp(min=0))
        return scores * multiply + add

    def softmax(self, scores: Tensor) -> Tensor:
        if self.raw:
            return torch.where(self.visible, scores, -1e9)
        scores = torch.where(self.visible, scores, torch.tensor(-math.inf, dtype=torch.float64))
        if self.row_weights is not None:
            if self.sink_H is not None:
                sink_HT1 = self.sink_H[:, None, None].expand(*scores.shape[:-1], 1)
                scores = torch.cat((scores, sink_HT1), dim=-1)
            return self.row_weights(scores)[..., : self.length]
        if self.sink_H is None:
            return scores.softmax(dim=-1)
        return scores.softmax(dim=-1) * torch.sigmoid(
            scores.logsumexp(dim=-1) - self.sink_H[:, None]
        ).unsqueeze(-1)

    def parameter(self, name: str) -> Tensor:
        """A learned number of the module, in float64."""
        return self.module.get_parameter(name).detach().double()


def plain(case: Case) -> Tensor:
    return case.softmax(case.content())


def attention(
    encoding: str,
    extension: str,
    scale: str,
    module: nn.Module,
    q_HTD,
    k_HTD,
    v_HTD,
    x_TC,
    train_len: int,
    layer: int = 0,
    sink_H=None,
    factor_HT=1.0,
    row_weights=None,
) -> Tensor:
    """The method's attention [H, L, D]; a scale multiplies the content score, never a bias.
    `sink_H`: logits of learned sinks; `factor_HT`: a learned factor of each query; `row_weights`:
    what takes the place of the softmax.
    """
    length = q_HTD.shape[1]
    q_pos, k_pos, visible = coordinates(extension, length, train_len)
    factor_T = (
        SCALES[scale](visible.sum(dim=1).double(), length, train_len)
        if scale in SCALES
        else torch.ones(length).double()
    )
    if extension in TEMPERATURE:
        factor_T = factor_T * TEMPERATURE[extension](length, train_len)
    factor_T = factor_T * factor_HT
    if scale in SINKS:
        sink_H = torch.full((len(q_HTD),), SINKS[scale], dtype=torch.float64)
    case = Case(
        module,
        q_HTD,
        k_HTD,
        x_TC,
        q_pos,
        k_pos,
        visible,
        factor_T,
        train_len,
        extension,
        layer,
        RULES.get(scale),
        sink_H,
        row_weights,
    )
    if extension not in INTERPOLATED:
        return ENCODINGS[encoding](case) @ v_HTD
    shorter, longer = (
        ENCODINGS[encoding](replace(case, q_pos=distance, k_pos=torch.zeros_like(k_pos), raw=True))
        for distance in (case.distance.floor(), case.distance.ceil())
    )
    return case.softmax(shorter - (shorter - longer) * (case.distance % 1)) @ v_HTD


@functools.cache
def coordinates(extension: str, length: int, train_len: int) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates of every pair under an extension, and which are visible; not to be changed."""
    return COORDINATES.get(extension, everything)(length, train_len)


def grid(length: int) -> tuple[Tensor, Tensor]:
    """i and j of every pair, float64."""
    index = torch.arange(length, dtype=torch.float64)
    return index[:, None].expand(length, length), index[None].expand(length, length)


def everything(length: int, train_len: int) -> tuple[Tensor, Tensor, Tensor]:
    i, j = grid(length)
    return i, j, j <= i


def by_distance(
    change: Callable[[Tensor, int, int], Tensor],
) -> Callable[[int, int], tuple[Tensor, Tensor, Tensor]]:
    """Coordinates of an extension that is a map of the distance alone."""

    def coordinates(length: int, train_len: int) -> tuple[Tensor, Tensor, Tensor]:
        i, j = grid(length)
        return change(i - j, length, train_len), torch.zeros_like(j), j <= i

    return coordinates


def factor(length: int, train_len: int) -> float:
    return max(1.0, length / train_len)


def rope(case: Case) -> Tensor:
    """Re(q conj(k) e^{i d theta}), pairs (c, c + D/2)."""
    dim = case.q_HTD.shape[-1]
    theta = case.frequencies([10000.0 ** (-2 * c / dim) for c in range(dim // 2)], 10000.0, dim)
    return case.softmax(case.scaled(turned(case, theta) / math.sqrt(dim)))


def turned(case: Case, theta: list[float]) -> Tensor:
    """Sum over pairs (c, c + D/2) of Re(q_c conj(k_c) e^{i d theta_c}): [H, L, L]."""
    half = case.q_HTD.shape[-1] // 2
    q, k = (torch.complex(t[..., :half], t[..., half:]) for t in (case.q_HTD, case.k_HTD))
    total = torch.zeros(case.n_head, case.length, case.length, dtype=torch.float64)
    for c, speed in enumerate(theta):
        turn = torch.polar(torch.ones_like(case.distance), case.distance * speed)
        total = total + (q[:, :, None, c] * k[:, None, :, c].conj() * turn).real
    return total


def alibi(case: Case) -> Tensor:
    slope = torch.tensor(
        [2.0 ** (-8 * (h + 1) / case.n_head) for h in range(case.n_head)], dtype=torch.float64
    )
    return case.softmax(case.content() - slope[:, None, None] * case.distance)


def leaky_rerope(d: Tensor, length: int, train_len: int) -> Tensor:
    w = train_len // 2
    k = max(1.0, (length - 1 - w) / (train_len - 1 - w))
    return torch.where(d < w, d, w + (d - w) / k)


def window(length: int, train_len: int) -> tuple[Tensor, Tensor, Tensor]:
    i, j = grid(length)
    return i, j, (j <= i) & (i - j < train_len)


ENCODINGS |= {"none": plain, "sinusoidal": plain, "learned": plain, "rope": rope, "alibi": alibi}
COORDINATES |= {
    "pi": by_distance(lambda d, length, train_len: d / factor(length, train_len)),
    "rerope": by_distance(lambda d, length, train_len: d.clamp(max=train_len // 2)),
    "leaky_rerope": by_distance(leaky_rerope),
    "window": window,
}
RULES |= {
    "scale_invariant": lambda d: (
        torch.sqrt(1 + 2 * torch.log(1 + d / 10)),
        -2 * torch.log(1 + d / 10),
    )
}
SINKS |= {"off_by_one": 0.0}
SCALES |= {"log_n": lambda n, length, train_len: (n.log() / math.log(train_len)).clamp(min=1)}

import dense_bias  # noqa: E402, F401  (registers)
import dense_content  # noqa: E402, F401
import dense_extensions  # noqa: E402, F401
import dense_rotary  # noqa: E402, F401
