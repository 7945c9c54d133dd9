"""The attention function of a model of transformers whose methods are in place: unturned q and k of one layer, by the layer's plan.

transformers looks a function up by name for each call (AttentionInterface), with the mask function of the same name. Each model has a name
of its own, so models do not share anything. The cache holds unturned keys.

Letters: B batch, T tokens, S queries, K keys, H heads, G key heads, D head width.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.as_trained import AsTrained
from posbench.model.inplace.visible import Visible, visible
from posbench.model.kernels.dispatch import attend
from posbench.model.kernels.tail import tail
from posbench.position.effect import begins_alike
from posbench.position.interfaces import Extension, ScaleAttention
from posbench.position.layer_plan import LayerPlan
from posbench.position.plan import Plan, make_plan

PLANS = 8  # plans that are kept at most, or as many as a batch has texts of different padding
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
    """Positions of one model as measured, the methods in place, and the way of its attention layers to the kernels.

    `layers` gives the place of each layer_idx among the attention layers, `rotary` the modules that turn them, and `table` the name of a
    learned table, whose row `offset` is position 0. `plan` is that of a text read at once, where the caller made it. `watch` is called with
    the place, plan, q and k of each layer that reads whole texts. `changed` holds (object, attribute, value before, value now) of what
    the present methods changed in the model, and `undo` takes the door itself back.
    """

    model: weakref.ref
    train_len: int
    name: str = field(default_factory=lambda: f"posbench_{next(_numbers)}")
    undo: ExitStack = field(default_factory=ExitStack)
    changed: list[tuple[object, str, object, object]] = field(default_factory=list)
    encoding: AsTrained | None = None
    layers: dict[int, int] = field(default_factory=dict)
    rotary: list[nn.Module] = field(default_factory=list)
    table: str | None = None
    offset: int = 0
    extension: Extension | None = None
    scale: ScaleAttention | None = None
    plan: Plan | None = None
    plans: dict[tuple, Plan] = field(default_factory=dict)
    room: int = PLANS
    compared: dict[tuple[int, int], bool] = field(default_factory=dict)
    watch: Callable[[int, LayerPlan, Tensor, Tensor], None] | None = None

    def open(self) -> None:
        """Register the functions with transformers, until `undo` is closed or the model is gone."""
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface

        self.register()
        AttentionMaskInterface.register(self.name, visible)
        for functions in (AttentionInterface, AttentionMaskInterface):
            self.undo.callback(functions._global_mapping.pop, self.name, None)
            weakref.finalize(self.model(), functions._global_mapping.pop, self.name, None)

    def register(self, attention: Callable | None = None) -> None:
        """Have transformers call another attention function under the door's name; by default its own again."""
        from transformers import AttentionInterface

        own = weakref.WeakMethod(self.attention)  # the registry must not keep the model alive, which `undo` refers to
        AttentionInterface.register(self.name, attention or (lambda *args, **given: own()(*args, **given)))

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

    def choose(self, extension: Extension | None, scale: ScaleAttention | None) -> None:
        """Set the methods from here on."""
        self.extension, self.scale = extension, scale
        self.plans.clear()
        self.compared.clear()

    def _made(self, length: int, queries: int | None = None, device: str = "cpu") -> Plan:
        """Plan of the methods, kept while the texts of a batch may ask for it again."""
        key = length, queries, device
        if key not in self.plans:
            if len(self.plans) >= self.room:
                self.plans.clear()
            self.plans[key] = make_plan(self.encoding, self.extension, self.scale, length=length, device=device, queries=queries)
        return self.plans[key]

    def _goes_on(self, before: int, length: int) -> bool:
        """True if a text of `length` tokens treats the first `before` as a text of these alone did, whose keys and values a cache holds.

        Whole octaves are compared once; within one that differs, such as that of a factor of each length, every two texts.
        """
        octaves = range(before.bit_length() - 1, (length - 1).bit_length())
        if all(self._alike(2**octave, 2 ** (octave + 1)) for octave in octaves):
            return True
        return self._alike(before, length)

    def _alike(self, before: int, length: int) -> bool:
        if (before, length) not in self.compared:
            plans = (make_plan(self.encoding, self.extension, self.scale, length=one) for one in (length, before))
            self.compared[before, length] = begins_alike(*plans)
        return self.compared[before, length]

    def layer(self, module: nn.Module, length: int, queries: int | None, device: torch.device) -> LayerPlan:
        """Plan of a module's layer for a text of `length` tokens, of its last `queries` or of all."""
        index = getattr(module, "layer_idx", None)
        if index not in self.layers:
            raise ConfigError(f"{type(module).__name__} {index} attends in this model only now: posbench.restore it, and extend it again.")
        given = self.plan if self.plan is not None and queries is None and self.plan.length == length else None
        return (given or self._made(length, queries, str(device))).layers[self.layers[index]]

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
        """Outputs [B, S, H, D] of a layer, as transformers wants them, and no weights. Raises ConfigError for what has no meaning here."""
        if torch.compiler.is_compiling():
            raise ConfigError("A model with posbench's methods in place cannot be compiled: leave torch.compile and compiled caches out.")
        if dropout:
            raise ConfigError(
                f"attention_dropout={dropout} is not supported with posbench's methods in place: call model.eval(), or set it to 0."
            )
        if not isinstance(attention_mask, Visible):
            raise ConfigError("This model gives its attention its own mask (4 dimensions, or none), which posbench does not support.")
        if others.get("output_attentions"):
            raise ConfigError("output_attentions=True is not supported: posbench's kernels never compute the weights.")
        width = query.shape[-1]
        # Kernels divide by the square root of the width.
        q_BHSD = query.float() if scaling is None else query.float() * (scaling * width**0.5)
        seen = attention_mask.checked()
        k_BGKD, v_BGKD = (t[:, :, : seen.stop - seen.k_start] for t in (key, value))  # a static cache is longer than its text
        given = functools.partial(self._text, module, softcap, s_aux)
        with torch.autocast(q_BHSD.device.type, enabled=False):
            if seen.texts is None:
                found = given(q_BHSD, k_BGKD.float(), v_BGKD, seen.stop, seen.k_start)
            else:
                found = self._rows(given, seen, q_BHSD, k_BGKD, v_BGKD)
        return found.transpose(1, 2).contiguous(), None

    def _rows(self, given: functools.partial, seen: Visible, q_BHSD: Tensor, k_BGKD: Tensor, v_BGKD: Tensor) -> Tensor:
        """Outputs of a padded batch: rows of equal padding at once, each as the text that it is; 0 at padding."""
        found_BHSD = q_BHSD.new_zeros(*q_BHSD.shape[:3], v_BGKD.shape[-1], dtype=v_BGKD.dtype)
        texts = dict.fromkeys(seen.texts)
        self.room = max(PLANS, len(texts))
        for first, stop in texts:
            rows = torch.tensor([row for row, text in enumerate(seen.texts) if text == (first, stop)], device=q_BHSD.device)
            queries = slice(max(first - seen.q_start, 0), stop - seen.q_start)
            if queries.stop <= queries.start:
                continue
            keys = slice(max(first - seen.k_start, 0), stop - seen.k_start)
            k, v = (t[rows][:, :, keys] for t in (k_BGKD, v_BGKD))
            found_BHSD[rows, :, queries] = given(q_BHSD[rows][:, :, queries], k.float(), v, stop - first, max(seen.k_start - first, 0))
        return found_BHSD

    def _text(
        self,
        module: nn.Module,
        softcap: float | None,
        s_aux: Tensor | None,
        q_BHSD: Tensor,
        k_BGKD: Tensor,
        v_BGKD: Tensor,
        length: int,
        gone: int,
    ) -> Tensor:
        """Outputs of whole texts of `length` tokens, of which the cache of a window has dropped the first `gone`: [B, H, S, D]."""
        queries, heads = q_BHSD.shape[2], q_BHSD.shape[1]
        whole = queries == length and not gone
        if not whole and length > queries and not self._goes_on(length - queries, length):
            raise ConfigError(
                f"After {length} tokens this method treats the text otherwise than when the cache was filled, so no cached token can be "
                "exact: give posbench.extend a target_len=TOKENS, or generate with use_cache=False."
            )
        layer = self.layer(module, length, None if whole else queries, q_BHSD.device)
        if softcap is not None or s_aux is not None:
            sinks = () if s_aux is None else ((OwnSink(s_aux), torch.ones(1)),)
            layer = replace(layer, softcap=softcap, scales=(*layer.scales, *sinks))
        if heads % k_BGKD.shape[1]:
            raise ConfigError(
                f"{heads} heads of queries do not share {k_BGKD.shape[1]} heads of keys evenly, which posbench's kernels need."
            )
        if self.watch and whole:
            self.watch(self.layers[module.layer_idx], layer, q_BHSD, k_BGKD)
        return attend(layer, None, q_BHSD, k_BGKD, v_BGKD) if whole else tail(layer, q_BHSD, k_BGKD, v_BGKD)
