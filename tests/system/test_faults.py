"""The fault campaign, `make faults`: posbench is killed at random moments, and must come to the
same all the same.
"""

import contextlib
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from conftest import CONFIGS
from spoils import SMALL, with_usual, write_text

from posbench.runs.rows import VOLATILE_COLUMNS

SITE = (
    CONFIGS.parent / "tests" / "support" / "faults"
)  # its sitecustomize is what finds the moments
DEADLINE = 120.0  # seconds for one attempt, on a busy machine
TIMED = {"seconds", "tokens_per_second", "peak_mib"}
PLAN = {
    "data": 2,
    "training": 1,
    "checkpoint": 2,
    "weights": 1,
    "evaluation": 3,
    "report": 1,
}  # kills in the life of one lineage
PARTS = {"results": "runs", "cache": "cache", "report": "report"}
SEED = 0
TRAIN = [
    "train.steps=12",
    "train.log_every=1",
    "train.validate_every=4",
    "evaluate.lengths=[16,32,64]",
]
TINY = tuple(with_usual(*TRAIN, usual=SMALL))
COMMANDS = {
    "muon, bytes": TINY,
    "adamw, BPE, ALiBi, two protocols": (
        "encoding=alibi", "train.optimizer=adamw", "data.tokenizer=bpe", "data.vocab_size=300",
        "train.checkpoint_every=3",
        "evaluate.protocol=[fixed_targets,by_position]",
        *(word for word in TINY if not word.startswith(("data.tokenizer",
            "train.checkpoint_every"))),
    ),
    "a child, and the parent it is fine-tuned from": (
        "finetune=longer", "finetune.steps=8", "finetune.warmup=2", "finetune.checkpoint_every=2",
        "extension=yarn", *TINY,
    ),
    "a sweep, two at a time": ("-m", "seed=0,1", "extension=none,pi", "jobs=2", *TINY),
}  # fmt: skip
EACH = 2  # lineages of each command


@dataclass(frozen=True)
class Moment:
    """`delay` seconds after the n-th write of a phase begins."""

    phase: str
    n: int
    delay: float


@dataclass
class Lineage:
    """A folder in which one command is killed and repeated until it is done, then a report is made
    the same way.
    """

    folder: Path
    text: Path
    typed: tuple[str, ...]
    kills: Counter = field(default_factory=Counter)
    missed: int = 0

    def command(self, script: str) -> list[str]:
        places = [f"data.path={self.text}", *(f"{name}_dir={part}" for name, part in PARTS.items())]
        return [
            sys.executable,
            str(CONFIGS.parent / "scripts" / f"{script}.py"),
            *self.typed,
            *places,
        ]

    def attempt(self, script: str, fault: dict) -> int:
        """Run the command to its end, or until it stops at the moment of `fault` and is killed with
        all its children; the exit code.
        """
        flag = self.folder / "stopped-here"
        flag.unlink(missing_ok=True)
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH")))),
            "POSBENCH_FAULT": json.dumps({"root": str(self.folder), "flag": str(flag), **fault}),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.folder / "tmp"),
        }
        with open(self.folder / "said", "wb") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            process = subprocess.Popen(
                self.command(script),
                cwd=self.folder,
                env=environment,
                **streams,
                start_new_session=True,
            )
        deadline = time.monotonic() + DEADLINE
        while process.poll() is None and not flag.exists():
            assert time.monotonic() < deadline, (self.folder / "said").read_text()
            time.sleep(0.005)
        if flag.exists():
            kill_all(str(flag))
        return process.wait()

    def strike(self, moment: Moment) -> None:
        """One attempt that is to be killed; one that was done before its moment is only noted."""
        script = "report" if moment.phase == "report" else "run"
        code = self.attempt(script, {"phase": moment.phase, "n": moment.n, "delay": moment.delay})
        if code == -signal.SIGKILL:
            self.kills[moment.phase] += 1
        else:
            assert code == 0, (self.folder / "said").read_text()
            self.missed += 1

    def finish(self) -> None:
        """The attempts that nothing disturbs."""
        for script in ("run", "report"):
            assert self.attempt(script, {"note": str(self.folder / "writes")}) == 0, (
                self.folder / "said"
            ).read_text()

    def writes(self) -> dict[str, list[float]]:
        """When each phase wrote, in order, in the attempts of `finish`."""
        times = defaultdict(list)
        for line in (self.folder / "writes").read_text().splitlines():
            phase, when = line.split()
            times[phase].append(float(when))
        return times

    def outcome(self) -> dict[str, object]:
        """All that an undisturbed run and a killed one must agree on, bit for bit."""
        contents: dict[str, object] = {}
        for path in filter(Path.is_file, self.files()):
            name = path.relative_to(self.folder).as_posix()
            if (
                path.suffix == ".safetensors"
                or name.startswith("cache")
                or path.name in ("curve.csv", "table.md", "table.tex")
            ):
                differs = (
                    path.name == "digests.json" or path.suffix == ".lock"
                )  # times of files, and the process that held a lock
                contents[name] = None if differs else path.read_bytes()
            elif "evals" in path.parts and path.suffix == ".json":
                contents[name] = [
                    without(row, VOLATILE_COLUMNS) for row in json.loads(path.read_text())["rows"]
                ]
            elif path.suffix == ".npz":
                with np.load(path) as stored:
                    contents[name] = {field: stored[field].tobytes() for field in stored}
            elif path.name == "train.json":
                contents[name] = without(json.loads(path.read_text()), TIMED)
            elif path.name == "train.jsonl":
                contents[name] = [
                    without(json.loads(line), TIMED) for line in path.read_text().splitlines()
                ]
            elif path.name == "rows.csv":
                contents[name] = [
                    without(row, VOLATILE_COLUMNS)
                    for row in csv.DictReader(path.read_text().splitlines())
                ]
        return contents

    def files(self) -> list[Path]:
        """What posbench made here, wandb's own files left out."""
        paths = [
            path for part in PARTS.values() for path in sorted((self.folder / part).rglob("*"))
        ]
        return [path for path in paths if ".wandb" not in path.parts]

    def names(self) -> set[str]:
        return {path.relative_to(self.folder).as_posix() for path in self.files()}


def without(values: dict, names: tuple | set) -> dict:
    return {name: value for name, value in values.items() if name not in names}


def moments(writes: dict[str, list[float]], draw: random.Random) -> list[Moment]:
    """Half of them exactly before a write, half at any time in the three writes after it; early
    enough in a phase that a run which has been killed in it before still comes by."""
    chosen = []
    for phase, kills in PLAN.items():
        times = writes[phase]
        for _ in range(kills):
            n = draw.randrange(max(1, len(times) // (2 * kills)))
            delay = draw.uniform(0, times[n + 3] - times[n]) if draw.random() < 0.5 else 0.0
            chosen.append(Moment(phase, n, delay))
    return chosen


def kill_all(mark: str) -> None:
    """SIGKILL to every process whose environment bears `mark`, until there is none: the command,
    its children and their helpers.
    """
    while victims := [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if bears(pid, mark)
    ]:
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def bears(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes() and pid != os.getpid()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes to kill in /proc")
def test_kills_at_random_moments_cost_nothing(tmp_path, capsys):
    text, began = write_text(tmp_path / "text"), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        reports = [
            line
            for lines in pool.map(
                lambda numbered: campaign(tmp_path / f"{numbered[0]}", text, *numbered),
                enumerate(COMMANDS),
            )
            for line in lines
        ]
    kills = sum((report["kills"] for report in reports), Counter())
    with capsys.disabled():
        print(
            f"\nseed {SEED}: {sum(kills.values())} kills in {len(reports)} lineages,"
            f" {time.monotonic() - began:.0f} s"
        )
        for phase in PLAN:
            print(f"  {phase:12} {kills[phase]:3}")
        for report in reports:
            number = sum(report["kills"].values())
            print(
                f"  {report['name']}: {number} kills, {report['missed']} moments not reached,"
                f" equal: {report['equal']}, left over: {report['left'] or 'nothing'},"
                f" in TMPDIR: {report['tmp']}"
            )
    assert sum(kills.values()) >= 50 and min(kills[phase] for phase in PLAN) >= 4
    assert all(report["equal"] and not report["left"] for report in reports)


def campaign(folder: Path, text: Path, index: int, name: str) -> list[dict]:
    """An undisturbed run of one command, and its lineages compared with it."""
    undisturbed = Lineage(folder / "whole", text, COMMANDS[name])
    undisturbed.finish()
    reports = []
    for number in range(EACH):
        lineage = Lineage(folder / str(number), text, COMMANDS[name])
        for moment in moments(undisturbed.writes(), random.Random(f"{SEED} {index} {number}")):
            if moment.phase == "report" and not lineage.kills["report"]:
                lineage.finish()
            lineage.strike(moment)
        lineage.finish()
        reports.append({
            "name": name, "kills": lineage.kills, "missed": lineage.missed,
            "equal": lineage.outcome() == undisturbed.outcome(),
            "left": sorted(lineage.names() - undisturbed.names()),
            "tmp": len(list((lineage.folder / "tmp").iterdir())),
        })  # fmt: skip
    return reports
