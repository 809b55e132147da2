/* A list of ranked texts: choose one for its numbers, copy it. For results that have no tree, and for
   lanes of a comparison. Texts go in as text. */
import { copyText } from "./clipboard.js";
import { plural } from "./words.js";

const { element } = window.bestk;
const MOST = 300; // rows; the rest is counted

export class TextList {
  /** `tagOf(text)` may say something of a text, in a few words. */
  constructor(name, tagOf = () => "") {
    this.tagOf = tagOf;
    this.body = element("ol", { class: "texts", "aria-label": name });
    this.more = element("p", { class: "bk-more" });
    this.box = element("div", { class: "texts-box" }, this.body, this.more);
    this.rows = [];
    this.chosen = null;
    this.body.addEventListener("keydown", (event) => this.move(event));
  }

  show(texts, emptyText) {
    const count = Math.min(texts.length, MOST);
    while (this.rows.length < count) this.rows.push(this.makeRow());
    while (this.rows.length > count) this.rows.pop().item.remove();
    const best = texts.length ? texts[0].score : 0;
    for (let i = 0; i < count; i += 1) this.fill(this.rows[i], texts[i], i, best);
    const isAll = count === texts.length;
    this.more.textContent = !texts.length ? emptyText : isAll ? "" : `and ${texts.length - count} more`;
  }

  makeRow() {
    const parts = {};
    for (const name of ["mark", "title", "detail", "bar"]) {
      parts[name] = element("span", { class: `bk-${name}` });
    }
    const button = element("button", { type: "button", class: "bk-row", "aria-expanded": "false" },
      parts.mark, parts.title, parts.detail, parts.bar);
    const copy = element("button", { type: "button", class: "quiet is-small" }, "Copy");
    const facts = element("span", {});
    const about = element("div", { class: "text-about", hidden: true }, facts, copy);
    const tag = element("span", { class: "text-tag" });
    const row = { ...parts, button, about, facts, tag, item: element("li", {}, button, tag, about) };
    button.addEventListener("click", () => this.toggle(row));
    copy.addEventListener("click", async () => {
      await copyText(row.text);
      copy.textContent = "Copied";
    });
    row.copy = copy;
    this.body.append(row.item);
    return row;
  }

  fill(row, text, rank, best) {
    const isSame = row.text === text.text;
    row.text = text.text;
    row.mark.textContent = String(rank + 1);
    row.title.textContent = text.text.trim() || "(empty text)";
    row.detail.textContent = text.score.toFixed(3);
    row.bar.style.setProperty("--share", Math.min(1, Math.exp(text.score - best)).toFixed(3));
    row.facts.textContent = factsOf(text);
    row.tag.textContent = this.tagOf(text.text);
    row.tag.hidden = !row.tag.textContent;
    if (!isSame) this.open(row, text.text === this.chosen);
  }

  toggle(row) {
    this.chosen = this.chosen === row.text ? null : row.text;
    for (const other of this.rows) this.open(other, other.text === this.chosen);
  }

  open(row, isOpen) {
    row.about.hidden = !isOpen;
    row.copy.textContent = "Copy";
    row.button.setAttribute("aria-expanded", String(isOpen));
    row.button.classList.toggle("is-chosen", isOpen);
  }

  move(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const at = this.rows.findIndex((row) => row.button === document.activeElement);
    const next = by && at >= 0 && this.rows[at + by];
    if (!next) return;
    event.preventDefault();
    next.button.focus();
  }
}

function factsOf(text) {
  const facts = [`log p ${text.log_prob.toFixed(2)}`, plural(text.num_tokens, "token")];
  if (typeof text.rerank_score === "number") facts.push(`reranked ${text.rerank_score.toFixed(3)}`);
  if (text.step !== null && text.step !== undefined) facts.push(`found at step ${text.step}`);
  if (text.count > 1) facts.push(`found ${text.count} times`);
  if (text.is_complete === false) facts.push("cut off");
  if (text.is_certified) facts.push("proven");
  return facts.join(" · ");
}
