"""Language of claims: each has a yaml in results/claims, with rules to confirm and refute it.

results/reported/claims holds the verdicts. The language is small and contains no code.
tests/tools/claims/test_claim_ledger.py reads every file.

Claims of one `stage` are one family. Those of later stages lie in folders of their own, such as
results/claims/stage2, and name the seeds and windows that decide. A primary with `same_as: "H02
sinusoidal"` is another reading of that primary's comparison, by its own rules; the correction
counts both once.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posbench.common.errors import ConfigError
from posbench.results.stages import STAGES
from posbench.runs.plain_yaml import safe_loader
from posbench.statistics.verdict_rules import Rule, are_exclusive

MEASURES = {
    "rise": "bits/byte",  # loss minus the floor of the same training on the same targets
    "loss": "bits/byte",
    "accuracy": "share of targets",
    # first length whose upper bound exceeds the floor by more than `margin`
    "usable_length": "x train_len",
}
BOTH_VERDICTS = "both"
GATES = (BOTH_VERDICTS, "confirmed", "none")  # verdicts that need trainings which learned
# keys of an endpoint with same_as: its cells, seeds and gate are those of another
KEYS_BESIDE_SAME_AS = {"same_as", "name", "confirm", "refute"}


@dataclass(frozen=True)
class ClaimCell:
    """Evaluations of one method, one for each seed.

    Arguments that are left out are those of configs/.
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
        """Such as "rope + ntk multiplier=8.0 + log_n + train.steps=500"."""
        parts = [_with_arguments(self.encoding, self.encoding_args)]
        if self.extension != "none":
            parts.append(_with_arguments(self.extension, self.extension_args))
        if self.scale_attention != "none":
            parts.append(self.scale_attention)
        if self.trained_scale != "none":
            parts.append(f"trained with {self.trained_scale}")
        if self.finetuned:
            parts.append("fine-tuned")
        for key, value in (self.config or {}).items():
            parts.append(f"{key}={value}")
        if self.protocol != "fixed_targets":
            parts.append(self.protocol)
        if self.task:
            parts.append(self.task)
        method = " + ".join(parts)
        return method if self.times == 1 else f"{self.times:g} x {method}"


@dataclass(frozen=True)
class Endpoint:
    """One number with an interval, (of - minus) - (against), and the rules for it.

    A descriptive endpoint has no rules.
    """

    name: str
    measure: str
    cells: tuple[tuple[float, ClaimCell], ...]  # signed weights; the first is `of`
    margin: float | None = None  # bits/byte, of usable_length
    confirm: Rule | None = None
    refute: Rule | None = None
    # of GATES: verdicts that need every training to use its window (G), or to have learned its task
    gate: str = BOTH_VERDICTS
    seeds: tuple[int, ...] = ()  # that decide, all of them; () for all that are there
    windows: int | None = None  # evaluate.windows of the evaluations that decide; None for any
    same_as: str = ""  # claim and name of the primary whose cells these are

    def __str__(self) -> str:
        """Such as "rise of (rope + pi at 8x) - (rope at 8x)"."""
        terms = ""
        for weight, cell in self.cells:
            # The size of a weight is in the words of its cell. The first, `of`, is added.
            if terms:
                terms += " - " if weight < 0 else " + "
            at = "" if cell.at is None else f" at {cell.at:g}x"
            terms += f"({cell}{at})"
        text = f"{self.measure.replace('_', ' ')} of {terms}"
        return f"{text}, margin {self.margin:g} bits/byte" if self.margin else text


@dataclass(frozen=True)
class Claim:
    """A claim of the literature, decided by its `primary` endpoints or by a test.

    If `test` passes, the verdict is `shows`.
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


def load_claim(path: Path) -> Claim:
    """Read a claim's yaml.

    Raises ConfigError for anything that is not in the language, and for rules that could both hold.
    """
    import yaml

    try:
        content = yaml.load(path.read_text(encoding="utf-8"), safe_loader())
        return _call_with_keys(_claim, content)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid yaml: {str(error).splitlines()[0]}.") from error
    except (ConfigError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not a valid claim: {error}.") from error


def load_claims(folder: Path) -> list[Claim]:
    """Read every claim of a folder and of the folders in it, in the order of file names.

    Raises ConfigError as `load_claim` does, for an id given twice in one stage, and for a primary
    that is the same as none.
    """
    claims = [load_claim(path) for path in sorted(folder.rglob("*.yaml"))]
    if len({(claim.stage, claim.id) for claim in claims}) < len(claims):
        raise ConfigError(
            f"{folder} has two claims with the same id: {', '.join(claim.id for claim in claims)}."
        )
    # {(stage, name of an endpoint): endpoint} of those that a same_as may name
    comparisons = {}
    for claim in claims:
        for endpoint in claim.primary:
            if not endpoint.same_as:  # else it has no cells of its own
                comparisons[claim.stage, endpoint_name(claim.id, endpoint.name)] = endpoint
    resolved = []
    for claim in claims:
        primary = tuple(
            _with_cells_of_same_as(endpoint, claim, comparisons) for endpoint in claim.primary
        )
        resolved.append(replace(claim, primary=primary))
    return resolved


def endpoint_name(claim: str, endpoint: str) -> str:
    """Name of an endpoint among all claims; that of an unnamed endpoint is the claim's id.

    >>> endpoint_name("H02", "sinusoidal"), endpoint_name("C2", "")
    ('H02 sinusoidal', 'C2')
    """
    return " ".join(filter(None, (claim, endpoint)))


def _with_arguments(method: str, arguments: Mapping | None) -> str:
    return " ".join([method, *(f"{key}={value}" for key, value in (arguments or {}).items())])


def _with_cells_of_same_as(
    endpoint: Endpoint, claim: Claim, comparisons: Mapping[tuple[int, str], Endpoint]
) -> Endpoint:
    """Endpoint with the cells of the one that it is the same as, if any."""
    if not endpoint.same_as:
        return endpoint
    other = comparisons.get((claim.stage, endpoint.same_as))
    if other is None:
        raise ConfigError(
            f"{endpoint_name(claim.id, endpoint.name)} is the same as {endpoint.same_as}, which is"
            f" not a comparison of stage {claim.stage}."
        )
    return replace(
        endpoint,
        measure=other.measure,
        cells=other.cells,
        margin=other.margin,
        gate=other.gate,
        seeds=other.seeds,
        windows=other.windows,
    )


def _call_with_keys(constructor: Callable, keys: Mapping, *leading: object) -> Any:
    """Result of `constructor` for the arguments `leading` and the keys of a part of a yaml.

    Raises ConfigError for a key that it does not take, and for one that is missing.
    """
    parameters = dict(list(inspect.signature(constructor).parameters.items())[len(leading) :])
    if unknown := sorted(set(keys) - set(parameters)):
        raise ConfigError(f"{unknown[0]} is not among {', '.join(sorted(parameters))}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in keys:
            raise ConfigError(f"it lacks '{name}'")
    return constructor(*leading, **keys)


def _claim(
    id: str,
    statement: str,
    source: str,
    rule: str,
    stage: int = 1,
    experiment: list | str = (),
    seeds: list | None = None,
    windows: int | None = None,
    primary: list | dict = (),
    secondary: list | dict = (),
    test: str | None = None,
    shows: str | None = None,
) -> Claim:
    """Claim of the keys of a yaml. Raises ConfigError for what the language has not."""
    claim = Claim(
        _one_line(id),
        _one_line(statement),
        _one_line(source),
        _one_line(rule),
        stage,
        experiments=tuple(_as_list(experiment)),
        primary=tuple(_endpoint_of_keys(keys, seeds, windows) for keys in _as_list(primary)),
        secondary=tuple(_endpoint_of_keys(keys, seeds, windows) for keys in _as_list(secondary)),
        test=test,
        shows=shows,
    )
    if bool(claim.primary) == bool(test):
        raise ConfigError("it needs either primary endpoints or a test")
    if claim.primary and not claim.experiments:
        raise ConfigError("primary endpoints need an experiment")
    if test and shows not in ("confirmed", "refuted"):
        raise ConfigError("a test needs shows: confirmed or refuted")
    _check_stage(claim)
    for endpoint in claim.primary:
        _check_rules(endpoint)
    if any(endpoint.confirm or endpoint.refute for endpoint in claim.secondary):
        raise ConfigError("secondary endpoints are descriptive and have no confirm or refute")
    names = [endpoint.name for endpoint in claim.primary]
    if len(set(names)) < len(names):
        raise ConfigError(f"its primaries need different names, not {names}")
    return claim


def _check_stage(claim: Claim) -> None:
    """Raise ConfigError unless primaries of a later stage, and they alone, name their seeds."""
    fits = claim.stage in STAGES
    for endpoint in claim.primary:
        # Seeds of another endpoint come with its cells, and are checked at its own claim.
        if fits and not endpoint.same_as:
            fits = bool(endpoint.seeds) == (claim.stage > 1)
    if not fits:
        later = ", ".join(str(number) for number in STAGES if number > 1)
        raise ConfigError(
            f"stage must be 1, which uses all seeds, or one of {later}, whose primaries name their"
            " seeds"
        )


def _check_rules(endpoint: Endpoint) -> None:
    confirm = endpoint.confirm
    refute = endpoint.refute
    if confirm is None or refute is None or not are_exclusive(confirm, refute):
        raise ConfigError(
            f"its primary '{endpoint}' needs confirm and refute, which exclude each other"
        )
    if confirm.of_gain != refute.of_gain:
        raise ConfigError("confirm and refute must both be shares of G, or neither")


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _as_list(value: object) -> list:
    """Elements of a list of a yaml, [] for null, and a single value as the only element."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _endpoint_of_keys(keys: Mapping, seeds: list | None, windows: int | None) -> Endpoint:
    """Endpoint of the keys of a yaml; `seeds` and `windows` are those of its claim.

    Raises ConfigError for what the language has not, and for keys that `same_as` brings."""
    if keys.get("same_as"):
        unread = sorted(set(keys) - KEYS_BESIDE_SAME_AS)
        if unread:
            raise ConfigError(
                f"same_as: {keys['same_as']} brings all but the name and the rules of an endpoint:"
                f" leave out {', '.join(unread)}"
            )
    return _call_with_keys(_endpoint, keys, seeds, windows)


def _endpoint(
    seeds_of_claim: list | None,
    windows_of_claim: int | None,
    name: str = "",
    measure: str = "rise",
    of: dict | None = None,
    minus: dict | None = None,
    against: dict | None = None,
    at: float | None = None,
    margin: float | None = None,
    confirm: str | None = None,
    refute: str | None = None,
    gate: str = BOTH_VERDICTS,
    seeds: list | None = None,
    same_as: str = "",
) -> Endpoint:
    """Endpoint of the keys of a yaml. Raises ConfigError for what the language has not.

    With `same_as` only the name and the rules are read: all else is the other endpoint's."""
    confirm_rule = None if confirm is None else Rule.parse(confirm)
    refute_rule = None if refute is None else Rule.parse(refute)
    if same_as:
        return Endpoint(
            str(name),
            measure="rise",  # as the cells, replaced by that of the other endpoint
            cells=(),
            confirm=confirm_rule,
            refute=refute_rule,
            windows=windows_of_claim,
            same_as=str(same_as),
        )
    against = against or {}
    endpoint = Endpoint(
        str(name),
        measure,
        cells=_weighted_cells(  # (of - minus) - (against.of - against.minus)
            at,
            (1.0, of or {}),
            (-1.0, minus),
            (-1.0, against.get("of")),
            (1.0, against.get("minus")),
        ),
        margin=margin,
        confirm=confirm_rule,
        refute=refute_rule,
        gate=gate,
        seeds=tuple(seeds or seeds_of_claim or ()),
        windows=windows_of_claim,
    )
    _check_measure(endpoint, at)
    if (
        gate not in GATES
        or len(set(endpoint.seeds)) < len(endpoint.seeds)
        or not all(isinstance(seed, int) for seed in endpoint.seeds)
    ):
        raise ConfigError(
            f"gate must be one of {', '.join(GATES)}, and seeds different whole numbers"
        )
    return endpoint


def _weighted_cells(
    at: float | None, *signed_keys: tuple[float, dict | None]
) -> tuple[tuple[float, ClaimCell], ...]:
    """Cells with signed weights, of those (sign, keys of a cell) that have keys.

    `at` is the length of cells that name none, as a multiple of the training length.
    """
    weighted = []
    for sign, keys in signed_keys:
        if keys is not None:
            cell = _call_with_keys(ClaimCell, {"at": at, **keys})
            weighted.append((sign * float(cell.times), cell))
    return tuple(weighted)


def _check_measure(endpoint: Endpoint, at: float | None) -> None:
    """Raise ConfigError unless margin, lengths and rules fit the measure."""
    measure = endpoint.measure
    if measure not in MEASURES:
        raise ConfigError(f"measure {measure} must be one of {', '.join(MEASURES)}")
    if measure == "usable_length":
        fits = endpoint.margin is not None and at is None and len(endpoint.cells) == 1
    else:
        fits = endpoint.margin is None
    if not fits:
        raise ConfigError(
            "usable_length takes of and a margin in bits/byte, no length; no other measure takes a"
            " margin"
        )
    if measure != "usable_length" and any(cell.at is None for _, cell in endpoint.cells):
        raise ConfigError("every cell needs a length: at, as a multiple of the training length")
    rules = [rule for rule in (endpoint.confirm, endpoint.refute) if rule]
    if MEASURES[measure] != "bits/byte" and any(rule.of_gain for rule in rules):
        raise ConfigError("only losses and rises can be shares of G")
