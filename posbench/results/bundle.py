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
from posbench.common.files import MOST_FILE_BYTES, read_bytes, sha256_each, write_atomic

ENDING = ".zip"
MANIFEST = "bundle.json"  # the list of all other files, with their SHA-256
FORMAT = 1
FILE_NAME = re.compile(
    r"[A-Za-z0-9_][\w.+=-]{0,150}\.(csv|npz|jsonl|json|html|md|tex|svg|png|pdf)", re.A
)
UNIX_SYSTEM = 3  # as a zip names the system that made it
REGULAR_FILE = 0o100644  # mode of a file that its owner may write
EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can state

# {(path, SHA-256): folder} of the bundles that this process has opened; they vanish with it
_folders_of_bundles: dict[tuple[Path, str], Path] = {}
_names_of_folders: dict[Path, Path] = {}  # {folder: its name in messages}


def write_bundle(contents: dict[str, bytes], out: Path) -> None:
    """Write files by name as a bundle. Raises RunError for more than can be read again."""
    size = sum(map(len, contents.values()))
    if size > MOST_FILE_BYTES - 2**20:  # 1 MiB for the manifest
        raise RunError(
            f"{out} would hold {len(contents)} files of {size:,} bytes, more than is read again:"
            " bundle fewer runs."
        )
    about = {"format": FORMAT, "posbench": posbench.__version__, "files": sha256_each(contents)}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr(_zip_entry(MANIFEST), json.dumps(about, indent=1))
        for name, content in sorted(contents.items()):
            file.writestr(_zip_entry(name), content)
    write_atomic(out, packed.getvalue())


def _zip_entry(name: str) -> zipfile.ZipInfo:
    """Entry whose bytes do not depend on machine and time."""
    entry = zipfile.ZipInfo(name, EARLIEST_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = UNIX_SYSTEM
    entry.external_attr = REGULAR_FILE << 16
    return entry


def contents_by_name(folder: Path) -> dict[str, bytes]:
    """{name: content} of the files of a report's folder, without links and templates."""
    contents = {}
    for path in sorted(folder.iterdir()):
        if path.name == MANIFEST or ".template." in path.name or not FILE_NAME.fullmatch(path.name):
            continue
        if path.is_file() and not path.is_symlink():
            contents[path.name] = read_bytes(path)
    return contents


def unpacked_folder(path: Path) -> Path:
    """A temporary folder, named as the bundle, with its files. Raises RunError for a file that is
    no sound bundle.
    """
    try:
        packed = read_bytes(path)
        key = path.resolve(), hashlib.sha256(packed).hexdigest()
        if key not in _folders_of_bundles:
            # Pages name a folder by the last two parts of its path; the first part is the root.
            name = Path(*path.resolve().parts[1:][-2:])
            _folders_of_bundles[key] = _temporary_folder(_contents_of_bundle(packed), name)
        return _folders_of_bundles[key]
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


def _temporary_folder(contents: dict[str, bytes], name: Path) -> Path:
    """A folder with these files that vanishes with the process."""
    temporary = tempfile.TemporaryDirectory(prefix="posbench-bundle-", ignore_cleanup_errors=True)
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name, name)
    folder.mkdir(parents=True)
    name_folder(folder, name)  # tables and messages show it instead of the temporary path
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    return folder


def name_folder(folder: Path, name: Path | str) -> None:
    """Make messages and pages of this process call a folder `name`."""
    _names_of_folders[folder] = Path(name)


def shown_folder(folder: Path) -> str:
    """A folder as messages and pages call it: by its path, unless it has a name."""
    for named, name in _names_of_folders.items():
        if folder.is_relative_to(named):
            return str(name / folder.relative_to(named))
    return str(folder)


def _entry_content(file: zipfile.ZipFile, name: str) -> bytes:
    """Content of an entry. Raises BadZipFile for a longer one than it states, of which no more is
    unpacked.
    """
    size = file.getinfo(name).file_size
    with file.open(name) as entry:
        # Without a number zipfile unpacks up to 2 GiB before it looks at the stated size. It
        # checks what it has read; of an entry that states 0 bytes that would be nothing without 1.
        return entry.read(size + 1)


def _contents_of_bundle(packed: bytes) -> dict[str, bytes]:
    """{name: content} of a bundle. Raises ValueError, or other errors for damage."""
    with zipfile.ZipFile(io.BytesIO(packed)) as file:
        for name in file.namelist():
            if not FILE_NAME.fullmatch(name):
                raise ValueError(f"{name[:80]!r} in it is no file of a report")
        size = sum(entry.file_size for entry in file.infolist())
        if size > MOST_FILE_BYTES:
            raise ValueError(f"it unpacks to {size:,} bytes, and {MOST_FILE_BYTES:,} are read")
        contents = {name: _entry_content(file, name) for name in file.namelist()}
    about = json.loads(contents.pop(MANIFEST))
    if about["format"] != FORMAT:
        raise ValueError(
            f"its format is {str(about['format'])[:40]}, and {FORMAT} is read: a newer posbench may"
            " have made it"
        )
    hashes = sha256_each(contents)
    if hashes != about["files"]:
        # The first name whose hash differs, or that one of the two lacks.
        name, _ = min({*hashes.items()} ^ {*about["files"].items()})
        raise ValueError(f"{name[:80]} is not the file that {MANIFEST} lists")
    return contents
