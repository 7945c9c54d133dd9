"""Labels of methods and trainings, with no more words than are needed to tell them apart."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping

from posbench.config.names import called, nodes

METHODS = {"encoding": "encoding_args", "extension": "extension_args"}


def labels(rows: Iterable[dict], variants: Mapping[str, str] | None = None):
    """Make a function from a row to its labels (encoding, extension, scale_attention), for use among `rows`.

    Methods are named by `called`. An argument appears only if two of `rows` differ in it, and not at its value in configs/: beside
    `ntk multiplier=2.0` the default is plain `ntk`. `variants` (run_id -> words) tells apart trainings of one encoding.
    """
    known: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in rows:
        for name, args in METHODS.items():
            seen = known[name, called(name, row[name], row[args])]
            if (row[args] or {}) not in seen:
                seen.append(row[args] or {})
    absent = object()

    def telling(name: str, method: str, args: dict) -> str:
        usual = nodes(name).get(method, {})
        changed = [key for key in sorted(args) if usual.get(key, absent) != args[key]]
        differ = [key for key in changed if any(other.get(key, absent) != args[key] for other in known[name, method])]
        return " ".join([method, *(f"{key}={args[key] if isinstance(args[key], str) else json.dumps(args[key])}" for key in differ)])

    def label(row: dict) -> tuple[str, str, str]:
        encoding, extension = (telling(name, called(name, row[name], row[args]), row[args] or {}) for name, args in METHODS.items())
        trained = "" if row["trained_scale"] in (None, "none") else f" trained with {row['trained_scale']}"
        tuned = f" tuned from {row['finetune']}" if row["finetune"] else ""
        extension += f" ({row['task']})" if row["task"] and row["protocol"] != "accuracy" else ""
        return encoding + trained + tuned + (variants or {}).get(row["run_id"], ""), extension, row["scale_attention"]

    return label
