"""Client of a server of JSON, with tries, limits on sizes, and one sentence for each fault.

The key of POSBENCH_API_KEY is sent as a bearer token and written nowhere."""

import json
import math
import threading
from typing import Any, NamedTuple

from posbench.common.errors import ConfigError, RunError, first_line
from posbench.common.secret import KEY_VARIABLE, masked, secret_key
from posbench.config.typed_args import shown

# of answers after which the same request may succeed
RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)
REFUSED_KEY_STATUSES = (401, 403)
LONGEST_PAUSE = 60.0  # seconds between two tries, at most
CONNECT_SECONDS = 20  # seconds to wait for a connection
# bytes of an answer, beside those of each token; a list of models has up to 1 MiB
LARGEST_ANSWER = 4 * 2**20
# bytes of an answer for each token that was asked for; servers write up to 200
LARGEST_ANSWER_PER_TOKEN = 1024
QUOTED_BYTES = 4096  # bytes of an answer of which a sentence may quote some


class Answer(NamedTuple):
    """Answer of a server: its status, its bytes, and the seconds after which it wants to be asked
    again, nan where it names none.
    """

    status: int
    content: bytes
    retry_after: float

    def quoted(self) -> str:
        """Status and beginning as a sentence quotes them, such as "500, {"error": ...".

        The key is hidden before they are cut."""
        beginning = self.content[:QUOTED_BYTES].decode(errors="replace")
        return f"{self.status}, {shown(masked(beginning))}"


class _PassingFault(Exception):
    """Fault that another try may mend, and the seconds after which the server wants it."""

    def __init__(self, fault: str, retry_after: float = math.nan):
        super().__init__(fault)
        self.retry_after = retry_after


class Client:
    """Connections to the server at `url`, which several threads may use at the same time.

    Raises ConfigError for a key that cannot be sent."""

    def __init__(self, url: str, connections: int, timeout: float):
        import httpx

        self.url = url
        self.closed = threading.Event()  # ends a pause between two tries
        self.connections = httpx.Client(
            base_url=url,
            headers=_key_header(),
            timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=connections),
        )

    def close(self) -> None:
        """End it, also while other threads wait for an answer."""
        self.closed.set()
        self.connections.close()

    def ask(
        self,
        method: str,
        path: str,
        body: dict | None = None,
        tries: int = 1,
        error: type[Exception] = RunError,
        tokens: int = 0,
    ) -> Any:
        """JSON of an answer, after at most `tries` tries, no further one once it is closed.

        `tokens` are those that the answer is about: the largest size that is read grows with them.
        Raises `error`, and ConfigError for a key that the server does not take."""
        for attempt in range(tries):
            try:
                return self._try_once(method, path, body, error, tokens)
            except _PassingFault as passing:
                fault = passing
            # seconds that the server names, else 1, 2, 4, ...
            pause = fault.retry_after if math.isfinite(fault.retry_after) else 2.0**attempt
            last = attempt + 1 == tries
            if not last and self.closed.wait(min(max(pause, 0.0), LONGEST_PAUSE)):
                break
        raise error(
            f"{self.url}{path} does not answer as it should ({fault}): see that it runs, and run"
            " the same command again."
        )

    def _try_once(
        self, method: str, path: str, body: dict | None, error: type[Exception], tokens: int
    ) -> Any:
        """JSON of an answer. Raises _PassingFault where another try may succeed, else as `ask`."""
        import httpx

        largest = LARGEST_ANSWER + LARGEST_ANSWER_PER_TOKEN * tokens
        try:
            answer = self._read_answer(method, path, body, largest)
        # RuntimeError where `close` was called, after which `ask` ends its tries; InvalidURL has no
        # cure either, but is told in the same words
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as cause:
            raise _PassingFault(f"{type(cause).__name__}: {first_line(cause)}") from cause
        if len(answer.content) > largest:
            raise error(
                f"{self.url}{path} answers with more than {largest / 2**20:,.0f} MiB, too much for"
                f" {tokens} tokens: see what runs there."
            )
        if answer.status != 200:
            self._check_status(answer, path, error)
            raise _PassingFault(answer.quoted(), answer.retry_after)
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError) as cause:
            raise _PassingFault(f"{answer.quoted()}, which is no JSON") from cause

    def _check_status(self, answer: Answer, path: str, error: type[Exception]) -> None:
        """Raise an error if the status of a failed request is one after which it cannot succeed."""
        if answer.status in REFUSED_KEY_STATUSES:
            raise ConfigError(
                f"{self.url} does not take the key ({answer.status}): set {KEY_VARIABLE} to one"
                " that it takes."
            )
        if answer.status not in RETRIED_STATUSES:
            raise error(
                f"{self.url}{path} refuses what it is asked ({answer.quoted()}): see that it is a"
                " server of completions, and what it takes."
            )

    def _read_answer(self, method: str, path: str, body: dict | None, largest: int) -> Answer:
        """Answer as it comes, which is not read on once it is larger than `largest` bytes.

        Raises errors of httpx."""
        content = bytearray()
        with self.connections.stream(method, path, json=body) as answer:
            for chunk in answer.iter_bytes():
                content += chunk
                if len(content) > largest:
                    break
        try:
            retry_after = float(answer.headers.get("Retry-After", "nan"))
        except ValueError:  # a date
            retry_after = math.nan
        return Answer(answer.status_code, bytes(content), retry_after)


def _key_header() -> dict[str, str]:
    """Header with the key, if there is one. Raises ConfigError for a key that cannot be sent."""
    key = secret_key()
    for at, letter in enumerate(key):
        if not letter.isascii() or not letter.isprintable():
            raise ConfigError(
                f"{KEY_VARIABLE} cannot be sent: character {at + 1} of {len(key)} is not printable"
                " ASCII. Set it again, as the server gives it."
            )
    return {"Authorization": f"Bearer {key}"} if key else {}
