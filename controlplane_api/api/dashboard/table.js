// One table: how far it is and what holds it up, its columns and their history, what became of it, whether it is proven.

import {
  $, addressOf, ask, bytes, count, drawRows, duration, element, instant, openPage, pill, place, redraw, sourcePath, tablePath,
  tell,
} from "./shared.js";
import { order } from "./orders.js";
import { forgetChanges, readChanges, showChanges } from "./table_changes.js";
import { showFilter } from "./table_filter.js";
import { showProof, repair } from "./table_proof.js";
import { stage } from "./source_card.js";
import { notesOf, seenOf } from "./table_parts.js";

const SECTIONS = ["table", "changes", "columns", "definitions", "events", "ledger"].map((name) => `${name}-section`).concat("proof");
const EACH = 50; // of what has become of the table

let told = null; // what was seen of it last

const name = () => `${place.database}.${place.table}`;

function showStages(table, source) {
  const held = (at) => (table.stage === at ? (table.problem?.terminal ? " bad" : " held") : "");
  const found = [
    stage("Source", duration(source.lag_us), source.lag_us === null ? "lag unknown" : "behind its log", held("source")),
    stage("Landed", table.rows || table.desired ? `${count(table.rows)} changes` : "–", `freshness ${duration(table.freshness_us)}`, held("gateway")),
  ];
  if (table.lake) {
    const { lake, state, cut, freshness_us: fresh } = table.lake;
    const mark = state === "failed" ? " bad" : state === "unknown" ? " held" : held("lake");
    found.push(stage(`Lake ${lake}`, state === "following" ? `cut ${count(cut)}` : state, `freshness ${duration(fresh)}`, mark));
    const url = source.lakes.find((each) => each.lake === lake)?.url;
    if (url) found.push(stage("Location", url, `as ${[place.tenant, place.source, place.database, place.table].join("/")}`));
  }
  $("stages").replaceChildren(...found);
}

function showTable(table, source) {
  $("table-title").textContent = name();
  document.title = `Menura: ${name()}`;
  $("table-state").replaceChildren(pill(table.state), table.stage ? element("span", "muted", ` in stage ${table.stage}`) : "");
  $("all-tables").href = addressOf("/tables", { database: "", table: "" });
  $("search-table").href = addressOf("/search", { database: place.database, table: place.table });
  const rows = table.estimated_rows === null ? "" : `about ${count(table.estimated_rows)} rows`;
  $("about").textContent = [table.engine, rows, `${bytes(table.size_bytes)} at the source`, table.position && `read up to ${table.position}`]
    .filter(Boolean).join(" · ");
  showStages(table, source);
  $("reason").replaceChildren(element("code", "", table.reason), ` ${table.meaning} ${table.remedy}`);
  const seen = JSON.stringify(seenOf(table));
  if ($("notes").dataset.seen !== seen) redraw($("notes"), notesOf(table));
  $("notes").dataset.seen = seen;
  const isSynced = table.desired === "syncing";
  $("start-table").hidden = table.runs || table.denied;
  $("begin").parentElement.hidden = $("start-table").hidden;
  chooseBeginning(table);
  $("stop-table").hidden = !table.runs;
  $("dump-table").hidden = !table.runs || table.dump !== null;
  $("retry-table").hidden = !isSynced || table.state !== "failed";
  $("resync-table").hidden = !isSynced || table.gone || table.denied;
}

/** What the table's remedy names: a dump for one that was never started. Later choices stay. */
function chooseBeginning(table) {
  const begin = $("begin");
  if (begin.dataset.of === name()) return;
  begin.dataset.of = name();
  begin.value = table.desired === null ? "dump" : "resume";
}

function columnRow(column) {
  const notes = [column.ignored && "left out by the filter", column.generated && "generated"].filter(Boolean);
  return {
    key: column.name,
    seen: column,
    cells: () => [
      element("td", "name", element("b", "", column.name)),
      element("td", "mono", column.column_type),
      element("td", "", column.nullable ? "null" : "not null"),
      element("td", "muted", column.charset),
      element("td", column.ignored ? "held" : "", notes.join(", ") || "in the lake"),
    ],
  };
}

function keyWords(table) {
  const keys = table.keys.map((key) => `${key.unique ? "Unique key" : "Key"} ${key.name}: ${key.columns.join(", ")}`);
  const foreign = table.foreign_keys.map((key) =>
    `Foreign key ${key.name}: ${key.columns.join(", ")} of ${key.parent.join(".")} (${key.parent_columns.join(", ")})`);
  return [...(keys.length ? keys : ["It has no key."]), ...foreign,
    ...(table.more_foreign_keys ? [`and ${count(table.more_foreign_keys)} more foreign keys`] : [])];
}

/** What a definition has that the one before it lacked, in words. */
function difference(one, before) {
  if (!before) return `${count(one.columns.length)} columns: ${one.columns.map((column) => column.name).join(", ")}`;
  const types = (each) => new Map(each.columns.map((column) => [column.name, column.column_type]));
  const [is, was] = [types(one), types(before)];
  const found = [
    ...[...is].filter(([column]) => !was.has(column)).map(([column, type]) => `added ${column} ${type}`),
    ...[...was.keys()].filter((column) => !is.has(column)).map((column) => `dropped ${column}`),
    ...[...is].filter(([column, type]) => was.has(column) && was.get(column) !== type)
      .map(([column, type]) => `${column}: ${was.get(column)} → ${type}`),
  ];
  return found.length ? found.join("; ") : "keys, order or options changed";
}

/** An entry of a list that tells what became of the table. */
function toldAt(at_us, what, words, ...more) {
  return element("li", "", element("span", "when muted", instant(at_us)), element("b", "", what),
    words ? element("span", "", words) : "", ...more.filter(Boolean).map((each) => element("span", "muted mono", each)));
}

function story(id, entries, none) {
  const seen = JSON.stringify(entries.map((entry) => entry.outerHTML));
  if ($(id).dataset.seen === seen) return;
  $(id).dataset.seen = seen;
  $(id).replaceChildren(...(entries.length ? entries : [element("li", "muted", none)]));
}

function showHistory(table, { definitions, dropped }, events, entries) {
  drawRows($("columns"), table.columns.map(columnRow));
  $("keys").replaceChildren(...keyWords(table).map((words) => element("li", "", words)));
  const versions = definitions.map((one, at) =>
    toldAt(one.at_us, `Version ${one.number}`, difference(one, definitions[at + 1]), one.position));
  if (dropped) versions.push(element("li", "muted", `${count(dropped)} older versions are not kept any more.`));
  story("definitions", versions, "The definition of now is the only one that was seen.");
  story("events", events.map((one) => toldAt(one.commit_timestamp_us, one.kind, one.statement, one.position, one.unlogged_changes)),
    "Nothing has happened to the table but changes of rows.");
  story("ledger", entries.map((one) => toldAt(one.at_us, one.kind, one.detail,
    [one.from_position, one.to_position].filter(Boolean).join(" → "), one.actor && `by ${one.actor}`)),
    "The table was never synced: nothing of it is written yet.");
}

async function checkLedger() {
  const checked = await ask(`${tablePath(place)}/ledger/check`);
  if (checked.broken_at !== null) throw new Error(`Entry ${checked.broken_at} is missing, or not as it was written. Compare it with a backup of the database.`);
  return checked.entries ? `All ${count(checked.entries)} entries are as they were written. The last one's hash is ${checked.head}.` : "It has no entry yet.";
}

const act = (id, run, of = {}) => $(id).addEventListener("click", (event) => tell(event.target, run, of));
for (const word of ["start", "stop", "dump", "retry", "resync", "verify"]) {
  act(`${word}-table`, () => order(word, [{ database: place.database, table: place.table, rows: told.estimated_rows }]));
}
act("repair-table", () => repair({ ...place }));
act("check-ledger", checkLedger, { into: "ledger-outcome" });
$("orders").addEventListener("submit", (event) => event.preventDefault());

openPage({
  moved: forgetChanges,
  read: async (get) => {
    if (!place.table || !place.database || !place.source) return null;
    const path = tablePath(place);
    const answers = [
      sourcePath(), path, `${path}/definitions?limit=${EACH}`, `${path}/events`, `${path}/ledger?limit=${EACH}`, `${path}/proof`,
      `${path}/verdicts?limit=10`,
    ].map(get);
    return Promise.all([...answers, readChanges(get)]);
  },
  show: (found) => {
    $("empty").hidden = found !== null;
    $("choose-one").href = addressOf("/tables");
    for (const id of SECTIONS) $(id).hidden = found === null;
    if (found === null) {
      $("filter-section").hidden = true;
      return;
    }
    const [source, table, definitions, { events }, { entries }, proof, history, changes] = found;
    const isFirst = told === null;
    told = table;
    showTable(table, source);
    showProof(proof, history.verdicts);
    showFilter(source, () => told);
    showHistory(table, definitions, events, entries);
    showChanges(changes);
    if (isFirst && location.hash) document.querySelector(location.hash)?.scrollIntoView();
  },
});
