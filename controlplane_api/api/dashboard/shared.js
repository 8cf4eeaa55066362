// What the dashboard's pages share: elements, figures in words, questions to the API, what stands in the header.
// Every text from outside goes in as textContent; nothing is ever parsed as HTML.

import { following } from "./live.js";

export const $ = (id) => document.getElementById(id);

export function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

export const pill = (state, text = state.replace("_", " ")) => element("span", `pill ${state}`, text);
export const count = (number) => (number === null ? "–" : number.toLocaleString("en"));
export const tablesWord = (number) => `${count(number)} ${number === 1 ? "table" : "tables"}`;
/** In the reader's own time, with its zone, so that nobody takes it for another one's. */
const INSTANT = new Intl.DateTimeFormat([], {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short",
});
export const instant = (us) => (us === null ? "–" : INSTANT.format(us / 1000));

export function duration(us) {
  if (us === null) return "–";
  for (const [unit, size] of [["d", 864e8], ["h", 36e8], ["min", 6e7], ["s", 1e6]]) {
    if (us >= size) return `${(us / size).toFixed(us >= 10 * size ? 0 : 1)} ${unit}`;
  }
  return `${Math.round(us / 1000)} ms`;
}

export const ago = (us) => (us === null ? "–" : `${duration(Math.max(0, Date.now() * 1000 - us))} ago`);

export function bytes(number) {
  if (number === null) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (number < 1024) return `${number.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
    number /= 1024;
  }
  return `${number.toFixed(1)} PiB`;
}

export function numberCell(label, value, ...details) {
  const cell = element("td", value === "–" ? "number unknown" : "number", value, ...details);
  cell.dataset.label = label;
  return cell;
}

export function button(word, label, act, className = "small") {
  const made = element("button", className, word);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", () => act(made));
  return made;
}

const sentences = (parts) => parts.filter(Boolean).map((part) => (part.endsWith(".") ? part : `${part}.`)).join(" ");

export class Refused extends Error {
  constructor(facts) {
    const parts = [[facts.code, facts.doing, facts.found].filter(Boolean).join(": "), facts.data, facts.remedy];
    super(sentences(parts));
    this.code = facts.code;
    this.plain = sentences([facts.found, facts.remedy]);
  }
}

/** Nothing answers: it may again. */
export class Unreachable extends Error {}

const TYPING_MS = 200; // without a further letter, until a filter asks
const READ_MS = 30_000; // until an answer is given up
const COMMAND_MS = 300_000;

let session = null; // who looks, and what his commands carry

export const caller = () => session;

export async function ask(path, body, method = "POST") {
  const options = body === undefined ? {} : {
    method,
    headers: { "Content-Type": "application/json", "X-Menura-Page-Token": session?.page_token ?? "" },
    body: JSON.stringify(body),
  };
  const signal = AbortSignal.timeout(body === undefined ? READ_MS : COMMAND_MS);
  const [answer, facts] = await answered(path, { ...options, signal, credentials: "same-origin", cache: "no-store" });
  if (answer.status === 401) location.replace("/login");
  if (!answer.ok) throw new Refused(facts);
  return facts;
}

async function answered(path, options) {
  try {
    const answer = await fetch(path, options);
    return [answer, await answer.json()];
  } catch (cause) {
    throw new Unreachable("The control plane does not answer. Whether it has carried the command out is shown once it does.", { cause });
  }
}

/** What the address names: tenant and source, and what is the page's own. */
export const place = { tenant: "", source: "", ...Object.fromEntries(new URLSearchParams(location.search)) };

export const paths = (...names) => names.map(encodeURIComponent).join("/");
export const tenantPath = () => `/api/v1/tenants/${paths(place.tenant)}`;
export const sourcePath = (source = place.source) => `${tenantPath()}/sources/${paths(source)}`;
/** Whoever reads a URL folds "." and "..", also as %2E; the API takes "~." and "~.." for them. */
const segment = (name) => (/^~*\.{1,2}$/.test(name) ? `~${name}` : encodeURIComponent(name));
export const tablePath = ({ database, table, source }) =>
  `${sourcePath(source)}/tables/${segment(database)}/${segment(table)}`;

/** Where an order goes, with words that name it: taken when its button is drawn or pressed, for by the time that it is sent somebody
 * may have chosen another tenant or source. */
export const ofTenant = () => ({ path: tenantPath(), words: `Tenant ${place.tenant}` });
export const ofSource = (source = place.source) => ({ path: sourcePath(source), words: `Tenant ${place.tenant}, source ${source}` });

/** The address of a page, of the tenant and source that are looked at or of others. */
export function addressOf(page, names = {}) {
  const named = Object.entries({ tenant: place.tenant, source: place.source, ...names }).filter(([, name]) => name);
  return `${page}?${new URLSearchParams(named)}`;
}

/** The name of a table, as a link to its page. */
export function tableLink({ database, table, source }) {
  const link = element("a", "", element("span", "muted", `${database}.`), element("b", "", table));
  link.href = addressOf("/table", { database, table, ...(source && { source }) });
  return link;
}

/** Rows of a table, each drawn anew only where what is seen of it, or whose it is, has changed: who is at a button stays there. */
export function drawRows(body, rows) {
  const kept = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const drawn = rows.map(({ key, seen, cells }) => {
    const row = kept.get(key) ?? element("tr", "");
    const text = JSON.stringify([sourcePath(), seen]);
    row.dataset.key = key;
    if (row.dataset.seen !== text) {
      row.dataset.seen = text;
      redraw(row, cells());
    }
    return row;
  });
  if (drawn.length !== body.children.length || drawn.some((row, at) => body.children[at] !== row)) body.replaceChildren(...drawn);
}

/** Other children; the focus goes to the one that has the name of the one that had it. */
export function redraw(parent, children) {
  const nameOf = (each) => each.ariaLabel ?? each.getAttribute("href");
  const focused = parent.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  parent.replaceChildren(...children);
  if (focused === null) return;
  const actions = [...parent.querySelectorAll("button, a, input")];
  (actions.find((each) => nameOf(each) === focused) ?? actions[0])?.focus();
}

/** Other children, where something is seen to differ, so that who is at a link stays there; for what has no actions. */
export function redrawOthers(parent, children) {
  const seen = children.map((child) => child.outerHTML).join("");
  if (parent.dataset.seen === seen) return;
  parent.dataset.seen = seen;
  redraw(parent, children);
}

/** Choices of a select, drawn anew only where they are others. */
function showChoices(select, names, chosen) {
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  select.value = chosen;
}

let isGuess = false; // nobody has chosen the tenant
const NO_TENANT = "There is no tenant yet that you may see. A tenant begins with its first token, which an administrator makes: menura token create --tenant NAME. It appears here by itself.";

const NAMES_MS = 60_000; // how long names of sources are good: who asks for them has all their tables counted
const NO_NAMES = { tenant: "", sources: [], all: true, at: 0 };
let named = NO_NAMES;

/** Followed where the page waits for a source; else asked for now and then, when the page asks anew. */
async function sourceNames(get, isAnew) {
  const { tenant } = place;
  const isThere = named.tenant === tenant && isNamed();
  if (!isThere || (isAnew && performance.now() - named.at > NAMES_MS)) {
    const { sources, next_cursor: next } = await (isThere ? ask : get)(`${tenantPath()}/sources?limit=1000`);
    named = { tenant, sources: sources.map((each) => each.source), all: next === null, at: performance.now() };
  }
  return named.sources;
}

/** Whether the source is there, as far as the names say: what is asked of one that is not is refused. */
const isNamed = () => Boolean(named.sources.length) && (!place.source || !named.all || named.sources.includes(place.source));

/** Tenants, and sources where the page is one's; the first of each where the address names none. */
async function showPlace(get, isAnew, isOvertaken) {
  if (session === null) {
    session = await ask("/api/v1/session");
    $("actor").textContent = session.actor;
    $("logout").hidden = !session.page_token;
  }
  const tenants = (await get("/api/v1/fleet?limit=1000")).tenants.map((each) => each.tenant);
  if (isOvertaken()) return;
  if (!place.tenant || isGuess && !tenants.includes(place.tenant)) {
    isGuess = true; // it gives way to a tenant that is there
    place.tenant = tenants[0] ?? "default";
  }
  showChoices($("tenant"), [...new Set([place.tenant, ...tenants])].sort(), place.tenant);
  if (!$("source-choice").hidden) {
    const sources = await sourceNames(get, isAnew);
    if (isOvertaken()) return;
    place.source ||= sources[0] ?? "";
    showChoices($("source"), [...new Set([place.source, ...sources])].filter(Boolean).sort(), place.source);
  }
}

/** Somebody has chosen another tenant or source: what the page names beside them is of the former one, and nothing of it is shown. */
function move(page, chosen) {
  for (const name of Object.keys(place)) delete place[name];
  Object.assign(place, { source: "" }, chosen);
  isGuess = false;
  history.replaceState(null, "", addressOf(location.pathname));
  $("main").setAttribute("aria-busy", "true");
  $("failure").hidden = true;
  page.moved?.();
  refresh();
}

/** What a page of a source is empty of: that source, or any. */
function showMissing(isMissing) {
  const title = document.querySelector("#empty h2");
  if (title === null) return;
  title.dataset.words ??= title.textContent;
  title.textContent = isMissing ? `No agent has announced the source ${place.source}` : title.dataset.words;
}

// ---- what is shown, and kept as it is

const TICK_MS = 1000; // between two drawings of ages, for which nobody is asked
const AGES = new Set(["freshness_us", "age_us", "oldest_proof_age_us"]); // of an answer: they grow with time alone
const LOST = "The stream of changes does not come through: a proxy cuts it, other windows have all of them, or the control plane is away. This page asks again and again, more rarely.";

/** An answer whose ages are so much later. */
function later(answer, us) {
  if (Array.isArray(answer)) return answer.map((each) => later(each, us));
  if (answer === null || typeof answer !== "object") return answer;
  return Object.fromEntries(Object.entries(answer).map(([name, value]) =>
    [name, AGES.has(name) && value !== null ? value + us : later(value, us)]));
}

const withoutAges = (answer) => JSON.stringify(answer, (name, value) => (AGES.has(name) ? value === null : value));

/** Answers that the page has, by address. One without ages is the same object until another one comes. */
function knownAnswers() {
  const known = new Map();
  return {
    has: (address) => known.has(address),
    /** As it is now. */
    get: (address) => {
      const { answer, at, hasAges } = known.get(address);
      return hasAges ? later(answer, Math.round((performance.now() - at) * 1000)) : answer;
    },
    /** Whether more than ages is another thing than before. */
    put: (address, answer) => {
      const seen = withoutAges(answer);
      const isNews = known.get(address)?.seen !== seen;
      known.set(address, { answer, seen, at: performance.now(), hasAges: seen !== JSON.stringify(answer) });
      return isNews;
    },
    forget: (address) => known.delete(address),
    keep: (addresses) => [...known.keys()].filter((each) => !addresses.has(each)).forEach((each) => known.delete(each)),
  };
}

export let refresh = async () => {};
export let isLive = () => false;

// ---- a click is none where what was pressed has gone before it is released: nothing is drawn meanwhile

const MOST_PRESSED_MS = 10_000; // whoever holds a button for longer does not click
let release = null;
let released = Promise.resolve();

addEventListener("pointerdown", () => {
  if (release !== null) return;
  released = new Promise((done) => { release = done; });
  setTimeout(letGo, MOST_PRESSED_MS, release);
}, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(letGo, 0, release), true); // behind the click

function letGo(mine) {
  if (mine === null || mine !== release) return;
  release = null;
  mine();
}

/** A page that is live while it is looked at. `read` gives what `show` shows, of the answers that its `get` gives by address; it is null
 * where a page of a source has none, or one that is not there yet. The API tells when one of the answers is another one, and they are
 * drawn each second, for their ages; `show` is told whether there is news. `refresh` asks for all anew. `moved` forgets what was of
 * another tenant or source. */
export function openPage(page) {
  const known = knownAnswers();
  let round = 0; // an answer that was overtaken is not shown
  let isDrawing = false;
  let isNewsWaiting = false;
  let trouble = "opening";

  const stream = following({
    told: (address, answer) => {
      const isNews = answer === null ? known.forget(address) : known.put(address, answer);
      if (isNews) draw(false, true);
    },
    again: () => refresh(),
    changed: () => say(trouble),
  });
  isLive = () => stream.state() === "live";

  function say(found) {
    trouble = found;
    const isLost = !trouble && stream.state() === "lost";
    const words = trouble || { live: "live", lost: "not live", opening: "" }[stream.state()];
    const box = $("connection");
    if (box.textContent !== words) box.textContent = words;
    box.title = isLost ? LOST : "";
    box.classList.toggle("lost", isLost || Boolean(trouble));
  }

  /** Of answers that are known, unless `isAnew`; those that are not are asked for. */
  async function draw(isAnew, isNews) {
    if (isDrawing && !isAnew) {
      isNewsWaiting ||= isNews;
      return;
    }
    const mine = ++round;
    const isOvertaken = () => mine !== round;
    const used = new Set();
    const get = async (address) => {
      used.add(address);
      if (!isAnew && known.has(address)) return known.get(address);
      const answer = await ask(address).catch((failure) => {
        if (failure.code === "ROLE_MISSING") used.delete(address); // nobody tells of it either
        throw failure;
      });
      if (!isOvertaken()) known.put(address, answer);
      return answer;
    };
    isDrawing = true;
    isNewsWaiting = false;
    try {
      await showPlace(get, isAnew, isOvertaken);
      if (isOvertaken()) return;
      const isMissing = !$("source-choice").hidden && !isNamed();
      showMissing(isMissing && place.source !== "");
      const found = isMissing ? null : await page.read(get);
      await released;
      if (isOvertaken()) return;
      page.show(found, isNews);
      for (const link of document.querySelectorAll(".parts a")) link.href = addressOf(new URL(link.href).pathname);
      $("failure").hidden = true;
      $("main").classList.remove("refused");
      $("main").removeAttribute("aria-busy");
      known.keep(used);
      say("");
    } catch (failure) {
      if (isOvertaken()) return;
      say(failure instanceof Unreachable ? "no answer" : "refused");
      if (failure instanceof Unreachable) return stream.lose(); // what was shown last stays
      $("failure").hidden = false;
      $("failure").textContent = isGuess && failure.code === "TENANT_UNKNOWN" ? NO_TENANT : failure.message;
      $("main").classList.add("refused");
      if (!(failure instanceof Refused)) throw failure; // a defect, which the console shows
    } finally {
      if (!isOvertaken()) {
        isDrawing = false;
        if (!document.hidden && trouble !== "no answer") stream.follow(tenantPath(), [...used], isAnew);
        if (isNewsWaiting) draw(false, true);
      }
    }
  }

  refresh = () => draw(true, true);
  $("tenant").addEventListener("change", (event) => move(page, { tenant: event.target.value }));
  $("source").addEventListener("change", (event) => move(page, { tenant: place.tenant, source: event.target.value }));
  $("source").addEventListener("focus", () => { named = NO_NAMES; refresh(); });
  document.addEventListener("visibilitychange", () => { if (document.hidden) stream.close(); else refresh(); });
  setInterval(() => { if (!document.hidden && !trouble) draw(false, false); }, TICK_MS);
  if (!document.hidden) refresh();
}

/** Pages of a list: where the shown one begins; the buttons are those of `nav.pages`. */
export function pager() {
  const [previous, next, words] = ["previous", "next", "page"].map($);
  let cursors = [""];
  let following = null;
  previous.addEventListener("click", () => { cursors.pop(); refresh(); });
  next.addEventListener("click", () => { cursors.push(following); refresh(); });
  return {
    cursor: () => cursors.at(-1),
    first: () => { cursors = [""]; },
    show: (cursor, of = null) => {
      following = cursor;
      words.textContent = `Page ${cursors.length}${of === null ? "" : ` of ${of}`}`;
      previous.disabled = cursors.length === 1;
      next.disabled = following === null;
      document.querySelector(".pages").hidden = cursors.length === 1 && following === null;
    },
  };
}

/** What is typed into the field of a filter asks anew, once nobody has typed for a moment; Enter sends nothing. */
export function filtering(pages, ...choices) {
  const anew = () => { pages.first(); refresh(); };
  let typing = 0;
  $("text").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(anew, TYPING_MS);
  });
  for (const id of choices) $(id).addEventListener("change", anew);
  $("filter").addEventListener("submit", (event) => event.preventDefault());
}

/** Carries something out, and says in words what it has done, or why it was refused. */
export async function tell(pressed, act, { of = "", into = "outcome" } = {}) {
  const outcome = $(into);
  const where = ofSource();
  const say = (words, isRefused) => {
    const from = ofSource().path === where.path ? "" : where.words;
    outcome.textContent = [from, of, words].filter(Boolean).join(": ");
    outcome.classList.toggle("refused", isRefused);
    outcome.scrollIntoView({ block: "nearest" });
  };
  pressed.disabled = true;
  try {
    say(await act(), false);
  } catch (failure) {
    say(failure.message, true);
  }
  pressed.disabled = false;
  if (document.activeElement === document.body) pressed.focus();
  await refresh();
}

/** Whether somebody says yes. `where`: whose it is; `facts`: a list below the question; `yes` is null where there is nothing to
 * agree to. */
export function confirmed(where, title, question, yes, { facts = [], isSafe = false } = {}) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-where").textContent = where.words;
  $("confirm-question").textContent = question;
  $("confirm-facts").hidden = !facts.length;
  $("confirm-facts").replaceChildren(...facts.map((fact) => element("li", "", fact)));
  $("confirm-yes").hidden = yes === null;
  $("confirm-yes").textContent = yes ?? "";
  $("confirm-yes").className = isSafe ? "start" : "bad";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

$("confirm-yes").addEventListener("click", () => $("confirm").close("yes"));
$("confirm-no").addEventListener("click", () => $("confirm").close("no"));
$("logout").addEventListener("click", async () => { await ask("/api/v1/session/end", {}); location.replace("/login"); });
