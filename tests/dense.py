"""The oracle: each method from its paper's formula on a full matrix of distances in float64, sharing no code with posbench.

Scores are written per pair (i, j): RoPE as Re(q conj(k) e^{i d theta}), ALiBi as -m d, with the method's own map of d = i - j.
"""

from __future__ import annotations

import cmath
import math

import numpy as np


def distance_map(extension: str, length: int, train_len: int) -> tuple[np.ndarray, np.ndarray]:
    """(distance seen [L, L], visible [L, L]) with each extension's default parameters."""
    i, j = np.meshgrid(np.arange(length), np.arange(length), indexing="ij")
    d, visible = (i - j).astype(float), j <= i
    s, w = max(1.0, length / train_len), train_len // 2
    if extension == "pi":
        d = d / s
    elif extension == "rerope":
        d = np.minimum(d, w)
    elif extension == "leaky_rerope":
        k = max(1.0, (length - 1 - w) / (train_len - 1 - w))
        d = np.where(d < w, d, w + (d - w) / k)
    elif extension == "window":
        visible &= d < train_len
    return d, visible


def frequencies(dim: int, base: float, extension: str, length: int, train_len: int) -> list[float]:
    """theta_c; NTK by the changed base."""
    if extension == "ntk":
        base = base * max(1.0, length / train_len) ** (dim / (dim - 2))
    return [base ** (-2 * c / dim) for c in range(dim // 2)]


def scores(encoding: str, extension: str, q_HTD: np.ndarray, k_HTD: np.ndarray, train_len: int, layout: str = "half") -> np.ndarray:
    """Scaled scores with bias [H, L, L], -inf where not visible."""
    n_head, length, dim = q_HTD.shape
    d, visible = distance_map(extension, length, train_len)
    if encoding == "rope":
        half = dim // 2
        first, second = (slice(0, half), slice(half, dim)) if layout == "half" else (slice(0, dim, 2), slice(1, dim, 2))
        q, k = q_HTD[..., first] + 1j * q_HTD[..., second], k_HTD[..., first] + 1j * k_HTD[..., second]
        result = np.zeros((n_head, length, length))
        for c, theta in enumerate(frequencies(dim, 10000.0, extension, length, train_len)):
            turn = np.vectorize(lambda x, theta=theta: cmath.exp(1j * x * theta))(d)
            result += (q[:, :, None, c] * np.conj(k[:, None, :, c]) * turn).real
        result /= math.sqrt(dim)
    else:
        result = q_HTD @ k_HTD.transpose(0, 2, 1) / math.sqrt(dim)
    if encoding == "alibi":
        slope = np.array([2.0 ** (-8 * (h + 1) / n_head) for h in range(n_head)])
        result = result - slope[:, None, None] * d
    return np.where(visible, result, -np.inf)


def log_n(visible: np.ndarray, train_len: int) -> np.ndarray:
    """max(1, ln n / ln train_len) of each query [L]."""
    return np.maximum(1.0, np.log(visible.sum(axis=1)) / math.log(train_len))


def attention(encoding: str, extension: str, scale: str, q_HTD, k_HTD, v_HTD, train_len: int, layout: str = "half") -> np.ndarray:
    """Softmax attention [H, L, D]; log-n multiplies the content score, never the bias."""
    length = q_HTD.shape[1]
    if scale == "log_n":
        _, visible = distance_map(extension, length, train_len)
        q_HTD = q_HTD * log_n(visible, train_len)[None, :, None]
    z = scores(encoding, extension, q_HTD, k_HTD, train_len, layout)
    weights = np.exp(z - z.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ v_HTD
