/* The form: prompt, what to do with it, model, method, settings, and how answers are steered: what they
   begin with, words that they leave out. Gives and takes a request. */
import { PICKED } from "./fields.js";
import { Settings } from "./settings.js";
import { methodTitle, plural } from "./words.js";

const { element } = window.bestk;
const at = (id) => document.getElementById(id);

const MODES = {
  answer: "A chat model gets the prompt in its chat format and answers.",
  plain: "This model knows no chat: the texts go on where the prompt ends.",
  continue: "The texts go on where the prompt ends.",
};

export class Form {
  constructor({ settings, methods, models, limits }, onChange) {
    this.problems = [];
    this.limits = limits;
    this.models = models;
    const options = models.map(({ id }) => element("option", { value: id }, id));
    at("model").replaceChildren(...options);
    at("model").addEventListener("change", () => this.showMode());
    at("method").replaceChildren(
      ...methods.map((name) => element("option", { value: name }, methodTitle(name))));
    this.begin = element("input", { type: "text", id: "begin", autocomplete: "off", spellcheck: "false" });
    this.settings = new Settings({ picks: at("picks"), host: at("settings") }, settings, () => {
      this.countChanged();
      this.showSteering();
      onChange();
    });
    this.countChanged();
    for (const radio of this.modes) radio.addEventListener("change", () => this.showMode());
    at("reset").addEventListener("click", () => {
      this.settings.values = {};
      at("method").selectedIndex = 0;
    });
    this.showMode();
  }

  get modes() {
    return [...document.querySelectorAll("input[name=mode]")];
  }

  get isRaw() {
    return this.modes.find((radio) => radio.checked).value === "continue";
  }

  get isChat() {
    return this.models.find(({ id }) => id === at("model").value)?.is_chat !== false;
  }

  get asked() {
    return {
      prompt: at("prompt").value,
      begin: this.begin.value,
      raw: this.isRaw,
      model: at("model").value,
      method: at("method").value,
      settings: this.settings.values,
    };
  }

  /** Fill the form; what it has no place for is told in `problems`. */
  set asked({ prompt, begin, raw, model, method, settings }) {
    this.problems = [];
    at("prompt").value = prompt;
    this.begin.value = begin || "";
    for (const radio of this.modes) radio.checked = radio.value === (raw ? "continue" : "answer");
    this.choose(at("model"), model, "model");
    this.choose(at("method"), method, "method");
    this.settings.values = settings || {};
    this.showMode();
    this.showSteering();
    this.complain("");
  }

  choose(list, value, kind) {
    if (value && [...list.options].some((option) => option.value === value)) list.value = value;
    else {
      list.selectedIndex = 0;
      if (value) this.problems.push(`This server has no ${kind} ${value}; ${list.value} is chosen.`);
    }
  }

  showMode() {
    const { isChat } = this;
    const mode = this.isRaw ? "continue" : isChat ? "answer" : "plain";
    at("mode-help").textContent = MODES[mode];
  }

  /** Say how the answers are steered, each part with a way to let go of it. */
  showSteering() {
    if (!this.settings) return;
    const avoided = this.settings.fields.get("bad_words");
    const words = [...new Set(avoided.value.map((word) => word.toLowerCase()))];
    const chips = words.map((word) => chip(word, `Allow ${word} again`, () => {
      avoided.value = avoided.value.filter((other) => other.toLowerCase() !== word);
      avoided.refresh();
    }));
    const parts = [];
    if (this.begin.value) {
      const drop = chip("", "Let answers begin as they like", () => {
        this.begin.value = "";
        this.showSteering();
      });
      const label = element("label", { for: "begin" }, "Answers begin with");
      parts.push(element("span", { class: "steer is-begin" }, label, this.begin, drop));
    }
    if (chips.length) parts.push(element("span", { class: "steer" }, "Without the words ", ...chips));
    at("steering").replaceChildren(...parts);
    at("steering").hidden = !parts.length;
  }

  showMethod(isShown) {
    at("method-field").hidden = !isShown;
  }

  showBudget() {
    const budget = this.settings?.budget();
    at("budget").textContent = Number.isFinite(budget) ? `Asks the model up to ${plural(budget, "time")}.` : "";
  }

  countChanged() {
    if (!this.settings) return;
    const names = Object.keys(this.settings.values);
    const number = names.filter((name) => !PICKED.includes(name)).length;
    at("num-changed").textContent = number ? `${number} changed` : "";
    at("reset").disabled = !names.length;
  }

  /** Say what cannot be sent; true if everything can. */
  check() {
    this.complain("");
    if (!at("prompt").value.trim()) {
      this.complain("The prompt is empty: type one, or take an example.");
      at("prompt").focus();
      return false;
    }
    const isFine = this.settings.check();
    if (!isFine) this.complain("A setting needs another value: see the marked one.");
    const most = this.limits.budget;
    if (isFine && this.settings.budget() > most) {
      this.complain("That is more than this server writes at once: ask for fewer or shorter answers.");
      return false;
    }
    return isFine;
  }

  /** Show an error of the server where it belongs. */
  blame(error) {
    if (error.status === 400 || error.status === 422) this.settings.blame(error);
  }

  complain(message) {
    at("problem").textContent = message;
    at("problem").hidden = !message;
  }
}

/** A word with a button that takes it away. */
function chip(word, title, onDrop) {
  const drop = element("button", { type: "button", class: "chip", "aria-label": title }, word, " ✕");
  drop.title = title;
  drop.addEventListener("click", () => {
    onDrop();
    at("prompt").focus();
  });
  return drop;
}
