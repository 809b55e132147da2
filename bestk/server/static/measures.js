/* How likely and how different texts are. Different n-grams over words are counted as
   `bestk.rerank.ngrams` does. */

export const ORDERS = [1, 2, 3];
export const WORD = /[\p{L}\p{N}_]+(?:['’-][\p{L}\p{N}_]+)*/gu;

export function words(text) {
  return text.toLowerCase().match(WORD) || [];
}

/** D-1, D-2 and D-3 of texts, from 0 to 1. */
export function distinctness(texts) {
  const rows = texts.map(words);
  const total = rows.reduce((sum, row) => sum + row.length, 0);
  return ORDERS.map((n) => {
    const grams = new Set();
    for (const row of rows) {
      for (let i = 0; i + n <= row.length; i += 1) grams.add(row.slice(i, i + n).join(" "));
    }
    return total ? grams.size / total : 0;
  });
}

/** The chance that the model gives each piece of a text, on average: the geometric mean. */
export function likelihood({ log_prob, num_tokens }) {
  return Math.exp(log_prob / Math.max(1, num_tokens));
}

/** Of each text the share of its words, pairs and triples of words that no other text has. */
export function differences(texts) {
  const rows = texts.map((text) => {
    const found = words(text);
    return ORDERS.map((n) => new Set(found.slice(n - 1).map((_, i) => found.slice(i, i + n).join(" "))));
  });
  const held = ORDERS.map((_, order) => {
    const counts = new Map();
    for (const row of rows) for (const gram of row[order]) counts.set(gram, (counts.get(gram) || 0) + 1);
    return counts;
  });
  return rows.map((row) => {
    const shares = row
      .map((grams, order) => [...grams].map((gram) => Number(held[order].get(gram) === 1)))
      .filter((own) => own.length)
      .map((own) => own.reduce((sum, one) => sum + one, 0) / own.length);
    return shares.length ? shares.reduce((sum, share) => sum + share, 0) / shares.length : 0;
  });
}

/** What a comparison says of one result; distinctness is that of the first `top` texts. */
export function measure(result, top) {
  const { hypotheses } = result;
  const distinct = distinctness(hypotheses.slice(0, top).map((text) => text.text));
  return {
    found: hypotheses.reduce((sum, text) => sum + (text.count || 1), 0),
    unique: hypotheses.length,
    complete: hypotheses.filter((text) => text.is_complete !== false).length,
    distinct,
    mean: distinct.reduce((sum, value) => sum + value, 0) / distinct.length,
    expanded: result.cost.expanded,
    seconds: result.cost.seconds,
  };
}
