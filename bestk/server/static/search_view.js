/* One search on the page: how far it is, its tree as it grows with the texts beside it (or the texts
   alone where a method has no tree), and ways to take it away. */
import { render } from "./api.js";
import { copyText } from "./clipboard.js";
import { download, downloadJson, fileName } from "./files.js";
import { Progress, stateText } from "./progress.js";
import { TextList } from "./text_list.js";
import { methodTitle, plural, seconds, settingsText, shorten } from "./words.js";

const { element } = window.bestk;

const MANY_NODES = 10_000;

export class SearchView {
  /** `page` offers theme() and say(words). */
  constructor(host, page) {
    this.host = host;
    this.page = page;
    this.viewer = null;
    this.pending = []; // parts of the graph that wait for the next frame
    this.run = null;
    this.build();
  }

  build() {
    this.title = element("h2", { class: "outcome-title" });
    this.sub = element("p", { class: "outcome-sub" });
    const act = (label, onClick) => {
      const button = element("button", { type: "button" }, label);
      button.addEventListener("click", () => onClick(button));
      return button;
    };
    this.copy = act("Copy texts", () => this.copyTexts());
    this.json = act("JSON", () => this.saveJson());
    this.html = act("HTML", () => this.saveHtml());
    this.json.title = "Save the result as JSON";
    this.html.title = "Save the tree as a page that opens offline";
    this.progress = new Progress();
    this.error = element("p", { class: "problem", role: "alert", hidden: true });
    this.tree = element("div", { class: "tree" });
    this.list = new TextList("Texts, ranked");
    this.plainNote = element("p", { class: "field-help" });
    this.plain = element("div", { class: "plain" }, this.plainNote, this.list.box);
    this.about = element("p", { class: "signature" });
    const head = element("header", { class: "outcome-head" },
      element("div", { class: "outcome-words" }, this.title, this.sub),
      element("div", { class: "acts" }, this.copy, this.json, this.html));
    this.host.replaceChildren(head, this.progress.box, this.error, this.tree, this.plain, this.about);
  }

  /** Show a search from now on; whatever it knows already is shown at once. */
  show(run) {
    this.clear();
    this.run = run;
    const { prompt, method, settings } = run.request;
    this.title.textContent = shorten(prompt, 200);
    this.title.title = prompt;
    this.sub.textContent = [methodTitle(method), settingsText(settings)].filter(Boolean).join(" · ");
    this.spoke = 0;
    this.numTold = 0;
    if (run.graph) this.grow([run.graph]);
    this.refresh();
    if (run.isOver) this.settle();
    else this.clock = setInterval(() => this.progress.showTime(run), 200);
  }

  clear() {
    clearInterval(this.clock);
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.pending = [];
    if (this.viewer) this.viewer.close();
    this.viewer = null;
    this.tree.replaceChildren();
  }

  /** Take an event of the search that is shown. */
  take(run, name, data) {
    if (run !== this.run) return;
    if (name === "step" && data.graph) this.pending.push(data.graph);
    if (run.isOver) {
      this.draw();
      this.settle();
    } else {
      this.frame = this.frame || requestAnimationFrame(() => this.draw());
      this.tell();
    }
  }

  /** Bring the page up to the newest event: at most once a frame, however fast they come. */
  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    const parts = this.pending.splice(0);
    if (this.run.result?.graph) parts.push(this.run.result.graph);
    if (parts.length) this.grow(parts);
    this.refresh();
  }

  grow(parts) {
    if (this.viewer) {
      this.viewer.update(...parts);
      return;
    }
    const [first, ...others] = parts;
    const host = element("div", { class: "tree-host" });
    this.tree.hidden = false;
    this.tree.replaceChildren(host);
    this.viewer = window.bestk.view(host, first, { isEmbedded: true, theme: this.page.theme() });
    this.viewer.setLive(!this.run.isOver);
    if (others.length) this.viewer.update(...others);
  }

  refresh() {
    const { run } = this;
    const texts = run.ranked;
    this.progress.show(run);
    this.tree.hidden = !this.viewer;
    this.plain.hidden = Boolean(this.viewer);
    if (!this.viewer) this.list.show(texts, waitText(run));
    this.plainNote.textContent = run.isOver && texts.length ? noTreeText(run) : "";
    this.plainNote.hidden = !this.plainNote.textContent;
    this.copy.disabled = !texts.length;
    this.json.disabled = !texts.length && !run.result;
    this.html.disabled = !run.isOver || !run.graph;
    this.error.hidden = !run.error;
    this.error.textContent = run.error ? run.error.message : "";
    this.about.textContent = run.signature || "";
    this.about.hidden = !run.signature;
  }

  /** The search has ended. */
  settle() {
    clearInterval(this.clock);
    if (this.viewer) this.viewer.setLive(false);
    this.refresh();
    const { run } = this;
    const time = run.result ? run.result.cost.seconds : run.elapsed;
    if (run.state === "failed") return; // the alert says it
    this.page.say(`${stateText(run)} ${plural(run.ranked.length, "text")} in ${seconds(time)}.`);
  }

  /** Tell those who do not see the page of new texts, but not faster than one can listen. */
  tell() {
    const { run } = this;
    const now = performance.now();
    if (run.texts.size === this.numTold || now - this.spoke < 2000) return;
    this.spoke = now;
    this.numTold = run.texts.size;
    this.page.say(`${plural(run.texts.size, "text")}. Best: ${shorten(run.ranked[0].text, 120)}`);
  }

  setTheme(theme) {
    if (this.viewer) this.viewer.setTheme(theme);
  }

  async copyTexts() {
    const texts = this.run.ranked.map((text) => text.text.trim());
    await copyText(texts.join("\n"));
    this.page.say(`${plural(texts.length, "text")} copied.`);
    this.copy.textContent = "Copied";
    setTimeout(() => (this.copy.textContent = "Copy texts"), 1500);
  }

  saveJson() {
    downloadJson(this.run.toJson(), fileName(this.run.request.prompt));
  }

  async saveHtml() {
    this.html.disabled = true;
    try {
      download(await render(sendable(this.run.graph)), `${fileName(this.run.request.prompt)}.html`);
    } catch (error) {
      this.error.textContent = error.message;
      this.error.hidden = false;
    }
    this.html.disabled = false;
  }
}

function waitText(run) {
  if (run.isOver) return run.error ? "" : "No text was found.";
  return run.growsTree
    ? "The tree appears with its first step."
    : "The texts come all at once, when the method has ended.";
}

function noTreeText(run) {
  return run.growsTree
    ? "The tree of this search is no longer in memory: run it again to see it."
    : "This method keeps no tree; here are its texts.";
}

/** A graph small enough to send: a very large one goes without the children that were not opened. */
function sendable(graph) {
  if (graph.nodes.length <= MANY_NODES) return graph;
  const nodes = graph.nodes.filter((node) => node.state !== "pruned_prob");
  const num_left_out = (graph.num_left_out || 0) + graph.nodes.length - nodes.length;
  return { ...graph, nodes, num_left_out };
}
