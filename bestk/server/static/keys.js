/* The page's own keys; those of the tree are the viewer's. Letters work where nobody is typing, and
   can be switched off. */
import { load, save } from "./storage.js";

const { element } = window.bestk;
const TYPED = new Set(["INPUT", "SELECT", "TEXTAREA"]);

/** `actions`: {run, stop, prompt, search, compare, examples, history, share, theme, advanced, tab, keys}. */
export function watchKeys(actions, list, checkbox) {
  const letters = {
    p: ["go to the prompt", actions.prompt],
    1: ["ask", actions.search],
    2: ["compare", actions.compare],
    r: ["answers or tree", actions.tab],
    e: ["examples", actions.examples],
    h: ["history", actions.history],
    l: ["a link to this", actions.share],
    a: ["advanced settings", actions.advanced],
    t: ["light or dark", actions.theme],
    "?": ["this list", actions.keys],
  };
  const fixed = [["Ctrl or ⌘ + Enter", "get answers"], ["Esc", "stop"], ["↑ ↓", "from answer to answer"]];
  const named = Object.entries(letters).map(([key, [words]]) => [key, words]);
  for (const [key, words] of [...fixed, ...named]) {
    list.append(element("dt", {}, element("kbd", {}, key)), element("dd", {}, words));
  }
  checkbox.checked = load("letters", true);
  checkbox.addEventListener("change", () => save("letters", checkbox.checked));

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const { key, target } = event;
    if (key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      actions.run();
    } else if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    } else if (key === "Escape") {
      actions.stop();
    } else if (checkbox.checked && key in letters && !isTyped(target)) {
      event.preventDefault();
      letters[key][1]();
    }
  });
}

function isTyped(target) {
  if (!TYPED.has(target.tagName)) return false;
  return !["checkbox", "radio", "range"].includes(target.type);
}
