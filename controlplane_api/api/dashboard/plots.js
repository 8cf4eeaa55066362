// Plots of a source's lag and rows a second by stage, of the history that the API keeps.

import uPlot from "./uplot.js";
import { $, count, duration } from "./shared.js";

const LEAST_SECONDS = 60; // of the axis of time
const HEIGHT = 190; // px

const [MINUTE, HOUR, DAY] = [60, 3600, 86_400]; // seconds

// `of`: the columns of a history; `steps`: between two marks of the axis, such that `words` round no mark
const LAG = {
  id: "lag-plot", least: 1, words: (seconds) => duration(seconds * 1e6), series: [["Source", "--busy"], ["Landed", "--accent"], ["Lake", "--wait"]],
  of: ["source_lag_seconds", "landed_lag_seconds", "lake_lag_seconds"],
  steps: [
    0.1, 0.2, 0.5, 1, 2, 5, 10, 30, ...[1, 2, 5, 10, 30].map((each) => each * MINUTE), ...[1, 2, 5].map((each) => each * HOUR),
    ...[0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000].map((each) => each * DAY),
  ],
};
const RATE = {
  id: "rate-plot", least: 10, words: (rows) => count(Math.round(rows)), series: [["Read", "--busy"], ["Landed", "--accent"], ["Lake", "--wait"]],
  of: ["read_rows_per_second", "landed_rows_per_second", "lake_rows_per_second"],
  steps: [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power)),
};

let drawn = []; // plots that stand there
let shown = null; // the history that they show

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** Of the cursor's instant; without a cursor the newest. */
const legend = (words) => (plot, value, series, at) => {
  const found = at === null ? plot.data[series].at(-1) : value;
  return found === null || found === undefined ? "–" : words(found);
};

function makePlot({ id, least, words, series, steps }, data) {
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const box = $(id);
  box.replaceChildren();
  return new uPlot({
    width: box.clientWidth,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false } },
    scales: {
      x: { range: (_plot, first, last) => [Math.min(first, last - LEAST_SECONDS), last] },
      y: { range: (_plot, _lowest, most) => [0, Math.max((most ?? 0) * 1.1, least)] },
    },
    axes: [axis, { ...axis, size: 70, incrs: steps, values: (_plot, marks) => marks.map(words) }],
    series: [
      { label: "Time", value: legend((at) => new Date(at * 1000).toLocaleTimeString()) },
      ...series.map(([label, name]) => ({ label, stroke: colour(name), width: 2, value: legend(words) })),
    ],
  }, data, box);
}

/** Whether the library that draws them is installed. */
export const canPlot = uPlot !== null;

/** Draws a history, as the API tells it; null: there is none. */
export function showPlots(history) {
  $("plots").hidden = !canPlot || history === null;
  if ($("plots").hidden || history === shown) return;
  const times = history.at_us.map((at) => at / 1e6);
  const data = [LAG, RATE].map(({ of }) => [times, ...of.map((name) => history[name])]);
  if (shown !== null) drawn.forEach((plot, at) => plot.setData(data[at]));
  else drawn = [LAG, RATE].map((kind, at) => makePlot(kind, data[at]));
  shown = history;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  const history = shown;
  shown = null; // in other colours
  showPlots(history);
});

new ResizeObserver(() => {
  for (const plot of drawn) {
    const width = plot.root.parentElement.clientWidth;
    if (width && width !== plot.width) plot.setSize({ width, height: HEIGHT });
  }
}).observe($("plots"));
