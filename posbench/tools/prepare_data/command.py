"""Command of scripts/prepare_data.py: tokenize a data set into the cache and print its statistics."""

from posbench.config.compose import Request

LENGTHS = [2**n for n in range(8, 18)]
SEQUENCE = 32  # tokens


def prepare_data(request: Request) -> None:
    """Tokenize every data set and print its splits and their overlap with training."""
    from posbench.data import prepare
    from posbench.data.mix import resolved_data
    from posbench.data.sources import ALL, SPLITS, TASK
    from posbench.data.tokenfile import overlap, sequences
    from posbench.pretrained.import_config import config_from_checkpoint

    wanted = {}
    for cfg in request.cfgs:
        data = config_from_checkpoint({**cfg, "data": resolved_data(cfg["data"])})["data"]
        splits = (ALL,) if cfg["model"]["path"] and cfg["evaluate"]["split"] == ALL else SPLITS
        wanted[repr(data), splits] = data, cfg["cache_dir"], splits
    for data, cache_dir, splits in wanted.values():
        corpus = prepare(data, cache_dir, splits)
        if data["tokenizer"] == TASK:
            print(
                f"{corpus.name}: a task of {corpus.vocab_size} ids, whose examples are drawn in"
                " training: nothing to prepare"
            )
            continue
        print(
            f"{corpus.name}, {corpus.tokenizer}, {corpus.vocab_size} ids, fingerprint"
            f" {corpus.fingerprint[:16]}, in {corpus.folder}"
        )
        print(
            f"  {'split':10}{'documents':>11}{'tokens':>14}{'bytes':>14}{'bytes/token':>13} "
            " documents of more than L tokens"
        )
        for split in splits:
            tokens = getattr(corpus, split)
            size, lengths = int(tokens.n_bytes.sum(dtype="int64")), tokens.document_lengths()
            long = ", ".join(f"{L}: {n}" for L in LENGTHS if (n := int((lengths > L).sum())))
            print(
                f"  {split:10}{len(lengths):11,}{len(tokens.tokens):14,}{size:14,}{size / len(tokens.tokens):13.3f}"
                f"  {long}"
            )
        if ALL in splits:
            continue
        known = sequences(corpus.train, SEQUENCE)
        for split in ("validation", "test"):
            share, share_D = overlap(getattr(corpus, split), known, SEQUENCE)
            copied = int((share_D > 0.5).sum())
            print(
                f"  {split}: {share:.2%} of its sequences of {SEQUENCE} tokens stand in training"
                f" too, most of {copied} documents"
            )
