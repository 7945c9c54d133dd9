"""Parts of a page that loads nothing: tables that sort, inlined drawings, escaped text.

There is no network, no font, and no script but the few lines below. A content security policy in the page forbids everything else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from posbench.report.tables import FAILS, GAINS, LEVEL
from posbench.runs.origins import ABSENT, clean

STYLE = """
:root { color-scheme: light }
body { margin: 0 auto; padding: 1rem; max-width: 84rem; font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere } h2 { font-size: 1.2rem; margin-top: 2.5rem }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem } p, li { overflow-wrap: anywhere }
ul { padding-left: 1.2rem } .said { color: #555; font-size: .9rem }
.wide { overflow-x: auto; border: 1px solid #ddd; border-radius: 4px; margin: .5rem 0 }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; width: 100% }
th, td { padding: .3rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid #eee; vertical-align: top }
td:first-child, th:first-child { position: sticky; left: 0; background: #fff } th { background: #f6f6f6 }
th:first-child { background: #f6f6f6 }
.n { text-align: right }
th button { all: unset; cursor: pointer; font-weight: 600 } th button:focus-visible { outline: 2px solid #0072b2 }
th[aria-sort=ascending] button::after { content: " \\2191" } th[aria-sort=descending] button::after { content: " \\2193" }
summary { cursor: pointer; font-weight: 600; margin: 1rem 0 .3rem }
a { color: #0058a0 } td a + a { margin-left: .8rem } :target { background: #fff3c4 !important }
svg { display: block; margin: 0 auto } nav a { margin-right: 1rem; white-space: nowrap }
@media (max-width: 40rem) {
  body { padding: .6rem }
  td:first-child, th:first-child { min-width: 6rem; max-width: 8rem; white-space: normal; overflow-wrap: break-word }
  th, td { padding: .3rem .45rem }
}
@media print { .wide { overflow: visible; border: 0 } details::details-content { display: block } }
"""

SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const th = button.parentNode, body = th.closest("table").tBodies[0], numeric = th.classList.contains("n");
  const sign = th.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of th.parentNode.cells) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const text = row => row.cells[th.cellIndex].textContent;
  const order = (a, b) => {
    if (!numeric) return sign * text(a).localeCompare(text(b), undefined, {numeric: true});
    const x = parseFloat(text(a)), y = parseFloat(text(b));
    return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y);
  };
  body.append(...[...body.rows].sort(order));
});
"""

NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?( |$)")
LACKING = ("-", "not finite", "unknown", "null", ABSENT, "")
TINTS = {GAINS: "0,158,115", FAILS: "213,94,0", LEVEL: "120,120,120"}


class Markup(str):
    """Text that is HTML already. Everything else is escaped when it enters the page."""


def escape(value: object) -> Markup:
    """`value` escaped for the page; Markup stays as it is."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(clean(str(value))), quote=True))


def document(title: str, body: str) -> str:
    """Whole page around `body`."""
    script = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'; base-uri 'none'; form-action 'none'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""


def link(anchor: str, text: object) -> Markup:
    """Link to another place of the page."""
    return Markup(f'<a href="#{anchor}">{escape(text)}</a>')


def items(lines: Iterable[str]) -> str:
    """HTML list of lines; "" without lines."""
    found = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="said">{found}</ul>' if found else ""


def table(columns: Sequence[object], rows: Sequence[Sequence[object]], numeric: Iterable[int] = (), tinted: bool = False) -> Markup:
    """Table whose columns sort. `numeric` columns sort by number, aligned right. `tinted` colours differences to the floor by size."""
    numbers = set(numeric)
    attribute = [' class="n"' if index in numbers else "" for index in range(len(columns))]
    head = "".join(f"<th{attribute[index]} scope=col>{_head(column)}</th>" for index, column in enumerate(columns))
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{attribute[index]}{_tint(cell) if tinted else ''}>{escape(cell)}</td>" for index, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return Markup(f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>')


def _head(column: object) -> Markup:
    return column if isinstance(column, Markup) else Markup(f'<button type="button">{escape(column)}</button>')


def _tint(cell: object) -> str:
    """Style of a cell: green below the floor, orange above, grey if the interval contains zero. Deeper if larger, up to 1 nat/token."""
    found = NUMBER.match(cell) if isinstance(cell, str) and cell[-2:] in TINTS else None
    if not found:
        return ""
    depth = 0.12 + 0.4 * min(1.0, abs(float(found[0]))) ** 0.5 if cell[-2:] != LEVEL else 0.08
    return f' style="background:rgba({TINTS[cell[-2:]]},{depth:.2f})"'


def svg(text: str, prefix: str, label: str) -> str:
    """Figure's svg for use inside a page: no comments, metadata or fixed size, ids with `prefix`, at a width that can be read."""
    root = ElementTree.fromstring(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]", "", text))
    for parent in root.iter():
        for child in [child for child in parent if child.tag.endswith("}metadata")]:
            parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.split("}")[-1]
        attributes = {name.split("}")[-1]: value for name, value in element.attrib.items()}
        element.attrib.clear()
        for name, value in attributes.items():
            value = prefix + value if name == "id" else re.sub(r"^#", f"#{prefix}", value) if name == "href" else value
            element.set(name, re.sub(r"url\(#", f"url(#{prefix}", value))
    width = float(root.get("viewBox", "0 0 600 400").split()[2])
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("style", f"width:100%;min-width:{0.85 * width:.0f}px;max-width:{1.5 * width:.0f}px")
    root.set("role", "img")
    root.set("aria-label", f"The figure of {label}: its numbers are in the tables below")
    return ElementTree.tostring(root, encoding="unicode")
