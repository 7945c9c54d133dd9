"""Methods of an anatomy from a job's configuration, and their names in configs/."""

from safetensors import safe_open

from posbench.common.errors import ConfigError, RunError
from posbench.config.defaults import resolved_config
from posbench.config.identity import CHOICE_KEY, NON_ARGUMENT_KEYS, method_name
from posbench.config.names import display_name, shipped_yamls
from posbench.config.schema import TRAINING_PARTS, JobConfig
from posbench.model.build import load_model, load_reader, make_encoding, make_trained_scale
from posbench.position.interfaces import Encoding, ScaleAttention
from posbench.position.trusted import trusted_config
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.pretrained.import_config import config_from_checkpoint
from posbench.pretrained.outline import is_built_by_transformers
from posbench.results.run_metadata import flatten, typed_text
from posbench.runs.directory import Run
from posbench.sweep.kept_steps import check_whole


def resolve_methods(raw: dict) -> JobConfig:
    """Resolve a configuration. With run=DIR the encoding, model, text, training and seed are those
    of that run.

    Raises ConfigError for a run that is not finished, for another step= than its last, and as
    `resolved_config` does.
    """
    if raw["run"] is None:
        return resolved_config(config_from_checkpoint(raw))
    run = Run(raw["run"])
    if not run.finished:
        raise ConfigError(
            f"run={raw['run']} has no finished training: train it with scripts/run.py first."
        )
    trained = trusted_config(run)
    config = resolved_config({**raw, **{key: trained[key] for key in TRAINING_PARTS}})
    check_whole(run, config, raw["step"])
    return config


def make_methods(config: JobConfig) -> tuple[Encoding, ScaleAttention | None]:
    """Encoding and trained scale (or None) of a resolved configuration: fresh, or of run=DIR, or of
    a checkpoint that transformers builds.

    Raises RunError if that run has no weights, ConfigError for such a checkpoint that is not read.
    """
    if config.run is None and is_built_by_transformers(config):
        # Its positions are measured on the loaded model. Before, others stand for them.
        model = load_reader(find_checkpoint(config.model.path), config, "cpu")
        return model.encoding, model.scale
    if config.run is None:
        encoding = make_encoding(config)
        return encoding, make_trained_scale(config, encoding)
    run = Run(config.run)
    if config.model.checkpoint:
        vocab_size = config.model.checkpoint["vocab_size"]
    elif run.weights.is_file():
        with safe_open(run.weights, "pt") as weights:
            vocab_size = weights.get_slice("embed_tokens.weight").get_shape()[0]
    else:
        raise RunError(
            f"{run.weights} is missing: give another run=, or train this one to its end."
        )
    model = load_model(run, config, vocab_size, "cpu")
    return model.encoding, model.scale


def method_in_words(group: str, method: dict) -> str:
    """Name of a method's yaml, and the arguments that differ from it, such as "rope base=27"."""
    name = display_name(group, method)
    default = shipped_yamls(group).get(name, {})
    # A yaml of the user's own may have a shipped one's name, and another class's arguments.
    same_class = default.get("_target_") == method["_target_"]
    defaults = flatten(default) if same_class else {}
    arguments = flatten(method)
    words = [name]
    for key, value in arguments.items():
        parent, _, leaf = key.rpartition(".")
        is_default = key in defaults and defaults[key] == value
        # NON_ARGUMENT_KEYS has the class of the method itself; those of its parts are named below.
        if key in NON_ARGUMENT_KEYS or leaf == CHOICE_KEY or is_default:
            continue
        if leaf == "_target_":
            # What `method_name` reads of a nested method: its class, and the yaml it was chosen by.
            nested = {"_target_": value, CHOICE_KEY: arguments.get(f"{parent}.{CHOICE_KEY}")}
            words.append(f"{parent}={method_name(nested)}")
        else:
            words.append(f"{key}={typed_text(value)}")
    return " ".join(words)
