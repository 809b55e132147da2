/* What is being written, while a search for n texts goes on: each step's nodes go on from those of the
   step before, so a beginning stays in its slot until its text is found. Knows nodes, no element. */

const { joinBytes } = window.bestk;

export class Drafts {
  constructor() {
    this.slots = []; // {node, draft, text}: `text` is what was found, null while it is written
    this.owner = new Map(); // id of the node last expanded → its slot
  }

  /** Take in the nodes that steps expanded; `nodes` are all that are known, by id. */
  take(steps, nodes) {
    for (const { expanded } of steps) {
      const owner = new Map();
      for (const id of expanded) {
        const node = nodes.get(id);
        if (!node || node.parent === null) continue;
        const parents = this.owner.get(node.parent);
        const isFree = parents && parents.text === null && ![...owner.values()].includes(parents);
        const slot = isFree ? parents : this.open();
        slot.draft = spelt(node, nodes);
        owner.set(id, slot);
      }
      if (owner.size) this.owner = owner;
    }
  }

  /** Note a text that was found, in the slot where it was written. */
  found(text) {
    const slot = this.slotOf(text.text) || this.open();
    slot.text = text;
  }

  /** The slot that holds a text, or where it is being written. */
  slotOf(text) {
    const whole = this.slots.find((slot) => slot.text?.text === text);
    const begun = this.slots.filter((slot) => !slot.text && slot.draft && startsWith(text, slot.draft));
    return whole || begun.sort((a, b) => b.draft.length - a.draft.length)[0];
  }

  open() {
    const slot = { draft: "", text: null };
    this.slots.push(slot);
    return slot;
  }
}

/** Whether a text goes on from a draft; the space before them may be told apart or not. */
export function startsWith(text, draft) {
  return text.trimStart().startsWith(draft.trimStart());
}

function spelt(node, nodes) {
  const pieces = [];
  for (let at = node; at && at.parent !== null; at = nodes.get(at.parent)) pieces.push(at.text);
  return joinBytes(pieces.reverse().join(""));
}
