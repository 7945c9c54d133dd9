"""Findings about lengths that are asked for, and about a base that is not the checkpoint's."""

from typing import NamedTuple

import numpy as np

from posbench.tools.explanation.changes import Changes
from posbench.tools.explanation.config_json import positive_number
from posbench.tools.explanation.facts import SGLANG, VLLM, Finding, finding, findings_where
from posbench.tools.explanation.frequencies import unscaled_frequencies
from posbench.tools.explanation.reach import ROUNDING, is_slowed
from posbench.tools.explanation.read_rope import TYPES_WITH_ORIGINAL
from posbench.tools.explanation.settings import Setting


class Engine(NamedTuple):
    """An engine that serves texts up to a length."""

    flag: str  # of the length
    variable: str  # lifts the limit on it
    source: str  # of that limit


ENGINES = {
    VLLM: Engine("--max-model-len", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "vllm_length"),
    SGLANG: Engine(
        "--context-length", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "sglang_length"
    ),
}


def served_findings(
    changes: Changes, config: dict, setting: Setting, before: Setting
) -> list[Finding]:
    """A serving length beyond the one that the engine derives from config.json, or within the one
    that needs no scaling.
    """
    length = changes.served_length
    if not length:
        return []
    engine = ENGINES[changes.reader]
    rope = setting.turning[0].rope
    limit = _length_engine_derives(changes, config, setting)
    multiplied = rope.original * rope.factor if rope.kind == "yarn" else 0
    # vLLM up to 0.11 served YaRN's training length times its factor; later ones the stated length.
    if changes.has_older_flags and multiplied:
        limit = multiplied
    # The engine stops at such a length, unless a variable of the environment is set.
    then = f" {engine.variable}=1 lets it start"
    then += "." if rope.factor > 1 else ", and scales nothing."  # text beyond is read unscaled
    conditions = {
        "served_beyond": length > limit,
        # Only vLLM up to 0.11 served so much.
        "served_by_older": changes.reader == VLLM and limit < length <= multiplied,
    }
    beyond = findings_where(
        conditions,
        flag=engine.flag,
        reader=changes.reader,
        where=engine.source,
        multiplied=multiplied,
        served=length,
        reach=limit,
        then=then,
    )
    return [*beyond, *unneeded_scaling_findings(engine.flag, length, setting, before)]


def _length_engine_derives(changes: Changes, config: dict, setting: Setting) -> float:
    """Tokens that vLLM 0.33.0 or SGLang derives from a config.json.

    They multiply the stated length by a scaling's factor, as of linear, but not beside an original
    length, as of YaRN: there it is multiplied already."""
    kind = setting.turning[0]
    if changes.reader == SGLANG:
        states_scaled_length = "original_max_position_embeddings" in kind.mapping
    else:
        # vLLM takes the length of Gemma 3 as multiplied already, as beside an original length.
        states_scaled_length = kind.rope.kind in TYPES_WITH_ORIGINAL or setting.family.startswith(
            "gemma3"
        )
    # SGLang leaves llama3 out by its name, too.
    multiplies = not states_scaled_length and kind.rope.kind not in ("default", "llama3")
    factor = kind.rope.factor if multiplies else 1
    # A stated model_max_length is `longest` itself, and a factor below 1 does not lower it.
    return max(setting.longest * factor, positive_number(config.get("model_max_length"), 0))


def unneeded_scaling_findings(
    flag: str, length: float, setting: Setting, before: Setting
) -> list[Finding]:
    """Words on a length that the checkpoint has without the scaling that is asked for."""
    scaled = is_slowed(setting.turning[0].rope, before.turning[0].rope, before.longest)
    condition = scaled and 0 < length <= before.longest
    values = {"flag": flag, "asked": length, "trained": before.longest}
    return findings_where({"scaling_unneeded": condition}, **values)


def base_findings(setting: Setting, before: Setting) -> list[Finding]:
    """A base of the pairs that is not the checkpoint's, for each kind of layer."""
    ropes_before = {kind.name: kind.rope for kind in before.turning}
    findings = []
    for kind in setting.turning:
        rope_before = ropes_before.get(kind.name)
        if rope_before is None or rope_before.base == kind.rope.base:
            continue
        theta_before, theta = unscaled_frequencies(rope_before), unscaled_frequencies(kind.rope)
        if len(theta_before) != len(theta):  # other channels turn, so pairs cannot be compared
            continue
        slower = theta_before / theta
        name = "base_falls" if kind.rope.base < rope_before.base else "base_rises"
        several = len(setting.turning) > 1
        about_base = finding(
            name,
            subject=f"{kind.name}: the base" if several else "The base",
            base_before=rope_before.base,
            base=kind.rope.base,
            pairs=len(slower),
            n_faster=int(np.sum(slower < 1 - ROUNDING)),
            times_slower=float(slower[-1]),
        )
        findings.append(about_base)
    return findings
