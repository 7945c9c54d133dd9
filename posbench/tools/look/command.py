"""Command of scripts/look.py: loss of a model by position, as it is and extended, in a given time.

A text is as long as can be, up to twice the training length, with the model as it is and at least
one extension; then come the other extensions, then more texts. Within the training length the model
is read as it is alone, since extensions change nothing there. The evaluations are stored as any
others are. The model is read as it is first; how long that took decides which extensions follow.
"""

import math
import shlex
import sys
import time
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import read_json, sha256_json, write_json
from posbench.common.quantities import duration_words, plural
from posbench.common.wheel_file import wheel_file
from posbench.config.compose import Request
from posbench.config.defaults import LONG_TRAINING
from posbench.config.identity import NO_SCALE, method_name
from posbench.config.names import shipped_yamls
from posbench.data import prepare
from posbench.data.tokenfile import TokenFile
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.registry import protocol
from posbench.results.evaluation import load_evaluation
from posbench.sweep.cost import Timing
from posbench.sweep.dry_run import check_devices
from posbench.sweep.jobs import Job, plan_jobs
from posbench.sweep.launch import launch_one
from posbench.sweep.verdict import judge_job
from posbench.tools.advice.plan import method_node
from posbench.tools.look.choice import AS_IT_IS, SHORTEST_TEXT, Look, Seconds, choose_look
from posbench.tools.request import METHOD_GROUPS, single_model_request

SCRIPT = "scripts/look.py"
EVALUATE_KEYS = ("split", "documents", "dtype", "seed", "batch_tokens")  # that the time leaves open
SPARE_SHARE = 0.15  # share of the time that no plan uses
# Times of planning: the process that evaluates imports as much, and reads the weights.
LOADING_PER_PLANNING = 2.0
REPORT_SECONDS = 8.0  # seconds of a report of a few evaluations
SHORT_SHARE = 1 / 3  # share of the time below which a plan is carried out at once
# Those of experiment=pretrained; the first are kept where time is short.
EXTENSIONS = ("yarn", "pi", "rerope", "streaming")


def look(request: Request) -> None:
    """Choose what fits into the time, evaluate it, print the picture and write the page."""
    began = time.monotonic()
    config = _of_one_model(request)
    (job,) = plan_jobs([config])
    if job.config.trains and not job.run.finished:
        raise ConfigError(f"run={config['run']} is not a finished training: finish it first.")
    if (
        job.config.data["name"] == "pysource"
        and job.config.train.train_len > LONG_TRAINING
        and not config["evaluate"].get("documents")
    ):
        # Of the long files of pysource only these are prose or code, the others tables of numbers.
        documents = shipped_yamls("experiment")["pretrained"]["base"]["evaluate.documents"]
        config = {**config, "evaluate": {**config["evaluate"], "documents": documents}}
    first_look = FirstLook(config, request.launcher, shlex.join(sys.orig_argv), job, began)
    chosen = first_look.choose()
    print("\n".join(first_look.plan_lines(chosen)), file=sys.stderr, flush=True)
    if config["dry"]:
        check_devices([job], request.launcher)
        return
    first_look.write_choice(chosen)
    first_look.show(first_look.measure(chosen))


def _of_one_model(request: Request) -> dict:
    """The one configuration, of an installed model where none is named.

    Raises ConfigError for words that the command chooses itself, and without any model.
    """
    config = single_model_request(
        request,
        script_does=f"{SCRIPT} looks at",
        without_tuning="or give run= of the fine-tuned one",
        reserved_keys=METHOD_GROUPS,
        allowed_evaluate_keys=EVALUATE_KEYS,
        why_reserved=f"what {SCRIPT} chooses (by_position, sized by minutes=)",
    )
    models = [word for word in request.words if word.startswith(("model.path=", "run="))]
    if len(models) > 1:
        raise ConfigError(f"{' and '.join(models)} are {len(models)} models: name one.")
    if config["model"].get("engine"):
        raise ConfigError(
            f"{SCRIPT} extends the model itself, which a running engine does not allow: name its"
            " weights."
        )
    if config["run"] or config["model"]["path"]:
        return config
    installed = shipped_yamls("experiment")["pretrained"]["base"]["model.path"]
    try:
        wheel_file("model.path", installed)
    except ConfigError as error:
        way_out = str(error).rpartition(": ")[2]  # the end of the message says what to install
        raise ConfigError(
            "No model is named: give a folder, a .gguf file or a hub name, or install a small one"
            f" ({way_out})."
        ) from error
    return {**config, "model": {**config["model"], "path": installed}}


@dataclass
class FirstLook:
    """A look at the model of `job`, which `raw` describes, begun at a time of time.monotonic()."""

    raw: dict
    launcher: dict
    command: str
    job: Job
    began: float

    def __post_init__(self) -> None:
        config = self.job.config
        self.train_len = config.train.train_len
        self.timing = Timing([self.job])
        self.left_out = self._reasons_without_effect()
        # Refused beyond training as it is, such as for a table that ends: no text goes further.
        ends_at_training = AS_IT_IS in self.left_out
        self.extensions = []
        if not ends_at_training:
            self.extensions = [name for name in EXTENSIONS if name not in self.left_out]
        # Planning has imported what the evaluating process will, which also reads the weights.
        self.loading_seconds = LOADING_PER_PLANNING * (time.monotonic() - self.began)
        self.longest_document = self._longest_document()
        # At most twice the training length, as the module's docstring says.
        reach = self.train_len if ends_at_training else 2 * self.train_len
        # a text and the token behind its last one
        self.longest = min(self.longest_document - 1, reach)
        if self.longest < 2:  # -1 without a document; a shorter text has no loss behind a token
            raise ConfigError(
                f"evaluate.documents={self.raw['evaluate'].get('documents')} matches no"
                f" {config.evaluate.split} document of data={config.data['name']}."
            )
        # The path of a model in a wheel is NAME@VERSION:FILE.
        self.name = Path(config.model.path or str(self.job.run.path)).name.rpartition(":")[2]
        reports = Path(config.results_dir).parent / "report"
        folder = Path(config.report_dir or reports / f"look-{self.job.run.id}")
        # The chosen texts, with which the same command goes on.
        self.choice_file = folder / "look.json"
        self.identity = sha256_json([self.job.run.id, self.raw["minutes"], self.raw["evaluate"]])
        self.seconds_of_text(AS_IT_IS, self.longest)  # measured now, as a part of the time

    def _reasons_without_effect(self) -> dict[str, str]:
        """{extension that does not act on this model: reason}."""
        verdict = judge_job(self.job_of(Look(2 * self.train_len, (AS_IT_IS, *EXTENSIONS))))
        if verdict.refused:
            raise ConfigError(verdict.refused)
        reasons = {method_name(cell.extension): of.reason for cell, of in verdict.cells.items()}
        return {name: reason for name, reason in reasons.items() if reason}

    @cached_property
    def tokens(self) -> TokenFile:
        """Tokens of the documents that texts are taken of."""
        config = self.job.config
        split = config.evaluate.split
        return getattr(prepare(config.data, config.cache_dir, (split,)), split)

    def _longest_document(self) -> int:
        """Tokens of the longest document that may be read; 0 without any."""
        pattern = self.raw["evaluate"].get("documents") or "*"
        longest = 0
        document_lengths = self.tokens.document_lengths()
        for name, length in zip(self.tokens.names, document_lengths, strict=True):
            if fnmatchcase(name, pattern):
                longest = max(longest, int(length))
        return longest

    def job_of(self, look: Look) -> Job:
        """The job that makes a look."""
        evaluate = {
            **self.raw["evaluate"],
            "protocol": ["by_position"],
            "lengths": [look.length],
            "max_length": look.length,
            "windows": look.n_texts,
        }
        configs = []
        for name in look.methods:
            extension = method_node("extension", name)
            configs.append({**self.raw, "extension": extension, "evaluate": evaluate})
        (job,) = plan_jobs(configs)
        return job

    def seconds_of_text(self, method: str, length: int) -> float:
        """Estimated seconds of one text."""
        volume = ReadVolume(
            texts=1, tokens_per_text=length, rows_per_text=length, total_losses=length
        )
        dtype = self.job.config.evaluate.dtype
        return self.timing.seconds_of_text(
            self.job, dtype, method_node("extension", method), NO_SCALE, volume
        )

    def methods_to_evaluate(self, look: Look) -> set[str]:
        """Methods of a look that are not evaluated yet."""
        return {
            method_name(cell.extension)
            for cell in self.job_of(look).cells
            if cell.missing_lengths()
        }

    def seconds_left(self, spare: float = 0.0) -> float:
        """Seconds left for reading, beside what loads a model and writes the page."""
        available = 60 * self.raw["minutes"] * (1 - spare)
        return available - (time.monotonic() - self.began) - self.loading_seconds - REPORT_SECONDS

    def seconds_by_method(self, look: Look, slower: float = 1.0) -> Seconds:
        """Function of a method and a length: estimated seconds of reading a text, 0 if its
        evaluation is stored.
        """
        missing = self.methods_to_evaluate(replace(look, methods=(AS_IT_IS, *self.extensions)))

        def seconds(method: str, length: int) -> float:
            return slower * self.seconds_of_text(method, length) if method in missing else 0.0

        return seconds

    def choose(self) -> Look:
        """The look that fits into the time, with the same texts for the same command as before.

        Raises ConfigError if the time allows nothing.
        """
        budget = self.seconds_left(SPARE_SHARE)
        stored = read_json(self.choice_file) if self.choice_file.exists() else {}
        if stored.get("asked") == self.identity:
            return self.with_fitting_extensions(
                Look(stored["length"], n_texts=stored["texts"]), budget
            )
        look = choose_look(
            self.seconds_of_text, self.train_len, self.longest, self.extensions, budget
        )
        if look is None:
            least = Look(min(SHORTEST_TEXT, self.longest, self.train_len))
            raise ConfigError(
                f"minutes={self.raw['minutes']:g} are too few on this machine: give"
                f" minutes={self.minutes_needed(least)}."
            )
        look = self.with_fitting_extensions(look, budget)
        # The same command reads the same texts again, with methods that it adds. So more texts are
        # read only where no more methods can come: up to the training length, where extensions do
        # nothing, or with all of them.
        has_all_methods = set(self.extensions) <= set(look.methods)
        methods_are_final = look.length <= self.train_len or has_all_methods
        # Where all results are there already, their texts stay too.
        if methods_are_final and self.methods_to_evaluate(look):
            look = look.and_texts(self.seconds_of_text, budget)
        return replace(look, n_texts=self.texts_with_room(look))

    def texts_with_room(self, look: Look) -> int:
        """Number of texts that the evaluations of a look read: fewer of few documents."""
        evaluate = self.job_of(look).config.evaluate
        windows = protocol("by_position").place_windows(self.tokens, evaluate, self.train_len)
        return len(windows.last_N)

    def write_choice(self, look: Look) -> None:
        """Write down the texts, for the next call of the same command."""
        choice = {"asked": self.identity, "length": look.length, "texts": look.n_texts}
        write_json(self.choice_file, choice)

    def with_fitting_extensions(self, look: Look, budget: float, slower: float = 1.0) -> Look:
        """A look with the extensions that fit."""
        names = self.extensions if look.length > self.train_len else ()
        return look.and_extensions(names, self.seconds_by_method(look, slower), budget)

    def minutes_needed(self, look: Look) -> int:
        """minutes= with which a look fits."""
        used = 60 * self.raw["minutes"] - self.seconds_left()
        seconds = (look.seconds(self.seconds_of_text) + used) / (1 - SPARE_SHARE)
        return max(1, math.ceil(seconds / 60))

    def plan_lines(self, look: Look) -> list[str]:
        """Lines on what is read, how long it takes, and why not more."""
        texts = plural(look.n_texts, "text")
        texts += f" of {look.length:,} tokens of {self.job.config.data['name']}"
        methods = ", ".join(["as it is", *look.methods[1:]])
        lines = [f"{self.name}, trained to {self.train_len:,} tokens: {texts}, {methods}"]
        lines += self._limit_lines(look)
        if not self.methods_to_evaluate(look):
            return [*lines, "everything is there already"]
        reading = look.seconds(self.seconds_by_method(look))
        duration = duration_words(reading + self.loading_seconds + REPORT_SECONDS)
        of_it = f"{duration_words(reading)} of it reading"
        return [*lines, f"about {duration} ({of_it}), by {self.timing.basis}"]

    def _limit_lines(self, look: Look) -> list[str]:
        """Lines on what is not read, and why."""
        full_look = Look(2 * self.train_len, (AS_IT_IS, *self.extensions))
        if AS_IT_IS in self.left_out:
            return [f"not beyond {self.train_len:,} tokens: {self.left_out[AS_IT_IS]}"]
        lines = []
        # `longest` is a token less than its document, whose last token is only predicted.
        documents_end = look.length == self.longest < full_look.length
        if documents_end:
            lines.append(
                f"not to {full_look.length:,} tokens, twice the training length: the longest"
                f" document has {self.longest_document:,}"
            )
        elif look.length < full_look.length or set(look.methods) < set(full_look.methods):
            lines.append(
                f"the whole, {full_look.length:,} tokens with all extensions, needs"
                f" minutes={self.minutes_needed(full_look)}"
            )
        lines += [f"without {name}: {reason}" for name, reason in self.left_out.items()]
        return lines

    def measure(self, look: Look) -> Look:
        """Evaluate what is missing. Returns the look that was read.

        If all takes long, one method comes before the others, to see how many fit.
        """
        missing = self.methods_to_evaluate(look)
        to_do = [name for name in look.methods if name in missing]
        if (
            len(to_do) > 1
            and look.seconds(self.seconds_by_method(look)) > SHORT_SHARE * self.seconds_left()
        ):
            others = to_do[1:]
            look = replace(look, methods=tuple(m for m in look.methods if m not in others))
            look = self._measure_first(look, to_do[0])  # which adds the others that still fit
        if self.methods_to_evaluate(look):
            self._launch(look)
        return look

    def _measure_first(self, look: Look, method: str) -> Look:
        """Evaluate a look of which one method is missing; then extend it by what still fits."""
        began = time.monotonic()
        job = self._launch(look)
        (path,) = [cell.path for cell in job.cells if method_name(cell.extension) == method]
        seconds = load_evaluation(path).rows[0]["seconds"]
        self.loading_seconds = time.monotonic() - began - seconds
        slower = seconds / (look.n_texts * self.seconds_of_text(method, look.length))
        look = self.with_fitting_extensions(look, self.seconds_left(), slower)
        to_go = look.seconds(self.seconds_by_method(look, slower)) + REPORT_SECONDS
        if self.methods_to_evaluate(look):  # another job will load the model again
            to_go += self.loading_seconds
        message = (
            f"that took {duration_words(seconds)}, {slower:.1f} times the estimate:"
            f" {duration_words(to_go)} to go"
        )
        lacking = [name for name in self.extensions if name not in look.methods]
        if lacking:
            names = ", ".join(lacking)
            message += f"; no time is left for {names}, which the same command adds later"
        print(message, file=sys.stderr)
        return look

    def _launch(self, look: Look) -> Job:
        """Evaluate what is missing of a look, and return its job. Raises RunError if that fails."""
        job = self.job_of(look)
        launch_one(job, self.launcher, self.command, good=("done", "exists", "noop"))
        return job

    def show(self, look: Look) -> None:
        """Print the picture and write the report."""
        from posbench.report.bars import PLAIN_BLOCKS, loss_bars
        from posbench.report.report import collect_report
        from posbench.report.write_report import PAGE, write_report

        paths = []
        losses = {}  # {method: losses [N, T]}
        for cell in self.job_of(look).cells:
            if cell.path.exists():
                name = method_name(cell.extension)
                stored = load_evaluation(cell.path).stored.at("nll", look.length)
                losses["as it is" if name == AS_IT_IS else name] = stored.astype(np.float64)
                paths.append(cell.path)
        unicode = "utf" in (sys.stdout.encoding or "").lower()
        blocks = {} if unicode else {"blocks": PLAIN_BLOCKS}
        print(loss_bars(losses, self.train_len, **blocks))
        title = f"{self.name}: loss by position to {look.length:,} tokens"
        report_dir = self.choice_file.parent
        write_report(collect_report(paths, title, self.command), report_dir)
        print(f"html {report_dir / PAGE}")
