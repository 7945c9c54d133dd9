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

FAR_QUERY = 2**40  # a query beyond any window
KEYS_JUDGED_AT_ONCE = 2**10  # keys that a rule judges at once
SAMPLED_QUERIES = (0, 1, 5, 63, 1000, FAR_QUERY)
NEAR_KEYS = 64  # keys before a sampled query that are compared, and some at the edge of the rule
CHOSEN_BY_CONTENT = (
    "This model computes with the mask of its attention, as sparse attention does that chooses the"
    " keys of a query by their content. posbench's methods say themselves which keys a query sees,"
    " so they are not defined for it."
)
UNKNOWN_RULE = (
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
class CompactMask:
    """Mask as numbers: queries q_start .. q_start + n_queries - 1 of a batch, keys from k_start on,
    and the rule by which a query sees keys.

    `text_bounds` holds (first, stop) of the tokens of each row that are no padding; None if all are
    text. At most one of window and chunk is set. `has_known_rule` is False for any other rule,
    which no layer may use. `ndim` has generate hand this on to the model where a cache is static,
    as it does with a mask that is complete."""

    q_start: int
    n_queries: int
    k_start: int
    text_bounds: tuple[tuple[int, int], ...] | None = None
    window: int | None = None
    chunk: int | None = None
    has_known_rule: bool = True
    ndim: ClassVar[int] = 4

    def checked(self) -> "CompactMask":
        """The mask itself. Raises ConfigError for a rule that is none of the three."""
        if not self.has_known_rule:
            raise ConfigError(UNKNOWN_RULE)
        return self

    def padding_mask(self) -> Tensor | None:
        """Padding mask of the batch: [B, K]; None if all is text."""
        if self.text_bounds is None:
            return None
        index_K = torch.arange(self.n_tokens)
        rows = [(index_K >= first) & (index_K < stop) for first, stop in self.text_bounds]
        return torch.stack(rows)

    def contiguous(self) -> "CompactMask":
        """The mask itself, for models that ask this of a tensor."""
        return self

    def to(self, *_: object) -> "CompactMask":
        """The mask itself, for MPT, which wants its mask as booleans."""
        return self

    def __getattr__(self, name: str) -> None:
        """Refuse a model that computes with its mask as with a tensor.

        Python calls this for names that are not defined here."""
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(name)
        raise ConfigError(CHOSEN_BY_CONTENT)

    def _refuse(self, other: object) -> None:
        """Refuse a model that indexes its mask or calculates with it, as __getattr__ does."""
        raise ConfigError(CHOSEN_BY_CONTENT)

    __getitem__ = __add__ = __radd__ = __mul__ = __rmul__ = __and__ = __rand__ = _refuse

    @property
    def n_tokens(self) -> int:
        """Number of tokens so far, padding included."""
        return self.q_start + self.n_queries


def compact_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: "Tensor | CompactMask | None" = None,
    device: torch.device | str = "cpu",
    **unused: object,
) -> CompactMask:
    """Mask of a batch: the mask function that is registered with transformers.

    transformers asks also for masks that no layer uses, so an unknown rule raises nothing here."""
    if isinstance(attention_mask, CompactMask):
        return attention_mask
    q_start = int(q_offset)
    text_bounds = None
    if attention_mask is not None:
        text_bounds = _bounds_of_texts(attention_mask, q_start + q_length)
    mask = CompactMask(q_start, q_length, int(kv_offset), text_bounds)
    if mask_function is None:
        return mask
    # Chunks are counted from the beginning of a text, behind its padding.
    text_start = text_bounds[0][0] if text_bounds else 0
    # Rules are alike for all rows of the batch and for all heads, so the first of each is asked.
    index_0 = torch.as_tensor(0).to(device)

    def sees(query: int, key_K: Tensor) -> Tensor:
        """True for the keys that a query of the first text sees: [K]."""
        query_index = torch.as_tensor(query + text_start).to(device)
        key_index_K = (key_K + text_start).to(device)
        seen_K = mask_function(index_0, index_0, query_index, key_index_K)
        return torch.as_tensor(seen_K).cpu().expand(key_K.shape)

    rule = _rule_behind(sees)
    if rule is None:
        return replace(mask, has_known_rule=False)
    return replace(mask, window=rule.window, chunk=rule.chunk)


def _bounds_of_texts(mask_BK: Tensor, n_tokens: int) -> tuple[tuple[int, int], ...] | None:
    """(first, stop) of the text of each row of a padding mask; None if all are text.

    `n_tokens` are those so far. Raises ConfigError for a mask that leaves some of them open."""
    mask_BK = mask_BK[:, :n_tokens].bool()
    if mask_BK.all():  # no padding, also in a mask that ends early
        return None
    if mask_BK.shape[1] < n_tokens:
        raise ConfigError(
            f"attention_mask has {mask_BK.shape[1]} columns and the text has {n_tokens} tokens, so"
            " it does not say which of the others are padding: give a mask of the whole text,"
            " those in a cache included."
        )
    return tuple(_bounds_of_text(mask_K) for mask_K in mask_BK)


def _bounds_of_text(mask_K: Tensor) -> tuple[int, int]:
    """(first, stop) of the ones in a row of a padding mask.

    Raises ConfigError where zeros stand between them."""
    one_indices = mask_K.nonzero().flatten()
    if not len(one_indices):  # a row of padding alone: a text of no token, at the end
        return len(mask_K), len(mask_K)
    first = int(one_indices[0])
    stop = int(one_indices[-1]) + 1
    if stop - first != len(one_indices):
        raise ConfigError(
            "attention_mask has zeros between ones, but padding must precede or follow a text:"
            " leave those tokens out."
        )
    return first, stop


Sees = Callable[[int, Tensor], Tensor]


def _rule_behind(sees: Sees) -> Rule | None:
    """Rule by which `sees` tells the keys that a query sees, or None if it is none of the three.

    `sees(query, key_K)` is True for the keys of a text that the query sees."""
    try:
        rule = _likely_rule(sees)
        if all(_follows_rule(sees, rule, query) for query in SAMPLED_QUERIES):
            return rule
    except (IndexError, RuntimeError, TypeError):
        pass  # a function that looks tokens up in tensors of this text, which end before FAR_QUERY
    return None


def _likely_rule(sees: Sees) -> Rule:
    """The only rule that explains the first keys of two far queries, if any of the three does."""
    first = _first_seen_key(sees, FAR_QUERY)
    if first == 0:
        return Rule()
    if _first_seen_key(sees, FAR_QUERY + 1) == first + 1:
        return Rule(window=FAR_QUERY - first + 1)
    # A chunk begins at `first`, and ends before the first later query that does not see it.
    first_K = torch.tensor([first])
    sizes = range(1, FAR_QUERY)
    index = bisect_left(sizes, True, key=lambda size: not sees(first + size, first_K))
    return Rule(chunk=index + 1)  # sizes count from 1


def _first_seen_key(sees: Sees, query: int) -> int:
    """First key that a query sees, if those that it sees are one interval that ends with itself."""
    low = 0
    high = query  # a query sees itself
    # The first key is in low..high; a round judges about KEYS_JUDGED_AT_ONCE keys between them.
    while low < high:
        key_K = torch.arange(low, high, max(1, (high - low) // KEYS_JUDGED_AT_ONCE))
        seen_K = sees(query, key_K)
        if not seen_K.any():
            low = int(key_K[-1]) + 1
            continue
        first_seen = int(seen_K.nonzero()[0])
        if first_seen > 0:
            low = int(key_K[first_seen - 1]) + 1  # the key judged before it is not seen
        high = int(key_K[first_seen])
    return high


def _follows_rule(sees: Sees, rule: Rule, query: int) -> bool:
    """True if a query sees the keys that the rule names, near itself and at the rule's edge."""
    first = rule.first_key(query)
    # with two keys after the query, which it must not see
    near_K = torch.arange(max(0, query - NEAR_KEYS), query + 3)
    # two keys before and after the first one
    edge_K = torch.arange(max(0, first - 2), first + 3)
    key_K = torch.cat((near_K, edge_K[edge_K <= query]))
    named_K = (key_K >= first) & (key_K <= query)
    return torch.equal(sees(query, key_K).bool(), named_K)
