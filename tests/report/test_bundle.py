"""One file of a report: read like its folder, the same for equal results, and refused in a sentence
where it is damaged or hostile.
"""

import io
import json
import os
import shlex
import shutil
import struct
import tracemalloc
import zipfile

import pandas
import pytest
from conftest import CONFIGS
from script_calls import call

import posbench
from posbench.common.errors import RunError
from posbench.common.files import MOST_FILE_BYTES
from posbench.results.bundle import MANIFEST, contents_by_name, write_bundle
from posbench.results.bundle import _contents_of_bundle as unpacked_contents
from posbench.results.hashes import HASHES
from posbench.results.search import find_results

DEMO = CONFIGS.parent / "results" / "reported" / "demo"


@pytest.fixture
def bundle(tmp_path):
    """The files of a report alone, without pages."""
    write_bundle(contents_by_name(DEMO), tmp_path / "demo.posbench.zip")
    return tmp_path / "demo.posbench.zip"


def entries(path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_equal_results_give_equal_bytes_and_no_folder_of_the_machine_is_named(capfd, tmp_path):
    bundles = []
    for place in ("one", "another"):
        folder = tmp_path / place / "demo"
        shutil.copytree(DEMO, folder)
        (folder / "table.md").touch()
        (folder / "secret.csv").symlink_to("/etc/hostname")
        (folder / ".env").write_text("x")
        done = call(capfd, tmp_path / place, "bundle", str(folder) if place == "one" else "demo")
        assert done.returncode == 0, done.stderr
        bundles.append((tmp_path / place / "demo.posbench.zip").read_bytes())
    assert bundles[0] == bundles[1]
    files = entries(io.BytesIO(bundles[0]))
    assert {
        "explore.html",
        "report.html",
        "rows.csv",
        "curve.csv",
        "sums.npz",
        "configs.jsonl",
        "trainings.csv",
    } <= {*files}
    assert {"secret.csv", ".env", "README.template.md"}.isdisjoint(files)
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    assert files["curve.csv"] == (DEMO / "curve.csv").read_bytes()


def test_the_commands_that_it_prints_are_quoted(capfd, tmp_path):
    done = call(capfd, tmp_path, "bundle", str(DEMO), "out=my demo (1).zip")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines()[1:]:
        posbench_word, name, *words = shlex.split(line)
        out = ["out=page.html"] if name == "explore" else ["report_dir=again"]
        assert posbench_word == "posbench"
        done = call(capfd, tmp_path, name, *words, *out)
        assert done.returncode == 0, done.stderr


def test_a_bundle_is_read_like_its_folder(bundle, capfd, tmp_path):
    pandas.testing.assert_frame_equal(posbench.rows(bundle), posbench.rows(DEMO))
    pandas.testing.assert_frame_equal(posbench.frame([bundle]), posbench.frame([DEMO]))
    done = call(capfd, tmp_path, "report", f"runs={bundle.name}", "report_dir=again")
    assert done.returncode == 0, done.stderr
    again, curve = (pandas.read_csv(folder / "curve.csv") for folder in (tmp_path / "again", DEMO))
    pandas.testing.assert_frame_equal(again[curve.columns], curve)
    assert (
        f"{tmp_path.name}/{bundle.name}/rope-64" in (tmp_path / "again" / "report.html").read_text()
    )
    assert (
        call(capfd, tmp_path, "explore", bundle.name).returncode == 0
        and (tmp_path / "explore.html").exists()
    )
    done = call(capfd, tmp_path, "plot", bundle.name, "headline", "lines=rope|none", "out=x.svg")
    assert done.returncode == 0 and f"{bundle.name}: " in done.stdout, done.stderr


def packed(path, items, **changes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in items:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            for key, value in changes.items():
                setattr(entry, key, value)
            file.writestr(entry, content)


def understated(path) -> None:
    """A bomb whose entry states ten bytes."""
    packed(path, [(MANIFEST, b"{}"), ("rows.csv", bytes(64 * 2**20))])
    content, real = bytearray(path.read_bytes()), struct.pack("<I", 64 * 2**20)
    while (at := content.find(real)) >= 0:
        content[at : at + 4] = struct.pack("<I", 10)
    path.write_bytes(content)


def test_of_an_entry_no_more_is_unpacked_than_it_states(bundle):
    """64 MiB that state ten bytes, in a file of 64 KiB."""
    understated(bundle)
    packed = bundle.read_bytes()
    tracemalloc.start()
    with pytest.raises(zipfile.BadZipFile):
        unpacked_contents(packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


def spoiled(path, name, content) -> None:
    packed(path, [*({**entries(path), name: content}).items()])


HOSTILE = {
    "no zip": (lambda path: path.write_bytes(b"PK\x03\x04 and more"), "not a zip file"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size // 2), "not a zip file"),
    "foreign": (
        lambda path: packed(path, [("thesis.docx", b"")]),
        "'thesis.docx' in it is no file of a report",
    ),
    "above": (lambda path: packed(path, [("../rows.csv", b"x")]), "'../rows.csv' in it is no file"),
    "absolute": (lambda path: packed(path, [("/tmp/rows.csv", b"x")]), "in it is no file"),
    "large": (
        lambda path: packed(path, [("rows.csv", bytes(MOST_FILE_BYTES + 1))]),
        "it unpacks to 268,435,457 bytes",
    ),
    "bomb": (understated, "Bad CRC-32"),
    "unlisted": (
        lambda path: spoiled(path, "more.csv", b"x"),
        "more.csv is not the file that bundle.json lists",
    ),
    "altered": (
        lambda path: spoiled(path, "curve.csv", b"x"),
        "curve.csv is not the file that bundle.json lists",
    ),
    "no list": (
        lambda path: packed(path, [("rows.csv", b"x")]),
        "is no sound bundle .'bundle.json'",
    ),
    "newer": (
        lambda path: spoiled(path, MANIFEST, b'{"format": 2}'),
        "its format is 2, and 1 is read",
    ),
    "strange list": (lambda path: spoiled(path, MANIFEST, b"[]"), "list indices"),
    "deep list": (lambda path: spoiled(path, MANIFEST, b"[" * 100_000), "is no sound bundle"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_sound_bundle_is_one_sentence_and_leaves_nothing(
    name, bundle, tmp_path, monkeypatch
):
    spoil, message = HOSTILE[name]
    spoil(bundle)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with pytest.raises(RunError, match=message) as raised:
        find_results([bundle])
    assert "\n" not in str(raised.value) and str(bundle) in str(raised.value)
    assert not list((tmp_path / "temporary").iterdir()) and len([*tmp_path.iterdir()]) == 2


def test_a_changed_bundle_is_read_anew(bundle):
    before = find_results([bundle]).evidence
    assert find_results([bundle]).evidence == before
    files = {
        name: content for name, content in entries(bundle).items() if name not in (MANIFEST, HASHES)
    }
    write_bundle(files | {"rows.csv": b"".join(files["rows.csv"].splitlines(True)[:10])}, bundle)
    assert len(posbench.rows(bundle)) == 9 < 66
    assert json.loads(entries(bundle)[MANIFEST])["format"] == 1


def test_the_check_names_what_does_not_follow_from_the_evidence(capfd, tmp_path):
    done = call(capfd, tmp_path, "bundle", "demo", "check=true")
    assert (
        done.returncode == 0
        and "66 rows of 3 trainings; all tables are those of rows and sums." in done.stdout
    )
    assert "| rope | leaky_rerope | log_n | 16x+ |" in done.stdout and not list(tmp_path.iterdir())
    shutil.copytree(DEMO, tmp_path / "better")
    curve = (tmp_path / "better" / "curve.csv").read_text()
    (tmp_path / "better" / "curve.csv").write_text(
        curve.replace("rope,none,none,False,128", "rope,none,none,False,96", 1)
    )
    done = call(capfd, tmp_path, "bundle", "better", "check=true")
    assert (
        done.returncode == 1
        and "better does not hold together (curve.csv is not the file that hashes.json lists"
        in done.stderr
    )
    for damage in (b'"cut', b"\xff\xfe", b""):
        (tmp_path / "better" / "curve.csv").write_bytes(damage)
        done = call(capfd, tmp_path, "bundle", "better", "check=true")
        assert (
            done.returncode == 1
            and "curve.csv is not the file that hashes.json lists" in done.stderr
        )
    (tmp_path / "better" / "curve.csv").unlink()
    done = call(capfd, tmp_path, "bundle", "better", "check=true")
    assert done.returncode == 1 and "curve.csv is not what rows and sums give" in done.stderr
