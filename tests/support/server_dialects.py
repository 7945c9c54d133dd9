"""What three completions servers take and answer, as far as posbench asks it to score texts;
small_server.py is the HTTP around it.

Requests and answers are those of vLLM 0.33.0 (vllm/entrypoints/openai/completion), SGLang 0.5.23
(sglang/srt/entrypoints) and llama-cpp-python 0.3.36 (llama_cpp/server/app.py, and
`_create_completion` in llama_cpp/llama.py), their oddities included: llama-cpp-python pairs each
echoed token with the logits after it, which are the right ones only behind a BOS, whose entry it
drops."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from small_engine import BOS, EOS, Engine
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}


@dataclass
class Token:
    """One entry of an answer: a token, its log-probability and the likeliest ones at its place,
    none of both at the first.
    """

    id: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


@dataclass
class Scored:
    """A prompt as it was read, what was generated behind it, and the log-probabilities [T, V] after
    each token of the prompt.
    """

    ids: list[int]
    new: list[int]
    rows: np.ndarray

    def tokens(self, most: int) -> list[Token]:
        first, *others = self.ids + self.new
        return [
            Token(first),
            *(entry(row, token, most) for row, token in zip(self.rows, others, strict=False)),
        ]


def entry(row: np.ndarray, token: int, most: int) -> Token:
    best = np.argsort(-row, kind="stable")[:most]
    return Token(
        token, float(row[token]), [(int(candidate), float(row[candidate])) for candidate in best]
    )


class Refusal(Exception):
    def __init__(self, status: int, body: dict):
        self.status, self.body = status, body


class Dialect:
    """What the three servers share. `limit` is the model's length, `fields` False a version that
    does not know a request's newer fields.
    """

    guarded, unauthorized = "/v1", {"error": "Unauthorized"}

    def __init__(self, folder: Path, engine: Engine, name: str, limit: int, fields: bool):
        self.folder, self.engine, self.name, self.limit, self.fields = (
            folder,
            engine,
            name,
            limit,
            fields,
        )
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.bos, self.eos = (self.tokenizer.token_to_id(marker) for marker in (BOS, EOS))
        self.routes: dict[str, Callable[[dict], dict]] = {}
        self.facts: dict[str, dict] = {}

    def refuse(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        raise Refusal(
            status, {"error": {"message": message, "type": kind, "param": None, "code": status}}
        )

    def encoded(self, prompt: str | list[int], special: bool = True) -> list[int]:
        return (
            self.tokenizer.encode(prompt, add_special_tokens=special).ids
            if isinstance(prompt, str)
            else prompt
        )

    def scored(self, ids: list[int]) -> Scored:
        if len(ids) + 1 > self.limit:
            self.too_long(len(ids))
        ids = self.engine.read(ids)
        rows = self.engine.logprobs(ids)
        return Scored(ids, [int(rows[-1].argmax())], rows)

    def too_long(self, length: int) -> None:
        self.refuse(
            400,
            f"The decoder prompt (length {length}) is longer than the maximum model length of"
            f" {self.limit}.",
        )

    def answer(self, scored: Scored, text: str, logprobs: dict, **more: object) -> dict:
        usage = {
            "prompt_tokens": len(scored.ids),
            "completion_tokens": len(scored.new),
            "total_tokens": len(scored.ids) + len(scored.new),
        }
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": "length", **more}
        envelope = {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.name,
        }
        return {**envelope, "choices": [choice], "usage": usage}

    def card(self, owner: str, **more: object) -> dict:
        card = {
            "id": self.name,
            "object": "model",
            "owned_by": owner,
            "root": str(self.folder),
            "max_model_len": self.limit,
        }
        return {"object": "list", "data": [{**card, **more}]}


class Vllm(Dialect):
    def __init__(self, *arguments: object):
        super().__init__(*arguments)
        self.routes = {"/v1/completions": self.completions}
        self.facts = {"/v1/models": self.card("vllm"), "/version": {"version": "0.33.0"}}

    def completions(self, body: dict) -> dict:
        if (body.get("model") or self.name) != self.name:
            self.refuse(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        numbered = self.fields and body.get("return_tokens_as_token_ids")

        def named(token: int) -> str:
            return (
                f"token_id:{token}"
                if numbered
                else self.tokenizer.decode([token], skip_special_tokens=False)
            )

        scored, most = (
            self.scored(self.encoded(body["prompt"], body.get("add_special_tokens", True))),
            body["logprobs"],
        )
        tokens = scored.tokens(most)
        names, tops = [named(token.id) for token in tokens], [None]
        for token in tokens[1:]:
            chosen = (token.id, token.logprob)
            tops.append(
                {
                    named(i): p
                    for i, p in [chosen, *(pair for pair in token.top if pair[0] != token.id)][
                        : most + 1
                    ]
                }
            )
        offsets = np.cumsum([0, *map(len, names)])[:-1].tolist()
        facts = {
            "text_offset": offsets,
            "token_logprobs": [token.logprob for token in tokens],
            "tokens": names,
            "top_logprobs": tops,
        }
        return self.answer(
            scored,
            self.tokenizer.decode(scored.ids + scored.new, skip_special_tokens=False),
            facts,
            prompt_logprobs=None,
        )


class Sglang(Dialect):
    guarded = "/"

    def __init__(self, *arguments: object):
        super().__init__(*arguments)
        self.routes = {"/generate": self.generate}
        server = {"model_path": str(self.folder), "context_length": self.limit, "version": "0.5.23"}
        self.facts = {"/v1/models": self.card("sglang"), "/get_server_info": server}

    def refuse(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        raise Refusal(
            status,
            {"object": "error", "message": message, "type": kind, "param": None, "code": status},
        )

    def too_long(self, length: int) -> None:
        self.refuse(
            400,
            f"The input ({length} tokens) is longer than the model's context length ({self.limit}"
            " tokens).",
        )

    def generate(self, body: dict) -> dict:
        scored = self.scored(self.encoded(body.get("input_ids") or body["text"]))
        facts = {
            "id": "1",
            "prompt_tokens": len(scored.ids),
            "completion_tokens": len(scored.new),
            "finish_reason": {"type": "length"},
        }
        tokens = scored.tokens(body["top_logprobs_num"])
        for name, part in (
            ("input", tokens[: len(scored.ids)]),
            ("output", tokens[len(scored.ids) :]),
        ):
            facts[f"{name}_token_logprobs"] = [[token.logprob, token.id, None] for token in part]
            facts[f"{name}_top_logprobs"] = [
                None if token.top is None else [[p, i, None] for i, p in token.top]
                for token in part
            ]
        return {
            "text": self.tokenizer.decode(scored.new, skip_special_tokens=False),
            "output_ids": scored.new,
            "meta_info": facts,
        }


class LlamaCpp(Dialect):
    unauthorized = {"detail": "Invalid API key"}  # noqa: RUF012 (a test changes that of one server)

    def __init__(self, *arguments: object):
        super().__init__(*arguments)
        self.routes = {
            "/v1/completions": self.completions,
            "/extras/tokenize": lambda body: {"tokens": self.encoded(body["input"])},
        }
        self.facts = {
            "/v1/models": {
                "object": "list",
                "data": [{"id": self.name, "object": "model", "owned_by": "me", "permissions": []}],
            }
        }
        self.turn = threading.Lock()

    def too_long(self, length: int) -> None:
        message = (
            f"This model's maximum context length is {self.limit} tokens, however you requested"
            f" {length} tokens."
        )
        error = {
            "message": message,
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
        raise Refusal(400, {"error": error})

    def completions(self, body: dict) -> dict:
        prompt, most = body["prompt"], body["logprobs"]
        if not isinstance(prompt, str):
            message = (
                "[{'type': 'string_type', 'loc': ('body', 'prompt', 'str'), 'msg': 'Input should be"
                " a valid string'}]"
            )
            self.refuse(500, message, "internal_server_error")
        with self.turn:
            scored = self.scored(self.encoded(prompt))
        if scored.new == [self.eos]:
            scored.new = []
        every = scored.ids[scored.ids[0] == self.bos :] + scored.new
        pairs = [
            (token, row)
            for token, row in zip(every, scored.rows, strict=False)
            if token != self.bos
        ]
        tokens = [entry(row, token, most) for token, row in pairs]
        tokens[0] = Token(tokens[0].id)
        names = [self.text([token.id]) for token in tokens]
        tops = [
            (
                None
                if token.top is None
                else {**{self.text([i]): p for i, p in token.top}, name: token.logprob}
            )
            for token, name in zip(tokens, names, strict=True)
        ]
        offsets = [len(self.text([token for token, _ in pairs[:at]])) for at in range(len(pairs))]
        logprobs = {
            "tokens": names,
            "text_offset": offsets,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": tops,
        }
        return self.answer(scored, prompt + self.text(scored.new), logprobs)

    def text(self, ids: list[int]) -> str:
        """Text of tokens, of which each may be a part of a character."""
        words = [
            self.tokenizer.id_to_token(token) for token in ids if token not in (self.bos, self.eos)
        ]
        return bytes(BYTES[letter] for letter in "".join(words)).decode(errors="ignore")


DIALECTS: dict[str, type[Dialect]] = {"vllm": Vllm, "sglang": Sglang, "llama_cpp": LlamaCpp}
