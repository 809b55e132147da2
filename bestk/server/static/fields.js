/* One control for one setting: a label, what it does in a line, a way back to the default. Knows how
   values are typed and shown; what a setting means is the server's to say. */
import { settingSymbol, settingTitle, valueText } from "./words.js";

const { element } = window.bestk;

// Where a slider is of use: the range that people try. The number beside it takes any other.
const USUAL = {
  k: [1, 20, 1],
  beam_size: [1, 30, 1],
  max_new_tokens: [5, 80, 1],
  min_prob: [0, 0.3, 0.01],
  decay_weight: [0, 0.5, 0.01],
  temperature: [0.2, 2, 0.1],
  diversity: [0, 1, 0.05],
};
const LONG = new Set(["json_schema", "grammar"]);
const UNSET = { budget: "auto", max_children: "auto", k: "auto", beam_size: "auto", end_prob: "auto" };
// The three that stand below the prompt: what most people choose from; "other" takes any number.
const PICKS = {
  num_texts: {
    help: "How many answers there are to be, no two the same",
    values: [[3, "3"], [5, "5"], [10, "10"], [20, "20"], [null, "All it finds"]],
  },
  max_new_tokens: {
    help: "How long an answer may get; four pieces are about three words",
    values: [[15, "A few words"], [40, "A sentence"], [80, "A few sentences"], [160, "A paragraph"]],
  },
  novelty: {
    help: "How much the answers are to differ from one another",
    values: [[0.5, "Similar"], [1, "Different"], [2, "Very different"]],
  },
};
export const PICKED = Object.keys(PICKS);
const OTHER = "other";

let numFields = 0;

/** Make the control of a setting; `onChange` is called whenever its value may have changed. */
export function makeField(setting, onChange) {
  return new KINDS[kindOf(setting)](setting, onChange);
}

function kindOf({ name, choices, type }) {
  if (PICKS[name]) return "pick";
  if (choices && choices.length) return "choice";
  return KINDS[type] ? type : "string";
}

class Field {
  constructor(setting, onChange) {
    this.setting = setting;
    this.name = setting.name;
    this.onChange = onChange;
    numFields += 1;
    this.id = `field-${numFields}`;
    this.help = element("p", { class: "field-help", id: `${this.id}-help` }, setting.help || "");
    this.error = element("p", { class: "field-error", id: `${this.id}-error`, hidden: true });
    this.control = this.makeControl();
    const described = `${this.id}-help ${this.id}-error`;
    for (const [name, value] of [["id", this.id], ["aria-describedby", described]]) {
      this.control.setAttribute(name, value);
    }
    const title = settingTitle(this.name);
    const symbol = settingSymbol(this.name);
    this.label = element("label", { for: this.id, class: "field-label" }, title);
    this.label.title = symbol ? `${this.name}, ${symbol} in the paper` : this.name;
    if (symbol && !PICKS[this.name]) this.label.append(" ", element("i", { class: "symbol" }, symbol));
    this.back = element("button", { type: "button", class: "field-back", hidden: true }, "↺");
    this.back.setAttribute("aria-label", `${title}: back to ${this.usualText()}`);
    this.back.title = `Back to ${this.usualText()}`;
    this.back.addEventListener("click", () => {
      this.reset();
      this.control.focus();
    });
    this.row = this.lay();
    this.reset();
    this.row.addEventListener("input", () => this.refresh());
  }

  lay() {
    return element("div", { class: `field ${this.layout}`, "data-setting": this.name },
      this.label, this.back, this.control, this.help, this.error);
  }

  get usual() {
    return this.setting.default ?? null;
  }

  usualText() {
    const { usual } = this;
    const isNone = usual === null || (Array.isArray(usual) && !usual.length) || usual === "";
    return isNone ? "none" : valueText(usual);
  }

  get isUsual() {
    return JSON.stringify(this.value) === JSON.stringify(this.usual);
  }

  reset() {
    this.value = this.usual;
    this.refresh();
  }

  refresh() {
    this.complain("");
    const { isUsual } = this;
    this.back.hidden = isUsual;
    this.row.classList.toggle("is-changed", !isUsual);
    this.onChange(this);
  }

  /** Show what is wrong with the value, or that nothing is. */
  complain(message) {
    this.error.textContent = message;
    this.error.hidden = !message;
    if (message) this.control.setAttribute("aria-invalid", "true");
    else this.control.removeAttribute("aria-invalid");
  }
}

class NumberField extends Field {
  get layout() {
    return "is-short";
  }

  makeControl() {
    const { min, max } = this.setting;
    const control = element("input", { type: "number", inputmode: "decimal", step: this.step(),
      min: min ?? null, max: max ?? null, autocomplete: "off" });
    if (this.usual === null) control.placeholder = UNSET[this.name] || "none";
    const usual = USUAL[this.name];
    if (usual) {
      const [low, high, step] = usual;
      // The number is the control; the slider is another way to move it, for mouse and touch.
      this.slider = element("input", { type: "range", class: "field-slider", min: low,
        max: high, step, tabindex: "-1", "aria-hidden": "true" });
      this.slider.addEventListener("input", () => (control.value = this.slider.value));
      control.addEventListener("input", () => (this.slider.value = control.value));
    }
    return control;
  }

  lay() {
    const row = super.lay();
    if (this.slider) row.insertBefore(this.slider, this.help);
    return row;
  }

  step() {
    return "any";
  }

  get value() {
    const text = this.control.value.trim();
    return text === "" ? null : Number(text);
  }

  set value(value) {
    this.control.value = value ?? "";
    if (this.slider) this.slider.value = value ?? "";
  }

  get problem() {
    return problemOf(this.control, this);
  }
}

/** What the browser itself sees to be wrong with a number, in words. */
function problemOf(control, { name, value, usual }) {
  const { validity } = control;
  const title = settingTitle(name);
  if (validity.badInput) return `${title} must be a number.`;
  if (validity.stepMismatch) return `${title} must be a whole number.`;
  if (validity.rangeUnderflow) return `${title} must be at least ${control.min}.`;
  if (validity.rangeOverflow) return `${title} must be at most ${control.max}.`;
  if (value === null && usual !== null) return `${title} needs a number.`;
  return "";
}

class IntegerField extends NumberField {
  step() {
    return "1";
  }
}

/** A few usual numbers by name, and any other one typed. */
class PickField extends NumberField {
  get layout() {
    return "pick";
  }

  get picks() {
    return PICKS[this.name].values;
  }

  makeControl() {
    const { name, type, min, max } = this.setting;
    const options = this.picks.map(([value, words]) =>
      element("option", { value: JSON.stringify(value) }, words));
    this.exact = element("input", { type: "number", hidden: true, min: min ?? null, max: max ?? null,
      step: type === "integer" ? "1" : "any", "aria-label": `${settingTitle(name)}, as a number` });
    const control = element("select", {}, ...options, element("option", { value: OTHER }, "Other…"));
    control.addEventListener("change", () => {
      this.exact.hidden = control.value !== OTHER;
      if (!this.exact.hidden) this.exact.focus();
    });
    return control;
  }

  lay() {
    const row = super.lay();
    this.help.textContent = `${PICKS[this.name].help}. ${settingSymbol(this.name)} in the paper.`;
    this.help.classList.add("unseen");
    this.control.title = this.help.textContent;
    this.control.after(this.exact);
    this.back.remove(); // the usual choice is one of the list
    return row;
  }

  get value() {
    if (this.control.value !== OTHER) return JSON.parse(this.control.value);
    return this.exact.value.trim() === "" ? null : Number(this.exact.value);
  }

  set value(value) {
    const isPick = this.picks.some(([pick]) => pick === value);
    this.control.value = isPick ? JSON.stringify(value) : OTHER;
    this.exact.hidden = isPick;
    if (value !== null) this.exact.value = value; // where "other" begins
  }

  get problem() {
    return this.control.value === OTHER ? problemOf(this.exact, this) : "";
  }
}

class ChoiceField extends Field {
  get layout() {
    return "is-short";
  }

  makeControl() {
    const names = [...this.setting.choices];
    if (this.usual === null) names.unshift("");
    return element("select", {},
      ...names.map((name) => element("option", { value: name }, String(name) || "none")));
  }

  get value() {
    return this.control.value || null;
  }

  set value(value) {
    this.control.value = value ?? "";
  }
}

class BooleanField extends Field {
  get layout() {
    return "is-short";
  }

  makeControl() {
    return element("input", { type: "checkbox" });
  }

  get value() {
    return this.control.checked;
  }

  set value(value) {
    this.control.checked = Boolean(value);
  }
}

class TextField extends Field {
  get layout() {
    return "is-long";
  }

  makeControl() {
    const attributes = { spellcheck: "false", autocomplete: "off", placeholder: "none" };
    return LONG.has(this.name)
      ? element("textarea", { ...attributes, rows: "3", class: "is-code" })
      : element("input", { ...attributes, type: "text", class: "is-code" });
  }

  get value() {
    return this.control.value === "" ? null : this.control.value;
  }

  set value(value) {
    this.control.value = typeof value === "object" && value ? JSON.stringify(value) : value ?? "";
  }
}

/** Several strings, one to a line; \n and \t stand for what a line cannot hold. */
class StringsField extends Field {
  get layout() {
    return "is-long";
  }

  makeControl() {
    return element("textarea", { rows: "1", class: "is-code is-lines", spellcheck: "false",
      placeholder: "one to a line" });
  }

  get value() {
    const signs = { n: "\n", t: "\t", "\\": "\\" };
    return this.control.value
      .split("\n")
      .filter((line) => line !== "")
      .map((line) => line.replace(/\\([nt\\])/g, (_, sign) => signs[sign]));
  }

  set value(value) {
    const signs = { "\n": "\\n", "\t": "\\t", "\\": "\\\\" };
    const lines = Array.isArray(value) ? value : value ? [value] : [];
    this.control.value = lines
      .map((line) => String(line).replace(/[\n\t\\]/g, (sign) => signs[sign]))
      .join("\n");
    this.control.rows = Math.max(1, lines.length);
  }

  get isUsual() {
    return JSON.stringify(this.value) === JSON.stringify(this.usual || []);
  }

  refresh() {
    super.refresh();
    this.control.rows = Math.max(1, this.control.value.split("\n").length);
  }
}

function wholeNumbers(text) {
  return (text.match(/[^\s,]+/g) || []).map(Number);
}

class IntegersField extends StringsField {
  makeControl() {
    return element("input", { type: "text", class: "is-code", inputmode: "numeric",
      autocomplete: "off", placeholder: "ids, with commas" });
  }

  get value() {
    return wholeNumbers(this.control.value);
  }

  set value(value) {
    this.control.value = (Array.isArray(value) ? value : []).join(", ");
  }

  refresh() {
    Field.prototype.refresh.call(this);
  }

  get isWhole() {
    return this.value.every(Number.isInteger);
  }

  get problem() {
    return this.isWhole ? "" : `${settingTitle(this.name)} must be whole numbers with commas between.`;
  }
}

/** Several rows of whole numbers, one row to a line. */
class RowsField extends IntegersField {
  makeControl() {
    return element("textarea", { rows: "1", class: "is-code is-lines", spellcheck: "false",
      placeholder: "ids with commas, one sequence to a line" });
  }

  get value() {
    const lines = this.control.value.split("\n").map(wholeNumbers);
    return lines.filter((row) => row.length);
  }

  set value(value) {
    this.control.value = (value || []).map((row) => row.join(", ")).join("\n");
  }

  get isWhole() {
    return this.value.flat().every(Number.isInteger);
  }
}

// By the server's names of types; one that is not here is typed as text.
const KINDS = {
  pick: PickField,
  choice: ChoiceField,
  boolean: BooleanField,
  integer: IntegerField,
  number: NumberField,
  string: TextField,
  "string[]": StringsField,
  "integer[]": IntegersField,
  "integer[][]": RowsField,
};
