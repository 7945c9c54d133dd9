"""A checkpoint of transformers as the parent of a fine-tuned run, and the child as transformers reads it."""

import json

import torch
from hf_models import assert_equal_logits, checkpoint, exported, transformers
from safetensors.torch import load_file
from script_calls import call
from spoils import PLACES, SMALL

from posbench.runs.directory import Run

WORDS = [word for word in SMALL if word.startswith(("data", "log", "device", "evaluate.windows", "evaluate.max_length"))]
WORDS += ["finetune=longer", "finetune.steps=3", "finetune.lr=1e-3", "finetune.tokens_per_step=64", "extension=yarn", *PLACES]


def test_a_fine_tuned_checkpoint_has_weights_of_its_own_and_is_the_same_model_to_transformers(world, capfd):
    path = checkpoint(world.root, vocab_size=256, max_position_embeddings=16)
    before = load_file(path / "model.safetensors")
    done = call(capfd, world.root, "run", "model=hf", f"model.path={path}", *WORDS)
    assert done.returncode == 0, done.stderr
    (parent,), (child,) = (sorted((world.root / "runs").glob(pattern)) for pattern in ("hf-16-s0-*", "hf+yarn-16to64-s0-*"))
    assert not (parent / "model.safetensors").exists() and (parent / "train.json").exists()
    assert json.loads((child / "provenance.json").read_text())["parent"]["run_id"] == parent.name
    assert json.loads((child / "train.json").read_text())["steps"] == 3
    out = exported(Run(child))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    assert theirs.config.max_position_embeddings == 64
    assert_equal_logits(Run(child), theirs, vocab_size=256)
    after = load_file(out / "model.safetensors")
    assert before.keys() == after.keys() and not torch.equal(before["model.norm.weight"], after["model.norm.weight"])
    assert all(torch.allclose(value, after[name], atol=0.05) for name, value in before.items())
    refused = call(capfd, world.root, "run", "model=hf", f"model.path={path}", "evaluate.split=all", *WORDS)
    assert refused.returncode == 2 and "evaluate.split=all scores the text of the fine-tuning too" in refused.stderr
