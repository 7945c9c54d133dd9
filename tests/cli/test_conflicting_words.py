"""What is typed beside run=DIR: words that describe another training are refused by name."""

import pytest
from script_calls import call
from spoils import PLACES, SMALL, with_usual

TEXT = [word for word in [*SMALL, *PLACES] if word.startswith(("data", "results", "cache", "log"))]
BOTH = (
    ["encoding=alibi", "train.steps=500"],
    "encoding=rope train.steps=6",
    "encoding=alibi train.steps=500",
)


@pytest.mark.parametrize(
    ("script", "words", "recorded", "typed"),
    [
        ("run", *BOTH),
        ("report", *BOTH),
        ("anatomy", *BOTH),
        ("run", ["encoding.base=500"], "encoding.base=10000", "encoding.base=500"),
        ("run", ["seed=1"], "seed=0", "seed=1"),
        ("run", ["data=pysource"], "data=local", "data=pysource"),
        ("run", ["train.scale_attention=ssmax"], "train.scale_attention=none", "ssmax"),
        ("run", ["--config-dir", "mine", "experiment=other"], "encoding=rope", "encoding=alibi"),
    ],
)
def test_words_that_describe_another_training_are_refused(
    world, capfd, script, words, recorded, typed
):
    (world.root / "mine/experiment").mkdir(parents=True)
    (world.root / "mine/experiment/other.yaml").write_text(
        "name: other\ngrid: [{encoding: [alibi], extension: [none]}]\n"
    )
    before = world.files()
    done = call(capfd, world.root, script, *words, f"run=runs/{world.run(0).name}", *PLACES[1:])
    assert done.returncode == 2, done.stderr
    run_part, _, typed_part = done.stderr.partition(" cannot change: leave out")[0].partition(
        ", which "
    )
    assert (
        recorded in run_part
        and typed in typed_part
        and done.stderr.startswith("refused: run=runs/rope-16-s0-")
        and done.stderr.count("\n") == 1
    )
    assert world.files() == before


def test_what_equals_the_trainings_own_passes(world, capfd):
    same = [
        f"run=runs/{world.run(0).name}",
        "encoding=rope",
        "encoding.base=1e4",
        "train.length=[16]",
        "seed=0",
        "data.path=text",
    ]
    assert "nothing to do" in call(capfd, world.root, "run", *with_usual(*same)).stdout
    (world.run(0) / "config.yaml").unlink()
    assert (
        "holds no training" in call(capfd, world.root, "run", *same[:-1], "train.steps=500").stderr
    )


@pytest.mark.parametrize(
    ("word", "kind"),
    [([], "hf-32-"), (["train.length=64"], "hf-64-"), (["train.length=16"], "hf-16-")],
)
def test_the_training_length_of_a_checkpoint_counts_also_where_it_is_the_default(
    world, capfd, word, kind
):
    pytest.importorskip("transformers")
    from hf_models import checkpoint

    path = checkpoint(world.root, vocab_size=256)
    done = call(
        capfd, world.root, "run", "model=hf", f"model.path={path}", *word, "dry=true", *TEXT
    )
    assert done.returncode == 0 and kind in done.stdout, done


def test_the_training_length_of_a_checkpoint_may_be_given(tmp_path, capfd):
    done = call(
        capfd,
        tmp_path,
        "run",
        "model=hf",
        "model.path=llama",
        "train.length=2048",
        "seed=0",
        *PLACES[1:],
    )
    assert "model.path=llama" in done.stderr and "no effect" not in done.stderr


def test_a_tokenizer_of_ours_beside_a_checkpoint_with_its_own_is_refused(world, capfd):
    pytest.importorskip("transformers")
    from hf_models import checkpoint

    path = checkpoint(world.root, vocab_size=256)
    words = [
        "run",
        "model=hf",
        f"model.path={path}",
        "dry=true",
        *(word for word in TEXT if "tokenizer" not in word),
    ]
    assert call(capfd, world.root, *words, "data.tokenizer=bytes").returncode == 0
    (path / "tokenizer.json").write_text("{}")
    stderr = call(capfd, world.root, *words, "data.tokenizer=bytes").stderr
    assert stderr.startswith(
        f"refused: model.path={path} has its own tokenizer, so data.tokenizer=bytes has no effect"
    )
