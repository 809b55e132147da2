/* The server, as the page sees it: requests, their errors in words, and the events of a search.
   Knows nothing of the page but that somebody can be asked for a token. */

import { loadToken, saveToken } from "./storage.js";

export class ServerError extends Error {
  /** `param` is the field of the request that is to blame, where the server says so. */
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

let askToken = async () => null;

/** Say how to ask for a token: a function that returns one, or null if the reader would not. */
export function onTokenNeeded(ask) {
  askToken = ask;
}

export async function getJson(path) {
  return (await send(path)).json();
}

/** Start a search; yields its events as [name, data]. Aborting `signal` ends it on the server too. */
export async function* search(body, signal) {
  const response = await send("/v1/search", { body, signal });
  try {
    yield* readEvents(response.body);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The connection broke off in the middle of the search: run it again.", 0);
  }
}

/** Have a graph made into a page that opens offline. */
export async function render(graph) {
  return (await send("/v1/render", { body: { graph } })).blob();
}

async function send(path, { body, signal } = {}, isSecondTry = false) {
  const headers = {};
  const token = loadToken();
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const method = body ? "POST" : "GET";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached: is bestk serve still running?", 0);
  }
  if (response.ok) return response;
  if (response.status === 401) {
    const given = await askToken(isSecondTry);
    if (given === null) throw new ServerError("This server wants a token.", 401);
    saveToken(given);
    return send(path, { body, signal }, true);
  }
  throw await explain(response);
}

/** What an answer that is not OK has to say, in a sentence. */
async function explain(response) {
  const { status, statusText } = response;
  let said = {};
  try {
    said = (await response.json()).error || {};
  } catch {
    // Not JSON: a proxy in between, most likely.
  }
  if (status === 429) {
    const wait = response.headers.get("Retry-After");
    return new ServerError(
      `The server is busy: try again in ${wait ? `${wait} s` : "a moment"}.`, status);
  }
  const otherwise = `The server answered ${status} ${statusText}.`;
  return new ServerError(said.message || otherwise, status, said.param);
}

/** Take a body of server-sent events apart, whatever the pieces it comes in. */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const event = readEvent(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function readEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null; // else a comment that keeps alive
}
