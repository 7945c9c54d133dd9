"""First on PYTHONPATH while test_faults.py is at work: notes each write of a posbench process, or
stops it before the chosen one.

POSBENCH_FAULT is a JSON object: `root`, the folder whose files count; `note`, a file for the list
of writes; or `phase`, `n`, `delay` and `flag`: `delay` seconds after the n-th write of that phase
began, the file `flag` appears and the process stops, for the test to kill it."""

import json
import os
import signal
import sys
import threading
import time

FAULT = json.loads(os.environ.get("POSBENCH_FAULT", "null"))
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.chmod", "os.truncate"}


def phase_of(path: str) -> str | None:
    """What a posbench process is doing when it writes `path`."""
    if not path.startswith(FAULT["root"] + os.sep):
        return None
    kind, *inner = path[len(FAULT["root"]) + 1 :].split(os.sep)
    name = inner[-1].lstrip(".") if inner else ""
    if kind == "cache":
        return "data"
    if kind == "report":
        return "report"
    if kind != "runs" or len(inner) < 2 or inner[0].startswith("."):
        return None
    if "evals" in inner:
        return "evaluation"
    if name.startswith("state"):
        return "checkpoint"
    if name.startswith("model") or (name.startswith("train") and name.endswith(".json")):
        return "weights"
    return "training"


def reached(phase: str | None) -> None:
    if phase is None:
        return
    if "note" in FAULT:
        with lock:
            os.write(note, f"{phase} {time.time()}\n".encode())
    elif phase == FAULT["phase"]:
        global count
        count += 1
        if count == FAULT["n"] + 1:
            if FAULT["delay"]:
                threading.Timer(FAULT["delay"], stop).start()
            else:
                stop()


def stop() -> None:
    os.close(os.open(FAULT["flag"], os.O_CREAT | os.O_WRONLY))
    os.kill(os.getpid(), signal.SIGSTOP)


def audit(event: str, args: tuple) -> None:
    if event == "open":
        path, _, flags = args
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
            return
    elif event in WRITES:
        path = args[0]
    else:
        return
    if isinstance(path, str | bytes | os.PathLike):
        reached(phase_of(os.path.abspath(os.fsdecode(path))))


def fsync(descriptor: int) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    reached(phase_of(os.readlink(f"/proc/self/fd/{number}")))
    real_fsync(descriptor)


if FAULT:
    lock, count = threading.Lock(), 0
    note = (
        os.open(FAULT["note"], os.O_CREAT | os.O_WRONLY | os.O_APPEND) if "note" in FAULT else None
    )
    real_fsync, os.fsync = os.fsync, fsync
    sys.addaudithook(audit)
