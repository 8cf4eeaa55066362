// Proofs of a source: which share of its tables is proven, a schedule, and verifications to order.

import {
  $, Refused, addressOf, ask, button, count, drawRows, duration, element, filtering, instant, numberCell, ofSource, openPage, pager, pill,
  place, sourcePath, tableLink, tell,
} from "./shared.js";
import { choosing } from "./orders.js";
import { COVERAGE_WORDS } from "./table_proof.js";

const PAGE_TABLES = 100;
const NOTHING = {
  "": "No table of this source is synced. Start one on the page Tables; then it can be verified.",
  differs: "No table differs from its source.",
  proven: "No table is proven yet. Verify one, or let each have its turn by a schedule.",
};

let shown = []; // proofs of this page
const pages = pager();
const chosen = choosing(["verify"], tell);

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
      `the next not before ${instant(one.next_at_us)}`].filter(Boolean).join(", ") + ".";
}

function notes(proof) {
  return [
    proof.verification && element("span", "muted", "A verification runs."),
    proof.unprovable && element("span", "notice", `It can't be verified now: ${proof.unprovable}.`),
    ["differs", "unknown"].includes(proof.state) && proof.verdict && element("span", "problem", proof.verdict.reason),
  ].filter(Boolean);
}

const isVerifiable = (proof) => !proof.verification && !proof.unprovable;

function rowOf(proof) {
  const ages = [proof.proof, proof.verdict].map((verdict) => duration(verdict?.age_us ?? null));
  const name = `${proof.database}.${proof.table}`;
  const position = element("td", "place mono", proof.proof?.position ?? "");
  position.title = proof.proof?.position ?? "";
  return {
    key: JSON.stringify([proof.database, proof.table]),
    seen: [proof.coverage, proof.unprovable, proof.verification, proof.verdict?.verification, ages],
    cells: () => [
      element("td", "choose", isVerifiable(proof) ? chosen.box(proof) : ""),
      element("td", "name", tableLink(proof), ...notes(proof)),
      element("td", "state", pill(proof.coverage, COVERAGE_WORDS[proof.coverage])),
      numberCell("Proven", proof.proof ? `${duration(proof.proof.age_us)} ago` : "–"),
      numberCell("Rows", count(proof.proof?.source_rows ?? proof.estimated_rows)),
      position,
      element("td", "command", isVerifiable(proof) ? verifyButton(proof, name) : ""),
    ],
  };
}

function verifyButton(table, name) {
  const source = ofSource();
  return button("Verify", `Verify ${name}`, (pressed) => tell(pressed, () => verify(source, table)), "");
}

async function verify(source, { database, table }) {
  const [told] = (await ask(`${source.path}/verifications`, { tables: [{ database, table }] })).tables;
  if (told.refused) throw new Refused(told.refused);
  return `${database}.${table}: The verification has begun. Its verdict comes here by itself.`;
}

function showTables(page) {
  shown = page.proofs;
  drawRows($("tables"), shown.map(rowOf));
  chosen.drawBoxes();
  $("tables-title").textContent = `Tables of ${place.source}`;
  $("none").hidden = shown.length > 0;
  $("none").textContent = $("text").value ? "No table with this in its name is so." : NOTHING[$("which").value] ?? "No table is so.";
  pages.show(page.next_cursor);
}

function forget() {
  pages.first();
  chosen.none();
  $("outcome").textContent = "";
}

filtering(pages, "which");
$("choose-page").addEventListener("click", () => chosen.takeAll(shown.filter(isVerifiable)));
$("schedule-week").addEventListener("click", (event) => tell(event.target, async () => {
  await ask(`${sourcePath()}/verification-schedule`, {}, "PUT");
  return "Each table is verified once a week from now on, one after the other.";
}));
$("schedule-off").addEventListener("click", (event) => tell(event.target, async () => {
  await ask(`${sourcePath()}/verification-schedule`, {}, "DELETE");
  return "No further verification is ordered by itself. One that runs goes on.";
}));

if (place.table) location.replace(`${addressOf("/table", { database: place.database, table: place.table })}#proof`); // its former address

openPage({
  moved: forget,
  read: async (get) => {
    if (!place.source) return null;
    const query = new URLSearchParams({ text: $("text").value, limit: PAGE_TABLES, cursor: pages.cursor() });
    for (const state of $("which").value.split(",").filter(Boolean)) query.append("coverage", state);
    return Promise.all(["coverage", "verification-schedule", `proofs?${query}`].map((each) => get(`${sourcePath()}/${each}`)));
  },
  show: (found) => {
    $("empty").hidden = found !== null;
    $("coverage-section").hidden = $("tables-section").hidden = found === null;
    if (found === null) return;
    const [coverage, schedule, page] = found;
    showCoverage(coverage);
    showSchedule(schedule);
    showTables(page);
  },
});
