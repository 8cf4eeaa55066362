// Joined views: how fresh each is beside its tables, and of one its text, its plan, its tables and its lakes.

import { $, addressOf, ask, count, duration, element, instant, numberCell, openPage, pill, place, redrawOthers, tableLink, tenantPath } from "./shared.js";

const address = (view = "") => addressOf("/views", { view });

/** Of what a view reads in the lake, the oldest; null: that of one of them is not known. */
function oldest(tables) {
  const ages = tables.map((table) => table.freshness_us);
  return ages.length && !ages.includes(null) ? Math.max(...ages) : null;
}

function reads(view) {
  return [...view.tables.map((table) => `${table.source}.${table.database}.${table.table}`), ...view.views];
}

function viewRow(view) {
  const link = element("a", "", element("b", "", view.view));
  link.href = address(view.view);
  return element("tr", "",
    element("td", "name", link, element("span", "muted", reads(view).join(", ")),
      view.problem ? element("span", "problem", view.problem.message) : ""),
    stateCell(view),
    numberCell("Freshness", duration(view.freshness_us)),
    numberCell("Of its tables", duration(oldest(view.tables))),
    numberCell("Rows", count(view.rows)));
}

function stateCell(view) {
  return element("td", "state", pill(view.state), view.stage ? element("span", "muted", `in stage ${view.stage}`) : "");
}

function tableRow(table) {
  return element("tr", "",
    element("td", "name", element("span", "muted", table.source), tableLink(table),
      table.problem ? element("span", "problem", table.problem.message) : ""),
    element("td", "state", pill(table.state)),
    numberCell("Freshness", duration(table.freshness_us)));
}

/** A view that the view reads. */
function readRow(name) {
  const link = element("a", "", element("b", "", name));
  link.href = address(name);
  return element("tr", "", element("td", "name", link), element("td", "state", "a view"), element("td", ""));
}

function lakeRow(lake) {
  const words = lake.state || "not told yet";
  const states = { following: "streaming", building: "catching_up", stopped: "failed", waiting: "waiting" };
  return element("tr", "",
    element("td", "name", element("b", "", lake.lake), lake.message ? element("span", "problem", lake.message) : ""),
    element("td", "state", pill(states[lake.state] ?? "pending", words)),
    numberCell("Freshness", duration(lake.freshness_us)),
    numberCell("Rows", count(lake.rows)),
    element("td", "place mono", lake.cuts.map((cut) => `${cut.source} ${count(cut.cut)}`).join(", ")));
}

function sentence(view) {
  if (view.state === "streaming" && view.freshness_us !== null) return `It is ${duration(view.freshness_us)} behind now.`;
  const words = { streaming: "It follows its tables.", catching_up: "It catches up.", pending: "No lake has it yet.",
    waiting: "It waits.", failed: "It stands.", stopped: "A table that it reads is stopped." };
  return words[view.state] ?? view.state;
}

function showView(view) {
  $("view-title").textContent = view.view;
  $("view-state").replaceChildren(pill(view.state));
  $("all-views").href = address();
  $("search-view").href = addressOf("/search", { view: view.view });
  $("sentence").textContent = sentence(view);
  const reason = view.problem ?? view.plan_problem;
  $("reason").hidden = reason === null;
  $("reason").textContent = reason?.message ?? "";
  $("facts").replaceChildren(
    element("li", "", `Version ${view.version}, of ${instant(view.changed_at_us)}`),
    element("li", "", `${count(view.rows)} rows`));
  $("reads").replaceChildren(...view.tables.map(tableRow), ...view.views.map(readRow));
  $("lakes").replaceChildren(...view.lakes.map(lakeRow));
  $("no-lake").hidden = view.lakes.length > 0;
  $("sql").textContent = view.sql;
  $("plan").textContent = view.plan ? view.plan.lines.join("\n") : view.plan_problem.message;
}

openPage({
  read: (get) => Promise.all([
    get(`${tenantPath()}/views?limit=1000`),
    place.view ? get(`${tenantPath()}/views/${encodeURIComponent(place.view)}`) : null,
  ]),
  show: ([{ views }, view]) => {
    $("empty").hidden = views.length > 0;
    $("views-section").hidden = views.length === 0;
    $("view-section").hidden = view === null;
    redrawOthers($("views"), views.map(viewRow));
    if (view !== null) showView(view);
  },
});
