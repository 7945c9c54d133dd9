"""Adaptation of a corpus to the vocabulary of a checkpoint."""

from dataclasses import replace

from posbench.common.errors import ConfigError
from posbench.data.corpus import Corpus

SPARE = 64  # unused rows that an embedding may have (or a tenth of its rows, if more), since tables are padded for speed


def fits(ids: int, rows: int) -> bool:
    """True if a tokenizer of so many ids may be that of an embedding of so many rows."""
    return rows - max(SPARE, rows // 10) <= ids <= rows


def fit_corpus(corpus: Corpus, cfg: dict) -> Corpus:
    """Corpus with the vocabulary size and BOS token of a job's checkpoint. Without a checkpoint it is returned unchanged.

    Raises ConfigError when the number of ids shows another tokenizer, or when data.bos needs a BOS token and the checkpoint has none.
    """
    checkpoint, path = cfg["model"].get("checkpoint"), cfg["model"].get("path")
    if not checkpoint:
        return corpus
    ids, rows = corpus.vocab_size - (corpus.bos is not None), checkpoint["vocab_size"]
    if not fits(ids, rows):
        raise ConfigError(
            f"data.tokenizer={cfg['data']['tokenizer']} has {ids} ids and model.path={path} {rows}: "
            f"give data.tokenizer={path}, or wherever the tokenizer.json lies that it was trained with."
        )
    if corpus.bos is not None and checkpoint["bos"] is None:
        raise ConfigError(f"data.bos=true asks for a BOS token, and model.path={path} has none: leave data.bos out.")
    return replace(corpus, vocab_size=rows, bos=None if corpus.bos is None else checkpoint["bos"])
