// What a search has found, drawn: rows with what was found in them marked, counts by value, one whole row.

import { $, button, count, drawRows, duration, element } from "./shared.js";
import { marked, wantedWords } from "./search_marks.js";

const SHOWN_COLUMNS = 6;
const SHOWN_COUNTS = 8; // of a column, until somebody asks for more
const MOST_FILTER_CHARS = 1000;

const text = (value) => (value === null ? "–" : String(value));
const NUMBERS = ["integer", "decimal", "wide decimal", "float"];

/** Columns that the list shows: the key, and those that come first and are not bytes. */
function listed(answer) {
  const ofKey = answer.columns.filter((column) => answer.key.includes(column.name));
  const others = answer.columns.filter((column) => !answer.key.includes(column.name) && column.kind !== "binary");
  return [...ofKey, ...others].slice(0, Math.max(SHOWN_COLUMNS, ofKey.length));
}

const keyOf = (row, answer) => answer.key.map((name) => text(row[name])).join(", ");

export function showRows(answer, asked, open) {
  const columns = listed(answer);
  const wanted = wantedWords(asked.text, answer.columns);
  const head = columns.map(({ name, kind }) => {
    const cell = element("th", NUMBERS.includes(kind) && !answer.key.includes(name) ? "number" : "", name);
    cell.scope = "col";
    return cell;
  });
  if ($("head").textContent !== columns.map((column) => column.name).join("")) $("head").replaceChildren(...head);
  const others = answer.columns.filter((column) => column.kind === "text" && !columns.includes(column));
  drawRows($("rows"), answer.rows.map((row) => ({
    key: JSON.stringify(answer.key.map((name) => row[name])),
    seen: [row, asked.text, columns],
    cells: () => columns.map((column, at) => (at === 0 ? openCell(row, answer, others, wanted, open) : valueCell(row, column, wanted))),
  })));
}

function openCell(row, answer, others, wanted, open) {
  const [first] = listed(answer);
  const opener = button(text(row[first.name]), `Open row ${keyOf(row, answer)}`, () => open(row), "opener");
  const elsewhere = others.filter(({ name }) => row[name] !== null).map(({ name }) => [name, marked(row[name], name, wanted)])
    .filter(([, found]) => found.any);
  return element("td", "name", opener, ...elsewhere.map(([name, { parts }]) => element("span", "detail", `${name}: `, ...parts)));
}

function valueCell(row, { name, kind }, wanted) {
  const value = row[name];
  const cell = element("td", NUMBERS.includes(kind) ? "value number" : "value");
  cell.dataset.label = name;
  if (value === null) cell.append(element("span", "muted", "–"));
  else cell.append(...(kind === "text" ? marked(value, name, wanted).parts : [text(value)]));
  return cell;
}

/** Each column and its value, with a way to the rows that have it too. */
export function showRow(row, answer, where, wantedText, choose) {
  const wanted = wantedWords(wantedText, answer.columns);
  $("row-title").textContent = `${where}: ${keyOf(row, answer)}`;
  $("values").replaceChildren(...answer.columns.map(({ name, kind }) => {
    const value = row[name];
    const filter = value === null ? `${name} IS NULL` : `${name}=${value}`;
    const isChoice = kind !== "binary" && filter.length <= MOST_FILTER_CHARS;
    const shown = value === null ? element("span", "muted", "NULL") : element("span", "whole-value", ...wholeParts(text(value), name, kind, wanted));
    return element("div", "", element("dt", "", name, element("span", "detail", kind)),
      element("dd", "", shown, isChoice ? button("Only these", `Only these: rows with this ${name}`, () => choose(filter)) : ""));
  }));
  if (!$("row").open) $("row").showModal();
}

function wholeParts(whole, name, kind, wanted) {
  if (kind !== "text" || !wanted.length) return [whole];
  return whole.split(/([\p{L}\p{N}]+)/u).map((part, at) => (at % 2 && marked(part, name, wanted).any ? element("mark", "", part) : part));
}

const open = new Set(); // columns of which all counts are shown

/** `isChosen`: somebody has chosen the columns; else those where each value is another one say nothing. */
export function showCounts(facets, asked, isChosen, toggle) {
  const told = facets.filter(({ column, counts }) => isChosen || counts.some(({ value, rows }) => rows > 1 || asked.filters.includes(`${column}=${value}`)));
  const drawn = told.map(({ column, counts, other_rows: others }) => {
    const shown = open.has(column) ? counts : counts.slice(0, SHOWN_COUNTS);
    const list = element("ul", "counts", ...shown.map(({ value, rows }) => {
      const filter = `${column}=${value}`;
      const made = element("button", "count", element("span", "what", value === "" ? "(empty)" : String(value)),
        element("span", "muted", count(rows), element("span", "hidden", rows === 1 ? " row" : " rows")));
      made.type = "button";
      made.dataset.filter = filter;
      made.setAttribute("aria-pressed", String(asked.filters.includes(filter)));
      made.addEventListener("click", () => toggle(filter));
      return element("li", "", made);
    }));
    const hidden = counts.length - shown.length;
    const more = hidden > 0 ? button(`${count(hidden)} more`, `${count(hidden)} more values of ${column}`, () => {
      open.add(column);
      showCounts(facets, asked, isChosen, toggle);
    }) : "";
    list.setAttribute("aria-label", `Values of ${column}`);
    return element("section", "facet", element("h4", "", column), list, more,
      others ? element("p", "detail", others === 1 ? "1 row has another value" : `${count(others)} rows have other values`) : "");
  });
  const seen = drawn.map((each) => each.outerHTML).join("");
  if ($("counts").dataset.seen === seen) return;
  $("counts").dataset.seen = seen;
  const held = $("counts").contains(document.activeElement) ? document.activeElement.dataset.filter : null;
  $("counts").replaceChildren(...drawn);
  if (held) [...$("counts").querySelectorAll("button")].find((each) => each.dataset.filter === held)?.focus();
}

export function asOf({ cut, lake_cut: lake, behind_us: behind, unknown }) {
  if (behind === null) return `as of cut ${count(cut)}; how far that is behind the lake is not known: ${unknown}`;
  return behind === 0 ? `as of the lake's newest cut, ${count(cut)}` : `as of cut ${count(cut)}, ${duration(behind)} behind the lake, which is at ${count(lake)}`;
}

export function noticesOf({ left_out: left, shortened, clipped }) {
  return [
    left && `${count(left)} rows are left out here: all would be too many bytes.`,
    shortened && `${count(shortened)} values are cut off after 65,536 characters.`,
    clipped && `${count(clipped)} rows of the table have texts that are too long to be searched to their end.`,
  ].filter(Boolean);
}
