"""Legality of combinations, checked before data is read or weights are made. A refusal names the
legal alternatives.

There is no table of pairs. A method declares what it needs and offers (`Trait`), and the plan of a
pair shows what it changes. So a new method is judged by the same rules."""

import importlib
import pkgutil
from dataclasses import dataclass

from posbench.common.errors import ConfigError
from posbench.config.names import named
from posbench.position.effect import changes, equal, masks
from posbench.position.geometry import Bias, Span, Trait
from posbench.position.interfaces import ANY, Encoding, Extension, ScaleAttention
from posbench.position.plan import make_plan

EXTENSIONS = "posbench.extensions"  # searched for modules, so that a new method is in no list
REASONS = {
    Trait.COORDINATE: "has no coordinates to move",
    Trait.RELATIVE: "does not score by distance alone, so a band cannot have its own",
    Trait.SPECTRUM: "has no spectrum to change",
    Trait.TABLE: "has no learned table to lengthen",
}


@dataclass(frozen=True)
class Verdict:
    """Result for a legal combination.

    `untested`: no method names a test of a pair. `noop`: reason why it provably changes nothing,
    else None. `source`: sources of the tests."""

    untested: bool = False
    noop: str | None = None
    source: str = ""


def check(
    encoding: Encoding,
    extension: Extension,
    scale: ScaleAttention,
    lengths: list[int],
    allow_untested: bool = False,
) -> Verdict:
    """Judge one combination at the evaluated lengths (tokens). Raises ConfigError with the
    alternatives if it may not run.
    """
    names = name_of(encoding), name_of(extension), name_of(scale)
    if (
        target := extension.target_len(max(lengths))
    ) % 1:  # of a checkpoint's own factor it need not be whole
        raise ConfigError(
            f"extension.target_len={target} is not a whole number of tokens: give {round(target)},"
            " or another one."
        )
    noop = check_extension(encoding, extension, lengths) or check_scale(
        encoding, extension, scale, lengths
    )
    if noop:
        return Verdict(noop=noop)
    sources = {
        f"{names[0]}+{name_of(other)}": tested(encoding, other) for other in (extension, scale)
    }
    untested = [pair for pair, source in sources.items() if source is None]
    if untested and not allow_untested:
        raise ConfigError(
            f"{' and '.join(untested)} is defined but no test of it is known: add"
            f" allow_untested=true to run it (its rows are marked), or {_alternatives(encoding)}."
        )
    return Verdict(untested=bool(untested), source="; ".join(filter(None, sources.values())))


def check_extension(encoding: Encoding, extension: Extension, lengths: list[int]) -> str | None:
    """Reason why the extension provably changes nothing, else None. Raises ConfigError if it is not
    defined.
    """
    name, extended = (
        name_of(extension),
        [layer.encoding for layer in encoding.layers() if layer.extended],
    )
    fed = fed_length(extension, encoding.shape.train_len, max(lengths))
    for one in dict.fromkeys(extended):
        missing = extension.needs & ~one.traits
        # Without coordinates an extension can only mask keys; anything else is a no-op.
        if missing and (
            Trait.COORDINATE in one.traits
            or (Trait.CONTENT in one.traits and not masks(encoding, extension, fed))
        ):
            trait = next(iter(missing))
            lack = encoding.without(trait) or REASONS[trait]
            raise ConfigError(
                f"{_layers(encoding, one)} {lack}, which extension={name} needs:"
                f" {_alternatives(encoding)}."
            )
        split = (
            Bias.ROWS in one.biases and len(extension.bands(_span(encoding, extension, fed))) > 1
        )
        if split and (Trait.COORDINATE in one.traits or masks(encoding, extension, fed)):
            raise ConfigError(
                f"{_layers(encoding, one)} weighs a whole row of keys at once, and extension={name}"
                f" sees it in several bands: {_alternatives(encoding)}."
            )
    _check_bounds(encoding, extension, lengths, name)
    if name == "none" or fed != max(lengths):
        return None
    judged = dict.fromkeys(
        (max(lengths), min(max(lengths), encoding.shape.train_len))
    )  # the longest first: most extensions differ there
    if not any(changes(encoding, extension, length) for length in judged):
        if not any(Trait.COORDINATE in one.traits for one in extended):
            others = any(Trait.COORDINATE in layer.encoding.traits for layer in encoding.layers())
            where = " in the layers that an extension acts on" if others else ""
            return (
                f"{_subject(encoding)} has no positions{where}, so extension={name} changes nothing"
            )
        return (
            f"extension={name} sees every pair as {_subject(encoding)} does without it, up to"
            f" length {max(lengths)}"
        )
    return None


def check_scale(
    encoding: Encoding, extension: Extension, scale: ScaleAttention, lengths: list[int]
) -> str | None:
    """Reason why the scale provably changes nothing, else None. Raises ConfigError if it is not
    defined.
    """
    name, train_len = name_of(scale), encoding.shape.train_len
    if name == "none":
        return None
    if scale.trained:
        raise ConfigError(
            f"scale_attention={name} has learned parameters, so it must be trained in with"
            f" train.scale_attention={name}."
        )
    if not _scaled(encoding, scale, f"scale_attention={name}"):
        return (
            f"no head of {_subject(encoding)} lets a scale act, so scale_attention={name} changes"
            " nothing"
        )
    if scale.sinks:
        return None
    if max(lengths) > train_len:
        # Both plans contain the extension's temperature, so only the scale can make their factors
        # differ.
        fed = fed_length(extension, train_len, max(lengths))
        plans = (make_plan(encoding, extension, one, length=fed) for one in (scale, None))
        if all(
            not a.distance_rules and equal(a.factor, b.factor)
            for a, b in zip(*(plan.layers for plan in plans), strict=True)
        ):
            return (
                f"scale_attention={name} changes nothing: with extension={name_of(extension)} no"
                " query sees more keys than in training"
            )
    return None


def check_trained_scale(encoding: Encoding, scale: ScaleAttention) -> None:
    """Check a scale for training. Raises ConfigError if it cannot be trained in or is 1 throughout
    training.
    """
    name = name_of(scale)
    if name == "none":
        return
    if not _scaled(encoding, scale, f"train.scale_attention={name}"):
        raise ConfigError(
            f"train.scale_attention={name} has no effect: no head of encoding={name_of(encoding)}"
            " lets a scale act."
        )
    plan = make_plan(encoding, length=encoding.shape.train_len, trained_scale=scale)
    if not scale.trained and all(
        layer.factor is None and not layer.distance_rules and not layer.has_sink
        for layer in plan.layers
    ):
        raise ConfigError(
            f"train.scale_attention={name} is 1 for every query of {encoding.shape.train_len}"
            f" tokens, so training never meets it: use scale_attention={name} at evaluation, or a"
            " form that acts within the training length."
        )


def name_of(method: object) -> str:
    """Name by which a method is chosen: its yaml's. For a class, or a method made without yaml, the
    name of its file.
    """
    node = getattr(method, "node", None)
    if node is None:
        return file_of(method)
    kinds = {"encoding": Encoding, "extension": Extension, "scale_attention": ScaleAttention}
    group = next(name for name, kind in kinds.items() if isinstance(method, kind))
    return named(group, node)


def file_of(method: object) -> str:
    """Name of a method's file, as used in `tested_with`."""
    return (method if isinstance(method, type) else type(method)).__module__.split(".")[-1]


def fed_length(extension: Extension, train_len: int, length: int) -> int:
    """Number of tokens that the model reads at once for one target in a text of `length` tokens."""
    crop = extension.crop(Span(train_len, length, extension.target_len(length)))
    return length if crop is None else min(crop, length)


def _scaled(encoding: Encoding, scale: ScaleAttention, choice: str) -> list[Encoding]:
    """Encodings of the layers that a scale acts on. Raises ConfigError, naming `choice`, if one of
    them cannot be scaled.
    """
    layers = [layer.encoding for layer in encoding.layers() if layer.scaled or scale.sinks]
    scaled = [
        one
        for one in layers
        if (heads_H := one.scaled_heads()) is None or heads_H.any() or scale.sinks
    ]
    for one in scaled:
        if scale.by_distance and one.scaled_heads() is not None:
            raise ConfigError(
                f"{_layers(encoding, one)} lets a scale act only on some heads, but {choice} acts"
                " by distance: choose none."
            )
        if Bias.ROWS in one.biases and scale.by_distance:
            raise ConfigError(
                f"{_layers(encoding, one)} weights whole rows, which {choice} cannot scale by"
                " distance: choose none."
            )
        if Bias.ROWS in one.biases and scale.sinks:
            raise ConfigError(
                f"{_layers(encoding, one)} weights whole rows, where {choice} cannot add a sink:"
                " choose none."
            )
        if not one.scalable:
            raise ConfigError(
                f"{_layers(encoding, one)} has no softmax whose logits {choice} could scale: choose"
                " none."
            )
    return scaled


def _subject(encoding: Encoding) -> str:
    """Name of an encoding in messages, such as "encoding=rope" or "GPT2LMHeadModel"."""
    return encoding.subject or f"encoding={name_of(encoding)}"


def _layers(encoding: Encoding, one: Encoding) -> str:
    """Text that names the chosen encoding, and the layers of `one` if it is a part of that
    encoding.
    """
    if one is encoding or encoding.subject is not None:
        return _subject(encoding)
    return f"{_subject(encoding)}, in its {name_of(one)} layers,"


def _span(encoding: Encoding, extension: Extension, length: int) -> Span:
    return Span(encoding.shape.train_len, length, extension.target_len(length))


def tested(encoding: Encoding, other: Extension | ScaleAttention | type[Extension]) -> str | None:
    """Source of a test of a pair, or of its definition: empty if it needs none, None if neither
    method names one.
    """
    if ANY in (encoding.tested_with, other.tested_with):
        return ""
    for method, name in (
        (other, encoding.tested_as or file_of(encoding)),
        (encoding, file_of(other)),
    ):
        if name in method.tested_with:
            return f"{file_of(method)}: {method.tested_with[name]}"
    return None


def _alternatives(encoding: Encoding) -> str:
    """The way out of a refusal, such as "with encoding=alibi choose extension=none|window"."""
    legal = []
    for module in pkgutil.iter_modules(importlib.import_module(EXTENSIONS).__path__):
        for found in vars(importlib.import_module(f"{EXTENSIONS}.{module.name}")).values():
            own = (
                isinstance(found, type)
                and issubclass(found, Extension)
                and file_of(found) == module.name
            )
            if not own or (encoding.in_place and (found.crops() or module.name == "none")):
                continue
            if not found.needs & ~encoding.traits and tested(encoding, found) is not None:
                legal.append(module.name)
    extensions = f"choose extension={'|'.join(legal)}"
    return extensions if encoding.subject else f"with encoding={name_of(encoding)} {extensions}"


def _check_bounds(encoding: Encoding, extension: Extension, lengths: list[int], name: str) -> None:
    train_len, rows_NC = encoding.shape.train_len, encoding.rows()
    if Trait.UNBOUNDED in encoding.traits or Trait.COORDINATE not in encoding.traits:
        return
    for length in lengths:
        fed = fed_length(extension, train_len, length)
        span = _span(encoding, extension, fed)
        limit = (
            len(extension.rows(rows_NC, span))
            if rows_NC is not None
            else encoding.limit or train_len
        )
        if encoding.limit is not None and fed > encoding.limit:
            farthest = fed - 1
        else:
            band = make_plan(encoding, extension, length=fed).layers[0].bands[0]
            farthest = max(band.q_pos_T.max(), band.k_pos_T.max())
        if farthest >= limit:
            ways = []
            if not encoding.in_place:
                ways.append(
                    "extension=recompute_window"
                    if fed == length
                    else f"extension.window of at most {limit}"
                )
            if encoding.limit is not None:
                ways.append("a larger encoding.max_len")
            elif name == "none":
                ways.insert(0, "extension=pi")
            if encoding.subject is None:
                ways.append("another encoding")
            way_out = f", or choose {' or '.join(ways)}" if ways else ""
            raise ConfigError(
                f"{_subject(encoding)} has no position {int(farthest)}: it was trained for"
                f" train_len={train_len} and length={length} was asked with extension={name};"
                f" evaluate up to {max(limit, extension.target_len(1))}{way_out}."
            )
