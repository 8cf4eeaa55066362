// The audit log of a tenant, searched by text and outcome. The API looks at some thousand entries at a time: the page says at how many.

import { $, count, drawRows, element, filtering, instant, numberCell, openPage, pager, pill, place, tenantPath } from "./shared.js";

const PAGE_ENTRIES = 100;
const pages = pager();

function rowOf(entry, at) {
  return {
    key: at,
    seen: entry,
    cells: () => [
      element("td", "name", element("b", "", entry.action), entry.found ? element("span", "muted", entry.found) : ""),
      element("td", "state", pill(entry.outcome), entry.refused ? element("span", "muted", entry.refused) : ""),
      element("td", "actor", entry.actor),
      numberCell("When", instant(entry.at_us)),
    ],
  };
}

const isSearch = () => Boolean($("text").value || $("outcome").value);

function address() {
  const query = new URLSearchParams({ limit: PAGE_ENTRIES, cursor: pages.cursor(), text: $("text").value });
  if ($("outcome").value) query.append("outcome", $("outcome").value);
  return `${tenantPath()}/audit?${query}`;
}

/** What a search has not looked at may match too: that is said, with the way on. */
function showLookedAt(entries, lookedAt, next) {
  const isCutOff = next !== null && entries.length < PAGE_ENTRIES;
  $("looked-at").hidden = !isSearch();
  $("looked-at-words").textContent = `Looked at ${count(lookedAt)} ${lookedAt === 1 ? "entry" : "entries"}.`
    + (isCutOff ? " Older ones are not looked at yet." : "");
  $("go-on").hidden = !isCutOff;
}

filtering(pages, "outcome");
$("go-on").addEventListener("click", () => $("next").click());
$("text").value = place.text ?? "";
$("outcome").value = place.outcome ?? "";
delete place.text;
delete place.outcome;

openPage({
  moved: () => pages.first(),
  read: (get) => get(address()),
  show: ({ entries, looked_at: lookedAt, next_cursor: next }) => {
    drawRows($("entries"), entries.map((entry, at) => rowOf(entry, String(at))));
    $("none").hidden = entries.length > 0;
    $("none").textContent = isSearch() ? "No entry that was looked at matches." : "Nothing was done or refused yet. Commands and logins appear here.";
    showLookedAt(entries, lookedAt, next);
    pages.show(next);
  },
});
