"""Numbers of results/reported, by the words of its tables: what tests/published/test_prose.py holds the text against."""

import csv
import json
from functools import cache

from conftest import CONFIGS

from posbench.claims.language import load_all
from posbench.claims.table import from_csv as read_findings
from posbench.common.csv_records import from_csv
from posbench.report.points import read_points
from posbench.report.references import compare, reference, references
from posbench.report.report import collect
from posbench.report.scores import Score
from posbench.runs.rows import read_csv
from posbench.runs.trainings import Training
from posbench.statistics.clustered import student_interval
from posbench.statistics.crossed import Estimate, Sums, across, estimate

REPORTED = CONFIGS.parent / "results" / "reported"
LEDGER = read_findings(REPORTED / "claims" / "claims.csv")
FINDINGS = [one for one in LEDGER if one.stage == 1]
PRIMARIES = [one for one in FINDINGS if one.primary]
STAGE2 = [each for one in load_all(CONFIGS.parent / "results" / "claims") if one.stage == 2 for each in one.primary]


@cache
def rows(folder: str) -> list[dict]:
    return read_csv(REPORTED / folder / "rows.csv")


@cache
def trainings(folder: str) -> list[Training]:
    return from_csv(REPORTED / folder / "trainings.csv", Training, "trainings", "scripts/report.py")


@cache
def _points(folder: str, data: str | None) -> dict:
    points = [point for point in read_points(REPORTED / folder / "curve.csv") if point.protocol == "fixed_targets"]
    points = [point for point in points if data in (None, point.data)]
    return {(point.encoding, point.extension, point.scale_attention, point.length / point.train_len): point for point in points}


def _names(method: str) -> list[str]:
    """encoding|extension|scale_attention; none where one is left out."""
    return [*method.split("|"), "none", "none"][:3]


def at(folder: str, method: str, times: float, what: str = "difference", data: str | None = None) -> float:
    """A value of curve.csv at so many times the training length, of the trainings on `data` where there are others."""
    return getattr(_points(folder, data)[(*_names(method), times)], what)


def wide(folder: str, method: str, times: float, what: str = "difference", data: str | None = None) -> list[float]:
    """A difference, or change, and half of its interval."""
    half = {"difference": "half_width", "change": "change_half_width"}[what]
    return [at(folder, method, times, what, data), at(folder, method, times, half, data)]


def trained_at(folder: str, train_len: int, times: int, what: str = "difference", method: str = "rope") -> float:
    """A value of curve.csv of the trainings of one length, where a folder has several, at so many times that length."""
    wanted = (train_len, times * train_len, *_names(method))
    points = read_points(REPORTED / folder / "curve.csv")
    (one,) = (
        point for point in points if (point.train_len, point.length, point.encoding, point.extension, point.scale_attention) == wanted
    )
    return getattr(one, what)


@cache
def _collected(folder: str):
    return collect([], folder, folder, evidence=[REPORTED / folder])


def _above_floor(folder: str, method: str, times: int, train_len: int) -> dict[int, Sums]:
    """{seed: sums over documents of loss minus floor} of a method on the trainings of one length, at so many times that length."""
    report = _collected(folder)
    floors, found = references(report.evaluations), {}
    for one in report.evaluations:
        if one.first["train_len"] == train_len and [*report.label(one.first)] == _names(method):
            floor = floors[one.key, "floor"]
            found[one.first["seed"]] = compare(one, times * train_len, floor, floor.exact_length(times * train_len))[1]
    return found


def changed(folder: str, method: str, other: str, times: int, train_len: int = 64) -> Estimate:
    """Loss minus floor of one training minus that of another, on the same targets, over the seeds that both have."""
    one, against = (_above_floor(folder, name, times, train_len) for name in (method, other))
    seeds = sorted(one.keys() & against.keys())
    return estimate([(weight, across([each[seed] for seed in seeds])) for weight, each in ((1.0, one), (-1.0, against))])


def apart(folder: str, of: str, minus: str, length: int, data: str = "pysource") -> list[float]:
    """Difference of the losses of two methods trained on `data`, on the same targets, and the ends of its interval."""
    report, found = _collected(folder), {}
    for one in report.evaluations:
        if (one.first["protocol"], one.first["data"]) == ("fixed_targets", data) and reference(one.first) is None:
            found[(*report.label(one.first), one.first["seed"])] = one
    wanted = [tuple(_names(method)) for method in (of, minus)]
    seeds = sorted({key[3] for key in found if key[:3] == wanted[0]} & {key[3] for key in found if key[:3] == wanted[1]})
    pairs = [(found[(*wanted[0], seed)], found[(*wanted[1], seed)]) for seed in seeds]
    of_both = estimate([(1.0, across([compare(one, length, other, length)[1] for one, other in pairs]))])
    return [of_both.value, *of_both.interval()]


def by_length(folder: str, method: str, lengths: tuple[int, int], times: int) -> list[float]:
    """Loss minus floor after training on one length minus that after another, of each seed that both have."""
    one, against = (_above_floor(folder, method, times, length) for length in lengths)
    return [float(one[seed].means[0] - against[seed].means[0]) for seed in sorted(one.keys() & against.keys())]


@cache
def scores(folder: str) -> dict[tuple, Score]:
    """{(task, encoding, extension, scale_attention, times the training length): accuracy} over all depths, of the most texts."""
    found = [score for score in read_points(REPORTED / folder / "accuracy.csv", Score) if score.depth is None]
    found.sort(key=lambda score: score.n_texts)
    return {(score.task, score.encoding, score.extension, score.scale_attention, score.length / score.train_len): score for score in found}


def scored(folder: str, task: str, method: str, times: float) -> Score:
    """Accuracy of a method at a task, at so many times the training length."""
    return scores(folder)[(task, *_names(method), times)]


def answers_apart(folder: str, of: str, minus: str, task: str, times: int) -> list[float]:
    """Mean difference of -ln p of the answers of two methods to the same texts of one model, and the ends of its interval over texts."""
    report, found = _collected(folder), {of: [], minus: []}
    for one in report.evaluations:
        for method in (of, minus):
            for row in one.rows if [*report.label(one.first)] == _names(method) else ():
                asked = (row["protocol"], row["task"], row["length"]) == ("accuracy", task, times * row["train_len"])
                if asked and row["depth"] is not None:  # a text at each depth for each of the "documents"
                    sums = one.sums(row)
                    assert set(sums.counts) == {1}
                    found[method] += list(sums.totals[0])
    mean, half, n = student_interval([value - other for value, other in zip(found[of], found[minus], strict=True)])
    assert n == scored(folder, task, of, times).n_texts
    return [mean, mean - half, mean + half]


def within(score: Score) -> list[float]:
    """Accuracy and the ends of its interval."""
    return [score.accuracy, score.low, score.high]


def context(folder: str, tokens: int, encoding: str = "rope") -> list[dict]:
    """Lines of context.csv: one for each set of documents."""
    with open(REPORTED / folder / "context.csv", newline="") as file:
        return [line for line in csv.DictReader(file) if (line["encoding"], line["context"]) == (encoding, str(tokens))]


def claim(name: str, sign: int = 1, nats: bool = False, stage: int = 1) -> list[float]:
    """Effect, lower and upper end of an endpoint of the ledger, such as "H13 alibi"."""
    (one,) = (one for one in LEDGER if (one.stage, f"{one.claim} {one.endpoint}".strip()) == (stage, name))
    return [value * sign * (one.nats if nats else 1) for value in (one.effect, *(one.lower, one.upper)[::sign])]


def of_seeds(folder: str, method: str, times: int) -> dict[int, float]:
    """The loss of each seed. A word k=v in `method` is an argument, or part of the name of the training."""
    encoding, extension, scale = _names(method)
    runs = {one.run_id for one in trainings(folder) if one.encoding == encoding}
    words = (*(() if runs else encoding.split()[1:]), *extension.split()[1:])
    wanted = dict(word.split("=") for word in words)
    found: dict[int, float] = {}
    for row in rows(folder):
        shape = row["extension"], row["scale_attention"], row["length"], row["protocol"]
        args = {key: json.dumps(value).strip('"') for key, value in {**row["encoding_args"], **(row["extension_args"] or {})}.items()}
        named = row["run_id"] in runs if runs else row["encoding"] == encoding.split()[0]
        if (
            named
            and shape == (extension.split()[0], scale, 64 * times, "fixed_targets")
            and all(args[key] == wanted[key] for key in wanted)
        ):
            assert row["seed"] not in found, f"{method} fits two rows of seed {row['seed']}"
            found[row["seed"]] = row["nll"]
    return found


def paired(folder: str, of: str, minus: str, times: int) -> list[float]:
    """Mean difference of two methods over the seeds that both have, and half of its interval over seeds."""
    one, other = of_seeds(folder, of, times), of_seeds(folder, minus, times)
    mean, half, _ = student_interval([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])
    return [mean, half]


def full_turns(base: float) -> float:
    """Share of RoPE's pairs that make a full turn in training, of dimensionless.csv."""
    with open(REPORTED / "matched" / "dimensionless.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if (line["encoding"].split()[0], line["extension"]) == ("rope", "none")]
    (share,) = (float(line["share_full_turns"]) for line in lines if json.loads(line["encoding_args"])["base"] == base)
    return share


def yarn_pairs(beta: float | None, times: int = 2) -> tuple[list[float], int, int]:
    """(frequencies, how many are kept, how many divided in part) by YaRN at 64 tokens of training, heads of 64 channels."""
    import torch

    from posbench.extensions.yarn import Yarn
    from posbench.position.geometry import Span, Spectrum

    trained = 1e4 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    changed = Yarn(beta=beta).spectrum(Spectrum(trained, 1e4, 64), Span(64, 64 * times, 64 * times)).freq_F
    kept, whole = (changed == trained).sum(), torch.isclose(changed, trained / times, rtol=1e-12, atol=0).sum()
    return changed.tolist(), int(kept), int(len(trained) - kept - whole)


def validation(folder: str, encoding: str) -> float:
    """Mean validation loss over the trainings of a name."""
    losses = [one.validation_loss for one in trainings(folder) if one.encoding == encoding]
    return sum(losses) / len(losses)
