"""Table of legal pairs: posbench.position.legality judges every pair of methods in configs/."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posbench.common.errors import ConfigError
from posbench.config.names import yamls_in_folders
from posbench.config.schema import ModelConfig
from posbench.extensions.none import NoExtension
from posbench.model.gpt import make_shape
from posbench.position.instantiate import make_method
from posbench.position.legality import check_trained_scale, verdict_of
from posbench.scale_attention.none import NoScale

FATE_WORDS = {"legal": "yes", "own": "own", "opt-in": "opt", "no-op": "0", "refused": "-"}
OWN_LEGEND = " own: a method from outside posbench, whose file names no test of the pair."
LEGEND = (
    "yes: legal, a source that tests or defines it is known (`compat.py reasons`). opt: defined,"
    " but no test of it is known (allow_untested=true). 0: provably changes nothing. -: refused."
)


@dataclass(frozen=True)
class JudgedPair:
    """Judgement of an encoding with another method."""

    encoding: str
    kind: str  # of the other method: extension, scale_attention or train.scale_attention
    other: str
    fate: str  # a key of FATE_WORDS
    reason: str = ""


def judge_all(configs: list[Path], train_len: int, lengths: list[int]) -> Iterator[JudgedPair]:
    """Judge every pair of methods as their yamls define them, evaluated at `lengths` after training
    on `train_len` tokens.
    """
    shape = make_shape(ModelConfig(), train_len)
    no_extension, no_scale = NoExtension(), NoScale(shape)
    extensions = {
        other: make_method(node) for other, node in yamls_in_folders(configs, "extension").items()
    }
    scale_nodes = yamls_in_folders(configs, "scale_attention").items()
    scales = {other: make_method(node, shape) for other, node in scale_nodes if other != "none"}
    for name, node in yamls_in_folders(configs, "encoding").items():
        encoding = make_method(node, shape)
        for other, extension in extensions.items():
            fate = _fate_and_reason(verdict_of, encoding, extension, no_scale, lengths)
            yield JudgedPair(name, "extension", other, *fate)
        # An encoding with a limit or a learned table may end at train_len without an extension, so
        # scales are judged there.
        reached = lengths if encoding.limit is None and encoding.rows() is None else [train_len]
        for other, scale in scales.items():
            fate = _fate_and_reason(verdict_of, encoding, no_extension, scale, reached)
            yield JudgedPair(name, "scale_attention", other, *fate)
        for other, scale in scales.items():
            fate = _fate_and_reason(check_trained_scale, encoding, scale)
            yield JudgedPair(name, "train.scale_attention", other, *fate)


def _fate_and_reason(judge: Callable, *args: Any) -> tuple[str, str]:
    """Fate and reason of a pair, such as ("refused", "alibi turns no channel: ...").

    A legal one has its source instead of a reason, "" where `judge` returns None.
    """
    try:
        verdict = judge(*args)
    except ConfigError as error:
        # A pair that may be allowed has the key for that in its refusal.
        return ("opt-in" if "allow_untested" in str(error) else "refused"), str(error)
    if verdict is not None and verdict.noop:
        return "no-op", verdict.noop
    if verdict is not None and verdict.of_user:
        return "own", "its file names no test of the pair"
    return "legal", verdict.source if verdict is not None else ""


def legality_markdown(pairs: list[JudgedPair]) -> str:
    """Markdown table of the pairs: a row for each method, a column for each encoding."""
    encodings = list(dict.fromkeys(pair.encoding for pair in pairs))
    fates = {(pair.kind, pair.other, pair.encoding): FATE_WORDS[pair.fate] for pair in pairs}
    count = len(encodings)
    lines = [f"| | {' | '.join(encodings)} |", f"| :--- | {' | '.join([':-:'] * count)} |"]
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        lines.append(f"| **{kind}** |{' |' * count}")
        for other in dict.fromkeys(pair.other for pair in pairs if pair.kind == kind):
            words = " | ".join(fates[kind, other, encoding] for encoding in encodings)
            lines.append(f"| `{other}` | {words} |")
    has_own = any(pair.fate == "own" for pair in pairs)
    return "\n".join(lines) + f"\n\n{LEGEND}{OWN_LEGEND if has_own else ''}\n"
