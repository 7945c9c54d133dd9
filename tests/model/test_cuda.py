"""What only a real GPU shows: FlexAttention's compiled kernel beside `attend_by_blocks`, memory
that grows with the length, a training that goes on.

`make test-gpu` runs these and those of test_devices.py. Without a GPU nothing here is run.
"""

import pytest
import torch
from conftest import legal_pairs, make_triple, small_model
from hf_models import checkpoint
from measures import attend_in, attention_inputs
from test_devices import CORPUS

from posbench.config.schema import TrainConfig
from posbench.model.kernels import dispatch, flex
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.model.memory import tensor_mib
from posbench.position.plan import make_plan, training_plan_maker
from posbench.runs.directory import Run
from posbench.tools.benchmark import checkpoint as bench
from posbench.tools.benchmark import measure
from posbench.training.trainer import Trainer

pytestmark = pytest.mark.gpu
LENGTH, TRAIN_LEN = 700, 128  # no multiple of the kernel's blocks, and bands that cut them
LEGAL = (
    legal_pairs(LENGTH, TRAIN_LEN) if torch.cuda.is_available() else []
)  # they take a second to judge
PAIRS = [pair for pair in LEGAL if pair[0] == "rope" or pair[1] in ("none", "window", "rerope")]
SCALED = [
    ("rope", "rerope", "log_n"),
    ("rope", "none", "scale_invariant"),
    ("rope", "window", "off_by_one"),
]
KINDS = [
    ("rope", "none"),
    ("alibi", "none"),
    ("rope", "rerope"),
    ("rope", "window"),
    ("cope", "none"),
]
DEVIATION = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def inputs(encoding, length: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """q, k, v and x of one layer on the GPU; v in `dtype`, as a model gives it."""
    (q, k, v), x = attention_inputs(encoding, length)
    return [q.cuda(), k.cuda(), v.cuda().to(dtype), x.cuda()]


@pytest.mark.parametrize("dtype", DEVIATION, ids=str)
@pytest.mark.parametrize("triple", [*PAIRS, *SCALED], ids="-".join)
@torch.no_grad()
def test_the_compiled_kernel_gives_what_rows_gives(triple, dtype):
    encoding, extension, scale = make_triple(*triple, train_len=TRAIN_LEN)
    encoding = encoding.cuda()
    layer = make_plan(encoding, extension, scale, length=LENGTH, device="cuda").layers[0]
    if not flex.can_flex(layer):
        pytest.skip("`attend_by_blocks` runs it")
    q, k, v, x = inputs(encoding, LENGTH, dtype)
    actual_BHTD, expected_BHTD = (
        attend_in(flex.attend_by_flex, layer, q, k, v, x),
        attend_in(attend_by_blocks, layer, q, k, v.float(), x),
    )
    assert actual_BHTD.dtype == torch.float32 and not actual_BHTD.isnan().any()
    assert (actual_BHTD - expected_BHTD).norm() / expected_BHTD.norm() < DEVIATION[dtype]


@pytest.mark.parametrize("dtype", DEVIATION, ids=str)
@pytest.mark.parametrize("pair", KINDS, ids="-".join)
@torch.no_grad()
def test_memory_grows_with_the_length_alone(pair, dtype):
    encoding, extension, scale = make_triple(*pair, "none", train_len=TRAIN_LEN)
    encoding, mib = encoding.cuda(), []
    for length in (4096, 8192):
        layer = make_plan(encoding, extension, scale, length=length, device="cuda").layers[0]
        q, k, v, x = inputs(encoding, length, dtype)
        dispatch.attend(layer, x, q, k, v)
        mib.append(
            tensor_mib(
                lambda layer=layer, operands=(x, q, k, v): dispatch.attend(layer, *operands), "cuda"
            )
        )
        assert flex.FAILED_BEFORE not in layer.bands[0].cache
    assert mib[1] < min(2.5 * mib[0], 4 * 8192**2 * 4 / 2**20)  # four heads of 8,192 x 8,192 scores


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("encoding", ["rope", "fox"])
def test_a_training_that_was_stopped_ends_as_one_that_was_not(encoding, dtype, compiled, tmp_path):
    config = TrainConfig(
        length=16,
        steps=8,
        tokens_per_step=64,
        validate_windows=4,
        dtype=dtype,
        warmup=1,
        compile=compiled,
    )
    run, losses = Run(tmp_path), []

    def trainer() -> Trainer:
        model = small_model(make_triple(encoding, "none", "none")[0]).cuda()
        return Trainer(
            model,
            CORPUS,
            config,
            0,
            torch.device("cuda"),
            training_plan_maker(model.encoding, model.scale, "cuda", 0),
        )

    undisturbed, before, after = trainer(), trainer(), trainer()
    for _ in range(4):
        undisturbed.advance()
        before.advance()
    before.save(run)
    after.resume(run)
    for training in (undisturbed, after):
        for _ in range(4):
            training.advance()
        assert training.step == 8 and training.compiled == compiled
        losses.append([training.figures()["loss"], training.validate()])
    torch.testing.assert_close(
        *map(torch.tensor, losses), rtol=0, atol=1e-3 if dtype == "fp32" else 3e-2
    )


def test_benchmarks_run_and_measure_there(tmp_path):
    figures = measure.measure_training(64, 2, ["fox"], "cuda")
    assert {figure.case for figure in figures} == {"rope", "fox"} and all(
        figure.mib > 0 and figure.ratio > 0 for figure in figures
    )
    (figures,) = measure.measure_evaluation(64, [256], 2, ["rerope", "fox"], "cuda")
    assert {figure.case for figure in figures} == {"rope", "fox"} and all(
        figure.mib > 0 for figure in figures
    )
    (figures,) = bench.measure_checkpoint(
        str(checkpoint(tmp_path)), "bf16", [80], 2, ["rerope", "window"], "cuda"
    )
    assert {figure.case for figure in figures} == {
        "none",
        "rerope",
        "window",
        "transformers",
    } and all(figure.mib > 0 for figure in figures)
