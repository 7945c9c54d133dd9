"""The attention function of a transformers model whose methods are in place.

It takes unturned q and k of one layer and applies the layer's plan. transformers looks a function
up by name for each call (AttentionInterface), with the mask function of the same name. Each model
has a name of its own, so models do not share anything. The cache holds unturned keys.

Letters: B batch, T tokens, S queries, K keys, H heads, G key heads, D head width.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.as_trained import AsTrained
from posbench.model.inplace.caches import Caches
from posbench.model.inplace.families.family import Family
from posbench.model.inplace.visible import Visible, visible
from posbench.model.kernels.dispatch import attend
from posbench.model.kernels.tail import tail
from posbench.position.effect import same_prefix
from posbench.position.interfaces import Extension, ScaleAttention
from posbench.position.layer_plan import LayerPlan
from posbench.position.plan import Plan, make_plan

PLANS = 8  # plans that are kept at most, or as many as a batch has texts of different padding
# Reason for which torch.compile leaves the functions as they are.
UNTRACED = "posbench's attention depends on the length of each text"
_numbers = itertools.count()


class OwnSink(ScaleAttention):
    """Sink of a layer of the model itself (gpt-oss)."""

    def __init__(self, logit_H: Tensor):
        nn.Module.__init__(self)
        self.__dict__["logit_H"] = logit_H  # the model's parameter stays the model's alone

    def sink(self, layer: int) -> Tensor:
        return self.logit_H


class Change(NamedTuple):
    """An attribute of an object in the model, with its value before and after."""

    owner: object
    name: str
    before: object
    after: object


class CachedText(NamedTuple):
    """A text of `length` tokens, of which the cache of a window has dropped the first `dropped`."""

    length: int
    dropped: int


class Extras(NamedTuple):
    """Soft cap and sink [H] of a layer of the model itself; None without."""

    softcap: float | None
    sink_H: Tensor | None


@dataclass
class AttentionHook:
    """Positions of one model as measured, the methods in place, and the way of its attention layers
    to the kernels.
    """

    model: weakref.ref
    train_len: int
    # True if the training length is that of the model's configuration, and nobody gave another.
    configured: bool = False
    name: str = field(default_factory=lambda: f"posbench_{next(_numbers)}")
    # Family of a model whose attention modules compute the scores themselves.
    family: Family | None = None
    # Takes the hook back when it is closed.
    undo: ExitStack = field(default_factory=ExitStack)

    # What was measured: each attention module's place among the attention layers, the modules that
    # turn them, and the name of a learned table, whose row `offset` is position 0.
    encoding: AsTrained | None = None
    layers: weakref.WeakKeyDictionary[nn.Module, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    rotary: list[nn.Module] = field(default_factory=list)
    table: str | None = None
    offset: int = 0

    # The methods, the number of tokens that they are set for, and what they changed in the model.
    extension: Extension | None = None
    scale: ScaleAttention | None = None
    target_len: int | None = None
    changes: list[Change] = field(default_factory=list)

    # The plan of a text that is read at once, where the caller made it; else at most `room` plans
    # {(length, queries, device): plan}.
    plan: Plan | None = None
    plans: dict[tuple[int, int | None, str], Plan] = field(default_factory=dict)
    room: int = PLANS
    # {(length, longer length): whether a text of the longer one treats its beginning alike}
    same_beginnings: dict[tuple[int, int], bool] = field(default_factory=dict)
    caches: Caches = field(default_factory=Caches)
    # Called with the place, plan, q and k of each layer that reads whole texts.
    watch: Callable[[int, LayerPlan, Tensor, Tensor], None] | None = None

    def open(self) -> None:
        """Register the functions with transformers, until `undo` is closed or the model is gone."""
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface

        self.register()
        AttentionMaskInterface.register(self.name, torch.compiler.disable(visible, reason=UNTRACED))
        for functions in (AttentionInterface, AttentionMaskInterface):
            self.undo.callback(functions._global_mapping.pop, self.name, None)
            weakref.finalize(self.model(), functions._global_mapping.pop, self.name, None)

    def in_place(self) -> AbstractContextManager[None]:
        """Context in which modules that compute the scores themselves go through the hook too."""
        if self.family is None:
            return nullcontext()
        return self.family.in_place(self.name)

    def register(self, attention: Callable | None = None) -> None:
        """Have transformers call this attention function by the hook's name; default: its own."""
        from transformers import AttentionInterface

        if attention is None:
            attention = self._weak_attention()
        AttentionInterface.register(self.name, attention)

    def _weak_attention(self) -> Callable:
        """The hook's attention function, which does not keep the hook and its model alive."""
        reference = weakref.WeakMethod(self.attention)

        @functools.partial(torch.compiler.disable, reason=UNTRACED)
        def attention(*args: object, **keywords: object) -> tuple[Tensor, None]:
            return reference()(*args, **keywords)

        return attention

    def change(self, owner: object, name: str, value: object) -> None:
        """Set an attribute until `revert`."""
        self.changes.append(Change(owner, name, getattr(owner, name), value))
        setattr(owner, name, value)

    def revert(self) -> None:
        """Set back what was changed."""
        for change in reversed(self.changes):
            setattr(change.owner, change.name, change.before)
        self.changes.clear()

    @contextmanager
    def reverted(self) -> Iterator[None]:
        """Context in which the model is as it came."""
        changes = list(self.changes)
        self.revert()
        try:
            yield
        finally:
            for change in changes:
                self.change(change.owner, change.name, change.after)

    def choose(self, extension: Extension, scale: ScaleAttention, target_len: int | None) -> None:
        """Set the methods from here on, and the tokens that they are set for."""
        self.extension = extension
        self.scale = scale
        self.target_len = target_len
        self.plans.clear()
        self.same_beginnings.clear()
        self.caches.renew()

    def _continues(self, before: int, length: int) -> bool:
        """True if a text of `length` tokens treats the first `before` as a text of these alone did,
        whose keys and values a cache holds.

        Whole octaves are compared once; within one that differs, such as that of a factor of each
        length, every two texts."""
        octaves = range(before.bit_length() - 1, (length - 1).bit_length())
        if all(self._same_beginning(2**octave, 2 ** (octave + 1)) for octave in octaves):
            return True
        return self._same_beginning(before, length)

    def _same_beginning(self, before: int, length: int) -> bool:
        """True if a text of `length` tokens treats its first `before` as a text of these alone."""
        if (before, length) not in self.same_beginnings:
            methods = (self.encoding, self.extension, self.scale)
            longer = make_plan(*methods, length=length)
            shorter = make_plan(*methods, length=before)
            self.same_beginnings[before, length] = same_prefix(longer, shorter)
        return self.same_beginnings[before, length]

    def layer(
        self, module: nn.Module, length: int, queries: int | None, device: torch.device
    ) -> LayerPlan:
        """Plan of a module's layer for a text of `length` tokens, of its last `queries` or of all.

        It is kept while a batch may ask again."""
        if module not in self.layers:
            raise ConfigError(
                f"A {type(module).__name__} attends by the methods of another model, or joined its"
                " model after posbench.extend: restore the extended model, and extend the one that"
                " you use."
            )
        if self.plan is not None and queries is None and self.plan.length == length:
            return self.plan.layers[self.layers[module]]  # the caller made it
        key = (length, queries, str(device))
        if key not in self.plans:
            if len(self.plans) >= self.room:  # the latest batch has other texts
                self.plans.clear()
            methods = (self.encoding, self.extension, self.scale)
            self.plans[key] = make_plan(
                *methods, length=length, device=str(device), queries=queries
            )
        return self.plans[key].layers[self.layers[module]]

    def _sees_all(self, module: nn.Module) -> bool:
        """True if the model's own attention in this module has no window and no chunks."""
        layer = self.encoding.layers()[self.layers[module]]
        return layer.window is None and layer.chunk is None

    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Visible,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **others: object,
    ) -> tuple[Tensor, None]:
        """Outputs [B, S, H, D] of a layer, as transformers wants them, and no weights.

        Raises ConfigError for what has no meaning here."""
        _check_call(attention_mask, dropout, others)
        q_BHSD = query.float()
        if scaling is not None:
            # Kernels divide by the square root of the width, which is taken back here.
            q_BHSD = q_BHSD * (scaling * query.shape[-1] ** 0.5)
        mask = attention_mask.checked()
        extras = Extras(softcap, s_aux)
        y_BHSD = value.new_zeros(*query.shape[:3], value.shape[-1])  # 0 at padding
        texts = mask.texts or ((0, mask.stop),) * len(query)
        distinct_texts = dict.fromkeys(texts)
        self.room = max(PLANS, len(distinct_texts))
        # Rows of equal padding are read at once, each as the text that it is.
        for first, stop in distinct_texts:
            queries = slice(max(first - mask.q_start, 0), stop - mask.q_start)
            keys = slice(max(first - mask.k_start, 0), stop - mask.k_start)
            if queries.stop <= queries.start:  # all of its new tokens are padding
                continue
            rows = slice(None)
            if len(distinct_texts) > 1:
                alike = [row for row, text in enumerate(texts) if text == (first, stop)]
                rows = torch.tensor(alike, device=query.device)
            text = CachedText(length=stop - first, dropped=max(mask.k_start - first, 0))
            q = q_BHSD[rows][:, :, queries]
            k = key[rows][:, :, keys].float()
            v = value[rows][:, :, keys]
            with torch.autocast(query.device.type, enabled=False):
                y_BHSD[rows, :, queries] = self._attend(module, text, extras, q, k, v)
        return y_BHSD.transpose(1, 2).contiguous(), None

    def _attend(
        self,
        module: nn.Module,
        text: CachedText,
        extras: Extras,
        q_BHSD: Tensor,
        k_BGKD: Tensor,
        v_BGKD: Tensor,
    ) -> Tensor:
        """Outputs of the last S queries of texts of one length: [B, H, S, D]."""
        queries = q_BHSD.shape[2]
        read_at_once = queries == text.length and not text.dropped
        cached = text.length - queries
        if cached > 0 and not self._continues(cached, text.length):
            raise ConfigError(
                f"After {text.length} tokens this method treats the text otherwise than when the"
                " cache was filled, so no cached token can be exact: give posbench.extend a"
                " target_len=TOKENS, or generate with use_cache=False."
            )
        layer = self.layer(module, text.length, None if read_at_once else queries, q_BHSD.device)
        if text.dropped and self._sees_all(module):
            raise ConfigError(
                f"{type(self.model()).__name__}'s cache has dropped the first {text.dropped} of"
                f" {text.length} tokens, which its attention to a whole text sees. Without"
                " posbench's methods it does so too. Pass"
                " past_key_values=transformers.DynamicCache(), or use_cache=False."
            )
        layer = _with_extras(layer, extras)
        if not read_at_once:
            return tail(layer, q_BHSD, k_BGKD, v_BGKD)
        if self.watch is not None:
            self.watch(self.layers[module], layer, q_BHSD, k_BGKD)
        return attend(layer, None, q_BHSD, k_BGKD, v_BGKD)


def _check_call(mask: object, dropout: float, options: dict) -> None:
    """Raise ConfigError for arguments of an attention function that have no meaning here."""
    if dropout:
        raise ConfigError(
            f"attention_dropout={dropout} is not supported with posbench's methods in place:"
            " call model.eval(), or set it to 0."
        )
    if not isinstance(mask, Visible):
        raise ConfigError(
            "This model gives its attention its own mask (4 dimensions, or none), which"
            " posbench does not support."
        )
    if options.get("output_attentions"):
        raise ConfigError(
            "output_attentions=True is not supported: posbench's kernels never compute the weights."
        )


def _with_extras(layer: LayerPlan, extras: Extras) -> LayerPlan:
    """The plan with the soft cap and the sink of the model's own layer."""
    if extras.softcap is None and extras.sink_H is None:
        return layer
    scales = layer.scales
    if extras.sink_H is not None:
        factor_1 = torch.ones(1)  # a sink leaves the scores of all queries as they are
        scales = (*scales, (OwnSink(extras.sink_H), factor_1))
    return replace(layer, softcap=extras.softcap, scales=scales)
