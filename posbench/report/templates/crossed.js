// posbench/statistics/crossed.py and the quantiles of clustered.py, for the differences that a reader asks for.
// A term is {weight, counts [C], totals [S][C]}; all terms have the same seeds in the same order, and the same documents.
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
    const [found, df] = s === 1 ? [variance(residuals[0], c), c - 1] : s < anovaFrom || c === 1 ? clustered(residuals)
      : anova(residuals.map((row, j) => row.map((value, i) => value - between[j][i])), bySeed, share);
    const half = Number.isFinite(found) ? quantile(df) * Math.sqrt(found) : NaN;
    return {value: sum(bySeed) / s, half, documents: c};
  }
  return {estimate, quantile};
})();
