"use strict";
// Tables whose rows are sorted by a click on a heading.

// `columns` are [heading, cell of a row, value to sort by, is a number].
function table(columns, rows) {
  let order = { column: -1, down: false };
  const body = make("tbody");
  const fill = () => {
    const sorted = [...rows];
    if (order.column >= 0) {
      const value = columns[order.column][2] || columns[order.column][1];
      sorted.sort((a, b) => {
        const [x, y] = [value(a) ?? -Infinity, value(b) ?? -Infinity];
        return (x < y ? -1 : x > y ? 1 : 0) * (order.down ? -1 : 1);
      });
    }
    body.replaceChildren(...sorted.map((row) => make("tr", {}, ...columns.map(
      ([, cell, , right]) => make("td", { class: right ? "right" : null }, cell(row))))));
  };
  const headings = columns.map(([heading, , , right], column) => make("th", {
    class: right ? "right" : null,
    onclick: () => { order = { column, down: order.column === column ? !order.down : Boolean(right) }; fill(); },
  }, heading));
  fill();
  return make("table", {}, make("thead", {}, make("tr", {}, ...headings)), body);
}

function shareBar(share) { return make("span", { class: "share", style: `width: ${Math.round(120 * share)}px` }); }

// Times by operator and by collective add up those of all device groups, which run side by side.
function ofGroups(report) {
  return report.plan.stages > 1 ? ", added up over the device groups of the pipeline, which run side by side" : "";
}

function communicationView(report) {
  const rows = report.communication;
  if (!rows.length) return [section("Communication", "The program has no collectives.")];
  const total = rows.reduce((sum, row) => sum + row.seconds, 0);
  return [section("Communication",
    `What a device sends in a step, and why${ofGroups(report)}: ${secondsText(total)} in all, hidden or exposed. Equal redistributions of repeated layers are one row. `
    + "Blocking communication stops computation; gathers of parameters run ahead of it and reductions of gradients behind it.",
    table([
      ["time", (r) => secondsText(r.seconds), (r) => r.seconds, true],
      ["share", (r) => make("span", {}, shareBar(r.seconds / total), ` ${percent(r.seconds / total)}`), (r) => r.seconds],
      ["sends", (r) => bytesText(r.bytes), (r) => r.bytes, true],
      ["runs", (r) => String(r.count), (r) => r.count, true],
      ["collectives", (r) => make("span", {}, r.layers > 1 ? `${r.layers}x ` : "", r.collectives, make("small", {}, r.links.join(", "))), (r) => r.collectives],
      ["queue", (r) => r.queue, null],
      ["phase", (r) => r.phase, null],
      ["reason", (r) => make("span", {}, r.reason, r.lines && r.lines.length ? make("small", { class: "mono" }, r.lines.join(" · ")) : null), (r) => r.reason],
    ], rows))];
}

function strategiesView(report) {
  const rows = report.strategies;
  const total = rows.reduce((sum, row) => sum + row.seconds, 0);
  const best = (row) => row.alternatives[0];
  return [section("Strategies",
    "Each operator with its strategy: the mesh axes that split each factor, and the slices of each operand. Times are of forward, backward and the communication that the operator needs, in the serial step" + ofGroups(report) + ". "
    + (report.no_alternatives ? `Other strategies are not priced: ${report.no_alternatives}.`
      : "The next best strategy is priced for one operator (of equal ones, the middle one) while all others keep theirs; parameters and shared tensors next to it "
      + "follow. The price is what the serial step is longer by, without a memory limit; a negative one shows what the plan gives up for overlap or memory. "
      + "It is an upper bound: where the others may change as well, the step is longer by that or less; `compile --strategies` with this one pinned tells by how much."),
    table([
      ["operator", (r) => make("span", {}, r.path, r.count > 1 ? make("small", {}, `${r.count}x`) : null), (r) => r.path],
      ["strategy", (r) => make("span", { class: "mono" }, r.strategy || "not split"), (r) => r.strategy],
      ["split counts", (r) => make("span", { class: "mono" }, r.split_counts), (r) => r.split_counts],
      ["time", (r) => secondsText(r.seconds), (r) => r.seconds, true],
      ["share", (r) => make("span", {}, shareBar(r.seconds / total), ` ${percent(r.seconds / total)}`), (r) => r.seconds],
      ["next best", (r) => best(r) ? make("span", { class: "mono" }, best(r).strategy || "not split") : "", (r) => best(r) ? best(r).strategy : ""],
      ["costs more, each, others as they are", (r) => best(r) ? secondsText(best(r).seconds) : "", (r) => best(r) ? best(r).seconds : -1, true],
    ], rows))];
}
