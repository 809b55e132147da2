/* A list of answers as cards: each with how likely and how different it is, and what to do with it.
   While they are written they stay where they appear; at the end they glide into their order. Texts go
   in as text. */
import { copyText } from "./clipboard.js";
import { startsWith } from "./drafts.js";
import { differences, likelihood } from "./measures.js";
import { differentWord, likelyWord, percent, plural } from "./words.js";

const { element } = window.bestk;
const MOST = 300; // cards; the rest is counted
const GLIDE_MS = 450;
const FULL = 0.5; // the chance of a piece that fills the bar

export class AnswerList {
  /** `acts`: [[label, title, (text) => …], …] beside copying; `markedOf(text)` may give the nodes that
      show a text, for other looks of its words. */
  constructor(name, { acts = [], markedOf = null, say = () => {} } = {}) {
    this.acts = acts;
    this.markedOf = markedOf;
    this.say = say;
    this.cards = [];
    this.body = element("ol", { class: "answers", "aria-label": name });
    this.more = element("p", { class: "answers-more" });
    this.box = element("div", { class: "answers-box" }, this.body, this.more);
    this.body.addEventListener("keydown", (event) => this.move(event));
  }

  clear() {
    this.cards = [];
    this.body.replaceChildren();
    this.more.textContent = "";
    this.isSettled = false;
  }

  /** Show what a search has so far: its slots, and places for those that are still to come. */
  showDrafts(slots, numWanted) {
    this.body.classList.add("is-live");
    this.body.setAttribute("aria-busy", "true");
    this.more.textContent = "";
    const count = Math.min(Math.max(slots.length, numWanted), MOST);
    while (this.cards.length < count) this.cards.push(this.makeCard());
    while (this.cards.length > count) this.cards.pop().item.remove();
    this.cards.forEach((card, i) => this.fillDraft(card, slots[i]));
  }

  /** Show the answers, best first. */
  show(texts, emptyText) {
    const wasLive = this.body.classList.contains("is-live");
    const before = wasLive ? new Map(this.cards.map((card) => [card, place(card)])) : null;
    this.body.classList.remove("is-live");
    this.body.removeAttribute("aria-busy");
    const shown = texts.slice(0, MOST);
    const different = differences(shown.map(({ text }) => text));
    const cards = this.cardsFor(shown);
    for (const card of this.cards) if (!cards.includes(card)) card.item.remove();
    this.cards = cards;
    const hadFocus = document.activeElement;
    this.body.append(...cards.map(({ item }) => item));
    if (this.body.contains(hadFocus)) hadFocus.focus({ preventScroll: true });
    shown.forEach((text, i) => this.fill(cards[i], text, i, different[i]));
    const left = texts.length - shown.length;
    this.more.textContent = !texts.length ? emptyText : left ? `and ${left} more` : "";
    if (before) for (const card of cards) glide(card, before.get(card));
  }

  /** A card for each text: the one where it was written, if there is one. */
  cardsFor(texts) {
    const free = [...this.cards];
    const take = (isWanted) => {
      const at = free.findIndex(isWanted);
      return at < 0 ? null : free.splice(at, 1)[0];
    };
    const whole = texts.map(({ text }) => take((card) => card.known === text));
    const begun = texts.map(({ text }, i) =>
      whole[i] || take(({ known, draft }) => known === null && draft && startsWith(text, draft)));
    return begun.map((card) => card || take(({ known, draft }) => known === null && !draft) || this.makeCard());
  }

  makeCard() {
    const card = { known: null, draft: "", text: null };
    card.rank = element("span", { class: "answer-rank", "aria-hidden": "true" });
    card.words = element("p", { class: "answer-text" });
    card.likely = measure("likely", "How likely");
    card.different = measure("different", "How different");
    card.measures = element("dl", { class: "answer-measures" }, card.likely.box, card.different.box);
    const copy = this.makeAct("Copy", "Copy this answer", () => this.copy(card, copy));
    const others = this.acts.map(([label, title, act]) => this.makeAct(label, title, () => act(card.text)));
    card.buttons = [copy, ...others];
    card.acts = element("div", { class: "answer-acts" }, ...card.buttons);
    card.item = element("li", { class: "answer" }, card.rank, card.words, card.measures, card.acts);
    this.body.append(card.item);
    return card;
  }

  makeAct(label, title, onClick) {
    const button = element("button", { type: "button", class: "quiet is-small" }, label);
    button.title = title;
    button.addEventListener("click", onClick);
    return button;
  }

  fillDraft(card, slot) {
    const text = slot?.text;
    card.known = text ? text.text : null;
    card.draft = slot?.draft || "";
    card.text = text || null;
    const state = text ? "is-found" : card.draft ? "is-draft" : "is-empty";
    card.item.className = `answer ${state}`;
    card.rank.textContent = "";
    const words = `${slot?.begin || ""}${text ? text.text : card.draft}`.trim();
    if (card.words.textContent !== words) card.words.textContent = words;
    card.measures.classList.add("is-waiting");
    for (const button of card.buttons) button.disabled = !text;
  }

  fill(card, text, rank, different) {
    card.known = text.text;
    card.text = text;
    card.item.className = "answer";
    card.rank.textContent = String(rank + 1);
    card.measures.classList.remove("is-waiting");
    this.write(card);
    const likely = likelihood(text);
    card.likely.show(Math.min(1, likely / FULL), likelyWord(likely),
      `On average the model gives each piece of this answer a chance of ${percent(likely)}. ${factsOf(text)}`);
    card.different.show(different, differentWord(different),
      `${percent(different)} of its wording is in no other answer here.`);
    card.buttons.forEach((button) => {
      button.disabled = false;
      button.setAttribute("aria-label", `${button.textContent}, answer ${rank + 1}`);
    });
    card.acts.children[0].textContent = "Copy";
  }

  /** Write a card's text, its words marked where somebody marks them. */
  write(card) {
    const { text, words } = card;
    const marked = this.markedOf?.(text);
    const whole = fullText(text) || "(empty answer)";
    if (marked) words.replaceChildren(...marked);
    else if (text.begin && text.begin.trim()) {
      const begin = element("span", { class: "answer-begin" }, text.begin.trimStart());
      words.replaceChildren(begin, text.text.trimEnd());
    } else words.textContent = whole;
    if (text.is_complete === false) {
      const cut = element("span", { class: "answer-cut" }, "…", element("span", { class: "unseen" }, " cut off here"));
      cut.title = "Cut off here: choose longer answers to read on.";
      words.append(cut);
    }
  }

  async copy(card, button) {
    await copyText(fullText(card.text));
    this.say("Copied.");
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }

  /** Up and down go from answer to answer. */
  move(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const at = this.cards.findIndex(({ item }) => item.contains(document.activeElement));
    const next = by && at >= 0 && this.cards[at + by];
    if (!next) return;
    event.preventDefault();
    const which = this.cards[at].buttons.indexOf(document.activeElement);
    next.buttons[Math.max(0, which)].focus();
  }
}

/** A text with how it was begun for the model. */
export function fullText({ begin = "", text }) {
  return `${begin}${text}`.trim();
}

function measure(kind, title) {
  const fill = element("span", { class: "measure-fill" });
  const word = element("span", { class: "measure-word" });
  const bar = element("span", { class: "measure-bar", "aria-hidden": "true" }, fill);
  const box = element("div", { class: `measure is-${kind}` },
    element("dt", { class: "unseen" }, title), element("dd", {}, bar, word));
  const show = (share, words, note) => {
    fill.style.setProperty("--share", share.toFixed(3));
    word.textContent = words;
    box.title = note;
  };
  return { box, show };
}

function factsOf(text) {
  const facts = [plural(text.num_tokens, "piece")];
  if (text.count > 1) facts.push(`found ${text.count} times`);
  if (text.is_certified) facts.push("proven to be among the likeliest");
  return `${facts.join(", ")}.`;
}

function place({ item }) {
  const { left, top } = item.getBoundingClientRect();
  return { left, top };
}

/** Let a card glide from where it was; a new one fades in. */
function glide(card, from) {
  if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const to = place(card);
  const [x, y] = from ? [from.left - to.left, from.top - to.top] : [0, 0];
  if (from && !x && !y) return;
  const start = from ? { transform: `translate(${x}px, ${y}px)` } : { opacity: 0 };
  card.item.animate([start, { transform: "none", opacity: 1 }], { duration: GLIDE_MS, easing: "ease-in-out" });
}
