"""Findings: parts of a setting that do nothing, contradict each other, or are read differently by different engines.

transformers 5.23.0, vLLM 0.33.0, SGLang 0.5.23 and the llama.cpp of llama-cpp-python 0.3.36 (commit 0c1e570, with its converter).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from posbench.common.errors import did_you_mean
from posbench.config.typed_args import shown
from posbench.explanation.changes import CONFIG_KEYS, Changes
from posbench.explanation.frequencies import TYPES
from posbench.explanation.llama_cpp import FILE_TYPES, READ_BY, SCALING, SLIDING_EVERY, Gguf, ext_factor, scaling_factor, scaling_type
from posbench.explanation.settings import (
    FULL,
    LOCAL,
    SGLANG,
    SHARED,
    SLIDING,
    USED,
    VLLM,
    LayerKind,
    Setting,
    flat,
    longest_of,
    nested,
    number,
    rope_words,
)

HF_ROPE = "transformers 5.23: modeling_rope_utils.py"
VLLM_ROPE = "vLLM 0.33.0: layers/rotary_embedding/__init__.py"
VLLM_LENGTH = "vLLM 0.33.0: config/model.py"
SGL_ROPE = "SGLang 0.5.23: layers/rotary_embedding/factory.py"
SGL_CONFIG = "SGLang 0.5.23: utils/hf_transformers/config.py"
SGL_LENGTH = "SGLang 0.5.23: configs/model_config.py"
LLAMA = "llama.cpp of 0.3.36: src/llama-context.cpp"
LLAMA_MODEL = "llama.cpp of 0.3.36: src/llama-model.cpp"
CONVERTER = "llama.cpp of 0.3.36: conversion/base.py"
LONG = ("yarn", "longrope", "llama3")  # types that count from original_max_position_embeddings
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
# Families whose model file in SGLang never passes a scaling on.
PASSES_NONE = "baichuan dbrx gemma gemma2 granitemoe mixtral olmo persimmon phi stablelm starcoder2".split()
ELSEWHERE = {  # {key that transformers passes over: who reads it, and how}
    "attn_factor": (f"{SGL_ROPE}", "only SGLang reads it, as a multiple of YaRN's own amplitude"),
    "extrapolation_factor": (f"{SGL_ROPE}", "only SGLang and llama.cpp's converter read it"),
    "short_mscale": (VLLM_ROPE, "vLLM and SGLang read it for longrope"),
    "long_mscale": (VLLM_ROPE, "vLLM and SGLang read it for longrope"),
    "alpha": (VLLM_ROPE, "vLLM and SGLang read it, for dynamic alone: NTK with a fixed base"),
    "max_trained_positions": (VLLM_ROPE, "only vLLM reads it, for dynamic"),
}
NUMBERS = "factor original_max_position_embeddings rope_theta beta_fast beta_slow mscale mscale_all_dim attention_factor".split()
NUMBERS += "low_freq_factor high_freq_factor partial_rotary_factor".split()


@dataclass(frozen=True)
class Finding:
    """A sentence about a setting, and the version and file that it was read in."""

    text: str
    source: str
    stops: bool = False  # transformers raises an error


def config_findings(old: dict, new: dict, setting: Setting, own: Setting, changes: Changes) -> list[Finding]:
    """Faults and ambiguities of a config.json with its changes; `own` is the setting without them."""
    config = flat(new)
    found = [*_mappings(config, setting), *_overrides(flat(old), changes, setting), *_served(changes, config, setting)]
    told = {kind.name: [*_types(kind), *_keys(kind), *_lengths(kind, config, own), *_engines(kind, setting)] for kind in setting.turning}
    everywhere = [one for one in next(iter(told.values()), []) if all(one in each for each in told.values())]
    found += everywhere
    for name, each in told.items():
        found += [replace(one, text=f"{name}: {one.text}") for one in each if one not in everywhere]
    if config.get("sliding_window") and not any(kind.window for kind in setting.kinds):
        why = "use_sliding_window is not true" if "use_sliding_window" in config else f"no layer of {setting.family} is known to slide"
        found.append(
            Finding(f"sliding_window={config['sliding_window']} does nothing: {why}.", f"transformers 5.23: models/{setting.family}")
        )
    return list(dict.fromkeys(found))


def _mappings(config: dict, setting: Setting) -> Iterator[Finding]:
    """Two mappings of RoPE, and mappings by kind of layer."""
    one, two = config.get("rope_scaling"), config.get("rope_parameters")
    if isinstance(one, dict) and one and isinstance(two, dict) and two and one != two:
        yield Finding("rope_scaling and rope_parameters are both there: transformers reads rope_scaling and drops the other.", HF_ROPE)
        yield Finding("Of both, llama.cpp's converter reads rope_parameters.", CONVERTER)
    for name, value in (("rope_scaling", one), ("rope_parameters", two)):
        if value is not None and not isinstance(value, dict):
            yield Finding(f"{name}={shown(value)} is no mapping, and is read as none.", HF_ROPE)
    words = rope_words(config)
    apart, kinds = nested(words), {kind.name.partition(",")[0] for kind in setting.kinds}
    if setting.family in LOCAL and words and not apart and not config.get("rope_scaling"):
        keys = ", ".join(words)
        text = f"rope_parameters without kinds of layers ({keys}) does nothing in {setting.family}: write it below {FULL}."
        yield Finding(text, f"transformers 5.23: configuration_{setting.family.removesuffix('_text')}.py")
    if not apart:
        return
    if unknown := [key for key in apart if key not in kinds]:
        yield Finding(f"{', '.join(unknown)} names no kind of layer here ({', '.join(sorted(kinds))}), and does nothing.", HF_ROPE)
    if missing := sorted(kind.name for kind in setting.turning if kind.name not in apart and setting.family not in LOCAL):
        yield Finding(f"{', '.join(missing)} is missing in the mapping by kinds of layers: transformers stops.", HF_ROPE, True)
    if beside := [key for key in words if key not in (*apart, "truncate")]:
        text = f"{', '.join(beside)} beside kinds of layers does nothing, and vLLM drops it."
        yield Finding(text, HF_ROPE)
    if any(isinstance(words[key], dict) and words[key].get("truncate") is False for key in apart):
        text = "truncate=false below a kind of layer does nothing in transformers, which looks for it beside them; vLLM and SGLang read it."
        yield Finding(text, HF_ROPE)


def _overrides(old: dict, changes: Changes, setting: Setting) -> Iterator[Finding]:
    """Overrides of vLLM and SGLang that are lost or lose something."""
    given, had = changes.config, rope_words(old)
    new = given.get("rope_parameters") or given.get("rope_scaling")
    theta = had.get("rope_theta") or old.get("rope_theta")
    if changes.reader == VLLM:
        base = setting.turning[0].rope.base if setting.turning else theta
        if isinstance(new, dict) and "rope_theta" not in new and not nested(new) and number(theta) and theta != base:
            text = f"rope_parameters is replaced as a whole and lacks rope_theta: the base falls from {theta:,.10g} to {base:,.10g}."
            yield Finding(text, VLLM_LENGTH)
        if isinstance(given.get("rope_parameters"), dict) and "rope_type" not in new and not nested(new):
            yield Finding("An override without rope_type stops vLLM with a KeyError: type is translated in config.json alone.", VLLM_LENGTH)
        if isinstance(given.get("rope_scaling"), dict) and "rope_theta" not in new:
            text = (
                "rope_scaling as an override replaces rope_parameters and sets rope_theta to null, which stops vLLM: write rope_parameters"
            )
            yield Finding(f"{text} with rope_type and rope_theta.", "transformers 5.23: configuration_utils.py (rope_scaling)")
    if changes.reader == SGLANG and isinstance(new, dict) and "rope_type" not in new and new.get("type", "default") != "default":
        text = f"type={new['type']} does nothing: the override is merged into a mapping that has a rope_type, and that is read."
        yield Finding(text, SGL_CONFIG)
    if changes.reader in (VLLM, SGLANG):
        for key in ("rope_theta", "partial_rotary_factor"):
            if key in given and (key == "rope_theta" or (old.get(key) or had.get(key)) is not None):
                yield Finding(f"{key} as an override of its own does nothing: the mapping has one already; write it inside.", HF_ROPE)
    if isinstance(given.get("rope_parameters"), dict) and old.get("rope_scaling") and changes.reader not in (VLLM, SGLANG):
        yield Finding("config.json has rope_scaling, so the rope_parameters given do nothing: add rope_scaling=null.", HF_ROPE)
    if unknown := [key for key in given if key not in CONFIG_KEYS and key not in old]:
        near = did_you_mean(unknown[0], CONFIG_KEYS)
        yield Finding(f"{', '.join(unknown)} in the override is a key that nobody reads for positions{near}.", HF_ROPE)


def _served(changes: Changes, config: dict, setting: Setting) -> Iterator[Finding]:
    """A serving length beyond the one that the engine derives from config.json."""
    if not changes.served or not setting.turning or setting.turning[0].rope.beside:
        return
    kind, sglang = setting.turning[0], changes.reader == SGLANG
    scaled = (
        ("original_max_position_embeddings" in kind.said) if sglang else (kind.rope.kind in LONG or setting.family.startswith("gemma3"))
    )
    reach = setting.longest * (1 if scaled or kind.rope.kind in ("default", "llama3") else kind.rope.factor)
    reach = max(reach, number(config.get("model_max_length"), 0))
    if changes.served > reach:
        flag, variable = (
            ("--context-length", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
            if sglang
            else ("--max-model-len", "VLLM_ALLOW_LONG_MAX_MODEL_LEN")
        )
        text = (
            f"{flag} {changes.served:,.0f} is more than the {reach:,.0f} tokens that {changes.reader} derives from config.json: it stops."
        )
        then = "" if kind.rope.factor > 1 else f" {variable}=1 lets it start, and scales nothing."
        yield Finding(text + then, SGL_LENGTH if sglang else VLLM_LENGTH)


def _types(kind: LayerKind) -> Iterator[Finding]:
    """type and rope_type, and types that nobody knows."""
    said = kind.said
    named, older = said["rope_type"], said.get("type")
    if older is not None and older != named and (older, named) != ("su", "longrope"):
        yield Finding(f"rope_type={named} and type={older} contradict each other: transformers and SGLang take rope_type.", HF_ROPE)
        yield Finding("Of the two vLLM takes none and stops.", "vLLM 0.33.0: transformers_utils/config.py")
    if named not in TYPES:
        near = did_you_mean(named, TYPES)
        yield Finding(f"rope_type={shown(named)} is unknown{near}, and stops transformers; read here as {kind.rope.kind}.", HF_ROPE, True)


def _keys(kind: LayerKind) -> Iterator[Finding]:
    """Keys that are unknown, of another type, or of the wrong kind."""
    said, named = kind.said, kind.rope.kind
    used = (*SHARED, *USED[named], "original_max_position_embeddings")
    known = {*SHARED, *(key for keys in USED.values() for key in keys)}
    for key in said:
        if key in used or said["rope_type"] not in TYPES and key in known:
            continue
        if key in ELSEWHERE:
            source, who = ELSEWHERE[key]
            yield Finding(f"{key}: {who}; transformers passes over it.", source)
        elif key in known:
            yield Finding(f"{key} does nothing with rope_type={named}: it belongs to {_owners(key)}.", HF_ROPE)
        else:
            yield Finding(f"{key} is a key that no engine reads here{did_you_mean(key, known)}.", HF_ROPE)
    for key in NUMBERS:
        least = int(key == "rope_theta")
        if key in said and said[key] is not None and number(said[key], 0) <= least:
            text = f"{key}={json.dumps(said[key])} is not a number above {least}: engines fail or misread it, here it counts as missing."
            yield Finding(text, HF_ROPE, True)
    if isinstance(said.get("factor"), int) and named == "linear":
        yield Finding(
            f"factor={said['factor']} as a whole number stops vLLM: write {said['factor']}.0.", "vLLM 0.33.0: linear_scaling_rope.py"
        )
    pairs = -(-kind.rope.turned // 2)
    for key in ("long_factor", "short_factor") if named == "longrope" else ():
        value = said.get(key)
        if not isinstance(value, list) or len(value) != pairs or not all(map(number, value)):
            count = len(value) if isinstance(value, list) else "no"
            yield Finding(f"{key} has {count} divisors, and {pairs} pairs turn: engines fail; read here as 1 for each.", HF_ROPE, True)


def _owners(key: str) -> str:
    return ", ".join(kind for kind, keys in USED.items() if key in keys)


def _lengths(kind: LayerKind, config: dict, own: Setting) -> Iterator[Finding]:
    """original_max_position_embeddings, factor and max_position_embeddings against each other."""
    said, rope = kind.said, kind.rope
    longest, trained = longest_of(config), own.trained
    if rope.kind in LONG:
        given, top = (number(one.get("original_max_position_embeddings")) for one in (said, config))
        inner = rope_words(config).get("original_max_position_embeddings")
        if top and number(inner) and inner != top:
            text = f"original_max_position_embeddings is {top:,} beside the mapping and {inner:,} in it: transformers takes the first."
            yield Finding(text, HF_ROPE)
        if given is None:
            multiplied = " That is multiplied already." if longest and longest > trained else ""
            text = f"original_max_position_embeddings is missing: transformers counts from max_position_embeddings={rope.original:,}."
            yield Finding(text + multiplied, HF_ROPE)
            text = "Without that key vLLM stops if the mapping is an override, SGLang takes max_position_embeddings"
            yield Finding(f"{text}, llama.cpp's converter {'8,192' if rope.kind == 'llama3' else 'stops'}.", VLLM_ROPE)
        elif given > trained:
            text = f"original_max_position_embeddings={given:,} is more than the {trained:,} tokens of the checkpoint"
            yield Finding(f"{text}: it is meant to be the length before scaling, not after.", HF_ROPE)
        if given and longest and rope.kind != "llama3" and number(said.get("factor")):
            implied = longest / given
            if implied == 1:
                text = f"max_position_embeddings={longest:,} is the length before scaling: vLLM and SGLang serve no more,"
                yield Finding(f"{text} and stop if asked for more: set {given * said['factor']:,.0f}.", VLLM_LENGTH)
            elif abs(implied / said["factor"] - 1) > 1e-6:
                text = f"factor={said['factor']:g}, but max_position_embeddings / original_max_position_embeddings is {implied:g}"
                yield Finding(f"{text}: engines compute with the factor.", HF_ROPE)
    if rope.kind == "llama3" and (missing := [key for key in LLAMA3[:3] if number(said.get(key)) is None]):
        text = f"llama3 lacks {', '.join(missing)}: transformers and vLLM stop"
        yield Finding(f"{text}, SGLang takes factor 1 and 1 and 4, llama.cpp's converter 8, 1 and 4.", f"{HF_ROPE}; {SGL_ROPE}", True)
    elif rope.kind in ("linear", "dynamic", "yarn") and number(said.get("factor")) is None:
        then = (
            f"YaRN then takes {rope.factor:g}"
            if rope.kind == "yarn" and said.get("factor", 0) is None
            else "transformers and vLLM stop, SGLang takes 1"
        )
        yield Finding(f"factor is missing: {then}.", f"{HF_ROPE}; {SGL_ROPE}", not then.startswith("YaRN"))
    elif rope.kind in ("linear", "yarn", "llama3") and rope.factor <= 1:
        word = "changes nothing" if rope.factor == 1 else "makes pairs turn faster"
        yield Finding(f"factor={rope.factor:g} {word}: it divides positions, and is above 1 for longer texts.", HF_ROPE)
    outside, inside = config.get("rope_theta"), (rope_words(config) or {}).get("rope_theta")
    if number(outside) and number(inside) and outside != inside:
        yield Finding(f"rope_theta is {outside:,} beside the mapping and {inside:,} in it: the one in the mapping is read.", HF_ROPE)


def _engines(kind: LayerKind, setting: Setting) -> Iterator[Finding]:
    """Differences between engines on a setting that is right."""
    said, named = kind.said, kind.rope.kind
    if said["rope_type"] == "dynamic":
        text = "dynamic follows the longest text so far: keys in a cache keep the base that they were made with."
        yield Finding(text, HF_ROPE)
        yield Finding("vLLM leaves the base as it is without the key max_trained_positions: dynamic does nothing there.", VLLM_ROPE)
        yield Finding(
            "SGLang computes one base for all lengths, as if every text had factor times max_position_embeddings tokens.", SGL_ROPE
        )
        yield Finding("llama.cpp's converter writes nothing for dynamic.", CONVERTER)
    if named == "yarn":
        amplitude, scale = said.get("attention_factor"), [said.get(key) for key in ("mscale", "mscale_all_dim")]
        if amplitude is not None and any(scale):
            yield Finding(
                "attention_factor and mscale are both there: transformers and vLLM take attention_factor, SGLang mscale.", HF_ROPE
            )
        elif amplitude is not None:
            yield Finding("SGLang reads no attention_factor and computes YaRN's own.", SGL_ROPE)
        if amplitude is not None:
            text = "llama.cpp's converter stores attention_factor as yarn_attn_factor, which llama.cpp reads for grok alone and overwrites."
            yield Finding(text, LLAMA)
        if any(scale):
            if not all(scale):
                yield Finding("mscale counts only together with mscale_all_dim, and neither may be 0: it does nothing.", HF_ROPE)
            yield Finding("llama.cpp's converter drops mscale, except in families of its own.", CONVERTER)
        if said.get("truncate") is False:
            yield Finding("llama.cpp rounds YaRN's bounds whatever truncate says.", "llama.cpp of 0.3.36: ggml/src/ggml.c")
        if (kind.rope.beta_fast, kind.rope.beta_slow) != (32, 1):
            yield Finding("llama.cpp reads betas of a file for grok and mistral3 alone: use its flags.", "llama.cpp of 0.3.36: src/models")
    if named == "longrope":
        text = "transformers takes the long divisors beyond the original length, for all positions: keys in a cache keep the short ones."
        yield Finding(text, HF_ROPE)
        yield Finding(
            "vLLM takes the long divisors for every text once it serves more than the original length.",
            "vLLM 0.33.0: phi3_long_rope_scaled_rope.py",
        )
        yield Finding("llama.cpp takes them for every text once the context (-c) is longer.", LLAMA_MODEL)
    if kind.rope.sharper != 1:
        text = f"mscale_all_dim={said['mscale_all_dim']} also multiplies all logits by {kind.rope.sharper:.4g} in latent attention."
        yield Finding(text, "transformers 5.23: modeling_deepseek_v3.py (yarn_apply_mscale)")
    if named == "proportional":
        yield Finding("llama.cpp's converter does not know proportional and writes nothing.", CONVERTER)
    if setting.family in PASSES_NONE and named != "default":
        yield Finding(
            f"SGLang's model file of {setting.family} never passes a scaling on: it does nothing there.",
            f"SGLang 0.5.23: models/{setting.family}.py",
        )


def llama_findings(file: Gguf, setting: Setting, own: Setting, changes: Changes) -> list[Finding]:
    """Keys and flags of llama.cpp that do nothing or surprise."""
    flags, typed = changes.flags, set(changes.typed)
    return list(dict.fromkeys([*_file_findings(file), *_flag_findings(file, flags, typed, setting), *_context(flags, setting, own)]))


def _file_findings(file: Gguf) -> Iterator[Finding]:
    kind = file.keys.get(f"{SCALING}type", "linear")
    if kind not in FILE_TYPES:
        yield Finding(
            f"rope.scaling.type={shown(kind)}{did_you_mean(kind, FILE_TYPES)} is unknown, and llama.cpp refuses the file.", LLAMA_MODEL
        )
    for key, readers in READ_BY.items():
        if key in file.keys and file.architecture not in readers:
            said = f"{key}={shown(file.keys[key])}"
            yield Finding(
                f"{said} does nothing: llama.cpp reads it in files of {' and '.join(readers)} alone.", "llama.cpp of 0.3.36: src/models"
            )
    if kind == "none" and number(file.keys.get(f"{SCALING}factor"), 1) != 1:
        yield Finding(f"rope.scaling.factor={file.keys[f'{SCALING}factor']} does nothing: the file's type is none.", LLAMA)
    if (
        "attention.sliding_window" in file.keys
        and file.architecture not in SLIDING_EVERY
        and "attention.sliding_window_pattern" not in file.keys
    ):
        text = (
            f"attention.sliding_window is there, but llama.cpp has no pattern of sliding layers for {file.architecture} that explain knows."
        )
        yield Finding(text, "llama.cpp of 0.3.36: src/models")


def _flag_findings(file: Gguf, flags: dict, typed: set[str], setting: Setting) -> Iterator[Finding]:
    kind, factor, ext = scaling_type(file, flags), scaling_factor(file, flags), ext_factor(file, flags)
    for flag in sorted(typed & {"--rope-scale", "--rope-freq-scale"} if kind == "none" else ()):
        whose = "asked for" if "scaling" in flags else "the file's type"
        yield Finding(f"{flag} does nothing: scaling none is {whose}; add --rope-scaling linear or yarn.", LLAMA)
    if {"--rope-scale", "--rope-freq-scale"} <= typed:
        yield Finding("--rope-scale and --rope-freq-scale set one value: the last one counts.", "llama.cpp of 0.3.36: common/arg.cpp")
    if kind == "yarn" and factor == 1 and setting.turning[0].rope.kind == "yarn":
        yield Finding("YaRN with factor 1 changes nothing: add --rope-scale N.", LLAMA)
    if not ext:
        for flag in sorted(typed & {"--yarn-orig-ctx", "--yarn-beta-slow", "--yarn-beta-fast"}):
            yield Finding(f"{flag} does nothing without YaRN: add --rope-scaling yarn.", LLAMA)
        if "--yarn-attn-factor" in typed:
            yield Finding("--yarn-attn-factor multiplies cos and sin also without YaRN.", LLAMA)
    elif "--yarn-attn-factor" in typed:
        text = "--yarn-attn-factor does nothing: with YaRN it is overwritten by YaRN's own"
        yield Finding(f"{text}; --override-kv {file.architecture}.{SCALING}attn_factor=float:N multiplies that.", LLAMA)
    if ext and kind == "linear":
        yield Finding("--yarn-ext-factor above 0 turns YaRN on, though the type is linear.", LLAMA)
    if file.divisors and (factor != 1 or ext) and kind != "none":
        text = "rope_freqs.weight of the file (Llama 3.1's scaling) stays: pairs are divided by both."
        yield Finding(text, "llama.cpp of 0.3.36: ggml/src/ggml-cpu/ops.cpp")
    sliding = [one for one in setting.kinds if one.name.startswith(SLIDING)]
    if sliding and typed & {"--rope-freq-base", "--rope-scale", "--rope-freq-scale"}:
        yield Finding("Base and factor of flags do not reach sliding layers, which keep the file's.", LLAMA_MODEL)
    if flags.get("group", 1) != 1:
        text = "Self-extend (--grp-attn-n) is in llama-completion and the passkey example alone: llama-server does not know it."
        yield Finding(f"{text} It moves positions, which is not shown here.", "llama.cpp of 0.3.36: common/arg.cpp")


def _context(flags: dict, setting: Setting, own: Setting) -> Iterator[Finding]:
    rope, asked = setting.turning[0].rope, number(flags.get("ctx"))
    reach = max(own.longest, rope.original * rope.factor if rope.factor > 1 else 0)
    if asked and asked > reach:
        yield Finding(f"-c {asked:,.0f} is beyond the {reach:,.0f} tokens that this covers: a longer context alone scales nothing.", LLAMA)
    if rope.kind == "yarn" and rope.original > own.trained:
        text = (
            f"--yarn-orig-ctx {rope.original:,.0f} is more than the {own.trained:,.0f} tokens of the file: it is the length before scaling."
        )
        yield Finding(text, LLAMA)
