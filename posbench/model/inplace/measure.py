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
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.as_trained import AsTrained, Turned
from posbench.encodings.none import NoEncoding
from posbench.model.inplace.attention_hook import AttentionHook
from posbench.model.inplace.visible import Visible
from posbench.position.geometry import Layout, Shape, Spectrum
from posbench.position.interfaces import Layer

TOKENS = 24
EXACT = {torch.float32: 1e-4, torch.float64: 1e-6}  # largest share of q that may be unexplained
ROUNDED = 0.02  # the same in 16 bits
UNCHANGED = 1e-6  # difference of q and k that were not turned, of their largest number
MOVED = 3  # positions
LEAST_BASE = 1.0 + 1e-9  # extensions divide by its logarithm
MOST_OFFSET = 8  # rows of a learned table before that of position 0


@dataclass
class Seen:
    """Input of one layer's attention: its module, q and k, turned or not, and its mask's rule."""

    module: nn.Module
    q_BHTD: Tensor
    k_BGTD: Tensor
    mask: Visible


class Answer(NamedTuple):
    """Answer of a rotary module to one call, for the `kinds` of layer that the call named."""

    module: nn.Module
    kinds: list[str]
    value: object


class TableRows(NamedTuple):
    """Rows that an embedding other than that of the tokens gave in one call."""

    module: nn.Embedding
    rows: Tensor


@dataclass
class Pass:
    """All calls in one pass over the text, each list in the order of the calls."""

    layers: list[Seen] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    tables: list[TableRows] = field(default_factory=list)


@dataclass(eq=False)
class Angles:
    """Angles of F pairs at each position that a rotary module gave in one call.

    `buffer` names its frequencies among the module's tensors; None: they are read off the angles.
    """

    module: nn.Module
    kinds: list[str]
    angle_TF: Tensor
    amplitude: float
    buffer: str | None


class Turning(NamedTuple):
    """One way to turn q and k: which angles, on which channels, forwards or backwards."""

    angles: Angles
    layout: Layout
    last: bool
    backwards: bool

    def encoding(
        self, shape: Shape, spectra: Callable[[int], Spectrum], by_length: bool = False
    ) -> Turned:
        """Encoding that turns so, with the frequencies of each length."""
        amplitude = self.angles.amplitude
        return Turned(shape, spectra, self.layout, self.last, amplitude, self.backwards, by_length)


def measure(model: nn.Module, hook: AttentionHook) -> None:
    """Measure the positions of a model, whose attention already goes through `hook`, into the hook.

    Raises ConfigError for what is not explained."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids_BT = torch.randint(vocabulary, (1, TOKENS), generator=generator).to(model.device)
    rotary = _rotary_modules(model)
    if hook.family is not None:
        rotary += hook.family.rotary
    # q and k as the model turns them, those with angle 0, and these at other positions
    turned = _pass(model, hook, rotary, ids_BT)
    with unturned(rotary):
        still = _pass(model, hook, [], ids_BT)
        moved = _pass(model, hook, [], ids_BT, MOVED)
    _check_attention(model, turned, still)
    shape = _shape(model, hook, turned)
    tolerance = EXACT.get(model.dtype, ROUNDED)
    layers = _measured_layers(model, turned, still, shape, tolerance)
    biased = None if hook.family is None else hook.family.encoding(model, shape)
    if biased is not None:
        layers = {module: replace(layer, encoding=biased) for module, layer in layers.items()}
    turns = any(isinstance(layer.encoding, Turned) for layer in layers.values())
    table, offset = _table(model, still.tables)  # a pass from position 0
    if table is None:
        rows_NC = None
        _check_no_positions(model, moved, still, tolerance)
    else:
        rows_NC = _rows(model, hook, table, offset, turns)
        # RoBERTa's configuration counts the rows before position 0 too.
        hook.train_len = min(hook.train_len, len(rows_NC))
        shape = replace(shape, train_len=hook.train_len)
    hook.encoding = AsTrained(shape, measured=list(layers.values()), rows_NC=rows_NC)
    hook.encoding.subject = type(model).__name__
    hook.layers.update({module: layer.index for module, layer in layers.items()})
    hook.rotary = rotary if turns else []
    hook.table = table
    hook.offset = offset


def _rotary_modules(model: nn.Module) -> list[nn.Module]:
    """Modules without weights that hold frequencies."""
    return [
        module
        for module in model.modules()
        if not list(module.parameters()) and list(_frequencies(module))
    ]


def _frequencies(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, value) of a module's tensors that hold frequencies in use."""
    for name, value in [*module.named_buffers(recurse=False), *vars(module).items()]:
        if not isinstance(value, Tensor) or not name.endswith("inv_freq"):
            continue
        if "original" not in name and "long" not in name:
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
    """True for cos and sin."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return False
    return all(isinstance(tensor, Tensor) for tensor in answer)


def _pass(
    model: nn.Module,
    hook: AttentionHook,
    rotary: list[nn.Module],
    ids_BT: Tensor,
    first_position: int = 0,
) -> Pass:
    """Read the text while every token attends to itself alone, and note all calls."""
    calls = Pass()

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
        calls.layers.append(Seen(module, query.detach(), key.detach(), attention_mask.checked()))
        groups = query.shape[1] // value.shape[1]
        # A token that attends to itself alone gets its own value.
        return value.repeat_interleave(groups, dim=1).transpose(1, 2).contiguous(), None

    def note_answer(module: nn.Module, args: tuple, keywords: dict, answer: object) -> None:
        # Where layers differ, an argument names the kind of layer.
        kinds = [value for value in (*args, *keywords.values()) if isinstance(value, str)]
        calls.answers.append(Answer(module, kinds, answer))

    def note_rows(module: nn.Module, args: tuple, answer: Tensor) -> None:
        calls.tables.append(TableRows(module, answer.detach()))

    token_table = model.get_input_embeddings()
    with ExitStack() as stack, torch.no_grad():
        for module in rotary:
            stack.callback(module.register_forward_hook(note_answer, with_kwargs=True).remove)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module is not token_table:
                stack.callback(module.register_forward_hook(note_rows).remove)
        hook.register(attention)
        stack.callback(hook.register)
        options = {}
        if first_position > 0:
            position_T = torch.arange(ids_BT.shape[1], device=ids_BT.device) + first_position
            options["position_ids"] = position_T[None]
        model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), use_cache=False, **options)
    return calls


def _check_attention(model: nn.Module, turned: Pass, still: Pass) -> None:
    """Raise ConfigError for a model whose attention was not seen, or differs each time."""
    name = type(model).__name__
    if not turned.layers:
        raise ConfigError(
            f"{name} has no attention layer that asks transformers' registry of"
            " attention functions, where posbench's methods are put in place: choose another"
            " model."
        )
    if len(turned.layers) != len(still.layers):
        raise ConfigError(f"{name} attends otherwise each time, which posbench does not support.")


def _shape(model: nn.Module, hook: AttentionHook, calls: Pass) -> Shape:
    """Sizes of the model, heads by its first layer."""
    first = calls.layers[0]
    return Shape(
        d_model=model.get_input_embeddings().weight.shape[1],
        n_layer=len({call.module for call in calls.layers}),
        n_head=first.q_BHTD.shape[1],
        n_kv_head=first.k_BGTD.shape[1],
        train_len=hook.train_len,
        head_width=first.q_BHTD.shape[3],
    )


def _measured_layers(
    model: nn.Module, turned: Pass, still: Pass, shape: Shape, tolerance: float
) -> dict[nn.Module, Layer]:
    """{attention module: its layer}. A module that attends several times in a pass is one layer."""
    angles = [reading for answer in turned.answers for reading in _angles(answer)]
    encodings: dict[object, Turned | NoEncoding] = {}  # as _explained fills it
    layers: dict[nn.Module, Layer] = {}
    for turned_call, still_call in zip(turned.layers, still.layers, strict=True):
        encoding = _explained(turned_call, still_call, angles, shape, tolerance, encodings)
        module = turned_call.module
        mask = turned_call.mask
        layer = Layer(encoding, window=mask.window, chunk=mask.chunk, index=len(layers))
        earlier = layers.setdefault(module, layer)
        if _differ(earlier, layer):
            raise ConfigError(
                f"A {type(module).__name__} of {type(model).__name__} attends several times for"
                " each token, and not with the same positions each time, which posbench does not"
                " support."
            )
    return layers


def _differ(layer: Layer, other: Layer) -> bool:
    if layer.encoding is not other.encoding:
        return True
    return (layer.window, layer.chunk) != (other.window, other.chunk)


def _check_no_positions(model: nn.Module, moved: Pass, still: Pass, tolerance: float) -> None:
    """Raise ConfigError if the first layer's queries depend on positions before they are turned."""
    if _difference(moved.layers[0].q_BHTD, still.layers[0].q_BHTD) >= tolerance:
        raise ConfigError(
            f"{type(model).__name__} uses positions beside its attention, and not as rows of a"
            " learned table, which posbench does not support."
        )


def _rows(model: nn.Module, hook: AttentionHook, table: str, offset: int, turns: bool) -> Tensor:
    """Rows of the learned table from position 0 on: [N, C]. Raises ConfigError for an odd table.

    `turns`: the model also turns its queries."""
    name = type(model).__name__
    if turns:
        raise ConfigError(
            f"{name} has learned positions and rotates its queries too, but posbench supports only"
            " one of these."
        )
    rows_NC = model.get_submodule(table).weight.detach()[offset:].float()
    # A configuration may count rows before position 0 too, as RoBERTa's does.
    if len(rows_NC) < hook.train_len and not hook.configured:
        raise ConfigError(
            f"train_len={hook.train_len} is longer than {name}'s learned table of positions, which"
            f" has {len(rows_NC)} rows: give train_len={len(rows_NC)} or less."
        )
    return rows_NC


def _angles(answer: Answer) -> Iterator[Angles]:
    """Readings of a rotary module's answer: an angle for each number, for each second, or for the
    first half of them.
    """
    if isinstance(answer.value, Tensor):
        cos = answer.value.real
        sin = answer.value.imag
        channels = (slice(None),)
    elif _is_pair(answer.value):
        cos, sin = answer.value
        first_half = slice(0, cos.shape[-1] // 2)
        each_second = slice(0, None, 2)
        channels = (first_half, each_second, slice(None))
    else:
        return
    cos_TC = _first_text(cos)
    sin_TC = _first_text(sin)
    for chosen in channels:
        cos_TF = cos_TC[:, chosen]
        sin_TF = sin_TC[:, chosen]
        freq_F = torch.atan2(sin_TF[1], cos_TF[1])  # angles at position 1
        buffer, freq_F = _buffer_of(answer.module, freq_F)
        position_T = torch.arange(len(cos_TF), dtype=torch.float64)
        angle_TF = torch.outer(position_T, freq_F)
        amplitude = float(cos_TF[0, 0])  # the cosine of angle 0
        yield Angles(answer.module, answer.kinds, angle_TF, amplitude, buffer)


def _first_text(values: Tensor) -> Tensor:
    """Values of the first text of a batch: [T, C], float64, on the CPU."""
    return values.detach().reshape(-1, *values.shape[-2:])[0].double().cpu()


def _buffer_of(module: nn.Module, freq_F: Tensor) -> tuple[str | None, Tensor]:
    """Name and value of the module's frequencies that are these but for whole turns.

    (None, freq_F) where the module has none."""
    for name, value in _frequencies(module):
        exact_F = value.detach().double().cpu().flatten()
        if exact_F.shape == freq_F.shape and torch.allclose(
            torch.remainder(exact_F, 2 * torch.pi),
            torch.remainder(freq_F, 2 * torch.pi),
            atol=1e-5,
            rtol=1e-4,
        ):
            return name, exact_F
    return None, freq_F


def _explained(
    turned: Seen,
    still: Seen,
    angles: list[Angles],
    shape: Shape,
    tolerance: float,
    encodings: dict[object, Turned | NoEncoding],
) -> Turned | NoEncoding:
    """Encoding of a layer: what made `turned` of `still`. Raises ConfigError if no layout does.

    `encodings` holds those of earlier layers {turning: encoding}, so that layers alike have the
    same object; a new one is added."""
    pairs = ((turned.q_BHTD, still.q_BHTD), (turned.k_BGTD, still.k_BGTD))
    if all(_unchanged(*pair) for pair in pairs):
        return encodings.setdefault("none", NoEncoding(shape))
    width = turned.q_BHTD.shape[-1]
    layer_shape = replace(shape, head_width=width)
    best = None
    smallest_error = float("inf")
    for turning in _turnings(angles, width):
        error = _error(turning, layer_shape, pairs)
        if error < smallest_error:
            smallest_error = error
            best = turning
    if not smallest_error < tolerance:
        layer_name = f"{type(turned.module).__name__} {getattr(turned.module, 'layer_idx', '')}"
        raise ConfigError(
            f"{layer_name} does not turn q and k as its rotary modules say, in halves or neighbours"
            f" of the first or last channels (the nearest leaves {smallest_error:.1e} of them):"
            " posbench does not read this model."
        )
    if best not in encodings:
        spectra, by_length = _by_length(best.angles, shape.train_len)
        encodings[best] = best.encoding(layer_shape, spectra, by_length)
    return encodings[best]


def _unchanged(turned: Tensor, still: Tensor) -> bool:
    return torch.allclose(turned, still, rtol=0, atol=UNCHANGED * float(still.abs().max()))


def _turnings(angles: list[Angles], width: int) -> Iterator[Turning]:
    """All ways to turn heads of this width by one of these angles."""
    last = backwards = (False, True)
    for combination in itertools.product(angles, ("half", "interleaved"), last, backwards):
        turning = Turning(*combination)
        channels = 2 * turning.angles.angle_TF.shape[1]
        # Of whole heads the first and the last channels are the same ones.
        if channels < width or (channels == width and not turning.last):
            yield turning


def _error(turning: Turning, shape: Shape, pairs: tuple[tuple[Tensor, Tensor], ...]) -> float:
    """Share that a way to turn leaves unexplained in pairs (turned, still) of q and of k."""
    spectrum = _spectrum(turning.angles.angle_TF[1])
    encoding = turning.encoding(shape, lambda length: spectrum)
    position_T = torch.arange(len(turning.angles.angle_TF), dtype=torch.float64)
    table = encoding.table(position_T, spectrum).to(pairs[0][0].device)
    return max(
        _difference(encoding.turn(still.float(), table), turned.float()) for turned, still in pairs
    )


def _difference(values: Tensor, expected: Tensor) -> float:
    return float((values - expected).norm() / expected.norm().clamp(min=1e-30))


def _spectrum(freq_F: Tensor) -> Spectrum:
    """Spectrum of measured frequencies; its base is that of the two fastest pairs, which scalings
    leave as they were.
    """
    pairs = len(freq_F)
    ratio = 1.0
    if pairs > 1 and freq_F[1] > 0:
        ratio = float(freq_F[0] / freq_F[1])  # base^(1 / pairs)
    base = float(f"{ratio**pairs:.5g}")  # 10000 but for rounding
    return Spectrum(freq_F, max(base, LEAST_BASE), 2 * pairs)


def _by_length(angles: Angles, train_len: int) -> tuple[Callable[[int], Spectrum], bool]:
    """Frequencies of each length as the module computes them, and if they go on changing beyond the
    training length.
    """
    fixed = _spectrum(angles.angle_TF[1])
    if angles.buffer is None:
        return lambda length: fixed, False
    longest = getattr(getattr(angles.module, "config", None), "max_position_embeddings", None)
    by_length: dict[int, Spectrum] = {}

    def computed(length: int) -> Spectrum:
        # Before, since the module would keep the frequencies of an earlier, longer text.
        _run_rotary(angles, TOKENS, longest)
        _run_rotary(angles, length, longest)
        buffer = getattr(angles.module, angles.buffer)
        freq_F = buffer.detach().double().cpu().flatten().clone()
        _run_rotary(angles, TOKENS, longest)
        for spectrum in (fixed, *by_length.values()):
            if torch.equal(spectrum.freq_F, freq_F):
                return spectrum
        return _spectrum(freq_F)

    def spectra(length: int) -> Spectrum:
        if length not in by_length:
            by_length[length] = computed(length)
        return by_length[length]

    # Equal frequencies are one object.
    trained, twice, four_times = (spectra(factor * train_len) for factor in (1, 2, 4))
    if trained is fixed and twice is fixed and four_times is fixed:
        return lambda length: fixed, False
    goes_on_changing = twice is not four_times
    return spectra, goes_on_changing


def _run_rotary(angles: Angles, length: int, longest: int | None) -> None:
    """Have a rotary module compute the angles of a text of `length` tokens.

    Its class's own forward does so, past the hooks of the module. Meanwhile the longest text in
    its configuration is `longest`, which it came with, whatever it was raised to."""
    module = angles.module
    config = getattr(module, "config", None)
    longest_now = getattr(config, "max_position_embeddings", None)
    device = next(value for _, value in _frequencies(module)).device
    try:
        if longest is not None:
            config.max_position_embeddings = longest
        with torch.no_grad():
            # The largest position tells the module the length of the text.
            position_BT = torch.tensor([[0, 1, max(1, length - 1)]], device=device)
            hidden_BTC = torch.zeros(1, 3, 1, device=device)
            type(module).forward(module, hidden_BTC, position_BT, *angles.kinds)
    finally:
        if longest is not None:
            config.max_position_embeddings = longest_now


def _table(model: nn.Module, tables: list[TableRows]) -> tuple[str | None, int]:
    """Name of the learned table of positions, and its row of position 0; (None, 0) without one.

    `tables` are those of a pass that begins at position 0."""
    for module, rows in tables:
        rows_TC = rows.reshape(-1, rows.shape[-1])[:TOKENS]
        n_offsets = min(MOST_OFFSET, len(module.weight) - TOKENS + 1)  # none in a short table
        for offset in range(n_offsets):
            if torch.equal(module.weight[offset : offset + TOKENS], rows_TC):
                names = (name for name, part in model.named_modules() if part is module)
                return next(names), offset
    return None, 0
