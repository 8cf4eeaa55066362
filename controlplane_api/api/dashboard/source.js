// One source: how far each stage is, now and of late, its log, what is wrong with it, and the rules by which its tables are started.

import {
  $, addressOf, ago, ask, bytes, confirmed, count, duration, element, instant, ofSource, openPage, place, redraw, redrawOthers, refresh, sourcePath,
  tablesWord, tell,
} from "./shared.js";
import { canPlot, showPlots } from "./plots.js";
import { sourceCard } from "./source_card.js";

const BEGINNINGS = { dump: "from a dump of all rows", oldest: "from the oldest log", now: "from now" };
const REMOVAL = "Tables that come later are not started by it any more. Those that it has started go on.";
const NO_PLOTS = "There are no plots: uPlot, which draws them, is not installed beside the API. In a checkout .ci/setup uplot fetches it; packages of make dist have it.";
const PLANNED = 8; // tables that a plan names
const SECTIONS = ["source-section", "history-section", "log-section", "rules-section"];

function showHistory(told) {
  const enough = told.at_us.length > 1;
  showPlots(enough ? told : null);
  const each = `A point each ${duration(told.step_seconds * 1e6)}. How far behind what has landed is, is told as the most that it can be.`;
  const since = `The process that serves this page keeps it in memory, since ${instant(told.since_us)}: a restart of it begins anew.`;
  if (!canPlot) $("history-words").textContent = NO_PLOTS;
  else $("history-words").textContent = enough ? `${each} ${since}`
    : `The first points come within ${duration(2 * told.step_seconds * 1e6)}. ${since}`;
}

/** For how long the server keeps what is still needed, in words: as the agent said last. */
function retention(source, at_us) {
  const { log_retention_seconds: kept, log_room_bytes: room, log_is_unlimited: unlimited } = source;
  const { health_at_us: told, lag_us: lag, last_commit_timestamp_us: committed } = source;
  if (told === null) return "Not known: no agent has said anything of the source yet.";
  const as = source.told_at_us === null ? `, as its agent said ${ago(told)}` : "";
  if (room !== null) return `The server gives up what is needed once ${bytes(room)} more have been written to its log${as}.`;
  if (unlimited) return `Unlimited: the server keeps its log until somebody removes it${as}. Watch its disk.`;
  if (kept === null && unlimited === false) return `Not known: the server keeps its log within a limit of size, and how fast it grows is not known yet${as}.`;
  if (kept === null) return `Not known: the agent could not tell it${as}. See menura doctor.`;
  const said = `The server keeps its log for ${duration(kept * 1e6)}${as}.`;
  const needed = lag ?? (committed === null ? null : at_us - committed);
  if (needed === null) return `${said} Nothing has landed yet, so how old the needed part is is not known.`;
  const left = kept * 1e6 - needed;
  if (left <= 0) return `${said} What is needed may be purged already: start the agent, and see what it says.`;
  return `${said} What is needed now is purged in ${lag === null ? "at least" : "about"} ${duration(left)}, if nothing is read meanwhile.`;
}

function showLog(source) {
  const facts = [
    ["Until it is purged", retention(source, Date.now() * 1000)],
    ["Committed position", source.committed_position || "Nothing has landed yet."],
    ["Committed", source.committed_at_us === null ? "–" : `cut ${count(source.committed_cut)}, ${instant(source.committed_at_us)}`],
    ["Read up to", source.read_position || "–"],
    ["End of the log, when asked last", source.source_position || "–"],
    ["Landed in all", `${count(source.rows)} rows of ${count(source.transactions)} transactions`],
  ];
  $("log").replaceChildren(...facts.map(([name, value]) => element("div", "", element("dt", "", name), element("dd", "", value))));
}

/** Each problem once, with its remedy, which its message has. */
function showErrors(source) {
  const lakes = source.lakes.filter((lake) => lake.problem).map((lake) => [`Lake ${lake.lake}`, lake.problem]);
  const found = [
    ["Source", source.problem], [`Stage ${source.stage}`, source.stage_problem], ...lakes,
    ...source.warnings.map((warning) => ["Warning", warning]),
  ].filter(([, problem]) => problem);
  const each = new Map(found.map(([of, problem]) => [problem.message, [of, problem]]).reverse());
  $("errors-section").hidden = !each.size;
  redraw($("errors"), [...each.values()].reverse().map(([of, problem]) => element("li", "",
    element("span", "when muted", problem.at_us ? instant(problem.at_us) : "now"), element("b", "", `${of}: ${problem.code}`),
    element("span", of === "Warning" ? "notice" : "problem", problem.message))));
}

/** Its tables by state, as links to the list of them. */
function showTables(source) {
  const number = Object.values(source.tables).reduce((sum, each) => sum + each, 0);
  $("its-tables").textContent = `Its ${tablesWord(number)}`;
  $("its-tables").href = addressOf("/tables");
  $("its-proof").href = addressOf("/proof");
  redrawOthers($("source-card"), sourceCard(source));
}

function showRules(rules) {
  const seen = JSON.stringify([place.tenant, place.source, rules]);
  const list = $("rules");
  if (list.dataset.seen === seen) return;
  list.dataset.seen = seen;
  const source = ofSource();
  list.replaceChildren(...rules.map((rule) => {
    const name = `${rule.database}.${rule.table}`;
    const button = element("button", "small", "Remove");
    button.type = "button";
    button.setAttribute("aria-label", `Remove the rule ${name}`);
    button.addEventListener("click", async () => {
      const path = `${source.path}/rules/${encodeURIComponent(rule.rule)}/remove`;
      if (await confirmed(source, `Remove the rule ${name}?`, REMOVAL, "Remove it")) tellRule(button, async () => {
        await ask(path, {});
        return `${name}: Removed.`;
      });
    });
    return element("li", "", element("b", "mono", name), element("span", "muted", BEGINNINGS[rule.start]), button);
  }));
}

const tellRule = (button, act) => tell(button, act, { into: "rule-outcome" });

/** What a start would do now, in words; tables that come later are the rule's own matter. */
function planned(tables) {
  const started = tables.filter((table) => table.changed).map((table) => `${table.database}.${table.table}`);
  const refused = tables.filter((table) => table.refused).length;
  const running = tables.length - started.length - refused;
  const more = started.length > PLANNED ? ` and ${count(started.length - PLANNED)} more` : "";
  return [
    started.length ? `Now it starts ${count(started.length)}: ${started.slice(0, PLANNED).join(", ")}${more}.` : "Now it starts no table.",
    running ? `${count(running)} run already.` : "",
    refused ? `${count(refused)} are refused.` : "",
    "Tables that match and come later are started as soon as they are there.",
  ].filter(Boolean).join(" ");
}

/** Shows the plan, and makes the rule if somebody wants it so. */
async function makeRule() {
  const start = $("rule-begin").value;
  const tables = { database: $("rule-database").value, table: $("rule-table").value, future: true };
  const name = `${tables.database}.${tables.table}`;
  const source = ofSource();
  const path = `${source.path}/start`;
  const plan = planned((await ask(`${path}?dry_run=true`, { tables, start })).tables);
  if (!(await confirmed(source, `Start ${name} ${BEGINNINGS[start]}?`, plan, "Make the rule", { isSafe: true }))) return "Nothing was changed.";
  const done = (await ask(path, { tables, start })).tables.filter((table) => table.changed).length;
  return `${name}: The rule is made; it has started ${tablesWord(done)}.`;
}

$("rule").addEventListener("submit", (event) => {
  event.preventDefault();
  tellRule(event.submitter ?? $("rule").querySelector("button"), makeRule);
});

$("span").addEventListener("change", refresh);

openPage({
  moved: () => { $("rule-outcome").textContent = ""; },
  read: async (get) => {
    if (!place.source) return null;
    const path = sourcePath();
    const [source, { rules }, told] = await Promise.all([path, `${path}/rules`, `${path}/history?span=${$("span").value}`].map(get));
    return { source, rules, told };
  },
  show: (found) => {
    $("empty").hidden = found !== null;
    for (const id of SECTIONS) $(id).hidden = found === null;
    if (found === null) {
      $("errors-section").hidden = true;
      return;
    }
    const { source, rules, told } = found;
    $("source-title").textContent = place.source;
    document.title = `Menura: ${place.source}`;
    showTables(source);
    showErrors(source);
    showHistory(told);
    showLog(source);
    showRules(rules);
  },
});
