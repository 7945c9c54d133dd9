"""What every test may ask for: the choices in configs/, small models, and a tiny text."""

import os

# Read when numpy is loaded. A second thread only waits, as torch's below.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# isort: split
import posbench  # noqa: F401, I001  (sets the thread spin count before torch is loaded)

# isort: split
import copy
import functools
import gc
import itertools
import random
import re
import shutil
import sys
from pathlib import Path

import composed_once
import pytest
import reported_once
import torch
from omegaconf import OmegaConf

from posbench.common.errors import ConfigError
from posbench.config.schema import ModelConfig
from posbench.model.gpt import GPT, make_shape
from posbench.position.geometry import Shape
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Encoding
from posbench.position.legality import check_scale, verdict_of

WRITES_NONE = sys.dont_write_bytecode
sys.dont_write_bytecode = (
    False  # while tests are collected: rewriting their assertions takes as long as all else
)
composed_once.install()
reported_once.install()
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # of children: their models are so small that a second thread only waits
torch.set_num_threads(max(1, 2 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))))
CONFIGS = Path(__file__).parent.parent / "configs"
TRAIN_LEN = 16


def pytest_configure(config: pytest.Config) -> None:
    """Hide a GPU from this process and its children, unless tests marked `gpu` are asked for: the
    suite is of the CPU's numbers.
    """
    if re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # torch.manual_seed tells every kind of device, and those that are not there note the whole
    # stack for later: half a millisecond, thousands of times.
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.manual_seed_all = _no_seed


def _no_seed(seed: int) -> None:
    """The seed of devices that are not there."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = WRITES_NONE
    # Looking for garbage among all that is imported and collected took a twentieth of the suite:
    # 0.4 s each time, which every compilation of torch asks for too.
    gc.set_threshold(20_000, 20, 100)
    gc.freeze()


def choices(group: str) -> list[str]:
    """Names of a config group's yamls, so that a new method is tested by existing."""
    return sorted(
        path.stem for path in (CONFIGS / group).glob("*.yaml") if not path.stem.startswith("_")
    )


def node(group: str, name: str) -> dict:
    """What a yaml of a config group holds; the caller may change it."""
    return copy.deepcopy(_node(group, name))


@functools.cache
def _node(group: str, name: str) -> dict:
    return OmegaConf.to_container(OmegaConf.load(CONFIGS / group / f"{name}.yaml"))


def small_shape(train_len: int = TRAIN_LEN, **overrides) -> Shape:
    return make_shape(
        ModelConfig(**{"d_model": 32, "n_layer": 2, "n_head": 4, "n_kv_head": 2, **overrides}),
        train_len,
    )


def small_model(encoding: Encoding, vocab_size: int = 50, **overrides) -> GPT:
    """A model whose weights are all random, so that nothing is hidden behind the zeros of a fresh
    one.
    """
    config = ModelConfig(
        **{"d_model": 32, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_ff": None, **overrides}
    )
    torch.manual_seed(0)
    model = GPT(config, encoding, vocab_size)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and ".norm." not in name:
                parameter.normal_(std=0.3)
    return model.eval()


def make_triple(encoding: str, extension: str, scale: str, train_len: int = TRAIN_LEN, **shape):
    torch.manual_seed(1)
    shape = small_shape(train_len, **shape)
    return (
        make_method(node("encoding", encoding), shape),
        make_method(node("extension", extension)),
        make_method(node("scale_attention", scale), shape),
    )


@functools.cache
def legal(triple: tuple[str, str, str], length: int, train_len: int = TRAIN_LEN) -> bool:
    """Whether a combination may run, untested or not, and changes something."""
    try:
        return not verdict_of(
            *judged_triple(*triple, train_len), [length], allow_untested=True
        ).noop
    except ConfigError:
        return False


def judged_triple(encoding: str, extension: str, scale: str, train_len: int = TRAIN_LEN) -> tuple:
    """Methods to judge and never to change."""
    return tuple(
        _made(*choice, train_len)
        for choice in (("encoding", encoding), ("extension", extension), ("scale_attention", scale))
    )


@functools.cache
def _made(group: str, name: str, train_len: int):
    """A method to judge and never to change: thousands of combinations are made of fewer than a
    hundred.
    """
    return make_method(
        _node(group, name), *([] if group == "extension" else [small_shape(train_len)])
    )


@functools.cache
def legal_pairs(length: int, train_len: int = TRAIN_LEN) -> list[tuple[str, str, str]]:
    """Every encoding with every extension it allows, without a scale."""
    pairs = [
        (encoding, extension, "none")
        for encoding in choices("encoding")
        for extension in choices("extension")
    ]
    return [pair for pair in pairs if legal(pair, length, train_len)]


def with_attention(triples: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Those whose encoding has attention in some layer."""
    return [
        triple
        for triple in triples
        if not all(layer.encoding.mixes for layer in judged_triple(*triple)[0].layers())
    ]


@functools.cache
def scaled_sample(
    length: int, number: int = 60, train_len: int = TRAIN_LEN
) -> list[tuple[str, str, str]]:
    """A seeded sample of the legal triples with a scale: of each scale equally many."""
    draw, sample = random.Random(0), []
    scales = [scale for scale in choices("scale_attention") if scale != "none"]
    for scale in scales:
        pairs = [pair[:2] for pair in legal_pairs(length, train_len)]
        draw.shuffle(pairs)
        fitting = (
            (*pair, scale) for pair in pairs if _scale_acts((*pair, scale), length, train_len)
        )
        sample += itertools.islice(fitting, -(-number // len(scales)))
    return sample


def _scale_acts(triple: tuple[str, str, str], length: int, train_len: int) -> bool:
    """Whether a scale may stand beside a legal pair, and changes something. As `legal` says, which
    would judge the pair again for each of its scales.
    """
    try:
        return check_scale(*judged_triple(*triple, train_len), [length]) is None
    except ConfigError:
        return False


@pytest.fixture
def one_thread():
    """A second thread gains nothing at small sizes and waits for the first wherever the machine is
    busy.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """The text of `write_text`."""
    from spoils import write_text

    return write_text(tmp_path / "text")


@pytest.fixture(scope="session")
def small_world(tmp_path_factory) -> Path:
    """Where `world` is copied from."""
    return tmp_path_factory.mktemp("world")


@pytest.fixture
def world(small_world, tmp_path, capfd, monkeypatch):
    """A small world of its own for a test to spoil; see spoils.py."""
    from spoils import World, make_world

    from posbench.data import sources

    if not (small_world / "runs").exists():
        make_world(small_world, capfd)
    shutil.copytree(small_world, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(sources, "_known_digests", {})
    return World(tmp_path)
