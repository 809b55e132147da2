/* The page put together: the form asks, a view shows, the link and the history remember. */
import { getJson, onTokenNeeded, ServerError } from "./api.js";
import { fullText } from "./answers.js";
import { copyText } from "./clipboard.js";
import { CompareView } from "./compare_view.js";
import { EXAMPLES } from "./examples.js";
import { Form } from "./form.js";
import { History } from "./history.js";
import { watchKeys } from "./keys.js";
import { fromFragment, toFragment } from "./link.js";
import { SearchRun } from "./search_run.js";
import { SearchView } from "./search_view.js";
import { listSettings } from "./settings.js";
import { beginningOf, ownWords, spellings } from "./steer.js";
import { shorten } from "./words.js";

const { element, theme } = window.bestk;
const at = (id) => document.getElementById(id);
const ALIKE = 0.5; // novelty of answers like one, and unlike it
const UNLIKE = 2;

class App {
  constructor({ settings, methods, models, limits }) {
    this.view = "search";
    this.isBusy = false;
    this.trail = []; // searches from which this one went on
    this.form = new Form({ settings, methods, models, limits }, () => this.refreshForm());
    const say = (words) => (at("said").textContent = words);
    this.search = new SearchView(at("search-view"), {
      say,
      theme: () => theme.name,
      more: (text) => this.more(text),
      less: (text) => this.less(text),
      back: () => this.goBack(),
      again: () => this.run(),
    });
    this.compare = new CompareView(at("compare-view"), {
      say,
      methods,
      listed: settings,
      valueOf: (name) => this.form.settings.fields.get(name).value,
      onChange: () => this.refreshForm(),
      onOpen: (run) => this.open({ ...run.request, view: "search", lanes: null }, [run]),
    });
    this.history = new History(at("history"), (asked, runs) => this.open(asked, runs));
    this.watch();
    this.refreshForm();
    this.setView("search");
    this.openLink();
  }

  /* ---- asking -------------------------------------------------------------------------------- */

  /** What the form asks for, as links and the history keep it. */
  get asked() {
    return { view: this.view, ...this.form.asked, lanes: this.compare.asked };
  }

  /** Fill the form; show runs of the past if there are any. */
  open(asked, runs = []) {
    if (this.isBusy) this.stop();
    this.trail = [];
    this.form.asked = asked;
    if (asked.lanes?.length) this.compare.asked = asked.lanes;
    this.setView(asked.view === "compare" ? "compare" : "search");
    if (!runs.length) return;
    if (this.view === "compare") this.compare.show(runs);
    else this.search.show(runs[0]);
    this.setView(this.view);
    this.remember();
  }

  async openLink() {
    const link = fromFragment(location.hash, this.form.settings.names);
    if (!link) return;
    if (this.isBusy) {
      this.stop();
      await this.current;
    }
    this.open(link.asked);
    const problems = [...link.problems, ...this.form.problems];
    if (problems.length) this.form.complain(problems.join(" "));
    else if (link.asked.isRun) this.run();
  }

  /** Put what the form asks for into the address, so that the address is the link. */
  remember() {
    const { asked } = this;
    window.history.replaceState(null, "", `#${toFragment(asked)}`);
    document.title = `${shorten(asked.prompt, 60)} · bestk`;
  }

  /* ---- running ------------------------------------------------------------------------------- */

  run() {
    if (!this.isBusy) this.current = this.runOnce();
    return this.current;
  }

  async runOnce() {
    const isCompare = this.view === "compare";
    if (!this.form.check() || (isCompare && !this.compare.check())) return;
    this.setBusy(true);
    this.remember();
    const asked = { ...this.asked, sent: this.form.settings.sent };
    try {
      const runs = isCompare ? await this.runCompare(asked) : [await this.runSearch(asked)];
      const failed = runs.find((run) => run.error);
      if (failed) this.form.blame(failed.error);
      const found = runs.filter((run) => run.result || run.ranked.length);
      if (found.length === runs.length) this.history.add(this.asked, runs);
    } finally {
      this.setBusy(false);
    }
  }

  runSearch({ model, prompt, begin, raw, method, sent }) {
    const run = new SearchRun({ model, prompt, begin, raw, method, settings: sent }, (changed) =>
      this.search.take(changed));
    this.running = run;
    this.search.show(run, { canGoBack: this.trail.length > 0 });
    this.setView("search");
    return run.start();
  }

  async runCompare({ model, prompt, begin, raw, sent }) {
    this.running = this.compare;
    await this.compare.start({ model, prompt, begin, raw, settings: sent });
    return this.compare.lanes.map((lane) => lane.run).filter(Boolean);
  }

  stop() {
    if (this.isBusy) this.running.stop();
  }

  /* ---- going on from an answer ----------------------------------------------------------------- */

  /** Ask for answers that begin as this one does. */
  more(text) {
    const { asked } = this;
    const begin = beginningOf(`${text.begin || ""}${text.text}`.trimEnd(), text.begin);
    this.goOn({ ...asked, begin, settings: { ...asked.settings, novelty: ALIKE } });
  }

  /** Ask for others than this one: very different ones, without the words that set it apart. */
  less(text) {
    const { asked } = this;
    const others = this.search.run.ranked.filter((other) => other.text !== text.text).map(fullText);
    const avoided = ownWords(text.text, others, asked.prompt).flatMap(spellings);
    const bad_words = [...new Set([...(asked.settings.bad_words || []), ...avoided])];
    this.goOn({ ...asked, settings: { ...asked.settings, bad_words, novelty: UNLIKE } });
  }

  async goOn(asked) {
    const before = { asked: this.asked, run: this.search.run };
    const trail = [...this.trail, before];
    if (this.isBusy) {
      this.stop();
      await this.current;
    }
    this.form.asked = { ...asked, view: "search" };
    this.setView("search");
    this.trail = trail;
    window.scrollTo({ top: 0 });
    await this.run();
  }

  goBack() {
    const trail = this.trail.slice(0, -1);
    const { asked, run } = this.trail[this.trail.length - 1];
    if (this.isBusy) this.stop();
    this.form.asked = asked;
    this.trail = trail;
    this.search.show(run, { canGoBack: trail.length > 0 });
    this.remember();
  }

  setBusy(isBusy) {
    this.isBusy = isBusy;
    const hadFocus = document.activeElement;
    at("stop").hidden = !isBusy;
    at("run").hidden = isBusy;
    // A button that vanishes under the focus must not take it along.
    if (isBusy && hadFocus === at("run")) at("stop").focus();
    if (!isBusy && hadFocus === at("stop")) at("run").focus();
  }

  /* ---- showing ------------------------------------------------------------------------------- */

  setView(view) {
    this.view = view;
    const isCompare = view === "compare";
    const isEmpty = !isCompare && !this.search.run;
    at("welcome").hidden = !isEmpty;
    at("ask-title").classList.toggle("unseen", !isEmpty);
    document.body.classList.toggle("is-empty", isEmpty);
    at("run").textContent = isCompare ? "Compare" : "Get answers";
    at("search-view").hidden = isCompare || isEmpty;
    at("compare-view").hidden = !isCompare;
    at("view-search").setAttribute("aria-pressed", String(!isCompare));
    at("view-compare").setAttribute("aria-pressed", String(isCompare));
    this.form.showMethod(!isCompare);
  }

  refreshForm() {
    this.form?.showBudget();
  }

  share() {
    const link = `${location.origin}${location.pathname}#${toFragment(this.asked, at("share-run").checked)}`;
    at("share-link").value = link;
    at("share-copy").textContent = "Copy";
    if (!at("sharing").open) at("sharing").showModal();
    at("share-link").select();
  }

  async copyLink() {
    at("share-link").select();
    await copyText(at("share-link").value);
    at("share-copy").textContent = "Copied";
  }

  toggleAdvanced() {
    at("advanced").open = !at("advanced").open;
    if (at("advanced").open) at("advanced").querySelector("summary").focus();
  }

  /** Everything that can be clicked or pressed. */
  watch() {
    const actions = {
      run: () => this.run(),
      stop: () => this.stop(),
      prompt: () => at("prompt").focus(),
      search: () => this.setView("search"),
      compare: () => this.setView("compare"),
      examples: () => at("examples").showModal(),
      history: () => this.history.open(),
      share: () => this.share(),
      advanced: () => this.toggleAdvanced(),
      tab: () => this.search.run && this.search.tabs.next(),
      theme: () => theme.toggle(),
      keys: () => at("keys").showModal(),
    };
    const clicks = { stop: "stop", "view-search": "search", "view-compare": "compare",
      "open-examples": "examples", "open-history": "history", share: "share", "toggle-theme": "theme", "open-keys": "keys" };
    for (const [id, name] of Object.entries(clicks)) at(id).addEventListener("click", actions[name]);
    at("form").addEventListener("submit", (event) => {
      event.preventDefault();
      actions.run();
    });
    at("share-run").addEventListener("change", () => this.share());
    at("share-copy").addEventListener("click", () => this.copyLink());
    watchKeys(actions, at("key-list"), at("single-keys"));
    window.addEventListener("hashchange", () => this.openLink());
    theme.onChange((name) => this.search.setTheme(name));
    for (const host of [at("welcome-cards"), at("example-cards")]) {
      host.replaceChildren(...EXAMPLES.map((example) => this.card(example)));
    }
  }

  card(example) {
    const card = element("button", { type: "button", class: "card" },
      element("span", { class: "card-note" }, example.note),
      element("span", { class: "card-prompt" }, example.prompt));
    card.addEventListener("click", () => {
      at("examples").close();
      this.open({ begin: "", ...example });
      this.run();
    });
    return card;
  }
}

/** Ask for the token; resolves to null if the reader cancels. */
function askToken(wasWrong) {
  const [dialog, field] = [at("token"), at("token-value")];
  if (wasWrong) at("token-note").textContent = "The server did not take that token. Try another.";
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const answer = (token) => {
      dialog.removeEventListener("close", onClose);
      if (dialog.open) dialog.close();
      resolve(token);
    };
    const onClose = () => answer(dialog.returnValue === "given" && field.value ? field.value : null);
    dialog.returnValue = "";
    dialog.addEventListener("close", onClose);
    at("token-form").onsubmit = () => (dialog.returnValue = "given");
    at("token-cancel").onclick = () => answer(null);
  });
}

async function begin() {
  onTokenNeeded(askToken);
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
    });
  }
  try {
    const listed = await getJson("/v1/settings");
    const models = await getJson("/v1/models");
    window.bestk.app = new App({ settings: listSettings(listed), methods: listed.methods,
      models: models.data, limits: listed.limits });
  } catch (error) {
    at("problem").textContent = error.message;
    at("problem").hidden = false;
    at("settings").replaceChildren();
    if (!(error instanceof ServerError)) throw error;
  }
}

begin();
