"""A running server, asked over HTTP: vLLM, SGLang, llama-cpp-python's server, or another with the
completions interface of OpenAI.

It must give the log probabilities of a prompt's own tokens, `echo` with `logprobs`; SGLang is asked
by its own /generate, which takes and gives token ids. Prompts are token ids. llama-cpp-python's
server takes text alone: it begins with the BOS (data.bos=true), since without it that server gives
the probability of repeating each token (0.3.36, llama.py), and the first loss of a text is missing.

Interfaces were read in vLLM 0.33.0, SGLang 0.5.23 and llama-cpp-python 0.3.36. Letters: L tokens
fed, R scored rows."""

import contextlib
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import sha256_json
from posbench.common.secret import KEY_VARIABLE, masked, masked_all
from posbench.config.schema import ModelConfig
from posbench.config.typed_args import shown
from posbench.data.corpus import known_tokenizer
from posbench.data.sources import WITHOUT_FILE
from posbench.engines.engine import Count, Engine, Float, PositiveInt, ServedModel
from posbench.engines.http_client import Client
from posbench.pretrained.checkpoint import find_checkpoint

# without a name, a password or a query
ADDRESS = r"https?://([^/@?#\s:\[\]]+|\[[\da-fA-F:.]+\])(:\d+)?(/[^@?#\s]*)?"
# asked first, to compare tokens
PROBE_TEXT = (
    'In 1984, "they" read 20,480 tokens:\n\tfor n in range(10):\n        print(n ** 2, end="; ")\n'
)
# what `owned_by` in the list of models says of the program
VLLM = "vllm"
SGLANG = "sglang"
LLAMA_CPP_PYTHON = "me"
LLAMA_SERVER = "llamacpp"
SETTINGS_PATHS = ("/version", "/get_server_info")  # where servers tell their settings
SETTINGS = (
    "version",
    "context_length",
    "json_model_override_args",
    "attention_backend",
    "dtype",
    "kv_cache_dtype",
    "quantization",
)
RESERVED_TOKENS = 2  # tokens behind a text that servers want room for
LEAST_LOGPROB = -9999.0  # what vLLM writes for -inf
LARGEST_LOGPROB = 1e-3  # above 0 by rounding
MOST_LISTED = 20  # names that a sentence may list
LONGEST_NAME = 4096  # characters of a name that a server gives
ECHO_SETTINGS = {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
SGLANG_SETTINGS = {
    "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 1,
}
# errors of taking apart an answer of another form
MALFORMED = (AttributeError, KeyError, TypeError, IndexError, ValueError)


class Server(Engine):
    """Server at `url`.

    `label` is the user's name for how it was started, which tells runs apart that the server
    does not."""

    kind = "server"
    remote = True

    def __init__(
        self,
        url: str,
        name: str | None = None,
        label: str | None = None,
        bos: int | None = None,
        requests: PositiveInt = 4,
        retries: Count = 6,
        timeout: Float = 600.0,  # seconds
    ):
        self.url = url.rstrip("/").removesuffix("/v1")  # each request's path begins with /v1
        self.name = name
        self.label = label
        self.bos = bos
        self.at_once = requests
        self.retries = retries
        self.timeout = timeout
        self.client: Client | None = None

    def describe_model(self, raw: dict) -> ServedModel:
        """Description of the served model, which is asked for its name alone.

        The outline beside the tokenizer tells its sizes, where there is one; the address and what
        the server lists stand for its weights. Raises ConfigError without a server or tokenizer."""
        if not self.url:
            raise ConfigError(
                "model=server asks a running server: add its address, such as"
                " model.url=http://localhost:8000."
            )
        if not re.fullmatch(ADDRESS, self.url):
            # A password before the @ is not shown.
            raise ConfigError(
                f"model.url={shown(self.url.rpartition('@')[2])} is no plain http://HOST:PORT: a"
                f" key comes from {KEY_VARIABLE}."
            )
        tokenizer = raw["data"]["tokenizer"]
        if tokenizer in WITHOUT_FILE:
            raise ConfigError(
                "model=server needs the served model's tokenizer: add data.tokenizer=FOLDER,"
                " FILE.gguf or a name of the hub."
            )
        with contextlib.closing(self._connect()) as client:
            listed = self._listed_model(client)
        vocab_size = known_tokenizer(raw["data"], raw["cache_dir"]).vocab_size
        bos = None
        length = None
        model = ModelConfig()
        # A tokenizer need not lie beside a description of the model.
        with contextlib.suppress(ConfigError):
            outline = find_checkpoint(tokenizer, download=False).outline()
            model, _, vocab_size, bos, length = outline
        settings = {"name": masked(Path(listed["id"]).name)}  # some servers name a model by a path
        if self.label:
            settings["label"] = self.label
        return ServedModel(
            vocab_size=vocab_size,
            bos=bos if self.bos is None else self.bos,
            train_len=length,
            tokenizer=tokenizer,
            identity={"sha256": sha256_json({"url": self.url, **listed})},
            settings=settings,
            model=model,
        )

    def start(self, raw: dict) -> dict:
        """Connect, and ask for one short text. Returns what the server says of itself, the key
        hidden.
        """
        self.client = self._connect()
        listed = self._listed_model(self.client)
        self.tokenizer = known_tokenizer(raw["data"], raw["cache_dir"])
        self.name = listed["id"]
        self.owner = listed["owned_by"]
        self.takes_ids = self.owner != LLAMA_CPP_PYTHON  # which takes text alone
        self.first_id = raw["model"]["checkpoint"]["bos"] if raw["data"]["bos"] else None
        self.longest = listed["max_model_len"]
        self._check_can_score(max(raw["evaluate"]["lengths"]))
        self._check_losses()
        return masked_all({"url": self.url, **listed, **self._settings()})

    def losses(self, ids_L1: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [R] as Engine.losses, from the echo of the whole text."""
        logprobs, is_likeliest = self._logprobs_and_likeliest(ids_L1.tolist())
        last_logprobs = logprobs[-n_rows:]
        # Servers lack the probability of a text's first targets; fixed_targets scores its last.
        for row, logprob in enumerate(last_logprobs):
            if logprob is None:
                at = len(logprobs) - n_rows + row + 1
                raise RunError(
                    f"{self.url} gives no probability of token {at} of {len(ids_L1) - 1}: choose"
                    " evaluate.protocol=[fixed_targets]."
                )
        for logprob in last_logprobs:
            if not _is_logprob(logprob):
                raise RunError(
                    f"{self.url} gives {shown(logprob)} as the logarithm of a probability in a text"
                    f" of {len(ids_L1) - 1} tokens, which is none: look for the cause there, or"
                    " leave this length out of evaluate.lengths."
                )
        logprob_R = np.array(last_logprobs, np.float32).clip(max=0)  # above 0 by rounding
        return -logprob_R, np.array(is_likeliest[-n_rows:], bool)

    def stop(self) -> None:
        if self.client:
            self.client.close()

    def _connect(self) -> Client:
        return Client(self.url, self.at_once, self.timeout)

    def _listed_model(self, client: Client) -> dict:
        """id, owned_by, root and max_model_len of the model, as the server lists them.

        Raises ConfigError for another name."""
        answer = client.ask("GET", "/v1/models", error=ConfigError)
        try:
            models = {str(model["id"])[:LONGEST_NAME]: dict(model) for model in answer["data"]}
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.url}/v1/models lists no models ({shown(answer)}): give a completions"
                " interface."
            ) from error
        name = self.name
        if not name and len(models) == 1:
            (name,) = models
        if name not in models:
            raise ConfigError(
                f"model.name={self.name} is not served at {self.url}: choose from"
                f" {_listed_names(models)}."
            )
        model = models[name]
        longest = _positive_int(model.get("max_model_len"))
        meta = model.get("meta")
        if longest is None and isinstance(meta, dict):  # of llama.cpp's servers
            longest = _positive_int(meta.get("n_ctx"))
        return {
            "id": name,
            "owned_by": _text_cut_short(model.get("owned_by")),
            "root": _text_cut_short(model.get("root")),
            "max_model_len": longest,
        }

    def _check_can_score(self, length: int) -> None:
        """Raise ConfigError for texts that are too long, and for a server that scores none."""
        if self.longest and length > self.longest - RESERVED_TOKENS:
            raise ConfigError(
                f"evaluate.lengths holds {length}, and {self.url} reads {self.longest}, two behind"
                " a text: leave it out."
            )
        if self.owner == LLAMA_SERVER:
            raise ConfigError(
                f"{self.url} is llama-server, which gives no probabilities of prompts: choose"
                " model=llama_cpp."
            )
        # Without a BOS that server gives the probability of repeating each token.
        if self.owner == LLAMA_CPP_PYTHON and self.first_id is None:
            raise ConfigError(
                f"{self.url} is llama-cpp-python's, right only behind a BOS: add data.bos=true, or"
                " choose model=llama_cpp."
            )

    def _check_losses(self) -> None:
        """Ask for one short text. Raises ConfigError and RunError where its losses are not ours."""
        ids = self.tokenizer.encode(PROBE_TEXT)
        # The BOS as text before a prompt; `first_id` is there, as _check_can_score has seen.
        self.bos_text = "" if self.takes_ids else self.tokenizer.model.id_to_token(self.first_id)
        if not self.takes_ids:  # first, since it sees whether `losses` must write the BOS
            self._check_tokenizer(ids)
        prompt = ids if self.first_id is None else [self.first_id, *ids]
        n_rows = len(prompt) - 2  # all but the first, which a server may lack
        # It raises for an answer without a loss of each token, or about other tokens; their values
        # have nothing to be compared with.
        self.losses(np.array(prompt), n_rows)
        if self.takes_ids:  # last, since the losses of ids do not need the server's tokenizer
            self._check_tokenizer(ids)

    def _check_tokenizer(self, ids: list[int]) -> None:
        """Raise ConfigError if the server makes other tokens of PROBE_TEXT than `ids`.

        A BOS that it writes itself is seen, and not written again."""
        try:
            tokens = self._tokens_of_probe()
        except (RunError, KeyError, TypeError, IndexError):
            return  # it has no such interface, or has no tokenizer
        writes_bos = len(tokens) == len(ids) + 1
        if writes_bos:
            tokens = tokens[1:]
            self.bos_text = ""
        if len(tokens) != len(ids) or not all(map(self._may_stand_for, tokens, ids)):
            raise ConfigError(
                f"data.tokenizer makes {len(ids)} tokens where {self.url} makes {len(tokens)} or"
                " others: give the served one."
            )

    def _tokens_of_probe(self) -> list:
        """Tokens that the server makes of PROBE_TEXT, as it writes them: ids or texts.

        They show whether its tokenizer is that of the evaluation.
        """
        if self.owner == SGLANG:
            answer = self._post("/generate", {"text": PROBE_TEXT, **SGLANG_SETTINGS})
            # entries are (logprob, id, ...)
            return [entry[1] for entry in answer["meta_info"]["input_token_logprobs"]]
        if not self.takes_ids:  # llama-cpp-python
            answer = self._post("/extras/tokenize", {"model": self.name, "input": PROBE_TEXT})
            return list(answer["tokens"])
        request = {
            "model": self.name,
            "prompt": PROBE_TEXT,
            "add_special_tokens": False,
            "return_tokens_as_token_ids": True,
            **ECHO_SETTINGS,
        }
        answer = self._post("/v1/completions", request)
        # The last one is the token that the server was made to write behind the text.
        return list(answer["choices"][0]["logprobs"]["tokens"][:-1])

    def _settings(self) -> dict:
        """{key: value} of what the server says of its settings, where it says any."""
        settings = {}
        for path in SETTINGS_PATHS:
            with contextlib.suppress(RunError, ConfigError):
                answer = self.client.ask("GET", path)
                if not isinstance(answer, dict):
                    continue
                for key in SETTINGS:
                    if isinstance(answer.get(key), str | int | float):
                        settings[key] = answer[key]
        return settings

    def _logprobs_and_likeliest(self, ids: list[int]) -> tuple[list[float | None], list[bool]]:
        """Log probability of each token but the first, and whether it was the likeliest: [L] each.

        Raises RunError for an answer without them, or about other tokens than `ids`."""
        answer = self._post_tokens(ids)
        try:
            echo = _echo_of_sglang(answer) if self.owner == SGLANG else _echo_of_completion(answer)
            if not self.takes_ids:  # llama-cpp-python leaves the BOS out of its echo
                echo = echo.with_bos_entry()
            is_likeliest = echo.is_likeliest()
        except MALFORMED as error:
            raise self._no_probabilities_error(answer) from error
        if echo.count != len(ids):
            raise RunError(
                f"{self.url} read {shown(echo.count)} tokens of a text of {len(ids)}: it cuts"
                " texts, or has not data.tokenizer."
            )
        # The echo of a completion ends with the token that the server was made to write.
        if not len(echo.tokens) == len(echo.logprobs) >= len(ids):
            raise self._no_probabilities_error(answer)
        for at, (token, index) in enumerate(zip(echo.tokens, ids, strict=False)):
            if not self._may_stand_for(token, index):
                piece = shown(self.tokenizer.decode([index]))
                raise RunError(
                    f"{self.url} has {shown(token)} as token {at} of a text, data.tokenizer"
                    f" {piece}: give the served one."
                )
        return echo.logprobs[1 : len(ids)], is_likeliest[1 : len(ids)]

    def _post_tokens(self, ids: list[int]) -> Any:
        """JSON of the answer about a text of these tokens."""
        if self.owner == SGLANG:
            return self._post("/generate", {"input_ids": ids, **SGLANG_SETTINGS}, len(ids))
        prompt: list[int] | str = ids
        if not self.takes_ids:
            has_bos = self.first_id is not None and ids[0] == self.first_id
            rest = ids[1:] if has_bos else ids
            prompt = self.bos_text + self.tokenizer.decode(rest)
        request = {"model": self.name, "prompt": prompt, **ECHO_SETTINGS}
        if self.owner == VLLM:
            request["return_tokens_as_token_ids"] = True
        return self._post("/v1/completions", request, len(ids))

    def _post(self, path: str, request: dict, tokens: int = len(PROBE_TEXT)) -> Any:
        """JSON of the answer to a text of so many tokens. Raises RunError."""
        return self.client.ask("POST", path, request, tries=1 + self.retries, tokens=tokens)

    def _may_stand_for(self, token: str | int | None, index: int) -> bool:
        """True if a token as the server writes it may be the id `index`.

        Pieces of characters are written in many ways, so only ASCII is compared."""
        if not isinstance(token, str):
            return token is None or token == index  # None stands for a BOS that is not echoed
        # More digits are no id of a vocabulary, and int() refuses thousands of them.
        numbered = re.fullmatch(r"token_id:0*(\d{1,18})", token)
        if numbered:
            return int(numbered[1]) == index
        piece = self.tokenizer.decode([index])
        cannot_tell = not piece or not token or not piece.isascii() or "\ufffd" in token
        if cannot_tell:
            return True
        return piece.strip() == token.strip()

    def _no_probabilities_error(self, answer: object) -> RunError:
        cause = answer.get("error", answer) if isinstance(answer, dict) else answer
        return RunError(
            f"{self.url} gives no probabilities of a prompt's own tokens ({shown(cause)}): start it"
            " so that echo with logprobs works, or evaluate its weights with model=hf or"
            " model=llama_cpp."
        )


class _Echo(NamedTuple):
    """Entries of an answer for each token of a prompt, and the number of tokens it counts: any
    values, as the server writes them.
    """

    tokens: list
    logprobs: list
    top_logprobs: list  # the log-probabilities of the likeliest tokens in each place, or None
    count: object

    def with_bos_entry(self) -> "_Echo":
        """Entries with one for a BOS, which has no probability."""
        return _Echo(
            [None, *self.tokens], [None, *self.logprobs], [None, *self.top_logprobs], self.count
        )

    def is_likeliest(self) -> list[bool]:
        """For each token whether none was likelier."""
        return [
            logprob is not None and logprob >= max(top)
            for logprob, top in zip(self.logprobs, self.top_logprobs, strict=True)
        ]


def _echo_of_sglang(answer: Any) -> _Echo:
    """Echo of an answer of /generate. Raises MALFORMED for an answer of another form."""
    meta = answer["meta_info"]
    entries = meta["input_token_logprobs"]  # (logprob, id) of each token
    top_logprobs = [top and [entry[0] for entry in top] for top in meta["input_top_logprobs"]]
    tokens = [entry[1] for entry in entries]
    return _Echo(tokens, [entry[0] for entry in entries], top_logprobs, len(entries))


def _echo_of_completion(answer: Any) -> _Echo:
    """Echo of an answer of /v1/completions. Raises MALFORMED for an answer of another form."""
    echo = answer["choices"][0]["logprobs"]
    top_logprobs = [top and list(top.values()) for top in echo["top_logprobs"]]
    count = answer["usage"]["prompt_tokens"]
    return _Echo(list(echo["tokens"]), list(echo["token_logprobs"]), top_logprobs, count)


def _is_logprob(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and LEAST_LOGPROB < value <= LARGEST_LOGPROB


def _positive_int(value: object) -> int | None:
    """Whole number above 0 that a server writes as a number or as text; None for all else.

    >>> _positive_int("4096"), _positive_int(4096.0), _positive_int("many")
    (4096, 4096, None)
    """
    if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value, re.ASCII):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _listed_names(names: Iterable[str]) -> str:
    """The first names in a sentence, such as "a, b, others"; "none" without any."""
    first = [shown(name) for name in itertools.islice(names, MOST_LISTED + 1)]
    if len(first) > MOST_LISTED:
        first[MOST_LISTED] = "others"
    return ", ".join(first) or "none"


def _text_cut_short(value: object) -> str | None:
    return value[:LONGEST_NAME] if isinstance(value, str) else None
