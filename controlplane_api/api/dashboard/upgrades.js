// Versions of the agent: the newest rollout with its groups, each agent's reason, and the packages that there are.

import {
  $, ago, ask, button, bytes, confirmed, count, drawRows, duration, element, numberCell, ofTenant, openPage, pager, pill, redraw, refresh,
  tell, tenantPath,
} from "./shared.js";

const PAGE_AGENTS = 100;
const SECOND_US = 1e6;
const WORK = ["offered", "downloading", "installing"];
const SHOWN = { open: ["waiting", ...WORK, "failed"], failed: ["failed"], "": [] };
/** By the word of the route; `of`: the states in which it does something. */
const COMMANDS = {
  pause: { word: "Pause", of: ["running"], isSafe: true, done: "Paused.", words: "Nothing more is offered. What a host has in work ends as it ends." },
  resume: { word: "Resume", of: ["paused", "halted"], isSafe: true, done: "It goes on.", words: "Agents that have failed are tried again." },
  cancel: {
    word: "Cancel", of: ["running", "paused", "halted"], done: "Cancelled.",
    words: "Nothing is offered any more. Each agent stays at what it runs, and what a host has in work ends as it ends.",
  },
};

const pages = pager();
let drawn = ""; // rollout and state of which the commands are drawn

const versionOf = (rollout) => (rollout.version ? `version ${rollout.version}` : `the versions from before rollout ${rollout.back_of}`);

function told(rollout) {
  const begun = `Rollout ${rollout.rollout}: ${versionOf(rollout)}, begun ${ago(rollout.created_at_us)} by ${rollout.created_by}`;
  if (rollout.waited_seconds === null) return begun;
  const [waited, wait] = [rollout.waited_seconds, rollout.wait_seconds].map((seconds) => duration(seconds * SECOND_US));
  return `${begun}. Its group has run well for ${waited} of ${wait}`;
}

function commandOf(name) {
  const { word, words, done, isSafe } = COMMANDS[name];
  const tenant = ofTenant();
  return button(word, `${word} the rollout`, async (pressed) => {
    if (!(await confirmed(tenant, `${word} the rollout?`, words, `${word} it`, { isSafe }))) return;
    tell(pressed, async () => {
      await ask(`${tenant.path}/rollout/${name}`, {});
      return done;
    });
  });
}

function drawCommands(rollout) {
  const now = rollout ? `${tenantPath()} ${rollout.rollout} ${rollout.state}` : "";
  if (now === drawn) return;
  drawn = now;
  redraw($("commands"), rollout ? Object.keys(COMMANDS).filter((name) => COMMANDS[name].of.includes(rollout.state)).map(commandOf) : []);
}

function turnOf(rollout, number) {
  if (rollout.ended_at_us !== null || number < rollout.group) return "over";
  return number === rollout.group ? "now" : "later";
}

function groupRow(rollout, group, number) {
  const of = (...states) => count(states.reduce((sum, state) => sum + (group.agents[state] ?? 0), 0));
  const turn = turnOf(rollout, number);
  return {
    key: `${number}`,
    seen: [group, turn],
    cells: () => [
      element("td", "name", element("b", "", group.name)),
      element("td", "state", turn),
      numberCell("Waiting", of("waiting")),
      numberCell("In work", of(...WORK)),
      numberCell("Done", of("done")),
      numberCell("Failed", of("failed")),
    ],
  };
}

function reasonWords(agent) {
  if (agent.reason === "DOWNLOADING" && agent.size_bytes) return `${bytes(agent.downloaded_bytes)} of ${bytes(agent.size_bytes)}`;
  if (agent.reason === "NOT_CONNECTED") return agent.seen_at_us ? `since ${ago(agent.seen_at_us)}` : "never was";
  return agent.code ? `${agent.code}: ${agent.message}` : agent.message;
}

function agentRow(agent) {
  const words = reasonWords(agent);
  return {
    key: agent.agent,
    seen: [agent, words],
    cells: () => [
      element("td", "name", element("b", "", agent.agent), element("span", "muted", `of group ${agent.group}`)),
      element("td", "state", pill(agent.state)),
      element("td", "configuration", element("span", "", agent.reason), words && element("span", agent.state === "failed" ? "problem" : "muted", words),
        agent.remedy && element("span", "notice", agent.remedy), agent.skipped ? element("span", "muted", "nobody waits for it") : ""),
      element("td", "version", `${agent.runs ?? "not said"} → ${agent.version}`),
    ],
  };
}

function packageRow(release) {
  const forms = release.packages.map((each) => `${each.format} ${each.machine}`).join(", ");
  return {
    key: release.version,
    seen: [release],
    cells: () => [
      element("td", "name", element("b", "", release.version)),
      element("td", "state", release.complete ? pill("done", "whole") : pill("waiting", "half uploaded")),
      element("td", "configuration", forms),
      numberCell("Size", bytes(release.size_bytes)),
      numberCell("Agents", count(release.agents)),
    ],
  };
}

$("which").addEventListener("change", () => { pages.first(); refresh(); });
$("filter").addEventListener("submit", (event) => event.preventDefault());

openPage({
  moved: () => pages.first(),
  read: async (get) => {
    const path = tenantPath();
    const query = new URLSearchParams({ limit: PAGE_AGENTS, cursor: pages.cursor() });
    for (const state of SHOWN[$("which").value]) query.append("state", state);
    const [{ rollout }, { releases }] = await Promise.all([get(`${path}/rollout`), get(`${path}/agent-releases`)]);
    const { agents, next_cursor: next } = rollout ? await get(`${path}/rollout/agents?${query}`) : { agents: [], next_cursor: null };
    return { rollout, releases, agents, next };
  },
  show: ({ rollout, releases, agents, next }) => {
    $("rollout-state").replaceChildren(...(rollout ? [pill(rollout.state), ` ${told(rollout)}`] : []));
    $("problem").textContent = rollout?.problem ? `${rollout.problem.message} What to do stands at each agent below.` : "";
    drawCommands(rollout);
    drawRows($("groups"), rollout ? rollout.groups.map((group, number) => groupRow(rollout, group, number)) : []);
    drawRows($("agents"), agents.map(agentRow));
    drawRows($("packages"), releases.map(packageRow));
    $("no-rollout").hidden = rollout !== null;
    $("none").hidden = agents.length > 0;
    $("none").textContent = rollout ? "No agent of the rollout is so." : "A rollout lists its agents here, each with why it is where it is.";
    $("no-packages").hidden = releases.length > 0;
    pages.show(next);
  },
});
