"""Configurations of tests, written as they are typed: "extension=yarn extension.target_len=64"."""

import shlex

from conftest import node
from omegaconf import OmegaConf

GROUPS = ("encoding", "extension", "finetune", "scale_attention")


def configured(line: str) -> dict:
    """{key: value} of a typed line: a choice of a group is its yaml's content, other words are
    values in it.
    """
    choices = OmegaConf.create()
    values = []
    for word in shlex.split(line):
        key, _, name = word.partition("=")
        if key in GROUPS:
            choices[key] = {k: v for k, v in node(key, name).items() if k != "defaults"}
        else:
            values.append(word)
    return OmegaConf.to_container(OmegaConf.merge(choices, OmegaConf.from_dotlist(values)))
