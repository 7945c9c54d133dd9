"""An anatomy in words: lines for the terminal, and notes below its picture."""

from posbench.common.quantities import plural
from posbench.position.default_beta import PUBLISHED_BETA

PROPERTIES = {
    "unique": "a code for each position",
    "relative": "relative after q.k",
    "any_length": "the same at any length",
    "as_trained": "as in training",
    "beyond_training": "defined beyond training",
    "bounded": "no unseen distance",
}
DIMENSIONLESS = {  # {number: (heading of its column, meaning)}
    "share_full_turns": (
        "share of full turns",
        "share of the pairs that make a full turn in training",
    ),
    "share_full_turns_after": ("share after", "the same share of the changed frequencies"),
    "r_max": ("turns", "turns of the fastest pair"),
    "beta_over_r_max": ("beta/turns", "beta / turns of the fastest pair"),
    "slope_x_length": ("bias", "bias of the flattest head at the training length"),
    "decay_x_length": ("decay", "decay of the slowest pair at the training length (nats)"),
    "exact_over_train_len": ("exact", "exact up to (training lengths)"),
    "keys_over_train_len": ("keys", "keys seen (training lengths)"),
    "window_over_train_len": ("window", "window of the layer (training lengths)"),
    "reach_over_trained": ("reach", "farthest distance / farthest in training"),
    "beta": ("beta", f"turns from which a pair is kept (beta; {PUBLISHED_BETA:g} is published)"),
}
SHARE_KEYS = ("share_full_turns", "share_full_turns_after")
ANSWER_WORDS = {True: "yes", False: "no", None: "-"}


def methods_title(numbers: dict) -> str:
    """Title of the form encoding + extension + scale, without those that are `none`.

    >>> none = {"trained_scale": "none", "scale_attention": "none"}
    >>> methods_title({"encoding": "rope", "extension": "yarn", **none})
    'rope + yarn'
    """
    parts = [numbers["encoding"]]
    if numbers["trained_scale"] != "none":
        parts.append(f"trained {numbers['trained_scale']}")
    parts += [numbers[key] for key in ("extension", "scale_attention") if numbers[key] != "none"]
    return " + ".join(parts)


def lengths_in_words(numbers: dict) -> str:
    """Lengths of training and evaluation, such as "trained at 64 tokens, asked for 256"."""
    length, target, fed = (numbers[key] for key in ("length", "target_len", "fed"))
    words = f"trained at {numbers['train_len']} tokens, asked for {length}"
    if target not in (length, fed):
        words += f", configured for {target}"
    if fed != length:
        words += f", fed {fed} at a time"
    return words


def reader_notes(numbers: dict) -> list[str]:
    """Notes that a reader of the curves must know."""
    lines = []
    if numbers.get("noop"):
        lines.append(f"No-op: {numbers['noop']}.")
    if numbers["n_parameters"]:
        state = "as trained" if numbers.get("run") else "at their initial values"
        lines.append(f"{numbers['n_parameters']:,} learned numbers, {state}.")
    if numbers["without_attention"]:
        layers = plural(len(numbers["without_attention"]), "layer")
        lines.append(f"{layers} without attention, which have no scores and are not shown.")
    if "gates" in numbers["depends_on_content"]:
        lines.append("Gates depend on content: shown for a token of zeros.")
    if "weights" in numbers["depends_on_content"]:
        lines.append("Weights depend on content: shown where all content scores are 0.")
    if "content_bias" in numbers["depends_on_content"]:
        lines.append("A bias depends on content: shown for tokens of zeros.")
    if "content_positions" in numbers["depends_on_content"]:
        lines.append("Positions depend on content: shown for tokens placed by their index.")
    if numbers.get("untested"):
        lines.append("A pair its authors have not tested.")
    if numbers.get("own"):
        lines.append("An own method: its file names no test of this pair.")
    return lines


def named_values(names: dict[str, str], values: dict) -> str:
    """Text of the form name: value; name: value; ... of the values that there are.

    >>> named_values({"unique": "a code for each position", "beta": "beta"}, {"beta": 31.96251})
    'beta: 31.96'
    """
    texts = [
        f"{name}: {_value_in_words(key, values[key])}"
        for key, name in names.items()
        if key in values
    ]
    return "; ".join(texts)


def _value_in_words(key: str, value: float | bool | None) -> str:
    """Value of a property (yes, no, - where it does not apply) or of a number."""
    if isinstance(value, bool | None):
        return ANSWER_WORDS[value]
    if key in SHARE_KEYS:
        return f"{100 * value:.3g} %"
    return f"{value:.4g}" if key == "beta" else f"{value:.3g}"


def summary_lines(numbers: dict) -> list[str]:
    """Lines of the terminal: title, kinds of layers, properties, dimensionless numbers, notes."""
    several_kinds = len(numbers["layers"]) > 1
    meanings = {key: meaning for key, (_, meaning) in DIMENSIONLESS.items()}
    return [
        f"{methods_title(numbers)}: {lengths_in_words(numbers)}",
        *(f"  {_layer_in_words(layer, several_kinds)}" for layer in numbers["layers"]),
        f"  {named_values(PROPERTIES, numbers['properties'])}",
        f"  {named_values(meanings, numbers['dimensionless'])}",
        *(f"  {note}" for note in reader_notes(numbers)),
    ]


def _layer_in_words(layer: dict, with_name: bool) -> str:
    """Keys and sinks of a kind of layer: "2 layers of rope: the last query sees 64 keys, ..."."""
    seen = [value for value in layer["distance"] if value is not None]
    text = f"the last query sees {len(seen)} keys, the farthest at {max(seen):.6g}"
    if layer["sink"]:
        logits = " ".join(f"{logit:.3g}" for logit in dict.fromkeys(layer["sink"]))
        text += f"; a sink of logit {logits}"
    if not with_name:
        return text
    return f"{plural(len(layer['numbers']), 'layer')} of {layer['name']}: {text}"
