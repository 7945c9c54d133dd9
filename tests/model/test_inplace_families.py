"""posbench.extend on random tiny models of every family: as they came, and under each extension as
attention on whole matrices.
"""

import pytest
import torch
from families import FAMILIES, LEARNED, TRAIN_LEN, densely, difference, text, tiny

import posbench
from posbench.common.errors import ConfigError
from posbench.model.inplace.reader import Reader

EXTENSIONS = (
    "pi",
    "ntk",
    "yarn",
    "rerope",
    "self_extend",
    "dca",
    "gali",
    "streaming",
    "lm_infinite",
    "dynamic_ntk",
    "window",
)
SAME = 1e-4  # standard deviations of the logits
BEYOND = 100
# Layers that see the whole text turn nothing, or none sees it and windows end before the extension
# begins.
CHANGES_NOTHING = ("changes nothing", "sees every pair")
PAIRS = [
    *((extension, "none") for extension in EXTENSIONS),
    *((extension, "log_n") for extension in ("none", "yarn", "rerope")),
]
# of every family one pair each of frequencies, two turns, a mask and a factor on logits; all pairs
# for families that turn parts of a head, neighbours, or some layers only
FEW = [("yarn", "none"), ("dca", "none"), ("streaming", "none"), ("rerope", "log_n")]
THOROUGH = ("llama", "glm4", "gpt_oss", "deepseek_v3", "llama4_text")


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_is_unchanged_without_an_extension_and_exact_with_each(kind):
    model = tiny(kind)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    inside, beyond = text(2, 20), text(2, TRAIN_LEN if kind in LEARNED else BEYOND)
    original = [model(ids).logits for ids in (inside, beyond)]
    posbench.extend(model)
    for ids, expected in zip((inside, beyond), original, strict=True):
        assert difference(model(ids).logits, expected) < SAME
    extended = {}
    pairs = PAIRS if kind in THOROUGH else FEW
    for extension, scale in pairs if kind not in LEARNED else ():
        try:
            posbench.extend(model, extension, scale)
        except ConfigError as error:
            assert any(reason in str(error) for reason in CHANGES_NOTHING), (
                extension,
                scale,
                error,
            )
            continue
        extended[extension, scale] = model(beyond[:1]).logits
    posbench.restore(model)
    for pair, logits in extended.items():
        with densely(model, kind, *pair):
            assert difference(logits, model(beyond[:1]).logits) < SAME, pair
    assert len(extended) >= (0 if kind in LEARNED else len(pairs) // 3), (
        "families whose extended layers do not turn are masked and scaled all the same"
    )
    assert torch.equal(model(inside).logits, original[0])
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    reader = Reader(model, TRAIN_LEN)  # as an evaluation reads it
    assert difference(reader(inside), original[0]) < SAME
    assert difference(reader(inside, last=3), original[0][:, -3:]) < SAME


@pytest.mark.parametrize("kind", ["gpt_neox", "gemma2", "gpt_oss"])
def test_heads_are_seen_as_transformers_computes_their_weights(kind):
    from posbench.model.kernels.dispatch import attention_weights

    model, ids, weights_by_layer = tiny(kind), text(1, 60), {}
    model.set_attn_implementation("eager")
    expected = model(ids, output_attentions=True, use_cache=False).attentions
    reader = Reader(model, TRAIN_LEN)

    def watch(index, plan, q_BHTD, k_BGTD):
        full_weights = torch.zeros(1, q_BHTD.shape[1], 60, 60)
        for start, bands in attention_weights(plan, None, q_BHTD, k_BGTD, 60):
            for keys, weights in bands:
                full_weights[:, :, start : start + weights.shape[2], keys] += weights
        weights_by_layer[index] = full_weights

    reader.hook.observe_layer = watch
    reader(ids)
    assert len(weights_by_layer) == len(expected)
    for index, weights in weights_by_layer.items():
        assert (weights - expected[index][..., :60]).abs().max() < 1e-5
