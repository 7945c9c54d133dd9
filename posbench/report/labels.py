"""Labels of methods and trainings, with no more words than are needed to tell them apart."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping

from posbench.common.files import sha256_json
from posbench.config.identity import family, method_args, method_name
from posbench.config.names import called, nodes

METHODS = {"encoding": "encoding_args", "extension": "extension_args"}
TRAINED_IN = " (trained in)"  # end of the extension of a child that was fine-tuned with it
MANY = 8  # numbers of a list from which a label has the first, the last and four digits of its hash


def labels(rows: Iterable[dict], variants: Mapping[str, str] | None = None):
    """Make a function from a row to its labels (encoding, extension, scale_attention), for use among `rows`.

    Methods are named by `called`. An argument appears only if two of `rows` differ in it, and not at its value in configs/: beside
    `ntk multiplier=2.0` the default is plain `ntk`. `variants` (run_id -> words) tells apart trainings of one encoding. A fine-tuned
    run names its parent's family, and the extension that it was fine-tuned with: `yarn (trained in)`.
    """
    known: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in map(moved, rows):
        for name, args in METHODS.items():
            seen = known[name, called(name, row[name], row[args])]
            if (row[args] or {}) not in seen:
                seen.append(row[args] or {})
    absent = object()

    def telling(name: str, method: str, args: dict) -> str:
        usual = nodes(name).get(method, {})
        changed = [key for key in sorted(args) if usual.get(key, absent) != args[key]]
        differ = [key for key in changed if any(other.get(key, absent) != args[key] for other in known[name, method])]
        return " ".join([method, *(f"{key}={_brief(args[key])}" for key in differ)])

    def label(given: dict) -> tuple[str, str, str]:
        row = moved(given)
        encoding, extension = (telling(name, called(name, row[name], row[args]), row[args] or {}) for name, args in METHODS.items())
        trained = "" if row["trained_scale"] in (None, "none") else f" trained with {row['trained_scale']}"
        tuned = f" tuned from {family(row['finetune'])}" if row["finetune"] else ""
        extension += TRAINED_IN if row["extension"] != given["extension"] else ""
        extension += f" ({row['task']})" if row["task"] and row["protocol"] != "accuracy" else ""
        return encoding + trained + tuned + (variants or {}).get(row["run_id"], ""), extension, row["scale_attention"]

    return label


def _brief(value: object) -> str:
    if isinstance(value, dict) and "_target_" in value:
        return method_name(value)
    if isinstance(value, list) and len(value) >= MANY:
        return f"{value[0]}..{value[-1]}#{sha256_json(value)[:4]}"
    return value if isinstance(value, str) else json.dumps(value)


def moved(row: dict) -> dict:
    """`row` of a fine-tuned run with what was trained into its encoding as its extension; beside another extension as a trained part."""
    args = row["encoding_args"] or {}
    inner = args["base"] if isinstance(args.get("base"), dict) else args
    if not row["finetune"]:
        return row
    node = inner.get("scaling")
    gone = {key for key in ("scaling", "scaling_len", "amplitude") if node or inner.get(key) is None}
    left = {key: value for key, value in inner.items() if key not in gone}
    row = {**row, "encoding_args": left if inner is args else {**args, "base": left}}
    if not node:
        return row
    if row["extension"] == "none":
        return {**row, "extension": method_name(node), "extension_args": method_args(node)}
    return {**row, "trained_scale": " and ".join([method_name(node), *({row["trained_scale"]} - {None, "none"})])}
