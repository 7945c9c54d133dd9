"""Checkpoints as parents of fine-tuned runs, and the child as transformers reads it, also where
transformers builds and saves it.
"""

import json

import hf_models
import pytest
import torch
from families import TRAIN_LEN, difference, text, tiny, transformers
from safetensors.torch import load_file
from script_calls import call
from spoils import PLACES, SMALL
from test_train import make_corpus

import posbench
from posbench.config.schema import TrainConfig
from posbench.model.build import load_model
from posbench.model.inplace.reader import Reader
from posbench.position.plan import training_plan_maker
from posbench.position.trusted import trained_config
from posbench.runs.directory import Run
from posbench.training.trainer import Trainer

LONGER = 2 * TRAIN_LEN
WORDS = [
    word
    for word in SMALL
    if word.startswith(("data", "log", "device", "evaluate.windows", "evaluate.max_length"))
]
LONG = [
    *WORDS,
    *PLACES,
    "extension=yarn",
    "finetune=longer",
    "finetune.steps=3",
    "finetune.lr=1e-3",
    "finetune.tokens_per_step=64",
]
TUNED = [
    "finetune=longer",
    "finetune.lr=1e-2",
    "finetune.muon_lr=1e-3",
    f"finetune.tokens_per_step={2 * LONGER}",
]
YARN = {"_target_": "posbench.extensions.yarn.Yarn", "mode": "fixed", "target_len": LONGER}


def test_a_fine_tuned_checkpoint_has_weights_of_its_own_and_is_the_same_model_to_transformers(
    world, capfd
):
    path = hf_models.checkpoint(world.root, vocab_size=256, max_position_embeddings=16)
    before = load_file(path / "model.safetensors")
    done = call(capfd, world.root, "run", "model=hf", f"model.path={path}", *LONG)
    assert done.returncode == 0, done.stderr
    (parent,), (child,) = (
        sorted((world.root / "runs").glob(pattern))
        for pattern in ("hf-16-s0-*", "hf+yarn-16to64-s0-*")
    )
    assert not (parent / "model.safetensors").exists() and (parent / "train.json").exists()
    assert json.loads((child / "provenance.json").read_text())["parent"]["run_id"] == parent.name
    assert json.loads((child / "train.json").read_text())["steps"] == 3
    out = hf_models.exported(Run(child))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    assert theirs.config.max_position_embeddings == 64
    hf_models.assert_equal_logits(Run(child), theirs, vocab_size=256)
    after = load_file(out / "model.safetensors")
    assert before.keys() == after.keys() and not torch.equal(
        before["model.norm.weight"], after["model.norm.weight"]
    )
    assert all(torch.allclose(value, after[name], atol=0.05) for name, value in before.items())
    refused = call(
        capfd, world.root, "run", "model=hf", f"model.path={path}", "evaluate.split=all", *LONG
    )
    assert (
        refused.returncode == 2
        and "evaluate.split=all scores the text of the fine-tuning too" in refused.stderr
    )


def checkpoint(root, kind):
    path = root / kind
    tiny(kind, vocab_size=256).save_pretrained(path)
    return [f"model.path={path}", "model=hf", *WORDS, *PLACES]


def tuned(capfd, root, kind, *words, length=LONGER):
    """Finished run of a child."""
    done = call(
        capfd, root, "run", *checkpoint(root, kind), *TUNED, f"finetune.length={length}", *words
    )
    assert done.returncode == 0, done.stderr
    (child,) = (run for run in (root / "runs").glob(f"hf*-{TRAIN_LEN}to{length}-*"))
    return Run(child)


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss"])
def test_a_child_is_the_model_that_transformers_saved_with_the_extension_put_back(
    world, capfd, kind
):
    child = tuned(capfd, world.root, kind, "finetune.steps=4", "extension=yarn")
    losses = [
        json.loads(line)["loss"]
        for line in child.train_log.read_text().splitlines()
        if "loss" in json.loads(line)
    ]
    ours = load_model(child, trained_config(child), 256, "cpu")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(child.path).eval()
    ids = text(2, LONGER)
    extended = posbench.extend(theirs, "yarn", target_len=LONGER, train_len=TRAIN_LEN)
    right = difference(ours(ids), extended(ids).logits)
    before = tiny(kind, vocab_size=256).state_dict()
    moved = {
        name
        for name, tensor in posbench.restore(theirs).state_dict().items()
        if not torch.equal(tensor, before[name])
    }
    assert losses and len(moved) > len(before) // 2
    again = call(capfd, world.root, "run", "model=hf", f"model.path={child.path}", *WORDS, *PLACES)
    assert again.returncode == 2 and f"give run={child.path} instead" in again.stderr
    assert right < 1e-4 < 3e-4 < difference(ours(ids), theirs(ids).logits), (
        "without it the model is another"
    )


def test_a_learned_table_is_trained_at_its_own_length(world, capfd):
    child = tuned(
        capfd,
        world.root,
        "gpt2",
        "finetune.steps=3",
        f"evaluate.max_length={TRAIN_LEN}",
        length=TRAIN_LEN,
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(child.path).eval()
    assert not torch.equal(
        theirs.transformer.wpe.weight, tiny("gpt2", vocab_size=256).transformer.wpe.weight
    )
    assert (
        difference(
            load_model(child, trained_config(child), 256, "cpu")(text(1, TRAIN_LEN)),
            theirs(text(1, TRAIN_LEN)).logits,
        )
        < 1e-4
    )


def test_methods_in_place_are_evaluated_in_bf16_as_in_float32(world, capfd):
    losses = {}
    for dtype in ("bf16", "fp32"):
        words = [*checkpoint(world.root, "gpt_neox"), "extension=yarn", f"evaluate.dtype={dtype}"]
        done = call(capfd, world.root, "run", *words, "evaluate.lengths=[64,128]")
        assert done.returncode == 0, done.stderr
        (run,) = (world.root / "runs").glob("hf-*")
        rows = [
            row
            for file in Run(run).eval_files()
            if file.name.startswith("yarn+none")
            for row in json.loads(file.read_text())["rows"]
        ]
        losses[dtype] = [row["nll"] for row in rows if row["dtype"] == dtype]
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.02)
    assert losses["bf16"] != losses["fp32"]


def test_no_steps_are_the_extension_at_evaluation(world, capfd):
    child = tuned(
        capfd,
        world.root,
        "gpt_neox",
        "finetune.steps=0",
        "extension=yarn",
        f"evaluate.lengths={LONGER}",
        "evaluate.dtype=fp32",
    )
    words = [
        *checkpoint(world.root, "gpt_neox"),
        "extension=yarn",
        "extension.mode=fixed",
        f"extension.target_len={LONGER}",
    ]
    done = call(
        capfd, world.root, "run", *words, f"evaluate.lengths={LONGER}", "evaluate.dtype=fp32"
    )
    assert done.returncode == 0, done.stderr
    (parent,) = (world.root / "runs").glob(f"hf-{TRAIN_LEN}-*")
    rows = [
        {
            row["length"]: row["nll"]
            for row in json.loads(file.read_text())["rows"]
            if row["protocol"] == "fixed_targets"
        }
        for run, name in ((child, "none+none"), (Run(parent), "yarn+none"))
        for file in run.eval_files()
        if file.name.startswith(name)
    ]
    assert len(rows) == 2 and rows[0][LONGER] == pytest.approx(rows[1][LONGER], abs=1e-5)


def stepped(corpus, folder, *stops):
    """Weights after the last of `stops`, each but the first reached by a new process's model from
    the state before it.
    """
    config = TrainConfig(
        length=32, steps=4, tokens_per_step=64, dtype="fp32", lr=1e-2, muon_lr=1e-3
    )
    for stop in stops:
        model = Reader(tiny("gpt_neox", vocab_size=256), 32, YARN, 16).requires_grad_(True)
        plans = training_plan_maker(model.encoding, None, "cpu", 0)
        trainer = Trainer(model, corpus, config, 0, torch.device("cpu"), plans)
        if stop != stops[0]:
            trainer.resume(folder)
        while trainer.step < stop:
            trainer.advance()
        with folder.lock():
            trainer.save(folder)
    return model.state_dict()


def test_a_resumed_training_ends_with_the_same_weights(tmp_path):
    corpus = make_corpus(vocab_size=256)
    runs = [Run(tmp_path / name) for name in ("once", "twice")]
    for run in runs:
        run.path.mkdir()
    once, twice = stepped(corpus, runs[0], 4), stepped(corpus, runs[1], 2, 4)
    assert all(torch.equal(tensor, twice[name]) for name, tensor in once.items())


def test_gradients_are_those_of_transformers_own_loss():
    original, model = (
        tiny("gpt_neox").requires_grad_(True),
        Reader(tiny("gpt_neox"), TRAIN_LEN).requires_grad_(True),
    )
    ids, targets = text(2, 40)[:, :-1], text(2, 40)[:, 1:].clone()
    targets[:, :5] = -100
    plan = training_plan_maker(model.encoding, None, "cpu", 0)(39, None)
    loss = model.loss(ids, targets, plan)
    theirs = torch.nn.functional.cross_entropy(
        original(ids).logits.flatten(0, 1), targets.flatten()
    )
    loss.backward(), theirs.backward()
    assert float(loss.detach()) == pytest.approx(theirs.item(), rel=1e-6)
    for (name, ours), other in zip(
        model.model.named_parameters(), original.parameters(), strict=True
    ):
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-3, atol=1e-6, msg=name)
