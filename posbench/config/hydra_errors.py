"""Refusals of Hydra in one sentence, with suggestions for a key or a choice that does not exist,
and for words that cannot be read.
"""

import re
import sys

from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench.common.errors import did_you_mean, nearest
from posbench.config.identity import as_word
from posbench.config.names import CONFIGS, nodes
from posbench.config.schema import METHODS, OPTIONAL, SCHEMAS

SPECIAL = "'\"`;&#!<>~^"  # characters that Hydra does not read outside of quotation marks
CHOSEN = (*METHODS, *OPTIONAL, "data", *SCHEMAS)  # groups with several choices
ELSEWHERE = {
    "rope_theta": "encoding.base", "rope_scaling": "extension", "factor": "extension.target_len", "learning_rate": "train.lr",
    "batch_size": "train.tokens_per_step", "seq_len": "train.length", "block_size": "train.length", "epochs": "train.steps",
    "hidden_size": "model.d_model", "num_hidden_layers": "model.n_layer", "num_attention_heads": "model.n_head",
    "output_dir": "results_dir", "gpu": "device", "linear": "pi", "theta": "encoding.base", "beta_slow": "extension.alpha",
}  # fmt: skip


def sentence(error: Exception) -> str:
    """One-sentence form of Hydra's error message, which takes several lines: what is refused and
    the legal choices.
    """
    if str(error).startswith("Config group override must be"):
        words = [
            word.rpartition("@")[2]
            for word in sys.argv[1:]
            if (CONFIGS / word.split("=")[0].split("@")[0]).is_dir() and _no_name(word)
        ]
        return (
            f"{' '.join(words) or 'One word'} does not name a choice of its group: --help lists"
            " them."
        )
    if isinstance(error, AttributeError | TypeError | ValueError) and not isinstance(
        error, HydraException | OmegaConfBaseException
    ):
        return (
            f"What was typed does not compose ({error}): is every yaml that it names a mapping of"
            " keys to values?"
        )
    said = str(error).split("\nConfig search path")[0].split("\nSee http")[0]
    if said.startswith("Could not override"):
        return (
            f"{said.splitlines()[0].rstrip('.')}: there is no such key{suggestion(error)}; --cfg"
            " job prints all of them."
        )
    if said.startswith("Error merging override"):
        word = said.splitlines()[0].removeprefix("Error merging override ").rstrip(".")
        return f"{word} does not have the form of the value that --cfg job prints."
    if isinstance(error, OverrideParseException) and error.override not in said:
        said = f"{error.override}: {said}"
    if said.startswith("LexerNoViableAltException: "):
        return _unread(said.splitlines()[0].removeprefix("LexerNoViableAltException: "))
    if way := of_words(said):
        return way
    if isinstance(error, OverrideParseException) and (way := _unparsed(error.override, said)):
        return way
    head, _, options = said.partition("\t")
    return (
        f"{'; '.join(filter(None, map(str.strip, head.splitlines())))} {', '.join(options.split())}".strip().rstrip(
            "."
        )
        + "."
    )


def _no_pair(word: str) -> str:
    return f"{word} is not NAME=VALUE: write it without spaces, as in encoding=rope."


def _unread(word: str) -> str:
    """Way out for a word with a character that Hydra reads only within quotation marks."""
    key, equals, value = word.partition("=")
    mark = value[:1]
    if not equals:
        return _no_pair(word)
    if unnamed := re.search(r"[^\w./@+~:$-]", key):
        return (
            f"{word} has the character {unnamed[0]} in its name {key}, and no name has it: leave it"
            " out."
        )
    if mark in ("'", '"') and value.count(mark) == 1:
        return (
            f"{word} has a quotation mark {mark} that is not closed: leave it out, or close it, as"
            f" in {as_word(key, value[1:])}."
        )
    characters = [character for character in value if character in SPECIAL]
    shown = f"the character {characters[0]}" if characters else "a character"
    return (
        f"{word} has {shown}, which is read only within quotation marks: type"
        f" {as_word(key, value)}."
    )


def _unparsed(word: str, message: str) -> str | None:
    """Way out for a word that Hydra's grammar does not hold; None for a message that is not the
    grammar's.
    """
    key, equals, value = word.partition("=")
    if not equals:
        return _no_pair(word)
    if function := re.search(
        r"Error while evaluating '.*?': (.*)|Exception while evaluating '.*?': (.*)", message
    ):
        reason = (function[1] or function[2]).rstrip(".")
        return (
            f"{word} calls a function that fails ({reason}): write seed=range(0,3), or"
            f" {as_word(key, value)} for a text."
        )
    if place := re.search(r"(?:extraneous|mismatched) input '(.+?)' expecting", message, re.S):
        return (
            f"{word} cannot be read from {place[1]} on: a text with such characters is typed as"
            f" {as_word(key, value)}."
        )
    return None


def _no_name(word: str) -> bool:
    value = word.partition("=")[2]
    return value in ("", "null", "true", "false") or value[0].isdigit() or value[0] in "[{"


def of_words(said: str) -> str | None:
    """The way out of Hydra's errors about a choice that does not exist, several values, and cut
    words; None for others.
    """
    if found := re.match(
        r"(?:In '[^']*': )?Could not find '([^']+)/([^'/]+)'\s+Available options in '[^']*':(.*)",
        said,
        re.S,
    ):
        group, name, options = found[1], found[2], found[3].split()
        own = "; one of your own needs --config-dir FOLDER"
        meant = [f"{one}={name}" for one in CHOSEN if one != group and name in nodes(one)]
        meant = [one for one in options if one == ELSEWHERE.get(name)] or meant
        said = f" (did you mean {meant[0]}?)" if len(meant) == 1 else ""
        return (
            f"{group}={name} is unknown{said or did_you_mean(name, options)}: choose from"
            f" {', '.join(options)}{own}."
        )
    if found := re.match(r"Ambiguous value for argument '([^=']+)=([^']*)'", said):
        key, values = found.groups()
        return (
            f"{key}={values} names several values: add -m to take each, or type '{key}=[{values}]'"
            " for one list."
        )
    if found := re.search(
        r"(?:Error parsing override '([^']*)'|^(\S+): )\s*missing EQUAL at", said
    ):
        return _no_pair(found[1] or found[2])
    if found := re.match(
        r"(\S+?)(?:: |\n).*(?:no viable alternative|extraneous input|mismatched input '<EOF>')",
        said,
        re.S,
    ):
        return (
            f"{found[1]} cannot be read to its end: quote words with brackets, and leave out"
            " spaces, as in 'evaluate.lengths=[64,128]'."
        )
    return None


def suggestion(error: Exception) -> str:
    """Suffix for Hydra's error about an unknown key: " (did you mean model.n_head?)", or ""."""
    missing = error.__cause__ or error
    parent, name = (
        getattr(missing, "parent_node", None),
        str(getattr(missing, "full_key", None) or ""),
    )
    if not isinstance(parent, DictConfig) or not name:
        return ""
    quoted = re.search(r"'([^']+)'", str(error))
    typed = (
        quoted[1] if quoted and "." not in name else name
    )  # of a key whose group is unknown, `name` is the first part alone
    known, (group, _, last) = _known(parent._get_root()), typed.rpartition(".")
    if typed in known and last not in ELSEWHERE:
        return f" (it is {known[typed]})"
    own = {key.rpartition(".")[2]: key for key in known if group and key.startswith(f"{group}.")}
    near = None if last in known or last in ELSEWHERE else nearest(last, own)
    if (
        own and not near and group in METHODS and last not in ELSEWHERE
    ):  # arguments of one method mean something else in another
        return (
            f" ({group} has {', '.join(str(one) for one in parent if one != '_target_') or 'none'})"
        )
    alike = [key for key in known if key.rpartition(".")[2] == last or key == ELSEWHERE.get(last)]
    keys = (
        [own[near]]
        if near
        else [last]
        if last in known
        else [key for key in alike if not known[key]] or alike[:1]
    )
    keys = keys or list(filter(None, [nearest(typed, known)]))
    return (
        f" (did you mean {' or '.join(keys)}{', ' * bool(known[keys[0]])}{known[keys[0]]}?)"
        if keys
        else ""
    )


def _known(root: DictConfig) -> dict[str, str]:
    """{key: ""} of a configuration, without an experiment, which nobody sets; then {key: choices of
    its group that have it} of others.
    """
    known = {str(one): "" for one in root if one != "hydra"}
    for group in list(known):
        if OmegaConf.is_dict(root[group]) and group != "experiment":
            known |= {f"{group}.{one}": "" for one in root[group]}
    for group in CHOSEN:
        having: dict[str, list[str]] = {}
        for name, content in nodes(group).items():
            for one in content:
                having.setdefault(f"{group}.{one}", []).append(name)
        for key, (*names, last) in having.items():
            if not key.endswith(("._target_", ".defaults")):
                known.setdefault(
                    key, f"of {group}={' or '.join(filter(None, (', '.join(names), last)))}"
                )
    return known
