"use strict";
/* Draws the tree on a canvas. Only what is in view is drawn, and of that only what the zoom lets one
   see: words where they are legible, boxes where not, and one mark per pixel row from far away.
   Knows where nodes are and what state they are in; knows nothing of controls. */
(() => {
  const bestk = (window.bestk = window.bestk || {});

  const ROW = 26; // between rows
  const HEIGHT = 20; // of a node
  const GAP = 38; // between columns
  const WIDEST = 150;
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
  const LEGIBLE = 0.5; // scales below this show no words
  const FAR = 0.2; // and below this no outlines
  const [SMALLEST, LARGEST] = [0.01, 3];
  const PADDING = 28;

  const SIGNS = { "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };

  /** What is written on a node: its token without the space it begins with, blanks made visible. */
  function label(node, graph) {
    if (!node.up) {
      const words = (graph.prompt || "").replace(/\s+/g, " ").trim();
      return words.length > 22 ? `…${words.slice(-21)}` : words || "prompt";
    }
    if (node.state === "complete" && bestk.isSpecial(node.text)) return "✓";
    const text = node.text.trim() ? node.text.replace(/^ /, "") : node.text.replace(/ /g, "␣");
    const shown = text.replace(/[\n\t\r\u00a0]/g, (c) => SIGNS[c]);
    return node.state === "complete" ? `✓ ${shown}` : shown;
  }

  class TreeCanvas {
    constructor(canvas, graph) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d", { alpha: false });
      this.graph = graph;
      this.view = { x: 0, y: 0, scale: 1 };
      this.step = graph.lastStep;
      this.colourBy = "probability";
      this.showsPruned = false;
      this.lit = new Set(); // ids on the chosen path
      this.matches = new Set();
      this.chosen = null;
      this.hovered = null;
      this.drawn = { nodes: 0, edges: 0, labels: 0 };
      this.widths = new Map();
      this.columns = [];
      this.arrangement = 0;
      this.isDue = false;
      this.setTheme("light");
      this.measure();
    }

    setTheme(theme) {
      this.theme = theme;
      const style = getComputedStyle(this.canvas);
      this.ink = {};
      for (const name of ["canvas", "ink", "muted", "line", "accent", "good", "warn", "hit"]) {
        this.ink[name] = style.getPropertyValue(`--${name}`).trim() || "#888";
      }
      this.shades = bestk.shades(theme, this.colourBy);
      this.request();
    }

    setColour(name) {
      this.colourBy = name;
      this.shades = bestk.shades(this.theme, name);
      this.request();
    }

    /** Measure the columns: after nodes came or a filter changed. They hold the whole search, so that
        nodes keep to their column while it is replayed. */
    measure() {
      const widest = [];
      for (const node of this.graph.nodes.values()) {
        node.label = node.label || label(node, this.graph);
        node.width = this.widthOf(node.label, !node.up);
        if (!this.isWanted(node)) continue;
        widest[node.depth] = Math.max(widest[node.depth] || 0, node.width);
      }
      this.lefts = [0];
      for (const width of widest) this.lefts.push(this.lefts[this.lefts.length - 1] + width + GAP);
      this.arrange();
    }

    isWanted(node) {
      return this.showsPruned || node.state !== "pruned_prob";
    }

    /** Lay out what the step has found. `row` is where a node belongs, `y` where it is drawn: the two
        differ while nodes move to make room for new ones. */
    arrange(isGradual = false) {
      if (!this.graph.root) return;
      const before = this.arrangement;
      this.arrangement = before + 1;
      this.columns = bestk.layout(
        this.graph.root,
        (node) => node.found <= this.step && this.isWanted(node),
      );
      for (const column of this.columns) {
        for (const node of column) {
          const from = node.arrangement === before ? node.y : node.up ? node.up.from : node.row;
          node.from = isGradual ? from : node.row;
          node.y = node.from;
          node.arrangement = this.arrangement;
        }
      }
      this.request();
    }

    /** Draw nodes this far on their way, from 0 to 1. */
    settle(part) {
      for (const column of this.columns) {
        for (const node of column) node.y = node.from + (node.row - node.from) * part;
      }
      this.request();
    }

    widthOf(text, isWide) {
      let width = this.widths.get(text);
      if (width === undefined) {
        this.context.font = `12px ${FONT}`;
        width = Math.max(24, this.context.measureText(text).width + 16);
        this.widths.set(text, width);
      }
      return Math.min(width, isWide ? 220 : WIDEST);
    }

    resize() {
      const box = this.canvas.getBoundingClientRect();
      const ratio = window.devicePixelRatio || 1;
      this.width = Math.max(1, box.width);
      this.height = Math.max(1, box.height);
      this.ratio = ratio;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.request();
    }

    /** The view in which a box of the tree, by default all that a step has found, fills the canvas. */
    fitted(box = this.extent(), largest = 1.15) {
      const [wide, high] = [box.right - box.left, box.bottom - box.top];
      const room = { x: this.width - 2 * PADDING, y: this.height - 2 * PADDING };
      const scale = Math.max(SMALLEST, Math.min(room.x / wide, room.y / high, largest));
      return {
        scale,
        x: (this.width - (box.left + box.right) * scale) / 2,
        y: (this.height - (box.top + box.bottom) * scale) / 2,
      };
    }

    /** The view to begin with: as wide as the tree where that is readable, the prompt at the left. */
    opening(smallest, box = this.extent()) {
      const whole = this.fitted(box);
      if (whole.scale >= smallest) return whole;
      const wide = (this.width - 2 * PADDING) / (box.right - box.left);
      const scale = Math.max(smallest, Math.min(wide, 1));
      return { scale, x: PADDING - box.left * scale, y: PADDING - box.top * scale };
    }

    extent() {
      const box = { left: 0, right: 1, top: -HEIGHT, bottom: HEIGHT };
      this.columns.forEach((column, depth) => {
        for (const node of column) {
          box.right = Math.max(box.right, this.lefts[depth] + node.width);
          box.top = Math.min(box.top, node.row * ROW - HEIGHT);
          box.bottom = Math.max(box.bottom, node.row * ROW + HEIGHT);
        }
      });
      return box;
    }

    zoom(factor, x = this.width / 2, y = this.height / 2) {
      const view = this.view;
      const scale = Math.min(LARGEST, Math.max(SMALLEST, view.scale * factor));
      view.x = x - ((x - view.x) * scale) / view.scale;
      view.y = y - ((y - view.y) * scale) / view.scale;
      view.scale = scale;
      this.request();
    }

    pan(x, y) {
      this.view.x += x;
      this.view.y += y;
      this.request();
    }

    /** Where a node belongs on the canvas, in the present view or another. */
    place(node, { x, y, scale } = this.view) {
      return {
        x: this.lefts[node.depth] * scale + x,
        y: node.row * ROW * scale + y,
        width: node.width * scale,
        height: HEIGHT * scale,
      };
    }

    /** The node at a point, and whether the point is on its handle; null where there is none. */
    hit(x, y) {
      const { scale } = this.view;
      const slack = Math.max(2, 8 - HEIGHT * scale * 0.3);
      for (let depth = 0; depth < this.columns.length; depth += 1) {
        if (this.lefts[depth] * scale + this.view.x > x + slack) break;
        if (this.lefts[depth + 1] * scale + this.view.x < x - slack) continue;
        const column = this.columns[depth];
        const row = (y - this.view.y) / (ROW * scale);
        const near = bestk.firstIndex(column.length, (i) => column[i].row >= row);
        for (const node of [column[near - 1], column[near]]) {
          if (!node) continue;
          const at = this.place(node);
          if (Math.abs(y - at.y) > at.height / 2 + slack || x < at.x - slack) continue;
          const handle = this.hasHandle(node) ? 14 * scale : 0;
          if (x > at.x + at.width + handle + slack) continue;
          return { node, isHandle: handle > 0 && x > at.x + at.width };
        }
      }
      return null;
    }

    hasHandle(node) {
      return (
        node.up !== null &&
        (node.isCollapsed || node.shown.length > 0) &&
        node.expanded !== null &&
        node.expanded <= this.step
      );
    }

    request() {
      if (this.isDue) return;
      this.isDue = true;
      requestAnimationFrame(() => {
        this.isDue = false;
        if (this.width) this.draw();
      });
    }

    draw() {
      const { context: c, view, ratio } = this;
      this.drawn = { nodes: 0, edges: 0, labels: 0 };
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.fillStyle = this.ink.canvas;
      c.fillRect(0, 0, this.width + 1, this.height + 1);
      c.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, ratio * view.x, ratio * view.y);
      const top = -view.y / view.scale / ROW - 0.5;
      const bottom = (this.height - view.y) / view.scale / ROW + 0.5;
      const left = -view.x / view.scale;
      const right = (this.width - view.x) / view.scale;
      const isIn = (depth) => this.lefts[depth + 1] >= left && this.lefts[depth] <= right;
      for (let depth = 1; depth < this.columns.length; depth += 1) {
        if (isIn(depth) || isIn(depth - 1)) this.drawEdges(depth, top, bottom);
      }
      this.drawLit(top, bottom);
      for (let depth = 0; depth < this.columns.length; depth += 1) {
        if (isIn(depth)) this.drawColumn(depth, top, bottom);
      }
    }

    /* Rows fall in the same order in a column and among its parents, so the edges that touch the view
       are a run of the column. */
    drawEdges(depth, top, bottom) {
      const { context: c, view } = this;
      const column = this.columns[depth];
      const begin = bestk.firstIndex(
        column.length,
        (i) => Math.max(column[i].y, column[i].up.y) >= top,
      );
      const isFar = view.scale < FAR;
      const pixel = 1 / (ROW * view.scale); // in rows
      const x = this.lefts[depth];
      let last = -Infinity;
      c.beginPath();
      for (let i = begin; i < column.length; i += 1) {
        const child = column[i];
        const parent = child.up;
        if (Math.min(child.y, parent.y) > bottom) break;
        if (isFar && child.y - last < pixel) continue;
        last = child.y;
        this.trace(parent, child, x, isFar);
      }
      c.strokeStyle = this.ink.line;
      c.lineWidth = Math.max(1.1, 0.6 / view.scale);
      c.stroke();
    }

    trace(parent, child, x, isStraight) {
      const c = this.context;
      const from = this.lefts[parent.depth] + parent.width;
      const [y0, y1] = [parent.y * ROW, child.y * ROW];
      c.moveTo(from, y0);
      if (isStraight || y0 === y1) {
        c.lineTo(x, y1);
      } else {
        const bend = x - GAP * 0.5;
        if (from < x - GAP) c.lineTo(x - GAP, y0);
        c.bezierCurveTo(bend, y0, bend, y1, x, y1);
      }
      this.drawn.edges += 1;
    }

    drawLit(top, bottom) {
      if (!this.chosen) return;
      const c = this.context;
      c.beginPath();
      for (const node of this.graph.path(this.chosen)) {
        if (!node.up || !this.isPlaced(node)) continue;
        if (Math.max(node.y, node.up.y) < top || Math.min(node.y, node.up.y) > bottom) continue;
        this.trace(node.up, node, this.lefts[node.depth], false);
      }
      c.strokeStyle = this.ink.accent;
      c.lineWidth = Math.max(3, 2 / this.view.scale);
      c.stroke();
    }

    /** Whether a node is in the picture: found by now, and no branch above it folded. */
    isPlaced(node) {
      return node.arrangement === this.arrangement;
    }

    drawColumn(depth, top, bottom) {
      const column = this.columns[depth];
      const begin = bestk.firstIndex(column.length, (i) => column[i].y >= top);
      const end = bestk.firstIndex(column.length, (i) => column[i].y > bottom);
      const { scale } = this.view;
      const pixel = 1 / (ROW * scale);
      let last = -Infinity;
      for (let i = begin; i < end; i += 1) {
        const node = column[i];
        const matters = this.lit.has(node.id) || this.matches.has(node.id);
        if (scale >= FAR) this.drawNode(node, this.lefts[depth]);
        else if (matters || node.y - last >= pixel) this.drawMark(node, this.lefts[depth]);
        else continue;
        last = node.y;
        this.drawn.nodes += 1;
      }
    }

    shadeOf(node) {
      const share =
        this.colourBy === "time"
          ? node.found / Math.max(1, this.graph.lastStep)
          : node.probability;
      return this.shades[bestk.shadeIndex(share)];
    }

    drawMark(node, x) {
      const c = this.context;
      const state = this.graph.stateAt(node, this.step);
      const isFaded = state.startsWith("pruned");
      const isMatch = this.matches.has(node.id);
      const height = Math.max(HEIGHT * 0.8, 1.2 / this.view.scale);
      c.fillStyle = isMatch
        ? this.ink.hit
        : this.lit.has(node.id)
          ? this.ink.accent
          : state === "complete"
            ? this.ink.good
            : isFaded
              ? this.ink.line
              : this.shadeOf(node).fill;
      c.fillRect(x, node.y * ROW - height / 2, node.width, height);
    }

    drawNode(node, x) {
      const { context: c, ink } = this;
      const state = this.graph.stateAt(node, this.step);
      const shade = this.shadeOf(node);
      const isFull = state === "expanded" && node.up;
      const isFaded = state.startsWith("pruned");
      const y = node.y * ROW;
      c.beginPath();
      c.roundRect(x, y - HEIGHT / 2, node.width, HEIGHT, node.up ? 6 : 10);
      c.fillStyle = isFull ? shade.fill : ink.canvas;
      c.fill();
      c.setLineDash(state === "truncated" ? [4, 3] : isFaded ? [1.5, 2.5] : []);
      c.strokeStyle =
        state === "complete"
          ? ink.good
          : state === "truncated"
            ? ink.warn
            : isFaded || !node.up
              ? ink.muted
              : shade.line;
      c.lineWidth = state === "complete" ? 2 : 1.6;
      if (!isFull) c.stroke();
      c.setLineDash([]);
      this.drawRings(node, x, y, state);
      if (this.view.scale >= LEGIBLE) {
        this.drawLabel(node, x, y, isFull ? shade.ink : isFaded ? ink.muted : ink.ink, state);
        if (this.hasHandle(node)) this.drawHandle(node, x + node.width, y);
      }
    }

    drawRings(node, x, y, state) {
      const { context: c, ink } = this;
      const isNew = state === "expanded" && node.expanded === this.step && node.up;
      const ring = this.matches.has(node.id)
        ? ink.hit
        : this.lit.has(node.id) || this.hovered === node || isNew
          ? ink.accent
          : null;
      if (!ring) return;
      const reach = isNew || this.chosen === node ? 2.5 : 1;
      c.beginPath();
      c.roundRect(x - reach, y - HEIGHT / 2 - reach, node.width + 2 * reach, HEIGHT + 2 * reach, 8);
      c.strokeStyle = ring;
      c.lineWidth = 2;
      c.stroke();
    }

    drawLabel(node, x, y, colour, state) {
      const c = this.context;
      c.font = `${state === "complete" || !node.up ? "600 " : ""}12px ${FONT}`;
      c.textBaseline = "middle";
      c.textAlign = "center";
      c.fillStyle = state === "complete" ? this.ink.good : colour;
      c.fillText(node.label, x + node.width / 2, y + 0.5, node.width - 10);
      this.drawn.labels += 1;
    }

    drawHandle(node, x, y) {
      const { context: c, ink } = this;
      const isBusy = this.hovered === node || node.isCollapsed;
      if (!isBusy) return;
      c.beginPath();
      c.arc(x + 8, y, 6, 0, 2 * Math.PI);
      c.fillStyle = node.isCollapsed ? ink.accent : ink.canvas;
      c.strokeStyle = ink.accent;
      c.lineWidth = 1.4;
      c.fill();
      c.stroke();
      c.beginPath();
      c.moveTo(x + 5, y);
      c.lineTo(x + 11, y);
      if (node.isCollapsed) {
        c.moveTo(x + 8, y - 3);
        c.lineTo(x + 8, y + 3);
      }
      c.strokeStyle = node.isCollapsed ? ink.canvas : ink.accent;
      c.stroke();
    }
  }

  bestk.TreeCanvas = TreeCanvas;
})();
