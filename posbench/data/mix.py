"""Mix: training on text in some steps and on a task in the others, for a loss on text and an
accuracy on a task of one model.

The task keeps its tokens: in the vocabulary they stand behind those of the text. A task of
evaluate.tasks, in words, has none of its own: its haystacks are noise or the training's text, and
its answers alone are asked for. Its steps are spread evenly, as many as its share says, and their
places depend on nothing else; each of both sees the batches that it would see alone. So a step is
still a pure function of the seed and its number."""

from collections.abc import Callable
from dataclasses import dataclass

from posbench.common.errors import ConfigError, did_you_mean
from posbench.data.sources import TASK, make_source
from posbench.data.task import Task, TaskSplit, TextTask, is_text_task, make_text_task
from posbench.data.text_questions import TextQuestions
from posbench.data.tokenfile import TokenFile
from posbench.data.tokenizers import Tokenizer

WHOLE = ("task", "share", "vocab_size", "source")


@dataclass(frozen=True)
class Mix:
    """Task of a mix, its name, its share of the steps, and the function from a split's name to its
    examples to train on.
    """

    task: Task | TextTask
    name: str
    share: float
    split: Callable[[str], TaskSplit | TextQuestions]


def resolved_data(data: dict) -> dict:
    """Data configuration whose mix names the class of its task and all arguments, from configs/data
    or --config-dir.

    Raises ConfigError for a wrong one.
    """
    from posbench.config.compose import yamls

    given = data.get("mix")
    if not given:
        return data
    if data["tokenizer"] == TASK:
        raise ConfigError(
            f"data.mix adds a task to text, and data={data['name']} is a task: leave data.mix out,"
            " or choose text."
        )
    share, name = given.get("share"), given.get("task")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigError(
            f"data.mix.share={share} must be a number between 0 and 1: the share of the steps that"
            " are the task's."
        )
    if "source" not in given:
        tasks = {one: node for one, node in yamls("data").items() if node.get("tokenizer") == TASK}
        tasks = {
            **{one: {"vocab_size": 0, "source": node} for one, node in yamls("task").items()},
            **tasks,
        }
        if name not in tasks:
            raise ConfigError(
                f"data.mix.task={name} is no task{did_you_mean(str(name), tasks)}: choose from"
                f" {', '.join(sorted(tasks))}."
            )
        size, known = tasks[name]["vocab_size"], tasks[name]["source"]
        legal = [*WHOLE[: 3 if size else 2], *(key for key in known if key != "_target_")]
        if unknown := [key for key in given if key not in legal]:
            raise ConfigError(
                f"data.mix.{unknown[0]} is not a key of data.mix with task={name}: it takes"
                f" {', '.join(legal)}."
            )
        own = {key: value for key, value in given.items() if key not in WHOLE}
        given = {"vocab_size": size, **given, "source": {**known, **own}}
    if missing := [key for key in WHOLE if key not in given]:
        raise ConfigError(f"data.mix lacks {missing[0]}: it takes {', '.join(WHOLE)}.")
    return {**data, "mix": {key: given[key] for key in WHOLE}}


def mix_of(
    data: dict,
    offset: int = 0,
    text: Callable[[str], tuple[TokenFile, Tokenizer, int | None]] | None = None,
) -> Mix | None:
    """Mix of a data configuration; None without one. The task's tokens begin at `offset`; of one in
    words, `text` gives the tokens of a split, the tokenizer and the BOS. Raises ConfigError as
    `resolved_data` does."""
    mix = resolved_data(data).get("mix")
    if not mix:
        return None
    name, share = mix["task"], float(mix["share"])
    if is_text_task(mix["source"]):
        if mix["vocab_size"]:
            raise ConfigError(
                f"data.mix.vocab_size={mix['vocab_size']}: task={name} is a text task in the text's"
                " tokens: give 0."
            )
        task = make_text_task({"name": name, **mix["source"]}, "data.mix")
        return Mix(
            task,
            name,
            share,
            lambda split: TextQuestions(task, name, split, *text(split), training=True),
        )
    task = make_source(
        {"name": name, "tokenizer": TASK, "vocab_size": mix["vocab_size"], "source": mix["source"]}
    )
    return Mix(task, task.name, share, lambda split: TaskSplit(task, split, offset))
