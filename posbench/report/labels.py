"""Labels of methods and trainings, with no more words than are needed to tell them apart, and the
values that they are made of.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from posbench.common.files import sha256_json
from posbench.config.identity import family, method_args, method_name
from posbench.config.names import called, nodes
from posbench.runs.setting import Setting

METHODS = {"encoding": "encoding_args", "extension": "extension_args"}
STEPS = "train.steps"
MANY = 8  # numbers of a list from which a label has the first, the last and four digits of its hash


@dataclass(frozen=True)
class Facts:
    """Values behind the labels of a method. `encoding` and `extension` are names of yamls in
    configs/.
    """

    encoding: str
    extension: str
    trained_in: bool = False  # the extension was fine-tuned with
    tuned_from: str | None = None  # family of the parent
    steps: int | None = None  # of training, where the trainings of an encoding differ in them
    line: str = ""  # label of the encoding without the steps
    keeps_encoding: bool = False  # fine-tuned with the encoding of its parent
    setting: Setting | str | None = None


class Labels:
    """Labels (encoding, extension, scale_attention) of rows among `rows`.

    Methods are named by `called`. An argument appears only if two of `rows` differ in it, and not
    at its value in configs/: beside `ntk multiplier=2.0` the default is plain `ntk`. `variants`
    ({run_id: {key: words}}) tells apart trainings of one encoding, whose `steps` are given by
    run_id. A fine-tuned run names its parent's family, and the extension that it was fine-tuned
    with: `yarn (trained in)`."""

    def __init__(
        self,
        rows: Iterable[dict],
        variants: Mapping[str, Mapping[str, str]] | None = None,
        steps: Mapping[str, int] | None = None,
    ):
        self.variants = variants or {}
        named = (run for run, words in self.variants.items() if STEPS in words)
        self.steps = {run: steps[run] for run in named if steps and isinstance(steps.get(run), int)}
        self.known: dict[tuple[str, str], list[dict]] = defaultdict(list)
        for row in map(moved, rows):
            for name, args in METHODS.items():
                seen = self.known[name, called(name, row[name], row[args])]
                if (row[args] or {}) not in seen:
                    seen.append(row[args] or {})

    def __call__(self, given: dict) -> tuple[str, str, str]:
        row = moved(given)
        task = f" ({row['task']})" if row["task"] and row["protocol"] != "accuracy" else ""
        extension = (
            self._method("extension", row)
            + " (trained in)" * (row["extension"] != given["extension"])
            + task
        )
        return self._encoding(row), extension, row["scale_attention"]

    def facts(self, given: dict, setting: Setting | str | None = None) -> Facts:
        """Values behind the labels of a row, and the setting of its evaluation."""
        row = moved(given)
        parent = row["finetune"] and family(row["finetune"])
        names = {name: called(name, row[name], row[args]) for name, args in METHODS.items()}
        return Facts(
            **names,
            trained_in=row["extension"] != given["extension"],
            tuned_from=parent or None,
            steps=self.steps.get(row["run_id"]),
            line=self._encoding(row, without=STEPS),
            keeps_encoding=bool(parent) and parent.rpartition("-")[0] == names["encoding"],
            setting=setting,
        )

    def _encoding(self, row: dict, without: str | None = None) -> str:
        """Label of an encoding, and what tells its trainings apart, all or `without` one key."""
        trained = (
            ""
            if row["trained_scale"] in (None, "none")
            else f" trained with {row['trained_scale']}"
        )
        tuned = f" tuned from {family(row['finetune'])}" if row["finetune"] else ""
        rest = (
            words for key, words in self.variants.get(row["run_id"], {}).items() if key != without
        )
        return "".join([self._method("encoding", row), trained, tuned, *rest])

    def _method(self, name: str, row: dict) -> str:
        args, absent = row[METHODS[name]] or {}, object()
        method = called(name, row[name], args)
        usual = nodes(name).get(method, {})
        changed = [key for key in sorted(args) if usual.get(key, absent) != args[key]]
        differ = [
            key
            for key in changed
            if any(other.get(key, absent) != args[key] for other in self.known[name, method])
        ]
        return " ".join([method, *(f"{key}={_brief(args[key])}" for key in differ)])


def _brief(value: object) -> str:
    if isinstance(value, dict) and "_target_" in value:
        return method_name(value)
    if isinstance(value, list) and len(value) >= MANY:
        return f"{value[0]}..{value[-1]}#{sha256_json(value)[:4]}"
    return value if isinstance(value, str) else json.dumps(value)


def moved(row: dict) -> dict:
    """`row` of a fine-tuned run with what was trained into its encoding as its extension; beside
    another extension as a trained part.
    """
    args = row["encoding_args"] or {}
    inner = args["base"] if isinstance(args.get("base"), dict) else args
    if not row["finetune"]:
        return row
    node = inner.get("scaling")
    gone = {
        key for key in ("scaling", "scaling_len", "amplitude") if node or inner.get(key) is None
    }
    left = {key: value for key, value in inner.items() if key not in gone}
    row = {**row, "encoding_args": left if inner is args else {**args, "base": left}}
    if not node:
        return row
    if row["extension"] == "none":
        return {**row, "extension": method_name(node), "extension_args": method_args(node)}
    return {
        **row,
        "trained_scale": " and ".join(
            [method_name(node), *({row["trained_scale"]} - {None, "none"})]
        ),
    }
