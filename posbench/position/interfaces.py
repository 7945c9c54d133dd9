"""Base classes of methods, whose hooks do nothing by default.

So a method's file contains only its own behaviour.

Letters: B batch, T tokens, C width, H heads, G key heads, D head width, R columns, F frequencies, N
rows of a learned table; S queries and K keys of a block of `attend_by_blocks`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, Bias, Mode, PairBias, Shape, Span, Spectrum, Trait

TESTED_WITH_ALL = {"*": "cannot interact with another method"}  # tested_with every method
AS_ROPE = "as RoPE: it turns pairs of channels alike"
PLACED_BY_TEXT = (
    "places its tokens by the text, so near and far keys, told by index, cannot have coordinates of"
    " their own"
)
HOOK_OF_BIAS = {
    Bias.COLUMNS: "columns",
    Bias.PROFILE: "profile",
    Bias.PAIRWISE: "bias",
    Bias.GATES: "gates",
    Bias.ROWS: "weights",
    Bias.CONTENT: "content_bias",
}


@dataclass(frozen=True)
class Layer:
    """Position in one transformer layer: its encoding, its sliding window or chunks, and if
    extensions and scales act on it.

    With a chunk of n tokens, tokens 0 to n - 1 see each other, n to 2n - 1, and so on (Llama 4).

    `index` counts the layers of one encoding. Hooks with parameters for each layer receive it.
    Layers are equal if they treat position alike."""

    encoding: "Encoding"
    window: int | None = None
    extended: bool = True
    scaled: bool = True
    chunk: int | None = None
    index: int = field(default=0, compare=False)


class Encoding(nn.Module):
    """Base class of encodings: position is added to embeddings, rotates q and k, or biases scores.

    `tested_with` names the extensions and scales that papers or public code have tested with this
    encoding, or define for it, each with that source; `the paper` is the one of the method's file.
    Other defined pairs of posbench's methods run only with allow_untested=true. It is enough if one
    of the two methods names the other. A method from outside posbench needs no entry: its pairs run
    and are marked as own."""

    traits: ClassVar[Trait] = Trait(0)
    tested_with: ClassVar[Mapping[str, str]] = {}
    # Name of another encoding's file, if what is tested with that one holds for this.
    tested_as: ClassVar[str] = ""
    # False if attention is not a softmax, where a factor on the logits has no meaning.
    scalable: ClassVar[bool] = True
    # True if `positions` draws new positions in every training step.
    random: ClassVar[bool] = False
    # False if an engine has its own positions, which may depend on a text's length.
    positions_known: ClassVar[bool] = True
    biases: ClassVar[Bias] = Bias(0)  # declared by defining the hooks
    # True if the hook `content_positions` is defined: tokens lie where the text places them.
    placed_by_content: ClassVar[bool] = False
    # True if the hook `mixer` is defined: its layers have no attention.
    mixes: ClassVar[bool] = False
    # True if `gates` and the hooks of content are given the text too: `tokens_BT`, a last argument.
    reads_tokens: ClassVar[bool] = False
    # Subject of messages, such as "GPT2LMHeadModel"; None: "encoding=" and its name.
    subject: str | None = None
    # True if texts have a cache, so that no extension may read a text for each target.
    in_place: bool = False

    def __init_subclass__(cls, **options: object) -> None:
        """Tell by the hooks that a class defines which kinds of bias and of positions it has."""
        super().__init_subclass__(**options)
        cls.biases = Bias(0)
        for bias, hook in HOOK_OF_BIAS.items():
            if getattr(cls, hook) is not getattr(Encoding, hook):
                cls.biases |= bias
        cls.placed_by_content = cls.content_positions is not Encoding.content_positions
        cls.mixes = cls.mixer is not Encoding.mixer
        if cls.placed_by_content:
            # An extension tells near keys from far ones by index, which these coordinates are not,
            # so bands with coordinates of their own would tear distances.
            cls.traits = cls.traits & ~Trait.RELATIVE

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def without(self, trait: Trait) -> str | None:
        """Words of messages for a missing trait, such as "has no rotary positions"; None for the
        usual words.
        """
        if self.placed_by_content and trait is Trait.RELATIVE:
            return PLACED_BY_TEXT
        return None

    def layers(self) -> list[Layer]:
        """One Layer per transformer layer; a hybrid returns different ones.

        Extensions and scales act on attention, so not on layers that have a `mixer` instead."""
        acted_on = not self.mixes
        return [
            Layer(self, extended=acted_on, scaled=acted_on, index=i)
            for i in range(self.shape.n_layer)
        ]

    def mixer(self, layer: int) -> nn.Module:
        """Module that a layer has in place of attention: from the layer's normalised input [B, T,
        C] to what is added to the residual, [B, T, C]. An output depends on its token and on
        earlier ones alone.

        It belongs to the model, which draws its matrices, and those named `o_proj` begin at 0. A
        parameter of fewer dimensions, and one of a module `conv` or `norm`, keeps its value.
        """
        raise NotImplementedError

    def positions(self, length: int, generator: torch.Generator | None) -> Tensor | None:
        """Coordinates of the tokens before an extension moves them: [T], float64, ascending; None
        stands for 0, 1, 2, ...

        `generator` is passed in training only, a new one for each step.
        """
        return None

    def content_positions(self, x_BTC: Tensor, layer: int) -> Tensor:
        """Coordinates of the tokens from the input of an attention layer: [B, H, T], or [B, H, T,
        F] with one for each frequency, a floating format, 1 for H if heads share them.

        `table` is then called with these in place of the tokens' indices, moved by the extension. A
        token's coordinate depends on it and on earlier tokens alone. An encoding that has them is
        not RELATIVE: near and far keys are told by index, so bands with coordinates of their own
        would tear its distances. A bias by content is `gates` or `content_bias`."""
        raise NotImplementedError

    def check_tokenizer(self, tokenizer: str) -> None:
        """Raise ConfigError for a data.tokenizer whose tokens the encoding would misread."""

    def embed_text(self, tokens_BT: Tensor) -> Tensor | None:
        """Vectors added to the token embeddings of a text: [B, T, C]. Called if `reads_tokens`."""
        return None

    def content_bias(self, x_BTC: Tensor, layer: int) -> PairBias:
        """Bias of pairs from the input of an attention layer: a function of a slice of queries and
        a slice of keys, which may go beyond what a query sees.
        """
        raise NotImplementedError

    @property
    def limit(self) -> int | None:
        """Exclusive upper bound of coordinates, and so the longest text. None: no bound if
        UNBOUNDED, else the `rows`, else train_len.
        """
        return None

    def scaled_heads(self) -> Tensor | None:
        """True for each head whose scores a scale multiplies: [H]; None for all. Its sink, and an
        extension's temperature, act on all.
        """
        return None

    def spectrum(self) -> Spectrum | None:
        """Frequencies that an extension may change; None without any."""
        return None

    def spectrum_at(self, length: int) -> Spectrum | None:
        """The same for a text of `length` tokens, where an extension that depends on the length was
        trained in.
        """
        return self.spectrum()

    def turning(self, spectrum: Spectrum) -> Spectrum:
        """Frequencies at which pairs turn, made of those that an extension has left."""
        return spectrum

    def rows(self) -> Tensor | None:
        """Learned table [N, C], row n for coordinate n, that an extension may lengthen; None
        without one.
        """
        return None

    def embed(
        self, pos_T: Tensor, spectrum: Spectrum | None, rows_NC: Tensor | None
    ) -> Tensor | None:
        """Vectors added to the token embeddings at coordinates pos_T: [T, C]; None adds nothing."""
        return None

    def table(self, pos_T: Tensor, spectrum: Spectrum | None) -> Tensor | None:
        """Table that `rotate` reads for coordinates pos_T (float64, CPU), made once per length;
        None: no rotation. `content_positions` are given to it as they are, in every layer.
        """
        return None

    def rotate(
        self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotate q and k (fp32, not yet scaled) by their tables. The results may be wider. Called
        only if `table` returns one.
        """
        raise NotImplementedError

    def between(self, upper_table: Tensor, lower_table: Tensor, share_T: Tensor) -> Tensor:
        """Table that turns keys so that their scores are (1 - share) times those by `upper_table`
        plus share times those by `lower_table`, which is of coordinates a token earlier.

        Default: the same of the tables, for an encoding that is linear in them."""
        return torch.lerp(upper_table, lower_table, share_T[:, None].to(upper_table))

    def decay(self) -> Tensor | None:
        """Rates [D] >= 0: the product of channel d of the rotated q and k is multiplied by
        exp(-rate_d (q_pos - k_pos)).
        """
        return None

    def columns(
        self, q_pos_T: Tensor, k_pos_T: Tensor, row_constant: bool
    ) -> tuple[Tensor, Tensor] | None:
        """Columns ([H, T, R], [T, R]) of a bias of low rank R: their product is added to the scaled
        scores. None: no bias of this kind.

        Softmax is unchanged by a constant per row. row_constant=False (a single band) allows
        leaving it out; several bands need it."""
        return None

    def gates(self, x_BTC: Tensor, layer: int) -> Tensor | None:
        """Gates log f_t <= 0 of each token: [B, H, T], fp32. Their sum over j < t <= i is added to
        the score of (i, j).
        """
        return None

    def profile(self, delta: Tensor, layer: int) -> Tensor:
        """Bias that depends only on the coordinate distance `delta` (fp32, >= 0, any shape): [H,
        *delta.shape].
        """
        raise NotImplementedError

    def bias(self, q_pos_S: Tensor, k_pos_K: Tensor, layer: int) -> Tensor:
        """Bias from the coordinates of queries and keys: [H, S, K]. Default: `profile` of their
        difference, at least 0.
        """
        return self.profile((q_pos_S[:, None] - k_pos_K).clamp(min=0).float(), layer)

    def weights(
        self,
        q_BHSD: Tensor,
        scores_BHSK: Tensor,
        bias_HSK: Tensor | None,
        seen_SK: Tensor,
        factor: Tensor | float,
        layer: int,
    ) -> Tensor:
        """Attention weights from whole rows of scaled content scores: [B, H, S, K], 0 where not
        `seen_SK`.

        For methods that a softmax over separate bands cannot express. q is not scaled. `factor`
        (broadcasts to [B, H, S, K]) is the product of all factors on the logits; the scores do not
        contain it yet. Keys are in order, and the last key is the query of the last row."""
        raise NotImplementedError


class Extension:
    """Base class of extensions: pure functions of a Span, without parameters and without state
    between calls.
    """

    needs: ClassVar[Trait] = Trait(0)
    tested_with: ClassVar[Mapping[str, str]] = {}
    # Tokens of each piece in which a text comes; None: whole. Each piece has its own frequencies.
    fed: int | None = None

    @property
    def follows_length(self) -> bool:
        """True if the extension is set for each length, not for a fixed target_len."""
        return False

    def target_len(self, length: int) -> float:
        """Length in tokens that the extension is set for when `length` tokens are evaluated."""
        return length

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        """Frequencies to use instead of `spectrum`."""
        return spectrum

    def rows(self, rows_NC: Tensor, span: Span) -> Tensor:
        """Learned table to use instead of rows_NC, possibly with more rows."""
        return rows_NC

    def bands(self, span: Span) -> tuple[Band, ...]:
        """Bands of visible query-key pairs, with their coordinates."""
        return (Band(),)

    def temperature(self, span: Span) -> float:
        """Factor on the logits of every query."""
        return 1.0

    @classmethod
    def crops(cls) -> bool:
        """True for an extension that may read a shorter text for each target."""
        return cls.crop is not Extension.crop

    def crop(self, span: Span) -> int | None:
        """Number of last tokens that the model reads for each target; None reads them all."""
        return None


class ScaledExtension(Extension):
    """Extension by the factor target_len / train_len: target_len is each length in mode `dynamic`,
    a constant in mode `fixed`.

    Raises ConfigError for `fixed` without target_len, `dynamic` with target_len, and a target_len
    below 1."""

    def __init__(self, mode: Mode = "dynamic", target_len: float | None = None):
        if mode == "fixed" and target_len is None:
            raise ConfigError(
                "extension.mode=fixed keeps one factor for all lengths, and no length gives it: add"
                " extension.target_len=TOKENS."
            )
        if mode == "dynamic" and target_len is not None:
            raise ConfigError(
                f"extension.mode=dynamic follows each length, and extension.target_len={target_len}"
                " sets one for all: leave one of them out."
            )
        if target_len is not None and target_len < 1:
            raise ConfigError(f"extension.target_len={target_len} must be at least 1.")
        self.fixed_target = target_len

    @property
    def follows_length(self) -> bool:
        return not self.fixed_target

    def target_len(self, length: int) -> float:
        return self.fixed_target or length


class ScaleAttention(nn.Module):
    """Base class of scales: a factor on the logits of a query that sees n keys, a sink, or what
    takes the place of the softmax; at evaluation or trained in (train.scale_attention).
    """

    tested_with: ClassVar[Mapping[str, str]] = {}
    # True if it has parameters: then only train.scale_attention may choose it.
    trained: ClassVar[bool] = False

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def forward(self, n_T: Tensor, span: Span, layer: int) -> Tensor:
        """Factor for each query, which sees n_T keys (float64, CPU): [T], or [H, T] if heads
        differ. Layers may differ only if it is `trained`.
        """
        return torch.ones_like(n_T)

    def distance(self, delta_K: Tensor) -> tuple[Tensor, Tensor] | None:
        """Factor and addend [K] of the content score at each index distance (float64); None: the
        rule is one factor per query.
        """
        return None

    def content_factor(self, x_BTC: Tensor, n_T: Tensor, span: Span, layer: int) -> Tensor:
        """Factor for each query from the input of its attention layer, in place of `forward`:
        [B, H, T], or [B, 1, T] if heads share it. n_T is as in `forward`.
        """
        raise NotImplementedError

    def weights(self, scores_BHSK: Tensor) -> Tensor:
        """Weights of whole rows in place of their softmax, of the same shape: 0 where a score is
        -inf, since the key is not seen.

        A row has the scores of all bands and of the sink, with every factor and bias. A constant
        added to a row must change nothing, since kernels leave such constants out."""
        raise NotImplementedError

    def sink(self, layer: int) -> Tensor | None:
        """Logit of a sink, [H] or [1]: it enters every query's softmax, in layers of any kind, and
        has no value. None: no sink.
        """
        return None

    @property
    def reads_content(self) -> bool:
        """True if the scale's factor depends on the text."""
        return type(self).content_factor is not ScaleAttention.content_factor

    @property
    def weighs_rows(self) -> bool:
        """True if the scale takes the place of the softmax."""
        return type(self).weights is not ScaleAttention.weights

    @property
    def by_distance(self) -> bool:
        """True if the scale has a rule by distance."""
        return self.distance(torch.zeros(1, dtype=torch.float64)) is not None

    @property
    def sinks(self) -> bool:
        """True if the scale adds a sink."""
        return type(self).sink is not ScaleAttention.sink
