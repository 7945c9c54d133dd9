"""Errors of Hydra in one sentence, with a suggestion for a key or a choice that does not exist."""

import os
import re
import sys

from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench.common.errors import did_you_mean, nearest
from posbench.config.identity import quoted_word
from posbench.config.names import CONFIGS_FOLDER, shipped_yamls
from posbench.config.peer_words import CHANGE_OF_VALUE, KEYS_ELSEWHERE, WITHOUT_KEY, choice_meant
from posbench.config.schema import OPTIONAL_SCHEMAS, SCHEMAS, USUAL_METHODS, may_be_list

CHOICE_GROUPS = (*USUAL_METHODS, *OPTIONAL_SCHEMAS, "data", *SCHEMAS)  # groups with several choices
LAUNCHER_PREFIX = "hydra.launcher."  # of the keys of a launcher
UNKNOWN_CHOICE = re.compile(
    r"(?:In '[^']*': )?Could not find '(?P<group>[^']+)/(?P<name>[^'/]+)'"
    r"\s+Available options in '[^']*':(?P<options>.*)",
    re.DOTALL,
)
SEVERAL_VALUES = re.compile(r"Ambiguous value for argument '(?P<key>[^=']+)=(?P<values>[^']*)'")
FAILED_FUNCTION = re.compile(r"(?:Error|Exception) while evaluating '.*?': (?P<reason>.*)")
NAMELESS_VALUE = re.compile(r"|null|true|false|[\d\[{].*")  # values that name no choice of a group


def error_sentence(error: Exception) -> str:
    """An error of Hydra, which takes several lines, as one sentence with the way out."""
    message = str(error).split("\nConfig search path")[0].split("\nSee http")[0]
    first_line = message.partition("\n")[0].rstrip(".")
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override, message)
    if message.startswith("Config group override must be"):
        return _nameless_choice()
    if isinstance(error, AttributeError | TypeError | ValueError) and not isinstance(
        error, HydraException | OmegaConfBaseException
    ):
        return (
            f"What was typed does not compose ({error}): is every yaml that it names a mapping of"
            " keys to values?"
        )
    if message.startswith("Could not override"):
        return _unknown_key(error, first_line)
    if message.startswith("Error merging override"):
        word = first_line.removeprefix("Error merging override ")
        return f"{word} does not have the form of the value that --cfg job prints."
    unknown = UNKNOWN_CHOICE.match(message)
    if unknown:
        return _unknown_choice(unknown["group"], unknown["name"], unknown["options"].split())
    several = SEVERAL_VALUES.match(message)
    if several:
        key, values = several.groups()
        takes_no_list = key in CHOICE_GROUPS or not may_be_list(key)
        or_list = "" if takes_no_list else f", or type '{key}=[{values}]' for one list"
        return f"{key}={values} names several values: add -m to take each{or_list}."
    return _in_one_line(message)


def _unknown_key(error: Exception, first_line: str) -> str:
    """Sentence on a key that does not exist; `first_line` is that of Hydra's message."""
    quoted = re.search(r"'([^']+)'", first_line)
    reason = WITHOUT_KEY.get(quoted[1].rpartition(".")[2]) if quoted else None
    if reason:
        return f"{quoted[1]} is no key of posbench, since {reason}: leave it out."
    if quoted and quoted[1].startswith(LAUNCHER_PREFIX):
        return _unknown_launcher_key(quoted[1].removeprefix(LAUNCHER_PREFIX))
    return (
        f"{first_line}: there is no such key{_suggested_key(error)}; --cfg job prints all of them."
    )


def _unknown_launcher_key(key: str) -> str:
    """Sentence on a key that the chosen launcher does not have; others may have it."""
    launchers = shipped_yamls("hydra/launcher")
    owners = [name for name, content in launchers.items() if key in content]
    if owners:
        return (
            f"{LAUNCHER_PREFIX}{key} is no key of the chosen launcher: choose"
            f" hydra/launcher={'|'.join(owners)}, or leave it out."
        )
    all_keys = dict.fromkeys(name for content in launchers.values() for name in content)
    near = did_you_mean(key, all_keys)
    return (
        f"{LAUNCHER_PREFIX}{key} is no key of a launcher{near}: --cfg hydra -p hydra.launcher"
        " prints those of the chosen one."
    )


def _in_one_line(message: str) -> str:
    r"""A message of several lines, whose options follow a tab.

    >>> _in_one_line("No such group\nAvailable:\n\tone\n\ttwo")
    'No such group; Available: one, two.'
    """
    text, _, options = message.partition("\t")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    joined = f"{'; '.join(lines)} {', '.join(options.split())}"
    return f"{joined.strip().rstrip('.')}."


def _nameless_choice() -> str:
    """Sentence on the typed words that should name a choice of a group, such as encoding=null.

    Of encoding@finetune.encoding=null the group is encoding, and finetune.encoding=null was typed.
    """
    nameless = []
    for word in sys.argv[1:]:
        key, _, value = word.partition("=")
        group = key.partition("@")[0]
        if (CONFIGS_FOLDER / group).is_dir() and NAMELESS_VALUE.fullmatch(value):
            nameless.append(word.rpartition("@")[2])
    words = " ".join(nameless) or "One word"  # a yaml's, so that none was typed
    return f"{words} does not name a choice of its group: --help lists them."


def _unreadable(word: str, message: str) -> str:
    """Sentence on a word that Hydra's grammar does not hold, with the form that it does."""
    key, equals, value = word.partition("=")
    if value.startswith("~"):  # which shells leave as it is behind a key with a dot
        value = os.path.expanduser(value)
    quoted = quoted_word(key, value)
    if not equals:
        return f"{word} is not NAME=VALUE: write it without spaces, as in encoding=rope."
    if message.startswith("LexerNoViableAltException"):
        illegal = re.search(r"[^\w./@+~:$-]", key)
        if illegal:
            return (
                f"{word} has the character {illegal[0]} in its name {key}, and no name has it:"
                " leave it out."
            )
        mark = value[:1]
        if mark in ("'", '"') and value.count(mark) == 1:
            return (
                f"{word} has a quotation mark {mark} that is not closed: leave it out, or close it,"
                f" as in {quoted_word(key, value[1:])}."
            )
        return f"{word} has a character that is read only within quotation marks: type {quoted}."
    function = FAILED_FUNCTION.search(message)
    if function:
        reason = function["reason"].rstrip(".")
        return (
            f"{word} calls a function that fails ({reason}): write seed=range(0,3), or {quoted} for"
            " a text."
        )
    return (
        f"{word} cannot be read to its end: quote words with brackets, and leave out spaces, as in"
        f" 'evaluate.lengths=[64,128]'; type a text as {quoted}."
    )


def _unknown_choice(group: str, name: str, options: list[str]) -> str:
    """Sentence on a choice that a group does not have, with the choice that is meant."""
    top, slash, rest = group.partition("/")
    if slash and top in CHOICE_GROUPS:  # Hydra divides a path at its last slash
        group = top
        name = f"{rest}/{name}"
    place = _advice_on_place(group, name)
    if place:
        return f"{group}={name} is not a choice of {group}: {place}."
    groups = [other for other in CHOICE_GROUPS if name in shipped_yamls(other)]
    meant = choice_meant(group, name, options)
    if group == "data" and meant == "local":
        meant = "local data.path=PATH"
    elif meant is None and len(groups) == 1:
        meant = f"{groups[0]}={name}"
    hint = did_you_mean(name, options, meant)
    ways = "one of your own needs --config-dir FOLDER"
    if group == "model":
        ways = f"a checkpoint is given as model=hf model.path=PATH_OR_NAME; {ways}"
    return f"{group}={name} is unknown{hint}: choose from {', '.join(options)}; {ways}."


def _advice_on_place(group: str, name: str) -> str:
    """Words for a value that is a path or a name of the hub and no choice; "" for any other."""
    is_place = "/" in name or re.search(r"\.\w+$", name)
    if group == "model" and is_place:
        return f"type a checkpoint as model=hf {quoted_word('model.path', name)}"
    if group == "data" and is_place:
        return f"type your own text as data=local {quoted_word('data.path', name)}"
    return ""


def _suggested_key(error: Exception) -> str:
    """Suffix on an unknown key: " (did you mean model.n_head?)", or ""."""
    missing = error.__cause__ or error
    parent = getattr(missing, "parent_node", None)
    typed = str(getattr(missing, "full_key", None) or "")
    if not isinstance(parent, DictConfig) or not typed:
        return ""
    quoted = re.search(r"'([^']+)'", str(error))
    # An unknown group is all that the error names; its message quotes the whole key.
    if quoted and "." not in typed:
        typed = quoted[1]
    choices_of = _choices_of_keys(parent._get_root())

    def choices_with(key: str) -> str:
        """The choices that have a key, "of extension=pi or yarn"; "" for a key of every one."""
        choices = choices_of[key]
        return f"of {key.partition('.')[0]}={' or '.join(choices)}" if choices else ""

    name = typed.rpartition(".")[2]
    # The key exists, but not in the choices of this command. Another project's word for a key that
    # they have means that key instead.
    if typed in choices_of and not _is_peers_word(typed, name, choices_of):
        return f" (it is {choices_with(typed)})"
    meant = _keys_meant(typed, choices_of)
    if not meant:
        return ""
    hints = [" or ".join(meant), choices_with(meant[0]), CHANGE_OF_VALUE.get(name, "")]
    return f" (did you mean {', '.join(filter(None, hints))}?)"


def _is_peers_word(typed: str, name: str, choices_of: dict[str, list[str]]) -> bool:
    """True for a key of some choice that is more likely another project's word for a key here.

    That is one of the same group, or a flag of llama.cpp."""
    meant = KEYS_ELSEWHERE.get(name)
    same_group = str(meant).partition(".")[0] == typed.partition(".")[0]
    return meant in choices_of and (same_group or choices_of[typed] == ["llama_cpp"])


def _keys_meant(typed: str, choices_of: dict[str, list[str]]) -> list[str]:
    """Keys that are meant by one that does not exist: those that another project calls so, of the
    same name in another group, or spelled almost so.

    `choices_of`: {key: choices that would add it, [] for a key of the configuration}.

    >>> _keys_meant("n_layers", {"model.n_layer": [], "n_layer": []})
    ['n_layer']
    >>> _keys_meant("window", {"encoding.window": [], "extension.window": []})
    ['encoding.window', 'extension.window']
    """
    group, _, name = typed.rpartition(".")
    if KEYS_ELSEWHERE.get(name) in choices_of:
        return [KEYS_ELSEWHERE[name]]
    if name in choices_of:
        return [name]
    same_name = [key for key in choices_of if key.rpartition(".")[2] == name]
    if same_name:
        composed = [key for key in same_name if not choices_of[key]]  # in the configuration now
        return composed or same_name[:1]  # of keys that another choice would add, one will do
    siblings = {}  # {name: key} in the group
    for key in choices_of:
        if group and key.startswith(f"{group}."):
            siblings.setdefault(key.rpartition(".")[2], key)
    close = siblings.get(nearest(name, siblings)) if siblings else nearest(typed, choices_of)
    return [close] if close else []


def _choices_of_keys(root: DictConfig) -> dict[str, list[str]]:
    """{key: the choices of its group that have it, [] for a key of this configuration}."""
    choices_of: dict[str, list[str]] = {}
    for name, part in root.items_ex(resolve=False):
        if name == "hydra":
            continue
        choices_of[name] = []
        if OmegaConf.is_dict(part) and name != "experiment":  # which nobody sets
            choices_of |= {f"{name}.{key}": [] for key in part}
    composed = set(choices_of)
    for group in CHOICE_GROUPS:
        for choice, content in shipped_yamls(group).items():
            for name in content:
                key = f"{group}.{name}"
                if key not in composed and name not in ("_target_", "defaults"):
                    choices_of.setdefault(key, []).append(choice)
    return choices_of
