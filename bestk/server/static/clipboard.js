/* Copying. Browsers give pages the clipboard only on a secure connection or on the same machine; a
   server elsewhere on the network needs the old way. */

export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  const open = document.querySelector("dialog[open]"); // what is outside of it cannot have the focus
  const hadFocus = document.activeElement;
  (open || document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  hadFocus.focus();
  return undefined;
}
