"""Command of scripts/prepare_data.py: tokenize a data set and print its statistics."""

from typing import TYPE_CHECKING

from posbench.config.compose import Request

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.data.tokenfile import TokenFile

COUNTED_LENGTHS = [2**n for n in range(8, 18)]
OVERLAP_TOKENS = 32  # tokens
TABLE_HEAD = (
    f"  {'split':10}{'documents':>11}{'tokens':>14}{'bytes':>14}{'bytes/token':>13} "
    " documents of more than L tokens"
)


def prepare_data(request: Request) -> None:
    """Tokenize every data set and print its splits and their overlap with training."""
    from posbench.data import prepare
    from posbench.data.mix import resolved_data
    from posbench.data.sources import ALL, SPLITS, TASK_TOKENIZER
    from posbench.pretrained.import_config import config_from_checkpoint

    requests = {}  # {content: (data, cache_dir, splits)}
    for raw in request.raw_configs:
        data = config_from_checkpoint({**raw, "data": resolved_data(raw["data"])})["data"]
        # Only a checkpoint, which was not trained on the text, is evaluated on the whole of it.
        undivided = raw["model"]["path"] and raw["evaluate"]["split"] == ALL
        splits = (ALL,) if undivided else SPLITS
        requests[repr(data), splits] = data, raw["cache_dir"], splits
    for data, cache_dir, splits in requests.values():
        corpus = prepare(data, cache_dir, splits)
        if data["tokenizer"] == TASK_TOKENIZER:
            print(
                f"{corpus.name}: a task of {corpus.vocab_size} ids, whose examples are drawn in"
                " training: nothing to prepare"
            )
            continue
        print(
            f"{corpus.name}, {corpus.tokenizer}, {corpus.vocab_size} ids, fingerprint"
            f" {corpus.fingerprint[:16]}, in {corpus.folder}"
        )
        print(TABLE_HEAD)
        for split in splits:
            print(_split_line(split, getattr(corpus, split)))
        if ALL not in splits:
            _print_overlap(corpus)


def _split_line(split: str, tokens: "TokenFile") -> str:
    """Line below TABLE_HEAD, with the numbers of documents that are longer than each of
    COUNTED_LENGTHS.
    """
    n_bytes = int(tokens.n_bytes.sum(dtype="int64"))
    n_tokens = len(tokens.tokens)
    lengths = tokens.document_lengths()
    longer = {length: int((lengths > length).sum()) for length in COUNTED_LENGTHS}
    listed = ", ".join(f"{length}: {count}" for length, count in longer.items() if count)
    return (
        f"  {split:10}{len(lengths):11,}{n_tokens:14,}{n_bytes:14,}{n_bytes / n_tokens:13.3f}"
        f"  {listed}"
    )


def _print_overlap(corpus: "Corpus") -> None:
    """Print the share of validation and test sequences that stand in the training text too."""
    from posbench.data.tokenfile import overlap, sequence_hashes

    training = sequence_hashes(corpus.train, OVERLAP_TOKENS)
    for split in ("validation", "test"):
        share, share_D = overlap(getattr(corpus, split), training, OVERLAP_TOKENS)
        copied = int((share_D > 0.5).sum())
        print(
            f"  {split}: {share:.2%} of its sequences of {OVERLAP_TOKENS} tokens stand in training"
            f" too, most of {copied} documents"
        )
