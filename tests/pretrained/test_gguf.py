"""GGUF files: written by the package gguf; transformers' own reader and the checkpoints they were
made of are the judges.
"""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_models import write_gguf
from hf_models import adopted, assert_equal_logits, checkpoint, exported, imported, transformers

from posbench.common.errors import ConfigError
from posbench.gguf.header import read_gguf
from posbench.gguf.tensors import gguf_tensors
from posbench.model.build import load_model, make_model
from posbench.position.trusted import trained_config
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.pretrained.weights import checked_tensors

VOCAB = 130
WIDE = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
KINDS = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()


def small(folder: Path, kind: str = "Llama", **changed) -> Path:
    return checkpoint(folder, kind, **{"vocab_size": VOCAB, **changed})


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a model.path under our names, as a run would load them."""
    cfg = adopted(path)
    with torch.device("meta"):
        model = make_model(cfg, cfg.model.checkpoint["vocab_size"])
    return {
        name: entry.read()
        for name, entry in checked_tensors(
            find_checkpoint(str(path)), model, cfg.model.tied
        ).items()
    }


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("wide"), **WIDE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_gives_the_tensors_and_logits_of_transformers(wide, kind):
    pytest.importorskip("accelerate")
    file = write_gguf(wide, Kind[kind])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    run = imported(file)
    ours = load_model(run, trained_config(run), VOCAB, "cpu").state_dict()
    named = {name.removeprefix("model."): value for name, value in theirs.state_dict().items()}
    assert ours.keys() == named.keys() and all(
        torch.equal(value, named[name]) for name, value in ours.items()
    )
    assert_equal_logits(run, theirs, vocab_size=VOCAB, relative=True)


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3"])
def test_a_file_of_float32_is_the_checkpoint_it_was_made_of(tmp_path, kind):
    path = small(tmp_path, kind)
    file = write_gguf(path)
    before, after = weights(path), weights(file)
    assert before.keys() == after.keys() and all(
        torch.equal(value, after[name]) for name, value in before.items()
    )
    assert_equal_logits(
        imported(file),
        transformers.AutoModelForCausalLM.from_pretrained(path).eval(),
        vocab_size=VOCAB,
    )
    assert adopted(file).encoding == adopted(path).encoding and adopted(file).model.path == str(
        file
    )


def test_llama_31_is_read_by_the_divisors_that_its_file_holds(tmp_path):
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 8.0,
        "low_freq_factor": 0.5,
        "high_freq_factor": 1.5,
    }
    path = small(
        tmp_path, head_dim=16, rope_parameters={**scaling, "original_max_position_embeddings": 12}
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    plain = 100.0 ** -(np.arange(8) / 8)
    divisors = (plain / theirs.model.rotary_emb.inv_freq.double().numpy()).astype(np.float32)
    file = write_gguf(path, extra={"rope_freqs.weight": divisors})
    assert_equal_logits(imported(file), theirs, vocab_size=VOCAB)
    for wrong in (
        divisors - 1,
        divisors * np.float32(np.nan),
        divisors.reshape(2, 4),
        divisors.astype(np.float16),
    ):
        with pytest.raises(ConfigError, match="not a list of divisors"):
            adopted(write_gguf(path, extra={"rope_freqs.weight": wrong}))
    with pytest.raises(ConfigError, match="beside rope_freqs.weight, which is not read"):
        adopted(
            write_gguf(
                path,
                extra={"rope_freqs.weight": divisors},
                metadata={"llama.rope.scaling.type": "linear"},
            )
        )


ROPES = {
    "linear": (
        {"scaling.type": "linear", "scaling.factor": 2.5},
        {"rope_type": "linear", "factor": 2.5},
    ),
    "linear without a type": ({"scaling.factor": 2.5}, {"rope_type": "linear", "factor": 2.5}),
    "none": ({"scaling.type": "none", "scaling.factor": 2.5}, {"rope_type": "default"}),
    "a factor of 0": (
        {"scaling.factor": 0.0, "scaling.attn_factor": 1.0},
        {"rope_type": "default"},
    ),
    "yarn": (  # llama.cpp passes over the last two in this family
        {
            **{
                "scaling.type": "yarn",
                "scaling.factor": 4.0,
                "scaling.original_context_length": 12,
            },
            **{"scaling.yarn_beta_fast": 1.5, "scaling.yarn_attn_factor": 1.5},
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12},
    ),
    "no base": (
        {"freq_base": None},
        {"rope_type": "default", "rope_theta": 10000.0},
    ),  # llama.cpp's
}


@pytest.mark.parametrize("name", ROPES)
def test_rope_is_read(tmp_path, name):
    described, theirs = ROPES[name]
    path = small(tmp_path, head_dim=16, rope_parameters={"rope_theta": 100.0, **theirs})
    file = write_gguf(
        path, metadata={f"llama.rope.{key}": value for key, value in described.items()}
    )
    assert_equal_logits(
        imported(file),
        transformers.AutoModelForCausalLM.from_pretrained(path).eval(),
        vocab_size=VOCAB,
    )


def test_yarn_is_that_of_llama_cpp_whatever_else_the_file_says_of_it(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 12, "attn_factor": 1.5}
    scaling |= {
        "yarn_beta_fast": 1.5,
        "yarn_beta_slow": 0.5,
        "yarn_attn_factor": 1.3,
        "yarn_ext_factor": 0.5,
    }
    path = small(
        tmp_path, head_dim=16, rope_parameters={"rope_theta": 100.0, "rope_type": "default"}
    )
    file = write_gguf(
        path, metadata={f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    )
    run, text_T = imported(file), torch.randint(3, VOCAB, (40,))
    found_TV = load_model(run, trained_config(run), VOCAB, "cpu")(text_T[None])[0].detach().numpy()
    theirs = llama_cpp.Llama(
        str(file), n_ctx=64, logits_all=True, verbose=False, type_k=0, type_v=0
    )  # 0 is float32
    theirs.eval(text_T.tolist())
    np.testing.assert_allclose(found_TV, theirs.scores[:40], rtol=0, atol=1e-4 * found_TV.std())
    theirs.close()


def test_a_file_is_exported_as_a_folder(tmp_path):
    file = write_gguf(small(tmp_path))
    run = imported(file)
    assert not run.weights.exists() and run.read_summary()["stored"] == "20 F32"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported(run)).eval()
    assert_equal_logits(run, theirs, vocab_size=VOCAB)


OTHER = {
    "general.architecture": ("gpt2",),
    "general.type": ("adapter",),
    "split.count": (3,),
    "llama.expert_count": (8,),
    "llama.logit_scale": (2.0,),
    "llama.attention.sliding_window": (16,),
    "llama.rope.dimension_count": (4,),
    "llama.attention.value_length": (4,),
    "llama.attention.head_count_kv": ([2, 1], "x", 3),
    "llama.attention.head_count": ("x", [4, 2]),
    "llama.attention.key_length": (3,),
    "llama.embedding_length": (None, 1.5, 64),
    "llama.context_length": (None, 0),
    "llama.block_count": (1, 3, 10**9),
    "llama.feed_forward_length": (None, 64),
    "llama.vocab_size": (129,),
    "llama.attention.layer_norm_rms_epsilon": (-1.0, float("nan")),
    "llama.rope.freq_base": (float("inf"),),
    "llama.rope.scaling.type": ("longrope",),
    "llama.rope.scaling.factor": (-2.0, "x"),
    "llama.rope.scaling.attn_factor": (1.5,),
    "llama.rope.scale_linear": (2.0,),
    "tokenizer.ggml.bos_token_id": (VOCAB, "x"),
}


@pytest.mark.parametrize("key", OTHER)
def test_a_file_of_another_model_is_refused_in_one_sentence(tmp_path, key):
    path = small(tmp_path)
    for value in OTHER[key]:
        # The writer knows no second architecture, so that key is changed in place.
        if key == "general.architecture":
            content = write_gguf(path).read_bytes()
            file = tmp_path / "other.gguf"
            file.write_bytes(content.replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0gptxx", 1))
        else:
            file = write_gguf(path, metadata={key: value})
        with pytest.raises(ConfigError) as error:
            weights(file)
        assert_one_sentence(error.value, file)


@pytest.mark.parametrize("name", ["long", "short"])
def test_longropes_divisors_are_refused_where_transformers_would_pass_over_them(tmp_path, name):
    """transformers reads Phi-3's file as if its pairs turned undivided, at 100^(-i/4) radians."""
    pytest.importorskip("accelerate")
    path = small(tmp_path, "Phi3", rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    divided = {f"rope_factors_{name}.weight": np.full(4, 4.0, np.float32)}
    metadata = {"tokenizer.ggml.padding_token_id": 0}
    file = write_gguf(path, metadata=metadata, extra=divided)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    plain = 100.0 ** -(np.arange(4) / 4)
    assert np.allclose(theirs.model.rotary_emb.inv_freq.numpy(), plain)
    with pytest.raises(ConfigError, match=f"has rope_factors_{name}.weight, which transformers"):
        adopted(file)
    metadata["phi3.rope.scaling.attn_factor"] = 1.2
    file = write_gguf(path, metadata=metadata)
    with pytest.raises(ConfigError, match="has rope.scaling.attn_factor=1.2, which transformers"):
        adopted(file)


def assert_one_sentence(error: Exception, file: Path) -> None:
    message = str(error)
    assert (
        message.endswith((".", "?"))
        and "\n" not in message
        and message.isprintable()
        and len(message) < 500
    )
    assert file.name in message or "model.n_kv_head=3" in message


def test_a_file_that_ends_early_is_refused_wherever_it_ends(tmp_path):
    full_bytes = write_gguf(small(tmp_path)).read_bytes()
    file = tmp_path / "cut.gguf"
    ends = {
        0,
        3,
        4,
        7,
        8,
        15,
        16,
        23,
        24,
        len(full_bytes) - 40,
        len(full_bytes) // 2,
        *range(30, len(full_bytes), len(full_bytes) // 30),
    }
    for end in sorted(ends):
        file.write_bytes(full_bytes[:end])
        with pytest.raises(
            ConfigError, match=r"not a complete GGUF file|is not supported"
        ) as error:
            weights(file)
        assert_one_sentence(error.value, file)


def header(*pairs: bytes, tensors: int = 0, keys: int | None = None, version: int = 3) -> bytes:
    return (
        b"GGUF"
        + struct.pack("<IQQ", version, tensors, len(pairs) if keys is None else keys)
        + b"".join(pairs)
    )


def text(content: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if size is None else size) + content


def tensor(
    name: bytes = b"t",
    dimensions: tuple[int, ...] = (32,),
    kind: int = 0,
    offset: int = 0,
    count: int | None = None,
) -> bytes:
    count = len(dimensions) if count is None else count
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", count, *dimensions, kind, offset)


NUMBER = text(b"a") + struct.pack("<II", 4, 7)
FALSE = {
    "other": (b"PK\3\4" + bytes(100), "does not begin with GGUF"),
    "version 1": (header(version=1), "its version is 1"),
    "big endian": (header(version=3 << 24), "its version is 50331648"),
    "keys": (header(keys=2**60), "it ends early"),
    "long key": (header(text(b"a", 2**62) + bytes(99)), "a length in it is false"),
    "long list": (
        header(text(b"a") + struct.pack("<IIQ", 9, 8, 2**50) + bytes(99)),
        "it ends early",
    ),
    "list of lists": (
        header(text(b"a") + struct.pack("<IIQ", 9, 9, 2) + bytes(99)),
        "a is an array of type 9",
    ),
    "twice": (header(NUMBER, NUMBER), "holds a twice"),
    "utf8": (header(text(b"\xff\xfe") + bytes(99)), "no UTF-8"),
    "alignment": (
        header(text(b"general.alignment") + struct.pack("<II", 4, 0)),
        "general.alignment=0",
    ),
    "dimensions": (
        header(tensor(count=2**31), tensors=1, keys=0) + bytes(99),
        "t has 2,147,483,648 dimensions",
    ),
    "crooked": (header(tensor(offset=5), tensors=1, keys=0) + bytes(999), "t begins at byte"),
    "same tensor": (header(tensor(), tensor(), tensors=2, keys=0) + bytes(999), "tensor t twice"),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_header_is_refused_in_one_sentence(tmp_path, name):
    content, message = FALSE[name]
    file = tmp_path / "false.gguf"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        adopted(file)
    assert_one_sentence(error.value, file)


@pytest.mark.parametrize(
    ("tensor_info", "message"),
    [
        (tensor(kind=99), "holds t as 99, which is not supported"),
        (tensor(dimensions=(2**40, 2**40)), "not a complete GGUF file"),
        (tensor(dimensions=(33,), kind=2), "not a complete GGUF file"),
        (tensor(name=b"\x1b[31m", kind=99), r"\ufffd\[31m as 99"),
    ],
)
def test_a_false_tensor_is_refused_in_one_sentence(tmp_path, tensor_info, message):
    file = tmp_path / "false.gguf"
    file.write_bytes(header(tensor_info, tensors=1, keys=0) + bytes(999))
    with pytest.raises(ConfigError, match=message) as error:
        gguf_tensors(read_gguf(file), {})
    assert_one_sentence(error.value, file)


def test_a_damaged_header_raises_nothing_but_its_sentence(tmp_path):
    path = small(tmp_path)
    intact = bytearray(write_gguf(path).read_bytes())
    generator = np.random.default_rng(0)
    end, file = intact.index(b"tokenizer.ggml.tokens"), tmp_path / "flipped.gguf"
    for at in generator.integers(0, end, 100):
        damaged = bytearray(intact)
        damaged[at] ^= 1 << generator.integers(8)
        file.write_bytes(damaged)
        try:
            weights(file)
        except ConfigError as error:
            assert "\n" not in str(error)


def test_what_is_no_regular_file_is_refused(tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    for name, message in (
        ("folder.gguf", "not a regular file"),
        ("pipe.gguf", "not a regular file"),
        ("none.gguf", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=message):
            adopted(tmp_path / name)


def test_the_tokenizer_of_the_file_is_the_default(tmp_path):
    file = write_gguf(small(tmp_path))
    data = {
        "tokenizer": "bpe",
        "vocab_size": 1024,
        "bos": False,
        "name": "local",
        "path": "/nowhere",
        "source": {"_target_": "x.Y"},
    }
    assert adopted(file, data=data).data["tokenizer"] == str(file)
    assert adopted(file, data={**data, "vocab_size": VOCAB}).data["tokenizer"] == str(
        file
    )  # ids that fit may be others
    assert adopted(file, data={**data, "tokenizer": "bytes"}).data["tokenizer"] == str(file)
    assert adopted(file, data={**data, "tokenizer": "org/other"}).data["tokenizer"] == "org/other"
    assert (
        adopted(tmp_path / "Llama", data=data).data["tokenizer"] == "bpe"
    )  # a folder without a tokenizer
    (tmp_path / "Llama/tokenizer.json").touch()
    assert adopted(tmp_path / "Llama", data=data).data["tokenizer"] == str(tmp_path / "Llama")
