"""Command of scripts/look.py: the loss of one model by position, as it is and extended, in a given
time.

A text is as long as can be, up to twice the training length, with the model as it is and at least
one extension; then come the other extensions, then more texts. Within the training length the model
is read as it is alone, since extensions change nothing there. The evaluations are stored as any
others are. The model is read as it is first; how long that took decides which extensions follow.
"""

import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import read_json, sha256_json, write_json
from posbench.common.wheel_file import wheel_file
from posbench.config.compose import Request
from posbench.config.defaults import LONG
from posbench.config.identity import NO_SCALE, method_name
from posbench.config.names import nodes
from posbench.data import prepare
from posbench.evaluation.protocol import ReadVolume
from posbench.results.evaluation import load_evaluation
from posbench.sweep.cost import Timing, duration_words
from posbench.sweep.dry_run import check_devices
from posbench.sweep.jobs import Job, plan_jobs
from posbench.sweep.launch import launch_one
from posbench.sweep.verdict import judge_job
from posbench.tools.advice.plan import node
from posbench.tools.request import METHODS, one_model

SCRIPT = "scripts/look.py"
EVALUATE = ("split", "documents", "dtype", "seed", "batch_tokens")  # that the time leaves open
SPARE = 0.15  # share of the time that no plan uses
LOADING = (
    2.0  # times of planning: the process that evaluates imports as much, and reads the weights
)
REPORT = 8.0  # seconds of a report of a few evaluations
SHORT = 1 / 3  # share of the time below which a plan is carried out at once
AS_IT_IS = "none"
EXTENSIONS = (
    "yarn",
    "pi",
    "rerope",
    "streaming",
)  # those of experiment=pretrained; the first are kept where time is short
BEYOND = (2, 1.75, 1.5, 1.25)  # lengths as multiples of the training length
WITHIN = tuple(2.0**-n for n in range(40))
SHORTEST = 32  # tokens
MOST_TEXTS = 256

Seconds = Callable[[str, int], float]  # of one text: extension and length


def look(request: Request) -> None:
    """Choose what fits into the time, evaluate it, print the picture and write the page."""
    began = time.monotonic()
    cfg = _of_one_model(request)
    (job,) = plan_jobs([cfg])
    if job.config.trains and not job.run.finished:
        raise ConfigError(f"run={cfg['run']} is not a finished training: finish it first.")
    if (
        job.config.data["name"] == "pysource"
        and job.config.train.train_len > LONG
        and not cfg["evaluate"].get("documents")
    ):
        documents = nodes("experiment")["pretrained"]["base"][
            "evaluate.documents"
        ]  # the other long files are tables of numbers
        cfg = {**cfg, "evaluate": {**cfg["evaluate"], "documents": documents}}
    found = FirstLook(cfg, request.launcher, shlex.join(sys.orig_argv), job, began)
    plan = found.chosen()
    print("\n".join(found.described(plan)), file=sys.stderr, flush=True)
    if cfg["dry"]:
        check_devices([job], request.launcher)
        return
    write_json(found.kept, {"asked": found.asked, "length": plan.length, "texts": plan.texts})
    found.show(found.measured(plan))


def _of_one_model(request: Request) -> dict:
    """The one configuration. Raises ConfigError for words that the command chooses itself, and
    where no model is named or installed.
    """
    chosen = f"what {SCRIPT} chooses (by_position, sized by minutes=)"
    cfg = one_model(
        request,
        f"{SCRIPT} looks at",
        "or give run= of the fine-tuned one",
        METHODS,
        EVALUATE,
        chosen,
    )
    if (
        len(named := [word for word in request.words if word.startswith(("model.path=", "run="))])
        > 1
    ):
        raise ConfigError(f"{' and '.join(named)} are {len(named)} models: name one.")
    if cfg["model"].get("engine"):
        raise ConfigError(
            f"{SCRIPT} extends the model itself, which a running engine does not allow: name its"
            " weights."
        )
    if cfg["run"] or cfg["model"]["path"]:
        return cfg
    usual = nodes("experiment")["pretrained"]["base"]["model.path"]
    try:
        wheel_file("model.path", usual)
    except ConfigError as error:
        how = str(error).rpartition(": ")[2]
        raise ConfigError(
            "No model is named: give a folder, a .gguf file or a hub name, or install a small one"
            f" ({how})."
        ) from error
    return {**cfg, "model": {**cfg["model"], "path": usual}}


@dataclass(frozen=True)
class Look:
    """Reading of `texts` of `length` tokens by each of the methods, the model as it is first."""

    length: int
    methods: tuple[str, ...] = (AS_IT_IS,)
    texts: int = 1

    def seconds(self, each: Seconds) -> float:
        return self.texts * sum(each(method, self.length) for method in self.methods)

    def and_extensions(self, names: Sequence[str], each: Seconds, budget: float) -> "Look":
        """With every further one of the extensions that fits into the budget, in their order."""
        look = self
        for name in names:
            more = replace(look, methods=(*look.methods, name))
            if name not in look.methods and more.seconds(each) <= budget:
                look = more
        return look

    def and_texts(self, each: Seconds, budget: float) -> "Look":
        """With as many texts, a power of two, as fit into the budget."""
        look = self
        while 2 * look.texts <= MOST_TEXTS and 2 * look.seconds(each) <= budget:
            look = replace(look, texts=2 * look.texts)
        return look


def choose_look(
    each: Seconds, train_len: int, longest: int, extensions: Sequence[str], budget: float
) -> Look | None:
    """The longest text of up to `longest` tokens that fits into `budget` seconds, with the
    extensions that fit; None if nothing does.

    `extensions`: those that act on the model.
    """
    beyond = dict.fromkeys(min(longest, round(part * train_len)) for part in BEYOND)
    within = dict.fromkeys(min(longest, int(part * train_len)) for part in WITHIN)
    tried = [Look(length, (AS_IT_IS, *extensions[:1])) for length in beyond if length > train_len]
    tried += [Look(length) for length in within if length >= min(SHORTEST, train_len, longest)]
    found = next((look for look in tried if look.seconds(each) <= budget), None)
    return found and found.and_extensions(
        extensions if found.length > train_len else (), each, budget
    )


@dataclass
class FirstLook:
    """A look at the model of `job`, which `cfg` names, begun at a time of time.monotonic()."""

    cfg: dict
    launcher: dict
    command: str
    job: Job
    began: float

    def __post_init__(self) -> None:
        self.train_len, self.timing = self.job.config.train.train_len, Timing([self.job])
        judged = judge_job(self.planned(Look(2 * self.train_len, (AS_IT_IS, *EXTENSIONS))))
        if judged.refused:
            raise ConfigError(judged.refused)
        told = {method_name(cell.extension): one for cell, one in judged.cells.items()}
        self.without = {name: one.reason for name, one in told.items() if one.reason}
        self.extensions = [
            name for name in EXTENSIONS if AS_IT_IS not in self.without and name not in self.without
        ]
        self.loading = LOADING * (time.monotonic() - self.began)
        cfg, glob = self.job.config, self.cfg["evaluate"].get("documents")
        file = getattr(prepare(cfg.data, cfg.cache_dir, (cfg.evaluate.split,)), cfg.evaluate.split)
        lengths = zip(file.names, file.document_lengths(), strict=True)
        self.document = max(
            (int(length) for name, length in lengths if fnmatchcase(name, glob or "*")), default=0
        )
        self.longest = min(
            self.document - 1, self.train_len if AS_IT_IS in self.without else 2 * self.train_len
        )
        if self.longest < 2:
            raise ConfigError(
                f"evaluate.documents={glob} matches no {cfg.evaluate.split} document of"
                f" data={cfg.data['name']}."
            )
        self.name = Path(cfg.model.path or str(self.job.run.path)).name.rpartition(":")[2]
        folder = Path(
            cfg.report_dir or Path(cfg.results_dir).parent / "report" / f"look-{self.job.run.id}"
        )
        self.kept = folder / "look.json"  # the chosen texts, with which the same command goes on
        self.asked = sha256_json([self.job.run.id, self.cfg["minutes"], self.cfg["evaluate"]])
        self.each(AS_IT_IS, self.longest)  # measured now, as a part of the time

    def planned(self, look: Look) -> Job:
        """The job that makes a look."""
        size = {
            "protocol": ["by_position"],
            "lengths": [look.length],
            "max_length": look.length,
            "windows": look.texts,
        }
        evaluate = {**self.cfg["evaluate"], **size}
        (job,) = plan_jobs(
            [
                {**self.cfg, "extension": node("extension", name), "evaluate": evaluate}
                for name in look.methods
            ]
        )
        return job

    def each(self, method: str, length: int) -> float:
        """Estimated seconds of one text."""
        text = ReadVolume(1, length, length, length)
        return self.timing.of_text(
            self.job, self.job.config.evaluate.dtype, node("extension", method), NO_SCALE, text
        )

    def missing(self, look: Look) -> set[str]:
        """Methods of a look that are not evaluated yet."""
        return {method_name(cell.extension) for cell in self.planned(look).cells if cell.missing()}

    def left(self, spare: float = 0.0) -> float:
        """Seconds left for reading, beside what loads a model and writes the page."""
        return (
            60 * self.cfg["minutes"] * (1 - spare)
            - (time.monotonic() - self.began)
            - self.loading
            - REPORT
        )

    def to_read(self, look: Look, slower: float = 1.0) -> Seconds:
        """Estimated seconds of a text of a look, by extension; what is there costs nothing."""
        missing = self.missing(replace(look, methods=(AS_IT_IS, *self.extensions)))
        return lambda method, length: slower * self.each(method, length) * (method in missing)

    def chosen(self) -> Look:
        """The look that fits into the time, with the same texts for the same command as before.
        Raises ConfigError if it allows nothing.
        """
        budget = self.left(SPARE)
        before = read_json(self.kept) if self.kept.exists() else {}
        again = before.get("asked") == self.asked
        if again:
            found = Look(before["length"], texts=before["texts"])
        else:
            found = choose_look(self.each, self.train_len, self.longest, self.extensions, budget)
        if found is None:
            least = min(SHORTEST, self.longest, self.train_len)
            raise ConfigError(
                f"minutes={self.cfg['minutes']:g} are too few on this machine: give"
                f" minutes={self.minutes(Look(least))}."
            )
        found = self.extended(found, budget)
        whole = found.length <= self.train_len or set(self.extensions) <= set(found.methods)
        return (
            found.and_texts(self.each, budget)
            if whole and not again and self.missing(found)
            else found
        )

    def extended(self, look: Look, budget: float, slower: float = 1.0) -> Look:
        """A look with the extensions that fit."""
        names = self.extensions if look.length > self.train_len else ()
        return look.and_extensions(names, self.to_read(look, slower), budget)

    def minutes(self, look: Look) -> int:
        """minutes= with which a look fits."""
        return max(
            1,
            math.ceil(
                (look.seconds(self.each) + 60 * self.cfg["minutes"] - self.left())
                / (1 - SPARE)
                / 60
            ),
        )

    def described(self, look: Look) -> list[str]:
        """Lines that tell what is read, how long it takes, and why not more."""
        whole, missing = Look(2 * self.train_len, (AS_IT_IS, *self.extensions)), self.missing(look)
        texts = (
            f"{look.texts} text{'s' * (look.texts > 1)} of {look.length:,} tokens of"
            f" {self.job.config.data['name']}"
        )
        lines = [
            f"{self.name}, trained to {self.train_len:,} tokens: {texts},"
            f" {', '.join(['as it is', *look.methods[1:]])}"
        ]
        if AS_IT_IS in self.without:
            lines.append(f"not beyond {self.train_len:,} tokens: {self.without[AS_IT_IS]}")
        elif look.length == self.longest < whole.length:
            lines.append(
                f"not to {whole.length:,} tokens, twice the training length: the longest document"
                f" has {self.document:,}"
            )
        elif look.length < whole.length or set(look.methods) < set(whole.methods):
            lines.append(
                f"the whole, {whole.length:,} tokens with all extensions, needs"
                f" minutes={self.minutes(whole)}"
            )
        lines += [
            f"without {one}: {why}"
            for one, why in self.without.items()
            if AS_IT_IS not in self.without
        ]
        if not missing:
            return [*lines, "everything is there already"]
        reading = look.seconds(self.to_read(look))
        told = (
            f"about {duration_words(reading + self.loading + REPORT)} ({duration_words(reading)} of"
            " it reading)"
        )
        return [*lines, f"{told}, by {self.timing.basis}"]

    def measured(self, look: Look) -> Look:
        """Evaluate what is missing, one method before the others if all take long, to see how many
        fit. Returns what was read.
        """
        missing = self.missing(look)
        first, *others = [name for name in look.methods if name in missing] or [None]
        if others and look.seconds(self.to_read(look)) > SHORT * self.left():
            began, look = (
                time.monotonic(),
                replace(look, methods=tuple(name for name in look.methods if name not in others)),
            )
            job = self._launched(look)
            took = next(
                load_evaluation(one.path).rows[0]["seconds"]
                for one in job.cells
                if method_name(one.extension) == first
            )
            self.loading = time.monotonic() - began - took
            slower = took / (look.texts * self.each(first, look.length))
            look = self.extended(look, self.left(), slower)
            lacking = [name for name in self.extensions if name not in look.methods]
            left = (
                look.seconds(self.to_read(look, slower))
                + self.loading * bool(self.missing(look))
                + REPORT
            )
            more = (
                f"; no time is left for {', '.join(lacking)}, which the same command adds later"
                if lacking
                else ""
            )
            print(
                f"that took {duration_words(took)}, {slower:.1f} times the estimate:"
                f" {duration_words(left)} to go{more}",
                file=sys.stderr,
            )
        if self.missing(look):
            self._launched(look)
        return look

    def _launched(self, look: Look) -> Job:
        job = self.planned(look)
        launch_one(job, self.launcher, self.command, good=("done", "exists", "noop"))
        return job

    def show(self, look: Look) -> None:
        """Print the picture and write the report."""
        from posbench.report.bars import PLAIN, loss_bars
        from posbench.report.report import collect
        from posbench.report.write_report import write

        paths = {
            method_name(cell.extension): cell.path
            for cell in self.planned(look).cells
            if cell.path.exists()
        }
        stored = {
            name if name != AS_IT_IS else "as it is": load_evaluation(path).stored
            for name, path in paths.items()
        }
        losses = {
            name: one.at("nll", look.length).astype(np.float64) for name, one in stored.items()
        }
        plain = "utf" not in (sys.stdout.encoding or "").lower()
        print(loss_bars(losses, self.train_len, **({"blocks": PLAIN} if plain else {})))
        made = collect(
            paths.values(), f"{self.name}: loss by position to {look.length:,} tokens", self.command
        )
        print(f"html {write(made, self.kept.parent)[-1]}")
