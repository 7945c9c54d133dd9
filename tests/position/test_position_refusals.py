"""Refusals of methods: combinations and arguments as typed, and the words of the message."""

import pytest
import torch
from conftest import small_shape
from measures import outputs
from torch import Tensor, nn
from typed_lines import configured

from posbench.common.errors import ConfigError
from posbench.encodings.rope import Rope
from posbench.position.hook_shapes import check_hooks
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding
from posbench.position.legality import verdict_of
from posbench.position.plan import make_plan

SHAPE = small_shape()
USUAL = (
    "encoding=rope extension=none scale_attention=none train.length=16 evaluate.lengths=[16,64]"
    " allow_untested=false model.n_layer=2"
)
CLASS = "_target_: posbench.encodings"
BIPE = f"{{{CLASS}.bipe.BipeRope, separators: [5]}}"
FIXED = "extension.mode=fixed extension.target_len"
NO_ATTENTION = "no attention"
OF_THE_TEXT = "^encoding=selective_rope places its tokens by the text, so near and far"
NO_WHOLE = r"extension\.target_len=96\.5 is not a whole number of tokens"
TYPED = [
    (
        "encoding=fox_rope encoding.base=500.0 extension=table_linear",
        "^encoding=fox_rope has no .*: with encoding=fox_rope choose extension=",
    ),
    (
        "encoding=gemma3 encoding.window=4 encoding.period=2 extension=table_linear",
        "^encoding=gemma3, in its rope layers, has no .*: with encoding=gemma3 choose extension=",
    ),
    (
        "encoding=fox encoding.bias=5.0 extension=table_linear",
        "^encoding=fox has no .*: with encoding=fox choose extension=",
    ),
    (
        "encoding=learned",
        "no position 63.*evaluate up to 16, or choose extension=pi or extension=recompute_window",
    ),
    (
        f"encoding=learned extension=pi {FIXED}=32",
        "evaluate up to 32, or choose extension=recompute_window",
    ),
    (
        "encoding=learned extension=recompute_window extension.window=40",
        "extension.window of at most 16",
    ),
    (
        "encoding=learned extension=table_hierarchical train.length=8 evaluate.lengths=[65]",
        "makes 64 rows of 8 but length=65",
    ),
    ("extension=longrope extension.exact_first=17", "exact_first=17 exceeds the 16 tokens"),
    ("extension=longrope extension.factors=[1,2,3]", "factors has 3 numbers: give 4"),
    (f"extension=pi {FIXED}=96.5", NO_WHOLE),
    (f"extension=ntk_fixed {FIXED}=96.5", NO_WHOLE),
    (f"extension=yarn {FIXED}=96.5", NO_WHOLE),
    (f"extension=llama3 {FIXED}=96.5", NO_WHOLE),
    (f"extension=ntk_by_parts {FIXED}=96.5", NO_WHOLE),
    ("extension=streaming train.length=4", "sinks=4 leaves no recent key within train_len=4"),
    (
        "extension=self_extend extension.window=16",
        "window=16 leaves no trained distance below train_len=16",
    ),
    ("extension=gali extension.window=16", "window=16 leaves no position below"),
    (
        "extension=random_keys extension.keys=8 extension.window=20 allow_untested=true",
        "extension.window=20 leaves no room for random keys among keys=8",
    ),
    ("encoding=selective_rope extension=rerope allow_untested=true", OF_THE_TEXT),
    ("encoding=selective_rope extension=self_extend allow_untested=true", OF_THE_TEXT),
    ("encoding=selective_rope extension=dca allow_untested=true", OF_THE_TEXT),
    ("encoding=selective_rope extension=streaming allow_untested=true", OF_THE_TEXT),
    ("encoding=selective_rope extension=lm_infinite allow_untested=true", OF_THE_TEXT),
    ("encoding=repo encoding.start=2", "encoding.start=2 is beyond the last of 2 layers"),
    ("encoding=grape_ap encoding.width=3", "encoding.width=3 must be even"),
    ("encoding=bipe 'encoding.separators=[]'", r"encoding.separators=\[\] ends no segment"),
    (f"encoding=hybrid 'encoding.full={BIPE}'", "for a whole model"),
    (f"encoding=randomized 'encoding.base={BIPE}'", "takes positions from the text"),
    (
        f"'encoding={{{CLASS}.pose.Pose, max_len: 64, base: {BIPE}}}'",
        "takes positions from the text",
    ),
    ("encoding=qwen3_next encoding.window=8", NO_ATTENTION),
    ("encoding=qwen3_next encoding.extend_local=true", NO_ATTENTION),
    (
        f"encoding=randomized 'encoding.base={{{CLASS}.learned.Learned}}' encoding.real=true",
        "between the rows of a learned table",
    ),
    (
        "encoding=randomized encoding.max_len=64 evaluate.lengths=[65]",
        "has no position 64: .* evaluate up to 64, or choose .* or a larger encoding.max_len",
    ),
    ("scale_attention=log_n scale_attention.p=0", "scale_attention.p=0 must be above 0"),
]

ARGUMENTS = [
    ("extension=dynamic_ntk extension.factor=0.5", "extension.factor=0.5"),
    (
        "extension=dynamic_ntk extension.mode=fixed extension.target_len=64 extension.fed=4",
        "extension.fed=4",
    ),
    ("extension=ntk_mixed extension.kappa=-1", "extension.kappa=-1"),
    ("extension=ntk extension.mode=fixed", "extension.mode=fixed"),
    ("extension=ntk extension.multiplier=0.5", "extension.multiplier=0.5"),
    ("extension=leaky_rerope extension.k=0.5", "extension.k=0.5"),
    ("extension=ntk_by_parts extension.alpha=0", "extension.alpha=0"),
    ("extension=yarn extension.beta=0.5", "extension.beta=0.5"),
    ("extension=yarn extension.ramp=pairs", "extension.ramp=pairs"),
    ("extension=llama3 extension.beta=1", "extension.beta=1"),
    ("extension=abf extension.base=1", "extension.base=1"),
    ("extension=longrope 'extension.factors=[1,0]'", r"extension.factors=\[1, 0\]"),
    ("extension=longrope 'extension.short_factors=[0]'", r"extension.short_factors=\[0\]"),
    ("extension=longrope extension.exact_first=-1", "extension.exact_first=-1"),
    ("extension=self_extend extension.group=0", "extension.group=0"),
    ("extension=dca extension.chunk=0", "extension.chunk=0"),
    ("extension=dca extension.chunk=4 extension.local=5", "extension.local=5"),
    # The chunk is 3/4 of 16 tokens - local, so local may have half of the 12.
    (
        "extension=dca extension.local=7",
        "extension.local=7 exceeds the chunk, .* train_len=16: give extension.local of at most 6",
    ),
    ("extension=dca extension.local=50", "extension.local=50"),
    ("extension=string extension.shift=0", "extension.shift=0"),
    ("extension=streaming extension.sinks=0", "extension.sinks=0"),
    ("extension=lm_infinite extension.n_global=0", "extension.n_global=0"),
    ("extension=table_hierarchical extension.alpha=0.5", "extension.alpha=0.5"),
    ("extension=table_linear extension.mode=fixed", "extension.mode=fixed"),
    ("scale_attention=llama4 scale_attention.floor_scale=0", "scale_attention.floor_scale=0"),
    ("scale_attention=scale_invariant scale_attention.tau=0", "scale_attention.tau=0"),
    ("encoding.fraction=0.4", "fraction=0.4 of the head width 8 is 3.2 channels"),
    ("encoding.fraction=1.5", "fraction=1.5"),
    ("encoding=p_rope encoding.p=1.1", "p=1.1"),
    ("encoding=clipped_rope encoding.share=1.5", "share=1.5"),
    ("encoding=p_rope encoding.cut=half", "cut=half"),
    ("encoding=xpos encoding.gamma=0", "gamma=0"),
    ("encoding=xpos encoding.B=2", "choose encoding.B of at least 7.83"),
    ("encoding=fope encoding.gain=-1", "gain=-1"),
    ("encoding=fope encoding.pairs=2", "pairs=2 must be between 0 and 1"),
    ("encoding=pope encoding.base=1", "base=1"),
    ("encoding=fox encoding.data_dependent=false encoding.tau_max=1", "tau_max=1"),
    ("encoding=randomized encoding.max_len=15", "max_len=15"),
    ("encoding=randomized encoding.eval=mean", "eval=mean"),
    ("encoding=hybrid encoding.period=0", "period=0"),
    (
        "encoding=hybrid 'encoding.full={_target_: posbench.encodings.learned.Learned}'",
        "encoding.full=posbench.encodings.learned.Learned is for a whole model",
    ),
    (
        "encoding=hybrid 'encoding.local={_target_:"
        " posbench.encodings.randomized.Randomized, base: {_target_:"
        " posbench.encodings.rope.Rope}}'",
        "encoding.local=posbench.encodings.randomized.Randomized is for a whole model",
    ),
    ("encoding=t5 encoding.n_buckets=1", "n_buckets=1"),
    ("encoding=t5 encoding.max_distance=16", "max_distance=16"),
    ("encoding=alibi encoding.slope_scale=0", "slope_scale=0"),
    ("encoding=kerple encoding.form=cubic", "form=cubic"),
    ("encoding=sandwich encoding.dim=7", "dim=7"),
    ("encoding=fire encoding.c=0", "c=0"),
    ("encoding=cope encoding.positions=1", "positions=1"),
    ("encoding=dape encoding.width=0", "width=0"),
    ("encoding=stick_breaking encoding.remainder=burn", "remainder=burn"),
    ("model.n_layer=4 encoding.window=0", "encoding.window=0"),
    ("model.n_layer=4 'encoding.window=[4]'", r"encoding.window=\[4\] .* each of 4 layers"),
    (
        "model.n_layer=4 'encoding.unturned=[4]'",
        r"encoding.unturned=\[4\] must be some of the layers 0 to 3",
    ),
    ("encoding.scaling_len=8", "must be set together"),
    ("'encoding.scaling={_target_: posbench.extensions.pi.Pi}'", "must be set together"),
    (
        "'encoding.scaling={_target_: posbench.extensions.pi.Pi}' encoding.scaling_len=8",
        "extension=pi is not a fixed set of frequencies",
    ),
    (
        "'encoding.scaling={_target_: posbench.extensions.longrope.Longrope, mode: fixed,"
        " target_len: 64, exact_first: 4}' encoding.scaling_len=8",
        "extension=longrope is not a fixed",
    ),
    (
        "'encoding.scaling={_target_: posbench.extensions.dynamic_ntk.DynamicNtk, fed: 4}'"
        " encoding.scaling_len=8",
        "is not a fixed set of frequencies",
    ),
    ("encoding.amplitude=1.2", "belongs to an encoding.scaling"),
    (
        "'encoding.scaling={_target_: posbench.extensions.yarn.Yarn, mode: fixed,"
        " target_len: 64}' encoding.scaling_len=16 encoding.amplitude=-1.0",
        "must be above 0",
    ),
    (
        "encoding=hybrid 'encoding.local={_target_: posbench.encodings.rope.Rope, window: 4}'",
        "encoding.local=.* is for a whole model",
    ),
    (
        "encoding.bass=5",
        r"encoding\.bass is not an argument of .*Rope \(did you mean base\?\): it takes"
        " base, layout",
    ),
    (
        "encoding=hybrid 'encoding.full={_target_: posbench.extensions.none.NoExtension}'",
        "posbench.extensions.none.NoExtension is not of class Encoding",
    ),
    (
        "'extension={_target_: posbench.extensions.compose.Compose, parts: [{_target_:"
        " posbench.encodings.none.NoEncoding}]}'",
        "posbench.encodings.none.NoEncoding is not of class Extension",
    ),
]


@pytest.mark.parametrize(
    ("typed", "message"), TYPED + ARGUMENTS, ids=[typed for typed, _ in TYPED + ARGUMENTS]
)
def test_methods_that_cannot_act_are_refused(typed, message):
    values = configured(f"{USUAL} {typed}")
    shape = small_shape(values["train"]["length"], **values["model"])
    lengths = values["evaluate"]["lengths"]
    with pytest.raises(ConfigError, match=message):
        encoding = make_method(values["encoding"], shape)
        extension = make_method(values["extension"])
        scale = make_method(values["scale_attention"], shape)
        verdict_of(encoding, extension, scale, lengths, values["allow_untested"])
        make_plan(encoding, extension, scale, length=max(lengths))


class Wrong(Encoding):
    """Hooks of the wrong shape, each by the name that it is made with."""

    def __init__(self, value: object):
        super().__init__(SHAPE)
        self.value = value


class WrongProfile(Wrong):
    def profile(self, delta: Tensor, layer: int) -> Tensor:
        return self.value


class WrongBias(Wrong):
    def bias(self, q_pos_S: Tensor, k_pos_K: Tensor, layer: int) -> Tensor:
        return self.value


class WrongGates(Wrong):
    def gates(self, x_BTC: Tensor, layer: int) -> Tensor:
        return self.value


class WrongPositions(Rope):
    def content_positions(self, x_BTC: Tensor, layer: int) -> Tensor:
        return torch.zeros(x_BTC.shape[:2])


class WrongPairs(Rope):
    def content_positions(self, x_BTC: Tensor, layer: int) -> Tensor:
        return torch.zeros(len(x_BTC), 4, x_BTC.shape[1], 3)


class FromTheEnd(Rope):
    def content_positions(self, x_BTC: Tensor, layer: int) -> Tensor:
        return x_BTC.sum(dim=-1)[:, None].flip(-1)


class Unread(Encoding):
    def content_positions(self, x_BTC: Tensor, layer: int) -> Tensor:
        return torch.zeros(len(x_BTC), 1, x_BTC.shape[1])


class Mean(Encoding):
    """Mean of all tokens so far, or of all tokens, or of too few channels."""

    def __init__(self, shape, kind: str = "causal"):
        super().__init__(shape)
        self.kind = kind

    def mixer(self, layer: int) -> nn.Module:
        return MeanMixer(self.kind)


class MeanMixer(nn.Module):
    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def forward(self, x_BTC: Tensor) -> Tensor:
        if self.kind == "all":
            return x_BTC.mean(dim=1, keepdim=True).expand_as(x_BTC)
        count_T1 = torch.arange(1, x_BTC.shape[1] + 1)[:, None]
        mean_BTC = x_BTC.cumsum(dim=1) / count_T1
        return mean_BTC[..., 1:] if self.kind == "narrow" else mean_BTC


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (WrongProfile(torch.zeros(3, 2)), r"WrongProfile.profile gives \[3, 2\].* = \[4, 3, 2\]"),
        (WrongProfile(torch.zeros(4, 1, 1)), r"profile gives \[4, 1, 1\]"),
        (WrongProfile(0.0), "profile gives float"),
        (WrongBias(torch.zeros(4, 2, 3)), r"bias gives \[4, 2, 3\].* = \[4, 3, 2\]"),
        (WrongGates(torch.zeros(1, 3, 4)), r"gates gives \[1, 3, 4\].* = \[1, 4, 3\]"),
        (
            WrongPositions(SHAPE),
            r"content_positions gives \[1, 3\], and \[B, H, T\] = \[1, 4, 3\]",
        ),
        (
            WrongPairs(SHAPE),
            r"content_positions gives \[1, 4, 3, 3\], and \[B, H, T, F\] = \[1, 4, 3, 4\]",
        ),
        (FromTheEnd(SHAPE), "content_positions moves a token by what comes after it"),
        (Unread(SHAPE), "content_positions has no effect, since the encoding has no table"),
        (Mean(SHAPE, "all"), "what comes after"),
        (Mean(SHAPE, "narrow"), r"\[B, T, C\]"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Encoding) else "",
)
def test_hooks_of_the_wrong_shape_from_the_future_or_without_effect_are_refused(encoding, message):
    with pytest.raises(ConfigError, match=message):
        check_hooks(encoding)


def test_a_mixer_of_a_user_is_tried_before_training():
    check_hooks(Mean(SHAPE))
    assert outputs(Mean(SHAPE)).isfinite().all()
