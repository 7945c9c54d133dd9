"""What cannot be changed in place, read once changed, or trained in: refused in a sentence."""

import functools
from collections.abc import Callable

import pytest
import registry
import torch
from conftest import make_triple, small_shape
from families import FAMILIES, TRAIN_LEN, text, tiny, transformers
from own_attention import OWN, tiny_own
from torch import nn

import posbench
from posbench.common.errors import ConfigError
from posbench.encodings.hybrid import Hybrid
from posbench.encodings.rope import Rope
from posbench.extensions.none import NoExtension
from posbench.position.geometry import Span
from posbench.position.interfaces import ScaleAttention
from posbench.position.legality import check_trained_scale, verdict_of
from posbench.scale_attention.adaptive import Adaptive
from posbench.scale_attention.asentmax import Asentmax
from posbench.scale_attention.learned_sink import LearnedSink
from posbench.scale_attention.off_by_one import OffByOne

LONGEST_MESSAGE = 600  # characters
LONGEST_OF_LENGTHS = 200  # of a message on a length; a number of 5,000 digits is shortened
UP_WEIGHT = "model.layers.1.mlp.up_proj.weight"
BY_CONTENT = "chooses the keys of a query by their content"
NO_POSITIONS = "has no positions.*choose scale_attention=log_n, or extension=streaming"


@functools.cache
def as_it_came(kind: str) -> nn.Module:
    """A tiny model of a family. A refused call leaves it as it is, so it serves all."""
    if kind in FAMILIES:
        return tiny(kind)
    return tiny_own(kind) if kind in OWN else registry.tiny(kind)


def head_elsewhere() -> nn.Module:
    model = tiny("llama")
    model.lm_head.to("meta")
    return model


def compiled_in_place() -> nn.Module:
    model = tiny("llama")
    model.compile()
    return model


def attention_replaced() -> nn.Module:
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.forward = lambda hidden_states, **keywords: (hidden_states, None)
    return model


def angles_reversed() -> nn.Module:
    model = tiny("llama")
    model.model.rotary_emb.register_forward_hook(
        lambda module, args, answer: (answer[0].flip(-1) * answer[1], answer[1])
    )
    return model


def angles_shifted() -> nn.Module:
    def shift(module: nn.Module, args: tuple, keywords: dict) -> tuple[tuple, dict]:
        shifted = tuple(part + 0.1 for part in keywords["position_embeddings"])
        return args, {**keywords, "position_embeddings": shifted}

    model = tiny("llama")
    layer = model.model.layers[2]
    layer.self_attn.register_forward_hook(lambda module, args, answer: (answer[0] * 1.0, None))
    layer.register_forward_pre_hook(shift, with_kwargs=True)
    return model


def xglm() -> nn.Module:
    sizes = {"vocab_size": 64, "d_model": 32, "ffn_dim": 32, "num_layers": 2, "attention_heads": 2}
    config = transformers.AutoConfig.for_model("xglm", **sizes, bos_token_id=1, eos_token_id=1)
    return transformers.AutoModelForCausalLM.from_config(config)


def length_unusable() -> nn.Module:
    model = tiny("llama")
    model.config.max_position_embeddings = int(1e30)
    return model


def weight_damaged(value: float) -> nn.Module:
    model = tiny("llama")
    model.get_parameter(UP_WEIGHT)[0, 0] = value
    return model


def biases_rolled() -> nn.Module:
    model = tiny_own("gptj")
    for layer in model.transformer.h:
        layer.attn.embed_positions = layer.attn.embed_positions.roll(1, dims=0)
    return model


def scaled_by_length() -> nn.Module:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return tiny("qwen3_moe", rope_parameters=scaling)


class Reading(ScaleAttention):
    """A factor from the input of each layer."""

    def content_factor(self, x_BTC: torch.Tensor, n_T: torch.Tensor, span: Span, layer: int):
        return x_BTC.mean(dim=-1)[:, None]


YARN = {"extension": "yarn"}
RESCALED = {"extension": "rerope", "train_len": TRAIN_LEN}
EXTEND = [
    # the model
    ("head on another device", head_elsewhere, YARN, "one device"),
    ("compiled", lambda: torch.compile(tiny("llama")), YARN, "compiled"),
    ("compiled in place", compiled_in_place, YARN, "compiled"),
    ("no language model", lambda: nn.Linear(2, 2), YARN, "not a causal language model"),
    ("attention replaced", attention_replaced, YARN, "has no attention layer that asks"),
    ("angles reversed", angles_reversed, YARN, "does not turn q and k|differ by"),
    ("angles shifted", angles_shifted, YARN, "does not turn q and k|differ by"),
    ("outside of the registry", xglm, YARN, "through transformers' registry"),
    ("angles of another base", biases_rolled, {}, "differs by .* from the angles of base 10000"),
    (
        "biases twice",
        lambda: tiny_own("falcon_rw", attn_implementation="eager"),
        {},
        "adds its ALiBi biases twice",
    ),
    ("scaled by length", scaled_by_length, YARN, "frequencies that depend on the text's length al"),
    *(
        (
            f"weight {value}",
            functools.partial(weight_damaged, value),
            {"extension": "rerope"},
            f"NaN or infinite logits after 24 random tokens: so has its weight {UP_WEIGHT}",
        )
        for value in (float("nan"), float("inf"))
    ),
    ("keys by content", "doge", RESCALED, BY_CONTENT),
    ("keys by content", "deepseek_v32", RESCALED, BY_CONTENT),
    ("keys by content", "hy_v4", RESCALED, BY_CONTENT),
    ("keys beyond the text", "deepseek_v4", RESCALED, "attends to 30 keys in a text of 24 tokens"),
    ("positions elsewhere", "recurrent_gemma", RESCALED, "uses positions beside its attention"),
    # methods
    ("no positions", "jamba", {"extension": "rerope"}, NO_POSITIONS),
    ("no positions", "kimi_linear", {"extension": "rerope"}, NO_POSITIONS),
    ("no positions", "granitemoehybrid", {"extension": "rerope"}, NO_POSITIONS),
    ("no learned table", "llama", {"extension": "table_linear"}, "learned table"),
    ("no learned table", "bloom", {"extension": "table_linear"}, "learned table"),
    (
        "mistyped",
        "llama",
        {"extension": "yarm"},
        "^extension=yarm is unknown .did you mean yarn",
    ),
    *(
        (
            "scale",
            "llama",
            {"scale_attention": scale},
            f"LlamaForCausalLM cannot have scale_.*, which {reason}",
        )
        for scale, reason in (
            ("adaptive", "has parameters that are learned in training"),
            ("asentmax", "has parameters that are learned in training"),
            (Reading(None), "reads the input of each layer"),
        )
    ),
    # lengths
    *(
        (
            name,
            "llama",
            {**YARN, name: length},
            f"^{name}=.*(1e|10000).* (is longer than any text|must be)",
        )
        for name in ("target_len", "train_len")
        for length in (10**8, 10**30, 10**5000, -(10**5000))
    ),
    *(
        (
            f"train_len={length!r}",
            "llama",
            {**YARN, "train_len": length},
            f"^train_len={length!r} must be a whole number of tokens, at least 2",
        )
        for length in ("64", 32.5, 0, True)
    ),
    (
        "configured",
        length_unusable,
        YARN,
        "configuration has a training length of .*: give train_len=TOKENS",
    ),
    ("configured", lambda: tiny_own("mpt", max_seq_len=1), {"extension": "pi"}, "training length"),
    *(
        (
            "beyond the table",
            kind,
            {"extension": "table_linear", "target_len": 300, "train_len": 200},
            f"train_len=200 .* has {TRAIN_LEN} rows",
        )
        for kind in ("gpt2", "opt")
    ),
]


def named(rows: list[tuple]) -> list:
    """Parameters of a test whose ids are the rows' names, and the model's where it has one."""
    return [
        pytest.param(*row, id=f"{name}, {row[0]}" if isinstance(row[0], str) else name)
        for name, *row in rows
    ]


def marks(model: nn.Module) -> tuple[object, ...]:
    """What a call could leave behind: the configuration, hooks, replaced forward functions."""
    config = getattr(model, "config", None)
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.modules()]
    replaced = ["forward" in vars(part) for part in model.modules()]
    if config is None:
        return hooks, replaced
    return config.to_dict(), config._attn_implementation, hooks, replaced


@pytest.mark.parametrize(("model", "methods", "words"), named(EXTEND))
def test_extend_refuses_and_leaves_the_model_as_it_came(
    model: str | Callable[[], nn.Module], methods: dict, words: str
):
    model = as_it_came(model) if isinstance(model, str) else model()
    before = marks(model)
    with pytest.raises(ConfigError, match=words) as error:
        posbench.extend(model, **methods)
    message = str(error.value)
    of_length = message.startswith(("target_len=", "train_len="))
    longest = LONGEST_OF_LENGTHS if of_length else LONGEST_MESSAGE
    assert "\n" not in message and len(message) < longest
    assert marks(model) == before
    with pytest.raises(ConfigError, match="no posbench methods"):
        posbench.restore(model)


TOKENS = 20
HALF = torch.arange(TOKENS // 2)
PACKED = torch.cat((HALF, HALF))[None]
SECOND = 2 * torch.arange(TOKENS)[None]
BESIDE_PADDING = torch.ones(1, TOKENS).long()
BESIDE_PADDING[0, TOKENS // 2] = 0
SHORT = torch.ones(1, TOKENS - 5).long()
SHORT[0, :3] = 0
READ = [
    ("packed texts", "llama", {"position_ids": PACKED}, "restart within a row"),
    (
        "packed texts without a cache",
        "llama",
        {"position_ids": PACKED, "use_cache": False},
        "restart within a row",
    ),
    ("every second position", "llama", {"position_ids": SECOND}, "restart within a row"),
    (
        "a mask of four dimensions",
        "llama",
        {"attention_mask": torch.zeros(1, 1, TOKENS, TOKENS)},
        "its own mask",
    ),
    (
        "a mask shorter than the text",
        "llama",
        {"attention_mask": SHORT},
        "attention_mask has 15 columns and the text has 20 tokens",
    ),
    *(
        ("a hole in the text", kind, {"attention_mask": BESIDE_PADDING}, "zeros between ones")
        for kind in ("llama", "gemma3_text", "llama4_text", "gpt_oss")
    ),
    ("weights of attention", "gptj", {"output_attentions": True}, "output_attentions"),
]


@functools.cache
def with_methods(kind: str) -> nn.Module:
    """A tiny model of a family with methods in place, for texts that it refuses to read."""
    model = tiny_own(kind) if kind in OWN else tiny(kind)
    return posbench.extend(model, scale_attention="log_n")


@pytest.mark.parametrize(("kind", "keywords", "words"), named(READ))
def test_an_extended_model_refuses_to_read(kind: str, keywords: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        with_methods(kind)(text(1, TOKENS), **keywords)


STICKS = {"_target_": "posbench.encodings.stick_breaking.StickBreaking"}
NO_POSITION = {"_target_": "posbench.encodings.none.NoEncoding"}
WHOLE_ROWS = "whole rows, as train.scale_attention=asentmax does"


@pytest.mark.parametrize(
    ("encoding", "scale", "words"),
    [
        ("cope", Asentmax, WHOLE_ROWS),
        ("dape", Asentmax, WHOLE_ROWS),
        ("stick_breaking", Asentmax, "^encoding=stick_breaking weights whole rows"),
        ("stick_breaking", Adaptive, "^encoding=stick_breaking has no softmax"),
        ("cope", LearnedSink, "choose none"),
        ("dape", LearnedSink, "choose none"),
        ("stick_breaking", LearnedSink, "choose none"),
        ("hybrid of sticks", OffByOne, "in its stick_breaking layers, weights whole rows"),
    ],
)
def test_an_encoding_refuses_a_scale_in_training(
    encoding: str, scale: type[ScaleAttention], words: str
):
    shape = small_shape()
    if encoding == "hybrid of sticks":
        method = Hybrid(shape, STICKS, NO_POSITION)
    else:
        method = make_triple(encoding, "none", "none")[0]
    with pytest.raises(ConfigError, match=words):
        check_trained_scale(method, scale(shape))


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (Adaptive, r"trained in with train\.scale_attention=adaptive"),
        (Asentmax, r"trained in with train\.scale_attention=asentmax"),
        (LearnedSink, r"train\.scale_attention=learned_sink"),
    ],
)
def test_a_scale_that_is_learned_is_no_scale_of_an_evaluation(
    scale: type[ScaleAttention], words: str
):
    shape = small_shape()
    with pytest.raises(ConfigError, match=words):
        verdict_of(Rope(shape), NoExtension(), scale(shape), [16, 64])
