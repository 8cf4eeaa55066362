// What the dashboard's pages share: elements, figures in words, questions to the API.
// Every text from outside goes in as textContent; nothing is ever parsed as HTML.

export const $ = (id) => document.getElementById(id);

export function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

export const pill = (state, text = state.replace("_", " ")) => element("span", `pill ${state}`, text);
export const count = (number) => (number === null ? "–" : number.toLocaleString("en"));

export function duration(us) {
  if (us === null) return "–";
  for (const [unit, size] of [["d", 864e8], ["h", 36e8], ["min", 6e7], ["s", 1e6]]) {
    if (us >= size) return `${(us / size).toFixed(us >= 10 * size ? 0 : 1)} ${unit}`;
  }
  return `${Math.round(us / 1000)} ms`;
}

export function bytes(number) {
  if (number === null) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (number < 1024) return `${number.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
    number /= 1024;
  }
  return `${number.toFixed(1)} PiB`;
}

export class Refused extends Error {
  constructor(facts) {
    const parts = [[facts.code, facts.doing, facts.found].filter(Boolean).join(": "), facts.data, facts.remedy];
    super(parts.filter(Boolean).map((part) => (part.endsWith(".") ? part : `${part}.`)).join(" "));
  }
}

let session = null; // who looks, and what his commands carry

export async function ask(path, body, method = "POST") {
  const options = body === undefined ? {} : {
    method,
    headers: { "Content-Type": "application/json", "X-Menura-Page-Token": session?.page_token ?? "" },
    body: JSON.stringify(body),
  };
  const answer = await fetch(path, { ...options, credentials: "same-origin", cache: "no-store" });
  if (answer.status === 401) location.replace("/login");
  const facts = await answer.json();
  if (!answer.ok) throw new Refused(facts);
  return facts;
}

/** Who looks; shown in the page's bar. */
export async function openSession() {
  if (session !== null) return;
  session = await ask("/api/v1/session");
  $("actor").textContent = session.actor;
  $("logout").hidden = !session.page_token;
}

/** Choices of a select, drawn anew only where they are others. */
export function showChoices(select, names, chosen) {
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  select.value = chosen;
}

$("logout").addEventListener("click", async () => { await ask("/api/v1/session/end", {}); location.replace("/login"); });
