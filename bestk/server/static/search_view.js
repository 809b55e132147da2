/* One search on the page: its answers as they are written and then in their order; in a tab beside them
   the tree, with what the search did in its own words; and ways to take everything away. */
import { render } from "./api.js";
import { AnswerList, fullText } from "./answers.js";
import { copyText } from "./clipboard.js";
import { download, downloadJson, fileName } from "./files.js";
import { Progress, stateText } from "./progress.js";
import { Tabs } from "./tabs.js";
import { methodTitle, plural, seconds, settingsText, shorten } from "./words.js";

const { element } = window.bestk;

const MANY_NODES = 10_000;
const MEANING =
  "How likely: the chance that the model gives each piece of an answer, on average; a full bar is one in two. " +
  "How different: how much of its wording is in no other answer here.";

export class SearchView {
  /** `page` offers theme(), say(words), more(text), less(text), back(), again(). */
  constructor(host, page) {
    this.host = host;
    this.page = page;
    this.viewer = null;
    this.run = null;
    this.build();
  }

  build() {
    const act = (label, title, onClick) => {
      const button = element("button", { type: "button" }, label);
      button.title = title;
      button.addEventListener("click", () => onClick(button));
      return button;
    };
    this.title = element("h2", { class: "outcome-title" });
    this.sub = element("p", { class: "outcome-sub" });
    this.back = act("‹ Back", "Back to the answers before", () => this.page.back());
    this.back.hidden = true;
    this.copy = act("Copy all", "Copy all answers, one below the other", () => this.copyTexts());
    this.json = act("Save", "Save everything that was found as a JSON file", () => this.saveJson());
    this.bar = element("progress", { max: "1", value: "0", "aria-label": "How far it is" });
    this.error = element("p", {});
    this.retry = act("Try again", "Ask once more", () => this.page.again());
    this.problem = element("div", { class: "problem", role: "alert", hidden: true }, this.error, this.retry);
    this.list = new AnswerList("Answers, best first", {
      say: this.page.say,
      acts: [
        ["More like this", "Ask for answers that begin as this one does", (text) => this.page.more(text)],
        ["Less like this", "Ask for others, without the words of this one", (text) => this.page.less(text)],
      ],
    });
    this.meaning = element("p", { class: "meaning" }, MEANING);
    this.buildTree(act);
    this.tabs = new Tabs("Answers or tree", [
      ["answers", "Answers", element("div", {}, this.list.box, this.meaning)],
      ["tree", "Tree", this.treePanel],
    ], (name) => name === "tree" && this.draw());
    const head = element("header", { class: "outcome-head" }, this.back,
      element("div", { class: "outcome-words" }, this.title, this.sub),
      this.tabs.box, element("div", { class: "acts" }, this.copy, this.json));
    this.host.replaceChildren(this.bar, head, this.problem, ...this.tabs.panels);
  }

  buildTree(act) {
    this.progress = new Progress();
    this.html = act("Save the tree", "Save the tree as a page that opens offline", () => this.saveHtml());
    this.asked = element("p", { class: "field-help" });
    this.note = element("p", { class: "field-help" });
    this.tree = element("div", { class: "tree" });
    this.about = element("p", { class: "signature" });
    this.treePanel = element("div", { class: "tree-panel" }, this.progress.box,
      element("div", { class: "tree-head" }, this.asked, this.html), this.note, this.tree, this.about);
  }

  /** Show a search from now on; whatever it knows already is shown at once. */
  show(run, { canGoBack = false } = {}) {
    this.clear();
    this.run = run;
    this.back.hidden = !canGoBack;
    const { method, settings } = run.request;
    this.asked.textContent = [methodTitle(method), settingsText(settings)].filter(Boolean).join(" · ");
    this.spoke = 0;
    this.numTold = 0;
    this.refresh();
    if (run.isOver) this.settle();
    else this.clock = setInterval(() => this.showState(), 200);
  }

  clear() {
    clearInterval(this.clock);
    cancelAnimationFrame(this.frame);
    this.frame = null;
    if (this.viewer) this.viewer.close();
    this.viewer = null;
    this.isListSettled = null;
    this.shown = null; // how much of the graph the viewer has
    this.tree.replaceChildren();
    this.list.clear();
  }

  /** Take an event of the search that is shown. */
  take(run) {
    if (run !== this.run) return;
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
    if (!this.run) return;
    if (this.tabs.current === "tree") this.grow();
    this.refresh();
  }

  /** Bring the tree up to what is known; it is made when somebody first looks at it. */
  grow() {
    const { graph } = this.run;
    if (!graph || this.shown === graph.steps.length + Number(this.run.isOver)) return;
    this.shown = graph.steps.length + Number(this.run.isOver);
    if (this.viewer) {
      this.viewer.update(graph);
    } else {
      const host = element("div", { class: "tree-host" });
      this.tree.hidden = false;
      this.tree.replaceChildren(host);
      this.viewer = window.bestk.view(host, graph, { isEmbedded: true, theme: this.page.theme() });
    }
    this.viewer.setLive(!this.run.isOver);
  }

  refresh() {
    const { run } = this;
    const texts = run.ranked;
    this.showState();
    this.progress.show(run);
    this.showList(texts);
    this.tree.hidden = !this.viewer;
    this.note.textContent = this.viewer ? "" : noTreeText(run);
    this.note.hidden = !this.note.textContent;
    this.copy.disabled = !texts.length;
    this.json.disabled = !texts.length && !run.result;
    this.html.disabled = !run.isOver || !run.graph;
    this.problem.hidden = !run.error;
    this.error.textContent = run.error ? run.error.message : "";
    this.about.textContent = run.signature || "";
    this.about.hidden = !run.signature;
    this.meaning.hidden = !run.isOver || !texts.length;
  }

  /** The one line over the answers, in plain words, and the bar. */
  showState() {
    const { run } = this;
    const isEndless = !run.isOver && run.budget === null;
    if (isEndless) this.bar.removeAttribute("value");
    else this.bar.value = run.isOver ? 1 : run.expanded / Math.max(1, run.budget);
    this.host.dataset.state = run.state;
    const { begin } = run.request;
    const count = run.isOver ? run.ranked.length : numWanted(run) || run.ranked.length;
    this.title.textContent = count
      ? `${plural(count, "answer")}${begin ? ` beginning with “${shorten(begin, 60)}”` : ""}`
      : run.isOver ? "No answers" : "Answers";
    this.sub.textContent = plainState(run);
    this.sub.title = run.result?.notice || "";
    if (!run.isOver) this.progress.showTime(run);
  }

  showList(texts) {
    const { run } = this;
    const { begin = "" } = run.request;
    if (run.isOver) {
      if (this.isListSettled === run) return;
      this.isListSettled = run;
      this.list.show(texts, emptyText(run));
    } else if (run.drafts || !texts.length) {
      const slots = (run.drafts?.slots || []).map((slot) => ({
        draft: slot.draft, begin, text: slot.text && { ...slot.text, begin } }));
      this.list.showDrafts(slots, numWanted(run) || 3);
    } else {
      const found = [...run.texts.values()].map((text) => ({ draft: "", begin, text: { ...text, begin } }));
      this.list.showDrafts(found, numWanted(run) || 0);
    }
  }

  /** The search has ended. */
  settle() {
    clearInterval(this.clock);
    if (this.viewer) this.viewer.setLive(false);
    this.refresh();
    const { run } = this;
    if (run.state === "failed") return; // the alert says it
    this.page.say(`${plural(run.ranked.length, "answer")} in ${seconds(timeOf(run))}.`);
  }

  /** Tell those who do not see the page of new texts, but not faster than one can listen. */
  tell() {
    const { run } = this;
    const now = performance.now();
    if (run.texts.size === this.numTold || now - this.spoke < 2000) return;
    this.spoke = now;
    this.numTold = run.texts.size;
    this.page.say(`${plural(run.texts.size, "answer")} so far. ${shorten(run.ranked[0].text, 120)}`);
  }

  setTheme(theme) {
    if (this.viewer) this.viewer.setTheme(theme);
  }

  async copyTexts() {
    const texts = this.run.ranked.map(fullText);
    await copyText(texts.join("\n"));
    this.page.say(`${plural(texts.length, "answer")} copied.`);
    this.copy.textContent = "Copied";
    setTimeout(() => (this.copy.textContent = "Copy all"), 1500);
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
      this.problem.hidden = false;
    }
    this.html.disabled = false;
  }
}

function numWanted(run) {
  return run.request.settings.num_texts ?? null;
}

function timeOf(run) {
  return run.result?.cost.seconds ?? run.elapsed;
}

function plainState(run) {
  if (run.state === "running") {
    return run.texts.size ? `${run.texts.size} written so far…` : "Writing…";
  }
  if (run.state === "done") {
    const isShort = run.ranked.length < (numWanted(run) || 0);
    return `in ${seconds(timeOf(run))}${isShort ? ", fewer than asked for" : ""}`;
  }
  return stateText(run);
}

function emptyText(run) {
  if (run.error) return "";
  if (run.state === "stopped") return "Stopped before the first answer was complete.";
  return "No answer was found. Longer answers, or fewer rules under Advanced, may help.";
}

function noTreeText(run) {
  if (!run.isOver) return run.growsTree ? "The tree appears with its first step." : "This method has no tree.";
  return run.growsTree
    ? "The tree of this search is no longer in memory: ask again to see it."
    : "This method has no tree to look at.";
}

/** A graph small enough to send: a very large one goes without the children that were not opened. */
function sendable(graph) {
  if (graph.nodes.length <= MANY_NODES) return graph;
  const nodes = graph.nodes.filter((node) => node.state !== "pruned_prob");
  const num_left_out = (graph.num_left_out || 0) + graph.nodes.length - nodes.length;
  return { ...graph, nodes, num_left_out };
}
