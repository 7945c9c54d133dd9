"""Findings about lengths that are asked for, and about a base that is not the checkpoint's."""

from typing import NamedTuple

import numpy as np

from posbench.tools.explanation.changes import Changes
from posbench.tools.explanation.config_json import number
from posbench.tools.explanation.facts import SGLANG, VLLM, Finding, finding, told
from posbench.tools.explanation.frequencies import plain
from posbench.tools.explanation.reach import ROUNDING, slows
from posbench.tools.explanation.read_rope import LONG
from posbench.tools.explanation.settings import Setting


class Engine(NamedTuple):
    """Name of the length that an engine serves, the variable that lifts its limit, and the source
    of that limit.
    """

    flag: str
    variable: str
    source: str


ENGINES = {
    VLLM: Engine("--max-model-len", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "vllm_length"),
    SGLANG: Engine(
        "--context-length", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "sglang_length"
    ),
}


def served_findings(
    changes: Changes, config: dict, setting: Setting, own: Setting
) -> list[Finding]:
    """A serving length beyond the one that the engine derives from config.json, or within the one
    that needs no scaling.
    """
    asked = changes.served
    if not asked:
        return []
    engine, rope = ENGINES[changes.reader], setting.turning[0].rope
    multiplied = rope.original * rope.factor if rope.kind == "yarn" else 0
    reach = _derived(changes, config, setting)
    if changes.older and multiplied:
        reach = multiplied
    then = (
        f" {engine.variable}=1 lets it start."
        if rope.factor > 1
        else f" {engine.variable}=1 lets it start, and scales nothing."
    )
    beyond = asked > reach
    holds = {
        "served_beyond": beyond,
        "served_by_older": beyond and changes.reader == VLLM and asked <= multiplied,
    }
    values = {
        "flag": engine.flag,
        "reader": changes.reader,
        "where": engine.source,
        "multiplied": multiplied,
    }
    return [
        *told(holds, **values, served=asked, reach=reach, then=then),
        *unneeded(engine.flag, asked, setting, own),
    ]


def _derived(changes: Changes, config: dict, setting: Setting) -> float:
    """Tokens that vLLM 0.33.0 or SGLang derives from a config.json: the factor of linear multiplies
    them, that of YaRN does not.
    """
    kind = setting.turning[0]
    if changes.reader == SGLANG:
        scaled = "original_max_position_embeddings" in kind.said
    else:
        scaled = kind.rope.kind in LONG or setting.family.startswith("gemma3")
    factor = 1 if scaled or kind.rope.kind in ("default", "llama3") else kind.rope.factor
    return max(setting.longest * factor, number(config.get("model_max_length"), 0))


def unneeded(flag: str, asked: float, setting: Setting, own: Setting) -> list[Finding]:
    """Words on a length that the checkpoint has without the scaling that is asked for."""
    scaled = slows(setting.turning[0].rope, own.turning[0].rope, own.longest)
    return told(
        {"scaling_unneeded": scaled and 0 < asked <= own.longest},
        flag=flag,
        asked=asked,
        trained=own.longest,
    )


def base_findings(setting: Setting, own: Setting) -> list[Finding]:
    """A base of the pairs that is not the checkpoint's, for each kind of layer."""
    owns = {kind.name: kind.rope for kind in own.turning}
    found, several = [], len(setting.turning) > 1
    for kind in setting.turning:
        before = owns.get(kind.name)
        if (
            before is None
            or before.base == kind.rope.base
            or len(plain(before)) != len(plain(kind.rope))
        ):
            continue
        slower = plain(before) / plain(kind.rope)
        subject = f"{kind.name}: the base" if several else "The base"
        values = {
            "subject": subject,
            "own": before.base,
            "base": kind.rope.base,
            "pairs": len(slower),
        }
        name = "base_falls" if kind.rope.base < before.base else "base_rises"
        found.append(
            finding(
                name, **values, count=int(np.sum(slower < 1 - ROUNDING)), slower=float(slower[-1])
            )
        )
    return found
