/* What a search has done so far, in one row: texts, expansions, probability seen, time; and why it
   ended. */
import { percent, seconds } from "./words.js";

const { element } = window.bestk;

const REASONS = {
  budget: "the budget is spent",
  exhausted: "nothing is left to open",
  max_completions: "enough texts are complete",
  timeout: "the time is over",
  certified: "the texts are proven the likeliest",
  interrupted: "it was broken off",
  finished: "every beam is complete or full",
  num_draws: "all texts are drawn",
};
const NOTES = {
  texts: "Unique texts so far",
  expanded: "Nodes that the model was asked about, of the budget",
  seen: "Share of the model's probability that is in the complete texts",
  time: "Time of the search",
};
const SHARES = [
  ["completed", "in complete texts"],
  ["frontier", "still open"],
  ["pruned", "pruned"],
  ["truncated", "too long"],
];

export class Progress {
  constructor() {
    this.facts = {};
    const facts = element("dl", { class: "stats" });
    for (const [name, title] of [["texts", "Texts"], ["expanded", "Expanded"],
      ["seen", "Probability"], ["time", "Time"]]) {
      this.facts[name] = element("dd", {}, "–");
      const fact = element("div", {}, element("dt", {}, title), this.facts[name]);
      fact.title = NOTES[name];
      facts.append(fact);
    }
    this.shares = element("div", { class: "mass", role: "img" });
    this.word = element("p", { class: "progress-word" });
    this.box = element("div", { class: "progress" }, facts, this.shares, this.word);
  }

  show(run) {
    const { facts } = this;
    this.box.dataset.state = run.state;
    facts.texts.textContent = String(run.ranked.length);
    const budget = run.budget ?? run.result?.config?.budget;
    facts.expanded.textContent = budget ? `${run.expanded} of ${budget}` : String(run.expanded);
    const isMass = run.mass && typeof run.mass === "object";
    const completed = isMass ? run.mass.completed : run.mass;
    facts.seen.textContent = typeof completed === "number" ? percent(completed) : "–";
    this.showTime(run);
    this.shares.hidden = !isMass;
    if (isMass) this.showMass(run.mass);
    this.word.textContent = stateText(run);
  }

  showTime(run) {
    this.facts.time.textContent = seconds(run.result ? run.result.cost.seconds : run.elapsed);
  }

  showMass(mass) {
    const pruned = mass.pruned ?? (mass.pruned_prob || 0) + (mass.pruned_frontier || 0);
    const all = { ...mass, pruned };
    const parts = SHARES.map(([name, words]) => {
      const part = element("span", { class: `is-${name}` });
      part.style.setProperty("--share", String(all[name] || 0));
      part.title = `${percent(all[name] || 0)} ${words}`;
      return part;
    });
    this.shares.replaceChildren(...parts);
    const words = SHARES.map(([name, word]) => `${percent(all[name] || 0)} ${word}`).join(", ");
    this.shares.setAttribute("aria-label", `The model's probability: ${words}`);
  }
}

export function stateText(run) {
  if (run.state === "waiting") return "Asking the server…";
  if (run.state === "queued") {
    const { position } = run;
    if (!(position > 0)) return "Waiting: this search is next.";
    return `Waiting: ${position === 1 ? "one search" : `${position} searches`} before this one.`;
  }
  if (run.state === "running") return run.growsTree ? "Searching…" : "Running…";
  if (run.state === "stopped") return "Stopped. What was found stays.";
  if (run.state === "failed") return run.budget === null ? "Not run." : "Broken off.";
  const { result } = run;
  if (result.notice) return `Ended: ${result.notice}.`;
  const reason = REASONS[result.stop_reason] || String(result.stop_reason).replace(/_/g, " ");
  return `Ended: ${reason}.`;
}
