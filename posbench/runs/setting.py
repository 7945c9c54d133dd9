"""Setting of an evaluation: the text that it reads and scores. Two evaluations are compared only
under equal settings.
"""

import json
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Setting:
    """Keys of configs/evaluate that choose windows, targets, text and number format."""

    windows: int
    targets: int | None  # None: what a task asks for
    max_length: int | None
    split: str
    dtype: str
    seed: int
    stride: int | None = None
    documents: str | None = None
    unit: str = "document"  # of intervals, or project, over which windows are spread evenly
    text: str | None = None  # another than the training's: its name and eight digits of its hash
    floor_block: int = 1
    key_gain: float | None = None
    key_loss: float | None = None
    key_context: int | None = None
    # Id of the training whose model chooses key tokens; None: the one that is evaluated.
    key_run: str | None = None
    rivals: int = 0  # that each answer is compared with
    settings: str | None = None  # JSON of those that the protocol itself defines
    version: int = 1  # of the protocol

    @classmethod
    def of(cls, evaluate: dict, version: int = 1) -> "Setting":
        """Setting of a resolved `evaluate` configuration, which has no version, or of a setting as
        a dict, which has its own.

        Raises TypeError for one that lacks a key, or holds a list.
        """
        values = {"version": version}
        for key, value in evaluate.items():
            if key in cls.__dataclass_fields__:
                values[key] = value
        if isinstance(values.get("text"), dict):
            text = values["text"]  # its `content` is a hash
            values["text"] = f"{text['name']} {text['content'][:8]}"
        if isinstance(values.get("key_run"), dict):
            values["key_run"] = values["key_run"]["run_id"]
        if isinstance(values.get("settings"), dict):
            values["settings"] = json.dumps(values["settings"], sort_keys=True)
        setting = cls(**values)
        hash(setting)  # raises TypeError for a list
        return setting

    def as_dict(self) -> dict:
        """Values for a file. The protocol's own settings are left out where there are none, as in
        files of earlier versions.
        """
        values = asdict(self)
        if self.settings is None:
            del values["settings"]
        return values

    def __str__(self) -> str:
        return ", ".join(self.parts)

    @property
    def parts(self) -> list[str]:
        """Setting in words, a key or two in each part; a page reads them as getattr(setting,
        "parts", ...).
        """
        if self.max_length is None:  # a task's questions are asked
            return self._parts_of_questions()
        return self._parts_of_text()

    def _parts_of_questions(self) -> list[str]:
        """Parts in words where a task's questions are answered, which have no window."""
        parts = [f"{self.windows} examples asked for"]
        if self.rivals:
            parts.append(f"{self.rivals} rivals of each answer")
        return [*parts, *self._last_parts(), f"seed {self.seed} of the examples"]

    def _parts_of_text(self) -> list[str]:
        """Parts in words where windows of a text are scored."""
        parts = [
            f"{self.windows} windows asked for",
            f"{self.targets} targets each",
            f"room for {self.max_length} tokens",
        ]
        if self.stride:
            parts.append(f"advancing by {self.stride}")
        if self.text:
            parts += [f"in the text {self.text}", "not that of the training"]
        if self.unit != "document":
            parts.append(f"as many of each {self.unit}")
        if self.documents:
            parts.append(f"in documents `{self.documents}`")
        if self.floor_block > 1:
            parts.append(f"recompute_window in blocks of {self.floor_block}")
        if self.key_context:
            chooser = f"of {self.key_run}" if self.key_run else "as it was trained"
            parts.append(
                f"key tokens: those whose loss is below {self.key_loss:g} nats in the model"
                f" {chooser} and more than {self.key_gain:g} higher after {self.key_context} tokens"
            )
        return [*parts, *self._last_parts(), f"seed {self.seed} of the windows"]

    def _last_parts(self) -> list[str]:
        """Version and settings of the protocol, split and number format."""
        parts = [f"version {self.version} of the protocol"] if self.version > 1 else []
        for key, value in json.loads(self.settings or "{}").items():
            parts.append(f"{key}={value}")
        return [*parts, f"{self.split} split", self.dtype]

    @property
    def unstrided(self) -> "Setting":
        """Setting without what may differ between protocols that score the same windows: stride,
        floor_block and version.
        """
        return replace(self, stride=None, floor_block=1, version=1)

    def shortest_exact(self, train_len: int) -> int:
        """Shortest text, in tokens, in which recompute_window gives every scored token train_len
        tokens of context.
        """
        return train_len + (self.stride or self.targets) - 1
