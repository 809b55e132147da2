/* Past searches, kept in this browser: prompt, settings and texts. Trees are too large to keep; they
   stay in memory while the page is open. */
import { load, save } from "./storage.js";
import { SearchRun } from "./search_run.js";
import { methodTitle, plural, settingsText, shorten, when } from "./words.js";

const { element } = window.bestk;

const NAME = "history";
const MOST = 50;

export class History {
  /** `onOpen(asked, runs)` is called when a reader reopens an entry. */
  constructor(dialog, onOpen) {
    this.dialog = dialog;
    this.onOpen = onOpen;
    this.graphs = new Map(); // by entry and lane
    this.list = dialog.querySelector("#history-list");
    this.clearer = dialog.querySelector("#history-clear");
    this.clearer.addEventListener("click", () => this.clear());
  }

  get entries() {
    const entries = load(NAME, []);
    return Array.isArray(entries) ? entries : [];
  }

  /** Keep a search or comparison: what was asked, and the runs that found anything. */
  add(asked, runs) {
    const id = `${Date.now()}-${Math.random().toString(36).slice(2, 8)}`;
    const outcomes = runs.map((run, i) => {
      if (run.graph) this.graphs.set(`${id}/${i}`, run.graph);
      const { graph, tree, token_texts, ...kept } = run.toJson();
      return { method: run.request.method, settings: run.request.settings, kept };
    });
    const entries = [{ id, at: Date.now(), asked, outcomes }, ...this.entries].slice(0, MOST);
    while (!save(NAME, entries) && entries.length > 1) entries.pop(); // the oldest make room
    this.refresh();
  }

  remove(id) {
    save(NAME, this.entries.filter((entry) => entry.id !== id));
    for (const key of this.graphs.keys()) if (key.startsWith(`${id}/`)) this.graphs.delete(key);
    this.refresh();
  }

  /** Forget everything, when asked twice. */
  clear() {
    if (this.clearer.dataset.sure) {
      save(NAME, []);
      this.graphs.clear();
      this.refresh();
    } else {
      this.clearer.dataset.sure = "1";
      this.clearer.textContent = "Clear it for good?";
    }
  }

  open() {
    this.refresh();
    this.dialog.showModal();
  }

  refresh() {
    delete this.clearer.dataset.sure;
    this.clearer.textContent = "Clear the history";
    const { entries } = this;
    this.clearer.disabled = !entries.length;
    const rows = entries.map((entry) => this.row(entry));
    this.list.replaceChildren(...(rows.length ? rows : [element("li", { class: "field-help" }, "Nothing yet.")]));
  }

  row(entry) {
    const { asked, outcomes } = entry;
    const counts = outcomes.map(({ kept }) => kept.hypotheses.length);
    const methods = outcomes.map(({ method }) => methodTitle(method)).join(", ");
    const texts = counts.length === 1 ? plural(counts[0], "text") : `${counts.join(" / ")} texts`;
    const open = element("button", { type: "button", class: "history-open" },
      element("span", { class: "history-prompt" }, shorten(asked.prompt, 140)),
      element("span", { class: "history-about" },
        [when(entry.at), methods, texts, asked.begin && `beginning with “${shorten(asked.begin, 40)}”`, settingsText(asked.settings)].filter(Boolean).join(" · ")));
    open.addEventListener("click", () => {
      this.dialog.close();
      this.onOpen(asked, outcomes.map((outcome, i) => this.revive(entry, outcome, i)));
    });
    const remove = element("button", { type: "button", class: "quiet is-icon" }, "✕");
    remove.setAttribute("aria-label", `Delete: ${shorten(asked.prompt, 60)}`);
    remove.addEventListener("click", () => {
      this.remove(entry.id);
      (this.list.querySelector("button") || this.clearer).focus();
    });
    return element("li", {}, open, remove);
  }

  revive({ id, asked }, { method, settings, kept }, i) {
    const { model, prompt, begin, raw } = asked;
    const request = { model, prompt, begin, raw, method, settings };
    return SearchRun.revive(request, kept, this.graphs.get(`${id}/${i}`));
  }
}
