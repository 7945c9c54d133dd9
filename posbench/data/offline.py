"""Use of the hub without a network: switch its libraries to offline mode, and explain what is missing."""

from __future__ import annotations

import functools
import logging
import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
PREPARE = "python scripts/prepare_data.py data=..."


def quiet_hub() -> None:
    """Switch the hub's libraries to their caches if the hub has no address. Otherwise they would retry for half a minute."""
    from datasets import config
    from huggingface_hub import constants

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = _told_offline() or not _address()


@functools.cache
def _told_offline() -> bool:
    """True if the environment told the libraries to stay offline. Read once, before it is overwritten."""
    from datasets import config
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE or config.HF_HUB_OFFLINE


def _address() -> bool:
    """True if the hub's name resolves. Behind a proxy it is assumed, since only the proxy can tell."""
    from huggingface_hub.constants import ENDPOINT

    if getproxies().keys() & {"https", "all"}:
        return True
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def hub_miss(error: BaseException) -> str:
    """Error text for a missing hub file: the reason, the searched caches, and two commands that help."""
    from datasets.config import HF_DATASETS_CACHE
    from huggingface_hub.constants import HF_HUB_CACHE

    offline = next((name for name in SWITCHES if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")), None)
    why = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
    if offline or not _address():
        why = f"{offline} is set" if offline else "its name has no address: no network"
    return (
        f"the caches {HF_HUB_CACHE} and {HF_DATASETS_CACHE} do not hold it and the hub was not reached ({why}): "
        f"`unset {' '.join(SWITCHES)}` where there is a network and run again, "
        f"or run `{PREPARE}` with the same data settings on another machine and copy its cache_dir (results/cache) here."
    )
