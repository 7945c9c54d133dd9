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
from posbench.model.inplace.visible import CompactMask, compact_mask
from posbench.model.kernels.dispatch import attend
from posbench.model.kernels.tail import attend_tail
from posbench.position.effect import same_prefix
from posbench.position.interfaces import Extension, ScaleAttention
from posbench.position.layer_plan import LayerPlan
from posbench.position.plan import Plan, make_plan

USUAL_MOST_PLANS = 8  # plans kept at most; more where a batch has more texts of different padding
# Reason for which torch.compile leaves the functions as they are.
UNTRACED = "posbench's attention depends on the length of each text"
_numbers = itertools.count()


class LayerSink(ScaleAttention):
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


class SoftcapAndSink(NamedTuple):
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
    has_configured_train_len: bool = False
    name: str = field(default_factory=lambda: f"posbench_{next(_numbers)}")
    # Family of a model whose attention modules compute the scores themselves.
    family: Family | None = None
    # Takes the hook back when it is closed.
    undo: ExitStack = field(default_factory=ExitStack)

    # What was measured: {attention module: index of its layer}, the modules that turn q and k, and
    # the name of the module that is a learned table of positions; None without one.
    encoding: AsTrained | None = None
    layer_indices: weakref.WeakKeyDictionary[nn.Module, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    rotary_modules: list[nn.Module] = field(default_factory=list)
    table_name: str | None = None
    row_of_position_0: int = 0

    # The methods, the number of tokens that they are set for, and what they changed in the model.
    extension: Extension | None = None
    scale: ScaleAttention | None = None
    target_len: int | None = None
    changes: list[Change] = field(default_factory=list)

    # The plan of a text that is read at once, where the caller made it; else at most `most_plans`
    # plans {(length, queries, device): plan}. `queries` is None for a text that is read at once.
    plan: Plan | None = None
    plans: dict[tuple[int, int | None, str], Plan] = field(default_factory=dict)
    most_plans: int = USUAL_MOST_PLANS
    # {(length, longer length): whether a text of the longer one treats its beginning alike}
    beginnings_alike: dict[tuple[int, int], bool] = field(default_factory=dict)
    caches: Caches = field(default_factory=Caches)
    # Called with the index, plan, q and k of each layer that reads a whole text at once.
    observe_layer: Callable[[int, LayerPlan, Tensor, Tensor], None] | None = None

    def register_with_transformers(self) -> None:
        """Register the functions with transformers, until `undo` is closed or the model is gone."""
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface

        self.register_attention()
        untraced_mask = torch.compiler.disable(compact_mask, reason=UNTRACED)
        AttentionMaskInterface.register(self.name, untraced_mask)
        for registry in (AttentionInterface, AttentionMaskInterface):
            forget = functools.partial(registry._global_mapping.pop, self.name, None)
            self.undo.callback(forget)
            weakref.finalize(self.model(), forget)

    def through_registry(self) -> AbstractContextManager[None]:
        """Context in which modules that compute scores themselves ask the registry as others do."""
        if self.family is None:
            return nullcontext()
        return self.family.through_registry(self.name)

    def register_attention(self, attention: Callable | None = None) -> None:
        """Have transformers call an attention function by the hook's name; default: its own."""
        from transformers import AttentionInterface

        if attention is None:
            attention = self._attention_by_weak_reference()
        AttentionInterface.register(self.name, attention)

    def _attention_by_weak_reference(self) -> Callable:
        """The hook's attention function, which does not keep the hook and its model alive."""
        reference = weakref.WeakMethod(self.attention)

        @functools.partial(torch.compiler.disable, reason=UNTRACED)
        def attention(*args: object, **keywords: object) -> tuple[Tensor, None]:
            return reference()(*args, **keywords)

        return attention

    def set_until_revert(self, owner: object, name: str, value: object) -> None:
        """Set an attribute of an object in the model until `revert` sets it back."""
        self.changes.append(Change(owner, name, getattr(owner, name), value))
        setattr(owner, name, value)

    def revert(self) -> None:
        """Set back all attributes that `set_until_revert` changed."""
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
                self.set_until_revert(change.owner, change.name, change.after)

    def set_methods(
        self, extension: Extension, scale: ScaleAttention, target_len: int | None
    ) -> None:
        """Set the methods from here on, and the tokens that they are set for."""
        self.extension = extension
        self.scale = scale
        self.target_len = target_len
        self.plans.clear()
        self.beginnings_alike.clear()
        self.caches.refuse_earlier()

    def _cached_stay_exact(self, cached: int, length: int) -> bool:
        """True if a text of `length` tokens treats its first `cached` tokens, whose keys and values
        a cache holds, as they were treated when they were the whole text.

        A method that treats beginnings alike from every power of two to the next, and from the
        token before that, is taken to do so between them, so that it is not asked again for each
        length. Of any other, such as one with a factor of each length, the two lengths are
        compared."""
        # from the power of two up to `cached` to that from `length` on
        octaves = range(cached.bit_length() - 1, (length - 1).bit_length())
        if all(self._is_alike_within_octave(octave) for octave in octaves):
            return True
        return self._treats_beginning_alike(cached, length)

    def _is_alike_within_octave(self, octave: int) -> bool:
        """True if a text of 2^(octave + 1) tokens treats its first half, and all but its last
        token, as texts of these alone.

        A method that reads a text in pieces (dynamic_ntk with `fed`) is alike from one power of two
        to the next, where whole pieces end, and not in the middle of a piece."""
        longer = 2 ** (octave + 1)
        return all(
            self._treats_beginning_alike(shorter, longer) for shorter in (longer // 2, longer - 1)
        )

    def _treats_beginning_alike(self, beginning: int, length: int) -> bool:
        """True if a text of `length` tokens treats its first `beginning` tokens as a text of these
        alone.
        """
        if (beginning, length) not in self.beginnings_alike:
            methods = (self.encoding, self.extension, self.scale)
            longer = make_plan(*methods, length=length)
            shorter = make_plan(*methods, length=beginning)
            self.beginnings_alike[beginning, length] = same_prefix(longer, shorter)
        return self.beginnings_alike[beginning, length]

    def layer_plan(
        self, module: nn.Module, length: int, queries: int | None, device: torch.device
    ) -> LayerPlan:
        """Plan of a module's layer for a text of `length` tokens, of its last `queries` or of all.

        It is kept while a batch may ask again."""
        if module not in self.layer_indices:
            raise ConfigError(
                f"A {type(module).__name__} attends by the methods of another model, or joined its"
                " model after posbench.extend: restore the extended model, and extend the one that"
                " you use."
            )
        if self.plan is not None and queries is None and self.plan.length == length:
            return self.plan.layers[self.layer_indices[module]]  # the caller made it
        key = (length, queries, str(device))
        if key not in self.plans:
            # Most are of earlier batches. Those of this one are made once more.
            if len(self.plans) >= self.most_plans:
                self.plans.clear()
            methods = (self.encoding, self.extension, self.scale)
            self.plans[key] = make_plan(
                *methods, length=length, device=str(device), queries=queries
            )
        return self.plans[key].layers[self.layer_indices[module]]

    def _sees_whole_text(self, module: nn.Module) -> bool:
        """True if the model's own attention in this module has no window and no chunks."""
        layer = self.encoding.layers()[self.layer_indices[module]]
        return layer.window is None and layer.chunk is None

    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: CompactMask,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **others: object,
    ) -> tuple[Tensor, None]:
        """Outputs [B, S, H, D] of a layer by its plan, as transformers wants them, and no weights.

        Raises ConfigError for arguments that have no meaning here."""
        _check_arguments(attention_mask, dropout, others)
        q_BHSD = query.float()
        if scaling is not None:
            # Kernels divide by the square root of the width, which is taken back here.
            q_BHSD = q_BHSD * (scaling * query.shape[-1] ** 0.5)
        mask = attention_mask.checked()
        softcap_and_sink = SoftcapAndSink(softcap, s_aux)
        y_BHSD = value.new_zeros(*query.shape[:3], value.shape[-1])  # 0 at padding
        text_bounds = mask.text_bounds or ((0, mask.n_tokens),) * len(query)
        distinct_bounds = dict.fromkeys(text_bounds)
        # Later layers ask for the plans of all texts of this batch again.
        self.most_plans = max(USUAL_MOST_PLANS, len(distinct_bounds))
        # Rows of equal padding are read at once, each as the text that it is.
        for first, stop in distinct_bounds:
            # Columns of this text, without its padding and without what a cache has dropped.
            query_columns = slice(max(first - mask.q_start, 0), stop - mask.q_start)
            key_columns = slice(max(first - mask.k_start, 0), stop - mask.k_start)
            if query_columns.stop <= query_columns.start:  # all of its new tokens are padding
                continue
            rows = slice(None)  # all
            if len(distinct_bounds) > 1:
                rows_alike = [
                    row for row, bounds in enumerate(text_bounds) if bounds == (first, stop)
                ]
                rows = torch.tensor(rows_alike, device=query.device)
            text = CachedText(length=stop - first, dropped=max(mask.k_start - first, 0))
            q = q_BHSD[rows][:, :, query_columns]
            k = key[rows][:, :, key_columns].float()
            v = value[rows][:, :, key_columns]  # only scores need float32
            with torch.autocast(query.device.type, enabled=False):
                y_BHSD[rows, :, query_columns] = self._attend(
                    module, text, softcap_and_sink, q, k, v
                )
        return y_BHSD.transpose(1, 2).contiguous(), None

    def _attend(
        self,
        module: nn.Module,
        text: CachedText,
        softcap_and_sink: SoftcapAndSink,
        q_BHSD: Tensor,
        k_BGKD: Tensor,
        v_BGKD: Tensor,
    ) -> Tensor:
        """Outputs of the last S queries of texts of one length, by the layer's plan: [B, H, S, D].

        Raises ConfigError where a cache has not what the plan needs."""
        n_queries = q_BHSD.shape[2]
        is_read_at_once = n_queries == text.length and not text.dropped
        cached = text.length - n_queries
        if cached > 0 and not self._cached_stay_exact(cached, text.length):
            raise ConfigError(
                f"After {text.length} tokens this method treats the text otherwise than when the"
                " cache was filled, so no cached token can be exact: give posbench.extend a"
                " target_len=TOKENS, or generate with use_cache=False."
            )
        layer = self.layer_plan(
            module, text.length, None if is_read_at_once else n_queries, q_BHSD.device
        )
        if text.dropped and self._sees_whole_text(module):
            raise ConfigError(
                f"{type(self.model()).__name__}'s cache has dropped the first {text.dropped} of"
                f" {text.length} tokens, which its attention to a whole text sees. Without"
                " posbench's methods it does so too. Pass"
                " past_key_values=transformers.DynamicCache(), or use_cache=False."
            )
        layer = _with_softcap_and_sink(layer, softcap_and_sink)
        if not is_read_at_once:
            return attend_tail(layer, q_BHSD, k_BGKD, v_BGKD)
        if self.observe_layer is not None:  # set by who wants to see q and k
            self.observe_layer(self.layer_indices[module], layer, q_BHSD, k_BGKD)
        # What posbench puts in place reads no input of the layer.
        return attend(layer, None, q_BHSD, k_BGKD, v_BGKD)


def _check_arguments(mask: object, dropout: float, options: dict) -> None:
    """Raise ConfigError for arguments of an attention function that have no meaning here."""
    if dropout:
        raise ConfigError(
            f"attention_dropout={dropout} is not supported with posbench's methods in place:"
            " call model.eval(), or set it to 0."
        )
    if not isinstance(mask, CompactMask):
        raise ConfigError(
            "This model gives its attention its own mask (4 dimensions, or none), which"
            " posbench does not support."
        )
    if options.get("output_attentions"):
        raise ConfigError(
            "output_attentions=True is not supported: posbench's kernels never compute the weights."
        )


def _with_softcap_and_sink(layer: LayerPlan, softcap_and_sink: SoftcapAndSink) -> LayerPlan:
    """The plan with the soft cap and the sink of the model's own layer."""
    if softcap_and_sink.softcap is None and softcap_and_sink.sink_H is None:
        return layer
    scales = layer.scales
    if softcap_and_sink.sink_H is not None:
        factor_1 = torch.ones(1)  # a sink leaves the scores of all queries as they are
        scales = (*scales, (LayerSink(softcap_and_sink.sink_H), factor_1))
    return replace(layer, softcap=softcap_and_sink.softcap, scales=scales)
