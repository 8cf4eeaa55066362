// What is said of a table wherever it stands, and the buttons that bring it on: its dump, what it lacks, how it comes back.

import { addressOf, ask, button, bytes, confirmed, count, duration, element, ofSource, paths, pill, tell } from "./shared.js";
import { FORCE, ORDERS, order } from "./orders.js";

const CANCEL = "What it brought stays in the lake, and the table's changes go on. The rows that it did not bring are missing "
  + "until another dump brings them, which begins at the first row again.";

const nameOf = (table) => `${table.database}.${table.table}`;

const dumpDone = (dump) =>
  `Dump ${dump.state}.${dump.key.length || dump.planned_at_us === null ? "" : " It is one snapshot of the whole table."}`;

/** `path`: within the table's source. */
function dumpButton(word, title, table, path, body, question) {
  const source = ofSource(table.source);
  return button(word, `${title} of ${nameOf(table)}`, async (pressed) => {
    if (question && !(await confirmed(source, `${title} of ${nameOf(table)}?`, question, title))) return;
    tell(pressed, async () => dumpDone(await ask(`${source.path}/${path}`, body)), { of: nameOf(table) });
  });
}

const orderDump = (word, title, table, body, question) =>
  dumpButton(word, title, table, `tables/${paths(table.database, table.table)}/dump`, body, question);

/** Buttons that hold a dump, let it go on, and end it. */
export function dumpSteering(dump) {
  const path = `dumps/${paths(dump.dump)}`;
  return [
    dump.state === "paused" ? dumpButton("Resume", "Resume the dump", dump, `${path}/resume`, {})
      : dumpButton("Pause", "Pause the dump", dump, `${path}/pause`, {}),
    dumpButton("Cancel", "Cancel the dump", dump, `${path}/cancel`, {}, CANCEL),
  ];
}

export function dumpBar(dump) {
  if (dump.percent === null) return "";
  const bar = element("progress", "");
  bar.setAttribute("aria-label", `Dump of ${nameOf(dump)}`);
  bar.max = 100;
  bar.value = dump.percent;
  return bar;
}

export function dumpFacts(dump) {
  const chunks = `${bytes(dump.bytes)} in ${count(dump.chunks)} ${dump.chunks === 1 ? "chunk" : "chunks"}`;
  return [
    ...(dump.percent === null ? [`at least ${count(dump.rows)} rows, nothing tells how many there are`, chunks]
      : [`about ${dump.percent.toFixed(1)} % of about ${count(dump.expected_rows)} rows`, `${count(dump.rows)} rows, ${chunks}`]),
    dump.rows_per_second !== null && `${count(dump.rows_per_second)} rows/s`,
    dump.estimated_end_us !== null && `ends in about ${duration(Math.max(0, dump.estimated_end_us - Date.now() * 1000))}`,
  ].filter(Boolean).join(" · ");
}

export const dumpWord = (dump) => ({ reread: "re-read", verification: "verification" }[dump.cause] ?? "dump");

export function dumpProgress(table) {
  const { dump } = table;
  const notes = [dump.reason, dump.warning].filter(Boolean).map((words) => element("span", "notice", words));
  return element("span", "dump",
    element("span", "dump-head", pill(dump.state, `${dumpWord(dump)} ${dump.state}`), dumpBar(dump), ...dumpSteering(dump)),
    element("span", "muted", dumpFacts(dump)), ...notes);
}

function missingRows(table) {
  const notice = element("span", "notice", `Earlier rows are missing: ${table.earlier_rows_missing} `);
  if (table.dump || !table.runs) return notice;
  notice.append(
    orderDump("Dump them", "Dump the earlier rows", table, {}), " ",
    orderDump("Force", "Force a dump", table, { force: true }, FORCE),
  );
  return notice;
}

function staleRows(table) {
  const { causes, more, reread, comparison, instead } = table.unlogged;
  const others = causes.length + more - 1;
  const words = `Rows may be stale since ${causes[0].position}: ${causes[0].why}${others ? ` (and ${others} more)` : ""}. `;
  const dumped = instead ? `A dump brings them, since it could not be compared: ${instead}.` : "A dump brings them.";
  const healed = comparison ? "It is compared with its source, and what differs is read again." : dumped;
  const notice = element("span", "notice", words, reread ? healed : "");
  if (reread || table.dump || !table.runs) return notice;
  notice.append(orderDump("Dump them", "Dump the rows that may be stale", table, {}));
  return notice;
}

/** Under the table's state why it is so; what to do is its title. */
export function reasonOf(table) {
  const words = element("span", "muted reason", table.meaning);
  words.title = `${table.reason}: ${table.remedy}`;
  return words;
}

/** What somebody should know of the table, with what he can do. `isOfSource`: whether its problem is told of its source. */
export function notesOf(table, isOfSource = false) {
  return [
    table.problem && element("span", "problem", isOfSource ? `${table.problem.code}: see the source.` : table.problem.message),
    table.lake?.retries && element("span", "muted", "Its sink was asked to try it again."),
    table.lake?.schema_changes && element("span", "notice", `In the lake, ${table.lake.schema_changes}`),
    table.dump && dumpProgress(table),
    table.earlier_rows_missing && missingRows(table),
    table.unlogged && staleRows(table),
    table.denied && element("span", "notice", "Refused by the agent's local policy."),
    table.gone && element("span", "notice", "No longer on the server."),
  ].filter(Boolean);
}

/** What is known of the table's proof, as a link to it. */
export function proofLink(table) {
  if (!table.proof?.verdict) return "";
  const { state, proof } = table.proof;
  const words = state === "equal" ? `equal to the source ${duration(proof.age_us)} ago` : `proof: ${state}`;
  const link = element("a", state === "differs" ? "problem" : "muted", words);
  link.href = `${addressOf("/table", { database: table.database, table: table.table })}#proof`;
  link.setAttribute("aria-label", `Proof of ${nameOf(table)}: ${words}`);
  return link;
}

/** What changes by itself while the table is as it was: shown figures in place of instants, so that rows stay. */
export function seenOf(table) {
  const dump = table.dump && [table.dump, duration(table.dump.estimated_end_us - Date.now() * 1000)];
  const lake = table.lake && { ...table.lake, freshness_us: duration(table.lake.freshness_us) };
  const proof = table.proof && [table.proof.state, duration(table.proof.proof?.age_us ?? null)];
  return { ...table, dump, lake, proof, freshness_us: duration(table.freshness_us) };
}

/** A button that shows the order's plan, and carries it out if somebody says so. */
function orderButton(name, table, className = "small") {
  const { word } = ORDERS[name];
  const one = { database: table.database, table: table.table, rows: table.estimated_rows };
  return button(word, `${word} ${nameOf(table)}`, (pressed) => tell(pressed, () => order(name, [one])), className);
}

/** Starts or stops the table. */
export function syncButton(table) {
  if (table.runs) return orderButton("stop", table, "stop");
  return table.denied ? "" : orderButton("start", table, "start");
}

/** Brings a table back that has stopped, or begins it anew; nothing where neither means anything. */
export function recoveryButtons(table) {
  if (table.desired !== "syncing" || table.gone || table.denied) return "";
  const stands = !table.runs || table.lake?.state === "failed" && table.stage === "lake";
  const isFailed = table.state === "failed" && stands;
  return element("span", "recovery", isFailed ? orderButton("retry", table) : "", orderButton("resync", table));
}
