"""A small world, and the ways to spoil it that tests/system/test_spoils.py makes its list of.

The world: `text/` in three splits, `cache/` with its tokens, `runs/` with one finished run (seed 0)
and one that was ended in the middle of its training (seed 1, two states), `mine/` with a user's own
yamls."""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from script_calls import call

from posbench.training import loop as train

SMALL = [
    "data=local",
    "data.tokenizer=bytes",
    "model.d_model=16",
    "model.n_layer=1",
    "model.n_head=2",
    "model.d_ff=32",
]
SMALL += [
    "train.length=16",
    "train.steps=6",
    "train.tokens_per_step=64",
    "train.warmup=1",
    "train.validate_windows=4",
]
SMALL += [
    "train.checkpoint_every=2",
    "evaluate.windows=12",
    "evaluate.lengths=[16,32]",
    "evaluate.max_length=128",
]
SMALL += ["log.mode=disabled", "device=cpu"]
PLACES = ["data.path=text", "results_dir=runs", "cache_dir=cache", "report_dir=report"]


def with_usual(*words: str, usual: Iterable[str] = (*SMALL, *PLACES)) -> list[str]:
    """Words of a command line: `words`, and of the `usual` ones those whose keys they do not
    set.
    """
    typed_keys = {word.split("=")[0] for word in words}
    return [*words, *(word for word in usual if word.split("=")[0] not in typed_keys)]


@dataclass(frozen=True)
class World:
    """Paths in one world's folder."""

    root: Path

    def run(self, seed: int) -> Path:
        (path,) = (self.root / "runs").glob(f"rope-16-s{seed}-*")
        return path

    def tokens(self, name: str) -> Path:
        (path,) = (self.root / "cache").glob(f"*/{name}")
        return path

    def evaluation(self, name: str) -> Path:
        (path,) = self.run(0).glob(f"evals/*/{name}")
        return path

    def files(self) -> dict[str, bytes]:
        """Every file's content, but for what records the command itself."""
        excluded = ("ledger.jsonl", "failure.txt", ".lock", "digests.json", "provenance.json")
        paths = [
            path
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and path.name not in excluded
        ]
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in paths}


@dataclass(frozen=True)
class Kind:
    """`typed` wins over SMALL and PLACES; `message` is a part of the sentence."""

    name: str
    typed: tuple[str, ...]
    message: str
    code: int = 2
    spoil: Callable[[World], object] = lambda world: None
    script: str = "run"


def write_text(folder: Path, train: int = 6, validation: int = 2, test: int = 3) -> Path:
    """Three splits of so many repetitive documents of a kilobyte."""
    for split, count in (("train", train), ("validation", validation), ("test", test)):
        (folder / split).mkdir(parents=True)
        for i in range(count):
            words = " ".join(
                f"{split} document {i} says word {n * (i + 3) % 37}." for n in range(40)
            )
            (folder / split / f"{i}.txt").write_text(words)
    return folder


def make_world(root: Path, capfd: pytest.CaptureFixture) -> None:
    """Text, tokens, a finished run, and one that was interrupted just before its end."""
    write_text(root / "text")
    assert call(capfd, root, "run", *SMALL, *PLACES).returncode == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "_finish", interrupt)
        assert call(capfd, root, "run", "seed=1", *SMALL, *PLACES).returncode != 0
    (root / "runs" / "ledger.jsonl").unlink()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def file_instead(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("a file where a folder should be")


def other_state(path: Path) -> None:
    import torch

    from posbench.training.checkpoint import save_state

    save_state(path, torch.nn.Linear(3, 2), [], 1, {})


def edit(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def mine(world: World, name: str, text: str) -> None:
    path = world.root / "mine" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def users_file(name: str, text: str) -> Callable[[World], None]:
    """Put a file into the user's own folder."""
    return lambda world: mine(world, name, text)


def yaml_line(world: World, old: str, new: str) -> None:
    path = world.run(0) / "config.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def overrides(kind: Kind, world: World) -> list[str]:
    """What is typed: the kind's own words, and the small world's for all it says nothing of."""
    words = [word.format(run=f"runs/{world.run(0).name}") for word in kind.typed]
    pooling = kind.script == "report" and any(
        word.startswith("runs=") for word in words
    )  # runs= stands in place of the others
    return with_usual(*words, usual=PLACES[1:]) if pooling else with_usual(*words)
