"use strict";
/* The viewer: tree, lists and controls put together in one element of a page, driven by mouse, touch
   and keyboard. `bestk.view(element, graph)` returns it; its methods are the automation interface.
   With `{ isEmbedded: true }` it is a part of a larger page, which names the prompt, sets the theme
   and keeps the keys that are pressed elsewhere. */
(() => {
  const bestk = (window.bestk = window.bestk || {});
  const { element } = bestk;

  const HELP = [
    ["Space", "play or pause"],
    ["← →", "one step back or on"],
    ["Home End", "first or last step"],
    ["Shift + arrows", "walk the tree"],
    ["Enter", "fold or unfold the chosen branch"],
    ["+ −", "zoom"],
    ["0", "fit the tree"],
    ["/", "search for a word"],
    ["Esc", "let go of the chosen node"],
    ["?", "this list"],
  ];

  class Viewer {
    constructor(host, graph, options = {}) {
      this.graph = graph instanceof bestk.Graph ? graph : new bestk.Graph(graph);
      this.options = options;
      this.step = this.graph.lastStep;
      this.speed = 1;
      this.timer = null;
      this.ending = new AbortController();
      this.build(host);
      this.tree = new bestk.TreeCanvas(this.canvas, this.graph);
      this.tree.step = this.step;
      this.motion = new bestk.Motion(this.tree);
      this.watch();
      this.setTheme(options.theme || "auto");
      this.tree.resize();
      this.motion.open();
      this.refresh();
    }

    /* ---- the interface for programs ------------------------------------------------------- */

    get lastStep() {
      return this.graph.lastStep;
    }

    get isPlaying() {
      return this.timer !== null;
    }

    /** What was drawn in the last frame. */
    get drawn() {
      return { ...this.tree.drawn };
    }

    get camera() {
      return this.motion.view;
    }

    /** Every node's state at the shown step, by id. */
    states() {
      const states = {};
      for (const node of this.graph.nodes.values()) {
        states[node.id] = this.graph.stateAt(node, this.step);
      }
      return states;
    }

    /** The frontier at the shown step, best first. */
    frontier() {
      return this.graph
        .frontierAt(this.step)
        .map(({ node, priority }) => ({ id: node.id, priority }));
    }

    goto(step) {
      const next = Math.min(this.lastStep, Math.max(0, Math.round(step)));
      if (next !== this.step) {
        this.step = next;
        this.tree.step = next;
        this.motion.finish();
        this.tree.arrange(true);
        this.motion.follow(this.graph.expandedAt(next));
      }
      this.refresh();
    }

    play() {
      if (this.isPlaying) return;
      if (this.step >= this.lastStep) {
        this.motion.isFollowing = true;
        this.goto(0);
      }
      const beat = Math.min(900, Math.max(60, 24000 / (this.lastStep + 1)));
      const tick = () => {
        if (this.step >= this.lastStep) return this.pause();
        this.goto(this.step + 1);
        this.timer = setTimeout(tick, beat / this.speed);
      };
      this.timer = setTimeout(tick, beat / this.speed);
      this.refreshControls();
    }

    pause() {
      clearTimeout(this.timer);
      this.timer = null;
      this.refreshControls();
    }

    /** Choose a node: its path lights up and its text shows. Null lets go. */
    select(id) {
      const node = id === null ? null : this.graph.nodes.get(id) || null;
      this.tree.chosen = node;
      this.tree.lit = new Set(node ? this.graph.path(node).map((at) => at.id) : []);
      if (node) {
        this.unfold(node);
        if (node.found > this.step) this.goto(node.found);
        this.motion.reveal(node);
      }
      this.refresh();
    }

    selectedText() {
      const { chosen } = this.tree;
      return chosen ? this.graph.text(chosen) : "";
    }

    /** Fold or unfold the branch below a node; the node stays where it is on the screen. */
    toggle(id) {
      const node = this.graph.nodes.get(id);
      if (!node || !this.tree.isPlaced(node) || !this.tree.hasHandle(node)) return;
      this.motion.finish();
      const before = this.tree.place(node).y;
      node.isCollapsed = !node.isCollapsed;
      this.tree.arrange();
      this.tree.pan(0, before - this.tree.place(node).y);
      this.refreshCard();
    }

    /** Mark every node that takes part in spelling a word; returns their ids. */
    search(word) {
      this.tree.matches = this.graph.find(word);
      const seen = [...this.tree.matches].filter((id) => this.isSeen(id));
      this.found.textContent = word.trim() ? `${seen.length} found` : "";
      this.tree.request();
      return seen;
    }

    fit() {
      this.motion.release();
      this.motion.glide(this.tree.fitted());
    }

    setColour(name) {
      this.colour.value = name;
      this.tree.setColour(name);
      this.refreshLegend();
    }

    setTheme(theme) {
      const isDark = window.matchMedia("(prefers-color-scheme: dark)").matches;
      this.theme = theme === "auto" ? (isDark ? "dark" : "light") : theme;
      this.isThemeFixed = theme !== "auto";
      this.host.dataset.theme = this.theme;
      this.tree.setTheme(this.theme);
      this.refreshLegend();
    }

    setPruned(isShown) {
      this.pruned.checked = isShown;
      this.tree.showsPruned = isShown;
      this.tree.measure();
      if (this.motion.isFollowing) this.motion.open();
    }

    /** Take in more of a search that is under way; the newest step is shown if the last one was. */
    update(...parts) {
      const wasLast = this.step >= this.lastStep;
      for (const part of parts) this.graph.update(part);
      this.tree.measure();
      this.refreshLegend();
      if (wasLast) this.goto(this.lastStep);
      else this.refresh();
    }

    /** Say whether more of the search is to come. */
    setLive(isLive) {
      this.graph.isLive = isLive;
      if (!isLive && this.motion.isFollowing) this.motion.home();
      this.refreshLegend();
      this.refresh();
    }

    /** Let go of everything outside the element: listeners, timers. */
    close() {
      this.pause();
      this.motion.stop();
      this.ending.abort();
      this.resizing.disconnect();
    }

    /* ---- the parts ------------------------------------------------------------------------- */

    build(host) {
      this.host = host;
      const { isEmbedded } = this.options;
      host.classList.add("bk-viewer");
      host.classList.toggle("is-embedded", Boolean(isEmbedded));
      const { graph } = this;
      const button = (name, label, onClick, text) => {
        const made = element("button", { type: "button", class: "bk-button", "aria-label": label });
        made.title = label;
        made.textContent = text;
        made.addEventListener("click", onClick);
        this[name] = made;
        return made;
      };
      const choice = (name, value, text) => element("option", { value }, text);
      this.colour = element("select", { "aria-label": "Colour by" },
        choice("colour", "probability", "Probability"), choice("colour", "time", "Time found"));
      this.query = element("input", { type: "search", placeholder: "Search a word",
        "aria-label": "Search the tree for a word", autocomplete: "off", spellcheck: "false" });
      this.found = element("span", { class: "bk-found", role: "status" });
      this.pruned = element("input", { type: "checkbox" });
      this.prompt = element("h1", { class: "bk-prompt" }, graph.prompt || "");
      this.prompt.title = graph.prompt || "";
      const title = isEmbedded ? [] : [element("span", { class: "bk-brand" }, "bestk"), this.prompt];
      const theme = button("themeButton", "Light or dark", () =>
        this.setTheme(this.theme === "dark" ? "light" : "dark"), "◐");
      const tools = element("div", { class: "bk-tools", role: "toolbar", "aria-label": "View" },
        element("label", { class: "bk-field" }, element("span", {}, "Colour"), this.colour),
        element("label", { class: "bk-check" }, this.pruned, "below min_prob"),
        element("span", { class: "bk-search" }, this.found, this.query),
        ...(isEmbedded ? [] : [theme]),
        button("helpButton", "Keys", () => this.help.showModal(), "?"));
      const head = element("header", { class: "bk-head" }, ...title, tools);

      this.canvas = element("canvas", { class: "bk-canvas", tabindex: "0", role: "application",
        "aria-roledescription": "search tree", "aria-label":
        "Search tree. Shift and the arrow keys walk it, Enter folds a branch, ? lists all keys." });
      this.legend = element("div", { class: "bk-legend", "aria-label": "Legend" });
      this.tip = element("div", { class: "bk-tip", role: "tooltip", hidden: true });
      this.card = element("section", { class: "bk-card", "aria-label": "Chosen node", hidden: true });
      const zooms = element("div", { class: "bk-zooms", role: "group", "aria-label": "Zoom" },
        button("zoomIn", "Zoom in", () => this.zoom(1.35), "+"),
        button("zoomOut", "Zoom out", () => this.zoom(1 / 1.35), "−"),
        button("fitButton", "Fit the tree", () => this.fit(), "⤢"));
      const stage = element("div", { class: "bk-stage" }, this.canvas, zooms, this.card, this.tip);

      this.slider = element("input", { type: "range", min: "0", value: "0", step: "1",
        class: "bk-slider", "aria-label": "Step of the search" });
      this.clock = element("output", { class: "bk-clock" });
      this.pace = element("select", { "aria-label": "Speed" },
        ...["0.5", "1", "2", "4"].map((x) => choice("pace", x, `${x}×`)));
      this.pace.value = "1";
      const time = element("div", { class: "bk-time", role: "group", "aria-label": "Replay" },
        button("playButton", "Play", () => (this.isPlaying ? this.pause() : this.play()), "▶"),
        button("backButton", "Step back", () => this.nudge(-1), "‹"),
        button("onButton", "Step on", () => this.nudge(1), "›"),
        this.slider, this.clock, this.pace);

      this.texts = new bestk.List("Texts, ranked", (id) => this.select(id));
      this.frontierList = new bestk.List("Frontier, best first", (id) => this.select(id));
      this.textsHead = element("h2", {}, "Texts");
      this.openHead = element("h2", {}, "Frontier");
      this.openNote = element("p", { class: "bk-note" });
      const side = element("aside", { class: "bk-side" },
        element("section", { class: "bk-panel" }, this.textsHead, this.texts.box),
        element("section", { class: "bk-panel" }, this.openHead, this.openNote, this.frontierList.box));
      this.live = element("div", { class: "bk-live", role: "status", "aria-live": "polite" });
      this.help = element("dialog", { class: "bk-help", "aria-label": "Keys" },
        element("h2", {}, "Keys"), bestk.factList(HELP),
        element("form", { method: "dialog" }, element("button", { class: "bk-button" }, "Close")));
      host.replaceChildren(head, stage, time, this.legend, side, this.live, this.help);
    }

    watch() {
      bestk.watchPointer(this);
      bestk.watchKeys(this);
      this.slider.addEventListener("input", () => {
        this.pause();
        this.goto(Number(this.slider.value));
      });
      this.colour.addEventListener("change", () => this.setColour(this.colour.value));
      this.pruned.addEventListener("change", () => this.setPruned(this.pruned.checked));
      this.pace.addEventListener("change", () => (this.speed = Number(this.pace.value)));
      this.query.addEventListener("input", () => this.search(this.query.value));
      this.query.addEventListener("keydown", (event) => this.nextMatch(event));
      this.resizing = new ResizeObserver(() => {
        this.tree.resize();
        if (this.motion.isFollowing) this.motion.open();
      });
      this.resizing.observe(this.canvas);
      const { signal } = this.ending;
      window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        if (!this.isThemeFixed) this.setTheme("auto");
      }, { signal });
    }

    nudge(by) {
      this.pause();
      this.goto(this.step + by);
    }

    zoom(factor, x, y) {
      this.motion.release();
      this.tree.zoom(factor, x, y);
    }

    /** Show all that is folded above a node. */
    unfold(node) {
      let hasChanged = false;
      for (let at = node.up; at; at = at.up) {
        hasChanged = hasChanged || at.isCollapsed;
        at.isCollapsed = false;
      }
      if (hasChanged) this.tree.arrange();
    }

    isSeen(id) {
      const node = this.graph.nodes.get(id);
      return node.found <= this.step && this.tree.isWanted(node);
    }

    /** Enter in the search box goes from match to match. */
    nextMatch(event) {
      if (event.key !== "Enter") return;
      const ids = this.search(this.query.value).sort((a, b) => a - b);
      if (!ids.length) return;
      const { chosen } = this.tree;
      this.select(ids.find((id) => !chosen || id > chosen.id) ?? ids[0]);
    }

    /* ---- keeping the page in step ---------------------------------------------------------- */

    refresh() {
      const { graph, step, tree } = this;
      const texts = bestk.textEntries(graph, step, tree.chosen);
      const open = bestk.frontierEntries(graph, step, tree.chosen);
      this.texts.show(texts, "No text is complete yet.");
      this.frontierList.show(open, "Nothing is open.");
      this.textsHead.textContent = `Texts (${texts.total})`;
      this.openHead.textContent = `Frontier (${open.total})`;
      const isLast = step === this.lastStep && !graph.isLive;
      this.openNote.textContent = isLast
        ? `The search has ended: ${String(graph.stopReason).replace(/_/g, " ")}.`
        : "Marked nodes are expanded next.";
      if (this.query.value) this.search(this.query.value);
      this.refreshControls();
      this.refreshCard();
      tree.request();
    }

    refreshControls() {
      this.slider.max = String(this.lastStep);
      this.slider.value = String(this.step);
      const words = `step ${this.step} of ${this.lastStep}`;
      const expanded = this.graph.numExpandedBy(this.step);
      this.slider.setAttribute("aria-valuetext", `${words}, ${expanded} nodes expanded`);
      this.clock.textContent = `${words} · ${expanded} expanded`;
      this.playButton.textContent = this.isPlaying ? "❚❚" : "▶";
      this.playButton.setAttribute("aria-label", this.isPlaying ? "Pause" : "Play");
    }

    refreshCard() {
      const node = this.tree.chosen;
      this.card.hidden = !node;
      if (!node) return;
      const text = this.selectedText();
      const shown = element("p", { class: "bk-text" },
        element("span", { class: "bk-muted" }, `${this.graph.prompt || ""}`.slice(-160)),
        element("mark", {}, text));
      const close = element("button", { type: "button", class: "bk-button", "aria-label": "Let go" }, "✕");
      close.addEventListener("click", () => this.select(null));
      const parts = [shown, bestk.factList(bestk.facts(this.graph, node, this.step)), close];
      if (this.tree.isPlaced(node) && this.tree.hasHandle(node)) {
        const word = node.isCollapsed ? "Unfold branch" : "Fold branch";
        const fold = element("button", { type: "button", class: "bk-button bk-fold" }, word);
        fold.addEventListener("click", () => this.toggle(node.id));
        parts.push(fold);
      }
      this.card.replaceChildren(...parts);
      this.live.textContent = `${text || "prompt"}: ${this.graph.stateAt(node, this.step)}`;
    }

    refreshLegend() {
      const { theme, colourBy } = this.tree;
      this.legend.replaceChildren(...bestk.legend(theme, colourBy, this.graph));
      const { numLeftOut, isLive } = this.graph;
      this.pruned.disabled = numLeftOut > 0;
      if (numLeftOut && !isLive) {
        const note = `${numLeftOut} children below min_prob are left out`;
        this.legend.append(element("span", { class: "bk-key" }, note));
      }
    }
  }

  bestk.Viewer = Viewer;
  /** Show a graph in an element. */
  bestk.view = (host, graph, options) => new Viewer(host, graph, options);
})();
