"""Progress of evaluations: tokens to read, and the work by which the time left is told."""

from types import SimpleNamespace

import pytest
from test_evaluate import evaluation

from posbench.config.schema import JobConfig, ModelConfig
from posbench.evaluation.registry import protocol
from posbench.extensions.recompute_window import RecomputeWindow
from posbench.sweep.evaluate_cell import flop_per_token, progress_of

JOB = SimpleNamespace(
    config=JobConfig(
        model=ModelConfig(d_model=64, n_layer=2, n_head=2), data={"tokenizer": "bytes"}
    )
)


@pytest.mark.parametrize("name", ["fixed_targets", "by_position", "longppl"])
def test_work_is_that_of_the_tokens_at_their_lengths(name):
    evaluator = protocol(name)(
        evaluation(windows=18, lengths=[16, 64], key_gain=0.001, key_loss=20.0, key_context=4)
    )
    progress = progress_of(JOB, [evaluator], [[16, 64]])
    texts, first = evaluator.lengths_by_text([16, 64]), evaluator.tokens_to_read_first()
    assert progress.total == sum(map(evaluator.tokens_to_read, texts)) + first
    work = sum(
        evaluator.tokens_to_read(text) * flop_per_token(JOB, evaluator, text) for text in texts
    )
    assert progress.work == pytest.approx(work + first * flop_per_token(JOB, evaluator, min(texts)))
    assert flop_per_token(JOB, evaluator, 64) > flop_per_token(JOB, evaluator, 16) * 1.01


def test_a_text_of_its_own_for_each_target_counts_at_its_length():
    evaluator = protocol("fixed_targets")(
        evaluation(RecomputeWindow(), windows=18, lengths=[16, 64])
    )
    assert flop_per_token(JOB, evaluator, 64) == flop_per_token(JOB, evaluator, 16)
