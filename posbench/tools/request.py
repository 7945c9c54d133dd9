"""Request of a command that evaluates one model and chooses methods and settings itself: its
configuration, and the text that it reads.
"""

from collections.abc import Collection

from posbench.common.errors import ConfigError
from posbench.config.compose import Request
from posbench.config.schema import EvaluateConfig
from posbench.data import prepare
from posbench.data.corpus import Corpus, fit_corpus
from posbench.evaluation.protocol import protocol
from posbench.sweep.jobs import Job

METHODS = ("extension", "scale_attention")


def one_model(
    request: Request,
    does: str,
    tuned: str,
    chosen: Collection[str],
    evaluate: Collection[str],
    why: str,
) -> dict:
    """The one configuration of a request; `does`: the script and what it does with a model.

    Raises ConfigError where there are several, for a description of a fine-tuning, and for a word
    that sets what the script has `chosen`, as `why` says: these keys, and those of evaluate but for
    some."""
    cfg = request.cfgs[0]
    if request.sweep or cfg["runs"] is not None:
        raise ConfigError(
            f"{does} one model: give it model.path= or run=, without -m, experiment= and runs=."
        )
    if cfg.get("finetune"):
        raise ConfigError(f"{does} a model that is there: leave finetune= out, {tuned}.")
    for word in request.words:
        group, _, name = (key := word.lstrip("+~").partition("=")[0]).partition(".")
        if key in chosen or group == "evaluate" and name not in evaluate:
            raise ConfigError(f"{word} is {why}: leave it out.")
    return cfg


def windows_to_read(job: Job, asked: EvaluateConfig) -> tuple[Corpus, int, str]:
    """(text, number of windows of an evaluation by fixed_targets, the windows in words). Raises
    ConfigError if documents are too short.
    """
    corpus = fit_corpus(prepare(job.config.data, job.config.cache_dir, (asked.split,)), job.config)
    try:
        windows = protocol("fixed_targets").place(
            getattr(corpus, asked.split), asked, job.config.train.train_len
        )
    except ConfigError as error:
        raise ConfigError(
            f"target={asked.max_length} in the {asked.split} split of data={corpus.name}: {error}"
        ) from error
    count, documents = len(windows.last_N), len(set(windows.document_N.tolist()))
    each = f"{asked.targets:,} target{'s' * (asked.targets != 1)} each"
    read = f"{count:,} window{'s' * (count != 1)} of {asked.max_length:,} tokens ({each})"
    return (
        corpus,
        count,
        f"{read} in {documents:,} {asked.split} document{'s' * (documents != 1)} of {corpus.name}",
    )
