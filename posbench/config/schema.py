"""Schema of the configuration: type, range, default and meaning of every value.

configs/ explains the defaults. Every script refuses `train.steps=many` with a sentence that names
key and value.
"""

import functools
import json
import re
import typing
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.identity import text_name
from posbench.config.typed_args import (
    Check,
    Convert,
    allows_container,
    convert,
    expand_sizes,
    shown,
)

ABOVE_0 = Check("above 0", lambda number: number > 0)
NOT_BELOW_0 = Check("0 or more", lambda number: number >= 0)
Size = Annotated[int, ABOVE_0]
Count = Annotated[int, NOT_BELOW_0]
Rate = Annotated[float, ABOVE_0, float]
Weight = Annotated[float, NOT_BELOW_0, float]
Share = Annotated[float, Check("0 or more and below 1", lambda number: 0 <= number < 1), float]
# A number or off is read as text.
TO_TEXT = Convert(lambda value: str(value) if isinstance(value, int | float) else value)
Name = Annotated[str, TO_TEXT]
# One value needs no brackets.
TO_LIST = Convert(lambda value: value if isinstance(value, list | None) else [value])


def _not_empty(words: str) -> Check:
    """Check that a list holds a value; `words` say what it should hold."""
    return Check(words, lambda values: values != [])


def _are_lengths(value: int | list[int]) -> bool:
    """True for a length of at least 2 tokens, or a list of such lengths that is not empty."""
    lengths = value if isinstance(value, list) else [value]
    return min(lengths, default=0) > 1


LENGTHS_EXAMPLE = "one length or several, such as [64,1024]"
LENGTHS_CHECK = Check("at least 2 tokens, or a list of such lengths", _are_lengths)


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the model, or the checkpoint that replaces it."""

    d_model: Size = 128  # channels of the residual stream
    n_layer: Size = 4
    n_head: Size = 2  # heads of the queries
    n_kv_head: Size | None = None  # heads of keys and values; None: n_head
    d_ff: Size | None = 320  # width of the feed-forward layers; None: about 8/3 of d_model
    head_dim: int | None = None  # channels of a head; None: d_model / n_head
    qkv_bias: bool = False  # biases on q, k and v
    qk_norm: Literal["none", "rms", "l2", "key_l2"] = "none"  # norm of q and k before their product
    # sigmoid gate on the output of attention
    output_gate: Literal["none", "elementwise", "headwise"] = "none"
    tied: bool = False  # one matrix for embedding and head
    norm_eps: Weight = 1e-5  # added to the mean square in RMSNorm
    init_std: Weight = 0.02  # of the initial weights
    path: str | None = None  # folder of a checkpoint in Hugging Face format, in place of a training
    # digest, vocabulary size and BOS id of that checkpoint, filled in
    checkpoint: dict[str, Any] | None = None
    # false: that checkpoint without the scaling in its config.json, as one of the length before it
    own_scaling: bool = True
    # node of a running engine, in place of both; model=NAME of a yaml with _target_
    engine: dict[str, Any] | None = None

    @property
    def head_width(self) -> int:
        """Channels of a head."""
        return self.head_dim or self.d_model // self.n_head

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_kv_head or self.n_head

    @property
    def hidden(self) -> int:
        """Width of the feed-forward layers."""
        # 8/3 of the width keeps the parameters of a plain 4x layer (Shazeer 2020, arXiv
        # 2002.05202); 32 suits the kernels.
        return self.d_ff or 32 * round(self.d_model * 8 / 3 / 32)

    @property
    def gates(self) -> int:
        """Channels of the output gate; 0 without one."""
        if self.output_gate == "headwise":
            return self.n_head
        if self.output_gate == "elementwise":
            return self.head_width * self.n_head
        return 0

    @property
    def layer_parameters(self) -> int:
        """Parameters of the matrices of one layer."""
        attention = 2 * self.head_width * (self.n_head + self.kv_heads)  # q and output, k and v
        return self.d_model * (attention + self.gates + 3 * self.hidden)


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the training. Lengths are in tokens."""

    # of a sequence; of a list, each batch has one
    length: Annotated[int | list[int], LENGTHS_CHECK] = 64
    steps: Count = 1000
    tokens_per_step: Size = 2048
    # trained in
    scale_attention: dict[str, Any] = field(
        default_factory=lambda: {"_target_": "posbench.scale_attention.none.NoScale"}
    )
    micro_batches: Size = 1  # parts of a batch, one after another
    optimizer: Literal["muon", "adamw"] = "muon"  # of the matrices; AdamW has all else
    lr: Rate = 1e-2  # peak of AdamW's rate
    muon_lr: Rate = 1.5e-2  # peak of Muon's rate
    # AdamW's
    betas: Annotated[
        list[Share], Check("two numbers, such as [0.9,0.95]", lambda betas: len(betas) == 2)
    ] = field(default_factory=lambda: [0.9, 0.95])
    momentum: Share = 0.95  # Muon's
    weight_decay: Weight = 0.05  # on matrices
    warmup: Count = 40  # steps
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # of the rates after the warmup
    clip: Weight = 1.0  # largest norm of the gradient; 0: any
    # of the products; weights stay fp32; auto: see posbench.common.machine.fast_dtype
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    compile: bool = False  # torch.compile
    graph: bool | None = None  # a step as one CUDA graph; None: on a GPU, where it can be
    seed_data: Count | None = None  # order of the data; None: seed
    log_every: Size = 50  # steps
    # steps; 0: at the end alone; None: that, or with validate_lengths a twentieth of the steps
    validate_every: Count | None = None
    validate_windows: Count = 256
    # lengths at which each validation scores the same targets; None: the training length alone
    validate_lengths: Annotated[list[Size] | None, TO_LIST, _not_empty(LENGTHS_EXAMPLE)] = None
    # extensions with which it does so: names of configs/extension, or nodes; None: none alone
    validate_extensions: Annotated[
        list[Any] | None, TO_LIST, _not_empty("one extension or several, such as [none,yarn]")
    ] = None
    checkpoint_every: Count = 500  # steps; 0: never
    # steps whose weights are kept as trainings of their own
    keep_steps: Annotated[
        list[Size] | None, TO_LIST, _not_empty("one step or several, such as [100,300]")
    ] = None
    frozen: bool = False  # of a child: the weights that it has from its parent stay
    # run_id, reach and digest of the run that this one is fine-tuned from, and from the second
    # generation on its own generation; filled in
    parent: dict[str, Any] | None = None
    # step at which this training ended, before `steps`, to which the rates are scheduled; filled in
    step: Size | None = None

    @property
    def lengths(self) -> list[int]:
        """Training lengths in tokens, ascending."""
        if isinstance(self.length, list):
            return sorted(set(self.length))
        return [self.length]

    @property
    def train_len(self) -> int:
        """The longest training length, the one every extension refers to."""
        return self.lengths[-1]

    @property
    def last_step(self) -> int:
        """Step at which the training ends."""
        return self.steps if self.step is None else self.step

    @property
    def kept_steps(self) -> list[int]:
        """Steps before the last one whose weights are kept, ascending."""
        return sorted({step for step in self.keep_steps or [] if step < self.last_step})

    @property
    def validation_steps(self) -> list[int]:
        """Steps of all validations: those of validate_every, the kept ones and the last."""
        every = self.validate_every
        regular = range(every, self.last_step, every) if every else ()
        return sorted({*regular, *self.kept_steps, self.last_step})

    @property
    def origin(self) -> int:
        """Training length of the first training: of a fine-tuned run, that of its parent."""
        return self.parent["reach"] if self.parent else self.train_len

    @property
    def generation(self) -> int:
        """Number of ancestors: 0 of a first training, 1 of its child."""
        # A parent that is a first training is noted without it.
        return self.parent.get("generation", 1) if self.parent else 0


@dataclass(frozen=True)
class FinetuneConfig:
    """Settings of a child training. Lengths are in tokens.

    It begins with the weights of the training that the rest of the configuration describes.
    """

    steps: Count = 100
    # of a sequence; None: 4 times the parent's training length, with an encoding that itself
    length: Annotated[int, LENGTHS_CHECK] | None = None
    # that extension and positions are made for; None: length, with an encoding 4 times the parent's
    target_len: Size | None = None
    # in place of the parent's, which is its `base` if it has one; None: the parent's
    encoding: dict[str, Any] | None = None
    scale_attention: dict[str, Any] | None = None  # trained in; None: the parent's
    # true: what was the parent's stays, and only what the child alone has is trained
    frozen: bool = False
    lr: Rate = 1e-3  # of AdamW
    muon_lr: Rate = 1.5e-3  # of Muon
    warmup: Count = 10  # steps
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the rates after the warmup
    tokens_per_step: Size | None = None  # None: the parent's, or one sequence if that is longer
    checkpoint_every: Count = 50  # steps; 0: never


@dataclass(frozen=True)
class EvaluateConfig:
    """Settings of the evaluation. Lengths, targets and stride are in tokens."""

    # None: 1, 2, 4, 8 and 16 times the training length; above 1,024 to 4 times
    lengths: Annotated[list[int] | None, TO_LIST] = None
    # places the windows; None: 16 times the training length; above 1,024 the longest of the lengths
    max_length: Size | None = None
    # None: fixed_targets, accuracy for a task, both for text with data.mix
    protocol: Annotated[
        list[Name] | None, TO_LIST, _not_empty("one protocol or several, such as fixed_targets")
    ] = None
    # asked by accuracy: names of configs/task; None: the task that data is
    tasks: Annotated[list[Any] | None, TO_LIST] = None
    # ask `tasks` in the checkpoint's chat template, which is filled in: its text and special tokens
    chat: bool | dict[str, Any] = False
    # other values in the text that each answer of `tasks` is compared with, at most; each is a
    # further text
    rivals: Count = 0
    windows: Size | None = None  # None: 512, or 8 for training lengths above 1,024
    # scored tokens at the end of a window; None: an eighth of the training length
    targets: Size | None = None
    stride: Size | None = None  # of windows that overlap; None: a quarter of the training length
    # training length whose stretches of text are scored, that of the parent of a fine-tuned run;
    # None: the training length; filled in
    origin: Size | None = None
    # all: of a checkpoint or of `text` alone, since training read its own text
    split: Literal["test", "validation", "all"] = "test"
    # another text than the training's: a name of configs/data, or its name, path and source
    text: Name | dict[str, Any] | None = None
    documents: Name | None = None  # glob of the documents' names; None: all
    # of intervals; project: as many windows of each, and its documents are one
    unit: Literal["document", "project"] = "document"
    floor: bool = True  # also evaluate the floor and the half window
    # targets that share one text of recompute_window; None: 1, or train_len // 16 above 1,024
    floor_block: Size | None = None
    # of the products: see train.dtype
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    key_gain: Rate | None = None  # nats; longppl: key tokens gain more from a long context; None: 2
    key_loss: Rate | None = None  # nats; longppl: key tokens have a lower loss after it; None: 2
    # tokens of its short context; None: an eighth of the training length
    key_context: Size | None = None
    # folder of a training whose model chooses key tokens; None: each training's own
    key_run: Name | dict[str, Any] | None = None
    # {setting: value} of protocols that define some, which are the user's own
    settings: dict[str, Any] | None = None
    seed: Count = 0  # places the windows
    batch_tokens: Size = 8192  # tokens read at once; no result depends on it

    def check_room(self) -> None:
        """Raise ConfigError for a length that does not hold the targets of a window."""
        if min(self.lengths) < self.targets:
            raise ConfigError(
                f"evaluate.lengths={self.lengths} must each hold the"
                f" evaluate.targets={self.targets} scored tokens: give longer ones."
            )


@dataclass(frozen=True)
class LogConfig:
    """Settings of wandb."""

    # None: online where one is logged in
    mode: Annotated[Literal["online", "offline", "disabled"] | None, TO_TEXT] = None
    project: Name = "posbench"
    entity: Name | None = None
    group: Name | None = None  # None: the sweep's name


# Parts of a configuration that describe a training.
TRAINING_PARTS = ("encoding", "model", "data", "train", "seed")
SCHEMAS = {"model": ModelConfig, "train": TrainConfig, "evaluate": EvaluateConfig, "log": LogConfig}
OPTIONAL_SCHEMAS = {"finetune": FinetuneConfig}  # groups that a configuration may lack
USUAL_METHODS = {  # {group of methods: class of one, as errors name it}
    "encoding": "posbench.encodings.rope.Rope",
    "extension": "posbench.extensions.none.NoExtension",
    "scale_attention": "posbench.scale_attention.none.NoScale",
}
USUAL_SOURCE = "posbench.data.local.LocalFiles"  # class of a text's source, as errors name it
# Of a sweep: it is the name of a folder, and a word of tables and legends.
SWEEP_NAME_CHECK = Check(
    "a name of at most 60 letters, digits, spaces and . _ + -, such as long_training",
    lambda name: bool(re.fullmatch(r"\w([\w .+-]{0,58}[\w.+-])?", name)),
)
SweepName = Annotated[str, TO_TEXT, SWEEP_NAME_CHECK]
CUDA_ALIASES = ("gpu", "GPU", "Gpu", "CUDA", "Cuda", "nvidia", "rocm")
CUDA_CHECK = Check(
    "a device as torch names it (did you mean cuda?)",
    lambda name: name.split(":")[0] not in CUDA_ALIASES,
)
# Other devices of torch that compute, some with a package of their own.
OTHER_DEVICES = ("mps", "xpu", "npu", "hpu", "mtia", "xla")
DEVICE_CHECK = Check(
    "auto, cpu, cuda, one GPU such as cuda:1, or another kind that torch has"
    f" ({', '.join(OTHER_DEVICES)})",
    lambda name: bool(re.fullmatch(rf"auto|(cpu|cuda|{'|'.join(OTHER_DEVICES)})(:\d+)?", name)),
)
Device = Annotated[str, CUDA_CHECK, DEVICE_CHECK]


@dataclass(frozen=True)
class JobConfig:
    """Configuration of a job: a training, how it is evaluated, and where files are.

    Fields are in the order of config.yaml. Methods and data are mappings, whose keys the classes
    define that they name.
    """

    seed: Count = 0
    device: Device = "auto"
    jobs: Size = 1
    processes: Size = 1
    name: SweepName | None = None
    results_dir: str = "results/runs"
    cache_dir: str = "results/cache"
    report_dir: str | None = None
    allow_untested: bool = False
    check: bool = False
    run: str | None = None
    step: Size | None = None
    runs: Annotated[list[str] | None, TO_LIST] = None
    out: str | None = None
    dry: bool = False
    encoding: dict = field(default_factory=lambda: {"_target_": USUAL_METHODS["encoding"]})
    extension: dict = field(default_factory=lambda: {"_target_": USUAL_METHODS["extension"]})
    scale_attention: dict = field(
        default_factory=lambda: {"_target_": USUAL_METHODS["scale_attention"]}
    )
    model: ModelConfig = ModelConfig()
    data: dict = field(default_factory=dict)
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    log: LogConfig = LogConfig()
    # values of a script's own yaml, such as target of advise.yaml
    others: dict = field(default_factory=dict)

    @classmethod
    def of(cls, raw: dict) -> "JobConfig":
        """`raw` as a dataclass, with defaults for what it lacks.

        Raises ConfigError as `check_config` does.
        """
        names = {field.name for field in fields(cls)}
        values = {}
        others = {}
        for key, value in check_config(raw).items():
            if key in SCHEMAS:
                values[key] = typed_group(key, value)
            elif key in names:
                values[key] = value
            else:
                others[key] = value
        return cls(**values, others=others)

    def as_dict(self) -> dict:
        """All values as mappings: what config.yaml holds, and what ids are computed from."""
        values = dict(vars(self))
        others = values.pop("others")
        for group in SCHEMAS:
            values[group] = dict(vars(values[group]))
        return {**values, **others}

    @property
    def trains(self) -> bool:
        """False for a checkpoint that is evaluated as it is."""
        return not self.model.checkpoint or bool(self.train.parent)


_JOB_CONFIG_TYPES = typing.get_type_hints(JobConfig, include_extras=True)
_LENGTH = Annotated[int, Check("a whole number of at least 2 tokens", lambda length: length > 1)]
# {key: type} outside the groups above, of run.yaml and of the other scripts' yamls.
JOB_TYPES = {
    **{
        key: hint
        for key, hint in _JOB_CONFIG_TYPES.items()
        if key not in (*SCHEMAS, *USUAL_METHODS, "others")
    },
    "lengths": Annotated[list[int] | None, TO_LIST, _not_empty(LENGTHS_EXAMPLE)],
    "length": _LENGTH | None,
    "target": _LENGTH | None,
    "budget": Annotated[
        Rate, Check("a number above 0 and at most 1,000", lambda budget: budget <= 1000)
    ],
    "minutes": Annotated[
        Rate,
        Check("a number of minutes above 0 and at most 10,000", lambda minutes: minutes <= 10_000),
    ],
    "exact_first": Annotated[
        list[Count] | None, TO_LIST, _not_empty("a number of positions, or several, as in [0,4]")
    ],
    "objective": Literal["nll", "needle"],
    "pairs": Literal["all", "critical"],
    "tolerance": Weight,
    "engine": str | None,
    "fed": Annotated[int, Check("a whole number of at least 1 token", lambda fed: fed > 0)],
    "factor": (
        Annotated[float, Check("a number above 1, such as 4", lambda factor: factor > 1)] | None
    ),
    "candidates": Annotated[
        list[str] | None, TO_LIST, _not_empty("one candidate or several, such as [none,yarn]")
    ],
    "methods": Annotated[
        list[str] | None, TO_LIST, _not_empty("one method or several, such as [ntk,yarn]")
    ],
    "json": str | None,
    "figure": str | None,
    **dict.fromkeys((*SCHEMAS, *OPTIONAL_SCHEMAS), dict),
    **dict.fromkeys(USUAL_METHODS, Any),
}
DATA_TYPES = {
    "name": Any,
    "path": Any,
    "tokenizer": str,
    "vocab_size": int,
    "bos": bool,
    "source": dict,
    "mix": dict | None,
}

# Keys of which one value needs no brackets.
LIST_KEYS = {key for key, hint in JOB_TYPES.items() if TO_LIST in typing.get_args(hint)}
for _group in ("train", "evaluate"):
    _hints = typing.get_type_hints(SCHEMAS[_group], include_extras=True)
    LIST_KEYS |= {
        f"{_group}.{key}" for key, hint in _hints.items() if TO_LIST in typing.get_args(hint)
    }


def may_be_list(key: str) -> bool:
    """False for a key of this schema whose value is no list; True also for another's key.

    >>> may_be_list("seed"), may_be_list("train.length"), may_be_list("extension.factors")
    (False, True, True)
    """
    group, _, name = key.partition(".")
    if not name:
        return allows_container(JOB_TYPES.get(key, list), list)
    schema = {**SCHEMAS, **OPTIONAL_SCHEMAS}.get(group)
    if schema is None:
        return True
    return allows_container(
        typing.get_type_hints(schema, include_extras=True).get(name, list), list
    )


def check_config(raw: dict) -> dict:
    """`raw` with every value of the right type, and 16k written out.

    Arguments of methods and sources are checked by make and make_source. Raises ConfigError for a
    wrong type, an unknown key, an illegal word, or a number out of range.
    """
    values = {
        key: convert(key, value, JOB_TYPES.get(key, Any))
        for key, value in expand_sizes(raw).items()
    }
    if "_target_" in (values.get("model") or {}):  # a yaml of model= that is an engine
        values["model"] = {"engine": values["model"]}
    if "data" in values:
        values["data"] = {
            key: convert(f"data.{key}", value, DATA_TYPES.get(key, Any))
            for key, value in values["data"].items()
        }
        if "name" in values["data"]:
            values["data"]["name"] = text_name(values["data"])
    for group, usual in USUAL_METHODS.items():
        if group in values:
            _check_node(group, values[group], usual)
    if "source" in values.get("data", {}):
        _check_node("data.source", values["data"]["source"], USUAL_SOURCE)
    for group in (*SCHEMAS, *OPTIONAL_SCHEMAS):
        if values.get(group):
            # Built only to raise for unknown keys and wrong values.
            typed_group(group, values[group])
    return values


def _check_node(key: str, node: object, usual: str) -> None:
    """Raise ConfigError if the value of a key is no mapping that names a class, such as `usual`."""
    if not isinstance(node, dict):
        raise ConfigError(
            f"{key}={shown(node)} must be a mapping, with _target_: {usual} or another class."
        )
    target = node.get("_target_")
    if not isinstance(target, str):
        raise ConfigError(f"{key}._target_={shown(target)} must name a class, such as {usual}.")


def typed_group(group: str, values: dict) -> Any:
    """Dataclass of one group, built from `values`. Raises ConfigError as `check_config` does."""
    return _cached_group(group, json.dumps(values))


@functools.lru_cache(maxsize=1024)
def _cached_group(group: str, content: str) -> Any:
    """Dataclass of one group from its values as JSON; cached, since cells of a grid share most."""
    schema = {**SCHEMAS, **OPTIONAL_SCHEMAS}[group]
    hints = typing.get_type_hints(schema, include_extras=True)
    values = convert(group, json.loads(content), dict)
    for key in sorted(values):
        if key not in hints:
            raise ConfigError(
                f"{group}.{key} is not a key of {group}{did_you_mean(key, hints)}: --cfg job"
                " prints all of them."
            )
    return schema(
        **{key: convert(f"{group}.{key}", value, hints[key]) for key, value in values.items()}
    )
