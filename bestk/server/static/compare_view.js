/* Searches of one prompt side by side, a column each: lanes that differ in method or settings, run one after the
   other so that their times can be compared, and a table of what they found. */
import { downloadJson, fileName } from "./files.js";
import { Lane } from "./lane.js";
import { marked, vocabulary } from "./lane_words.js";
import { measure, ORDERS } from "./measures.js";
import { plural } from "./words.js";

const { element } = window.bestk;

const MOST_LANES = 4;
const TOP = 10; // texts of which distinctness is taken: as many for every lane
const NOTE = `D: different n-grams per word in a column's ${TOP} best texts, in percent; higher is more varied.`;
const PRESETS = [
  ["Best-k, beam, sampling", ["BKS", "BS", "Ncls0.8"]],
  ["Two settings", ["BKS", "BKS"]],
];
const COLUMNS = [
  ["found", "Found", "Texts before equal ones are merged", (m) => String(m.found)],
  ["unique", "Unique", "Texts that differ", (m) => String(m.unique)],
  ["complete", "Complete", "Unique texts that were not cut off", (m) => String(m.complete)],
  ...ORDERS.map((n, i) => [`d${n}`, `D-${n}`, `Different ${n}-grams per word, in percent`,
    (m) => (100 * m.distinct[i]).toFixed(1)]),
  ["mean", "D", "Mean of D-1, D-2 and D-3", (m) => (100 * m.mean).toFixed(1)],
  ["expanded", "Model asked", "Nodes that the model was asked about", (m) => String(m.expanded)],
  ["seconds", "Seconds", "Time of the search itself", (m) => m.seconds.toFixed(2)],
];
const BEST_IS_MOST = new Set(["unique", "complete", "d1", "d2", "d3", "mean"]);

export class CompareView {
  /** `page` offers listed, methods, valueOf(name), say(words), onChange(), onOpen(run). */
  constructor(host, page) {
    this.host = host;
    this.page = { ...page, onRemove: (lane) => this.drop(lane) };
    this.lanes = [];
    this.isStopped = false;
    this.words = new WeakMap(); // of runs that have ended
    this.build();
    this.asked = PRESETS[0][1].map((method) => ({ method, settings: {} }));
  }

  build() {
    this.add = element("button", { type: "button" }, "Add a column");
    this.add.addEventListener("click", () => {
      this.append({ method: this.page.methods[0], settings: {} });
      this.lanes[this.lanes.length - 1].method.focus();
      this.page.onChange();
    });
    const presets = PRESETS.map(([title, methods]) => {
      const button = element("button", { type: "button" }, title);
      button.addEventListener("click", () => {
        this.asked = methods.map((method) => ({ method, settings: {} }));
        this.page.onChange();
      });
      return button;
    });
    this.json = element("button", { type: "button", disabled: true }, "Save");
    this.json.title = "Save what all of them found as a JSON file";
    this.json.addEventListener("click", () => this.saveJson());
    this.table = element("div", { class: "table-box", tabindex: "0", role: "region",
      "aria-label": "What they found, in numbers" });
    this.row = element("div", { class: "lanes" });
    const head = element("header", { class: "outcome-head" },
      element("div", { class: "outcome-words" },
        element("h2", { class: "outcome-title" }, "Side by side"),
        element("p", { class: "outcome-sub" }, "One prompt, up to four ways to answer it.")),
      element("div", { class: "acts" }, ...presets, this.add, this.json));
    this.legend = element("p", { class: "legend", hidden: true },
      element("mark", { class: "is-own" }, "words"), " that no other column has, ",
      element("span", { class: "is-shared" }, "words"), " that another column has too");
    this.numbers = element("details", { class: "numbers", hidden: true },
      element("summary", {}, "All the numbers"), this.table, element("p", { class: "field-help" }, NOTE));
    this.host.replaceChildren(head, this.legend, this.row, this.numbers);
  }

  get asked() {
    return this.lanes.map((lane) => lane.asked);
  }

  set asked(lanes) {
    this.lanes = [];
    this.row.replaceChildren();
    for (const asked of lanes.slice(0, MOST_LANES)) this.append(asked);
    this.refresh();
  }

  append(asked) {
    const lane = new Lane(this.page, asked, (text) => this.markedOf(lane, text));
    this.lanes.push(lane);
    this.row.append(lane.box);
    this.number();
  }

  drop(lane) {
    this.lanes = this.lanes.filter((other) => other !== lane);
    lane.box.remove();
    this.number();
    this.refresh();
    this.page.onChange();
    this.add.focus();
  }

  number() {
    this.lanes.forEach((lane, i) => lane.setPlace("ABCD"[i], this.lanes.length < 2));
    this.add.disabled = this.lanes.length >= MOST_LANES;
    this.row.style.setProperty("--lanes", String(this.lanes.length));
  }

  check() {
    return this.lanes.every((lane) => lane.check());
  }

  /** Run all lanes; resolves when the last one ends or the comparison is stopped. */
  async start(base) {
    this.isStopped = false;
    for (const lane of this.lanes) lane.clear();
    for (const lane of [...this.lanes]) {
      if (this.isStopped) break;
      await lane.start(base, () => {});
      this.refresh();
      if (lane.run.state === "done") {
        this.page.say(`Column ${lane.letter}: ${plural(lane.run.ranked.length, "answer")}.`);
      }
    }
  }

  stop() {
    this.isStopped = true;
    for (const { run } of this.lanes) if (run && !run.isOver) run.stop();
  }

  /** Show lanes that ran before. */
  show(runs) {
    runs.forEach((run, i) => this.lanes[i] && this.lanes[i].show(run));
    this.refresh();
  }

  saveJson() {
    const lanes = this.ended.map(({ letter, run }) => ({
      lane: letter,
      request: run.body(),
      measures: measure(run.result, TOP),
      result: run.toJson(),
    }));
    const { prompt } = this.ended[0].run.request;
    downloadJson({ format: "bestk.comparison", version: 1, lanes }, `${fileName(prompt)}-compared`);
  }

  get ended() {
    return this.lanes.filter((lane) => lane.run?.result);
  }

  wordsOf(run) {
    if (!this.words.has(run)) this.words.set(run, vocabulary(run.ranked));
    return this.words.get(run);
  }

  /** A text with its words marked, once there is another column to look at. */
  markedOf(lane, { begin = "", text }) {
    const { ended } = this;
    if (ended.length < 2 || !ended.includes(lane)) return null;
    const others = ended.filter((other) => other !== lane).map(({ run }) => this.wordsOf(run));
    const head = begin.trim() ? [element("span", { class: "answer-begin" }, begin.trimStart())] : [];
    return [...head, ...marked(head.length ? text.trimEnd() : text.trim(), others)];
  }

  refresh() {
    const { ended } = this;
    this.numbers.hidden = this.json.disabled = !ended.length;
    this.legend.hidden = ended.length < 2;
    if (ended.length) this.table.replaceChildren(table(ended));
    for (const lane of this.lanes) if (lane.run) lane.refresh();
  }
}

function table(lanes) {
  const rows = lanes.map((lane) => ({ lane, measures: measure(lane.run.result, TOP) }));
  const best = {};
  for (const [name, , , show] of COLUMNS) {
    if (BEST_IS_MOST.has(name) && rows.length > 1) {
      best[name] = Math.max(...rows.map(({ measures }) => Number(show(measures))));
    }
  }
  const head = element("tr", {}, element("th", { scope: "col" }, "Column"),
    ...COLUMNS.map(([, title, note]) => {
      const cell = element("th", { scope: "col" }, title);
      cell.title = note;
      return cell;
    }));
  const body = rows.map(({ lane, measures }) =>
    element("tr", {},
      element("th", { scope: "row" }, element("span", { class: "lane-badge" }, lane.letter), " ", lane.title),
      ...COLUMNS.map(([name, , , show]) =>
        element("td", { class: Number(show(measures)) === best[name] ? "is-best" : "", "data-measure": name },
          show(measures)))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}
