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
  return Object.assign(point, {index: i, line: lines[number], entries: new Map(point.seeds.map(([seed, ...own]) => [seed, own]))});
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
    const differing = ["task", "data", "train_len", "protocol"].filter(name => alike.some(other => other[name] !== line[name]));
    const own = parts(line).filter(part => !alike.every(other => parts(other).includes(part)));
    line.name = [baseName(line), ...differing.map(name => short(line, name)), ...own].join(" ");
  }
}

// Estimate of the sum of weight x mean over [weight, point]; `minus`: place of what is subtracted from each loss, 0 for nothing.
function estimateOf(terms, seeds, name, minus) {
  const found = [];
  for (const [weight, point] of terms) {
    const numbers = seeds.map(seed => point.entries.get(seed)), used = numbers.flatMap(own => minus ? [own[0], own[minus]] : [own[0]]);
    if (!used.length || used.some(entry => entry < 0)) return null;
    const sets = new Set(used.map(entry => sums.entries[entry][0]));
    if (sets.size > 1) return null;
    const [set] = sets, counts = sums.sets[set];
    const read = entry => Float64Array.from(totals[name].subarray(sums.entries[entry][1], sums.entries[entry][1] + counts.length));
    const lessBase = own => { const base = read(own[minus]); return read(own[0]).map((value, i) => value - base[i]); };
    found.push({weight, set, counts, strata: sums.strata[set], totals: numbers.map(own => minus ? lessBase(own) : read(own[0]))});
  }
  return new Set(found.map(term => term.set)).size > 1 ? null : crossed.estimate(found);
}
const alone = (point, name) => point[`of_${name}`] ??= estimateOf([[1, point]], [...point.entries.keys()], name, 0);
const into = (point, y) => y === "ppl" ? Math.exp : y === "bpb" ? value => value * point.bpb / point.nll : value => value;

function measured(point, y) { // {v, low, high}, undefined where it is not known
  const around = (v, half) => v == null ? {} : half == null || isNaN(half) ? {v} : {v, low: v - half, high: v + half};
  const task = point.line.kind === "task";
  if (y === "change") return around(point.change, point.change_half_width);
  if (y === "difference") return around(point.difference, point.half_width);
  if (y === "accuracy" && task) return {v: point.accuracy, low: point.low, high: point.high};
  if (y === "accuracy") return around(point.accuracy, alone(point, "correct")?.half);
  if (point.nll == null || y === "bpb" && point.bpb == null) return {};
  const stated = !task && point.low != null && point.high != null;
  const half = task ? point.half_width : alone(point, "nll")?.half;
  const loss = stated ? {v: point.nll, low: point.low, high: point.high} : around(point.nll, half);
  return Object.fromEntries(Object.entries(loss).map(([name, value]) => [name, into(point, y)(value)]));
}

function paired(a, b, y) { // of two points: {v, low, high, seeds, documents}, or {v, why} without an interval; of perplexities the ratio
  const seeds = sorted([...a.entries.keys()].filter(seed => b.entries.has(seed)));
  const {v} = measured(a, y), w = measured(b, y).v, means = v == null || w == null ? undefined : y === "ppl" ? v / w : v - w;
  if ([a, b].some(point => !point.entries.size || [...point.entries.values()].some(own => own[0] < 0)))
    return {v: means, why: "no interval: the page has no sums over documents of one of them"};
  if (!seeds.length) return {v: means, why: "no interval: they have no seed in common"};
  const found = estimateOf([[1, a], [-1, b]], seeds, y === "accuracy" ? "correct" : "nll", SIGNED[y] ?? 0);
  const lacking = y in SIGNED ? "one has no reference on its targets, or they" : "they";
  if (!found) return {v: means, why: `no interval: ${lacking} scored different targets`};
  if (found.half === 0) return {v: means, why: "no interval: neither seeds nor texts differ"};
  const [value, low, high] = [0, -1, 1].map(side => into(a, y)(found.value + (side && side * found.half)));
  return {v: value, low, high, seeds, documents: found.documents};
}
