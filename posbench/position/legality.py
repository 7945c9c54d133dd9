"""Legality of combinations, checked before data is read or weights are made.

A refusal names the legal alternatives. There is no table of pairs. A method declares what it needs
and offers (`Trait`), and the plan of a pair shows what it changes. So a new method is judged by the
same rules."""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from posbench.common.errors import ConfigError
from posbench.config.identity import POSBENCH_PREFIX
from posbench.config.names import display_name
from posbench.position.effect import changes_plan, equal_or_both_none, hides_keys
from posbench.position.geometry import Bias, Span, Trait
from posbench.position.instantiate import nodes_within
from posbench.position.interfaces import TESTED_WITH_ALL, Encoding, Extension, ScaleAttention
from posbench.position.plan import make_plan

EXTENSIONS_PACKAGE = (
    "posbench.extensions"  # searched for modules, so that a new method is in no list
)
LACK_OF_TRAIT = {
    Trait.COORDINATE: "has no coordinates to move",
    Trait.RELATIVE: "does not score by distance alone, so a band cannot have its own",
    Trait.SPECTRUM: "has no spectrum to change",
    Trait.TABLE: "has no learned table to lengthen",
}


@dataclass(frozen=True)
class Verdict:
    """Result for a legal combination.

    `untested`: no method names a test of a pair. `of_user`: the same of a pair with a method from
    outside posbench, which needs no test. `noop`: reason why it provably changes nothing, else
    None. `source`: sources of the tests."""

    untested: bool = False
    of_user: bool = False
    noop: str | None = None
    source: str = ""


def verdict_of(
    encoding: Encoding,
    extension: Extension,
    scale: ScaleAttention,
    lengths: list[int],
    allow_untested: bool = False,
) -> Verdict:
    """Judge one combination at the evaluated lengths (tokens).

    Raises ConfigError with the alternatives if it may not run."""
    target = extension.target_len(max(lengths))
    # The factor of a checkpoint's configuration may lead to a part of a token, which no text has.
    if target % 1:
        raise ConfigError(
            f"extension.target_len={target} is not a whole number of tokens: give {round(target)},"
            " or another one."
        )
    noop = check_extension(encoding, extension, lengths)
    if noop is None:
        noop = check_scale(encoding, extension, scale, lengths)
    if noop is not None:
        return Verdict(noop=noop)
    sources = []
    untested = []  # pairs without a source
    of_user = False  # True if one is the user's method, of which nobody can name a test
    for other in (extension, scale):
        source = source_of_test(encoding, other)
        if source is not None:
            sources.append(source)
        elif is_of_user(encoding) or is_of_user(other):
            of_user = True
        else:
            untested.append(f"{name_of(encoding)}+{name_of(other)}")
    if untested and not allow_untested:
        raise ConfigError(
            f"{' and '.join(untested)} is defined but no test of it is known: add"
            " allow_untested=true to run it (its rows are marked), or"
            f" {_advice_on_alternatives(encoding)}."
        )
    source = "; ".join(filter(None, sources))
    # Where both hold, untested says more: rows are marked by it.
    return Verdict(untested=bool(untested), of_user=of_user and not untested, source=source)


def check_extension(encoding: Encoding, extension: Extension, lengths: list[int]) -> str | None:
    """Reason why the extension provably changes nothing, else None.

    Raises ConfigError if it is not defined."""
    longest = max(lengths)
    fed = fed_length(extension, encoding.shape.train_len, longest)
    layer_encodings = [layer.encoding for layer in encoding.layers() if layer.extended]
    for layer_encoding in dict.fromkeys(layer_encodings):
        _check_traits(encoding, layer_encoding, extension, fed)
        _check_rows_of_keys(encoding, layer_encoding, extension, fed)
    for length in lengths:
        _check_positions_exist(encoding, extension, length)
    name = name_of(extension)
    if name == "none":  # is meant to change nothing
        return None
    if fed != longest:  # a cropped text is always another one
        return None
    # The longest first: most extensions differ there. LongRoPE's short_factors act within training
    # alone.
    judged_lengths = dict.fromkeys((longest, min(longest, encoding.shape.train_len)))
    if any(changes_plan(encoding, extension, length) for length in judged_lengths):
        return None
    if all(layer.encoding.mixes for layer in encoding.layers()):
        return f"{_subject(encoding)} has no attention, so extension={name} changes nothing"
    if any(Trait.COORDINATE in layer_encoding.traits for layer_encoding in layer_encodings):
        return (
            f"extension={name} sees every pair as {_subject(encoding)} does without it, up to"
            f" length {longest}"
        )
    where = ""
    if any(Trait.COORDINATE in layer.encoding.traits for layer in encoding.layers()):
        where = " in the layers that an extension acts on"
    return f"{_subject(encoding)} has no positions{where}, so extension={name} changes nothing"


def _check_traits(
    encoding: Encoding, layer_encoding: Encoding, extension: Extension, fed: int
) -> None:
    """Raise ConfigError for a layer that lacks a trait that the extension needs.

    `fed` is the number of tokens that the model reads at once."""
    missing = extension.needs & ~layer_encoding.traits
    if not missing:
        return
    if Trait.COORDINATE not in layer_encoding.traits:
        # Without coordinates an extension hides keys or is a no-op: both are allowed. Positions
        # that come from the content are no coordinates, and it cannot change them.
        is_noop = Trait.CONTENT not in layer_encoding.traits
        if is_noop or hides_keys(encoding, extension, fed):
            return
    trait = next(iter(missing))
    # Each has words of its own for the lack, or None.
    lack = encoding.without(trait) or layer_encoding.without(trait) or LACK_OF_TRAIT[trait]
    raise ConfigError(
        f"{_subject_with_layers(encoding, layer_encoding)} {lack}, which"
        f" extension={name_of(extension)} needs: {_advice_on_alternatives(encoding)}."
    )


def _check_rows_of_keys(
    encoding: Encoding, layer_encoding: Encoding, extension: Extension, fed: int
) -> None:
    """Raise ConfigError for a layer that weighs whole rows of keys, which the extension splits."""
    if Bias.ROWS not in layer_encoding.biases:
        return
    if len(extension.bands(_span(encoding, extension, fed))) == 1:
        return
    # Without coordinates, bands that hide no key are a no-op, which is allowed.
    if Trait.COORDINATE in layer_encoding.traits or hides_keys(encoding, extension, fed):
        raise ConfigError(
            f"{_subject_with_layers(encoding, layer_encoding)} weighs a whole row of keys at once,"
            f" and extension={name_of(extension)} sees it in several bands:"
            f" {_advice_on_alternatives(encoding)}."
        )


def check_scale(
    encoding: Encoding, extension: Extension, scale: ScaleAttention, lengths: list[int]
) -> str | None:
    """Reason why the scale provably changes nothing, else None.

    Raises ConfigError if it is not defined."""
    name = name_of(scale)
    if name == "none":
        return None
    if encoding.subject is not None:
        _check_scale_in_place(encoding, scale)
    if scale.trained:
        raise ConfigError(
            f"scale_attention={name} has learned parameters, so it must be trained in with"
            f" train.scale_attention={name}."
        )
    if not _scaled_encodings(encoding, scale, f"scale_attention={name}"):
        return (
            f"no head of {_subject(encoding)} lets a scale act, so scale_attention={name} changes"
            " nothing"
        )
    train_len = encoding.shape.train_len
    # Those three act on every text, and within training a scale is expected to change nothing.
    if scale.sinks or scale.weighs_rows or scale.reads_content or max(lengths) <= train_len:
        return None
    # Both plans contain the extension's temperature, so only the scale can make their factors
    # differ.
    fed = fed_length(extension, train_len, max(lengths))
    scaled = make_plan(encoding, extension, scale, length=fed)
    plain = make_plan(encoding, extension, length=fed)
    for layer, plain_layer in zip(scaled.layers, plain.layers, strict=True):
        if layer.distance_rules or not equal_or_both_none(layer.factor, plain_layer.factor):
            return None
    return (
        f"scale_attention={name} changes nothing: with extension={name_of(extension)} no query sees"
        " more keys than in training"
    )


def _check_scale_in_place(encoding: Encoding, scale: ScaleAttention) -> None:
    """Raise ConfigError for a scale that a model of transformers cannot have."""
    if scale.trained:
        lack = "has parameters that are learned in training"
    elif scale.reads_content:
        lack = "reads the input of each layer, which the model's attention does not pass on"
    else:
        return
    raise ConfigError(
        f"{_subject(encoding)} cannot have scale_attention={name_of(scale)}, which {lack}: choose"
        " none, or another such as log_n."
    )


def check_trained_scale(encoding: Encoding, scale: ScaleAttention) -> None:
    """Check a scale for training. Raises ConfigError if it cannot be trained in or is 1 throughout
    training.
    """
    name = name_of(scale)
    if name == "none":
        return
    if not _scaled_encodings(encoding, scale, f"train.scale_attention={name}"):
        raise ConfigError(
            f"train.scale_attention={name} has no effect: no head of encoding={name_of(encoding)}"
            " lets a scale act."
        )
    if scale.trained or scale.reads_content or scale.weighs_rows:  # it acts at every length
        return
    plan = make_plan(encoding, length=encoding.shape.train_len, trained_scale=scale)
    for layer in plan.layers:
        if layer.factor is not None or layer.distance_rules or layer.has_sink:
            return
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
    return display_name(group, node)


def file_of(method: object) -> str:
    """Name of a method's file, as used in `tested_with`."""
    return (method if isinstance(method, type) else type(method)).__module__.split(".")[-1]


def is_of_user(method: object) -> bool:
    """True for a method, or one with a part, whose class (or itself, a class) is not posbench's."""
    if isinstance(method, type):
        return not method.__module__.startswith(POSBENCH_PREFIX)
    if is_of_user(type(method)):
        return True
    nodes = nodes_within(getattr(method, "node", None))
    return any(not str(node["_target_"]).startswith(POSBENCH_PREFIX) for _, node in nodes)


def fed_length(extension: Extension, train_len: int, length: int) -> int:
    """Number of tokens that the model reads at once for one target in a text of `length` tokens."""
    crop = extension.crop(Span(train_len, length, extension.target_len(length)))
    return length if crop is None else min(crop, length)


def _check_alike_in_layers(scale: ScaleAttention, choice: str) -> None:
    """Raise ConfigError for an own scale whose factor differs between layers: without parameters
    that are trained, all layers of a plan share that of layer 0.
    """
    if not is_of_user(scale) or scale.trained or scale.reads_content:
        return
    if scale.shape is None:  # made by hand for posbench.extend, before it knows its model
        return
    train_len = scale.shape.train_len
    span = Span(train_len, length=2 * train_len, target_len=2 * train_len)
    n_T = torch.arange(1, span.length + 1, dtype=torch.float64)
    first = scale(n_T, span, 0)
    for layer in range(1, scale.shape.n_layer):
        if not torch.equal(scale(n_T, span, layer), first):
            raise ConfigError(
                f"{choice} has another factor in layer {layer} than in layer 0, and only one with"
                " trained=True may: give all layers one."
            )


def _scaled_encodings(encoding: Encoding, scale: ScaleAttention, choice: str) -> list[Encoding]:
    """Encodings of the layers that a scale acts on.

    Raises ConfigError, naming `choice`, if one of them cannot be scaled, or the scale is none that
    layers may share."""
    _check_alike_in_layers(scale, choice)
    scaled = []
    for layer in encoding.layers():
        # A sink joins the softmax of every attention, whether its scores are scaled or not.
        has_sink = scale.sinks and not layer.encoding.mixes
        if has_sink or (layer.scaled and _scales_a_head(layer.encoding)):
            scaled.append(layer.encoding)
    for layer_encoding in scaled:
        problem = _scale_problem(layer_encoding, scale, choice)
        if problem is not None:
            raise ConfigError(
                f"{_subject_with_layers(encoding, layer_encoding)} {problem}: choose none."
            )
    return scaled


def _scales_a_head(encoding: Encoding) -> bool:
    heads_H = encoding.scaled_heads()
    return heads_H is None or bool(heads_H.any())


def _scale_problem(encoding: Encoding, scale: ScaleAttention, choice: str) -> str | None:
    """Reason why an encoding cannot be scaled, as the predicate of a sentence; None if it can."""
    if scale.by_distance and encoding.scaled_heads() is not None:
        return f"lets a scale act only on some heads, but {choice} acts by distance"
    if Bias.ROWS in encoding.biases and scale.by_distance:
        return f"weights whole rows, which {choice} cannot scale by distance"
    if Bias.ROWS in encoding.biases and scale.sinks:
        return f"weights whole rows, where {choice} cannot add a sink"
    if Bias.ROWS in encoding.biases and scale.weighs_rows:
        return f"weights whole rows, as {choice} does, and only one of them can"
    if not encoding.scalable:
        return f"has no softmax whose logits {choice} could scale"
    return None


def _subject(encoding: Encoding) -> str:
    """Name of an encoding in messages, such as "encoding=rope" or "GPT2LMHeadModel"."""
    return encoding.subject or f"encoding={name_of(encoding)}"


def _subject_with_layers(encoding: Encoding, layer_encoding: Encoding) -> str:
    """Name of the chosen encoding, with the kind of its layers, such as "encoding=hybrid, in its
    rope layers,", where it has several.
    """
    if layer_encoding is encoding or encoding.subject is not None:
        return _subject(encoding)
    return f"{_subject(encoding)}, in its {name_of(layer_encoding)} layers,"


def _span(encoding: Encoding, extension: Extension, length: int) -> Span:
    return Span(encoding.shape.train_len, length, extension.target_len(length))


def source_of_test(
    encoding: Encoding, other: Extension | ScaleAttention | type[Extension]
) -> str | None:
    """Source of a test of a pair, or of its definition: empty if it needs none, None if neither
    method names one.
    """
    if TESTED_WITH_ALL in (encoding.tested_with, other.tested_with):
        return ""
    encoding_name = encoding.tested_as or file_of(encoding)
    for method, partner in ((other, encoding_name), (encoding, file_of(other))):
        if partner in method.tested_with:
            return f"{file_of(method)}: {method.tested_with[partner]}"
    return None


def _advice_on_alternatives(encoding: Encoding) -> str:
    """Way out of a refusal, such as "with encoding=alibi choose extension=none|window"."""
    legal = [
        file_of(extension) for extension in _extension_classes() if _is_legal(encoding, extension)
    ]
    advice = f"choose extension={'|'.join(legal)}"
    if encoding.subject:  # a model in place, whose encoding was never chosen
        return advice
    return f"with encoding={name_of(encoding)} {advice}"


def _extension_classes() -> Iterator[type[Extension]]:
    """Classes of posbench's extensions, in the order of their files."""
    for file in pkgutil.iter_modules(importlib.import_module(EXTENSIONS_PACKAGE).__path__):
        module = importlib.import_module(f"{EXTENSIONS_PACKAGE}.{file.name}")
        for value in vars(module).values():
            is_extension = isinstance(value, type) and issubclass(value, Extension)
            if is_extension and file_of(value) == file.name:  # others are imported there
                yield value


def _is_legal(encoding: Encoding, extension: type[Extension]) -> bool:
    """True for an extension that an encoding has the traits for, and that is tested with it."""
    if encoding.in_place and (extension.crops() or file_of(extension) == "none"):
        return False
    if extension.needs & ~encoding.traits:
        return False
    return is_of_user(encoding) or source_of_test(encoding, extension) is not None


def _check_positions_exist(encoding: Encoding, extension: Extension, length: int) -> None:
    """Raise ConfigError if a text has coordinates that the encoding was not trained for."""
    if Trait.UNBOUNDED in encoding.traits or Trait.COORDINATE not in encoding.traits:
        return
    train_len = encoding.shape.train_len
    fed = fed_length(extension, train_len, length)
    rows_NC = encoding.rows()
    # Number of positions that exist: those of a table are its rows, as the extension changes them.
    if rows_NC is None:
        limit = encoding.limit or train_len
    else:
        limit = len(extension.rows(rows_NC, _span(encoding, extension, fed)))
    if encoding.limit is not None and fed > encoding.limit:
        farthest = fed - 1  # no plan can be made
    else:
        # A table is read at the coordinates of the nearest band, the first one.
        band = make_plan(encoding, extension, length=fed).layers[0].bands[0]
        farthest = int(max(band.q_pos_T.max(), band.k_pos_T.max()))
    if farthest < limit:
        return
    # A fixed target is the target of a text of any length, so that of 1 token tells it. Texts up to
    # it keep within the limit.
    fixed_target = extension.target_len(1)
    ways = _ways_to_stay_within(encoding, extension, limit, cropped=fed < length)
    way_out = f", or choose {' or '.join(ways)}" if ways else ""
    raise ConfigError(
        f"{_subject(encoding)} has no position {farthest}: it was trained for"
        f" train_len={train_len} and length={length} was asked with"
        f" extension={name_of(extension)};"
        f" evaluate up to {max(limit, fixed_target)}{way_out}."
    )


def _ways_to_stay_within(
    encoding: Encoding, extension: Extension, limit: int, cropped: bool
) -> list[str]:
    """Choices that keep a text within `limit`, the positions that exist: a table's rows, the
    encoding's own limit or the training length.
    """
    ways = []
    # An encoding's own limit is one of the text's length, which PI leaves as it is.
    if encoding.limit is None and name_of(extension) == "none":
        ways.append("extension=pi")
    # In place a text has a cache, so no extension may crop it.
    if not encoding.in_place and cropped:
        ways.append(f"extension.window of at most {limit}")
    elif not encoding.in_place:
        ways.append("extension=recompute_window")
    if encoding.limit is not None:
        ways.append("a larger encoding.max_len")
    if encoding.subject is None:  # a checkpoint has the encoding that it has
        ways.append("another encoding")
    return ways
