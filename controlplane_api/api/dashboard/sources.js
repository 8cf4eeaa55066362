// The first page: the fleet in figures, and its sources, each with its page.

import { $, ask, count, duration, element, openPage, redrawOthers, tenantPath } from "./shared.js";
import { sourceCard } from "./source_card.js";

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

function showSources(sources) {
  redrawOthers($("sources"), sources.map((source) => element("div", "source", ...sourceCard(source, { isLink: true }))));
}

openPage({
  read: (get) => get(`${tenantPath()}/fleet`),
  show: (fleet) => {
    showOverview(fleet);
    showSources(fleet.sources);
    $("empty").hidden = fleet.agents.length + fleet.sources.length > 0;
    $("sources-section").hidden = !fleet.sources.length;
  },
});
