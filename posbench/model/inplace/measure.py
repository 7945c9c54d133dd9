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
from posbench.model.inplace.visible import CompactMask
from posbench.position.geometry import Layout, Shape, Spectrum
from posbench.position.interfaces import Layer

MEASURED_TOKENS = 24  # of the text that each pass reads
# largest share of q and k that may be unexplained
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-6}
TOLERANCE_OF_16_BITS = 0.02
UNTURNED_TOLERANCE = 1e-6  # difference of q and k that were not turned, of their largest number
MOVED_BY = 3  # positions by which the third pass is moved
LEAST_BASE = 1.0 + 1e-9  # extensions divide by its logarithm
# rope types that may scale neighbouring pairs otherwise, whose ratio then does not tell the base
TYPES_BY_PAIR = ("longrope", "yarn", "llama3")
MOST_ROWS_BEFORE_0 = 8  # rows of a learned table before that of position 0


@dataclass
class AttentionInput:
    """Input of one layer's attention: its module, q and k, turned or not, and its mask's rule."""

    module: nn.Module
    q_BHTD: Tensor
    k_BGTD: Tensor
    mask: CompactMask


class RotaryAnswer(NamedTuple):
    """Answer of a rotary module to one call, for the `kinds` of layer that the call named."""

    module: nn.Module
    kinds: list[str]
    value: object


class TableRows(NamedTuple):
    """Rows that an embedding other than that of the tokens gave in one call."""

    module: nn.Embedding
    rows: Tensor


@dataclass
class PassCalls:
    """All calls in one pass over the text, each list in the order of the calls."""

    attention_inputs: list[AttentionInput] = field(default_factory=list)
    rotary_answers: list[RotaryAnswer] = field(default_factory=list)
    table_rows: list[TableRows] = field(default_factory=list)


@dataclass(eq=False)
class Angles:
    """Angles of F pairs at each position that a rotary module gave in one call.

    `kinds` of layer as the call named them. `buffer_name` names its frequencies among the module's
    tensors; None: they are read off the angles.
    """

    module: nn.Module
    kinds: list[str]
    angle_TF: Tensor
    amplitude: float
    buffer_name: str | None


class Turning(NamedTuple):
    """One way to turn q and k: which angles, on the first or the `last` channels, forwards or
    backwards.
    """

    angles: Angles
    layout: Layout
    last: bool
    backwards: bool

    def encoding(
        self, shape: Shape, spectra: Callable[[int], Spectrum], by_length: bool = False
    ) -> Turned:
        """Encoding that turns so, with the frequencies of each length, `spectra(length)`.

        `by_length`: these differ beyond the training length too."""
        return Turned(
            shape,
            spectra,
            layout=self.layout,
            last=self.last,
            amplitude=self.angles.amplitude,
            backwards=self.backwards,
            by_length=by_length,
        )


def measure(model: nn.Module, hook: AttentionHook) -> None:
    """Measure the positions of a model, whose attention already goes through `hook`, into the hook.

    Raises ConfigError for what is not explained."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids_BT = torch.randint(vocabulary, (1, MEASURED_TOKENS), generator=generator).to(model.device)
    rotary_modules = _rotary_modules(model)
    if hook.family is not None:
        rotary_modules += hook.family.rotary_modules
    turned_pass = _calls_of_pass(model, hook, rotary_modules, ids_BT)
    # At angle 0 rotary modules change nothing, so only tables and biases tell positions apart.
    with answering_at_angle_0(rotary_modules):
        unturned_pass = _calls_of_pass(model, hook, [], ids_BT)
        pass_at_later_positions = _calls_of_pass(model, hook, [], ids_BT, MOVED_BY)
    _check_layers_seen(model, turned_pass, unturned_pass)
    shape = _model_shape(model, hook, turned_pass)
    tolerance = TOLERANCES.get(model.dtype, TOLERANCE_OF_16_BITS)
    layers = _measured_layers(model, turned_pass, unturned_pass, shape, tolerance)
    family_encoding = None if hook.family is None else hook.family.encoding(model, shape)
    if family_encoding is not None:
        layers = {
            module: replace(layer, encoding=family_encoding) for module, layer in layers.items()
        }
    has_rotary_layers = any(isinstance(layer.encoding, Turned) for layer in layers.values())
    table_name, row_of_position_0 = _position_table(model, unturned_pass.table_rows)
    if table_name is None:
        rows_NC = None
        _check_no_positions(model, pass_at_later_positions, unturned_pass, tolerance)
    else:
        rows_NC = _position_rows(model, hook, table_name, row_of_position_0, has_rotary_layers)
        # RoBERTa's configuration counts the rows before position 0 too.
        hook.train_len = min(hook.train_len, len(rows_NC))
        shape = replace(shape, train_len=hook.train_len)
    hook.encoding = AsTrained(shape, measured=list(layers.values()), rows_NC=rows_NC)
    hook.encoding.subject = type(model).__name__  # what errors call it
    hook.layer_indices.update({module: layer.index for module, layer in layers.items()})
    hook.rotary_modules = rotary_modules if has_rotary_layers else []
    hook.table_name = table_name
    hook.row_of_position_0 = row_of_position_0


def _rotary_modules(model: nn.Module) -> list[nn.Module]:
    """Modules without weights that hold frequencies: those that compute cos and sin."""
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
        # `original_inv_freq` and `long_inv_freq` are copied into `inv_freq` when they are needed
        if "original" not in name and "long" not in name:
            yield name, value


@contextmanager
def answering_at_angle_0(modules: list[nn.Module]) -> Iterator[None]:
    """Context in which rotary modules answer with angle 0."""
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(answer_at_angle_0).remove)
        yield


def answer_at_angle_0(module: nn.Module, args: tuple, answer: object) -> object:
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


def _calls_of_pass(
    model: nn.Module,
    hook: AttentionHook,
    noted_modules: list[nn.Module],
    ids_BT: Tensor,
    first_position: int = 0,
) -> PassCalls:
    """Calls in one pass over a text in which every token attends to itself alone.

    Answers of `noted_modules` are among them. Positions count from `first_position`."""
    calls = PassCalls()

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: object,
        *unused: object,
        **others: object,
    ) -> tuple[Tensor, None]:
        """Note q, k and mask of a call, and answer as if each token saw itself alone, so that the
        input of later layers depends on no position.
        """
        if not isinstance(attention_mask, CompactMask):
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
        calls.attention_inputs.append(
            AttentionInput(module, query.detach(), key.detach(), attention_mask.checked())
        )
        group_size = query.shape[1] // value.shape[1]
        # A token that attends to itself alone gets its own value.
        return value.repeat_interleave(group_size, dim=1).transpose(1, 2).contiguous(), None

    def note_answer(module: nn.Module, args: tuple, keywords: dict, answer: object) -> None:
        # Where layers differ, an argument names the kind of layer.
        kinds = [value for value in (*args, *keywords.values()) if isinstance(value, str)]
        calls.rotary_answers.append(RotaryAnswer(module, kinds, answer))

    def note_rows(module: nn.Module, args: tuple, answer: Tensor) -> None:
        calls.table_rows.append(TableRows(module, answer.detach()))

    token_table = model.get_input_embeddings()
    with ExitStack() as stack, torch.no_grad():
        for module in noted_modules:
            stack.callback(module.register_forward_hook(note_answer, with_kwargs=True).remove)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module is not token_table:
                stack.callback(module.register_forward_hook(note_rows).remove)
        hook.register_attention(attention)
        stack.callback(hook.register_attention)  # the hook's attention again
        options = {}
        if first_position > 0:
            position_T = torch.arange(ids_BT.shape[1], device=ids_BT.device) + first_position
            options["position_ids"] = position_T[None]
        model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), use_cache=False, **options)
    return calls


def _check_layers_seen(model: nn.Module, turned_pass: PassCalls, unturned_pass: PassCalls) -> None:
    """Raise ConfigError for a model whose attention was not seen, or differs each time."""
    name = type(model).__name__
    if not turned_pass.attention_inputs:
        raise ConfigError(
            f"{name} has no attention layer that asks transformers' registry of"
            " attention functions, where posbench's methods are put in place: choose another"
            " model."
        )
    if len(turned_pass.attention_inputs) != len(unturned_pass.attention_inputs):
        raise ConfigError(f"{name} attends otherwise each time, which posbench does not support.")


def _model_shape(model: nn.Module, hook: AttentionHook, calls: PassCalls) -> Shape:
    """Sizes of the model, heads by its first layer."""
    first_input = calls.attention_inputs[0]
    return Shape(
        d_model=model.get_input_embeddings().weight.shape[1],
        n_layer=len({layer_input.module for layer_input in calls.attention_inputs}),
        n_head=first_input.q_BHTD.shape[1],
        n_kv_head=first_input.k_BGTD.shape[1],
        train_len=hook.train_len,
        head_width=first_input.q_BHTD.shape[3],
    )


def _measured_layers(
    model: nn.Module,
    turned_pass: PassCalls,
    unturned_pass: PassCalls,
    shape: Shape,
    tolerance: float,
) -> dict[nn.Module, Layer]:
    """{attention module: its layer}. A module that attends several times in a pass is one layer."""
    candidates = [
        angles for answer in turned_pass.rotary_answers for angles in _candidate_angles(answer)
    ]
    # {turning: encoding}, which _encoding_of_layer fills
    encodings: dict[object, Turned | NoEncoding] = {}
    layers: dict[nn.Module, Layer] = {}
    for turned_input, unturned_input in zip(
        turned_pass.attention_inputs, unturned_pass.attention_inputs, strict=True
    ):
        encoding = _encoding_of_layer(
            turned_input, unturned_input, candidates, shape, tolerance, encodings
        )
        module = turned_input.module
        mask = turned_input.mask
        # Of a module that was there before, this layer is compared and dropped, with its index.
        layer = Layer(encoding, window=mask.window, chunk=mask.chunk, index=len(layers))
        first_layer = layers.setdefault(module, layer)
        if _attend_differently(first_layer, layer):
            raise ConfigError(
                f"A {type(module).__name__} of {type(model).__name__} attends several times for"
                " each token, and not with the same positions each time, which posbench does not"
                " support."
            )
    return layers


def _attend_differently(layer: Layer, other: Layer) -> bool:
    """True if two layers differ in their positions or in the keys that they see."""
    if layer.encoding is not other.encoding:
        return True
    return (layer.window, layer.chunk) != (other.window, other.chunk)


def _check_no_positions(
    model: nn.Module,
    pass_at_later_positions: PassCalls,
    unturned_pass: PassCalls,
    tolerance: float,
) -> None:
    """Raise ConfigError if the first layer's queries depend on positions before they are turned.

    Both passes have the same text, and are without turning."""
    moved_q_BHTD = pass_at_later_positions.attention_inputs[0].q_BHTD
    expected_q_BHTD = unturned_pass.attention_inputs[0].q_BHTD
    if _relative_difference(moved_q_BHTD, expected_q_BHTD) >= tolerance:
        raise ConfigError(
            f"{type(model).__name__} uses positions beside its attention, and not as rows of a"
            " learned table, which posbench does not support."
        )


def _position_rows(
    model: nn.Module,
    hook: AttentionHook,
    table_name: str,
    row_of_position_0: int,
    has_rotary_layers: bool,
) -> Tensor:
    """Rows of the learned table from position 0 on: [N, C]. Raises ConfigError for an odd table.

    `has_rotary_layers`: the model also turns its queries."""
    name = type(model).__name__
    if has_rotary_layers:
        raise ConfigError(
            f"{name} has learned positions and rotates its queries too, but posbench supports only"
            " one of these."
        )
    rows_NC = model.get_submodule(table_name).weight.detach()[row_of_position_0:].float()
    # A configuration may count rows before position 0 too, as RoBERTa's does.
    if len(rows_NC) < hook.train_len and not hook.has_configured_train_len:
        raise ConfigError(
            f"train_len={hook.train_len} is longer than {name}'s learned table of positions, which"
            f" has {len(rows_NC)} rows: give train_len={len(rows_NC)} or less."
        )
    return rows_NC


def _candidate_angles(answer: RotaryAnswer) -> Iterator[Angles]:
    """Angles as which a rotary module's answer may be read: an angle for each number, for each
    second, or for the first half of them. Nothing for an answer that is no cos and sin.
    """
    if isinstance(answer.value, Tensor):
        cos = answer.value.real
        sin = answer.value.imag
        readings = (slice(None),)
    elif _is_pair(answer.value):
        cos, sin = answer.value
        first_half = slice(0, cos.shape[-1] // 2)
        each_second = slice(0, None, 2)
        readings = (first_half, each_second, slice(None))
    else:
        return
    cos_TC = _values_of_first_text(cos)
    sin_TC = _values_of_first_text(sin)
    for chosen_channels in readings:
        cos_TF = cos_TC[:, chosen_channels]
        sin_TF = sin_TC[:, chosen_channels]
        freq_F = torch.atan2(sin_TF[1], cos_TF[1])  # angles at position 1
        buffer_name, freq_F = _frequencies_like(answer.module, freq_F)
        position_T = torch.arange(len(cos_TF), dtype=torch.float64)
        angle_TF = torch.outer(position_T, freq_F)
        amplitude = float(cos_TF[0, 0])  # the cosine of angle 0
        yield Angles(answer.module, answer.kinds, angle_TF, amplitude, buffer_name)


def _values_of_first_text(values: Tensor) -> Tensor:
    """Values of the first text of a batch: [T, C], float64, on the CPU."""
    return values.detach().reshape(-1, *values.shape[-2:])[0].double().cpu()


def _frequencies_like(module: nn.Module, freq_F: Tensor) -> tuple[str | None, Tensor]:
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


def _encoding_of_layer(
    turned: AttentionInput,
    unturned: AttentionInput,
    candidates: list[Angles],
    shape: Shape,
    tolerance: float,
    encodings: dict[object, Turned | NoEncoding],
) -> Turned | NoEncoding:
    """Encoding of a layer: what made `turned` of `unturned`. Raises ConfigError if no layout does.

    `encodings` holds those of earlier layers {turning: encoding}, so that layers alike have the
    same object; a new one is added."""
    turned_and_unturned = ((turned.q_BHTD, unturned.q_BHTD), (turned.k_BGTD, unturned.k_BGTD))
    if all(_are_unturned(*pair) for pair in turned_and_unturned):
        return encodings.setdefault("none", NoEncoding(shape))
    width = turned.q_BHTD.shape[-1]
    layer_shape = replace(shape, head_width=width)
    best_turning = None
    smallest_error = float("inf")
    for turning in _possible_turnings(candidates, width):
        error = _unexplained_share(turning, layer_shape, turned_and_unturned)
        if error < smallest_error:
            smallest_error = error
            best_turning = turning
    if not smallest_error < tolerance:
        layer_name = f"{type(turned.module).__name__} {getattr(turned.module, 'layer_idx', '')}"
        raise ConfigError(
            f"{layer_name} does not turn q and k as its rotary modules say, in halves or neighbours"
            f" of the first or last channels (the nearest leaves {smallest_error:.1e} of them):"
            " posbench does not read this model."
        )
    if best_turning not in encodings:
        spectra, by_length = _spectra_by_length(best_turning.angles, shape.train_len)
        encodings[best_turning] = best_turning.encoding(layer_shape, spectra, by_length)
    return encodings[best_turning]


def _are_unturned(turned: Tensor, unturned: Tensor) -> bool:
    """True if q or k of the two passes are the same but for rounding."""
    tolerance = UNTURNED_TOLERANCE * float(unturned.abs().max())
    return torch.allclose(turned, unturned, rtol=0, atol=tolerance)


def _possible_turnings(candidates: list[Angles], width: int) -> Iterator[Turning]:
    """All ways to turn heads of this width by one of these angles."""
    layouts = ("half", "interleaved")
    either = (False, True)
    for angles, layout, last, backwards in itertools.product(candidates, layouts, either, either):
        turning = Turning(angles, layout, last=last, backwards=backwards)
        n_channels = 2 * turning.angles.angle_TF.shape[1]
        # Of whole heads the first and the last channels are the same ones.
        if n_channels < width or (n_channels == width and not turning.last):
            yield turning


def _unexplained_share(
    turning: Turning, shape: Shape, turned_and_unturned: tuple[tuple[Tensor, Tensor], ...]
) -> float:
    """Share that a way to turn leaves unexplained in (turned, unturned) q and k."""
    spectrum = _spectrum(turning.angles.angle_TF[1])  # the angles of position 1: the frequencies
    encoding = turning.encoding(shape, lambda length: spectrum)
    position_T = torch.arange(len(turning.angles.angle_TF), dtype=torch.float64)
    table = encoding.table(position_T, spectrum).to(turned_and_unturned[0][0].device)
    return max(
        _relative_difference(encoding.turned(unturned.float(), table), turned.float())
        for turned, unturned in turned_and_unturned
    )


def _relative_difference(values: Tensor, expected: Tensor) -> float:
    """Norm of the difference as a share of that of the expected values."""
    return float((values - expected).norm() / expected.norm().clamp(min=1e-30))


def _spectrum(freq_F: Tensor, base: float | None = None) -> Spectrum:
    """Spectrum of measured frequencies of all pairs. Slow pairs that rest are left out, so that an
    extension's last pair is the last that turns, as in p_rope.

    `base`: None for that of the two fastest pairs."""
    if base is None:
        base = _base_of_fastest_pairs(freq_F)
    turning_pairs = freq_F.nonzero().flatten()
    n_turning = int(turning_pairs[-1]) + 1 if len(turning_pairs) else 0
    return Spectrum(freq_F[:n_turning], max(base, LEAST_BASE), rotary_dim=2 * len(freq_F))


def _base_of_fastest_pairs(freq_F: Tensor) -> float:
    """Base of frequencies whose two fastest pairs are as without a scaling, or scaled alike."""
    pairs = len(freq_F)
    ratio = 1.0  # of one pair, or of none that turns, which tell no base: at least LEAST_BASE
    if pairs > 1 and freq_F[1] > 0:
        ratio = float(freq_F[0] / freq_F[1])  # base^(1 / pairs)
    return float(f"{ratio**pairs:.5g}")  # 10000 but for rounding


def _configured_base(angles: Angles) -> float | None:
    """Base that the module's configuration names for a rope type that scales pairs one by one.

    None for other types, whose frequencies tell it (some families enlarge the named one), and
    where none is named."""
    config = getattr(angles.module, "config", None)
    parameters = getattr(config, "rope_parameters", None) or {}
    # Where kinds of layer differ, each has parameters of its own: {kind: parameters}.
    for kind in angles.kinds:
        parameters = parameters.get(kind) or parameters
    if parameters.get("rope_type") not in TYPES_BY_PAIR:
        return None
    base = parameters.get("rope_theta")
    return None if base is None else float(base)


def _spectra_by_length(angles: Angles, train_len: int) -> tuple[Callable[[int], Spectrum], bool]:
    """(frequencies of each length as the module computes them, True if they go on changing beyond
    the training length).
    """
    base = _configured_base(angles)
    measured = _spectrum(angles.angle_TF[1], base)  # the angles of position 1: the frequencies
    if angles.buffer_name is None:
        return lambda length: measured, False
    config = getattr(angles.module, "config", None)
    # Methods in place raise it, and modules compare lengths with it.
    longest_as_it_came = getattr(config, "max_position_embeddings", None)
    spectrum_of_length: dict[int, Spectrum] = {}

    def computed_spectrum(length: int) -> Spectrum:
        """Spectrum of a length; where an earlier one is equal, that object."""
        # A short text first, since the module would keep the frequencies of an earlier, longer one.
        _compute_angles(angles, MEASURED_TOKENS, longest_as_it_came)
        _compute_angles(angles, length, longest_as_it_came)
        buffer = getattr(angles.module, angles.buffer_name)
        computed = _spectrum(buffer.detach().double().cpu().flatten().clone(), base)
        # The module goes back to the frequencies that it had.
        _compute_angles(angles, MEASURED_TOKENS, longest_as_it_came)
        for spectrum in (measured, *spectrum_of_length.values()):
            if torch.equal(spectrum.freq_F, computed.freq_F):
                return spectrum
        return computed

    def spectra(length: int) -> Spectrum:
        if length not in spectrum_of_length:
            spectrum_of_length[length] = computed_spectrum(length)
        return spectrum_of_length[length]

    # Equal frequencies are one object, so they are compared by `is`. Some scalings set in beyond
    # the training length (longrope). Others grow from there on (dynamic), so they differ once more.
    trained, twice, four_times = (spectra(factor * train_len) for factor in (1, 2, 4))
    if trained is measured and twice is measured and four_times is measured:
        return lambda length: measured, False
    goes_on_changing = twice is not four_times
    return spectra, goes_on_changing


def _compute_angles(angles: Angles, length: int, longest_as_it_came: int | None) -> None:
    """Have a rotary module compute the angles of a text of `length` tokens.

    Its class's own forward does so, past the hooks of the module. Meanwhile its configuration has
    the longest text with which it came, whatever this was raised to; None if it has none."""
    module = angles.module
    config = getattr(module, "config", None)
    longest_now = getattr(config, "max_position_embeddings", None)
    device = next(value for _, value in _frequencies(module)).device
    try:
        if longest_as_it_came is not None:
            config.max_position_embeddings = longest_as_it_came
        with torch.no_grad():
            # The largest position tells the module the length of the text; 0 and 1 begin it.
            position_BT = torch.tensor([[0, 1, max(1, length - 1)]], device=device)
            # of three tokens, of which the module reads device and format alone
            hidden_BTC = torch.zeros(1, 3, 1, device=device)
            # `kinds` names the kind of layer where the model's own call did, else it is empty.
            type(module).forward(module, hidden_BTC, position_BT, *angles.kinds)
    finally:
        if longest_as_it_came is not None:
            config.max_position_embeddings = longest_now


def _position_table(model: nn.Module, table_rows: list[TableRows]) -> tuple[str | None, int]:
    """Name of the learned table of positions, and its row of position 0; (None, 0) without one.

    `table_rows` are those of a pass that begins at position 0."""
    for module, rows in table_rows:
        rows_TC = rows.reshape(-1, rows.shape[-1])[:MEASURED_TOKENS]
        # none in a table that is shorter than the text
        n_tried = min(MOST_ROWS_BEFORE_0, len(module.weight) - MEASURED_TOKENS + 1)
        for row_of_position_0 in range(n_tried):
            table_rows_TC = module.weight[row_of_position_0:][:MEASURED_TOKENS]
            if torch.equal(table_rows_TC, rows_TC):
                names = (name for name, part in model.named_modules() if part is module)
                return next(names), row_of_position_0
    return None, 0
