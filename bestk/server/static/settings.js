/* All settings of a search, made from what the server lists: three below the prompt, the others by
   panel under "Advanced". Gives and takes only what differs from the page's defaults. */
import { makeField, PICKED } from "./fields.js";
import { settingTitle } from "./words.js";

const { element } = window.bestk;

// What the page asks for unless told otherwise: as many texts as the command line, of about a sentence.
const OF_PAGE = { num_texts: 10, max_new_tokens: 40 };
// What follows from how many texts are wanted, unless it is given.
const FOLLOWS = new Set(["k", "beam_size", "policy", "end_prob"]);
const PANELS = {
  Search: ["How it searches", "Which beginnings are gone on with, and how far"],
  Stopping: ["When it stops", "What ends an answer, and what ends the search"],
  Constraints: ["Rules", "What every answer must hold or look like"],
  Shaping: ["The model's chances", "What is done to them before the search sees them"],
  Choice: ["Choice", "Which answers are shown, and in which order"],
};

/** Every setting that a request may hold, from what the server says of itself: those of the search,
    then those that choose among its texts. */
export function listSettings({ settings, selections, rerankers, defaults }) {
  const choice = (name, type, help, more) => ({ name, type, help, panel: "Choice", ...more });
  const known = settings.map((setting) => {
    const { name } = setting;
    if (name in OF_PAGE) return { ...setting, default: OF_PAGE[name] };
    return FOLLOWS.has(name) ? { ...setting, default: null } : setting;
  });
  return [
    ...known,
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
  /** `picks` takes the three, `host` the others. */
  constructor({ picks, host }, listed, onChange) {
    this.onChange = onChange;
    this.panels = [];
    this.fields = new Map(
      listed.map((setting) => [setting.name, makeField(setting, () => this.changed())]),
    );
    this.build(picks, host, listed);
    this.changed();
  }

  get names() {
    return new Set(this.fields.keys());
  }

  build(picks, host, listed) {
    const rowOf = (name) => this.fields.get(name).row;
    picks.replaceChildren(...PICKED.filter((name) => this.fields.has(name)).map(rowOf));
    const others = new Map();
    for (const { name, panel } of listed) {
      if (PICKED.includes(name)) continue;
      const title = panel || "Other";
      others.set(title, [...(others.get(title) || []), name]);
    }
    host.replaceChildren();
    for (const [panel, names] of others) {
      const [title, note] = PANELS[panel] || [panel, ""];
      const count = element("span", { class: "panel-count" });
      const summary = element("summary", {}, element("span", { class: "panel-title" }, title),
        count, element("span", { class: "panel-note" }, note));
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

  /** What a request must hold: that too in which the page's defaults are not the server's. */
  get sent() {
    const usual = Object.entries(OF_PAGE).filter(([name]) => this.fields.has(name));
    return { ...Object.fromEntries(usual), ...this.values };
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
    const width = value("beam_size") ?? value("num_texts") ?? 10;
    return value("budget") ?? width * value("max_new_tokens");
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
