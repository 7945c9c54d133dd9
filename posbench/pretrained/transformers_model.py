"""A checkpoint as transformers builds it, from safetensors or GGUF alone: nothing of its folder is
executed. Torch-free until called.
"""

import contextlib
import importlib.util
import io
from typing import TYPE_CHECKING, Any

from posbench.common.errors import ConfigError, Undescribed, first_line
from posbench.gguf.header import is_gguf
from posbench.pretrained.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch
    from torch import nn


def load(checkpoint: Checkpoint, dtype: "torch.dtype") -> "nn.Module":
    """Model of transformers, to evaluate. Raises ConfigError where there is none."""
    model = load_or_reason(checkpoint, dtype)
    if isinstance(model, str):
        raise ConfigError(f"model.path={checkpoint.name} is built by transformers, and {model}.")
    return model


def load_or_reason(
    checkpoint: Checkpoint, dtype: "torch.dtype", **options: object
) -> "nn.Module | str":
    """Model of transformers, to evaluate; or the reason why there is none, as text.

    `options` are further ones of from_pretrained."""
    reason = _reason_not_to_try(checkpoint)
    if reason:
        return reason
    options |= {
        "dtype": dtype,
        "local_files_only": True,
        "trust_remote_code": False,
        "output_loading_info": True,
        **_format_options(checkpoint),
    }
    return _load_quietly(checkpoint, options)


def _reason_not_to_try(checkpoint: Checkpoint) -> str | None:
    """Reason why transformers is not tried, such as a package that is missing; None if it is."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'posbench[hf]'"
    if not is_gguf(checkpoint.folder_or_file):
        return None
    if importlib.util.find_spec("accelerate") is None:
        return (
            "transformers reads GGUF files only where accelerate is installed: pip install"
            " 'posbench[hf]'"
        )
    # A file of an architecture that is not described here has nothing that speaks against it.
    with contextlib.suppress(Undescribed):
        config = checkpoint.config()
        # transformers ignores rope.scaling.* in a GGUF file, and knows no SmolLM3 in one
        if config["rope_scaling"] or config["model_type"] == "smollm3":
            return "transformers does not read all of what this GGUF file says about RoPE"
    return None


def _format_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """{option of from_pretrained: value} for the format of the checkpoint's files."""
    import transformers

    if not is_gguf(checkpoint.folder_or_file):
        return {"use_safetensors": True}
    options: dict[str, Any] = {"gguf_file": checkpoint.folder_or_file.name}
    if hasattr(transformers, "GgufConfig"):  # later versions keep weights packed otherwise
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return options


def _load_quietly(checkpoint: Checkpoint, options: dict) -> "nn.Module | str":
    """Model, or the reason why it cannot be loaded. Progress bars and advice are hidden."""
    import transformers

    folder = checkpoint.folder_or_file
    if is_gguf(folder):  # the file's name is among the options
        folder = folder.parent
    logs = transformers.utils.logging
    verbosity_before = logs.get_verbosity()
    logs.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            model, loading_report = transformers.AutoModelForCausalLM.from_pretrained(
                folder, **options
            )
    except Exception as error:  # another library's errors, on another's files
        return f"transformers does not read it ({type(error).__name__}: {first_line(error)})"
    finally:
        logs.set_verbosity(verbosity_before)
    faulty_keys = loading_report["missing_keys"] or loading_report["mismatched_keys"]
    if faulty_keys:
        return (
            f"its files do not hold {min(faulty_keys)} as its configuration describes it, which"
            " transformers would draw at random"
        )
    return model.eval()
