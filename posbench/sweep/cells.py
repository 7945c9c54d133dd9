"""Evaluations of a configuration: each has its own settings, an id computed from them, and a
file.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config import identity
from posbench.config.identity import NO_SCALE, method_name
from posbench.config.names import chosen_node
from posbench.config.schema import EvaluateConfig, JobConfig
from posbench.config.typed_args import shown
from posbench.data.chat import chat_template
from posbench.data.sources import TASK
from posbench.data.task import is_text_task, make_text_task
from posbench.evaluation.registry import protocol
from posbench.runs.directory import Run
from posbench.runs.rows import read_eval
from posbench.runs.setting import Setting

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

    @property
    def label(self) -> str:
        """Name for the ledger and messages: protocol, extension and scale."""
        tasks = [task["name"] for task in self.evaluate.tasks or []]
        protocol = " ".join([self.protocol, *tasks, *(["chat"] if self.evaluate.chat else [])])
        return (
            f"{protocol} {identity.method_label(self.extension)} +"
            f" {identity.method_label(self.scale_attention, 'scale_attention')}"
        )

    def missing(self) -> list[int]:
        """Lengths that the file does not contain yet."""
        if not self.path.exists():
            return self.evaluate.lengths
        done = {row["length"] for row in read_eval(self.path)}
        return [length for length in self.evaluate.lengths if length not in done]


def cells(run: Run, cfg: JobConfig) -> list[EvaluationCell]:
    """Evaluations of a run by its resolved configuration, with their references.

    Raises ConfigError for what fits no protocol.
    """
    found, evaluate = [], cfg.evaluate
    for key in ("chat", "rivals"):
        if (value := getattr(evaluate, key)) and not _tasks(cfg):
            raise ConfigError(
                f"evaluate.{key}={shown(value)} is for questions of evaluate.tasks, and there are"
                " none: choose some, such as niah_multikey_1, or leave it out."
            )
    for name in evaluate.protocol:
        asked = protocol(name)
        for one in (name, *asked.also_scores):
            for each in each_task(cfg, one):
                found.append(
                    make_cell(
                        run, each, one, cfg.extension, cfg.scale_attention, reference=one != name
                    )
                )
        if asked.floor and evaluate.floor:
            found += _references(run, cfg, asked.floor)
    return found


def check_used(asked: EvaluateConfig, protocols: list[str]) -> None:
    """Raise ConfigError for a setting that was given, not filled in, and that none of the protocols
    uses.
    """
    used = set().union(*(protocol(name).uses for name in protocols))
    for key, (purpose, to_add) in PURPOSES.items():
        value = getattr(asked, key)
        if value != getattr(EvaluateConfig, key) and key not in used:
            raise ConfigError(
                f"evaluate.{key}={shown(value)} sets {purpose}, and"
                f" evaluate.protocol={shown(protocols)} has none: leave it out, or add {to_add}."
            )
    names = [key for name in protocols for key in protocol(name).setting_names()]
    for key in asked.settings or {}:
        if key not in names:
            raise ConfigError(
                f"evaluate.settings.{key} is no setting of evaluate.protocol={shown(protocols)}"
                f"{did_you_mean(key, names)}: leave it out, or add the protocol that has it."
            )


def each_task(cfg: JobConfig, name: str) -> list[JobConfig]:
    """Configurations of the evaluations of a protocol: one for each task that it asks in words,
    else `cfg` alone.

    Raises ConfigError for a protocol that cannot read the data, and for an unknown task.
    """
    asks, given, data = protocol(name).needs_questions, cfg.evaluate.tasks, cfg.data
    if data["tokenizer"] == TASK and (given or not asks):
        said = (
            "evaluate.tasks are asked in words" if asks else f"evaluate.protocol={name} reads text"
        )
        raise ConfigError(
            f"{said}, and data={data['name']} is a task: "
            + ("leave them out." if asks else "choose evaluate.protocol=accuracy.")
        )
    given = _tasks(cfg)
    if not asks or data["tokenizer"] == TASK or (data.get("mix") and not given):
        return [cfg]
    if not given:
        raise ConfigError(
            f"evaluate.protocol={name} asks questions, and data={data['name']} is text: choose"
            " some, such as 'evaluate.tasks=[passkey,niah_single_1]', or train on a task, such as"
            " data=mqar or 'data.mix={task: mqar, share: 0.5}'."
        )
    named = [{"name": one} if isinstance(one, str) else one for one in given]
    found = [
        {"name": one.get("name") or method_name(one), **chosen_node("task", one, {})}
        for one in named
    ]
    most = cfg.evaluate.rivals
    rivals = [most if most and make_text_task(one).rivals(most) else 0 for one in found]
    if most and not any(rivals):
        raise ConfigError(
            f"evaluate.rivals={most} compares an answer with other values of its text, and none of"
            f" evaluate.tasks={','.join(one['name'] for one in found)} has any: leave it out, or"
            " add niah_multikey_1."
        )
    settings = replace(cfg.evaluate, chat=_chat(cfg))
    return [
        replace(cfg, evaluate=replace(settings, tasks=[one], rivals=own))
        for one, own in zip(found, rivals, strict=True)
    ]


def _tasks(cfg: JobConfig) -> list | None:
    """Tasks that are asked in words: evaluate.tasks, or else the one that the text of the training
    was mixed with, if it is in words.
    """
    mix = cfg.data.get("mix")
    if cfg.evaluate.tasks or not mix or not is_text_task(mix["source"]):
        return cfg.evaluate.tasks
    return [{"name": mix["task"], **mix["source"]}]


def _chat(cfg: JobConfig) -> bool | dict:
    """The chat template that the checkpoint's tokenizer has, if one is asked for. Raises
    ConfigError where there is none.
    """
    asked, data = cfg.evaluate.chat, cfg.data
    if asked is True and data["bos"]:
        raise ConfigError(
            "evaluate.chat=true begins a text as the template says, and data.bos=true with the BOS"
            " token: leave one of them out."
        )
    if isinstance(asked, dict):
        raise ConfigError(
            "evaluate.chat is a mapping, and the template is read from the checkpoint: give"
            " evaluate.chat=true, or leave it out."
        )
    return chat_template(data["tokenizer"]) if asked else False


def _references(run: Run, cfg: JobConfig, name: str) -> list[EvaluationCell]:
    """Reference cells: the floor of every curve, and the half window behind G, which proves that
    the model uses its context.
    """
    # From twice the training length on (or that plus a stride) both feed the same tokens at every
    # length, so one suffices. A smaller max_length serves if it gives every target the training
    # length of context. Otherwise there is no floor, and the report says so.
    train_len, evaluate = (
        cfg.train.train_len,
        protocol(name).resolve(cfg.evaluate, cfg.train.train_len),
    )
    length = min(train_len + max(train_len, evaluate.stride or 0), evaluate.max_length)
    if length < Setting.of(vars(evaluate)).shortest_exact(train_len):
        return []
    cfg = replace(cfg, evaluate=replace(cfg.evaluate, lengths=[length]))
    windows = (None, max(1, train_len // 2))
    return [
        make_cell(
            run, cfg, name, {"_target_": RECOMPUTE, "window": window}, NO_SCALE, reference=True
        )
        for window in windows
    ]


def make_cell(
    run: Run, cfg: JobConfig, name: str, extension: dict, scale: dict, reference: bool = False
) -> EvaluationCell:
    """One evaluation of a run by its resolved configuration; `name` of the protocol."""
    evaluate = protocol(name).resolve(cfg.evaluate, cfg.train.train_len)
    evaluation = identity.eval_id(
        name, extension, scale, vars(evaluate), run.id, protocol(name).version_of(evaluate)
    )
    path = run.eval_path(
        name, identity.method_name(extension), identity.method_name(scale), evaluation
    )
    before = [identity.without_choices(node) for node in (extension, scale)]
    if before != [extension, scale] and not path.exists():
        path_before = run.eval_path(name, *map(identity.method_name, before), evaluation)
        # from before own methods were named by their yamls: its rows keep the name that they have
        if path_before.exists():
            (extension, scale), path = before, path_before
    return EvaluationCell(
        name, extension, scale, evaluate, cfg.allow_untested, evaluation, path, reference
    )
