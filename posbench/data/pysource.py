"""Source: Python code of pinned wheels, those of the extra `corpus`, so that there is real text
without another download.

A wheel's RECORD lists the SHA-256 of each file. The rows of .py files are the same in every
installation (pip adds only its own rows and those of .pyc files), so a digest over them identifies
the corpus in milliseconds. Contents are verified when they are read."""

import base64
import csv
import functools
import hashlib
import importlib.metadata
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import sha256_json
from posbench.common.wheel_file import require_wheel
from posbench.config.typed_args import convert
from posbench.data.sources import Source


class PySource(Source):
    """Python files of wheels. `wheels` is {package: {version, digest of its rows, split}}.

    `validation` lists path patterns moved from train to validation. `exclude` lists patterns of
    machine-written files, which are left out everywhere. Files shorter than `min_bytes` bytes are
    left out too."""

    def __init__(
        self, wheels: dict[str, dict], validation: list[str], exclude: list[str], min_bytes: int
    ):
        for package, pin in wheels.items():
            for key in ("version", "rows", "split"):
                convert(f"data.source.wheels.{package}.{key}", pin.get(key), str)
        self.wheels = wheels
        self.validation = validation
        self.exclude = exclude
        self.min_bytes = min_bytes

    def fingerprint(self) -> str:
        check_installed(self.wheels)
        for package, pin in self.wheels.items():
            verified_rows(package, pin["version"], pin["rows"])
        return sha256_json([self.wheels, self.validation, self.exclude, self.min_bytes])

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        check_installed(self.wheels)
        for package, pin in self.wheels.items():
            for path, digest in verified_rows(package, pin["version"], pin["rows"]):
                if _matches_any(path, self.exclude):
                    continue
                split_of_file = pin["split"]
                if _matches_any(path, self.validation):
                    split_of_file = "validation"
                if split == split_of_file:
                    content = read_verified(package, pin["version"], path, digest)
                    if len(content) >= self.min_bytes:
                        yield path, content.decode()


def check_installed(wheels: dict[str, dict]) -> None:
    """Raise ConfigError for wheels that are missing or have another version, with one command that
    installs all of them.
    """
    wrong = {}  # {package: version that belongs there}
    for package, pin in wheels.items():
        if _installed_version(package) != pin["version"]:
            wrong[package] = pin["version"]
    if not wrong:
        return
    package, version = next(iter(wrong.items()))
    pins = " ".join(f"{package}=={version}" for package, version in wrong.items())
    way_out = (
        f"pip install {pins} (the extra posbench[corpus]), or read your own text with data=local"
        " data.path=FILE"
    )
    require_wheel(package, version, "data=pysource reads", way_out)


def _matches_any(path: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


@functools.cache
def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def rows_digest(rows: list[tuple[str, str]]) -> str:
    """Hex SHA-256 of the sorted `path,hash` lines."""
    lines = "".join(f"{path},{digest}\n" for path, digest in sorted(rows))
    return hashlib.sha256(lines.encode()).hexdigest()


@functools.cache
def verified_rows(package: str, version: str, expected: str) -> list[tuple[str, str]]:
    """Sorted (path, hash) rows of the package's .py files, from the RECORD of the installed wheel.

    The wheel is installed in this version. Raises ConfigError when it lists other files than the
    pinned ones."""
    wheel = importlib.metadata.distribution(package)
    record = csv.reader((wheel.read_text("RECORD") or "").splitlines())
    rows = sorted(
        (row[0], row[1])
        for row in record
        if row[0].startswith(f"{package}/") and row[0].endswith(".py")
    )
    digest = rows_digest(rows)
    if digest != expected:
        raise ConfigError(
            f"The installed {package} {version} is not the released wheel (its {len(rows)} .py rows"
            f" hash to {digest[:16]}, data.source.wheels.{package}.rows is {expected[:16]}): pip"
            f" install --force-reinstall --no-deps {package}=={version}"
        )
    return rows


def read_verified(package: str, version: str, path: str, digest: str) -> bytes:
    """Content of one installed file.

    Raises ConfigError when it is missing or its hash differs from its RECORD row."""
    repair = f"pip install --force-reinstall --no-deps {package}=={version}"
    file = Path(str(importlib.metadata.distribution(package).locate_file(path)))
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} of {package} {version} cannot be read ({error.strerror}): {repair}"
        ) from error
    sha256 = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    if f"sha256={sha256}" != digest:
        raise ConfigError(
            f"{path} was edited after {package} {version} was installed (sha256={sha256}, RECORD"
            f" says {digest}): {repair}"
        )
    return content
