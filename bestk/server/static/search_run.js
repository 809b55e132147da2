/* One search under way: takes the server's events in and keeps what they have told so far, so that
   a search that is stopped or breaks off still has its texts and its tree. Knows no element. */
import { ServerError, search } from "./api.js";
import { Drafts } from "./drafts.js";

export class SearchRun {
  /** `request`: {model, prompt, begin, raw, method, settings}. `onChange(run, event)` hears of every event. */
  constructor(request, onChange) {
    this.request = request;
    this.onChange = onChange;
    this.state = "waiting"; // then queued, running, and in the end done, stopped or failed
    this.texts = new Map(); // by text, the best of equal ones
    this.known = null; // of the graph, all but its nodes and steps
    this.nodes = new Map();
    this.steps = [];
    this.drafts = null; // what is being written, of searches for n texts
    this.expanded = 0;
    this.budget = null;
    this.mass = null;
    this.result = null;
    this.error = null;
    this.position = null;
    this.ending = new AbortController();
  }

  /** A search of the past, from what `toJson` gave. */
  static revive(request, saved, graph = null) {
    const run = new SearchRun(request, () => {});
    run.signature = saved.signature;
    run.began = run.ended = 0;
    if (saved.format === "bestk.result") {
      run.result = graph ? { ...saved, graph } : saved;
      Object.assign(run, { mass: saved.mass, expanded: saved.cost.expanded, state: "done" });
    } else {
      for (const text of saved.hypotheses) run.texts.set(text.text, text);
      if (graph) run.absorb(graph);
      run.state = "stopped";
    }
    return run;
  }

  get isOver() {
    return ["done", "stopped", "failed"].includes(this.state);
  }

  /** Whether the method tells of its steps, and so has a tree that grows. */
  get growsTree() {
    return /^(BKS|BFS)/i.test(this.request.method);
  }

  get elapsed() {
    return this.began === undefined ? 0 : ((this.ended ?? performance.now()) - this.began) / 1000;
  }

  /** The texts, best first, each with how it was begun for the model. */
  get ranked() {
    const { begin = "" } = this.request;
    const found = this.result
      ? this.result.hypotheses
      : [...this.texts.values()].sort((a, b) => b.score - a.score || b.log_prob - a.log_prob);
    return begin ? found.map((text) => ({ ...text, begin })) : found;
  }

  async start() {
    this.began = performance.now();
    try {
      for await (const [name, data] of search(this.body(), this.ending.signal)) {
        this.take(name, data);
        this.onChange(this, name, data);
        if (this.isOver) break;
      }
      if (!this.isOver) throw new ServerError("The search ended without a result: run it again.", 0);
    } catch (error) {
      this.end(error.name === "AbortError" ? "stopped" : "failed");
      if (this.state === "failed") this.error = error;
      this.onChange(this, "end", null);
    }
    return this;
  }

  stop() {
    this.ending.abort();
  }

  body() {
    const { model, prompt, begin, raw, method, settings } = this.request;
    const body = { prompt, method, ...settings, stream: true, graph: true, tree: true };
    if (model) body.model = model;
    if (begin) body.begin = begin;
    if (raw) body.raw = true;
    return body;
  }

  take(name, data) {
    if (name === "queued") {
      // Of a method without steps nothing more is heard, so the next in line may be running.
      this.state = data.position > 0 || this.growsTree ? "queued" : "running";
      this.position = data.position;
    } else if (name === "start") {
      this.state = "running";
      this.began = performance.now();
      Object.assign(this, { budget: data.budget, signature: data.signature, id: data.id });
      if (data.config.policy === "diverse") this.drafts = new Drafts();
    } else if (name === "step") {
      if (this.state === "queued") this.began = performance.now(); // waiting is not searching
      this.state = "running";
      this.expanded = data.expanded;
      this.mass = data.mass;
      for (const text of data.texts) this.add(text);
      if (data.graph) this.absorb(data.graph);
      for (const text of data.texts) this.drafts?.found(text);
    } else if (name === "result") {
      this.result = data;
      this.mass = data.mass;
      this.expanded = data.cost.expanded;
      this.signature = data.signature;
      this.end("done");
    } else if (name === "error") {
      throw new ServerError(data.error.message, 0);
    }
  }

  add(text) {
    const known = this.texts.get(text.text);
    if (!known) this.texts.set(text.text, { ...text, count: 1 });
    else {
      const best = known.log_prob >= text.log_prob ? known : text;
      this.texts.set(text.text, { ...best, count: known.count + 1 });
    }
  }

  absorb({ nodes, steps, ...known }) {
    this.known = { ...this.known, ...known };
    for (const node of nodes) this.nodes.set(node.id, node);
    this.steps.push(...steps);
    this.drafts?.take(steps, this.nodes);
  }

  end(state) {
    this.state = state;
    this.ended = performance.now();
  }

  /** The whole graph, put together from its parts where the search did not come to its end. */
  get graph() {
    if (this.result && this.result.graph) return this.result.graph;
    if (!this.known) return null;
    return { ...this.known, nodes: [...this.nodes.values()], steps: this.steps };
  }

  /** What is saved as JSON: the result itself, or of a search that was broken off what it found. */
  toJson() {
    if (this.result) {
      const { graph, ...result } = this.result;
      return result.tree ? result : { ...result, graph }; // the graph follows from the tree
    }
    const { prompt } = this.request;
    return {
      format: "bestk.partial",
      version: 1,
      prompt,
      request: this.body(),
      signature: this.signature ?? null,
      stop_reason: this.state,
      hypotheses: this.ranked,
      graph: this.graph,
    };
  }
}
