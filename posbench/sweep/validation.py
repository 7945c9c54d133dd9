"""Validation of a training at several lengths: its settings, what may not run, and what it reads.

train.validate_lengths and train.validate_extensions ask for it; losses_by_length.py measures it.
"""

from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.config.defaults import usual_floor_block, usual_targets
from posbench.config.identity import NO_EXTENSION, NO_SCALE, method_args, method_name
from posbench.config.names import display_name, shipped_yamls
from posbench.config.schema import EvaluateConfig, JobConfig, TrainConfig, typed_group
from posbench.config.typed_args import shown
from posbench.data.sources import TASK_TOKENIZER
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.protocols.fixed_targets import FixedTargets
from posbench.runs.directory import Run
from posbench.sweep.jobs import Job
from posbench.sweep.kept_steps import run_at

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.position.interfaces import Encoding

KEY = "train.validate_lengths"  # as messages name it


def validation_settings(train: TrainConfig) -> EvaluateConfig:
    """Settings that repeat the validation of a finished training with protocol fixed_targets.

    Targets and floor are those of validations: they follow from the length of pretraining."""
    settings = EvaluateConfig(
        lengths=train.validate_lengths,
        max_length=max(train.validate_lengths),
        windows=train.validate_windows,
        targets=usual_targets(train.origin),
        floor_block=usual_floor_block(train.origin),
        split="validation",
        dtype=train.dtype,
    )
    return FixedTargets.resolve(settings, train.train_len)


def validation_extensions(train: TrainConfig) -> dict[str, dict]:
    """{label: node} of the extensions of a validation, such as {"yarn alpha=2": {...}}."""
    return {_label(node): node for node in train.validate_extensions or [NO_EXTENSION]}


def _label(node: dict) -> str:
    """Name of an extension, with the arguments that are not those of its yaml."""
    name = display_name("extension", node)
    usual = shipped_yamls("extension").get(name, {})
    words = [name]
    for key, value in method_args(node).items():
        if key not in usual or usual[key] != value:
            words.append(f"{key}={shown(value)}")
    return " ".join(words)


def check_validation(config: JobConfig, encoding: "Encoding") -> None:
    """Raise ConfigError for steps to keep, or lengths and extensions to validate at, that a
    training cannot have.
    """
    train = config.train
    beyond = [step for step in train.keep_steps or [] if step > train.steps]
    if beyond:
        raise ConfigError(
            f"train.keep_steps={shown(train.keep_steps)} holds {beyond[0]}, and the training ends"
            f" after train.steps={train.steps}: leave it out, or train longer."
        )
    if not train.validate_lengths:
        if train.validate_extensions:
            names = [method_name(node) for node in train.validate_extensions]
            raise ConfigError(
                f"train.validate_extensions={shown(names)} has no lengths to extend to: give"
                f" {KEY}, such as [{train.train_len},{4 * train.train_len}]."
            )
        return
    if config.data["tokenizer"] == TASK_TOKENIZER:
        raise ConfigError(
            f"{KEY}={shown(train.validate_lengths)} scores text, and data={config.data['name']} is"
            " a task: leave it out, and evaluate weights that train.keep_steps keeps."
        )
    if not train.validate_windows:
        raise ConfigError(
            f"{KEY}={shown(train.validate_lengths)} needs windows, and train.validate_windows=0"
            " asks for none: give some, such as 256."
        )
    settings = validation_settings(train)
    if min(settings.lengths) < settings.targets:
        # A fine-tuned run scores as many as its parent: `origin` is the parent's train.length.
        raise ConfigError(
            f"{KEY}={shown(settings.lengths)} must each hold the {settings.targets} scored tokens"
            f" of a window, an eighth of train.length={train.origin}: leave out shorter ones."
        )
    for node in validation_extensions(train).values():
        _check_extension(node, settings, encoding, config.allow_untested)


def _check_extension(
    node: dict, settings: EvaluateConfig, encoding: "Encoding", allow_untested: bool
) -> None:
    """Raise ConfigError for an extension that is undefined, untested or without effect."""
    from posbench.position.instantiate import make_method
    from posbench.position.interfaces import Extension, ScaleAttention
    from posbench.position.legality import name_of, verdict_of

    try:
        extension = make_method(node, kind=Extension)
        scale = make_method(NO_SCALE, encoding.shape, kind=ScaleAttention)
        verdict = verdict_of(encoding, extension, scale, settings.lengths, allow_untested)
        reason = verdict.noop
    except ConfigError as error:
        reason = str(error)
    if reason:
        raise ConfigError(
            f"train.validate_extensions={method_name(node)} at {KEY}={shown(settings.lengths)}"
            f" does not fit encoding={name_of(encoding)}: {reason.rstrip('.')}. Leave it out for"
            " this encoding, whose training may need a command of its own."
        )


def check_validation_text(corpus: "Corpus", train: TrainConfig) -> None:
    """Raise ConfigError, before any training, for a validation split with no document that is long
    enough.
    """
    if not train.validate_lengths:
        return
    longest = int(corpus.validation.document_lengths().max(initial=0))
    needed = max(train.validate_lengths) + 1  # the last target stands behind the text
    if longest < needed:
        raise ConfigError(
            f"{KEY}={shown(train.validate_lengths)} needs a document of {needed} tokens in the"
            f" validation split, and the longest has {longest}: lower it to {longest - 1}, or give"
            " longer documents."
        )


def validation_texts(config: JobConfig) -> list[tuple[dict, ReadVolume]]:
    """(extension, texts that are read) of each length of one validation."""
    from posbench.position.instantiate import make_method
    from posbench.position.legality import fed_length

    train = config.train
    if not train.validate_lengths:
        return []
    settings = validation_settings(train)
    texts = []
    for node in validation_extensions(train).values():
        extension = make_method(node)
        for length in settings.lengths:
            fed = fed_length(extension, train.train_len, length)
            texts.append((node, FixedTargets.read_volume(settings, train.train_len, length, fed)))
    return texts


def too_late(job: Job) -> list[str]:
    """Sentences on what is asked of a training that is there already, and was not measured or kept
    while it was made.
    """
    train = job.config.train
    if not job.run.finished or not (train.validate_lengths or train.keep_steps):
        return []
    stored = stored_training(job.run)
    if stored is None:  # damaged, as the job itself will report
        return []
    sentences = []
    if train.validate_lengths and not _holds_validations(stored, train):
        # "these extensions" are those of train.validate_extensions
        sentences.append(
            f"{job.run.path} was trained without {KEY}={shown(train.validate_lengths)} (and these"
            " extensions), and its earlier weights are gone: delete it, or give another"
            " results_dir, to train it again with them."
        )
    missing = _steps_not_kept(job, train.last_step)
    if missing:
        sentences.append(
            f"{job.run.path} was trained already, and the weights of steps {shown(missing)} are not"
            f" there: step={missing[0]} makes the first {missing[0]} steps again."
        )
    return sentences


def too_late_at(job: Job, stored: TrainConfig | None, step: int) -> list[str]:
    """Sentences on what is asked of a training that goes on from `step`, and was not measured or
    kept up to there.

    `stored` are the settings of the command that began it; None: they are not known.
    """
    train = job.config.train
    sentences = []
    was_due = min(train.validation_steps) <= step  # one of the validations that are asked for
    if stored and train.validate_lengths and was_due and not _holds_validations(stored, train):
        sentences.append(
            f"{job.run.path} made its first {step} steps without"
            f" {KEY}={shown(train.validate_lengths)} (and these extensions), so its validations"
            f" begin after step {step}: delete it, or give another results_dir, to train it again"
            " with all of them."
        )
    missing = _steps_not_kept(job, step)
    if missing:
        sentences.append(
            f"{job.run.path} made its first {step} steps already, and the weights of steps"
            f" {shown(missing)} are not there: step={missing[0]} makes the first {missing[0]} steps"
            " again."
        )
    return sentences


def stored_training(run: Run) -> TrainConfig | None:
    """Settings of the training in a run's config.yaml; None where that is missing or damaged."""
    try:
        return typed_group("train", run.read_config()["train"])
    except (ConfigError, RunError, KeyError):
        return None


def _steps_not_kept(job: Job, last: int) -> list[int]:
    """Steps up to `last` whose weights are asked for and are not there."""
    return [
        step
        for step in job.config.train.kept_steps
        if step <= last and not run_at(job.run, job.config, job.fingerprint, step).finished
    ]


def _holds_validations(stored: TrainConfig, requested: TrainConfig) -> bool:
    """True if a training was validated at all lengths, with all extensions, that are asked for."""
    if not set(requested.validate_lengths) <= set(stored.validate_lengths or []):
        return False
    requested_nodes = validation_extensions(requested).values()
    return all(node in validation_extensions(stored).values() for node in requested_nodes)
