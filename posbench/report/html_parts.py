"""Parts of a page that loads nothing: its templates, links, tables that sort, inlined drawings.

There is no network, no font, and no script but sort.js and those that a page is given. A content
security policy in the page forbids everything else."""

import base64
import hashlib
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from posbench.common.defuse import printable
from posbench.report.table_formats import FAILS_MARK, GAINS_MARK, LEVEL_MARK, TableCell
from posbench.results.run_metadata import ABSENT_WORD

NUMBER_AT_START = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?( |$)")
NO_VALUE_TEXTS = ("-", "not finite", "unknown", "null", ABSENT_WORD, "")
# red, green, blue
TINT_COLOURS = {
    GAINS_MARK: "0,158,115",
    FAILS_MARK: "213,94,0",
    LEVEL_MARK: "120,120,120",
}
LEVEL_DEPTH = 0.08
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")


@dataclass(frozen=True)
class Grid:
    """Table of a page. A head that is Markup does not sort; columns with an index in `numeric` sort
    by number, aligned right.
    """

    columns: Sequence[object]
    rows: Sequence[Sequence[object]]
    numeric: Container[int] = ()
    title: str = ""


def template(name: str) -> Template:
    """Template of report/templates. All that enters it is escaped, without unprintable characters;
    Markup is HTML already.
    """
    environment = Environment(
        loader=PackageLoader("posbench.report"),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
        finalize=_printable_text,
    )
    environment.filters |= {"link": link, "tint": tint_style, "sha256": _sha256_base64}
    return environment.get_template(name)


def _printable_text(value: object) -> str:
    return value if isinstance(value, Markup) else str(printable(str(value)))


def _sha256_base64(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def link(text: object, anchor: str) -> Markup:
    """Link to another place of the page."""
    return Markup('<a href="#{}">{}</a>').format(anchor, _printable_text(text))


def anchored(text: object, anchor: str) -> Markup:
    """Text with an anchor for links."""
    return Markup('<span id="{}">{}</span>').format(anchor, _printable_text(text))


def tint_style(cell: object) -> str:
    """Style of a cell: green below the floor, orange above, grey if the interval contains zero; ""
    for any other. Deeper if larger, up to 1 nat/token.
    """
    if not isinstance(cell, TableCell) or cell.value is None or cell.mark not in TINT_COLOURS:
        return ""
    depth = LEVEL_DEPTH
    if cell.mark != LEVEL_MARK:
        # 0.12 to 0.52, by the root, which tells small differences apart. Rounded as it is shown, so
        # that equal numbers look alike.
        depth = 0.12 + 0.4 * min(1.0, abs(round(cell.value, 3))) ** 0.5
    return Markup(f' style="background:rgba({TINT_COLOURS[cell.mark]},{depth:.2f})"')


def inlined_svg(text: str, prefix: str, label: str) -> Markup:
    """Figure's svg for use inside a page: no comments, metadata or fixed size, ids with `prefix`,
    at a width that can be read.
    """
    root = ElementTree.fromstring(CONTROL_CHARACTERS.sub("", text))
    for metadata in root.findall("{*}metadata"):
        root.remove(metadata)
    for element in root.iter():
        element.tag = _local_name(element.tag)
        attributes = {_local_name(name): value for name, value in element.attrib.items()}
        element.attrib.clear()
        for name, value in attributes.items():
            if name == "id":
                value = prefix + value
            elif name == "href":
                value = re.sub(r"^#", f"#{prefix}", value)
            element.set(name, value.replace("url(#", f"url(#{prefix}"))
    width = float(root.get("viewBox", "0 0 600 400").split()[2])
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("style", f"width:100%;min-width:{0.85 * width:.0f}px;max-width:{1.5 * width:.0f}px")
    root.set("role", "img")
    root.set("aria-label", f"The figure of {label}: its numbers are in the tables below")
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local_name(name: str) -> str:
    """Name of an element or attribute without its namespace in braces."""
    return name.split("}")[-1]
