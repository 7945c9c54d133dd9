"""A real SLURM of one node on 127.0.0.1, everything of it in one folder, for as long as a `with`
lasts.

    with Cluster() as cluster:
        subprocess.run(["sbatch", ...], env={**os.environ, **cluster.environment})

Debian: apt-get install slurm-wlm munge. The daemons are children of this process, run as its user
(root or not), and die with it."""

from __future__ import annotations

import ctypes
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
STARTS_WITHIN = 30.0  # seconds

CONF = """
ClusterName=posbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=60
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing() -> str:
    """Why there can be no cluster here; empty when there can."""
    lacking = [name for name in NEEDED if not shutil.which(name, path=PATH)]
    return (
        f"SLURM is not installed (no {lacking[0]}): apt-get install slurm-wlm munge"
        if lacking
        else ""
    )


class Unavailable(Exception):
    """The software is there but does not start; the message says why."""


class Cluster:
    """Starts munged, slurmctld and slurmd; `environment` is what their clients need."""

    def __init__(self, cpus: int = 2) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="slurm-")
        )  # short: a socket's path has at most 108 characters
        self.cpus = cpus
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": PATH}
        self.daemons: list[subprocess.Popen] = []

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, *command: str, check: bool = True) -> str:
        """What a client such as squeue says."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=check,
            timeout=30,
        )
        return done.stdout.strip()

    def empty(self) -> None:
        """Cancel every job and wait until none is left."""
        self.call("scancel", f"--user={getpass.getuser()}", check=False)
        self._until(lambda: not self.call("squeue", "-h"), "jobs that end when cancelled")

    def _start(self) -> None:
        folder, host = self.folder, socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        folder.chmod(0o755)
        (folder / "slurm.conf").write_text(
            CONF.format(
                folder=folder,
                host=host,
                user=getpass.getuser(),
                ports=_free_ports(2),
                cpus=self.cpus,
            )
        )
        munge = [
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid",
            "--force",
            "--foreground",
        ]
        self._run(
            "munged", *munge, f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munged.log"
        )
        self._until((folder / "munge.socket").exists, "munged")
        self._run("slurmctld", "-D", "-i")
        self._until(lambda: "UP" in self.call("scontrol", "ping", check=False), "slurmctld")
        self._run("slurmd", "-D", "-N", host)
        self._until(lambda: self.call("sinfo", "-h", "-o", "%T", check=False) == "idle", "slurmd")

    def _run(self, name: str, *arguments: str) -> None:
        with open(self.folder / f"{name}.said", "wb") as output:
            self.daemons.append(
                subprocess.Popen(
                    [shutil.which(name, path=PATH), *arguments],
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # a Ctrl-C to the tests is not meant for it
                    preexec_fn=lambda: ctypes.CDLL(None).prctl(
                        1, signal.SIGTERM
                    ),  # PR_SET_PDEATHSIG
                )
            )

    def _until(self, ready, what: str) -> None:
        deadline = time.monotonic() + STARTS_WITHIN
        while not ready():
            dead = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                output = "\n".join(
                    path.read_text(errors="replace")[-500:] for path in self.folder.glob("*.said")
                )
                raise Unavailable(
                    f"no {what} ({dead or f'within {STARTS_WITHIN:.0f} s'}): {output}"
                )
            time.sleep(0.1)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for listener in sockets:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
