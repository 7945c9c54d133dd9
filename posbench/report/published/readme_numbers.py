"""Numbers of a page, looked up in the files of results/reported by the expressions of its template.

The difference to the floor, of curve.csv of a folder, and another of its columns:
    {headline: rope|pi @2x .2f}
    {headline: alibi @1x gain .2f}
The lowest of several, each times -1; a value minus another:
    {headline: fox & hybrid @2x,4x negated lowest .2f}
    {catalogue: sandwich @1x minus rope @1x nll .2f}
Another CSV of a folder, as value [low, high]:
    {tasks/accuracy: mqar 8 pairs, rope|ntk @16x [] .2f}
The number of lines whose columns have such values; a sum over lines, in another unit:
    {headline/trainings: encoding=fox count .0f}
    {headline/trainings: seconds total hours .1f}
An endpoint of the ledger of claims:
    {ledger: stage two: C2 [] +.2f}
From sums.npz, on the same targets, as value +- half of the interval; any sum of such losses, and
of other protocols than fixed_targets; the same of what each is above its own floor:
    {newer paired: lerope minus rope @4x +- .2f}
    {protocols paired: rope @4x, protocol=disjoint minus rope @1x, protocol=sliding +- .2f}
    {scale above floor: rope minus alibi @8x [] .2f}
From rows.csv, the differences of the seeds and the interval over them alone:
    {matched by seed: alibi minus rope @1x +- .2f}
A place in a json:
    {advice/advice.json: search, name=cut, nll, 8192 .2f}

An expression ends in words of `WORDS` or a column, and a format of Python (`s` for text). Multiples
are of the training length."""

import csv
import itertools
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import read_json
from posbench.report.published.readme_expressions import Expression, Key, Value, only_element
from posbench.report.records import CurvePoint, Score
from posbench.report.references import Seed
from posbench.report.report import Report, collect_report
from posbench.results.search import ROWS, is_evidence
from posbench.results.stages import STAGES
from posbench.statistics.crossed import Sums
from posbench.statistics.over_seeds import SeedValue, over_seeds

REPORTED = Path(__file__).parents[3] / "results" / "reported"
COMPARISONS = ("paired", "above floor", "by seed")
USUAL_COLUMN = {"curve": "difference", "accuracy": "accuracy", "claims": "effect"}  # {CSV: column}
HALF_WIDTH_COLUMN = {  # {column: column of half of its interval}
    "difference": "half_width",
    "change": "change_half_width",
    "doubling": "doubling_half_width",
}
END_COLUMNS = {"accuracy": ("low", "high"), "effect": ("lower", "upper")}  # {column: ends}
# Columns of the ledger that an expression may name: other names of endpoints end in its columns.
LEDGER_COLUMNS = ("verdict", "documents", "compared")


def filled_expression(source: str, text: str) -> str:
    """Text in place of the expression {source: text}.

    Raises ConfigError if the files hold no such number, or several."""
    path, comparison = _file_and_comparison(source)
    columns = _nameable_columns(source, path, comparison)
    # Endpoints of the ledger have names of free words, "minus" and "plus" among them.
    is_ledger = source == "ledger"
    expression = Expression.read(text, columns, is_sum=not is_ledger)
    if comparison:
        overall, *by_seed = _compared_over_seeds(path.parent, expression.terms, comparison)
        # The word "seeds" asks for the value of each.
        values = by_seed if "seeds" in expression.words else [overall]
    elif path.suffix == ".json":
        values = _sum_of_terms(
            [(weight, [_json_value(path, key)]) for weight, key in expression.terms]
        )
    else:
        column = expression.column or USUAL_COLUMN.get(path.stem, "")
        lines = [(weight, _lines_that_fit(path, key)) for weight, key in expression.terms]
        _, first_lines = lines[0]  # counts and texts are of one key, not of a sum
        text_of_lines = _text_of_lines(first_lines, column, expression)
        if text_of_lines is not None:
            return text_of_lines
        in_nats = "nats" in expression.words
        values = _sum_of_terms(
            [(weight, _values_of_lines(of_key, column, in_nats)) for weight, of_key in lines]
        )
    return expression.text([value.times(expression.factor) for value in values])


def _text_of_lines(lines: list[dict[str, str]], column: str, expression: Expression) -> str | None:
    """Number of lines or of distinct cells, or the text of a cell; None if a number is wanted."""
    if "count" in expression.words:
        return format(len(lines), expression.form)
    if "distinct" in expression.words:
        return format(len({line[column] for line in lines}), expression.form)
    if expression.form == "s":
        return only_element(lines)[column]
    return None


def _file_and_comparison(source: str) -> tuple[Path, str]:
    """File of a source, and how methods are compared in it ("": its values as they stand).

    Such as (.../newer/curve.csv, "paired") of "newer paired"."""
    place, _, comparison = source.partition(" ")
    if comparison not in ("", *COMPARISONS):
        raise ConfigError(f"{comparison} is not a comparison: use paired, above floor or by seed")
    folder, _, name = ("claims/claims" if place == "ledger" else place).partition("/")
    if not name.endswith(".json"):
        name = f"{name or 'curve'}.csv"
    path = REPORTED / folder / name
    if not path.exists():
        raise ConfigError(f"results/reported has no {path.relative_to(REPORTED)}")
    return path, comparison


def _nameable_columns(source: str, path: Path, comparison: str) -> tuple[str, ...]:
    """Columns that an expression may name."""
    if source == "ledger":
        return LEDGER_COLUMNS
    # Comparisons are of losses alone, and a json has keys.
    if comparison or path.suffix == ".json":
        return ()
    return tuple(csv_lines(path)[0])


def _sum_of_terms(terms: list[tuple[float, list[Value]]]) -> list[Value]:
    """Values of a single term, which may be several, or the sum of one value of each."""
    if len(terms) == 1:
        return terms[0][1]
    return [Value(sum(weight * only_element(values).value for weight, values in terms))]


@cache
def csv_lines(path: Path) -> list[dict[str, str]]:
    """Lines of a CSV, as text."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _lines_that_fit(path: Path, text: str) -> list[dict[str, str]]:
    """Lines of a CSV that fit a key."""
    lines = csv_lines(path)
    key = Key.read(text, lines[0])
    if key.name and path.stem == "claims":
        lines = [line for line in lines if _is_endpoint(line, key.name)]
    elif key.name:
        lines = [line for line in lines if line.get("task") in key.name.split(" & ")]
    if key.methods:
        lines = [line for line in lines if key.fits_method(line)]
        # Pages speak of losses of the same targets at every length; a curve has others too.
        if path.stem == "curve":
            lines = [line for line in lines if line["protocol"] == "fixed_targets"]
    return [line for line in lines if key.fits_cells(line)]


def _is_endpoint(line: Mapping[str, str], name: str) -> bool:
    """True if a line of the ledger has a name such as "stage two: C2", or "C2" of stage 1."""
    stage, endpoint = re.fullmatch(r"(?:stage (\w+): )?(.*)", name).groups()
    names = f"{line['claim']} {line['endpoint']}".strip()
    return STAGES[int(line["stage"])] == (stage or "one") and names == endpoint


def _values_of_lines(lines: list[dict[str, str]], column: str, in_nats: bool) -> list[Value]:
    """Number of a column of each line, with the interval that it states; effects also as losses."""
    half_column = HALF_WIDTH_COLUMN.get(column, "")
    if column == "nll" and lines and "task" in lines[0]:
        half_column = "half_width"  # in accuracy.csv it is that of nll
    values = []
    for line in lines:
        value = float(line[column])
        if half := line.get(half_column):
            ends = [value - float(half), value + float(half)]
        else:
            ends = [float(line[end]) for end in END_COLUMNS.get(column, ()) if line.get(end)]
        unit = float(line["nats"]) if in_nats else 1  # in one unit of the effect
        values.append(Value(value, *ends).times(unit))
    return values


def _json_value(path: Path, text: str) -> Value:
    """A number, or [value, low, high], of a json: fields from the outermost on, and key=value for
    the element of a list.
    """
    node = read_json(path)
    for step in text.split(", "):
        field, _, choice = step.partition("=")
        if choice:
            node = [element for element in node if str(element[field]) == choice]
        elif isinstance(node, list):
            node = only_element(node)[step]
        else:
            node = node[step]
    return Value(*node) if isinstance(node, list) else Value(node)


def _compared_over_seeds(
    folder: Path, terms: list[tuple[float, str]], comparison: str
) -> list[Value]:
    """Sum of losses over the seeds that all terms have, and then that of each seed."""
    losses = [(weight, _rows_by_seed(folder, key)) for weight, key in terms]
    seeds = sorted(set.intersection(*(set(by_seed) for _, by_seed in losses)))
    if comparison == "by seed":
        # None: values alone, so that the interval is over seeds and not over documents too.
        of_seeds = [
            SeedValue(
                sum(weight * only_element(by_seed[seed]).row["nll"] for weight, by_seed in losses),
                None,
            )
            for seed in seeds
        ]
    else:
        above_floor = comparison == "above floor"
        of_seeds = [_seed_value(losses, seed, above_floor) for seed in seeds]
    result = over_seeds(of_seeds)
    overall = Value(result.estimate.value, *result.interval())
    return [overall, *map(Value, result.estimate.by_seed)]


def _seed_value(
    losses: list[tuple[float, dict[int, list[Seed]]]], seed: int, above_floor: bool
) -> SeedValue:
    """Weighted sum of the losses of one seed, [(weight, {seed: its points})]."""
    terms = [(weight, _document_sums(by_seed[seed], above_floor)) for weight, by_seed in losses]
    value = sum(weight * float(sums.means[0]) for weight, sums in terms)
    return SeedValue(value, terms)


def _document_sums(points: list[Seed], above_floor: bool) -> Sums:
    """Sums over documents of the losses of a seed, or of what they are above its floor."""
    seed = only_element(points)
    return seed.against_floor.sums if above_floor else seed.evaluation.sampled_sums(seed.row)


@cache
def _report_of_folder(folder: Path) -> Report:
    """Report of a folder of evidence, or of one that has its rows alone."""
    if is_evidence(folder):
        return collect_report([], folder.name, folder.name, evidence=[folder])
    return collect_report([], folder.name, folder.name, csvs=[folder / ROWS])


def _rows_by_seed(folder: Path, text: str) -> dict[int, list[Seed]]:
    """{seed: what it has at the length of a key}. A method is named as in a table or in
    trainings.csv.
    """
    key = Key.read(text, ("data", "train_len", "protocol"))
    report = _report_of_folder(folder)
    names = {line["run_id"]: line.get("encoding") for line in csv_lines(folder / "trainings.csv")}
    by_seed = defaultdict(list)
    for point in itertools.chain(*(report.scores if key.name else report.sections)):
        if not _fits_key(point, key):
            continue
        for seed in point.seeds:
            # as in the table, and as in trainings.csv
            encodings = (point.encoding, names.get(seed.row["run_id"]))
            others = (point.extension, point.scale_attention)
            if any([encoding, *others] in key.methods for encoding in encodings):
                by_seed[seed.row["seed"]].append(seed)
    return by_seed or only_element([])  # whose error says that nothing fits


def _fits_key(point: CurvePoint | Score, key: Key) -> bool:
    """True if a point has the task or protocol of a key (if it names none, fixed_targets), its
    length and its cells.
    """
    if key.name:
        fits = point.task == key.name and point.depth is None
    else:
        protocol_named = any(column == "protocol" for column, *_ in key.cells)
        fits = protocol_named or point.protocol == "fixed_targets"
    length = key.multiples[0] * point.train_len  # losses are compared at one length
    return fits and point.length == length and key.fits_cells(vars(point))
