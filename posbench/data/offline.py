"""What to tell a user when the hub does not answer."""

from __future__ import annotations

import os

SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
PREPARE = "python scripts/prepare_data.py data=..."


def hub_miss(error: BaseException) -> str:
    """Why something of the hub is not to be had, which caches were searched, and the two commands that would mend it."""
    from datasets.config import HF_DATASETS_CACHE
    from huggingface_hub.constants import HF_HUB_CACHE

    offline = next((name for name in SWITCHES if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")), None)
    why = f"{offline} is set" if offline else f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
    return (
        f"the caches {HF_HUB_CACHE} and {HF_DATASETS_CACHE} do not hold it and the hub was not reached ({why}): "
        f"`unset {' '.join(SWITCHES)}` where there is a network and run again, "
        f"or run `{PREPARE}` with the same data settings on another machine and copy its cache_dir (results/cache) here."
    )
