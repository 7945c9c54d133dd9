"""Objects from a configuration: the device, methods, and fresh or finished models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from posbench.common.errors import ConfigError, first_line
from posbench.common.machine import check_processes
from posbench.config.schema import Device, JobConfig, typed_group
from posbench.config.typed_args import convert
from posbench.model.gpt import GPT, make_shape
from posbench.model.memory import check_model_size, keep_freed_memory
from posbench.model.weights import check_weights, load_weights
from posbench.position.hook_shapes import check_hooks
from posbench.position.instantiate import class_and_arguments, make_method
from posbench.position.interfaces import Encoding, Extension, ScaleAttention
from posbench.position.legality import check_trained_scale, is_of_user
from posbench.pretrained.checkpoint import Checkpoint
from posbench.pretrained.outline import is_built_by_transformers
from posbench.pretrained.transformers_model import load
from posbench.pretrained.weights import find_unchanged, load_checkpoint
from posbench.runs.directory import Run
from posbench.scale_attention.none import NoScale

if TYPE_CHECKING:
    from posbench.model.inplace.reader import Reader


def pick_device(name: str, rank: int = 0, size: int = 1) -> str:
    """Device of process `rank` of `size`: a GPU for each, or the CPU for all.

    `auto` is cuda if there is one. Raises ConfigError for a device that torch does not have, and
    for more processes than GPUs."""
    convert("device", name, Device)  # raises for what is no device's name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if size > 1 and name != "cpu":
        check_processes(size, name)
        name = f"cuda:{rank}"
        torch.cuda.set_device(name)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = first_line(error).partition(". ")[0]  # its first sentence
        raise ConfigError(
            f"device={name} is not available ({why}): choose device=cpu or device=auto."
        ) from error
    return name


def check_device(name: str) -> None:
    """Raise ConfigError as `pick_device` does, without taking memory of a GPU, which may be open to
    one process at a time.
    """
    if not torch.cuda.is_available() or not name.startswith(("auto", "cpu", "cuda")):
        pick_device(name)  # which takes no memory of a CUDA GPU then
    elif name.startswith("cuda") and (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={name} is not available (GPUs: {torch.cuda.device_count()}): choose device=cpu"
            " or device=auto."
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context in which the CPU's random numbers depend on `seed` alone. Those drawn after it are
    unaffected.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def make_encoding(config: JobConfig) -> Encoding:
    """Make the encoding of a job. Raises ConfigError for hooks of wrong shapes, and for a tokenizer
    that the encoding would misread.
    """
    shape = make_shape(config.model, config.train.train_len)
    # What is learned for each position has the size of the parent, trained for `origin` tokens.
    if config.train.parent:
        shape = replace(shape, positions=config.train.origin)
    check_model_size(config.model)
    with seeded(config.seed):
        encoding = make_method(config.encoding, shape, kind=Encoding)
    if is_of_user(encoding):
        check_hooks(encoding)
    for layer in encoding.layers():
        layer.encoding.check_tokenizer(config.data.get("tokenizer", ""))
    return encoding


def check_methods(raw_configs: list[dict]) -> None:
    """Check the methods of all configurations. Raises ConfigError for a wrong class or an argument
    of a wrong type.
    """
    checked_nodes = []
    for raw in raw_configs:
        trained = typed_group("train", raw["train"]).scale_attention
        for name, node, kind in (
            ("encoding", raw["encoding"], Encoding),
            ("train.scale_attention", trained, ScaleAttention),
            ("extension", raw["extension"], Extension),
            ("scale_attention", raw["scale_attention"], ScaleAttention),
        ):
            if (name, node) not in checked_nodes:
                checked_nodes.append((name, node))
                class_and_arguments(node, kind, name)


def make_trained_scale(config: JobConfig, encoding: Encoding) -> ScaleAttention | None:
    """Make train.scale_attention, or return None for `none`. Raises ConfigError for one that
    training cannot use.
    """
    with seeded(config.seed):
        scale = make_method(config.train.scale_attention, encoding.shape, kind=ScaleAttention)
    check_trained_scale(encoding, scale)
    return None if isinstance(scale, NoScale) else scale


def make_model(config: JobConfig, vocab_size: int) -> GPT:
    """Make a fresh model. Its weights outside the encoding are the same for every encoding, so all
    are compared from one start. Where an encoding's layers have no attention, other matrices are
    drawn in its place, and those after them differ.
    """
    keep_freed_memory()
    encoding = make_encoding(config)
    scale = make_trained_scale(config, encoding)
    with seeded(config.seed):
        return GPT(config.model, encoding, vocab_size, scale)


def load_model(run: Run, config: JobConfig, vocab_size: int, device: str) -> "GPT | Reader":
    """Load the model of a finished run, and verify its weights by the checksum in train.json.

    They are the run's own, or those of its checkpoint. Raises ConfigError for a checkpoint that
    transformers builds and posbench cannot put its methods into."""
    if config.model.engine:
        raise ConfigError(
            f"{run.path} was asked of an engine, and has no model: its rows are all there is."
        )
    if is_built_by_transformers(config):
        return load_reader(files_of(run, config), config, device)
    sha256 = run.read_summary()["sha256"]
    # Earlier versions copied the weights of a checkpoint.
    if not config.trains and not run.weights.exists():
        with torch.device("meta"):  # without memory, since all of its weights are replaced
            model = make_model(config, vocab_size)
        load_checkpoint(config.model.path, sha256, model, config.model.tied)
    else:
        model = make_model(config, vocab_size)
        load_weights(run.weights, model, sha256)
    return model.to(device).eval()


def files_of(run: Run, config: JobConfig) -> Checkpoint:
    """Files of a finished run whose model transformers builds: its own, or those of the checkpoint.
    Raises RunError for changed ones.
    """
    sha256 = run.read_summary()["sha256"]
    # Only a fine-tuning writes weights of its own.
    if not config.train.parent:
        return find_unchanged(config.model.path, sha256)
    check_weights(run.weights, sha256)
    return Checkpoint(str(run.path), run.path)


def load_reader(checkpoint: Checkpoint, config: JobConfig, device: str) -> "Reader":
    """Model of a checkpoint that transformers builds, in float32. Raises ConfigError as
    `load_model`.
    """
    from posbench.model.inplace.reader import Reader

    model = load(checkpoint, torch.float32).to(device).requires_grad_(False)
    scaling = {key: config.encoding.get(key) for key in ("scaling", "scaling_len")}
    return Reader(model, config.train.train_len, **scaling).eval()
