"use strict";
/* The graph of a search as the page holds it: nodes that know their children, and what every step
   looked like. Can be fed piece by piece while a search goes on. Knows nothing of drawing. */
(() => {
  const bestk = (window.bestk = window.bestk || {});

  const BYTES = /(?:<0x[0-9A-F]{2}>)+/g;
  const OPENABLE = new Set(["open", "expanded", "pruned_frontier"]);
  const TAIL = 80; // characters of a path's text kept for finding words that span tokens

  /** Join bytes that tokens had to spell out, `<0xF0><0x9F>…`, where they make whole characters. */
  function joinBytes(text) {
    return text.replace(BYTES, (run) => {
      const bytes = run.match(/[0-9A-F]{2}(?=>)/g).map((pair) => parseInt(pair, 16));
      try {
        return new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes));
      } catch {
        return run;
      }
    });
  }

  class Graph {
    constructor(graph) {
      this.nodes = new Map();
      this.numSteps = 0;
      this.numLeftOut = 0;
      this.decay = [];
      this.completions = [];
      if (graph) this.update(graph);
    }

    /** Take in a whole graph or a part of one: nodes that are known are changed, others added. */
    update(part) {
      if (part.format !== "bestk.graph" || part.version !== 1) {
        throw new Error("this page reads version 1 of bestk.graph");
      }
      for (const name of ["prompt", "signature", "config", "mass", "decay", "completions"]) {
        if (name in part) this[name] = part[name];
      }
      if ("stop_reason" in part) this.stopReason = part.stop_reason;
      if ("num_left_out" in part) this.numLeftOut = part.num_left_out;
      this.numSteps = Math.max(this.numSteps, part.num_steps);
      for (const facts of part.nodes) {
        const known = this.nodes.get(facts.id);
        if (known) {
          Object.assign(known, facts);
          continue;
        }
        const parent = facts.parent === null ? null : this.nodes.get(facts.parent);
        const node = { ...facts, up: parent, children: [], isCollapsed: false };
        this.nodes.set(node.id, node);
        if (parent) parent.children.push(node); // ids of siblings grow with falling probability
      }
    }

    get root() {
      return this.nodes.get(0);
    }

    get lastStep() {
      return this.numSteps - 1;
    }

    /** What a node is at a step: unseen, open, or what became of it by then. */
    stateAt(node, step) {
      if (node.found > step) return "unseen";
      if (node.state === "expanded") return node.expanded <= step ? "expanded" : "open";
      if (node.state === "pruned_frontier") return node.pruned <= step ? node.state : "open";
      return node.state;
    }

    /** The priority of an open node at the pop after a step. */
    priorityAt(node, step) {
      return node.score - this.decay[Math.min(step + 1 - node.found, this.decay.length - 1)];
    }

    /** The frontier that a step left: its nodes, best first, equal ones by lower id. */
    frontierAt(step) {
      const open = [];
      for (const node of this.nodes.values()) {
        if (node.up && OPENABLE.has(node.state) && this.stateAt(node, step) === "open") {
          open.push({ node, priority: this.priorityAt(node, step) });
        }
      }
      return open.sort((a, b) => b.priority - a.priority || a.node.id - b.node.id);
    }

    /** The nodes that a step expanded, best first. */
    expandedAt(step) {
      const group = [...this.nodes.values()].filter((node) => node.expanded === step);
      return group.sort((a, b) => b.priority - a.priority || a.id - b.id);
    }

    numExpandedBy(step) {
      let count = 0;
      for (const node of this.nodes.values()) {
        if (node.expanded !== null && node.expanded <= step) count += 1;
      }
      return count;
    }

    /** The texts found by a step, ranked among themselves. */
    textsAt(step) {
      return this.completions.filter((completion) => completion.step <= step);
    }

    /** A node's ancestors and itself, the root first. */
    path(node) {
      const path = [];
      for (let at = node; at; at = at.up) path.push(at);
      return path.reverse();
    }

    /** The text from the prompt's end to a node. */
    text(node) {
      const pieces = this.path(node).map((at) => at.text);
      if (node.state === "complete" && bestk.isSpecial(node.text)) pieces.pop();
      return joinBytes(pieces.join(""));
    }

    /** The nodes whose tokens spell a word, alone or together with the tokens before them. */
    find(word) {
      const wanted = word.toLowerCase();
      const matches = new Set();
      if (!wanted.trim()) return matches;
      const tails = new Map();
      for (const node of this.nodes.values()) {
        const before = node.up ? tails.get(node.up.id) : "";
        const tail = before + node.text.toLowerCase();
        tails.set(node.id, tail.slice(-TAIL));
        const at = tail.lastIndexOf(wanted);
        if (at < 0 || at + wanted.length <= before.length) continue;
        let begin = before.length;
        for (let spelt = node; spelt && spelt.up; spelt = spelt.up) {
          matches.add(spelt.id);
          if (at >= begin) break;
          begin -= spelt.up.text.length;
        }
      }
      return matches;
    }
  }

  bestk.Graph = Graph;
  bestk.joinBytes = joinBytes;
  /** Tokens such as <|im_end|> or </s>, which are marks and not text. */
  bestk.isSpecial = (text) => /^(?:<\|.*\|>|<\/?[a-z_]+>|\[[A-Z]+\])$/.test(text);
})();
