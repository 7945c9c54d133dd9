"""posbench's attention hook in a loaded transformers model, with the model's logits unchanged."""

import functools
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from posbench.common.errors import ConfigError, first_line
from posbench.model.inplace.attention_hook import AttentionHook
from posbench.model.inplace.families.registry import family_of, has_family
from posbench.model.inplace.lengthen import LENGTH_KEYS
from posbench.model.inplace.measure import MEASURED_TOKENS, answering_at_angle_0, measure
from posbench.model.inplace.own_configs import OwnConfigs, attend_by, attention_configs
from posbench.model.inplace.same_logits import (
    check_same_logits,
    compared_lengths,
    random_text_with_logits,
)
from posbench.model.inplace.visible import CompactMask

LONGEST_TEXT = 2**24  # tokens of a text; a plan has some hundred bytes for each
ABBREVIATED_FROM = 10**15  # whole numbers from here on are shown by their magnitude
HOOK_ATTRIBUTE = "_posbench"  # of an extended model


def attach(model: nn.Module, train_len: int | None = None) -> AttentionHook:
    """Measure a model and have it attend by a hook, without an extension.

    Its logits are unchanged, which is checked. Raises ConfigError as `extend` does, and the model
    is then as it came."""
    _check_can_be_extended(model)
    hook = AttentionHook(
        weakref.ref(model),
        train_len=train_len or _configured_length(model),
        has_configured_train_len=train_len is None,
        family=family_of(model),
    )
    with _in_evaluation_mode(model):
        try:
            hook.register_with_transformers()
            # read as the model came, to be compared at the end
            texts = [random_text_with_logits(model, MEASURED_TOKENS)]
            _measure(model, hook)
            texts += [random_text_with_logits(model, length) for length in compared_lengths(hook)]
            install(model, hook)
            for text in texts:
                check_same_logits(model, text)
        except BaseException:
            hook.undo.close()
            raise
    return hook


def check_length(name: str, length: object) -> None:
    """Raise ConfigError for a length that is no number of tokens, or more than can be planned."""
    if type(length) is not int or length < 2:
        raise ConfigError(
            f"{name}={_abbreviated(length)} must be a whole number of tokens, at least 2."
        )
    if length > LONGEST_TEXT:
        raise ConfigError(
            f"{name}={_abbreviated(length)} is longer than any text that posbench plans for: give"
            f" at most {LONGEST_TEXT} tokens."
        )


def _abbreviated(value: object) -> str:
    """A value, such as "131072", or "about 1e30" for a whole number of many digits."""
    if type(value) is not int or abs(value) < ABBREVIATED_FROM:
        return repr(value)
    sign = "-" if value < 0 else ""
    return f"about {sign}1e{round(math.log10(abs(value)))}"


@contextmanager
def _in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Context in which no module of the model is in training."""
    modules_in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in modules_in_training:
            module.training = True


def _measure(model: nn.Module, hook: AttentionHook) -> None:
    """Measure the model's positions. Any error of its code is a ConfigError."""
    with OwnConfigs(model), attend_by(hook.name, attention_configs(model)), hook.through_registry():
        try:
            measure(model, hook)
        except ConfigError:
            raise
        # The model's code was handed a mask and angles of ours, so it may fail in any way.
        except Exception as error:
            raise ConfigError(
                f"{type(model).__name__} does not hand its attention to transformers' registry as"
                f" its other models do ({type(error).__name__}: {first_line(error)}): posbench does"
                " not read this model."
            ) from error


def _configured_length(model: nn.Module) -> int:
    """Longest text that a model's configuration names, in tokens: its training length.

    Raises ConfigError for a configuration without one, and for one that cannot be planned."""
    name = type(model).__name__
    configs = (model.config, model.config.get_text_config())  # a part for text comes second
    lengths = [getattr(config, key, None) for config in configs for key in LENGTH_KEYS]
    configured = next((length for length in lengths if isinstance(length, int)), None)
    # None, or too short for a token that is read and one to be predicted.
    if configured is None or configured < 2:
        raise ConfigError(f"{name}'s configuration has no training length: give train_len=TOKENS.")
    if configured > LONGEST_TEXT:
        raise ConfigError(
            f"{name}'s configuration has a training length of {_abbreviated(configured)} tokens,"
            f" and posbench plans for at most {LONGEST_TEXT}: give train_len=TOKENS."
        )
    return configured


def _check_can_be_extended(model: nn.Module) -> None:
    """Raise ConfigError for anything but a causal transformers model that can be changed."""
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
    # A class from elsewhere may ask the registry without saying so: measuring it will tell.
    is_of_transformers = type(model).__module__.startswith("transformers.")
    if is_of_transformers and not model._can_set_attn_implementation() and not has_family(model):
        raise ConfigError(
            f"{name} computes attention itself and not through transformers' registry, where"
            " posbench's methods are put in place: choose another model."
        )


def install(model: nn.Module, hook: AttentionHook) -> None:
    """Have a measured model attend by the methods in its hook, until `hook.undo` is closed."""
    # first, since the others change configurations
    hook.undo.enter_context(OwnConfigs(model))
    hook.undo.enter_context(attend_by(hook.name, attention_configs(model)))
    hook.undo.enter_context(hook.through_registry())
    hook.undo.enter_context(answering_at_angle_0(hook.rotary_modules))
    hook.undo.enter_context(hook.caches.marking_caches_of(model))
    _check_each_call(model, hook)
    _keep_hook_in_model(model, hook)


def _check_each_call(model: nn.Module, hook: AttentionHook) -> None:
    """Have calls of the model that its hook cannot serve raise ConfigError, until `hook.undo` is
    closed.
    """

    def check_call(module: nn.Module, args: tuple, keywords: dict) -> None:
        if model.config._attn_implementation != hook.name:
            raise ConfigError(
                f"attn_implementation was set to {model.config._attn_implementation} after"
                " posbench.extend, which has an attention of its own: posbench.restore the model"
                " first."
            )
        _check_position_ids(keywords.get("position_ids"), keywords.get("attention_mask"))

    hook.undo.callback(model.register_forward_pre_hook(check_call, with_kwargs=True).remove)


def _keep_hook_in_model(model: nn.Module, hook: AttentionHook) -> None:
    """Keep the hook in the model, which saves itself as it came and refuses to be copied.

    All attributes are removed when `hook.undo` is closed."""
    save_as_before = model.save_pretrained

    @functools.wraps(save_as_before)
    def save_pretrained(*args: object, **options: object) -> object:
        with hook.reverted(), attend_by(name=None, configs=attention_configs(model)):
            return save_as_before(*args, **options)

    def refuse_copy(*_: object) -> None:
        raise ConfigError(
            "Methods are in place in this model alone and cannot be copied or pickled:"
            " posbench.restore it first."
        )

    model.save_pretrained = save_pretrained
    model.__reduce_ex__ = refuse_copy
    setattr(model, HOOK_ATTRIBUTE, hook)
    for name in ("save_pretrained", "__reduce_ex__", HOOK_ATTRIBUTE):
        hook.undo.callback(vars(model).pop, name, None)


def _check_position_ids(position_ids: object, mask: object) -> None:
    """Raise ConfigError for position_ids that do not count the tokens of each row one by one.

    Steps at padding do not matter. `mask` is the padding mask of the call, in any of its forms."""
    if not isinstance(position_ids, Tensor) or position_ids.ndim != 2 or position_ids.shape[1] < 2:
        return  # no rows in which a token follows another
    wrong_BS = position_ids.diff(dim=1) != 1
    if isinstance(mask, dict):
        mask = next(iter(mask.values()))  # one for each kind of layer, with the same padding
    if isinstance(mask, CompactMask):
        mask = mask.padding_mask()
    if isinstance(mask, Tensor) and mask.ndim == 2:
        text_BS = mask[:, -position_ids.shape[1] :].bool().to(position_ids.device)
        wrong_BS = wrong_BS & text_BS[:, 1:] & text_BS[:, :-1]
    if wrong_BS.any():
        raise ConfigError(
            "position_ids skip tokens or restart within a row, which posbench does not support:"
            " give one text per row, or no position_ids."
        )
