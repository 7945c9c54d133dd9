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
from typing import Annotated, Any, Literal

import numpy as np

from posbench.common.errors import ConfigError, RunError
from posbench.common.machine import cores
from posbench.engines.engine import Engine, ServedModel
from posbench.gguf.header import is_gguf
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.pretrained.import_config import describe

SCALINGS = {"none": 0, "linear": 1, "yarn": 2}
FLASH = {"auto": -1, "off": 0, "on": 1}
CACHES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7}
ROUNDING = ("threads", "path")  # arguments that change no loss but by rounding


class LlamaCpp(Engine):
    """A GGUF file in llama.cpp. Raises ConfigError for flags that contradict each other."""

    kind = "llama_cpp"

    def __init__(
        self,
        path: str,
        ctx_size: int | None = None,
        batch_size: int = 512,
        ubatch_size: int = 512,
        threads: int | None = None,
        flash_attn: Literal["auto", "on", "off"] = "auto",
        cache_type_k: Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"] = "f16",
        cache_type_v: Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"] = "f16",
        swa_full: bool = False,
        rope_scaling: Literal["none", "linear", "yarn"] | None = None,
        rope_scale: Annotated[float, float] | None = None,
        rope_freq_base: Annotated[float, float] | None = None,
        rope_freq_scale: Annotated[float, float] | None = None,
        yarn_orig_ctx: int | None = None,
        yarn_ext_factor: Annotated[float, float] | None = None,
        yarn_attn_factor: Annotated[float, float] | None = None,
        yarn_beta_slow: Annotated[float, float] | None = None,
        yarn_beta_fast: Annotated[float, float] | None = None,
        grp_attn_n: int = 1,
        grp_attn_w: int = 512,
    ):
        self.given = {
            key: value for key, value in locals().items() if key not in ("self", "__class__")
        }
        if rope_scale is not None and rope_freq_scale is not None:
            raise ConfigError(
                f"model.rope_scale={rope_scale:g} and rope_freq_scale={rope_freq_scale:g} are one"
                " setting, 1 / N: give one."
            )
        if rope_scale is not None and rope_scale <= 0:
            raise ConfigError(f"model.rope_scale={rope_scale:g} must be above 0.")
        if grp_attn_n < 1 or grp_attn_w % grp_attn_n:
            raise ConfigError(
                f"model.grp_attn_w={grp_attn_w} must be a multiple of"
                f" model.grp_attn_n={grp_attn_n}, which is at least 1."
            )
        self.model = self.context = self.length = None

    def served(self, cfg: dict) -> ServedModel:
        path = self.given["path"]
        if not path:
            raise ConfigError(
                "model=llama_cpp reads a GGUF file: add model.path=FILE.gguf to the command."
            )
        if importlib.util.find_spec("llama_cpp") is None:
            raise ConfigError(
                "model=llama_cpp needs llama-cpp-python, which is compiled in minutes: pip install"
                " 'posbench[llama_cpp]'"
            )
        found = find_checkpoint(path)
        if not is_gguf(found.place):
            raise ConfigError(
                f"model.path={path} is no GGUF file, which llama.cpp reads alone: give one, or"
                " choose model=hf."
            )
        model, _, said = describe(found)
        longest = said.pop("length")
        usual = LlamaCpp("").given
        settings = {
            key: value
            for key, value in self.given.items()
            if key not in ROUNDING and value != usual[key]
        }
        return ServedModel(
            **said,
            train_len=longest,
            tokenizer=found.tokenizer(),
            identity={"sha256": found.digest(cfg["cache_dir"])},
            settings=settings,
            model=model,
        )

    def start(self, cfg: dict) -> dict:
        import llama_cpp

        size, asked = self.given["ctx_size"], max(cfg["evaluate"]["lengths"])
        if size is not None and size < asked:
            raise ConfigError(
                f"model.ctx_size={size} is less than the {asked} tokens of evaluate.lengths: raise"
                " it, or leave it out."
            )
        self.lib = llama_cpp
        _keep.callback = llama_cpp.llama_log_callback(
            _keep
        )  # ctypes does not hold the function that it calls
        llama_cpp.llama_log_set(_keep.callback, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        place = find_checkpoint(self.given["path"], download=False).place
        self.model = llama_cpp.llama_model_load_from_file(
            str(place).encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise ConfigError(
                f"model.path={self.given['path']} is a file that this llama.cpp does not load:"
                f" {_last_line()}"
            )
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )
        return {
            "llama-cpp-python": importlib.metadata.version("llama-cpp-python"),
            "system": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def losses(self, ids_L1: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
        length = len(ids_L1) - 1
        self._open(length)
        size, first = self.given["batch_size"], length - n_rows
        found = [
            self._batch(ids_L1, start, min(start + size, length), first)
            for start in range(0, length, size)
        ]
        return tuple(map(np.concatenate, zip(*found, strict=True)))

    def _open(self, length: int) -> None:
        """An empty context that holds `length` tokens."""
        lib = self.lib
        if self.context and self.length == length:
            lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        else:
            if self.context:
                lib.llama_free(self.context)
                self.context = None
            self.context = lib.llama_init_from_model(self.model, self._parameters(length))
            if not self.context:
                raise RunError(f"llama.cpp makes no context of {length} tokens: {_last_line()}")
            self.length = length
        self.past, self.grouped = 0, 0

    def _parameters(self, length: int) -> Any:
        lib, given = self.lib, self.given
        made = lib.llama_context_default_params()
        made.n_ctx, made.n_batch, made.n_ubatch = (
            given["ctx_size"] or length,
            given["batch_size"],
            given["ubatch_size"],
        )
        made.flash_attn_type, made.swa_full, made.no_perf = (
            FLASH[given["flash_attn"]],
            given["swa_full"],
            True,
        )
        made.type_k, made.type_v = CACHES[given["cache_type_k"]], CACHES[given["cache_type_v"]]
        # llama.cpp's own four threads wait for each other where there are fewer cores.
        made.n_threads = made.n_threads_batch = given["threads"] or cores()
        if given["rope_scaling"]:
            made.rope_scaling_type = SCALINGS[given["rope_scaling"]]
        if given["rope_scale"]:
            made.rope_freq_scale = 1 / given["rope_scale"]
        flags = (
            "rope_freq_base",
            "rope_freq_scale",
            *(key for key in given if key.startswith("yarn_")),
        )
        for key in flags:
            if given[key] is not None:
                setattr(made, key, given[key])
        return made

    def _batch(
        self, ids_L1: np.ndarray, start: int, end: int, first: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read tokens start to end - 1. Losses of the targets of the rows from `first` on among
        them.
        """
        lib, count = self.lib, end - start
        self._extend_self()
        batch = lib.llama_batch_init(count, 0, 1)
        try:
            batch.n_tokens = count
            wanted = np.arange(start, end) >= first
            for field, values in (("token", ids_L1[start:end]), ("pos", self.past + np.arange(count)), ("n_seq_id", np.ones(count)),
                                  ("logits", wanted)):  # fmt: skip
                np.ctypeslib.as_array(getattr(batch, field), (count,))[:] = values
            for i in range(count):
                batch.seq_id[i][0] = 0
            if code := lib.llama_decode(self.context, batch):
                raise RunError(
                    f"llama.cpp stops at token {start} of a text ({code}): {_last_line()}"
                )
        finally:
            lib.llama_batch_free(batch)
        self.past += count
        target_R = ids_L1[1:][start:end][wanted]
        if not len(target_R):
            return np.zeros(0, np.float32), np.zeros(0, bool)
        logits_RV = np.ctypeslib.as_array(
            lib.llama_get_logits(self.context), (len(target_R), self.vocab_size)
        )
        largest_R = logits_RV.max(axis=1)
        at_R = logits_RV[np.arange(len(target_R)), target_R]
        total_R = np.log(np.exp(logits_RV - largest_R[:, None]).sum(axis=1, dtype=np.float64))
        return (total_R + largest_R - at_R).astype(np.float32), logits_RV.argmax(axis=1) == target_R

    def _extend_self(self) -> None:
        """Move the cached keys as self-extend does once a whole group window lies behind."""
        n, w, lib = self.given["grp_attn_n"], self.given["grp_attn_w"], self.lib
        memory = lib.llama_get_memory(self.context)
        while n > 1 and self.past >= self.grouped + w:
            block = (n * self.grouped) // w
            gone = (w // n) * (n - 1)
            shift = (w // n) - block * gone - w
            at = self.grouped + block * gone
            lib.llama_memory_seq_add(memory, 0, self.grouped, self.past, block * gone)
            lib.llama_memory_seq_div(memory, 0, at, at + w, n)
            lib.llama_memory_seq_add(memory, 0, at + w, self.past + block * gone, shift)
            self.past -= gone
            self.grouped += w // n

    def stop(self) -> None:
        if self.context:
            self.lib.llama_free(self.context)
        if self.model:
            self.lib.llama_model_free(self.model)
        self.model = self.context = None


_log: list[str] = []  # the latest lines of llama.cpp, of which an error shows the last


def _keep(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Keep llama.cpp's log out of the terminal."""
    _log.append(text.decode(errors="replace").strip())
    del _log[:-20]


def _last_line() -> str:
    return next((line for line in reversed(_log) if line.strip(".")), "it says no more")
