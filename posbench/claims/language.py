"""Language of claims: each has a yaml in results/claims, with the rules that would confirm or refute it.

results/reported/claims holds the verdicts. The language is small and contains no code. tests/claims/test_claims.py reads every file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.statistics.verdict_rules import Rule, exclusive

MEASURES = {
    "rise": "bits/byte",  # loss minus the floor of the same training on the same targets
    "loss": "bits/byte",
    "accuracy": "share of targets",
    "usable_length": "x train_len",  # first length whose upper bound exceeds the floor by more than `margin`
}


@dataclass(frozen=True)
class Cell:
    """Evaluations of one method, one for each seed. Arguments not given are those of configs/, other fields have the defaults below."""

    encoding: str
    at: float | None  # multiple of the training length; None for all lengths
    times: float = 1.0  # weight in the comparison
    extension: str = "none"
    scale_attention: str = "none"  # at evaluation
    trained_scale: str = "none"
    protocol: str = "fixed_targets"
    task: str | None = None
    encoding_args: Mapping = None
    extension_args: Mapping = None
    config: Mapping = None  # dotted keys of the training's configuration

    def __str__(self) -> str:
        def named(name: str, args: Mapping | None) -> str:
            return " ".join([name, *(f"{key}={value}" for key, value in (args or {}).items())])

        parts = [named(self.encoding, self.encoding_args)]
        parts += [named(self.extension, self.extension_args)] if self.extension != "none" else []
        parts += [self.scale_attention] if self.scale_attention != "none" else []
        parts += [f"trained with {self.trained_scale}"] if self.trained_scale != "none" else []
        parts += [f"{key}={value}" for key, value in (self.config or {}).items()]
        parts += [self.protocol] if self.protocol != "fixed_targets" else []
        parts += [self.task] if self.task else []
        return ("" if self.times == 1 else f"{self.times:g} x ") + " + ".join(parts)


@dataclass(frozen=True)
class Endpoint:
    """One number with an interval: (of - minus) - (against), and the rules for it. A descriptive endpoint has no rules."""

    name: str
    measure: str
    cells: tuple[tuple[float, Cell], ...]  # signed weights; the first is `of`
    margin: float | None = None  # bits/byte, of usable_length
    confirm: Rule | None = None
    refute: Rule | None = None

    def __str__(self) -> str:
        words = []
        for weight, cell in self.cells:
            at = "" if cell.at is None else f" at {cell.at:g}x"
            words.append(("" if not words else " - " if weight < 0 else " + ") + f"({cell}{at})")
        return f"{self.measure.replace('_', ' ')} of {''.join(words)}" + (f", margin {self.margin:g} bits/byte" if self.margin else "")


@dataclass(frozen=True)
class Claim:
    """A claim of the literature, decided by its `primary` endpoints or by a test: if `test` passes, the verdict is `shows`."""

    id: str
    statement: str
    source: str
    rule: str  # in words
    experiments: tuple[str, ...] = ()
    primary: tuple[Endpoint, ...] = ()
    secondary: tuple[Endpoint, ...] = ()
    test: str | None = None
    shows: str | None = None


def load(path: Path) -> Claim:
    """Read a claim's yaml. Raises ConfigError for anything that is not in the language, and for rules that could both hold."""
    import yaml

    try:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no yaml: {str(error).splitlines()[0]}.") from error
    try:
        return _claim(text)
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path} is no claim: {reason}.") from error


def load_all(folder: Path) -> list[Claim]:
    """Read every claim of a folder, in the order of file names. Raises ConfigError as `load` does, and for an id given twice."""
    claims = [load(path) for path in sorted(folder.glob("*.yaml"))]
    if len({claim.id for claim in claims}) < len(claims):
        raise ConfigError(f"{folder} has two claims of one id: {', '.join(claim.id for claim in claims)}.")
    return claims


def _claim(text: dict) -> Claim:
    _only(text, {"id", "statement", "source", "rule", "experiment", "primary", "secondary", "test", "shows"})
    experiments = tuple(_list(text.get("experiment")))
    primary, secondary = (tuple(_endpoint(one) for one in _list(text.get(key))) for key in ("primary", "secondary"))
    if bool(primary) == bool(text.get("test")):
        raise ConfigError("it needs either primary endpoints or a test")
    if primary and not experiments or text.get("test") and text.get("shows") not in ("confirmed", "refuted"):
        raise ConfigError("primary endpoints need an experiment, and a test needs shows: confirmed or refuted")
    for endpoint in primary:
        if not endpoint.confirm or not endpoint.refute or not exclusive(endpoint.confirm, endpoint.refute):
            raise ConfigError(f"its primary '{endpoint}' needs confirm and refute, which exclude each other")
        if endpoint.confirm.of_gain != endpoint.refute.of_gain:
            raise ConfigError("confirm and refute must both be shares of G, or neither")
    if any(endpoint.confirm or endpoint.refute for endpoint in secondary):
        raise ConfigError("secondary endpoints are descriptive and have no confirm or refute")
    names = [endpoint.name for endpoint in primary]
    if len(set(names)) < len(names):
        raise ConfigError(f"its primaries need different names, not {names}")
    words = {key: " ".join(str(text[key]).split()) for key in ("id", "statement", "source", "rule")}
    return Claim(**words, experiments=experiments, primary=primary, secondary=secondary, test=text.get("test"), shows=text.get("shows"))


def _list(value: object) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


def _only(node: Mapping, known: set[str]) -> None:
    unknown = sorted(set(node) - known)
    if unknown:
        raise ConfigError(f"{unknown[0]} is not among {', '.join(sorted(known))}")


def _endpoint(text: dict) -> Endpoint:
    _only(text, {"name", "measure", "of", "minus", "against", "at", "margin", "confirm", "refute"})
    measure, at = text.get("measure", "rise"), text.get("at")
    if measure not in MEASURES:
        raise ConfigError(f"measure {measure} is none of {', '.join(MEASURES)}")
    cells = [(1.0, text["of"])]
    cells += [(-1.0, text["minus"])] if "minus" in text else []
    if "against" in text:
        _only(text["against"], {"of", "minus"})
        cells += [(-1.0, text["against"]["of"]), (1.0, text["against"]["minus"])]
    usable = measure == "usable_length"
    if usable != ("margin" in text) or usable and (at is not None or len(cells) > 1):
        raise ConfigError("usable_length takes of and a margin in bits/byte, no length; no other measure takes a margin")
    made = tuple((sign * float(cell.get("times", 1)), _cell(cell, at)) for sign, cell in cells)
    if not usable and any(cell.at is None for _, cell in made):
        raise ConfigError("every cell needs a length: at, as a multiple of the training length")
    rules = {key: Rule.parse(text[key]) if key in text else None for key in ("confirm", "refute")}
    if MEASURES[measure] != "bits/byte" and any(rule and rule.of_gain for rule in rules.values()):
        raise ConfigError("only losses and rises can be shares of G")
    return Endpoint(str(text.get("name", "")), measure, made, text.get("margin"), **rules)


def _cell(text: dict, at: float | None) -> Cell:
    _only(text, {column.name for column in fields(Cell)})
    return Cell(**{"at": at, **text})
