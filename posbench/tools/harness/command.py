"""Command of scripts/harness.py: lm-evaluation-harness on a checkpoint with posbench's methods."""

import importlib.util
import json
import tempfile
from pathlib import Path

import numpy as np

from posbench.common.errors import ConfigError, did_you_mean
from posbench.common.files import sha256_json, write_json
from posbench.config.compose import Request
from posbench.config.identity import method_name
from posbench.config.names import shipped_yamls
from posbench.config.schema import EvaluateConfig, TrainConfig, typed_group
from posbench.config.typed_args import shown
from posbench.data.sources import WITHOUT_FILE
from posbench.data.task import make_text_task
from posbench.data.text_questions import TextQuestions
from posbench.data.tokenizers import pretrained_json, read_tokenizer
from posbench.gguf.header import is_gguf
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.outline import NAMES_IN_CONFIG
from posbench.pretrained.transformers_model import load

USUAL_LENGTH = 1024  # tokens of a local task's questions


def harness(request: Request) -> None:
    """Run the tasks of each configuration, print the harness's table and write its results."""
    _check_request(request)
    import torch

    from posbench.model.build import pick_device
    from posbench.model.inplace.extend import extend

    model = None
    loaded = None  # place, dtype and device of `model`
    for raw in request.raw_configs:
        checkpoint = find_checkpoint(raw["model"]["path"])
        dtype_name = "bf16" if raw["evaluate"]["dtype"] == "bf16" else "fp32"  # also for auto
        dtype = torch.bfloat16 if dtype_name == "bf16" else torch.float32
        device = pick_device(raw["device"])
        # Other methods of one checkpoint need no other model: `extend` replaces those before.
        if loaded != (checkpoint.folder_or_file, dtype, device):
            model = load(checkpoint, dtype).to(device)
            loaded = (checkpoint.folder_or_file, dtype, device)
        lengths = typed_group("evaluate", raw["evaluate"]).lengths or []
        target = raw["target_len"] or max(lengths, default=None)
        train_len = _typed_train_len(raw)
        extend(model, raw["extension"], raw["scale_attention"], target, train_len)
        results = _run_tasks(model, checkpoint, raw, target)
        settings = {
            "extension": raw["extension"],
            "scale_attention": raw["scale_attention"],
            "tasks": raw["tasks"],
            "limit": raw["limit"],
            "target_len": target,
            "train_len": train_len,
        }
        out = Path(raw["out"] or _usual_path(checkpoint, raw, settings))
        write_json(out, {"model": checkpoint.name, **settings, "dtype": dtype_name, **results})
        print(out)


def _usual_path(checkpoint: Checkpoint, raw: dict, settings: dict) -> Path:
    """Path of results, such as results/harness/SmolLM2-135M/yarn+none-1a2b3c4d.json.

    Checkpoints of one name, such as "final", have other digits."""
    place = checkpoint.folder_or_file
    if is_gguf(place):
        name = place.stem
    elif checkpoint.name == str(place):
        name = place.name  # whole: its dots are no file's
    else:  # ORG/NAME@COMMIT of the hub
        name = checkpoint.name.partition("@")[0].rpartition("/")[2]
    folder = Path(raw["results_dir"]).parent / "harness" / name
    methods = f"{method_name(raw['extension'])}+{method_name(raw['scale_attention'])}"
    content = [checkpoint.name, settings, raw["evaluate"], raw["include"], raw["data"]["tokenizer"]]
    return folder / f"{methods}-{sha256_json(content)[:8]}.json"


def _check_request(request: Request) -> None:
    """Raise ConfigError without lm_eval, checkpoint or tasks, and for one file of many results.

    Nothing heavy is imported before.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            "lm-evaluation-harness is not installed: pip install 'posbench[harness]'."
        )
    for raw in request.raw_configs:
        if raw["run"]:
            raise ConfigError(
                f"run={raw['run']} is a run of posbench, and the harness reads a checkpoint of"
                f" transformers: give model.path=FOLDER after scripts/export_hf.py run={raw['run']}"
                " out=FOLDER."
            )
        if not raw["model"].get("path"):
            raise ConfigError(
                "The harness reads a checkpoint: add model.path=FOLDER, FILE.gguf or a hub name to"
                " the command."
            )
        if not isinstance(raw["tasks"], list) or not raw["tasks"]:
            raise ConfigError(f"tasks={raw['tasks']} must be a list of names: tasks=[passkey].")
        _check_idle_keys(raw)
        for name in raw["tasks"]:
            task = shipped_yamls("task").get(name, {})
            if task.get("haystack") == "corpus":
                raise ConfigError(
                    f"tasks={name} takes its haystack from the documents of a text, which a local"
                    " task has none of: choose passkey or niah_single_1."
                )
    out = request.raw_configs[0]["out"]
    if out and len(request.raw_configs) > 1:
        raise ConfigError(
            f"out={out} is one file, and {len(request.raw_configs)} results were asked for: leave"
            " it out."
        )


def _check_idle_keys(raw: dict) -> None:
    """Raise ConfigError for keys of a measurement of posbench's own, which the harness lacks."""
    if not raw["model"].get("own_scaling", True):
        raise ConfigError(
            "model.own_scaling=false has no effect on scripts/harness.py, which runs the model of"
            " transformers: leave it out, or evaluate with scripts/run.py."
        )
    usual = EvaluateConfig()
    for key in ("tasks", "chat", "text", "rivals", "protocol"):
        value = raw["evaluate"].get(key, getattr(usual, key))
        if value != getattr(usual, key):
            remedy = f"give tasks={shown(value)}" if key == "tasks" else "leave it out"
            raise ConfigError(
                f"evaluate.{key}={shown(value)} has no effect on scripts/harness.py: {remedy}, or"
                " evaluate with scripts/run.py."
            )


def _typed_train_len(raw: dict) -> int | None:
    """train.length where it was typed, None for what the checkpoint states."""
    length = raw["train"]["length"]
    if length == TrainConfig().length:  # the default, which a typed length never is
        return None
    return max(length) if isinstance(length, list) else length


def _run_tasks(model: object, checkpoint: Checkpoint, raw: dict, target: int | None) -> dict:
    """Results of the tasks, their versions, and the longest text that the harness reads.

    `target` is the length to which the model was extended."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table

    content = pretrained_json(_tokenizer_of(checkpoint, raw))
    tokenizer = their_tokenizer(content, model)
    reader = HFLM(
        pretrained=model,
        tokenizer=tokenizer,
        batch_size=raw["batch"],
        max_length=_longest_text(model.config, target),
        prefix_token_id=_prefix_without_bos(tokenizer),
    )
    bos = _bos_written(reader)
    with tempfile.TemporaryDirectory() as folder:
        tasks = []
        for name in raw["tasks"]:
            if name in shipped_yamls("task"):
                _check_length(name, raw, reader.max_length)
                tasks += _write_tasks(name, content, raw, Path(folder), bos)
            else:
                tasks.append(name)
        include = [raw["include"]] if raw["include"] else []
        manager = TaskManager(include_path=[folder, *include])
        _check_tasks(tasks, manager.all_tasks)
        output = lm_eval.simple_evaluate(
            reader,
            tasks=tasks,
            limit=raw["limit"],
            task_manager=manager,
            bootstrap_iters=0,
            log_samples=False,
        )
    print(make_table(output))
    return {
        "results": output["results"],
        "versions": output["versions"],
        "max_length": reader.max_length,
    }


def _longest_text(config: object, target: int | None) -> int | None:
    """Tokens of the longest text of a model, by any of the names that families give to it.

    None where it states none, which the harness takes for 2,048."""
    config = getattr(config, "text_config", None) or config
    lengths = [getattr(config, key, None) for key in NAMES_IN_CONFIG["length"]]
    return max((length for length in [*lengths, target] if length), default=None)


def _prefix_without_bos(tokenizer: object) -> int | None:
    """Id of a line's end, behind which a whole text is scored where no BOS or EOS is named.

    None where one is, which the harness takes itself. An export of a training names none."""
    if tokenizer.bos_token_id is not None or tokenizer.eos_token_id is not None:
        return None
    ids = tokenizer.encode("\n", add_special_tokens=False)
    return ids[-1] if ids else None


def _bos_written(reader: object) -> int | None:
    """Id of the BOS that the harness puts before a text; None if it puts none."""
    with_bos = reader.tok_encode("a")
    without = reader.tokenizer.encode("a", add_special_tokens=False)
    return with_bos[0] if with_bos[:1] != without[:1] else None


def _check_length(name: str, raw: dict, longest: int) -> None:
    """Raise ConfigError for texts of a local task that the harness would cut at their start, where
    it reads at most `longest` tokens.
    """
    length = max(_lengths_of_tasks(raw))
    if length > longest:
        raise ConfigError(
            f"tasks={name} has texts of {length} tokens here, and the harness cuts this model's at"
            f" {longest}: add evaluate.lengths=[{longest}], or target_len={length}."
        )


def _lengths_of_tasks(raw: dict) -> list[int]:
    """Lengths in tokens of the texts of local tasks."""
    return typed_group("evaluate", raw["evaluate"]).lengths or [USUAL_LENGTH]


def _tokenizer_of(checkpoint: Checkpoint, raw: dict) -> str:
    """data.tokenizer that was given as a file or a name, else the checkpoint's own.

    Raises ConfigError where there is neither."""
    typed_tokenizer = raw["data"]["tokenizer"]
    if typed_tokenizer not in WITHOUT_FILE:
        return typed_tokenizer
    tokenizer = checkpoint.tokenizer()
    if tokenizer is None:
        raise ConfigError(
            f"model.path={checkpoint.name} has no tokenizer.json, which the harness needs: add"
            " data.tokenizer=FOLDER with one, or a hub name."
        )
    return tokenizer


def _check_tasks(tasks: list[str], available: list[str]) -> None:
    """Raise ConfigError for a task that is not available, with the nearest name."""
    unknown = [name for name in tasks if name not in available]
    if unknown:
        suggestion = did_you_mean(unknown[0], [*shipped_yamls("task"), *available])
        raise ConfigError(
            f"tasks={unknown[0]} is not a task of configs/task, lm-evaluation-harness or"
            f" include{suggestion}."
        )


def their_tokenizer(content: bytes, model: object) -> object:
    """Tokenizer of transformers for the content of a tokenizer.json.

    Its special tokens are those of the model's configuration; EOS pads where none is named.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_buffer(content)
    special = {}  # {keyword of transformers: token}
    for name in ("bos_token", "eos_token", "pad_token"):
        token_id = getattr(model.config, f"{name}_id", None)
        if isinstance(token_id, list):
            token_id = token_id[0]
        token = tokenizer.id_to_token(token_id) if isinstance(token_id, int) else None
        if token:
            special[name] = token
    special.setdefault("pad_token", special.get("eos_token"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def _write_tasks(
    name: str, content: bytes, raw: dict, folder: Path, bos: int | None = None
) -> list[str]:
    """Names of local tasks, one for each length, written into `folder`.

    A length counts the `bos` that the harness puts before each text. Raises ConfigError for a task
    with several answers.
    """
    tokenizer = read_tokenizer(name, content)
    evaluate = typed_group("evaluate", raw["evaluate"])
    task = make_text_task({"name": name, **shipped_yamls("task")[name]})
    questions = TextQuestions(task, name, "test", file=None, tokenizer=tokenizer, bos=bos)
    written = []
    for length in _lengths_of_tasks(raw):
        drawn = questions.draw(length, evaluate.windows, [evaluate.seed])
        # answer_NT: the number of the answer that a target belongs to, -1 for those of none.
        if drawn.answer_NT.max() > 0:
            raise ConfigError(
                f"tasks={name} has several answers, but a local task has one: choose passkey or"
                " niah_single_1."
            )
        rows = []
        for input_T, target_T, answer_T in zip(
            drawn.inputs_NT, drawn.targets_NT, drawn.answer_NT, strict=True
        ):
            asked_T = answer_T >= 0
            # A target is the token after the input of the same index, so this one is still prompt.
            prompt_T = input_T[: int(asked_T.argmax()) + 1]
            prompt = tokenizer.decode(prompt_T)
            # Decoded alone, an answer would lose its blank in a tokenizer that was SentencePiece's.
            text = tokenizer.decode(np.concatenate([prompt_T, target_T[asked_T]]))
            rows.append({"prompt": prompt, "answer": text.removeprefix(prompt)})
        _write_task(folder, f"{name}_{length}", rows)
        written.append(f"{name}_{length}")
    return written


def _write_task(folder: Path, task: str, rows: list[dict]) -> None:
    """Write a task of lm-evaluation-harness: its questions, and the yaml that describes them."""
    questions = folder / f"{task}.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    description = {
        "task": task,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(questions)}},
        "test_split": "test",
        "output_type": "loglikelihood",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
        "metadata": {"version": 1},
    }
    (folder / f"{task}.yaml").write_text(json.dumps(description))
