"""Setting of an evaluation: the text that it reads and scores. Two evaluations are compared only
under equal settings.
"""

from dataclasses import dataclass, replace


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
    key_run: str | None = (
        None  # id of the training whose model chooses key tokens; None: the one that is evaluated
    )
    rivals: int = 0  # that each answer is compared with
    version: int = 1  # of the protocol

    @classmethod
    def of(cls, evaluate: dict, version: int = 1) -> "Setting":
        """Setting of a resolved `evaluate` configuration, which has no version, or of a setting as
        a dict, which has its own.

        Raises TypeError for one that lacks a key, or holds a list.
        """
        known = {
            "version": version,
            **{key: value for key, value in evaluate.items() if key in cls.__dataclass_fields__},
        }
        if isinstance(text := known.get("text"), dict):
            known["text"] = f"{text['name']} {text['content'][:8]}"
        if isinstance(chooser := known.get("key_run"), dict):
            known["key_run"] = chooser["run_id"]
        setting = cls(**known)
        hash(setting)
        return setting

    def __str__(self) -> str:
        return ", ".join(self.parts)

    @property
    def parts(self) -> list[str]:
        """Setting in words, a key or two in each part; a page reads them as getattr(setting,
        "parts", ...).
        """
        end = [f"version {self.version} of the protocol"] if self.version > 1 else []
        end += [f"{self.split} split", self.dtype]
        if self.max_length is None:
            rivals = [f"{self.rivals} rivals of each answer"] if self.rivals else []
            return [
                f"{self.windows} examples asked for",
                *rivals,
                *end,
                f"seed {self.seed} of the examples",
            ]
        found = [
            f"{self.windows} windows asked for",
            f"{self.targets} targets each",
            f"room for {self.max_length} tokens",
        ]
        found += [f"advancing by {self.stride}"] if self.stride else []
        found += [f"in the text {self.text}", "not that of the training"] if self.text else []
        found += [f"as many of each {self.unit}"] if self.unit != "document" else []
        found += [f"in documents `{self.documents}`"] if self.documents else []
        found += (
            [f"recompute_window in blocks of {self.floor_block}"] if self.floor_block > 1 else []
        )
        if self.key_context:
            chooser = f"of {self.key_run}" if self.key_run else "as it was trained"
            found.append(
                f"key tokens: those whose loss is below {self.key_loss:g} nats in the model"
                f" {chooser} and more than {self.key_gain:g} higher after {self.key_context} tokens"
            )
        return [*found, *end, f"seed {self.seed} of the windows"]

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
