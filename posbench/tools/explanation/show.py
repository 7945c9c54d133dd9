"""Result of an explanation, the setting, its findings, words and numbers, its screen and its
figure.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError
from posbench.common.quantities import plural
from posbench.report.figures.style import FONT_SIZE, GREY, OKABE_ITO, Frame, draw_rules
from posbench.tools.explanation.facts import FACTS, Finding
from posbench.tools.explanation.frequencies import Rope, frequencies, unscaled_frequencies
from posbench.tools.explanation.reach import Reach, reach_of, same_rope, same_setting
from posbench.tools.explanation.read_rope import TYPES_WITH_ORIGINAL
from posbench.tools.explanation.settings import LayerKind, Setting
from posbench.tools.explanation.words import ToolWords, model_path

SCREEN_WIDTH = 100  # characters of a line
PICTURE_COLUMNS = 64  # of a picture
SCALING_NAMES = {
    "default": "no scaling",
    "linear": "linear (position interpolation)",
    "dynamic": "dynamic NTK",
    "yarn": "YaRN",
    "longrope": "LongRoPE",
}
MANY_TURNS, FEW_TURNS = 32, 1  # turns in training between which YaRN and Llama 3 mix
RATIO_ROUNDING = 1e-6  # share by which a ratio of frequencies may differ from 1 and count as 1
READERS = FACTS["readers"]
STATE_LOOKS = {  # {state of a pair: (its name, its colour)}
    "#": ("kept", OKABE_ITO[0]),
    "+": ("slower", OKABE_ITO[4]),
    "-": ("slower by the factor", OKABE_ITO[1]),
    "<": ("faster", OKABE_ITO[2]),
}
PANEL_WIDTH, PANEL_HEIGHT, GAP = 300, 180, 64  # points
LEFT, RIGHT, HEAD, BELOW = 52, 10, 26, 12  # points around the panels
LONGEST_WORDS = 2000  # characters; of longer ones, with lists of divisors, the beginning is shown
SHOWN_BEGINNING = 80


@dataclass(frozen=True)
class Explanation:
    """Setting as `reader` takes it; `before` is the model's own, `length` the text for which
    dynamic and longrope are computed.
    """

    what: str
    reader: str
    setting: Setting
    before: Setting
    length: float | None
    findings: tuple[Finding, ...]
    words: tuple[ToolWords, ...]
    options: dict

    def frequencies(self, kind: str | None = None) -> np.ndarray:
        """Radians per token of each turned pair, of the layers of one kind (by default the first
        that turns): [pairs].
        """
        kinds = {each.name: each for each in self.setting.turning}
        kind = kind or self.setting.turning[0].name
        if kind not in kinds:
            raise ConfigError(
                f"{kind} is not a kind of layers with RoPE here: choose {', '.join(kinds)}."
            )
        return frequencies(kinds[kind].rope, self.length)

    def checkpoint_rope(self, kind: LayerKind) -> Rope:
        """RoPE of the same layers in the checkpoint's own setting."""
        for before in self.before.kinds:
            if before.rope and set(before.layers) & set(kind.layers):
                return before.rope
        return kind.rope

    def slower(self, kind: LayerKind, length: float | None = None) -> np.ndarray:
        """Ratio by which each pair turns slower than without any scaling: [pairs].

        Without scaling it turns by the checkpoint's own base, or, if the change turns other pairs
        than the checkpoint does, by the changed base.
        """
        scaled = frequencies(kind.rope, length or self.length)
        unscaled = unscaled_frequencies(self.checkpoint_rope(kind))
        # Pairs of the checkpoint cannot be set against another number of pairs.
        if len(unscaled) != len(scaled):
            unscaled = unscaled_frequencies(kind.rope)
        return unscaled / scaled

    def turns(self, kind: LayerKind) -> np.ndarray:
        """Turns of each pair in the training length, by the checkpoint's own base: [pairs]."""
        theta = unscaled_frequencies(replace(kind.rope, base=self.checkpoint_rope(kind).base))
        return kind.rope.original * theta / (2 * np.pi)

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """The screen: a block for each kind of layer, warnings, and the same setting in the words
        of every tool.
        """
        setting = self.setting
        layers = plural(sum(len(kind.layers) for kind in setting.kinds), "layer")
        head = f"{setting.name} ({setting.family}, {layers}) as {READERS[self.reader]} reads it"
        blocks = [head, *(_kind_block(kind, self) for kind in setting.kinds), _reach_in_words(self)]
        if self.findings:
            blocks.append(_finding_lines(self.findings))
        if self.words:
            blocks.append(_tool_lines(self))
        return printable("\n\n".join(blocks), allowed="\n")

    def as_json(self) -> dict:
        """Everything as JSON: numbers to compare with those of an engine."""
        kinds = []
        for kind in self.setting.kinds:
            entry = asdict(kind)
            entry["said"] = entry.pop("mapping")  # the name of the key in files written so far
            if kind.rope:
                entry["frequencies"] = frequencies(kind.rope, self.length).tolist()
                entry["turns"] = self.turns(kind).tolist()
            kinds.append(entry)
        reach = reach_of(self.setting, self.before)
        bounded = reach.tokens is not None and math.isfinite(reach.tokens)
        return {
            "what": self.what,
            "read_as": self.reader,
            "covers": reach.tokens if bounded else None,
            "covers_limit": reach.limit,
            "length": self.length,
            "kinds": kinds,
            "findings": [asdict(finding) for finding in self.findings],
            "words": [asdict(words) for words in self.words],
        }


def _wrapped(text: str, indent: str = "") -> str:
    """Text in lines of the screen's width, with `indent` before all but the first."""
    style = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, SCREEN_WIDTH, subsequent_indent=indent, **style)


def _finding_lines(findings: Sequence[Finding]) -> str:
    """Numbered findings with their sources below a heading."""
    lines = ["What to know"]
    for number, finding in enumerate(findings, 1):
        lines.append(_wrapped(f"{number}. {finding.text} [{finding.source}]", "   "))
    return "\n".join(lines)


def _tool_lines(explanation: Explanation) -> str:
    """The setting in the words of every tool."""
    subject = "The same"
    if same_setting(explanation.setting, explanation.before):
        subject = "The checkpoint as it is"
    transformers_stops = {finding.stops for finding in explanation.findings}
    # True: it raises an error; None: or else it computes something else than what is read here
    if True in transformers_stops:
        subject = "transformers stops at this. What is read above"
    elif None in transformers_stops:
        subject = "What is read above"
    lines = [f"{subject}, in the words of every tool"]
    for words in explanation.words:
        text = words.text
        if len(text) > LONGEST_WORDS:
            text = f"{text[:SHOWN_BEGINNING]}... ({len(text):,} characters; json=FILE writes them)"
        if not words.serves:
            text = f"cannot: {text}"
        lines.append(f"  {words.tool} [{words.source}]\n    {text}")
    return "\n".join(lines)


def state_marks(ratio: np.ndarray) -> str:
    """A character for each pair: # kept, + slower, - slower by the most that several pairs share, <
    faster.

    >>> state_marks(np.array([1.0, 2.0, 4.0, 4.0]))
    '#+--'
    """
    marks = np.where(
        ratio > 1 + RATIO_ROUNDING, "+", np.where(ratio < 1 - RATIO_ROUNDING, "<", "#")
    )
    slowest = ratio > ratio.max() * (1 - RATIO_ROUNDING)
    if ratio.max() > 1 + RATIO_ROUNDING and slowest.sum() > 1:
        marks[slowest] = "-"
    return "".join(marks)


def picture_of_marks(marks: str) -> str:
    """A picture of at most 64 columns: a column of pairs that differ shows + among states, o among
    turns.

    >>> picture_of_marks("#" * 65 + "-" * 63)[30:36]
    '##+---'
    """
    width = -(-len(marks) // PICTURE_COLUMNS)
    picture = ""
    for start in range(0, len(marks), width):
        column = set(marks[start : start + width])
        if len(column) == 1:
            picture += column.pop()
        else:
            picture += "+" if column & set("#+-<") else "o"
    return picture


def _kind_block(kind: LayerKind, explanation: Explanation) -> str:
    """Lines about one kind of layers: its pairs, their turns, the scaling, the factor on logits."""
    window = f"sees the last {kind.window:,} tokens" if kind.window else "no window"
    head = f"{kind.name}, {plural(len(kind.layers), 'layer')}, {window}"
    rope = kind.rope
    if rope is None:
        return head if kind.name.endswith("no RoPE") else f"{head}, no RoPE"
    ratio = explanation.slower(kind)
    turns = explanation.turns(kind)
    channels = rope.head_dim + rope.unturned_beside
    pairs = f"{rope.turned} of {channels} channels turn, {len(ratio)} pairs"
    turn_marks = _turn_marks(turns)
    marks_of_states = state_marks(ratio)
    ends = f"pair 0: {_short_number(turns[0])}, the last: {_short_number(turns[-1])}"
    turn_legend = {
        "@": f"{MANY_TURNS} or more",
        "o": f"{FEW_TURNS} to {MANY_TURNS}",
        ".": f"below {FEW_TURNS}",
    }
    counts = f"{_legend(turn_marks, turn_legend)} in {rope.original:,.10g} tokens"
    rows = [
        ("RoPE", f"{pairs}, base {rope.base:,.10g}"),
        ("turns", picture_of_marks(turn_marks)),
        ("", f"{counts}; {ends}"),
        ("scaling", _scaling_in_words(rope, explanation.checkpoint_rope(kind).base)),
    ]
    if set(marks_of_states) != {"#"}:  # not all pairs are kept as they were
        rows.append(("", picture_of_marks(marks_of_states)))
        rows.append(("", _legend(marks_of_states, _state_legend(ratio))))
    rows.append(("logits", _logit_factors_in_words(rope)))
    return "\n".join([head, *(f"  {name:9}{text}" for name, text in rows)])


def _turn_marks(turns: np.ndarray) -> str:
    """A character for each pair: @ many turns in training, o some, . less than one."""
    return "".join(np.where(turns >= MANY_TURNS, "@", np.where(turns >= FEW_TURNS, "o", ".")))


def _state_legend(ratio: np.ndarray) -> dict[str, str]:
    """{mark of `state_marks`: its meaning}, such as {"+": "slower 1.1 to 3.7 times"}."""
    most = ratio.max()
    between = ratio[(ratio > 1 + RATIO_ROUNDING) & (ratio < most)]
    slower = "slower"
    if len(between):
        slower += f" {between.min():.4g} to {between.max():.4g} times"
    return {"#": "kept", "+": slower, "-": f"slower {most:.4g} times", "<": "faster"}


def _legend(marks: str, meanings: dict[str, str]) -> str:
    """Marks that there are, with their meaning and count: "# kept: 20, - slower 4 times: 12"."""
    counts = [
        f"{mark} {text}: {marks.count(mark)}" for mark, text in meanings.items() if mark in marks
    ]
    return ", ".join(counts)


def _scaling_in_words(rope: Rope, base: float) -> str:
    """Name of the scaling with its factor, such as "YaRN, factor 4 from 32,768 tokens"; `base` is
    the checkpoint's own.
    """
    text = SCALING_NAMES.get(rope.kind, rope.kind)
    bases = f"{rope.base:,.10g} instead of {base:,.10g}"
    if rope.base != base and rope.kind == "default":
        text = f"another base, {bases}"
    elif rope.base != base:
        text += f", on the base {bases}"
    if rope.kind != "default":
        text += f", factor {rope.factor:.6g}"
    if rope.kind in TYPES_WITH_ORIGINAL:
        text += f" from {rope.original:,.10g} tokens"
    if rope.divisors:
        text += ", divisors of the file"
    return text


def _short_number(number: float) -> str:
    """A count of turns as read at a glance: 1,234 or 0.56."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def _logit_factors_in_words(rope: Rope) -> str:
    """Factors on the logits in words."""
    factors = []
    if rope.amplitude != 1:
        all_turn = rope.turned == rope.head_dim + rope.unturned_beside
        part = "" if all_turn else " in the channels that turn"
        square = f"times {rope.amplitude**2:.6g}{part}"
        factors.append(f"{square}: cos and sin times {rope.amplitude:.6g}")
    if rope.sharper != 1:
        factors.append(f"times {rope.sharper:.6g} in all channels")
    return ", ".join(factors) or "times 1: no amplitude on cos and sin"


def _reach_in_words(explanation: Explanation) -> str:
    """Covered length, and the cost at short ones in words."""
    rope = explanation.setting.turning[0].rope
    reach = reach_of(explanation.setting, explanation.before)
    sentences = [_coverage_in_words(reach), _cost_in_words(explanation, reach)]
    if rope.kind == "longrope" and rope.short != rope.long and not explanation.length:
        sentences.append(
            f"Divisors are those of texts up to {rope.original:,.0f} tokens: length=TOKENS shows"
            " others."
        )
    if rope.kind in ("longrope", "dynamic") and explanation.length:
        sentences.append(f"Numbers are those of a text of {explanation.length:,.0f} tokens.")
    return _wrapped(" ".join(sentences))


def _cost_in_words(explanation: Explanation, reach: Reach) -> str:
    """Sentences about the cost of the setting in short texts."""
    setting = explanation.setting
    kind = setting.turning[0]  # the layers with the longest reach, of which the screen speaks first
    rope = kind.rope
    shortest = 1  # token, where a method that acts by length has not begun to act
    ratio = explanation.slower(kind, shortest)
    unchanged = not (abs(ratio - 1) > RATIO_ROUNDING).any()
    if rope.kind == "dynamic":
        return (
            f"Up to {rope.longest:,.0f} tokens nothing changes; beyond, the longer the text, the"
            " slower all pairs but the first."
        )
    if unchanged and rope.amplitude == 1:
        return "Short prompts are read as trained."
    if same_rope(rope, explanation.checkpoint_rope(kind)):
        return (
            "The scaling is the checkpoint's own, and acts at every length:"
            f" {_pace_in_words(ratio)} with the base alone."
        )
    cost = f"Short prompts pay for it: at every length {_pace_in_words(ratio)} trained"
    if rope.amplitude != 1:
        cost += f", and logits are multiplied by {rope.amplitude**2:.3g}"
    cost += "."
    path = model_path(explanation.what)
    if path and reach.tokens is not None:
        # advise refuses a target up to the training length, where the reach may be.
        target = max(reach.tokens, 2 * setting.trained)
        cost += f" posbench advise {path} target={target:.0f} measures the cost."
    return cost


def _pace_in_words(ratio: np.ndarray) -> str:
    """Beginning of a comparison: "12 of 64 pairs turn slower than"."""
    changed = int((abs(ratio - 1) > RATIO_ROUNDING).sum())
    if not changed:
        return "no pair turns slower than"
    paces = []
    if (ratio > 1 + RATIO_ROUNDING).any():
        paces.append("slower")
    if (ratio < 1 - RATIO_ROUNDING).any():
        paces.append("faster")
    return f"{changed} of {len(ratio)} pairs turn {' or '.join(paces)} than"


def _coverage_in_words(reach: Reach) -> str:
    """First sentence about lengths, such as "Covers 32,768 tokens: beyond it a pair turns farther
    than in training.".
    """
    if reach.tokens is None:
        return f"What length it covers is not said: {reach.limit}."
    if math.isinf(reach.tokens):
        return f"Covers any length: {reach.limit}."
    return f"Covers {reach.tokens:,.0f} tokens: {reach.limit}."


def explanation_figure(explanation: Explanation):
    """A row of two panels for each kind of layer with RoPE."""
    kinds = explanation.setting.turning
    title = f"{explanation.setting.name} as {READERS[explanation.reader]} reads it"
    row_height = PANEL_HEIGHT + GAP
    width = LEFT + 2 * PANEL_WIDTH + GAP + RIGHT
    frame = Frame(title, width, len(kinds) * row_height + BELOW)
    for row, kind in enumerate(kinds):
        top = HEAD + row * row_height
        left_axes = frame.axes(LEFT, top, PANEL_WIDTH, PANEL_HEIGHT)
        right_axes = frame.axes(LEFT + PANEL_WIDTH + GAP, top, PANEL_WIDTH, PANEL_HEIGHT)
        ratio = explanation.slower(kind)
        _draw_pairs(left_axes, values=ratio, ratio=ratio)
        _draw_pairs(right_axes, values=explanation.turns(kind), ratio=ratio)
        # 1.5: where no pair is slower, the axis still shows that all stand at 1.
        left_axes.set_ylim(0.94 * min(1, ratio.min()), 1.08 * max(1.5, ratio.max()))
        left_axes.legend(fontsize=FONT_SIZE, frameon=False)
        left_axes.set_ylabel("times slower than base alone", fontsize=FONT_SIZE)
        # Of more than 16 times, a linear axis would press the smaller ratios together.
        if ratio.max() / ratio.min() > 16:
            left_axes.set_yscale("log", base=2)
        right_axes.set_ylabel(f"turns in {kind.rope.original:,.10g} tokens", fontsize=FONT_SIZE)
        right_axes.set_yscale("log")
        right_axes.axhline(1, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        for axes in (left_axes, right_axes):
            draw_rules(axes)
            axes.set_title(
                f"{kind.name}, {len(kind.layers)} layers", fontsize=FONT_SIZE + 1, loc="left"
            )
            axes.set_xlabel("pair of channels", fontsize=FONT_SIZE)
    amplitudes = ", ".join(f"{kind.name} {kind.rope.amplitude**2:.4g}" for kind in kinds)
    caption = f"Factor on the logits: {amplitudes}. Dashed: one turn in the training length."
    frame.caption([caption], up=4)
    return frame.figure


def _draw_pairs(axes, values: np.ndarray, ratio: np.ndarray) -> None:
    """Draw a dot for each pair, in the colour of its state."""
    marks = np.array(list(state_marks(ratio)))
    for mark, (name, colour) in STATE_LOOKS.items():
        (pairs,) = np.nonzero(marks == mark)
        if len(pairs):
            label = f"{name}: {len(pairs)}"
            axes.plot(pairs, values[pairs], "o", markersize=4, color=colour, label=label)
