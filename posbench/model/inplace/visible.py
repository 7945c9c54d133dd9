"""A transformers mask in a few numbers: the part of each row that is text, and the reach of a
query. No [T, T] is built.

transformers hands the registered mask function a rule for pairs (query, key) and the padding mask
of the batch; what it returns reaches the attention function as it is. Letters: B batch, K keys."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posbench.common.errors import ConfigError

FAR = 2**40  # a query beyond any window
GRID = 2**10  # keys that are asked at once
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


@dataclass(frozen=True)
class Visible:
    """Queries q_start .. q_start + queries - 1 of texts of the batch, keys from k_start on, and the
    rule.

    `texts` holds (first, stop) of the tokens of each row that are no padding; None if all are text.
    At most one of window and chunk is set."""

    q_start: int
    queries: int
    k_start: int
    texts: tuple[tuple[int, int], ...] | None = None
    window: int | None = None
    chunk: int | None = None
    plain: bool = True  # False for another rule, which no layer may use
    ndim: ClassVar[int] = (
        # no padding mask, but one that is made: generate hands it on to the model where a cache is
        # static
        4
    )

    def checked(self) -> "Visible":
        """The mask itself. Raises ConfigError for a rule that is none of the three."""
        if not self.plain:
            raise ConfigError(NOT_PLAIN)
        return self

    def padding(self) -> Tensor | None:
        """Padding mask of the batch: [B, K]; None if all is text."""
        place_K = torch.arange(self.stop)
        return (
            None
            if self.texts is None
            else torch.stack([(place_K >= first) & (place_K < stop) for first, stop in self.texts])
        )

    def contiguous(self) -> "Visible":
        return self

    def to(self, *_: object) -> "Visible":
        return self  # MPT wants its mask as booleans

    def __getattr__(self, name: str) -> None:
        """Refusal of a model that computes with its mask, as with a tensor. Called for what is not
        defined here.
        """
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
    """The mask function that is registered with transformers, which also asks for masks that no
    layer uses.
    """
    if isinstance(attention_mask, Visible):
        return attention_mask
    q_start = int(q_offset)
    texts = None
    if attention_mask is not None:
        stop = q_start + q_length
        mask_BK = attention_mask[:, :stop].bool()
        if mask_BK.shape[1] < stop and not mask_BK.all():
            raise ConfigError(
                f"attention_mask has {mask_BK.shape[1]} columns and the text has {stop} tokens, so"
                " it does not say which of the others are padding: give a mask of the whole text,"
                " those in a cache included."
            )
        texts = None if bool(mask_BK.all()) else tuple(map(_text, mask_BK))
    begins = texts[0][0] if texts else 0  # chunks are counted from there

    def sees(query: int, key_K: Tensor) -> Tensor:
        b, q, k = (torch.as_tensor(one).to(device) for one in (0, query + begins, key_K + begins))
        return torch.as_tensor(mask_function(b, b, q, k)).cpu().expand(key_K.shape)

    found = (None, None) if mask_function is None else _rule(sees)
    return Visible(
        q_start, q_length, int(kv_offset), texts, *(found or (None, None)), plain=found is not None
    )


def _text(mask_K: Tensor) -> tuple[int, int]:
    """(first, stop) of the ones in a row of a padding mask. Raises ConfigError where zeros stand
    between them.
    """
    ones = mask_K.nonzero().flatten()
    if not len(ones):
        return len(mask_K), len(mask_K)
    first, stop = int(ones[0]), int(ones[-1]) + 1
    if stop - first != len(ones):
        raise ConfigError(
            "attention_mask has zeros between ones, but padding must precede or follow a text:"
            " leave those tokens out."
        )
    return first, stop


def _rule(sees: Callable) -> tuple[int | None, int | None] | None:
    """(window, chunk) of a rule `sees(query, key_K)`, each None without; None for another rule."""
    try:
        first = _first_visible(sees, FAR)
        if first == 0:
            found = None, None
        elif _first_visible(sees, FAR + 1) == first + 1:
            found = FAR - first + 1, None
        else:
            first_K = torch.tensor(
                [first]
            )  # a chunk begins here, and ends before the first later query that does not see it
            found = (
                None,
                1
                + bisect_left(
                    range(1, FAR), True, key=lambda size: not sees(first + size, first_K)
                ),
            )
        return (
            found
            if all(_agrees(sees, query, *found) for query in (0, 1, 5, 63, 1000, FAR))
            else None
        )
    except (
        IndexError,
        RuntimeError,
        TypeError,
    ):  # a rule that looks tokens up in tensors of this text
        return None


def _first_visible(sees: Callable, query: int) -> int:
    """First key that a query sees, if those that it sees are one interval that ends with itself."""
    low, high = 0, query  # `high` is seen
    while low < high:
        key_K = torch.arange(low, high, max(1, (high - low) // GRID))
        seen_K = sees(query, key_K)
        if seen_K.any():
            at = int(seen_K.nonzero()[0])
            low, high = int(key_K[at - 1]) + 1 if at else low, int(key_K[at])
        else:
            low = int(key_K[-1]) + 1
    return high


def _agrees(sees: Callable, query: int, window: int | None, chunk: int | None) -> bool:
    """True if a query sees exactly the keys that the rule names, of those near it and around the
    rule's edge.
    """
    first = (
        0
        if window is None and chunk is None
        else max(0, query - window + 1)
        if window
        else query - query % chunk
    )
    near = torch.arange(max(0, query - 64), query + 3)
    edge = torch.arange(max(0, first - 2), first + 3)
    key_K = torch.cat((near, edge[edge <= query]))
    return torch.equal(sees(query, key_K).bool(), (key_K >= first) & (key_K <= query))
