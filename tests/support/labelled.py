"""Points, steps and scores with the values that a report would put behind their labels."""

import re
from dataclasses import replace

from posbench.report.labels import Facts

STEPS = re.compile(r" (?:train\.)?steps=(\d+)")


def method_of(label: str) -> str:
    """rope of `rope base=27.0`, `rope trained with log_n` and `rope (passkey)`."""
    return re.split(r" (?=[\w.]+=|trained with |tuned from |\()", label, maxsplit=1)[0]


def labelled(records: list) -> list:
    return [replace(record, facts=facts(record)) for record in records]


def facts(record: object) -> Facts:
    steps, extension = STEPS.search(record.encoding), getattr(record, "extension", "none")
    encoding_name, _, parent = record.encoding.partition(" tuned from ")
    return Facts(
        method_of(record.encoding),
        method_of(extension),
        trained_in=extension.endswith("(trained in)"),
        tuned_from=STEPS.sub("", parent) or None,
        steps=int(steps[1]) if steps else None,
        encoding_label=STEPS.sub("", record.encoding),
        keeps_encoding=bool(parent)
        and STEPS.sub("", parent).rpartition("-")[0] == encoding_name.split()[0],
    )
