/* Names, numbers and times in words. */

const METHODS = [
  [/^BKS$/i, () => "Best-k search"],
  [/^BKS_mean$/i, () => "Best-k search, mean score"],
  [/^BKS_last$/i, () => "Best-k search, last-token score"],
  [/^BKS_diverse$/i, () => "Best-k search, n different texts"],
  [/^Minp_?([\d.]+)$/i, (p) => `Min-p sampling, p = ${p}`],
  [/^BS$/i, () => "Beam search"],
  [/^DBS$/i, () => "Diverse beam search, 5 groups"],
  [/^DBS\+$/i, () => "Diverse beam search, 10 groups"],
  [/^Ncls_?([\d.]+)$/i, (p) => `Nucleus sampling, p = ${p}`],
  [/^Typ_?([\d.]+)$/i, (p) => `Typical sampling, p = ${p}`],
  [/^BNcls_?([\d.]+)$/i, (p) => `Beam sampling, nucleus ${p}`],
  [/^BTyp_?([\d.]+)$/i, (p) => `Beam sampling, typical ${p}`],
  [/^BFS$/i, () => "Best-first search"],
];

export function methodTitle(name) {
  for (const [pattern, title] of METHODS) {
    const match = pattern.exec(name);
    if (match) return title(match[1]);
  }
  return name;
}

// Settings in plain words, with the symbol that the paper has for them.
const SETTINGS = {
  num_texts: ["How many", "n"],
  max_new_tokens: ["How long", "T"],
  novelty: ["How different", "μ"],
  fill: ["Fill up with less likely answers"],
  k: ["Written side by side", "k"],
  beam_size: ["Effort per piece", "b"],
  min_new_tokens: ["At least this long"],
  budget: ["Effort in all", "C"],
  scoring: ["What counts as good", "h"],
  length_alpha: ["Weight of the length", "α"],
  decay: ["Preference for newer beginnings"],
  decay_weight: ["Strength of that preference", "κ"],
  decay_power: ["Its growth with age", "β"],
  min_prob: ["Least chance of a next piece", "γ"],
  min_children: ["Ways to go on, at least"],
  max_children: ["Ways to go on, at most"],
  max_frontier: ["Beginnings that are kept"],
  policy: ["Plan of the search"],
  on_cut: ["Answers that are too long"],
  rank_by: ["Order of the answers"],
  max_completions: ["Stop after so many answers"],
  timeout: ["Stop after so many seconds"],
  certify: ["Stop once so many are proven"],
  stop_ids: ["Tokens that end an answer"],
  stop: ["An answer ends before"],
  end_prob: ["Chance that is enough for an end"],
  must_include: ["Words that must come in"],
  include_bonus: ["Reward for each of them"],
  regex: ["Pattern of the whole answer"],
  json_schema: ["Schema of a JSON answer"],
  grammar: ["Grammar of the answer"],
  top_k: ["Only the likeliest pieces, so many"],
  top_p: ["Only the likeliest pieces, this share"],
  min_p: ["Only pieces this close to the likeliest"],
  repetition_penalty: ["Against repetition"],
  presence_penalty: ["Against words said before"],
  frequency_penalty: ["Against words said often"],
  no_repeat_ngram_size: ["Nothing this long comes twice"],
  encoder_repetition_penalty: ["In favour of the prompt's words"],
  encoder_no_repeat_ngram_size: ["Nothing this long from the prompt"],
  bad_words: ["Words to leave out"],
  bad_words_ids: ["Token sequences to leave out"],
  suppress_tokens: ["Tokens to leave out"],
  begin_suppress_tokens: ["Tokens that begin no answer"],
  forced_bos_token_id: ["First token of every answer"],
  forced_eos_token_id: ["Last token of the longest answers"],
  select: ["Which are shown"],
  diversity: ["How much the choice looks at difference"],
  rerank: ["Another order"],
};

/** A setting in plain words; one that is not known here by its name: max_x → Max x. */
export function settingTitle(name) {
  const words = SETTINGS[name]?.[0] || name.replace(/_/g, " ");
  return words[0].toUpperCase() + words.slice(1);
}

/** The paper's symbol for a setting, if it has one. */
export function settingSymbol(name) {
  return SETTINGS[name]?.[1] || "";
}

/** How likely a text is, by the chance of each of its pieces. */
export function likelyWord(share) {
  if (share >= 0.4) return "Very likely";
  return share >= 0.25 ? "Likely" : share >= 0.15 ? "Less likely" : "Unlikely";
}

/** How different a text is, by the share of its wording that no other has. */
export function differentWord(share) {
  if (share >= 0.85) return "Very different";
  return share >= 0.65 ? "Different" : share >= 0.4 ? "A bit different" : "Much the same";
}

export function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

export function seconds(value) {
  return value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${Math.round(value)} s`;
}

export function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 0.01) return "<0.01%";
  return `${value.toFixed(value < 1 ? 2 : value < 10 ? 1 : 0)}%`;
}

export function when(time) {
  const at = new Date(time);
  const isToday = at.toDateString() === new Date().toDateString();
  const hour = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return isToday ? hour : `${at.toLocaleDateString([], { day: "numeric", month: "short" })}, ${hour}`;
}

export function shorten(text, most) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** A setting's value as one would write it. */
export function valueText(value) {
  if (Array.isArray(value)) return value.map((item) => JSON.stringify(item)).join(" ");
  return String(value);
}

/** Settings in one line: "How many 10 · An answer ends before \".\"". */
export function settingsText(settings) {
  return Object.entries(settings)
    .map(([name, value]) => `${settingTitle(name)} ${shorten(valueText(value), 40)}`)
    .join(" · ");
}
