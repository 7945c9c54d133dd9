(() => {
  const content = JSON.parse(document.getElementById("data").textContent);
  const {lines, kinds, palette, sums, title} = content;
  const find = id => document.getElementById(id);
  const points = content.points.line.map((number, i) => {
    const point = Object.fromEntries(Object.entries(content.points).map(([name, values]) => [name, values[i]]));
    return Object.assign(point, {line: lines[number], entries: new Map(point.seeds.map(([seed, ...own]) => [seed, own]))});
  });
  const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const totals = {nll: new Float32Array(bytes(sums.nll).buffer), correct: bytes(sums.correct)};
  if (sums.correct_bytes === 2) totals.correct = new Uint16Array(totals.correct.buffer);
  for (const line of lines) line.points = [];
  for (const point of points) point.line.points.push(point);

  // What is drawn

  const UNITS = {
    difference: "loss minus the floor (nats/token)", change: "loss minus that without extension (nats/token)", nll: "loss (nats/token)",
    ppl: "perplexity per token", bpb: "bits per byte", accuracy: "accuracy",
  };
  const SIGNED = ["difference", "change"];
  const AXES = {length: "tokens fed", position: "position in the window", context: "tokens of context", task: "tokens of the text"};
  const PANELS = {encoding: "encoding", extension: "extension", data: "data", train_len: "training length", task: "task", source: "source",
    setting: "setting", scale_attention: "scale of attention", tuned_from: "parent"};
  const OF_LINE = ["encoding", "extension", "scale_attention", "source", "task", "protocol", "data", "tokenizer", "train_len", "setting",
    "trained_in", "tuned_from", "untested", "from", "commits", "machines", "seeds"];
  const OF_POINT = ["n_seeds", "n_targets", "n_units", "over", "nll", "ppl", "bpb", "accuracy", "floor", "difference", "half_width", "change",
    "change_half_width", "low", "high"];
  const MOST = {panels: 24, lines: 300, columns: 12, nats: 1000};

  const several = (name, kind) => new Set(lines.filter(line => line.kind === kind).map(line => String(line[name]))).size > 1;
  const short = (line, name) => name === "train_len" ? `trained at ${line.train_len}` : line[name];
  const groups = (values, key) => values.reduce((map, value) => map.set(key(value), [...map.get(key(value)) ?? [], value]), new Map());
  for (const kind of Object.keys(kinds)) { // a name says of task, data, lengths and setting what tells it from others alike
    const base = line => [line.encoding, ...["extension", "scale_attention"].map(name => line[name]).filter(text => text !== "none"), line.source ? `(${line.source})` : ""].filter(Boolean).join(" ");
    for (const alike of groups(lines.filter(line => line.kind === kind), base).values()) for (const line of alike) {
      const parts = ["task", "data", "train_len", "protocol"].filter(name => alike.some(other => other[name] !== line[name])).map(name => short(line, name));
      const settings = alike.map(other => (other.setting ?? "").split(", "));
      line.name = [base(line), ...parts, ...(line.setting ?? "").split(", ").filter(part => !settings.every(other => other.includes(part)))].join(" ");
    }
  }

  const own = (point, name = "nll") => point[`of_${name}`] ??= estimateOf([[1, point]], [...point.entries.keys()], name, 0);

  function estimateOf(terms, seeds, name, minus) { // minus: place of what is subtracted from each loss; 0 for nothing
    const found = [];
    for (const [weight, point] of terms) {
      const numbers = seeds.map(seed => point.entries.get(seed));
      if (!seeds.length || numbers.some(own => own[0] < 0 || minus && own[minus] < 0)) return null;
      const sets = new Set(numbers.flatMap(own => minus ? [own[0], own[minus]] : [own[0]]).map(entry => sums.entries[entry][0]));
      if (sets.size > 1) return null;
      const [set] = sets, counts = sums.sets[set], at = entry => sums.entries[entry][1];
      const read = entry => Float64Array.from(totals[name].subarray(at(entry), at(entry) + counts.length));
      found.push({weight, set, counts, totals: numbers.map(own => {
        const values = read(own[0]);
        if (minus) { const base = read(own[minus]); for (let i = 0; i < values.length; i++) values[i] -= base[i]; }
        return values;
      })});
    }
    return new Set(found.map(term => term.set)).size > 1 ? null : crossed.estimate(found);
  }

  function measured(point, y) { // {v, low, high}, undefined where it is not known
    const around = (v, half) => ({v, low: half == null ? undefined : v - half, high: half == null ? undefined : v + half});
    if (SIGNED.includes(y)) return around(point[y], y === "change" ? point.change_half_width : point.line.kind === "task" ? null : point.half_width);
    if (y === "accuracy") {
      if (point.line.kind === "task") return {v: point.accuracy, low: point.low, high: point.high};
      return around(point.accuracy, own(point, "correct")?.half);
    }
    const half = point.line.kind === "task" ? point.half_width : own(point)?.half;
    const loss = point.low == null || point.line.kind === "task" ? around(point.nll, half) : {v: point.nll, low: point.low, high: point.high};
    const into = y === "ppl" ? Math.exp : y === "bpb" ? value => value * point.bpb / point.nll : value => value;
    if (point.nll == null || y === "bpb" && point.bpb == null) return {};
    return Object.fromEntries(Object.entries(loss).map(([name, value]) => [name, value == null || isNaN(value) ? undefined : into(value)]));
  }

  function paired(a, b, y) { // of two points: {v, low, high, seeds, documents}, or {v, why} without an interval
    const seeds = [...a.entries.keys()].filter(seed => b.entries.has(seed)).sort((one, two) => one - two);
    const v = measured(a, y).v, w = measured(b, y).v, means = v == null || w == null ? undefined : y === "ppl" ? v / w : v - w;
    if (!a.entries.size || !b.entries.size) return {v: means, why: "no interval: for one of them means alone are known"};
    if (!seeds.length) return {v: means, why: "no interval: they have no seed in common"};
    const found = estimateOf([[1, a], [-1, b]], seeds, y === "accuracy" ? "correct" : "nll", y === "difference" ? 1 : y === "change" ? 2 : 0);
    if (!found) {
      const lacking = [a, b].some(point => seeds.some(seed => point.entries.get(seed)[0] < 0));
      return {v: means, why: lacking ? "no interval: the page has no sums over documents of one of them" : SIGNED.includes(y)
        ? "no interval: one of them has no reference on the same targets" : "no interval: they scored different targets"};
    }
    const into = y === "ppl" ? Math.exp : y === "bpb" ? value => value * a.bpb / a.nll : value => value;
    return {v: into(found.value), low: into(found.value - found.half), high: into(found.value + found.half), seeds, documents: found.documents};
  }

  // State

  const there = Object.keys(kinds).filter(kind => lines.some(line => line.kind === kind));
  const usual = kind => {
    const has = name => points.some(point => point.line.kind === kind && point[name] != null);
    const y = kind === "task" ? "accuracy" : has("difference") ? "difference" : has("change") ? "change" : "nll";
    const many = lines.filter(line => line.kind === kind).length > 8;
    const panel = many ? ["task", "encoding", "train_len", "extension"].find(name => several(name, kind)) ?? "" : "";
    return {kind, y, x: "length", xscale: "log", yscale: "auto", panel, intervals: "1", best: "", filter: "", off: "", a: "", b: "", theme: ""};
  };
  let state = {};
  function readState() {
    const typed = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    const kind = there.includes(typed.kind) ? typed.kind : there[0];
    const legal = {y: Object.keys(UNITS), x: ["length", "multiple"], xscale: ["log", "linear"], yscale: ["auto", "log", "linear"],
      panel: ["", ...Object.keys(PANELS)], best: ["", ...Object.keys(PANELS)], intervals: ["", "1"], theme: ["", "light", "dark"]};
    const fits = ([name, value]) => name in usual(kind) && (!legal[name] || legal[name].includes(value));
    state = {...usual(kind), ...Object.fromEntries(Object.entries(typed).filter(fits)), kind};
  }
  function change(changes) {
    const before = usual(state.kind);
    state = {...state, ...changes};
    if (changes.kind) { // what was chosen stays, what was usual becomes what is usual there
      const after = usual(changes.kind);
      for (const name in after) if (!(name in changes) && state[name] === before[name]) state[name] = after[name];
    }
    const base = usual(state.kind), said = Object.entries(state).filter(([name, value]) => value !== base[name] || name === "kind" && value !== there[0]);
    history.replaceState(null, "", said.length ? `#${new URLSearchParams(said)}` : "#");
    render();
  }

  // Choice of lines

  const TERM = /(-?)(?:(\w+)(>=|<=|!=|=|>|<|:))?("[^"]*"|\S+)/g;
  function filterOf(text) { // {keeps(point), unknown: names of no column}
    const unknown = [], terms = [...text.matchAll(TERM)].map(([, minus, name, sign, raw]) => {
      const wanted = raw.replaceAll('"', "").toLowerCase();
      if (!name) return point => point.line.name.toLowerCase().includes(wanted) !== Boolean(minus);
      if (![...OF_LINE, ...OF_POINT, "length", "position", "multiple", "name"].includes(name)) { unknown.push(name); return () => true; }
      return point => {
        const found = [columnOf(point, name)].flat().map(value => value == null ? "" : String(value).toLowerCase());
        const kept = sign === ":" ? found.some(value => value.includes(wanted)) : sign === "=" ? found.includes(wanted) : sign === "!=" ? !found.includes(wanted)
          : found.some(value => value !== "" && (sign[0] === ">" ? +value > +wanted || sign === ">=" && +value === +wanted : +value < +wanted || sign === "<=" && +value === +wanted));
        return kept !== Boolean(minus);
      };
    });
    return {keeps: point => terms.every(term => term(point)), unknown};
  }
  const columnOf = (point, name) => name === "length" || name === "position" ? point.x : name === "multiple" ? point.x / point.line.train_len
    : name === "ppl" ? measured(point, "ppl").v : name in point.line ? point.line[name] : point[name];

  const counted = (n, one, many) => `${n} ${n === 1 ? one : many}`;
  const panelOf = line => state.panel ? line[state.panel] == null ? "not said" : String(short(line, state.panel)) : "";

  function chosen() { // {every: lines that pass filter and best, on: those that are drawn, notes}
    const said = [], filter = filterOf(state.filter);
    if (filter.unknown.length) said.push(`The filter names no column of this page: ${filter.unknown.join(", ")}. There are ${[...OF_LINE, "length", "multiple", ...OF_POINT].join(", ")}.`);
    let every = lines.filter(line => line.kind === state.kind).map(line => ({line, points: line.points.filter(filter.keeps)})).filter(one => one.points.length);
    const without = [], absurd = every.reduce((n, one) => n + one.points.filter(point => Math.abs(point.nll) > MOST.nats).length, 0);
    if (absurd) said.push(`Left out: ${counted(absurd, "loss", "losses")} above ${MOST.nats} nats/token, which no model of a known vocabulary has.`);
    every = every.map(one => ({...one, points: one.points.filter(point => !(Math.abs(point.nll) > MOST.nats))}));
    every = every.map(one => ({...one, points: one.points.map(point => ({point, x: state.x === "multiple" ? point.x / point.line.train_len : point.x, ...measured(point, state.y)}))
      .filter(at => Number.isFinite(at.v)).sort((a, b) => a.x - b.x)})).filter(one => one.points.length || (without.push(one.line.name), false));
    if (without.length) said.push(`${without.length} of ${without.length + every.length} lines have no ${UNITS[state.y]}: ${without.slice(0, 5).join("; ")}${without.length > 5 ? "; ..." : ""}.`);
    if (state.best) {
      said.push(`Of each ${PANELS[state.best]} the best line is drawn: the ${state.y === "accuracy" ? "highest" : "lowest"} at the farthest place of its group.`);
      const sign = state.y === "accuracy" ? -1 : 1, best = new Set();
      for (const group of groups(every, one => String(one.line[state.best])).values()) {
        const far = Math.max(...group.map(one => one.points.at(-1).x));
        best.add(group.filter(one => one.points.at(-1).x === far).reduce((a, b) => sign * (b.points.at(-1).v - a.points.at(-1).v) < 0 ? b : a));
      }
      every = every.filter(one => best.has(one));
    }
    const names = [...new Set(every.map(one => panelOf(one.line)))];
    if (names.length > MOST.panels) {
      said.push(`${names.length - MOST.panels} of ${names.length} panels are left out, since a page shows ${MOST.panels}: name fewer in the filter.`);
      every = every.filter(one => names.indexOf(panelOf(one.line)) < MOST.panels);
    }
    if (every.length > MOST.lines) {
      said.push(`${every.length - MOST.lines} of ${every.length} lines are left out, since a page draws ${MOST.lines}: name fewer in the filter.`);
      every = every.slice(0, MOST.lines);
    }
    const off = new Set(state.off.split(","));
    return {every, on: every.filter(one => !off.has(one.line.id)), panels: names.slice(0, MOST.panels), said};
  }

  function looks(every) { // posbench/report/figures/palette.py: no two lines of a panel look alike while there are enough dashes
    for (const name of new Set(every.map(one => panelOf(one.line)))) {
      const inside = every.map(one => one.line).filter(line => panelOf(line) === name), taken = new Set();
      const alone = new Set(inside.map(line => line.encoding)).size === 1 && inside.some(line => line.extension !== "none");
      for (const line of inside) {
        const colour = line.colours[alone && line.extension !== "none" ? 1 : 0], count = palette.dashes.length;
        const turned = [...Array(count).keys()].map(i => (i + line.dash) % count);
        const dash = turned.find(one => !taken.has(`${colour} ${one}`)) ?? line.dash;
        taken.add(`${colour} ${dash}`);
        line.look = {colour, dash};
      }
    }
  }

  // The figure

  const dark = () => state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const colour = (line, night) => night && line.look.colour === palette.colours.length - 1 ? "#f2f2f2" : palette.colours[line.look.colour];
  const SYMBOLS = ["circle", "diamond", "square", "triangle", "star", "cross", "wye"];
  const number = value => value == null || isNaN(value) ? "-" : Math.abs(value) >= 1e5 ? value.toExponential(2) : value.toFixed(Math.abs(value) >= 100 ? 1 : 3).replace(/^-(0\.0+)$/, "$1");
  const whole = value => Math.abs(value) >= 1e7 ? value.toExponential() : Number.isInteger(value) ? value.toLocaleString("en") : String(+value.toPrecision(3));
  const fitting = (text, room) => text.length <= room ? text : `${text.slice(0, room / 2 - 1)}\u2026${text.slice(1 - room / 2)}`;
  function ticksOf(values, most) {
    const kept = values.length <= 10 ? values : values.filter(x => Number.isInteger(Math.log2(x)) || x === values.at(-1)), step = Math.ceil(kept.length / most);
    return kept.filter((_, i) => (kept.length - 1 - i) % step === 0);
  }

  function domain(on, log) {
    const values = on.flatMap(one => one.points.map(at => at.v)), low = Math.min(...values), high = Math.max(...values), span = high - low || Math.abs(low) || 1;
    if (!state.intervals) return log === "log" ? [low * 0.98, high * 1.02] : [low - 0.03 * span, high + 0.03 * span];
    const ends = on.flatMap(one => one.points.flatMap(at => [at.low, at.high].filter(Number.isFinite)));
    const reach = [Math.max(Math.min(low, ...ends), low - 0.35 * span), Math.min(Math.max(high, ...ends), high + 0.35 * span)];
    return log === "log" ? [Math.max(reach[0], low / 2), reach[1] * 1.02] : [reach[0] - 0.03 * span, reach[1] + 0.03 * span];
  }

  function draw(found, width, night, said = []) {
    const {on, panels} = found, columns = Math.max(1, Math.min(panels.length, Math.floor(width / 290)));
    const log = state.yscale === "linear" || state.yscale === "auto" && !SIGNED.includes(state.y) && state.y !== "ppl" ? "linear" : SIGNED.includes(state.y) ? "symlog" : "log";
    let lost = 0;
    const drawn = on.map(one => ({line: one.line, points: one.points.filter(at => (log !== "log" || at.v > 0 || (lost++, false)))})).filter(one => one.points.length);
    if (lost) said.push(`Left out: ${counted(lost, "value", "values")} not above 0, for which a log axis has no place.`);
    if (!drawn.length) return null;
    const place = line => ({fx: panels.indexOf(panelOf(line)) % columns, fy: Math.floor(panels.indexOf(panelOf(line)) / columns)});
    const facet = panels.length > 1, [low, high] = domain(drawn, log), marks = [], xs = [...new Set(drawn.flatMap(one => one.points.map(at => at.x)))].sort((a, b) => a - b);
    const lengths = new Map();
    for (const {line} of drawn) lengths.set(`${panelOf(line)} ${line.train_len}`, {x: state.x === "multiple" ? 1 : line.train_len, ...place(line)});
    const across = facet ? {fx: "fx", fy: "fy"} : {}, inside = [...lengths.values()].filter(one => xs[0] <= one.x && one.x <= xs.at(-1));
    if (low < 0 && high > 0) marks.push(Plot.ruleY([0], {stroke: "currentColor", strokeOpacity: 0.5}));
    marks.push(Plot.ruleX(inside, {x: "x", ...across, stroke: "currentColor", strokeOpacity: 0.35, strokeDasharray: "2,3"}));
    for (const {line, points} of drawn) {
      const data = points.map(at => ({...at, ...place(line)})), stroke = colour(line, night), dash = palette.dashes[line.look.dash];
      if (state.intervals) marks.push(Plot.ruleX(data.filter(at => at.low < at.high), {x: "x", y1: at => Math.max(low, at.low), y2: at => Math.min(high, at.high), ...across, stroke, strokeOpacity: 0.55, strokeWidth: 1.2, clip: true}));
      marks.push(Plot.line(data, {x: "x", y: "v", ...across, stroke, strokeDasharray: dash, strokeWidth: 1.6, ariaLabel: () => line.name}));
      marks.push(Plot.dot(data, {x: "x", y: "v", ...across, fill: stroke, symbol: SYMBOLS[line.look.dash], r: points.length > 40 ? 1.5 : 3, className: "dots", ariaLabel: at => String(points_of.get(at.point))}));
    }
    if (facet) marks.push(Plot.text(panels.map((text, i) => ({text, fx: i % columns, fy: Math.floor(i / columns)})), {fx: "fx", fy: "fy", text: at => fitting(at.text, width / columns / 8.6), frameAnchor: "top", dy: -14, fontWeight: 600, clip: false}));
    const rows = Math.ceil(panels.length / columns), ticks = [0, ...(high - low < 0.5 ? [0.02, 0.05] : []), 0.1, ...(high - low < 4 ? [0.2] : []), 0.5, 1, 2, 4, 8, 16, 64, 256, 1024, 65536].flatMap(t => t ? [-t, t] : [t]).filter(t => low <= t && t <= high);
    const xlog = state.xscale === "log" && xs[0] > 0;
    return Plot.plot({
      width, height: rows * Math.max(190, Math.min(420, width / columns * 0.62)) + 60, marginLeft: 60, marginTop: 34, marginRight: 14, marginBottom: 42,
      style: {background: "transparent", color: night ? "#e8e8e8" : "#222", fontSize: "12px", overflow: "visible"},
      x: {type: xlog ? "log" : "linear", base: 2, ticks: xlog ? ticksOf(xs, width / columns / 52) : Math.min(8, width / columns / 60), tickFormat: x => x >= 16384 && x % 1024 === 0 ? `${x / 1024}k` : whole(x), label: state.x === "multiple" ? "multiple of the training length" : AXES[state.kind], labelAnchor: "center", labelArrow: "none", grid: true, inset: 6, ...(xs.length === 1 ? {domain: xlog ? [xs[0] / 2, xs[0] * 2] : [xs[0] - 1, xs[0] + 1]} : {})},
      y: {type: log, ...(log === "symlog" ? {constant: 0.1, ticks} : {}), domain: [low, high], label: UNITS[state.y], labelAnchor: "center", labelArrow: "none", tickFormat: whole, grid: true},
      ...(facet ? {fx: {axis: null, padding: 0.08}, fy: {axis: null, padding: 0.16}, facet: {marginRight: 0}} : {}),
      marks,
    });
  }
  const points_of = new Map(points.map((point, i) => [point, i]));

  // Reading a point

  let at = null, spots = [];
  const told = point => {
    const {v, low, high} = measured(point, state.y), x = `${whole(point.x)} ${AXES[state.kind]}`;
    const known = point.entries.size ? [...point.entries.keys()] : point.line.seeds.length === point.n_seeds ? point.line.seeds : [];
    const seeds = known.length ? `seed${known.length > 1 ? "s" : ""} ${[...known].sort((a, b) => a - b).join(", ")}` : counted(point.n_seeds, "seed", "seeds");
    return [point.line.name, x, `${UNITS[state.y]}: ${number(v)}${Number.isFinite(low) && Number.isFinite(high) ? ` [95 %: ${number(low)} to ${number(high)}${point.over ? `, over ${point.over}` : ""}]` : ""}`, seeds];
  };
  const commandOf = point => {
    const command = point.line.command ?? "";
    return state.kind === "length" ? command.replace(/evaluate\.lengths=\[[\d,]*\]/, `evaluate.lengths=[${point.x}]`)
      : state.kind === "context" ? command.replace(/extension=recompute_window( extension\.window=\d+)?/, `extension=recompute_window extension.window=${point.x}`) : command;
  };
  function show(point, quietly) {
    at = point;
    for (const spot of spots) spot.element.classList.toggle("at", spot.point === point);
    const tip = find("tip"), spot = spots.find(one => one.point === point);
    tip.hidden = !spot || quietly;
    if (!spot) { find("readout").hidden = true; return; }
    const said = told(point), box = spot.element.getBoundingClientRect(), frame = find("figure").getBoundingClientRect();
    tip.replaceChildren(...said.map((text, i) => make(i ? "div" : "strong", {}, text)));
    const left = box.x - frame.x + 14;
    tip.style.left = `${Math.max(0, left + tip.offsetWidth > frame.width ? left - tip.offsetWidth - 28 : left)}px`;
    tip.style.top = `${box.y - frame.y + 10}px`;
    find("readout").hidden = false;
    find("said").textContent = said.join("; ");
    find("from").textContent = `from ${point.line.from.join(", ") || point.line.source || "a CSV"}; commit ${point.line.commits.join(", ") || "not said"}; ${point.line.machines.join(" and ") || "machine not said"}`;
    find("command").textContent = commandOf(point) || "no command is known: a CSV says none";
  }
  function nearest(event) {
    let best = null, least = 40;
    for (const {element, point} of spots) {
      const box = element.getBoundingClientRect(), far = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
      if (far < least) [best, least] = [point, far];
    }
    return best;
  }
  function walk(key) { // left and right along a line, up and down to the next line
    const order = [...new Set(spots.map(spot => spot.point.line))], one = at && spots.some(spot => spot.point === at) ? at : spots[0]?.point;
    if (!one) return;
    if (one !== at) return show(one);
    const own = spots.filter(spot => spot.point.line === one.line).map(spot => spot.point), i = own.indexOf(one);
    if (key === "ArrowLeft" || key === "ArrowRight") return show(own[Math.max(0, Math.min(own.length - 1, i + (key === "ArrowRight" ? 1 : -1)))]);
    const next = order[(order.indexOf(one.line) + (key === "ArrowDown" ? 1 : order.length - 1)) % order.length];
    const others = spots.filter(spot => spot.point.line === next).map(spot => spot.point);
    show(others.reduce((a, b) => Math.abs(b.x - one.x) < Math.abs(a.x - one.x) ? b : a));
  }

  // Parts of the page

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== false && value != null) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  function swatch(line, night) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", "svg"), stroke = document.createElementNS(element.namespaceURI, "path");
    for (const [name, value] of Object.entries({width: 28, height: 10, "aria-hidden": "true"})) element.setAttribute(name, value);
    for (const [name, value] of Object.entries({d: "M0,5H28", stroke: colour(line, night), "stroke-width": 2, "stroke-dasharray": palette.dashes[line.look.dash]})) stroke.setAttribute(name, value);
    element.append(stroke);
    return element;
  }
  function legend(found, night) {
    const off = new Set(state.off.split(",").filter(Boolean));
    find("legend").replaceChildren(...found.panels.map(panel => {
      const own = found.every.filter(one => panelOf(one.line) === panel).map(({line}) => {
        const button = make("button", {type: "button", "aria-pressed": String(!off.has(line.id)), "data-line": line.id}, swatch(line, night), ` ${line.name}`);
        button.addEventListener("click", () => { off.has(line.id) ? off.delete(line.id) : off.add(line.id); change({off: [...off].join(",")}); find("legend").querySelector(`[data-line="${line.id}"]`)?.focus(); });
        return button;
      });
      return make("div", {role: "group", "aria-label": panel || "lines"}, ...(panel ? [make("strong", {}, panel)] : []), ...own);
    }));
  }
  function table(head, rows, caption) {
    return make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head.map(text => make("th", {scope: "col"}, text)))),
      make("tbody", {}, ...rows.map(([name, ...cells]) => make("tr", {}, make("th", {scope: "row"}, name), ...cells.map(text => make("td", {class: "n"}, text))))));
  }
  const plusminus = ({v, low, high}) => v == null ? "-" : number(v) + (state.intervals && Number.isFinite(low) && Number.isFinite(high) ? ` [${number(low)}, ${number(high)}]` : "");
  function columnsOf(values, said) {
    const kept = values.length > MOST.columns ? values.filter((_, i) => i === values.length - 1 || i % Math.ceil(values.length / MOST.columns) === 0) : values;
    if (kept.length < values.length) said.push(`The table has ${kept.length} of ${values.length} places; the CSV has all.`);
    return kept;
  }
  const sorted = values => [...new Set(values)].sort((a, b) => a - b);
  function below(found) {
    const columns = columnsOf(sorted(found.on.flatMap(one => one.points.map(at => at.x))), found.said);
    const rows = found.on.map(({line, points}) => [line.name, ...columns.map(x => plusminus(points.find(at => at.x === x) ?? {}))]);
    find("table").replaceChildren(table(["line", ...columns.map(whole)], rows, `${UNITS[state.y]}${state.intervals ? ", with 95 % intervals where they are known" : ""}, by ${state.x === "multiple" ? "multiple of the training length" : AXES[state.kind]}`));
  }
  function compareTwo(found) {
    const all = found.every.map(one => one.line), options = () => [make("option", {value: ""}, "-"), ...all.map(line => make("option", {value: line.id}, line.name))];
    for (const id of ["a", "b"]) { find(id).replaceChildren(...options()); find(id).value = state[id]; }
    const [a, b] = ["a", "b"].map(id => found.every.find(one => one.line.id === state[id]));
    if (!a || !b) { find("pair").replaceChildren(); return; }
    const places = sorted(a.points.map(at => at.x)).filter(x => b.points.some(at => at.x === x)), notes = [];
    if (!places.length) { find("pair").replaceChildren(make("p", {}, `${a.line.name} and ${b.line.name} have no place in common, so there is nothing to compare.`)); return; }
    const pairs = columnsOf(places, notes).map(x => [x, ...[a, b].map(one => one.points.find(at => at.x === x).point)]).map(([x, one, two]) => [x, paired(one, two, state.y)]);
    const rows = pairs.map(([x, one]) => [whole(x), number(one.v), Number.isFinite(one.low) ? `${number(one.low)} to ${number(one.high)}` : one.why ?? "no interval: one document", one.seeds ? one.seeds.join(", ") : "-", one.documents ? String(one.documents) : "-"]);
    const what = state.y === "ppl" ? `Perplexity of ${a.line.name}, divided by that of ${b.line.name}` : `${UNITS[state.y]} of ${a.line.name}, minus that of ${b.line.name}`;
    find("pair").replaceChildren(table([state.x === "multiple" ? "multiple" : AXES[state.kind], state.y === "ppl" ? "ratio" : "difference", "95 % interval", "seeds", "documents"], rows, `${what}: paired on the same targets, over seeds crossed with documents`), ...notes.map(text => make("p", {class: "said"}, text)));
  }

  // Files

  function save(name, blob) {
    const link = make("a", {download: name, href: URL.createObjectURL(blob)});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
  function picture() { // {text, width, height} of the figure with its legend, in light colours
    const found = chosen(), width = Math.max(420, find("figure").clientWidth), space = "http://www.w3.org/2000/svg";
    looks(found.every);
    const svg = draw(found, width, false);
    if (!svg) return null;
    const element = (tag, attributes, ...children) => { const one = document.createElementNS(space, tag); for (const name in attributes) one.setAttribute(name, attributes[name]); one.append(...children); return one; };
    const wide = 18 + 7 * Math.max(...found.on.map(one => one.line.name.length)) + 32, across = Math.max(1, Math.floor(width / wide)), top = 34, high = +svg.getAttribute("height");
    const keys = found.on.map(({line}, i) => {
      const x = 12 + (i % across) * wide, y = top + high + 18 + 18 * Math.floor(i / across);
      return element("g", {transform: `translate(${x},${y})`}, element("path", {d: "M0,-4H26", stroke: colour(line, false), "stroke-width": 2, "stroke-dasharray": palette.dashes[line.look.dash]}), element("text", {x: 32, "font-size": 12}, line.name));
    });
    const height = top + high + 24 + 18 * Math.ceil(found.on.length / across);
    svg.setAttribute("y", top);
    const whole = element("svg", {xmlns: space, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, sans-serif", fill: "#222"},
      element("title", {}, title), element("rect", {width, height, fill: "#fff"}), element("text", {x: 12, y: 22, "font-size": 15, "font-weight": 600}, title), svg, ...keys);
    return {text: new XMLSerializer().serializeToString(whole), width, height};
  }
  const cell = value => { // formulas of spreadsheets become text, as posbench/common/defuse.py makes them
    if (typeof value === "number" || value == null) return value == null ? "" : String(value);
    const text = /^'*[=+\-@\t\r]/.test(String(value)) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  function csv() {
    const head = ["line", ...OF_LINE, state.kind === "position" ? "position" : "length", ...OF_POINT, "shown", "shown_low", "shown_high", "command"];
    const rows = chosen().on.flatMap(({line, points}) => points.map(({point, v, low, high}) => [line.name, ...OF_LINE.map(name => [line[name]].flat().join(" ")), point.x, ...OF_POINT.map(name => columnOf(point, name)), v, low, high, commandOf(point)]));
    return [head, ...rows].map(row => row.map(cell).join(",")).join("\r\n") + "\r\n";
  }
  function bitmap() {
    const {text, width, height} = picture() ?? {};
    if (!text) return;
    const image = new Image(), url = URL.createObjectURL(new Blob([text], {type: "image/svg+xml"}));
    image.onload = () => {
      const canvas = make("canvas", {width: 2 * width, height: 2 * height});
      canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
      URL.revokeObjectURL(url);
      canvas.toBlob(blob => save("explore.png", blob), "image/png");
    };
    image.src = url;
  }

  // All together

  function fill(id, options) { find(id).replaceChildren(...Object.entries(options).map(([value, text]) => make("option", {value}, text))); find(id).value = state[id]; }
  function render() {
    if (!there.length) { find("notes").replaceChildren(make("li", {}, "There is no point to draw.")); return; }
    document.documentElement.dataset.theme = dark() ? "dark" : "light";
    const own = points.filter(point => point.line.kind === state.kind), known = y => own.some(point => Number.isFinite(measured(point, y).v));
    fill("kind", Object.fromEntries(there.map(kind => [kind, kinds[kind]])));
    fill("y", Object.fromEntries(Object.entries(UNITS).filter(([y]) => y === state.y || known(y))));
    fill("x", {length: AXES[state.kind], multiple: "multiple of the training length"});
    const differing = Object.fromEntries(Object.entries(PANELS).filter(([name]) => name === state.panel || name === state.best || several(name, state.kind)));
    fill("panel", {"": "one panel", ...differing});
    fill("best", {"": "all lines", ...Object.fromEntries(Object.entries(differing).map(([name, text]) => [name, `the best of each ${text}`]))});
    for (const id of ["xscale", "yscale", "theme"]) find(id).value = state[id];
    find("intervals").checked = Boolean(state.intervals);
    if (document.activeElement !== find("filter")) find("filter").value = state.filter;
    const found = chosen(), night = dark();
    looks(found.every);
    const svg = draw(found, Math.max(320, find("figure").clientWidth), night, found.said), plot = find("plot");
    if (!svg) found.said.push("Nothing is left to draw: change the filter, or switch lines on in the legend.");
    plot.replaceChildren(...(svg ? [svg] : []));
    spots = [...plot.querySelectorAll(".dots [aria-label]")].map(element => ({element, point: points[+element.getAttribute("aria-label")]}));
    for (const {element, point} of spots) element.setAttribute("aria-label", told(point).join("; "));
    svg?.setAttribute("role", "img");
    svg?.setAttribute("aria-label", `${UNITS[state.y]} of ${found.on.length} lines: the numbers are in the table below; arrow keys read single points`);
    legend(found, night);
    below(found);
    compareTwo(found);
    find("notes").replaceChildren(...[...content.notes, ...found.said].map(text => make("li", {}, text)));
    show(spots.some(spot => spot.point === at) ? at : null, true);
  }
  for (const id of ["kind", "y", "x", "xscale", "yscale", "panel", "best", "theme", "a", "b"]) find(id).addEventListener("change", event => change({[id]: event.target.value}));
  find("intervals").addEventListener("change", event => change({intervals: event.target.checked ? "1" : ""}));
  find("filter").addEventListener("input", event => change({filter: event.target.value}));
  find("all").addEventListener("click", () => change({off: ""}));
  find("none").addEventListener("click", () => change({off: chosen().every.map(one => one.line.id).join(",")}));
  find("reset").addEventListener("click", () => { state = usual(there[0]); change({}); });
  for (const id of ["a", "b"]) find(`as-${id}`).addEventListener("click", () => at && change({[id]: at.line.id}));
  find("figure").addEventListener("pointermove", event => { const point = nearest(event); if (point && point !== at) show(point); else if (!point) find("tip").hidden = true; });
  find("figure").addEventListener("pointerleave", () => { find("tip").hidden = true; });
  find("figure").addEventListener("keydown", event => { if (event.key.startsWith("Arrow")) { event.preventDefault(); walk(event.key); } else if (event.key === "Escape") find("tip").hidden = true; });
  find("svg").addEventListener("click", () => { const found = picture(); if (found) save("explore.svg", new Blob([found.text], {type: "image/svg+xml"})); });
  find("png").addEventListener("click", bitmap);
  find("csv").addEventListener("click", () => save("explore.csv", new Blob([csv()], {type: "text/csv"})));
  addEventListener("hashchange", () => { readState(); render(); });
  addEventListener("resize", () => render());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => render());
  readState();
  render();
})();
