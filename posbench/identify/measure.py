"""Losses of candidates on the tokens of an engine's rows: the evaluation to explain, the job of the candidates, and what it measured."""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import read_json
from posbench.data import prepare
from posbench.evaluation.protocols import protocol
from posbench.identify.plan import Candidate
from posbench.position.instantiate import trusted_config
from posbench.runs.directory import Run
from posbench.runs.evaluation import Evaluation, load_evaluation
from posbench.runs.target_losses import read_npz
from posbench.sweep.cost_estimate import cost
from posbench.sweep.jobs import Job, plan_jobs, plan_methods
from posbench.sweep.launch import launch_one

if TYPE_CHECKING:
    from posbench.position.interfaces import Encoding

Losses = dict[int, np.ndarray]  # {length: [N, S]}


@dataclass(frozen=True)
class EngineRows:
    """Stored evaluation of an engine: its rows, its run's configuration, and its settings of evaluate."""

    evaluation: Evaluation
    config: dict
    evaluate: dict

    @property
    def protocol(self) -> str:
        return self.evaluation.first["protocol"]

    @property
    def lengths(self) -> list[int]:
        return sorted({row["length"] for row in self.evaluation.rows})

    @property
    def stated(self) -> dict[str, float]:
        """The `factor` and the `original` length that the engine was started with, as far as its run says them."""
        said = self.config["encoding"]
        factor = said.get("rope_scale") or 1 / (said.get("rope_freq_scale") or 1)
        return {**({"factor": factor} if factor > 1 else {}), **({"original": said["yarn_orig_ctx"]} if said.get("yarn_orig_ctx") else {})}

    def losses(self, length: int) -> np.ndarray:
        """Loss of each target at one length [N, S]. Raises ConfigError for losses that are not finite."""
        found = self.evaluation.stored.at("nll", length)
        if missing := int((~np.isfinite(found)).sum()):
            raise ConfigError(
                f"{self.evaluation.path} holds {missing} losses that are not finite at length {length}, which no candidate explains: leave "
                f"it out, as in lengths=[{','.join(str(one) for one in self.lengths if one != length) or 'OTHERS'}]."
            )
        return found

    def window(self, shape: tuple[int, int]) -> np.ndarray:
        """Number of each target's window, for losses of this shape. Consecutive tokens of a document are of one."""
        arrays = self.evaluation.arrays
        if shape[1] > 1:
            return np.broadcast_to(np.arange(shape[0])[:, None], shape)
        apart = (np.diff(arrays["document"]) != 0) | (np.diff(arrays["offset"]) != 1)
        return np.concatenate(([0], np.cumsum(apart)))[:, None]


def engine_rows(given: str) -> EngineRows:
    """The one evaluation of a run, or that of an eval json. Raises ConfigError where there is none or several."""
    path = Path(given)
    run = Run(path.parents[2] if path.is_file() and len(path.parents) > 2 else path)
    if not run.has_config:
        raise ConfigError(f"engine={given} is neither the folder of a run nor one of its evals/PROTOCOL/NAME.json: give one of them.")
    config = trusted_config(run)
    found = [load_evaluation(one) for one in ([path] if path.is_file() else run.eval_files())]
    found = [one for one in found if one.arrays and one.setting and not protocol(one.first["protocol"]).asks]
    if not path.is_file():
        found = [one for one in found if one.first["extension"] != "recompute_window"]
    if not found:
        raise ConfigError(f"engine={given} holds no losses of single tokens of a text: let that engine evaluate fixed_targets first.")
    if len(found) > 1:
        files = " or ".join(str(one.path) for one in found[:3])
        raise ConfigError(f"engine={given} holds {len(found)} evaluations: name the file of one of them, such as {files}.")
    return EngineRows(found[0], config, read_json(found[0].path)["config"]["evaluate"])


@dataclass
class Measurement:
    """The candidates of the one model that `cfg` names, on the tokens of `engine` at some lengths.

    `equal`: {candidate: itself and those of the very same plans at all lengths}; `left_out`: {candidate: why it is not defined}.
    """

    cfg: dict
    engine: EngineRows
    lengths: Sequence[int]
    equal: dict[str, list[Candidate]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @cached_property
    def job(self) -> Job:
        """The job without a candidate."""
        (job,) = plan_jobs([self.cfg])
        return job

    @property
    def original(self) -> int:
        """Training length in tokens, before a scaling of the checkpoint's own."""
        return self.job.cfg.train.train_len

    @cached_property
    def encoding(self) -> "Encoding":
        from posbench.model.build import make_encoding

        return make_encoding(self.job.cfg)

    def check_tokens(self) -> None:
        """Check that the weights' tokenizer finds the engine's targets in the text, before anything is evaluated. Raises ConfigError."""
        from posbench.data.corpus import fit_corpus

        (cell,), arrays = self.job.cells, self.engine.evaluation.arrays
        kind, asked, cfg = protocol(cell.protocol), cell.evaluate, self.job.cfg
        corpus = fit_corpus(prepare(cfg.data, cfg.cache_dir, (asked.split,)), cfg)
        if kind.keys or asked.text:
            return  # only the evaluation itself knows its targets: `losses` compares them
        windows = kind.place(getattr(corpus, asked.split), asked, cfg.train.train_len)
        document, offset, size = windows.document_N, windows.offset_NS(), None
        if kind.nested:
            offset = offset[:, -1:] - asked.max_length + 1
        else:
            document = np.repeat(document, windows.n_targets)
            size = read_npz(self.engine.evaluation.path.with_suffix(".npz"), ("bytes",)).get("bytes")
        same = np.array_equal(arrays["document"], document) and np.array_equal(arrays["offset"], offset.ravel())
        if not same or (size is not None and not np.array_equal(size, np.asarray(windows.file.n_bytes)[windows.targets_NS].ravel())):
            raise self._other_tokens()

    def _other_tokens(self) -> ConfigError:
        path, text = self.engine.evaluation.path, self.job.cfg.data["name"]
        return ConfigError(
            f"{path} scored other tokens than {self.job.cfg.model.path} reads in data={text}: give the weights of that engine, or its text "
            "(data=NAME data.path=PATH)."
        )

    def served(self, found: Sequence[Candidate]) -> dict[tuple[str, int], tuple[str, int]]:
        """The methods that serve each candidate at each length. Equal candidates are merged; equal plans of a length are evaluated once."""
        from posbench.position.effect import fingerprint
        from posbench.position.instantiate import make
        from posbench.position.legality import check
        from posbench.position.plan import make_plan

        served, marks, first = {}, {}, {}
        self.equal, self.left_out = {}, {}
        for one in found:
            try:
                extension, scale = make(one.extension), make(one.scale, self.encoding.shape)
                check(self.encoding, extension, scale, list(self.lengths), allow_untested=True)
                read = [min(length, one.cut or length) for length in self.lengths]
                marks[one.name] = [fingerprint(make_plan(self.encoding, extension, scale, length=length)) for length in read]
            except ConfigError as error:
                self.left_out[one.name] = str(error)
                continue
            if same := next((name for name in self.equal if marks[name] == marks[one.name]), None):
                self.equal[same].append(one)
                continue
            self.equal[one.name] = [one]
            methods = json.dumps([one.extension, one.scale])
            for length, tokens, mark in zip(self.lengths, read, marks[one.name], strict=True):
                served[one.name, length] = first.setdefault(mark, (methods, tokens))
        if len(self.equal) < 2:
            raise ConfigError(
                f"all candidates are the same up to {max(self.lengths):,} tokens: let the engine read texts beyond the training length of "
                f"{self.job.cfg.train.train_len:,}."
            )
        return served

    def described(self, found: Sequence[Candidate]) -> list[str]:
        """Lines for dry=true: the candidates, and the cost of what is missing."""
        job, cells = plan_methods(self.cfg, self.served(found).values())
        lines = [f"{name}: {'; the same: '.join(one.words for one in same)}" for name, same in self.equal.items()]
        lines += [f"left out: {name}: {why}" for name, why in self.left_out.items()]
        missing = [(job, cell, left) for cell in cells.values() if (left := cell.missing())]
        return lines + cost([job], [] if job.run.finished else [job], missing)

    def losses(self, found: Sequence[Candidate], launcher: dict, command: str) -> dict[str, Losses]:
        """{candidate: its losses}, after what is missing was evaluated. Raises RunError if that failed, ConfigError for other tokens."""
        served = self.served(found)
        job, cells = plan_methods(self.cfg, served.values())
        if missing := sum(len(cell.missing()) for cell in job.cells):
            print(f"{len(self.equal)} candidates: {missing} evaluations to make", file=sys.stderr, flush=True)
        launch_one(job, launcher, command)
        read = {methods: load_evaluation(cell.path) for methods, cell in cells.items()}
        if not all(one.same_targets(self.engine.evaluation) for one in read.values()):
            raise self._other_tokens()
        losses: dict[str, Losses] = defaultdict(dict)
        for (name, length), (methods, tokens) in served.items():
            losses[name][length] = read[methods].stored.at("nll", tokens)
        return dict(losses)
