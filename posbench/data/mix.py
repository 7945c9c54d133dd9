"""Mix: training on text in some steps and on a task in the others, for a loss on text and an
accuracy on a task of one model.

The task keeps its tokens: in the vocabulary they stand behind those of the text. A task of
evaluate.tasks, in words, has none of its own: its haystacks are noise or the training's text, and
its answers alone are asked for. Its steps are spread evenly, as many as its share says, and their
places depend on nothing else; each of both sees the batches that it would see alone. So a step is
still a pure function of the seed and its number."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from posbench.common.errors import ConfigError, did_you_mean
from posbench.data.sources import TASK_TOKENIZER, make_source
from posbench.data.task import (
    Examples,
    Task,
    TaskSplit,
    TaskVariant,
    TextTask,
    is_text_task,
    make_text_task,
)
from posbench.data.text_questions import TextQuestions
from posbench.data.tokenfile import TokenFile
from posbench.data.tokenizers import Tokenizer

MIX_KEYS = ("task", "share", "vocab_size", "source")


@dataclass(frozen=True)
class Mix:
    """Task of a mix, its name, its share of the steps, and the function from a split's name to its
    examples to train on.
    """

    task: Task | TextTask
    name: str
    share: float
    split: Callable[[str], TaskSplit | TextQuestions]


@contextmanager
def _errors_of_mix() -> Iterator[None]:
    """Turn what an error of a task names as it stands in its own data into what is typed in a mix:
    data.source.pairs into data.mix.pairs.
    """
    try:
        yield
    except ConfigError as error:
        message = re.sub(r"\bdata=", "data.mix.task=", str(error))
        message = message.replace("data.source.", "data.mix.")
        message = message.replace("data.vocab_size", "data.mix.vocab_size")
        raise ConfigError(message) from error


class _SplitOfMix(TaskSplit):
    """Split of the task of a mix, whose errors name the keys of the mix."""

    def parts(self, length: int) -> list[TaskVariant]:
        """Parts as TaskSplit.parts."""
        with _errors_of_mix():
            return super().parts(length)

    def draw(self, length: int, count: int, key: list[int], **part: object) -> Examples:
        """Examples as TaskSplit.draw."""
        with _errors_of_mix():
            return super().draw(length, count, key, **part)


def resolved_data(data: dict) -> dict:
    """Data configuration whose mix names the class of its task and all arguments, from configs/data
    or --config-dir.

    Raises ConfigError for a wrong one.
    """
    mix = data.get("mix")
    if not mix:
        return data
    if data["tokenizer"] == TASK_TOKENIZER:
        raise ConfigError(
            f"data.mix adds a task to text, and data={data['name']} is a task: leave data.mix out,"
            " or choose text."
        )
    share = mix.get("share")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigError(
            f"data.mix.share={share} must be a number between 0 and 1: the share of the steps that"
            " are the task's."
        )
    if "source" in mix:
        _check_keys_beside_source(mix)
    else:
        mix = _with_source(mix)
    for key in MIX_KEYS:
        if key not in mix:
            raise ConfigError(f"data.mix lacks {key}: it takes {', '.join(MIX_KEYS)}.")
    return {**data, "mix": {key: mix[key] for key in MIX_KEYS}}


def _check_keys_beside_source(mix: dict) -> None:
    """Raise ConfigError for a key of a mix that nothing reads beside its source."""
    for key in mix:
        if key not in MIX_KEYS:
            raise ConfigError(
                f"data.mix.{key}={mix[key]} is not read beside data.mix.source, which has the"
                f" arguments of the task: give data.mix.source.{key}."
            )


def _with_source(mix: dict) -> dict:
    """Mix with the source and the vocabulary of the task that it names.

    Its further keys are arguments of the task. Raises ConfigError for an unknown task or key."""
    from posbench.config.compose import all_yamls

    name = mix.get("task")
    # text tasks, which have no tokens of their own, then the tasks of configs/data
    tasks = {task: {"vocab_size": 0, "source": node} for task, node in all_yamls("task").items()}
    for task, node in all_yamls("data").items():
        if node.get("tokenizer") == TASK_TOKENIZER:
            tasks[task] = node
    if name not in tasks:
        raise ConfigError(
            f"data.mix.task={name} is no task{did_you_mean(str(name), tasks)}: choose from"
            f" {', '.join(sorted(tasks))}."
        )
    vocab_size = tasks[name]["vocab_size"]
    source = tasks[name]["source"]
    legal = ["task", "share"]
    if vocab_size:
        legal.append("vocab_size")
    legal += [key for key in source if key != "_target_"]
    for key in mix:
        if key not in legal:
            raise ConfigError(
                f"data.mix.{key} is not a key of data.mix with task={name}: it takes"
                f" {', '.join(legal)}."
            )
    arguments = {key: value for key, value in mix.items() if key not in MIX_KEYS}
    # A vocab_size that the mix itself has replaces the task's.
    return {"vocab_size": vocab_size, **mix, "source": {**source, **arguments}}


def mix_of(
    data: dict,
    offset: int = 0,
    text: Callable[[str], tuple[TokenFile, Tokenizer, int | None]] | None = None,
) -> Mix | None:
    """Mix of a data configuration; None without one.

    The task's tokens begin at `offset`; of one in words, `text` gives the tokens of a split, the
    tokenizer and the BOS. Without `text` the mix of such a task can be described, and its `split`
    not be called. Raises ConfigError as `resolved_data` does."""
    mix = resolved_data(data).get("mix")
    if not mix:
        return None
    name = mix["task"]
    share = float(mix["share"])
    if is_text_task(mix["source"]):
        if mix["vocab_size"]:
            raise ConfigError(
                f"data.mix.vocab_size={mix['vocab_size']}: task={name} is a text task in the text's"
                " tokens: give 0."
            )
        text_task = make_text_task({"name": name, **mix["source"]}, key="data.mix")

        def questions(split: str) -> TextQuestions:
            return TextQuestions(text_task, name, split, *text(split), training=True)

        return Mix(text_task, name, share, questions)
    with _errors_of_mix():
        task = make_source(
            {
                "name": name,
                "tokenizer": TASK_TOKENIZER,
                "vocab_size": mix["vocab_size"],
                "source": mix["source"],
            }
        )
    return Mix(task, task.name, share, lambda split: _SplitOfMix(task, split, offset))
