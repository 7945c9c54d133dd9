// The figure, drawn by Observable Plot, and the reading of a single point by mouse or keys.
const SYMBOLS = ["circle", "diamond", "square", "triangle", "star", "cross", "wye"];
const TICKS = [0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 64, 256, 1024, 65536];
const part = id => document.getElementById(id);
const dark = () => state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
function colour({look}, night) { // on a dark ground black is white, and dark shades are as light as they are dark
  if (!night) return look.tint;
  if (look.colour === palette.black && !look.isShade) return "#f2f2f2";
  const {l, a, b} = d3.lab(look.tint);
  return look.isShade && l < 50 ? d3.lab(100 - l, a, b).formatHex() : look.tint;
}
const both = at => Number.isFinite(at.low) && Number.isFinite(at.high);
const axisOfX = () => state.x === "multiple" ? MULTIPLE : AXES[state.kind];

function number(value) {
  if (value == null || isNaN(value)) return "-";
  return Math.abs(value) >= 1e5 ? value.toExponential(2) : value.toFixed(Math.abs(value) >= 100 ? 1 : 3).replace(/^-(0\.0+)$/, "$1");
}
function whole(value) {
  if (Math.abs(value) >= 1e7) return value.toExponential();
  return Number.isInteger(value) ? value.toLocaleString("en") : String(+value.toPrecision(3));
}
const tokens = value => value >= 16384 && value % 1024 === 0 ? `${value / 1024}k` : whole(value);
const fitting = (text, room) => text.length <= room ? text : `${text.slice(0, room / 2 - 1)}\u2026${text.slice(1 - room / 2)}`;
function ticksOf(values, most) {
  const kept = values.length <= 10 ? values : values.filter(x => Number.isInteger(Math.log2(x)) || x === values.at(-1));
  return kept.filter((_, i) => (kept.length - 1 - i) % Math.ceil(kept.length / most) === 0);
}

function domain(drawn, scale) { // of the values, and of their bars as far as these leave the values readable
  const all = drawn.flatMap(one => one.points), values = all.map(at => at.v), low = Math.min(...values), high = Math.max(...values);
  const ends = barEnds(drawn), span = high - low || Math.abs(low) || 1;
  const least = Math.max(Math.min(low, ...ends), low - 0.35 * span), most = Math.min(Math.max(high, ...ends), high + 0.35 * span);
  return scale === "log" ? [Math.max(least, low / 2) * 0.98, most * 1.02] : [least - 0.03 * span, most + 0.03 * span];
}
function barEnds(drawn) { // of the intervals, or values of single seeds
  if (state.bars === "seeds") return drawn.flatMap(one => seedLines(one, state.y)).flatMap(one => one.points.map(at => at.v));
  return state.bars === "interval" ? drawn.flatMap(one => one.points).filter(both).flatMap(at => [at.low, at.high]) : [];
}

function scaleOfY() {
  if (state.yscale === "linear" || state.yscale === "auto" && !(state.y in SIGNED) && state.y !== "ppl") return "linear";
  return state.y in SIGNED ? "symlog" : "log";
}

const scaleOfX = on => state.xscale === "log" && on.every(one => one.points.every(at => at.x > 0)) ? "log" : "linear";

// Marks of a line: its bars or seeds, the line itself and its dots. `place`: the columns of x and of the panel.
function lineMarks({line, points: own}, data, place, [low, high], night) {
  const stroke = colour(line, night), dash = palette.dashes[line.look.dash];
  const ends = {y1: at => Math.max(low, at.low), y2: at => Math.min(high, at.high)};
  const bars = state.bars === "interval" ? data.filter(hasBar) : [];
  const thin = {stroke, strokeWidth: 0.7, strokeOpacity: 0.5, clip: true};
  const ofSeeds = state.bars === "seeds" ? seedLines({line, points: data}, state.y) : [];
  return [
    Plot.ruleX(bars, {...place, ...ends, stroke, strokeOpacity: 0.55, strokeWidth: 1.2, clip: true}),
    ...ofSeeds.map(one => Plot.line(one.points.map(at => ({...data[0], ...at})), {...place, y: "v", ...thin, className: "seeds"})),
    Plot.line(data, {...place, y: "v", stroke, strokeDasharray: dash, strokeWidth: 1.6, ariaLabel: () => line.name}),
    Plot.dot(data, {...place, y: "v", fill: stroke, symbol: SYMBOLS[line.look.dash], r: own.length > 40 ? 1.5 : 3, className: "dots",
      ariaLabel: at => String(at.point.index)}),
  ];
}

function draw({on, panels}, width, night, said = []) { // the svg, null where nothing is left
  const scale = scaleOfY(), fits = at => scale !== "log" || at.v > 0;
  const columns = Math.max(1, Math.min(panels.length, Math.floor(width / 290)));
  const drawn = on.map(({line, points: own}) => ({line, points: own.filter(fits)})).filter(one => one.points.length);
  const lost = on.reduce((n, one) => n + one.points.filter(at => !fits(at)).length, 0);
  if (lost) said.push(`Left out: ${counted(lost, "value", "values")} not above 0, for which a log axis has no place.`);
  if (!drawn.length) return null;
  const cell = i => ({fx: i % columns, fy: Math.floor(i / columns)}), placed = line => cell(panels.indexOf(panelOf(line)));
  const across = panels.length > 1 ? {fx: "fx", fy: "fy"} : {}, xs = sorted(drawn.flatMap(one => one.points.map(at => at.x)));
  const [low, high] = domain(drawn, scale), zero = low < 0 && high > 0 ? [0] : [];
  const marks = [Plot.ruleY(zero, {stroke: "currentColor", strokeOpacity: 0.5})];
  const trained = d3.group(drawn.map(one => one.line), line => `${panelOf(line)} ${line.train_len}`);
  const limits = [...trained.values()].map(([line]) => ({x: state.x === "multiple" ? 1 : line.train_len, ...placed(line)}));
  const within = limits.filter(one => xs[0] <= one.x && one.x <= xs.at(-1));
  marks.push(Plot.ruleX(within, {x: "x", ...across, stroke: "currentColor", strokeOpacity: 0.35, strokeDasharray: "2,3"}));
  const all = [];
  for (const {line, points: own} of drawn) {
    const data = own.map(at => ({...at, ...placed(line)}));
    all.push(...data);
    marks.push(...lineMarks({line, points: own}, data, {x: "x", ...across}, [low, high], night));
  }
  marks.push(Plot.tip(all, Plot.pointer({x: "x", y: "v", ...across, title: at => told(at.point).join("\n")})));
  if (panels.length > 1) {
    const heads = panels.map((text, i) => ({text: fitting(text, width / columns / 8.6), ...cell(i)}));
    marks.push(Plot.text(heads, {...across, text: "text", frameAnchor: "top", dy: -14, fontWeight: 600}));
  }
  const xlog = scaleOfX(drawn) === "log", around = xlog ? [xs[0] / 2, xs[0] * 2] : [xs[0] - 1, xs[0] + 1];
  const fine = TICKS.filter(tick => !(high - low > 0.5 && [0.02, 0.05].includes(tick) || high - low > 4 && tick === 0.2));
  const ticks = sorted(fine.flatMap(tick => [0 - tick, tick])).filter(tick => low <= tick && tick <= high);
  const named = {labelAnchor: "center", labelArrow: "none", grid: true};
  return Plot.plot({
    width, height: Math.ceil(panels.length / columns) * Math.max(190, Math.min(420, width / columns * 0.62)) + 60,
    marginLeft: 60, marginTop: 34, marginRight: 14, marginBottom: 42,
    style: {background: "transparent", color: night ? "#e8e8e8" : "#222", fontSize: "12px", overflow: "visible"},
    x: {type: xlog ? "log" : "linear", base: 2, ticks: xlog ? ticksOf(xs, width / columns / 52) : Math.min(8, width / columns / 60),
      tickFormat: tokens, label: axisOfX(), inset: 6, ...named,
      ...(xs.length === 1 ? {domain: around} : {})},
    y: {type: scale, ...(scale === "symlog" ? {constant: 0.1, ticks: ticks.length > 2 ? ticks : 6} : {}), domain: [low, high], label: UNITS[state.y], tickFormat: whole,
      ...named},
    ...(panels.length > 1 ? {fx: {axis: null, padding: 0.08}, fy: {axis: null, padding: 0.16}, facet: {marginRight: 0}} : {}),
    marks,
  });
}

let current = null, spots = []; // the point that is read, and [{element, point}] of the figure

function told(point) {
  const at = measured(point, state.y), known = point.entries.size ? [...point.entries.keys()] : point.line.seeds;
  const listed = `seed${known.length > 1 ? "s" : ""} ${sorted(known).join(", ")}`;
  const seeds = known.length === point.n_seeds ? listed : counted(point.n_seeds, "seed", "seeds");
  const interval = both(at) ? ` [95 %: ${number(at.low)} to ${number(at.high)}${unitsOf(point, state.y) ? `, over ${unitsOf(point, state.y)}` : ""}]` : "";
  return [point.line.name, `${whole(point.x)} ${AXES[state.kind]}`, `${UNITS[state.y]}: ${number(at.v)}${interval}`, seeds];
}
function commandOf(point) { // that of the line, for this point alone
  const command = point.line.command ?? "";
  if (state.kind === "length") return command.replace(/evaluate\.lengths=\[[\d,]*\]/, `evaluate.lengths=[${point.x}]`);
  const window = /(extension=recompute_window)( extension\.window=\d+)?/;
  return state.kind === "context" ? command.replace(window, `$1 extension.window=${point.x}`) : command;
}
function show(point) {
  current = point;
  const spot = spots.find(one => one.point === point);
  for (const one of spots) one.element.classList.toggle("at", one === spot);
  part("readout").hidden = !spot;
  if (!spot) return;
  const {line} = point, folders = line.from.join(", ") || line.source || "a CSV", commits = line.commits.join(", ") || "not said";
  part("said").textContent = told(point).join("; ");
  part("from").textContent = `from ${folders}; commit ${commits}; ${line.machines.join(" and ") || "machine not said"}`;
  part("command").textContent = commandOf(point) || "no command is known: a CSV says none";
}
function walk(key) { // left and right along a line, up and down to the next line
  const order = [...new Set(spots.map(spot => spot.point.line))];
  const of = line => spots.map(spot => spot.point).filter(point => point.line === line);
  if (!spots.length || !spots.some(spot => spot.point === current)) return show(spots[0]?.point ?? null);
  const own = of(current.line), i = own.indexOf(current), x = current.x, near = point => Math.abs(point.x - x);
  if (key === "ArrowLeft" || key === "ArrowRight") return show(own[i + (key === "ArrowRight" ? 1 : -1)] ?? current);
  const next = order[(order.indexOf(current.line) + (key === "ArrowDown" ? 1 : order.length - 1)) % order.length];
  show(of(next).reduce((one, other) => near(other) < near(one) ? other : one));
}
