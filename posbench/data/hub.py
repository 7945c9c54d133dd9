"""Source: data sets of the Hugging Face hub at a pinned commit, and the fallback if the hub is
unreachable.
"""

import logging
import os
import re
import socket
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from posbench.common.errors import ConfigError
from posbench.common.files import FULL, sha256_json
from posbench.config.typed_args import convert, shown
from posbench.data.sources import SPLITS, Source

NETWORK = {"httpx", "httpx2", "httpcore", "aiohttp", "fsspec"}
HEADING = re.compile(r" = [^=].* = \n?")
SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
PREPARE = "python scripts/prepare_data.py data=..."


class Hub(Source):
    """Rows of a hub data set. `splits` gives the rows of each split: {train: {split: HUB_SPLIT,
    skip: N, take: M or null}, ...}.

    `revision` is a full commit hash, since a branch moves and would change the numbers. With
    `stream` only the taken rows are downloaded, and only the tokens are kept. `articles` joins the
    lines of WikiText to whole articles."""

    def __init__(
        self,
        repo: str,
        config: str | None,
        revision: str,
        splits: dict[str, dict],
        column: str,
        stream: bool,
        articles: bool = False,
    ):
        if not re.fullmatch(r"[0-9a-f]{40}", str(revision)):
            raise ConfigError(
                f"data.source.revision={revision} is not a commit hash (40 hex digits): copy one"
                f" from the commits of {repo}."
            )
        if set(splits) != set(SPLITS):
            raise ConfigError(
                f"data.source.splits has {', '.join(splits)}: give exactly train, validation and"
                " test."
            )
        for name, part in splits.items():
            where = f"data.source.splits.{name}"
            convert(f"{where}.split", part.get("split"), str)
            rows = (
                convert(f"{where}.skip", part.get("skip"), int),
                convert(f"{where}.take", part.get("take"), int | None),
            )
            if min(rows[0], rows[1] or 0) < 0:
                raise ConfigError(f"{where}={shown(part)} must skip and take 0 or more rows.")
        self.repo, self.config, self.revision, self.splits = repo, config, revision, splits
        self.column, self.stream, self.articles = column, stream, articles

    def fingerprint(self) -> str:
        return sha256_json(
            [self.repo, self.config, self.revision, self.splits, self.column, self.articles]
        )

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        part = self.splits[split]
        texts = self._texts(part["split"])
        texts = join_articles(texts) if self.articles else texts
        stop = None if part["take"] is None else part["skip"] + part["take"]
        for row, text in enumerate(islice(texts, part["skip"], stop), start=part["skip"]):
            yield f"{part['split']}:{row}", text

    def _texts(self, hub_split: str) -> Iterator[str]:
        from datasets import load_dataset

        quiet_hub()
        try:
            rows = load_dataset(
                self.repo,
                self.config,
                revision=self.revision,
                split=hub_split,
                streaming=self.stream,
            )
            for row in rows.select_columns(self.column):
                yield row[self.column] or ""
        except (
            Exception
        ) as error:  # network errors of several libraries, without a common base class
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            network = isinstance(error, OSError) or type(error).__module__.split(".")[0] in NETWORK
            why = (
                hub_miss(error)
                if network
                else (str(error).splitlines() or [type(error).__name__])[0]
            )
            raise ConfigError(f"{self.repo} cannot be read: {why}") from error


def join_articles(lines: Iterable[str]) -> Iterator[str]:
    """Join the rows of WikiText, one line each, to articles. An article begins at ` = Title = `
    between two blank lines.

    The text is not changed, so the articles have exactly the bytes of the rows.
    """
    article: list[str] = []
    for line in lines:
        if (
            len(article) > 1
            and HEADING.fullmatch(article[-1])
            and not article[-2].strip()
            and not line.strip()
        ):
            yield from filter(str.strip, ["".join(article[:-1])])
            article = article[-1:]
        article.append(line)
    yield from filter(str.strip, ["".join(article)])


def quiet_hub() -> None:
    """Switch the hub's libraries to their caches if the hub is not to be reached. Otherwise they
    would retry for half a minute.
    """
    from datasets import config
    from huggingface_hub import constants

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = bool(_why_offline())


def _why_offline() -> str:
    """Reason why the hub cannot be reached, "" if it may be. Behind a proxy only the proxy can tell
    if the hub has an address.
    """
    from huggingface_hub.constants import ENDPOINT

    if name := next(
        (
            name
            for name in SWITCHES
            if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        ),
        None,
    ):
        return f"{name} is set"
    try:
        if not getproxies().keys() & {"https", "all"}:
            socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443)
    except OSError:
        return "its name has no address: no network"
    return ""


def hub_file(name: str, file: str) -> Path:
    """File of a repository of the hub (NAME or NAME@COMMIT): from the cache, else downloaded.
    Raises the hub's errors.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    repository, _, revision = name.partition("@")
    cached = try_to_load_from_cache(repository, file, revision=revision or None)
    if isinstance(cached, str):
        return Path(cached)
    quiet_hub()
    return Path(hf_hub_download(repository, file, revision=revision or None))


def hub_miss(error: BaseException, remedy: str = "") -> str:
    """Error text for a missing hub file: the reason, the searched caches, and two ways out, the
    second being `remedy` if given.
    """
    from datasets.config import HF_DATASETS_CACHE
    from huggingface_hub.constants import HF_HUB_CACHE

    why = (
        _why_offline()
        or f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
    )
    return (
        f"the caches {HF_HUB_CACHE} and {HF_DATASETS_CACHE} do not hold it and the hub was not"
        f" reached ({why}): `unset {' '.join(SWITCHES)}` where there is a network and run again, "
        + (
            remedy
            or f"or run `{PREPARE}` with the same data settings on another machine and copy its cache_dir (results/cache) here."
        )
    )
