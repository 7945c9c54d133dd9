// Bars of the figure: 95 % intervals, single seeds, or none; and the sentences below it on its scales and bars, in the words of
// posbench/report/figures/uncertainty.py.
const BARS = {interval: "95 % intervals", seeds: "single seeds", none: "none"};
const BAR_WORDS = content.words.bars;
const UNPAIRED = {nll: "nll", ppl: "nll", bpb: "nll", accuracy: "accuracy"}; // y whose bars are as wide as documents differ from one another

const hasBar = at => both(at) && at.low < at.high;
const span = values => { // such as "3 to 5"
  const [low, high] = d3.extent(values);
  return low === high ? whole(low) : `${whole(low)} to ${whole(high)}`;
};

// [{seed, points: [{x, v}]}] of a line of several seeds, in the unit of y.
function seedLines({points: own}, y) {
  const seeds = sorted(own.flatMap(({point}) => [...point.entries.keys()]));
  const of = seed => own.filter(({point}) => point.entries.has(seed)).map(({point, x}) => ({x, v: seedValue(point, seed, y)}));
  const known = seeds.map(seed => ({seed, points: of(seed).filter(({v}) => Number.isFinite(v))})).filter(one => one.points.length);
  return known.length > 1 ? known : [];
}
function seedValue(point, seed, y) {
  const value = valueOf(point, seed, MEASURES[y]);
  return value === null ? NaN : into(point, y)(value);
}

// Units of a point's interval, such as "seeds x documents" or, of one seed, "document"; "" where they are not known.
function unitsOf(point, y) {
  if (!UNPAIRED[y] || point.line.kind === "task") return point.over ?? "";
  if (point.nll_over) return point.nll_over;
  const estimate = alone(point, y === "accuracy" ? "correct" : "nll"), unit = point.sem_unit ?? "document";
  if (!estimate) return "";
  if (!estimate.documents) return "seeds";
  return point.entries.size > 1 ? `seeds x ${unit}s` : unit;
}
function countedUnits(units, ofUnits) { // "3 to 5 seeds crossed with 291 documents" of "seeds x documents"
  const seeds = `${span(ofUnits.map(point => point.n_seeds))} seeds`, counts = ofUnits.map(point => point.n_units ?? point.n_texts);
  const count = counts.every(Number.isFinite) ? `${span(counts)} ` : "";
  if (units === "seeds") return `${seeds} alone`;
  if (units.startsWith("seeds x ")) return `${seeds} crossed with ${count}${units.replace("seeds x ", "")}`;
  return units.includes("alike") ? `${count}${units}` : `${count}${units}s (one seed)`;
}

function barsText(on, y, bars) { // the sentences on the bars of what is drawn
  const all = on.flatMap(one => one.points);
  if (bars === "none" || !all.length) return [];
  if (bars === "seeds") return [seedsText(on, y)];
  const barred = all.filter(both), bare = all.filter(at => !both(at)), said = [];
  if (!barred.length) return [`No bars: ${withoutBar(bare)}.`];
  said.push(`Bars: ${intervalWords(barred.map(({point}) => point), y)}.`);
  if (bare.length) said.push(`Without a bar: ${withoutBar(bare)}.`);
  const overDocuments = barred.some(({point}) => unitsOf(point, y).includes("document"));
  return UNPAIRED[y] && overDocuments ? [...said, BAR_WORDS.paired] : said;
}
function seedsText(on, y) {
  const counts = on.map(one => seedLines(one, y).length).filter(Boolean);
  return counts.length ? `Thin lines: the ${span(counts)} seeds of each mean.` : `No lines of seeds: ${BAR_WORDS.alone}.`;
}
function withoutBar(bare) {
  const foreign = new Set(bare.filter(({point}) => !point.entries.size).map(({point}) => point.line.source ?? "the file"));
  const stated = foreign.size ? [`${[...foreign].join(" and ")} states none`] : [];
  const own = bare.map(({point}) => point).filter(point => point.entries.size), single = own.find(point => point.n_units === 1);
  if (single) return [...stated, fillPython(BAR_WORDS.one_unit, single.sem_unit)].join("; ");
  return [...stated, ...(own.length ? [BAR_WORDS.way_out] : [])].join("; ");
}
const fillPython = (text, word) => text.replace("{}", word);
function intervalWords(barred, y) {
  const measured = barred.filter(point => point.entries.size), foreign = barred.filter(point => !point.entries.size), parts = [];
  if (measured.length) {
    const byUnits = d3.group(measured.filter(point => unitsOf(point, y)), point => unitsOf(point, y));
    const units = d3.sort(byUnits.keys()).map(name => countedUnits(name, byUnits.get(name)));
    const what = BAR_WORDS.names[UNPAIRED[y]] ?? "the paired difference";
    const interval = measured[0].line.kind === "task" ? "95 % interval" : "95 % t interval";
    parts.push(`${interval} of ${what}${units.length ? `, over ${units.join(" or over ")}` : ""}`);
  }
  const sources = new Set(foreign.map(point => point.line.source ?? "the file"));
  return [...parts, ...(sources.size ? [`as ${[...sources].join(" and ")} states them`] : [])].join("; ");
}

function scalesText(x, y) {
  return x === y ? `Scales: both ${BAR_WORDS[x]}.` : `Scales: x ${BAR_WORDS[x]}; y ${BAR_WORDS[y]}.`;
}
function figureText(on) { // what stands below the figure, on the page and in its files
  if (!on.length) return "";
  return [scalesText(scaleOfX(on), scaleOfY()), ...barsText(on, state.y, state.bars)].join(" ");
}
