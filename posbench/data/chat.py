"""Chat templates: the text that a checkpoint expects around a user's message, read beside its
tokenizer and rendered in Jinja's sandbox.

A template is given what transformers gives it, so that the text is the same, but for the date,
which is always DATE: a question must not change from day to day."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError
from posbench.common.files import read_bytes
from posbench.data.sources import WITHOUT_FILE
from posbench.data.tokenizers import TRAINED_NAME, pretrained_file
from posbench.gguf.header import is_gguf, read_gguf

if TYPE_CHECKING:
    import jinja2

MESSAGE_MARK = "the message of the user"
DATE = datetime(2024, 7, 26)  # the one that Llama 3's template falls back on
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
# {special token of SPECIAL_TOKENS: its key in a GGUF file}
GGUF_IDS = {
    "bos_token": "ggml.bos_token_id",
    "eos_token": "ggml.eos_token_id",
    "unk_token": "ggml.unknown_token_id",
    "pad_token": "ggml.padding_token_id",
}
WAYS_OUT = "leave evaluate.chat out, or give data.tokenizer=PATH of a tokenizer that has one"


def chat_template(tokenizer: str) -> dict[str, str]:
    """The template of a tokenizer under `template`, with the special tokens that it may write.

    Raises ConfigError without one."""
    if tokenizer in WITHOUT_FILE or TRAINED_NAME.fullmatch(tokenizer):
        raise ConfigError(
            f"evaluate.chat=true: data.tokenizer={tokenizer} is not from a checkpoint and has no"
            f" chat template: {WAYS_OUT}."
        )
    file = pretrained_file(tokenizer)
    place = file if is_gguf(file) else file.parent
    chat = chat_of_gguf(file) if is_gguf(file) else _chat_of_folder(file.parent)
    template = chat.get("template")
    if not isinstance(template, str) or not template.strip():
        raise ConfigError(f"evaluate.chat=true: {place} holds no chat template: {WAYS_OUT}.")
    text_around_message(chat)  # raises for a template that cannot be used
    return {key: value for key, value in chat.items() if isinstance(value, str)}


def chat_of_gguf(file: Path) -> dict:
    """The template of a GGUF file under `template`, and its special tokens by name; what it does
    not say may be missing or None.
    """
    metadata = read_gguf(file).metadata
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    chat = {"template": metadata.get("tokenizer.chat_template")}
    for name, key in GGUF_IDS.items():
        index = metadata.get(f"tokenizer.{key}")
        if isinstance(index, int) and 0 <= index < len(tokens):
            chat[name] = tokens[index]
    return chat


def _chat_of_folder(folder: Path) -> dict:
    """The template of a folder, and its special tokens, as `chat_of_gguf` gives them."""
    file = folder / "tokenizer_config.json"
    template_file = folder / "chat_template.jinja"
    try:
        config = json.loads(read_bytes(file)) if file.is_file() else {}
        template = config.get("chat_template")
        if isinstance(template, list):  # several by name
            templates = {entry["name"]: entry["template"] for entry in template}
            template = templates.get("default")
        chat = {"template": template}
        for name in SPECIAL_TOKENS:
            token = config.get(name)
            chat[name] = token.get("content") if isinstance(token, dict) else token
        if template_file.is_file():
            chat["template"] = read_bytes(template_file).decode()
        return chat
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"evaluate.chat=true: the tokenizer_config.json in {folder} cannot be read ({error!r}):"
            f" {WAYS_OUT}."
        ) from error


def text_around_message(chat: dict[str, str]) -> tuple[str, str]:
    """Text before and behind the message of a user, up to where the reply begins.

    Raises ConfigError for a template that gives none."""
    variables = {
        **chat,
        "messages": [{"role": "user", "content": MESSAGE_MARK}],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }
    environment = _environment()
    try:
        text = environment.from_string(chat["template"]).render(variables)
    except Exception as error:  # of somebody else's program
        raise ConfigError(
            f"evaluate.chat=true: the chat template cannot be rendered ({error}): leave"
            " evaluate.chat out."
        ) from error
    before, *behind = text.split(MESSAGE_MARK)
    if len(behind) != 1:
        raise ConfigError(
            f"evaluate.chat=true: the chat template writes the message {len(behind)} times: leave"
            " evaluate.chat out."
        )
    return before, behind[0]


def _environment() -> "jinja2.Environment":
    """Sandbox with the filters, functions and blocks that transformers gives to a template."""
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

    def to_json(value: object, **options: object) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    # DATE is fixed: a question must not change from day to day
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": DATE.strftime}
    return environment
