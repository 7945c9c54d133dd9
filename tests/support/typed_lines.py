"""Configurations of tests, written as they are typed: "extension=yarn extension.target_len=64"."""

import shlex

from conftest import node
from omegaconf import OmegaConf

GROUPS = ("encoding", "extension", "finetune", "scale_attention")


def configured(line: str) -> dict:
    """{key: value} of a typed line: a choice of a group is its yaml's content, other words are
    values in it.
    """
    config = OmegaConf.create()
    for word in shlex.split(line):
        key, _, name = word.partition("=")
        if key in GROUPS and not name.startswith("{"):
            config[key] = {k: v for k, v in node(key, name).items() if k != "defaults"}
        elif key in GROUPS:
            config[key] = OmegaConf.create(name)
        else:
            config.merge_with(OmegaConf.from_dotlist([word]))
    return OmegaConf.to_container(config)
