// The audit log of a tenant.

import { $, ask, drawRows, element, instant, numberCell, openPage, pager, pill, tenantPath } from "./shared.js";

const PAGE_ENTRIES = 100;
const pages = pager();

function rowOf(entry, at) {
  return {
    key: at,
    seen: entry,
    cells: () => [
      element("td", "name", element("b", "", entry.action), entry.found ? element("span", "muted", entry.found) : ""),
      element("td", "state", entry.refused ? pill("refused", entry.refused) : pill("done")),
      element("td", "actor", entry.actor),
      numberCell("When", instant(entry.at_us)),
    ],
  };
}

openPage({
  moved: () => pages.first(),
  read: (get) => get(`${tenantPath()}/audit?${new URLSearchParams({ limit: PAGE_ENTRIES, cursor: pages.cursor() })}`),
  show: ({ entries, next_cursor: next }) => {
    drawRows($("entries"), entries.map((entry, at) => rowOf(entry, String(at))));
    $("none").hidden = entries.length > 0;
    pages.show(next);
  },
});
