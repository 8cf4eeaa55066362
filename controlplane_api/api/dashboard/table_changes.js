// The newest changes of the table's rows, with their values: asked for once somebody wants to see them, since the audit log has who did.

import { $, count, drawRows, element, instant, place, refresh, Refused, tablePath } from "./shared.js";

const WORDS = { c: "inserted", u: "updated", d: "deleted", r: "read by a dump", t: "all rows removed" };
const AGAIN = ["SEARCH_BUSY", "SEARCH_AWAY", "RECENT_CHANGES_UNKNOWN"]; // what was shown stays, and it is asked again
const DENIED = "Your role does not read rows: they are for the roles reader and admin. Ask an administrator of the tenant for one.";
const NONE = "No row has changed since the table is in the lake.";

let isOpen = false;

const value = (row, absent, column) => {
  if (absent.includes(column)) return element("i", "muted", "not in the log");
  return row[column] === null ? element("i", "muted", "NULL") : element("span", "mono", String(row[column]));
};

/** Of an update the columns that differ, of the rest all but the key's. */
function valuesOf({ before, after, absent_before: lostBefore, absent_after: lostAfter, key }) {
  const differs = (column) => before[column] !== after[column] || lostBefore.includes(column) || lostAfter.includes(column);
  const isUpdate = before !== null && after !== null;
  const columns = Object.keys(after ?? before ?? {}).filter((column) => (isUpdate ? differs(column) : !Object.hasOwn(key ?? {}, column)));
  return columns.map((column) => element("span", isUpdate ? "change" : "change beside", element("b", "", column), " ",
    ...(isUpdate ? [value(before, lostBefore, column), " → ", value(after, lostAfter, column)]
      : [value(after ?? before, after ? lostAfter : lostBefore, column)])));
}

const keyOf = (key) => Object.entries(key ?? {}).map(([column, part]) => `${column}=${part ?? "NULL"}`).join(", ");

function rowOf(change, number) {
  return {
    key: `${change.gsn} ${change.op} ${number}`,
    seen: change,
    cells: () => {
      const at = element("td", "", instant(change.at_us));
      at.title = change.position;
      return [at, element("td", "", WORDS[change.op] ?? change.op), element("td", "mono", keyOf(change.key)), element("td", "", ...valuesOf(change))];
    },
  };
}

/** Each with its place among those of its number, which a dump's rows share. */
function numbered(changes) {
  const seen = new Map();
  return changes.map((change) => {
    const number = (seen.get(change.gsn) ?? 0) + 1;
    seen.set(change.gsn, number);
    return rowOf(change, number);
  });
}

function show(found) {
  drawRows($("changes"), numbered(found.changes));
  $("changes-part").hidden = !found.changes.length;
  $("changes-as-of").textContent = `up to cut ${count(found.cut)}`;
  const left = found.left_out && `${count(found.left_out)} older changes are too large to be shown.`;
  const cut = found.shortened && `${count(found.shortened)} values are cut off.`;
  say(found.changes.length ? [left, cut].filter(Boolean).join(" ") : NONE);
}

function say(words, isRefused = false) {
  $("changes-outcome").textContent = words;
  $("changes-outcome").classList.toggle("refused", isRefused);
}

function close(words = "") {
  isOpen = false;
  $("changes-part").hidden = true;
  $("changes").replaceChildren();
  $("changes-as-of").textContent = "";
  $("toggle-changes").textContent = "Show values";
  $("toggle-changes").ariaExpanded = "false";
  say(words, words !== "");
}

/** What the API says, also where it refuses; null where nobody has asked. */
export async function readChanges(get) {
  if (!isOpen) return null;
  try {
    return await get(`${tablePath(place)}/changes`);
  } catch (failure) {
    if (failure instanceof Refused) return failure;
    throw failure;
  }
}

export function showChanges(found) {
  if (!isOpen || found === null) return;
  if (!(found instanceof Refused)) show(found);
  else if (AGAIN.includes(found.code)) say(`${found.plain} It is asked again by itself.`, true);
  else close(found.code === "ROLE_MISSING" ? DENIED : found.plain);
}

/** Of another table nothing is shown. */
export const forgetChanges = () => close();

$("toggle-changes").addEventListener("click", () => {
  if (isOpen) return close();
  isOpen = true;
  $("toggle-changes").textContent = "Hide values";
  $("toggle-changes").ariaExpanded = "true";
  say("Reading the lake…");
  return refresh();
});
