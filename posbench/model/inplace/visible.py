"""A transformers mask in a few numbers: the part of each row that is text, and a query's reach.

No [T, T] is built. transformers hands the registered mask function a rule for pairs (query, key)
and the padding mask of the batch; what it returns reaches the attention function as it is.

Letters: B batch, K keys."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from posbench.common.errors import ConfigError

FAR = 2**40  # a query beyond any window
GRID = 2**10  # keys that a rule judges at once
SAMPLED_QUERIES = (0, 1, 5, 63, 1000, FAR)
NEAR = 64  # keys before a sampled query that are compared, and some at the edge of the rule
BY_CONTENT = (
    "This model computes with the mask of its attention, as sparse attention does that chooses the"
    " keys of a query by their content. posbench's methods say themselves which keys a query sees,"
    " so they are not defined for it."
)
NOT_PLAIN = (
    "This model hides keys by another rule than the causal triangle, a window or chunks (packed"
    " texts, blocks seen in both directions, or a mask of its own), which posbench does not extend:"
    " give one text a row, and a mask of zeros and ones for padding."
)


class Rule(NamedTuple):
    """Keys that a query sees: the causal triangle, within a window or chunks of so many tokens.

    At most one of the two is set."""

    window: int | None = None
    chunk: int | None = None

    def first_key(self, query: int) -> int:
        """The first key that a query sees; it sees all from there to itself."""
        if self.window is not None:
            return max(0, query - self.window + 1)
        if self.chunk is not None:
            return query - query % self.chunk
        return 0


@dataclass(frozen=True)
class Visible:
    """Queries q_start .. q_start + queries - 1 of the texts of a batch, keys from k_start on, and
    the rule.

    `texts` holds (first, stop) of the tokens of each row that are no padding; None if all are text.
    At most one of window and chunk is set. `plain` is False for any other rule, which no layer may
    use. `ndim` has generate hand this on to the model where a cache is static, as it does with a
    mask that is complete."""

    q_start: int
    queries: int
    k_start: int
    texts: tuple[tuple[int, int], ...] | None = None
    window: int | None = None
    chunk: int | None = None
    plain: bool = True
    ndim: ClassVar[int] = 4

    def checked(self) -> "Visible":
        """The mask itself. Raises ConfigError for a rule that is none of the three."""
        if not self.plain:
            raise ConfigError(NOT_PLAIN)
        return self

    def padding(self) -> Tensor | None:
        """Padding mask of the batch: [B, K]; None if all is text."""
        if self.texts is None:
            return None
        place_K = torch.arange(self.stop)
        return torch.stack([(place_K >= first) & (place_K < stop) for first, stop in self.texts])

    def contiguous(self) -> "Visible":
        return self

    def to(self, *_: object) -> "Visible":
        return self  # MPT wants its mask as booleans

    def __getattr__(self, name: str) -> None:
        """Refuse a model that computes with its mask as with a tensor.

        Python calls this for names that are not defined here."""
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(name)
        raise ConfigError(BY_CONTENT)

    def _refuse(self, other: object) -> None:
        raise ConfigError(BY_CONTENT)

    __getitem__ = __add__ = __radd__ = __mul__ = __rmul__ = __and__ = __rand__ = _refuse

    @property
    def stop(self) -> int:
        """Number of tokens so far, padding included."""
        return self.q_start + self.queries


def visible(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: "Tensor | Visible | None" = None,
    device: torch.device | str = "cpu",
    **unused: object,
) -> Visible:
    """The mask function that is registered with transformers.

    transformers asks also for masks that no layer uses."""
    if isinstance(attention_mask, Visible):
        return attention_mask
    q_start = int(q_offset)
    texts = None
    if attention_mask is not None:
        texts = _texts(attention_mask, q_start + q_length)
    mask = Visible(q_start, q_length, int(kv_offset), texts)
    if mask_function is None:
        return mask
    text_start = texts[0][0] if texts else 0  # chunks are counted from there
    first_row = torch.as_tensor(0).to(device)  # of the batch, and of the heads: rules are alike

    def sees(query: int, key_K: Tensor) -> Tensor:
        """True for the keys that a query of the first text sees: [K]."""
        query_index = torch.as_tensor(query + text_start).to(device)
        key_index_K = (key_K + text_start).to(device)
        seen_K = mask_function(first_row, first_row, query_index, key_index_K)
        return torch.as_tensor(seen_K).cpu().expand(key_K.shape)

    rule = _rule(sees)
    if rule is None:
        return replace(mask, plain=False)
    return replace(mask, window=rule.window, chunk=rule.chunk)


def _texts(mask_BK: Tensor, stop: int) -> tuple[tuple[int, int], ...] | None:
    """(first, stop) of the text of each row of a padding mask; None if all are text.

    `stop` is the number of tokens so far. Raises ConfigError for a mask that leaves some open."""
    mask_BK = mask_BK[:, :stop].bool()
    if mask_BK.all():
        return None
    if mask_BK.shape[1] < stop:
        raise ConfigError(
            f"attention_mask has {mask_BK.shape[1]} columns and the text has {stop} tokens, so"
            " it does not say which of the others are padding: give a mask of the whole text,"
            " those in a cache included."
        )
    return tuple(_text(mask_K) for mask_K in mask_BK)


def _text(mask_K: Tensor) -> tuple[int, int]:
    """(first, stop) of the ones in a row of a padding mask.

    Raises ConfigError where zeros stand between them."""
    ones = mask_K.nonzero().flatten()
    if not len(ones):  # a text of no token, at the end
        return len(mask_K), len(mask_K)
    first = int(ones[0])
    stop = int(ones[-1]) + 1
    if stop - first != len(ones):
        raise ConfigError(
            "attention_mask has zeros between ones, but padding must precede or follow a text:"
            " leave those tokens out."
        )
    return first, stop


Sees = Callable[[int, Tensor], Tensor]


def _rule(sees: Sees) -> Rule | None:
    """The rule by which a function (query, key_K) tells the keys that are seen; None for others."""
    try:
        rule = _likely_rule(sees)
        if all(_agrees(sees, rule, query) for query in SAMPLED_QUERIES):
            return rule
    except (IndexError, RuntimeError, TypeError):
        pass  # a rule that looks tokens up in tensors of this text
    return None


def _likely_rule(sees: Sees) -> Rule:
    """The only rule that explains the first keys of two far queries, if any does."""
    first = _first_visible(sees, FAR)
    if first == 0:
        return Rule()
    if _first_visible(sees, FAR + 1) == first + 1:
        return Rule(window=FAR - first + 1)
    # A chunk begins at `first`, and ends before the first later query that does not see it.
    first_K = torch.tensor([first])
    sizes = range(1, FAR)
    return Rule(
        chunk=1 + bisect_left(sizes, True, key=lambda size: not sees(first + size, first_K))
    )


def _first_visible(sees: Sees, query: int) -> int:
    """First key that a query sees, if those that it sees are one interval that ends with itself."""
    low = 0
    high = query  # is seen
    while low < high:  # the first key is in low..high; each round judges GRID keys between them
        key_K = torch.arange(low, high, max(1, (high - low) // GRID))
        seen_K = sees(query, key_K)
        if not seen_K.any():
            low = int(key_K[-1]) + 1
            continue
        at = int(seen_K.nonzero()[0])
        if at > 0:
            low = int(key_K[at - 1]) + 1
        high = int(key_K[at])
    return high


def _agrees(sees: Sees, rule: Rule, query: int) -> bool:
    """True if a query sees the keys that the rule names, near itself and at the rule's edge."""
    first = rule.first_key(query)
    near_K = torch.arange(max(0, query - NEAR), query + 3)
    edge_K = torch.arange(max(0, first - 2), first + 3)
    key_K = torch.cat((near_K, edge_K[edge_K <= query]))
    return torch.equal(sees(query, key_K).bool(), (key_K >= first) & (key_K <= query))
