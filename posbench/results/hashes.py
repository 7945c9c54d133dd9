"""hashes.json: the SHA-256 of the files of a report's folder, written last, and compared by every
reader of the folder.

It holds {"format": 1, "files": {name: SHA-256 as hex}}. Whoever alters a file by accident, or
without thinking of the list, is noticed; it is no signature, so that whoever writes the list anew
vouches for the files. Folders of earlier versions have none."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import json_text, read_json, sha256_each, sha256_file, write_atomic

HASHES = "hashes.json"
FORMAT = 1
MISSING = "is missing"
FILE_NAME = re.compile(r"[A-Za-z0-9_][\w.+=-]{0,150}", re.A)  # of a file in the folder itself
SHA256 = re.compile(r"[0-9a-f]{64}")


def write_hashes(folder: Path, names: Iterable[str]) -> Path:
    """Write the list of these files of a folder, and return its path."""
    write_atomic(
        folder / HASHES, _hashes_text({name: sha256_file(folder / name) for name in names})
    )
    return folder / HASHES


def hashes_of(contents: Mapping[str, bytes]) -> bytes:
    """The list of files that are given by name, as `write_hashes` writes it."""
    return _hashes_text(sha256_each(contents)).encode()


def _hashes_text(hashes: Mapping[str, str]) -> str:
    return json_text({"format": FORMAT, "files": dict(sorted(hashes.items()))})


def has_hashes(folder: Path) -> bool:
    """True if the folder has a list, readable or not."""
    return (folder / HASHES).exists()


def altered_files(folder: Path) -> dict[str, str]:
    """{name of a listed file that is another one now, or missing: what is wrong, such as "is
    missing"}; {} without a list.

    Raises RunError for a list that is damaged or of a newer version.
    """
    if not has_hashes(folder):
        return {}
    faults = {}
    for name, digest in _hashes_by_name(folder / HASHES).items():
        if not (folder / name).exists():
            faults[name] = MISSING
        elif sha256_file(folder / name) != digest:
            faults[name] = f"is not the file that {HASHES} lists"
    return faults


def _hashes_by_name(path: Path) -> dict[str, str]:
    """{file name: SHA-256} of a list of hashes. Raises RunError for a damaged or newer one."""
    content = read_json(path)
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {str(content['format'])[:40]}, and {FORMAT} is read")
        files = {str(name): str(digest) for name, digest in content["files"].items()}
        for name, digest in files.items():
            if not FILE_NAME.fullmatch(name) or not SHA256.fullmatch(digest):
                raise ValueError(f"{name[:80]!r} in it is no file of a report with its SHA-256")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunError(
            f"{path} is no list of hashes ({error}): restore it, or make the report again."
        ) from error
    return files
