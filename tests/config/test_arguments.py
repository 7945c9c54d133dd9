"""Arguments of methods: the yaml's are the class's."""

import inspect

import pytest
from conftest import choices, node
from hydra.utils import get_class


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
