"""The default corpus: source of installed wheels, verified against their RECORD."""

import base64
import hashlib
import importlib.metadata
import os

import pytest
from test_data import data_config, write

from posbench.common.errors import ConfigError
from posbench.data import prepare
from posbench.data.pysource import PySource, _installed_version, rows_digest, verified_rows

# A wheel as pip leaves it, with rows that pip adds.
FILES = {
    "small/__init__.py": b"",
    "small/core.py": b"x = 1\n" * 40,
    "small/geo/shape.py": b"y = 2\n" * 40,
    "small/_tables.py": b"9" * 200,
}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    site = tmp_path / "site"
    rows = []
    for name, content in FILES.items():
        write(site, {name: content.decode()})
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append((name, f"sha256={digest}"))
    record = "".join(f"{name},{digest},{len(FILES[name])}\n" for name, digest in rows)
    record += (
        "small/__pycache__/core.cpython-311.pyc,,\n"
        "small-1.0.dist-info/INSTALLER,sha256=abc,4\n"
        "setup_small.py,sha256=abc,4\n"
    )
    metadata = "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n"
    write(site, {"small-1.0.dist-info/RECORD": record, "small-1.0.dist-info/METADATA": metadata})
    monkeypatch.syspath_prepend(str(site))
    verified_rows.cache_clear(), _installed_version.cache_clear()
    yield site, rows_digest(rows)
    verified_rows.cache_clear(), _installed_version.cache_clear()


def small(digest, version="1.0", package="small"):
    return PySource(
        {package: {"version": version, "rows": digest, "split": "train"}},
        ["small/geo/*"],
        ["small/_tables.py"],
        64,
    )


def test_wheel_files_are_split_by_subpackage_without_tables_and_empty_files(wheel):
    source = small(wheel[1])
    assert [name for name, _ in source.documents("train")] == ["small/core.py"]
    assert [name for name, _ in source.documents("validation")] == ["small/geo/shape.py"]
    assert list(source.documents("test")) == []


def test_an_edited_file_is_refused_when_read(wheel):
    (wheel[0] / "small/core.py").write_text("x = 2\n" * 40)
    small(wheel[1]).fingerprint()
    with pytest.raises(
        ConfigError, match=r"small/core.py was edited .*--force-reinstall --no-deps small==1.0"
    ):
        list(small(wheel[1]).documents("train"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"package": "no-such-wheel"},
            r"not installed here: pip install no-such-wheel==1.0 .*posbench\[corpus\].* data=local",
        ),
        (
            {"version": "2.0"},
            (
                r"reads small 2.0, but 1.0 is installed: pip install small==2.0"
                r" .*posbench\[corpus\].* data=local"
            ),
        ),
        ({"digest": "0" * 64}, r"not the released wheel .*000000"),
    ],
)
def test_another_wheel_is_refused_at_once(wheel, change, says):
    with pytest.raises(ConfigError, match=says):
        small(**{"digest": wheel[1], **change}).fingerprint()


def test_all_wheels_that_lack_are_installed_by_one_command(wheel):
    pin = {"rows": wheel[1], "split": "train"}
    wheels = {
        "small": {"version": "1.0", **pin},
        "no-such": {"version": "1.0", **pin},
        "torch": {"version": "0.1", **pin},
    }
    with pytest.raises(
        ConfigError,
        match=(
            r"reads no-such 1.0, which is not installed here: pip install no-such==1.0 torch==0.1 "
        ),
    ):
        PySource(wheels, [], [], 64).fingerprint()


@pytest.fixture(scope="session")
def pysource(tmp_path_factory):
    return prepare(data_config("pysource", "tokenizer=bytes"), tmp_path_factory.mktemp("pysource"))


def test_default_corpus_is_split_by_package(pysource):
    assert {name.split("/")[0] for name in pysource.train.names} == {"sympy"}
    assert {name.split("/")[0] for name in pysource.test.names} == {"networkx", "mpmath"}
    held = {tuple(name.split("/")[:2]) for name in pysource.validation.names}
    assert held == {("sympy", "geometry"), ("sympy", "ntheory"), ("sympy", "sets")}
    assert not held & {tuple(name.split("/")[:2]) for name in pysource.train.names}
    size = {
        split: int(getattr(pysource, split).n_bytes.sum(dtype="int64"))
        for split in ("train", "validation")
    }
    assert 0.03 < size["validation"] / sum(size.values()) < 0.06


def test_default_corpus_has_the_test_documents_the_documentation_promises(pysource):
    lengths = {}
    for name, start, end in zip(
        pysource.test.names, pysource.test.starts, pysource.test.starts[1:], strict=False
    ):
        file = importlib.metadata.distribution(name.split("/")[0]).locate_file(name)
        lengths[name] = int(pysource.test.n_bytes[start:end].sum(dtype="int64"))
        assert lengths[name] == os.path.getsize(str(file))
    assert [sum(n >= 2**power + 64 for n in lengths.values()) for power in (14, 15, 16)] == [
        148,
        62,
        13,
    ]
