"""Chat templates: the text that a checkpoint expects around a user's message, read beside its
tokenizer and rendered in Jinja's sandbox.

A template is given what transformers gives it, so that the text is the same, but for the date,
which is always DATE: a question must not change from day to day."""

import json
from datetime import datetime
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import read_bytes
from posbench.data.tokenizers import TRAINED, pretrained_file
from posbench.gguf.header import is_gguf, read_gguf

MESSAGE = "the message of the user"
DATE = datetime(2024, 7, 26)  # the one that Llama 3's template falls back on
TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
LEAVE = "leave evaluate.chat out, or give data.tokenizer=PATH of a tokenizer that has one"


def chat_template(tokenizer: str) -> dict[str, str]:
    """The template of a tokenizer under `template`, with the special tokens that it may write.
    Raises ConfigError without one.
    """
    if tokenizer in ("bytes", "bpe") or TRAINED.fullmatch(tokenizer):
        raise ConfigError(
            f"evaluate.chat=true: data.tokenizer={tokenizer} is not from a checkpoint and has no"
            f" chat template: {LEAVE}."
        )
    file = pretrained_file(tokenizer)
    found = of_gguf(file) if is_gguf(file) else _of_folder(file.parent)
    if not isinstance(found.get("template"), str) or not found["template"].strip():
        raise ConfigError(
            f"evaluate.chat=true: {file if is_gguf(file) else file.parent} holds no chat template:"
            f" {LEAVE}."
        )
    around(found)
    return {key: value for key, value in found.items() if isinstance(value, str)}


def of_gguf(file: Path) -> dict:
    """The template of a GGUF file under `template`, and its special tokens by name; what it does
    not say may be missing or None.
    """
    said = {
        key.removeprefix("tokenizer."): value for key, value in read_gguf(file).metadata.items()
    }
    ids = {
        name: said.get(f"ggml.{known}_token_id")
        for name, known in zip(TOKENS, ("bos", "eos", "unknown", "padding"), strict=True)
    }
    tokens = said.get("ggml.tokens") or []
    own = {
        name: tokens[at]
        for name, at in ids.items()
        if isinstance(at, int) and 0 <= at < len(tokens)
    }
    return {"template": said.get("chat_template"), **own}


def _of_folder(folder: Path) -> dict:
    try:
        config = folder / "tokenizer_config.json"
        said = json.loads(read_bytes(config)) if config.is_file() else {}
        own = {
            name: one.get("content") if isinstance(one := said.get(name), dict) else one
            for name in TOKENS
        }
        template, alone = said.get("chat_template"), folder / "chat_template.jinja"
        if isinstance(template, list):  # several by name
            template = {one["name"]: one["template"] for one in template}.get("default")
        return {"template": read_bytes(alone).decode() if alone.is_file() else template, **own}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"evaluate.chat=true: the tokenizer_config.json in {folder} cannot be read ({error!r}):"
            f" {LEAVE}."
        ) from error


def around(chat: dict[str, str]) -> tuple[str, str]:
    """Text before and behind the message of a user, up to where the reply begins. Raises
    ConfigError for a template that gives none.
    """
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`generation` blocks, which mark in training what the model says, and write what is in
        them.
        """

        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **how: json.dumps(
        value, **{"ensure_ascii": False, **how}
    )
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": DATE.strftime}
    said = {
        **chat,
        "messages": [{"role": "user", "content": MESSAGE}],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }
    try:
        text = environment.from_string(chat["template"]).render(said)
    except Exception as error:  # of somebody else's program
        raise ConfigError(
            f"evaluate.chat=true: the chat template cannot be rendered ({error}): leave"
            " evaluate.chat out."
        ) from error
    before, *behind = text.split(MESSAGE)
    if len(behind) != 1:
        raise ConfigError(
            f"evaluate.chat=true: the chat template writes the message {len(behind)} times: leave"
            " evaluate.chat out."
        )
    return before, behind[0]
