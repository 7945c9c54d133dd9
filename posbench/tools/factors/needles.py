"""LongRoPE2's objective of a search: the loss of the tokens of answers alone.

Shang et al. 2025, arXiv 2502.20082, section 3.2 and appendix C: a needle opens a text of a book,
and its question ends it. That is RULER's niah_single_2 at depth 0, the usual task here. A model
that was trained on a task is asked its questions. The texts are drawn once, from evaluate.seed; the
authors take 10.

Letters: N texts, T tokens, R last tokens.
"""

from typing import TYPE_CHECKING

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.quantities import plural
from posbench.config.schema import EvaluateConfig
from posbench.config.typed_args import shown
from posbench.data import prepare
from posbench.data.corpus import fit_corpus
from posbench.data.sources import TASK_TOKENIZER
from posbench.data.task import IGNORED, Examples
from posbench.data.text_questions import TextQuestions
from posbench.evaluation.protocols.accuracy import questions
from posbench.sweep.jobs import Job
from posbench.tools.request import TextToRead

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus
    from posbench.evaluation.scorer import Scorer

USUAL_TASK = "niah_single_2"


def needle_settings(job: Job, tasks: list | None) -> dict:
    """Settings of `evaluate` that ask for needles: of `tasks`, of the run's own task, or
    USUAL_TASK.

    Raises ConfigError for an empty list, and for several tasks."""
    if tasks is not None and len(tasks) != 1:
        raise ConfigError(
            f"evaluate.tasks={shown(tasks)} are {len(tasks)}, and a search has the loss of one:"
            " name one, or leave them out."
        )
    data = job.config.data
    has_own_task = data["tokenizer"] == TASK_TOKENIZER or data.get("mix")
    # The tokens of an answer are the targets, whatever their number.
    settings = {"protocol": ["accuracy"], "tasks": None, "targets": None}
    if tasks is None and has_own_task:
        return settings  # without names, accuracy asks the run's own task
    (task,) = tasks or [USUAL_TASK]
    node = {"name": task} if isinstance(task, str) else task
    return {**settings, "tasks": [{**node, "depths": 0}]}  # the search chooses the depth itself


def needles_to_read(job: Job) -> TextToRead:
    """Texts that a search asks for needles. Raises ConfigError if none fits the target."""
    (cell,) = job.cells
    evaluate = cell.evaluate
    config = job.config
    corpus = fit_corpus(prepare(config.data, config.cache_dir, (evaluate.split,)), config)
    draw_needles(corpus, evaluate, count=1)  # for its check that a question fits
    tokens = f"{evaluate.lengths[-1]:,} tokens"
    name = evaluate.tasks[0]["name"] if evaluate.tasks else config.data["name"]
    in_words = f"{plural(evaluate.windows, 'text')} of {tokens} with a needle of {name}"
    return TextToRead(corpus, evaluate.windows, in_words)


def draw_needles(corpus: "Corpus", evaluate: EvaluateConfig, count: int) -> Examples:
    """`count` texts of the longest length; needles of questions in words stand at the start.

    Raises ConfigError if a question does not fit."""
    length = evaluate.lengths[-1]
    source = questions(corpus, evaluate)
    variant = source.parts(length)[-1].arguments  # of a task that is the data: its hardest part
    if isinstance(source, TextQuestions):
        variant = {"depth": 0.0}
    return source.draw(length, count, [evaluate.seed], **variant)


def needle_loss(evaluation: "Scorer", examples: Examples) -> float:
    """Mean loss of the tokens of all answers, in nats."""
    n_texts, length = examples.inputs_NT.shape
    # Rows before the first answer of any text are not scored.
    first = int((examples.targets_NT != IGNORED).any(axis=0).argmax())
    target_NR = examples.targets_NT[:, first:]

    def text(at_n: np.ndarray) -> tuple:
        no_choices = None
        return examples.inputs_NT[at_n], target_NR[at_n], no_choices

    plan = evaluation.plan(length)
    nll_NR, _ = evaluation.score_texts(plan, np.arange(n_texts), length - first, text)
    return float(nll_NR[target_NR != IGNORED].mean(dtype="float64"))
