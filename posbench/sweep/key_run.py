"""Another training whose model chooses the key tokens of longppl (evaluate.key_run), for several trainings the same ones."""

from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.config import identity
from posbench.position.instantiate import trained_config
from posbench.runs.directory import Run

if TYPE_CHECKING:
    from posbench.model.gpt import GPT


def resolved_chooser(given: str | dict | None, fingerprint: str) -> dict | None:
    """A `given` evaluate.key_run with the id, weights and training length of that run; None for none. `fingerprint` of the evaluated text.

    Raises ConfigError for a folder without a finished training, and for a training on another text or in other tokens.
    """
    if given is None:
        return None
    path = given.get("path") if isinstance(given, dict) else given
    run = Run(path) if isinstance(path, str) else None
    if run is None or not run.has_config or not run.finished:
        raise ConfigError(
            f"evaluate.key_run={path} holds no finished training: give the folder of one, such as results/runs/rope-64-s0-1a2b3c4d5e."
        )
    trained = trained_config(run)
    if identity.run_id(trained.as_dict(), fingerprint) != run.id:  # an id stands for text and tokens too
        raise ConfigError(
            f"evaluate.key_run={path} was trained on another text or in other tokens (or its folder was "
            "renamed): name a training on the same text, since a model can only choose among tokens that it knows."
        )
    return {"path": str(run.path), "run_id": run.id, "sha256": run.read_summary()["sha256"], "train_len": trained.train.train_len}


def model_of(noted: dict, vocab_size: int, device: str) -> "GPT":
    """The model of a resolved evaluate.key_run. Raises RunError if its weights have changed."""
    from posbench.model.build import load_model

    run = Run(noted["path"])
    if (found := run.read_summary()["sha256"]) != noted["sha256"]:
        raise RunError(
            f"{run.path} changed after the evaluation was named by its weights (SHA-256 {noted['sha256'][:12]}..., {found[:12]}... now): "
            "run the same command again."
        )
    return load_model(run, trained_config(run), vocab_size, device)
