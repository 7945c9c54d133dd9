"""model=server: the losses of a running engine are those of its weights, through each dialect; what
it cannot give is one sentence.
"""

import json
import os
import signal
import subprocess
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import forked
import numpy as np
import pytest
from small_engine import TEXT, small_checkpoint
from small_server import FAULTS, SPOILS, serving
from test_cli import cli  # noqa: F401
from tokenizers import Tokenizer

from posbench.common.errors import RunError
from posbench.engines import http_client, server
from posbench.results.inventory import list_runs
from posbench.results.run_metadata import read_metadata
from posbench.runs.rows import read_eval

PROTOCOLS = ("fixed_targets", "by_position", "disjoint")
WORDS = [
    "data=local",
    "data.bos=true",
    "evaluate.lengths=[64,250]",
    "evaluate.windows=4",
    "evaluate.max_length=250",
]
WORDS += ["evaluate.floor=false", "log.mode=disabled", "device=cpu"]
SHARED = (
    "length",
    "protocol",
    "position",
    "task",
    "depth",
    "n_targets",
    "n_bytes",
    "n_units",
    "data",
    "tokenizer",
    "train_len",
)
KEY, SECRET = "POSBENCH_API_KEY", "sk-not-to-be-written"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_checkpoint(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture
def run(cli):  # noqa: F811
    """A command with the small text: its words after those that all have."""

    places = [
        word
        for word in cli.common
        if word.split("=")[0] in ("data.path", "results_dir", "cache_dir", "report_dir")
    ]

    def typed(*words: str) -> list[str]:
        typed_keys = {word.split("=")[0] for word in words}
        return [*[word for word in WORDS if word.split("=")[0] not in typed_keys], *words, *places]

    def call(*words: str, code: int = 0):
        return cli(*typed(*words), common=False, code=code)

    call.root, call.command, call.typed = cli.folder, cli.command, typed
    return call


def to(server, folder: Path, *words: str) -> list[str]:
    return ["model=server", f"model.url={server.url}", f"data.tokenizer={folder}", *words]


def protocols(*names: str) -> str:
    return f"evaluate.protocol=[{','.join(names)}]"


def evaluated(root: Path, kind: str) -> dict[str, tuple[list[dict], dict[str, np.ndarray]]]:
    """Rows and arrays of each protocol, of the only run of a kind."""
    evaluations = {}
    for path in root.glob(f"runs/{kind}-*/evals/*/*.json"):
        assert path.parent.name not in evaluations
        with np.load(path.with_suffix(".npz")) as arrays:
            evaluations[path.parent.name] = read_eval(path), dict(arrays)
    return evaluations


def assert_same(root: Path, names: tuple[str, ...]) -> None:
    """Every target's loss and correctness by the server are those of the weights, and so are the
    rows.
    """
    theirs, ours = evaluated(root, "server"), evaluated(root, "hf")
    assert theirs.keys() == set(names)
    for name, (rows, arrays) in theirs.items():
        own_rows, our_arrays = ours[name]
        assert arrays.keys() == our_arrays.keys()
        for key, values in arrays.items():
            np.testing.assert_allclose(values, our_arrays[key], atol=1e-4, rtol=1e-5)
        for row, same in zip(rows, own_rows, strict=True):
            assert {key: row[key] for key in SHARED} == {key: same[key] for key in SHARED}
            measured = [
                {
                    key: scored_row[key]
                    for key in ("nll", "ppl", "bpb", "accuracy")
                    if scored_row[key] is not None
                }
                for scored_row in (row, same)
            ]
            assert measured[0] == pytest.approx(measured[1], rel=1e-4)


def prompts(small_server) -> list[str]:
    """The texts that were asked for, behind two questions that see how the server answers."""
    return [json.dumps(request.body["prompt"]) for request in small_server.asked[2:]]


@pytest.mark.parametrize("dialect", ["vllm", "old vllm", "sglang"])
def test_losses_are_those_of_the_weights(run, folder, dialect):
    with serving(folder, dialect.split()[-1], fields=dialect != "old vllm", seconds=0.03) as server:
        run(*to(server, folder, protocols(*PROTOCOLS), "model.requests=3"))
        assert server.most_at_once == 3
        before = len(server.asked)
        run(*to(server, folder, protocols(*PROTOCOLS), "model.requests=2"))
        assert len(server.asked) == before
    (listed,) = list_runs(run.root / "runs")
    assert (listed.state, listed.encoding, listed.evaluations) == (
        "finished",
        "served",
        len(PROTOCOLS),
    )
    assert read_metadata(listed.path).training["checkpoint"] == "tiny"
    run("model=hf", "evaluate.dtype=fp32", f"model.path={folder}", protocols(*PROTOCOLS))
    assert_same(run.root, PROTOCOLS)


def test_each_length_is_asked_by_itself_since_an_engine_may_scale_by_it(run, folder):
    with serving(folder, "vllm") as server:
        message = run(*to(server, folder, protocols("by_position"), "dry=true")).stdout
        run(*to(server, folder, protocols("by_position")))
        requests_by_length = Counter(
            len(request.body["prompt"]) - 1 for request in server.asked[2:]
        )  # the BOS stands before each text
    assert requests_by_length == {64: 4, 250: 4} and f"{4 * (64 + 250):,} tokens" in message, (
        requests_by_length,
        message,
    )


def test_texts_without_a_bos(run, folder):
    with serving(folder, "vllm") as server:
        run(*to(server, folder, "data.bos=false", "model.requests=1"))
        assert server.most_at_once == 1
    run("model=hf", "evaluate.dtype=fp32", f"model.path={folder}", "data.bos=false")
    assert_same(run.root, ("fixed_targets",))


@pytest.mark.parametrize("adds_bos", [True, False])
def test_llama_cpp_takes_text_behind_a_bos(run, folder, tmp_path, adds_bos):
    """Its tokenizer may or may not write the BOS, and the losses are right either way; the first
    token's is missing, so no by_position.
    """
    path = folder if adds_bos else small_checkpoint(tmp_path / "model", bos=False)
    with serving(path, "llama_cpp") as server:
        run(*to(server, path))
        message = run(*to(server, path, protocols("by_position")), code=1).stderr
        assert "gives no probability of token 1 " in message and "fixed_targets" in message
    with serving(
        path, "llama_cpp"
    ) as server:  # the one before may still answer what the failed job asked
        message = run(*to(server, path, "data.bos=false"), code=2).stderr
        assert "data.bos=true" in message and "model=llama_cpp" in message and not server.asked
    run("model=hf", "evaluate.dtype=fp32", f"model.path={path}")
    assert_same(run.root, ("fixed_targets",))


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama_cpp"])
def test_a_task_in_words(run, folder, dialect):
    task = [
        "evaluate.tasks=[passkey]",
        protocols("accuracy"),
        "evaluate.lengths=[500]",
        "evaluate.max_length=500",
        "evaluate.windows=1",
    ]
    with serving(folder, dialect, limit=600) as server:
        run(*to(server, folder, *task))
    run("model=hf", "evaluate.dtype=fp32", f"model.path={folder}", *task)
    assert_same(run.root, ("accuracy",))


STAYS = {
    "vllm": [*FAULTS, "closed", *SPOILS],
    "sglang": [name for name in SPOILS if name != "miscounted"],
    "llama_cpp": list(SPOILS),
}


def asking(served, folder: Path, **settings: object) -> tuple[server.Server, np.ndarray]:
    """An engine that has looked at its server, and a text."""
    data = {"tokenizer": str(folder), "bos": True, "vocab_size": 300}
    engine = server.Server(served.url, **settings)
    engine.start(
        {
            "data": data,
            "cache_dir": "",
            "model": {"checkpoint": {"bos": 0}},
            "evaluate": {"lengths": [64]},
        }
    )
    return engine, np.array(
        Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids[:65]
    )


@pytest.mark.parametrize("dialect", STAYS)
def test_a_fault_that_passes_is_asked_again(folder, monkeypatch, dialect):
    monkeypatch.setattr(http_client, "LONGEST_PAUSE", 0.01)
    with serving(folder, dialect) as served:
        engine, text = asking(served, folder, retries=2)
        expected = engine.losses(text, 20)[0]
        for fault in ("500", "503", "429", "gateway", "garbage", "html", "closed"):
            first = len(served.asked)
            served.behave = lambda number, fault=fault, first=first: (
                fault if number < first + 2 else None
            )
            assert (
                np.array_equal(engine.losses(text, 20)[0], expected)
                and len(served.asked) == first + 3
            )
            served.behave = lambda number, fault=fault, first=first: (
                fault if number < first + 6 else None
            )
            with pytest.raises(RunError):
                engine.losses(text, 20)


@pytest.mark.parametrize("dialect", STAYS)
def test_a_fault_that_stays_is_one_sentence(folder, dialect):
    with serving(folder, dialect) as served:
        engine, text = asking(served, folder, retries=0, timeout=0.5)
        for fault in [None, *STAYS[dialect], None]:
            served.behave = lambda number, fault=fault: fault
            if fault is None:
                assert np.isfinite(engine.losses(text, 20)[0]).all()
                continue
            with pytest.raises(RunError) as caught:
                engine.losses(text, 20)
            message = str(caught.value)
            assert served.url in message and "\n" not in message and len(message) < 500, fault


def failing(server, folder: Path, run, *words: str, code: int = 2) -> str:
    """The one sentence of a command that fails."""
    done = run(*to(server, folder, *words), code=code)
    (message,) = [
        line for line in done.stderr.splitlines() if line.startswith(("failed:", "refused:"))
    ]
    assert not evaluated(run.root, "server")
    return message


def test_a_key_is_sent_and_written_nowhere(run, folder, monkeypatch):
    with serving(folder, "vllm", key=SECRET) as server:
        assert KEY in failing(server, folder, run)
        monkeypatch.setenv(KEY, "sk-another")
        assert KEY in failing(server, folder, run)
        monkeypatch.setenv(KEY, SECRET)
        done = run(*to(server, folder))
        assert {request.headers["Authorization"] for request in server.asked} == {
            f"Bearer {SECRET}"
        }
        quoting = json.dumps({"error": {"message": f"{'x' * 60} {SECRET}"}}).encode()
        monkeypatch.setitem(FAULTS, "quoting", lambda handler: handler.say(500, quoting))
        server.behave = lambda number: "quoting"
        server.dialect.unauthorized = {
            "error": {"message": f"Incorrect API key provided: {SECRET}"}
        }
        done = [done, run(*to(server, folder, "evaluate.lengths=[128]", "model.retries=0"), code=1)]
    files = [path for path in run.root.rglob("*") if path.is_file()]
    assert len(files) > 10 and not any(SECRET[:8].encode() in path.read_bytes() for path in files)
    assert not any(SECRET[:8] in result.stdout + result.stderr for result in done)


QUOTING = {  # how a server writes the key into an error
    "plain": lambda key: key,
    "escaped": json.dumps,
    "unicode": lambda key: "".join(f"\\u{ord(letter):04x}" for letter in key),
    "address": lambda key: "".join(f"%{ord(letter):02X}" for letter in key),
    "far behind": lambda key: "x" * 70 + key,
    "nested": lambda key: json.dumps({"error": {"message": f"Incorrect API key provided: {key}"}}),
}


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_server_that_quotes_the_key_does_not_bring_it_into_an_error(folder, monkeypatch, status):
    with serving(folder) as served:
        for key in (
            "sk-not-to-be-written",
            'sk-"with/\\strange&letters',
            "sk-" + "0123456789abcdef" * 100,
        ):
            monkeypatch.setenv(KEY, f"{key}\r\n")  # as a file that Windows wrote gives it
            served.behave = lambda number: None
            engine, text = asking(served, folder, retries=0)
            assert served.asked[-1].headers["Authorization"] == f"Bearer {key}"
            for spelling in QUOTING.values():
                body = spelling(key).encode()
                monkeypatch.setitem(
                    FAULTS, "quoting", lambda handler, body=body: handler.say(status, body)
                )
                served.behave = lambda number: "quoting"
                with pytest.raises(RunError) as caught:
                    engine.losses(text, 20)
                message = str(caught.value)
                assert "..." in message and not any(
                    key[at : at + 8] in message for at in range(len(key) - 7)
                ), message


def test_a_key_in_what_a_server_tells_of_itself_is_written_nowhere(run, folder, monkeypatch):
    monkeypatch.setenv(KEY, SECRET)
    with serving(folder, "vllm", key=SECRET) as server:
        server.dialect.facts["/v1/models"]["data"][0]["root"] = f"/models/{SECRET}"
        server.dialect.facts["/version"]["version"] = f"1.0+{SECRET[:12]}"
        done = run(*to(server, folder))
    files = [path for path in run.root.rglob("*") if path.is_file()]
    assert len(files) > 5 and not any(SECRET[:8].encode() in path.read_bytes() for path in files)
    assert SECRET[:8] not in done.stdout + done.stderr and "1.0+..." in done.stderr


@pytest.mark.parametrize(
    "key", ["sk-tab\tinside-0123", "sk-\u20ac-0123456789", "sk-zero\x7fwidth", "sk-line\nsk-line"]
)
def test_a_key_that_cannot_be_sent_is_refused_before_anything_is_asked(
    run, folder, monkeypatch, key
):
    monkeypatch.setenv(KEY, key)
    with serving(folder) as server:
        message = failing(server, folder, run)
        assert (
            KEY in message
            and "printable ASCII" in message
            and not server.looked_up
            and not server.asked
        )
        assert not any(key[at : at + 6] in message for at in range(len(key) - 5))


def test_an_answer_without_end_is_not_read_to_it(folder, monkeypatch):
    """150 MiB, of which at most 5 MiB are read."""
    sent = []

    def flood(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(150 * 2**20))
        handler.end_headers()
        for _ in range(150):
            handler.wfile.write(b"1" * 2**20)
            sent.append(2**20)

    monkeypatch.setitem(FAULTS, "flood", flood)
    with serving(folder) as served:
        engine, text = asking(served, folder)
        served.behave = lambda number: "flood"
        first = len(served.asked)
        tracemalloc.start()
        with pytest.raises(RunError, match="more than 4 MiB, too much for 65 tokens"):
            engine.losses(text, 20)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30 * 2**20 and len(served.asked) == first + 1


WRONG_TYPES = ["-0.5", True, [], {}, [1], "9" * 5000, -(10**30), 1e400]


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama_cpp"])
@pytest.mark.parametrize("part", ["token_logprobs", "tokens", "top_logprobs", "both", "all"])
def test_values_of_wrong_types_are_one_sentence(folder, monkeypatch, dialect, part):
    with serving(folder, dialect) as served:
        engine, text = asking(served, folder, retries=0)
        served.behave = lambda number: "typed"
        for value in WRONG_TYPES:
            monkeypatch.setitem(
                SPOILS, "typed", lambda answer, value=value: with_value(answer, part, value)
            )
            with pytest.raises(RunError) as caught:
                engine.losses(text, 20)
            assert served.url in str(caught.value) and len(str(caught.value)) < 500


def with_value(answer: dict, part: str, value: object) -> None:
    """Put a value into the place of a part of an answer, or of one token's."""
    if (
        part == "both"
    ):  # a log-probability and the likeliest ones are compared with each other first
        with_value(answer, "token_logprobs", value)
        with_value(
            answer, "top_logprobs", [[value, 1, None]] if "meta_info" in answer else {"a": value}
        )
    elif part == "all":
        name = "meta_info" if "meta_info" in answer else "choices"
        answer[name] = value
    elif "meta_info" in answer:
        entries = answer["meta_info"][
            "input_top_logprobs" if part == "top_logprobs" else "input_token_logprobs"
        ]
        if part == "top_logprobs":
            entries[-1] = value
        else:
            entries[-1][1 if part == "tokens" else 0] = value
    else:
        answer["choices"][0]["logprobs"][part][-2] = (
            f"token_id:{'9' * 5000}" if part == "tokens" else value
        )


@pytest.mark.parametrize(
    ("value", "longest"),
    [
        ("300", 300),
        (300.0, 300),
        (10**30, 10**30),
        *((value, None) for value in ("many", [300], {"a": 1}, True, -1, "9" * 5000)),
    ],
)
def test_a_length_of_another_type_is_read_or_left_out(folder, value, longest):
    with serving(folder) as served:
        served.dialect.facts["/v1/models"]["data"][0] |= {
            "max_model_len": value,
            "owned_by": "vllm",
            "meta": [1],
            "root": [2],
        }
        engine, text = asking(served, folder)
        assert engine.longest == longest
        assert np.isfinite(engine.losses(text, 20)[0]).all()


@pytest.mark.parametrize(
    "models",
    [
        [],
        {},
        None,
        5,
        "tiny",
        {"data": {"id": "tiny"}},
        {"data": ["tiny"]},
        {"data": [[1]]},
        {"data": [{}]},
    ],
)
def test_lists_of_models_of_another_form_are_one_sentence(run, folder, models):
    with serving(folder) as server:
        server.dialect.facts["/v1/models"] = models
        message = failing(server, folder, run)
        assert server.url in message and len(message) < 400


def test_a_name_of_5000_digits(run, folder):
    with serving(folder) as server:
        server.dialect.facts["/v1/models"]["data"][0]["id"] = server.dialect.name = "9" * 4000
        run(*to(server, folder))
        (listed,) = list_runs(run.root / "runs")
        assert listed.state == "finished" and len(listed.path.name) < 100


def test_what_a_server_is_not(run, folder, tmp_path):
    other = small_checkpoint(tmp_path / "other", merges=20)
    with serving(folder, "vllm") as server:
        assert "tiny" in failing(server, folder, run, "model.name=large")
        assert "makes 87 tokens" in failing(server, other, run)
        server.dialect.facts["/v1/models"]["data"][0]["owned_by"] = "llamacpp"
        assert "model=llama_cpp" in failing(server, folder, run)
        url = server.url
    server.url = url  # where nobody listens any more
    assert url in failing(server, folder, run)
    server.url = ""
    assert "add its address, such as model.url=http" in failing(server, folder, run)
    for server.url in (
        "localhost:8000",
        "http://localhost:port",
        f"http://user:{SECRET}@localhost:8000",
    ):
        message = failing(server, folder, run)
        assert "is no plain http" in message and SECRET not in message


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama_cpp"])
def test_a_length_that_the_server_does_not_read(run, folder, dialect):
    """A text of 250 tokens is asked with the target behind it, and an engine wants room for one
    more.
    """
    with serving(folder, dialect, limit=251) as server:
        message = failing(
            server, folder, run, "evaluate.lengths=[250]", code=2 if dialect != "llama_cpp" else 1
        )
        assert "251" in message and ("250" in message or dialect == "llama_cpp")
    with serving(folder, dialect, limit=252) as server:
        run(*to(server, folder))


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_server_that_cuts_texts_is_found_out(run, folder, dialect):
    with serving(folder, dialect, wrong="truncated") as server:
        assert "64" in failing(server, folder, run, code=1)


def test_answered_texts_are_not_asked_again(run, folder):
    words = ["model.requests=2", "model.retries=0", "evaluate.lengths=[250]", "evaluate.windows=12"]
    with serving(folder, "vllm", behave=lambda number: "500" if number > 8 else None) as server:
        failing(server, folder, run, *words, code=1)
        sent = prompts(server)[:7]  # before the first that failed, behind two questions
        server.behave, server.asked = lambda number: None, []
        run(*to(server, folder, *words))
        again = prompts(server)
        # Of two requests at a time one may have been on its way when the other failed.
        on_its_way = set(again) & set(sent)
        assert len(again) == len(set(again))
        assert len(on_its_way) <= 1 and len(again) == 12 - 7 + len(on_its_way)
    run("model=hf", "evaluate.dtype=fp32", f"model.path={folder}", *words[2:])
    assert_same(run.root, ("fixed_targets",))


def started(run, *words: str) -> forked.Popen:
    """The command in processes of their own, where an interrupt is not ignored, as it may be where
    tests run in the background.
    """
    first = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    typed = run.command(*run.typed(*words), common=False, first=first)
    return forked.Popen(
        typed,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=run.root,
        start_new_session=True,
    )


def test_an_interrupt_ends_at_once_although_a_server_hangs(run, folder):
    words = ["model.requests=2", "evaluate.lengths=[250]", "evaluate.windows=12"]
    with serving(folder, "vllm", behave=lambda number: "hang" if number > 7 else None) as served:
        with started(run, *to(served, folder, *words)) as process:
            assert served.hangs.wait(60)
            os.killpg(process.pid, signal.SIGINT)
            message = process.communicate(timeout=60)[1]
        assert (
            process.returncode == 130
            and "the same command goes on from there" in message
            and "Traceback" not in message
        )
        served.behave, served.asked = lambda number: None, []
        with started(run, *to(served, folder, *words)) as process:
            process.communicate(timeout=60)
        assert process.returncode == 0 and 6 <= len(prompts(served)) <= 6 + 2


@pytest.mark.slow
def test_a_killed_command_goes_on_where_it_was(run, folder):
    words = ["model.requests=2", "evaluate.lengths=[250]", "evaluate.windows=60"]
    with serving(folder, "vllm", seconds=0.12) as served:
        with started(run, *to(served, folder, *words)) as process:
            deadline = time.monotonic() + 60
            while len(served.asked) < 44 and time.monotonic() < deadline:
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGKILL)
        served.seconds, served.asked = 0, []
        with started(run, *to(served, folder, *words)) as process:
            process.communicate(timeout=60)
        assert (
            process.returncode == 0 and 60 - 44 < len(prompts(served)) < 60 - 5
        )  # without the answers of its last two seconds
