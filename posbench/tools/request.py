"""Request of a command that evaluates one model and chooses methods and settings itself."""

from collections.abc import Collection
from typing import NamedTuple

from posbench.common.errors import ConfigError
from posbench.common.quantities import plural
from posbench.config.compose import Request
from posbench.config.schema import EvaluateConfig
from posbench.data import prepare
from posbench.data.corpus import Corpus, fit_corpus
from posbench.evaluation.registry import protocol
from posbench.sweep.jobs import Job

METHOD_GROUPS = ("extension", "scale_attention")


def single_model_request(
    request: Request,
    script_does: str,
    without_tuning: str,
    reserved_keys: Collection[str],
    allowed_evaluate_keys: Collection[str],
    why_reserved: str,
) -> dict:
    """The one configuration of a request.

    `script_does` names the script and its action, such as "scripts/look.py looks at",
    `without_tuning` says what to do in place of finetune=. Raises ConfigError where there are
    several configurations, for a description of a fine-tuning, and, as `why_reserved` says, for a
    word that sets what the script chooses: the keys `reserved_keys`, and all evaluate.KEY but those
    whose KEY is in `allowed_evaluate_keys`.
    """
    raw = request.raw_configs[0]
    if request.sweep or raw["runs"] is not None:
        raise ConfigError(
            f"{script_does} one model: give it model.path= or run=, without -m, experiment= and"
            " runs=."
        )
    if raw.get("finetune"):
        raise ConfigError(
            f"{script_does} a model that is there: leave finetune= out, {without_tuning}."
        )
    for word in request.words:
        key = word.lstrip("+~").partition("=")[0]
        group, _, name = key.partition(".")
        if key in reserved_keys or (group == "evaluate" and name not in allowed_evaluate_keys):
            raise ConfigError(f"{word} is {why_reserved}: leave it out.")
    return raw


class TextToRead(NamedTuple):
    """Text of an evaluation, with the number of its windows and their description."""

    corpus: Corpus
    n_windows: int
    in_words: str  # "8 windows of 512 tokens (8 targets each) in 5 test documents of books"


def windows_to_read(job: Job, evaluate: EvaluateConfig) -> TextToRead:
    """Windows that an evaluation by fixed_targets reads.

    Raises ConfigError if documents are too short.
    """
    config = job.config
    corpus = fit_corpus(prepare(config.data, config.cache_dir, (evaluate.split,)), config)
    tokens = getattr(corpus, evaluate.split)
    try:
        windows = protocol("fixed_targets").place_windows(tokens, evaluate, config.train.train_len)
    except ConfigError as error:
        # The commands that read fixed_targets call the longest text target=.
        raise ConfigError(
            f"target={evaluate.max_length} in the {evaluate.split} split of data={corpus.name}:"
            f" {error}"
        ) from error
    n_windows = len(windows.last_N)
    n_documents = len(set(windows.document_N.tolist()))
    size = f"{evaluate.max_length:,} tokens ({plural(evaluate.targets, 'target')} each)"
    place = f"{plural(n_documents, f'{evaluate.split} document')} of {corpus.name}"
    in_words = f"{plural(n_windows, 'window')} of {size} in {place}"
    return TextToRead(corpus, n_windows, in_words)
