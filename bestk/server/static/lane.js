/* One lane of a comparison: a method, the settings in which it differs from the form, and what it
   found. */
import { AnswerList } from "./answers.js";
import { makeField } from "./fields.js";
import { stateText } from "./progress.js";
import { SearchRun } from "./search_run.js";
import { settingOptions } from "./settings.js";
import { methodTitle, plural, seconds, settingsText, settingTitle } from "./words.js";

const { element } = window.bestk;

export class Lane {
  /** `page` offers listed settings, methods, and hears onChange(), onRemove(lane), onOpen(run). */
  constructor(page, { method, settings }, markedOf) {
    this.page = page;
    this.fields = new Map();
    this.run = null;
    this.build(method, markedOf);
    for (const [name, value] of Object.entries(settings)) this.addField(name, value);
  }

  build(method, markedOf) {
    this.badge = element("span", { class: "lane-badge" });
    this.method = element("select", { "aria-label": "Method" },
      ...this.page.methods.map((name) => element("option", { value: name }, methodTitle(name))));
    this.method.value = method;
    this.method.addEventListener("change", () => this.page.onChange());
    this.remove = element("button", { type: "button", class: "quiet is-icon" }, "✕");
    this.remove.addEventListener("click", () => this.page.onRemove(this));
    this.changes = element("div", { class: "fields" });
    this.add = element("select", { class: "lane-add", "aria-label": "Change a setting in this column" });
    this.add.addEventListener("change", () => {
      const field = this.addField(this.add.value);
      if (field) field.control.focus();
      this.page.onChange();
    });
    this.spent = element("p", { class: "lane-spent", hidden: true });
    this.error = element("p", { class: "problem", role: "alert", hidden: true });
    this.list = new AnswerList("Answers of this column, best first", { markedOf, say: this.page.say });
    this.list.box.hidden = true;
    this.open = element("button", { type: "button", class: "quiet", hidden: true }, "Open alone");
    this.open.addEventListener("click", () => this.page.onOpen(this.run));
    this.box = element("section", { class: "lane" },
      element("header", {}, this.badge, this.method, this.remove),
      this.changes, this.add, this.spent, this.error, this.list.box, this.open);
    this.refreshAdd();
  }

  addField(name, value) {
    const setting = this.page.listed.find((known) => known.name === name);
    if (!setting || this.fields.has(name)) return null;
    const field = makeField(setting, () => this.page.onChange());
    field.value = value === undefined ? this.page.valueOf(name) : value;
    field.refresh();
    field.label.textContent = `${settingTitle(name)} in this column`;
    const drop = element("button", { type: "button", class: "field-drop" }, "✕");
    drop.setAttribute("aria-label", `Leave ${name} as in the form`);
    drop.title = `Leave ${name} as in the form`;
    drop.addEventListener("click", () => {
      this.fields.delete(name);
      field.row.remove();
      this.refreshAdd();
      this.page.onChange();
      this.add.focus();
    });
    field.back.replaceWith(drop);
    this.fields.set(name, field);
    this.changes.append(field.row);
    this.refreshAdd();
    return field;
  }

  refreshAdd() {
    const names = this.page.listed.map(({ name }) => name).filter((name) => !this.fields.has(name));
    this.add.replaceChildren(element("option", { value: "" }, "Change a setting…"),
      ...settingOptions(names));
    this.add.value = "";
  }

  /** The lane's letter, and whether it may go. */
  setPlace(letter, isOnly) {
    this.letter = letter;
    this.badge.textContent = letter;
    this.box.setAttribute("aria-label", `Column ${letter}`);
    this.remove.setAttribute("aria-label", `Remove column ${letter}`);
    this.remove.hidden = isOnly;
  }

  get settings() {
    return Object.fromEntries([...this.fields].map(([name, field]) => [name, field.value]));
  }

  get asked() {
    return { method: this.method.value, settings: this.settings };
  }

  get title() {
    const words = settingsText(this.settings);
    return words ? `${methodTitle(this.method.value)} (${words})` : methodTitle(this.method.value);
  }

  check() {
    const wrong = [...this.fields.values()].find((field) => field.problem);
    if (!wrong) return true;
    wrong.complain(wrong.problem);
    wrong.control.focus();
    return false;
  }

  /** Run the lane on what the form asks for. */
  async start(base, onEvent) {
    const settings = { ...base.settings, ...this.settings };
    this.show(new SearchRun({ ...base, method: this.method.value, settings }, (run) => {
      this.frame = this.frame || requestAnimationFrame(() => this.refresh());
      onEvent(run);
    }));
    this.clock = setInterval(() => this.showSpent(), 200);
    await this.run.start();
    this.refresh();
  }

  show(run) {
    this.run = run;
    this.list.clear();
    this.refresh();
  }

  clear() {
    this.run = null;
    this.refresh();
  }

  /** What it cost, in a line. */
  showSpent() {
    const { run } = this;
    this.box.dataset.state = run.state;
    if (!run.isOver) {
      this.spent.textContent = `${stateText(run)} ${seconds(run.elapsed)}`;
      return;
    }
    const time = run.result?.cost.seconds ?? run.elapsed;
    const found = `${plural(run.ranked.length, "answer")} in ${seconds(time)}`;
    this.spent.textContent = `${found}, the model asked ${plural(run.expanded, "time")}`;
  }

  refresh() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    const { run } = this;
    this.spent.hidden = !run;
    this.list.box.hidden = !run;
    this.open.hidden = !run?.isOver || !run.ranked.length;
    this.error.hidden = !run?.error;
    if (!run || run.isOver) clearInterval(this.clock);
    if (!run) return;
    this.error.textContent = run.error ? run.error.message : "";
    this.showSpent();
    if (run.isOver) this.list.show(run.ranked, emptyText(run));
    else this.list.showDrafts(run.drafts?.slots || [], run.request.settings.num_texts ?? 3);
  }
}

function emptyText(run) {
  if (run.error) return "";
  return "No answer was found.";
}
