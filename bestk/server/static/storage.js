/* What the browser keeps: small values under "bestk." names. Where storage is switched off or full,
   the page works on without it. */

const PREFIX = "bestk.";

export function load(name, otherwise) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/** Keep a value; false says that there was no room for it. */
export function save(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/* The token is kept for this tab alone, and in memory where even that is refused. */
let token = null;

export function loadToken() {
  try {
    return sessionStorage.getItem(`${PREFIX}token`) ?? token;
  } catch {
    return token;
  }
}

export function saveToken(given) {
  token = given;
  try {
    sessionStorage.setItem(`${PREFIX}token`, given);
  } catch {
    // It lasts as long as the page, then.
  }
}
