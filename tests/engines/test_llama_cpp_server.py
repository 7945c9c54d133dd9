"""llama-cpp-python's own server: the small server answers as it does, and model=server gets from it
the losses of the weights.

pip install 'llama-cpp-python[server]'
"""

import importlib.util
import json
import socket
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
from gguf_models import write_gguf
from small_engine import BOS, FACTOR, TEXT, TRAINED, small_checkpoint
from small_server import NAME, serving
from test_cli import cli  # noqa: F401
from test_server_client import KEY, SECRET, evaluated, protocols, run  # noqa: F401

NEEDS = (
    "llama_cpp",
    "fastapi",
    "uvicorn",
    "sse_starlette",
    "starlette_context",
    "pydantic_settings",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDS)),
        reason="needs pip install 'llama-cpp-python[server]'",
    ),
]


def as_gguf(folder, bos: bool):
    """The checkpoint's file for llama.cpp, with its tokenizer and its YaRN."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    described = {
        "tokens": tokens,
        "merges": [" ".join(pair) for pair in tokenizer["merges"]],
        "token_type": [3, 3] + [1] * (len(tokens) - 2),
    }
    described |= {"bos_token_id": 0, "eos_token_id": 1, "add_bos_token": bos, "pre": "gpt-2"}
    scaling = {"type": "yarn", "factor": float(FACTOR), "original_context_length": TRAINED}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in described.items()}
    return write_gguf(
        folder,
        metadata={
            **metadata,
            **{f"llama.rope.scaling.{key}": value for key, value in scaling.items()},
        },
    )


@pytest.fixture(params=[True, False], ids=["adds bos", "adds none"])
def both(request, tmp_path):
    """A checkpoint, and the address of the real server of its file."""
    folder = small_checkpoint(tmp_path / "model", bos=request.param)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "--model",
        str(as_gguf(folder, request.param)),
        "--model_alias",
        NAME,
        "--n_ctx",
        "600",
        "--port",
        str(port),
    ]
    command = [sys.executable, "-m", "llama_cpp.server", *words, "--api_key", SECRET]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield folder, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError


def answer(url: str, path: str, **body: object) -> dict:
    return (
        httpx.post(url + path, json=body, headers={"Authorization": f"Bearer {SECRET}"}, timeout=60)
        .raise_for_status()
        .json()
    )


def test_the_small_server_answers_as_it_does(both):
    folder, url = both
    with serving(folder, "llama_cpp", limit=600) as small:
        for prompt in (TEXT[:300], BOS + TEXT[:300]):
            question = {
                "model": NAME,
                "prompt": prompt,
                "max_tokens": 1,
                "echo": True,
                "logprobs": 2,
                "temperature": 0,
            }
            theirs, ours = (
                answer(server_url, "/v1/completions", **question) for server_url in (url, small.url)
            )
            assert theirs["usage"] == ours["usage"] and theirs.keys() == ours.keys()
            (theirs,), (ours,) = theirs["choices"], ours["choices"]
            assert theirs.keys() == ours.keys() and theirs["text"] == ours["text"]
            theirs, ours = theirs["logprobs"], ours["logprobs"]
            assert (
                theirs.keys() == ours.keys()
                and theirs["tokens"] == ours["tokens"]
                and theirs["text_offset"] == ours["text_offset"]
            )
            assert (
                theirs["token_logprobs"][0]
                is ours["token_logprobs"][0]
                is ours["top_logprobs"][0]
                is None
            )
            np.testing.assert_allclose(
                theirs["token_logprobs"][1:], ours["token_logprobs"][1:], atol=0.02
            )
            assert all(len(top_tokens) <= 3 for top_tokens in theirs["top_logprobs"][1:])
        theirs, ours = (
            answer(server_url, "/extras/tokenize", input=TEXT[:300])["tokens"]
            for server_url in (url, small.url)
        )
        assert theirs == ours


def test_losses_are_those_of_the_weights(both, run, monkeypatch):  # noqa: F811
    folder, url = both
    monkeypatch.setenv(KEY, SECRET)
    task = [
        "evaluate.tasks=[passkey]",
        protocols("fixed_targets", "accuracy"),
        "evaluate.lengths=[500]",
        "evaluate.max_length=500",
    ]
    run("model=server", f"model.url={url}", f"data.tokenizer={folder}", *task)
    run("model=hf", f"model.path={folder}", *task)
    for kind in ("fixed_targets", "accuracy"):
        (_, theirs), (_, ours) = (
            evaluated(run.root, "server")[kind],
            evaluated(run.root, "hf")[kind],
        )
        for name in (name for name in ours if name.startswith("nll")):
            difference = (
                theirs[name] - ours[name]
            )  # of keys and values that llama.cpp holds in 16 bits
            assert np.abs(difference).max() < 0.05 and abs(difference.mean()) < 1e-3
