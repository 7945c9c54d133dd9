"""Losses of candidates on the tokens of an engine's rows: the evaluation to explain, the job of the
candidates, and what it measured.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import read_json
from posbench.evaluation.protocol import protocol
from posbench.position.instantiate import trusted_config
from posbench.results.evaluation import Evaluation, load_evaluation
from posbench.runs.directory import Run
from posbench.sweep.jobs import Job
from posbench.sweep.launch import measure_methods
from posbench.tools.identify.plan import Candidate

Losses = dict[int, np.ndarray]  # {length: [N, S]}


@dataclass(frozen=True)
class EngineRows:
    """Stored evaluation of an engine: its rows, its run's configuration, and its settings of
    evaluate.
    """

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
        """The `factor` and the `original` length that the engine was started with, as far as its
        run says them.
        """
        said = self.config["encoding"]
        factor = said.get("rope_scale") or 1 / (said.get("rope_freq_scale") or 1)
        return {
            **({"factor": factor} if factor > 1 else {}),
            **({"original": said["yarn_orig_ctx"]} if said.get("yarn_orig_ctx") else {}),
        }

    def losses(self, length: int) -> np.ndarray:
        """Loss of each target at one length [N, S]. Raises ConfigError without them, and for some
        that are not finite.
        """
        found = self.evaluation.stored.at("nll", length)
        if found is None:
            there = ",".join(map(str, self.lengths))
            raise ConfigError(
                f"lengths={length}: {self.evaluation.path} has no rows of {length}: choose from"
                f" {there}."
            )
        if missing := int((~np.isfinite(found)).sum()):
            raise ConfigError(
                f"{self.evaluation.path} holds {missing} losses that are not finite at {length}:"
                " leave it out of lengths=."
            )
        return found

    def window(self, shape: tuple[int, int]) -> np.ndarray:
        """Number of each target's window, for losses of this shape. Consecutive tokens of a
        document are of one.
        """
        arrays = self.evaluation.arrays
        if shape[1] > 1:
            return np.broadcast_to(np.arange(shape[0])[:, None], shape)
        apart = (np.diff(arrays["document"]) != 0) | (np.diff(arrays["offset"]) != 1)
        return np.concatenate(([0], np.cumsum(apart)))[:, None]


def engine_rows(given: str) -> EngineRows:
    """The one evaluation of a run, or that of an eval json. Raises ConfigError where there is none
    or several.
    """
    path = Path(given)
    run = Run(path.parents[2] if path.is_file() and len(path.parents) > 2 else path)
    if not run.has_config:
        raise ConfigError(
            f"engine={given} is neither the folder of a run nor one of its"
            " evals/PROTOCOL/NAME.json: give one of them."
        )
    config = trusted_config(run)
    found = [load_evaluation(one) for one in ([path] if path.is_file() else run.eval_files())]
    found = [
        one
        for one in found
        if one.arrays and one.setting and not protocol(one.first["protocol"]).asks
    ]
    if not path.is_file():
        found = [one for one in found if one.first["extension"] != "recompute_window"]
    if not found:
        raise ConfigError(
            f"engine={given} holds no losses of single tokens of a text: let that engine evaluate"
            " fixed_targets first."
        )
    if len(found) > 1:
        files = " or ".join(str(one.path) for one in found[:3])
        raise ConfigError(
            f"engine={given} holds {len(found)} evaluations: name the file of one of them, such as"
            f" {files}."
        )
    return EngineRows(found[0], config, read_json(found[0].path)["config"]["evaluate"])


def serve(
    job: Job, lengths: Sequence[int], listed: Sequence[Candidate]
) -> tuple[dict[tuple[str, int], tuple[str, int]], dict[str, list[Candidate]], dict[str, str]]:
    """Evaluations that serve the candidates of a model at some lengths, equal candidates, and those
    that are not defined with the reason.

    {(candidate, length): (its methods as JSON, tokens that they read)}, of equal plans of a length
    the same; {candidate: itself and those of the very same plans at all lengths}; {candidate:
    reason}. Raises ConfigError if all are equal."""
    from posbench.model.build import make_encoding
    from posbench.position.effect import fingerprint
    from posbench.position.instantiate import make
    from posbench.position.legality import check
    from posbench.position.plan import make_plan

    encoding, marks, first, served, equal, left_out = make_encoding(job.config), {}, {}, {}, {}, {}
    for one in listed:
        try:
            extension, scale = make(one.extension), make(one.scale, encoding.shape)
            check(encoding, extension, scale, list(lengths), allow_untested=True)
            read = [min(length, one.cut or length) for length in lengths]
            marks[one.name] = [
                fingerprint(make_plan(encoding, extension, scale, length=length)) for length in read
            ]
        except ConfigError as error:
            left_out[one.name] = str(error)
            continue
        same = next((name for name in equal if marks[name] == marks[one.name]), one.name)
        equal.setdefault(same, []).append(one)
        if same == one.name:
            methods = json.dumps([one.extension, one.scale])
            for length, tokens, mark in zip(lengths, read, marks[one.name], strict=True):
                served[one.name, length] = first.setdefault(mark, (methods, tokens))
    if len(equal) < 2:
        beyond = f"let the engine read texts beyond the training length of {job.config.train.train_len:,}"
        raise ConfigError(f"all candidates are the same up to {max(lengths):,} tokens: {beyond}.")
    return served, equal, left_out


def candidate_losses(
    cfg: dict, engine: Evaluation, served: dict, launcher: dict, command: str
) -> dict[str, Losses]:
    """{candidate: its losses}, after what is missing was evaluated, one candidate first to compare
    its tokens with the engine's.

    Raises RunError if that failed, ConfigError for other tokens.
    """
    losses: dict[str, Losses] = defaultdict(dict)
    first = (
        dict([*served.items()][:1]),
        "the first candidate, whose tokens are compared before the others are read",
    )
    for part, title in (first, (served, f"{len({name for name, _ in served})} candidates")):
        read = measure_methods(cfg, part.values(), launcher, command, title)
        if any(one.stored.documents != engine.stored.documents for one in read.values()):
            ours = f"{cfg['model']['path']} reads in data={cfg['data']['name']}"
            raise ConfigError(
                f"{engine.path} scored other tokens than {ours}: give that engine's weights or text"
                " (data=, data.path=)."
            )
    for (name, length), (methods, tokens) in served.items():
        losses[name][length] = read[methods].stored.at("nll", tokens)
    return losses
