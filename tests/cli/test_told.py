"""What a script says at its edges: help of its own, flags anywhere, near misses, and errors that
nobody foresaw.
"""

import re
import runpy
import sys

import pytest
from conftest import CONFIGS
from script_calls import call
from spoils import with_usual, write_text

from posbench.common.errors import ConfigError, RunError
from posbench.config import command_line as key_values
from posbench.runs.directory import Run

HYDRA = (
    "run",
    "report",
    "anatomy",
    "prepare_data",
    "export_hf",
    "reproduce",
    "claims",
    "look",
    "advise",
    "search_factors",
    "identify",
)
PLAIN = ("runs", "compat", "gallery", "benchmark", "explain", "explore", "plot")


def test_every_script_has_a_help_of_its_own(tmp_path, capfd, monkeypatch):
    help_texts = {}
    for name in HYDRA:
        done = call(capfd, tmp_path, name, "--help")
        assert (
            done.returncode == 0
            and f"python scripts/{name}.py" in done.stdout
            and "_base" not in done.stdout
        ), done
        help_texts[name] = done.stdout
    for name in PLAIN:
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(CONFIGS.parent / "scripts" / f"{name}.py"), run_name="__main__")
        help_texts[name] = capfd.readouterr().out
        assert ended.value.code == 0 and f"python scripts/{name}.py" in help_texts[name], (
            help_texts[name]
        )
    assert len({text.splitlines()[0] for text in help_texts.values()}) == len(help_texts)
    assert "_base" not in call(capfd, tmp_path, "run", "data=nope").stderr


def test_a_swept_trained_scale_takes_an_argument(tmp_path, capfd):
    """Both have a bias; log_n has none, and is refused by its name as it was typed."""
    write_text(tmp_path / "text")
    words = with_usual("-m", "train.scale_attention.bias=true", "dry=true")
    both = call(capfd, tmp_path, "run", *words, "train.scale_attention=adaptive,asentmax")
    assert both.returncode == 0 and "2 of 2 trainings to make" in both.stdout, both
    lacking = call(capfd, tmp_path, "run", *words, "train.scale_attention=adaptive,log_n")
    refusal = (
        "refused: train.scale_attention=log_n: Could not override 'train.scale_attention.bias'"
    )
    assert lacking.returncode == 2 and refusal in lacking.stderr, lacking


def test_a_flag_may_stand_anywhere(tmp_path, capfd):
    write_text(tmp_path / "text")
    done = call(
        capfd, tmp_path, "run", *with_usual("seed=0", "-m", "extension=none,pi", "dry=true")
    )
    assert done.returncode == 0 and " pi " in done.stdout and " none " in done.stdout, done
    job = call(
        capfd, tmp_path, "run", "seed=7", "--cfg", "job", "-p", "train", "train.steps=7"
    ).stdout
    assert "steps: 7\n" in job and "seed:" not in job.replace("seed_data", "")


def test_a_sweep_over_choices_sets_a_key_that_they_alone_have(tmp_path, capfd):
    words = ["extension.mode=fixed", "extension.target_len=64", "dry=true", *with_usual()]
    write_text(tmp_path / "text")
    for mode in (["-m"], ["hydra.mode=MULTIRUN"]):
        output = call(capfd, tmp_path, "run", *mode, "extension=yarn,pi", *words).stdout
        assert all(
            re.search(rf' {name} {{.*"mode":"fixed".*"target_len":64[,}}].*: lengths', output)
            for name in ("yarn", "pi")
        ), output


def test_a_key_that_a_yaml_reads_may_be_added(tmp_path, capfd):
    write_text(tmp_path / "text")
    done = call(
        capfd,
        tmp_path,
        "run",
        "+width=2",
        "train.steps=${width}",
        "dry=true",
        *with_usual("train.steps=0")[1:],
    )
    assert done.returncode == 0 and "128 tokens" in done.stdout, done


def test_off_in_a_yaml_is_false_and_still_understood(tmp_path, capfd):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "quiet.yaml").write_text(
        "mode: off\nproject: 2024\nentity: null\ngroup: 5\n"
    )
    assert (
        "disabled"
        in call(capfd, tmp_path, "run", "--config-dir", ".", "log=quiet", "dry=true").stderr
    )
    write_text(tmp_path / "text")
    assert (
        call(
            capfd,
            tmp_path,
            "run",
            "--config-dir",
            ".",
            "log=quiet",
            "dry=true",
            *with_usual("log.mode=disabled"),
        ).returncode
        == 0
    )


EXPERIMENTS = {
    "soon": "name: soon\nfirst: two\ngrid: [{seed: [0, 1]}]\n",
    "typo": "name: typo\nbase: {train.steps: 3}\ngird:\n  - {encoding: [rope, alibi]}\n",
    "plain": "name: plain\nbase: {train.steps: 3}\n",
    "empty": "name: empty\ngrid: []\n",
    "nameless": "grid: [{seed: [0, 1]}]\n",
    "whole": (
        "# @package _global_\ndefaults:\n  - override /encoding: alibi\ntrain:\n  steps:"
        " 3\nseed: 8\n"
    ),
    "stray": "# @package _global_\ntrain:\n  steps: 3\nsead: 8\n",
}


def test_an_experiment_is_understood_or_refused_in_words(tmp_path, capfd):
    write_text(tmp_path / "text")
    (tmp_path / "experiment").mkdir()
    for name, text in EXPERIMENTS.items():
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)

    def dry(name: str, *words: str):
        usual_words = with_usual("train.steps=0", *words)[1:]
        return call(
            capfd,
            tmp_path,
            "run",
            "--config-dir",
            ".",
            f"experiment={name}",
            "dry=true",
            *usual_words,
        )

    for name, message in (
        ("typo", "gird is not a key of experiments (did you mean grid?)"),
        ("plain", "add grid"),
        ("empty", "needs a grid"),
        ("nameless", "add `name:`"),  # fmt: skip
        ("soon", "first=two must be a whole number"),
        ("stray", "sead is not a key (did you mean seed?)"),
    ):
        done = dry(name)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr, (
            done.stderr
        )
    done = dry("whole")
    assert done.returncode == 0 and "alibi-16-s8-" in done.stdout and "192 tokens" in done.stdout, (
        done
    )
    assert "alibi-16-s5-" in dry("whole", "seed=5").stdout


def raising(error: Exception):
    def main(arguments: list[str]) -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("no."), 2, "refused: no.\n"),
        (RunError("full."), 1, "failed: full.\n"),  # although it is a ValueError
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("why"), 1, "failed: unforeseen ValueError"),
        (RecursionError("deep\ndeeper"), 1, "failed: unforeseen RecursionError"),
    ],
)
def test_scripts_without_hydra_end_in_one_sentence(
    capsys, monkeypatch, tmp_path, error, code, message
):
    monkeypatch.setattr(key_values.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(SystemExit) as ended:
        key_values.run_main(raising(error))
    stderr = capsys.readouterr().err
    assert ended.value.code == code and stderr.startswith(message) and stderr.count("\n") == 1


def test_a_list_that_cannot_be_written_is_a_failure_and_no_refusal(tmp_path, capfd):
    (tmp_path / "file").touch()
    (tmp_path / "runs").mkdir()
    done = call(capfd, tmp_path, "runs", "list", "results_dir=runs", "json=file/x.json")
    assert (
        done.returncode == 1
        and done.stderr.startswith("failed: ")
        and "Not a directory" in done.stderr
    )


def test_what_nobody_foresaw_keeps_the_traceback_in_a_file_or_prints_it(
    tmp_path, capfd, monkeypatch
):
    def spoilt(self):
        raise IndexError("list index out of range")

    def stderr_of_call() -> str:
        return call(capfd, tmp_path, "report", "run=some/run").stderr

    monkeypatch.setattr(Run, "eval_files", spoilt)
    monkeypatch.setattr(key_values.tempfile, "tempdir", str(tmp_path))
    message = stderr_of_call()
    assert (
        message.startswith(
            "failed: unforeseen IndexError (list index out of range): the traceback is in "
        )
        and message.count("\n") == 1
    )
    assert "in spoilt" in (tmp_path / message.split(" is in ")[1].strip().rstrip(".")).read_text()
    monkeypatch.setattr(key_values.tempfile, "tempdir", str(tmp_path / "gone"))
    assert "in spoilt" in stderr_of_call()
    monkeypatch.setattr(key_values.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(key_values.TRACEBACK_VARIABLE, "1")
    assert "in spoilt" in stderr_of_call()


@pytest.mark.parametrize("words", ["lengths=64,2k only=yarn,pi", "lengths=[64,2K] only=[yarn,pi]"])
def test_a_list_has_two_spellings_without_hydra(tmp_path, monkeypatch, words):
    typed, expected = words.split(), {"lengths": [64, 2048], "only": "yarn,pi"}
    options = key_values.read_options(typed, {"lengths": [], "only": ""})
    assert {**options, "only": key_values.without_brackets(options["only"])} == expected


@pytest.mark.parametrize(
    ("script", "word", "output"),
    [
        ("run", "evaluate.lengths=32,1k", "  - 32\n  - 1k"),
        ("anatomy", "lengths=64,128", "lengths:\n- 64\n- 128"),
        ("report", "out=somewhere", "report_dir: somewhere"),
        ("export_hf", "out=somewhere", "report_dir: null"),
    ],
)
def test_a_list_has_two_spellings_where_nothing_is_swept(tmp_path, capfd, script, word, output):
    done = call(capfd, tmp_path, script, word, "--cfg", "job")
    assert done.returncode == 0 and output in done.stdout, done.stdout + done.stderr


def test_a_sweep_over_lengths_stays_one(tmp_path, capfd):
    write_text(tmp_path / "text")
    done = call(
        capfd,
        tmp_path,
        "run",
        "-m",
        "evaluate.lengths=16,32",
        "dry=true",
        *with_usual("data=local", f"data.path={tmp_path}/text"),
    )
    assert "[16,32]" not in done.stdout + done.stderr and done.returncode == 0, done.stderr


def test_a_setting_that_one_of_the_protocols_uses_counts(tmp_path, capfd):
    write_text(tmp_path / "text")
    done = call(
        capfd,
        tmp_path,
        "run",
        *with_usual("evaluate.protocol=[sliding,fixed_targets]", "evaluate.targets=2", "dry=true"),
    )
    assert done.returncode == 0, done
