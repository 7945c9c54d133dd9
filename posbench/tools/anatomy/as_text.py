"""An anatomy in words: lines for the terminal, and notes below its picture."""

from posbench.position.default_beta import PUBLISHED

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
    "beta": ("beta", f"turns from which a pair is kept (beta; {PUBLISHED:g} is published)"),
}
SHARES = ("share_full_turns", "share_full_turns_after")
ANSWERS = {True: "yes", False: "no", None: "-"}


def title(numbers: dict) -> str:
    """Title of the form encoding + extension + scale, without those that are `none`."""
    others = [numbers[key] for key in ("extension", "scale_attention") if numbers[key] != "none"]
    trained = [f"trained {numbers['trained_scale']}"] if numbers["trained_scale"] != "none" else []
    return " + ".join([numbers["encoding"], *trained, *others])


def lengths_asked(numbers: dict) -> str:
    """Lengths of training and evaluation, in words."""
    fed = "" if numbers["fed"] == numbers["length"] else f", fed {numbers['fed']} at a time"
    target = (
        ""
        if numbers["target_len"] in (numbers["length"], numbers["fed"])
        else f", configured for {numbers['target_len']}"
    )
    return f"trained at {numbers['train_len']} tokens, asked for {numbers['length']}{target}{fed}"


def reader_notes(numbers: dict) -> list[str]:
    """Notes that a reader of the curves must know."""
    lines = []
    if numbers.get("noop"):
        lines.append(f"No-op: {numbers['noop']}.")
    if numbers["n_parameters"]:
        lines.append(
            f"{numbers['n_parameters']:,} learned numbers,"
            f" {'as trained' if numbers.get('run') else 'at their initial values'}."
        )
    if "gates" in numbers["depends_on_content"]:
        lines.append("Gates depend on content: shown for a token of zeros.")
    if "weights" in numbers["depends_on_content"]:
        lines.append("Weights depend on content: shown where all content scores are 0.")
    if numbers.get("untested"):
        lines.append("A pair its authors have not tested.")
    return lines


def named_values(names: dict[str, str], values: dict) -> str:
    """Text of the form name: value; name: value; ..."""
    return "; ".join(
        f"{name}: {_value_in_words(key, values[key])}"
        for key, name in names.items()
        if key in values
    )


def _value_in_words(key: str, value: float | bool | None) -> str:
    if isinstance(value, bool | None):
        return ANSWERS[value]
    if key in SHARES:
        return f"{100 * value:.3g} %"
    return f"{value:.4g}" if key == "beta" else f"{value:.3g}"


def summary(numbers: dict) -> list[str]:
    """Lines of the terminal: title, each kind of layer, properties, dimensionless numbers,
    notes.
    """
    lines = [f"{title(numbers)}: {lengths_asked(numbers)}"]
    for layer in numbers["layers"]:
        seen = [value for value in layer["distance"] if value is not None]
        said = [f"the last query sees {len(seen)} keys, the farthest at {max(seen):.6g}"]
        if layer["sink"]:
            said.append(
                "a sink of logit "
                + " ".join(f"{logit:.3g}" for logit in dict.fromkeys(layer["sink"]))
            )
        who = (
            f"{len(layer['numbers'])} layer{'s' * (len(layer['numbers']) > 1)} of {layer['name']}: "
            if len(numbers["layers"]) > 1
            else ""
        )
        lines.append(f"  {who}{'; '.join(said)}")
    lines.append(f"  {named_values(PROPERTIES, numbers['properties'])}")
    meanings = {key: meaning for key, (_, meaning) in DIMENSIONLESS.items()}
    lines.append(f"  {named_values(meanings, numbers['dimensionless'])}")
    return lines + [f"  {note}" for note in reader_notes(numbers)]
