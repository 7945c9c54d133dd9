"""The small server itself: its numbers are transformers', its wrong settings are what they say, its faults arrive."""

import http.client
import json
import shutil
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch
from server_dialects import DIALECTS
from small_engine import TEXT, TRAINED, WRONG, engine, small_checkpoint, transformers
from small_server import AT, FAULTS, SPOILS, serving
from tokenizers import Tokenizer

LENGTH = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_checkpoint(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture(scope="module")
def without_bos(tmp_path_factory):
    return small_checkpoint(tmp_path_factory.mktemp("small") / "model", bos=False)


def encoded(folder, length: int = LENGTH) -> list[int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids[:length]


def forward(folder, ids: list[int]) -> np.ndarray:
    """Log-probabilities [T, V] after each token, as transformers reads the folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().log_softmax(-1).numpy()


def own(rows: np.ndarray, ids: list[int]) -> np.ndarray:
    return rows[np.arange(len(ids) - 1), ids[1:]]


def ask(server, path: str = "/v1/completions", **body: object) -> dict:
    body = body if path != "/v1/completions" else {"model": "tiny", "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1, **body}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.loads(reply.read())


def refused(server, *given: object, **body: object) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, *given, **body)
    return caught.value.code, caught.value.read().decode(errors="replace")


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_ids_and_text_are_scored_as_transformers_does(folder, dialect):
    ids = encoded(folder)
    rows = forward(folder, ids)
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ids)
    with serving(folder, dialect) as server:
        for prompt in (ids, text):
            (choice,) = (answer := ask(server, prompt=prompt, return_token_ids=True))["choices"]
            said = choice["logprobs"]
            assert said["token_logprobs"][0] is said["top_logprobs"][0] is None
            assert len({len(values) for values in said.values()}) == 1 and choice["prompt_token_ids"] == ids
            np.testing.assert_allclose(said["token_logprobs"][1 : len(ids)], own(rows, ids), atol=1e-5)
            np.testing.assert_allclose([max(top.values()) for top in said["top_logprobs"][1:]], rows.max(axis=1), atol=1e-5)
            assert choice["token_ids"] == [rows[-1].argmax()] and answer["usage"]["prompt_tokens"] == len(ids)
        many = ask(server, prompt=[ids[:50], ids[:60]])["choices"]
        assert [len(one["logprobs"]["tokens"]) for one in many] == [51, 61]


def test_the_three_ways_to_prompt_logprobs(folder):
    ids = encoded(folder)
    expected = own(forward(folder, ids), ids)
    with serving(folder, "vllm") as server:
        named = ask(server, prompt=ids, max_tokens=0, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
        assert named["tokens"] == [f"token_id:{token}" for token in ids]
        told = ask(server, prompt=ids, echo=False, logprobs=None, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
        found = [one[str(token)]["logprob"] for one, token in zip(told[1:], ids[1:], strict=True)]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert all((one[str(token)]["rank"] == 1) == (len(one) == 1) for one, token in zip(told[1:], ids[1:], strict=True))
    with serving(folder, "vllm", fields=False) as server:
        assert ask(server, prompt=ids, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["tokens"][:2] == ["<s>", "Line"]
    with serving(folder, "sglang") as server:
        asked = {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}
        triples = ask(server, "/generate", **asked)["meta_info"]["input_token_logprobs"]
        assert [token for _, token, _ in triples] == ids
        np.testing.assert_allclose([logprob for logprob, *_ in triples[1:]], expected, atol=1e-5)
        assert len(ask(server, prompt=ids, logprobs=0)["choices"][0]["logprobs"]["tokens"]) == 1


def test_llama_cpp_echoes_rightly_behind_a_bos_alone(folder, without_bos):
    """As measured with llama-cpp-python 0.3.36 and files of both kinds."""
    ids = encoded(folder)
    rows, text = forward(folder, ids), Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ids)
    with serving(folder, "llama_cpp") as server:
        answer = ask(server, prompt=text)
        said = answer["choices"][0]["logprobs"]
        assert answer["usage"]["prompt_tokens"] == len(ids) == len(said["tokens"])  # without BOS, with the one generated
        np.testing.assert_allclose(said["token_logprobs"][1:-1], own(rows, ids)[1:], atol=1e-5)
        assert said["token_logprobs"][0] is None and said["tokens"][0] == "Line"
        assert refused(server, prompt=ids)[0] == 500 and refused(server, prompt=[text, text])[0] == 500
        assert ask(server, "/extras/tokenize", input=text)["tokens"] == ids
    with serving(without_bos, "llama_cpp") as server:
        said = ask(server, prompt=text)["choices"][0]["logprobs"]
    plain = ids[1:]
    rows = forward(without_bos, plain)
    np.testing.assert_allclose(said["token_logprobs"][1:], rows[np.arange(len(plain)), plain][1:], atol=1e-5)


@pytest.mark.parametrize("wrong", [name for name, made in WRONG.items() if not {"part", "keep"} & made.keys()])
def test_a_wrong_setting_is_that_config_of_transformers(tmp_path, folder, wrong):
    ids, other = encoded(folder), tmp_path / "other"
    shutil.copytree(folder, other)
    config = {**json.loads((folder / "config.json").read_text()), **WRONG[wrong].get("changed", {})}
    config["architectures"] = [{"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}[config["model_type"]]]
    (other / "config.json").write_text(json.dumps(config))
    expected = own(forward(other, ids), ids)
    with serving(folder, "vllm", wrong=wrong) as server:
        found = ask(server, prompt=ids)["choices"][0]["logprobs"]["token_logprobs"][1:-1]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    differs = np.sqrt(np.mean((expected - own(forward(folder, ids), ids)) ** 2))
    assert (differs == 0) if wrong == "right" else (differs > 0.1)


def test_cached_keys_and_a_lost_part(folder):
    ids = encoded(folder)
    losses = {name: own(engine(folder, name).logprobs(ids), ids) for name in ("ignored", "dynamic", "cached")}
    assert np.allclose(losses["cached"][: TRAINED - 1], losses["ignored"][: TRAINED - 1], atol=1e-5)
    assert np.sqrt(np.mean((losses["cached"] - losses["dynamic"])[TRAINED:] ** 2)) > 0.1
    again = engine(folder, "dynamic")
    again.logprobs(encoded(folder, 250))
    np.testing.assert_allclose(own(again.logprobs(ids), ids), losses["dynamic"], atol=1e-6)  # a longer text leaves nothing behind
    with serving(folder, "sglang", wrong="truncated") as server:
        answer = ask(server, prompt=ids)
    last = ids[-TRAINED:]
    assert answer["usage"]["prompt_tokens"] == TRAINED
    np.testing.assert_allclose(answer["choices"][0]["logprobs"]["token_logprobs"][1:-1], own(forward(folder, last), last), atol=1e-5)


def test_what_servers_refuse(folder):
    ids = encoded(folder)
    for dialect, (status, key) in {"vllm": (401, "error"), "sglang": (401, "error"), "llama_cpp": (401, "detail")}.items():
        with serving(folder, dialect, key="secret", limit=100) as server:
            code, said = refused(server, prompt="a")
            assert code == status and key in json.loads(said)
            request = urllib.request.Request(f"{server.url}/v1/models", headers={"Authorization": "Bearer secret"})
            card = json.loads(urllib.request.urlopen(request, timeout=20).read())["data"][0]
            assert card["id"] == "tiny" and card.get("max_model_len") == (None if dialect == "llama_cpp" else 100)
            server.key = None
            code, said = refused(server, prompt=TEXT[:2000])
            assert code == 400 and "100" in said
            assert len(server.asked) == 2 and server.asked[0].body["prompt"] == "a"
    with serving(folder, "vllm") as server:
        assert refused(server, prompt=ids, model="other")[0] == 404 and refused(server, prompt=ids, logprobs=21)[0] == 400
    with serving(folder, "sglang") as server:
        assert refused(server, prompt=ids, max_tokens=0)[0] == 400 and ask(server, prompt=ids, model="other")["model"] == "other"


def test_requests_in_flight_are_counted(folder):
    with serving(folder, "vllm", seconds=0.2) as server:
        threads = [threading.Thread(target=ask, args=(server,), kwargs={"prompt": "a text"}) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ask(server, prompt="alone")
        assert server.most_at_once == 3 and len(server.asked) == 4 and server.at_once == 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_faults_arrive(folder, dialect):
    prompt, faults = TEXT[:120], [name for name in FAULTS if name != "hang"] + ["closed", *SPOILS, None]
    bodies = {}
    with serving(folder, dialect, behave=lambda number: faults[number]) as server:
        for fault in faults:
            try:
                bodies[fault] = ask(server, prompt=prompt, return_token_ids=True)
            except (OSError, ValueError, http.client.HTTPException) as error:
                bodies[fault] = getattr(error, "code", type(error).__name__)
    good = bodies.pop(None)
    expected = {"garbage": "UnicodeDecodeError", "html": "JSONDecodeError", "gateway": 502, "500": 500, "503": 503, "429": 429}
    assert {name: bodies[name] for name in expected} == expected and bodies["closed"] == "IncompleteRead" and bodies["list"] == []
    for name in SPOILS:
        assert json.dumps(bodies[name]["choices"] if name not in ("miscounted", "without choices") else bodies[name]) != json.dumps(
            good["choices"]
        )
    values = [bodies[name]["choices"][0]["logprobs"]["token_logprobs"][AT] for name in ("nan", "inf", "none", "word", "positive")]
    assert np.isnan(values[0]) and values[1:] == [-np.inf, None, "much", 0.5]
    tokens, merged = (one["choices"][0]["logprobs"]["tokens"] for one in (good, bodies["merged"]))
    assert "".join(tokens) == "".join(merged) and len(merged) == len(tokens) - 1
    assert bodies["shifted"]["choices"][0]["logprobs"]["tokens"] != tokens
