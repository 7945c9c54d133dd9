"""Processes of Python that fork from one which has loaded torch: an interpreter of their own spends
three to five seconds on that.

`Popen` and `run` stand in for subprocess's. A command that begins with sys.executable becomes a
process of its own, with its own arguments, environment, folder, streams, signals and end, and so do
the processes that it starts; only the imports are there already. What cannot be had in this way
(another program, preexec_fn, a system other than Linux) is started as subprocess starts it.

All forks share what a test of it must not: the seed of Python's hashes, and what is imported when.
Such a test uses subprocess."""

import atexit
import concurrent.futures.thread
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
import weakref
from pathlib import Path
from typing import NoReturn

PRELOADED = (
    "torch._dynamo",
    "hydra.main",
    "posbench.sweep.job_process",
)  # the optimizers of torch load torch._dynamo
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class Popen(subprocess.Popen):
    """subprocess.Popen whose child, if it is one of Python, is forked."""

    here = False  # whether this process, itself a fork, is the one to fork

    def _execute_child(self, *values: object) -> None:
        arguments = inspect.signature(super()._execute_child).bind(*values).arguments
        spec = _spec(arguments)
        if spec is None:
            return super()._execute_child(*values)
        ends = (arguments["p2cread"], arguments["c2pwrite"], arguments["errwrite"])
        streams = [number if end == -1 else end for number, end in enumerate(ends)]
        self.pid = _fork(spec, streams) if Popen.here else _ask(spec, streams)
        self._child_created = True
        self._close_pipe_fds(*(arguments[name] for name in PIPES))


def run(
    command: list[str],
    timeout: float | None = None,
    capture_output: bool = False,
    **options: object,
) -> subprocess.CompletedProcess:
    """subprocess.run, with a fork."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if capture_output else {}
    with Popen(command, **pipes, **options) as process:
        try:
            outputs = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *outputs)


def _spec(arguments: dict) -> dict | None:
    """What a child is to be, from the arguments of Popen; None if it cannot be forked."""
    args = arguments["args"]
    if (
        sys.platform != "linux"
        or isinstance(args, (str, bytes))
        or os.fspath(args[0]) != sys.executable
    ):
        return None
    words = [os.fspath(word) for word in args[1:]]
    flags = list(itertools.takewhile(("-P", "-u").__contains__, words))
    words, safe = words[len(flags) :], "-P" in flags
    flagged = words[0].startswith("-") and words[0] not in ("-c", "-m")
    if (
        flagged
        or arguments["shell"]
        or arguments["executable"]
        or arguments["preexec_fn"]
        or arguments["pass_fds"]
    ):
        return None
    folder, environment = (
        os.fspath(arguments["cwd"] or os.getcwd()),
        dict(os.environ if arguments["env"] is None else arguments["env"]),
    )
    group = 0 if arguments["start_new_session"] else arguments["process_group"]
    return {
        "words": words,
        "safe": safe,
        "folder": folder,
        "environment": environment,
        "group": group,
    }


def _ask(spec: dict, streams: list[int]) -> int:
    """The server forks a process whose parent ends at once, so that it becomes a child of this one,
    which can wait for it.
    """
    control, libc = _server(), ctypes.CDLL(None)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        socket.send_fds(control, [json.dumps(spec).encode()], streams)
        return int(control.recv(64))
    finally:
        libc.prctl(SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    theirs.close()
    return ours


def _serve(control: socket.socket) -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # or else each fork copies all of it when it looks for garbage
    while True:
        message, streams, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not message:  # whoever asked has ended
            return
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            os.write(write, str(_fork(json.loads(message), streams)).encode())
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(read, 64))
        for number in (read, write, *streams):
            os.close(number)


def _fork(spec: dict, streams: list[int]) -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid == 0:
        try:
            _become(streams, **spec)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    return pid


def _become(
    streams: list[int],
    words: list[str],
    safe: bool,
    folder: str,
    environment: dict[str, str],
    group: int | None,
) -> NoReturn:
    """Make a forked process what Popen was asked for, run it, and end it as an interpreter ends."""
    import torch

    os.chdir(folder)
    if group not in (None, -1):
        os.setpgid(0, group)
    for number, stream in enumerate([os.dup(number) for number in streams]):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _as_after_exec()
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    subprocess.Popen, Popen.here = Popen, True
    code = _outcome(words, safe)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _as_after_exec() -> None:
    """Nothing that the process before it had to do at a signal or at its end is this one's."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
    atexit._clear()
    concurrent.futures.thread._threads_queues.clear()
    weakref.finalize._registry.clear()  # temporary folders
    weakref.finalize._registered_with_atexit = False


def _outcome(words: list[str], safe: bool) -> int:
    """Run a script, `-m module` or `-c code`, and return the exit code, below 0 for a signal."""
    flag = words.pop(0) if words[0] in ("-c", "-m") else ""
    sys.orig_argv = [sys.executable, *filter(None, [flag]), *words]
    sys.argv = ["-c", *words[1:]] if flag == "-c" else words
    first = {"-c": "", "-m": os.getcwd(), "": str(Path(words[0]).absolute().parent)}[flag]
    first_places = [
        *([] if safe else [first]),
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    sys.path[:] = [*first_places, *(folder for folder in sys.path if folder not in first_places)]
    try:
        if flag == "-c":
            exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__"})
        elif flag == "-m":
            warnings.filterwarnings(
                "ignore", category=RuntimeWarning, module="runpy"
            )  # the module is there already
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code & 255 if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.path.pop(0)
    _serve(socket.socket(fileno=int(sys.argv[1])))
