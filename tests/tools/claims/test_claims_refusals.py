"""Refusals of claims: what is not in their language, files that do not fit together, and command
lines, each with a part of the message.
"""

from pathlib import Path

import pytest
import yaml
from claim_worlds import ROPE
from script_calls import call

from posbench.common.errors import ConfigError
from posbench.tools.claims.language import load_claim, load_claims

CLAIM = {"id": "X", "statement": "s", "source": "arXiv 1", "rule": "r", "experiment": "e"}
ENDPOINT = {"of": ROPE, "at": 4, "confirm": "above 0.2", "refute": "below 0.1"}


def primary(**changes) -> dict:
    return {"primary": {**ENDPOINT, **changes}}


LANGUAGE = [  # what differs in the claim, with ... for a key that it lacks; part of the message
    ({"primary": None}, "needs either primary endpoints or a test"),
    (primary(refute="above 0.1"), "exclude each other"),
    (primary(at=None), "every cell needs a length"),
    (primary(margin=0.1), "takes a margin"),
    (primary(confirm="above 1 G"), "shares of G, or neither"),
    (primary(of={"encoding": "rope", "code": "import os"}), "code is not among"),
    (primary(measure="luck"), "measure luck must be one of"),
    (primary(seeds=[7, 8]), "stage must be 1, which uses all seeds"),
    ({"stage": 2}, "or one of 2, 3, 4, 5, 6, 7, 8, 9, 10, whose primaries name their seeds"),
    ({"statement": ...}, "lacks 'statement'"),
    ({"secondary": [ENDPOINT]}, "descriptive"),
]


def write_claim(path: Path, **changes) -> None:
    content = {**CLAIM, "primary": ENDPOINT, **changes}
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value != ...}))


@pytest.mark.parametrize(("changes", "message"), LANGUAGE, ids=[message for _, message in LANGUAGE])
def test_what_is_not_in_the_language_is_refused(tmp_path, changes, message):
    write_claim(tmp_path / "X.yaml", **changes)
    with pytest.raises(ConfigError, match=f"X.yaml is not a valid claim: .*{message}"):
        load_claim(tmp_path / "X.yaml")


LATER = {"stage": 2, "seeds": [7, 9]}
LOUD = primary(name="loud", gate="confirmed", refute="below 0.2")
LITTLE = {"name": "little", "same_as": "X loud", "confirm": "below 0.1", "refute": "above 0.1"}
READ_AGAIN = {"X": {**LATER, **LOUD}, "Y": {"id": "Y", **LATER, "primary": LITTLE}}
LEDGERS = {  # names of the files, what differs in each claim; part of the message
    "an id twice": ({"claim": {}, "again": {}}, "two claims with the same id"),
    "the same as what is itself the same": (
        {**READ_AGAIN, "Z": {"id": "Z", **LATER, "primary": {**LITTLE, "same_as": "Y little"}}},
        "Z little is the same as Y little, which is not a comparison of stage 2",
    ),
    "keys beside same_as": (
        {
            **READ_AGAIN,
            "Z": {"id": "Z", **LATER, "primary": {**LITTLE, "at": 2, "gate": "confirmed"}},
        },
        "same_as: X loud brings all.*: leave out at, gate",
    ),
}


@pytest.mark.parametrize(("files", "message"), LEDGERS.values(), ids=LEDGERS)
def test_claims_that_do_not_fit_together_are_refused(tmp_path, files, message):
    for name, changes in files.items():
        write_claim(tmp_path / f"{name}.yaml", **changes)
    with pytest.raises(ConfigError, match=message):
        load_claims(tmp_path)


LINES = [
    ("experiment=demo", "give it runs= or results_dir="),
    (
        "runs=runs/rope-* encoding=alibi seed=77",
        "encoding=alibi has no effect on the verdicts",
    ),
]


@pytest.mark.parametrize(("line", "message"), LINES, ids=[line for line, _ in LINES])
def test_a_line_is_refused_and_nothing_is_judged_or_written(tmp_path, capfd, line, message):
    done = call(capfd, tmp_path, "claims", *line.split())
    assert done.returncode == 2 and message in done.stderr
    assert not done.stdout and not list(tmp_path.iterdir())
