// Comparisons of lines, as posbench/report/comparison.py makes them: the same differences, intervals, Holm's correction and gates.
// The sentences are filled into the TEXTS of posbench/report/comparison_words.py, which the page holds as content.words.
const {texts: TEXTS, marks: MARKS, measures: MEASURE_WORDS, ratios: RATIO_WORDS, ratio_units: RATIO_UNITS, units: UNIT_WORDS,
  share: SHARE, lowest: LOWEST, reasons: REASONS, most_named: MOST_NAMED, alpha: ALPHA} = content.words;
const MEASURES = {nll: "loss", ppl: "loss", bpb: "loss", difference: "rise", change: "change", accuracy: "accuracy"}; // of each y
const BASES = {loss: 0, rise: 1, change: 2, accuracy: 0}; // place of the sums that are subtracted, among those of a seed
const VALUES = {loss: 0, rise: 1, change: 2, accuracy: 3}; // place of a value among those of a seed without sums

const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const arrayOf = measure => measure === "accuracy" ? "correct" : "nll";

// Sums over documents of what a measure compares, of one seed of a point: {set, totals}; null where they are not known.
function sumsOf(point, seed, measure) {
  const numbers = point.entries.get(seed), base = BASES[measure];
  if (numbers[0] < 0 || base && numbers[base] < 0) return null;
  const own = totalsOf(numbers[0], arrayOf(measure));
  if (!base) return own;
  const subtracted = totalsOf(numbers[base], arrayOf(measure));
  return own.set === subtracted.set ? {set: own.set, totals: minus(own.totals, subtracted.totals)} : null;
}
// Value of a measure of one seed of a point, null where it is not known.
function valueOf(point, seed, measure) {
  const key = `${seed} ${measure}`, known = point.known ??= new Map();
  if (!known.has(key)) {
    const own = sumsOf(point, seed, measure);
    known.set(key, own ? d3.fsum(own.totals) / d3.sum(sums.sets[own.set]) : point.values.get(seed)[VALUES[measure]] ?? null);
  }
  return known.get(key);
}
// Mean over seeds; of a point whose seeds are not known that of the point. null where it is not finite.
function meanOf(point, seeds, measure) {
  const column = {loss: "nll", rise: "difference", change: "change", accuracy: "accuracy"}[measure];
  const values = point.entries.size ? seeds.filter(seed => point.entries.has(seed)).map(seed => valueOf(point, seed, measure)) : [point[column]];
  const known = values.length && values.every(value => value !== null && Number.isFinite(value));
  return known ? d3.sum(values) / values.length : null;
}

// Difference of two points under one seed, {value, set, totals}, without the last two where only values are known; null for none.
function seedDifference(point, other, seed, measure) {
  const [own, others] = [point, other].map(each => sumsOf(each, seed, measure));
  const onTheSame = BASES[measure] === 0; // targets, of both points
  if (own && others && own.set === others.set) {
    const totals = minus(own.totals, others.totals);
    return {value: d3.fsum(totals) / d3.sum(sums.sets[own.set]), set: own.set, totals};
  }
  const [value, otherValue] = [point, other].map(each => valueOf(each, seed, measure));
  if (value === null || otherValue === null) return null;
  if (onTheSame && (own && others || point.texts !== other.texts)) return null;
  return {value: value - otherValue};
}
// {value, sem, df, half, documents, seeds, source} of the seeds that both have, or {reason} without it; each pair is estimated once.
const differences = new Map();
function differenceOf(point, other, measure) {
  const [first, second] = point.index < other.index ? [point, other] : [other, point], key = `${measure} ${first.index} ${second.index}`;
  if (!differences.has(key)) differences.set(key, estimateDifference(first, second, measure));
  const known = differences.get(key);
  return first === point || known.value === undefined ? known : {...known, value: -known.value};
}
function estimateDifference(point, other, measure) {
  if (!point.entries.size || !other.entries.size) return {reason: REASONS.only_means};
  const shared = sorted([...point.entries.keys()].filter(seed => other.entries.has(seed)));
  if (!shared.length) return {reason: REASONS.no_shared_seed};
  const bySeed = shared.map(seed => ({seed, ...seedDifference(point, other, seed, measure)})).filter(one => "value" in one);
  if (!bySeed.length) return {reason: BASES[measure] ? REASONS.no_base : REASONS.other_targets};
  const seeds = bySeed.map(one => one.seed), [{set}] = bySeed;
  const withSums = set !== undefined && bySeed.every(one => one.set === set);
  const estimate = withSums
    ? crossed.estimate([{weight: 1, counts: sums.sets[set], strata: sums.strata[set], totals: bySeed.map(one => one.totals)}])
    : crossed.ofValues(bySeed.map(one => one.value));
  const reason = Number.isFinite(estimate.sem) ? "" : withSums ? REASONS.one_document : REASONS.one_seed;
  return {...estimate, seeds, source: withSums ? "documents" : "means of seeds", reason};
}

// Members are [{line, point}] of one section at one place. Returns {rows, reference, isBest, common, corrected, absent}: rows
// {line, point, rank, value, value of the difference, ...}, the best first; null for fewer than two with a value.
function compareMembers(members, measure, against, correction) {
  const seedsOf = point => [...point.entries.keys()];
  const measured = members.filter(({point}) => point && meanOf(point, seedsOf(point), measure) !== null);
  if (measured.length < 2) return null;
  const common = commonSeeds(measured.map(({point}) => point));
  const sign = measure === "accuracy" ? -1 : 1;
  const ranked = measured.map(member => ({...member, mean: meanOf(member.point, common.length ? common : seedsOf(member.point), measure)}))
    .sort((a, b) => sign * (a.mean - b.mean));
  const reference = ranked.find(({line}) => line === against) ?? ranked.find(({point}) => point.entries.size) ?? ranked[0];
  if (against && reference.line !== against) return null;
  const rows = ranked.map((member, i) => ({...member, rank: i + 1, ...(member === reference ? {} : compared(member, reference, measure))}));
  const corrected = rows.filter(row => row.p !== undefined).length;
  correct(rows, correction);
  for (const row of rows) row.verdict = verdictOf(row, sign, reference, against);
  const absent = members.filter(({line}) => !ranked.some(member => member.line === line)).map(({line}) => line.method);
  return {rows, reference: rows.find(row => row.line === reference.line), isBest: !against, common, corrected, absent, measure, correction};
}
function commonSeeds(pointsOfLines) {
  const known = pointsOfLines.filter(point => point.entries.size);
  if (!known.length) return [];
  return sorted([...known[0].entries.keys()].filter(seed => known.every(point => point.entries.has(seed))));
}
function compared(member, reference, measure) {
  const difference = differenceOf(member.point, reference.point, measure), {reason} = difference;
  if (reason === REASONS.only_means || reason === REASONS.no_shared_seed)
    return {reason, difference: {value: member.mean - reference.mean, half: NaN, documents: 0}, seeds: []};
  if (difference.value === undefined) return {reason, seeds: []};
  const p = crossed.pOf(difference);
  return {difference, seeds: difference.seeds, source: difference.source, reason, ...(p === null ? {} : {p, pCorrected: p})};
}
function correct(rows, correction) {
  const withP = rows.filter(row => row.p !== undefined);
  if (correction === "holm") crossed.holm(withP.map(row => row.p)).forEach((p, i) => { withP[i].pCorrected = p; });
}
function verdictOf(row, sign, reference, against) {
  if (row.line === reference.line) return against ? "compared with" : "best";
  if (row.pCorrected === undefined) return "no interval";
  if (row.pCorrected >= ALPHA) return "not told apart";
  return sign * row.difference.value < 0 ? "better" : "worse";
}
// A comparison with each member in turn, the best first; p is corrected for all pairs together.
function compareEach(members, measure, correction) {
  const best = compareMembers(members, measure, null, "none");
  if (!best) return [];
  const tables = best.rows.map(({line}) => compareMembers(members, measure, line, "none")), pairs = new Map();
  const key = (line, other) => [line.id, other.id].sort().join(" ");
  for (const table of tables)
    for (const row of table.rows)
      if (row.p !== undefined && !pairs.has(key(row.line, table.reference.line))) pairs.set(key(row.line, table.reference.line), row.p);
  const adjusted = correction === "holm" ? crossed.holm([...pairs.values()]) : [...pairs.values()];
  const byPair = new Map([...pairs.keys()].map((name, i) => [name, adjusted[i]]));
  for (const table of tables) {
    table.corrected = pairs.size;
    table.correction = correction;
    for (const row of table.rows) {
      if (row.p !== undefined) row.pCorrected = byPair.get(key(row.line, table.reference.line));
      row.verdict = verdictOf(row, measure === "accuracy" ? -1 : 1, table.reference, table.reference.line);
    }
  }
  return tables;
}

// Numbers and words of a comparison in the unit of y, as Scale of posbench/report/comparison_words.py.
const isRatio = y => y === "ppl";
const measureWords = y => (isRatio(y) ? RATIO_WORDS : MEASURE_WORDS)[MEASURES[y]];
const unitWords = y => UNIT_WORDS[y === "bpb" ? "bpb" : "nats"];
const scaleWords = y => isRatio(y) || y === "accuracy" ? measureWords(y) : `${measureWords(y)} (${unitWords(y)})`;
const differenceWords = y => y === "accuracy" ? SHARE : isRatio(y) ? RATIO_UNITS[MEASURES[y]] : unitWords(y);
const fixed = value => value.toFixed(3).replace(/^-(0\.0+)$/, "$1");
const signed = (value, y) => isRatio(y) ? fixed(value) : fixed(value).replace(/^(?!-)/, "+");
const pText = p => p < 0.001 ? "<0.001" : p >= 0.0495 && p < 0.05 ? (Math.floor(p * 1e4) / 1e4).toFixed(4) : p.toFixed(3);
function shownValue(row, y) {
  const value = into(row.point, y)(row.mean);
  return Number.isFinite(value) ? fixed(value) : "-";
}
function shownDifference(row, y) { // {value, low, high} in the unit of y, both ends NaN without an interval; null for no difference
  if (!row.difference) return null;
  const {value, half} = row.difference, scaled = into(row.point, y);
  return {value: scaled(value), low: scaled(value - half), high: scaled(value + half)};
}
function intervalText(shown, y) {
  if (!Number.isFinite(shown.low)) return `${signed(shown.value, y)} (no interval)`;
  return `${signed(shown.value, y)} [${signed(shown.low, y)}, ${signed(shown.high, y)}]`;
}
const withUnit = (row, y) => isRatio(y) ? shownValue(row, y) : `${shownValue(row, y)} ${differenceWords(y)}`;

function listed(names) {
  const shown = names.slice(0, MOST_NAMED);
  if (names.length > MOST_NAMED) shown.push(fill(TEXTS.more, {count: names.length - MOST_NAMED}));
  return shown.length === 1 ? shown[0] : `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}`;
}
const namesOf = rows => rows.map(row => row.line.method);
const general = value => String(Number(value.toPrecision(6)));

function placeText({line, point}) { // such as "At 8 times the training length (512 tokens)"
  const length = point.x.toLocaleString("en");
  if (line.kind === "position" || line.kind === "context") return fill(TEXTS[line.kind], {length});
  const multiple = point.x / line.train_len;
  return fill(multiple === 1 ? TEXTS.inside : TEXTS.beyond, {length, multiple: general(multiple)});
}
function resultText(comparison, y) {
  const {rows, reference, isBest} = comparison, of = verdict => rows.filter(row => row.verdict === verdict);
  const place = placeText(reference), line = reference.line.method, value = withUnit(reference, y);
  const difference = row => `${intervalText(shownDifference(row, y), y)} ${differenceWords(y)}`;
  const withDifferences = shown => listed(shown.map(row => fill(TEXTS.by, {line: row.line.method, difference: difference(row)})));
  const parts = [];
  const isLevel = new Set(rows.map(row => row.mean)).size === 1 && !of("better").length && !of("worse").length;
  if (isBest && isLevel) return fill(TEXTS.level, {place, measure: measureWords(y), value});
  if (isBest) {
    const better = of("better"), lowest = fill(LOWEST[comparison.measure], {measure: measureWords(y)});
    const among = (reference.rank > 1 ? TEXTS.of_known_seeds : "") + (better.length ? TEXTS.over_common_seeds : "");
    parts.push(fill(TEXTS.best, {place, line, lowest, among, value}));
    if (better.length) parts.push(fill(TEXTS.better_on_more_seeds, {lines: withDifferences(better)}));
    parts.push(...untoldText(comparison));
    const [worse] = of("worse");
    if (worse) parts.push(fill(rows.length === 2 ? TEXTS.only : TEXTS.next, {line: worse.line.method, difference: difference(worse)}));
    return parts.join(" ");
  }
  parts.push(fill(TEXTS.reference, {place, line, measure: measureWords(y), value}));
  for (const verdict of ["better", "worse"]) {
    const judged = of(verdict);
    if (judged.length) parts.push(fill(TEXTS[verdict], {reference: "it", lines: withDifferences(judged)}));
  }
  return [...parts, ...untoldText(comparison)].join(" ");
}
function untoldText({rows, correction, corrected}) {
  const names = namesOf(rows.filter(row => row.verdict === "not told apart"));
  const after = correction === "holm" && corrected > 1 ? TEXTS.after : "";
  return names.length ? [fill(TEXTS.untold, {reference: "it", after, lines: listed(names)})] : [];
}
function howCompared(comparison) {
  return [measureText(comparison), ...foreignTexts(comparison), ...intervalTexts(comparison), ...seedTexts(comparison), ...correctionTexts(comparison),
    ...gateTexts(comparison), ...(comparison.absent.length ? [fill(TEXTS.absent, {lines: listed(comparison.absent)})] : [])];
}
function measureText({rows, measure}) {
  const encodings = new Set(rows.map(row => row.line.encoding));
  return measure === "loss" && encodings.size > 1 ? fill(TEXTS.across, {rise: `y = ${UNITS.difference}`}) : TEXTS[measure];
}
function foreignTexts({rows}) {
  const names = namesOf(rows.filter(row => !row.point.entries.size));
  return names.length ? [fill(TEXTS.foreign, {lines: listed(names)})] : [];
}
function intervalTexts({rows}) {
  const said = [], withInterval = rows.filter(row => row.p !== undefined);
  const fromSums = withInterval.filter(row => row.source === "documents"), fromSeeds = withInterval.filter(row => row.source !== "documents");
  if (fromSums.length) said.push(sumsText(fromSums));
  if (fromSeeds.length) {
    const every = fromSeeds.length === rows.length - 1;
    said.push(fill(TEXTS.from_seeds, {lines: every ? TEXTS.every : listed(namesOf(fromSeeds))}));
  }
  for (const reason of new Set(rows.map(row => row.reason).filter(Boolean)))
    said.push(fill(TEXTS.without, {lines: listed(namesOf(rows.filter(row => row.reason === reason))), reason}));
  return said;
}
function sumsText(rows) {
  const count = Math.max(...rows.map(row => row.difference.documents)), unit = rows[0].point.sem_unit ?? "document";
  const ofOneSeed = rows.filter(row => row.seeds.length === 1);
  if (ofOneSeed.length === rows.length) return fill(TEXTS.one_seed, {count, unit});
  return fill(TEXTS.crossed, {count, unit, alone: ofOneSeed.length ? fill(TEXTS.alone, {unit}) : ""});
}
function seedTexts({rows, common}) {
  const sets = new Set(rows.filter(row => row.point.entries.size).map(row => sorted([...row.point.entries.keys()]).join(" ")));
  if (sets.size < 2) return [];
  return [common.length ? fill(TEXTS.shared, {seeds: common.join(", ")}) : TEXTS.unshared];
}
function correctionTexts({corrected, correction, isBest}) {
  const said = [];
  if (corrected > 1) {
    said.push(fill(correction === "holm" ? TEXTS.holm : TEXTS.uncorrected, {count: corrected}));
    if (isBest) said.push(TEXTS.chosen);
  }
  return corrected ? [...said, TEXTS.marks] : said;
}
function gateTexts({rows}) {
  const ofTask = rows[0].line.task != null, failed = rows.filter(row => row.point.gate === "failed"), unknown = rows.filter(row => !row.point.gate);
  const said = [];
  if (failed.length === rows.length) said.push(ofTask ? TEXTS.none_learned : TEXTS.gates_failed);
  else if (failed.length) said.push(fill(ofTask ? TEXTS.unlearned : TEXTS.gate_failed, {lines: listed(namesOf(failed))}));
  const unknownText = ofTask ? TEXTS.inside_unknown : TEXTS.gate_unknown;
  if (unknown.length) said.push(fill(unknownText, {lines: unknown.length === rows.length ? TEXTS.every : listed(namesOf(unknown))}));
  return said;
}
