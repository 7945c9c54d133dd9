"""Paths in evidence: the folders of a machine are left out, and nothing else is changed."""

import pytest

from posbench.runs.portable import portable, portable_command

TEMPLATE = "{{ '</think>' }} /no_think"


def test_values_that_are_paths_lose_their_folders():
    config = {
        "data": {"path": "/home/somebody/my books", "tokenizer": "/models/tiny.gguf", "source": {"exclude": ["/a/*"]}},
        "model": {"path": "org/name", "d_model": 64},
        "results_dir": "results/runs",
        "runs": ["/data/one", "here/two"],
        "evaluate": {"chat": {"template": TEMPLATE}, "text": {"name": "local", "path": ["/x/a.txt", "b.txt"]}},
    }
    assert portable(config) == {
        "data": {"path": "my books", "tokenizer": "tiny.gguf", "source": {"exclude": ["/a/*"]}},
        "model": {"path": "org/name", "d_model": 64},
        "results_dir": "results/runs",
        "runs": ["one", "here/two"],
        "evaluate": {"chat": {"template": TEMPLATE}, "text": {"name": "local", "path": ["a.txt", "b.txt"]}},
    }


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("python scripts/run.py data.path=/home/somebody/books seed=0", "python scripts/run.py data.path=books seed=0"),
        ("/opt/venv/bin/python scripts/run.py run=results/runs/x", "python scripts/run.py run=results/runs/x"),
        ("python run.py 'runs=[/a/one,/b/two]' 'report_dir=/c/three four'", "python run.py 'runs=[one,two]' 'report_dir=three four'"),
        ("python run.py data.path=https://example.org/a/b model.path=org/name", None),
        ("python run.py extension=yarn,ntk 'evaluate.lengths=[64,128]'", None),
        (None, None),
    ],
)
def test_the_words_of_a_command_lose_their_folders(typed, shown):
    assert portable_command(typed) == (shown or typed)
