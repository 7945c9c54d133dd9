"""Request of a command that evaluates one model and chooses methods and settings itself: its configuration, and the text that it reads."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError
from posbench.config.compose import Request
from posbench.config.identity import method_name
from posbench.config.schema import EvaluateConfig
from posbench.data import other_text, prepare
from posbench.data.corpus import fit_corpus
from posbench.evaluation.protocols import protocol
from posbench.sweep.jobs import Job

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus

# Settings of evaluate that only other protocols use.
OTHER_PROTOCOLS = ("stride", "tasks", "chat", "rivals", "key_gain", "key_loss", "key_context", "key_run")


def one_model(request: Request, script: str, does: str, tuned: str, methods: str, extension: str = "none") -> dict:
    """The one configuration of a request.

    Raises ConfigError where there are several, for a description of a fine-tuning, and for methods, which the script chooses as `methods`
    says.
    """
    cfg = request.cfgs[0]
    if request.sweep or cfg["runs"] is not None:
        raise ConfigError(f"{script} {does} one model: give it model.path= or run=, without -m, experiment= and runs=.")
    if cfg.get("finetune"):
        raise ConfigError(f"{script} {does} a model that is there: leave finetune= out, {tuned}.")
    for group, only in (("extension", extension), ("scale_attention", "none")):
        if (name := method_name(cfg[group])) != only:
            raise ConfigError(f"{group}={name} {methods}.")
    return cfg


def refuse_settings(cfg: dict, script: str, decided: Iterable[str], why: str) -> None:
    """Raise ConfigError for a given setting of evaluate that the script has `decided`, as `why` says, or that has no effect."""
    other_text.refuse(cfg, script)
    usual = vars(EvaluateConfig())
    for key, said in [*((key, why) for key in decided), *((key, "of another protocol than fixed_targets") for key in OTHER_PROTOCOLS)]:
        if cfg["evaluate"].get(key, usual[key]) != usual[key]:
            raise ConfigError(f"evaluate.{key}={cfg['evaluate'][key]} is {said}: leave it out.")


def windows_to_read(job: Job, asked: EvaluateConfig) -> tuple["Corpus", int, str]:
    """(text, number of windows of an evaluation by fixed_targets, the windows in words). Raises ConfigError if documents are too short."""
    corpus = fit_corpus(prepare(job.cfg.data, job.cfg.cache_dir, (asked.split,)), job.cfg)
    try:
        windows = protocol("fixed_targets").place(getattr(corpus, asked.split), asked, job.cfg.train.train_len)
    except ConfigError as error:
        raise ConfigError(f"target={asked.max_length} in the {asked.split} split of data={corpus.name}: {error}") from error
    count, documents = len(windows.last_N), len(set(windows.document_N.tolist()))
    read = f"{count} window{'s' * (count != 1)} of {asked.max_length} tokens ({asked.targets} target{'s' * (asked.targets != 1)} each)"
    return corpus, count, f"{read} in {documents} {asked.split} document{'s' * (documents != 1)} of {corpus.name}"
