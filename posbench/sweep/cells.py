"""Evaluations of a configuration: each has its own settings, an id computed from them, a file."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config import identity
from posbench.config.compose import all_yamls
from posbench.config.identity import NO_SCALE, method_name
from posbench.config.names import chosen_node
from posbench.config.schema import EvaluateConfig, JobConfig, typed_group
from posbench.config.typed_args import shown
from posbench.data.chat import chat_template
from posbench.data.sources import TASK_TOKENIZER
from posbench.data.task import is_text_task, make_text_task
from posbench.evaluation.registry import protocol
from posbench.runs.directory import Run
from posbench.runs.rows import read_eval
from posbench.runs.setting import Setting

if TYPE_CHECKING:
    from posbench.position.geometry import Shape
    from posbench.position.interfaces import Extension, ScaleAttention

RECOMPUTE = "posbench.extensions.recompute_window.RecomputeWindow"
KEY_TOKENS = ("the choice of key tokens", "longppl")
PURPOSES = {  # {key of evaluate that not all protocols use: (what it sets, a protocol that does)}
    "targets": ("the last tokens of each window", "fixed_targets"),
    "floor_block": ("texts of recompute_window that targets share", "fixed_targets"),
    "documents": ("documents that windows are placed in", "fixed_targets"),
    "unit": ("the unit of windows", "fixed_targets"),
    "stride": ("the advance of windows that overlap", "sliding"),
    "tasks": ("questions", "accuracy"),
    "key_gain": KEY_TOKENS,
    "key_loss": KEY_TOKENS,
    "key_context": KEY_TOKENS,
    "key_run": KEY_TOKENS,
}


class CellMethods(NamedTuple):
    """Methods of an evaluation, made of their nodes."""

    extension: "Extension"
    scale: "ScaleAttention"


@dataclass(frozen=True, eq=False)
class EvaluationCell:
    """One evaluation: a protocol, an extension and a scale, and the file of its rows."""

    protocol: str
    extension: dict
    scale_attention: dict
    evaluate: EvaluateConfig
    allow_untested: bool
    eval_id: str
    path: Path
    reference: bool = False  # True if the protocol needs it and the user did not ask for it
    _methods: dict = field(default_factory=dict, init=False, repr=False)  # {Shape: CellMethods}

    @property
    def label(self) -> str:
        """Name for the ledger and messages, such as "accuracy passkey chat yarn + none"."""
        words = [self.protocol, *(task["name"] for task in self.evaluate.tasks or [])]
        if self.evaluate.chat:
            words.append("chat")
        extension = identity.method_label(self.extension)
        scale = identity.method_label(self.scale_attention, "scale_attention")
        return f"{' '.join(words)} {extension} + {scale}"

    def methods(self, shape: "Shape") -> CellMethods:
        """The methods, made once for the shape of a model.

        Raises ConfigError as `make_method` does.
        """
        from posbench.position.instantiate import make_method
        from posbench.position.interfaces import Extension, ScaleAttention

        if shape not in self._methods:
            self._methods[shape] = CellMethods(
                make_method(self.extension, kind=Extension),
                make_method(self.scale_attention, shape, kind=ScaleAttention),
            )
        return self._methods[shape]

    def as_dict(self) -> dict:
        """The cell in values of JSON."""
        content = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return {**content, "evaluate": dict(vars(self.evaluate)), "path": str(self.path)}

    @classmethod
    def of(cls, content: dict) -> "EvaluationCell":
        """The cell of what `as_dict` gave. Raises ConfigError for settings of a wrong type."""
        evaluate = typed_group("evaluate", content["evaluate"])
        return cls(**{**content, "evaluate": evaluate, "path": Path(content["path"])})

    def missing_lengths(self) -> list[int]:
        """Lengths that the file does not contain yet."""
        if not self.path.exists():
            return self.evaluate.lengths
        done = {row["length"] for row in read_eval(self.path)}
        return [length for length in self.evaluate.lengths if length not in done]


def cells(run: Run, config: JobConfig) -> list[EvaluationCell]:
    """Evaluations of a run by its resolved configuration, with their references.

    Raises ConfigError for what fits no protocol.
    """
    evaluate = config.evaluate
    for key in ("chat", "rivals"):
        value = getattr(evaluate, key)
        if value and not _tasks_in_words(config):
            raise ConfigError(
                f"evaluate.{key}={shown(value)} is for questions of evaluate.tasks, and there are"
                " none: choose some, such as niah_multikey_1, or leave it out."
            )
    methods = config.extension, config.scale_attention
    result = []
    for name in evaluate.protocol:
        evaluator = protocol(name)
        for scored in (name, *evaluator.also_scores):
            for with_task in configs_by_task(config, scored):
                is_reference = scored != name
                result.append(make_cell(run, with_task, scored, *methods, reference=is_reference))
        if evaluator.floor and evaluate.floor:  # protocol of the floor; whether it is wanted
            result += _reference_cells(run, config, evaluator.floor)
    return result


def check_used(evaluate: EvaluateConfig, protocols: list[str]) -> None:
    """Raise ConfigError for a setting that a user typed and that none of the protocols uses.

    `evaluate` holds the settings as they were typed, before any was filled in.
    """
    used = set().union(*(protocol(name).uses for name in protocols))
    for key, (purpose, to_add) in PURPOSES.items():
        value = getattr(evaluate, key)
        if value != getattr(EvaluateConfig, key) and key not in used:
            raise ConfigError(
                f"evaluate.{key}={shown(value)} sets {purpose}, and"
                f" evaluate.protocol={shown(protocols)} has none: leave it out, or add {to_add}."
            )
    names = [key for name in protocols for key in protocol(name).setting_names()]
    for key in evaluate.settings or {}:
        if key not in names:
            raise ConfigError(
                f"evaluate.settings.{key} is no setting of evaluate.protocol={shown(protocols)}"
                f"{did_you_mean(key, names)}: leave it out, or add the protocol that has it."
            )


def configs_by_task(config: JobConfig, name: str) -> list[JobConfig]:
    """Configurations of the evaluations of a protocol, one for each task that it asks in words.

    A protocol without such tasks has `config` alone. Raises ConfigError for a protocol that cannot
    read the data, and for an unknown task.
    """
    asks_questions = protocol(name).needs_questions
    data = config.data
    trained_on_task = data["tokenizer"] == TASK_TOKENIZER
    if trained_on_task:
        _check_task_data(config, name, asks_questions)
    tasks = _tasks_in_words(config)
    asks_mix = data.get("mix") and not tasks  # questions of the task that the text is mixed with
    if not asks_questions or trained_on_task or asks_mix:
        return [config]
    if not tasks:
        raise ConfigError(
            f"evaluate.protocol={name} asks questions, and data={data['name']} is text: choose"
            " some, such as 'evaluate.tasks=[passkey,niah_single_1]', or train on a task, such as"
            " data=mqar or 'data.mix={task: mqar, share: 0.5}'."
        )
    nodes = [_task_node(task) for task in tasks]
    rivals = _rivals_of_tasks(nodes, config.evaluate.rivals)
    settings = replace(config.evaluate, chat=_chat_template(config))
    return [
        replace(config, evaluate=replace(settings, tasks=[node], rivals=count))
        for node, count in zip(nodes, rivals, strict=True)
    ]


def _check_task_data(config: JobConfig, name: str, asks_questions: bool) -> None:
    """Raise ConfigError for what cannot be evaluated on a task that a model was trained on."""
    task = f"data={config.data['name']} is a task"
    if not asks_questions:
        raise ConfigError(
            f"evaluate.protocol={name} reads text, and {task}: choose evaluate.protocol=accuracy."
        )
    if config.evaluate.tasks:
        raise ConfigError(f"evaluate.tasks are asked in words, and {task}: leave them out.")


def _task_node(task: str | dict) -> dict:
    """Node of a task with its name, such as {"name": "passkey", "_target_": ...}."""
    if isinstance(task, str):
        task = {"name": task}
    name = task.get("name") or method_name(task)
    if "_target_" in task:
        return {"name": name, **task}
    return {"name": name, **chosen_node("task", task, {}, yamls=all_yamls("task"))}


def _rivals_of_tasks(nodes: list[dict], most: int) -> list[int]:
    """evaluate.rivals of each task: `most`, or 0 for one without other values in its text.

    Raises ConfigError if none has any.
    """
    if not most:
        return [0] * len(nodes)
    rivals = [most if make_text_task(node).rivals(most) else 0 for node in nodes]
    if not any(rivals):
        names = ",".join(node["name"] for node in nodes)
        raise ConfigError(
            f"evaluate.rivals={most} compares an answer with other values of its text, and none of"
            f" evaluate.tasks={names} has any: leave it out, or add niah_multikey_1."
        )
    return rivals


def _tasks_in_words(config: JobConfig) -> list | None:
    """Tasks that are asked in words: evaluate.tasks, or that of the training's mix in words."""
    mix = config.data.get("mix")
    if config.evaluate.tasks or not mix or not is_text_task(mix["source"]):
        return config.evaluate.tasks
    return [{"name": mix["task"], **mix["source"]}]


def _chat_template(config: JobConfig) -> bool | dict:
    """Chat template of the checkpoint's tokenizer, if evaluate.chat is true; else False.

    Raises ConfigError where there is none.
    """
    chat = config.evaluate.chat
    if chat is True and config.data["bos"]:
        raise ConfigError(
            "evaluate.chat=true begins a text as the template says, and data.bos=true with the BOS"
            " token: leave one of them out."
        )
    if isinstance(chat, dict):
        raise ConfigError(
            "evaluate.chat is a mapping, and the template is read from the checkpoint: give"
            " evaluate.chat=true, or leave it out."
        )
    return chat_template(config.data["tokenizer"]) if chat else False


def _reference_cells(run: Run, config: JobConfig, name: str) -> list[EvaluationCell]:
    """The two evaluations that others of protocol `name` are compared with; [] if impossible.

    One gives every target exactly train_len tokens of context: the floor. The other gives it half
    as many. The floor's gain over the half is called G, and proves that the model uses its window.
    Both are impossible if no length is long enough to give every target its context.
    """
    train_len = config.train.train_len
    evaluate = _resolved_settings(config, name)
    # With a fixed context a longer text reads the same tokens, so one length is enough: twice the
    # training length, or a stride more, or as long as many targets need, unless max_length is
    # shorter.
    shortest = Setting.of(vars(evaluate)).shortest_exact(train_len)
    usual = train_len + max(train_len, evaluate.stride or 0)
    length = min(max(usual, shortest), evaluate.max_length)
    if length < shortest:
        return []
    config = replace(config, evaluate=replace(config.evaluate, lengths=[length]))
    references = []
    for context in (None, max(1, train_len // 2)):  # None: the training length
        extension = {"_target_": RECOMPUTE, "window": context}
        references.append(make_cell(run, config, name, extension, NO_SCALE, reference=True))
    return references


def _resolved_settings(config: JobConfig, name: str) -> EvaluateConfig:
    """Settings of an evaluation by the protocol `name`, which scores the targets of the parent."""
    train = config.train
    origin = train.origin if train.origin != train.train_len else None
    return protocol(name).resolve(replace(config.evaluate, origin=origin), train.train_len)


def make_cell(
    run: Run, config: JobConfig, name: str, extension: dict, scale: dict, reference: bool = False
) -> EvaluationCell:
    """One evaluation of a run by its resolved configuration; `name` of the protocol."""
    evaluator = protocol(name)
    evaluate = _resolved_settings(config, name)
    version = evaluator.version_of(evaluate)
    eval_id = identity.eval_id(name, extension, scale, vars(evaluate), run.id, version)

    def path_of(extension: dict, scale: dict) -> Path:
        extension_name = identity.method_name(extension)
        return run.eval_path(name, extension_name, identity.method_name(scale), eval_id)

    path = path_of(extension, scale)
    if not path.exists():
        # Rows from before own methods were named by their yamls keep the names that they have.
        extension_before = identity.without_choice_keys(extension)
        scale_before = identity.without_choice_keys(scale)
        path_before = path_of(extension_before, scale_before)
        if path_before.exists():
            extension = extension_before
            scale = scale_before
            path = path_before
    return EvaluationCell(
        name, extension, scale, evaluate, config.allow_untested, eval_id, path, reference
    )
