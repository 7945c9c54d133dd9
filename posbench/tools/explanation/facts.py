"""Facts of facts.yaml: what explain knows of families and engines, and the sentences about
settings.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

from posbench.runs.plain_yaml import safe_loader

FACTS = yaml.load(
    Path(__file__).with_name("facts.yaml").read_text(encoding="utf-8"),
    safe_loader(),
)
GGUF_KEYS = FACTS["gguf_keys"]
LLAMA_FLAGS = FACTS["flags"]
SOURCES = FACTS["sources"]
TABLES = FACTS["tables"]
TYPES = FACTS["types"]

HF, VLLM, SGLANG, LLAMA = "transformers", "vLLM", "SGLang", "llama.cpp"  # readers of a setting


@dataclass(frozen=True)
class Finding:
    """A sentence about a setting, and the version and file that it was read in.

    `stops`: transformers raises an error; None: or computes something else than what is read here.
    """

    text: str
    source: str
    stops: bool | None = False


def fact_of_family(family: str, fact: str, default: object = None) -> object:
    """A fact about a family of models, else the default."""
    return FACTS["families"].get(family, {}).get(fact, default)


def finding(name: str, **values: object) -> Finding:
    """The finding of this name about these values."""
    return finding_of(FACTS["findings"][name], **values)


def finding_of(entry: dict, **values: object) -> Finding:
    """The finding of an entry {text, source, stops} of facts.yaml about these values."""
    sources = entry["source"].format(**values).split("; ")
    source = "; ".join(SOURCES.get(name, name) for name in sources)
    return Finding(entry["text"].format(**values), source, entry.get("stops", False))


def findings_where(conditions: dict[str, object], **values: object) -> list[Finding]:
    """The findings {name: condition} whose condition is true.

    A condition may be a list of words, such as keys, which the sentence then names as `it`."""
    findings = []
    for name, condition in conditions.items():
        if not condition:
            continue
        listed = {"it": ", ".join(condition)} if isinstance(condition, list | dict) else {}
        findings.append(finding(name, **values, **listed))
    return findings


def findings_by_rules(rules: str, conditions: dict[str, object], **values: object) -> list[Finding]:
    """The findings of the rules of this name for which every condition in `when` is true, and none
    in `unless`.
    """
    true = {name for name, condition in conditions.items() if condition}
    return [
        finding_of(rule, **values)
        for rule in FACTS[rules]
        if true.issuperset(rule["when"]) and true.isdisjoint(rule.get("unless", ()))
    ]
