"""Findings: parts of a setting that do nothing, contradict each other, or are read differently by different engines."""

import json
from collections.abc import Iterator
from dataclasses import replace

from posbench.common.errors import did_you_mean
from posbench.config.typed_args import shown
from posbench.explanation.changes import CONFIG_KEYS, Changes
from posbench.explanation.facts import FACTS, TYPES, Finding, finding, findings, of_family
from posbench.explanation.llama_cpp import SCALING, Gguf, ext_factor, scaling_factor, scaling_type
from posbench.explanation.settings import SGLANG, SLIDING, VLLM, LayerKind, Setting, flat, longest_of, nested, number, rope_words

LONG = ("yarn", "longrope", "llama3")  # types that count from original_max_position_embeddings
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor")


def config_findings(old: dict, new: dict, setting: Setting, own: Setting, changes: Changes) -> list[Finding]:
    """Faults and ambiguities of a config.json with its changes; `own` is the setting without them."""
    config = flat(new)
    found = [*_mappings(config, setting), *_overrides(flat(old), changes, setting), *_served(changes, config, setting)]
    told = {kind.name: [*_keys(kind), *_lengths(kind, config, own), *_by_type(kind, setting)] for kind in setting.turning}
    everywhere = [one for one in next(iter(told.values()), []) if all(one in each for each in told.values())]
    found += everywhere
    for name, each in told.items():
        found += [replace(one, text=f"{name}: {one.text}") for one in each if one not in everywhere]
    if config.get("sliding_window") and not any(kind.window for kind in setting.kinds):
        why = "use_sliding_window is not true" if "use_sliding_window" in config else f"no layer of {setting.family} is known to slide"
        found.append(finding("window_unused", window=config["sliding_window"], why=why, family=setting.family))
    return list(dict.fromkeys(found))


def _mappings(config: dict, setting: Setting) -> Iterator[Finding]:
    """Two mappings of RoPE, and mappings by kind of layer."""
    one, two = config.get("rope_scaling"), config.get("rope_parameters")
    if isinstance(one, dict) and one and isinstance(two, dict) and two and one != two:
        yield finding("both_mappings")
        yield finding("both_converted")
    for name, value in (("rope_scaling", one), ("rope_parameters", two)):
        if value is not None and not isinstance(value, dict):
            yield finding("no_mapping", name=name, value=shown(value))
    words, own_bases = rope_words(config), of_family(setting.family, "bases")
    apart, kinds = nested(words), {kind.name.partition(",")[0] for kind in setting.kinds}
    if own_bases and words and not apart and not config.get("rope_scaling"):
        short = setting.family.removesuffix("_text")
        yield finding("not_by_kind", keys=", ".join(words), family=setting.family, short=short)
    if not apart:
        return
    if unknown := [key for key in apart if key not in kinds]:
        yield finding("unknown_kind", unknown=", ".join(unknown), kinds=", ".join(sorted(kinds)))
    if missing := sorted(kind.name for kind in setting.turning if kind.name not in apart and not own_bases):
        yield finding("missing_kind", missing=", ".join(missing))
    if beside := [key for key in words if key not in (*apart, "truncate")]:
        yield finding("beside_kinds", keys=", ".join(beside))
    if any(isinstance(words[key], dict) and words[key].get("truncate") is False for key in apart):
        yield finding("truncate_by_kind")


def _overrides(old: dict, changes: Changes, setting: Setting) -> Iterator[Finding]:
    """Overrides of vLLM and SGLang that are lost or lose something."""
    given, had = changes.config, rope_words(old)
    new = given.get("rope_parameters") or given.get("rope_scaling")
    theta = had.get("rope_theta") or old.get("rope_theta")
    if changes.reader == VLLM:
        base = setting.turning[0].rope.base
        if isinstance(new, dict) and "rope_theta" not in new and not nested(new) and number(theta) and theta != base:
            yield finding("base_lost", theta=theta, base=base)
        if isinstance(given.get("rope_parameters"), dict) and "rope_type" not in new and not nested(new):
            yield finding("override_untyped")
        if isinstance(given.get("rope_scaling"), dict) and "rope_theta" not in new:
            yield finding("override_scaling")
    if changes.reader == SGLANG and isinstance(new, dict) and "rope_type" not in new and new.get("type", "default") != "default":
        yield finding("override_type", type=new["type"])
    if changes.reader in (VLLM, SGLANG):
        for key in ("rope_theta", "partial_rotary_factor"):
            if key in given and (key == "rope_theta" or (old.get(key) or had.get(key)) is not None):
                yield finding("override_alone", key=key)
    if isinstance(given.get("rope_parameters"), dict) and old.get("rope_scaling") and changes.reader not in (VLLM, SGLANG):
        yield finding("scaling_stays")
    if unknown := [key for key in given if key not in CONFIG_KEYS and key not in old]:
        yield finding("override_unknown", keys=", ".join(unknown), near=did_you_mean(unknown[0], CONFIG_KEYS))


def _served(changes: Changes, config: dict, setting: Setting) -> Iterator[Finding]:
    """A serving length beyond the one that the engine derives from config.json."""
    if not changes.served or setting.turning[0].rope.beside:
        return
    kind, sglang = setting.turning[0], changes.reader == SGLANG
    scaled = "original_max_position_embeddings" in kind.said if sglang else kind.rope.kind in LONG or setting.family.startswith("gemma3")
    reach = setting.longest * (1 if scaled or kind.rope.kind in ("default", "llama3") else kind.rope.factor)
    reach = max(reach, number(config.get("model_max_length"), 0))
    if changes.served > reach:
        engine, variable = ("sglang", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN") if sglang else ("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN")
        told = {"flag": "--context-length" if sglang else "--max-model-len", "reader": changes.reader, "where": f"{engine}_length"}
        then = "" if kind.rope.factor > 1 else f" {variable}=1 lets it start, and scales nothing."
        yield finding("served_beyond", **told, served=changes.served, reach=reach, then=then)


def _keys(kind: LayerKind) -> Iterator[Finding]:
    """Types that nobody knows, and keys that are unknown, of another type, or of the wrong kind."""
    said, read = kind.said, kind.rope.kind
    named, older = said["rope_type"], said.get("type")
    if older is not None and older != named and (older, named) != ("su", "longrope"):
        yield finding("two_types", named=named, older=older)
        yield finding("two_types_vllm")
    if named not in TYPES:
        yield finding("unknown_type", named=shown(named), near=did_you_mean(named, TYPES), read=read)
    used = (*FACTS["shared"], *TYPES[read], "original_max_position_embeddings")
    known = {*FACTS["shared"], *(key for keys in TYPES.values() for key in keys)}
    for key in said:
        if key in used or named not in TYPES and key in known:
            continue
        if key in FACTS["elsewhere"]:
            who, where = FACTS["elsewhere"][key]
            yield finding("elsewhere", key=key, who=who, where=where)
        elif key in known:
            yield finding("other_type", key=key, named=read, owners=", ".join(one for one, keys in TYPES.items() if key in keys))
        else:
            yield finding("unknown_key", key=key, near=did_you_mean(key, known))
    for key in FACTS["numbers"]:
        least = int(key == "rope_theta")
        if key in said and said[key] is not None and number(said[key], 0) <= least:
            yield finding("no_number", key=key, value=json.dumps(said[key]), least=least)
    if isinstance(said.get("factor"), int) and read == "linear":
        yield finding("whole_factor", factor=said["factor"])
    pairs = -(-kind.rope.turned // 2)
    for key in ("long_factor", "short_factor") if read == "longrope" else ():
        value = said.get(key)
        if not isinstance(value, list) or len(value) != pairs or not all(map(number, value)):
            yield finding("wrong_divisors", key=key, count=len(value) if isinstance(value, list) else "no", pairs=pairs)


def _lengths(kind: LayerKind, config: dict, own: Setting) -> Iterator[Finding]:
    """original_max_position_embeddings, factor and max_position_embeddings against each other."""
    said, rope = kind.said, kind.rope
    longest, trained = longest_of(config), own.trained
    if rope.kind in LONG:
        given, top = (number(one.get("original_max_position_embeddings")) for one in (said, config))
        inner = rope_words(config).get("original_max_position_embeddings")
        if top and number(inner) and inner != top:
            yield finding("original_twice", top=top, inner=inner)
        if given is None:
            multiplied = " That is multiplied already." if longest and longest > trained else ""
            yield finding("original_missing", original=rope.original, multiplied=multiplied)
            yield finding("original_missing_elsewhere", then="8,192" if rope.kind == "llama3" else "stops")
        elif given > trained:
            yield finding("original_multiplied", given=given, trained=trained)
        if given and longest and rope.kind != "llama3" and number(said.get("factor")):
            implied = longest / given
            if implied == 1:
                yield finding("length_before_scaling", longest=longest, wanted=given * said["factor"])
            elif abs(implied / said["factor"] - 1) > 1e-6:
                yield finding("factor_against_lengths", factor=said["factor"], implied=implied)
    if rope.kind == "llama3" and (missing := [key for key in LLAMA3 if number(said.get(key)) is None]):
        yield finding("llama3_lacks", missing=", ".join(missing))
    elif rope.kind in ("linear", "dynamic", "yarn") and number(said.get("factor")) is None:
        derived = rope.kind == "yarn" and said.get("factor", 0) is None
        yield finding("yarn_without_factor" if derived else "no_factor", factor=rope.factor)
    elif rope.kind in ("linear", "yarn", "llama3") and rope.factor <= 1:
        yield finding("small_factor", factor=rope.factor, word="changes nothing" if rope.factor == 1 else "makes pairs turn faster")
    outside, inside = config.get("rope_theta"), rope_words(config).get("rope_theta")
    if number(outside) and number(inside) and outside != inside:
        yield finding("base_twice", outside=outside, inside=inside)


def _by_type(kind: LayerKind, setting: Setting) -> list[Finding]:
    """Differences between engines on a setting that is right."""
    said, rope, scale = kind.said, kind.rope, [kind.said.get(key) for key in ("mscale", "mscale_all_dim")]
    facts = {
        rope.kind: True,
        f"type {said['rope_type']}": True,  # one of a setting that SGLang or vLLM reads as another
        "attention_factor": said.get("attention_factor") is not None,
        "some mscale": any(scale),
        "both mscale": all(scale),
        "not rounded": said.get("truncate") is False,
        "own betas": (rope.beta_fast, rope.beta_slow) != (32, 1),
        "sharper": rope.sharper != 1,
        "unscaled": of_family(setting.family, "unscaled", False),
    }
    return findings(
        "by_type", {fact for fact, holds in facts.items() if holds}, family=setting.family, whole=scale[1], sharper=rope.sharper
    )


def llama_findings(file: Gguf, setting: Setting, own: Setting, changes: Changes) -> list[Finding]:
    """Keys and flags of llama.cpp that do nothing or surprise."""
    flags, typed = changes.flags, set(changes.typed)
    return list(dict.fromkeys([*_file_findings(file), *_by_flag(file, flags, typed, setting), *_context(flags, setting, own)]))


def _file_findings(file: Gguf) -> Iterator[Finding]:
    kind, factor = file.keys.get(f"{SCALING}type", "linear"), file.keys.get(f"{SCALING}factor")
    if kind not in FACTS["gguf_types"]:
        yield finding("unknown_gguf_type", kind=shown(kind), near=did_you_mean(kind, FACTS["gguf_types"]))
    for key, readers in FACTS["gguf_read_by"].items():
        if key in file.keys and file.architecture not in readers:
            yield finding("unread_key", key=key, value=shown(file.keys[key]), readers=" and ".join(readers))
    if kind == "none" and number(factor, 1) != 1:
        yield finding("unused_factor", factor=factor)
    known = file.architecture in FACTS["gguf_sliding_every"] or "attention.sliding_window_pattern" in file.keys
    if "attention.sliding_window" in file.keys and not known:
        yield finding("unknown_windows", architecture=file.architecture)


def _by_flag(file: Gguf, flags: dict, typed: set[str], setting: Setting) -> list[Finding]:
    kind, factor, ext = scaling_type(file, flags), scaling_factor(file, flags), ext_factor(file, flags)
    facts = {
        kind: True,
        "mixed": bool(ext),
        f"factor {factor:g}": True,
        "turned by yarn": setting.turning[0].rope.kind == "yarn",
        "divisors": bool(file.divisors),
        "scaled": factor != 1 or bool(ext),
        "sliding": any(one.name.startswith(SLIDING) for one in setting.kinds),
        "base or factor": bool(typed & {"--rope-freq-base", "--rope-scale", "--rope-freq-scale"}),
        "self-extend": flags.get("group", 1) != 1,
    }
    whose = "asked for" if "scaling" in flags else "the file's type"
    return findings("by_flag", {*typed, *(fact for fact, holds in facts.items() if holds)}, whose=whose, architecture=file.architecture)


def _context(flags: dict, setting: Setting, own: Setting) -> Iterator[Finding]:
    rope, asked = setting.turning[0].rope, number(flags.get("ctx"))
    reach = max(own.longest, rope.original * rope.factor if rope.factor > 1 else 0)
    if asked and asked > reach:
        yield finding("context_beyond", asked=asked, reach=reach)
    if rope.kind == "yarn" and rope.original > own.trained:
        yield finding("original_beyond", original=rope.original, trained=own.trained)
