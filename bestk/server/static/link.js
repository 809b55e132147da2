/* A search as a link: prompt and settings in the fragment, which browsers do not send to servers. */

/** Write what the form holds as a fragment, without the #. */
export function toFragment({ view, model, prompt, begin, raw, method, settings, lanes }, isRun = false) {
  const parts = new URLSearchParams();
  if (view === "compare") parts.set("view", view);
  parts.set("prompt", prompt);
  if (begin) parts.set("begin", begin);
  if (raw) parts.set("raw", "1");
  if (model) parts.set("model", model);
  if (method && view !== "compare") parts.set("method", method);
  for (const [name, value] of Object.entries(settings)) parts.set(name, JSON.stringify(value));
  if (view === "compare") parts.set("lanes", JSON.stringify(lanes));
  if (isRun) parts.set("run", "1");
  return parts.toString();
}

/** Read a fragment; returns what it holds and, in words, what could not be read. Null: not a search. */
export function fromFragment(fragment, knownSettings) {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  if (!parts.has("prompt")) return null;
  const asked = { view: "search", prompt: "", begin: "", raw: false, settings: {}, lanes: null, isRun: false };
  const problems = [];
  const readJson = (name, text) => {
    try {
      return JSON.parse(text);
    } catch {
      problems.push(`The link's ${name} cannot be read and was left out.`);
      return undefined;
    }
  };
  const plain = {
    view: (text) => (asked.view = text === "compare" ? "compare" : "search"),
    prompt: (text) => (asked.prompt = text),
    begin: (text) => (asked.begin = text),
    raw: (text) => (asked.raw = text === "1"),
    model: (text) => (asked.model = text),
    method: (text) => (asked.method = text),
    run: (text) => (asked.isRun = text === "1"),
    lanes: (text) => (asked.lanes = readLanes(readJson("lanes", text))),
  };
  for (const [name, text] of parts) {
    if (Object.hasOwn(plain, name)) plain[name](text);
    else if (knownSettings.has(name)) {
      const value = readJson(name, text);
      if (value !== undefined) asked.settings[name] = value;
    } else problems.push(`This server has no setting ${name}; the link's was left out.`);
  }
  return { asked, problems };
}

function readLanes(lanes) {
  if (!Array.isArray(lanes)) return null;
  return lanes
    .filter((lane) => lane && typeof lane.method === "string")
    .map(({ method, settings }) => ({
      method,
      settings: settings && typeof settings === "object" ? settings : {},
    }));
}
