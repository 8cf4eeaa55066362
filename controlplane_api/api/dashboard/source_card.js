// How far a source is: at its server, in the landing, in each lake; with what holds it up.

import { addressOf, count, duration, element, pill } from "./shared.js";

const STATE_ORDER = ["failed", "denied", "waiting", "pending", "catching_up", "dumping", "streaming", "stopped", "not_synced"];

export const stage = (name, value, detail, mark = "") =>
  element("span", `stage${mark}`, element("span", "label", name), element("span", "value", value), element("span", "detail", detail));

function stages(source) {
  const held = (name) => (source.stage === name ? (source.stage_problem?.terminal ? " bad" : " held") : "");
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

/** Its states are links to its tables of that state, and its name, if `isLink`, one to its page. */
export function sourceCard(source, { isLink = false } = {}) {
  const figures = [["Rows/s", count(source.rows_per_second === null ? null : Math.round(source.rows_per_second))]];
  if (source.dumps) figures.push(["Dumps", count(source.dumps)]);
  const states = STATE_ORDER.filter((state) => source.tables[state])
    .map((state) => {
      const link = element("a", "", pill(state, `${count(source.tables[state])} ${state.replace("_", " ")}`));
      link.href = addressOf("/tables", { source: source.source, state });
      return link;
    });
  const name = element(isLink ? "a" : "span", "source-name", source.source);
  if (isLink) name.href = addressOf("/source", { source: source.source });
  const server = [`${source.flavor} ${source.server_version}`.trim(), source.address, source.agent && `agent ${source.agent}`];
  const position = element("span", "position mono", source.committed_position);
  position.title = source.committed_position;
  const problems = [...new Set([source.stage_problem, source.problem].filter(Boolean).map((problem) => problem.message))];
  return [
    element("span", "source-head", name,
      source.connected ? (source.problem ? pill("failed", "in error") : pill("connected")) : pill("gone", "not connected")),
    element("span", "source-server", server.filter(Boolean).join(" · ")),
    element("span", "stages", ...stages(source)),
    element("span", "figures", ...figures.map(([label, value]) =>
      element("span", "", element("span", "label", label), element("span", "value", value)))),
    element("span", "states", ...states),
    ...problems.map((words) => element("span", "problem", words)),
    ...source.warnings.map((warning) => warning.message).filter((words) => !problems.includes(words))
      .map((words) => element("span", "notice", words)),
    ...(source.committed_position ? [position] : []),
  ];
}
