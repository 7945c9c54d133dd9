"""Questions of an evaluation: those of the data's task, of the task mixed with it, or of the text tasks in `evaluate.tasks`."""

from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError
from posbench.config.schema import EvaluateConfig
from posbench.data.chat import around
from posbench.data.task import TaskSplit
from posbench.data.text_questions import TextQuestions
from posbench.data.text_task import make_text_task
from posbench.data.tokenfile import TokenFile
from posbench.data.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus


def questions(corpus: "Corpus", config: EvaluateConfig) -> TaskSplit | TextQuestions:
    """Questions of the task that the data is, or that is mixed with it; else of the one of `evaluate.tasks`, in the tokens of the data."""
    file = getattr(corpus, config.split)
    if isinstance(file, TaskSplit):
        return file
    if not config.tasks:
        return corpus.mix.split(config.split)
    return word_questions(config, load_tokenizer(corpus.tokenizer, corpus.folder), corpus.bos, file)


def word_questions(config: EvaluateConfig, tokenizer: Tokenizer, bos: int | None, file: TokenFile | None = None) -> TextQuestions:
    """Questions of the task of `evaluate.tasks`; without the `file` of a text only the room that they need is known."""
    (node,) = config.tasks
    chat = around(config.chat) if config.chat else None
    return TextQuestions(make_text_task(node), node["name"], config.split, file, tokenizer, bos, chat, config.rivals)


def room(config: EvaluateConfig, length: int) -> bool:
    """True if a text of `length` bytes has room for the question of `evaluate`; no tokenizer makes more tokens, and none is known yet."""
    if not config.tasks:
        return True
    try:
        asked = word_questions(config, ByteTokenizer(), 0)
    except ConfigError:
        return True  # `check` says why
    return asked.fits(min(length, 4096)) or asked.fits(length)


def texts_per_question(config: EvaluateConfig) -> int:
    """Number of texts, at most, that are read for one question: its own, and one for each rival of its answers."""
    return 1 + sum(make_text_task(node).rivals(config.rivals) for node in config.tasks or ()) if config.rivals else 1
