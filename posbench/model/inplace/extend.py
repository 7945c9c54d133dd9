"""posbench.extend and posbench.restore: apply posbench's methods to a loaded transformers model,
and remove them.

What the model does with positions is measured (measure.py); its rotary modules then answer with
angle 0, its attention goes through a door of its own (door.py), and before anything else the logits
without an extension must be those of the model as it came. Everything else of the model is its own
code. The cache holds unturned keys, and a generated token has the logits of the whole text read at
once. Where a method treats earlier tokens otherwise as the text grows, no cache can hold what that
would need, and it is refused."""

import functools
import inspect
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError, first_line
from posbench.config.names import chosen_node
from posbench.model.inplace.attention_hook import Door
from posbench.model.inplace.families.family import family_of, has_family
from posbench.model.inplace.measure import TOKENS, measure, unturned
from posbench.model.inplace.own_configs import OwnConfigs
from posbench.model.inplace.visible import Visible
from posbench.position.instantiate import make
from posbench.position.interfaces import Extension, ScaleAttention, ScaledExtension
from posbench.position.legality import check, fed_length, name_of
from posbench.position.plan import make_plan
from posbench.pretrained.outline import NAMES

LENGTHS = NAMES["length"]
EQUAL = {
    torch.float32: 1e-4,
    torch.float64: 1e-4,
}  # largest difference of logits, in their standard deviations; of 16 bits the mean one
ROUNDED = 0.05
AFFORDABLE = 2048  # tokens of the longest text that is compared
LONGEST = 2**24  # tokens of a text; a plan has some hundred bytes for each
LAST = 16  # logits compared at the end of a text
KEPT = "_posbench"  # attribute of a model that holds its door; a wrapper shows its model's


def _door(model: nn.Module) -> Door | None:
    """Door of an extended model, None for any other, a wrapper of one included."""
    found = getattr(model, KEPT, None)
    return found if found is not None and found.model() is model else None


def extend(
    model: nn.Module,
    extension: str | dict | Extension | None = None,
    scale_attention: str | dict | ScaleAttention | None = None,
    target_len: int | None = None,
    train_len: int | None = None,
) -> nn.Module:
    """The same model, with a context extension and a factor on the logits in place of its own; see
    posbench.extend.

    Raises ConfigError for a model that is not explained by what was measured, and for methods that
    are not defined on it or change nothing. The model is then as it came, or has the methods that
    it had."""
    for name, length in (("target_len", target_len), ("train_len", train_len)):
        if length is not None:
            _check_length(name, length)
    door = _door(model)
    if door is None:
        door = take(model, train_len)
        door.encoding.in_place = True
        try:
            _choose(model, door, extension, scale_attention, target_len)
        except Exception:
            restore(model)
            raise
    elif train_len is None or train_len == door.train_len:
        _choose(model, door, extension, scale_attention, target_len)
    else:
        with _apart(model, door):
            extend(model, extension, scale_attention, target_len, train_len)
        door.caches.close()
    return model


def restore(model: nn.Module) -> nn.Module:
    """The model as it was before posbench.extend. Raises ConfigError for one that was not
    extended.
    """
    door = _door(model)
    if door is None:
        raise ConfigError(
            "This model has no posbench methods in place: call posbench.extend first."
        )
    door.revert()
    door.undo.close()
    door.caches.close()
    return model


@contextmanager
def _apart(model: nn.Module, door: Door) -> Iterator[None]:
    """Context that begins with the model as it came. If it fails, the door and its methods are in
    place again.
    """
    door.revert()
    door.undo.close()
    try:
        yield
    except BaseException:
        door.open()
        _install(model, door)
        _lengthen(model, door)
        raise


def _check_length(name: str, length: object) -> None:
    """Raise ConfigError for a length, called `name`, that is no number of tokens or more than can
    be planned.
    """
    if type(length) is not int or length < 2:
        shown = _readable(length) if type(length) is int else repr(length)
        raise ConfigError(f"{name}={shown} must be a whole number of tokens, at least 2.")
    if length > LONGEST:
        raise ConfigError(
            f"{name}={_readable(length)} is longer than any text that posbench plans for: give at"
            f" most {LONGEST} tokens."
        )


def _readable(number: int) -> str:
    """A whole number, such as "131072", or "about 1e30" of one with many digits."""
    if abs(number) < 10**15:
        return str(number)
    sign = "-" if number < 0 else ""
    return f"about {sign}1e{round(math.log10(abs(number)))}"


def take(model: nn.Module, train_len: int | None = None) -> Door:
    """Door of posbench for a model's attention, without an extension: its logits are unchanged,
    which is checked.

    Raises ConfigError as `extend` does.
    """
    _check_kind(model)
    length = train_len or _longest_text(model)
    door = Door(weakref.ref(model), length, configured=train_len is None, family=family_of(model))
    with _evaluating(model):
        try:
            door.open()
            short_text = _text(model, TOKENS)
            _measure(model, door)
            texts = [short_text, *(_text(model, length) for length in _lengths(door))]
            _install(model, door)
            for text in texts:
                _compare(model, text)
        except BaseException:
            door.undo.close()
            raise
    return door


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Context in which no module of the model is in training."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _measure(model: nn.Module, door: Door) -> None:
    name = type(model).__name__
    with OwnConfigs(model), _through(_configs(model), door.name), door.in_place():
        try:
            measure(model, door)
        except ConfigError:
            raise
        except (
            Exception
        ) as error:  # any error of another's code, which was handed a mask and angles of ours
            raise ConfigError(
                f"{name} does not hand its attention to transformers' registry as its other models"
                f" do ({type(error).__name__}: {first_line(error)}): posbench does not read this"
                " model."
            ) from error


def _longest_text(model: nn.Module) -> int:
    """Longest text in a model's configuration, in tokens. Raises ConfigError for none, or one that
    cannot be planned.
    """
    name = type(model).__name__
    configs = (model.config, model.config.get_text_config())
    lengths = (getattr(config, key, None) for config in configs for key in LENGTHS)
    longest = next((length for length in lengths if isinstance(length, int)), None)
    if not longest or longest < 2:
        raise ConfigError(f"{name}'s configuration has no training length: give train_len=TOKENS.")
    if longest > LONGEST:
        raise ConfigError(
            f"{name}'s configuration has a training length of {_readable(longest)} tokens, and"
            f" posbench plans for at most {LONGEST}: give train_len=TOKENS."
        )
    return longest


def _check_kind(model: nn.Module) -> None:
    try:
        from transformers import PreTrainedModel
    except ImportError as error:
        raise ConfigError(
            "posbench.extend needs transformers, which is not installed: pip install"
            " 'posbench[hf]'."
        ) from error
    name = type(model).__name__
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise ConfigError(
            f"{name} is already compiled and cannot be changed: reload it without torch.compile."
        )
    if (
        not isinstance(model, PreTrainedModel)
        or getattr(model.config, "is_encoder_decoder", False)
        or model.get_output_embeddings() is None
    ):
        raise ConfigError(
            f"{name} is not a causal language model of transformers: give one of"
            " AutoModelForCausalLM."
        )
    devices = {str(parameter.device) for parameter in model.parameters()}
    if len(devices) > 1 or "meta" in devices:
        raise ConfigError(
            f"{name} is on {' and '.join(sorted(devices))}, but posbench supports one device: load"
            " it on one."
        )
    attends_itself = (
        type(model).__module__.startswith("transformers.")
        and not model._can_set_attn_implementation()
    )
    if attends_itself and not has_family(model):
        raise ConfigError(
            f"{name} computes attention itself and not through transformers' registry, where"
            " posbench's methods are put in place: choose another model."
        )


def _configs(model: nn.Module) -> list:
    """Distinct configurations of a model and its parts that say how to attend."""
    found = {
        id(one.config): one.config
        for one in model.modules()
        if hasattr(getattr(one, "config", None), "_attn_implementation")
    }
    return list(found.values())


@contextmanager
def _through(configs: list, name: str | None) -> Iterator[None]:
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for config, one in zip(configs, before, strict=True):
            config._attn_implementation_internal = one


def _lengths(door: Door) -> list[int]:
    """Lengths compared beside the shortest: beyond the windows, and beyond the training length,
    where that takes little time.
    """
    comparable = door.family.comparable if door.family else None
    if comparable is not None:
        return [
            min(door.train_len, comparable, AFFORDABLE // 2)
        ]  # float32 angles differ by 1e-4 at 2,000 tokens
    spans = [
        size for layer in door.encoding.layers() for size in (layer.window, layer.chunk) if size
    ]
    if door.table is not None:
        return [min(door.train_len, AFFORDABLE)]
    longest = max(
        (limit for limit in (*spans, door.train_len) if limit * 5 // 4 + 8 <= AFFORDABLE), default=0
    )
    return [longest * 5 // 4 + 8] if longest else []


class Text(NamedTuple):
    """A random text of `length` tokens and the logits [LAST, V] of its last tokens by the model as
    it came.
    """

    length: int
    logits_RV: Tensor


def _text(model: nn.Module, length: int) -> Text:
    logits_RV = _logits(model, length)
    if not logits_RV.isfinite().all():
        damaged = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
        cause = f": so has its weight {damaged[0]}" if damaged else ""
        raise ConfigError(
            f"{type(model).__name__} as it came has NaN or infinite logits after {length} random"
            f" tokens{cause}."
        )
    return Text(length, logits_RV)


@torch.no_grad()
def _logits(model: nn.Module, length: int) -> Tensor:
    """Last logits of a random text: [LAST, V], float32."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids_BT = torch.randint(
        vocabulary, (1, length), generator=torch.Generator().manual_seed(length)
    ).to(model.device)
    few = (
        {"logits_to_keep": LAST}
        if "logits_to_keep" in inspect.signature(model.forward).parameters
        else {}
    )
    return model(input_ids=ids_BT, use_cache=False, **few).logits[0, -LAST:].float()


def _compare(model: nn.Module, text: Text) -> None:
    """Raise ConfigError if the model's logits of a text are not those of the model as it came."""
    difference_RV = (
        _logits(model, text.length) - text.logits_RV
    ).abs() / text.logits_RV.std().clamp(min=1e-12)
    allowed = EQUAL.get(model.dtype)
    if allowed:
        difference = float(difference_RV.max())
    else:
        difference = float(difference_RV.mean())
        allowed = ROUNDED
    if not difference <= allowed:
        raise ConfigError(
            f"{type(model).__name__} through posbench's attention, without an extension, has logits"
            f" that differ by {difference:.1e} of their standard deviation after {text.length}"
            f" tokens, where rounding explains {allowed:g}: what it does with positions is not all"
            " measured, so it is left as it came."
        )


def _install(model: nn.Module, door: Door) -> None:
    """Have a measured model attend by its door, until `door.undo` is closed."""
    door.undo.enter_context(OwnConfigs(model))
    door.undo.enter_context(_through(_configs(model), door.name))
    door.undo.enter_context(door.in_place())
    door.undo.enter_context(unturned(door.rotary))
    door.undo.enter_context(door.caches.watch(model))

    def entered(module: nn.Module, args: tuple, given: dict) -> None:
        if model.config._attn_implementation != door.name:
            raise ConfigError(
                f"attn_implementation was set to {model.config._attn_implementation} after"
                " posbench.extend, which has an attention of its own: posbench.restore the model"
                " first."
            )
        _check_positions(given.get("position_ids"), given.get("attention_mask"))

    door.undo.callback(model.register_forward_pre_hook(entered, with_kwargs=True).remove)
    saved = model.save_pretrained

    @functools.wraps(saved)
    def save_pretrained(*args: object, **given: object) -> object:
        with door.reverted(), _through(_configs(model), None):
            return saved(*args, **given)

    def refused(*_: object) -> None:
        raise ConfigError(
            "Methods are in place in this model alone and cannot be copied or pickled:"
            " posbench.restore it first."
        )

    for name, function in (("save_pretrained", save_pretrained), ("__reduce_ex__", refused)):
        setattr(model, name, function)
        door.undo.callback(vars(model).pop, name, None)
    vars(model)[KEPT] = door
    door.undo.callback(vars(model).pop, KEPT, None)


def _check_positions(position_ids: object, mask: object) -> None:
    """Raise ConfigError for position_ids that do not count the tokens of each row, as posbench
    does.
    """
    if not isinstance(position_ids, Tensor) or position_ids.ndim != 2 or position_ids.shape[1] < 2:
        return
    wrong_BS = position_ids.diff(dim=1) != 1
    mask = (
        next(iter(mask.values())) if isinstance(mask, dict) else mask
    )  # one for each kind of layer
    mask = mask.padding() if isinstance(mask, Visible) else mask
    if isinstance(mask, Tensor) and mask.ndim == 2:
        text_BS = mask[:, -position_ids.shape[1] :].bool().to(position_ids.device)
        wrong_BS = wrong_BS & text_BS[:, 1:] & text_BS[:, :-1]
    if wrong_BS.any():
        raise ConfigError(
            "position_ids skip tokens or restart within a row, which posbench does not support:"
            " give one text per row, or no position_ids."
        )


def _choose(
    model: nn.Module, door: Door, extension: object, scale_attention: object, target_len: int | None
) -> None:
    """Put methods in place. Raises ConfigError for what is not defined, or changes nothing; then
    the earlier ones stay.
    """
    made = extension if isinstance(extension, Extension) else _made(extension, target_len)
    scale = scale_attention
    if not isinstance(scale, ScaleAttention):
        scale = make(chosen_node("scale_attention", scale, {}), door.encoding.shape)
    learned = door.table is not None
    longest = target_len or (door.train_len if learned else 4 * door.train_len)
    noop = check(door.encoding, made, scale, [longest], allow_untested=True).noop
    if noop:
        raise ConfigError(f"{noop}: {_way_out(door, target_len)}.")
    if fed_length(made, door.train_len, longest) < longest:
        raise ConfigError(
            f"extension={name_of(made)} reads a separate text for each target, which a cache"
            " cannot: choose another."
        )
    if learned and target_len is None and name_of(made) != "none":
        raise ConfigError(
            f"extension={name_of(made)} on a learned table needs target_len=TOKENS: rows in a cache"
            " cannot change with each token."
        )
    door.revert()
    door.choose(made, scale, target_len)
    _lengthen(model, door)


def _way_out(door: Door, target_len: int | None) -> str:
    """Advice for a method that changes nothing."""
    if door.table is not None and target_len is None:
        return "leave it out, or give target_len"
    if not door.encoding.traits:
        return (
            "leave it out, or choose scale_attention=log_n, or"
            " extension=streaming|lm_infinite|window, which hide keys"
        )
    return "leave it out"


def _lengthen(model: nn.Module, door: Door) -> None:
    """Raise the longest text of the configuration and the learned table to the target of the
    methods, if they have one.
    """
    if door.target_len is None:
        return
    for config in _configs(model):
        for name in LENGTHS:
            if isinstance(before := getattr(config, name, None), int) and before < door.target_len:
                door.change(config, name, door.target_len)
    if door.table is not None:
        _lengthen_buffers(model, door)
        put_table(
            model,
            door,
            make_plan(door.encoding, door.extension, door.scale, length=door.target_len).embed(),
        )


def _lengthen_buffers(model: nn.Module, door: Door) -> None:
    """Raise the length of buffers [1, T] that count the rows of the learned table, or are 0 for
    each (BERT's).
    """
    before = len(model.get_submodule(door.table).weight)
    rows = door.offset + door.target_len
    for module in model.modules():
        for name, buffer_1T in list(module.named_buffers(recurse=False)):
            if buffer_1T.shape != (1, before) or buffer_1T.is_floating_point():
                continue
            longer_1T = torch.arange(rows, device=buffer_1T.device, dtype=buffer_1T.dtype)[None]
            if not torch.equal(longer_1T[:, :before], buffer_1T):
                longer_1T = buffer_1T[:, :1].expand(-1, rows).clone()
            if rows > before and torch.equal(longer_1T[:, :before], buffer_1T):
                door.change(module, name, longer_1T)


def _made(chosen: object, target_len: int | None) -> Extension:
    node = chosen_node("extension", chosen, {})
    made = make(node, kind=Extension)
    if target_len is not None and isinstance(made, ScaledExtension) and made.fixed_target is None:
        made = make({**node, "mode": "fixed", "target_len": target_len}, kind=Extension)
    return made


def put_table(model: nn.Module, door: Door, rows_TC: Tensor) -> None:
    """Put other rows into the model's learned table of positions, from position 0 on, until
    `door.revert`.
    """
    table = model.get_submodule(door.table)
    rows_TC = torch.cat((table.weight.detach()[: door.offset], rows_TC.to(table.weight)))
    door.change(table, "weight", nn.Parameter(rows_TC, requires_grad=False))
