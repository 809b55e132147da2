"use strict";
/* Mouse, touch and keyboard of the viewer. Only calls what the viewer offers to programs too. */
(() => {
  const bestk = (window.bestk = window.bestk || {});

  const SLOP = 5; // pixels that a click may wander
  const TYPED = new Set(["INPUT", "SELECT", "TEXTAREA"]);

  /** Drag to pan, wheel or two fingers to zoom, point to read, click to choose. */
  function watchPointer(viewer) {
    const { canvas, tree, tip } = viewer;
    const held = new Map();
    let travelled = 0;
    let pinch = null;

    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const spread = () => {
      const [a, b] = [...held.values()];
      return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, size: Math.hypot(a.x - b.x, a.y - b.y) };
    };

    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      held.set(event.pointerId, at(event));
      travelled = held.size > 1 ? Infinity : 0;
      pinch = held.size === 2 ? spread() : null;
      tip.hidden = true;
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = at(event);
      const before = held.get(event.pointerId);
      if (!before) return hover(now, event);
      held.set(event.pointerId, now);
      if (pinch) {
        const next = spread();
        viewer.zoom(next.size / Math.max(1, pinch.size), next.x, next.y);
        tree.pan(next.x - pinch.x, next.y - pinch.y);
        pinch = next;
        return undefined;
      }
      travelled += Math.hypot(now.x - before.x, now.y - before.y);
      if (travelled > SLOP) {
        viewer.motion.release();
        canvas.classList.add("is-dragged");
        tree.pan(now.x - before.x, now.y - before.y);
      }
      return undefined;
    });
    const release = (event) => {
      const isClick = held.has(event.pointerId) && travelled <= SLOP && event.type === "pointerup";
      held.delete(event.pointerId);
      pinch = null;
      canvas.classList.remove("is-dragged");
      if (!isClick) return;
      const { x, y } = at(event);
      const hit = tree.hit(x, y);
      if (hit && hit.isHandle) viewer.toggle(hit.node.id);
      else viewer.select(hit ? hit.node.id : null);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => {
      tip.hidden = true;
      tree.hovered = null;
      tree.request();
    });
    canvas.addEventListener("dblclick", (event) => {
      const { x, y } = at(event);
      const hit = tree.hit(x, y);
      if (hit) viewer.toggle(hit.node.id);
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const { x, y } = at(event);
        const lines = event.deltaMode === 1 ? 16 : 1;
        viewer.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0016)), x, y);
      },
      { passive: false },
    );

    function hover({ x, y }, event) {
      const hit = event.pointerType === "touch" ? null : tree.hit(x, y);
      const node = hit ? hit.node : null;
      canvas.classList.toggle("is-over", Boolean(node));
      if (tree.hovered !== node) {
        tree.hovered = node;
        tree.request();
      }
      tip.hidden = !node;
      if (!node) return;
      tip.replaceChildren(bestk.factList(bestk.facts(viewer.graph, node, viewer.step)));
      const left = Math.min(x + 14, tree.width - tip.offsetWidth - 8);
      const below = y + 18;
      const isLow = below + tip.offsetHeight > tree.height - 4;
      tip.style.left = `${Math.max(4, left)}px`;
      tip.style.top = `${isLow ? Math.max(4, y - tip.offsetHeight - 12) : below}px`;
    }
  }

  /** The node that Shift and an arrow key lead to. */
  function neighbour(viewer, key) {
    const { tree, graph } = viewer;
    const from = tree.chosen;
    if (!from) return graph.root;
    const isSeen = (node) => node.found <= viewer.step && tree.isPlaced(node);
    if (key === "ArrowLeft") return from.up;
    if (key === "ArrowRight") return from.isCollapsed ? null : from.children.find(isSeen);
    const column = tree.columns[from.depth].filter(isSeen);
    return column[column.indexOf(from) + (key === "ArrowDown" ? 1 : -1)];
  }

  /** Keys work anywhere in the viewer, but leave fields and buttons what is theirs. */
  function watchKeys(viewer) {
    const plain = {
      " ": () => (viewer.isPlaying ? viewer.pause() : viewer.play()),
      ArrowRight: () => viewer.nudge(1),
      ArrowLeft: () => viewer.nudge(-1),
      Home: () => viewer.nudge(-viewer.lastStep),
      End: () => viewer.nudge(viewer.lastStep),
      Enter: () => viewer.tree.chosen && viewer.toggle(viewer.tree.chosen.id),
      "+": () => viewer.zoom(1.35),
      "=": () => viewer.zoom(1.35),
      "-": () => viewer.zoom(1 / 1.35),
      0: () => viewer.fit(),
      "/": () => viewer.query.focus(),
      "?": () => viewer.help.showModal(),
      Escape: () => viewer.select(null),
    };
    const onKey = (event) => {
      const { target, key } = event;
      if (event.ctrlKey || event.metaKey || event.altKey || viewer.help.open) return;
      if (!viewer.host.contains(target) && target !== document.body) return;
      if (key === "Escape" && target === viewer.query) {
        viewer.query.value = "";
        viewer.search("");
        viewer.canvas.focus();
        return;
      }
      if (TYPED.has(target.tagName)) return;
      if (target.tagName === "BUTTON" && (key === " " || key === "Enter")) return;
      if (event.shiftKey && key.startsWith("Arrow")) {
        event.preventDefault();
        const next = neighbour(viewer, key);
        if (next) viewer.select(next.id);
      } else if (key in plain) {
        event.preventDefault();
        plain[key]();
      }
    };
    const { signal } = viewer.ending;
    (viewer.options.isEmbedded ? viewer.host : document).addEventListener("keydown", onKey, { signal });
  }

  bestk.watchPointer = watchPointer;
  bestk.watchKeys = watchKeys;
})();
