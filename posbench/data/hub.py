"""Source: data sets of the Hugging Face hub at a pinned commit. Once prepared, the token files need no network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from posbench.common.errors import ConfigError
from posbench.common.files import FULL, sha256_json
from posbench.config.typed_args import fitting, shown
from posbench.data.offline import hub_miss, quiet_hub
from posbench.data.sources import SPLITS, Source


class Hub(Source):
    """Rows of a hub data set. `splits` gives the rows of each split: {train: {split: HUB_SPLIT, skip: N, take: M or null}, ...}.

    `revision` is a full commit hash, since a branch moves and would change the numbers. With `stream` only the taken rows are
    downloaded, and only the tokens are kept. `articles` joins the lines of WikiText to whole articles.
    """

    def __init__(
        self, repo: str, config: str | None, revision: str, splits: dict[str, dict], column: str, stream: bool, articles: bool = False
    ):
        if not re.fullmatch(r"[0-9a-f]{40}", str(revision)):
            raise ConfigError(
                f"data.source.revision={revision} is not a commit hash (40 hex digits), so that the data could change: "
                f"copy one from https://huggingface.co/datasets/{repo}/commits/main."
            )
        if set(splits) != set(SPLITS):
            raise ConfigError(f"data.source.splits has {', '.join(splits)}: give exactly train, validation and test.")
        for name, part in splits.items():
            where = f"data.source.splits.{name}"
            fitting(f"{where}.split", part.get("split"), str)
            rows = fitting(f"{where}.skip", part.get("skip"), int), fitting(f"{where}.take", part.get("take"), int | None)
            if min(rows[0], rows[1] or 0) < 0:
                raise ConfigError(f"{where}={shown(part)} must skip and take 0 or more rows.")
        self.repo, self.config, self.revision, self.splits = repo, config, revision, splits
        self.column, self.stream, self.articles = column, stream, articles

    def fingerprint(self) -> str:
        return sha256_json([self.repo, self.config, self.revision, self.splits, self.column, self.articles])

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        part = self.splits[split]
        texts = self._texts(part["split"])
        texts = join_articles(texts) if self.articles else texts
        stop = None if part["take"] is None else part["skip"] + part["take"]
        for row, text in enumerate(islice(texts, part["skip"], stop), start=part["skip"]):
            yield f"{part['split']}:{row}", text

    def describe(self) -> dict:
        return {"repo": self.repo, "revision": self.revision}

    def _texts(self, hub_split: str) -> Iterator[str]:
        from datasets import load_dataset

        quiet_hub()
        try:
            rows = load_dataset(self.repo, self.config, revision=self.revision, split=hub_split, streaming=self.stream)
            for row in rows.select_columns(self.column):
                yield row[self.column] or ""
        except Exception as error:  # network errors of several libraries, without a common base class
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            network = isinstance(error, OSError) or type(error).__module__.split(".")[0] in NETWORK
            why = hub_miss(error) if network else (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"{self.repo} cannot be read: {why}") from error


NETWORK = {"httpx", "httpx2", "httpcore", "aiohttp", "fsspec"}
HEADING = re.compile(r" = [^=].* = \n?")


def join_articles(lines: Iterable[str]) -> Iterator[str]:
    """Join the rows of WikiText, one line each, to articles. An article begins at ` = Title = ` between two blank lines.

    The text is not changed, so the articles have exactly the bytes of the rows.
    """
    article: list[str] = []
    blank, previous = True, None
    for line in lines:
        if previous is not None and blank and HEADING.fullmatch(previous) and not line.strip() and len(article) > 1:
            yield from filter(str.strip, ["".join(article[:-1])])
            article = article[-1:]
        blank = previous is None or not previous.strip()
        article.append(line)
        previous = line
    yield from filter(str.strip, ["".join(article)])
