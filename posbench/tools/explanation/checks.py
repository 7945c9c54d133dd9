"""Findings: parts of a setting that do nothing, contradict each other, or are read differently by
different engines.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

from posbench.common.errors import did_you_mean
from posbench.config.typed_args import shown
from posbench.tools.explanation.apply_changes import INSIDE, override_of
from posbench.tools.explanation.changes import CONFIG_KEYS, Changes
from posbench.tools.explanation.config_json import (
    flat,
    longest_of,
    nested,
    number,
    rope_words,
    text_path,
)
from posbench.tools.explanation.facts import (
    FACTS,
    SGLANG,
    TYPES,
    VLLM,
    Finding,
    by_rules,
    finding,
    of_family,
    told,
)
from posbench.tools.explanation.length_checks import base_findings, served_findings, unneeded
from posbench.tools.explanation.llama_cpp import (
    SCALING,
    Gguf,
    ext_factor,
    scaling_factor,
    scaling_type,
)
from posbench.tools.explanation.position_keys import position_findings, position_keys
from posbench.tools.explanation.reach import reach_of
from posbench.tools.explanation.read_rope import LONG
from posbench.tools.explanation.settings import SLIDING, LayerKind, Setting

LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor")


def config_findings(
    old: dict, new: dict, setting: Setting, own: Setting, changes: Changes
) -> list[Finding]:
    """Faults and ambiguities of a config.json with its changes; `own` is the setting without
    them.
    """
    config = flat(new)
    found = [
        *_mappings(config, setting),
        *_overrides(old, changes, setting),
        *served_findings(changes, config, setting, own),
        *base_findings(setting, own),
    ]
    of_kinds = {
        kind.name: [
            *_keys(kind, setting.family),
            *_lengths(kind, config, own, changes.older),
            *_by_type(kind, setting),
        ]
        for kind in setting.turning
    }
    everywhere = [
        one
        for one in next(iter(of_kinds.values()))
        if all(one in each for each in of_kinds.values())
    ]
    found += [*everywhere, *position_findings(position_keys(new))]
    for name, each in of_kinds.items():
        found += [replace(one, text=f"{name}: {one.text}") for one in each if one not in everywhere]
    if config.get("sliding_window") and not any(kind.window for kind in setting.kinds):
        why = (
            "use_sliding_window is not true"
            if "use_sliding_window" in config
            else f"no layer of {setting.family} is known to slide"
        )
        found.append(
            finding(
                "window_unused", window=config["sliding_window"], why=why, family=setting.family
            )
        )
    return list(dict.fromkeys(found))


def _mappings(config: dict, setting: Setting) -> list[Finding]:
    """Two mappings of RoPE, and mappings by kind of layer."""
    given = {name: config.get(name) for name in ("rope_scaling", "rope_parameters")}
    one, two = (value if isinstance(value, dict) else None for value in given.values())
    words, own_bases = rope_words(config), of_family(setting.family, "bases")
    apart, kinds = nested(words), {kind.name.partition(",")[0] for kind in setting.kinds}
    read = "rope_scaling" if given["rope_scaling"] else "rope_parameters"
    holds = {
        "both_mappings": one and two and one != two,
        "both_converted": one and two and one != two,
        "no_mapping": (
            [] if isinstance(given[read], dict | None) else [f"{read}={shown(given[read])}"]
        ),
        "not_by_kind": words if own_bases and not apart and not config.get("rope_scaling") else (),
        "only_ratio": setting.family in FACTS["by_ratio"] and (words or config.get("rope_theta")),
        "unknown_kind": [key for key in apart if key not in kinds],
        "missing_kind": sorted(
            kind.name
            for kind in setting.turning
            if apart and kind.name not in apart and not own_bases
        ),
        "beside_kinds": [key for key in words if apart and key not in (*apart, "truncate")],
        "truncate_by_kind": any(
            isinstance(words[key], dict) and words[key].get("truncate") is False for key in apart
        ),
    }
    return told(
        holds,
        kinds=", ".join(sorted(kinds)),
        family=setting.family,
        short=setting.family.removesuffix("_text"),
    )


def _overrides(description: dict, changes: Changes, setting: Setting) -> list[Finding]:
    """Overrides of vLLM and SGLang that are lost or lose something."""
    old, override = flat(description), override_of(description, changes)
    given, had, path = override.read, rope_words(old), text_path(description)
    parameters, scaling = (
        isinstance(given.get(name), dict) for name in ("rope_parameters", "rope_scaling")
    )
    new = given.get("rope_parameters") or given.get("rope_scaling")
    new, whole = (
        (new, not nested(new))
        if isinstance(new, dict)
        else ({"rope_theta": None, "rope_type": None}, False)
    )
    theta, base = had.get("rope_theta") or old.get("rope_theta"), setting.turning[0].rope.base
    vllm, sglang = changes.reader == VLLM, changes.reader == SGLANG
    served = vllm or sglang
    replaces = served and whole and not override.merges and not changes.older
    alone = [key for key in INSIDE if key in given and served and not changes.older]
    unknown = [key for key in given if key not in CONFIG_KEYS and key not in old]
    holds = {
        "base_lost": replaces and "rope_theta" not in new and number(theta) and theta != base,
        "override_untyped": vllm and replaces and parameters and "rope_type" not in new,
        "override_scaling": vllm and replaces and scaling and "rope_theta" not in new,
        "mapping_drops": [
            key for key in FACTS["kept"] if replaces and key in had and key not in new
        ],
        "override_type": (
            sglang
            and override.merges
            and "rope_type" not in new
            and new.get("type", "default") != "default"
        ),
        "override_alone": [
            key
            for key in alone
            if key == "rope_theta" or (old.get(key) or had.get(key)) is not None
        ],
        "override_beside": override.lost if path else [],
        "override_no_part": override.lost if not path else [],
        "scaling_stays": parameters and old.get("rope_scaling") and not served,
        "override_unknown": unknown,
        "older_flag": changes.older,
    }
    values = {
        "theta": theta,
        "base": base,
        "type": new.get("type"),
        "reader": changes.reader,
        "part": ".".join(path),
    }
    near = did_you_mean(unknown[0], CONFIG_KEYS) if unknown else ""
    flag = "--rope-scaling" if "rope_scaling" in changes.config else "--rope-theta"
    return told(
        holds, **values, near=near, flag=flag, where="vllm_length" if vllm else "sglang_config"
    )


def _keys(kind: LayerKind, family: str) -> Iterator[Finding]:
    """Types that nobody knows, and keys that are unknown, of another type, or of the wrong kind."""
    said, read = kind.said, kind.rope.kind
    named, older = said["rope_type"], said.get("type")
    if older is not None and older != named and (older, named) != ("su", "longrope"):
        yield finding("two_types", named=named, older=older)
        yield finding("two_types_vllm")
    if named not in TYPES:
        yield finding(
            "unknown_type", named=shown(named), near=did_you_mean(named, TYPES), read=read
        )
    types = of_family(family, "types")
    if types and named in TYPES and read not in types:
        yield finding("refused_type", named=named, family=family, types=" and ".join(types))
    used = (*FACTS["shared"], *TYPES[read], "original_max_position_embeddings")
    known = {*FACTS["shared"], *(key for keys in TYPES.values() for key in keys)}
    for key in said:
        if key in used or named not in TYPES and key in known:
            continue
        if key in FACTS["elsewhere"]:
            who, where = FACTS["elsewhere"][key]
            yield finding("elsewhere", key=key, who=who, where=where)
        elif key in known:
            yield finding(
                "other_type",
                key=key,
                named=read,
                owners=", ".join(one for one, keys in TYPES.items() if key in keys),
            )
        else:
            yield finding("unknown_key", key=key, near=did_you_mean(key, known))
    for key in FACTS["numbers"]:
        least = int(key == "rope_theta")
        if key in said and said[key] is not None and number(said[key], 0) <= least:
            yield finding("no_number", key=key, value=json.dumps(said[key]), least=least)
    if isinstance(said.get("factor"), int) and number(said["factor"]) and read == "linear":
        yield finding("whole_factor", factor=said["factor"])
    pairs, channels = -(-kind.rope.turned // 2), kind.rope.head_dim
    if channels > 4 and channels % 2 and channels == kind.rope.turned:
        yield finding("odd_head", channels=channels)
    for key in ("long_factor", "short_factor") if read == "longrope" else ():
        value = said.get(key)
        if not isinstance(value, list) or len(value) != pairs or not all(map(number, value)):
            yield finding(
                "wrong_divisors",
                key=key,
                count=len(value) if isinstance(value, list) else "no",
                pairs=pairs,
            )


def _lengths(kind: LayerKind, config: dict, own: Setting, older: bool) -> list[Finding]:
    """original_max_position_embeddings, factor and max_position_embeddings against each other."""
    said, rope, long = kind.said, kind.rope, kind.rope.kind in LONG
    words, longest, factor = rope_words(config), longest_of(config), number(said.get("factor"))
    given, top = (
        number(one.get("original_max_position_embeddings")) if long else None
        for one in (said, config)
    )
    inner, outside, inside = (
        words.get("original_max_position_embeddings"),
        config.get("rope_theta"),
        words.get("rope_theta"),
    )
    implied = longest / given if given and longest and rope.kind != "llama3" and factor else 0
    lacking = rope.kind in ("linear", "dynamic", "yarn") and said.get("factor") is None
    missing = long and said.get("original_max_position_embeddings") is None
    derived = rope.kind == "yarn" and said.get("factor", 0) is None
    holds = {
        "original_twice": top and number(inner) and inner != top,
        "original_missing": missing,
        "original_missing_elsewhere": missing,
        "original_multiplied": given and given > own.trained,
        "length_before_scaling": implied == 1 and not older,
        "factor_against_lengths": implied not in (0, 1) and abs(implied / factor - 1) > 1e-6,
        "llama3_lacks": [key for key in LLAMA3 if rope.kind == "llama3" and said.get(key) is None],
        "yarn_without_factor": lacking and derived,
        "no_factor": lacking and not derived,
        "small_factor": (
            rope.kind in ("linear", "yarn", "llama3") and factor is not None and rope.factor <= 1
        ),
        "base_twice": number(outside) and number(inside) and outside != inside,
    }
    values = {
        "top": top,
        "inner": inner,
        "original": rope.original,
        "given": given,
        "trained": own.trained,
        "implied": implied,
    }
    values |= {
        "multiplied": " That is multiplied already." if longest and longest > own.trained else "",
        "longest": longest,
    }
    values |= {
        "then": "8,192" if rope.kind == "llama3" else "stops",
        "wanted": (given or 0) * (factor or 0),
        "factor": rope.factor,
    }
    word = "changes nothing" if rope.factor == 1 else "makes pairs turn faster"
    return told(holds, **values, word=word, outside=outside, inside=inside)


def _by_type(kind: LayerKind, setting: Setting) -> list[Finding]:
    """Differences between engines on a setting that is right."""
    said, rope, scale = (
        kind.said,
        kind.rope,
        [kind.said.get(key) for key in ("mscale", "mscale_all_dim")],
    )
    holds = {
        rope.kind: True,
        f"type {said['rope_type']}": True,  # one of a setting that SGLang or vLLM reads as another
        "attention_factor": said.get("attention_factor") is not None,
        "some mscale": any(scale),
        "both mscale": all(scale),
        "not rounded": said.get("truncate") is False,
        "own betas": (rope.beta_fast, rope.beta_slow) != (32, 1),
        "sharper": rope.sharper != 1,
        "unscaled": of_family(setting.family, "unscaled", False) and said["rope_type"] != "default",
    }
    return by_rules("by_type", holds, family=setting.family, whole=scale[1], sharper=rope.sharper)


def llama_findings(file: Gguf, setting: Setting, own: Setting, changes: Changes) -> list[Finding]:
    """Keys and flags of llama.cpp that do nothing or surprise."""
    flags, typed, rope = changes.flags, set(changes.typed), setting.turning[0].rope
    found = []
    for key, readers in FACTS["gguf_read_by"].items():
        if key in file.keys and file.architecture not in readers:
            found.append(
                finding(
                    "unread_key",
                    key=key,
                    value=shown(file.keys[key]),
                    readers=" and ".join(readers),
                )
            )
    said, divided = file.keys.get(f"{SCALING}type", "linear"), file.keys.get(f"{SCALING}factor")
    known = (
        file.architecture in FACTS["gguf_sliding_every"]
        or "attention.sliding_window_pattern" in file.keys
    )
    of_file = {
        "unknown_gguf_type": said not in FACTS["gguf_types"],
        "unused_factor": said == "none" and number(divided, 1) != 1,
        "unknown_windows": "attention.sliding_window" in file.keys and not known,
    }
    near = did_you_mean(said, FACTS["gguf_types"])
    found += told(
        of_file, kind=shown(said), near=near, factor=divided, architecture=file.architecture
    )
    found += told(
        {"other_architecture": changes.foreign_keys(file.architecture)},
        architecture=file.architecture,
    )
    kind, factor, ext = (
        scaling_type(file, flags),
        scaling_factor(file, flags),
        ext_factor(file, flags),
    )
    by_flag = {
        **dict.fromkeys((kind, f"factor {factor:g}", *typed), True),
        "mixed": ext,
        "turned by yarn": rope.kind == "yarn",
        "divisors": file.divisors,
        "scaled": factor != 1 or ext,
        "sliding": any(one.name.startswith(SLIDING) for one in setting.kinds),
        "base or factor": typed & {"--rope-freq-base", "--rope-scale", "--rope-freq-scale"},
        "self-extend": flags.get("group", 1) != 1,
    }
    whose = "asked for" if "scaling" in flags else "the file's type"
    found += by_rules("by_flag", by_flag, whose=whose, architecture=file.architecture)
    asked, reach = number(flags.get("ctx"), 0), reach_of(setting, own).tokens
    beyond = {
        "context_beyond": reach is not None and asked > reach,
        "original_beyond": rope.kind == "yarn" and rope.original > own.trained,
    }
    found += told(beyond, asked=asked, reach=reach, original=rope.original, trained=own.trained)
    found += [*unneeded("-c", asked, setting, own), *base_findings(setting, own)]
    return list(dict.fromkeys(found))
