"""Language of claims: each has a yaml in results/claims, with the rules that would confirm or
refute it.

results/reported/claims holds the verdicts. The language is small and contains no code.
tests/claims/test_claim_ledger.py reads every file.

Claims of one `stage` are one family. Those of later stages lie in folders of their own, such as
results/claims/stage2, and name the seeds and windows that decide. A primary with `same_as: "H02
sinusoidal"` is another reading of that primary's comparison, by its own rules; the correction
counts both once."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posbench.common.errors import ConfigError
from posbench.statistics.verdict_rules import Rule, exclusive

MEASURES = {
    "rise": "bits/byte",  # loss minus the floor of the same training on the same targets
    "loss": "bits/byte",
    "accuracy": "share of targets",
    # first length whose upper bound exceeds the floor by more than `margin`
    "usable_length": "x train_len",
}
BOTH = "both"
GATES = (BOTH, "confirmed", "none")
STAGES = {
    1: "one",
    2: "two",
    3: "three",
    4: "four",
    5: "five",
    6: "six",
    7: "seven",
    8: "eight",
    9: "nine",
}


@dataclass(frozen=True)
class ClaimCell:
    """Evaluations of one method, one for each seed. Arguments not given are those of configs/,
    other fields have the defaults below.
    """

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
    # a child: `extension` is what it was fine-tuned with, `config` and the length at 1x are its own
    finetuned: bool = False

    def __str__(self) -> str:
        def named(name: str, args: Mapping | None) -> str:
            return " ".join([name, *(f"{key}={value}" for key, value in (args or {}).items())])

        parts = [named(self.encoding, self.encoding_args)]
        parts += [named(self.extension, self.extension_args)] if self.extension != "none" else []
        parts += [self.scale_attention] if self.scale_attention != "none" else []
        parts += [f"trained with {self.trained_scale}"] if self.trained_scale != "none" else []
        parts += ["fine-tuned"] if self.finetuned else []
        parts += [f"{key}={value}" for key, value in (self.config or {}).items()]
        parts += [self.protocol] if self.protocol != "fixed_targets" else []
        parts += [self.task] if self.task else []
        return ("" if self.times == 1 else f"{self.times:g} x ") + " + ".join(parts)


@dataclass(frozen=True)
class Endpoint:
    """One number with an interval: (of - minus) - (against), and the rules for it. A descriptive
    endpoint has no rules.
    """

    name: str
    measure: str
    cells: tuple[tuple[float, ClaimCell], ...]  # signed weights; the first is `of`
    margin: float | None = None  # bits/byte, of usable_length
    confirm: Rule | None = None
    refute: Rule | None = None
    # of GATES: verdicts that need every training to use its window (G), or to have learned its task
    gate: str = BOTH
    seeds: tuple[int, ...] = ()  # that decide, all of them; () for all that are there
    windows: int | None = None  # evaluate.windows of the evaluations that decide; None for any
    same_as: str = ""  # claim and name of the primary whose cells these are

    def __str__(self) -> str:
        words = []
        for weight, cell in self.cells:
            at = "" if cell.at is None else f" at {cell.at:g}x"
            words.append(("" if not words else " - " if weight < 0 else " + ") + f"({cell}{at})")
        return f"{self.measure.replace('_', ' ')} of {''.join(words)}" + (
            f", margin {self.margin:g} bits/byte" if self.margin else ""
        )


@dataclass(frozen=True)
class Claim:
    """A claim of the literature, decided by its `primary` endpoints or by a test: if `test` passes,
    the verdict is `shows`.
    """

    id: str
    statement: str
    source: str
    rule: str  # in words
    stage: int = 1
    experiments: tuple[str, ...] = ()
    primary: tuple[Endpoint, ...] = ()
    secondary: tuple[Endpoint, ...] = ()
    test: str | None = None
    shows: str | None = None


def load(path: Path) -> Claim:
    """Read a claim's yaml. Raises ConfigError for anything that is not in the language, and for
    rules that could both hold.
    """
    import yaml

    try:
        return _read(_claim, yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid yaml: {str(error).splitlines()[0]}.") from error
    except (ConfigError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not a valid claim: {error}.") from error


def load_all(folder: Path) -> list[Claim]:
    """Read every claim of a folder and of the folders in it, in the order of file names.

    Raises ConfigError as `load` does, for an id given twice in one stage, and for a primary that is
    the same as none."""
    claims = [load(path) for path in sorted(folder.rglob("*.yaml"))]
    if len({(claim.stage, claim.id) for claim in claims}) < len(claims):
        raise ConfigError(
            f"{folder} has two claims with the same id: {', '.join(claim.id for claim in claims)}."
        )
    known = {
        (claim.stage, endpoint_name(claim.id, one.name)): one
        for claim in claims
        for one in claim.primary
        if not one.same_as
    }
    return [
        replace(claim, primary=tuple(_resolved(one, claim, known) for one in claim.primary))
        for claim in claims
    ]


def endpoint_name(claim: str, endpoint: str) -> str:
    """Name of an endpoint among all claims: "H02 sinusoidal", or the claim's id if it has no
    name.
    """
    return " ".join(filter(None, (claim, endpoint)))


def _resolved(one: Endpoint, claim: Claim, known: Mapping[tuple[int, str], Endpoint]) -> Endpoint:
    if not one.same_as:
        return one
    if (claim.stage, one.same_as) not in known:
        name = endpoint_name(claim.id, one.name)
        raise ConfigError(
            f"{name} is the same as {one.same_as}, which is not a comparison of stage"
            f" {claim.stage}."
        )
    other = known[claim.stage, one.same_as]
    return replace(
        one,
        **{
            name: getattr(other, name)
            for name in ("measure", "cells", "margin", "gate", "seeds", "windows")
        },
    )


def _read(make: Callable, keys: Mapping, *before: object) -> Any:
    """Call `make` with the keys of a part of a yaml. Raises ConfigError for a key that it does not
    take, and for one that is missing.
    """
    taken = dict(list(inspect.signature(make).parameters.items())[len(before) :])
    if unknown := sorted(set(keys) - set(taken)):
        raise ConfigError(f"{unknown[0]} is not among {', '.join(sorted(taken))}")
    if lacking := [
        name for name, one in taken.items() if one.default is one.empty and name not in keys
    ]:
        raise ConfigError(f"it lacks '{lacking[0]}'")
    return make(*before, **keys)


def _claim(
    id: str, statement: str, source: str, rule: str, stage: int = 1, experiment: list | str = (), seeds: list | None = None,
    windows: int | None = None, primary: list | dict = (), secondary: list | dict = (), test: str | None = None, shows: str | None = None,
) -> Claim:  # fmt: skip
    """Claim of the keys of a yaml. Raises ConfigError for what the language has not."""
    primary, secondary = (
        tuple(_read(_endpoint, one, seeds, windows) for one in _list(given))
        for given in (primary, secondary)
    )
    experiments = tuple(_list(experiment))
    if bool(primary) == bool(test):
        raise ConfigError("it needs either primary endpoints or a test")
    if primary and not experiments or test and shows not in ("confirmed", "refuted"):
        raise ConfigError(
            "primary endpoints need an experiment, and a test needs shows: confirmed or refuted"
        )
    if stage not in STAGES or any(
        (stage > 1) != bool(one.seeds) for one in primary if not one.same_as
    ):
        later = ", ".join(str(number) for number in STAGES if number > 1)
        raise ConfigError(
            f"stage must be 1, which uses all seeds, or one of {later}, whose primaries name their"
            " seeds"
        )
    for endpoint in primary:
        if None in (endpoint.confirm, endpoint.refute) or not exclusive(
            endpoint.confirm, endpoint.refute
        ):
            raise ConfigError(
                f"its primary '{endpoint}' needs confirm and refute, which exclude each other"
            )
        if endpoint.confirm.of_gain != endpoint.refute.of_gain:
            raise ConfigError("confirm and refute must both be shares of G, or neither")
    if any(endpoint.confirm or endpoint.refute for endpoint in secondary):
        raise ConfigError("secondary endpoints are descriptive and have no confirm or refute")
    if len({endpoint.name for endpoint in primary}) < len(primary):
        raise ConfigError(
            f"its primaries need different names, not {[endpoint.name for endpoint in primary]}"
        )
    id, statement, source, rule = (
        " ".join(str(text).split()) for text in (id, statement, source, rule)
    )
    return Claim(id, statement, source, rule, stage, experiments, primary, secondary, test, shows)


def _list(value: object) -> list:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _endpoint(
    all_seeds: list | None, windows: int | None, name: str = "", measure: str = "rise", of: dict | None = None, minus: dict | None = None,
    against: dict | None = None, at: float | None = None, margin: float | None = None, confirm: str | None = None,
    refute: str | None = None, gate: str = BOTH, seeds: list | None = None, same_as: str = "",
) -> Endpoint:  # fmt: skip
    confirm, refute = (Rule.parse(text) if text is not None else None for text in (confirm, refute))
    if same_as:
        return Endpoint(
            str(name),
            "rise",
            (),
            confirm=confirm,
            refute=refute,
            windows=windows,
            same_as=str(same_as),
        )
    if measure not in MEASURES:
        raise ConfigError(f"measure {measure} must be one of {', '.join(MEASURES)}")
    given = [
        (1.0, of or {}),
        (-1.0, minus),
        *((sign, (against or {}).get(key)) for sign, key in ((-1.0, "of"), (1.0, "minus"))),
    ]
    cells = [
        (sign, _read(ClaimCell, {"at": at, **cell})) for sign, cell in given if cell is not None
    ]
    usable = measure == "usable_length"
    if usable != (margin is not None) or usable and (at is not None or len(cells) > 1):
        raise ConfigError(
            "usable_length takes of and a margin in bits/byte, no length; no other measure takes a"
            " margin"
        )
    if not usable and any(cell.at is None for _, cell in cells):
        raise ConfigError("every cell needs a length: at, as a multiple of the training length")
    if MEASURES[measure] != "bits/byte" and any(
        rule and rule.of_gain for rule in (confirm, refute)
    ):
        raise ConfigError("only losses and rises can be shares of G")
    chosen = tuple(seeds or all_seeds or ())
    if (
        gate not in GATES
        or len(set(chosen)) < len(chosen)
        or not all(isinstance(seed, int) for seed in chosen)
    ):
        raise ConfigError(
            f"gate must be one of {', '.join(GATES)}, and seeds different whole numbers"
        )
    weighed = tuple((sign * float(cell.times), cell) for sign, cell in cells)
    return Endpoint(str(name), measure, weighed, margin, confirm, refute, gate, chosen, windows)
