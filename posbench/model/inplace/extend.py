"""posbench.extend and posbench.restore: methods in a loaded transformers model, and out again.

What the model does with positions is measured (measure.py); its rotary modules then answer with
angle 0, its attention goes through a hook (attention_hook.py), and before anything else the logits
without an extension must be those of the model as it came (attach.py). Everything else of the model
is its own code. The cache holds unturned keys, and a generated token has the logits of the whole
text read at once. Where a method treats earlier tokens otherwise as the text grows, no cache can
hold what that would need, and it is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from posbench.common.errors import ConfigError
from posbench.config.names import chosen_node
from posbench.extensions.compose import Compose
from posbench.model.inplace.attach import HOOK_ATTRIBUTE, attach, check_length, install
from posbench.model.inplace.attention_hook import AttentionHook
from posbench.model.inplace.lengthen import lengthen
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding, Extension, ScaleAttention
from posbench.position.legality import fed_length, name_of, verdict_of

COMPOSE_CLASS = "posbench.extensions.compose.Compose"


def extend(
    model: nn.Module,
    extension: str | dict | Extension | None = None,
    scale_attention: str | dict | ScaleAttention | None = None,
    target_len: int | None = None,
    train_len: int | None = None,
) -> nn.Module:
    """Put a context extension and a factor on the logits into the model, in place of its own.

    Returns the same model; see posbench.extend. Raises ConfigError for a model whose logits
    differ from those by its measured positions, and for methods that are not defined on it or
    change nothing. The model is then as it came, or has the methods that it had."""
    for name, length in (("target_len", target_len), ("train_len", train_len)):
        if length is not None:
            check_length(name, length)
    hook = hook_of(model)
    if hook is None:
        hook = attach(model, train_len)
        hook.encoding.in_place = True  # its texts have a cache, which some methods cannot serve
        try:
            _put_methods_in_place(model, hook, extension, scale_attention, target_len)
        except Exception:
            restore(model)
            raise
    elif train_len is None or train_len == hook.train_len:
        _put_methods_in_place(model, hook, extension, scale_attention, target_len)
    else:
        # Another training length is measured anew, in the model without its hook. On an error the
        # hook comes back.
        with _as_it_came(model, hook):
            extend(model, extension, scale_attention, target_len, train_len)
        hook.caches.refuse_further_tokens()  # they hold keys by the methods before
    return model


def restore(model: nn.Module) -> nn.Module:
    """The model as it was before posbench.extend. Raises ConfigError if it was not extended."""
    hook = hook_of(model)
    if hook is None:
        raise ConfigError(
            "This model has no posbench methods in place: call posbench.extend first."
        )
    hook.revert()  # what the methods changed in the model, such as its longest text
    hook.undo.close()  # the hook itself, in the model and in transformers
    hook.caches.refuse_further_tokens()  # they hold keys that the restored model would misread
    return model


def hook_of(model: nn.Module) -> AttentionHook | None:
    """Hook of an extended model, None for any other, a wrapper of an extended one included."""
    hook = getattr(model, HOOK_ATTRIBUTE, None)  # a wrapper shows its model's attributes
    if hook is None or hook.model() is not model:
        return None
    return hook


@contextmanager
def _as_it_came(model: nn.Module, hook: AttentionHook) -> Iterator[None]:
    """Context that begins with the model as it came. If it fails, hook and methods are back."""
    hook.revert()  # undoes `lengthen`
    hook.undo.close()  # undoes `install` and `register_with_transformers`
    try:
        yield
    except BaseException:
        hook.register_with_transformers()
        install(model, hook)
        lengthen(model, hook)
        raise


def _put_methods_in_place(
    model: nn.Module,
    hook: AttentionHook,
    extension: str | dict | Extension | None,
    scale_attention: str | dict | ScaleAttention | None,
    target_len: int | None,
) -> None:
    """Put methods in place. Raises ConfigError for methods that are not defined, or change nothing.

    The earlier methods then stay."""
    encoding = hook.encoding
    if not isinstance(extension, Extension):
        node = chosen_node("extension", extension, {})
        extension = _with_target(make_method(node, kind=Extension), target_len)
    elif isinstance(extension, Compose):  # its parts were made from nodes
        extension = _with_target(extension, target_len)
    if not isinstance(scale_attention, ScaleAttention):
        scale_node = chosen_node("scale_attention", scale_attention, {})
        scale_attention = make_method(scale_node, encoding.shape)
    length = _judged_length(hook, target_len)
    verdict = verdict_of(encoding, extension, scale_attention, [length], allow_untested=True)
    if verdict.noop:  # the reason why the methods change nothing; None if they change something
        raise ConfigError(f"{verdict.noop}: {_advice_for_no_effect(encoding, target_len)}.")
    if fed_length(extension, hook.train_len, length) < length:
        raise ConfigError(
            f"extension={name_of(extension)} reads a separate text for each target, which a cache"
            " cannot: choose another."
        )
    if encoding.rows() is not None and target_len is None and name_of(extension) != "none":
        raise ConfigError(
            f"extension={name_of(extension)} on a learned table needs target_len=TOKENS: rows in a"
            " cache cannot change with each token."
        )
    hook.revert()
    hook.set_methods(extension, scale_attention, target_len)
    lengthen(model, hook)


def _judged_length(hook: AttentionHook, target_len: int | None) -> int:
    """Length in tokens of the text for which methods must be defined and change something."""
    if target_len is not None:
        return target_len
    if hook.table_name is not None:  # a learned table ends there
        return hook.train_len
    return 4 * hook.train_len  # a text that is surely longer than trained


def _with_target(extension: Extension, target_len: int | None) -> Extension:
    """The extension, with the factor of `target_len` at all lengths, unless this is None or the
    node names another length. Each part of compose has its factor, and its node.
    """
    if target_len is None or not extension.follows_length:
        return extension
    return make_method(_node_with_target(extension, target_len), kind=Extension)


def _node_with_target(extension: Extension, target_len: int) -> dict:
    """Yaml node of an extension that was made from one, or of compose, for `_with_target`."""
    if isinstance(extension, Compose):
        parts = [_node_with_target(part, target_len) for part in extension.parts]
        return {"_target_": COMPOSE_CLASS, "parts": parts}
    if not extension.follows_length:
        return extension.node
    return {**extension.node, "mode": "fixed", "target_len": target_len}


def _advice_for_no_effect(encoding: Encoding, target_len: int | None) -> str:
    """Advice for a method that changes nothing."""
    # A learned table is extended only for a target_len.
    if encoding.rows() is not None and target_len is None:
        return "leave it out, or give target_len"
    if not encoding.traits:  # no positions that an extension could change
        return (
            "leave it out, or choose scale_attention=log_n, or"
            " extension=streaming|lm_infinite|window, which hide keys"
        )
    return "leave it out"
