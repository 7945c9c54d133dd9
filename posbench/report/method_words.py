"""Methods and their arguments in words, as tables, footnotes, captions and pages have them."""

import json
from collections.abc import Mapping

from posbench.common.files import sha256_json
from posbench.config.identity import method_args, method_name
from posbench.position.default_beta import PUBLISHED_BETA, default_beta

# numbers of a list from which a label has the first, the last and four digits of its hash
LONG_LIST = 8


def parts_joined(encoding: str, *others: str) -> str:
    """Encoding (if any), and the other parts of a method that are not none.

    >>> parts_joined("rope", "none", "log_n")
    'rope + log_n'
    """
    parts = [encoding] if encoding else []
    return " + ".join([*parts, *(part for part in others if part != "none")])


def source_suffix(source: str | None) -> str:
    """End of a name whose numbers were read from a CSV: its source in brackets; "" without one."""
    return f" ({source})" if source else ""


def short_value(value: object) -> str:
    """Value of an argument in a label; a method by its name, a long list by its ends and hash.

    >>> short_value([1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5])
    '1.0..4.5#4414'
    """
    if isinstance(value, dict) and "_target_" in value:
        return method_name(value)
    if isinstance(value, list) and len(value) >= LONG_LIST:
        return f"{value[0]}..{value[-1]}#{sha256_json(value)[:4]}"
    return value if isinstance(value, str) else json.dumps(value)


def arguments_text(args: Mapping[str, object], train_len: int | None = None) -> str:
    """Arguments with their values, without those that are null; a method among these by its name.

    `train_len` in tokens, where it is known that a null beta stands for `default_beta`.

    >>> rope = {"_target_": "posbench.encodings.rope.RoPE", "base": 500.0}
    >>> arguments_text({"window": 32, "cut": None, "local": rope})
    'window=32, local=rope(base=500.0)'
    >>> arguments_text({"alpha": 1.0, "beta": None}, train_len=64)
    'alpha=1.0, beta=2.546 (null; 32 is published)'
    """
    texts = {
        key: _full_value_text(value, train_len) for key, value in args.items() if value is not None
    }
    alpha = args.get("alpha")
    beta_is_null = "beta" in args and args["beta"] is None
    if beta_is_null and train_len is not None and isinstance(alpha, int | float):
        texts["beta"] = (
            f"{default_beta(alpha, train_len):.4g} (null; {PUBLISHED_BETA:g} is published)"
        )
    return ", ".join(f"{key}={text}" for key, text in texts.items())


def _full_value_text(value: object, train_len: int | None) -> str:
    """Value of an argument, such as "32", "rope(base=500.0)" or "{first=1, last=2}"; `train_len` as
    in `arguments_text`.
    """
    if not isinstance(value, dict):
        return str(value)
    inner = arguments_text(method_args(value), train_len)
    if "_target_" not in value:
        return f"{{{inner}}}"
    name = method_name(value)
    return f"{name}({inner})" if inner else name
