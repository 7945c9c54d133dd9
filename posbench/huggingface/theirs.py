"""The model that transformers makes of a checkpoint, to compare with."""

from __future__ import annotations

import contextlib
import importlib.util
import io

import torch
from torch import nn

from posbench.common.gguf_file import is_gguf
from posbench.pretrained.checkpoint import Checkpoint


def theirs(checkpoint: Checkpoint, dtype: torch.dtype, **options: object) -> nn.Module | str:
    """Their model, to evaluate; or the reason why there is none. `options` are those of from_pretrained."""
    options |= {"dtype": dtype, "local_files_only": True}
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    if is_gguf(checkpoint.place):
        if importlib.util.find_spec("accelerate") is None:
            return "transformers reads GGUF files only where accelerate is installed"
        config = checkpoint.config()
        if config["rope_scaling"] or config["model_type"] == "smollm3":
            return "transformers does not read all of what this GGUF file says about RoPE"
        options["gguf_file"] = checkpoint.place.name
    import transformers

    folder = checkpoint.place.parent if is_gguf(checkpoint.place) else checkpoint.place
    logs = transformers.utils.logging
    before, told = logs.get_verbosity(), io.StringIO()  # progress bars and advice on packed weights are no news
    logs.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(told):
            return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    except Exception as error:  # another library's errors, on another's files
        return f"transformers does not read it ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
    finally:
        logs.set_verbosity(before)
