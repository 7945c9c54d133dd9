// What is chosen: the state, which the address after # holds, the lines that it leaves, and how these look.
const AXES = {length: "tokens fed", position: "position in the window", context: "tokens of context", task: "tokens of the text"};
const MULTIPLE = "multiple of the training length";
const PANELS = {encoding: "encoding", extension: "extension", data: "data", train_len: "training length", task: "task", source: "source",
  setting: "setting", scale_attention: "scale of attention", tuned_from: "parent"};
const CHOICES = {y: Object.keys(UNITS), x: ["length", "multiple"], xscale: ["log", "linear"], yscale: ["auto", "log", "linear"],
  panel: ["", ...Object.keys(PANELS)], best: ["", ...Object.keys(PANELS)], bars: Object.keys(BARS), theme: ["", "light", "dark"],
  p: ["holm", "none"]};
const MOST = {panels: 24, lines: 300, columns: 12, nats: 1000, tables: 6, each: 30};
const TERM = /(-?)(?:(\w+)(>=|<=|!=|=|>|<|:))?("[^"]*"|\S+)/g;
const COLUMNS = [...OF_LINE, "length", "position", "multiple", "name", ...OF_POINT];

const there = Object.keys(kinds).filter(kind => lines.some(line => line.kind === kind));
let state = {};

function usual(kind) {
  const has = name => points.some(point => point.line.kind === kind && point[name] != null);
  const y = kind === "task" ? "accuracy" : has("difference") ? "difference" : has("change") ? "change" : "nll";
  const many = lines.filter(line => line.kind === kind).length > 8;
  const panel = many ? ["task", "encoding", "train_len", "extension"].find(name => several(name, kind)) ?? "" : "";
  const empty = {best: "", filter: "", off: "", a: "", b: "", at: "", p: "holm", theme: ""};
  return {kind, y, x: "length", xscale: "log", yscale: "auto", panel, bars: "interval", ...empty};
}
function readState() {
  const typed = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (typed.intervals === "") typed.bars ??= "none"; // links of earlier versions
  const kind = there.includes(typed.kind) ? typed.kind : there[0];
  const fits = ([name, value]) => name in usual(kind) && (!CHOICES[name] || CHOICES[name].includes(value));
  state = {...usual(kind), ...Object.fromEntries(Object.entries(typed).filter(fits)), kind};
}
function change(changes) {
  const before = usual(state.kind), after = usual(changes.kind ?? state.kind);
  state = {...state, ...changes};
  for (const name in after) // of another kind, what was chosen stays, and what was usual becomes what is usual there
    if (changes.kind && !(name in changes) && state[name] === before[name]) state[name] = after[name];
  const said = Object.entries(state).filter(([name, value]) => name === "kind" ? value !== there[0] : value !== after[name]);
  history.replaceState(null, "", `#${new URLSearchParams(said)}`);
  render();
}

const counted = (n, one, many) => `${n} ${n === 1 ? one : many}`;
const panelOf = line => state.panel ? String(line[state.panel] == null ? "not said" : short(line, state.panel)) : "";
const placeOf = point => state.x === "multiple" ? point.x / point.line.train_len : point.x;
function columnOf(point, name) {
  if (name === "length" || name === "position") return point.x;
  if (name === "multiple") return point.x / point.line.train_len;
  return name === "ppl" ? measured(point, "ppl").v : name in point.line ? point.line[name] : point[name];
}

const SIGNS = { // whether a value, in small letters, is what a word of the filter asks for
  ":": (value, wanted) => value.includes(wanted), "=": (value, wanted) => value === wanted,
  ">": (value, wanted) => +value > +wanted, "<": (value, wanted) => +value < +wanted,
  ">=": (value, wanted) => +value >= +wanted, "<=": (value, wanted) => +value <= +wanted,
};
function filterOf(text) { // {keeps(point), unknown: names of no column}
  const unknown = [], terms = [...text.matchAll(TERM)].map(([, minus, column, sign, raw]) => {
    const wanted = raw.replaceAll('"', "").toLowerCase(), name = column ?? "name", negative = Boolean(minus) !== (sign === "!=");
    if (!COLUMNS.includes(name)) { unknown.push(name); return () => true; }
    const fits = SIGNS[sign === "!=" ? "=" : sign ?? ":"], ordered = "<>".includes(sign?.[0] ?? "-");
    return point => {
      const values = [columnOf(point, name)].flat().map(value => String(value ?? "").toLowerCase());
      return values.some(value => !(ordered && value === "") && fits(value, wanted)) !== negative;
    };
  });
  return {keeps: point => terms.every(term => term(point)), unknown};
}

function bestOf(every) { // of each group the line that is lowest, or most accurate, at the group's farthest place
  const sign = state.y === "accuracy" ? -1 : 1, best = new Set();
  for (const group of d3.group(every, one => String(one.line[state.best])).values()) {
    const ends = group.map(one => one.points.at(-1)), far = Math.max(...ends.map(at => at.x));
    const least = Math.min(...ends.filter(at => at.x === far).map(at => sign * at.v));
    best.add(group[ends.findIndex(at => at.x === far && sign * at.v === least)]);
  }
  return every.filter(one => best.has(one));
}

function chosen() { // {every: lines with their points {point, x, v, low, high}, on: those that the legend leaves, panels, said: notes}
  const said = [], without = [], {keeps, unknown} = filterOf(state.filter);
  if (unknown.length) said.push(`The filter names no column of this page: ${unknown.join(", ")}. There are ${COLUMNS.join(", ")}.`);
  let absurd = 0, every = [];
  for (const line of lines.filter(one => one.kind === state.kind)) {
    const kept = line.points.filter(keeps), sane = kept.filter(point => state.y === "accuracy" || !(Math.abs(point.nll) > MOST.nats));
    absurd += kept.length - sane.length;
    const own = sane.map(point => ({point, x: placeOf(point), ...measured(point, state.y)})).filter(at => Number.isFinite(at.v));
    if (own.length) every.push({line, points: own.sort((a, b) => a.x - b.x)});
    else if (sane.length) without.push(line.name);
  }
  const losses = counted(absurd, "loss", "losses");
  if (absurd) said.push(`Left out: ${losses} above ${MOST.nats} nats/token, which no model of a known vocabulary has.`);
  const listed = without.slice(0, 5).join("; ") + (without.length > 5 ? "; ..." : "");
  if (listed) said.push(`${without.length} of ${without.length + every.length} lines have no ${UNITS[state.y]}: ${listed}.`);
  if (state.best) {
    const which = state.y === "accuracy" ? "highest" : "lowest";
    said.push(`Of each ${PANELS[state.best]} the best line is drawn: the ${which} at the farthest place of its group.`);
    every = bestOf(every);
  }
  const names = [...new Set(every.map(one => panelOf(one.line)))], panels = names.slice(0, MOST.panels);
  const limited = (count, most, what) => {
    if (count > most) said.push(`${count - most} of ${count} ${what} are left out, since a page shows ${most}: name fewer in the filter.`);
  };
  limited(names.length, MOST.panels, "panels");
  every = every.filter(one => panels.includes(panelOf(one.line)));
  limited(every.length, MOST.lines, "lines");
  every = every.slice(0, MOST.lines);
  const off = new Set(state.off.split(","));
  return {every, on: every.filter(one => !off.has(one.line.id)), panels, said};
}

function looks(every) { // as in posbench/report/figures/palette.py: no two lines of a panel are alike while there are enough dashes
  for (const inside of d3.group(every.map(one => one.line), panelOf).values()) {
    const ofOne = new Set(inside.map(line => line.encoding)).size === 1, taken = new Set(), count = palette.dashes.length;
    for (const line of inside) {
      const colour = line.colours[ofOne && line.extension !== "none" ? 1 : 0];
      const turned = [...Array(count).keys()].map(i => (i + line.dash) % count);
      const dash = turned.find(one => !taken.has(`${colour} ${one}`)) ?? line.dash;
      taken.add(`${colour} ${dash}`);
      line.look = {colour, dash};
    }
    tint(inside);
  }
}
function tint(inside) { // lines of one colour get shades of it, without those that could be taken for the colour of another line
  const byColour = d3.group(inside, line => line.look.colour);
  for (const [colour, family] of byColour) {
    const all = palette.shades[colour] ?? [{colour: palette.colours[colour], near: []}];
    const clear = all.filter(shade => !shade.near.some(other => byColour.has(other)));
    const dashes = sorted(family.map(line => line.look.dash)), free = clear.length >= dashes.length ? clear : all;
    for (const line of family) {
      const place = dashes.indexOf(line.look.dash) % free.length;
      Object.assign(line.look, {tint: free[place].colour, isShade: place > 0});
    }
  }
}
