// The parts around the figure: legend, tables, files, and the controls.
function make(tag, attributes, ...children) { // svg:path for one of a figure, as d3 has it
  const element = d3.create(tag).node();
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const stroke = (line, night) => ({stroke: colour(line, night), "stroke-width": 2, "stroke-dasharray": palette.dashes[line.look.dash]});

function legend(found, night) {
  const off = new Set(state.off.split(",").filter(Boolean));
  const button = ({line}) => {
    const stretch = make("svg:path", {d: "M0,5H28", ...stroke(line, night)});
    const sample = make("svg:svg", {width: 28, height: 10, "aria-hidden": "true"}, stretch);
    const made = make("button", {type: "button", "aria-pressed": !off.has(line.id), "data-line": line.id}, sample, ` ${line.name}`);
    made.addEventListener("click", () => {
      if (!off.delete(line.id)) off.add(line.id);
      change({off: [...off].join(",")});
      part("legend").querySelector(`[data-line="${line.id}"]`)?.focus();
    });
    return made;
  };
  part("legend").replaceChildren(...found.panels.map(panel => {
    const own = found.every.filter(one => panelOf(one.line) === panel).map(button), head = panel ? [make("strong", {}, panel)] : [];
    return make("div", {role: "group", "aria-label": panel || "lines"}, ...head, ...own);
  }));
}

function table(head, rows, caption) {
  const row = ([first, ...rest]) => make("tr", {}, make("th", {scope: "row"}, first), ...rest.map(text => make("td", {class: text === "-" ? "n unmeasured" : "n"}, text)));
  const heads = make("tr", {}, ...head.map((text, i) => make("th", {scope: "col", class: i ? "n" : ""}, text)));
  return make("table", {}, make("caption", {}, caption), make("thead", {}, heads), make("tbody", {}, ...rows.map(row)));
}
function columnsOf(values, said) {
  const step = Math.ceil(values.length / MOST.columns), kept = values.filter((_, i) => i % step === 0 || i === values.length - 1);
  if (kept.length < values.length) said.push(`The table has ${kept.length} of ${values.length} places; the CSV has all.`);
  return kept;
}
function commonPlaces(on) { // those of more than half of the lines, or else all
  const counts = d3.rollup(on.flatMap(one => one.points.map(at => at.x)), own => own.length, x => x), places = sorted(counts.keys());
  const common = places.filter(x => 2 * counts.get(x) > on.length);
  return places.length > MOST.columns && common.length ? common : places;
}
function below(found) {
  const text = at => at ? number(at.v) + (state.bars === "interval" && both(at) ? ` [${number(at.low)}, ${number(at.high)}]` : "") : "-";
  const columns = columnsOf(commonPlaces(found.on), found.said);
  const rows = found.on.map(({line, points: own}) => [line.name, ...columns.map(x => text(own.find(at => at.x === x)))]);
  const known = state.bars === "interval" ? ", with 95 % intervals where they are known" : "";
  part("table").replaceChildren(table(["line", ...columns.map(whole)], rows, `${UNITS[state.y]}${known}, by ${axisOfX()}`));
}

// The comparison of lines below the figure: what is chosen there, its tables and its sentences.
const SECTION = ["kind", "protocol", "data", "tokenizer", "train_len", "setting", "task"]; // what lines share to be compared
const lineOf = id => lines.find(line => line.id === id && line.kind === state.kind);

// Lines with their points that are compared: those drawn, or the two that are chosen; and the line that all are compared with.
function chosenToCompare({every, on}) {
  const [a, b] = [state.a, state.b].map(id => every.find(({line}) => line.id === id));
  const gone = [state.a, state.b].map(lineOf).filter(line => line && !every.some(one => one.line === line));
  const both = a && b && a !== b, reference = b ?? a;
  const pool = both ? [a, b] : on.includes(reference) || !reference ? on : [...on, reference];
  return {pool, against: reference?.line ?? null, each: !a && state.b === "each", both, gone};
}
function comparisonBlocks(found) { // {blocks: tables with their sentences, said: on what is not compared}
  const choice = chosenToCompare(found), {pool, gone} = choice, said = [];
  if (gone.length) said.push(`${gone.map(line => line.name).join(" and ")}: left out by the choices above.`);
  const sections = [...d3.group(pool, ({line}) => SECTION.map(name => line[name]).join("|")).values()];
  const blocks = sections.filter(members => members.length > 1).flatMap(members => blocksOf(members, choice)), most = MOST.tables;
  if (!blocks.length && pool.length) said.push(whyNothing(sections, choice.against));
  if (blocks.length > most) said.push(`${blocks.length - most} more tables are left out: name fewer lines in the filter.`);
  return {blocks: blocks.slice(0, most).map(block => block()), said};
}
function blocksOf(members, {against, each, both}) { // functions that make the tables of one section
  const places = placesOf(members), everywhere = state.at === "each" || !state.at && both;
  const wanted = everywhere ? places : places.filter(x => x === (state.at ? +state.at : places.at(-1)));
  const at = wanted.map(x => membersAt(members, x)), measure = MEASURES[state.y];
  if (each && members.length > MOST.each) return [];
  if (each) return at.filter(there => compareMembers(there, measure, null, "none")).map(there => () => eachBlock(compareEach(there, measure, state.p)));
  const made = at.map(there => compareMembers(there, measure, against, state.p)).filter(Boolean);
  if (!made.length) return [];
  return [() => made.length > 1 ? placesBlock(made) : rankingBlock(made[0])];
}
const membersAt = (members, x) => members.map(({line, points: own}) => ({line, point: own.find(at => at.x === x)?.point}));
function placesOf(members) { // at which two lines have a value
  const counts = d3.rollup(members.flatMap(({points: own}) => own.map(at => at.x)), own => own.length, x => x);
  return sorted([...counts].filter(([, count]) => count > 1).map(([x]) => x));
}
function whyNothing(sections, against) {
  if (against && sections.length) return `${against.name} has no place in common with another line of its data, protocol and setting.`;
  const names = sections.map(([{line}]) => line.name).slice(0, 2).join(" and ");
  if (sections.length === 1 && sections[0].length === 1) return `${names} is one line, and a comparison needs two.`;
  if (sections.every(one => one.length < 2)) return `Nothing can be compared: ${names} differ in data, tokens, protocol, training length or setting.`;
  if (state.b === "each") return `Each with each compares at most ${MOST.each} lines: name fewer in the filter.`;
  return "Nothing can be compared: at no place two lines have this value.";
}

const sectionText = ({line}) => [line.data, line.task !== line.data && line.task, line.train_len && `trained at ${whole(line.train_len)} tokens`,
  line.protocol].filter(Boolean).join(", ");
function placeWords({line, point}) {
  if (line.kind === "position") return `position ${whole(point.x)}`;
  if (line.kind === "context") return `${whole(point.x)} tokens of context`;
  return `${general(point.x / line.train_len)}x (${whole(point.x)} tokens)`;
}
function rankingBlock(comparison) {
  const {rows, reference, isBest, correction} = comparison, head = isBest ? "the best" : reference.line.method;
  const columns = ["line", scaleWords(state.y), isRatio(state.y) ? `over ${head}` : `minus ${head}`,
    correction === "holm" ? "p, by Holm" : "p", "seeds", "gate"];
  const body = rows.map(row => [row.line.method, shownValue(row, state.y), differenceText(row), row.pCorrected === undefined ? "" : pText(row.pCorrected),
    seedCount(row, comparison), row.point.gate || "unknown"]);
  const shown = table(columns, body, `${sectionText(reference)}: at ${placeWords(reference)}`);
  return {shown, said: [resultText(comparison, state.y), ...howCompared(comparison)]};
}
function differenceText(row) {
  const shown = shownDifference(row, state.y);
  return shown ? intervalText(shown, state.y) + MARKS[row.verdict] : "";
}
function seedCount(row, {common}) { // of the difference, of the reference those of its value
  const own = [...row.point.entries.keys()], seeds = row.seeds?.length ? row.seeds : common.length ? common : own;
  return own.length ? String(seeds.length) : "-";
}
function cellText(row, reference) { // difference with half of its interval, of a ratio both ends; the reference's own value in brackets
  if (!row) return "-";
  if (row.line === reference.line) return `(${shownValue(row, state.y)})`;
  const shown = shownDifference(row, state.y);
  if (!shown) return "-";
  const ends = isRatio(state.y) ? ` [${fixed(shown.low)}, ${fixed(shown.high)}]` : ` +- ${fixed((shown.high - shown.low) / 2)}`;
  return signed(shown.value, state.y) + (Number.isFinite(shown.low) ? ends : "") + MARKS[row.verdict];
}
const cellsOf = (line, comparisons) => comparisons.map(({rows, reference}) => cellText(rows.find(row => row.line === line), reference));
function placesBlock(comparisons) {
  const said = [], shown = columnsOf(comparisons, said), references = new Set(comparisons.map(one => one.reference.line));
  const lines = new Set([...references, ...comparisons.flatMap(one => one.rows.map(row => row.line))]);
  const body = [...lines].map(line => [line.method, ...cellsOf(line, shown)]), last = comparisons.at(-1);
  const of = references.size === 1 ? [...references][0].method : "the best of each column";
  const what = `${scaleWords(state.y)} ${isRatio(state.y) ? "over" : "minus"} that of ${of}; its own value in brackets; ${sectionText(last.reference)}`;
  const columns = ["line", ...shown.map(one => placeWords(one.reference))];
  return {shown: table(columns, body, what), said: [...said, resultText(last, state.y), ...howCompared(last)]};
}
function eachBlock(comparisons) {
  const lines = comparisons.map(one => one.reference.line), [first] = comparisons;
  const what = `${scaleWords(state.y)} of each line ${isRatio(state.y) ? "over" : "minus"} that of each column, its own value in brackets`;
  const caption = `${what}; ${sectionText(first.reference)}: at ${placeWords(first.reference)}`;
  const body = lines.map(line => [line.method, ...cellsOf(line, comparisons)]);
  return {shown: table(["line", ...lines.map(line => line.method)], body, caption), said: howCompared(first)};
}
function comparisonControls({every, on}) {
  const named = Object.fromEntries(every.map(({line}) => [line.id, line.name]));
  const usualReference = state.a ? {"": "all lines that are drawn"} : {"": "the best of them", each: "each other one"};
  options("a", {"": "all lines that are drawn", ...named});
  options("b", {...usualReference, ...named});
  const places = sorted(on.flatMap(({points: own}) => own.map(at => at.x)));
  const texts = places.map(x => [String(x), whole(x)]).sort(([x], [y]) => x - y);
  part("at").replaceChildren(make("option", {value: ""}, "as usual"), make("option", {value: "each"}, "each"),
    ...texts.map(([value, text]) => make("option", {value}, text)));
  part("at").value = state.at;
  part("p").value = state.p;
}
function showComparison(found) {
  comparisonControls(found);
  const {blocks, said} = comparisonBlocks(found), list = texts => texts.map(text => make("li", {}, text));
  const ofAll = (blocks[0]?.said ?? []).filter(text => blocks.every(block => block.said.includes(text)));
  part("compared").replaceChildren(...blocks.flatMap(block => {
    const own = block.said.filter(text => !ofAll.includes(text));
    return [block.shown, ...(own.length ? [make("ul", {class: "said"}, ...list(own))] : [])];
  }));
  part("how").replaceChildren(...list([...ofAll, ...said]));
}

function save(name, blob) {
  const link = make("a", {download: name, href: URL.createObjectURL(blob)});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
function wrapped(text, letters) { // lines of at most so many letters
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1).length + word.length > letters) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines;
}
function picture() { // {text, width, height} of the figure with its legend, in light colours; null where nothing is drawn
  const found = chosen(), width = Math.max(420, part("figure").clientWidth), top = 34;
  looks(found.every);
  const svg = draw(found, width, false);
  if (!svg) return null;
  const wide = 50 + 7 * Math.max(...found.on.map(one => one.line.name.length)), across = Math.max(1, Math.floor(width / wide));
  const high = top + Number(svg.getAttribute("height")), below = high + 24 + 18 * Math.ceil(found.on.length / across);
  const text = wrapped(figureText(found.on), width / 6.2), height = below + 16 * text.length;
  const notes = text.map((line, i) => make("svg:text", {x: 12, y: below + 6 + 16 * i, "font-size": 11, fill: "#555"}, line));
  const keys = found.on.map(({line}, i) => {
    const place = `translate(${12 + i % across * wide},${high + 18 + 18 * Math.floor(i / across)})`;
    const sample = make("svg:path", {d: "M0,-4H26", ...stroke(line, false)});
    return make("svg:g", {transform: place}, sample, make("svg:text", {x: 32, "font-size": 12}, line.name));
  });
  svg.setAttribute("y", top);
  const head = make("svg:text", {x: 12, y: 22, "font-size": 15, "font-weight": 600}, content.title);
  const drawing = make("svg:svg", {width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, sans-serif", fill: "#222"},
    make("svg:title", {}, content.title), make("svg:rect", {width, height, fill: "#fff"}), head, svg, ...keys, ...notes);
  return {text: new XMLSerializer().serializeToString(drawing), width, height};
}
function saveBitmap() {
  const found = picture();
  if (!found) return;
  const image = new Image(), url = URL.createObjectURL(new Blob([found.text], {type: "image/svg+xml"}));
  image.onload = () => {
    const canvas = make("canvas", {width: 2 * found.width, height: 2 * found.height});
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    canvas.toBlob(blob => save("explore.png", blob), "image/png");
  };
  image.src = url;
}
function cell(value) { // what a spreadsheet would run becomes text, as in posbench/common/defuse.py
  if (typeof value === "number" || value == null) return String(value ?? "");
  return /^'*[=+\-@\t\r]/.test(String(value)) ? `'${value}` : String(value);
}
function csv() {
  const place = {position: "position", context: "context"}[state.kind] ?? "length";
  const head = ["line", ...OF_LINE, place, ...OF_POINT, "shown", "shown_low", "shown_high", "command"];
  const rows = chosen().on.flatMap(({line, points: own}) => own.map(({point, v, low, high}) => [
    line.name, ...OF_LINE.map(name => [line[name]].flat().join(" ")), point.x, ...OF_POINT.map(name => columnOf(point, name)),
    v, low, high, commandOf(point),
  ]));
  return d3.csvFormatRows([head, ...rows].map(row => row.map(cell)));
}

function options(id, texts) {
  part(id).replaceChildren(...Object.entries(texts).map(([value, text]) => make("option", {value}, text)));
  part(id).value = state[id];
}
function controls() {
  const own = points.filter(point => point.line.kind === state.kind);
  const only = (texts, keeps) => Object.fromEntries(Object.entries(texts).filter(keeps));
  const differing = only(PANELS, ([name]) => [state.panel, state.best].includes(name) || several(name, state.kind));
  options("kind", only(kinds, ([kind]) => there.includes(kind)));
  options("y", only(UNITS, ([y]) => y === state.y || own.some(point => Number.isFinite(measured(point, y).v))));
  options("x", {length: AXES[state.kind], multiple: MULTIPLE});
  options("panel", {"": "one panel", ...differing});
  const bests = Object.entries(differing).map(([name, text]) => [name, `the best of each ${text}`]);
  options("best", {"": "all lines", ...Object.fromEntries(bests)});
  options("bars", BARS);
  for (const id of ["xscale", "yscale", "theme"]) part(id).value = state[id];
  if (document.activeElement !== part("filter")) part("filter").value = state.filter;
}
function render() {
  const night = dark(), found = chosen();
  document.documentElement.dataset.theme = night ? "dark" : "light";
  controls();
  looks(found.every);
  const svg = draw(found, Math.max(320, part("figure").clientWidth), night, found.said);
  if (!svg) found.said.push("Nothing is left to draw: change the filter, or switch lines on in the legend.");
  svg?.setAttribute("role", "img");
  svg?.setAttribute("aria-label", `${UNITS[state.y]} of ${counted(found.on.length, "line", "lines")}: numbers are in the table below`);
  part("plot").replaceChildren(...(svg ? [svg] : []));
  part("scales").textContent = svg ? figureText(found.on) : "";
  const dots = [...part("plot").querySelectorAll(".dots [aria-label]")];
  spots = dots.map(element => ({element, point: points[Number(element.getAttribute("aria-label"))]}));
  for (const {element, point} of spots) element.setAttribute("aria-label", told(point).join("; "));
  legend(found, night);
  below(found);
  showComparison(found);
  part("notes").replaceChildren(...[...content.notes, ...found.said].map(text => make("li", {}, text)));
  show(spots.some(spot => spot.point === current) ? current : null);
}

function listen() {
  const on = (id, kind, does) => part(id).addEventListener(kind, does);
  for (const id of ["kind", "y", "x", "xscale", "yscale", "bars", "panel", "best", "theme", "a", "b", "at", "p"])
    on(id, "change", event => change({[id]: event.target.value}));
  on("filter", "input", event => change({filter: event.target.value}));
  on("controls", "submit", event => event.preventDefault());
  on("all", "click", () => change({off: ""}));
  on("none", "click", () => change({off: chosen().every.map(one => one.line.id).join(",")}));
  on("reset", "click", () => change({...usual(there[0]), filter: part("filter").value = ""}));
  for (const id of ["a", "b"]) on(`as-${id}`, "click", () => current && change({[id]: current.line.id}));
  on("figure", "pointermove", () => { // Plot, which hears of it first, has found the nearest point
    const point = part("plot").firstChild?.value?.point;
    if (point && point !== current) show(point);
  });
  on("figure", "keydown", event => {
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    walk(event.key);
  });
  on("svg", "click", () => { const found = picture(); if (found) save("explore.svg", new Blob([found.text], {type: "image/svg+xml"})); });
  on("png", "click", saveBitmap);
  on("csv", "click", () => save("explore.csv", new Blob([csv()], {type: "text/csv"})));
  addEventListener("hashchange", () => { readState(); render(); });
  addEventListener("resize", render);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
}

if (there.length) {
  readState();
  listen();
  render();
} else part("notes").replaceChildren(...[...content.notes, "There is no point to draw."].map(text => make("li", {}, text)));
