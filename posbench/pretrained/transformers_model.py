"""A checkpoint as transformers builds it, from safetensors or GGUF alone: nothing of its folder is
executed. Torch-free until called.
"""

import contextlib
import importlib.util
import io
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, Undescribed, first_line
from posbench.gguf.header import is_gguf
from posbench.pretrained.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch
    from torch import nn


def theirs(checkpoint: Checkpoint, dtype: "torch.dtype", **options: object) -> "nn.Module | str":
    """Their model, to evaluate; or the reason why there is none. `options` are those of
    from_pretrained.
    """
    options |= {
        "dtype": dtype,
        "local_files_only": True,
        "trust_remote_code": False,
        "output_loading_info": True,
    }
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'posbench[hf]'"
    if is_gguf(checkpoint.place):
        if importlib.util.find_spec("accelerate") is None:
            return (
                "transformers reads GGUF files only where accelerate is installed: pip install"
                " 'posbench[hf]'"
            )
        with contextlib.suppress(Undescribed):
            config = checkpoint.config()
            if config["rope_scaling"] or config["model_type"] == "smollm3":
                return "transformers does not read all of what this GGUF file says about RoPE"
        options["gguf_file"] = checkpoint.place.name
    else:
        options["use_safetensors"] = True
    import transformers

    if is_gguf(checkpoint.place) and hasattr(
        transformers, "GgufConfig"
    ):  # later versions keep weights packed otherwise
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)

    folder = checkpoint.place.parent if is_gguf(checkpoint.place) else checkpoint.place
    logs = transformers.utils.logging
    before, told = (
        logs.get_verbosity(),
        io.StringIO(),
    )  # progress bars and advice on packed weights are no news
    logs.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(told):
            model, found = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    except Exception as error:  # another library's errors, on another's files
        return f"transformers does not read it ({type(error).__name__}: {first_line(error)})"
    finally:
        logs.set_verbosity(before)
    if lacking := sorted(found["missing_keys"]) or sorted(found["mismatched_keys"]):
        return (
            f"its files do not hold {lacking[0]} as its configuration describes it, which"
            " transformers would draw at random"
        )
    return model.eval()


def loaded(checkpoint: Checkpoint, dtype: "torch.dtype") -> "nn.Module":
    """Their model, to evaluate. Raises ConfigError with the reason where there is none."""
    found = theirs(checkpoint, dtype)
    if isinstance(found, str):
        raise ConfigError(f"model.path={checkpoint.name} is built by transformers, and {found}.")
    return found
