"use strict";
/* The camera's moves, and with them those of nodes that make room for new ones. Knows the tree's
   canvas; knows nothing of controls. */
(() => {
  const bestk = (window.bestk = window.bestk || {});

  const GLIDE = 260; // milliseconds of a move
  const READABLE = 0.62; // the camera does not go further out by itself
  const SMALL = 600; // pixels of width

  class Motion {
    constructor(tree) {
      this.tree = tree;
      this.isFollowing = true; // until the reader takes the view in hand
      this.gliding = null;
      this.target = null;
    }

    get view() {
      return { ...this.tree.view };
    }

    /** Begin with what is readable, or on a small screen with all of the tree. */
    open() {
      this.jump(this.tree.width < SMALL ? this.tree.fitted() : this.tree.opening(READABLE));
    }

    /** Go back to where reading begins. */
    home() {
      this.finish();
      this.glide(this.tree.opening(READABLE));
    }

    /** Show a new step: keep what it expanded in sight, and all of the tree while that is readable. */
    follow(group) {
      this.glide(this.isFollowing ? this.followed(group) : this.view);
    }

    followed(group) {
      const { tree } = this;
      const view = tree.opening(READABLE);
      const best = group.find((node) => tree.isPlaced(node));
      if (best && tree.fitted().scale < READABLE) {
        const at = tree.place(best, view);
        const low = tree.height * 0.7;
        if (at.y > low) view.y -= at.y - low;
        const far = at.x + at.width - tree.width * 0.9;
        if (far > 0) view.x -= far;
      }
      return view;
    }

    /** Bring a node into the view if it is not there. */
    reveal(node) {
      if (!this.tree.isPlaced(node)) return;
      this.finish();
      const at = this.tree.place(node);
      const { width, height } = this.tree;
      const target = this.view;
      // The card of the chosen node covers the lower part.
      if (at.x < 10) target.x += width * 0.15 - at.x;
      else if (at.x + at.width > width - 10) target.x += width * 0.85 - at.x - at.width;
      if (at.y < 20 || at.y > height * 0.6) target.y += height * 0.3 - at.y;
      if (target.x === this.tree.view.x && target.y === this.tree.view.y) return;
      this.isFollowing = false;
      this.glide(target);
    }

    /** Move to a view in a moment. */
    glide(target) {
      this.stop();
      this.target = target;
      const from = this.view;
      const isStill = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (isStill || !this.tree.drawn.nodes) {
        this.jump(target);
        return;
      }
      const begin = performance.now();
      const move = (now) => {
        const part = Math.min(1, Math.max(0, (now - begin) / GLIDE));
        const eased = 1 - (1 - part) ** 3;
        for (const name of ["x", "y", "scale"]) {
          this.tree.view[name] = from[name] + (target[name] - from[name]) * eased;
        }
        this.tree.settle(eased);
        this.gliding = part < 1 ? requestAnimationFrame(move) : null;
      };
      this.gliding = requestAnimationFrame(move);
    }

    jump(target) {
      this.stop();
      Object.assign(this.tree.view, target);
      this.tree.settle(1);
    }

    /** Be at once where a move would end. */
    finish() {
      if (this.gliding) this.jump(this.target);
    }

    stop() {
      if (this.gliding) cancelAnimationFrame(this.gliding);
      this.gliding = null;
    }

    /** The reader takes the view in hand. */
    release() {
      this.isFollowing = false;
      this.finish();
    }
  }

  bestk.Motion = Motion;
})();
