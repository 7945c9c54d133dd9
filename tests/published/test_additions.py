"""Each part that CONTRIBUTING.md says how to add is added as a toy: no file of posbench changes.

tests/evaluation/test_own_protocol.py adds a protocol, tests/runs/test_rows.py a column."""

import runpy
import sys

import pytest
from conftest import CONFIGS
from script_calls import call
from spoils import with_usual, write_text

from posbench import tools
from posbench.cli import commands, console
from posbench.report import figures
from posbench.report.figures import registry

TOYS = {  # group: (class of the toy, its yaml)
    "encoding": (
        "from posbench.encodings.rope import Rope\nclass Toy(Rope):\n    pass\n",
        "_target_: toy_encoding.Toy\nbase: 500\n",
    ),
    "extension": (
        "from posbench.extensions.pi import Pi\nclass Toy(Pi):\n    pass\n",
        "_target_: toy_extension.Toy\nmode: dynamic\ntarget_len: null\n",
    ),
    "scale_attention": (
        "from posbench.scale_attention.log_n import LogN\nclass Toy(LogN):\n    pass\n",
        "_target_: toy_scale_attention.Toy\nclamp: false\n",
    ),
    "data": (
        "from posbench.data.sources import Source\n"
        "class Toy(Source):\n"
        "    def fingerprint(self):\n"
        "        return '0' * 64\n"
        "    def documents(self, split):\n"
        "        return ((f'{split}{number}', split * 200) for number in range(9))\n",
        "defaults: [_base, _self_]\nname: toy\nsource:\n  _target_: toy_data.Toy\n",
    ),
    "task": (
        "from posbench.data.passkey import Passkey\nclass Toy(Passkey):\n    pass\n",
        "_target_: toy_task.Toy\ndepths: 2\n",
    ),
}
CHOICES = {  # words that choose a toy, where they are not group=toy
    "task": [
        "evaluate.protocol=accuracy",
        "evaluate.tasks=[{_target_: toy_task.Toy, depths: 2}]",
        "evaluate.lengths=[400]",
    ],
}


@pytest.fixture
def own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")


@pytest.mark.parametrize("group", TOYS)
def test_a_method_a_source_and_a_task_are_two_files(tmp_path, capfd, own_path, group):
    code, yaml = TOYS[group]
    write_text(tmp_path / "text")
    (tmp_path / group).mkdir()
    (tmp_path / group / "toy.yaml").write_text(yaml)
    (tmp_path / f"toy_{group}.py").write_text(f'"""A toy."""\n{code}')
    if group == "data":
        script = ["prepare_data", "data=toy", "cache_dir=cache"]
    else:
        choices = CHOICES.get(group, [f"{group}=toy"])
        script = ["run", "dry=true", *with_usual(*choices, "evaluate.max_length=512")]
    done = call(capfd, tmp_path, *script, "--config-dir", ".")
    assert done.returncode == 0 and "toy" in done.stdout, done


def test_a_command_is_a_folder_a_line_and_a_script(tmp_path, capsys, monkeypatch):
    (tmp_path / "tools" / "toy").mkdir(parents=True)
    (tmp_path / "tools" / "toy" / "command.py").write_text(
        "def run(words):\n    print('toy got', words)\n"
    )
    script = (CONFIGS.parent / "scripts" / "runs.py").read_text()
    stub = '"""A toy command: python scripts/toy.py WORD"""\n' + script[script.index("\nfrom") :]
    (tmp_path / "toy.py").write_text(stub.replace('"runs"', '"toy"'))
    monkeypatch.setattr(tools, "__path__", [*tools.__path__, str(tmp_path / "tools")])
    monkeypatch.setattr(console, "SCRIPTS_FOLDER", tmp_path)
    listed = [*commands.COMMANDS, commands.Command("toy", commands.EVERYDAY, "toy:run")]
    monkeypatch.setattr(commands, "COMMANDS", listed)
    monkeypatch.setattr(console, "COMMANDS", listed)
    monkeypatch.setattr(sys, "argv", ["posbench", "toy", "one", "two"])
    with pytest.raises(SystemExit) as ended:
        console.main()
    assert ended.value.code == 0 and capsys.readouterr().out == "toy got ['one', 'two']\n"
    monkeypatch.setattr(sys, "argv", ["toy.py", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(tmp_path / "toy.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("A toy command")


def test_every_script_is_a_command():
    scripts = {path.stem for path in (CONFIGS.parent / "scripts").glob("*.py")}
    yamls = {path.stem for path in CONFIGS.glob("*.yaml")}
    assert scripts == {command.name for command in commands.COMMANDS}
    assert yamls == {command.yaml for command in commands.COMMANDS if command.yaml}
    for command in commands.COMMANDS:
        assert callable(command.function())


def test_a_figure_is_a_declared_function(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(
        "from posbench.report.figures.registry import report_figure\n"
        "@report_figure('curve', 'toy', 'A toy', place=99)\n"
        "def toy(section, title):\n"
        "    return None\n"
    )
    registry.report_figures()  # modules declare once: into the real table, not into the copy
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_declared", dict(registry._declared))
    registry.report_figures.cache_clear()
    try:
        assert registry.figures_of("curve")[-1].title == "A toy"
    finally:
        registry.report_figures.cache_clear()
