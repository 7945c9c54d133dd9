"""Bundles: the folder of a report as one .zip, with a list of its files. Equal folders give equal
bytes.

A bundle is flat, so that no name in it can leave the folder that it is unpacked into. A stranger's
is unpacked only if names and sizes are those of a report and every file is the one that bundle.json
lists. Nothing in it is run, and its pages are never shown: they are made again from its numbers.
"""

import atexit
import hashlib
import io
import json
import re
import tempfile
import zipfile
from pathlib import Path

import posbench
from posbench.common.errors import RunError
from posbench.common.files import LARGEST, read_bytes, sha256_each, write_atomic

ENDING = ".zip"
LISTED = "bundle.json"
FORMAT = 1
NAME = re.compile(
    r"[A-Za-z0-9_][\w.+=-]{0,150}\.(csv|npz|jsonl|json|html|md|tex|svg|png|pdf)", re.A
)
NEVER = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can state

_unpacked: dict[
    tuple, Path
] = {}  # folders of the bundles that this process has opened; they vanish with it
_named: dict[Path, Path] = {}


def write_bundle(contents: dict[str, bytes], out: Path) -> None:
    """Write files by name as a bundle. Raises RunError for more than can be read again."""
    size = sum(map(len, contents.values()))
    if size > LARGEST - 2**20:
        raise RunError(
            f"{out} would hold {len(contents)} files of {size:,} bytes, more than is read again:"
            " bundle fewer runs."
        )
    about = {"format": FORMAT, "posbench": posbench.__version__, "files": sha256_each(contents)}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in [
            (LISTED, json.dumps(about, indent=1).encode()),
            *sorted(contents.items()),
        ]:
            entry = zipfile.ZipInfo(name, NEVER)
            entry.compress_type, entry.create_system, entry.external_attr = (
                zipfile.ZIP_DEFLATED,
                3,
                0o100644 << 16,
            )
            file.writestr(entry, content)
    write_atomic(out, packed.getvalue())


def contents_of(folder: Path) -> dict[str, bytes]:
    """{name: content} of the files of a report's folder, without links and templates."""
    files = (
        path
        for path in sorted(folder.iterdir())
        if NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink()
    )
    return {
        path.name: read_bytes(path)
        for path in files
        if path.name != LISTED and ".template." not in path.name
    }


def unpacked(path: Path) -> Path:
    """A temporary folder, named as the bundle, with its files. Raises RunError for a file that is
    no sound bundle.
    """
    try:
        packed = read_bytes(path)
        known = path.resolve(), hashlib.sha256(packed).hexdigest()
        if known not in _unpacked:
            contents = _read(packed)
            kept = tempfile.TemporaryDirectory(
                prefix="posbench-bundle-", ignore_cleanup_errors=True
            )
            atexit.register(kept.cleanup)
            name = Path(
                *path.resolve().parts[1:][-2:]
            )  # pages name a folder by the last two parts of its path
            folder = _unpacked[known] = Path(kept.name, name)
            folder.mkdir(parents=True)
            name_folder(folder, name)
            for file, content in contents.items():
                (folder / file).write_bytes(content)
        return _unpacked[known]
    except OSError as error:
        raise RunError(
            f"{path} cannot be unpacked ({error.strerror}): fix this, or leave it out."
        ) from error
    except RunError:
        raise
    except Exception as error:  # zipfile, zlib and json raise a dozen kinds of errors for damage
        raise RunError(
            f"{path} is no sound bundle ({error}): fetch it again, or make one with `posbench"
            " bundle FOLDER`."
        ) from error


def name_folder(folder: Path, name: Path | str) -> None:
    """Make messages and pages of this process call a folder `name`."""
    _named[folder] = Path(name)


def shown_folder(folder: Path) -> str:
    """A folder as messages and pages call it: by its path, unless it has a name."""
    return next(
        (
            str(name / folder.relative_to(known))
            for known, name in _named.items()
            if folder.is_relative_to(known)
        ),
        str(folder),
    )


def _content(file: zipfile.ZipFile, name: str) -> bytes:
    """Content of an entry. Raises BadZipFile for another size than it states, of which no more is
    unpacked.
    """
    stated = file.getinfo(name).file_size
    with file.open(name) as entry:
        return entry.read(
            stated + 1
        )  # without a number zipfile unpacks up to 2 GiB before it looks at the stated size


def _read(packed: bytes) -> dict[str, bytes]:
    """{name: content} of a bundle. Raises ValueError, or other errors for damage."""
    with zipfile.ZipFile(io.BytesIO(packed)) as file:
        if strange := next((name for name in file.namelist() if not NAME.fullmatch(name)), None):
            raise ValueError(f"{strange[:80]!r} in it is no file of a report")
        if (size := sum(entry.file_size for entry in file.infolist())) > LARGEST:
            raise ValueError(f"it unpacks to {size:,} bytes, and {LARGEST:,} are read")
        contents = {name: _content(file, name) for name in file.namelist()}
    about = json.loads(contents.pop(LISTED))
    if about["format"] != FORMAT:
        raise ValueError(
            f"its format is {str(about['format'])[:40]}, and {FORMAT} is read: a newer posbench may"
            " have made it"
        )
    found = sha256_each(contents)
    if found != about["files"]:
        other = sorted({*found.items()} ^ {*about["files"].items()})[0][0]
        raise ValueError(f"{other[:80]} is not the file that {LISTED} lists")
    return contents
