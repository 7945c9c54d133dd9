"""The oracle's formulas (see dense.py): encodings whose positions come from the text, one token
after the other, at the defaults of their yamls.
"""

import math

import torch
from dense import ENCODINGS, Case, factor, grid
from torch import Tensor

TOKENS = 50  # of the vocabulary of small texts


def text_of(length: int) -> list[int]:
    """The text that measures.attend_in reads."""
    random = torch.Generator().manual_seed(3)
    return torch.randint(0, TOKENS, (1, length), generator=random)[0].tolist()


def by_angles(case: Case, angle_HTF: Tensor) -> Tensor:
    """Weights where pair (c, c + D/2) of head h at token t is multiplied by e^{i angle}."""
    half = case.q_HTD.shape[-1] // 2
    if case.extension == "pi":
        angle_HTF = angle_HTF / factor(case.length, case.train_len)
    turn = torch.polar(torch.ones_like(angle_HTF), angle_HTF)
    q = torch.complex(case.q_HTD[..., :half], case.q_HTD[..., half:]) * turn
    k = torch.complex(case.k_HTD[..., :half], case.k_HTD[..., half:]) * turn
    scores = torch.einsum("hic,hjc->hij", q, k.conj()).real
    return case.softmax(case.scaled(scores / math.sqrt(2 * half)))


def theta_of(case: Case, base: float) -> Tensor:
    dim = case.q_HTD.shape[-1]
    theta = [base ** (-2 * c / dim) for c in range(dim // 2)]
    return torch.tensor(case.frequencies(theta, base, dim), dtype=torch.float64)


def repo(case: Case) -> Tensor:
    """z_h = sum_p silu(x W_g)_p (x W_c)_p W_ph, in place of the index."""
    gate, content, last = (
        case.parameter(name)[case.layer] for name in ("gate_LCP", "content_LCP", "position_LPH")
    )
    z_HT = torch.stack(
        [((x @ gate) * (x @ gate).sigmoid() * (x @ content)) @ last for x in case.x_TC], dim=1
    )
    return by_angles(case, z_HT[..., None] * theta_of(case, 10000.0))


def selective_rope(case: Case) -> Tensor:
    """Each token's angles are a sum over the last four tokens; what it has turned is their sum."""
    down, up, kernel = (
        case.parameter(f"angles.{case.layer}.{name}")
        for name in ("down.weight", "up.weight", "conv.weight_KW")
    )
    parts = case.x_TC.unflatten(-1, (case.n_head, -1))
    unit_TC = (parts / parts.norm(dim=-1, keepdim=True)).flatten(-2)
    projected = [up @ (down @ x) for x in unit_TC]
    turned_by = torch.zeros(len(up), dtype=torch.float64)
    angles = []
    for t in range(case.length):
        for back in range(min(4, t + 1)):
            turned_by = turned_by + kernel[3 - back] * projected[t - back]
        angles.append(turned_by.unflatten(0, (case.n_head, -1)))
    return by_angles(case, torch.stack(angles, dim=1) * theta_of(case, 500000.0))


def grape_ap(case: Case) -> Tensor:
    """m_h log sigmoid(p_i . R_l u_l / 8), summed from the token after the key to the query."""
    p_HTP = (case.x_TC @ case.parameter("weight_LCN")[case.layer]).unflatten(-1, (-1, 8))
    p_HTP = p_HTP.transpose(0, 1)
    unit = p_HTP / (p_HTP.square().mean(dim=-1, keepdim=True) + 2.0**-52).sqrt()
    bias = torch.zeros(case.n_head, case.length, case.length, dtype=torch.float64)
    for i in range(case.length):
        path = torch.zeros(case.n_head, dtype=torch.float64)
        for token in range(i, 0, -1):
            left, right = unit[:, token, :4], unit[:, token, 4:]
            cos, sin = math.cos(token), math.sin(token)
            turned = torch.cat((left * cos + right * sin, right * cos - left * sin), dim=-1)
            product = (p_HTP[:, i] * turned).sum(dim=-1) / 8
            slope = 2.0 ** (-8 * torch.arange(1, case.n_head + 1).double() / case.n_head)
            path = path - slope * (1 + (-product).exp()).log()
            bias[:, i, token - 1] = path
    return case.softmax(case.content() + bias)


def segment_numbers(length: int) -> Tensor:
    numbers, number = [], 0
    for token in text_of(length):
        numbers.append(float(number))
        if token in (10, 46):
            number += 1
    return torch.tensor(numbers, dtype=torch.float64)


def bipe(case: Case) -> Tensor:
    angle_TF = segment_numbers(case.length)[:, None] * theta_of(case, 10000.0)
    return by_angles(case, angle_TF.expand(case.n_head, -1, -1))


def bipe_alibi(case: Case) -> Tensor:
    number_T = segment_numbers(case.length)
    slope = 96 * 2.0 ** (-8 * torch.arange(1, case.n_head + 1).double() / case.n_head)
    i, j = (index.long() for index in grid(case.length))
    return case.softmax(case.content() - slope[:, None, None] * (number_T[i] - number_T[j]))


ENCODINGS |= {
    "repo": repo,
    "selective_rope": selective_rope,
    "grape_ap": grape_ap,
    "bipe": bipe,
    "bipe_alibi": bipe_alibi,
}
