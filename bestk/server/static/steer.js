/* More like an answer, or less: how a search goes on from one that was found. Pure functions over
   texts; knows no element and no server. */
import { words } from "./measures.js";

const FEWEST = 3; // words of a beginning
const MOST = 8;
const MOST_AVOIDED = 5;
// Words that say nothing of what a text is about; the short ones are left out anyway.
const EMPTY = new Set(("about after again against also always another because been before being between both " +
  "could does doing down during each even ever every from have having here into itself just like made make " +
  "many might more most much must never only other over really same should since some such than that their " +
  "them then there these they thing things this those through under until upon very want well were what when " +
  "where which while will with within without would your yours yourself").split(" "));

/** The first third of a text, in whole words; longer than `begun`, with which it begins already. */
export function beginningOf(text, begun = "") {
  const pieces = text.match(/\s*\S+/gu) || [];
  const already = (begun.match(/\s*\S+/gu) || []).length;
  const third = Math.ceil((pieces.length - already) / 3);
  const count = already + Math.min(MOST, Math.max(FEWEST, third));
  if (pieces.length > 1) return pieces.slice(0, Math.min(count, pieces.length - 1)).join("");
  const letters = [...text]; // a text without spaces: half of its characters
  return letters.slice(0, Math.ceil(letters.length / 2)).join("");
}

/** The words that set a text apart from the others: those that fewest of them hold, longer ones first. */
export function ownWords(text, others, prompt) {
  const asked = new Set(words(prompt));
  const held = others.map((other) => new Set(words(other)));
  const shareOf = (word) => held.filter((set) => set.has(word)).length / Math.max(1, held.length);
  const all = [...new Set(words(text))];
  const usable = all.filter(
    (word) => [...word].length > 3 && !asked.has(word) && !EMPTY.has(word) && shareOf(word) < 1 / 3);
  const rated = (usable.length ? usable : all).map((word) => ({ word, share: shareOf(word) }));
  rated.sort((a, b) => a.share - b.share || b.word.length - a.word.length);
  return rated.slice(0, MOST_AVOIDED).map(({ word }) => word);
}

/** A word as a model may write it: small, with a capital. */
export function spellings(word) {
  return [word, word[0].toUpperCase() + word.slice(1)].filter((form, i, all) => all.indexOf(form) === i);
}
