"""Measurement of how a loaded transformers model treats positions.

Two passes over a few random tokens, in which each attention layer passes on the values of its own
tokens, so that the hidden states of both are the same whatever q and k are: once with the angles of
the model's rotary modules, once with angle 0. What each layer made of the unturned q and k is then
one of a few layouts (halves or neighbours, the first or the last channels) at the angles that one
of the modules gave, or nothing. Frequencies are those of the module's own buffer, where these give
its angles. A third pass with all positions moved by three tells if the embeddings hold positions,
which must then be rows of a learned table.

Letters: B batch, T tokens, H heads, G key heads, D head width, R turned channels, F pairs.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.as_trained import AsTrained, Turned
from posbench.encodings.none import NoEncoding
from posbench.model.inplace.attention_hook import Door
from posbench.model.inplace.visible import Visible
from posbench.position.geometry import Shape, Spectrum
from posbench.position.interfaces import Layer

TOKENS = 24
EXACT = {
    torch.float32: 1e-4,
    torch.float64: 1e-6,
}  # largest share of q that may be unexplained; of 16 bits 0.02
MOVED = 3  # positions


@dataclass
class Seen:
    """Input of one layer's attention: its module, q and k, turned or not, and the rule of its
    mask.
    """

    module: nn.Module
    q_BHTD: Tensor
    k_BGTD: Tensor
    mask: Visible


@dataclass(eq=False)
class Angles:
    """Angles that a rotary module gave in one call: of F pairs at each position, and where its
    frequencies lie.
    """

    module: nn.Module
    kinds: list[str]
    angle_TF: Tensor
    amplitude: float
    buffer: (
        str | None
    )  # name of the frequencies among the module's tensors; None: read off the angles


def _frequencies(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, value in [*module.named_buffers(recurse=False), *vars(module).items()]:
        if (
            name.endswith("inv_freq")
            and isinstance(value, Tensor)
            and "original" not in name
            and "long" not in name
        ):
            yield name, value


@contextmanager
def unturned(modules: list[nn.Module]) -> Iterator[None]:
    """Context in which rotary modules answer with angle 0."""
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(straight).remove)
        yield


def straight(module: nn.Module, args: tuple, answer: object) -> object:
    """Forward hook of a rotary module: its answer with angle 0."""
    if isinstance(answer, Tensor) and answer.is_complex():
        return torch.ones_like(answer)
    if _is_pair(answer):
        return torch.ones_like(answer[0]), torch.zeros_like(answer[1])
    raise ConfigError(
        f"{type(module).__name__} returns neither cos and sin nor complex numbers, which posbench"
        " does not support."
    )


def _is_pair(answer: object) -> bool:
    return (
        isinstance(answer, tuple)
        and len(answer) == 2
        and all(isinstance(one, Tensor) for one in answer)
    )


def measure(model: nn.Module, door: Door) -> None:
    """Measure the positions of a model, whose attention already goes through `door`. Raises
    ConfigError for what is not explained.
    """
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids_BT = torch.randint(vocabulary, (1, TOKENS), generator=torch.Generator().manual_seed(0)).to(
        model.device
    )
    modules = [
        one for one in model.modules() if not list(one.parameters()) and list(_frequencies(one))
    ]
    modules += door.family.rotary if door.family else []
    own, calls, _ = _pass(model, door, modules, ids_BT)
    with unturned(modules):
        still, _, tables = _pass(model, door, [], ids_BT)
        moved, *_ = _pass(model, door, [], ids_BT, MOVED)
    if not own:
        raise ConfigError(
            f"{type(model).__name__} has no attention layer that asks transformers' registry of"
            " attention functions, where posbench's methods are put in place: choose another"
            " model."
        )
    if len(own) != len(still):
        raise ConfigError(
            f"{type(model).__name__} attends otherwise each time, which posbench does not support."
        )
    first = own[0]
    width, (n_head, _, head_width) = (
        model.get_input_embeddings().weight.shape[1],
        first.q_BHTD.shape[1:],
    )
    shape = Shape(
        width,
        len({call.module for call in own}),
        n_head,
        first.k_BGTD.shape[1],
        door.train_len,
        head_width,
    )
    tolerance = EXACT.get(model.dtype, 0.02)
    angles = [found for call in calls for found in _angles(*call)]
    found: dict[object, Turned | NoEncoding] = {}
    layers: dict[
        nn.Module, Layer
    ] = {}  # a module that attends several times in a pass is one layer
    for turned_call, still_call in zip(own, still, strict=True):
        encoding = _explained(turned_call, still_call, angles, shape, tolerance, found)
        module, mask = turned_call.module, turned_call.mask
        layer = Layer(encoding, window=mask.window, chunk=mask.chunk, index=len(layers))
        earlier = layers.setdefault(module, layer)
        if _differ(earlier, layer):
            raise ConfigError(
                f"A {type(module).__name__} of {type(model).__name__} attends several times for"
                " each token, and not with the same positions each time, which posbench does not"
                " support."
            )
    biased = door.family.encoding(model, shape) if door.family else None
    if biased is not None:
        layers = {module: replace(layer, encoding=biased) for module, layer in layers.items()}
    table, offset = _table(model, tables)
    if table is None and _difference(moved[0].q_BHTD, still[0].q_BHTD) >= tolerance:
        raise ConfigError(
            f"{type(model).__name__} uses positions beside its attention, and not as rows of a"
            " learned table, which posbench does not support."
        )
    turns = any(isinstance(layer.encoding, Turned) for layer in layers.values())
    if table is not None and turns:
        raise ConfigError(
            f"{type(model).__name__} has learned positions and rotates its queries too, but"
            " posbench supports only one of these."
        )
    rows_NC = None if table is None else model.get_submodule(table).weight.detach()[offset:].float()
    if rows_NC is not None and len(rows_NC) < door.train_len:
        if not door.configured:
            raise ConfigError(
                f"train_len={door.train_len} is longer than {type(model).__name__}'s learned table"
                f" of positions, which has {len(rows_NC)} rows: give train_len={len(rows_NC)} or"
                " less."
            )
        # RoBERTa's configuration counts the rows before position 0 too.
        door.train_len = len(rows_NC)
        shape = replace(shape, train_len=door.train_len)
    door.encoding = AsTrained(shape, measured=list(layers.values()), rows_NC=rows_NC)
    door.encoding.subject = type(model).__name__
    door.layers.update({module: layer.index for module, layer in layers.items()})
    door.rotary = modules if turns else []
    door.table, door.offset = table, offset


def _differ(layer: Layer, other: Layer) -> bool:
    if layer.encoding is not other.encoding:
        return True
    return (layer.window, layer.chunk) != (other.window, other.chunk)


def _pass(
    model: nn.Module, door: Door, rotary: list[nn.Module], ids_BT: Tensor, moved: int = 0
) -> tuple[list[Seen], list[tuple[nn.Module, list[str], object]], list[tuple[nn.Module, Tensor]]]:
    """(attention layers, answers of rotary modules, rows of tables) of a pass in which every token
    attends to itself alone.
    """
    layers, answers, tables = [], [], []

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: object,
        *unused: object,
        **others: object,
    ) -> tuple[Tensor, None]:
        if not isinstance(attention_mask, Visible):
            raise ConfigError(
                f"{type(module).__name__} gives its attention its own mask, which posbench does not"
                " support."
            )
        if key.shape[2] != query.shape[2]:
            raise ConfigError(
                f"{type(module).__name__} attends to {key.shape[2]} keys in a text of"
                f" {query.shape[2]} tokens, such as summaries of several tokens, which have no"
                " positions that posbench's methods could move."
            )
        layers.append(Seen(module, query.detach(), key.detach(), attention_mask.checked()))
        return (
            value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
            .transpose(1, 2)
            .contiguous(),
            None,
        )

    def of_rotary(module: nn.Module, args: tuple, given: dict, answer: object) -> None:
        kinds = [
            value for value in (*args, *given.values()) if isinstance(value, str)
        ]  # the kind of layer, where they differ
        answers.append((module, kinds, answer))

    def of_table(module: nn.Module, args: tuple, answer: Tensor) -> None:
        tables.append((module, answer.detach()))

    inputs = model.get_input_embeddings()
    with ExitStack() as stack, torch.no_grad():
        for module in rotary:
            stack.callback(module.register_forward_hook(of_rotary, with_kwargs=True).remove)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module is not inputs:
                stack.callback(module.register_forward_hook(of_table).remove)
        door.register(attention)
        stack.callback(door.register)
        given = (
            {
                "position_ids": torch.arange(moved, moved + ids_BT.shape[1], device=ids_BT.device)[
                    None
                ]
            }
            if moved
            else {}
        )
        model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), use_cache=False, **given)
    return layers, answers, tables


def _angles(module: nn.Module, kinds: list[str], answer: object) -> Iterator[Angles]:
    """Readings of a rotary module's answer: one angle for each of its numbers, or for every second,
    or for the first half of them.
    """
    if isinstance(answer, Tensor):
        cos, sin, ways = answer.real, answer.imag, (slice(None),)
    elif _is_pair(answer):
        half = answer[0].shape[-1] // 2
        (cos, sin), ways = answer, (slice(0, half), slice(0, None, 2), slice(None))
    else:
        return
    cos_TC, sin_TC = (
        one.detach().reshape(-1, *one.shape[-2:])[0].double().cpu() for one in (cos, sin)
    )
    for way in ways:
        cos_TF, sin_TF = cos_TC[:, way], sin_TC[:, way]
        amplitude, first_F = float(cos_TF[0, 0]), torch.atan2(sin_TF[1], cos_TF[1])
        buffer = None
        for name, value in _frequencies(module):
            freq_F = value.detach().double().cpu().flatten()
            if freq_F.shape == first_F.shape and torch.allclose(
                torch.remainder(freq_F, 2 * torch.pi),
                torch.remainder(first_F, 2 * torch.pi),
                atol=1e-5,
                rtol=1e-4,
            ):
                buffer, first_F = name, freq_F
                break
        yield Angles(
            module,
            kinds,
            torch.outer(torch.arange(len(cos_TF), dtype=torch.float64), first_F),
            amplitude,
            buffer,
        )


def _explained(
    own: Seen,
    still: Seen,
    angles: list[Angles],
    shape: Shape,
    tolerance: float,
    found: dict[object, Turned | NoEncoding],
) -> Turned | NoEncoding:
    """Encoding of a layer, the same object for layers alike. Raises ConfigError if no layout
    explains what the layer did.
    """
    pairs = (own.q_BHTD, still.q_BHTD), (own.k_BGTD, still.k_BGTD)
    if all(torch.allclose(a, b, rtol=0, atol=1e-6 * float(b.abs().max())) for a, b in pairs):
        return found.setdefault("none", NoEncoding(shape))
    width, best = own.q_BHTD.shape[-1], (float("inf"), None)
    for chosen in itertools.product(angles, ("half", "interleaved"), (False, True), (False, True)):
        one, layout, last, backwards = chosen
        channels = 2 * one.angle_TF.shape[1]
        if channels > width or (last and channels == width):
            continue
        spectrum = _spectrum(one.angle_TF[1])
        made = Turned(
            replace(shape, head_width=width),
            lambda length, spectrum=spectrum: spectrum,
            layout,
            last,
            one.amplitude,
            backwards,
        )
        rows = made.table(torch.arange(len(one.angle_TF), dtype=torch.float64), made.spectrum()).to(
            own.q_BHTD.device
        )
        error = max(_difference(made._turn(b.float(), rows), a.float()) for a, b in pairs)
        if error < best[0]:
            best = error, chosen
    error, chosen = best
    if not error < tolerance:
        named = f"{type(own.module).__name__} {getattr(own.module, 'layer_idx', '')}"
        raise ConfigError(
            f"{named} does not turn q and k as its rotary modules say, in halves or neighbours of"
            f" the first or last channels (the nearest leaves {error:.1e} of them): posbench does"
            " not read this model."
        )
    if chosen not in found:
        one, layout, last, backwards = chosen
        spectra, by_length = _by_length(one, shape.train_len)
        found[chosen] = Turned(
            replace(shape, head_width=width),
            spectra,
            layout,
            last,
            one.amplitude,
            backwards,
            by_length,
        )
    return found[chosen]


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def _spectrum(freq_F: Tensor) -> Spectrum:
    """Spectrum of measured frequencies; its base is that of the two fastest pairs, which scalings
    leave as they were.
    """
    pairs, ratio = (
        len(freq_F),
        float(freq_F[0] / freq_F[1]) if len(freq_F) > 1 and freq_F[1] > 0 else 1.0,
    )
    return Spectrum(freq_F, max(float(f"{ratio**pairs:.5g}"), 1.0 + 1e-9), 2 * pairs)


def _by_length(one: Angles, train_len: int) -> tuple[Callable[[int], Spectrum], bool]:
    """Frequencies of each length as the module computes them, and if they go on changing beyond the
    training length.
    """
    fixed = _spectrum(one.angle_TF[1])
    if one.buffer is None:
        return lambda length: fixed, False
    longest = getattr(getattr(one.module, "config", None), "max_position_embeddings", None)
    known: dict[int, Spectrum] = {}

    def spectra(length: int) -> Spectrum:
        if length not in known:
            _answer(
                one, TOKENS, longest
            )  # the module would keep the frequencies of an earlier, longer text
            _answer(one, length, longest)
            freq_F = getattr(one.module, one.buffer).detach().double().cpu().flatten().clone()
            _answer(one, TOKENS, longest)
            known[length] = next(
                (same for same in (fixed, *known.values()) if torch.equal(same.freq_F, freq_F)),
                None,
            ) or _spectrum(freq_F)
        return known[length]

    far = [spectra(length) for length in (train_len, 2 * train_len, 4 * train_len)]
    if all(one is fixed for one in far):
        return lambda length: fixed, False
    return spectra, far[1] is not far[2]


def _answer(one: Angles, length: int, longest: int | None) -> None:
    """Have a rotary module compute the angles of a text, by its class's own forward, past the hooks
    of the module.

    Meanwhile the longest text in its configuration is that which it came with, whatever it was
    raised to."""
    now = getattr(getattr(one.module, "config", None), "max_position_embeddings", None)
    device = next(value for _, value in _frequencies(one.module)).device
    try:
        if longest is not None:
            one.module.config.max_position_embeddings = longest
        with torch.no_grad():
            position_BT = torch.tensor([[0, 1, max(1, length - 1)]], device=device)
            type(one.module).forward(
                one.module, torch.zeros(1, 3, 1, device=device), position_BT, *one.kinds
            )
    finally:
        if longest is not None:
            one.module.config.max_position_embeddings = now


def _table(model: nn.Module, tables: list[tuple[nn.Module, Tensor]]) -> tuple[str | None, int]:
    """Name of the learned table of positions, and its row of position 0; (None, 0) without one.

    `tables` are the embeddings of a pass that begins at position 0, each with the rows that it
    gave."""
    for module, rows in tables:
        rows_TC = rows.reshape(-1, rows.shape[-1])[:TOKENS]
        for offset in range(min(8, len(module.weight) - TOKENS + 1)):
            if torch.equal(module.weight[offset : offset + TOKENS], rows_TC):
                return next(name for name, part in model.named_modules() if part is module), offset
    return None, 0
