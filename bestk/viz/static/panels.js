"use strict";
/* What stands beside the tree: the lists of open nodes and of texts, the card of one node, the
   legend. Everything that a model wrote goes in as text, never as markup. */
(() => {
  const bestk = (window.bestk = window.bestk || {});

  const MOST_ROWS = 100; // open nodes listed
  const MOST_TEXTS = 500;

  /** Make an element; `children` are elements or strings. */
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  /** A list of buttons of which one is a tab stop; the arrow keys move between them. */
  class List {
    constructor(name, onChoose) {
      this.onChoose = onChoose;
      this.body = element("ol", { class: "bk-list", "aria-label": name });
      this.more = element("p", { class: "bk-more" });
      this.box = element("div", { class: "bk-scroll" }, this.body, this.more);
      this.rows = [];
      this.body.addEventListener("keydown", (event) => this.move(event));
    }

    /** Show the first of `total` entries: {id, title, detail, share, mark, isNext, isChosen}. */
    show({ entries, total }, emptyText) {
      const count = entries.length;
      while (this.rows.length < count) this.rows.push(this.makeRow());
      while (this.rows.length > count) this.rows.pop().item.remove();
      entries.forEach((entry, i) => this.fill(this.rows[i], entry));
      this.rows.forEach((row, i) => (row.button.tabIndex = i === 0 ? 0 : -1));
      this.more.textContent = !total ? emptyText : total > count ? `and ${total - count} more` : "";
    }

    makeRow() {
      const [mark, title, detail, bar] = ["mark", "title", "detail", "bar"].map((name) =>
        element("span", { class: `bk-${name}` }),
      );
      const button = element("button", { type: "button", class: "bk-row" }, mark, title, detail, bar);
      const row = { item: element("li", {}, button), button, mark, title, detail, bar };
      button.addEventListener("click", () => this.onChoose(row.id));
      this.body.append(row.item);
      return row;
    }

    fill(row, entry) {
      row.id = entry.id;
      row.mark.textContent = entry.mark;
      row.title.textContent = entry.title;
      row.detail.textContent = entry.detail;
      row.bar.style.setProperty("--share", entry.share.toFixed(3));
      row.button.classList.toggle("is-next", Boolean(entry.isNext));
      row.button.classList.toggle("is-chosen", Boolean(entry.isChosen));
      row.button.dataset.node = String(entry.id);
      if (entry.isChosen) row.button.setAttribute("aria-current", "true");
      else row.button.removeAttribute("aria-current");
    }

    move(event) {
      const at = this.rows.findIndex((row) => row.button === document.activeElement);
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (at < 0 || !by) return;
      event.preventDefault();
      event.stopPropagation();
      const next = this.rows[Math.min(this.rows.length - 1, Math.max(0, at + by))];
      next.button.focus();
    }
  }

  function shorten(text, length) {
    const plain = text.replace(/\s+/g, " ").trim();
    if (plain.length <= length) return plain;
    const tail = plain.slice(1 - length);
    const space = tail.indexOf(" "); // begin with a whole word, unless it is a very long one
    return `…${space >= 0 && space < 16 ? tail.slice(space + 1) : tail}`;
  }

  /** The rows of the frontier that a step left; the next to be expanded are marked. */
  function frontierEntries(graph, step, chosen) {
    const frontier = graph.frontierAt(step);
    if (!frontier.length) return { entries: [], total: 0 };
    const left = graph.config.budget ?? graph.config.beam_size * graph.config.max_new_tokens;
    const width = Math.min(graph.config.k, left - graph.numExpandedBy(step));
    const best = frontier[0].priority;
    const entries = frontier.slice(0, MOST_ROWS).map(({ node, priority }, i) => ({
      id: node.id,
      mark: String(i + 1),
      title: shorten(graph.text(node), 52) || node.text,
      detail: priority.toFixed(3),
      share: Math.exp(priority - best),
      isNext: i < width && (step < graph.lastStep || graph.isLive),
      isChosen: chosen !== null && chosen.id === node.id,
    }));
    return { entries, total: frontier.length };
  }

  /** The rows of the texts found by a step. */
  function textEntries(graph, step, chosen) {
    const texts = graph.textsAt(step);
    const best = texts.length ? texts[0].score : 0;
    const entries = texts.slice(0, MOST_TEXTS).map((text, i) => ({
      id: text.node,
      mark: String(i + 1),
      title: text.text.trim() || "(empty text)",
      detail: `${text.score.toFixed(3)}${text.count > 1 ? ` ×${text.count}` : ""}`,
      share: Math.exp(text.score - best),
      isNext: text.step === step,
      isChosen: chosen !== null && chosen.id === text.node,
    }));
    return { entries, total: texts.length };
  }

  const STATE_WORDS = {
    expanded: "expanded",
    open: "open, in the frontier",
    pruned_prob: "not opened: below min_prob",
    pruned_frontier: "pruned from the frontier",
    truncated: "truncated: reached max_new_tokens",
    complete: "complete",
  };

  function visible(text) {
    return text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥");
  }

  function chance(probability) {
    return probability >= 0.001 ? probability.toFixed(4) : probability.toExponential(2);
  }

  /** Everything about one node at a step, as pairs of words. */
  function facts(graph, node, step) {
    const state = graph.stateAt(node, step);
    if (!node.up) return [["prompt", shorten(graph.prompt, 200)]];
    const pairs = [
      ["token", `${visible(node.text)}  (${node.token})`],
      ["state", STATE_WORDS[state]],
      ["probability", chance(node.probability)],
      ["log p of path", node.log_prob.toFixed(3)],
      ["score", node.score.toFixed(3)],
      ["found", `step ${node.found}`],
    ];
    if (state === "open") pairs.push(["priority", graph.priorityAt(node, step).toFixed(3)]);
    if (state === "expanded") {
      pairs.push(["expanded", `step ${node.expanded}, priority ${node.priority.toFixed(3)}`]);
    }
    if (state === "pruned_frontier") pairs.push(["pruned", `step ${node.pruned}`]);
    return pairs;
  }

  function factList(pairs) {
    const list = element("dl", { class: "bk-facts" });
    for (const [name, value] of pairs) list.append(element("dt", {}, name), element("dd", {}, value));
    return list;
  }

  /** What colours and outlines mean. */
  function legend(theme, colourBy, graph) {
    const scale = element("span", { class: "bk-scale", "aria-hidden": "true" });
    scale.style.background = bestk.gradient(theme, colourBy);
    const ends = colourBy === "time" ? ["step 0", `step ${graph.lastStep}`] : ["0", "1"];
    const states = ["expanded", "open", "complete", "truncated", "pruned"].map((state) =>
      element("span", { class: "bk-key" }, element("i", { class: `bk-swatch is-${state}` }), state),
    );
    const name = colourBy === "time" ? "found at" : "probability";
    const coloured = element("span", { class: "bk-key" }, name, " ", ends[0], scale, ends[1]);
    return [coloured, ...states];
  }

  Object.assign(bestk, { element, List, frontierEntries, textEntries, facts, factList, legend });
})();
