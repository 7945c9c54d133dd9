"""What pyproject.toml, constraints.txt and the Makefile install fits together."""

import importlib.metadata
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml
from conftest import CONFIGS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = CONFIGS.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LINES = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
PINS = {
    canonicalize_name(name): version
    for name, version in (line.split("==") for line in LINES if line)
}
# Requirements of packages that the tests do not install, from the metadata of lm-eval 0.4.13,
# pytablewriter 1.2.1, tabledata 1.3.5, DataProperty 1.1.1 and typepy 1.3.5, as far as the table of
# results and the constraints are concerned.
NOT_INSTALLED = {
    "lm-eval": [
        "datasets>=2.16.0",
        "dill",
        "jinja2",
        "numpy",
        "pytablewriter",
        "tqdm>=4.59.0",
        "typing_extensions",
        'accelerate>=0.26.0; extra == "hf"',
        'torch>=1.8; extra == "hf"',
        'transformers>=4.1; extra == "hf"',
    ],
    "pytablewriter": [
        "DataProperty<2,>=1.1.0",
        "tabledata<2,>=1.3.1",
        "typepy[datetime]<2,>=1.3.2",
    ],
    "tabledata": ["DataProperty<2,>=1.0.2", "typepy<3,>=1.2.0"],
    "dataproperty": ["typepy[datetime]<3,>=1.3.2"],
    "typepy": [
        'python-dateutil<3.0.0,>=2.8.0; extra == "datetime"',
        'packaging; extra == "datetime"',
    ],
}


def requirements_of(name: str, extras: frozenset[str]) -> list[Requirement]:
    """Requirements of a package with these extras: of posbench as pyproject.toml has them, of
    others as they are installed.
    """
    if name == "posbench":
        return [
            Requirement(text)
            for text in PROJECT["dependencies"]
            + [text for extra in sorted(extras) for text in EXTRAS[extra]]
        ]
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        texts = NOT_INSTALLED.get(name, [])
    required = map(Requirement, texts)
    return [
        requirement
        for requirement in required
        if requirement.marker is None
        or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def reached(extra: str) -> dict[str, list[tuple[str, Requirement]]]:
    """{package: [(who requires it, requirement)]} of posbench with an extra, through all
    packages.
    """
    required_by: dict[str, list[tuple[str, Requirement]]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [("posbench", frozenset([extra] if extra else []))]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for requirement in requirements_of(name, extras):
            required = canonicalize_name(requirement.name)
            required_by.setdefault(required, []).append((name, requirement))
            waiting.append((required, frozenset(requirement.extras)))
    return required_by


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_every_version_of_the_constraints_is_one_that_the_extra_allows(extra):
    required = reached(extra)
    assert len(required) > 30
    wrong = [
        f"{who} requires {requirement}, and constraints.txt has {PINS[name]}"
        for name, requirements in required.items()
        if name in PINS
        for who, requirement in requirements
        if not requirement.specifier.contains(PINS[name], prereleases=True)
    ]
    assert not wrong


def test_the_harness_is_read_to_the_package_that_decides_its_tables():
    required = reached("harness")
    assert "typepy" in [who for who, _ in required["python-dateutil"]]
    assert any(
        who == "posbench" and not requirement.specifier.contains("0.30.0")
        for who, requirement in required["pytablewriter"]
    )


def test_no_package_that_depends_on_posbench_is_bound_to_one_version():
    assert not [text for text in PROJECT["dependencies"] if "==" in text]


def test_the_extra_corpus_is_the_default_text_and_make_and_the_readme_install_it():
    wheels = yaml.safe_load((CONFIGS / "data" / "pysource.yaml").read_text())["source"]["wheels"]
    assert sorted(EXTRAS["corpus"]) == sorted(
        f"{name}=={pin['version']}" for name, pin in wheels.items()
    )
    assert all(PINS[name] == pin["version"] for name, pin in wheels.items())
    assert "posbench[corpus" in next(text for text in EXTRAS["dev"] if text.startswith("posbench"))
    assert "-e '.[corpus]'" in (ROOT / "Makefile").read_text()
    assert re.findall(r'pip install "posbench(.*?) @ git', (ROOT / "README.md").read_text()) == [
        "[corpus]"
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(("words", "reports"), [("dry=true", 0), ("jobs=1", 1), ("", 1)])
def test_a_dry_run_of_the_pretrained_model_makes_no_report(words, reports):
    typed = ["make", "--dry-run", "pretrained", f"ARGS={words}"]
    done = subprocess.run(typed, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (
        done.returncode == 0
        and done.stdout.count("scripts/run.py") == 1
        and done.stdout.count("scripts/report.py") == reports
    )
