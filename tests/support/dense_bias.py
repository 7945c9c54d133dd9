"""The oracle's formulas (see dense.py): encodings that bias scores, and those that weigh whole
rows.
"""

import math

import torch
from dense import ENCODINGS, Case
from torch import Tensor


def nape(case: Case) -> Tensor:
    """Head by head: ALiBi's have a slope and no factor, the others a factor and no slope."""
    raw_HTT = torch.einsum("hid,hjd->hij", case.q_HTD, case.k_HTD) / math.sqrt(case.q_HTD.shape[-1])
    scaled_HTT, half = case.scaled(raw_HTT), case.n_head // 2
    return case.softmax(
        torch.stack(
            [
                raw_HTT[h] - case.distance / (h + 1) if h < half else scaled_HTT[h]
                for h in range(case.n_head)
            ]
        )
    )


def t5(case: Case) -> Tensor:
    """A loop over pairs; the bucket by the paper's logarithm, in float64."""
    table = case.parameter("weight")
    table = table[case.layer % len(table)]
    n, exact = len(table), len(table) // 2
    farthest = max(case.train_len, n)

    def bucket(d: float) -> int:
        d = math.floor(max(d, 0) + 1e-9)
        if d < exact:
            return d
        return min(
            n - 1,
            exact
            + math.floor(math.log(d / exact) / math.log(farthest / exact) * (n - exact) + 1e-9),
        )

    index = torch.tensor([[bucket(d) for d in row] for row in case.distance.tolist()])
    return case.softmax(case.content() + torch.stack([head[index] for head in table.T]))


def kerple_bias(case: Case, prefix: str = "", form: str = "log") -> Tensor:
    """[H, L, L]."""
    a, b = (case.parameter(prefix + name) for name in ("raw_a", "raw_b"))
    a, b = (parameter_H[case.layer % len(parameter_H)][:, None, None] for parameter_H in (a, b))
    distance = case.distance.clamp(min=0)
    if form == "log":
        return -torch.log(1 + a.exp()) * torch.log(1 + torch.log(1 + b.exp()) * distance)
    return -torch.log(1 + a.exp()) * torch.where(
        distance > 0, torch.exp(2 / (1 + torch.exp(-b)) * distance.clamp(min=1e-9).log()), 0
    )


def kerple(case: Case) -> Tensor:
    return case.softmax(case.content() + kerple_bias(case, form=case.module.form))


def sandwich(case: Case) -> Tensor:
    """The inner product of the 128-dimensional sinusoidal embeddings at the two coordinates."""
    speed = torch.tensor([10000.0 ** (-2 * c / 128) for c in range(64)], dtype=torch.float64)
    embed_q, embed_k = (
        torch.cat(((p[..., None] * speed).sin(), (p[..., None] * speed).cos()), -1)
        for p in (case.q_pos, case.k_pos)
    )
    product = (embed_q * embed_k).sum(-1) - 64
    return case.softmax(
        case.content()
        + torch.stack([product / (8 * h / case.n_head) for h in range(1, case.n_head + 1)])
    )


def fire(case: Case) -> Tensor:
    n = case.layer % len(case.parameter("log_c"))
    c, threshold = case.parameter("log_c")[n].exp(), case.parameter("log_threshold")[n].exp()
    from_start_T1 = case.distance[:, :1]  # the first token lies at 0
    u = torch.log(1 + c * case.distance.clamp(min=0)) / torch.log(
        1 + c * torch.where(from_start_T1 > threshold, from_start_T1, threshold)
    )
    inner, outer = f"inner.{n}", f"outer.{n}"
    hidden = (
        u[..., None] * case.parameter(f"{inner}.weight")[:, 0] + case.parameter(f"{inner}.bias")
    ).clamp(min=0)
    bias = (
        torch.einsum("ijw,hw->hij", hidden, case.parameter(f"{outer}.weight"))
        + case.parameter(f"{outer}.bias")[:, None, None]
    )
    return case.softmax(case.content() + bias)


def cope(case: Case) -> Tensor:
    """Counts by a sum over the keys between, rows by a tent function of the count."""
    table = case.parameter("weight")[case.layer]
    z = case.content() / case.factor_T[..., None]
    gate = torch.where(case.visible, 1 / (1 + torch.exp(-z)), 0)
    from_j = torch.ones(case.length, case.length, dtype=torch.float64).tril()  # [t, j]: t >= j
    count = (gate @ from_j).clamp(max=len(table) - 1)
    bias = torch.zeros_like(z)
    for p, row in enumerate(table):
        bias = bias + (1 - (count - p).abs()).clamp(min=0) * (case.q_HTD @ row)[..., None]
    return case.softmax(case.content() + bias * case.module.scale)


def dape(case: Case) -> Tensor:
    z, bias = case.content() / case.factor_T[..., None], kerple_bias(case, "base.")
    both = torch.cat((z, bias)).permute(1, 2, 0)
    w1, b1, w2, b2 = (
        case.parameter(f"{part}.{case.layer}.{name}")
        for part in ("inner", "outer")
        for name in ("weight", "bias")
    )
    hidden = both @ w1.T + b1
    extra = torch.where(hidden > 0, hidden, 0.01 * hidden) @ w2.T + b2
    return case.softmax(case.content() + bias + extra.permute(2, 0, 1))


def stick_breaking(case: Case) -> Tensor:
    """Shares taken one key after the other, from the nearest back."""
    share = torch.sigmoid(case.content())
    rows = []
    for i in range(case.length):
        left = torch.ones(case.n_head, dtype=torch.float64)
        columns = list((0 * share[:, i]).unbind(-1))
        for j in range(i if case.module.attend_self else i - 1, -1, -1):
            if case.visible[i, j]:
                columns[j] = left * share[:, i, j]
                left = left * (1 - share[:, i, j])
        if case.module.remainder == "self":
            columns[i] = columns[i] + left
        rows.append(torch.stack(columns, dim=-1))
    return torch.stack(rows, dim=1)


ENCODINGS |= {"nape": nape}
ENCODINGS |= {
    "t5": t5,
    "kerple": kerple,
    "sandwich": sandwich,
    "fire": fire,
    "cope": cope,
    "dape": dape,
    "stick_breaking": stick_breaking,
}
