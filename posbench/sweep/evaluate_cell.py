"""Evaluation of one cell: run its protocol at each missing length and write the rows and arrays."""

import functools
import sys
from dataclasses import replace
from pathlib import Path

from posbench.common.files import read_json, write_json
from posbench.common.progress import Progress
from posbench.config import identity
from posbench.data.corpus import Corpus
from posbench.engines.ask import EngineModel, EngineScorer
from posbench.evaluation.protocol import Protocol
from posbench.evaluation.scorer import Scorer
from posbench.model.build import load_model
from posbench.model.gpt import GPT
from posbench.position.trusted import trained_config
from posbench.runs import provenance, rows
from posbench.runs.directory import Run
from posbench.runs.partial_evaluation import PART_ENDING, PartialEvaluation
from posbench.runs.target_losses import load_arrays, save_arrays
from posbench.sweep.cells import EvaluationCell
from posbench.sweep.cost import model_size
from posbench.sweep.jobs import Job

# Facts of single lengths, in the file of a cell.
# machines: of each length.
# texts: of by_position, the length of the text that was read.
# depths: of a text task, the least, mean and largest share of the haystack before the item.
# guesses: of a task of single tokens, the share of answers that two guesses get right: any value
# of the text, and the token behind the latest earlier place of the query.
FACTS = ("machines", "texts", "depths", "guesses")


def cell_evaluation(
    model: GPT | EngineModel, corpus: Corpus, cell: EvaluationCell, device: str
) -> Scorer:
    """Inputs of the protocol of a cell: model, text, methods and settings.

    They include the model that chooses the targets if it is another.
    """
    extension, scale = cell.methods(model.encoding.shape)
    scorer_class = EngineScorer if isinstance(model, EngineModel) else Scorer
    scorer = scorer_class(model, corpus, extension, scale, cell.evaluate, device)
    if not cell.evaluate.key_run:
        return scorer
    run = Run(cell.evaluate.key_run["path"])
    chooser = load_model(run, trained_config(run), corpus.vocab_size, device)
    return replace(scorer, key_token_model=chooser)


def progress_of(job: Job, evaluators: list[Protocol], lengths: list[list[int]]) -> Progress:
    """Progress of evaluations in tokens.

    Remaining time is estimated by FLOP, since short texts predict long ones badly.
    """
    total = 0
    flop = 0.0
    for evaluator, missing in zip(evaluators, lengths, strict=True):
        first_tokens = evaluator.tokens_to_read_first()
        for text in evaluator.lengths_by_text(missing):  # length of each text that is read
            tokens = evaluator.tokens_to_read(text) + first_tokens
            first_tokens = 0  # read once, before the first length (key tokens of longppl)
            total += tokens
            flop += tokens * flop_per_token(job, evaluator, text)
    return Progress(total, "evaluate", "tokens", flop)


def flop_per_token(job: Job, evaluator: Protocol, length: int) -> float:
    """FLOP per token that is read for one length, keys that an extension hides included."""
    return model_size(job.config).flop_per_token(evaluator.evaluation.fed_length(length))


class CellFile:
    """Rows, arrays and facts of a cell, in its json and npz: written again after each length."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrays_path = path.with_suffix(".npz")
        content = read_json(path) if path.exists() else {}
        self.rows = rows.eval_rows(content, path) if content else []
        rows.check_digest(content, path)
        self.arrays = load_arrays(self.arrays_path) if self.rows else {}
        # {name: {length: fact}}
        self.facts = {name: dict(content.get(name) or {}) for name in FACTS}

    def add(self, length: int, new_rows: list[dict], arrays: dict, facts: dict) -> None:
        """Add what was measured at a length. `facts` is {name: fact}."""
        self.rows = sorted(self.rows + new_rows, key=row_order)
        self.arrays[length] = arrays
        for name, fact in facts.items():
            self.facts[name][str(length)] = fact

    def write(self, shared: dict, settings: dict) -> None:
        """Write both files. `shared` are arrays of all lengths."""
        # Arrays come first, since a json without arrays would count as done.
        save_arrays(self.arrays_path, shared, self.arrays)
        facts = {name: by_length for name, by_length in self.facts.items() if by_length}
        write_json(self.path, rows.eval_content(self.rows, settings, **facts))


def evaluate(
    job: Job, evaluator: Protocol, cell: EvaluationCell, untested: bool, progress: Progress
) -> list[dict]:
    """Evaluate the missing lengths of a cell, write its files after each, and return the new rows.

    Texts of a long length are kept as they come, so that the same command goes on after them.
    """
    evaluation = evaluator.evaluation
    # {length of a text that is read: lengths measured by it}
    passes = evaluator.lengths_by_text(cell.missing_lengths())
    file = CellFile(cell.path)
    machine = provenance.machine_facts(evaluation.device)
    circumstances = {"code": list(provenance.commit_and_changes()), "machine": machine}
    evaluation.partial = PartialEvaluation(cell.path.with_suffix(PART_ENDING), circumstances)
    settings = {
        "protocol": cell.protocol,
        "version": evaluator.version_of(cell.evaluate),
        "extension": cell.extension,
        "scale_attention": cell.scale_attention,
        "evaluate": vars(cell.evaluate),
    }
    # A nested protocol reads one text for all lengths, unless the method treats the beginning of a
    # longer text in another way than a shorter text.
    if evaluator.nested and len(passes) > 1:
        texts = ", ".join(map(str, passes))
        why = f"a pass for each of {texts} tokens, since the method depends on the length"
        print(f"{cell.protocol} {_method(cell)}: {why}", file=sys.stderr, flush=True)
    all_new_rows = []
    for text_length, lengths in passes.items():
        for length in lengths:
            values, arrays = _measure(job, evaluator, cell, text_length, length, progress)
            settings |= evaluator.target_facts()
            new_rows = make_rows(values, job, cell, untested, evaluation, length)
            all_new_rows += new_rows
            facts = {"machines": machine, **evaluator.length_facts()}
            if evaluator.nested:
                facts["texts"] = text_length
            file.add(length, new_rows, arrays, facts)
            file.write(_shared_arrays(evaluator, cell), settings)
            evaluation.partial.end()
    return sorted(all_new_rows, key=row_order)


def _measure(
    job: Job,
    evaluator: Protocol,
    cell: EvaluationCell,
    text_length: int,
    length: int,
    progress: Progress,
) -> tuple[list[dict], dict]:
    """(values, arrays) of Protocol.run at a length, read from a text of `text_length` tokens."""
    tokens = evaluator.tokens_to_read_first()
    if text_length == length:  # shorter lengths take their losses from this same pass
        tokens += evaluator.tokens_to_read(text_length)
    end = progress.done + tokens
    each = flop_per_token(job, evaluator, text_length)
    evaluator.evaluation.progress = functools.partial(
        progress.update, each=each, method=_method(cell), length=length
    )
    values, arrays = evaluator.run(length)
    # what is left where the evaluator reused earlier results
    progress.update(end - progress.done, each=each, spared=True)
    return values, arrays


def _method(cell: EvaluationCell) -> str:
    """Extension and scale of a cell, such as "yarn+log_n"."""
    extension = identity.method_name(cell.extension)
    return f"{extension}+{identity.method_name(cell.scale_attention)}"


def _shared_arrays(evaluator: Protocol, cell: EvaluationCell) -> dict:
    """Arrays of all lengths of a cell, with the units of its targets if they are no documents."""
    shared = evaluator.shared_arrays()
    if cell.evaluate.unit == "document":
        return shared
    return {**shared, "unit": evaluator.windows.unit_D[shared["document"]]}


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
        "position": None,
        "task": None,
        "commit": provenance.commit_of_row(),
        "step": job.config.train.step,
    }
    # Values of the protocol come last, so that its own depth, position or task stands.
    return [rows.make_row(**{**shared, **value}) for value in values]
