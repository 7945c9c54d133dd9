"""Tables of scores, and the lines below them."""

from collections.abc import Callable, Iterable

from posbench.report.points import marked, over_words, span, two_seeds
from posbench.report.scores import GUESSES, LEARNED, Score
from posbench.report.tables import EMPTY, METHOD, Cell, Table, by_method, heading

NEVER = "never learned"
UNASKED = "not asked inside the window, so that a failure beyond it says nothing of a method"


def by_task(section: Iterable[Score]) -> dict[str, dict[tuple, dict[int, Score]]]:
    """Scores over all depths by task, method and length, in the given order."""
    found: dict[str, dict[tuple, dict[int, Score]]] = {}
    for score in section:
        if score.depth is None:
            found.setdefault(score.task, {}).setdefault(score.method, {})[score.length] = score
    return found


def tables(section: list[Score], intervals: bool = True) -> list[Table]:
    """Tables of each part of a task: accuracy, that of the choice in the text, and -ln p of an answer; with intervals if `intervals`."""
    lengths = marked(score.length for score in section)
    heads = [*METHOD, *(heading(length, section[0].train_len) for length in lengths)]

    def accuracy(score: Score) -> Cell:
        return Cell(f"{score.accuracy:.3f}" + f" ({score.low:.2f}-{score.high:.2f})" * intervals, score.accuracy)

    def choice(score: Score) -> Cell:
        return EMPTY if score.choice is None else Cell(f"{score.choice:.3f}", score.choice)

    def loss(score: Score) -> Cell:
        width = f" +- {score.half_width:.2f}" if intervals and score.half_width is not None else ""
        return Cell("not finite" if score.nll is None else f"{score.nll:.2f}{width}", score.nll, score.half_width)

    def rows(cells: dict[tuple, dict[int, Score]], shown: Callable[[Score], Cell]) -> list[list[Cell]]:
        return by_method(cells, lengths, lambda score: shown(score) if score.shown else Cell(NEVER))

    result = []
    for task, cells in by_task(section).items():
        result.append(Table(f"Accuracy: {task}", heads, rows(cells, accuracy)))
        if any(score.choice is not None for cell in cells.values() for score in cell.values()):
            result.append(Table(f"Accuracy of the choice among the answers in the text: {task}", heads, rows(cells, choice)))
        result.append(Table(f"-ln p of an answer (nats): {task}", heads, rows(cells, loss)))
    return result


def below(section: list[Score]) -> list[str]:
    """Lines below the tables: what was asked, what the intervals are over, and which methods have not learned the task."""
    first = section[0]
    over = " or ".join(over_words(unit) for unit in sorted({score.over for score in section}))
    return [
        f"data {first.data}, tokenizer {first.tokenizer}, trained at {first.train_len} tokens",
        f"protocol {first.protocol}: {asked(section)}, the same for every method",
        *([f"setting: {first.setting}"] if first.setting else []),
        f"seeds: {span(score.n_seeds for score in section)}; in brackets: 95 % interval {over}, Wilson's for one seed",
        *guessed(section),
        "-ln p: the mean over answers; +- half of its 95 % interval over the same units, Student's t for one seed",
        *unlearned(section),
        *two_seeds(section),
        *(["* a pair of methods its authors have not tested"] if any(score.untested for score in section) else []),
    ]


def asked(section: Iterable[Score]) -> str:
    """Text on the questions of a section: their number at each length, and what a right answer is."""
    whole = [score for score in section if score.depth is None]
    texts, answers = (span(getattr(score, name) for score in whole) for name in ("n_texts", "n_answers"))
    return f"{answers} answers in {texts} texts of each length, right if every token was the likeliest"


def guessed(section: Iterable[Score]) -> list[str]:
    """Lines on the shares that guesses get right at the shortest and the longest length, for each part of a task."""
    lines = []
    for task, cells in by_task(section).items():
        known = sorted(
            (score for cell in cells.values() for score in cell.values() if score.by_value is not None), key=lambda one: one.length
        )
        for column, what in GUESSES.items():
            ends = [f"{getattr(score, column):.3f} at {score.length} tokens" for score in dict.fromkeys(known[:1] + known[-1:])]
            lines += [f"right by {what}: {task}: {', '.join(dict.fromkeys(ends))}"] if ends else []
    return lines


def unlearned(section: Iterable[Score]) -> list[str]:
    """Lines on the trainings that have not learned a task inside the window, or were not asked there."""
    never: dict[str, dict[str, None]] = {}
    some: dict[str, dict[str, None]] = {}
    unasked: dict[str, dict[str, None]] = {}
    for score in section:
        if score.depth is None and (not score.learned or score.n_seeds < score.n_trained or score.inside is None):
            name = f"{score.encoding} {score.extension}" if score.behind.trained_in else score.encoding
            if score.inside is None:
                unasked.setdefault(score.task, {})[name] = None
            elif score.learned:
                said = f"{name} ({score.n_trained - score.n_seeds} of {score.n_trained} seeds)"
                some.setdefault(score.task, {})[said] = None
            else:
                never.setdefault(score.task, {})[f"{name} ({score.inside:.3f})"] = None
    bound = f"accuracy inside the window below {LEARNED}"
    moral = "so that nothing beyond counts against a method"
    lines = [f"{NEVER} ({bound}), {moral}: {task}: {', '.join(names)}" for task, names in never.items()]
    lines += [f"{UNASKED}: {task}: {', '.join(names)}" for task, names in unasked.items()]
    return lines + [f"left out of the means ({bound}): {task}: {', '.join(names)}" for task, names in some.items()]
