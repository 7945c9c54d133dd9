"""StreamingLLM: a query sees the recent keys and the first ones, placed as in a rolling cache.

It sees itself, the R keys before it and the first S keys (sinks). Xiao et al. 2023, arXiv
2309.17453 (mit-han-lab/streaming-llm), S = 4. Key j is visible if i - j <= R or j < S; recent keys
at distance i - j, sinks at min(i, S + R) - j: they lie right before the recent keys, as in a cache
that drops all keys between. Up to S + R + 1 tokens nothing changes. Default R = train_len - S - 1,
so that no distance is untrained. Memory does not reach further than R; sinks keep the softmax as it
was trained."""

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, Span, Tokens, Trait
from posbench.position.interfaces import Extension


class Streaming(Extension):
    """Two bands: recent keys and sinks. Raises ConfigError if sinks leave no recent key."""

    needs = Trait.COORDINATE | Trait.RELATIVE
    tested_with = {
        "rope": "the paper: Llama 2",
        "p_rope": "the paper: Pythia, a quarter of whose channels turn",
        "alibi": "the paper: MPT",
        **dict.fromkeys(
            ("pope", "kerple", "sandwich", "t5", "none"), "the paper: any relative encoding"
        ),
    }

    def __init__(self, sinks: Tokens = 4, window: Tokens | None = None):
        self.sinks = sinks  # first tokens, which all queries see
        self.window = window  # recent keys; None: by the training length

    def bands(self, span: Span) -> tuple[Band, ...]:
        # Sinks, r recent keys and the query's own are as many as there are trained positions.
        r = self.window or span.train_len - self.sinks - 1
        if r < 1:
            raise ConfigError(
                f"extension.sinks={self.sinks} leaves no recent key within"
                f" train_len={span.train_len}: give fewer of them."
            )
        recent = Band(first=lambda i: i - r)
        sinks = Band(
            last=lambda i: (i - r - 1).clamp(max=self.sinks - 1),
            q=lambda i: i.clamp(max=self.sinks + r),  # its place after the keys that it sees
        )
        return recent, sinks
