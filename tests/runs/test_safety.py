"""Somebody else's results folder is data: what it names is not executed, and its names lead
nowhere.
"""

import ast
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import CONFIGS, choices, node
from omegaconf import OmegaConf
from script_calls import call
from spoils import edit, write_text
from synthetic import LENGTHS, TARGETS, Built, write_eval
from test_cli import TINY, Cli

from posbench import load
from posbench.common.errors import ConfigError, RunError
from posbench.position.trusted import CONFIG_DIRS_VARIABLE, trusted_config
from posbench.runs.directory import Run
from posbench.runs.plain_yaml import plain_loader, safe_loader
from posbench.sweep.jobs import plan_jobs

EVIL = """
from pathlib import Path
from posbench.encodings.rope import Rope
Path(__file__).with_name("executed").touch()
class Evil(Rope): ...
"""
ROPE = "posbench.encodings.rope.Rope"
RANDOMIZED = "posbench.encodings.randomized.Randomized"
PLACES = {  # where a class may be named, and an encoding that has such a place
    "encoding._target_": {"_target_": ROPE},
    "encoding.local._target_": {
        "_target_": "posbench.encodings.hybrid.Hybrid",
        "local": {"_target_": ROPE},
        "full": {"_target_": ROPE},
    },
    "encoding.base._target_": {"_target_": RANDOMIZED, "base": {"_target_": ROPE}},
    "encoding.base.local._target_": {
        "_target_": RANDOMIZED,
        "base": {"_target_": ROPE, "local": {"_target_": ROPE}},
    },
    "encoding.scaling._target_": {
        "_target_": ROPE,
        "scaling": {"_target_": "posbench.extensions.pi.Pi"},
    },
    "encoding.parts.0._target_": {
        "_target_": "posbench.extensions.compose.Compose",
        "parts": [{"_target_": ROPE}],
    },
    "train.scale_attention._target_": None,
    "data.source._target_": None,
    "model.checkpoint._target_": None,
}


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch):
    for name in (
        CONFIG_DIRS_VARIABLE,
        "PYTHONPATH",
    ):  # set and not deleted, so that what the code sets goes with the test
        monkeypatch.setenv(name, "")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run, and the text beside it."""
    folder = tmp_path_factory.mktemp("foreign")
    cli = Cli(folder, write_text(folder / "text"))
    cli("encoding=rope")
    (run,) = cli.runs()
    return run


@pytest.fixture
def foreign(trained, tmp_path, monkeypatch) -> Run:
    """A copy of the run with a module beside its files that would be found by whoever imports it,
    and that tells when it is.
    """
    shutil.copytree(trained, tmp_path / "runs" / trained.name)
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield Run(tmp_path / "runs" / trained.name)
    sys.modules.pop("evil", None)


def change(run: Run, **values) -> None:
    cfg = OmegaConf.load(run.config)
    for key, value in values.items():
        OmegaConf.update(cfg, key, value, merge=False, force_add=True)
    run.config.write_text(OmegaConf.to_yaml(cfg))


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("place", "target"),
    [
        *((place, "evil.Evil") for place in PLACES),
        ("encoding._target_", "os.system"),
        ("data.source._target_", "posbench.sweep.worker.subprocess.Popen"),
    ],
)
def test_a_class_of_a_results_folder_is_not_imported_wherever_it_is_named(foreign, place, target):
    change(foreign, **({"encoding": PLACES[place]} if PLACES[place] else {}))
    change(foreign, **{place: target})
    cfg = {**foreign.read_config(), "run": str(foreign.path)}
    before = files(foreign.path.parent.parent)
    for read in (
        lambda: trusted_config(foreign),
        lambda: plan_jobs([cfg]),
        lambda: load(foreign.path, "cpu"),
    ):
        with pytest.raises(ConfigError) as error:
            read()
        message = str(error.value)
        assert (
            all(word in message for word in (place, target, "--config-dir", "trusted="))
            and "\n" not in message
        )
    assert "evil" not in sys.modules and files(foreign.path.parent.parent) == before


@pytest.mark.parametrize("target", [
    ["evil", "Evil"], None, "Evil", "../evil.Evil", "posbench", "posbench.runs.directory.Run",
    "posbench.encodings.rope.torch",
    "posbench.data.nothing.Here", "posbench.encodings.rope.Rope.__init__",
    "posbench.encodings..rope.Rope",
])  # fmt: skip
def test_names_that_are_no_class_of_ours_are_refused(foreign, target):
    change(foreign, **{"encoding._target_": target})
    with pytest.raises(ConfigError, match="neither a class of posbench's"):
        trusted_config(foreign)


def test_every_method_and_source_of_ours_is_trusted(foreign):
    for group in ("encoding", "extension", "scale_attention"):
        for name in choices(group):
            change(foreign, encoding=node(group, name))
            trusted_config(foreign)
    for name in choices("data"):
        change(foreign, encoding={"_target_": ROPE}, data=node("data", name))
        trusted_config(foreign)


def test_the_command_line_refuses_declares_and_refuses_again(foreign, trained, tmp_path, capfd):
    typed = [
        *TINY,
        f"data.path={trained.parent.parent}/text",
        f"results_dir={tmp_path}/mine",
        f"cache_dir={tmp_path}/cache",
    ]
    mine = tmp_path / "own"
    (mine / "encoding").mkdir(parents=True)
    (mine / "my_code.py").write_text(EVIL.replace("Evil", "Mine"))
    (mine / "encoding" / "own.yaml").write_text("_target_: my_code.Mine\n")
    declared = ("--config-dir", str(mine))
    assert call(capfd, tmp_path, "run", *declared, "encoding=own", *typed).returncode == 0
    (run,) = (tmp_path / "mine").glob("*/train.json")
    (
        sys.modules.pop("my_code"),
        os.environ.pop(CONFIG_DIRS_VARIABLE, None),
        (mine / "executed").unlink(),
    )
    evaluate = (
        f"run={run.parent}",
        "extension=pi",
        "allow_untested=true",
        *TINY[-6:],
        f"cache_dir={tmp_path}/cache",
    )
    before = files(tmp_path)
    refused = call(capfd, tmp_path, "run", *evaluate)
    assert (
        refused.returncode == 2
        and "encoding._target_=my_code.Mine" in refused.stderr
        and "Traceback" not in refused.stderr
    )
    assert files(tmp_path / "mine") == {
        name[5:]: content for name, content in before.items() if name.startswith("mine/")
    }
    assert not (mine / "executed").exists()
    allowed = call(capfd, tmp_path, "run", *declared, *evaluate)
    assert allowed.returncode == 0, allowed.stderr
    assert (mine / "executed").exists() and list(run.parent.glob("evals/*/pi+none-*.json"))
    # A child has no --config-dir of its own.
    assert os.environ[CONFIG_DIRS_VARIABLE] == str(mine)
    # A typed target is the user's own word, whatever it names.
    (mine / "executed").unlink()
    sys.modules.pop("my_code"), os.environ.pop(CONFIG_DIRS_VARIABLE)
    assert (
        call(
            capfd, tmp_path, "run", "encoding._target_=my_code.Mine", "dry=true", *typed
        ).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("script", "typed"),
    [("anatomy", ["length=32", "json=a.json"]), ("export_hf", ["out=exported"])],
)
def test_anatomy_and_export_refuse_it_too(foreign, tmp_path, capfd, script, typed):
    change(foreign, **{"encoding._target_": "evil.Evil"})
    refused = call(capfd, tmp_path, script, f"run={foreign.path}", *typed)
    assert (
        refused.returncode == 2
        and "evil.Evil" in refused.stderr
        and "--config-dir" in refused.stderr
    ), refused.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "evil.py"}


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_of_weights_leads_no_file_out_of_its_folder(tmp_path, name):
    from posbench.pretrained.config_files import weight_file_names

    (tmp_path / "secret.safetensors").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": name}})
    )
    with pytest.raises(ConfigError, match="outside its folder"):
        weight_file_names(tmp_path / "model")


def test_a_notebook_trusts_packages_by_name(foreign):
    package = foreign.path.parent.parent / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from .inner import Mine as Own\nfrom subprocess import Popen\n"
    )
    (package / "inner.py").write_text(EVIL.replace("Evil", "Mine"))
    change(foreign, **{"encoding._target_": "my_package.Own"})
    with pytest.raises(ConfigError, match="my_package"):
        load(foreign.path, "cpu")
    with pytest.raises(ConfigError, match="my_package"):
        load(foreign.path, "cpu", trusted=("evil",))
    assert not (package / "executed").exists()
    cache = foreign.path.parent.parent / "cache"
    assert (
        type(load(foreign.path, "cpu", cache, trusted=("my_package",)).model.encoding).__name__
        == "Mine"
    )
    for target in ("my_package.Popen", "my_package.inner.Path", "evil.Evil"):
        change(foreign, **{"encoding._target_": target})
        with pytest.raises(ConfigError, match="neither a class"):
            load(foreign.path, "cpu", trusted=("my_package",))
    for name in ("nobody_here", "sys", "../x"):
        with pytest.raises(ConfigError, match="not an importable package"):
            load(foreign.path, "cpu", trusted=(name,))
    with pytest.raises(ConfigError, match="must be a list"):
        load(foreign.path, "cpu", trusted="my_package")


@pytest.mark.parametrize("text", [
    "", "encoding: 3\n", "encoding: {_target_: evil.Evil}\n",
    "a: !!python/object/apply:os.mkdir [executed]\n",
    "encoding: {x: '${oc.env:HOME}'}\nmodel: {}\ntrain: {}\ndata: {}\nseed: 0\n",
])  # fmt: skip
def test_a_config_that_no_run_writes_is_one_sentence(foreign, text):
    foreign.config.write_text(text)
    with pytest.raises(RunError):
        trusted_config(foreign)
    assert not (foreign.path.parent.parent / "executed").exists()


@pytest.mark.parametrize("name", ["../../../out", "/tmp/out", "\n"])
def test_names_in_foreign_rows_lead_no_file_out_of_the_report(tmp_path, name):
    losses = [np.full(TARGETS, 3.0)] * 4
    paths = [
        write_eval(
            tmp_path / "foreign",
            "rope",
            "recompute_window",
            "none",
            losses[1:],
            LENGTHS[1:],
            args={"window": None},
        )
    ]
    paths.append(write_eval(tmp_path / "foreign", "rope", "none", "none", losses, LENGTHS, seed=1))
    named = (
        "run_id",
        "eval_id",
        "encoding",
        "extension",
        "scale_attention",
        "data",
        "tokenizer",
        "trained_scale",
        "dtype",
        "commit",
    )
    edit(
        paths[1],
        lambda content: [
            row.update(dict.fromkeys((*named, "finetune"), name)) for row in content["rows"]
        ],
    )
    before, report = files(tmp_path), tmp_path / "report" / "deep"
    try:
        written = Built(paths, report, name, "", pictures="blank").files
    except RunError as error:
        assert "\n" not in str(error)
        written = []
    assert all(Path(path).resolve().is_relative_to(report) for path in written)
    assert {
        path: content
        for path, content in files(tmp_path).items()
        if not path.startswith("report/deep/")
    } == before


READERS = (
    "load",
    "loads",
    "unsafe_load",
    "read_array",
)  # names of functions that may make objects of a file


def test_nothing_is_unpickled():
    """torch.load only with weights_only=True, numpy's arrays never with pickles, yaml by safe
    loaders alone (OmegaConf's is one).
    """
    seen = set()
    for path in (
        path
        for folder in ("posbench", "scripts")
        for path in (CONFIGS.parent / folder).rglob("*.py")
    ):
        for syntax_node in ast.walk(ast.parse(path.read_bytes())):
            if (
                not isinstance(syntax_node, ast.Call)
                or ast.unparse(syntax_node.func).rpartition(".")[2] not in READERS
            ):
                continue
            owner, keywords = (
                ast.unparse(syntax_node.func),
                {keyword.arg: ast.unparse(keyword.value) for keyword in syntax_node.keywords},
            )
            seen.add(owner)
            allowed = (
                "load",
                "torch.load",
                "np.load",
                "np.lib.format.read_array",
                "json.loads",
                "OmegaConf.load",
                "yaml.load",
            )
            assert owner in allowed, f"{path.name}: {owner}"
            assert (
                owner != "yaml.load"
                or "safe_loader()" in ast.unparse(syntax_node)
                or keywords["Loader"] == "plain_loader()"
            ), path
            assert owner != "OmegaConf.load" or path.name == "names.py", (
                f"{path.name}: not for files of a results folder"
            )
            assert owner != "torch.load" or keywords["weights_only"] == "True", path
            assert keywords.get("allow_pickle") in (None, "False"), path
    assert {"torch.load", "np.lib.format.read_array", "yaml.load"} <= seen
    assert issubclass(safe_loader(), yaml.constructor.SafeConstructor)
    assert issubclass(plain_loader(), safe_loader())
