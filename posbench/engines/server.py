"""A running server, asked over HTTP: vLLM, SGLang, llama-cpp-python's server, or another with the
completions interface of OpenAI.

It must give the log probabilities of a prompt's own tokens, `echo` with `logprobs`; SGLang is asked
by its own /generate, which takes and gives token ids. Prompts are token ids. llama-cpp-python's
server takes text alone: it begins with the BOS (data.bos=true), since without it that server gives
the probability of repeating each token (0.3.36, llama.py), and the first loss of a text is missing.

The key of POSBENCH_API_KEY is sent as a bearer token and written nowhere. Interfaces were read in
vLLM 0.33.0, SGLang 0.5.23 and llama-cpp-python 0.3.36. Letters: L tokens fed, R scored rows."""

import contextlib
import itertools
import json
import math
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from posbench.common.errors import ConfigError, RunError, first_line
from posbench.common.files import sha256_json
from posbench.common.secret import KEY, masked, masked_all, secret_key
from posbench.config.schema import ModelConfig
from posbench.config.typed_args import Must, shown
from posbench.data.corpus import known_tokenizer
from posbench.engines.engine import Engine, ServedModel
from posbench.pretrained.checkpoint import find_checkpoint

# without a name, a password or a query
ADDRESS = r"https?://([^/@?#\s:\[\]]+|\[[\da-fA-F:.]+\])(:\d+)?(/[^@?#\s]*)?"
# asked first, to compare tokens
BEGIN = (
    'In 1984, "they" read 20,480 tokens:\n\tfor n in range(10):\n        print(n ** 2, end="; ")\n'
)
SAYS = (
    "version",
    "context_length",
    "json_model_override_args",
    "attention_backend",
    "dtype",
    "kv_cache_dtype",
    "quantization",
)
AGAIN = (408, 425, 429, 500, 502, 503, 504)  # answers after which the same request may succeed
LONGEST = 60.0  # seconds between two tries, at most
LEAST = -9999.0  # what vLLM writes for -inf
LARGEST = (
    4 * 2**20
)  # bytes of an answer, beside those of each token; a list of models has up to 1 MiB
LARGEST_OF_TOKEN = (
    1024  # bytes of an answer for each token that was asked for; servers write up to 200
)
BEGINNING = 4096  # bytes of an answer of which a sentence may quote some
LISTED = 20  # names that a sentence may list
LONGEST_NAME = 4096  # characters of a name that a server gives
ECHOED = {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
SCORED = {
    "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 1,
}
Whole = Annotated[int, Must("a whole number of at least 1", lambda value: value >= 1)]


class Server(Engine):
    """Server at `url`. `label` is the user's name for how it was started, which tells runs apart
    that the server does not.
    """

    kind, remote = "server", True

    def __init__(
        self,
        url: str,
        name: str | None = None,
        label: str | None = None,
        bos: int | None = None,
        requests: Whole = 4,
        retries: int = 6,
        timeout: Annotated[float, float] = 600.0,
    ):
        self.url, self.name, self.label, self.bos = (
            url.rstrip("/").removesuffix("/v1"),
            name,
            label,
            bos,
        )
        self.at_once, self.retries, self.timeout = requests, retries, timeout
        self.client, self.stopped, self.takes_ids = None, threading.Event(), True

    def served(self, cfg: dict) -> ServedModel:
        if not self.url:
            raise ConfigError(
                "model=server asks a running server: add its address, such as"
                " model.url=http://localhost:8000."
            )
        if not re.fullmatch(ADDRESS, self.url):
            raise ConfigError(
                f"model.url={shown(self.url.rpartition('@')[2])} is no plain http://HOST:PORT: a"
                f" key comes from {KEY}."
            )
        if cfg["data"]["tokenizer"] in ("bytes", "bpe"):
            raise ConfigError(
                "model=server needs the served model's tokenizer: add data.tokenizer=FOLDER,"
                " FILE.gguf or a name of the hub."
            )
        with self._open():
            listed = self._listed()
        known, length, model = (
            {"vocab_size": known_tokenizer(cfg["data"], cfg["cache_dir"]).vocab_size, "bos": None},
            None,
            ModelConfig(),
        )
        with contextlib.suppress(
            ConfigError
        ):  # a tokenizer need not lie beside a description of the model
            model, _, known = find_checkpoint(cfg["data"]["tokenizer"], download=False).outline()
            length = known.pop("length")
        if self.bos is not None:
            known["bos"] = self.bos
        return ServedModel(
            **known,
            train_len=length,
            tokenizer=cfg["data"]["tokenizer"],
            identity={"sha256": sha256_json({"url": self.url, **listed})},
            settings={
                "name": masked(Path(listed["id"]).name),
                **({"label": self.label} if self.label else {}),
            },
            model=model,
        )

    def start(self, cfg: dict) -> dict:
        self._open()
        listed, self.tokenizer = self._listed(), known_tokenizer(cfg["data"], cfg["cache_dir"])
        self.name, self.owner, self.longest = (
            listed["id"],
            listed["owned_by"],
            listed["max_model_len"],
        )
        self.first = cfg["model"]["checkpoint"]["bos"] if cfg["data"]["bos"] else None
        if self.longest and (largest := max(cfg["evaluate"]["lengths"])) > self.longest - 2:
            raise ConfigError(
                f"evaluate.lengths holds {largest}, and {self.url} reads {self.longest}, two behind"
                " a text: leave it out."
            )
        self.takes_ids = self.owner != "me"  # llama-cpp-python
        if self.owner == "llamacpp":
            raise ConfigError(
                f"{self.url} is llama-server, which gives no probabilities of prompts: choose"
                " model=llama_cpp."
            )
        if not self.takes_ids and self.first is None:
            raise ConfigError(
                f"{self.url} is llama-cpp-python's, right only behind a BOS: add data.bos=true, or"
                " choose model=llama_cpp."
            )
        own, self.marks = self.tokenizer.encode(BEGIN), True
        if not self.takes_ids:
            self._compare(own)  # sees whether the server writes a BOS itself
        ids = [*([] if self.first is None else [self.first]), *own]
        self.losses(np.array(ids), len(ids) - 2)
        if self.takes_ids:
            self._compare(own)
        said = {"url": self.url, **listed}
        for path in ("/version", "/get_server_info"):
            with contextlib.suppress(RunError, ConfigError):
                found = self._ask("GET", path, None, tries=1)
                said |= {
                    key: found[key]
                    for key in SAYS
                    if isinstance(found, dict) and isinstance(found.get(key), str | int | float)
                }
        return masked_all(said)

    def losses(self, ids_L1: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
        logprobs, likeliest = self._scored(ids_L1.tolist())
        rows = logprobs[-n_rows:]
        if None in rows:
            at = len(logprobs) - n_rows + rows.index(None) + 1
            raise RunError(
                f"{self.url} gives no probability of token {at} of {len(ids_L1) - 1}: choose"
                " evaluate.protocol=[fixed_targets]."
            )
        if wrong := [logprob for logprob in rows if not _is_logprob(logprob)]:
            said = (
                f"gives {shown(wrong[0])} as the logarithm of a probability in a text of"
                f" {len(ids_L1) - 1} tokens, which is none"
            )
            raise RunError(
                f"{self.url} {said}: look for the cause there, or leave this length out of"
                " evaluate.lengths."
            )
        return -np.array(rows, np.float32).clip(max=0), np.array(likeliest[-n_rows:], bool)

    def _compare(self, own: list[int]) -> None:
        """Raise ConfigError if the server makes other tokens of BEGIN than `own`, but for a BOS
        that it writes.
        """
        try:
            if not self.takes_ids:
                made = self._post("/extras/tokenize", {"model": self.name, "input": BEGIN})[
                    "tokens"
                ]
            elif self.owner == "sglang":
                made = [
                    one[1]
                    for one in self._post("/generate", {"text": BEGIN, **SCORED})["meta_info"][
                        "input_token_logprobs"
                    ]
                ]
            else:
                asked = {
                    "prompt": BEGIN,
                    "add_special_tokens": False,
                    "return_tokens_as_token_ids": True,
                    **ECHOED,
                }
                made = self._post("/v1/completions", {"model": self.name, **asked})["choices"][0][
                    "logprobs"
                ]["tokens"][:-1]
            made = list(made)
        except (RunError, KeyError, TypeError, IndexError):
            return  # it has no such interface, or has no tokenizer
        if len(made) == len(own) + 1:
            made, self.marks = made[1:], False
        if len(made) != len(own) or not all(map(self._same, made, own)):
            raise ConfigError(
                f"data.tokenizer makes {len(own)} tokens where {self.url} makes {len(made)} or"
                " others: give the served one."
            )

    def stop(self) -> None:
        self.stopped.set()
        if self.client:
            self.client.close()

    def _scored(self, ids: list[int]) -> tuple[list[float | None], list[bool]]:
        """Log probability of each token but the first, and whether it was the likeliest: [L]
        each.
        """
        if self.owner == "sglang":
            answer = self._post("/generate", {"input_ids": ids, **SCORED}, len(ids))
        else:
            behind = ids[1:] if self.first is not None and ids[0] == self.first else ids
            mark = (
                ""
                if self.takes_ids or not self.marks
                else self.tokenizer.model.id_to_token(self.first)
            )  # which it reads as one token
            prompt = ids if self.takes_ids else mark + self.tokenizer.decode(behind)
            numbered = {"return_tokens_as_token_ids": True} if self.owner == "vllm" else {}
            answer = self._post(
                "/v1/completions",
                {"model": self.name, "prompt": prompt, **ECHOED, **numbered},
                len(ids),
            )
        try:
            tokens, logprobs, tops, count = (
                _of_sglang(answer) if self.owner == "sglang" else _of_completion(answer)
            )
            if not self.takes_ids:  # it leaves the BOS out
                tokens, logprobs, tops = [None, *tokens], [None, *logprobs], [None, *tops]
            likeliest = [
                logprob is not None and logprob >= max(top)
                for logprob, top in zip(logprobs, tops, strict=True)
            ]
        except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
            raise RunError(self._none(answer)) from error
        if count != len(ids):
            raise RunError(
                f"{self.url} read {shown(count)} tokens of a text of {len(ids)}: it cuts texts, or"
                " has not data.tokenizer."
            )
        if not len(tokens) == len(logprobs) >= len(ids):
            raise RunError(self._none(answer))
        for at, (said, own) in enumerate(zip(tokens, ids, strict=False)):
            if not self._same(said, own):
                piece = shown(self.tokenizer.decode([own]))
                raise RunError(
                    f"{self.url} has {shown(said)} as token {at} of a text, data.tokenizer {piece}:"
                    " give the served one."
                )
        return logprobs[1 : len(ids)], likeliest[1 : len(ids)]

    def _same(self, said: str | int | None, own: int) -> bool:
        """True if a token as the server writes it may be the id `own`. Pieces of characters are
        written in many ways.
        """
        if not isinstance(said, str):
            return said is None or said == own
        if found := re.fullmatch(r"token_id:0*(\d{1,18})", said):
            return int(found[1]) == own
        piece = self.tokenizer.decode([own])
        return (
            "\ufffd" in piece + said
            or not piece
            or not said
            or not piece.isascii()
            or piece.strip() == said.strip()
        )

    def _none(self, answer: object) -> str:
        cause = answer.get("error", answer) if isinstance(answer, dict) else answer
        return (
            f"{self.url} gives no probabilities of a prompt's own tokens ({shown(cause)}): start it"
            " so that echo with logprobs works, or evaluate its weights with model=hf or"
            " model=llama_cpp."
        )

    def _open(self) -> Any:
        """Client of the server. Raises ConfigError for a key that cannot be sent."""
        import httpx

        key = secret_key()
        if not key.isascii() or not key.isprintable():
            at = next(
                at
                for at, letter in enumerate(key)
                if not letter.isascii() or not letter.isprintable()
            )
            raise ConfigError(
                f"{KEY} cannot be sent: character {at + 1} of {len(key)} is not printable ASCII."
                " Set it again, as the server gives it."
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=self.at_once)
        self.client = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(self.timeout, connect=20),
            limits=limits,
        )
        return self.client

    def _listed(self) -> dict:
        """id, owned_by, root and max_model_len of the model, as the server lists them. Raises
        ConfigError for another name.
        """
        answer = self._ask("GET", "/v1/models", None, tries=1, error=ConfigError)
        try:
            models = {str(model["id"])[:LONGEST_NAME]: dict(model) for model in answer["data"]}
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.url}/v1/models lists no models ({shown(answer)}): give a completions"
                " interface."
            ) from error
        name = self.name or (next(iter(models)) if len(models) == 1 else None)
        if name not in models:
            raise ConfigError(
                f"model.name={self.name} is not served at {self.url}: choose from"
                f" {_listed_names(models)}."
            )
        model = models[name]
        meta = model.get("meta")
        longest = _whole(model.get("max_model_len")) or (
            _whole(meta.get("n_ctx")) if isinstance(meta, dict) else None
        )
        return {
            "id": name,
            "owned_by": _name(model.get("owned_by")),
            "root": _name(model.get("root")),
            "max_model_len": longest,
        }

    def _post(self, path: str, asked: dict, tokens: int = len(BEGIN)) -> Any:
        """JSON of the answer to a text of so many tokens. Raises RunError."""
        return self._ask("POST", path, asked, tries=1 + self.retries, tokens=tokens)

    def _ask(
        self,
        method: str,
        path: str,
        asked: dict | None,
        tries: int,
        error: type[Exception] = RunError,
        tokens: int = 0,
    ) -> Any:
        """JSON of an answer, after so many tries. Raises `error`, and ConfigError for a key that
        the server does not take.
        """
        import httpx

        largest = LARGEST + LARGEST_OF_TOKEN * tokens
        for attempt in range(tries):
            pause, refused = min(2.0**attempt, LONGEST), False
            try:
                answer = self._read(method, path, asked, largest)
                if len(answer.content) > largest:
                    limit = f"{largest / 2**20:,.0f} MiB"
                    raise error(
                        f"{self.url}{path} answers with more than {limit}, too much for {tokens}"
                        " tokens: see what runs there."
                    )
                if answer.status == 200:
                    return json.loads(answer.content)
            except (ConfigError, RunError):
                raise
            except (ValueError, RecursionError):
                said = f"{answer.quoted()}, which is no JSON"
            except (
                httpx.HTTPError,
                httpx.InvalidURL,
                RuntimeError,
            ) as cause:  # RuntimeError where `stop` has closed the client
                said = f"{type(cause).__name__}: {first_line(cause)}"
            else:
                said = answer.quoted()
                if answer.status in (401, 403):
                    raise ConfigError(
                        f"{self.url} does not take the key ({answer.status}): set {KEY} to one that"
                        " it takes."
                    )
                if refused := answer.status not in AGAIN:
                    break
                if math.isfinite(answer.retry_after):
                    pause = min(max(answer.retry_after, 0.0), LONGEST)
            if attempt + 1 < tries and self.stopped.wait(pause):
                break
        if refused:
            raise error(
                f"{self.url}{path} refuses what it is asked ({said}): see that it is a server of"
                " completions, and what it takes."
            )
        raise error(
            f"{self.url}{path} does not answer as it should ({said}): see that it runs, and run the"
            " same command again."
        )

    def _read(self, method: str, path: str, asked: dict | None, largest: int) -> "Answer":
        """Answer as it comes, which is not read further where it is larger than `largest` bytes.
        Raises errors of httpx.
        """
        content = bytearray()
        with self.client.stream(method, path, json=asked) as answer:
            for chunk in answer.iter_bytes():
                content += chunk
                if len(content) > largest:
                    break
        try:
            retry_after = float(answer.headers.get("Retry-After", "nan"))
        except ValueError:  # a date
            retry_after = math.nan
        return Answer(answer.status_code, bytes(content), retry_after)


class Answer(NamedTuple):
    """Answer of a server: its status, its bytes, and the seconds after which it wants to be asked
    again, nan where it names none.
    """

    status: int
    content: bytes
    retry_after: float

    def quoted(self) -> str:
        """Status and beginning as a sentence quotes them, such as "500, {"error": ...". The key is
        hidden before they are cut.
        """
        return f"{self.status}, {shown(masked(self.content[:BEGINNING].decode(errors='replace')))}"


class Echo(NamedTuple):
    """Entries of an answer for each token of a prompt, and the number of tokens it counts: any
    values, as the server writes them.
    """

    tokens: list
    logprobs: list
    tops: list  # the log-probabilities of the likeliest tokens in each place, or None
    count: object


def _of_sglang(answer: Any) -> Echo:
    """Echo of an answer of /generate. Raises AttributeError, IndexError, KeyError or TypeError for
    an answer of another form.
    """
    meta = answer["meta_info"]
    entries = meta["input_token_logprobs"]
    tops = [top and [entry[0] for entry in top] for top in meta["input_top_logprobs"]]
    return Echo(
        [entry[1] for entry in entries], [entry[0] for entry in entries], tops, len(entries)
    )


def _of_completion(answer: Any) -> Echo:
    """Echo of an answer of /v1/completions. Raises AttributeError, IndexError, KeyError or
    TypeError for an answer of another form.
    """
    echo = answer["choices"][0]["logprobs"]
    tops = [top and list(top.values()) for top in echo["top_logprobs"]]
    return Echo(
        list(echo["tokens"]), list(echo["token_logprobs"]), tops, answer["usage"]["prompt_tokens"]
    )


def _is_logprob(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and LEAST < value <= 1e-3


def _whole(value: object) -> int | None:
    """Whole number above 0 that a server writes as a number or as text, such as 4096 or "4096";
    None for all else.
    """
    if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value, re.ASCII):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _listed_names(names: Iterable[str]) -> str:
    first = [shown(name) for name in itertools.islice(names, LISTED + 1)]
    if len(first) > LISTED:
        first[LISTED] = "others"
    return ", ".join(first) or "none"


def _name(value: object) -> str | None:
    return value[:LONGEST_NAME] if isinstance(value, str) else None
