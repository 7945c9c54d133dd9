"""Result of an explanation, the setting, its findings, words and numbers, its screen and its
figure.
"""

import math
import textwrap
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError
from posbench.report.figures.style import FONT, GREY, OKABE_ITO, Frame, ruled
from posbench.tools.explanation.facts import FACTS, Finding
from posbench.tools.explanation.frequencies import Rope, frequencies, plain
from posbench.tools.explanation.reach import Reach, reach_of, same_rope, same_setting
from posbench.tools.explanation.read_rope import LONG
from posbench.tools.explanation.settings import LayerKind, Setting
from posbench.tools.explanation.words import ToolWords, model_path

WIDTH, COLUMNS = 100, 64  # characters of a line; columns of a picture
NAMES = {
    "default": "no scaling",
    "linear": "linear (position interpolation)",
    "dynamic": "dynamic NTK",
    "yarn": "YaRN",
    "longrope": "LongRoPE",
}
MANY, FEW = 32, 1  # turns in training between which YaRN and Llama 3 mix
READERS = FACTS["readers"]
LOOKS = {
    "#": ("kept", OKABE_ITO[0]),
    "+": ("slower", OKABE_ITO[4]),
    "-": ("slower by the factor", OKABE_ITO[1]),
    "<": ("faster", OKABE_ITO[2]),
}
PANEL, GAP, LEFT = (300, 180), 64, 52  # points
LONGEST_WORDS = 2000  # characters; lists of divisors are in json=FILE


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
        found = {one.name: one for one in self.setting.turning}
        if kind is not None and kind not in found:
            raise ConfigError(
                f"{kind} is not a kind of layers with RoPE here: choose {', '.join(found)}."
            )
        rope = (found[kind] if kind else self.setting.turning[0]).rope
        return frequencies(rope, self.length)

    def own(self, kind: LayerKind) -> Rope:
        """RoPE of the same layers in the checkpoint's own setting."""
        return next(
            (
                one.rope
                for one in self.before.kinds
                if one.rope and set(one.layers) & set(kind.layers)
            ),
            kind.rope,
        )

    def slower(self, kind: LayerKind, length: float | None = None) -> np.ndarray:
        """Times by which each pair turns slower than by the checkpoint's own base without any
        scaling: [pairs].
        """
        own, found = plain(self.own(kind)), frequencies(kind.rope, length or self.length)
        return (own if len(own) == len(found) else plain(kind.rope)) / found

    def turns(self, kind: LayerKind) -> np.ndarray:
        """Turns of each pair in the training length, by the checkpoint's own base: [pairs]."""
        return (
            kind.rope.original * plain(replace(kind.rope, base=self.own(kind).base)) / (2 * np.pi)
        )

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """The screen: a block for each kind of layer, warnings, and the same setting in the words
        of every tool.
        """
        setting = self.setting
        count = sum(len(kind.layers) for kind in setting.kinds)
        head = (
            f"{setting.name} ({setting.family}, {count} layer{'s' * (count != 1)}) as"
            f" {READERS[self.reader]} reads it"
        )
        blocks = [head, *(_block(kind, self) for kind in setting.kinds), _reach(self)]
        if self.findings:
            said = [
                _wrapped(f"{number}. {one.text} [{one.source}]", "   ")
                for number, one in enumerate(self.findings, 1)
            ]
            blocks.append("\n".join(["What to know", *said]))
        rows = []
        for one in self.words:
            long = f"{one.text[:80]}... ({len(one.text):,} characters; json=FILE writes them)"
            text = ("" if one.serves else "cannot: ") + (
                one.text if len(one.text) <= LONGEST_WORDS else long
            )
            rows.append(f"  {one.tool} [{one.source}]\n    {text}")
        same = "The checkpoint as it is" if same_setting(setting, self.before) else "The same"
        stops = {one.stops for one in self.findings}
        if stops - {False}:
            same = f"{'transformers stops at this. ' * (True in stops)}What is read above"
        blocks += ["\n".join([f"{same}, in the words of every tool", *rows])] if rows else []
        return printable("\n\n".join(blocks), kept="\n")

    def as_json(self) -> dict:
        """Everything as JSON: numbers to compare with those of an engine."""
        kinds = [asdict(kind) for kind in self.setting.kinds]
        for one, kind in zip(kinds, self.setting.kinds, strict=True):
            if kind.rope:
                one |= {
                    "frequencies": frequencies(kind.rope, self.length).tolist(),
                    "turns": self.turns(kind).tolist(),
                }
        reach = reach_of(self.setting, self.before)
        tokens = None if reach.tokens is None or math.isinf(reach.tokens) else reach.tokens
        about = {
            "what": self.what,
            "read_as": self.reader,
            "covers": tokens,
            "covers_limit": reach.limit,
            "length": self.length,
        }
        return {
            **about,
            "kinds": kinds,
            "findings": [asdict(one) for one in self.findings],
            "words": [asdict(one) for one in self.words],
        }


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def states(ratio: np.ndarray) -> str:
    """A character for each pair: # kept, + slower, - slower by the most that several pairs share, <
    faster.
    """
    most = ratio.max()
    shared = most > 1 + 1e-6 and (ratio > most * (1 - 1e-6)).sum() > 1
    marks = np.where(ratio > 1 + 1e-6, "+", np.where(ratio < 1 - 1e-6, "<", "#"))
    return "".join(np.where(shared & (ratio > most * (1 - 1e-6)), "-", marks))


def columns(marks: str) -> str:
    """A picture of at most 64 columns: a column of pairs that differ shows + among states, o among
    turns.
    """
    per = -(-len(marks) // COLUMNS)
    parts = [marks[start : start + per] for start in range(0, len(marks), per)]
    return "".join(
        part[0] if len(set(part)) == 1 else "+" if set(part) & set("#+-<") else "o"
        for part in parts
    )


def _block(kind: LayerKind, explanation: Explanation) -> str:
    count, window = (
        len(kind.layers),
        f"sees the last {kind.window:,} tokens" if kind.window else "no window",
    )
    head = f"{kind.name}, {count} layer{'s' * (count != 1)}, {window}"
    if kind.rope is None:
        return head if kind.name.endswith("no RoPE") else f"{head}, no RoPE"
    rope = kind.rope
    ratio, turned = explanation.slower(kind), explanation.turns(kind)
    marks = "".join("@" if one >= MANY else "o" if one >= FEW else "." for one in turned)
    slow, between = states(ratio), ratio[(ratio > 1 + 1e-6) & (ratio < ratio.max())]
    span = f" {between.min():.4g} to {between.max():.4g} times" if len(between) else ""
    counted = {"@": f"{MANY} or more", "o": f"{FEW} to {MANY}", ".": f"below {FEW}"}
    scaled = {
        "#": "kept",
        "+": f"slower{span}",
        "-": f"slower {ratio.max():.4g} times",
        "<": "faster",
    }
    ends = f"pair 0: {_short(turned[0])}, the last: {_short(turned[-1])}"
    rows = [
        (
            "RoPE",
            (
                f"{rope.turned} of {rope.head_dim + rope.beside} channels turn, {len(ratio)} pairs,"
                f" base {rope.base:,.10g}"
            ),
        ),
        ("turns", columns(marks)),
        ("", f"{_legend(marks, counted)} in {rope.original:,.10g} tokens; {ends}"),
        ("scaling", _named(rope, explanation.own(kind).base)),
        ("", columns(slow)),
        ("", _legend(slow, scaled)),
        ("logits", _logits(rope)),
    ]
    rows[4:6] = [] if set(slow) == {"#"} else rows[4:6]
    return "\n".join([head, *(f"  {name:9}{text}" for name, text in rows)])


def _legend(marks: str, words: dict[str, str]) -> str:
    return ", ".join(
        f"{mark} {text}: {marks.count(mark)}" for mark, text in words.items() if mark in marks
    )


def _named(rope: Rope, base: float) -> str:
    name = NAMES.get(rope.kind, rope.kind)
    if rope.kind == "default" and rope.base != base:
        name = f"another base, {rope.base:,.10g} instead of {base:,.10g}"
    elif rope.base != base:
        name += f", on the base {rope.base:,.10g} instead of {base:,.10g}"
    if rope.kind != "default":
        name += f", factor {rope.factor:.6g}"
    if rope.kind in LONG:
        name += f" from {rope.original:,.10g} tokens"
    return name + (", divisors of the file" if rope.divisors else "")


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def _logits(rope: Rope) -> str:
    part = "" if rope.turned == rope.head_dim + rope.beside else " in the channels that turn"
    said = (
        f"times {rope.amplitude**2:.6g}{part}: cos and sin times {rope.amplitude:.6g}"
        if rope.amplitude != 1
        else ""
    )
    beside = f"times {rope.sharper:.6g} in all channels" if rope.sharper != 1 else ""
    return ", ".join(filter(None, (said, beside))) or "times 1: no amplitude on cos and sin"


def _reach(explanation: Explanation) -> str:
    """Covered length, and the cost at short ones in words."""
    setting, before = explanation.setting, explanation.before
    kind = setting.turning[0]
    reach, rope = reach_of(setting, before), kind.rope
    said = _covers(reach)
    ratio = explanation.slower(kind, 1)
    changed = int((abs(ratio - 1) > 1e-6).sum())
    pace = " or ".join(
        word
        for word, some in (("slower", ratio > 1 + 1e-6), ("faster", ratio < 1 - 1e-6))
        if some.any()
    )
    turn = (
        f"{changed} of {len(ratio)} pairs turn {pace} than"
        if changed
        else "no pair turns slower than"
    )
    if rope.kind == "dynamic":
        said += (
            f" Up to {rope.longest:,.0f} tokens nothing changes; beyond, the longer the text, the"
            " slower all pairs but the first."
        )
    elif not changed and rope.amplitude == 1:
        said += " Short prompts are read as trained."
    elif same_rope(rope, explanation.own(kind)):
        said += (
            f" The scaling is the checkpoint's own, and acts at every length: {turn} with the base"
            " alone."
        )
    else:
        sharper = (
            f", and logits are multiplied by {rope.amplitude**2:.3g}" if rope.amplitude != 1 else ""
        )
        said += f" Short prompts pay for it: at every length {turn} trained{sharper}."
        path = model_path(explanation.what)
        if path and reach.tokens is not None:
            target = max(reach.tokens, 2 * setting.trained)
            said += f" posbench advise {path} target={target:.0f} measures the cost."
    if rope.kind == "longrope" and rope.short != rope.long:
        said += (
            f" Divisors are those of texts up to {rope.original:,.0f} tokens: length=TOKENS shows"
            " others." * (not explanation.length)
        )
    if rope.kind in ("longrope", "dynamic") and explanation.length:
        said += f" Numbers are those of a text of {explanation.length:,.0f} tokens."
    return _wrapped(said)


def _covers(reach: Reach) -> str:
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
    height = len(kinds) * (PANEL[1] + GAP)
    title = f"{explanation.setting.name} as {READERS[explanation.reader]} reads it"
    frame = Frame(title, 2 * PANEL[0] + GAP + LEFT + 10, height + 12)
    for row, kind in enumerate(kinds):
        ratio, turned = explanation.slower(kind), explanation.turns(kind)
        marks, pairs = np.array(list(states(ratio))), np.arange(len(ratio))
        top = 26 + row * (PANEL[1] + GAP)
        left, right = (frame.axes(LEFT + at * (PANEL[0] + GAP), top, *PANEL) for at in (0, 1))
        for mark, (name, colour) in LOOKS.items():
            if (mine := marks == mark).any():
                left.plot(
                    pairs[mine],
                    ratio[mine],
                    "o",
                    markersize=4,
                    color=colour,
                    label=f"{name}: {mine.sum()}",
                )
                right.plot(pairs[mine], turned[mine], "o", markersize=4, color=colour)
        left.set_ylim(0.94 * min(1, ratio.min()), 1.08 * max(1.5, ratio.max()))
        left.legend(fontsize=FONT, frameon=False)
        left.set_ylabel("times slower than base alone", fontsize=FONT)
        right.set_ylabel(f"turns in {kind.rope.original:,.10g} tokens", fontsize=FONT)
        right.set_yscale("log")
        right.axhline(1, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        for axes in (left, right):
            ruled(axes)
            axes.set_title(f"{kind.name}, {len(kind.layers)} layers", fontsize=FONT + 1, loc="left")
            axes.set_xlabel("pair of channels", fontsize=FONT)
        if ratio.max() / ratio.min() > 16:
            left.set_yscale("log", base=2)
    amplitudes = ", ".join(f"{kind.name} {kind.rope.amplitude**2:.4g}" for kind in kinds)
    frame.caption(
        [f"Factor on the logits: {amplitudes}. Dashed: one turn in the training length."], up=4
    )
    return frame.figure
