"""Caches of keys and values of a model whose methods are in place.

A cache holds unturned keys, and states that one choice of methods made of the text. So each is
marked with that choice when the model fills it, and another one is refused: it would give wrong
logits in silence. A mark is copied with its cache."""

import uuid
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from torch import nn

from posbench.common.errors import ConfigError

if TYPE_CHECKING:
    from transformers import Cache

MARK = "_posbench_methods"


class Caches:
    """The caches that one model filled.

    `methods` names the present choice of methods, and no other one in any process."""

    def __init__(self) -> None:
        self.methods = uuid.uuid4().hex
        self.filled: weakref.WeakSet[Cache] = weakref.WeakSet()

    def renew(self) -> None:
        """Refuse all caches of before."""
        self.methods = uuid.uuid4().hex

    def admit(self, cache: "Cache") -> None:
        """Mark a cache that is about to be filled. Raises ConfigError for one of other methods."""
        if _holds_tokens(cache) and getattr(cache, MARK, None) != self.methods:
            raise ConfigError(
                "This cache was filled before the present methods were put in place, so it cannot"
                " be read: start without past_key_values."
            )
        self.mark(cache)

    def mark(self, cache: "Cache") -> None:
        setattr(cache, MARK, self.methods)
        self.filled.add(cache)

    def close(self) -> None:
        """Have the caches refuse further tokens.

        The model that is as it came would take their keys for its own."""
        for cache in self.filled:
            cache.update = _refuse
        self.filled.clear()

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Context in which caches of a model, and of its decoder alone, are admitted and marked."""
        from transformers import PreTrainedModel

        def admit_inputs(module: nn.Module, args: tuple, keywords: dict) -> None:
            for cache in _caches((*args, *keywords.values())):
                self.admit(cache)

        def mark_outputs(module: nn.Module, args: tuple, output: object) -> None:
            values = output if isinstance(output, tuple) else vars(output).values()
            for cache in _caches(values):
                self.mark(cache)

        with ExitStack() as hooks:
            for module in model.modules():
                if isinstance(module, PreTrainedModel):
                    inputs = module.register_forward_pre_hook(admit_inputs, with_kwargs=True)
                    hooks.callback(inputs.remove)
                    hooks.callback(module.register_forward_hook(mark_outputs).remove)
            yield


def _caches(values: object) -> Iterator["Cache"]:
    from transformers import Cache

    return (value for value in values if isinstance(value, Cache))


def _holds_tokens(cache: "Cache") -> bool:
    try:
        return int(cache.get_seq_length()) > 0
    except ValueError:  # of a model without attention
        return bool(cache.has_previous_state())


def _refuse(*args: object, **keywords: object) -> None:
    raise ConfigError(
        "This cache was filled while posbench's methods were in place, and the restored model"
        " cannot read it: start without past_key_values."
    )
