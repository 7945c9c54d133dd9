"""Evaluation of one cell: run its protocol at each missing length and write the rows and arrays."""

import functools
import sys
from dataclasses import replace

from posbench.common.files import read_json, write_json
from posbench.common.progress import Progress
from posbench.config import identity
from posbench.data.corpus import Corpus
from posbench.engines.ask import EngineModel, EngineScorer
from posbench.evaluation.protocol import Protocol
from posbench.evaluation.scorer import Scorer
from posbench.model.build import load_model
from posbench.model.gpt import GPT
from posbench.position.instantiate import trained_config
from posbench.runs import provenance, rows
from posbench.runs.directory import Run
from posbench.runs.partial_evaluation import PART, PartialEvaluation
from posbench.runs.target_losses import load_arrays, save_arrays
from posbench.sweep.cells import EvaluationCell
from posbench.sweep.cost import model_size
from posbench.sweep.jobs import Job


def cell_evaluation(
    model: GPT | EngineModel, corpus: Corpus, cell: EvaluationCell, device: str
) -> Scorer:
    """Inputs of the protocol of a cell: model, text, methods and settings.

    They include the model that chooses the targets if it is another.
    """
    extension, scale = cell.methods(model.encoding.shape)
    kind = EngineScorer if isinstance(model, EngineModel) else Scorer
    scorer = kind(model, corpus, extension, scale, cell.evaluate, device)
    if not cell.evaluate.key_run:
        return scorer
    run = Run(cell.evaluate.key_run["path"])
    chooser = load_model(run, trained_config(run), corpus.vocab_size, device)
    return replace(scorer, chooser=chooser)


def progress_of(job: Job, evaluators: list[Protocol], lengths: list[list[int]]) -> Progress:
    """Progress of evaluations in tokens.

    Remaining time is estimated by FLOP, since short texts predict long ones badly.
    """
    total = 0
    flop = 0.0
    for evaluator, missing in zip(evaluators, lengths, strict=True):
        first_tokens = evaluator.cost_first()
        for text in evaluator.texts(missing):
            tokens = evaluator.cost(text) + first_tokens
            first_tokens = 0
            total += tokens
            flop += tokens * per_token(job, evaluator, text)
    return Progress(total, "evaluate", "tokens", flop)


def per_token(job: Job, evaluator: Protocol, length: int) -> float:
    """FLOP per token that is read for one length, keys that an extension hides included."""
    return model_size(job.config).per_token(evaluator.evaluation.fed(length))


def evaluate(
    job: Job, evaluator: Protocol, cell: EvaluationCell, untested: bool, progress: Progress
) -> list[dict]:
    """Evaluate the missing lengths of a cell and return the new rows. After each length the file is
    written with all rows so far.

    Texts of a long length are kept as they come, so that the same command goes on after them.
    """
    given, passes = evaluator.evaluation, evaluator.texts(cell.missing())
    arrays_path, new = cell.path.with_suffix(".npz"), []
    kept = read_json(cell.path) if cell.path.exists() else {}
    table = rows.eval_rows(kept, cell.path) if kept else []
    rows.check_digest(kept, cell.path)
    known = {
        name: dict(kept.get(name) or {}) for name in ("machines", "texts", "depths", "guesses")
    }
    arrays = load_arrays(arrays_path) if table else {}
    machine = provenance.machine(given.device)
    given.partial = PartialEvaluation(
        cell.path.with_suffix(PART), {"code": list(provenance.code()), "machine": machine}
    )
    method = f"{identity.method_name(cell.extension)}+{identity.method_name(cell.scale_attention)}"
    settings = {"protocol": cell.protocol, "version": evaluator.version_of(cell.evaluate)}
    settings |= {
        "extension": cell.extension,
        "scale_attention": cell.scale_attention,
        "evaluate": vars(cell.evaluate),
    }
    if evaluator.nested and len(passes) > 1:
        each = (
            f"a pass for each of {', '.join(map(str, passes))} tokens, since the method depends on"
            " the length"
        )
        print(f"{cell.protocol} {method}: {each}", file=sys.stderr, flush=True)
    for text, length in [(text, length) for text, lengths in passes.items() for length in lengths]:
        tokens, each = (
            evaluator.cost(text) * (text == length) + evaluator.cost_first(),
            per_token(job, evaluator, text),
        )
        until = progress.done + tokens
        given.progress = functools.partial(progress.update, each=each, method=method, length=length)
        values, arrays[length] = evaluator.run(length)
        settings |= evaluator.target_facts()
        progress.update(
            until - progress.done, each=each, spared=True
        )  # where the evaluator reused earlier results
        found = make_rows(values, job, cell, untested, given, length)
        new += found
        table = sorted(table + found, key=row_order)
        shared = evaluator.shared()
        if cell.evaluate.unit != "document":
            shared = {**shared, "unit": evaluator.windows.unit_D[shared["document"]]}
        # Arrays come first, since a json without arrays would count as done.
        save_arrays(arrays_path, shared, arrays)
        for name, fact in (
            {"machines": machine}
            | ({"texts": text} if evaluator.nested else {})
            | evaluator.length_facts()
        ).items():
            known[name][str(length)] = fact
        write_json(
            cell.path,
            rows.eval_content(
                table, settings, **{name: found for name, found in known.items() if found}
            ),
        )
        given.partial.end()
    return sorted(new, key=row_order)


def row_order(row: dict) -> tuple[int, int]:
    """Key by which the rows of a file are sorted: length, then position."""
    return row["length"], row["position"] or 0


def make_rows(
    values: list[dict],
    job: Job,
    cell: EvaluationCell,
    untested: bool,
    evaluation: Scorer,
    length: int,
) -> list[dict]:
    """Complete rows from what a protocol measured at one length (`values` of Protocol.run)."""
    shared = {
        "run_id": job.run.id,
        "eval_id": cell.eval_id,
        "encoding": identity.method_name(job.config.encoding),
        "encoding_args": identity.method_args(job.config.encoding),
        "extension": identity.method_name(cell.extension),
        "extension_args": identity.method_args(cell.extension),
        "scale_attention": identity.method_label(cell.scale_attention, "scale_attention"),
        "trained_scale": identity.method_label(job.config.train.scale_attention, "scale_attention"),
        "finetune": (job.config.train.parent or {}).get("run_id"),
        "untested": untested,
        "seed": job.config.seed,
        "data": evaluation.corpus.name,
        "tokenizer": evaluation.corpus.tokenizer,
        "dtype": evaluation.dtype,
        "train_len": evaluation.train_len,
        "length": length,
        "target_len": int(evaluation.extension.target_len(length)),
        "protocol": cell.protocol,
        "depth": None,
        "commit": provenance.commit(),
    }
    return [
        rows.make_row(**{**shared, "position": None, "task": None, **value}) for value in values
    ]
