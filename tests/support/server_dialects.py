"""What three completions servers take and answer, as far as a client meets it that scores texts; small_server.py is the HTTP around it.

Requests and answers are those of vLLM 0.33.0 (vllm/entrypoints/openai/completion), SGLang 0.5.23 (sglang/srt/entrypoints) and
llama-cpp-python 0.3.36 (llama_cpp/server/app.py, and `_create_completion` in llama_cpp/llama.py), their oddities included:
llama-cpp-python pairs each echoed token with the logits after it, which are the right ones only behind a BOS, whose entry it drops.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from small_engine import BOS, EOS, Engine
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

MOST_LOGPROBS = 20  # vLLM's --max-logprobs
BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}


@dataclass
class Token:
    """One entry of an answer: a token, its log-probability and the likeliest ones at its place, none of both at the first."""

    id: int
    logprob: float | None
    top: list[tuple[int, float]] | None


@dataclass
class Scored:
    """A prompt as it was read, what was generated behind it, and the log-probabilities [T, V] after each token but the last new one."""

    ids: list[int]
    new: list[int]
    rows: np.ndarray

    def tokens(self, most: int, echo: bool) -> list[Token]:
        every = self.ids + self.new
        found = [Token(every[0], None, None)]
        found += [entry(self.rows[at - 1], every[at], most) for at in range(1, len(every))]
        return found if echo else found[len(self.ids) :]


def entry(row: np.ndarray, token: int, most: int) -> Token:
    best = np.argsort(-row, kind="stable")[:most]
    return Token(token, float(row[token]), [(int(one), float(row[one])) for one in best])


class Refusal(Exception):
    def __init__(self, status: int, body: dict):
        self.status, self.body = status, body


class Dialect:
    """What the three servers share. `limit` is the model's length, `fields` False a version that does not know a request's newer fields."""

    guarded, unauthorized, no_room = "/v1", {"error": "Unauthorized"}, 1

    def __init__(self, folder: Path, engine: Engine, name: str, limit: int, fields: bool):
        self.folder, self.engine, self.name, self.limit, self.fields = folder, engine, name, limit, fields
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.bos, self.eos = (self.tokenizer.token_to_id(one) for one in (BOS, EOS))
        self.routes: dict[str, Callable[[dict], dict]] = {"/v1/completions": self.completions}
        self.facts: dict[str, dict] = {}

    def refuse(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        raise Refusal(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})

    def decode(self, *ids: int) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def spelled(self, token: int) -> bytes:
        """The bytes of a token, which may be part of a character."""
        word = self.tokenizer.id_to_token(token)
        return word.encode() if token in (self.bos, self.eos) else bytes(BYTES[letter] for letter in word)

    def prompts(self, prompt: object, special: bool) -> list[list[int]]:
        """Token ids of one or several prompts, each a text or ids."""
        many = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
        if not all(isinstance(one, str) or (isinstance(one, list) and all(isinstance(i, int) for i in one)) for one in many) or not all(
            many
        ):
            self.refuse(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
        return [self.tokenizer.encode(one, add_special_tokens=special).ids if isinstance(one, str) else one for one in many]

    def scored(self, ids: list[int], new: int) -> Scored:
        if len(ids) + self.no_room > self.limit:
            self.too_long(len(ids))
        ids, added = self.engine.read(ids), []
        for _ in range(max(new, 1)):
            rows = self.engine.logprobs(ids + added)
            if len(added) < new:
                added.append(int(rows[-1].argmax()))
            if added and added[-1] == self.eos:
                break
        return Scored(ids, added, rows)

    def too_long(self, length: int) -> None:
        self.refuse(400, f"The decoder prompt (length {length}) is longer than the maximum model length of {self.limit}.")

    def answer(self, body: dict, choices: list[dict], read: list[Scored], **more: object) -> dict:
        sums = [sum(len(one.ids) for one in read), sum(len(one.new) for one in read)]
        usage = {"prompt_tokens": sums[0], "completion_tokens": sums[1], "total_tokens": sum(sums)}
        said = {"id": "cmpl-1", "object": "text_completion", "created": int(time.time()), "model": self.name}
        return {**said, "choices": choices, "usage": usage, **more}

    def choice(self, index: int, text: str, logprobs: dict | None, one: Scored) -> dict:
        reason = "stop" if one.new[-1:] == [self.eos] else "length"
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def completions(self, body: dict) -> dict:
        raise NotImplementedError


class Vllm(Dialect):
    def __init__(self, *given: object):
        super().__init__(*given)
        card = {"object": "model", "owned_by": "vllm", "root": str(self.folder), "parent": None, "max_model_len": self.limit}
        self.facts = {"/v1/models": {"object": "list", "data": [{"id": self.name, **card}]}, "/version": {"version": "0.33.0"}}

    def completions(self, body: dict) -> dict:
        if (body.get("model") or self.name) != self.name:
            self.refuse(404, f"The model `{body['model']}` does not exist.", "NotFoundError", "model")
        echo, new, most = bool(body.get("echo")), body.get("max_tokens", 16), body.get("logprobs")
        of_prompt = body.get("prompt_logprobs")
        for name, value in (("logprobs", most), ("prompt_logprobs", of_prompt)):
            if value is not None and value > MOST_LOGPROBS:
                self.refuse(400, f"Requested sample {name} of {value}, which is greater than max allowed: {MOST_LOGPROBS}", param=name)
        numbered = self.fields and body.get("return_tokens_as_token_ids")
        back = self.fields and body.get("return_token_ids")
        if new == 0 and not echo:
            self.refuse(400, "max_tokens must be at least 1, got 0.", param="max_tokens")
        read = [self.scored(ids, new) for ids in self.prompts(body.get("prompt"), body.get("add_special_tokens", True))]
        choices = []
        for index, one in enumerate(read):
            text = ("" if back or not echo else self.decode(*one.ids)) + self.decode(*one.new)
            made = self.choice(index, text, None if most is None else self.logprobs(one.tokens(most, echo), most, numbered), one)
            made["prompt_token_ids"], made["token_ids"] = (one.ids, one.new) if back else (None, None)
            made["prompt_logprobs"] = None if of_prompt is None else self.prompt_logprobs(one, of_prompt)
            choices.append(made)
        return self.answer(body, choices, read, system_fingerprint="vllm-0.33.0-0a1b2c3d")

    def logprobs(self, tokens: list[Token], most: int, numbered: bool) -> dict:
        def named(token: int) -> str:
            return f"token_id:{token}" if numbered else self.decode(token)

        names = [named(one.id) for one in tokens]
        tops = [None if one.top is None else {named(i): p for i, p in self.with_own(one)[: most + 1]} for one in tokens]
        offsets = np.cumsum([0, *map(len, names)])[:-1].tolist()
        return {"text_offset": offsets, "token_logprobs": [one.logprob for one in tokens], "tokens": names, "top_logprobs": tops}

    def prompt_logprobs(self, one: Scored, most: int) -> list[dict | None]:
        def told(place: int, pair: tuple[int, float]) -> dict:
            rank = 1 + int((one.rows[place - 1] > pair[1]).sum())
            return {"logprob": pair[1], "rank": rank, "decoded_token": self.decode(pair[0])}

        tokens = enumerate(one.tokens(most, True)[: len(one.ids)])
        return [None if token.top is None else {str(pair[0]): told(at, pair) for pair in self.with_own(token)} for at, token in tokens]

    def with_own(self, token: Token) -> list[tuple[int, float]]:
        return [(token.id, token.logprob), *(pair for pair in token.top if pair[0] != token.id)]


class Sglang(Dialect):
    guarded = "/"

    def __init__(self, *given: object):
        super().__init__(*given)
        card = {"object": "model", "owned_by": "sglang", "root": str(self.folder), "max_model_len": self.limit}
        server = {"model_path": str(self.folder), "context_length": self.limit, "version": "0.5.23"}
        model = {"model_path": str(self.folder), "tokenizer_path": str(self.folder), "is_generation": True}
        self.facts = {"/v1/models": {"object": "list", "data": [{"id": self.name, **card}]}}
        self.facts |= {"/get_server_info": server, "/server_info": server, "/get_model_info": model, "/model_info": model}
        self.routes["/generate"] = self.generate

    def refuse(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        raise Refusal(status, {"object": "error", "message": message, "type": kind, "param": param, "code": status})

    def too_long(self, length: int) -> None:
        self.refuse(400, f"The input ({length} tokens) is longer than the model's context length ({self.limit} tokens).")

    def name_of(self, token: int) -> str:
        spelled = self.spelled(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return spelled.decode("latin-1")

    def completions(self, body: dict) -> dict:
        echo, new, most = bool(body.get("echo")), body.get("max_tokens", 16), body.get("logprobs")
        if new <= 0:
            self.refuse(400, "max_tokens must be positive")
        read = [self.scored(ids, new) for ids in self.prompts(body.get("prompt"), True)]
        choices = []
        for index, one in enumerate(read):
            text = (self.decode(*one.ids) if echo else "") + self.decode(*one.new)
            made = self.choice(index, text, None if most is None else self.logprobs(one.tokens(most, bool(echo and most))), one)
            back = self.fields and body.get("return_token_ids")
            made["prompt_token_ids"], made["token_ids"] = (one.ids, one.new) if back else (None, None)
            choices.append(made)
        return {**self.answer(body, choices, read, metadata=None), "model": body.get("model", "default")}

    def logprobs(self, tokens: list[Token]) -> dict:
        names = [self.name_of(one.id) for one in tokens]
        tops = [None if one.top is None else {self.name_of(i): p for i, p in one.top} for one in tokens]
        return {"text_offset": [-1] * len(tokens), "token_logprobs": [one.logprob for one in tokens], "tokens": names, "top_logprobs": tops}

    def generate(self, body: dict) -> dict:
        (ids,) = self.prompts(body.get("input_ids") or body.get("text"), True)
        one = self.scored(ids, body.get("sampling_params", {}).get("max_new_tokens", 128))
        most, start = body.get("top_logprobs_num", 0), body.get("logprob_start_len", -1)
        said = {"id": "1", "prompt_tokens": len(one.ids), "completion_tokens": len(one.new), "finish_reason": {"type": "length"}}
        if body.get("return_logprob"):
            tokens = one.tokens(most, True)
            for name, part in (("input", tokens[: len(one.ids)] if start >= 0 else []), ("output", tokens[len(one.ids) :])):
                said[f"{name}_token_logprobs"] = [[token.logprob, token.id, None] for token in part]
                said[f"{name}_top_logprobs"] = [None if token.top is None else [[p, i, None] for i, p in token.top] for token in part]
        return {"text": self.decode(*one.new), "output_ids": one.new, "meta_info": said}


class LlamaCpp(Dialect):
    guarded, unauthorized = "/v1", {"detail": "Invalid API key"}

    def __init__(self, *given: object):
        super().__init__(*given)
        card = {"id": self.name, "object": "model", "owned_by": "me", "permissions": []}
        self.facts = {"/v1/models": {"object": "list", "data": [card]}}
        self.facts["/openapi.json"] = {"openapi": "3.1.0", "info": {"title": "llama.cpp Python API", "version": "0.3.36"}}
        self.routes["/extras/tokenize"] = lambda body: {"tokens": self.tokenizer.encode(body["input"]).ids}
        self.turn = threading.Lock()

    def too_long(self, length: int) -> None:
        said = f"This model's maximum context length is {self.limit} tokens, however you requested {length} tokens."
        raise Refusal(
            400, {"error": {"message": said, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}}
        )

    def completions(self, body: dict) -> dict:
        echo, new, most, prompt = bool(body.get("echo")), body.get("max_tokens", 16), body.get("logprobs"), body.get("prompt", "")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str):
            said = "[{'type': 'string_type', 'loc': ('body', 'prompt', 'str'), 'msg': 'Input should be a valid string'}]"
            self.refuse(500, said, "internal_server_error")
        with self.turn:
            (ids,) = self.prompts(prompt, True)
            one = self.scored(ids, new or self.limit - len(ids))
        if one.new[-1:] == [self.eos]:
            one = Scored(one.ids, one.new[:-1], one.rows)
        text = (prompt if echo else "") + self.text(one.new)
        made = self.choice(0, text, None if most is None else self.logprobs(one, most, echo, len(prompt)), one)
        return {**self.answer(body, [made], [one]), "model": body.get("model") or self.name}

    def text(self, ids: list[int]) -> str:
        return b"".join(self.spelled(token) for token in ids if token not in (self.bos, self.eos)).decode(errors="ignore")

    def logprobs(self, one: Scored, most: int, echo: bool, start: int) -> dict:
        if echo:
            every = one.ids[one.ids[0] == self.bos :] + one.new
            pairs = [(at, token, one.rows[at]) for at, token in enumerate(every[: len(one.rows)]) if token != self.bos]
        else:
            pairs = [(at, token, one.rows[len(one.ids) - 1 + at]) for at, token in enumerate(one.new)]
        tokens = [entry(row, token, most) for _, token, row in pairs]
        if echo:
            tokens[0].logprob = tokens[0].top = None
        names = [self.text([token.id]) for token in tokens]
        tops = [
            None if token.top is None else {**{self.text([i]): p for i, p in token.top}, name: token.logprob}
            for token, name in zip(tokens, names, strict=True)
        ]
        before = [len(self.text([token for _, token, _ in pairs[:at]])) for at in range(len(pairs))]
        offsets = [(0 if echo else start) + length for length in before]
        return {"tokens": names, "text_offset": offsets, "token_logprobs": [token.logprob for token in tokens], "top_logprobs": tops}


DIALECTS: dict[str, type[Dialect]] = {"vllm": Vllm, "sglang": Sglang, "llama_cpp": LlamaCpp}
