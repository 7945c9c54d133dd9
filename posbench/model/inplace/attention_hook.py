"""The attention function of a model of transformers whose methods are in place: unturned q and k of
one layer, by the layer's plan.

transformers looks a function up by name for each call (AttentionInterface), with the mask function
of the same name. Each model has a name of its own, so models do not share anything. The cache holds
unturned keys.

Letters: B batch, T tokens, S queries, K keys, H heads, G key heads, D head width.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.as_trained import AsTrained
from posbench.model.inplace.caches import Caches
from posbench.model.inplace.families.family import Family
from posbench.model.inplace.visible import Visible, visible
from posbench.model.kernels.dispatch import attend
from posbench.model.kernels.tail import tail
from posbench.position.effect import begins_alike
from posbench.position.interfaces import Extension, ScaleAttention
from posbench.position.layer_plan import LayerPlan
from posbench.position.plan import Plan, make_plan

PLANS = 8  # plans that are kept at most, or as many as a batch has texts of different padding
UNTRACED = (  # so torch.compile leaves it as it is
    "posbench's attention depends on the length of each text"
)
_numbers = itertools.count()


class OwnSink(ScaleAttention):
    """Sink of a layer of the model itself (gpt-oss)."""

    def __init__(self, logit_H: Tensor):
        nn.Module.__init__(self)
        self.__dict__["logit_H"] = logit_H  # the model's parameter stays the model's alone

    def sink(self, layer: int) -> Tensor:
        return self.logit_H


@dataclass
class Door:
    """Positions of one model as measured, the methods in place, and the way of its attention layers
    to the kernels.

    `configured`: the training length is that of the model's configuration, and nobody gave another.
    `layers` gives the place of each attention module among the attention layers, `rotary` the
    modules that turn them, and `table` the name of a learned table, whose row `offset` is position
    0. `family` is that of a model whose attention modules compute the scores themselves, None for
    others. `plan` is that of a text read at once, where the caller made it. `watch` is called with
    the place, plan, q and k of each layer that reads whole texts. `target_len` is the number of
    tokens that the methods are set for. `changed` holds (object, attribute, value before, value
    now) of what the present methods changed in the model, and `undo` takes the door itself back.
    """

    model: weakref.ref
    train_len: int
    configured: bool = False
    name: str = field(default_factory=lambda: f"posbench_{next(_numbers)}")
    undo: ExitStack = field(default_factory=ExitStack)
    changed: list[tuple[object, str, object, object]] = field(default_factory=list)
    encoding: AsTrained | None = None
    layers: weakref.WeakKeyDictionary[nn.Module, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    rotary: list[nn.Module] = field(default_factory=list)
    table: str | None = None
    offset: int = 0
    family: Family | None = None
    extension: Extension | None = None
    scale: ScaleAttention | None = None
    target_len: int | None = None
    plan: Plan | None = None
    plans: dict[tuple, Plan] = field(default_factory=dict)
    room: int = PLANS
    compared: dict[tuple[int, int], bool] = field(default_factory=dict)
    caches: Caches = field(default_factory=Caches)
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
        """Context in which attention modules that compute the scores themselves go through the door
        too.
        """
        return nullcontext() if self.family is None else self.family.in_place(self.name)

    def register(self, attention: Callable | None = None) -> None:
        """Have transformers call another attention function under the door's name; by default its
        own again.
        """
        from transformers import AttentionInterface

        if attention is None:
            attention_of_door = weakref.WeakMethod(
                self.attention
            )  # the registry must not keep the model alive

            @functools.partial(torch.compiler.disable, reason=UNTRACED)
            def attention(*args: object, **keywords: object) -> tuple[Tensor, None]:
                return attention_of_door()(*args, **keywords)

        AttentionInterface.register(self.name, attention)

    def change(self, thing: object, name: str, value: object) -> None:
        """Set an attribute until `revert`."""
        self.changed.append((thing, name, getattr(thing, name), value))
        setattr(thing, name, value)

    def revert(self) -> None:
        """Set back what was changed."""
        for thing, name, before, _ in reversed(self.changed):
            setattr(thing, name, before)
        self.changed.clear()

    @contextmanager
    def reverted(self) -> Iterator[None]:
        """Context in which the model is as it came."""
        changed = list(self.changed)
        self.revert()
        try:
            yield
        finally:
            for thing, name, _, now in changed:
                self.change(thing, name, now)

    def choose(self, extension: Extension, scale: ScaleAttention, target_len: int | None) -> None:
        """Set the methods from here on, and the tokens that they are set for."""
        self.extension = extension
        self.scale = scale
        self.target_len = target_len
        self.plans.clear()
        self.compared.clear()
        self.caches.renew()

    def _goes_on(self, before: int, length: int) -> bool:
        """True if a text of `length` tokens treats the first `before` as a text of these alone did,
        whose keys and values a cache holds.

        Whole octaves are compared once; within one that differs, such as that of a factor of each
        length, every two texts."""
        octaves = range(before.bit_length() - 1, (length - 1).bit_length())
        return all(self._alike(2**octave, 2 ** (octave + 1)) for octave in octaves) or self._alike(
            before, length
        )

    def _alike(self, before: int, length: int) -> bool:
        if (before, length) not in self.compared:
            plans = (
                make_plan(self.encoding, self.extension, self.scale, length=one)
                for one in (length, before)
            )
            self.compared[before, length] = begins_alike(*plans)
        return self.compared[before, length]

    def layer(
        self, module: nn.Module, length: int, queries: int | None, device: torch.device
    ) -> LayerPlan:
        """Plan of a module's layer for a text of `length` tokens, of its last `queries` or of all;
        kept while a batch may ask again.
        """
        if module not in self.layers:
            raise ConfigError(
                f"A {type(module).__name__} attends by the methods of another model, or joined its"
                " model after posbench.extend: restore the extended model, and extend the one that"
                " you use."
            )
        key = length, queries, str(device)
        plan = (
            self.plan
            if self.plan is not None and queries is None and self.plan.length == length
            else self.plans.get(key)
        )
        if plan is None:
            if len(self.plans) >= self.room:
                self.plans.clear()
            plan = self.plans[key] = make_plan(
                self.encoding,
                self.extension,
                self.scale,
                length=length,
                device=key[2],
                queries=queries,
            )
        return plan.layers[self.layers[module]]

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
        """Outputs [B, S, H, D] of a layer, as transformers wants them, and no weights. Raises
        ConfigError for what has no meaning here.
        """
        if dropout:
            raise ConfigError(
                f"attention_dropout={dropout} is not supported with posbench's methods in place:"
                " call model.eval(), or set it to 0."
            )
        if not isinstance(attention_mask, Visible):
            raise ConfigError(
                "This model gives its attention its own mask (4 dimensions, or none), which"
                " posbench does not support."
            )
        if others.get("output_attentions"):
            raise ConfigError(
                "output_attentions=True is not supported: posbench's kernels never compute the"
                " weights."
            )
        # Kernels divide by the square root of the width.
        q_BHSD = (
            query.float() if scaling is None else query.float() * (scaling * query.shape[-1] ** 0.5)
        )
        seen = attention_mask.checked()
        found_BHSD = value.new_zeros(*query.shape[:3], value.shape[-1])
        texts = seen.texts or ((0, seen.stop),) * len(query)
        self.room = max(PLANS, len(set(texts)))
        # Rows of equal padding at once, each as the text that it is; 0 at padding.
        for first, stop in dict.fromkeys(texts):
            queries, keys = (
                slice(max(first - start, 0), stop - start) for start in (seen.q_start, seen.k_start)
            )
            if queries.stop <= queries.start:
                continue
            alike = [row for row, text in enumerate(texts) if text == (first, stop)]
            rows = (
                slice(None)
                if len(alike) == len(texts)
                else torch.tensor(alike, device=query.device)
            )
            q, k, v = q_BHSD[rows][:, :, queries], key[rows][:, :, keys], value[rows][:, :, keys]
            with torch.autocast(query.device.type, enabled=False):
                given = stop - first, max(seen.k_start - first, 0)
                found_BHSD[rows, :, queries] = self._text(
                    module, (softcap, s_aux), q, k.float(), v, *given
                )
        return found_BHSD.transpose(1, 2).contiguous(), None

    def _text(
        self,
        module: nn.Module,
        own: tuple,
        q_BHSD: Tensor,
        k_BGKD: Tensor,
        v_BGKD: Tensor,
        length: int,
        gone: int,
    ) -> Tensor:
        """Outputs of whole texts of `length` tokens, of which the cache of a window has dropped the
        first `gone`: [B, H, S, D].

        `own`: the layer's soft cap and the logits of its sink, None without.
        """
        queries, (softcap, s_aux) = q_BHSD.shape[2], own
        whole = queries == length and not gone
        if not whole and length > queries and not self._goes_on(length - queries, length):
            raise ConfigError(
                f"After {length} tokens this method treats the text otherwise than when the cache"
                " was filled, so no cached token can be exact: give posbench.extend a"
                " target_len=TOKENS, or generate with use_cache=False."
            )
        layer = self.layer(module, length, None if whole else queries, q_BHSD.device)
        if gone and self._sees_all(module):
            raise ConfigError(
                f"{type(self.model()).__name__}'s cache has dropped the first {gone} of {length}"
                " tokens, which its attention to a whole text sees. Without posbench's methods it"
                " does so too. Pass past_key_values=transformers.DynamicCache(), or"
                " use_cache=False."
            )
        if softcap is not None or s_aux is not None:
            sinks = () if s_aux is None else ((OwnSink(s_aux), torch.ones(1)),)
            layer = replace(layer, softcap=softcap, scales=(*layer.scales, *sinks))
        if self.watch and whole:
            self.watch(self.layers[module], layer, q_BHSD, k_BGKD)
        return (
            attend(layer, None, q_BHSD, k_BGKD, v_BGKD)
            if whole
            else tail(layer, q_BHSD, k_BGKD, v_BGKD)
        )
