"use strict";
/* Where nodes go: a tidy tree from left to right, in time linear in the number of nodes. Each depth
   is a column, a node stands in one row with its likeliest child, and a subtree lies as close to the
   one above it as their outlines allow. */
(() => {
  const bestk = (window.bestk = window.bestk || {});

  /* An outline keeps, for every level of a forest, its topmost and bottommost row. The deepest level
     comes first in the lists, so that putting a parent on top is a push; `shift` is added on
     reading, so that moving a whole forest costs nothing. */
  class Outline {
    constructor() {
      this.top = [0];
      this.bottom = [0];
      this.topShift = 0;
      this.bottomShift = 0;
    }

    get depth() {
      return this.top.length;
    }

    topAt(level) {
      return this.top[this.top.length - 1 - level] + this.topShift;
    }

    bottomAt(level) {
      return this.bottom[this.bottom.length - 1 - level] + this.bottomShift;
    }

    move(by) {
      this.topShift += by;
      this.bottomShift += by;
    }

    crown(row) {
      this.top.push(row - this.topShift);
      this.bottom.push(row - this.bottomShift);
    }
  }

  /** Put a forest below another, as high as fits; returns by how much it moved, and both as one. */
  function join(above, below) {
    const shared = Math.min(above.depth, below.depth);
    let move = -Infinity;
    for (let level = 0; level < shared; level += 1) {
      move = Math.max(move, above.bottomAt(level) + 1 - below.topAt(level));
    }
    below.move(move);
    const deeper = above.depth >= below.depth ? above : below;
    for (let level = 0; level < shared; level += 1) {
      const at = deeper.depth - 1 - level;
      const [top, bottom] = [above.topAt(level), below.bottomAt(level)];
      deeper.top[at] = top - deeper.topShift;
      deeper.bottom[at] = bottom - deeper.bottomShift;
    }
    return { move, outline: deeper };
  }

  /** Lay a tree out: sets `row` on every shown node and returns them by depth, top to bottom. */
  function layout(root, isShown) {
    const columns = [[root]];
    for (;;) {
      const next = [];
      for (const node of columns[columns.length - 1]) {
        node.shown = node.isCollapsed ? [] : node.children.filter(isShown);
        for (const child of node.shown) next.push(child);
      }
      if (!next.length) break;
      columns.push(next);
    }
    const outlines = new Map();
    for (let depth = columns.length - 1; depth >= 0; depth -= 1) {
      for (const node of columns[depth]) outlines.set(node, place(node, outlines));
    }
    root.row = 0;
    for (const column of columns) {
      for (const node of column) {
        for (const child of node.shown) child.row = node.row + child.offset;
      }
    }
    return columns;
  }

  function place(node, outlines) {
    if (!node.shown.length) return new Outline();
    let forest = null;
    for (const child of node.shown) {
      const outline = outlines.get(child);
      outlines.delete(child);
      if (forest === null) {
        child.offset = 0;
        forest = outline;
      } else {
        const joined = join(forest, outline);
        child.offset = joined.move;
        forest = joined.outline;
      }
    }
    forest.crown(0); // beside its likeliest child, so that likely texts read as one line
    return forest;
  }

  /** The first index from which on `isPast` holds, in a list where it changes once. */
  function firstIndex(length, isPast) {
    let [low, high] = [0, length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isPast(middle)) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  bestk.layout = layout;
  bestk.firstIndex = firstIndex;
})();
