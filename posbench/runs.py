"""A run is one training; this module names it, finds its files and guards its directory. Nothing heavy is imported here."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from posbench.errors import ConfigError, RunError
from posbench.files import disk_errors, read_json, sha256_json, write_atomic, write_json

# What never changes a result: how often something is written down.
NOT_TRAIN = {"log_every", "validate_every", "validate_windows", "checkpoint_every"}
NOT_MODEL = {"path"}  # of a checkpoint, whose content is in model.checkpoint
NOT_EVALUATE = {"lengths", "batch_tokens", "protocol"}

# Keys added after the first release -> their default ("train.ema": 0.0). At its default such a key is left out of the hash: old ids stay.
LATER: dict[str, object] = {
    "encoding.fraction": 1.0,
    "encoding.resonance": False,
    "encoding.scaling": None,
    "encoding.scaling_len": None,
    "encoding.slope_scale": 1.0,
    "encoding.window": None,
    "scale_attention.clamp": True,
    "train.scale_attention": {"_target_": "posbench.scale_attention.none.NoScale"},
    "model.head_dim": None,
    "model.qkv_bias": False,
    "model.checkpoint": None,
    "evaluate.stride": None,
    "evaluate.documents": None,
}


class Busy(RunError):
    """Another process works on this run; a sweep takes it up again at the end."""


def method_name(node: dict) -> str:
    """Short name of a method's configuration: the last module of its `_target_` (posbench.encodings.rope.Rope -> rope)."""
    target = node.get("_target_") if isinstance(node, dict) else None
    if not target:
        raise ConfigError(f"{node} names no method: a method's configuration needs a _target_ such as posbench.encodings.rope.Rope.")
    return target.split(".")[-2] if "." in target else target.lower()


def method_args(node: dict) -> dict:
    """The arguments of a method's configuration, sorted by name."""
    return {key: node[key] for key in sorted(node) if key != "_target_"}


def method_label(node: dict, group: str = "extension") -> str:
    """Name and, in braces, the arguments where there are any; what the column scale_attention holds. LATER's defaults are none."""
    args = without_later(group, method_args(node))
    return method_name(node) + (" " + json.dumps(args, separators=(",", ":")) if args else "")


def identity(cfg: dict, data_fingerprint: str) -> dict:
    """Everything that makes a training what it is, and nothing else: two equal identities train the same weights.

    The fingerprint stands for the text, the tokenizer and the BOS choice, wherever they lie.
    """
    train = _without(cfg["train"], NOT_TRAIN)
    if isinstance(train["length"], list):
        lengths = sorted(set(train["length"]))
        train["length"] = lengths if len(lengths) > 1 else lengths[0]
    parts = {"encoding": cfg["encoding"], "model": _without(cfg["model"], NOT_MODEL), "train": train}
    return _stable({**parts, "seed": cfg["seed"], "data_fingerprint": data_fingerprint})


def run_id(cfg: dict, data_fingerprint: str) -> str:
    """Readable prefix and ten hex digits, such as rope-64-s0-1a2b3c4d5e."""
    parts = identity(cfg, data_fingerprint)
    length = parts["train"]["length"]
    lengths = "+".join(map(str, length)) if isinstance(length, list) else length
    kind = "hf" if cfg["model"].get("checkpoint") else method_name(cfg["encoding"])
    return f"{kind}-{lengths}-s{cfg['seed']}-{sha256_json(parts)[:10]}"


def eval_id(protocol: str, extension: dict, scale_attention: dict, evaluate: dict, run_id: str) -> str:
    """Sixteen hex digits of what an evaluation is; lengths are not part of it, so a missing length is added to the same file.

    `evaluate` holds resolved values: `max_length: null` and the number it stands for are two ids.
    """
    parts = {"extension": extension, "scale_attention": scale_attention, "evaluate": _without(evaluate, NOT_EVALUATE)}
    return sha256_json(_stable({**parts, "protocol": protocol, "run_id": run_id}))[:16]


def _without(node: dict, names: set[str]) -> dict:
    return {key: value for key, value in node.items() if key not in names}


def _stable(value: object, prefix: str = "") -> object:
    """Drop LATER's keys at their defaults, and let 1.0 and 1 be one number whichever way a user wrote it."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if not _at_default(f"{prefix}{key}", item)}
        return {key: _stable(item, f"{prefix}{key}.") for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [_stable(item, prefix) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def as_typed(group: str, node: dict) -> str:
    """A method as one would choose it: encoding=rope encoding.base=500000."""
    given = without_later(group, method_args(node))
    return " ".join([f"{group}={method_name(node)}", *(f"{group}.{key}={value}" for key, value in given.items())])


def without_later(group: str, args: dict) -> dict:
    """Values of a group without LATER's at their defaults: what was written before these keys came lacks them and means the same."""
    return {key: value for key, value in args.items() if not _at_default(f"{group}.{key}", value)}


def _at_default(key: str, value: object) -> bool:
    return key in LATER and value == LATER[key] and isinstance(value, bool) == isinstance(LATER[key], bool)


class Run:
    """The directory of one training. Whatever is written into it is written while `lock` is held."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.id = self.path.name
        self.config = self.path / "config.yaml"
        self.provenance = self.path / "provenance.json"
        self.train_log = self.path / "train.jsonl"
        self.weights = self.path / "model.safetensors"
        self.state = self.path / "state.pt"
        self.summary = self.path / "train.json"
        self.evals = self.path / "evals"
        self._lock = FileLock(self.path / ".lock")

    @property
    def finished(self) -> bool:
        """True when the training is complete: train.json is written last."""
        return self.summary.exists()

    def eval_path(self, protocol: str, extension: str, scale_attention: str, eval_hash: str) -> Path:
        """Where an evaluation's json lies (names, not nodes); its arrays lie beside it as .npz."""
        return self.evals / protocol / f"{extension}+{scale_attention}-{eval_hash[:8]}.json"

    def eval_files(self) -> list[Path]:
        """Every evaluation on disk, sorted."""
        return sorted(path for path in self.evals.glob("*/*.json") if not path.name.startswith("."))

    @contextlib.contextmanager
    def lock(self, wait: bool = False) -> Iterator[None]:
        """Hold the run's directory, making it if need be.

        Raises Busy when another process holds it, unless `wait`: then one line on stderr says so and the call waits. A process that dies
        holds nothing any more: the system releases its lock. Raises RunError when the directory cannot be made.
        """
        with disk_errors(self.path / ".lock"):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                if not wait:
                    raise Busy(f"Another process is working on {self.path}: wait for it, or leave this run out.") from None
                print(f"another process is working on {self.path}; waiting", file=sys.stderr, flush=True)
                self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def write_config(self, cfg: dict) -> None:
        """Write the resolved configuration."""
        from omegaconf import OmegaConf

        assert self._lock.is_locked
        write_atomic(self.config, OmegaConf.to_yaml(OmegaConf.create(cfg), resolve=True))

    def read_config(self) -> dict:
        """The resolved configuration of the training. Raises RunError when it is missing or damaged."""
        from omegaconf import OmegaConf

        try:
            return OmegaConf.to_container(OmegaConf.load(self.config))
        except Exception as error:
            raise RunError(f"{self.config} cannot be read ({error}): is {self.path} a run's directory?") from error

    def write_provenance(self, provenance: dict, resumed: bool = False) -> None:
        """Write what posbench.provenance.collect returned, under `resumed` for a training that goes on from a checkpoint.

        Weights that two commits or two machines have worked on must not pass for those of the last.
        """
        assert self._lock.is_locked
        first = None
        if resumed and self.provenance.exists():
            with contextlib.suppress(RunError):  # a damaged one is written anew: it decides no result
                first = read_json(self.provenance)
        if isinstance(first, dict):
            provenance = {**first, "resumed": [*first.get("resumed", []), provenance]}
        write_json(self.provenance, provenance)

    def write_summary(self, summary: dict) -> None:
        """Write train.json, the mark of a complete training, after everything else."""
        assert self._lock.is_locked
        write_json(self.summary, summary)

    def read_summary(self) -> dict:
        """train.json. Raises RunError when it is damaged."""
        summary = read_json(self.summary)
        if not isinstance(summary, dict) or not isinstance(summary.get("sha256"), str):
            raise RunError(
                f"{self.summary} is no summary of a training (it lacks 'sha256'): restore it, or delete {self.path} to train anew."
            )
        return summary
