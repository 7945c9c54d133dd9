"""The wheel holds all that its commands need: installed without a checkout in sight, they do their
work in another folder.
"""

import os
import subprocess
import sys
import zipfile

import pytest
from conftest import CONFIGS
from spoils import SMALL, write_text

ROOT = CONFIGS.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder of site-packages that holds the wheel alone."""
    out, target = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, ROOT],
        check=True,
        timeout=120,
    )
    (wheel,) = out.glob("posbench-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("configs", "scripts", "posbench"):
        tracked = subprocess.run(
            ["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.split()
        wheel_files = [
            name for name in tracked if name.endswith((".py", ".yaml")) or "/templates/" in name
        ]
        assert (
            wheel_files
            and {name if folder == "posbench" else f"posbench/{name}" for name in wheel_files}
            <= held
        )
    assert not [
        name for name in held if name.startswith(("configs/", "scripts/", "tests/", "results/"))
    ]
    zipfile.ZipFile(wheel).extractall(target)  # what pip does with a wheel of Python alone
    return target


def posbench(installed, folder, *words) -> subprocess.CompletedProcess:
    """`python -m posbench WORDS` of the installed package, in a folder that is no checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "WANDB_MODE": "disabled"}
    return subprocess.run(
        [sys.executable, "-m", "posbench", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_an_installed_package_runs_its_commands_and_writes_where_it_was_typed(installed, tmp_path):
    where = (
        "import posbench, posbench.config.names as names;"
        " print(posbench.__file__, names.CONFIGS_FOLDER)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert completed.stdout.split() == [
        str(installed / "posbench" / "__init__.py"),
        str(installed / "posbench" / "configs"),
    ]
    assert posbench(installed, tmp_path, "--version").stdout.startswith("posbench ")
    (tmp_path / "mine" / "extension").mkdir(parents=True)
    (tmp_path / "mine" / "extension" / "half.yaml").write_text(
        "_target_: posbench.extensions.pi.Pi\n"
    )
    done = posbench(
        installed, tmp_path, "run", "--config-dir", "mine", "--cfg", "job", "extension=half"
    )
    assert "Pi" in done.stdout, done.stderr
    write_text(tmp_path / "text")
    words = ["data.path=text"] + [word for word in SMALL if not word.startswith("evaluate.lengths")]
    words += ["encoding=rope", "evaluate.lengths=[16,32]", "jobs=1"]  # one of its trainings
    done = posbench(installed, tmp_path, "demo", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "posbench run run=results/runs/rope-" in done.stdout
        and "scripts/" not in done.stdout + done.stderr
    )
    assert len(list((tmp_path / "results" / "runs").glob("*/train.json"))) == 1
    assert (tmp_path / "results" / "report" / "demo" / "curve.svg").exists()
    assert "rope" in posbench(installed, tmp_path, "runs", "list").stdout
    refused = posbench(installed, tmp_path, "claims")
    assert (
        refused.returncode == 2
        and "run this command in a clone" in refused.stderr
        and "Traceback" not in refused.stderr
    )
