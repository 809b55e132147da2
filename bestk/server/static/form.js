/* The form: prompt, what to do with it, model, method, settings. Gives and takes a request. */
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
  constructor({ settings, methods, models }, onChange) {
    this.problems = [];
    this.models = models;
    const options = models.map(({ id }) => element("option", { value: id }, id));
    at("model").replaceChildren(...options);
    at("model").addEventListener("change", () => this.showMode());
    at("method").replaceChildren(
      ...methods.map((name) => element("option", { value: name }, methodTitle(name))));
    this.settings = new Settings(at("settings"), settings, () => {
      this.countChanged();
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
      raw: this.isRaw,
      model: at("model").value,
      method: at("method").value,
      settings: this.settings.values,
    };
  }

  /** Fill the form; what it has no place for is told in `problems`. */
  set asked({ prompt, raw, model, method, settings }) {
    this.problems = [];
    at("prompt").value = prompt;
    for (const radio of this.modes) radio.checked = radio.value === (raw ? "continue" : "answer");
    this.choose(at("model"), model, "model");
    this.choose(at("method"), method, "method");
    this.settings.values = settings || {};
    this.showMode();
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
    at("prompt-help").textContent = MODES[mode];
  }

  showMethod(isShown) {
    at("method-field").hidden = !isShown;
  }

  showBudget() {
    const budget = this.settings?.budget();
    at("budget").textContent = Number.isFinite(budget) ? `Spends up to ${plural(budget, "expansion")} of the model.` : "";
  }

  countChanged() {
    if (!this.settings) return;
    const number = Object.keys(this.settings.values).length;
    at("num-changed").textContent = number ? `${number} changed` : "";
    at("reset").disabled = !number;
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
