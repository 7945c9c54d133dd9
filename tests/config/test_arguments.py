"""Arguments of methods: the yaml's are the class's, and impossible ones are refused in a sentence
that names them.
"""

import inspect

import pytest
from conftest import choices, node, small_shape
from hydra.utils import get_class

from posbench.common.errors import ConfigError
from posbench.position.instantiate import make


@pytest.mark.parametrize(
    ("group", "name"),
    [(g, n) for g in ("extension", "scale_attention") for n in choices(g) if n != "compose"],
)
def test_a_yaml_and_its_class_have_the_same_defaults(group, name):
    written = node(group, name)
    signature = inspect.signature(get_class(written.pop("_target_")))
    assert written == {
        key: p.default
        for key, p in signature.parameters.items()
        if key != "shape" and p.default is not p.empty
    }


@pytest.mark.parametrize(
    ("group", "name", "arguments"),
    [
        ("extension", "dynamic_ntk", {"factor": 0.5}),
        ("extension", "dynamic_ntk", {"mode": "fixed", "target_len": 64, "fed": 4}),
        ("extension", "ntk_mixed", {"kappa": -1}),
        ("extension", "ntk", {"mode": "fixed"}),
        ("extension", "ntk", {"multiplier": 0.5}),
        ("extension", "leaky_rerope", {"k": 0.5}),
        ("extension", "ntk_by_parts", {"alpha": 0}),
        ("extension", "yarn", {"beta": 0.5}),
        ("extension", "yarn", {"ramp": "pairs"}),
        ("extension", "llama3", {"beta": 1}),
        ("extension", "abf", {"base": 1}),
        ("extension", "longrope", {"factors": [1, 0]}),
        ("extension", "longrope", {"short_factors": [0]}),
        ("extension", "longrope", {"exact_first": -1}),
        ("extension", "self_extend", {"group": 0}),
        ("extension", "dca", {"chunk": 0}),
        ("extension", "dca", {"chunk": 4, "local": 5}),
        ("extension", "string", {"shift": 0}),
        ("extension", "streaming", {"sinks": 0}),
        ("extension", "lm_infinite", {"n_global": 0}),
        ("extension", "table_hierarchical", {"alpha": 0.5}),
        ("extension", "table_linear", {"mode": "fixed"}),
        ("scale_attention", "llama4", {"floor_scale": 0}),
        ("scale_attention", "scale_invariant", {"tau": 0}),
    ],
)
def test_impossible_arguments_are_refused_by_name(group, name, arguments):
    shape = [small_shape()] if group == "scale_attention" else []
    key, value = list(arguments.items())[-1]
    with pytest.raises(ConfigError) as refusal:
        make({**node(group, name), **arguments}, *shape)
    assert f"{group}.{key}={value}" in str(refusal.value)


ROPE, LEARNED = (
    {"_target_": f"posbench.encodings.{name}"} for name in ("rope.Rope", "learned.Learned")
)
RANDOM_LEARNED = {"_target_": "posbench.encodings.randomized.Randomized", "base": ROPE}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("rope", {"fraction": 0.4}, "fraction=0.4 of the head width 8 is 3.2 channels"),
        ("rope", {"fraction": 1.5}, "fraction=1.5"),
        ("p_rope", {"p": 1.1}, "p=1.1"),
        ("clipped_rope", {"share": 1.5}, "share=1.5"),
        ("p_rope", {"cut": "half"}, "cut=half"),
        ("xpos", {"gamma": 0}, "gamma=0"),
        ("xpos", {"B": 2}, "choose encoding.B of at least 7.83"),
        ("fope", {"gain": -1}, "gain=-1"),
        ("fope", {"pairs": 2}, "pairs=2 must be between 0 and 1"),
        ("pope", {"base": 1}, "base=1"),
        ("fox", {"data_dependent": False, "tau_max": 1}, "tau_max=1"),
        ("randomized", {"max_len": 15}, "max_len=15"),
        ("randomized", {"eval": "mean"}, "eval=mean"),
        ("hybrid", {"period": 0}, "period=0"),
        (
            "hybrid",
            {"full": LEARNED},
            "encoding.full=posbench.encodings.learned.Learned is for a whole model",
        ),
        (
            "hybrid",
            {"local": RANDOM_LEARNED},
            "encoding.local=posbench.encodings.randomized.Randomized is for a whole model",
        ),
        ("t5", {"n_buckets": 1}, "n_buckets=1"),
        ("t5", {"max_distance": 16}, "max_distance=16"),
        ("alibi", {"slope_scale": 0}, "slope_scale=0"),
        ("kerple", {"form": "cubic"}, "form=cubic"),
        ("sandwich", {"dim": 7}, "dim=7"),
        ("fire", {"c": 0}, "c=0"),
        ("cope", {"positions": 1}, "positions=1"),
        ("dape", {"width": 0}, "width=0"),
        ("stick_breaking", {"remainder": "burn"}, "remainder=burn"),
    ],
)
def test_impossible_arguments_are_refused(name, arguments, said):
    with pytest.raises(ConfigError, match=said):
        make({**node("encoding", name), **arguments}, small_shape())
