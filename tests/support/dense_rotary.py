"""The oracle's formulas (see dense.py): rotary, gated, wrapped and hybrid encodings at the defaults
of their yamls.
"""

import math
from dataclasses import replace

import torch
from dense import ENCODINGS, TEMPERATURE, Case, factor, grid, plain, rope, turned
from torch import Tensor


def grid_of(dim: int, base: float = 10000.0) -> list[float]:
    return [base ** (-2 * c / dim) for c in range(dim // 2)]


def rope_scores(case: Case, base: float = 10000.0) -> Tensor:
    dim = case.q_HTD.shape[-1]
    theta = case.frequencies(grid_of(dim, base), base, dim)
    return case.scaled(turned(case, theta) / math.sqrt(dim))


def p_rope(case: Case, share: float = 0.75, base: float = 10000.0) -> Tensor:
    """A share of the pairs turn; the extension sees these alone."""
    dim = case.q_HTD.shape[-1]
    m = int(share * dim) // 2
    theta = case.frequencies(grid_of(dim, base)[:m], base, dim) + [0.0] * (dim // 2 - m)
    return case.softmax(case.scaled(turned(case, theta) / math.sqrt(dim)))


def lerope(case: Case) -> Tensor:
    dim, scale_F = case.q_HTD.shape[-1], case.parameter("log_scale_F").exp()
    theta = case.frequencies(grid_of(dim), 10000.0, dim)
    return case.softmax(
        case.scaled(
            turned(case, [speed * float(a) for speed, a in zip(theta, scale_F, strict=True)])
            / math.sqrt(dim)
        )
    )


def mistral_large4(case: Case) -> Tensor:
    """Neighbouring channels of the first half of a head are pairs; the second of two layers does
    not turn.
    """
    if case.layer:
        return plain(case)
    dim, part = case.q_HTD.shape[-1], case.q_HTD.shape[-1] // 2
    theta = case.frequencies(grid_of(part), 10000.0, part)
    theta = [
        speed * float(a)
        for speed, a in zip(theta, case.parameter("log_scale_F").exp(), strict=True)
    ]
    (q, q_rest), (k, k_rest) = (
        tensor_HTD.split([part, dim - part], dim=-1) for tensor_HTD in (case.q_HTD, case.k_HTD)
    )
    halves = (
        torch.cat((tensor_HTD[..., 0::2], tensor_HTD[..., 1::2]), dim=-1) for tensor_HTD in (q, k)
    )
    moved = turned(replace(case, **dict(zip(("q_HTD", "k_HTD"), halves, strict=True))), theta)
    return case.softmax(
        case.scaled((moved + torch.einsum("hid,hjd->hij", q_rest, k_rest)) / math.sqrt(dim))
    )


def clipped_rope(case: Case) -> Tensor:
    """Of four pairs two are clipped: the first of them not at all, the last whole."""
    dim = case.q_HTD.shape[-1]
    theta = case.frequencies(grid_of(dim), 10000.0, dim)
    clipped = math.ceil(20 / 64 * len(theta))
    for n in range(clipped):
        theta[n - clipped] *= math.cos(math.pi * n / (clipped - 1) / 2) ** 2
    return case.softmax(case.scaled(turned(case, theta) / math.sqrt(dim)))


def xpos(case: Case) -> Tensor:
    dim = case.q_HTD.shape[-1]
    q, k = (torch.complex(t[..., : dim // 2], t[..., dim // 2 :]) for t in (case.q_HTD, case.k_HTD))
    total = torch.zeros(case.n_head, case.length, case.length, dtype=torch.float64)
    distance = torch.where(case.visible, case.distance, 0.0)
    for c, speed in enumerate(case.frequencies(grid_of(dim), 10000.0, dim)):
        zeta = (2 * c / dim + 0.4) / 1.4
        turn = torch.polar(zeta ** (distance / max(8, case.train_len / 2)), distance * speed)
        total = total + (q[:, :, None, c] * k[:, None, :, c].conj() * turn).real
    return case.softmax(case.scaled(total / math.sqrt(dim)))


def fope(case: Case) -> Tensor:
    """Each side turned by its own mixture: absolute coordinates, since scores are no function of
    their difference.
    """
    dim = case.q_HTD.shape[-1]
    active = sum(speed >= 2 * math.pi / case.train_len for speed in grid_of(dim))
    theta = torch.tensor(case.frequencies(grid_of(dim), 10000.0, dim)[:active], dtype=torch.float64)
    t = torch.arange(case.length, dtype=torch.float64) / (
        factor(case.length, case.train_len) if case.extension == "pi" else 1
    )
    cosine, sine = (case.module.get_buffer(name).double() for name in ("cos_GMF", "sin_GMF"))
    total = torch.zeros(case.n_head, case.length, case.length, dtype=torch.float64)
    for h in range(case.n_head):
        g = h * len(cosine) // case.n_head
        q, k = (
            torch.complex(x[h, :, : dim // 2], x[h, :, dim // 2 :])
            for x in (case.q_HTD, case.k_HTD)
        )
        for c in range(dim // 2):
            if c < active:
                mixed = torch.stack(
                    [
                        torch.complex(
                            (w * theta).cos() @ cosine[g, :, c], (w * theta).sin() @ sine[g, :, c]
                        )
                        for w in t
                    ]
                )
            else:
                mixed = torch.ones(case.length, dtype=torch.complex128)
            total[h] = total[h] + torch.outer(q[:, c] * mixed, (k[:, c] * mixed).conj()).real
    return case.softmax(case.scaled(total / math.sqrt(dim)))


def pope(case: Case) -> Tensor:
    dim = case.q_HTD.shape[-1]
    theta = case.frequencies([10000.0 ** (-c / dim) for c in range(dim)], 10000.0, 2 * dim)
    phase = case.parameter("phase_H1D").clamp(-2 * math.pi, 0)
    q, k = (1 + case.q_HTD.exp()).log(), (1 + case.k_HTD.exp()).log()
    total = torch.zeros(case.n_head, case.length, case.length, dtype=torch.float64)
    for c, speed in enumerate(theta):
        total = (
            total
            + q[:, :, None, c]
            * k[:, None, :, c]
            * (case.distance * speed - phase[:, :, c, None]).cos()
        )
    return case.softmax(case.scaled(total / math.sqrt(dim)))


def forgotten(case: Case) -> Tensor:
    """Sum of log f over j < t <= i, by a loop over t: [H, L, L]."""
    logit_TH = case.x_TC @ case.parameter(f"gate.{case.layer}.weight").T + case.parameter(
        f"gate.{case.layer}.bias"
    )
    gate_TH = -(1 + (-logit_TH).exp()).log()
    i, j = grid(case.length)
    total = torch.zeros(case.n_head, case.length, case.length, dtype=torch.float64)
    for t, gate_H in enumerate(gate_TH):
        total = total + gate_H[:, None, None] * ((j < t) & (t <= i))
    return total


def fox(case: Case) -> Tensor:
    return case.softmax(case.content() + forgotten(case))


def fox_rope(case: Case) -> Tensor:
    return case.softmax(rope_scores(case) + forgotten(case))


def randomized(case: Case, rounded=math.floor) -> Tensor:
    """RoPE over 16 train_len positions, evenly; extensions count tokens only where they mask."""
    spread = torch.tensor(
        [rounded(t * 16 * case.train_len / case.length) for t in range(case.length)],
        dtype=torch.float64,
    )
    if case.extension == "pi":
        spread = spread / factor(case.length, case.train_len)
    case = replace(
        case, q_pos=spread[:, None].expand_as(case.q_pos), k_pos=spread[None].expand_as(case.k_pos)
    )
    return case.softmax(rope_scores(case))


def windowed(case: Case) -> Tensor:
    """A local layer: RoPE within train_len / 2, whatever the extension and the scale."""
    i, j = grid(case.length)
    near = (j <= i) & (i - j < case.train_len // 2)
    ones_T = torch.ones_like(case.factor_T)
    case = replace(
        case, q_pos=i, k_pos=j, visible=near, factor_T=ones_T, extension="none", rule=None
    )
    return case.softmax(rope_scores(case))


def half_rope(case: Case) -> Tensor:
    """Pairs (c, c + D/4) of the first half of a head turn, in the layers with attention."""
    dim, part = case.q_HTD.shape[-1], case.q_HTD.shape[-1] // 2
    theta = case.frequencies(grid_of(part), 10000.0, part)
    (q, q_rest), (k, k_rest) = (
        side.split([part, dim - part], dim=-1) for side in (case.q_HTD, case.k_HTD)
    )
    moved = turned(replace(case, q_HTD=q, k_HTD=k), theta)
    rest = torch.einsum("hid,hjd->hij", q_rest, k_rest)
    return case.softmax(case.scaled((moved + rest) / math.sqrt(dim)))


def gpt_oss(case: Case) -> Tensor:
    """The local layer, which an extension changes too, temperature included; a scale does not."""
    i, j = grid(case.length)
    near = case.visible & (i - j < case.train_len // 2)
    factor_T = torch.ones_like(case.factor_T)
    if case.extension in TEMPERATURE:
        factor_T = factor_T * TEMPERATURE[case.extension](case.length, case.train_len)
    case = replace(case, visible=near, factor_T=factor_T, rule=None)
    return case.softmax(rope_scores(case))


def alternating(full):
    """Two layers are one period: the first is local, the last is full."""
    return lambda case: windowed(case) if case.layer == 0 else full(case)


ENCODINGS |= {"clipped_rope": clipped_rope, "lerope": lerope, "mistral_large4": mistral_large4}
ENCODINGS |= {
    "p_rope": p_rope,
    "xpos": xpos,
    "fope": fope,
    "pope": pope,
    "fox": fox,
    "fox_rope": fox_rope,
    "randomized": randomized,
}
ENCODINGS |= {"random_float": lambda case: randomized(case, float)}
ENCODINGS |= {
    "smollm3": lambda case: rope(case) if case.layer == 0 else plain(case)
}  # two layers are one period
ENCODINGS |= {
    "hybrid": alternating(plain),
    "gemma3": alternating(lambda case: case.softmax(rope_scores(case, 1e6))),
    "gemma4": alternating(lambda case: p_rope(case, 0.25, 1e6)),
    "olmo3": alternating(rope),
    "qwen3_next": half_rope,
    "kimi_linear": plain,  # of the layers with attention
    "gpt_oss": lambda case: gpt_oss(case) if case.layer == 0 else rope(case),
}
