/* Words of texts side by side: which only one column has, which another has too. */
import { WORD, words } from "./measures.js";

const { element } = window.bestk;

/** The different words of a list of texts. */
export function vocabulary(texts) {
  return new Set(texts.flatMap(({ text }) => words(text)));
}

/** A text as nodes, its words marked: in no other column, or in another too. */
export function marked(text, others) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(WORD)) {
    const [word] = match;
    nodes.push(text.slice(end, match.index));
    const isShared = others.some((other) => other.has(word.toLowerCase()));
    nodes.push(isShared
      ? element("span", { class: "is-shared" }, word)
      : element("mark", { class: "is-own" }, word));
    end = match.index + word.length;
  }
  return [...nodes, text.slice(end)];
}
