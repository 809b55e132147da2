/* How different texts are: different n-grams over words, as `bestk.rerank.ngrams` counts them. */

export const ORDERS = [1, 2, 3];
const WORD = /[\p{L}\p{N}_]+(?:['’-][\p{L}\p{N}_]+)*/gu;

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
