"""Result of an explanation: the setting, its findings and words, and its numbers."""

from dataclasses import asdict, dataclass, replace

import numpy as np

from posbench.common.errors import ConfigError
from posbench.explanation.facts import Finding
from posbench.explanation.frequencies import Rope, frequencies, plain, turns
from posbench.explanation.settings import LayerKind, Setting
from posbench.explanation.words import ToolWords, covered


@dataclass(frozen=True)
class Explanation:
    """Setting as `reader` takes it; `before` is the model's own, `length` the text for which dynamic and longrope are computed."""

    what: str
    reader: str
    setting: Setting
    before: Setting
    length: float | None
    findings: tuple[Finding, ...]
    words: tuple[ToolWords, ...]
    options: dict
    text: str = ""

    def frequencies(self, kind: str | None = None) -> np.ndarray:
        """Radians per token of each turned pair, of the layers of one kind (by default the first that turns): [pairs]."""
        found = {one.name: one for one in self.setting.turning}
        if kind is not None and kind not in found:
            raise ConfigError(f"{kind} is not a kind of layers with RoPE here: choose {', '.join(found)}.")
        rope = (found[kind] if kind else self.setting.turning[0]).rope
        return frequencies(rope, self.length)

    def own(self, kind: LayerKind) -> Rope:
        """RoPE of the same layers in the checkpoint's own setting."""
        return next((one.rope for one in self.before.kinds if one.rope and set(one.layers) & set(kind.layers)), kind.rope)

    def slower(self, kind: LayerKind, length: float | None = None) -> np.ndarray:
        """Times by which each pair turns slower than by the checkpoint's own base without any scaling: [pairs]."""
        own, found = plain(self.own(kind)), frequencies(kind.rope, length or self.length)
        return (own if len(own) == len(found) else plain(kind.rope)) / found

    def turns(self, kind: LayerKind) -> np.ndarray:
        """Turns of each pair in the training length, by the checkpoint's own base: [pairs]."""
        return turns(replace(kind.rope, base=self.own(kind).base))

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict:
        """Everything as JSON: numbers to compare with those of an engine."""
        kinds = []
        for kind in self.setting.kinds:
            numbers = {}
            if kind.rope:
                numbers = {"frequencies": frequencies(kind.rope, self.length).tolist(), "turns": self.turns(kind).tolist()}
            kinds.append({**asdict(kind), **numbers})
        about = {"what": self.what, "read_as": self.reader, "covers": covered(self.setting, self.before), "length": self.length}
        return {**about, "kinds": kinds, "findings": [asdict(one) for one in self.findings], "words": [asdict(one) for one in self.words]}
