// Points of the page's data, their values in each unit with intervals, and paired differences.
const content = JSON.parse(document.getElementById("data").textContent), {lines, kinds, palette, sums} = content;
const UNITS = {
  difference: "loss minus the floor (nats/token)", change: "loss minus that without extension (nats/token)", nll: "loss (nats/token)",
  ppl: "perplexity per token", bpb: "bits per byte", accuracy: "accuracy",
};
const SIGNED = {difference: 1, change: 2}; // unit: place of the sums that are subtracted, among those of a seed
const OF_LINE = ["encoding", "extension", "scale_attention", "source", "task", "protocol", "data", "tokenizer", "train_len", "setting",
  "unstated", "trained_in", "tuned_from", "untested", "from", "commits", "machines", "seeds"];
const OF_POINT = ["n_seeds", "n_targets", "n_units", "over", "nll", "ppl", "bpb", "accuracy", "floor", "difference", "half_width", "change",
  "change_half_width", "low", "high"];

const points = content.points.line.map((number, i) => {
  const point = Object.fromEntries(Object.entries(content.points).map(([name, values]) => [name, values[i]]));
  const entries = new Map(point.seeds.map(([seed, ...numbers]) => [seed, numbers.slice(0, 3)])); // of sums: own, floor, no extension
  const values = new Map(point.seeds.map(([seed, ...numbers]) => [seed, numbers.slice(3)])); // loss, rise, change, accuracy, without sums
  return Object.assign(point, {index: i, line: lines[number], entries, values});
});
for (const line of lines) line.points = points.filter(point => point.line === line);
const totals = (bytes => ({
  nll: new Float32Array(bytes(sums.nll).buffer),
  correct: sums.correct_bytes === 1 ? bytes(sums.correct) : new Uint16Array(bytes(sums.correct).buffer),
}))(text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0)));

const several = (name, kind) => new Set(lines.filter(line => line.kind === kind).map(line => String(line[name]))).size > 1;
const short = (line, name) => name === "train_len" ? `trained at ${line.train_len}` : line[name];
const sorted = values => [...new Set(values)].sort((a, b) => a - b);
function baseName(line) {
  const methods = [line.extension, line.scale_attention].filter(text => text !== "none");
  return [line.encoding, ...methods, ...(line.source ? [`(${line.source})`] : [])].join(" ");
}
for (const alike of d3.group(lines, line => `${line.kind} ${baseName(line)}`).values()) { // further words tell apart lines of one name
  const parts = line => (line.setting ?? "").split(", ");
  for (const line of alike) {
    line.method = baseName(line); // its name among lines of its data, protocol, setting and task
    const differing = ["task", "data", "train_len", "protocol"].filter(name => alike.some(other => other[name] !== line[name]));
    const own = parts(line).filter(part => !alike.every(other => parts(other).includes(part)));
    line.name = [baseName(line), ...differing.map(name => short(line, name)), ...own].join(" ");
  }
}

// Sums of an entry over documents: {set, totals}, the number of its set of documents and a total for each.
function totalsOf(entry, name) {
  const [set, first] = sums.entries[entry];
  return {set, totals: Float64Array.from(totals[name].subarray(first, first + sums.sets[set].length))};
}
const minus = (values, base) => values.map((value, i) => value - base[i]);
// Estimate of a point's mean over its seeds: of sums over documents, else of several seeds; null where neither is known.
function alone(point, name) {
  const column = `of_${name}`;
  if (point[column] === undefined) point[column] = ofSums(point, name) ?? ofSeeds(point, name);
  return point[column];
}
function ofSums(point, name) {
  const entries = [...point.entries.values()].map(([own]) => own);
  if (!entries.length || entries.some(entry => entry < 0)) return null;
  const known = entries.map(entry => totalsOf(entry, name)), [{set}] = known;
  if (known.some(one => one.set !== set)) return null;
  return crossed.estimate([{weight: 1, counts: sums.sets[set], strata: sums.strata[set], totals: known.map(one => one.totals)}]);
}
function ofSeeds(point, name) {
  const measure = name === "correct" ? "accuracy" : "loss", values = [...point.entries.keys()].map(seed => valueOf(point, seed, measure));
  return values.length > 1 && values.every(value => value !== null) ? crossed.ofValues(values) : null;
}
const into = (point, y) => y === "ppl" ? Math.exp : y === "bpb" ? value => value * point.bpb / point.nll : value => value;

function measured(point, y) { // {v, low, high}, undefined where it is not known
  const around = (v, half) => v == null ? {} : half == null || isNaN(half) ? {v} : {v, low: v - half, high: v + half};
  const task = point.line.kind === "task";
  if (y === "change") return around(point.change, point.change_half_width);
  if (y === "difference") return around(point.difference, point.half_width);
  if (y === "accuracy" && task) return {v: point.accuracy, low: point.low, high: point.high};
  if (y === "accuracy") return around(point.accuracy, point.accuracy_half_width ?? alone(point, "correct")?.half);
  if (point.nll == null || y === "bpb" && point.bpb == null) return {};
  const stated = !task && point.low != null && point.high != null;
  const half = task ? point.half_width : point.nll_half_width ?? alone(point, "nll")?.half;
  const loss = stated ? {v: point.nll, low: point.low, high: point.high} : around(point.nll, half);
  return Object.fromEntries(Object.entries(loss).map(([name, value]) => [name, into(point, y)(value)]));
}
