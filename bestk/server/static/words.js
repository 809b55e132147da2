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

/** max_new_tokens → Max new tokens. */
export function settingTitle(name) {
  const words = name.replace(/_/g, " ");
  return words.length > 1 ? words[0].toUpperCase() + words.slice(1) : words;
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

/** Settings in one line: "k 10 · stop "."". */
export function settingsText(settings) {
  return Object.entries(settings)
    .map(([name, value]) => `${name} ${shorten(valueText(value), 40)}`)
    .join(" · ");
}
