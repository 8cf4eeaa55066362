// The filter of one table, of a source that is configured here: what would leave the host is shown before anything is saved.

import { $, ask, confirmed, count, element, ofSource, place, tell } from "./shared.js";

let edited = null; // the configuration that is being changed, as the API said it, whose table it is, and what it ignores unseen

const keyOf = () => `${place.database}.${place.table}`;
const nameOf = () => `${place.tenant}/${place.source}/${keyOf()}`;

/** The rule that counts for the table: its own, or one of that name in any database; undefined: there is none. */
function ruleOf({ filter }) {
  const key = [keyOf(), place.table].find((each) => filter && Object.hasOwn(filter, each));
  return key === undefined ? undefined : filter[key];
}

const isOpen = (configuration) => configuration.filter_policy !== "drop";

/** As an agent judges it: whether the table leaves its host, and which columns do not. */
function judged(configuration) {
  const rule = ruleOf(configuration);
  if (rule === undefined) return { leaves: isOpen(configuration), ignored: [] };
  const isEmpty = rule === null || !Object.keys(rule).length;
  return { leaves: isEmpty ? !isOpen(configuration) : true, ignored: isEmpty ? [] : rule.ignored_columns ?? [] };
}

/** The same configuration with another rule for the table alone. */
function changed(configuration, leaves, ignored) {
  const { [keyOf()]: own, ...filter } = configuration.filter ?? {};
  const { ignored_columns: _former, ...rest } = own ?? {};
  const isNamed = Object.hasOwn(filter, place.table);
  if (!leaves && !isOpen(configuration) && isNamed) {
    throw new Error(`The filter has a rule for ${place.table} of any database, under which it can't be kept back alone. Change that rule: menura source.`);
  }
  if (leaves && (ignored.length || isNamed || Object.keys(rest).length)) filter[keyOf()] = { ...rest, ignored_columns: ignored };
  else if (leaves !== isOpen(configuration)) filter[keyOf()] = null;
  return { ...configuration, filter };
}

const boxes = () => [...$("filter-columns").querySelectorAll("input")];

/** Columns without a box stay ignored: the host's policy tells nobody of them, or the table has them no more. */
const wanted = () => ({ leaves: $("filter-leaves").checked,
  ignored: [...boxes().filter((box) => !box.checked).map((box) => box.value), ...edited.unseen] });

function preview() {
  const { leaves, ignored } = wanted();
  const columns = boxes().map((box) => box.value);
  const kept = columns.filter((column) => !ignored.includes(column));
  $("filter-columns").hidden = !leaves;
  $("filter-preview").textContent = leaves
    ? `${count(kept.length)} of ${count(columns.length)} columns would leave the host: ${kept.join(", ")}.${ignored.length ? ` These stay: ${ignored.join(", ")}.` : ""}`
    : "No row of the table would leave the host: its sync is denied.";
}

function columnBox(column, keys, ignored) {
  const box = element("input", "");
  const isKey = keys.includes(column.name);
  box.type = "checkbox";
  box.value = column.name;
  box.checked = !ignored.includes(column.name.toLowerCase());
  box.disabled = isKey && box.checked;
  return element("label", "choice", box, element("span", "", element("b", "", column.name),
    element("span", "muted", ` ${column.column_type}${isKey ? ", in the key: without it no change finds its row" : ""}`)));
}

/** Reads how the source is configured now, and shows what of the table leaves by it. */
async function begin(table) {
  const told = await ask(`${ofSource().path}/configuration`);
  const { leaves, ignored } = judged(told.desired);
  const folded = ignored.map((name) => name.toLowerCase());
  const keys = table.keys.filter((key) => key.name === "PRIMARY" || key.unique).slice(0, 1).flatMap((key) => key.columns);
  const seen = table.columns.map((column) => column.name.toLowerCase());
  edited = { name: nameOf(), told, unseen: ignored.filter((name) => !seen.includes(name.toLowerCase())) };
  $("filter-leaves").checked = leaves;
  $("filter-columns").replaceChildren(...table.columns.map((column) => columnBox(column, keys, folded)));
  $("table-filter").hidden = false;
  $("edit-filter").hidden = true;
  preview();
  $("filter-leaves").focus();
  return "";
}

async function save() {
  const source = ofSource();
  const path = `${source.path}/configuration`;
  const { leaves, ignored } = wanted();
  const words = $("filter-preview").textContent;
  const { told } = edited;
  const configuration = changed(told.desired, leaves, ignored);
  const facts = ["Its agent begins to read the source with it within seconds. Values that have left the host before stay where they are.",
    "The host's own policy may keep back more, and never less; there, menura agent policy test says all."];
  if (!(await confirmed(source, `Change what of ${keyOf()} leaves the host?`, words, "Save it", { facts }))) return "Nothing was changed.";
  const now = await ask(path);
  if (now.sha256 !== told.sha256) throw new Error("Somebody has changed the configuration meanwhile. Nothing was changed. Close this, and begin again.");
  const done = await ask(path, { agent: told.agent, configuration, before: "some" });
  close();
  return done.changed ? `Saved as generation ${done.generation}. The page Fleet shows when it runs.` : "It was so before.";
}

function close() {
  edited = null;
  $("table-filter").hidden = true;
  $("edit-filter").hidden = false;
}

/** Shows the section where the source is configured here. `seen`: gives the table as it was seen last. */
export function showFilter(source, seen) {
  $("filter-section").hidden = !source.configured;
  if (edited !== null && edited.name !== nameOf()) close();
  $("edit-filter").onclick = (event) => tell(event.target, () => begin(seen()), { into: "filter-outcome" });
}

$("filter-leaves").addEventListener("change", preview);
$("filter-columns").addEventListener("change", preview);
$("filter-end").addEventListener("click", close);
$("table-filter").addEventListener("submit", (event) => {
  event.preventDefault();
  tell(event.submitter, save, { into: "filter-outcome" });
});
