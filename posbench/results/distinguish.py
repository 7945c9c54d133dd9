"""Words that tell runs apart: as few keys as are needed in which their configurations differ."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from posbench.config.identity import CHOICE_KEY, FIELDS_ADDED_LATER, method_name, run_prefix
from posbench.config.names import closest_yaml_name, shipped_yamls
from posbench.results.run_metadata import (
    ABSENT_WORD,
    HASH_KEY,
    RunMetadata,
    typed_text,
    whole_as_int,
)
from posbench.results.sweep_names import sweep_name

if TYPE_CHECKING:
    from posbench.results.evaluation import Evaluation

STEPS_KEY, STEP_KEY = "train.steps", "train.step"
SWEEP_KEY = "name"  # key of the words that name a sweep
WIDTH_KEY = "model.d_model"  # names a size; the other parts of a size usually follow from it


def values_of_differing_keys(configs: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """{key: its value in each configuration, as text} for the keys that differ.

    A missing key of identity.FIELDS_ADDED_LATER counts as its default. The keys are in one order
    wherever the configurations were read: the width of a model, then the others by name.
    """
    keys = {key for config in configs for key in config}
    values = {}
    for key in sorted(keys, key=lambda key: (key != WIDTH_KEY, key)):
        # An older file lacks the key and means the default; beside other values it is shown absent.
        default = whole_as_int(FIELDS_ADDED_LATER.get(key, ABSENT_WORD))
        if len({typed_text(config.get(key, default)) for config in configs}) > 1:
            values[key] = [typed_text(config.get(key, ABSENT_WORD)) for config in configs]
    return values


def distinguishing_keys(configs: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """{key: its value in each configuration, as text} for as few keys as tell the configurations
    apart.
    """
    chosen: dict[str, list[str]] = {}
    n_apart = 1  # configurations that the chosen keys tell apart
    for key, values in values_of_differing_keys(configs).items():
        n_with_key = len(set(zip(*chosen.values(), values, strict=True)))
        if n_with_key > n_apart:
            chosen[key] = values
            n_apart = n_with_key
    return chosen


def setting_words(config: Mapping[str, object], keys: Sequence[str]) -> dict[str, str]:
    """{key: words such as " steps=1000"} of a configuration. The end of a training is a step too.

    >>> setting_words({"train.steps": 1000, "seed": 0}, ["train.steps"])
    {'train.steps': ' steps=1000'}
    >>> setting_words({"train.steps": 1000, "train.step": None}, ["train.steps", "train.step"])
    {'train.steps': ' steps=1000', 'train.step': ''}
    """
    names = [key.rpartition(".")[2] for key in keys]
    if len(set(names)) < len(names):  # two keys end alike, so all are written out
        names = keys
    words = {}
    for key, name in zip(keys, names, strict=True):
        value = config.get(key, FIELDS_ADDED_LATER.get(key, ABSENT_WORD))
        if key == STEP_KEY and value is None:
            if STEPS_KEY in keys:  # which says it already
                words[key] = ""
                continue
            value = config.get(STEPS_KEY, ABSENT_WORD)
        words[key] = f" {name}={typed_text(value)}"
    return words


class Way(NamedTuple):
    """Columns that trainings share which are told apart by their settings: these are of one
    encoding, its yaml included.
    """

    source: str | None
    encoding: str
    data: str
    tokenizer: str
    trained_scale: str
    finetune: str


class Group(NamedTuple):
    """Trainings of one way at one length, with one set of the encoding's arguments: those that
    should differ in their seeds alone.
    """

    way: Way
    train_len: int
    encoding_args: str


def words_by_run(
    evaluations: "Iterable[Evaluation]", origins: Mapping[str, RunMetadata]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """({run_id: {key: words} that tell it from other trainings of its encoding}, all keys in which
    these trainings differ).

    The words are `setting_words` of `distinguishing_keys`. A key that is named at one training
    length, or with one set of the encoding's arguments, is named everywhere, so that one name means
    one way of training. If two of one seed have equal or unreadable configurations, the names of
    their sweeps are used, or else the hash in their run_id, since nothing else is known to differ.
    Where each way of training is a sweep with a name of its own, the name is used: rope (long)."""
    seeds: dict[Group, dict[str, int]] = defaultdict(dict)  # {group: {run_id: seed}}
    for evaluation in evaluations:
        seeds[_group_of(evaluation)][evaluation.first["run_id"]] = evaluation.first["seed"]
    configs: dict[Group, dict[str, dict]] = {}  # {group: {run_id: settings}, as far as readable}
    keys_of_way: dict[Way, dict[str, None]] = defaultdict(dict)  # ordered sets
    all_keys: dict[str, None] = {}
    for group, run_ids in seeds.items():
        configs[group] = _readable_settings(run_ids, origins)
        settings = list(configs[group].values())
        keys_of_way[group.way] |= dict.fromkeys(distinguishing_keys(settings))
        all_keys |= dict.fromkeys(_without_hash(values_of_differing_keys(settings)))
    words: dict[str, dict[str, str]] = {}
    for group, of_group in seeds.items():
        keys = list(keys_of_way[group.way])
        if keys:
            for run_id, config in configs[group].items():
                words[run_id] = setting_words(config, keys)
        alike = Counter(
            (*words.get(run_id, {}).values(), seed) for run_id, seed in of_group.items()
        )
        if max(alike.values()) > 1:
            # Mark the whole group, since it is unknown which seeds belong together.
            key, marks = _marks_of_equal_settings(of_group, origins)
            all_keys[key] = None
            for run_id, mark in marks.items():
                words[run_id] = {**words.get(run_id, {}), key: mark}
    _use_sweep_names(words, seeds, origins)
    return words, list(all_keys)


def _without_hash(keys: Iterable[str]) -> list[str]:
    """Keys without the hash of the text, where a word tells the texts apart."""
    keys = list(keys)
    is_told = any(key.partition(".")[0] == "data" and key != HASH_KEY for key in keys)
    return [key for key in keys if key != HASH_KEY or not is_told]


def _marks_of_equal_settings(
    seeds: Mapping[str, int], origins: Mapping[str, RunMetadata]
) -> tuple[str, dict[str, str]]:
    """Key and {run_id: words} that tell trainings of equal settings apart.

    They are the names of their sweeps, or else the hashes in their ids."""
    names = _sweep_names(seeds, origins)
    of_seeds = Counter((names.get(run_id), seed) for run_id, seed in seeds.items())
    if len(names) == len(seeds) and max(of_seeds.values()) == 1:
        return SWEEP_KEY, {run_id: f" ({name})" for run_id, name in names.items()}
    return "run_id", {run_id: f" run={name}" for run_id, name in _short_run_ids([*seeds]).items()}


def _sweep_names(run_ids: Iterable[str], origins: Mapping[str, RunMetadata]) -> dict[str, str]:
    """{run_id: name of the sweep that trained it}, as far as there is one.

    Experiments of posbench's own share trainings, so that their names tell nothing apart."""
    names = {}
    for run_id in run_ids:
        name = sweep_name(origins[run_id]) if run_id in origins else ""
        if name and name not in shipped_yamls("experiment"):
            names[run_id] = name
    return names


def _use_sweep_names(
    words: dict[str, dict[str, str]],
    seeds: Mapping[Group, Mapping[str, int]],
    origins: Mapping[str, RunMetadata],
) -> None:
    """Replace the `words` of a way whose settings differ as the names of its sweeps do.

    The keys stay; the first has the name of the sweep, the others nothing."""
    runs_of_way: dict[Way, list[str]] = defaultdict(list)
    for group, of_group in seeds.items():
        runs_of_way[group.way] += of_group
    for run_ids in runs_of_way.values():
        names = _sweep_names(run_ids, origins)
        pairs = {(names.get(run_id), typed_text(words.get(run_id))) for run_id in run_ids}
        sweeps = {sweep for sweep, _ in pairs}
        settings = {words_of_run for _, words_of_run in pairs}
        # Each sweep has one setting, each setting one sweep, and there are several.
        one_to_one = len(sweeps) == len(settings) == len(pairs) > 1
        if not one_to_one or None in sweeps or not all(run_id in words for run_id in run_ids):
            continue
        for run_id in run_ids:
            first, *others = words[run_id]
            words[run_id] = {first: f" ({names[run_id]})", **dict.fromkeys(others, "")}


def _group_of(evaluation: "Evaluation") -> Group:
    """Group of an evaluation's training, among trainings that columns of rows do not tell apart."""
    row = evaluation.first
    way = Way(
        evaluation.source,
        closest_yaml_name("encoding", row["encoding"], row["encoding_args"]),
        typed_text(row["data"]),
        typed_text(row["tokenizer"]),
        typed_text(row["trained_scale"]),
        typed_text(run_prefix(row["finetune"] or "")),
    )
    return Group(way, row["train_len"], typed_text(row["encoding_args"]))


def _readable_settings(
    run_ids: Iterable[str], origins: Mapping[str, RunMetadata]
) -> dict[str, dict[str, object]]:
    """{run_id: its settings} of the runs whose configuration can be read."""
    settings = {}
    for run_id in run_ids:
        if run_id in origins and origins[run_id].training:
            settings[run_id] = origins[run_id].training
    return settings


def _short_run_ids(run_ids: Sequence[str]) -> dict[str, str]:
    """{run_id: its hash}, or whole ids where two have one hash."""
    hashes = [run_id.rsplit("-", 1)[-1] for run_id in run_ids]
    if len(set(hashes)) < len(hashes):
        return {run_id: run_id for run_id in run_ids}
    return dict(zip(run_ids, hashes, strict=True))


def inventory_words(runs: Sequence[RunMetadata]) -> dict[Path, str]:
    """{path: words such as " steps=1000"} that tell trainings of one encoding apart, seeds aside.

    A key has no word in a run that lacks it, if others have it. Where more than two keys differ,
    their commonest values have no words either.
    """
    groups: dict[str, list[RunMetadata]] = defaultdict(list)
    for metadata in runs:
        groups[typed_text(metadata.config.get("encoding._target_"))].append(metadata)
    words: dict[Path, str] = {}
    for group in groups.values():
        configs = [_encoding_settings(run.config) | run.training for run in group]
        values_of_keys = distinguishing_keys(configs)  # {key: its value in each run}
        omit_common = len(values_of_keys) > 2
        for i, (metadata, config) in enumerate(zip(group, configs, strict=True)):
            key_words = setting_words(config, list(values_of_keys))
            words[metadata.path] = "".join(
                key_words[key]
                for key, values in values_of_keys.items()
                if values[i] != _without_word(values, omit_common)
            )
    return words


def _without_word(values: Sequence[str], omit_common: bool) -> str | None:
    """The one of a key's values that is not worth a word; None where all are.

    It is (absent) if a run lacks the key, else with `omit_common` the commonest.
    """
    if ABSENT_WORD in values:
        return ABSENT_WORD
    return statistics.mode(values) if omit_common else None


def _encoding_settings(config: Mapping[str, object]) -> dict[str, object]:
    """Settings of an encoding; a method inside it by its name: encoding.scaling=yarn in place of
    the class behind _target_.
    """
    settings = {}
    for key, value in config.items():
        place, _, last = key.rpartition(".")
        if not key.startswith("encoding.") or last == CHOICE_KEY:
            continue
        if last == "_target_" and isinstance(value, str) and value:
            settings[place] = method_name(
                {"_target_": value, CHOICE_KEY: config.get(f"{place}.{CHOICE_KEY}")}
            )
        else:
            settings[key] = value
    return settings
