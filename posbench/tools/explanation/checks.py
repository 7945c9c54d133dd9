"""Findings: parts of a setting that do nothing, contradict each other, or are read differently by
different engines.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

from posbench.common.errors import did_you_mean
from posbench.config.typed_args import shown
from posbench.tools.explanation.apply_changes import MOVED_INTO_MAPPING, Override, override_of
from posbench.tools.explanation.changes import CONFIG_KEYS, Changes
from posbench.tools.explanation.config_json import (
    config_length,
    kinds_with_own_mapping,
    positive_number,
    rope_mapping,
    text_description,
    text_path,
)
from posbench.tools.explanation.facts import (
    FACTS,
    SGLANG,
    TYPES,
    VLLM,
    Finding,
    fact_of_family,
    finding,
    findings_by_rules,
    findings_where,
)
from posbench.tools.explanation.length_checks import (
    base_findings,
    served_findings,
    unneeded_scaling_findings,
)
from posbench.tools.explanation.llama_cpp import (
    SCALING,
    Gguf,
    ext_factor,
    scaling_factor,
    scaling_type,
)
from posbench.tools.explanation.position_keys import position_findings, position_keys
from posbench.tools.explanation.reach import reach_of
from posbench.tools.explanation.read_rope import TYPES_WITH_ORIGINAL
from posbench.tools.explanation.settings import SLIDING, LayerKind, Setting

LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor")
ORIGINAL_LENGTH = "original_max_position_embeddings"
KNOWN_KEYS = {*FACTS["shared"], *(key for keys in TYPES.values() for key in keys)}


def config_findings(
    config_before: dict, config_after: dict, setting: Setting, before: Setting, changes: Changes
) -> list[Finding]:
    """Faults and ambiguities of a config.json with its changes; `before` is the setting without
    them.
    """
    config = text_description(config_after)
    by_kind = {}  # {name of a kind of layers: findings}
    for kind in setting.turning:
        by_kind[kind.name] = [
            *_key_findings(kind, setting.family),
            *_length_findings(kind, config, before, changes.has_older_flags),
            *_engine_difference_findings(kind, setting),
        ]
    shared = [
        each
        for each in by_kind[setting.turning[0].name]
        if all(each in findings for findings in by_kind.values())
    ]
    result = [
        *_mapping_findings(config, setting),
        *_override_findings(config_before, changes, setting),
        *served_findings(changes, config, setting, before),
        *base_findings(setting, before),
        *shared,
        *position_findings(position_keys(config_after)),
    ]
    for name, findings in by_kind.items():
        result += [
            replace(each, text=f"{name}: {each.text}") for each in findings if each not in shared
        ]
    if config.get("sliding_window") and not any(kind.window for kind in setting.kinds):
        result.append(_unused_window_finding(config, setting.family))
    return list(dict.fromkeys(result))


def _unused_window_finding(config: dict, family: str) -> Finding:
    """Finding about a sliding_window that no layer uses, with the reason."""
    why = f"no layer of {family} is known to slide"
    if "use_sliding_window" in config:
        why = "use_sliding_window is not true"
    window = config["sliding_window"]
    return finding("window_unused", window=window, why=why, family=family)


def _mapping_findings(config: dict, setting: Setting) -> list[Finding]:
    """Two mappings of RoPE, one that is none, or one that its family does not read."""
    scaling = config.get("rope_scaling")
    parameters = config.get("rope_parameters")
    both = isinstance(scaling, dict) and isinstance(parameters, dict)
    differ = both and scaling and parameters and scaling != parameters
    read_key = "rope_scaling" if scaling else "rope_parameters"
    read_value = scaling or parameters
    no_mapping = not isinstance(read_value, dict | None)
    conditions = {
        # Two sentences: transformers reads one of the mappings, llama.cpp's converter the other.
        "both_mappings": differ,
        "both_converted": differ,
        "no_mapping": no_mapping and [f"{read_key}={shown(read_value)}"],  # named in the sentence
    }
    family = setting.family
    of_all_layers = findings_where(conditions, family=family, short=family.removesuffix("_text"))
    return [*of_all_layers, *_findings_by_layer_kind(config, setting)]


def _findings_by_layer_kind(config: dict, setting: Setting) -> list[Finding]:
    """Mappings that a family does not read, or for kinds of layers that it does not have."""
    family = setting.family
    mapping = rope_mapping(config)
    apart = kinds_with_own_mapping(mapping)
    has_bases = bool(fact_of_family(family, "bases"))
    kinds = {kind.name.partition(",")[0] for kind in setting.kinds}
    turning = sorted(kind.name for kind in setting.turning)
    scaling = config.get("rope_scaling")
    inner = [mapping[kind] for kind in apart if isinstance(mapping[kind], dict)]
    conditions = {
        # A family with a base for each kind reads mappings by kind, or else rope_scaling.
        "not_by_kind": has_bases and not apart and not scaling and mapping,
        # Families of by_ratio read rope_ratio and nothing else.
        "only_ratio": family in FACTS["by_ratio"] and (mapping or config.get("rope_theta")),
        "unknown_kind": [kind for kind in apart if kind not in kinds],
        # In a family with a base for each kind transformers fills in the missing one.
        "missing_kind": (
            apart and not has_bases and [name for name in turning if name not in apart]
        ),
        # transformers looks for truncate, and for no other key, beside the kinds.
        "beside_kinds": apart and [key for key in mapping if key not in (*apart, "truncate")],
        "truncate_by_kind": any(words.get("truncate") is False for words in inner),
    }
    return findings_where(
        conditions,
        kinds=", ".join(sorted(kinds)),
        family=family,
        short=family.removesuffix("_text"),
    )


def _override_findings(description: dict, changes: Changes, setting: Setting) -> list[Finding]:
    """Keys set over those of config.json that do nothing, for transformers or an engine, and for an
    engine also findings about the mapping that they make.
    """
    text_before = text_description(description)
    part = ".".join(text_path(description))
    override = override_of(description, changes)
    keys = override.effective_keys
    by_engine = changes.reader in (VLLM, SGLANG)
    where = "vllm_length" if changes.reader == VLLM else "sglang_config"  # key of SOURCES
    unknown = [key for key in keys if key not in CONFIG_KEYS and key not in text_before]
    conditions = {
        # Engines move rope_theta and partial_rotary_factor into the mapping, whose own win, so that
        # one beside it does nothing. The older flags of vLLM still read the one beside it.
        "override_beside_mapping": by_engine
        and not changes.has_older_flags
        and _keys_beside_mapping(keys, text_before),
        # Keys that stand beside the part for text, or in a part that this model does not have.
        "override_beside": part and override.ignored,
        "override_no_part": not part and override.ignored,
        # transformers reads the older rope_scaling first, wherever it is.
        "scaling_stays": (
            isinstance(keys.get("rope_parameters"), dict)
            and text_before.get("rope_scaling")
            and not by_engine
        ),
        "override_unknown": unknown,
        "older_flag": changes.has_older_flags,
    }
    about_keys = findings_where(
        conditions,
        reader=changes.reader,
        part=part,
        near=did_you_mean(unknown[0], CONFIG_KEYS) if unknown else "",
        flag="--rope-scaling" if "rope_scaling" in changes.config else "--rope-theta",
        where=where,
    )
    if not by_engine:
        return about_keys
    return [*_new_mapping_findings(text_before, override, changes, setting, where), *about_keys]


def _keys_beside_mapping(keys: dict, text_before: dict) -> list[str]:
    """Keys of an override outside of a mapping, which the description has in its mapping."""
    mapping = rope_mapping(text_before)
    beside = []
    for key in MOVED_INTO_MAPPING:
        has_value = text_before.get(key) is not None or mapping.get(key) is not None
        # Engines give every mapping a base, if only the family's default.
        if key in keys and (has_value or key == "rope_theta"):
            beside.append(key)
    return beside


def _new_mapping_findings(
    text_before: dict, override: Override, changes: Changes, setting: Setting, where: str
) -> list[Finding]:
    """A mapping in an override that replaces the old one, or is merged into it; [] without one."""
    vllm = changes.reader == VLLM
    keys = override.effective_keys
    typed_mapping = keys.get("rope_parameters") or keys.get("rope_scaling")
    if not isinstance(typed_mapping, dict):
        return []
    old_mapping = rope_mapping(text_before)
    theta = old_mapping.get("rope_theta") or text_before.get("rope_theta")
    base = setting.turning[0].rope.base  # of the layers with the widest view
    # vLLM's older flags leave the base where it was. In a mapping by kind each kind names its own.
    replaces = (
        not override.merges
        and not changes.has_older_flags
        and not kinds_with_own_mapping(typed_mapping)
    )
    lacks_theta = replaces and "rope_theta" not in typed_mapping
    lacks_type = "rope_type" not in typed_mapping
    conditions = {
        # A replaced mapping has the base of the family or of the engine.
        "base_lost": lacks_theta and positive_number(theta) and theta != base,
        # vLLM translates type into rope_type in config.json alone, not in an override.
        "override_untyped": (
            vllm and replaces and lacks_type and isinstance(keys.get("rope_parameters"), dict)
        ),
        # vLLM then sets rope_theta to null, at which it stops.
        "override_scaling": vllm and lacks_theta and isinstance(keys.get("rope_scaling"), dict),
        # Keys that change no frequency, and that the new mapping has to repeat.
        "mapping_drops": (
            replaces
            and [key for key in FACTS["kept"] if key in old_mapping and key not in typed_mapping]
        ),
        # Merged, the old rope_type stays and comes before the typed `type`.
        "override_type": (
            override.merges
            and not vllm
            and lacks_type
            and typed_mapping.get("type", "default") != "default"
        ),
    }
    values = {"theta": theta, "base": base, "type": typed_mapping.get("type"), "where": where}
    return findings_where(conditions, **values)


def _key_findings(kind: LayerKind, family: str) -> Iterator[Finding]:
    """Types that nobody knows, and keys that are unknown, of another type, or of the wrong kind."""
    mapping = kind.mapping
    rope_type = kind.rope.kind
    yield from _type_findings(kind, family)
    for key in mapping:
        yield from _misplaced_key_findings(key, mapping["rope_type"], rope_type)
    for key in FACTS["numbers"]:
        least = 1 if key == "rope_theta" else 0  # a base of 1 gives all pairs one frequency
        value = mapping.get(key)
        if value is not None and positive_number(value, 0) <= least:
            yield finding("no_number", key=key, value=json.dumps(value), least=least)
    factor = mapping.get("factor")
    # A whole number stops vLLM.
    if isinstance(factor, int) and positive_number(factor) and rope_type == "linear":
        yield finding("whole_factor", factor=factor)
    channels = kind.rope.head_dim
    # transformers lets odd heads of up to 4 channels pass, those of test checkpoints.
    if channels > 4 and channels % 2 and channels == kind.rope.turned:
        yield finding("odd_head", channels=channels)
    if rope_type == "longrope":
        yield from _divisor_findings(mapping, pairs=-(-kind.rope.turned // 2))


def _type_findings(kind: LayerKind, family: str) -> Iterator[Finding]:
    """Two types, an unknown one, or one that the family does not take."""
    rope_type = kind.mapping["rope_type"]
    older = kind.mapping.get("type")
    # su is LongRoPE's older name, so that both keys say the same.
    if older is not None and older != rope_type and (older, rope_type) != ("su", "longrope"):
        yield finding("two_types", named=rope_type, older=older)
        yield finding("two_types_vllm")
    if rope_type not in TYPES:
        near = did_you_mean(rope_type, TYPES)
        yield finding("unknown_type", named=shown(rope_type), near=near, read=kind.rope.kind)
        return  # nobody knows which families take it
    types = fact_of_family(family, "types")
    if types and kind.rope.kind not in types:
        listed = " and ".join(types)
        yield finding("refused_type", named=rope_type, family=family, types=listed)


def _misplaced_key_findings(key: str, written_type: str, rope_type: str) -> Iterator[Finding]:
    """A finding about a key that does nothing in a mapping of this type."""
    # SGLang takes ORIGINAL_LENGTH beside any type as the length before scaling.
    if key in (*FACTS["shared"], *TYPES[rope_type], ORIGINAL_LENGTH):
        return
    if key in KNOWN_KEYS and written_type not in TYPES:
        return  # it may belong to the unknown type
    if key in FACTS["elsewhere"]:
        who, where = FACTS["elsewhere"][key]
        yield finding("elsewhere", key=key, who=who, where=where)
    elif key in KNOWN_KEYS:
        owners = ", ".join(name for name, keys in TYPES.items() if key in keys)
        yield finding("other_type", key=key, named=rope_type, owners=owners)
    else:
        yield finding("unknown_key", key=key, near=did_you_mean(key, KNOWN_KEYS))


def _divisor_findings(mapping: dict, pairs: int) -> Iterator[Finding]:
    """Lists of LongRoPE that are not a positive number for each pair."""
    for key in ("long_factor", "short_factor"):
        value = mapping.get(key)
        if not isinstance(value, list):
            yield finding("wrong_divisors", key=key, count="no", pairs=pairs)
        elif len(value) != pairs or not all(map(positive_number, value)):
            yield finding("wrong_divisors", key=key, count=len(value), pairs=pairs)


def _length_findings(kind: LayerKind, config: dict, before: Setting, older: bool) -> list[Finding]:
    """Lengths, factor and base of a mapping against those of config.json."""
    outside = config.get("rope_theta")
    inside = rope_mapping(config).get("rope_theta")
    two_bases = positive_number(outside) and positive_number(inside) and outside != inside
    return [
        *_original_length_findings(kind, config, before),
        *_factor_findings(kind, config, older),
        *findings_where({"base_twice": two_bases}, outside=outside, inside=inside),
    ]


def _original_length_findings(kind: LayerKind, config: dict, before: Setting) -> list[Finding]:
    """original_max_position_embeddings that is missing, is there twice, or is multiplied."""
    if kind.rope.kind not in TYPES_WITH_ORIGINAL:
        return []
    original = positive_number(kind.mapping.get(ORIGINAL_LENGTH))
    outside = positive_number(config.get(ORIGINAL_LENGTH))
    inside = rope_mapping(config).get(ORIGINAL_LENGTH)
    longest = config_length(config)
    # Two sentences, on transformers and on the other engines.
    is_missing = kind.mapping.get(ORIGINAL_LENGTH) is None
    is_multiplied = longest and longest > before.trained
    conditions = {
        "original_twice": outside and positive_number(inside) and inside != outside,
        "original_missing": is_missing,
        "original_missing_elsewhere": is_missing,
        "original_multiplied": original and original > before.trained,
    }
    return findings_where(
        conditions,
        top=outside,
        inner=inside,
        original=kind.rope.original,
        given=original,
        trained=before.trained,
        multiplied=" That is multiplied already." if is_multiplied else "",
        # What llama.cpp's converter does without the key: it takes 8,192 for Llama 3, or it stops.
        then="8,192" if kind.rope.kind == "llama3" else "stops",
    )


def _factor_findings(kind: LayerKind, config: dict, older: bool) -> list[Finding]:
    """A factor that is missing, too small, or not the ratio of the two lengths. `older`: a flag of
    vLLM up to 0.11 has the scaling.
    """
    mapping = kind.mapping
    rope = kind.rope
    longest = config_length(config)
    original = positive_number(mapping.get(ORIGINAL_LENGTH))
    stated_factor = positive_number(mapping.get("factor"))
    implied = 0  # factor that the two lengths give; 0: they give none
    if original and longest and stated_factor and rope.kind in ("yarn", "longrope"):
        implied = longest / original
    is_missing = rope.kind in ("linear", "dynamic", "yarn") and mapping.get("factor") is None
    is_derived = rope.kind == "yarn" and "factor" in mapping  # null, which YaRN fills
    conditions = {
        # A flag leaves the length in config.json as it was before the scaling.
        "length_before_scaling": implied == 1 and not older,
        "factor_against_lengths": (
            implied not in (0, 1) and abs(implied / stated_factor - 1) > 1e-6
        ),
        "llama3_lacks": (
            rope.kind == "llama3" and [key for key in LLAMA3_KEYS if mapping.get(key) is None]
        ),
        "yarn_without_factor": is_missing and is_derived,
        "no_factor": is_missing and not is_derived,
        # Without a stated factor rope.factor is a default, and other findings name the lack.
        "small_factor": (
            rope.kind in ("linear", "yarn", "llama3") and stated_factor and rope.factor <= 1
        ),
    }
    return findings_where(
        conditions,
        longest=longest,
        implied=implied,
        wanted=(original or 0) * (stated_factor or 0),
        factor=rope.factor,
        word="changes nothing" if rope.factor == 1 else "makes pairs turn faster",
    )


def _engine_difference_findings(kind: LayerKind, setting: Setting) -> list[Finding]:
    """Differences between engines on a setting that is right."""
    mapping = kind.mapping
    rope = kind.rope
    mscales = [mapping.get("mscale"), mapping.get("mscale_all_dim")]
    rope_type = mapping["rope_type"]
    conditions = {
        rope.kind: True,
        f"type {rope_type}": True,  # as it is written: SGLang or vLLM may read it as another kind
        "attention_factor": mapping.get("attention_factor") is not None,
        "some mscale": any(mscales),
        "both mscale": all(mscales),
        "not rounded": mapping.get("truncate") is False,
        "own betas": (rope.beta_fast, rope.beta_slow) != (32, 1),  # YaRN's defaults
        "sharper": rope.sharper != 1,
        "unscaled": fact_of_family(setting.family, "unscaled", False) and rope_type != "default",
    }
    values = {"family": setting.family, "whole": mscales[1], "sharper": rope.sharper}
    return findings_by_rules("by_type", conditions, **values)


def llama_findings(
    file: Gguf, setting: Setting, before: Setting, changes: Changes
) -> list[Finding]:
    """Keys and flags of llama.cpp that do nothing or surprise."""
    context = positive_number(changes.llama_flags.get("ctx"), 0)
    findings = [
        *_file_key_findings(file, changes),
        *_flag_findings(file, setting, changes),
        *_context_findings(context, setting, before),
        *unneeded_scaling_findings("-c", context, setting, before),
        *base_findings(setting, before),
    ]
    return list(dict.fromkeys(findings))


def _file_key_findings(file: Gguf, changes: Changes) -> list[Finding]:
    """Keys of a GGUF file that llama.cpp does not read, or not in files of this architecture."""
    name = file.architecture
    keys = file.keys
    findings = []
    for key, readers in FACTS["gguf_read_by"].items():
        if key in keys and name not in readers:
            listed = " and ".join(readers)
            findings.append(finding("unread_key", key=key, value=shown(keys[key]), readers=listed))
    scaling = keys.get(f"{SCALING}type", "linear")  # so llama.cpp takes a file without a type
    factor = keys.get(f"{SCALING}factor")
    has_pattern = name in FACTS["gguf_sliding_every"]
    has_pattern = has_pattern or "attention.sliding_window_pattern" in keys
    conditions = {
        "unknown_gguf_type": scaling not in FACTS["gguf_types"],
        "unused_factor": scaling == "none" and positive_number(factor, 1) != 1,
        # Which layers slide is then not known.
        "unknown_windows": "attention.sliding_window" in keys and not has_pattern,
        # Keys typed for another architecture, which the sentence names; [] is no finding.
        "other_architecture": changes.foreign_keys(name),
    }
    near = did_you_mean(scaling, FACTS["gguf_types"])
    values = {"kind": shown(scaling), "near": near, "factor": factor, "architecture": name}
    return findings + findings_where(conditions, **values)


def _flag_findings(file: Gguf, setting: Setting, changes: Changes) -> list[Finding]:
    """Flags that do nothing beside others, or surprise."""
    flags = changes.llama_flags
    typed = set(changes.typed_words)
    factor = scaling_factor(file, flags)
    mixed = ext_factor(file, flags)  # 0: YaRN is off
    conditions = {  # {fact that rules of by_flag name: whether it holds}
        **dict.fromkeys(typed, True),
        scaling_type(file, flags): True,
        f"factor {factor:g}": True,
        "mixed": mixed,
        "turned by yarn": setting.turning[0].rope.kind == "yarn",  # a file has one type
        "divisors": file.divisors,
        "scaled": factor != 1 or mixed,
        "sliding": any(kind.name.startswith(SLIDING) for kind in setting.kinds),
        "base or factor": typed & {"--rope-freq-base", "--rope-scale", "--rope-freq-scale"},
        "self-extend": flags.get("group", 1) != 1,
    }
    whose = "asked for" if "scaling" in flags else "the file's type"
    return findings_by_rules("by_flag", conditions, whose=whose, architecture=file.architecture)


def _context_findings(context: float, setting: Setting, before: Setting) -> list[Finding]:
    """Lengths beyond those that the file and the setting cover."""
    rope = setting.turning[0].rope  # of the layers with the widest view
    reach = reach_of(setting, before).tokens
    conditions = {
        "context_beyond": reach is not None and context > reach,
        # Without YaRN --yarn-orig-ctx does nothing, which _flag_findings says.
        "original_beyond": rope.kind == "yarn" and rope.original > before.trained,
    }
    values = {"asked": context, "reach": reach}
    return findings_where(conditions, original=rope.original, trained=before.trained, **values)
