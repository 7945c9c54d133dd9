"""Words that Hydra cannot read, and sweeps that are too large, are one sentence with the way
out.
"""

import re
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from script_calls import call


@pytest.mark.parametrize("multirun", [[], ["-m"]])
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("title=it's", "it's"),
        ('data.path=a"b', 'a"b'),
        ("title=a;b", "a;b"),
        ("title=a#b", "a#b"),
        ('encoding="rope', "rope"),
        ("encoding='rope", "rope"),
    ],
)
def test_a_word_with_a_quotation_mark_is_shown_as_it_can_be_typed(
    tmp_path, capfd, word, value, multirun
):
    done = call(capfd, tmp_path, "run", *multirun, word, "dry=true")
    assert (
        done.returncode == 2
        and done.stderr.startswith(f"refused: {word} has ")
        and "Lexer" not in done.stderr
    )
    assert len(done.stderr.splitlines()) == 1
    typed = re.search(r"(?:type|as in) (.*)\.$", done.stderr.strip())[1]
    (read,) = shlex.split(typed)
    assert OverridesParser.create().parse_override(read).value() == value


def test_a_path_in_the_home_folder_is_shown_without_its_tilde(tmp_path, capfd, monkeypatch):
    # Shells expand a tilde at the beginning of a word, and not behind a key with a dot.
    monkeypatch.setenv("HOME", "/home/me")
    done = call(capfd, tmp_path, "run", "data=local", "data.path=~/my notes.txt", "dry=true")
    typed = re.search(r"type (.*)\.$", done.stderr.strip())[1]
    assert shlex.split(typed) == ['data.path="/home/me/my notes.txt"']


@pytest.mark.parametrize("multirun", [[], ["-m"]])
@pytest.mark.parametrize(
    "word",
    [
        'title="a"b', 'title=a"b"c', "title=a=b", "title==a", "title=a,b]", "title=(a",
        "title=a b)", "title=${x", "ti'tle=a",
        "seed=range(a,b)", "seed=choice()", "seed=foo(1)", "+",
    ],
)  # fmt: skip
def test_no_word_of_the_grammar_reaches_the_user(tmp_path, capfd, word, multirun):
    done = call(capfd, tmp_path, "run", *multirun, word, "dry=true")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"refused: {word} ")
    assert not re.search(
        r"Lexer|EOF|mismatched|extraneous|Exception|TypeError|ValueError", done.stderr
    )


def test_a_grid_of_too_many_cells_is_refused(tmp_path, capfd):
    folder = tmp_path / "experiment"
    folder.mkdir()
    seeds = list(range(5001))
    (folder / "vast.yaml").write_text(
        f"name: vast\nbase: {{}}\ngrid:\n  - encoding: [rope, alibi]\n    seed: {seeds}\n"
    )
    done = call(capfd, tmp_path, "run", "--config-dir", ".", "experiment=vast", "dry=true")
    assert (
        done.returncode == 2
        and "has 10,002 jobs" in done.stderr
        and "experiment.grid's seed" in done.stderr
    )
