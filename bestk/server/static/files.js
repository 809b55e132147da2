/* Files that the page gives away. */

const { element } = window.bestk;

/** A name for what came of a prompt, without its ending. */
export function fileName(prompt) {
  const words = prompt.toLowerCase().match(/[\p{L}\p{N}]+/gu) || ["search"];
  return `bestk-${words.slice(0, 6).join("-").slice(0, 60)}`;
}

export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function downloadJson(data, name) {
  download(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }), `${name}.json`);
}
