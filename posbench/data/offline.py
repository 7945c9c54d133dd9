"""The hub where there is no network: its libraries told so, and what a user is told."""

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
    """Let the hub's libraries look into their caches alone where the hub has no address: they would try for half a minute, in ten lines."""
    from datasets import config
    from huggingface_hub import constants

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = _told_offline() or not _address()


@functools.cache
def _told_offline() -> bool:
    """What the libraries had read from the environment."""
    from datasets import config
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE or config.HF_HUB_OFFLINE


def _address() -> bool:
    """Whether the hub's name leads anywhere from here. A proxy would know better than this machine."""
    from huggingface_hub.constants import ENDPOINT

    if getproxies().keys() & {"https", "all"}:
        return True
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def hub_miss(error: BaseException) -> str:
    """Why something of the hub is not to be had, which caches were searched, and the two commands that would mend it."""
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
