/* The form of all settings, made from what the server lists: the common ones first, the others folded
   by panel. Gives and takes only what differs from the defaults. */
import { makeField } from "./fields.js";
import { settingTitle } from "./words.js";

const { element } = window.bestk;

const COMMON = ["num_texts", "max_new_tokens", "novelty", "beam_size", "k", "stop", "scoring", "min_prob"];
const PANEL_NOTES = {
  Search: "How the frontier is ordered and pruned",
  Stopping: "When the search ends before its budget",
  Constraints: "What every text must hold or look like",
  Shaping: "What is done to the model's probabilities",
  Choice: "Which texts are shown, and in which order",
};

/** Every setting that a request may hold, from what the server says of itself: those of the search,
    then those that choose among its texts. */
export function listSettings({ settings, selections, rerankers, defaults }) {
  const choice = (name, type, help, more) => ({ name, type, help, panel: "Choice", ...more });
  return [
    ...settings,
    choice("select", "string", "Of n texts: diverse, good ones that differ, as is usual, or the best.",
      { choices: selections, default: defaults.select }),
    choice("diversity", "number", "How much diverse texts differ: 0, quality alone, to 1.",
      { default: defaults.diversity, min: 0, max: 1 }),
    choice("rerank", "string", "Another order: the texts most like the others come first.",
      { choices: rerankers, default: null }),
    choice("seed", "integer", "Of samplers: another seed draws other texts.", { default: 0, min: 0 }),
  ];
}

export class Settings {
  constructor(host, listed, onChange) {
    this.onChange = onChange;
    this.panels = [];
    this.fields = new Map(
      listed.map((setting) => [setting.name, makeField(setting, () => this.changed())]),
    );
    this.build(host, listed);
    this.changed();
  }

  get names() {
    return new Set(this.fields.keys());
  }

  build(host, listed) {
    const rowOf = (name) => this.fields.get(name).row;
    const common = COMMON.filter((name) => this.fields.has(name));
    const others = new Map();
    for (const { name, panel } of listed) {
      if (common.includes(name)) continue;
      const title = panel || "Other";
      others.set(title, [...(others.get(title) || []), name]);
    }
    host.replaceChildren(element("div", { class: "fields" }, ...common.map(rowOf)));
    for (const [title, names] of others) {
      const count = element("span", { class: "panel-count" });
      const summary = element("summary", {},
        element("span", { class: "panel-title" }, title === "Search" ? "More of the search" : title),
        count, element("span", { class: "panel-note" }, PANEL_NOTES[title] || ""));
      const box = element("details", { class: "panel" }, summary,
        element("div", { class: "fields" }, ...names.map(rowOf)));
      this.panels.push({ box, count, names });
      host.append(box);
    }
  }

  changed() {
    if (!this.panels.length) return; // still being built
    for (const { count, names } of this.panels) {
      const number = names.filter((name) => !this.fields.get(name).isUsual).length;
      count.textContent = number ? `${number} changed` : "";
    }
    this.onChange();
  }

  /** What differs from the defaults. */
  get values() {
    const values = {};
    for (const [name, field] of this.fields) if (!field.isUsual) values[name] = field.value;
    return values;
  }

  /** Show these values, and defaults where there is none. */
  set values(values) {
    for (const [name, field] of this.fields) {
      field.value = name in values ? values[name] : field.usual;
      field.refresh();
    }
    for (const { box, names } of this.panels) if (names.some((name) => name in values)) box.open = true;
  }

  /** Node expansions that a search may spend, with these values on top of the form's. */
  budget(changes = {}) {
    const value = (name) => changes[name] ?? this.fields.get(name)?.value;
    return value("budget") ?? value("beam_size") * value("max_new_tokens");
  }

  /** Say which values cannot be sent; true if all can. The first of them gets the focus. */
  check() {
    let first = null;
    for (const field of this.fields.values()) {
      const problem = field.problem || "";
      field.complain(problem);
      if (problem) first = first || field;
    }
    this.reveal(first);
    return first === null;
  }

  /** Show what the server said of a setting beside that setting, if it names one. */
  blame({ message, param }) {
    const isNamed = (name) => message.startsWith(`${name} `) || message.startsWith(`${name}=`);
    const blamed = this.fields.get(param) || [...this.fields.values()].find(({ name }) => isNamed(name));
    if (!blamed) return;
    blamed.complain(message);
    this.reveal(blamed);
  }

  reveal(field) {
    if (!field) return;
    for (let at = field.row.parentElement; at; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
    }
    field.control.focus();
  }
}

/** A setting chosen from a list, for lanes that differ in a few. */
export function settingOptions(names) {
  return [...names].map((name) => element("option", { value: name }, settingTitle(name)));
}
