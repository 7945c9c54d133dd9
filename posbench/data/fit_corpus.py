"""A corpus for the vocabulary of a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from posbench.common.errors import ConfigError
from posbench.data.corpus import Corpus

SPARE = 64  # rows of the embedding, or a tenth of it, that a tokenizer may leave unused: tables are padded for speed


def fit_corpus(corpus: Corpus, cfg: dict) -> Corpus:
    """The text as a job's checkpoint reads it: ids up to its own vocabulary, its own BOS token. Other jobs' corpora are left alone.

    Raises ConfigError where the tokenizer is not the checkpoint's, by the number of ids, or it has no BOS token and data.bos wants one.
    """
    checkpoint, path = cfg["model"].get("checkpoint"), cfg["model"].get("path")
    if not checkpoint:
        return corpus
    ids, rows = corpus.vocab_size - (corpus.bos is not None), checkpoint["vocab_size"]
    if not rows - max(SPARE, rows // 10) <= ids <= rows:
        raise ConfigError(
            f"data.tokenizer={cfg['data']['tokenizer']} has {ids} ids and model.path={path} {rows}: "
            f"give data.tokenizer={path}, or wherever the tokenizer.json lies that it was trained with."
        )
    if corpus.bos is not None and checkpoint["bos"] is None:
        raise ConfigError(f"data.bos=true asks for a BOS token, and model.path={path} has none: leave data.bos out.")
    return replace(corpus, vocab_size=rows, bos=None if corpus.bos is None else checkpoint["bos"])
