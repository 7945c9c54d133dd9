"""Labels of methods and trainings, with no more words than are needed to tell them apart, and the
values that they are made of.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from posbench.config.identity import method_args, method_name, run_prefix
from posbench.config.names import closest_yaml_name, shipped_yamls
from posbench.report.method_words import short_value
from posbench.runs.setting import Setting

# {column: of its arguments}
ARGUMENT_COLUMNS = {
    "encoding": "encoding_args",
    "extension": "extension_args",
}
# keys of the steps that weights were trained for: of a whole training, or until one was kept
STEPS_KEY, STEP_KEY = "train.steps", "train.step"
ABSENT_ARGUMENT = object()  # value of an argument that a method does not have


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
    encoding_label: str = ""  # without the steps
    keeps_encoding: bool = False  # fine-tuned with the encoding of its parent
    setting: Setting | str | None = None


class Labels:
    """Labels (encoding, extension, scale_attention) of rows among `rows`.

    Methods are named by `closest_yaml_name`. An argument appears only if two of `rows` differ in
    it, and not at its value in configs/: beside `ntk multiplier=2.0` the default is plain `ntk`.
    With `all_arguments`, those at another value than in configs/ appear whatever `rows` are.
    `variants` ({run_id: {key: words}}) tells apart trainings of one encoding, whose `steps` are
    given by run_id. A fine-tuned run names its parent's family, and the extension that it was
    fine-tuned with: `yarn (trained in)`."""

    def __init__(
        self,
        rows: Iterable[dict],
        variants: Mapping[str, Mapping[str, str]] | None = None,
        steps: Mapping[str, int] | None = None,
        all_arguments: bool = False,
    ):
        self.all_arguments = all_arguments
        # {run_id: {key of its configuration: words that labels add}}
        self.variants = variants or {}
        self.steps: dict[str, int] = {}  # of the runs whose labels name them
        for run_id, words in self.variants.items():
            n_steps = (steps or {}).get(run_id)  # anything, in a damaged configuration
            if words.keys() & {STEPS_KEY, STEP_KEY} and isinstance(n_steps, int):
                self.steps[run_id] = n_steps
        self.args: dict[tuple[str, str], list[dict]] = defaultdict(list)  # {(group, method): sets}
        for row in map(with_trained_part_as_extension, rows):
            for group, column in ARGUMENT_COLUMNS.items():
                sets = self.args[group, closest_yaml_name(group, row[group], row[column])]
                if (row[column] or {}) not in sets:
                    sets.append(row[column] or {})

    def __call__(self, row: dict) -> tuple[str, str, str]:
        """Labels of a row, such as ("rope tuned from rope-64", "yarn (trained in)", "none")."""
        # A fine-tuned row names the extension that was trained in as a part of its encoding; tables
        # show it as the extension.
        as_shown = with_trained_part_as_extension(row)
        extension = self._method("extension", as_shown)
        if as_shown["extension"] != row["extension"]:
            extension += " (trained in)"
        # Tables of accuracy have a title for each task; a loss of a task has it in its label.
        if row["task"] and row["protocol"] != "accuracy":
            extension += f" ({row['task']})"
        return self._encoding(as_shown), extension, as_shown["scale_attention"]

    def training(self, row: dict) -> str:
        """Label of the encoding of a row, whatever the step of its training."""
        return self._encoding(with_trained_part_as_extension(row), without=(STEP_KEY,))

    def facts(self, row: dict, setting: Setting | str | None = None) -> Facts:
        """Values behind the labels of a row, and the setting of its evaluation."""
        moved = with_trained_part_as_extension(row)
        # The prefix of a training's run_id, its encoding and length: rope-64.
        parent = run_prefix(row["finetune"]) if row["finetune"] else None
        parent_encoding = parent.rpartition("-")[0] if parent else None
        encoding, extension = (
            closest_yaml_name(group, moved[group], moved[column])
            for group, column in ARGUMENT_COLUMNS.items()
        )
        return Facts(
            encoding,
            extension,
            trained_in=moved["extension"] != row["extension"],
            tuned_from=parent,
            steps=self.steps.get(row["run_id"]),
            encoding_label=self._encoding(moved, without=(STEPS_KEY, STEP_KEY)),
            keeps_encoding=parent_encoding == encoding,
            setting=setting,
        )

    def _encoding(self, row: dict, without: Collection[str] = ()) -> str:
        """Label of an encoding, and what tells its trainings apart, all or `without` some keys."""
        label = self._method("encoding", row)
        if row["trained_scale"] not in (None, "none"):
            label += f" trained with {row['trained_scale']}"
        if row["finetune"]:
            label += f" tuned from {run_prefix(row['finetune'])}"
        words = self.variants.get(row["run_id"], {})
        return label + "".join(text for key, text in words.items() if key not in without)

    def _method(self, group: str, row: dict) -> str:
        """Name of a method with the arguments that tell it apart, such as "ntk multiplier=2.0"."""
        args = row[ARGUMENT_COLUMNS[group]] or {}
        method = closest_yaml_name(group, row[group], args)
        usual = shipped_yamls(group).get(method, {})
        words = [method]
        for key, value in sorted(args.items()):
            if usual.get(key, ABSENT_ARGUMENT) == value:
                continue
            others = self.args[group, method]
            if self.all_arguments or any(
                other.get(key, ABSENT_ARGUMENT) != value for other in others
            ):
                words.append(f"{key}={short_value(value)}")
        return " ".join(words)


def with_trained_part_as_extension(row: dict) -> dict:
    """`row` of a fine-tuned run with what was trained into its encoding as its extension; beside
    another extension as a trained part.
    """
    if not row["finetune"]:
        return row
    args = row["encoding_args"] or {}
    is_wrapped = isinstance(args.get("base"), dict)  # an encoding around another one
    inner = args["base"] if is_wrapped else args
    scaling = inner.get("scaling")
    inner_left = {}
    for key, value in inner.items():
        of_scaling = key in ("scaling", "scaling_len", "amplitude")
        is_moved = of_scaling and scaling
        is_empty = of_scaling and value is None
        if not is_moved and not is_empty:
            inner_left[key] = value
    row = {**row, "encoding_args": {**args, "base": inner_left} if is_wrapped else inner_left}
    if not scaling:
        return row
    if row["extension"] == "none":
        return {**row, "extension": method_name(scaling), "extension_args": method_args(scaling)}
    other_parts = {row["trained_scale"]} - {None, "none"}
    return {**row, "trained_scale": " and ".join([method_name(scaling), *other_parts])}
