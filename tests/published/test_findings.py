"""The findings that results/reported/README.md begins with: what the ledger decided, all of it, and what stands in the CSVs."""

import re

import pytest
from reported_values import REPORTED, wide

PAGE = (REPORTED / "README.md").read_text()
DECIDED = ("confirmed", "refuted")


def table(name, text=PAGE):
    """Cells of the lines of a table between marks."""
    block = re.search(rf"<!-- {name}[^>]*-->\n(.*?)<!-- end of {name} -->", text, re.S)[1]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.strip().splitlines()[2:]]


def ledger():
    """{claim, after its stage if that is not the first: (effect, verdict)} as brief.md shows them."""
    found, stage = {}, ""
    for line in (REPORTED / "claims" / "brief.md").read_text().splitlines():
        if heading := re.match(r"### Stage (\w+)", line):
            stage = "" if heading[1] == "one" else f"stage {heading[1]}: "
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[0] not in ("claim", ":---"):
            found[stage + cells[0]] = (cells[2], cells[4])
    return found


def test_the_findings_are_all_that_the_ledger_decided_by_measurement():
    decided = {name: found for name, found in ledger().items() if found[1] in DECIDED}
    assert decided and {claim: (effect, verdict) for _, effect, verdict, claim in table("findings")} == decided


@pytest.mark.parametrize("what, shown, place", table("descriptive"), ids=lambda cell: cell[:40])
def test_what_was_seen_is_in_the_points_of_its_report(what, shown, place):
    folder, method, times = place.split(", ")
    difference, half = wide(folder, method, float(times.rstrip("x")))
    assert shown == f"{difference:+.3f} +- {half:.3f}", what
