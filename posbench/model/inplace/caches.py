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

METHODS_ATTRIBUTE = "_posbench_methods"


class Caches:
    """The caches that one model filled.

    `methods_id` names the present choice of methods, and no other one in any process."""

    def __init__(self) -> None:
        self.methods_id = uuid.uuid4().hex
        self.filled_caches: weakref.WeakSet[Cache] = weakref.WeakSet()

    def refuse_earlier(self) -> None:
        """Refuse all caches that were filled until now, since the methods change."""
        self.methods_id = uuid.uuid4().hex

    def check_and_mark(self, cache: "Cache") -> None:
        """Mark a cache that is about to be filled. Raises ConfigError for one of other methods."""
        if _holds_tokens(cache) and getattr(cache, METHODS_ATTRIBUTE, None) != self.methods_id:
            raise ConfigError(
                "This cache was filled before the present methods were put in place, so it cannot"
                " be read: start without past_key_values."
            )
        self.mark(cache)

    def mark(self, cache: "Cache") -> None:
        """Note in a cache by which methods it is filled, and keep it among `filled_caches`."""
        setattr(cache, METHODS_ATTRIBUTE, self.methods_id)
        self.filled_caches.add(cache)

    def refuse_further_tokens(self) -> None:
        """Have all caches that were filled refuse further tokens.

        The model that is as it came would take their keys for its own."""
        for cache in self.filled_caches:
            cache.update = _refuse_update
        self.filled_caches.clear()

    @contextmanager
    def marking_caches_of(self, model: nn.Module) -> Iterator[None]:
        """Context in which caches of a model, and of its decoder alone, are checked and marked."""
        from transformers import PreTrainedModel

        def admit_inputs(module: nn.Module, args: tuple, keywords: dict) -> None:
            for cache in _caches_among((*args, *keywords.values())):
                self.check_and_mark(cache)

        def mark_outputs(module: nn.Module, args: tuple, output: object) -> None:
            values = output if isinstance(output, tuple) else vars(output).values()
            for cache in _caches_among(values):
                self.mark(cache)

        with ExitStack() as hooks:
            for module in model.modules():
                if isinstance(module, PreTrainedModel):
                    inputs = module.register_forward_pre_hook(admit_inputs, with_kwargs=True)
                    hooks.callback(inputs.remove)
                    hooks.callback(module.register_forward_hook(mark_outputs).remove)
            yield


def _caches_among(values: object) -> Iterator["Cache"]:
    """Those of some arguments or outputs that are caches."""
    from transformers import Cache

    return (value for value in values if isinstance(value, Cache))


def _holds_tokens(cache: "Cache") -> bool:
    """True if a cache holds keys and values, or states, of earlier tokens."""
    try:
        return int(cache.get_seq_length()) > 0
    except ValueError:  # a cache of states alone, of a model without attention
        return bool(cache.has_previous_state())


def _refuse_update(*args: object, **keywords: object) -> None:
    """`update` of a cache of a model that was restored: raise ConfigError."""
    raise ConfigError(
        "This cache was filled while posbench's methods were in place, and the restored model"
        " cannot read it: start without past_key_values."
    )
