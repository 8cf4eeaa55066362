// The dashboard: asks the API every two seconds while it is looked at, and shows what it says.
// Every text from outside goes in as textContent; nothing is ever parsed as HTML.

import { $, Refused, ask, bytes, count, duration, element, openSession, pill } from "./shared.js";

const POLL_MS = 2000;
const TYPING_MS = 200;
const PAGE_TABLES = 100;
const STATE_ORDER = ["failed", "denied", "waiting", "pending", "catching_up", "dumping", "streaming", "stopped", "not_synced"];

const view = {
  tenant: new URLSearchParams(location.search).get("tenant") ?? "",
  tenantChosen: new URLSearchParams(location.search).has("tenant"),
  source: new URLSearchParams(location.search).get("source") ?? "",
  cursors: [""], // of the pages up to the shown one
  next: null,
  tables: new Map(), // row elements by name, kept so that focus and selection survive
  stageProblem: "", // what holds up the shown source
  round: 0,
};

const tenantPath = () => `/api/v1/tenants/${encodeURIComponent(view.tenant)}`;
const sourcePath = () => `${tenantPath()}/sources/${encodeURIComponent(view.source)}`;

function showTenants(tenants) {
  const names = tenants.map((each) => each.tenant);
  if (!view.tenantChosen && !names.includes(view.tenant)) view.tenant = names[0] ?? "default";
  if (!names.includes(view.tenant)) names.unshift(view.tenant);
  const select = $("tenant");
  if ([...select.options].map((option) => option.value).join("\n") === names.join("\n")) return;
  select.replaceChildren(...names.map((name) => new Option(name, name, false, name === view.tenant)));
}

function showOverview(fleet) {
  const tables = new Map();
  for (const source of fleet.sources) {
    for (const [state, number] of Object.entries(source.tables)) tables.set(state, (tables.get(state) ?? 0) + number);
  }
  const lags = fleet.sources.map((source) => source.lag_us).filter((lag) => lag !== null);
  const failed = (tables.get("failed") ?? 0) + fleet.sources.filter((source) => source.problem).length;
  const connected = fleet.agents.filter((agent) => agent.connected).length;
  const refused = fleet.agents.filter((agent) => agent.problem);
  const facts = [
    ["Agents connected", `${connected} of ${fleet.agents.length}`, connected < fleet.agents.length],
    ...(refused.length ? [["Refused", refused.map((agent) => `${agent.agent}: ${agent.problem.code}`).join(", "), true]] : []),
    ["Sources", count(fleet.sources.length), false],
    ["Tables streaming", count(tables.get("streaming") ?? 0), false],
    ["Tables waiting", count(tables.get("waiting") ?? 0), (tables.get("waiting") ?? 0) > 0],
    ["Failures", count(failed), failed > 0],
    ["Largest lag", lags.length ? `${lags.length < fleet.sources.length ? "≥ " : ""}${duration(Math.max(...lags))}` : "–", false],
    ["Rows landed", count(fleet.sources.reduce((sum, source) => sum + source.rows, 0)), false],
  ];
  $("overview").replaceChildren(...facts.map(([name, value, alarm]) =>
    element("div", alarm ? "alarm" : "", element("dt", "", name), element("dd", "", value))));
}

/** How far a source is: at its server, in the landing, in each lake. */
function stages(source) {
  const held = (stage) => (source.stage === stage ? (source.stage_problem?.terminal ? " bad" : " held") : "");
  const stage = (name, value, detail, mark) =>
    element("span", `stage${mark}`, element("span", "label", name), element("span", "value", value), element("span", "detail", detail));
  const landed = source.committed_at_us === null ? "–" : `cut ${count(source.committed_cut)}`;
  const found = [
    stage("Source", duration(source.lag_us), source.lag_us === null ? "lag unknown" : "behind its log", held("source")),
    stage("Landed", landed, `freshness ${duration(source.freshness_us)}`, held("gateway")),
  ];
  for (const lake of source.lakes) {
    const mark = lake.state === "failed" || lake.stopped_tables ? " bad" : lake.state === "unknown" ? " held" : held("lake");
    const value = lake.state === "following" ? (lake.cut === null ? "–" : `cut ${count(lake.cut)}`) : lake.state;
    const detail = `${lake.stopped_tables ? `${count(lake.stopped_tables)} stopped · ` : ""}freshness ${duration(lake.freshness_us)}`;
    found.push(stage(source.lakes.length > 1 ? `Lake ${lake.lake}` : "Lake", value, detail, mark));
  }
  return found;
}

function sourceCard(source) {
  const figures = [["Rows/s", count(source.rows_per_second === null ? null : Math.round(source.rows_per_second))]];
  if (source.dumps) figures.push(["Dumps", count(source.dumps)]);
  const states = STATE_ORDER.filter((state) => source.tables[state])
    .map((state) => pill(state, `${count(source.tables[state])} ${state.replace("_", " ")}`));
  const server = [`${source.flavor} ${source.server_version}`.trim(), source.address, source.agent && `agent ${source.agent}`];
  const position = element("span", "position mono", source.committed_position);
  position.title = source.committed_position;
  const problems = [...new Set([source.stage_problem, source.problem].filter(Boolean).map((problem) => problem.message))];
  return [
    element("span", "source-head", element("span", "source-name", source.source),
      source.connected ? (source.problem ? pill("failed", "in error") : pill("connected")) : pill("gone", "not connected")),
    element("span", "source-server", server.filter(Boolean).join(" · ")),
    element("span", "stages", ...stages(source)),
    element("span", "figures", ...figures.map(([label, value]) =>
      element("span", "", element("span", "label", label), element("span", "value", value)))),
    element("span", "states", ...states),
    ...problems.map((words) => element("span", "problem", words)),
    ...source.warnings.map((warning) => warning.message).filter((words) => !problems.includes(words))
      .map((words) => element("span", "notice", words)),
    source.committed_position ? position : "",
  ];
}

function showSources(sources) {
  if (!sources.some((source) => source.source === view.source)) view.source = sources[0]?.source ?? "";
  view.stageProblem = sources.find((source) => source.source === view.source)?.stage_problem?.message ?? "";
  $("to-proof").href = `/proof?${new URLSearchParams({ tenant: view.tenant, source: view.source })}`;
  const box = $("sources");
  const buttons = new Map([...box.children].map((button) => [button.dataset.source, button]));
  box.replaceChildren(...sources.map((source) => {
    const button = buttons.get(source.source) ?? element("button", "source");
    if (!buttons.has(source.source)) {
      button.type = "button";
      button.dataset.source = source.source;
      button.addEventListener("click", () => choose({ source: source.source }));
    }
    button.setAttribute("aria-pressed", String(source.source === view.source));
    button.replaceChildren(...sourceCard(source).filter(Boolean));
    return button;
  }));
}

function numberCell(label, value) {
  const cell = element("td", value === "–" ? "number unknown" : "number", value);
  cell.dataset.label = label;
  return cell;
}

function lakeCell(table) {
  if (!table.lake) return numberCell("In the lake", "–");
  const { state, cut, freshness_us: fresh } = table.lake;
  const words = [state === "following" ? duration(fresh) : state, cut === null ? "" : `cut ${count(cut)}`];
  const cell = numberCell("In the lake", words[0]);
  if (state !== "following") cell.classList.add(state === "failed" ? "bad" : "held");
  if (words[1]) cell.append(element("span", "detail", words[1]));
  return cell;
}

function commandButton(table) {
  const name = `${table.database}.${table.table}`;
  const runs = table.runs;
  if (!runs && table.denied) return "";
  const button = element("button", runs ? "stop" : "start", runs ? "Stop" : "Start");
  button.type = "button";
  button.setAttribute("aria-label", `${runs ? "Stop" : "Start"} ${name}`);
  button.addEventListener("click", async () => {
    const forced = !runs && $("begin").value === "forced";
    if (forced && !(await confirmed(`Start ${name} by a forced dump?`, FORCE, "Start it"))) return;
    command(runs ? "stop" : "start", table, button);
  });
  return button;
}

/** Brings a table back that has stopped, or begins it anew; nothing where neither means anything. */
function recoveryButtons(table) {
  if (!table.desired || table.desired !== "syncing" || table.gone || table.denied) return "";
  const buttons = [];
  const stands = !table.runs || table.lake?.state === "failed" && table.stage === "lake";
  if (table.state === "failed" && stands) buttons.push(recoveryButton("Retry", "retry", table));
  buttons.push(recoveryButton("Resync", "resync", table, RESYNC));
  return element("span", "recovery", ...buttons);
}

function recoveryButton(title, word, table, question) {
  const name = `${table.database}.${table.table}`;
  const button = element("button", "small", title);
  button.type = "button";
  button.setAttribute("aria-label", `${title} ${name}`);
  button.addEventListener("click", async () => {
    if (question && !(await confirmed(`${title} ${name}?`, question, title))) return;
    tell(table, button, async () => {
      const [told] = (await ask(`${sourcePath()}/${word}`, { tables: [{ database: table.database, table: table.table }] })).tables;
      if (told.refused) throw new Refused(told.refused);
      return `${told.changed ? (word === "retry" ? "It is tried again." : "It begins anew.") : "Not changed."} ${told.notice}`;
    });
  });
  return button;
}

function dumpButton(word, title, table, path, body, question) {
  const button = element("button", "small", word);
  button.type = "button";
  button.setAttribute("aria-label", `${title} of ${table.database}.${table.table}`);
  button.addEventListener("click", async () => {
    if (question && !(await confirmed(`${title} of ${table.database}.${table.table}?`, question, title))) return;
    tell(table, button, async () => {
      const dump = await ask(path, body);
      return `Dump ${dump.state}.${dump.key.length || dump.planned_at_us === null ? "" : " It is one snapshot of the whole table."}`;
    });
  });
  return button;
}

const CANCEL = "What it brought stays in the lake, and the table's changes go on. The rows that it did not bring are missing "
  + "until another dump brings them, which begins at the first row again.";
const RESYNC = "The table begins anew with a dump of all its rows, also in a lake that has stopped it. A dump of it that runs "
  + "ends first. Until the new one is done, rows may be missing or stale in the lake.";
const FORCE = "It runs even if the server may purge its log before the dump is over. If that happens, the table's sync fails "
  + "and has to begin anew with another dump.";

/** Whether somebody says yes. */
function confirmed(title, question, yes) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-question").textContent = question;
  $("confirm-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

function dumpProgress(table) {
  const dump = table.dump;
  const bar = dump.percent === null ? "" : element("progress", "");
  if (bar) {
    bar.setAttribute("aria-label", `Dump of ${table.database}.${table.table}`);
    bar.max = 100;
    bar.value = dump.percent;
  }
  const chunks = `${bytes(dump.bytes)} in ${count(dump.chunks)} ${dump.chunks === 1 ? "chunk" : "chunks"}`;
  const facts = [
    ...(dump.percent === null ? [`at least ${count(dump.rows)} rows, nothing tells how many there are`, chunks]
      : [`about ${dump.percent.toFixed(1)} % of about ${count(dump.expected_rows)} rows`, `${count(dump.rows)} rows, ${chunks}`]),
    dump.rows_per_second !== null && `${count(dump.rows_per_second)} rows/s`,
    dump.estimated_end_us !== null && `ends in about ${duration(Math.max(0, dump.estimated_end_us - Date.now() * 1000))}`,
  ].filter(Boolean).join(" · ");
  const notes = [dump.reason, dump.warning].filter(Boolean).map((words) => element("span", "notice", words));
  const path = `${sourcePath()}/dumps/${encodeURIComponent(dump.dump)}`;
  const hold = dump.state === "paused" ? dumpButton("Resume", "Resume the dump", table, `${path}/resume`, {})
    : dumpButton("Pause", "Pause the dump", table, `${path}/pause`, {});
  const end = dumpButton("Cancel", "Cancel the dump", table, `${path}/cancel`, {}, CANCEL);
  return element("span", "dump", element("span", "dump-head", pill(dump.state, `${{ reread: "re-read", verification: "verification" }[dump.cause] ?? "dump"} ${dump.state}`), bar, hold, end),
    element("span", "muted", facts), ...notes);
}

function missingRows(table) {
  const notice = element("span", "notice", `Earlier rows are missing: ${table.earlier_rows_missing} `);
  if (table.dump || !table.runs) return notice;
  const path = `${sourcePath()}/tables/${[table.database, table.table].map(encodeURIComponent).join("/")}/dump`;
  notice.append(
    dumpButton("Dump them", "Dump the earlier rows", table, path, {}), " ",
    dumpButton("Force", "Force a dump", table, path, { force: true }, FORCE),
  );
  return notice;
}

function staleRows(table) {
  const { causes, more, reread } = table.unlogged;
  const others = causes.length + more - 1;
  const words = `Rows may be stale since ${causes[0].position}: ${causes[0].why}${others ? ` (and ${others} more)` : ""}. `;
  const notice = element("span", "notice", words, reread ? "A dump brings them." : "");
  if (reread || table.dump || !table.runs) return notice;
  const path = `${sourcePath()}/tables/${[table.database, table.table].map(encodeURIComponent).join("/")}/dump`;
  notice.append(dumpButton("Dump them", "Dump the rows that may be stale", table, path, {}));
  return notice;
}

/** What holds up all tables of a source stands with the source, once. */
const problemWords = (problem) =>
  (problem.message === view.stageProblem ? `${problem.code}: see the source.` : problem.message);

function fillRow(row, table) {
  const dump = table.dump && { ...table.dump, estimated_end_us: duration(table.dump.estimated_end_us - Date.now() * 1000) };
  const lake = table.lake && { ...table.lake, freshness_us: duration(table.lake.freshness_us) };
  const proof = table.proof && [table.proof.state, duration(table.proof.proof?.age_us ?? null)];
  const seen = JSON.stringify({ ...table, dump, lake, proof, of_source: view.stageProblem, freshness_us: duration(table.freshness_us) });
  if (row.dataset.seen === seen) return;
  row.dataset.seen = seen;
  const notes = [
    table.problem && element("span", "problem", problemWords(table.problem)),
    table.lake?.retries && element("span", "muted", "Its sink was asked to try it again."),
    table.lake?.schema_changes && element("span", "notice", `In the lake, ${table.lake.schema_changes}`),
    table.dump && dumpProgress(table),
    table.earlier_rows_missing && missingRows(table),
    table.unlogged && staleRows(table),
    table.denied && element("span", "notice", "Refused by the agent's local policy."),
    table.gone && element("span", "notice", "No longer on the server."),
    proofLink(table),
    table.ignored_columns.length && element("span", "muted", `Without ${table.ignored_columns.join(", ")}`),
  ].filter(Boolean);
  const about = table.estimated_rows === null ? bytes(table.size_bytes)
    : `${count(table.estimated_rows)} ${table.estimated_rows === 1 ? "row" : "rows"}, ${bytes(table.size_bytes)}`;
  const focused = row.contains(document.activeElement) ? document.activeElement.ariaLabel : null;
  row.replaceChildren(
    element("td", "name", element("span", "", element("span", "muted", `${table.database}.`), element("b", "", table.table)),
      ...notes),
    element("td", "state", pill(table.state), table.stage ? element("span", "muted", `in stage ${table.stage}`) : ""),
    numberCell("Rows landed", table.rows || table.state !== "not_synced" ? count(table.rows) : "–"),
    numberCell("Freshness", duration(table.freshness_us)),
    lakeCell(table),
    numberCell("At the source", about),
    element("td", "command", recoveryButtons(table), commandButton(table)),
  );
  if (focused) ([...row.querySelectorAll("button")].find((each) => each.ariaLabel === focused) ?? row.querySelector("button"))?.focus();
}

const BEGINNINGS = { dump: "from a dump of all rows", oldest: "from the oldest log", now: "from now" };
const REMOVAL = "Tables that come later are not started by it any more. Those that it has started go on.";
const PLANNED = 8; // tables that a plan names

function showRules(rules) {
  const seen = JSON.stringify([view.tenant, view.source, rules]);
  const list = $("rules");
  if (list.dataset.seen === seen) return;
  list.dataset.seen = seen;
  list.replaceChildren(...rules.map((rule) => {
    const name = `${rule.database}.${rule.table}`;
    const button = element("button", "small", "Remove");
    button.type = "button";
    button.setAttribute("aria-label", `Remove the rule ${name}`);
    button.addEventListener("click", async () => {
      const path = `${sourcePath()}/rules/${encodeURIComponent(rule.rule)}/remove`;
      if (await confirmed(`Remove the rule ${name}?`, REMOVAL, "Remove it")) tellRule(button, async () => {
        await ask(path, {});
        return `${name}: Removed.`;
      });
    });
    return element("li", "", element("b", "mono", name), element("span", "muted", BEGINNINGS[rule.start]), button);
  }));
}

async function tellRule(button, act) {
  const outcome = $("rule-outcome");
  button.disabled = true;
  try {
    outcome.textContent = await act();
    outcome.classList.remove("refused");
  } catch (failure) {
    outcome.textContent = failure.message;
    outcome.classList.add("refused");
  }
  button.disabled = false;
  await refresh();
}

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
  const path = `${sourcePath()}/start`;
  const plan = planned((await ask(`${path}?dry_run=true`, { tables, start })).tables);
  if (!(await confirmed(`Start ${name} ${BEGINNINGS[start]}?`, plan, "Make the rule"))) return "Nothing was changed.";
  const done = (await ask(path, { tables, start })).tables.filter((table) => table.changed).length;
  return `${name}: The rule is made; it has started ${count(done)} ${done === 1 ? "table" : "tables"}.`;
}

/** What is known of the table's proof, as a link to its page. */
function proofLink(table) {
  if (!table.proof?.verdict) return "";
  const { state, proof } = table.proof;
  const words = state === "equal" ? `equal to the source ${duration(proof.age_us)} ago` : `proof: ${state}`;
  const link = element("a", state === "differs" ? "problem" : "muted", words);
  const query = new URLSearchParams({ tenant: view.tenant, source: view.source, database: table.database, table: table.table });
  link.href = `/proof?${query}`;
  link.setAttribute("aria-label", `Proof of ${table.database}.${table.table}: ${words}`);
  return link;
}

function showTables(page) {
  const kept = new Map();
  for (const table of page.tables) {
    const name = JSON.stringify([table.database, table.table]);
    const row = view.tables.get(name) ?? element("tr", "");
    fillRow(row, table);
    kept.set(name, row);
  }
  const body = $("tables");
  const rows = [...kept.values()];
  if (rows.length !== body.children.length || rows.some((row, at) => body.children[at] !== row)) body.replaceChildren(...rows);
  view.tables = kept;
  view.next = page.next_cursor;
  const pages = Math.max(1, Math.ceil(page.total / PAGE_TABLES));
  $("tables-title").textContent = `Tables of ${view.source}`;
  $("tables-total").textContent = page.total === 1 ? "1 table" : `${count(page.total)} tables`;
  $("none").hidden = page.total > 0;
  $("page").textContent = `Page ${view.cursors.length} of ${pages}`;
  $("previous").disabled = view.cursors.length === 1;
  $("next").disabled = view.next === null;
  document.querySelector(".pages").hidden = pages === 1;
}

async function refresh() {
  const round = ++view.round; // an answer that was overtaken is not shown
  try {
    await openSession();
    showTenants((await ask("/api/v1/fleet?limit=1000")).tenants);
    const fleet = await ask(`${tenantPath()}/fleet`);
    if (round !== view.round) return;
    showOverview(fleet);
    showSources(fleet.sources);
    $("empty").hidden = fleet.agents.length + fleet.sources.length > 0;
    $("sources-section").hidden = !fleet.sources.length;
    $("tables-section").hidden = $("rules-section").hidden = !view.source;
    if (view.source) {
      const query = new URLSearchParams({ text: $("text").value, limit: PAGE_TABLES, cursor: view.cursors.at(-1) });
      if ($("state").value) query.append("state", $("state").value);
      const page = await ask(`${sourcePath()}/tables?${query}`);
      if (round !== view.round) return;
      showTables(page);
      const { rules } = await ask(`${sourcePath()}/rules`);
      if (round !== view.round) return;
      showRules(rules);
    }
    $("failure").hidden = true;
    $("connection").textContent = "live";
    $("connection").classList.remove("lost");
  } catch (failure) {
    if (round !== view.round) return;
    $("connection").textContent = "no answer";
    $("connection").classList.add("lost");
    $("failure").hidden = !(failure instanceof Refused);
    $("failure").textContent = failure.message;
  }
}

async function tell(table, button, act) {
  button.disabled = true;
  const outcome = $("outcome");
  const say = (words, refused) => {
    outcome.textContent = `${table.database}.${table.table}: ${words}`;
    outcome.classList.toggle("refused", refused);
    outcome.scrollIntoView({ block: "nearest" });
  };
  try {
    say(await act(), false);
  } catch (failure) {
    say(failure.message, true);
  }
  button.disabled = false;
  await refresh();
}

const STARTS = {
  resume: { start: "resume" },
  dump: { start: "dump" },
  forced: { start: "dump", dump: { force: true } },
  oldest: { start: "oldest" },
  now: { start: "now" },
};

const command = (word, table, button) => tell(table, button, async () => {
  const named = { tables: [{ database: table.database, table: table.table }] };
  const body = word === "start" ? { ...named, ...STARTS[$("begin").value] } : named;
  const [told] = (await ask(`${sourcePath()}/${word}`, body)).tables;
  if (told.refused) throw new Refused(told.refused);
  return `${word === "start" ? "Started" : "Stopped"}. ${told.notice}`;
});

function choose(chosen) {
  Object.assign(view, { cursors: [""] }, chosen);
  const query = new URLSearchParams({ tenant: view.tenant, source: view.source });
  history.replaceState(null, "", `?${query}`);
  $("outcome").textContent = $("rule-outcome").textContent = "";
  refresh();
}

$("confirm-yes").addEventListener("click", () => $("confirm").close("yes"));
$("confirm-no").addEventListener("click", () => $("confirm").close("no"));
let typing = 0;
$("text").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => choose({}), TYPING_MS);
});
$("state").addEventListener("change", () => choose({}));
$("rule").addEventListener("submit", (event) => {
  event.preventDefault();
  tellRule(event.submitter ?? $("rule").querySelector("button"), makeRule);
});
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("tenant").addEventListener("change", (event) => choose({ tenant: event.target.value, tenantChosen: true, source: "" }));
$("previous").addEventListener("click", () => { view.cursors.pop(); refresh(); });
$("next").addEventListener("click", () => { view.cursors.push(view.next); refresh(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });

async function live() {
  if (!document.hidden) await refresh();
  setTimeout(live, POLL_MS);
}
live();
