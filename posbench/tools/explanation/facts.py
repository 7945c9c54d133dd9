"""Facts of facts.yaml: what explain knows of families and engines, and the sentences about
settings.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

FACTS = yaml.load(
    Path(__file__).with_name("facts.yaml").read_text(encoding="utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
GGUF_KEYS, LLAMA_FLAGS, SOURCES, TABLES, TYPES = (
    FACTS[name] for name in ("gguf_keys", "flags", "sources", "tables", "types")
)

HF, VLLM, SGLANG, LLAMA = "transformers", "vLLM", "SGLang", "llama.cpp"  # readers of a setting


@dataclass(frozen=True)
class Finding:
    """A sentence about a setting, and the version and file that it was read in."""

    text: str
    source: str
    stops: bool | None = (
        # transformers raises an error; None: or computes something else than what is read here
        False
    )


def of_family(family: str, fact: str, default: object = None) -> object:
    """A fact about a family of models, else the default."""
    return FACTS["families"].get(family, {}).get(fact, default)


def finding(said: str | dict, **values: object) -> Finding:
    """The finding of this name, or of a rule, about these values."""
    said = FACTS["findings"][said] if isinstance(said, str) else said
    source = "; ".join(SOURCES.get(one, one) for one in said["source"].format(**values).split("; "))
    return Finding(said["text"].format(**values), source, said.get("stops", False))


def told(holds: dict[str, object], **values: object) -> list[Finding]:
    """The findings whose condition holds. Where that is a list of words, they are the value
    `it`.
    """
    listed = {
        name: {"it": ", ".join(it)} if isinstance(it, list | dict) else {}
        for name, it in holds.items()
        if it
    }
    return [finding(name, **it, **values) for name, it in listed.items()]


def by_rules(rules: str, holds: dict[str, object], **values: object) -> list[Finding]:
    """The findings of the rules of this name for which all that they need holds, and nothing that
    they exclude.
    """
    true = {fact for fact, it in holds.items() if it}
    return [
        finding(rule, **values)
        for rule in FACTS[rules]
        if {*rule["when"]} <= true and not true & {*rule.get("unless", ())}
    ]
