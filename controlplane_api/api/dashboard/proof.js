// Proofs: which tables of a source are proven, what differs, and verifications to order. Verdicts come by server-sent
// events; what runs and how old things are is asked for while the page is looked at.

import { $, Refused, ask, count, duration, element, openSession, pill, showChoices } from "./shared.js";

const POLL_MS = 5000;
const PAGE_TABLES = 100;
const KINDS = ["equal", "differs", "void", "unknown"]; // of verdicts, which are the events' names
const NOTHING = {
  "": "No table of this source is synced. Start one on the page Sources; then it can be verified.",
  differs: "No table differs from its source.",
  proven: "No table is proven yet. Verify one, or let each have its turn by a schedule.",
};

const asked = new URLSearchParams(location.search);
const view = {
  tenant: asked.get("tenant") ?? "",
  source: asked.get("source") ?? "",
  database: asked.get("database") ?? "",
  table: asked.get("table") ?? "",
  cursors: [""], // of the pages up to the shown one
  next: null,
  tag: "", // of the schedule
  round: 0,
  events: null,
  followed: "", // path of these
};

const tenantPath = () => `/api/v1/tenants/${encodeURIComponent(view.tenant)}`;
const sourcePath = () => `${tenantPath()}/sources/${encodeURIComponent(view.source)}`;
const tablePath = () => `${sourcePath()}/tables/${[view.database, view.table].map(encodeURIComponent).join("/")}`;

function address(table) {
  const names = table ? { database: table.database, table: table.table } : {};
  return `/proof?${new URLSearchParams({ tenant: view.tenant, source: view.source, ...names })}`;
}

/** Rounded down: 100 % is all. */
function share(counts) {
  const whole = Object.values(counts).reduce((sum, number) => sum + number, 0);
  const part = whole ? counts.proven / whole : 0;
  const words = whole ? `${part === 1 ? 100 : (Math.floor(part * 1000) / 10).toFixed(1)} %` : "–";
  return { part, words: `${words} · ${count(counts.proven)} of ${count(whole)}` };
}

function showCoverage(found) {
  for (const [name, counts] of [["tables", found.tables], ["rows", found.rows]]) {
    const { part, words } = share(counts);
    $(`${name}-share`).value = part;
    $(`${name}-words`).textContent = words;
  }
  const others = ["differs", "unproven", "unprovable", "never"].filter((state) => found.tables[state])
    .map((state) => `${count(found.tables[state])} ${state}`);
  const oldest = found.oldest_proof_age_us === null ? "No table was ever proven." : `The oldest proof is ${duration(found.oldest_proof_age_us)} old.`;
  const within = `A proof counts for ${duration(found.within_seconds * 1e6)}.`;
  $("oldest").textContent = [within, oldest, others.length ? `Not proven: ${others.join(", ")}.` : ""].filter(Boolean).join(" ");
}

function showSchedule(found) {
  const one = found.schedule;
  $("schedule-week").hidden = one !== null;
  $("schedule-off").hidden = one === null;
  $("schedule").textContent = one === null ? "Nothing is verified by itself."
    : [`Each table of ${one.database}.${one.table} has its turn every ${duration(one.every_seconds * 1e6)}`,
      one.window && `begun within ${one.window}`,
      one.rows_per_second && `at most ${count(one.rows_per_second)} rows a second`,
      `the next not before ${new Date(one.next_at_us / 1000).toLocaleString()}`].filter(Boolean).join(", ") + ".";
}

const WORDS = { proven: "equal", unproven: "unproven", differs: "differs", unprovable: "unprovable", never: "never verified" };

function numberCell(label, value) {
  const cell = element("td", value === "–" ? "number unknown" : "number", value);
  cell.dataset.label = label;
  return cell;
}

/** What is known of a table in a sentence. */
function sentence(proof) {
  const { verdict, proof: last } = proof;
  if (!verdict) return proof.unprovable ? "It was never verified." : "It was never verified. Verify it now, or let it have its turn by a schedule.";
  if (verdict.verdict === "equal" && proof.state === "equal") {
    return `Equal to the source${verdict.position && ` at ${verdict.position}`}, ${duration(verdict.age_us)} ago, ${count(verdict.source_rows)} rows.`;
  }
  const before = last ? ` It was equal ${duration(last.age_us)} ago${last.position && `, at ${last.position}`}.` : "";
  const found = proof.state === "differs" ? "Differs from the source" : "It is not known whether it is equal";
  return `${found}, ${duration(verdict.age_us)} ago: ${verdict.reason}.${before}`;
}

function notes(proof) {
  return [
    proof.verification && element("span", "muted", "A verification runs."),
    proof.unprovable && element("span", "notice", `It can't be verified now: ${proof.unprovable}.`),
    ["differs", "unknown"].includes(proof.state) && proof.verdict && element("span", "problem", proof.verdict.reason),
  ].filter(Boolean);
}

function fillRow(row, proof) {
  const ages = [proof.proof, proof.verdict].map((verdict) => duration(verdict?.age_us ?? null));
  const seen = JSON.stringify([proof.coverage, proof.unprovable, proof.verification, proof.verdict?.verification, ages]);
  if (row.dataset.seen === seen) return;
  row.dataset.seen = seen;
  const name = `${proof.database}.${proof.table}`;
  const link = element("a", "", element("span", "muted", `${proof.database}.`), element("b", "", proof.table));
  link.href = address(proof);
  const position = element("td", "place mono", proof.proof?.position ?? "");
  position.title = proof.proof?.position ?? "";
  const focused = row.contains(document.activeElement) ? document.activeElement.tagName : "";
  row.replaceChildren(
    element("td", "name", link, ...notes(proof)),
    element("td", "state", pill(proof.coverage, WORDS[proof.coverage])),
    numberCell("Proven", proof.proof ? `${duration(proof.proof.age_us)} ago` : "–"),
    numberCell("Rows", count(proof.proof?.source_rows ?? proof.estimated_rows)),
    position,
    element("td", "command", proof.verification || proof.unprovable ? "" : verifyButton(proof, name)),
  );
  if (focused) (row.querySelector(focused) ?? row.querySelector("a")).focus();
}

function verifyButton(table, name) {
  const button = element("button", "", "Verify");
  button.type = "button";
  button.setAttribute("aria-label", `Verify ${name}`);
  button.addEventListener("click", () => tell(button, () => verify(table)));
  return button;
}

async function verify({ database, table }) {
  const [told] = (await ask(`${sourcePath()}/verifications`, { tables: [{ database, table }] })).tables;
  if (told.refused) throw new Refused(told.refused);
  return `${database}.${table}: The verification has begun. Its verdict comes here by itself.`;
}

async function tell(button, act) {
  button.disabled = true;
  try {
    $("outcome").textContent = await act();
    $("outcome").classList.remove("refused");
  } catch (failure) {
    $("outcome").textContent = failure.message;
    $("outcome").classList.add("refused");
  }
  button.disabled = false;
  $("outcome").scrollIntoView({ block: "nearest" });
  await refresh();
}

function showTables(page) {
  const kept = new Map([...$("tables").children].map((row) => [row.dataset.name, row]));
  const rows = page.proofs.map((proof) => {
    const name = JSON.stringify([view.tenant, view.source, proof.database, proof.table]);
    const row = kept.get(name) ?? element("tr", "");
    row.dataset.name = name;
    fillRow(row, proof);
    return row;
  });
  const body = $("tables");
  if (rows.length !== body.children.length || rows.some((row, at) => body.children[at] !== row)) body.replaceChildren(...rows);
  view.next = page.next_cursor;
  $("tables-title").textContent = `Tables of ${view.source}`;
  $("none").hidden = rows.length > 0;
  $("none").textContent = NOTHING[$("which").value] ?? "No table is so.";
  $("page").textContent = `Page ${view.cursors.length}`;
  $("previous").disabled = view.cursors.length === 1;
  $("next").disabled = view.next === null;
  document.querySelector(".pages").hidden = view.cursors.length === 1 && view.next === null;
}

/** Which rows a leaf is of: one key, keys between two bounds, or all. */
function leafRows(leaf) {
  if (leaf.key) return leaf.key;
  const bounds = [leaf.lower && `above ${leaf.lower}`, leaf.upper && `up to ${leaf.upper}`].filter(Boolean);
  return bounds.length ? bounds.join(" ") : "all";
}

function showTable(proof, verdicts) {
  $("table-title").textContent = `${proof.database}.${proof.table}`;
  $("table-state").replaceChildren(pill(proof.coverage, WORDS[proof.coverage]));
  $("all-tables").href = address();
  $("sentence").textContent = sentence(proof);
  const verdict = proof.verdict;
  const leaves = verdict && [["equal", verdict.leaves_equal], ["differ", verdict.leaves_differ], ["unknown", verdict.leaves_unknown]]
    .filter(([, number]) => number).map(([word, number]) => `${count(number)} ${word}`).join(", ");
  $("facts").replaceChildren(...[
    leaves && `Parts of the table that were compared: ${leaves}`,
    verdict && verdict.source_rows !== verdict.lake_rows && `${count(verdict.source_rows)} rows at the source, ${count(verdict.lake_rows)} in the lake`,
    verdict && `In the lake ${verdict.lake}, up to cut ${count(verdict.cut)}`,
    proof.verification && "A verification runs: its verdict comes here by itself",
    proof.unprovable && `It can't be verified now: ${proof.unprovable}`,
    proof.state === "differs" && "A resync of the table on the page Sources brings the source's rows",
  ].filter(Boolean).map((words) => element("li", "", words)));
  $("verify-table").disabled = Boolean(proof.verification || proof.unprovable);
  const differing = proof.state === "differs" ? verdicts.find((each) => each.leaves.length) : null;
  $("leaves-part").hidden = !differing;
  $("leaves").replaceChildren(...(differing?.leaves ?? []).map((leaf) => element("tr", "",
    element("td", "name mono", leafRows(leaf)),
    numberCell("Columns", leaf.columns || (leaf.key ? "not known" : "–")),
    numberCell("At the source", count(leaf.source_rows)),
    numberCell("In the lake", count(leaf.lake_rows)))));
  const more = differing ? differing.leaves_differ - differing.leaves.length : 0;
  $("more-leaves").textContent = more > 0 ? `${count(more)} more differ; the lake's _menura/validation has all of them.` : "";
  $("history-part").hidden = !verdicts.length;
  $("history").replaceChildren(...verdicts.map((each) => element("li", "",
    pill(each.verdict === "equal" ? "proven" : each.verdict === "differs" ? "differs" : "unproven", each.verdict),
    element("span", "muted", `${duration(each.age_us)} ago`),
    element("span", "", each.reason || `${count(each.source_rows)} rows`),
    element("span", "muted mono", each.position))));
}

/** Verdicts of the source as they come; another source has another stream. */
function follow() {
  const path = `${sourcePath()}/verdicts/events`;
  if (view.followed === path) return;
  view.events?.close();
  view.followed = path;
  view.events = new EventSource(path);
  for (const kind of KINDS) view.events.addEventListener(kind, () => refresh());
}

async function refresh() {
  const round = ++view.round; // an answer that was overtaken is not shown
  try {
    await openSession();
    const tenants = (await ask("/api/v1/fleet?limit=1000")).tenants.map((each) => each.tenant);
    view.tenant ||= tenants[0] ?? "default";
    const { sources } = await ask(`${tenantPath()}/fleet`);
    const names = sources.map((each) => each.source);
    view.source ||= names[0] ?? "";
    if (round !== view.round) return;
    showChoices($("tenant"), [...new Set([view.tenant, ...tenants])].sort(), view.tenant);
    showChoices($("source"), view.source ? [...new Set([view.source, ...names])].sort() : [], view.source);
    $("to-sources").href = `/?${new URLSearchParams({ tenant: view.tenant, source: view.source })}`;
    $("empty").hidden = view.source !== "";
    if (view.source) {
      await showSource(round);
      follow();
    }
    if (round !== view.round) return;
    showSections(view.source !== "");
    $("failure").hidden = true;
    $("connection").textContent = "live";
    $("connection").classList.remove("lost");
  } catch (failure) {
    if (round !== view.round) return;
    $("connection").textContent = failure instanceof Refused ? "refused" : "no answer";
    $("connection").classList.add("lost");
    if (!(failure instanceof Refused)) return; // what was shown last stays
    showSections(false);
    $("failure").hidden = false;
    $("failure").textContent = failure.message;
  }
}

function showSections(isKnown) {
  $("coverage-section").hidden = $("tables-section").hidden = !isKnown;
  $("table-section").hidden = !isKnown || view.table === "";
}

async function showSource(round) {
  const query = new URLSearchParams({ limit: PAGE_TABLES, cursor: view.cursors.at(-1) });
  for (const state of $("which").value.split(",").filter(Boolean)) query.append("coverage", state);
  const [coverage, schedule, page] = await Promise.all(
    [`${sourcePath()}/coverage`, `${sourcePath()}/verification-schedule`, `${sourcePath()}/proofs?${query}`].map((path) => ask(path)));
  const [proof, history] = view.table ? await Promise.all([ask(`${tablePath()}/proof`), ask(`${tablePath()}/verdicts?limit=10`)]) : [];
  if (round !== view.round) return;
  showCoverage(coverage);
  showSchedule(schedule);
  showTables(page);
  if (proof) showTable(proof, history.verdicts);
}

function choose(chosen) {
  Object.assign(view, { cursors: [""], database: "", table: "" }, chosen);
  history.replaceState(null, "", address());
  $("outcome").textContent = "";
  refresh();
}

$("tenant").addEventListener("change", (event) => choose({ tenant: event.target.value, source: "" }));
$("source").addEventListener("change", (event) => choose({ source: event.target.value }));
$("which").addEventListener("change", () => { view.cursors = [""]; refresh(); });
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("previous").addEventListener("click", () => { view.cursors.pop(); refresh(); });
$("next").addEventListener("click", () => { view.cursors.push(view.next); refresh(); });
$("verify-table").addEventListener("click", (event) => tell(event.target, () => verify(view)));
$("schedule-week").addEventListener("click", (event) => tell(event.target, async () => {
  await ask(`${sourcePath()}/verification-schedule`, {}, "PUT");
  return "Each table is verified once a week from now on, one after the other.";
}));
$("schedule-off").addEventListener("click", (event) => tell(event.target, async () => {
  await ask(`${sourcePath()}/verification-schedule`, {}, "DELETE");
  return "No further verification is ordered by itself. One that runs goes on.";
}));
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });

async function live() {
  if (!document.hidden) await refresh();
  setTimeout(live, POLL_MS);
}
live();
