"use strict";
// The model as a folded graph: rows in program order, edges in the margin.

const ROW = 27, LANE = 9, GUTTER = 150, MOST_OPEN = 40;

function modelView(report) {
  const tree = report.model.boxes.map((box) => boxOf(box, null));
  openUntil(tree, MOST_OPEN);
  const place = make("div", { class: "model" });
  const detail = make("aside", { class: "detail" }, make("h3", {}, "Choose an operator"),
    make("p", {}, "Its operands with their layouts, its strategy and its time are shown here."));
  const state = { report, tree, place, detail, chosen: null };
  const redraw = () => drawModel(state);
  state.redraw = redraw;
  const folds = [
    make("button", { onclick: () => { setAll(tree, false); redraw(); } }, "fold all"),
    make("button", { onclick: () => { setAll(tree, true); redraw(); } }, "open all"),
    make("span", {}, make("span", { class: "key", style: "background: #9db4cc" }), "read as it is made"),
    make("span", {}, make("span", { class: "key", style: "background: #b85c00" }), "redistributed on the way"),
  ];
  redraw();
  return [section("Model",
    `${report.model.operators} operators, ${report.model.drawn} of them drawn: equal layers that follow each other are one box with its count. `
    + `A layout says which mesh axes split each dimension, * for none. Times are of forward, backward and communication, of all layers of a box${ofGroups(report)}.`,
    make("div", { class: "controls" }, ...folds),
    make("div", { class: "columns" }, place, detail))];
}

function boxOf(content, parent) {
  const box = { content, parent, open: false, children: [] };
  box.children = (content.children || []).map((child) => boxOf(child, box));
  return box;
}

function isScope(box) { return box.content.children !== undefined; }

// Opens scopes, the outer ones first, while not too many rows are shown.
function openUntil(tree, most) {
  let shown = tree.length;
  let waiting = tree.filter(isScope);
  while (waiting.length) {
    const box = waiting.shift();
    if (shown + box.children.length > most) continue;
    box.open = true;
    shown += box.children.length;
    waiting.push(...box.children.filter(isScope));
  }
}

function setAll(boxes, open) {
  for (const box of boxes) {
    box.open = open;
    setAll(box.children, open);
  }
}

function visibleRows(boxes, depth, rows) {
  for (const box of boxes) {
    box.row = rows.length;
    rows.push({ box, depth });
    if (box.open) visibleRows(box.children, depth + 1, rows);
    else hide(box.children, box.row);
  }
  return rows;
}

function hide(boxes, row) {
  for (const box of boxes) {
    box.row = row;
    hide(box.children, row);
  }
}

function drawModel(state) {
  const rows = visibleRows(state.tree, 0, []);
  const operators = new Map();
  const collect = (boxes) => boxes.forEach((box) => isScope(box) ? collect(box.children) : operators.set(box.content.id, box));
  collect(state.tree);
  const total = sumSeconds(state.tree) + state.report.model.other_seconds;
  state.place.style.setProperty("--row", `${ROW}px`);
  state.place.style.setProperty("--gutter", `${GUTTER}px`);
  const elements = rows.map(({ box, depth }) => rowElement(state, box, depth, total));
  state.place.replaceChildren(edgesElement(edgesOf(operators), rows.length), ...elements);
}

function sumSeconds(boxes) { return boxes.reduce((sum, box) => sum + box.content.seconds, 0); }

function rowElement(state, box, depth, total) {
  const content = box.content, scope = isScope(box);
  const moved = !scope && content.reads.some((read) => read.made !== read.taken);
  const parts = scope
    ? [make("span", { class: "name scope" }, `${box.open ? "▾" : "▸"} ${content.scope}`), times(content.count)]
    : [make("span", { class: "name" }, content.operator), times(box.parent ? 1 : content.count),
      make("span", { class: `layout mono${moved ? " moved" : ""}` }, layoutsText(content))];
  const stages = content.stages.length ? make("span", { class: "layout" }, stagesText(content.stages)) : null;
  const share = total ? content.seconds / total : 0;
  const element = make("div", {
    class: `row${state.chosen === box ? " chosen" : ""}`,
    style: `--depth: ${depth}`,
    onclick: () => {
      if (scope) box.open = !box.open;
      else { state.chosen = box; showDetail(state, box); }
      state.redraw();
    },
  }, ...parts, stages, make("span", { class: "time" }, `${secondsText(content.seconds)} `, make("span", { class: "share", style: `width: ${Math.round(60 * share)}px` })));
  return element;
}

function times(count) { return count > 1 ? make("span", { class: "times" }, `${count}x`) : null; }

function stagesText(stages) {
  const [first, last] = [stages[0], stages[stages.length - 1]];
  return first === last ? `stage ${first}` : `stages ${first} to ${last}`;
}

function layoutsText(content) {
  const made = content.makes.map((result) => result.layout || "whole").join(" ");
  const moved = content.reads.filter((read) => read.made !== read.taken).map((read) => `${read.made} → ${read.taken}`);
  return moved.length ? `${made}   takes ${moved.join(", ")}` : made;
}

// Edges between rows: one for each pair of rows, marked where a tensor is redistributed on the way.
function edgesOf(operators) {
  const edges = new Map();
  for (const box of operators.values()) {
    for (const read of box.content.reads) {
      const from = read.from === null ? null : operators.get(read.from);
      if (!from || from.row >= box.row) continue;
      const key = `${from.row} ${box.row}`;
      const edge = edges.get(key) || { from: from.row, to: box.row, moved: false };
      edge.moved = edge.moved || read.made !== read.taken;
      edges.set(key, edge);
    }
  }
  return [...edges.values()].sort((a, b) => (a.to - a.from) - (b.to - b.from));
}

// Gives each edge the innermost lane that is free over its rows.
function edgesElement(edges, count) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", GUTTER);
  svg.setAttribute("height", count * ROW);
  const lanes = [];
  for (const edge of edges) {
    let lane = 0;
    while ((lanes[lane] || []).some((other) => other.from < edge.to && edge.from < other.to)) lane += 1;
    (lanes[lane] ||= []).push(edge);
    svg.append(edgePath(edge, lane));
  }
  return svg;
}

function edgePath(edge, lane) {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const right = GUTTER - 8, x = Math.max(4, right - 8 - LANE * (lane + 1));
  const [top, bottom] = [edge.from * ROW + ROW / 2 + 3, edge.to * ROW + ROW / 2 - 3];
  const bend = Math.min(8, (bottom - top) / 2);
  path.setAttribute("d", `M ${right} ${top} H ${x + bend} Q ${x} ${top} ${x} ${top + bend} V ${bottom - bend} Q ${x} ${bottom} ${x + bend} ${bottom} H ${right} m -5 -3 l 5 3 l -5 3`);
  path.setAttribute("fill", "none");
  path.setAttribute("stroke", edge.moved ? "#b85c00" : "#9db4cc");
  path.setAttribute("stroke-width", edge.moved ? 2 : 1.4);
  return path;
}

function showDetail(state, box) {
  const content = box.content;
  const priced = state.report.strategies.find((row) => row.operators.includes(content.name));
  state.detail.replaceChildren(...[
    make("h3", {}, `${content.scope ? `${content.scope}/` : ""}${content.operator}`),
    sentenceElement(`${content.count > 1 ? `${content.count} equal ones; the first is ` : ""}\`${content.name}\``),
    content.line ? fact("line", content.line) : null,
    fact("strategy", content.strategy || "not split"),
    fact("split counts", content.split_counts || "none"),
    fact("time", secondsText(content.seconds)),
    content.stages.length ? fact("pipeline", stagesText(content.stages)) : null,
    make("h3", {}, "reads"),
    ...content.reads.map((read) => tensorElement(read.tensor, read.type, read.made === read.taken ? read.made || "whole" : `${read.made} → ${read.taken}`, read.kind, read.made !== read.taken)),
    make("h3", {}, "makes"),
    ...content.makes.map((result) => tensorElement(result.tensor, result.type, result.layout || "whole", "", false)),
    ...alternativesElements(priced),
  ].filter(Boolean));
}

function alternativesElements(row) {
  if (!row || !row.alternatives.length) return [];
  return [make("h3", {}, "other strategies, and what each costs more"),
    ...row.alternatives.map((other) => fact(secondsText(other.seconds), other.strategy || "not split"))];
}

function fact(label, text) { return make("p", {}, `${label}: `, make("span", { class: "mono" }, text)); }

function tensorElement(name, type, layout, kind, moved) {
  return make("p", {}, kind ? `${kind} ` : "", make("span", { class: "mono" }, `${name}: ${type}`), make("br"),
    make("span", { class: `mono${moved ? " moved" : ""}`, style: moved ? "color: var(--moved)" : "" }, layout));
}
