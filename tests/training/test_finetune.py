"""Fine-tuned runs: a child begins as its parent under the extension, goes on bit for bit after a
kill, and says where it comes from.
"""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import node, small_shape
from script_calls import call
from spoils import PLACES, SMALL, interrupt
from test_train import make_corpus, token_file

from posbench.common.errors import ConfigError
from posbench.config.defaults import resolved_config
from posbench.config.schema import FinetuneConfig, JobConfig, ModelConfig, TrainConfig
from posbench.data.tokenfile import TokenFile
from posbench.encodings.pose import Pose
from posbench.model.build import make_encoding, make_trained_scale
from posbench.model.gpt import GPT
from posbench.model.inherit import check_beginning, inherit
from posbench.position.geometry import Span
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan, training_plan_maker
from posbench.report.labels import Labels
from posbench.sweep.finetune import child_config
from posbench.tools.export.command import hf_config
from posbench.training import loop
from posbench.training.optimizers import make_optimizers, rate_multiplier
from posbench.training.trainer import Trainer

TUNED = [word for word in SMALL if not word.startswith("evaluate.lengths")]
TUNED += [
    "evaluate.lengths=[16,64,128]",
    "finetune.steps=4",
    "finetune.warmup=2",
    "finetune.checkpoint_every=2",
    *PLACES,
]
LEN, LONG = 16, 64


def job(encoding: dict, extension: dict, train_len: int = LEN) -> JobConfig:
    """What a child's configuration is made of."""
    model = ModelConfig(d_model=32, n_layer=2, n_head=4, n_kv_head=2, d_ff=32)
    train = TrainConfig(length=train_len, tokens_per_step=64)
    return JobConfig(
        encoding=encoding, extension=extension, model=model, train=train, data={"bos": False}
    )


def model_of(cfg: JobConfig, seed: int) -> GPT:
    """A model with random weights, so that none hides behind the zeros of a fresh one."""
    torch.manual_seed(seed)
    encoding = make_encoding(cfg)
    model = GPT(cfg.model, encoding, 50, make_trained_scale(cfg, encoding))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def pair(extension: dict, **tuning) -> tuple[GPT, GPT]:
    """A parent and its child before the first step."""
    parent = job(node("encoding", "rope"), extension)
    child = child_config(parent, "rope-16-s0-0", FinetuneConfig(**tuning))
    check_beginning(child, parent)
    models = model_of(parent, 0), model_of(child, 1)
    inherit(models[1], models[0])
    return models


@pytest.mark.parametrize("lengths", [None, [16, 64]])
@pytest.mark.parametrize("typed", [None, 30, 0])
def test_a_child_is_validated_at_twentieths_of_its_own_steps_unless_others_are_typed(
    lengths, typed
):
    raw = {"train": {"steps": 1000, "validate_lengths": lengths, "validate_every": typed}}
    parent = resolved_config(raw | {"encoding": node("encoding", "rope")})
    steps = child_config(parent, "rope-64-s0-0", FinetuneConfig(steps=100)).train.validation_steps
    if typed:
        assert steps == [30, 60, 90, 100]
    elif typed is None and lengths:
        assert steps == [5 * n for n in range(1, 21)]
    else:
        assert steps == [100]


@pytest.mark.parametrize("length", [LEN, LONG, 2 * LONG])
@pytest.mark.parametrize(
    "name", ["none", "pi", "ntk", "ntk_by_parts", "yarn", "abf", "llama3", "longrope"]
)
@torch.no_grad()
def test_a_child_begins_as_its_parent_under_the_extension(name, length):
    """By another route: the parent's own plan with the extension at a fixed target, as an
    evaluation without fine-tuning makes it.
    """
    extension = node("extension", name)
    parent, child = pair(extension)
    fixed = {**extension, "mode": "fixed", "target_len": LONG} if "mode" in extension else extension
    tokens_BT = torch.randint(50, (2, length))
    expected = parent(tokens_BT, make_plan(parent.encoding, make_method(fixed), length=length))
    assert child.encoding.shape.train_len == LONG
    assert torch.allclose(child(tokens_BT), expected, atol=2e-4)
    if name != "none":
        assert not torch.allclose(expected, parent(tokens_BT), atol=1e-2)


@pytest.mark.parametrize("length", [LEN, 2 * LONG])
@pytest.mark.parametrize("named", [False, True])
@torch.no_grad()
def test_a_child_begins_with_each_part_of_compose_at_the_target(length, named):
    """By the route above: each part as alone, at a fixed target."""
    dynamic = [node("extension", "yarn"), node("extension", "ntk")]
    parts = dict(zip(("a", "b"), dynamic, strict=True)) | {"c": None} if named else dynamic
    parent, child = pair({**node("extension", "compose"), "parts": parts}, target_len=96)
    spectrum = parent.encoding.spectrum()
    span = Span(LEN, length, 96)
    for extension in dynamic:
        fixed = make_method({**extension, "mode": "fixed", "target_len": 96})
        spectrum = fixed.spectrum(spectrum, span)
    trained = child.encoding.spectrum_at(length)
    assert torch.allclose(trained.freq_F, spectrum.freq_F, rtol=1e-12)
    assert child.encoding.amplitude == pytest.approx(0.1 * math.log(6) + 1)


def test_a_target_beside_another_one_of_a_part_is_refused():
    fixed_yarn = {**node("extension", "yarn"), "mode": "fixed", "target_len": 128}
    extension = {**node("extension", "compose"), "parts": [node("extension", "abf"), fixed_yarn]}
    parent = job(node("encoding", "rope"), extension)
    with pytest.raises(ConfigError, match=r"=96 and extension.parts.1.target_len=128 differ"):
        child_config(parent, "x-16-s0-0", FinetuneConfig(target_len=96))
    child = child_config(parent, "x-16-s0-0", FinetuneConfig(target_len=128))
    assert child.encoding["scaling"]["parts"] == extension["parts"]


@torch.no_grad()
def test_a_factor_of_one_changes_nothing():
    parent, child = pair(node("extension", "pi"), length=LEN)
    tokens_BT = torch.randint(50, (2, LONG))
    assert torch.equal(child(tokens_BT), parent(tokens_BT))


@torch.no_grad()
def test_dropped_positions_leave_the_model_of_the_same_weights_without_rotation():
    dropped = child_config(
        job(node("encoding", "rope"), node("extension", "none")),
        "rope-16-s0-0",  # fmt: skip
        FinetuneConfig(encoding={"_target_": "posbench.encodings.none.NoEncoding"}),
    )
    parent, child = pair(node("extension", "none"))[0], model_of(dropped, 1)
    inherit(child, parent)
    parent.encoding.unscaled_spectrum.freq_F.zero_()  # an angle of 0 at every position
    tokens_BT = torch.randint(50, (2, LEN))
    assert dropped.train.length == LEN and torch.allclose(
        child(tokens_BT), parent(tokens_BT), atol=1e-6
    )


@pytest.mark.parametrize("shared", [False, True])
def test_a_head_scale_starts_at_one_and_nothing_else_learns(shared):
    scale = {"_target_": "posbench.scale_attention.head_scale.HeadScale", "shared": shared}
    parent = job(node("encoding", "none"), node("extension", "none"))
    child = child_config(parent, "none-16-s0-0", FinetuneConfig(scale_attention=scale, frozen=True))
    check_beginning(child, parent)
    before, model = model_of(parent, 0), model_of(child, 1)
    with torch.no_grad():
        model.scale.scale_LH.fill_(1)
    inherit(model, before, frozen=True)
    tokens_BT = torch.randint(50, (2, LONG))
    assert torch.allclose(model(tokens_BT), before(tokens_BT), atol=1e-6)
    loss = model.loss(
        tokens_BT, tokens_BT, make_plan(model.encoding, length=LONG, trained_scale=model.scale)
    )
    loss.backward()
    learning = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learning == {"scale.scale_LH"} and model.scale.scale_LH.shape == (
        (1, 1) if shared else (2, 4)
    )
    (optimizer,) = make_optimizers(model, TrainConfig(optimizer="muon"))
    assert [group["params"] for group in optimizer.param_groups] == [[model.scale.scale_LH]]
    with (
        torch.no_grad()
    ):  # a factor f on the logits is a factor f on q, whose channels no position turns
        model.scale.scale_LH.fill_(1.5)
        for block in before.layers:
            block.self_attn.q_proj.weight *= 1.5
        assert torch.allclose(model(tokens_BT), before(tokens_BT), atol=1e-4)


def test_weights_of_a_wrapped_encoding_go_to_its_base():
    alibi = {"_target_": "posbench.encodings.fire.Fire"}
    parent = job(alibi, node("extension", "none"))
    child = child_config(parent, "fire-16-s0-0", FinetuneConfig(encoding=pose_node()))
    check_beginning(child, parent)
    models = model_of(parent, 0), model_of(child, 1)
    inherit(models[1], models[0])
    parameters = dict(models[1].named_parameters())
    named = {
        name.replace("encoding.", "encoding.base.", 1): value
        for name, value in models[0].named_parameters()
    }
    assert any(name.startswith("encoding.base.") for name in named)
    assert parameters.keys() == named.keys() and all(
        torch.equal(parameters[name], value) for name, value in named.items()
    )


def pose_node(draw: str = "chunks") -> dict:
    return {"_target_": "posbench.encodings.pose.Pose", "base": None, "max_len": None, "draw": draw}


def test_positions_of_pose_are_those_of_the_papers_formula():
    """The cut c is uniform in 1..(T + 1) // 2 and the shift u in 0..max_len - T; before the cut t,
    after it t + u.
    """
    encoding = Pose(small_shape(), node("encoding", "rope"), LONG)
    drawn = [
        encoding.positions(LEN, torch.Generator().manual_seed(seed)).long().tolist()
        for seed in range(400)
    ]
    cuts, shifts = set(), set()
    for positions in drawn:
        shift = positions[-1] - (LEN - 1)
        cut = next((t for t in range(LEN) if positions[t] != t), None)
        assert positions == [t if shift == 0 or t < cut else t + shift for t in range(LEN)]
        cuts |= {cut} - {None}
        shifts.add(shift)
    assert cuts == set(range(1, (LEN + 1) // 2 + 1)) and shifts == set(range(LONG - LEN + 1))
    assert encoding.positions(LONG, None) is None


def test_random_positions_are_different_and_in_order():
    encoding = Pose(small_shape(), node("encoding", "rope"), LONG, "sorted")
    position_NT = torch.stack(
        [encoding.positions(LEN, torch.Generator().manual_seed(seed)) for seed in range(200)]
    )
    assert (
        (position_NT.diff() > 0).all() and position_NT.min() == 0 and position_NT.max() == LONG - 1
    )


def test_skipped_positions_depend_on_seed_and_step_alone():
    encoding = Pose(small_shape(), node("encoding", "rope"), LONG)

    def drawn(seed: int, step: int | None) -> list[int]:
        plan = training_plan_maker(encoding, None, "cpu", seed)(LEN, step)
        return plan.layers[0].bands[0].q_pos_T.tolist()

    assert drawn(0, 3) == drawn(0, 3) and drawn(0, 3) != drawn(0, 4) and drawn(0, 3) != drawn(1, 3)
    assert drawn(0, None) == list(range(LEN))


def test_a_constant_rate_makes_a_shorter_training_the_beginning_of_a_longer_one():
    short, long = (TrainConfig(steps=steps, warmup=2, schedule="constant") for steps in (4, 100))
    assert (
        [rate_multiplier(step, short) for step in range(4)]
        == [rate_multiplier(step, long) for step in range(4)]
        == [0.5, 1.0, 1.0, 1.0]
    )


@pytest.mark.parametrize(
    "encoding", [None, {**pose_node(), "max_len": 128}], ids=["longer", "pose"]
)
def test_the_target_that_the_extension_or_the_positions_name_themselves_may_be_repeated(encoding):
    fixed_yarn = {**node("extension", "yarn"), "mode": "fixed", "target_len": 128}
    for target in (128, None):
        child = child_config(
            job(node("encoding", "rope"), fixed_yarn),
            "x-16-s0-0",
            FinetuneConfig(target_len=target, encoding=encoding),
        )
        assert '"target_len": 128' in json.dumps(child.encoding)


def test_positions_reach_as_far_as_the_extension_says_and_its_factor_as_far_as_they_do():
    fixed, dynamic = (
        {**node("extension", "yarn"), "mode": mode, "target_len": to}
        for mode, to in (("fixed", 500), ("dynamic", None))
    )
    for extension, encoding in ((fixed, pose_node()), (dynamic, {**pose_node(), "max_len": 500})):
        child_encoding = child_config(
            job(node("encoding", "rope"), extension), "x-16-s0-0", FinetuneConfig(encoding=encoding)
        ).encoding
        assert child_encoding["max_len"] == child_encoding["base"]["scaling"]["target_len"] == 500


@pytest.mark.parametrize(
    "encoding", ["t5", "fire", "kerple", "xpos", "fope", "alibi", "none", "sinusoidal"]
)
def test_encodings_that_read_the_training_length_keep_the_parents(encoding):
    parent = job(node("encoding", encoding), node("extension", "none"))
    check_beginning(child_config(parent, "x-16-s0-0", FinetuneConfig()), parent)


def test_a_second_extension_is_refused_and_a_further_fine_tuning_is_not():
    parent = job(node("encoding", "rope"), node("extension", "yarn"))
    child = child_config(parent, "rope-16-s0-0", FinetuneConfig())
    for name in ("none", "pi"):
        grandchild = child_config(
            replace(child, extension=node("extension", name)), "rope-16to64-s0-0", FinetuneConfig()
        )
        assert grandchild.train.parent["reach"] == LEN and grandchild.train.length == 4 * LONG
        if name == "none":
            check_beginning(grandchild, child)
            continue
        with pytest.raises(
            ConfigError, match="extension=yarn is already trained in, so extension=pi cannot be"
        ):
            check_beginning(grandchild, child)


def test_no_generation_reads_the_batches_of_an_ancestor():
    configs = [job(node("encoding", "rope"), node("extension", "none"))]
    for run in ("rope-16-s0-0", "rope-16to16-s0-0", "rope-16to16-s0-1"):
        configs.append(child_config(configs[-1], run, FinetuneConfig(length=LEN)))
    text = token_file(2000, 4)
    text = TokenFile(
        np.random.default_rng(0).integers(50, size=2000).astype(np.uint16),
        text.n_bytes,
        text.starts,
        text.names,
    )
    corpus, first = make_corpus(train=text), []
    for cfg in configs:
        trainer = Trainer(
            model_of(configs[0], 0), corpus, cfg.train, 0, torch.device("cpu"), lambda n, step: n
        )
        first.append(trainer.batches.at(0)[0])
    assert not any(torch.equal(first[i], first[j]) for i in range(4) for j in range(i))


def test_a_child_is_exported_with_the_scaling_that_was_trained_in():
    child = child_config(
        job(node("encoding", "rope"), node("extension", "yarn")), "rope-16-s0-0", FinetuneConfig()
    )
    exported = hf_config(child, node("extension", "none"))
    assert exported["max_position_embeddings"] == LONG
    assert (exported["rope_scaling"]["rope_type"], exported["rope_scaling"]["factor"]) == (
        "yarn",
        4.0,
    )


def test_labels_tell_a_fine_tuned_run_from_one_that_was_not():
    plain = {
        "encoding": "rope",
        "encoding_args": node("encoding", "rope"),
        "extension": "none",
        "extension_args": {},
        "run_id": "a",
    }
    plain |= {
        "scale_attention": "none",
        "trained_scale": "none",
        "finetune": None,
        "task": None,
        "protocol": "fixed_targets",
    }
    scaling = {**node("extension", "yarn"), "mode": "fixed", "target_len": LONG}
    tuned = {**plain, "run_id": "b", "finetune": "rope-16-s0-1a2b3c4d5e"}
    tuned["encoding_args"] = {**plain["encoding_args"], "scaling": scaling, "scaling_len": LEN}
    wrapped = {
        **tuned,
        "encoding": "pose",
        "encoding_args": {"base": {**tuned["encoding_args"]}, "max_len": LONG},
    }
    floor = {**tuned, "extension": "recompute_window", "extension_args": {"window": None}}
    bare = {
        **wrapped,
        "run_id": "c",
        "encoding_args": {"base": {**plain["encoding_args"], "scaling": None}, "max_len": LONG},
    }
    other = {**bare, "encoding_args": {"base": node("encoding", "p_rope"), "max_len": LONG}}
    label = Labels(
        [plain, tuned, wrapped, floor, bare], {"b": {"train.steps": " steps=4"}}, {"b": 4}
    )
    assert label(plain) == ("rope", "none", "none")
    assert label(tuned) == ("rope tuned from rope-16 steps=4", "yarn (trained in)", "none")
    assert label(wrapped) == ("pose tuned from rope-16 steps=4", "yarn (trained in)", "none")
    assert label(bare) == ("pose tuned from rope-16", "none", "none")
    facts = label.facts(tuned)
    assert (facts.extension, facts.trained_in, facts.tuned_from, facts.steps) == (
        "yarn",
        True,
        "rope-16",
        4,
    )
    assert facts.encoding_label == "rope tuned from rope-16" and label.facts(bare).steps is None
    assert Labels([bare, other])(bare)[0] == "pose base=rope tuned from rope-16"
    assert label(floor)[0] == "rope trained with yarn tuned from rope-16 steps=4"


def the(folder, pattern: str):
    (path,) = (folder / "runs").glob(pattern)
    return path


def test_one_command_makes_parent_and_child_and_both_are_told_apart(world, capfd):
    words = ["finetune=longer", "extension=yarn", *TUNED]
    dry = call(capfd, world.root, "run", "dry=true", "seed=2", *words)
    lines = dry.stdout.splitlines()
    assert "rope-16-s2-" in lines[0] and lines[0].endswith("  to train, as a parent"), dry.stderr
    assert re.search(r"rope\+yarn-16to64-s2-\w+  to fine-tune from rope-16-s2-\w+$", lines[1])
    before = world.run(0).joinpath("train.json").read_bytes()
    done = call(capfd, world.root, "run", *words)
    assert done.returncode == 0, done.stderr
    child, parent = the(world.root, "rope+yarn-16to64-s0-*"), world.run(0)
    assert parent.joinpath("train.json").read_bytes() == before
    digest = json.loads(before)["sha256"]
    noted = json.loads(child.joinpath("provenance.json").read_text())["parent"]
    assert (
        noted == {"run_id": parent.name, "reach": LEN, "sha256": digest}
        and digest in child.joinpath("config.yaml").read_text()
    )
    rows = [
        row
        for path in child.glob("evals/*/none+none-*.json")
        for row in json.loads(path.read_text())["rows"]
    ]
    assert {row["length"] for row in rows} == {16, 64, 128} and {
        row["finetune"] for row in rows
    } == {parent.name}
    assert {row["train_len"] for row in rows} == {LONG}
    assert "nothing to do" in call(capfd, world.root, "run", *words).stdout
    listed = call(capfd, world.root, "runs", "list", "results_dir=runs").stdout
    assert "rope scaling=yarn " in next(
        line for line in listed.splitlines() if line.startswith(child.name)
    ), listed
    shared_words = [
        word
        for word in TUNED
        if word.startswith(("evaluate", "log", "device", "results_dir", "cache_dir"))
    ]
    again = call(capfd, world.root, "run", f"run=runs/{child.name}", "extension=pi", *shared_words)
    assert again.returncode == 0 and list(child.glob("evals/*/pi+none-*.json")), again.stderr


def test_no_step_leaves_the_parents_weights_and_rows_are_those_of_the_parent_under_the_extension(
    world, capfd
):
    words = [word for word in TUNED if not word.startswith("finetune.steps")]
    done = call(
        capfd, world.root, "run", "finetune=longer", "finetune.steps=0", "extension=pi", *words
    )
    assert done.returncode == 0, done.stderr
    child, parent = the(world.root, "rope+pi-16to64-s0-*"), world.run(0)
    assert (
        child.joinpath("model.safetensors").read_bytes()
        == parent.joinpath("model.safetensors").read_bytes()
    )
    words = [word for word in words if not word.startswith("finetune")]
    assert (
        call(
            capfd,
            world.root,
            "run",
            "extension=pi",
            "extension.mode=fixed",
            "extension.target_len=64",
            *words,
        ).returncode
        == 0
    )
    zero, usual = (
        {
            row["length"]: row
            for path in folder.glob(f"evals/*/{name}+none-*.json")
            for row in json.loads(path.read_text())["rows"]
        }
        for folder, name in ((child, "none"), (parent, "pi"))
    )
    assert zero.keys() == usual.keys() == {16, 64, 128}
    for length, row in zero.items():
        assert (
            row["nll"] == pytest.approx(usual[length]["nll"], abs=1e-6)
            and row["n_targets"] == usual[length]["n_targets"]
        )


def stopping(run: str, step: int):
    """Trainer.advance that ends the process before `step` of the runs whose id begins with
    `run`.
    """
    advance = Trainer.advance

    def stopped(trainer: Trainer) -> None:
        if (
            trainer.config.parent
            and trainer.config.parent["run_id"].startswith(run)
            and trainer.step == step
        ):
            raise KeyboardInterrupt
        advance(trainer)

    return stopped


@pytest.mark.parametrize(
    ("name", "pattern"), [("longer", "rope+yarn-16to64-s1-*"), ("pose", "pose-16to16-s1-*")]
)
def test_a_child_that_was_stopped_ends_with_the_same_weights(
    world, capfd, monkeypatch, name, pattern
):
    """So does its parent: that of seed 1 was ended in the middle of its training, and is made anew
    in the other folder.
    """
    words = [f"finetune={name}", "seed=1", "extension=yarn", "train.log_every=1", *TUNED]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", stopping("rope-16-s1-", 3))
        assert call(capfd, world.root, "run", *words).returncode != 0
    child = the(world.root, pattern)
    assert (
        (child / "state.pt").exists()
        and not (child / "train.json").exists()
        and (world.run(1) / "train.json").exists()
    )
    done = call(capfd, world.root, "run", *words)
    assert done.returncode == 0 and "going on from step 2 of 4" in done.stderr
    assert (
        call(capfd, world.root, "run", *words[:-3], *words[-2:], "results_dir=other").returncode
        == 0
    )
    (undisturbed,) = (world.root / "other").glob(pattern)
    assert (child / "model.safetensors").read_bytes() == (
        undisturbed / "model.safetensors"
    ).read_bytes()
    assert (child / "model.safetensors").read_bytes() != (
        world.run(1) / "model.safetensors"
    ).read_bytes()
    losses = [
        [json.loads(line)["loss"] for line in (path / "train.jsonl").read_text().splitlines()]
        for path in (child, undisturbed)
    ]
    assert len(losses[0]) == 4 and losses[0] == losses[1]


def test_a_child_of_a_parent_that_changed_is_refused(world, capfd, monkeypatch):
    words = ["finetune=longer", "extension=yarn", *TUNED]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_finish", interrupt)
        assert call(capfd, world.root, "run", *words).returncode != 0
    summary = world.run(0) / "train.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "sha256": "0" * 64}))
    before = world.files()
    done = call(capfd, world.root, "run", *words)
    lines = [
        line
        for line in done.stderr.splitlines()
        if "has changed since rope+yarn-16to64-s0-" in line
    ]
    assert (
        done.returncode == 1
        and len(lines) == 1
        and "to fine-tune anew" in lines[0]
        and world.files() == before
    )
