"""llama.cpp in this process, by llama-cpp-python: a GGUF file with llama.cpp's own arithmetic and
its own flags.

Flags are llama.cpp's, with _ for -, and act as common/arg.cpp and tools/completion/completion.cpp
have them (llama-cpp-python 0.3.36): null leaves a flag out, so that the file's own metadata or
llama.cpp's default holds. A context is made for each length: ctx_size null is that length.
Self-extend (grp_attn_n, grp_attn_w; Jin et al. 2024, arXiv 2401.01325) moves the cached keys before
each batch, as there. In that version the divided keys are turned the wrong way
(tests/engines/test_llama_cpp_self_extend.py).

Letters: L tokens fed, R scored rows, V vocabulary.
"""

import ctypes
import importlib.metadata
import importlib.util
from typing import Any, Literal

import numpy as np

from posbench.common.errors import ConfigError, RunError
from posbench.common.machine import cores
from posbench.engines.engine import Count, Engine, Float, PositiveInt, ServedModel
from posbench.gguf.header import is_gguf
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.pretrained.import_config import outline_of

SCALING_CODES = {"none": 0, "linear": 1, "yarn": 2}
FLASH_ATTENTION_CODES = {"auto": -1, "off": 0, "on": 1}
CACHE_TYPE_CODES = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
}
# arguments that change no loss but by rounding, or that the digest of the file stands for
FLAGS_WITHOUT_EFFECT = ("threads", "path")


class LlamaCpp(Engine):
    """A GGUF file in llama.cpp. Raises ConfigError for flags that contradict each other."""

    kind = "llama_cpp"

    def __init__(
        self,
        path: str,
        ctx_size: int | None = None,
        batch_size: PositiveInt = 512,
        ubatch_size: Count = 512,
        threads: PositiveInt | None = None,
        flash_attn: Literal["auto", "on", "off"] = "auto",
        cache_type_k: Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"] = "f16",
        cache_type_v: Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"] = "f16",
        swa_full: bool = False,
        rope_scaling: Literal["none", "linear", "yarn"] | None = None,
        rope_scale: Float | None = None,
        rope_freq_base: Float | None = None,
        rope_freq_scale: Float | None = None,
        yarn_orig_ctx: Count | None = None,
        yarn_ext_factor: Float | None = None,
        yarn_attn_factor: Float | None = None,
        yarn_beta_slow: Float | None = None,
        yarn_beta_fast: Float | None = None,
        grp_attn_n: int = 1,
        grp_attn_w: PositiveInt = 512,
    ):
        arguments = dict(locals())  # first, while there are no locals but the arguments
        del arguments["self"]
        self.flags = arguments
        if rope_scale is not None and rope_freq_scale is not None:
            raise ConfigError(
                f"model.rope_scale={rope_scale:g} and rope_freq_scale={rope_freq_scale:g} are one"
                " setting, 1 / N: give one."
            )
        # It is divided by. A rope_freq_scale of 0 is legal: llama.cpp takes it as left out.
        if rope_scale is not None and rope_scale <= 0:
            raise ConfigError(f"model.rope_scale={rope_scale:g} must be above 0.")
        if grp_attn_n < 1 or grp_attn_w % grp_attn_n:
            raise ConfigError(
                f"model.grp_attn_w={grp_attn_w} must be a multiple of"
                f" model.grp_attn_n={grp_attn_n}, which is at least 1."
            )
        self.model = None  # until `start` loads it
        self.context = None  # until the first text; then one for texts of `length` tokens
        self.length = None

    def describe_model(self, raw: dict) -> ServedModel:
        path = self.flags["path"]
        if not path:
            raise ConfigError(
                "model=llama_cpp reads a GGUF file: add model.path=FILE.gguf to the command."
            )
        if importlib.util.find_spec("llama_cpp") is None:
            raise ConfigError(
                "model=llama_cpp needs llama-cpp-python, which is compiled in minutes: pip install"
                " 'posbench[llama_cpp]'"
            )
        checkpoint = find_checkpoint(path)
        if not is_gguf(checkpoint.folder_or_file):
            raise ConfigError(
                f"model.path={path} is no GGUF file, which llama.cpp reads alone: give one, or"
                " choose model=hf."
            )
        outline = outline_of(checkpoint)
        defaults = LlamaCpp("").flags
        # Without the defaults, a flag that a later version adds leaves the ids of runs as they are.
        settings = {
            flag: value
            for flag, value in self.flags.items()
            if flag not in FLAGS_WITHOUT_EFFECT and value != defaults[flag]
        }
        return ServedModel(
            vocab_size=outline.vocab_size,
            bos=outline.bos,
            train_len=outline.length,
            tokenizer=checkpoint.tokenizer(),
            identity={"sha256": checkpoint.digest(raw["cache_dir"])},
            settings=settings,
            model=outline.model,
        )

    def start(self, raw: dict) -> dict:
        """Load the file. Returns the package's version and the instructions that it was built
        for.
        """
        import llama_cpp

        size = self.flags["ctx_size"]
        longest = max(raw["evaluate"]["lengths"])
        if size is not None and size < longest:
            raise ConfigError(
                f"model.ctx_size={size} is less than the {longest} tokens of evaluate.lengths:"
                " raise it, or leave it out."
            )
        self.lib = llama_cpp
        # ctypes does not hold the function that it calls
        _keep_log_line.callback = llama_cpp.llama_log_callback(_keep_log_line)
        no_data = ctypes.c_void_p(0)
        llama_cpp.llama_log_set(_keep_log_line.callback, no_data)
        llama_cpp.llama_backend_init()
        path = self.flags["path"]
        place = find_checkpoint(path, download=False).folder_or_file
        self.model = llama_cpp.llama_model_load_from_file(
            str(place).encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise ConfigError(
                f"model.path={path} is a file that this llama.cpp does not load: {_last_log_line()}"
            )
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        return {
            "llama-cpp-python": importlib.metadata.version("llama-cpp-python"),
            "system": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def losses(self, ids_L1: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [R] as Engine.losses. llama.cpp reads a text in batches."""
        length = len(ids_L1) - 1  # the last token is a target alone
        self._prepare_context(length)
        size = self.flags["batch_size"]
        nll_parts = []
        correct_parts = []
        for start in range(0, length, size):
            end = min(start + size, length)
            nll_R, correct_R = self._batch_losses(ids_L1, start, end, first=length - n_rows)
            nll_parts.append(nll_R)
            correct_parts.append(correct_R)
        return np.concatenate(nll_parts), np.concatenate(correct_parts)

    def _prepare_context(self, length: int) -> None:
        """Make `self.context` an empty one for `length` tokens; one of this length is emptied.

        `past` is the position of the next token. Self-extend has divided those below `grouped`."""
        lib = self.lib
        if self.context and self.length == length:
            with_data = True  # not the positions of the cached keys alone
            lib.llama_memory_clear(lib.llama_get_memory(self.context), with_data)
        else:
            if self.context:
                lib.llama_free(self.context)
                self.context = None
            self.context = lib.llama_init_from_model(self.model, self._context_parameters(length))
            if not self.context:
                raise RunError(f"llama.cpp makes no context of {length} tokens: {_last_log_line()}")
            self.length = length
        self.past = 0
        self.grouped = 0

    def _context_parameters(self, length: int) -> Any:
        """llama_context_params of the flags, for texts of `length` tokens."""
        flags = self.flags
        parameters = self.lib.llama_context_default_params()
        parameters.n_ctx = flags["ctx_size"] or length
        parameters.n_batch = flags["batch_size"]
        parameters.n_ubatch = flags["ubatch_size"]
        parameters.flash_attn_type = FLASH_ATTENTION_CODES[flags["flash_attn"]]
        parameters.swa_full = flags["swa_full"]
        parameters.no_perf = True
        parameters.type_k = CACHE_TYPE_CODES[flags["cache_type_k"]]
        parameters.type_v = CACHE_TYPE_CODES[flags["cache_type_v"]]
        # llama.cpp's own four threads wait for each other where there are fewer cores.
        parameters.n_threads = flags["threads"] or cores()
        parameters.n_threads_batch = parameters.n_threads
        if flags["rope_scaling"]:
            parameters.rope_scaling_type = SCALING_CODES[flags["rope_scaling"]]
        if flags["rope_scale"]:
            parameters.rope_freq_scale = 1 / flags["rope_scale"]
        for flag, value in flags.items():
            parameter_has_its_name = flag.startswith(("rope_freq_", "yarn_"))
            if parameter_has_its_name and value is not None:
                setattr(parameters, flag, value)
        return parameters

    def _batch_losses(
        self, ids_L1: np.ndarray, start: int, end: int, first: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [r] of tokens start to end - 1, which llama.cpp reads, from row
        `first` of the text on: none in a batch before it.
        """
        self._divide_cached_keys()  # those of the batches before, if self-extend is on
        scored = np.arange(start, end) >= first
        self._decode(ids_L1, start, end, scored)
        self.past += end - start
        target_R = ids_L1[1:][start:end][scored]
        if not len(target_R):
            return np.zeros(0, np.float32), np.zeros(0, bool)
        logits_RV = np.ctypeslib.as_array(
            self.lib.llama_get_logits(self.context), (len(target_R), self.vocab_size)
        )
        target_logit_R = logits_RV[np.arange(len(target_R)), target_R]
        largest_R = logits_RV.max(axis=1)  # subtracted, so that no exponential overflows
        total_R = np.log(np.exp(logits_RV - largest_R[:, None]).sum(axis=1, dtype=np.float64))
        nll_R = (total_R + largest_R - target_logit_R).astype(np.float32)
        return nll_R, logits_RV.argmax(axis=1) == target_R

    def _decode(self, ids_L1: np.ndarray, start: int, end: int, scored: np.ndarray) -> None:
        """Run llama.cpp on tokens start to end - 1, with logits where `scored`."""
        lib = self.lib
        count = end - start
        batch = lib.llama_batch_init(count, 0, 1)  # token ids instead of vectors, one sequence
        values_of = {
            "token": ids_L1[start:end],
            "pos": self.past + np.arange(count),
            "n_seq_id": np.ones(count),  # each token is in one sequence, number 0
            "logits": scored,
        }
        try:
            batch.n_tokens = count
            for name, values in values_of.items():
                np.ctypeslib.as_array(getattr(batch, name), (count,))[:] = values
            for i in range(count):
                batch.seq_id[i][0] = 0
            code = lib.llama_decode(self.context, batch)
        finally:
            lib.llama_batch_free(batch)
        if code:
            raise RunError(
                f"llama.cpp stops at token {start} of a text ({code}): {_last_log_line()}"
            )

    def _divide_cached_keys(self) -> None:
        """Move the cached keys as self-extend does once a whole group window lies behind.

        The loop is that of llama.cpp's completion.cpp: the window's w positions, counted from the
        start of the text, become w / n by division. Other keys follow without a gap. `past` is the
        position of the next token; the keys below `grouped` are divided already."""
        n = self.flags["grp_attn_n"]
        w = self.flags["grp_attn_w"]
        lib = self.lib
        memory = lib.llama_get_memory(self.context)
        while n > 1 and self.past >= self.grouped + w:  # n = 1: no self-extend
            earlier_windows = (n * self.grouped) // w
            gone = (w // n) * (n - 1)  # positions that one division frees
            # Keys that are not divided yet go back to their places in the text.
            freed_before = earlier_windows * gone
            lib.llama_memory_seq_add(memory, 0, self.grouped, self.past, freed_before)
            # The window's are divided.
            start = self.grouped + freed_before
            end = start + w
            lib.llama_memory_seq_div(memory, 0, start, end, n)
            # Those behind the window follow it, from position grouped + w / n on.
            shift = -(freed_before + w - w // n)
            lib.llama_memory_seq_add(memory, 0, end, self.past + freed_before, shift)
            self.past -= gone
            self.grouped += w // n

    def stop(self) -> None:
        if self.context:
            self.lib.llama_free(self.context)
        if self.model:
            self.lib.llama_model_free(self.model)
        self.model = None
        self.context = None


_log: list[str] = []  # the latest lines of llama.cpp, of which an error shows the last


def _keep_log_line(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Keep llama.cpp's log out of the terminal."""
    _log.append(text.decode(errors="replace").strip())
    del _log[:-20]


def _last_log_line() -> str:
    return next((line for line in reversed(_log) if line.strip(".")), "it says no more")
