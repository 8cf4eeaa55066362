// Tables of a source: searched, filtered and paged by the API; one is started and stopped at once, many after their plan.

import {
  $, ask, bytes, count, drawRows, duration, element, filtering, isLive, numberCell, openPage, pager, pill, place, redrawOthers, sourcePath, tableLink,
  tablesWord, tell,
} from "./shared.js";
import { choosing } from "./orders.js";
import { sourceCard } from "./source_card.js";
import { notesOf, proofLink, reasonOf, recoveryButtons, seenOf, syncButton } from "./table_parts.js";

const PAGE_TABLES = 100;
const MOST_OF_PAGE = 1000; // that the API gives at once
const SPEED_MS = 4000; // between two looks that tell a speed
const IS_QUIET = new Set(["FOLLOWS", "NEVER_STARTED"]); // the state says it

let shown = []; // tables of this page
let looks = new Map(); // at these, by name: rows and when, and the rows a second before
let moves = 0; // to other tenants or sources
const pages = pager();
const chosen = choosing(["start", "stop", "dump", "verify"], tell);

/** Gives pages of the tables that are looked for now, by their cursors. */
function pagesOf(limit, get = ask) {
  const query = new URLSearchParams({ text: $("text").value, limit });
  if ($("state").value) query.append("state", $("state").value);
  const list = `${sourcePath()}/tables?${query}`;
  return (cursor) => get(`${list}&${new URLSearchParams({ cursor })}`);
}

/** The tables of all pages, as many as can be chosen. */
async function chooseAll() {
  const [pageAt, before] = [pagesOf(MOST_OF_PAGE), moves];
  let cursor = "";
  do {
    const page = await pageAt(cursor);
    if (moves !== before) return "Another source was chosen meanwhile. None of these tables is.";
    cursor = chosen.takeAll(page.tables) ? page.next_cursor : null;
  } while (cursor);
  return "Chosen. Nothing was changed.";
}

function lakeCell(table) {
  if (!table.lake) return numberCell("In the lake", "–");
  const { state, cut, freshness_us: fresh } = table.lake;
  const cell = numberCell("In the lake", state === "following" ? duration(fresh) : state);
  if (state !== "following") cell.classList.add(state === "failed" ? "bad" : "held");
  if (cut !== null) cell.append(element("span", "detail", `cut ${count(cut)}`));
  return cell;
}

/** Rows a second of the shown tables, between two looks; null before the second one. */
function lookAt(tables) {
  const now = performance.now();
  looks = new Map(tables.map((table) => {
    const name = JSON.stringify([sourcePath(), table.database, table.table]);
    const before = looks.get(name) ?? { rows: table.rows, at: now, speed: null };
    const elapsed = now - before.at;
    if (elapsed < SPEED_MS || (!isLive() && table.rows === before.rows)) return [name, before]; // nothing says that none have landed
    return [name, { rows: table.rows, at: now, speed: Math.max(0, table.rows - before.rows) * 1000 / elapsed }];
  }));
  return [...looks.values()].map((look) => look.speed);
}

function rowOf(table, speed, stageProblem) {
  const isOfSource = table.problem !== null && table.problem.message === stageProblem;
  const [about, ...size] = table.estimated_rows === null ? [bytes(table.size_bytes)]
    : [`${count(table.estimated_rows)} ${table.estimated_rows === 1 ? "row" : "rows"}`, element("span", "detail", bytes(table.size_bytes))];
  const rate = speed === null || table.state === "not_synced" ? "–" : count(Math.round(speed * 10) / 10);
  return {
    key: JSON.stringify([table.database, table.table]),
    seen: [seenOf(table), isOfSource, rate],
    cells: () => [
      element("td", "choose", chosen.box(table)),
      element("td", "name", tableLink(table), ...notesOf(table, isOfSource), proofLink(table),
        table.ignored_columns.length ? element("span", "muted", `Without ${table.ignored_columns.join(", ")}`) : ""),
      element("td", "state", pill(table.state), table.stage ? element("span", "muted", `in stage ${table.stage}`) : "",
        IS_QUIET.has(table.reason) ? "" : reasonOf(table)),
      numberCell("Rows landed", table.rows || table.state !== "not_synced" ? count(table.rows) : "–"),
      numberCell("Rows/s", rate),
      numberCell("Freshness", duration(table.freshness_us)),
      lakeCell(table),
      numberCell("At the source", about, ...size),
      element("td", "command", recoveryButtons(table), syncButton(table)),
    ],
  };
}

function forget() {
  moves += 1;
  pages.first();
  chosen.none();
  $("outcome").textContent = "";
}

filtering(pages, "state");
$("choose-page").addEventListener("click", () => chosen.takeAll(shown));
$("choose-all").addEventListener("click", (event) => tell(event.target, chooseAll));

$("state").value = place.state ?? "";
delete place.state;

openPage({
  moved: forget,
  read: async (get) => {
    if (!place.source) return null;
    return Promise.all([get(sourcePath()), pagesOf(PAGE_TABLES, get)(pages.cursor())]);
  },
  show: (found) => {
    $("empty").hidden = found !== null;
    $("source-section").hidden = $("tables-section").hidden = found === null;
    if (found === null) return;
    const [source, page] = found;
    redrawOthers($("source-card"), sourceCard(source));
    shown = page.tables;
    const speeds = lookAt(shown);
    drawRows($("tables"), shown.map((table, at) => rowOf(table, speeds[at], source.stage_problem?.message)));
    chosen.drawBoxes();
    $("tables-title").textContent = `Tables of ${place.source}`;
    $("tables-total").textContent = tablesWord(page.total);
    $("none").hidden = page.total > 0;
    pages.show(page.next_cursor, Math.max(1, Math.ceil(page.total / PAGE_TABLES)));
  },
});
