// posbench/statistics/crossed.py and the quantiles of clustered.py, for the differences that a reader asks for.
// A term is {weight, counts [C], totals [S][C], strata [C] or nothing}; all terms have the same seeds in the same order, and the same
// documents in the same strata.
const crossed = (() => {
  const sum = values => { let total = 0; for (const value of values) total += value; return total; };
  const squares = values => { let total = 0; for (const value of values) total += value * value; return total; };
  const variance = (totals, g) => g > 1 ? g / (g - 1) * squares(totals) : NaN;

  const nodes = Array.from({length: 71}, (_, i) => { // places in [0, 1] and weights of double exponential quadrature
    const h = (i - 35) / 10, e = Math.PI / 2 * Math.sinh(h);
    return [1 / (1 + Math.exp(-2 * e)), Math.cosh(h) / Math.cosh(e) ** 2];
  });
  const area = (end, df) => end * nodes.reduce((total, [place, weight]) => total + weight * Math.sin(end * place) ** (df - 1), 0);

  function quantile(df) { // of Student's t at 0.975; sin(angle)^(df - 1) is its density by the angle of which t / sqrt(df) is the cotangent
    if (df > 1000) return 1.959963984540054;
    let low = 0, high = Math.PI / 2;
    const tail = 0.05 * area(high, df);
    for (let i = 0; i < 45; i++) { const middle = (low + high) / 2; if (area(middle, df) < tail) low = middle; else high = middle; }
    return Math.sqrt(df) / Math.tan(low);
  }

  function clustered(residuals) {
    const s = residuals.length, c = residuals[0].length, mean = new Float64Array(c);
    for (const row of residuals) row.forEach((value, i) => { mean[i] += value / s; });
    const seeds = variance(residuals.map(row => sum(row) / s), s), documents = variance(mean, c);
    const both = s * c / (s * c - 1) * residuals.reduce((total, row) => total + squares(row), 0) / (s * s);
    return [c > 1 ? Math.max(seeds + documents - both, seeds, documents, both) : NaN, Math.min(s, c) - 1];
  }

  function anova(residuals, bySeed, share) {
    const s = bySeed.length, whole = sum(share), weights = share.map(value => value / whole), x = new Float64Array(share.length);
    const square = squares(weights), cube = weights.reduce((total, w) => total + w ** 3, 0), f = 1 + square - 2 * cube / square;
    for (const row of residuals) row.forEach((value, i) => { x[i] += value / s; });
    const mean = sum(bySeed) / s, seeds = squares(bySeed.map(value => value - mean)) / (s - 1) / s, documents = squares(x) / f;
    let both = 0;
    for (const row of residuals) row.forEach((value, i) => { both += (value - x[i]) ** 2; });
    both /= f * s * (s - 1);
    const df = documents ? Math.max(3 * (documents * f) ** 2 / x.reduce((total, value) => total + value ** 4, 0) - 1, 1) : 1;
    const bySeeds = seeds > documents || seeds === documents && s - 1 > df;
    if (!(both < Math.min(seeds, documents))) return bySeeds ? [seeds, s - 1] : [documents, df];
    const found = seeds + documents - both;
    return [found, found ** 2 / (seeds ** 2 / (s - 1) + documents ** 2 / df + both ** 2 / ((s - 1) * df))];
  }

  function stratified(residuals, bySeed, share, strata, anovaFrom) {
    const s = bySeed.length, c = strata.length, size = new Map(), shares = new Map();
    strata.forEach((h, i) => { size.set(h, (size.get(h) ?? 0) + 1); shares.set(h, (shares.get(h) ?? 0) + share[i]); });
    if (Math.min(...size.values()) < 2) return [NaN, 1];
    const factor = strata.map(h => size.get(h) / (size.get(h) - 1)), x = new Float64Array(c), df = c - size.size;
    const errors = residuals.map(row => {
      const totals = new Map();
      strata.forEach((h, i) => totals.set(h, (totals.get(h) ?? 0) + row[i]));
      return row.map((value, i) => value - share[i] * totals.get(strata[i]) / shares.get(strata[i]));
    });
    for (const row of errors) row.forEach((value, i) => { x[i] += value / s; });
    const documents = sum(factor.map((value, i) => value * x[i] ** 2));
    if (s === 1) return [documents, df];
    const mean = sum(bySeed) / s, seeds = squares(bySeed.map(value => value - mean)) / (s - 1) / s;
    let both = 0;
    for (const row of errors) row.forEach((value, i) => { both += factor[i] * (value - x[i]) ** 2; });
    both /= s * (s - 1);
    const bySeeds = seeds > documents || seeds === documents && s - 1 > df, alone = bySeeds ? [seeds, s - 1] : [documents, df];
    const joined = seeds + documents - both, found = both < Math.min(seeds, documents)
      ? [joined, joined ** 2 / (seeds ** 2 / (s - 1) + documents ** 2 / df + both ** 2 / ((s - 1) * df))] : alone;
    return s >= anovaFrom ? found : [found[0], Math.min(s - 1, df)];
  }

  function estimate(terms, anovaFrom = 5) {
    const s = terms[0].totals.length, c = terms[0].counts.length, bySeed = new Array(s).fill(0), share = new Float64Array(c);
    const residuals = terms[0].totals.map(() => new Float64Array(c)), between = terms[0].totals.map(() => new Float64Array(c));
    for (const {weight, counts, totals} of terms) {
      const n = sum(counts), means = totals.map(row => sum(row) / n), mean = sum(means) / s;
      for (let i = 0; i < c; i++) share[i] += Math.abs(weight) * counts[i] / n;
      for (let j = 0; j < s; j++) {
        bySeed[j] += weight * means[j];
        for (let i = 0; i < c; i++) {
          residuals[j][i] += weight * (totals[j][i] - mean * counts[i]) / n;
          between[j][i] += weight * (means[j] - mean) * counts[i] / n;
        }
      }
    }
    const own = () => residuals.map((row, j) => row.map((value, i) => value - between[j][i])), {strata} = terms[0];
    let rule;
    if (strata) rule = stratified(own(), bySeed, share, strata, anovaFrom);
    else if (s === 1) rule = [variance(residuals[0], c), c - 1];
    else rule = s < anovaFrom || c === 1 ? clustered(residuals) : anova(own(), bySeed, share);
    const [found, df] = rule, sem = Number.isFinite(found) ? Math.sqrt(found) : NaN;
    return {value: sum(bySeed) / s, sem, df, half: quantile(df) * sem, documents: c};
  }

  // Mean of independent values such as seeds: Student's t, as posbench/statistics/over_seeds.py where there are no sums.
  function ofValues(values) {
    const n = values.length, value = sum(values) / n;
    const sem = n > 1 ? Math.sqrt(squares(values.map(one => one - value)) / (n - 1) / n) : NaN;
    return {value, sem, df: Math.max(n - 1, 1), half: n > 1 ? quantile(n - 1) * sem : NaN, documents: 0};
  }

  // Two-sided p of no difference: the share of Student's t beyond value / sem, null without an error.
  function pOf({value, sem, df}) {
    if (!Number.isFinite(sem)) return null;
    if (sem === 0) return value === 0 ? 1 : 0;
    return area(Math.atan2(Math.sqrt(df), Math.abs(value) / sem), df) / area(Math.PI / 2, df);
  }

  // Holm's adjusted p, in the given order, as posbench/statistics/verdict_rules.py.
  function holm(ps) {
    const order = ps.map((_, i) => i).sort((a, b) => ps[a] - ps[b]), adjusted = [];
    let worst = 0;
    order.forEach((index, rank) => {
      worst = Math.max(worst, Math.min(1, (ps.length - rank) * ps[index]));
      adjusted[index] = worst;
    });
    return adjusted;
  }
  return {estimate, quantile, ofValues, pOf, holm};
})();
