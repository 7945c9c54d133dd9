"""Command of scripts/harness.py: lm-evaluation-harness on a transformers checkpoint with posbench's
methods applied.
"""

import importlib.util
import json
import tempfile
from pathlib import Path

from posbench.common.errors import ConfigError, did_you_mean
from posbench.common.files import sha256_json, write_json
from posbench.config.compose import Request
from posbench.config.identity import method_name
from posbench.config.names import nodes
from posbench.config.schema import typed
from posbench.data.task import make_text_task
from posbench.data.text_questions import TextQuestions
from posbench.data.tokenizers import pretrained_json, read_tokenizer
from posbench.pretrained.checkpoint import Checkpoint, find_checkpoint
from posbench.pretrained.transformers_model import load


def harness(request: Request) -> None:
    """Run the tasks of each configuration, print the harness's table and write its results."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            "lm-evaluation-harness is not installed: pip install 'posbench[harness]'."
        )
    for cfg in request.cfgs:
        if not cfg["model"].get("path"):
            raise ConfigError(
                "The harness reads a checkpoint: add model.path=FOLDER, FILE.gguf or a hub name to"
                " the command."
            )
        if not isinstance(cfg["tasks"], list) or not cfg["tasks"]:
            raise ConfigError(f"tasks={cfg['tasks']} must be a list of names: tasks=[passkey].")
    if request.cfgs[0]["out"] and len(request.cfgs) > 1:
        raise ConfigError(
            f"out={request.cfgs[0]['out']} is one file, and {len(request.cfgs)} results were asked"
            " for: leave it out."
        )
    import torch

    from posbench.model.build import pick_device
    from posbench.model.inplace.extend import extend

    model, known = None, None
    for cfg in request.cfgs:
        checkpoint = find_checkpoint(cfg["model"]["path"])
        if known != checkpoint.place:
            dtype = torch.bfloat16 if cfg["evaluate"]["dtype"] == "bf16" else torch.float32
            model, known = (
                load(checkpoint, dtype).to(pick_device(cfg["device"])),
                checkpoint.place,
            )
        target = cfg["target_len"] or max(typed("evaluate", cfg["evaluate"]).lengths or [0]) or None
        extend(model, cfg["extension"], cfg["scale_attention"], target_len=target)
        found = _evaluated(model, checkpoint, cfg)
        settings = {key: cfg[key] for key in ("extension", "scale_attention", "tasks", "limit")} | {
            "target_len": target
        }
        methods = f"{method_name(cfg['extension'])}+{method_name(cfg['scale_attention'])}"
        name = f"{methods}-{sha256_json([settings, cfg['evaluate']])[:8]}.json"
        out = Path(
            cfg["out"] or Path(cfg["results_dir"]).parent / "harness" / checkpoint.place.stem / name
        )
        write_json(out, {"model": checkpoint.name, **settings, **found})
        print(out)


def _evaluated(model: object, checkpoint: Checkpoint, cfg: dict) -> dict:
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table

    content = pretrained_json(checkpoint.tokenizer() or checkpoint.name)
    with tempfile.TemporaryDirectory() as folder:
        names = [
            one
            for name in cfg["tasks"]
            for one in (
                _written(name, content, cfg, Path(folder)) if name in nodes("task") else [name]
            )
        ]
        manager = TaskManager(include_path=[folder, *filter(None, [cfg["include"]])])
        if unknown := [name for name in names if name not in manager.all_tasks]:
            near = did_you_mean(unknown[0], [*nodes("task"), *manager.all_tasks])
            raise ConfigError(
                f"tasks={unknown[0]} is not a task of configs/task, lm-evaluation-harness or"
                f" include{near}."
            )
        reader = HFLM(
            pretrained=model, tokenizer=their_tokenizer(content, model), batch_size=cfg["batch"]
        )
        found = lm_eval.simple_evaluate(
            reader,
            tasks=names,
            limit=cfg["limit"],
            task_manager=manager,
            bootstrap_iters=0,
            log_samples=False,
        )
    print(make_table(found))
    return {
        "results": found["results"],
        "versions": found["versions"],
        "max_length": reader.max_length,
    }


def their_tokenizer(content: bytes, model: object) -> object:
    """Tokenizer of transformers for the content of a tokenizer.json, with the special tokens of the
    model's configuration.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer.from_buffer(content)
    ids = {
        name: getattr(model.config, f"{name}_id", None)
        for name in ("bos_token", "eos_token", "pad_token")
    }
    ids = {name: one[0] if isinstance(one, list) else one for name, one in ids.items()}
    special = {
        name: token
        for name, one in ids.items()
        if isinstance(one, int) and (token := made.id_to_token(one))
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=made, **{"pad_token": special.get("eos_token"), **special}
    )


def _written(name: str, content: bytes, cfg: dict, folder: Path) -> list[str]:
    """Names of local tasks, one for each length, written into `folder`. Raises ConfigError for a
    task with several answers.
    """
    tokenizer, asked = read_tokenizer(name, content), typed("evaluate", cfg["evaluate"])
    questions = TextQuestions(
        make_text_task({"name": name, **nodes("task")[name]}), name, "test", None, tokenizer, None
    )
    made = []
    for length in asked.lengths or [1024]:
        drawn = questions.draw(length, asked.windows, [asked.seed])
        if drawn.answer_NT.max() > 0:
            raise ConfigError(
                f"tasks={name} has several answers, but a local task has one: choose passkey or"
                " niah_single_1."
            )
        rows = []
        for input_T, target_T, answer_T in zip(
            drawn.inputs_NT, drawn.targets_NT, drawn.answer_NT, strict=True
        ):
            first, asked_T = int((answer_T >= 0).argmax()), answer_T >= 0
            rows.append(
                {
                    "prompt": tokenizer.decode(input_T[: first + 1]),
                    "answer": tokenizer.decode(target_T[asked_T]),
                }
            )
        task = f"{name}_{length}"
        texts = folder / f"{task}.jsonl"
        texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        described = {
            "task": task, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(texts)}}, "test_split": "test",
            "output_type": "loglikelihood", "doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}", "target_delimiter": "",
            "metric_list": [{"metric": "acc"}], "metadata": {"version": 1},
        }  # fmt: skip
        (folder / f"{task}.yaml").write_text(json.dumps(described))
        made.append(task)
    return made
