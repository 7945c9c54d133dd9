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
from posbench.common.files import FULL_DISK_ERRNOS, sha256_json
from posbench.config.typed_args import convert, shown
from posbench.data.sources import SPLITS, Source

NETWORK_LIBRARIES = {"httpx", "httpx2", "httpcore", "aiohttp", "fsspec"}
HEADING = re.compile(r" = [^=].* = \n?")
OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
REMEDY = (
    "or run `python scripts/prepare_data.py data=...` with the same data settings on another"
    " machine and copy its cache_dir (results/cache) here."
)


class Hub(Source):
    """Rows of a hub data set.

    `splits` gives the rows of each split: {train: {split: HUB_SPLIT, skip: N, take: M or null},
    ...}. `revision` is a full commit hash, since a branch moves and would change the numbers.
    With `stream` only the taken rows are downloaded, and only the tokens are kept. `articles`
    joins the lines of WikiText to whole articles."""

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
            # It raises for any other type.
            convert(f"{where}.split", part.get("split"), str)
            skip = convert(f"{where}.skip", part.get("skip"), int)
            take = convert(f"{where}.take", part.get("take"), int | None)
            if skip < 0 or (take is not None and take < 0):
                raise ConfigError(f"{where}={shown(part)} must skip and take 0 or more rows.")
        self.repo = repo
        self.config = config
        self.revision = revision
        self.splits = splits
        self.column = column
        self.stream = stream
        self.articles = articles

    def fingerprint(self) -> str:
        return sha256_json(
            [self.repo, self.config, self.revision, self.splits, self.column, self.articles]
        )

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        part = self.splits[split]
        skip = part["skip"]
        stop = None if part["take"] is None else skip + part["take"]
        texts = self._row_texts(part["split"])
        if self.articles:
            texts = join_articles(texts)
        for row, text in enumerate(islice(texts, skip, stop), start=skip):
            yield f"{part['split']}:{row}", text

    def _row_texts(self, hub_split: str) -> Iterator[str]:
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
        # network errors of several libraries have no common base class
        except Exception as error:
            is_os_error = isinstance(error, OSError)
            if is_os_error and error.errno in FULL_DISK_ERRNOS:
                raise  # the caller reports a full disk
            if is_os_error or type(error).__module__.split(".")[0] in NETWORK_LIBRARIES:
                reason = hub_miss(error)
            else:
                reason = _first_line(error) or type(error).__name__
            raise ConfigError(f"{self.repo} cannot be read: {reason}") from error


def _first_line(error: BaseException) -> str:
    """First line of an error's message, "" where it has none."""
    return next(iter(str(error).splitlines()), "")


def join_articles(lines: Iterable[str]) -> Iterator[str]:
    """Join the rows of WikiText, one line each, to articles.

    An article begins at ` = Title = ` between two blank lines. The text is not changed, so the
    articles have exactly the bytes of the rows."""
    article: list[str] = []
    for line in lines:
        if _ends_with_heading(article) and not line.strip():
            yield from filter(str.strip, ["".join(article[:-1])])  # none that is blank
            article = article[-1:]  # its heading
        article.append(line)
    yield from filter(str.strip, ["".join(article)])


def _ends_with_heading(lines: list[str]) -> bool:
    """True if the last line is a title and that before it is blank."""
    return len(lines) > 1 and bool(HEADING.fullmatch(lines[-1])) and not lines[-2].strip()


def quiet_hub() -> None:
    """Hide the warnings of the hub's library, and switch to the caches if the hub is not to be
    reached.

    Otherwise its libraries would retry for half a minute."""
    from datasets import config
    from huggingface_hub import constants

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    offline = bool(_why_offline())
    constants.HF_HUB_OFFLINE = offline
    config.HF_HUB_OFFLINE = offline


def _why_offline() -> str:
    """Reason why the hub cannot be reached, "" if it may be.

    Behind a proxy only the proxy can tell if the hub has an address."""
    from huggingface_hub.constants import ENDPOINT

    for name in OFFLINE_SWITCHES:
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            return f"{name} is set"
    behind_proxy = bool(getproxies().keys() & {"https", "all"})
    try:
        if not behind_proxy:
            socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443)
    except OSError:
        return "its name has no address: no network"
    return ""


def hub_file(name: str, file: str) -> Path:
    """File of a repository of the hub (NAME or NAME@COMMIT): from the cache, else downloaded.

    Raises the hub's errors."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    repository, _, revision = name.partition("@")
    cached = try_to_load_from_cache(repository, file, revision=revision or None)
    if isinstance(cached, str):
        return Path(cached)
    # None, or a mark that the hub lacked the file when it was last asked: it is asked again.
    quiet_hub()
    return Path(hf_hub_download(repository, file, revision=revision or None))


def hub_miss(error: BaseException, remedy: str = REMEDY) -> str:
    """Error text for a missing hub file: the reason, the searched caches, and two ways out, of
    which the second is `remedy`.
    """
    from datasets.config import HF_DATASETS_CACHE
    from huggingface_hub.constants import HF_HUB_CACHE

    reason = _why_offline()
    if not reason:
        reason = f"{type(error).__name__}: {_first_line(error) or 'no message'}"
    return (
        f"the caches {HF_HUB_CACHE} and {HF_DATASETS_CACHE} do not hold it and the hub was not"
        f" reached ({reason}): `unset {' '.join(OFFLINE_SWITCHES)}` where there is a network and"
        f" run again, {remedy}"
    )
