"""LoadedRun: a finished training as a Python object, as posbench.load returns it.

Reading the configuration and the rows needs neither torch nor the text; the text, the tokenizer and
the model are loaded on first use."""

import contextlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.common.errors import ConfigError, RunError
from posbench.config.defaults import resolved_config
from posbench.config.names import chosen_node, display_name
from posbench.config.schema import TRAINING_PARTS, EvaluateConfig, JobConfig
from posbench.data.corpus import fingerprint, read_text_of, resolved_text
from posbench.data.sources import ALL, SPLITS, TASK_TOKENIZER, WITHOUT_FILE
from posbench.evaluation.registry import protocol as evaluator
from posbench.position.instantiate import make_method
from posbench.position.trusted import trusted_config
from posbench.report.frame import read_rows, row_frame
from posbench.results.run_metadata import read_metadata
from posbench.runs.directory import Run
from posbench.sweep.cells import configs_by_task, make_cell
from posbench.sweep.jobs import Job, resolved_key_run
from posbench.sweep.verdict import JobVerdict, judge_job

if TYPE_CHECKING:
    import pandas
    import torch

    from posbench.data.corpus import Corpus
    from posbench.data.tokenizers import Tokenizer
    from posbench.model.gpt import GPT
    from posbench.position.interfaces import Extension, ScaleAttention

# a name; {"name": NAME, **arguments}; {"_target_": CLASS, **arguments}; None: none
MethodChoice = str | dict | None
USUAL_TOKENS = 100  # that generate draws


class LoadedRun:
    """A finished training: `path`, `id` and `config` (resolved) at once, all else on first use."""

    def __init__(
        self,
        path: str | Path,
        device: str = "auto",
        cache_dir: str | Path | None = None,
        trusted: Iterable[str] = (),
    ):
        """Read the configuration of the run in `path`.

        `cache_dir`: folder of tokens; None: `cache` beside the folder of runs (results/runs,
        results/cache), wherever the notebook runs. Raises RunError where there is no finished
        training. Of the classes that the configuration names only posbench's own are allowed, and
        those of the packages `trusted`: raises ConfigError for others."""
        self.directory = Run(path)
        if not self.directory.finished:
            raise RunError(f"{path} has no finished training: train it with scripts/run.py first.")
        self.config = trusted_config(self.directory, trusted)
        self.cfg = self.config  # its name in earlier versions
        self.path = self.directory.path
        self.id = self.directory.id
        self._device = device
        self._cache_dir = cache_dir

    def __repr__(self) -> str:
        encoding = display_name("encoding", self.config["encoding"])
        length = self.config["train"].get("length")
        return f"<run {self.id}: encoding={encoding}, train.length={length}>"

    @property
    def rows(self) -> "pandas.DataFrame":
        """All evaluations of the run on disk, as posbench.rows reads them."""
        return read_rows(self.path)

    @cached_property
    def device(self) -> str:
        """Device of the model. Raises ConfigError for a device that torch does not have."""
        from posbench.model.build import pick_device

        return pick_device(self._device)

    @cached_property
    def corpus(self) -> "Corpus":
        """The tokens of the training's text.

        Raises RunError when they are damaged or the text changed since the training. A relative
        data.path starts at the working directory, or at the nearest folder above the run where it
        leads to something."""
        return self.prepared(SPLITS)

    def prepared(self, splits: Iterable[str]) -> "Corpus":
        """Corpus of some splits alone, as `corpus` otherwise."""
        from posbench.data import prepare
        from posbench.data.corpus import fit_corpus

        cache_dir = self._cache_dir
        if not cache_dir:
            # A run is results/runs/ID. One that was moved is read with the cache of the place where
            # the command runs.
            beside_runs = self.path.resolve().parent.parent / "cache"
            cache_dir = beside_runs if beside_runs.is_dir() else "results/cache"
        data = self.reached()  # with a path that leads to something from here
        corpus = prepare(data, cache_dir, splits)
        # "": its provenance, which names the text, is missing.
        if read_metadata(self.path).fingerprint not in ("", corpus.fingerprint):
            raise RunError(
                f"The text of data={corpus.name} has changed since {self.id} was trained on it:"
                " restore it."
            )
        return fit_corpus(corpus, self._training_config)

    def reached(self) -> dict:
        """The data configuration of the training, with a path that leads to something from here."""
        data = self.config["data"]
        path = data.get("path")
        if not path or os.path.exists(path):
            return data
        for folder in self.path.resolve().parents:
            if (folder / path).exists():
                return {**data, "path": str(folder / path)}
        return data  # its reader says that the path leads nowhere

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the training. A checkpoint's needs no text if its file is there."""
        from posbench.data.corpus import known_tokenizer
        from posbench.data.tokenizers import load_tokenizer

        if self.config["data"]["tokenizer"] not in (*WITHOUT_FILE, TASK_TOKENIZER):
            # Such a tokenizer has a file of its own, and needs no cache. If the file is gone, the
            # corpus has a copy.
            with contextlib.suppress(ConfigError):
                return known_tokenizer(self.config["data"], cache_dir="")
        return load_tokenizer(self.corpus.tokenizer, self.corpus.folder)

    @cached_property
    def _training_config(self) -> JobConfig:
        """Configuration of the training alone, of the parts that make its model."""
        return JobConfig.of({part: self.config[part] for part in TRAINING_PARTS})

    @cached_property
    def bos(self) -> int | None:
        """Id of the BOS token that windows of the training begin with, or None."""
        if not self.config["data"]["bos"]:
            return None
        checkpoint = self.config["model"].get("checkpoint")
        return checkpoint["bos"] if checkpoint else self.tokenizer.vocab_size

    @cached_property
    def model(self) -> "GPT":
        """The trained model in evaluation mode, without gradients.

        model(ids) gives logits [B, T, V] of ids [B, T]. Raises RunError for damaged weights.
        """
        from posbench.model.build import load_model

        vocab_size = self.corpus.vocab_size
        model = load_model(self.directory, self._training_config, vocab_size, self.device)
        return model.requires_grad_(False)

    def encode(self, text: str) -> "torch.Tensor":
        """Token ids [1, T] of a text for the model, after the BOS token if the training had one."""
        import torch

        from posbench.data.tokenizers import behind_bos

        if not isinstance(text, str):
            raise ConfigError(
                f"encode takes one text, and text={text!r:.80} is a {type(text).__name__}: give a"
                " str."
            )
        ids = behind_bos(self.tokenizer.encode(text), self.bos)
        return torch.tensor([list(ids)], dtype=torch.long, device=self.device)

    def decode(self, ids: "torch.Tensor | Iterable[int]") -> str:
        """The text of token ids ([T] or [1, T]) without the BOS token."""
        flat = ids.flatten().tolist() if hasattr(ids, "flatten") else list(ids)
        return self.tokenizer.decode([token for token in flat if token != self.bos])

    def evaluate(
        self,
        extension: MethodChoice = None,
        scale_attention: MethodChoice = None,
        lengths: Iterable[int] | None = None,
        protocol: str | Iterable[str] | None = None,
        *,
        allow_untested: bool = False,
        **settings: Any,
    ) -> "pandas.DataFrame":
        """The rows that scripts/run.py run=DIR would write for one evaluation; nothing is written.

        run.evaluate("yarn", lengths=[512, 1024], beta=16, windows=64): a keyword is a setting of
        configs/evaluate or an argument of the extension. What is not given is as in the run's own
        configuration, so that rows compare with `rows`. Raises ConfigError for what the command
        line refuses, and where the methods change nothing."""
        from posbench.sweep.evaluate_cell import cell_evaluation, evaluate, progress_of

        if lengths is not None:
            settings["lengths"] = lengths
        if protocol is not None:
            settings["protocol"] = protocol
        job = self._job_of_evaluation(extension, scale_attention, settings, allow_untested)
        judged = judge_job(job)
        _check_legal(judged)
        corpus = self._evaluated_text(job.config)
        evaluators = [
            evaluator(cell.protocol)(cell_evaluation(self.model, corpus, cell, self.device))
            for cell in job.cells
        ]
        rows = []
        with (
            tempfile.TemporaryDirectory() as folder,
            progress_of(job, evaluators, [cell.evaluate.lengths for cell in job.cells]) as progress,
        ):
            for protocol_run, (cell, verdict) in zip(evaluators, judged.cells.items(), strict=True):
                path = Path(folder, cell.protocol, cell.path.name)
                untested = verdict.status == "untested"
                rows += evaluate(job, protocol_run, replace(cell, path=path), untested, progress)
        return row_frame(rows)

    def _evaluated_text(self, config: JobConfig) -> "Corpus":
        """Text that an evaluation reads: its own, or the training's."""
        text = config.evaluate.text
        split = config.evaluate.split
        if text:
            return read_text_of(self.corpus, replace(config, data=self.reached()), text, split)
        return self.prepared([ALL]) if split == ALL else self.corpus

    def _job_of_evaluation(
        self,
        extension: MethodChoice,
        scale_attention: MethodChoice,
        keywords: dict,
        allow_untested: bool,
    ) -> Job:
        """The job of the run with the cells of one evaluation, without references.

        `keywords` are settings of configs/evaluate and arguments of the extension.
        """
        settings_names = [field.name for field in fields(EvaluateConfig)]
        settings = {}
        arguments = {}
        for key, value in keywords.items():
            target = settings if key in settings_names else arguments
            target[key] = _as_python(value)
        raw = {
            **{part: self.config[part] for part in TRAINING_PARTS},
            "extension": chosen_node("extension", extension, arguments, settings_names),
            "scale_attention": chosen_node("scale_attention", scale_attention, {}),
            "evaluate": {**(self.config.get("evaluate") or {}), **settings},
            "allow_untested": allow_untested,
            "log": {},
            "device": self.device,
        }
        config = resolved_config(raw)
        text = resolved_text(config.evaluate.text, self.reached(), cache_dir=None)
        chooser = config.evaluate.key_run
        if chooser:
            chooser = resolved_key_run(chooser, fingerprint(self.reached()))
        config = replace(config, evaluate=replace(config.evaluate, text=text, key_run=chooser))
        job = Job(config, self.directory, fingerprint="")  # which is read when something is trained
        for name in config.evaluate.protocol:
            for with_task in configs_by_task(config, name):
                methods = config.extension, config.scale_attention
                job.cells.append(make_cell(job.run, with_task, name, *methods))
        return job

    def generate(
        self,
        text: str,
        n: int | None = None,
        extension: MethodChoice = None,
        scale_attention: MethodChoice = None,
        *,
        max_new_tokens: int | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        allow_untested: bool = False,
    ) -> str:
        """`n` (or `max_new_tokens`; else 100) tokens drawn after `text`, as text.

        temperature=0 takes the most likely one each time. Every token is read with the plan of the
        length it has reached, so a dynamic extension changes along the way. Each step reads the
        whole text: no cache of keys is kept. Raises ConfigError for methods that the command line
        refuses at the final length."""
        import torch

        from posbench.position.interfaces import Extension, ScaleAttention
        from posbench.position.legality import verdict_of

        n = _number_of_tokens(n, max_new_tokens)
        if not isinstance(n, int) or n < 1 or temperature < 0:
            raise ConfigError(
                f"n={n} must be a whole number of at least 1, and temperature={temperature} at"
                " least 0."
            )
        encoding = self.model.encoding
        extension = make_method(chosen_node("extension", extension, {}), kind=Extension)
        scale_node = chosen_node("scale_attention", scale_attention, {})
        scale = make_method(scale_node, encoding.shape, kind=ScaleAttention)
        ids = self.encode(text)[0].tolist()
        if not ids:
            raise ConfigError("text='' has no token to continue: give some text.")
        longest_read = len(ids) + n - 1  # the last token is drawn, and not read
        verdict_of(encoding, extension, scale, [longest_read], allow_untested)
        generator = torch.Generator().manual_seed(seed)
        n_prompt = len(ids)
        for _ in range(n):
            logits_V = self._next_logits(ids, extension, scale)
            if temperature:
                probabilities_V = torch.softmax(logits_V / temperature, 0)
                token = torch.multinomial(probabilities_V, 1, generator=generator)
            else:
                token = logits_V.argmax()
            ids.append(int(token))
        return self.decode(ids[n_prompt:])

    def _next_logits(
        self, ids: list[int], extension: "Extension", scale: "ScaleAttention"
    ) -> "torch.Tensor":
        """Logits [V] of the token behind `ids`, on the CPU; the BOS token is never next."""
        import torch

        from posbench.position.legality import fed_length
        from posbench.position.plan import make_plan

        encoding = self.model.encoding
        fed = ids[-fed_length(extension, encoding.shape.train_len, len(ids)) :]
        if self.bos is not None:
            fed[0] = self.bos  # as a window begins in training
        plan = make_plan(
            encoding,
            extension,
            scale,
            length=len(fed),
            device=self.device,
            trained_scale=self.model.scale,
        )
        with torch.inference_mode():
            logits_BRV = self.model(torch.tensor([fed], device=self.device), plan, last=1)
            logits_V = logits_BRV[0, 0].float().cpu()
            if self.bos is not None:
                logits_V[self.bos] = -torch.inf
        return logits_V


def _number_of_tokens(n: int | None, max_new_tokens: int | None) -> int:
    """The number of tokens by either of its names. Raises ConfigError for two that differ."""
    if n is None:
        return USUAL_TOKENS if max_new_tokens is None else max_new_tokens
    if max_new_tokens not in (None, n):
        raise ConfigError(
            f"n={n} and max_new_tokens={max_new_tokens} are two names for the same number: give"
            " one of them."
        )
    return n


def _check_legal(judged: JobVerdict) -> None:
    """Raise ConfigError if the job or one of its evaluations is refused or changes nothing."""
    if judged.refused:
        raise ConfigError(judged.refused)
    for verdict in judged.cells.values():
        if verdict.status == "refused":
            raise ConfigError(verdict.reason)
        if verdict.status == "noop":
            raise ConfigError(
                f"{verdict.label} is a no-op: {verdict.reason}; evaluate without it, or at other"
                " lengths."
            )


def _as_python(value: Any) -> Any:
    """numpy numbers and arrays as Python's, a tuple or a range as a list.

    >>> _as_python((1, range(2)))
    [1, [0, 1]]
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | range):
        return [_as_python(entry) for entry in value]
    return value
