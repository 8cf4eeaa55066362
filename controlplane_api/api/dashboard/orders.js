// Orders to tables: what each would do is shown first, as the API's plan says it, and done if somebody says so.

import { $, Refused, ask, confirmed, count, element, ofSource, tablesWord } from "./shared.js";

const MOST_TOLD = 10; // refusals and notices that a plan names

export const FORCE = "It runs even if the server may purge its log before the dump is over. If that happens, the table's sync fails "
  + "and has to begin anew with another dump.";
const RESYNC = "The table begins anew with a dump of all its rows, also in a lake that has stopped it. A dump of it that runs "
  + "ends first. Until the new one is done, rows may be missing or stale in the lake.";

/** By the value of the select `begin`. */
const STARTS = {
  resume: { start: "resume" },
  dump: { start: "dump" },
  forced: { start: "dump", dump: { force: true } },
  oldest: { start: "oldest" },
  now: { start: "now" },
};

const startBody = () => STARTS[$("begin").value];

const says = (tables, one, many) => (tables.length === 1 ? one : many);

const beginWords = (tables) => {
  const chosen = $("begin");
  return `${says(tables, "It starts", "They start")} from ${chosen.selectedOptions[0].text}.${chosen.value === "forced" ? ` ${FORCE}` : ""}`;
};

/** `path` of the API; `would`: what becomes of the tables; `words`: what somebody should know before. */
export const ORDERS = {
  start: { word: "Start", path: "start", body: startBody, would: "would be started", words: beginWords, done: "started" },
  stop: {
    word: "Stop", path: "stop", would: "would be stopped", done: "stopped", isHard: true,
    words: (tables) => `Nothing of ${says(tables, "it", "them")} is read any more. What is in the lake stays there, and a start goes on where `
      + `${says(tables, "it", "they")} stopped, as long as the server's log has it.`,
  },
  retry: { word: "Retry", path: "retry", would: "would be tried again", done: "asked to try again", words: (tables) => says(tables, "It goes on where it stopped.", "They go on where they stopped.") },
  resync: { word: "Resync", path: "resync", would: "would begin anew", done: "begun anew", isHard: true, words: () => RESYNC },
  dump: {
    word: "Dump", path: "dumps", would: "would be dumped", done: "told to dump",
    words: (tables) => `${rowsWords(tables)} They are read beside the stream, within the agent's own limits and windows, and sent.`,
  },
  verify: {
    word: "Verify", path: "verifications", would: "would be read at the source", done: "verified: their verdicts come here by themselves",
    words: (tables) => `${rowsWords(tables)} They are read beside the stream, within the agent's own limits and windows, and no row of them is sent.`,
  },
};

function rowsWords(tables) {
  const known = tables.reduce((sum, { rows }) => sum + (rows ?? 0), 0);
  const unknown = tables.filter(({ rows }) => rows === null).length;
  return `About ${count(known)} ${known === 1 ? "row" : "rows"}${unknown ? `, and those of ${tablesWord(unknown)} of which no number is known` : ""}.`;
}

const nameOf = ({ database, table }) => `${database}.${table}`;

/** Whether the order does something to the table. */
const isTold = (name) => (table) => !table.refused && (table.changed || table.dump !== "" || !["start", "stop"].includes(name));

/** Why tables are left out, and what is to be known of others, each once. */
function facts(outcomes) {
  const found = new Map();
  for (const each of outcomes) {
    const words = each.refused ? new Refused(each.refused).message : each.notice;
    if (words) found.set(words, [...(found.get(words) ?? []), nameOf(each)]);
  }
  const told = [...found].slice(0, MOST_TOLD).map(([words, names]) =>
    `${names[0]}${names.length > 1 ? ` and ${count(names.length - 1)} more` : ""}: ${words}`);
  return found.size > MOST_TOLD ? [...told, `and ${count(found.size - MOST_TOLD)} more notices`] : told;
}

/** The order's plan, and the order if somebody wants it so; what was done, in words. Tables have database, table and
 * estimated rows. */
export async function order(name, tables) {
  const { word, path, body, would, words, done, isHard } = ORDERS[name];
  const source = ofSource();
  const request = { tables: tables.map(({ database, table }) => ({ database, table })), ...body?.() };
  const plan = (await ask(`${source.path}/${path}?dry_run=true`, request)).tables;
  const begun = plan.filter(isTold(name));
  const known = new Map(tables.map((each) => [nameOf(each), each]));
  const title = plan.length === 1 ? `${nameOf(plan[0])} ${begun.length ? would : "would not change"}`
    : `${count(begun.length)} of ${tablesWord(plan.length)} ${would}`;
  const question = begun.length ? words(begun.map((each) => known.get(nameOf(each)))) : "The order would do nothing.";
  const isAgreed = await confirmed(source, title, question, begun.length ? word : null, { facts: facts(plan), isSafe: !isHard });
  if (!isAgreed) return "Nothing was changed.";
  const outcomes = (await ask(`${source.path}/${path}`, request)).tables;
  const told = outcomes.filter(isTold(name));
  const whom = outcomes.length === 1 ? nameOf(outcomes[0]) : `${count(told.length)} of ${tablesWord(outcomes.length)}`;
  if (!told.length && outcomes.length === 1 && outcomes[0].refused) throw new Refused(outcomes[0].refused);
  return [`${whom}: ${told.length ? `${done}.` : "not changed."}`, ...facts(outcomes)].join(" ");
}

const MOST_CHOSEN = 10_000;

/** Boxes that choose tables for one order, on several pages of a list; buttons of the orders stand in `#orders`. */
export function choosing(names, tell) {
  const chosen = new Map();
  const buttons = names.map((name) => {
    const button = element("button", "small", "");
    button.type = "button";
    button.id = `order-${name}`;
    button.addEventListener("click", () => tell(button, async () => {
      const words = await order(name, [...chosen.values()]);
      none();
      return words;
    }));
    return button;
  });
  $("orders").replaceChildren(...buttons);
  function show() {
    const number = chosen.size;
    $("chosen-words").textContent = number ? `${count(number)} chosen${number === MOST_CHOSEN ? ", which is the most" : ""}` : "";
    $("orders").hidden = $("choose-none").hidden = !number;
    buttons.forEach((button, at) => { button.textContent = `${ORDERS[names[at]].word} ${tablesWord(number)}…`; });
  }
  function none() {
    chosen.clear();
    drawBoxes();
  }
  function drawBoxes() {
    for (const box of document.querySelectorAll("#tables input[data-name]")) box.checked = chosen.has(box.dataset.name);
    show();
  }
  function take(table, isChosen) {
    const name = nameOf(table);
    if (!isChosen) chosen.delete(name);
    else if (chosen.size < MOST_CHOSEN) chosen.set(name, { database: table.database, table: table.table, rows: table.estimated_rows });
  }
  $("choose-none").addEventListener("click", none);
  drawBoxes();
  return {
    none, drawBoxes,
    /** Whether more could be taken. */
    takeAll: (tables) => {
      tables.forEach((table) => take(table, true));
      drawBoxes();
      return chosen.size < MOST_CHOSEN;
    },
    box: (table) => {
      const box = element("input", "");
      box.type = "checkbox";
      box.dataset.name = nameOf(table);
      box.checked = chosen.has(box.dataset.name);
      box.setAttribute("aria-label", `Choose ${box.dataset.name}`);
      box.addEventListener("change", () => { take(table, box.checked); drawBoxes(); });
      return box;
    },
  };
}
