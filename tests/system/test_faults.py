"""The fault campaign, `make faults`: kills at random moments, then every kind of bad input and damage as a command of its own."""

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import CONFIGS
from kills import DEADLINE, PLAN, Lineage, moments
from kinds import KINDS, MOUNT, MOUNTED
from spoils import SMALL, Kind, World, overrides, with_usual, write_text

SEED = 0
TRAIN = ["train.steps=12", "train.log_every=1", "train.validate_every=4", "evaluate.lengths=[16,32,64]"]
TINY = tuple(with_usual(*TRAIN, usual=SMALL))
COMMANDS = {
    "muon, bytes": TINY,
    "adamw, BPE, ALiBi, two protocols": (
        "encoding=alibi", "train.optimizer=adamw", "data.tokenizer=bpe", "data.vocab_size=300", "train.checkpoint_every=3",
        "evaluate.protocol=[fixed_targets,by_position]",
        *(word for word in TINY if not word.startswith(("data.tokenizer", "train.checkpoint_every"))),
    ),
    "a child, and the parent it is fine-tuned from": (
        "finetune=longer", "finetune.steps=8", "finetune.warmup=2", "finetune.checkpoint_every=2", "extension=yarn", *TINY,
    ),
    "a sweep, two at a time": ("-m", "seed=0,1", "extension=none,pi", "jobs=2", *TINY),
}  # fmt: skip
EACH = 2  # lineages of each command


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes to kill in /proc")
def test_kills_at_random_moments_cost_nothing(tmp_path, capsys):
    text, began = write_text(tmp_path / "text"), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        reports = [
            line for lines in pool.map(lambda one: campaign(tmp_path / f"{one[0]}", text, *one), enumerate(COMMANDS)) for line in lines
        ]
    kills = sum((report["kills"] for report in reports), Counter())
    with capsys.disabled():
        print(f"\nseed {SEED}: {sum(kills.values())} kills in {len(reports)} lineages, {time.monotonic() - began:.0f} s")
        for phase in PLAN:
            print(f"  {phase:12} {kills[phase]:3}")
        for report in reports:
            print(f"  {report['name']}: {sum(report['kills'].values())} kills, {report['missed']} moments not reached, "
                  f"equal: {report['equal']}, left over: {report['left'] or 'nothing'}, in TMPDIR: {report['tmp']}")  # fmt: skip
    assert sum(kills.values()) >= 50 and min(kills[phase] for phase in PLAN) >= 4
    assert all(report["equal"] and not report["left"] for report in reports)


def campaign(folder: Path, text: Path, index: int, name: str) -> list[dict]:
    """An undisturbed run of one command, and its lineages compared with it."""
    whole = Lineage(folder / "whole", text, COMMANDS[name])
    whole.finish()
    reports = []
    for number in range(EACH):
        lineage = Lineage(folder / str(number), text, COMMANDS[name])
        for moment in moments(whole.writes(), random.Random(f"{SEED} {index} {number}")):
            if moment.phase == "report" and not lineage.kills["report"]:
                lineage.finish()
            lineage.strike(moment)
        lineage.finish()
        reports.append({
            "name": name, "kills": lineage.kills, "missed": lineage.missed, "equal": lineage.outcome() == whole.outcome(),
            "left": sorted(lineage.names() - whole.names()), "tmp": len(list((lineage.folder / "tmp").iterdir())),
        })  # fmt: skip
    return reports


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mounts what is read-only and what is full")
def test_every_kind_of_bad_input_and_damage_as_a_command_of_its_own(small_world, world, tmp_path_factory, capfd):
    mounts = subprocess.run([*MOUNT, "true"], capture_output=True).returncode == 0
    kinds = [*KINDS, *(kind for kind in MOUNTED if mounts or kind.within[0] != MOUNT[0])]
    folder, began = tmp_path_factory.mktemp("kinds"), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        tried = list(pool.map(lambda kind: attempt(small_world, folder / kind.name.replace(" ", "-"), kind), kinds))
    with capfd.disabled():
        print(f"\n{len(kinds)} kinds of bad input and damage, {time.monotonic() - began:.0f} s")
        for kind, (code, sentences, wrong) in zip(kinds, tried, strict=True):
            print(f"  {kind.name}\n    {'WRONG: ' + wrong if wrong else 'nothing lost'}, exit {code}: {' | '.join(sentences)}")
    assert len(kinds) >= 40 and not [kind.name for kind, (_, _, wrong) in zip(kinds, tried, strict=True) if wrong]


def attempt(small_world: Path, folder: Path, kind: Kind) -> tuple[int, list[str], str]:
    """The exit code, what was said as sentences, and what was wrong with it."""
    world = World(shutil.copytree(small_world, folder))
    typed = overrides(kind, world)
    kind.spoil(world)
    before = world.files()
    command = [*kind.within, sys.executable, str(CONFIGS.parent / "scripts" / f"{kind.script}.py"), *typed]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = world.files()
    sentences = [line for line in done.stderr.splitlines() if line.startswith(("refused: ", "failed: "))]
    checks = {
        "exit code": done.returncode == kind.code,
        "sentences": len(sentences) == 1 and kind.said in sentences[0],
        "traceback": "Traceback" not in done.stderr + done.stdout,
        "lost": {name: after.get(name) for name in before} == before,
    }
    wrong = ", ".join(name for name, good in checks.items() if not good)
    return done.returncode, sentences or done.stderr.splitlines()[-3:], wrong
