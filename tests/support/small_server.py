"""A completions server of the standard library around a tiny Llama: it counts what it is asked, and
can be told to misbehave.

with serving(small_checkpoint(tmp_path), "vllm", wrong="ignored") as server:
    ...  # server.url, server.asked
"""

import contextlib
import functools
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

from server_dialects import DIALECTS, Refusal
from small_engine import FACTOR, TRAINED, engine

NAME, HTML = (
    "tiny",
    b"<!DOCTYPE html><html><head><title>Bad gateway</title></head><body>nginx</body></html>",
)
AT = -5  # the token that a spoiled answer spoils, among those that a protocol scores


@dataclass
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: dict


class SmallServer(ThreadingHTTPServer):
    """`behave` names the fault (of FAULTS or SPOILS) of the completion of a number, counted from
    zero, or None.

    `asked` are the requests for completions in the order of arrival, `most_at_once` the largest
    number of them in work, `seconds` how long each takes at least. `hangs` is set once a request is
    left without an answer."""

    daemon_threads = True

    def __init__(
        self, folder: Path, dialect: str = "vllm", wrong: str = "right",
        behave: Callable[[int], str | None] = lambda number: None,
        key: str | None = None, limit: int = TRAINED * FACTOR + 1, fields: bool = True,
        seconds: float = 0.0,
    ):  # fmt: skip
        super().__init__(("127.0.0.1", 0), Handler)
        self.dialect = DIALECTS[dialect](folder, engine(folder, wrong), NAME, limit, fields)
        self.behave, self.key, self.seconds = behave, key, seconds
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[Asked] = []
        self.looked_up: list[Asked] = []
        self.at_once = self.most_at_once = 0
        self.hangs, self.closing, self.lock = threading.Event(), threading.Event(), threading.Lock()

    def handle_error(self, request, client_address):
        pass  # a client that was killed, or a connection broken on purpose

    @contextlib.contextmanager
    def counted(self, request: Asked) -> Iterator[int]:
        with self.lock:
            number = len(self.asked)
            self.asked.append(request)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield number
        finally:
            with self.lock:
                self.at_once -= 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for the receipt of its head
    server: SmallServer

    def log_message(self, *_):
        pass

    def say(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def say_json(self, status: int, body: object) -> None:
        self.say(status, json.dumps(body).encode())

    def refused(self) -> bool:
        key, dialect = self.server.key, self.server.dialect
        if (
            key is None
            or not self.path.startswith(dialect.guarded)
            or self.headers.get("Authorization") == f"Bearer {key}"
        ):
            return False
        self.say_json(401, dialect.unauthorized)
        return True

    def do_GET(self):
        self.server.looked_up.append(Asked(self.path, dict(self.headers), {}))
        if self.refused():
            return
        fact = self.server.dialect.facts.get(self.path)
        self.say_json(404, {"detail": "Not Found"}) if fact is None else self.say_json(200, fact)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        request = Asked(self.path, dict(self.headers), body)
        route = self.server.dialect.routes.get(self.path)
        if route is None or self.path.startswith("/extras"):
            self.server.looked_up.append(request)
            if not self.refused():
                (
                    self.say_json(404, {"detail": "Not Found"})
                    if route is None
                    else self.say_json(200, route(body))
                )
            return
        with self.server.counted(request) as number:
            if self.refused():
                return
            time.sleep(self.server.seconds)
            fault = self.server.behave(number)
            if fault in FAULTS:
                FAULTS[fault](self)
                return
            try:
                answer = route(body)
            except Refusal as refusal:
                self.say_json(refusal.status, refusal.body)
                return
            if fault == "closed":
                self.break_off(answer)
                return
            if fault is not None:
                SPOILS[fault](answer)
        self.say_json(200, answer)

    def hang(self) -> None:
        self.server.hangs.set()
        self.server.closing.wait(60)
        self.close_connection = True

    def break_off(self, answer: dict) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.close_connection = True


def failed(status: int, **headers: str) -> Callable[[Handler], None]:
    body = {
        "error": {
            "message": "The engine is not well.",
            "type": "server_error",
            "param": None,
            "code": status,
        }
    }
    return lambda handler: handler.say(status, json.dumps(body).encode(), **headers)


FAULTS: dict[str, Callable[[Handler], None]] = {
    "garbage": lambda handler: handler.say(200, b"not json \xff"),
    "html": lambda handler: handler.say(200, HTML, "text/html"),
    "gateway": lambda handler: handler.say(502, HTML, "text/html"),
    "list": lambda handler: handler.say(200, b"[]"),
    "500": failed(500),
    "503": failed(503),
    "429": failed(429, Retry_After="1"),
    "hang": lambda handler: handler.hang(),
}


def lists_of(answer: dict) -> list[list]:
    """The lists of an answer that have an entry for each token."""
    if "meta_info" in answer:
        return [answer["meta_info"][f"input_{name}_logprobs"] for name in ("token", "top")]
    return list(answer["choices"][0]["logprobs"].values())


def valued(value: object) -> Callable[[dict], None]:
    """Another log-probability for the token AT."""

    def spoil(answer: dict) -> None:
        if "meta_info" in answer:
            answer["meta_info"]["input_token_logprobs"][AT][0] = value
        else:
            answer["choices"][0]["logprobs"]["token_logprobs"][AT] = value

    return spoil


def without_one(answer: dict) -> None:
    for entries in lists_of(answer):
        del entries[AT]


def one_twice(answer: dict) -> None:
    for entries in lists_of(answer):
        entries.insert(AT, entries[AT])


def shifted(answer: dict) -> None:
    """Every token under the name and id of the one before it: numbers of another text."""
    if "meta_info" in answer:
        entries = answer["meta_info"]["input_token_logprobs"]
        for entry, token in zip(entries[1:], [entry[1] for entry in entries][:-1], strict=True):
            entry[1] = token
    else:
        names = answer["choices"][0]["logprobs"]["tokens"]
        names.insert(1, names.pop())


def merged(answer: dict) -> None:
    """Two tokens in one, the log-probabilities summed: the text is the same, the tokenization is
    not.
    """
    if "choices" in answer:
        logprobs = answer["choices"][0]["logprobs"]
        for name in ("tokens", "token_logprobs"):
            logprobs[name][AT + 1] = logprobs[name][AT] + logprobs[name][AT + 1]
        answer["usage"]["prompt_tokens"] -= 1
    without_one(answer)


def without_logprobs(answer: dict) -> None:
    for choice in answer.get("choices", ()):
        choice["logprobs"] = None
    for name in ("input_token_logprobs", "input_top_logprobs"):
        answer.get("meta_info", {}).pop(name, None)


def miscounted(answer: dict) -> None:
    (answer["usage"] if "usage" in answer else answer["meta_info"])["prompt_tokens"] += 3


SPOILS: dict[str, Callable[[dict], None]] = {
    "nan": valued(float("nan")),
    "inf": valued(float("-inf")),
    "none": valued(None),
    "word": valued("much"),
    "positive": valued(0.5),
    "without one": without_one,
    "one twice": one_twice,
    "shifted": shifted,
    "merged": merged,
    "without logprobs": without_logprobs,
    "miscounted": miscounted,
    "without choices": lambda answer: (answer.pop("choices", None), answer.pop("meta_info", None)),
}


_certificates = functools.cache(ssl.create_default_context)


@contextlib.contextmanager
def serving(folder: Path, dialect: str = "vllm", **settings: object) -> Iterator[SmallServer]:
    """A server on a free local port. Each client of it reads no list of certificates of its own."""
    server = SmallServer(folder, dialect, **settings)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        with mock.patch.object(ssl, "create_default_context", _certificates):
            yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
