"""Serving engines, the rope types they support, and their options. Data in one place; torch-free except for `settings`.

Sources, read in November 2026: transformers `modeling_rope_utils.py`; vLLM `model_executor/layers/rotary_embedding` and its page on
context extension (--hf-overrides with rope_parameters); SGLang `srt/layers/rotary_embedding/factory.py` and its server arguments;
llama.cpp's options (--rope-scaling none|linear|yarn) and PR 2268 (YaRN). What the engines do otherwise than transformers:

- dynamic: transformers follows the length of the text, but keeps the base of the longest one until a short text comes, and keys in the
  cache keep the base they were made with (transformers issue 25104); vLLM and SGLang compute one base for all lengths (vLLM issue 3488).
- default, llama3: vLLM serves max_position_embeddings tokens at most, which its words raise; of other types it multiplies them by factor.
- yarn: vLLM and SGLang read no attention_factor but compute YaRN's own, which is what the extension has with temperature=true.
- longrope: vLLM and SGLang read no attention_factor, and take the long divisors for every text once the longest that is served is beyond
  the training length.
- Phi-3: transformers refuses it any type but default and longrope, so that all else is written as divisors.
- llama3, longrope: llama.cpp reads them from the file alone, into which its converter writes them from config.json.
"""

import json
import math
import shlex

from posbench.common.errors import ConfigError
from posbench.config.schema import JobConfig

ENGINES = ("transformers", "vLLM", "SGLang", "llama.cpp")
ONE_BASE = "it computes one base for all lengths (vLLM issue 3488)"
ITS_OWN = "it reads no attention_factor and computes YaRN's own"
ALL_LONG = "it takes the long divisors for every text, and reads no attention_factor"
# {rope type: {engine that cannot express it: why}}
LACKING = {
    "default": {},
    "linear": {},
    "yarn": {},
    "llama3": {},
    "longrope": {"vLLM": ALL_LONG, "SGLang": ALL_LONG, "llama.cpp": "its options have no such type"},
    "dynamic": {"vLLM": ONE_BASE, "SGLang": ONE_BASE, "llama.cpp": "its options have no such type"},
    "proportional": dict.fromkeys(ENGINES[1:], "it has no such type"),
}
OTHER_TEMPERATURE = {"vLLM": ITS_OWN, "SGLang": ITS_OWN, "llama.cpp": "its options compute YaRN's own temperature"}
CACHED = "; keys in the cache keep the base they were made with (transformers issue 25104)"


def settings(trained: JobConfig, extension: dict, own: dict | None = None) -> dict:
    """Settings with which a checkpoint runs with an extension: keys of config.json, and of each engine the words that set them.

    `own` is the checkpoint's config.json, None for a GGUF file. rope_parameters is what transformers 5 reads, rope_theta and rope_scaling
    what earlier versions read. Raises ConfigError where no set of frequencies expresses it.
    """
    from posbench.huggingface.rope_keys import rope_keys

    kept, share = rope_keys(trained, extension, own), trained.encoding.get("fraction", 1.0)
    part = {"partial_rotary_factor": share} if share != 1 else {}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": kept["rope_theta"], **part, **(kept["rope_scaling"] or {})}, **kept}


def engines(found: dict, target: int) -> dict[str, dict]:
    """{engine: {"serves": whether it expresses these `settings`, "words": what to type or to set, or why it cannot}}."""
    own = found["rope_parameters"]
    kind = own["rope_type"]
    usual = math.isclose(own.get("attention_factor", 1.0), 0.1 * math.log(own.get("factor", 1.0)) + 1)
    lacking = LACKING[kind] if kind != "yarn" or usual else OTHER_TEMPERATURE
    theirs = {"rope_theta": found["rope_theta"], "rope_scaling": found["rope_scaling"], "max_position_embeddings": target}
    longer = {"max_position_embeddings": target} if kind in ("default", "llama3") else {}
    words = {
        "transformers": f"rope_parameters in config.json (rope_theta and rope_scaling before version 5){CACHED * (kind == 'dynamic')}",
        "vLLM": f"--hf-overrides {_word({'rope_parameters': own, **longer})} --max-model-len {target}",
        "SGLang": f"--json-model-override-args {_word(theirs)} --context-length {target}",
        "llama.cpp": _llama_cpp(found, target),
    }
    return {engine: {"serves": engine not in lacking, "words": lacking.get(engine, words[engine])} for engine in ENGINES}


def _llama_cpp(found: dict, target: int) -> str:
    own, theta = found["rope_parameters"], found["rope_theta"]
    kind = own["rope_type"]
    if kind == "llama3":
        return "convert the checkpoint with this config.json: its options have no such type"
    words = {"default": "--rope-scaling none"}.get(kind, f"--rope-scaling {kind} --rope-scale {own.get('factor', 1):g}")
    if kind == "yarn":
        words += f" --yarn-orig-ctx {own['original_max_position_embeddings']:g}"
        words += f" --yarn-beta-slow {own['beta_slow']:g} --yarn-beta-fast {own['beta_fast']:g}"
    return f"{words} --rope-freq-base {theta:.10g} -c {target}"


def _word(value: dict) -> str:
    return shlex.quote(json.dumps(value))


def config_json(own: dict | None, trained: JobConfig, extension: dict) -> dict:
    """config.json of a checkpoint that runs with an extension: its `own` with other keys of RoPE, or a new one for a GGUF file.

    Raises ConfigError as `settings` does, and for a config.json that keeps RoPE for several kinds of layers apart.
    """
    found = settings(trained, extension, own)
    if own is None:
        from posbench.huggingface.export import hf_config
        from posbench.huggingface.kept_files import source, special_ids

        checkpoint, file = trained.model.checkpoint, source(trained)
        sizes = {"vocab_size": checkpoint["vocab_size"], "intermediate_size": trained.model.d_ff, "bos_token_id": checkpoint["bos"]}
        ids = special_ids(file) if file else {}
        return {**hf_config(trained, extension), **sizes, **ids, "rope_parameters": found["rope_parameters"]}
    if any(isinstance(value, dict) for value in (own.get("rope_parameters") or {}).values()):
        raise ConfigError("config.json has separate RoPE settings for several kinds of layers: edit it by hand.")
    said = found["rope_parameters"]
    # Beside RoPE's keys transformers gives these two priority, or reads them with rope_scaling: Phi-3 keeps them there.
    beside = {key: said[key] for key in ("original_max_position_embeddings", "partial_rotary_factor") if key in said}
    return {**own, **found, **beside}
