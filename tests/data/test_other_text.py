"""evaluate.text: another text in the tokens of the training, without what the training has read."""

import json

import numpy as np
import pytest
from script_calls import call
from test_cli import TINY
from test_data import data_config, write

from posbench.common.errors import RunError
from posbench.config.identity import eval_id
from posbench.config.schema import EvaluateConfig, JobConfig
from posbench.data.corpus import prepare, read_text_of, resolved_text
from posbench.data.tokenizers import load_tokenizer

WORDS = "the fox and the hound sat by the fire until the fire was out "
TRAINED = {f"train/{n}.txt": f"{n} {WORDS * 20}" for n in range(3)} | {
    "validation/a.txt": WORDS * 9,
    "test/b.txt": f"b {WORDS * 9}",
}
OTHER = {
    "one/a.txt": f"an owl, {WORDS * 30}",
    "two/b.txt": TRAINED["train/0.txt"],
    "two/c.txt": f"a crow, {WORDS * 30}",
}


def job_config(tmp_path, text, tokenizer="bpe", **evaluate):
    data = data_config(
        "local",
        f"path={write(tmp_path / 'mine', TRAINED)}",
        f"tokenizer={tokenizer}",
        "vocab_size=280",
    )
    return JobConfig(
        data=data, evaluate=EvaluateConfig(text=text, **evaluate), cache_dir=str(tmp_path / "cache")
    )


def resolved(cfg: JobConfig) -> dict | None:
    return resolved_text(cfg.evaluate.text, cfg.data, cfg.cache_dir)


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_it_is_read_in_the_tokens_of_the_training_without_what_that_has_read(tmp_path, tokenizer):
    cfg = job_config(
        tmp_path, {"name": "local", "path": str(write(tmp_path / "other", OTHER))}, tokenizer
    )
    trained = prepare(cfg.data, cfg.cache_dir)
    text = resolved(cfg)
    corpus = read_text_of(trained, cfg, text, "all")
    assert (corpus.name, corpus.train, corpus.test) == ("other", None, None)
    for name in ("vocab_size", "bos", "folder", "tokenizer"):
        assert getattr(corpus, name) == getattr(trained, name), name
    assert sorted(corpus.all.names) == ["one/a.txt", "two/c.txt"]  # b.txt is a text of the training
    trained_tokenizer = load_tokenizer(trained.tokenizer, trained.folder)
    starts = corpus.all.starts
    for number, name in enumerate(corpus.all.names):
        assert (
            trained_tokenizer.decode(
                np.asarray(corpus.all.tokens[starts[number] : starts[number + 1]]).tolist()
            )
            == OTHER[name]
        )
    assert resolved_text(text, cfg.data, cfg.cache_dir) == text


def test_a_text_that_changed_after_it_was_resolved_is_refused(tmp_path):
    folder = write(tmp_path / "other", OTHER)
    cfg = job_config(tmp_path, {"name": "local", "path": str(folder)})
    trained, text = prepare(cfg.data, cfg.cache_dir), resolved(cfg)
    (folder / "one" / "a.txt").write_text("something else " * 99)
    with pytest.raises(RunError, match="other of evaluate.text changed during this command"):
        read_text_of(trained, cfg, text, "all")


def test_an_evaluation_is_named_by_the_content_of_its_text_and_not_by_its_place():
    def named(**text):
        return eval_id("fixed_targets", {}, {}, {"windows": 4, "text": text or None}, "run")

    by_content = named(name="local", path="/a", source={}, content="ab" * 32)
    assert by_content == named(name="mine", path="/b", source={"column": "x"}, content="ab" * 32)
    assert (
        len({by_content, named(name="local", path="/a", source={}, content="cd" * 32), named()})
        == 3
    )


def test_a_run_reads_it_beside_its_own_text_with_intervals_over_projects(tmp_path, capfd):
    mine, other = (
        write(tmp_path / "mine", TRAINED),
        write(tmp_path / "other", {**OTHER, "three/d.txt": f"a wren, {WORDS * 40}"}),
    )
    common = [
        *TINY,
        f"data.path={mine}",
        "evaluate.floor=false",
        "results_dir=runs",
        "cache_dir=cache",
    ]
    text = [
        f"evaluate.text={{name: local, path: {other}}}",
        "evaluate.split=all",
        "evaluate.unit=project",
    ]
    assert call(capfd, tmp_path, "run", *common).returncode == 0
    done = call(capfd, tmp_path, "run", *common, *text)
    assert (
        done.returncode == 0
        and "targets in 3 projects" in done.stdout
        and "in the text other" in done.stdout
    )
    (run,) = (tmp_path / "runs").glob("rope*")
    rows = [
        row for path in run.glob("evals/*/*.json") for row in json.loads(path.read_text())["rows"]
    ]
    assert {(row["sem_unit"], row["n_units"]) for row in rows} == {("document", 1), ("project", 3)}
    assert "1 evaluation there already" in call(capfd, tmp_path, "run", *common, *text).stdout
    yaml = tmp_path / "own" / "data" / "owls.yaml"  # the same text as a choice of the user's own
    yaml.parent.mkdir(parents=True)
    shares = "column: text, validation_share: 0.05, test_share: 0.1"
    yaml.write_text(
        f"name: owls\npath: {other}\nsource: {{_target_: posbench.data.local.LocalFiles,"
        f" {shares}}}\n"
    )
    text_words = ["evaluate.text=owls", *text[1:]]
    assert (
        "1 evaluation there already"
        in call(capfd, tmp_path, "run", "--config-dir", "own", *common, *text_words).stdout
    )
    done = call(capfd, tmp_path, "run", *common, *text_words)
    assert done.returncode and "evaluate.text=owls is not a text" in done.stderr
    done = call(
        capfd,
        tmp_path,
        "run",
        *common,
        *text,
        "evaluate.protocol=[accuracy]",
        "evaluate.tasks=[passkey]",
    )
    assert done.returncode and "evaluate.unit=project sets the unit of windows" in done.stderr
    for script, reason in (
        ("advise", "what scripts/advise.py chooses"),
        ("search_factors", "of no effect, since scripts/search_factors.py"),
    ):
        done = call(
            capfd, tmp_path, script, f"run={run}", "evaluate.text=pysource", "cache_dir=cache"
        )
        assert done.returncode and f"evaluate.text=pysource is {reason}" in done.stderr
