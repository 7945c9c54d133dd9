"""The key of a server: hidden in every spelling that another program may give it, and in pieces."""

import html
import json
import tempfile
import urllib.parse

import pytest

from posbench.common.errors import ConfigError, RunError
from posbench.common.secret import KEY_VARIABLE, masked, masked_all
from posbench.config.command_line import run_for_exit_code
from posbench.sweep.live_progress import Live

SECRET = 'sk-"aZ09+/=\\_<b>&~%7E-0123456789'


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, f" {SECRET}\r\n")


SPELLINGS = {
    "plain": SECRET,
    "python": repr(SECRET),
    "json": json.dumps(SECRET),
    "json of json": json.dumps(json.dumps(SECRET)),
    "address": urllib.parse.quote(SECRET, safe=""),
    "html": html.escape(SECRET),
    "numbers": "".join(f"&#{ord(letter)};" for letter in SECRET),
    "hexadecimal": "".join(f"\\x{ord(letter):02x}" for letter in SECRET),
    "unicode": "".join(f"\\u{ord(letter):04X}" for letter in SECRET),
    "slashes": json.dumps(SECRET).replace("/", "\\/"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_hidden(spelling):
    text = masked(f"the key {SPELLINGS[spelling]} is wrong; ask 1,000 times")
    assert (
        text.replace('"', "").replace("'", "").replace("\\", "")
        == "the key ... is wrong; ask 1,000 times"
    )


def test_no_piece_of_eight_letters_is_left_wherever_the_text_is_cut(monkeypatch):
    secret = "sk-proj-aZ09+/=_0123456789"
    monkeypatch.setenv(KEY_VARIABLE, secret)
    for begin in range(len(secret)):
        for end in range(begin + 8, len(secret) + 1):
            assert masked(f"<{secret[begin:end]}>") == "<...>"
    assert masked(secret[:7]) == secret[:7]


def test_both_errors_and_nested_values_hide_it():
    for kind in (ConfigError, RunError):
        assert str(kind(f"a {SECRET} b")) == "a ... b"
    assert masked_all({SECRET: [1, None, (SECRET, True)]}) == {"...": [1, None, ["...", True]]}


def test_a_traceback_of_a_job_hides_it(capsys):
    live = Live(1, 0, 1)
    assert live.feed(f"KeyError: '{SECRET}'\n".encode(), "rope-64-s0") == "KeyError: '...'"
    assert "KeyError: '...'" in capsys.readouterr().err


def test_an_unforeseen_error_hides_it(capsys, tmp_path, monkeypatch):
    def work():
        raise KeyError(SECRET)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run_for_exit_code(work) == 1
    (path,) = tmp_path.iterdir()
    assert "KeyError: '...'" in path.read_text() and "('...')" in capsys.readouterr().err


def test_a_short_key_hides_only_a_word(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "abc")
    assert masked("abc, 'abc' and abcd") == "..., '...' and abcd"


def test_without_a_key_a_text_stays(monkeypatch):
    for value in ("", " \n"):
        monkeypatch.setenv(KEY_VARIABLE, value)
        assert masked("a\\u0041 %41") == "a\\u0041 %41"
