"""Writing a file whole or not at all, whoever dies or writes beside."""

import json
import multiprocessing
import os
import re
import time

import pytest

from posbench.common.errors import RunError
from posbench.common.files import (
    append_lines,
    atomic_path,
    is_locked,
    read_bytes,
    read_json,
    write_atomic,
    write_json,
)


def test_the_name_is_on_the_disk_when_a_write_returns(tmp_path, monkeypatch):
    done = []
    real, rename = os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (done.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle)),
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), rename(a, b)))
    write_atomic(tmp_path / "a.json", "{}")
    assert [re.sub(r"-[^-]{8}\.", "-.", name) for name in done] == [
        f"{tmp_path}/.a-.json",
        "rename",
        str(tmp_path),
    ]


def _die_while_writing(path: str, ready: object) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        ready.set()
        time.sleep(600)


def test_what_a_dead_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = []
    for _ in range(2):
        ready = context.Event()
        writers.append(
            context.Process(
                target=_die_while_writing, args=(str(tmp_path / "a.json"), ready), daemon=True
            )
        )
        writers[-1].start()
        assert ready.wait(60)
    writers[0].kill(), writers[0].join()
    neighbours = [
        tmp_path / ".b-12345678.json",
        tmp_path / ".a-12345678.npz",
        tmp_path / ".a-12.json",
    ]
    for path in neighbours:
        path.touch()
    assert len(list(tmp_path.glob(".a-????????.json"))) == 2
    write_json(tmp_path / "a.json", 1)
    assert len(list(tmp_path.glob(".a-????????.json"))) == 1 and all(
        path.exists() for path in neighbours
    )
    writers[1].kill(), writers[1].join()
    write_json(tmp_path / "a.json", 2)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a.json", *neighbours])


def _write_often(path: str, value: int) -> None:
    for _ in range(100):
        write_json(path, [value] * 1000)


def test_several_writers_of_one_file_never_take_each_others_for_abandoned(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=_write_often, args=(str(tmp_path / "a.json"), value))
        for value in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(set(json.loads((tmp_path / "a.json").read_text()))) == 1 and os.listdir(
        tmp_path
    ) == ["a.json"]


@pytest.mark.parametrize("number", [28, 13, 5])
def test_whatever_keeps_a_file_from_being_written_is_one_sentence_that_names_it(
    tmp_path, monkeypatch, number
):
    def fails(handle: int) -> None:
        raise OSError(
            number,
            os.strerror(number),
            None if number == 5 else os.readlink(f"/proc/self/fd/{handle}"),
        )

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(RunError, match=r"a\.json") as raised:
        write_atomic(tmp_path / "a.json", "")
    assert "/.a-" not in str(raised.value)  # its temporary name
    assert not list(tmp_path.iterdir())


DEVICES = {
    "fifo": os.mkfifo,
    "null": lambda path: path.symlink_to("/dev/null"),
    "nowhere": lambda path: path.symlink_to("nowhere"),
}
DEVICES["file"] = lambda path: (
    path.with_name("mine").write_text("mine"),
    path.symlink_to(path.with_name("mine")),
)


@pytest.mark.parametrize(
    "write",
    [lambda path: write_json(path, 1), lambda path: append_lines(path, [{"step": 1}])],
    ids=["new", "log"],
)
@pytest.mark.parametrize("kind", DEVICES)
def test_a_device_or_a_link_is_neither_replaced_nor_appended_to(tmp_path, kind, write):
    DEVICES[kind](tmp_path / "out.json")
    before = {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    with pytest.raises(RunError, match=r"out\.json"):
        write(tmp_path / "out.json")
    assert {path.name: path.lstat().st_ino for path in tmp_path.iterdir()} == before
    assert not (tmp_path / "mine").exists() or (tmp_path / "mine").read_text() == "mine"


def test_locks_and_halves_that_are_devices_keep_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / ".lock"), os.mkfifo(tmp_path / ".a-12345678.json")
    assert not is_locked(tmp_path / ".lock")
    write_json(tmp_path / "a.json", 1)
    assert (tmp_path / ".a-12345678.json").exists()


def test_regular_files_alone_are_read_and_up_to_a_limit(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(b"12345")
    for name, reason in (
        ("fifo", "not a regular file"),
        ("zero", "not a regular file"),
        ("large", "more than the 4 bytes"),
    ):
        with pytest.raises(RunError, match=reason):
            read_bytes(tmp_path / name, limit=4)
    assert read_bytes(tmp_path / "large", limit=5) == b"12345"
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none")


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a": ', b"\xff\xfe", b"1" * 5_000],
    ids=["deep", "cut", "bytes", "digits"],
)
def test_damaged_json_is_one_sentence(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(RunError, match="is damaged"):
        read_json(tmp_path / "a.json")
