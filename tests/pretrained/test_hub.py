"""Names of the hub, from a mirror of its cache on disk and without a network."""

import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
from hf_models import VOCAB, adopted, assert_equal_logits, checkpoint, imported, transformers

from posbench.common.errors import ConfigError, RunError
from posbench.data import hub as data_hub
from posbench.model.build import load_model
from posbench.position.trusted import trained_config
from posbench.pretrained.checkpoint import HUB_NAME, find_checkpoint

COMMIT, OLDER = "ab" * 20, "cd" * 20


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub, and no network."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(
        huggingface_hub.constants, "HF_HUB_OFFLINE", huggingface_hub.constants.HF_HUB_OFFLINE
    )
    monkeypatch.setattr(data_hub, "_why_offline", lambda: "its name has no address: no network")
    return folder


def mirrored(cache: Path, path: Path, commit: str = COMMIT, ref: str = "main") -> Path:
    """A checkpoint in the layout of the hub's cache: blobs by digest, links to them by commit, and
    the commit of a branch.
    """
    repository = cache / "models--org--tiny"
    snapshot = repository / "snapshots" / commit
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    for file in path.iterdir():
        blob = repository / "blobs" / f"{commit[:4]}{file.name}"
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    (repository / "refs" / ref).write_text(commit)
    return snapshot


def test_a_name_is_the_checkpoint_of_its_commit(cache, tmp_path):
    path, older = (
        checkpoint(tmp_path / "a", shard="10KB"),
        checkpoint(tmp_path / "b", rms_norm_eps=1e-2),
    )
    mirrored(cache, path)
    mirrored(cache, older, OLDER, "old")
    for name, commit, source in (
        ("org/tiny", COMMIT, path),
        ("org/tiny@main", COMMIT, path),
        (f"org/tiny@{OLDER}", OLDER, older),
        ("org/tiny@old", OLDER, older),
    ):
        cfg = adopted(Path(name), cache_dir=str(tmp_path))
        assert cfg.model.path == f"org/tiny@{commit}"
        assert cfg.model.checkpoint == adopted(source).model.checkpoint


def test_a_run_of_a_name_reads_the_cache_alone(cache, tmp_path, monkeypatch):
    path = checkpoint(tmp_path)
    snapshot = mirrored(cache, path)
    monkeypatch.chdir(tmp_path)
    run = imported(Path("org/tiny"))
    assert run.read_config()["model"]["path"] == f"org/tiny@{COMMIT}"
    assert_equal_logits(run, transformers.AutoModelForCausalLM.from_pretrained(path).eval())
    (snapshot / "model.safetensors").unlink()
    monkeypatch.setattr(data_hub, "quiet_hub", lambda: pytest.fail("a run asked the hub"))
    with pytest.raises(
        RunError,
        match=(
            "are no longer in model.path=org/tiny@ab.* incomplete in the hub's cache: run once with"
        ),
    ):
        load_model(run, trained_config(run), VOCAB, "cpu")


@pytest.mark.parametrize(
    "left", [[], ["config.json"], ["config.json", "model.safetensors.index.json"]]
)
def test_what_the_cache_does_not_hold_whole_is_told_in_one_sentence_without_a_network(
    cache, tmp_path, left
):
    if left:
        path = checkpoint(tmp_path, shard="10KB")
        for file in path.iterdir():
            if file.name not in left:
                file.unlink()
        mirrored(cache, path)
    with pytest.raises(
        ConfigError,
        match="model.path=org/tiny .* the hub was not reached .*no network.*copy that cache",
    ) as error:
        find_checkpoint("org/tiny")
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize("has_weights", [True, False])
def test_what_the_hub_has_not_is_no_missing_network(tmp_path, monkeypatch, has_weights):
    """A hub that answers: with a checkpoint, or with a repository of GGUF files alone."""
    path = checkpoint(tmp_path)
    (path / "generation_config.json").write_text("{}")
    snapshot = tmp_path / COMMIT
    snapshot.mkdir()

    def download(repository, allow_patterns=(), local_files_only=False, revision=None):
        for name in allow_patterns:
            if has_weights and (path / name).is_file():
                shutil.copyfile(path / name, snapshot / name)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(data_hub, "_why_offline", lambda: "")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    if has_weights:
        found = find_checkpoint("org/tiny").folder_or_file
        assert (found / "generation_config.json").is_file()  # which an export copies
    else:
        message = "model.path=org/tiny came from the hub without config.json or .*: choose"
        with pytest.raises(ConfigError, match=message):
            find_checkpoint("org/tiny")


def test_a_folder_of_that_name_comes_first(cache, tmp_path, monkeypatch):
    checkpoint(tmp_path / "org").rename(tmp_path / "org/tiny")
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("org/tiny").name == str(tmp_path / "org/tiny")


@pytest.mark.parametrize(
    "name",
    [
        "org",
        "/org/tiny",
        "../org/tiny",
        "org/tiny/deeper",
        "org/..",
        "org/tiny@",
        "org/tiny@-x",
        "",
    ],
)
def test_what_is_no_name_is_not_asked_for(name):
    assert not HUB_NAME.fullmatch(name)
