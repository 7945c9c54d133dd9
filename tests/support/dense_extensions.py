"""The oracle's formulas (see dense.py): extensions and scales."""

import math

import numpy as np
import torch
from dense import (
    COORDINATES,
    FREQUENCIES,
    INTERPOLATED,
    SCALES,
    TEMPERATURE,
    by_distance,
    factor,
    grid,
)
from torch import Tensor

Pairs = tuple[Tensor, Tensor, Tensor]


def bases(base: float, s: float, dim: int, count: int) -> list[float]:
    """NTK by the changed base, b s^((dim / 2) / (m - 1)) for m pairs that turn (methods 4.3); one
    pair has no slower one to stretch to.
    """
    if count > 1:
        base = base * s ** (dim / 2 / (count - 1))
    return [base ** (-2 * c / dim) for c in range(count)]


def dynamic_ntk(
    theta: list[float], base: float, dim: int, length: int, train_len: int
) -> list[float]:
    s = 2 * length / train_len - 1 if length > train_len else 1.0
    return bases(base, s, dim, len(theta))


def ntk_fixed(
    theta: list[float], base: float, dim: int, length: int, train_len: int
) -> list[float]:
    """A step of s^(1/m) more for each of m pairs, the first included."""
    step = factor(length, train_len) ** (1 / len(theta))
    return [speed / step ** (c + 1) for c, speed in enumerate(theta)]


def ntk_mixed(
    theta: list[float], base: float, dim: int, length: int, train_len: int
) -> list[float]:
    a = math.log(factor(length, train_len)) / len(theta) ** 0.75
    return [speed * math.exp(-a * (c + 1) ** 0.75) for c, speed in enumerate(theta)]


def default_beta(theta: list[float], train_len: int) -> float:
    turns = train_len / (2 * math.pi / max(theta))
    return max(2.0, min(32.0, turns / 4))


def ntk_by_parts(
    theta: list[float],
    base: float,
    dim: int,
    length: int,
    train_len: int,
    beta: float | None = None,
) -> list[float]:
    """By wavelength: the number of waves that fit into the training length."""
    beta, s, result = beta or default_beta(theta, train_len), factor(length, train_len), []
    for speed in theta:
        waves = train_len / (2 * math.pi / speed)
        if waves < 1:
            result.append(speed / s)
        elif waves > beta:
            result.append(speed)
        else:
            share = (waves - 1) / (beta - 1)
            result.append((1 - share) * speed / s + share * speed)
    return result


def llama3(theta: list[float], base: float, dim: int, length: int, train_len: int) -> list[float]:
    return ntk_by_parts(theta, base, dim, length, train_len, beta=4)


def bounds(theta: list[float], base: float, dim: int, train_len: int) -> tuple[int, int]:
    """The (real) indices c at which base^(-2c/dim) makes the default number of turns and one,
    rounded outwards.
    """
    low, high = (
        dim / 2 * math.log(train_len / turns / 2 / math.pi, base)
        for turns in (default_beta(theta, train_len), 1)
    )
    return max(0, math.floor(low)), min(dim - 1, math.ceil(high))


def yarn(theta: list[float], base: float, dim: int, length: int, train_len: int) -> list[float]:
    s = factor(length, train_len)
    if s == 1:
        return theta
    low, high = bounds(theta, base, dim, train_len)
    ramp = [
        min(1.0, max(0.0, (c - low) / (high - low if high > low else 1e-3)))
        for c in range(len(theta))
    ]
    return [speed / s * r + speed * (1 - r) for speed, r in zip(theta, ramp, strict=True)]


def yarn_radix(
    theta: list[float], base: float, dim: int, length: int, train_len: int
) -> list[float]:
    """Digit by digit: the base of digit n after `low` grows by a factor whose logarithm is n times
    that of the first.
    """
    s, (low, high) = factor(length, train_len), bounds(theta, base, dim, train_len)
    first = s ** (1 / sum(range(1, high - low + 1)))
    result, slower = [], 1.0
    for c, speed in enumerate(theta):
        slower *= first ** (c - low) if low < c <= high else 1.0
        result.append(speed / slower)
    return result


def abf(theta: list[float], base: float, dim: int, length: int, train_len: int) -> list[float]:
    return [500000.0 ** (-2 * c / dim) for c in range(len(theta))]


def self_extend(d: Tensor, length: int, train_len: int) -> Tensor:
    """The group is found by trying: the first divisor of the window, else the first number, that
    leaves no untrained distance.
    """
    i, j = grid(length)
    w = max(1, train_len // 4)

    def grouped(g: int) -> Tensor:
        return torch.where(d < w, d, (i / g).floor() - (j / g).floor() + w - w // g)

    enough = [g for g in range(1, length + 1) if float(grouped(g).max()) <= train_len - 1]
    return grouped(next((g for g in enough if w % g == 0), enough[0]))


def dca(d: Tensor, length: int, train_len: int) -> Tensor:
    w = train_len // 16
    size = 3 * train_len // 4 - w
    i, j = grid(length)
    apart = (i / size).floor() - (j / size).floor()
    beyond = (
        (torch.arange(size) + size).clamp(max=size + w).double()
    )  # of each place in a chunk, towards earlier chunks
    return torch.where(
        apart == 0, d, torch.where(apart == 1, beyond[(i % size).long()], beyond[-1]) - j % size
    )


def string(d: Tensor, length: int, train_len: int) -> Tensor:
    shift = max(1, length // 3)
    w = min(shift, max(1, train_len // 32))
    return torch.where(d < shift, d, d - shift + w)


def gali_ids(end: int, w: int, train_len: int) -> list[float]:
    """Positions of `end` keys by the paper's algorithm 2: groups are added to the front until all
    keys have one.
    """
    group, front, i = math.ceil((end - w) / (train_len - w)), [], 0
    while train_len - i + len(front) < end:
        front += [i + n / group for n in range(group)]
        i += 1
    back = list(range(i, train_len))
    return front[: end - len(back)] + back


def gali(length: int, train_len: int) -> Pairs:
    """Chunk by chunk: the distance is the query's position, rounded up, minus the key's."""
    i, j = grid(length)
    distance, w, chunk = i - j, train_len // 8, train_len // 2
    for begin in range(train_len, length, chunk):
        ids = torch.tensor(gali_ids(begin + chunk, w, train_len), dtype=torch.float64)[:length]
        queries = slice(begin, begin + chunk)
        distance[queries, : len(ids)] = ids[queries, None].ceil() - ids
    return distance, torch.zeros_like(distance), j <= i


def streaming(length: int, train_len: int) -> Pairs:
    """A rolling cache, token by token: positions are places in it."""
    place_q, place_k = torch.zeros(length, length).double(), torch.zeros(length, length).double()
    visible = torch.zeros(length, length, dtype=torch.bool)
    cache: list[int] = []
    for i in range(length):
        cache.append(i)
        if len(cache) > train_len:
            cache = cache[:4] + cache[5:]
        for place, j in enumerate(cache):
            place_q[i, j], place_k[i, j], visible[i, j] = len(cache) - 1, place, True
    return place_q, place_k, visible


def lm_infinite(length: int, train_len: int) -> Pairs:
    i, j = grid(length)
    visible = (j <= i) & ((i - j < train_len) | (j < 10))
    return (i - j).clamp(max=train_len), torch.zeros_like(j), visible


def random_keys(length: int, train_len: int) -> Pairs:
    """A cache that, with each token that leaves the window, drops the keys whose number is too
    large for the room that is left.
    """
    i, j = grid(length)
    number = np.random.default_rng(0).random(
        length
    )  # of each key: this draw is a part of the definition
    w, visible = train_len // 2, torch.zeros(length, length, dtype=torch.bool)
    far: list[int] = []
    for token in range(length):
        visible[token, max(0, token - w + 1) : token + 1] = True
        if token >= w:
            far = [
                key for key in (*far, token - w) if number[key] * (token + 1 - w) < train_len - w
            ]
        visible[token, far] = True
    return i, j, visible


FREQUENCIES |= {
    "ntk": lambda theta, base, dim, length, train_len: bases(
        base, factor(length, train_len), dim, len(theta)
    ),
    "dynamic_ntk": dynamic_ntk,
    "ntk_fixed": ntk_fixed,
    "ntk_mixed": ntk_mixed,
    "ntk_by_parts": ntk_by_parts,
    "yarn": yarn,
    "yarn_radix": yarn_radix,
    "llama3": llama3,
    "abf": abf,
    "longrope": yarn,
    "compose": yarn,
}
COORDINATES |= {
    "self_extend": by_distance(self_extend),
    "dca": by_distance(dca),
    "string": by_distance(string),
    "gali": gali,
    "streaming": streaming,
    "lm_infinite": lm_infinite,
    "random_keys": random_keys,
    "compose": by_distance(dca),
}
INTERPOLATED |= {"gali"}
TEMPERATURE |= {
    "yarn": lambda length, train_len: (0.1 * math.log(factor(length, train_len)) + 1) ** 2,
    "yarn_radix": lambda length, train_len: (0.1 * math.log(factor(length, train_len)) + 1) ** 2,
    "longrope": lambda length, train_len: math.log(max(length, train_len)) / math.log(train_len),
    "compose": lambda length, train_len: (0.1 * math.log(factor(length, train_len)) + 1) ** 2,
}


def steps(keys: Tensor, train_len: int) -> Tensor:
    """1 + 0.1 ln(1 + whole times that train_len fits)."""
    return torch.tensor([1 + 0.1 * math.log(1 + int(n) // train_len) for n in keys]).double()


SCALES |= {
    "log_n_global": lambda n, length, train_len: torch.full_like(
        n, max(1.0, math.log(n.max()) / math.log(train_len))
    ),
    "yarn_temperature": lambda n, length, train_len: torch.full_like(
        n, (0.1 * math.log(factor(length, train_len)) + 1) ** 2
    ),
    "drope_temperature": lambda n, length, train_len: torch.full_like(
        n, math.log(math.e * factor(length, train_len) ** 0.412)
    ),
    "llama4": lambda n, length, train_len: steps(n, train_len),
    "ministral": lambda n, length, train_len: steps(n - 1, train_len),
    "ssmax": lambda n, length, train_len: n.log() * train_len / math.lgamma(train_len + 1),
}
