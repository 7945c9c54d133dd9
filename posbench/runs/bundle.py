"""Bundles: the folder of a report as one .zip, with a list of its files. Equal folders give equal bytes.

A bundle is flat, so that no name in it can leave the folder that it is unpacked into. A stranger's is unpacked only if names, number and
sizes are those of a report and every file is the one that bundle.json lists. Nothing in it is run, and its pages are never shown: they are
made again from its numbers.
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
from posbench.common.files import LARGEST, read_bytes, write_atomic

ENDING = ".zip"
LISTED = "bundle.json"
FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9_][\w.+=-]{0,150}\.(csv|npz|jsonl|json|html|md|tex|svg|png|pdf)", re.A)
MOST_FILES = 500
NEVER = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can state
DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError)
DAMAGE += (NotImplementedError, zipfile.zlib.error)

_unpacked: dict[tuple, Path] = {}  # folders of the bundles that this process has opened; they vanish with it
_named: dict[Path, Path] = {}


def write_bundle(contents: dict[str, bytes], out: Path) -> None:
    """Write files by name as a bundle. Raises RunError for more than can be read again."""
    size = sum(map(len, contents.values()))
    if len(contents) >= MOST_FILES or size > LARGEST - 2**20:
        raise RunError(f"{out} would hold {len(contents)} files of {size:,} bytes, more than is read again: bundle fewer runs.")
    listed = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}
    about = {"format": FORMAT, "posbench": posbench.__version__, "files": listed}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in [(LISTED, json.dumps(about, indent=1).encode()), *sorted(contents.items())]:
            entry = zipfile.ZipInfo(name, NEVER)
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, 0o100644 << 16
            file.writestr(entry, content)
    write_atomic(out, packed.getvalue())


def contents_of(folder: Path) -> dict[str, bytes]:
    """{name: content} of the files of a report's folder, without links and templates."""
    files = (path for path in sorted(folder.iterdir()) if NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink())
    return {path.name: read_bytes(path) for path in files if path.name != LISTED and ".template." not in path.name}


def unpacked(path: Path) -> Path:
    """A temporary folder, named as the bundle, with its files. Raises RunError for a file that is no sound bundle."""
    try:
        status = path.stat()
        known = path.resolve(), status.st_mtime_ns, status.st_size
        if known not in _unpacked:
            contents = _read(read_bytes(path))
            kept = tempfile.TemporaryDirectory(prefix="posbench-bundle-", ignore_cleanup_errors=True)
            atexit.register(kept.cleanup)
            above = path.resolve().parent.parts[1:][-1:]  # pages name a folder by the last two parts of its path
            folder = _unpacked[known] = Path(kept.name, *above, path.name)
            folder.mkdir(parents=True)
            name_folder(folder, Path(*above, path.name))
            for name, content in contents.items():
                (folder / name).write_bytes(content)
        return _unpacked[known]
    except OSError as error:
        raise RunError(f"{path} cannot be unpacked ({error.strerror}): fix this, or leave it out.") from error
    except RunError:
        raise
    except DAMAGE as error:
        raise RunError(f"{path} is no sound bundle ({error}): fetch it again, or make one with `posbench bundle FOLDER`.") from error


def name_folder(folder: Path, name: Path | str) -> None:
    """Make messages and pages of this process call a folder `name`."""
    _named[folder] = Path(name)


def shown_folder(folder: Path) -> str:
    """A folder as messages and pages call it: by its path, unless it has a name."""
    return next((str(name / folder.relative_to(known)) for known, name in _named.items() if folder.is_relative_to(known)), str(folder))


def _read(packed: bytes) -> dict[str, bytes]:
    """{name: content} of a bundle. Raises one of DAMAGE."""
    with zipfile.ZipFile(io.BytesIO(packed)) as file:
        entries = {entry.filename: entry for entry in file.infolist()}
        if len(file.infolist()) > MOST_FILES:
            raise ValueError(f"it holds {len(file.infolist()):,} files, and at most {MOST_FILES} are unpacked")
        if len(entries) < len(file.infolist()):
            raise ValueError("it holds two files of one name")
        if strange := next((entry for entry in entries.values() if not _plain(entry)), None):
            raise ValueError(f"{strange.filename[:80]!r} in it is no file of a report")
        if (size := sum(entry.file_size for entry in entries.values())) > LARGEST:
            raise ValueError(f"it unpacks to {size:,} bytes, and {LARGEST:,} are read")
        if LISTED not in entries:
            raise ValueError(f"it has no {LISTED}")
        contents = {name: _content(file, entry) for name, entry in entries.items()}
    about = json.loads(contents.pop(LISTED))
    if about["format"] != FORMAT:
        raise ValueError(f"its format is {str(about['format'])[:40]}, and {FORMAT} is read: a newer posbench may have made it")
    found = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if found != about["files"]:
        other = sorted({*found.items()} ^ {*map(tuple, about["files"].items())})[0][0]
        raise ValueError(f"{other[:80]} is not the file that {LISTED} lists")
    return contents


def _content(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Content of an entry, of which no more is unpacked than it states; its checksum is wrong if there was more."""
    with file.open(entry) as packed:
        return packed.read(entry.file_size + 1)


def _plain(entry: zipfile.ZipInfo) -> bool:
    """True for a regular file, not encrypted, with a name that a report may have."""
    mode = entry.external_attr >> 16
    return bool(NAME.fullmatch(entry.filename)) and not entry.flag_bits & 1 and (mode & 0o170000) in (0, 0o100000)
