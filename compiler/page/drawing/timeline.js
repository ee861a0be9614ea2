"use strict";
// The timeline: the segments of device groups, and the streams of one of them.

function timelineView(report) {
  const timeline = report.timeline;
  const found = [];
  if (timeline.segments.count) found.push(segmentsSection(report));
  found.push(streamsSection(report));
  return found;
}

function ganttOptions(rows, items, step, text) {
  return {
    grid: { left: sideWidth(rows, 150), right: 24, top: 10, bottom: 70 },
    tooltip: { formatter: (point) => text(point.value) },
    xAxis: { type: "value", min: 0, max: step, axisLabel: { formatter: secondsText, hideOverlap: true } },
    yAxis: { type: "category", data: rows, inverse: true, axisTick: { show: false } },
    dataZoom: [
      { type: "slider", xAxisIndex: 0, filterMode: "weakFilter", height: 20, bottom: 12, labelFormatter: secondsText },
      { type: "inside", xAxisIndex: 0, filterMode: "weakFilter" },
    ],
    series: [{ type: "custom", renderItem: drawBar, encode: { x: [1, 2], y: 0 }, data: items, progressive: 4000 }],
  };
}

function drawBar(parameters, api) {
  const start = api.coord([api.value(1), api.value(0)]), end = api.coord([api.value(2), api.value(0)]);
  const height = api.size([0, 1])[1] * 0.8, area = parameters.coordSys;
  const shape = echarts.graphic.clipRectByRect(
    { x: start[0], y: start[1] - height / 2, width: Math.max(end[0] - start[0], 0.5), height },
    { x: area.x, y: area.y, width: area.width, height: area.height });
  return shape && { type: "rect", shape, style: api.style() };
}

function segmentsSection(report) {
  const timeline = report.timeline, segments = timeline.segments, entries = segments.entries;
  const groups = 1 + Math.max(...entries.map((entry) => entry[0]));
  const items = entries.map((entry) => {
    const [group, , part, , start, end, , count] = entry;
    return { value: [group, start, end, entry], itemStyle: { color: COLOURS[part], opacity: count > 1 ? 0.5 : 1, borderColor: "#ffffff", borderWidth: 0.4 } };
  });
  const names = Array.from({ length: groups }, (_, group) => groupText(report, group));
  const text = ([, , , [, stage, part, number, start, , busy, count]]) => (stage === null
    ? `${part} the micro-batches` : `stage ${stage}, ${part} of micro-batch ${number}`) + (count > 1 ? ` and ${count - 1} more` : "")
    + `<br>${secondsText(busy)} from ${secondsText(start)}`;
  const merged = segments.merged_below_seconds
    ? ` Segments shorter than ${secondsText(segments.merged_below_seconds)} of one stage and part are merged with those next to them, and paler.` : "";
  return section("Pipeline",
    `${segments.count} segments of ${groups} device groups. ${secondsText(timeline.bubble_seconds)} of ${secondsText(timeline.step_seconds)} a device group waits for others, on average.${merged}`,
    legend(["forward", "backward", "weights", "before"], { weights: "gradients of weights", before: "outside of the loop over micro-batches" },
      (name) => entries.some((entry) => entry[2] === name || (name === "before" && entry[2] === "after"))),
    chart(Math.min(90 + 26 * groups, 700), ganttOptions(names, items, timeline.step_seconds, text)));
}

function streamsSection(report) {
  const timeline = report.timeline;
  const groups = [...new Set(timeline.rows.map((row) => row.group))];
  const place = make("div");
  const show = (group) => place.replaceChildren(...streamsOf(timeline, group));
  const controls = groups.length > 1
    ? make("div", { class: "controls" }, make("select", { onchange: (event) => show(Number(event.target.value)) },
      ...groups.map((group) => make("option", { value: group }, groupText(report, group))))) : null;
  if (groups.length) show(groups[0]);
  return section("Streams",
    "Nodes of a rank: it computes on one stream, and has the links of each level. "
    + `Communication takes ${secondsText(timeline.communication_seconds)}, of which computation waits for ${secondsText(timeline.exposed_communication_seconds)}. `
    + "Scroll to zoom, drag to move." + (timeline.left_out ? ` Not drawn: ${timeline.left_out}.` : ""),
    legend(["compute", "blocking", "gathers", "reductions"], {}, (name) => timeline.rows.some((row) => queueOf(row.name) === name)), controls, place);
}

function queueOf(name) { return name.split(": ").pop(); }

function streamsOf(timeline, group) {
  const rows = timeline.rows.filter((row) => row.group === group);
  const items = rows.flatMap((row, position) => row.entries.map((entry) => ({
    value: [position, entry[0], entry[1], entry],
    itemStyle: { color: COLOURS[queueOf(row.name)], opacity: entry[4] > 1 ? 0.45 + 0.4 * entry[2] / (entry[1] - entry[0]) : 0.95 },
  })));
  const text = ([, , , [start, , busy, label, count, micro]]) => `${escaped(timeline.labels[label])}`
    + (count > 1 ? ` and ${count - 1} more short nodes` : "") + `<br>${secondsText(busy)} from ${secondsText(start)}`
    + (micro ? `<br>micro-batch ${micro}` : "");
  const merged = rows.filter((row) => row.merged_below_seconds);
  const found = [chart(110 + 34 * rows.length, ganttOptions(rows.map((row) => row.name), items, timeline.step_seconds, text))];
  found.push(table([
    ["stream", (row) => row.name],
    ["busy", (row) => secondsText(row.busy_seconds), (row) => row.busy_seconds, true],
    ["of the step", (row) => percent(row.busy_seconds / timeline.step_seconds), (row) => row.busy_seconds, true],
    ["nodes", (row) => String(row.nodes), (row) => row.nodes, true],
    ["drawn as", (row) => row.merged_below_seconds
      ? `${row.entries.length} blocks: nodes shorter than ${secondsText(row.merged_below_seconds)} are merged with those beside them` : "one block each"],
  ], rows));
  if (merged.length) found.push(make("p", {}, "Paler blocks are several short nodes."));
  return found;
}

function escaped(text) { return text.replace(/&/g, "&amp;").replace(/</g, "&lt;"); }

function legend(names, titles, isUsed) {
  return make("div", { class: "controls" }, ...names.filter(isUsed).map((name) => make("span", {},
    make("span", { class: "key", style: `background: ${COLOURS[name]}; height: 10px` }), titles[name] || name)));
}
