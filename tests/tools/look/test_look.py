"""scripts/look.py: what it chooses for several speeds, the budget on a pretended clock, and the
whole command on a small checkpoint.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hf_models import checkpoint
from script_calls import call
from spoils import write_text

from posbench.common.errors import ConfigError
from posbench.report.bars import PLAIN_BLOCKS, loss_bars
from posbench.sweep.cost import Timing
from posbench.tools.look import command as command
from posbench.tools.look.choice import choose_look
from posbench.tools.look.command import EXTENSIONS


@pytest.fixture
def script(tmp_path, capfd):
    """The command on a checkpoint of 32 tokens and a text with room for 64."""
    checkpoint(tmp_path, vocab_size=256)
    write_text(tmp_path / "text", train=1, validation=1, test=4)
    data = (
        "data=local",
        f"data.path={tmp_path}/text",
        "data.tokenizer=bytes",
        "log.mode=disabled",
        "device=cpu",
    )
    return lambda *words, name="look": call(capfd, tmp_path, name, *words, *data)


@pytest.mark.parametrize(
    ("per_token", "longest", "chosen"),
    [
        (0.01, 10_000, (200, 5, 4)),  # 2 s each, rerope 4: 12, 24, 48, and 96 are too many
        (0.1, 10_000, (200, 3, 1)),  # 20 s each: pi is the last that fits
        (0.2, 10_000, (150, 2, 1)),  # 80 s at 200 and 70 at 175 for the first two, 60 at 150
        (0.4, 10_000, (100, 1, 1)),  # 100 s at 125; 40 as it is within the training length
        (1.0, 10_000, (50, 1, 1)),
        (1.5, 10_000, None),  # 75 s at 50, and 25 is below the shortest
        (0.1, 160, (160, 3, 1)),  # the longest document has 160
        (0.1, 90, (90, 1, 4)),  # extensions change nothing there
    ],
)
def test_what_is_chosen_for_a_minute_by_a_model_of_100_tokens(per_token, longest, chosen):
    def each(method: str, length: int) -> float:
        return per_token * length * (2 if method == "rerope" else 1)

    look = choose_look(each, 100, longest, EXTENSIONS, 60)
    if look and (look.length <= 100 or len(look.methods) == 5):
        look = look.and_texts(each, 60)
    assert (look and (look.length, len(look.methods), look.n_texts)) == chosen
    assert not look or look.seconds(each) <= 60


@pytest.mark.parametrize(("slower", "methods"), [(1, 5), (5, 1)])
def test_the_budget_is_kept_on_a_machine_that_turns_out_slower(
    tmp_path, script, monkeypatch, slower, methods
):
    """A text is said to take 10 s, and takes longer; a process takes 5 s beside."""
    clock, real = [0.0], command.launch_one
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Timing, "seconds_of_text", lambda *_: 10.0)

    def launch_one(job, *others, **keywords):
        missing = [cell for cell in job.cells if cell.missing_lengths()]
        real(job, *others, **keywords)
        for cell in missing:
            content, took = json.loads(cell.path.read_text()), 10.0 * slower * cell.evaluate.windows
            del content["digest"]  # the rows are changed here
            cell.path.write_text(
                json.dumps(
                    {**content, "rows": [{**row, "seconds": took} for row in content["rows"]]}
                )
            )
            clock[0] += took
        clock[0] += 5

    monkeypatch.setattr(command, "launch_one", launch_one)
    done = script("Llama", "minutes=3")
    assert done.returncode == 0, done.stderr
    assert "2 texts of 64 tokens of text, as it is, yarn, pi, rerope, streaming" in done.stderr
    assert len(list(tmp_path.glob("results/runs/*/evals/by_position/*.json"))) == methods
    assert clock[0] + command.REPORT_SECONDS <= 1.2 * 180
    assert ("no time is left for" in done.stderr) == (methods < 5)
    began, clock[0] = clock[0], clock[0] + 1
    done = script("Llama", "minutes=3")  # goes on with the same texts
    assert clock[0] - began + command.REPORT_SECONDS <= 1.2 * 180
    assert (
        len(list(tmp_path.glob("results/runs/*/evals/by_position/*.json"))) == {1: 5, 5: 2}[slower]
    )


def test_the_whole_command_makes_ordinary_evaluations(tmp_path, script):
    done = script("Llama", "minutes=0.5")
    assert done.returncode == 0, done.stderr
    texts = int(done.stderr.partition(" tokens: ")[2].split()[0])
    rows = [line for line in done.stdout.splitlines() if line.startswith(("as it is", *EXTENSIONS))]
    assert (
        len(rows) == 5
        and all(line.endswith("beyond") for line in rows)
        and max(map(len, done.stdout.splitlines()[:-1])) <= 80
    )
    (page,) = tmp_path.glob("results/report/look-hf-32-*/report.html")
    assert done.stdout.splitlines()[-1] == f"html {page.relative_to(tmp_path)}"
    assert "loss by position to 64 tokens" in page.read_text()
    before = {
        path: path.stat().st_mtime_ns for path in tmp_path.glob("results/runs/*/evals/*/*.json")
    }
    again = script("Llama", "minutes=0.5")
    assert again.stdout == done.stdout and "everything is there already" in again.stderr
    same = (
        "evaluate.protocol=by_position",
        "evaluate.lengths=64",
        "evaluate.max_length=64",
        f"evaluate.windows={texts}",
    )
    assert (
        "nothing to do"
        in script("model=hf", "model.path=Llama", "extension=yarn", *same, name="run").stdout
    )
    assert before == {
        path: path.stat().st_mtime_ns for path in tmp_path.glob("results/runs/*/evals/*/*.json")
    }


def test_it_says_how_many_texts_few_documents_give(tmp_path, script):
    short = tmp_path / "text" / "test"
    for path in short.iterdir():
        path.write_text(path.read_text()[:200])  # 200 - 64 places for a text of 64 tokens
    done = script("Llama", "minutes=30", "dry=true")
    assert done.returncode == 0, done.stderr
    # Of 4 documents, with 4 targets that no other text has: an eighth of 32 tokens.
    assert f" {4 * (200 - 64) // 4} texts of 64 tokens" in done.stderr, done.stderr


def test_bars_show_what_rises_beyond_the_training_length():
    within, beyond = np.full((500, 48), 1.0), np.full((500, 48), 3.0)
    picture = loss_bars(
        {"as it is": np.c_[within, beyond], "yarn": np.c_[within, within + 1]}, 48, PLAIN_BLOCKS
    ).splitlines()
    assert "2 to a bar, from 1.00 to 3.00" in picture[0]
    assert [line[13:61] for line in picture[1:4]] == [
        " " * 24 + "|" * 24,
        " " * 24 + "|" * 24,
        "." * 24 + "|" * 24,
    ]
    assert (
        picture[6].startswith("yarn")
        and picture[6].endswith("2.00 beyond")
        and picture[5].endswith("1.00 to 48")
    )
    assert picture[4][13:61].strip() == "" and picture[5][37:61] == ":" * 24  # half of three lines
    assert picture[7].index("|") - 13 == 23 and picture[7].endswith("96")
    few = loss_bars({"as it is": np.arange(16_384.0)[None]}, 8192, PLAIN_BLOCKS).splitlines()
    assert "1,024 to a bar" in few[0] and few[3][13:61].count("|") == 3 * 13  # of 16
    assert "nan beyond" in loss_bars({"as it is": np.c_[within, np.nan * beyond]}, 48, PLAIN_BLOCKS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("Llama", "extension=ntk"), "extension=ntk is what scripts/look.py chooses"),
        (("Llama", "evaluate.windows=3"), "evaluate.windows=3 is what scripts/look.py chooses"),
        (("Llama", "minutes=0"), "minutes=0"),
        (("Llama", "minutes=0.001"), "too few on this machine: give minutes=1."),
        (("Llama", "./Llama"), "model.path=Llama and model.path=./Llama are 2 models"),
        (("Lama",), "model.path=Lama is not a folder"),
        ((), "No model is named"),
    ],
)
def test_what_is_refused(tmp_path, script, monkeypatch, words, message):
    def absent(key: str, named: str) -> None:
        raise ConfigError(f"{named} is not installed here: pip install it")

    monkeypatch.setattr(command, "wheel_file", absent)
    done = script(*words)
    assert (
        done.returncode == 2
        and message in done.stderr
        and done.stderr.count("\n") == 1
        and not (tmp_path / "results/report").exists()
    )
