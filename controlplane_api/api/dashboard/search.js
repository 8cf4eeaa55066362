// Search in an indexed table or view: results as one types, counts by value that become filters, whole rows. The address has
// the search; words and filters stand in its fragment, which no server and no proxy is sent.

import {
  $, Refused, Unreachable, addressOf, ask, count, element, openPage, paths, place, redraw, redrawOthers, tablePath, tenantPath,
} from "./shared.js";
import { asOf, noticesOf, showCounts, showRow, showRows } from "./search_parts.js";

const PAUSE_MS = 200; // behind the last letter
const [BUSY_MS, AWAY_MS] = [1000, 3000]; // until a search is repeated that was one too many, or had no answer
const LIMITS = [20, 50, 100];
const MOST_FACETS = 8;
const FEW_FACETS = 6; // where nobody has chosen
const ORDERED = ["=", "!=", "<", "<=", ">", ">=", "IS NULL", "IS NOT NULL"];
const EQUAL = ["=", "!=", "IS NULL", "IS NOT NULL"];

const said = { text: "", filters: [], facets: null, limit: LIMITS[0] }; // facets are null where nobody has chosen
let answer = null; // the last one
let list = { tenant: null, indexes: [], failure: null };
let denied = null; // a tenant whose rows one may not read

// ---- the address

function readFragment() {
  const words = new URLSearchParams(location.hash.slice(1));
  said.text = words.get("text") ?? "";
  said.filters = words.getAll("filter");
  said.facets = words.has("facet") ? words.getAll("facet").filter(Boolean) : null;
  $("text").value = said.text;
}

function writeAddress() {
  const words = new URLSearchParams();
  if (said.text) words.set("text", said.text);
  for (const filter of said.filters) words.append("filter", filter);
  for (const column of said.facets ?? []) words.append("facet", column);
  if (said.facets?.length === 0) words.set("facet", "");
  const { view, database, table } = place;
  history.replaceState(null, "", addressOf("/search", { view, database, table }) + (`${words}` && `#${words}`));
}

// ---- which table or view

const isChosen = () => Boolean(place.view || (place.source && place.database && place.table));
const valueOf = ({ view, source, database, table }) => JSON.stringify(view ? [view] : [source, database, table]);
const nameOf = ({ view, database, table }) => view || `${database}.${table}`;
const searchPath = () => (place.view ? `${tenantPath()}/views/${paths(place.view)}/search` : `${tablePath(place)}/search`);

function take([first, database, table]) {
  const isView = database === undefined;
  Object.assign(place, { view: isView ? first : "", source: isView ? place.source : first, database, table });
  Object.assign(said, { filters: [], facets: null, limit: LIMITS[0] });
  answer = null;
}

/** Views, then tables by source; what the address names is among them, indexed or not. */
function showChoices(indexes) {
  const known = indexes.some((index) => valueOf(index) === valueOf(place));
  const rows = known || !isChosen() ? indexes : [...indexes, { ...place, rows: null }];
  const labelOf = (index) => (index.view ? "Views" : `Tables of ${index.source}`);
  const labels = [...new Set(rows.map(labelOf))].sort((a, b) => (b === "Views") - (a === "Views") || (a < b ? -1 : 1));
  const drawn = labels.map((label) => {
    const members = rows.filter((index) => labelOf(index) === label);
    const group = element("optgroup", "", ...members.map((index) => new Option(nameOf(index), valueOf(index))));
    group.label = label;
    return group;
  });
  redrawOthers($("index"), drawn);
  $("index").value = valueOf(place);
}

/** The segment of a path in the lake, as commands name it. */
const segment = (name) => encodeURIComponent(name).replaceAll("~", "%7E").replaceAll("%", "~");
const lakeName = () => [place.tenant, ...(place.view ? ["~views", "views", place.view] : [place.source, segment(place.database), segment(place.table)])].join("/");

// ---- what stands in place of a search

function showEmpty(title, words, commands = [], isBare = false) {
  $("empty").hidden = false;
  $("empty-title").textContent = title;
  $("empty-words").textContent = words;
  $("empty-commands").textContent = commands.join("\n");
  $("empty-commands").parentElement.hidden = !commands.length;
  $("search-section").hidden = !isBare;
  $("search-section").classList.toggle("bare", isBare);
}

const indexCommand = (name) => `menura search index ${name} --lake LAKE --folder FOLDER --follow`;
const EMPTY = {
  SEARCH_MISSING: () => showEmpty("No search service is configured",
    "An index follows each table or view that is to be searched, a service answers over these, and this API asks it:",
    [indexCommand(`${place.tenant}/SOURCE/DATABASE/TABLE`), "menura search serve --folder FOLDER", "menura api run … --search http://127.0.0.1:7090"]),
  SEARCH_INDEX_UNKNOWN: () => showEmpty(`${nameOf(place)} has no search index`,
    "It is searched once it has one. Choose another table or view above, or index it beside the search service:", [indexCommand(lakeName())], true),
  ROLE_MISSING: () => showEmpty("Your role does not read rows",
    "Rows are for the roles reader and admin. Ask an administrator of the tenant for one, or log in with a token that has it:",
    [`menura api-token create NAME --role reader --tenant ${place.tenant}`]),
  SEARCH_AWAY: (failure) => showEmpty("The search service does not answer", `${failure.message} It is asked again by itself.`),
};
EMPTY.SEARCH_BUSY = EMPTY.SEARCH_AWAY;

const showNone = () => showEmpty("Nothing of this tenant is indexed yet", "An index follows its table or view as it changes:",
  [indexCommand(`${place.tenant}/SOURCE/DATABASE/TABLE`), indexCommand(`${place.tenant}/~views/views/VIEW`)]);

// ---- searching: one question at a time; what is asked meanwhile comes behind it, and the last answer is shown

let isRunning = false;
let again = false;

async function run() {
  again = isRunning;
  if (isRunning || denied === place.tenant || !isChosen()) return;
  isRunning = true;
  try {
    do {
      again = false;
      await searchOnce();
    } while (again);
  } finally {
    isRunning = false;
  }
}

async function searchOnce() {
  const asked = { path: searchPath(), text: said.text, filters: [...said.filters], limit: said.limit };
  const { text, filters, limit } = asked;
  try {
    const found = await ask(asked.path, { text, filters, limit });
    if (again) return;
    showFound(found, asked);
  } catch (failure) {
    if (!again) showFailure(failure);
    return;
  }
  await countValues(asked);
}

async function countValues(asked) {
  const { text, filters } = asked;
  const facets = facetColumns().slice(0, MOST_FACETS);
  try {
    const counted = facets.length ? await ask(asked.path, { text, filters, facets, limit: 1 }) : { facets: [] };
    if (again) return;
    showCounts(counted.facets, asked, said.facets !== null, toggle);
    showUncounted($("counts").children.length ? "" : "Nothing is counted: choose columns.");
  } catch (failure) {
    if (again) return;
    if (!(failure instanceof Refused)) throw failure;
    showCounts([], asked, true, toggle);
    showUncounted(`It is not counted. ${failure.message}`);
  }
}

function showUncounted(words) {
  $("uncounted").hidden = !words;
  $("uncounted").textContent = words;
}

const facetColumns = () => said.facets ?? answer.columns.filter(({ name, kind }) => ["text", "boolean"].includes(kind) && !answer.key.includes(name))
  .slice(0, FEW_FACETS).map(({ name }) => name);

function showFound(found, asked) {
  answer = found;
  showRefusal("");
  $("empty").hidden = true;
  $("search-section").hidden = false;
  $("search-section").classList.remove("bare", "unread");
  setText("count", found.total === 1 ? "1 row" : `${found.total ? count(found.total) : "No"} rows`);
  setText("as-of", asOf(found));
  showNotices(noticesOf(found));
  showRows(found, asked, (row) => showRow(row, found, nameOf(place), asked.text, (filter) => { $("row").close(); add(filter); }));
  $("none").hidden = found.total > 0;
  $("clear").hidden = !asked.text && !asked.filters.length;
  $("head").hidden = $("facets").hidden = found.total === 0;
  $("more-part").hidden = found.rows.length >= found.total || found.rows.length < asked.limit;
  $("more").hidden = asked.limit === LIMITS.at(-1);
  setText("more-words", asked.limit === LIMITS.at(-1) ? `The best ${count(asked.limit)} of ${count(found.total)} are shown: add words or filters.` : "");
  showColumns(found);
}

function setText(id, words) {
  if ($(id).textContent !== words) $(id).textContent = words;
}

const showNotices = (words) => $("notices").replaceChildren(...words.map((each) => element("li", "notice", each)));

function showRefusal(words) {
  setText("refused", words);
  $("text").setAttribute("aria-invalid", String(Boolean(words)));
}

function showFailure(failure) {
  if (failure instanceof Unreachable) return runLater(AWAY_MS); // the header says so
  if (!(failure instanceof Refused)) throw failure;
  if (failure.code === "ROLE_MISSING") denied = place.tenant;
  const isOfSearch = ["SEARCH_REFUSED", "REQUEST_INVALID"].includes(failure.code);
  if (isOfSearch) showRefusal(failure.plain);
  $("search-section").classList.toggle("unread", answer === null);
  if (isOfSearch) {
    showSearch();
    showNotices(answer ? ["These are the rows of the search before."] : []);
  }
  else if (["SEARCH_BUSY", "SEARCH_AWAY"].includes(failure.code) && answer) showNotices([`${failure.plain} It is asked again by itself.`]);
  else if (EMPTY[failure.code]) EMPTY[failure.code](failure);
  else showEmpty("The search could not be made", failure.message, [], true);
  if (failure.code === "SEARCH_BUSY") runLater(BUSY_MS);
  if (failure.code === "SEARCH_AWAY") runLater(AWAY_MS);
}

let later = 0;

function runLater(ms) {
  clearTimeout(later);
  later = setTimeout(() => { if (!document.hidden) run(); }, ms); // whoever comes back to the page has it asked anew
}

function showSearch() {
  $("empty").hidden = true;
  $("search-section").hidden = false;
  $("search-section").classList.remove("bare");
}

// ---- filters, and the columns to count by

/** What is asked has changed. */
function changed() {
  said.limit = LIMITS[0];
  showFilters();
  writeAddress();
  run();
}

function add(filter) {
  if (!said.filters.includes(filter)) said.filters.push(filter);
  changed();
}

function remove(filter) {
  said.filters = said.filters.filter((each) => each !== filter);
  changed();
}

const toggle = (filter) => (said.filters.includes(filter) ? remove(filter) : add(filter));

function showFilters() {
  redraw($("filters"), said.filters.map((filter) => {
    const made = element("button", "chip", filter, element("span", "", "×"));
    made.lastChild.setAttribute("aria-hidden", "true");
    made.type = "button";
    made.setAttribute("aria-label", `Remove the filter ${filter}`);
    made.addEventListener("click", () => {
      remove(filter);
      if (!said.filters.length) $("text").focus();
    });
    return element("li", "", made);
  }));
}

function showColumns({ columns }) {
  const usable = columns.filter(({ kind }) => kind !== "binary");
  const seen = JSON.stringify([usable, facetColumns()]);
  if ($("countable").dataset.seen === seen) return;
  $("countable").dataset.seen = seen;
  const chosen = $("column").value;
  $("column").replaceChildren(...usable.map(({ name }) => new Option(name, name)));
  if (usable.some(({ name }) => name === chosen)) $("column").value = chosen;
  showOperators();
  const counted = facetColumns();
  redraw($("countable"), usable.map(({ name }) => {
    const box = element("input", "");
    Object.assign(box, { type: "checkbox", checked: counted.includes(name), disabled: !counted.includes(name) && counted.length >= MOST_FACETS });
    box.setAttribute("aria-label", name);
    box.addEventListener("change", () => {
      said.facets = box.checked ? [...counted, name] : counted.filter((each) => each !== name);
      showColumns(answer);
      writeAddress();
      run();
    });
    return element("label", "choice", box, name);
  }));
}

function showOperators() {
  const kind = answer?.columns.find(({ name }) => name === $("column").value)?.kind;
  const fitting = ["text", "boolean"].includes(kind) ? EQUAL : ORDERED;
  if ($("operator").textContent !== fitting.join("")) $("operator").replaceChildren(...fitting.map((each) => new Option(each, each)));
  $("value").parentElement.hidden = $("operator").value.startsWith("IS");
}

// ---- what somebody does

let pause = null;

$("text").addEventListener("input", () => {
  said.text = $("text").value;
  clearTimeout(pause);
  pause = setTimeout(changed, PAUSE_MS);
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(pause);
  changed();
});
$("index").addEventListener("change", () => { take(JSON.parse($("index").value)); changed(); });
$("column").addEventListener("change", showOperators);
$("operator").addEventListener("change", showOperators);
$("add").addEventListener("submit", (event) => {
  event.preventDefault();
  const [column, operator] = [$("column").value, $("operator").value];
  add(operator.startsWith("IS") ? `${column} ${operator}` : `${column}${operator}${$("value").value}`);
  $("value").value = "";
});
$("clear").addEventListener("click", () => {
  Object.assign(said, { text: "", filters: [] });
  $("text").value = "";
  $("text").focus();
  changed();
});
$("more").addEventListener("click", () => {
  said.limit = LIMITS[LIMITS.indexOf(said.limit) + 1];
  run();
});
$("row-close").addEventListener("click", () => $("row").close());
addEventListener("hashchange", () => { readFragment(); showFilters(); run(); });
$("facets").open = matchMedia("(min-width: 60rem)").matches;
readFragment();
showFilters();

async function readList(get) {
  const { tenant } = place;
  try {
    const { indexes } = await get(`${tenantPath()}/search-indexes?limit=1000`);
    return { tenant, indexes, failure: null };
  } catch (failure) {
    if (!(failure instanceof Refused) || !EMPTY[failure.code]) throw failure;
    return list.tenant === tenant && list.indexes.length ? list : { tenant, indexes: [], failure };
  }
}

openPage({
  read: readList,
  show: (found, isNews) => {
    list = found;
    if (list.failure !== null) return EMPTY[list.failure.code](list.failure);
    if (!isChosen() && list.indexes.length) {
      take(JSON.parse(valueOf(list.indexes.find((index) => index.view) ?? list.indexes[0])));
      writeAddress();
    }
    showChoices(list.indexes);
    if (!isChosen()) return showNone();
    return isNews ? run() : undefined;
  },
  moved: () => {
    again = isRunning;
    answer = null;
    denied = null;
    Object.assign(said, { text: "", filters: [], facets: null, limit: LIMITS[0] });
    $("text").value = "";
    showFilters();
  },
});
