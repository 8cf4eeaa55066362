// Dumps of all sources, verifications and re-reads among them: how far each is, held and ended here.

import { $, ago, ask, drawRows, duration, element, numberCell, openPage, pager, pill, refresh, tableLink, tenantPath } from "./shared.js";
import { dumpBar, dumpFacts, dumpSteering, dumpWord } from "./table_parts.js";

const PAGE_DUMPS = 50;
const NOTHING = {
  running: "No dump runs. Choose tables on the page Tables to dump or verify them.",
  "": "There was no dump yet. A start of a table from a dump of all rows orders one.",
};

const pages = pager();

function rowOf(dump) {
  const ends = duration(dump.estimated_end_us && dump.estimated_end_us - Date.now() * 1000);
  const ordered = ago(dump.created_at_us);
  return {
    key: dump.dump,
    seen: [{ ...dump, estimated_end_us: ends }, ordered],
    cells: () => [
      element("td", "name", tableLink(dump), element("span", "muted", `of ${dump.source}`),
        dump.problem && element("span", "problem", dump.problem.message),
        dump.reason && dump.reason !== dump.problem?.message ? element("span", "notice", dump.reason) : "",
        dump.warning && dump.ended_at_us === null ? element("span", "notice", dump.warning) : ""),
      element("td", "state", pill(dump.state, `${dumpWord(dump)} ${dump.state}`)),
      element("td", "progress", dumpBar(dump), element("span", "muted detail", dumpFacts(dump))),
      numberCell("Ordered", ordered),
      element("td", "command", ...(dump.ended_at_us === null ? [element("span", "recovery", ...dumpSteering(dump))] : [])),
    ],
  };
}

$("which").addEventListener("change", () => { pages.first(); refresh(); });
$("filter").addEventListener("submit", (event) => event.preventDefault());

openPage({
  moved: () => pages.first(),
  read: (get) => {
    const query = new URLSearchParams({ running: $("which").value === "running", limit: PAGE_DUMPS, cursor: pages.cursor() });
    return get(`${tenantPath()}/dumps?${query}`);
  },
  show: ({ dumps, next_cursor: next }) => {
    drawRows($("dumps"), dumps.map(rowOf));
    $("none").hidden = dumps.length > 0;
    $("none").textContent = NOTHING[$("which").value];
    pages.show(next);
  },
});
