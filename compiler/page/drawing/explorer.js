"use strict";
// All plans of a family: step against memory, what each is made of, and what one change does.

const FITS = ["does not fit", "may fit by a lower bound", "fits"];
const FITS_COLOURS = ["#c3ccd5", "#e09f3e", "#2a7d4f"];
const GIB = 2 ** 30;

function plansOf(report) {
  return report.plans.map(([text, values, seconds, bytes, fits, parts, kinds, evaluated], number) => {
    const fields = Object.fromEntries(report.fields.map((name, i) => [name, values[i]]));
    return { number, text, fields, seconds, bytes, fits, parts, kinds, evaluated };
  });
}

// What of a plan is chosen: data ranks follow from the other degrees, chunks and order are one thing.
function choicesOf(plan) {
  const { tensor, pipeline, chunks, order, recompute, zero, micro_batch: samples } = plan.fields;
  return { tensor, pipeline, schedule: pipeline > 1 ? `${order}, ${chunks} chunk${chunks > 1 ? "s" : ""}` : "none",
    recompute, zero, "micro-batch": samples };
}

// Plans that differ in one choice; where stages come or go, their schedule comes with them.
function oneChange(plan, plans) {
  const own = choicesOf(plan), found = [];
  for (const other of plans) {
    const its = choicesOf(other);
    let differ = Object.keys(own).filter((name) => own[name] !== its[name]);
    if (differ.includes("pipeline")) {
      const plain = [own, its].every((one) => one.schedule === "none" || one.schedule === "1f1b, 1 chunk");
      if (plain) differ = differ.filter((name) => name !== "schedule");
    }
    if (differ.length === 1) found.push([differ[0], other]);
  }
  return found;
}

function changeText(name, plan) {
  const value = choicesOf(plan)[name];
  const data = ["tensor", "pipeline"].includes(name) ? `, data=${plan.fields.data}` : "";
  return `${name}=${value}${data}`;
}

function bars(names, values, text) {
  const most = Math.max(...values);
  return table([
    ["", (row) => row[0]],
    ["", (row) => make("span", { class: "share", style: `width: ${Math.round(110 * row[1] / most)}px` })],
    ["", (row) => text(row[1]), (row) => row[1], true],
  ], names.map((name, i) => [name, values[i]]).filter((row) => row[1] > 0));
}

function signed(share) { return `${share >= 0 ? "+" : "-"}${(100 * Math.abs(share)).toFixed(1)}%`; }

function detail(report, plans, plan, choose) {
  const tokens = report.tokens ? ` · ${numberText(report.tokens / plan.seconds / report.devices)} tokens/s on each device` : "";
  const changes = oneChange(plan, plans), how = plan.evaluated ? "simulated" : "lower bounds";
  return make("div", {},
    make("h3", { class: "mono" }, plan.text),
    make("p", {}, `${secondsText(plan.seconds)} a step${tokens} · ${bytesText(plan.bytes)} of ${bytesText(report.limit_bytes)} · ${FITS[plan.fits]} · ${how}`),
    make("h3", {}, "The step is made of"), bars(report.parts, plan.parts, secondsText),
    make("h3", {}, "The memory is made of"), bars(report.kinds, plan.kinds, bytesText),
    make("h3", {}, "What one change would do"),
    changes.length ? make("div", { class: "wide" }, table([
      ["change", ([name, other]) => make("a", { href: "#plan", onclick: (event) => { event.preventDefault(); choose(other); } }, changeText(name, other)), ([name, other]) => changeText(name, other)],
      ["step", ([, other]) => signed(other.seconds / plan.seconds - 1), ([, other]) => other.seconds, true],
      ["memory", ([, other]) => bytesText(other.bytes), ([, other]) => other.bytes, true],
      ["fits", ([, other]) => ["no", "perhaps", "yes"][other.fits], ([, other]) => other.fits],
    ], changes.sort((a, b) => a[1].seconds - b[1].seconds))) : make("p", {}, "No plan of the family differs in one choice alone."));
}

// The plans of a choice: a list for every choice that has several values.
function filters(plans, draw) {
  const chosen = {}, names = { ...choicesOf(plans[0]), data: 0, fits: 0 };
  const valueOf = (plan, name) => (name === "fits" ? FITS[plan.fits] : name === "data" ? plan.fields.data : choicesOf(plan)[name]);
  const lists = Object.keys(names).map((name) => {
    const values = [...new Set(plans.map((plan) => valueOf(plan, name)))];
    values.sort((a, b) => (typeof a === "number" ? a - b : a < b ? -1 : 1));
    if (values.length < 2) return null;
    const list = make("select", { "aria-label": name, onchange: (event) => {
      chosen[name] = event.target.value;
      draw(plans.filter((plan) => Object.entries(chosen).every(([key, value]) => value === "" || String(valueOf(plan, key)) === value)));
    } }, make("option", { value: "" }, `${name}: all`), ...values.map((value) => make("option", { value: String(value) }, `${name}: ${value}`)));
    return list;
  });
  return make("div", { class: "controls" }, ...lists);
}

function explorerView(report, plans) {
  const place = make("div", { class: "detail" }), count = make("p");
  let drawn = null, shown = plans, current = null;
  const choose = (plan) => {
    current = plan;
    place.replaceChildren(detail(report, plans, plan, choose));
    if (drawn) drawn.setOption({ series: [...FITS.map((_, i) => ({ id: `fits${i}` })), marked()] });
  };
  const marked = () => ({ id: "chosen", type: "scatter", symbolSize: 16, z: 5, silent: true,
    itemStyle: { color: "transparent", borderColor: "#1c2733", borderWidth: 2 },
    data: current ? [[current.bytes / GIB, current.seconds]] : [] });
  const series = () => [...FITS.map((name, fits) => ({
    id: `fits${fits}`, name, type: "scatter", symbolSize: 6, z: 2 + fits, itemStyle: { color: FITS_COLOURS[fits], opacity: 0.75 },
    data: shown.filter((plan) => plan.fits === fits).map((plan) => ({ value: [plan.bytes / GIB, plan.seconds], plan: plan.number })),
    markLine: fits ? undefined : { symbol: "none", silent: true, lineStyle: { color: "#5b6b7b" }, data: [
      { xAxis: report.limit_bytes / GIB, label: { formatter: "memory limit" } },
      ...(report.full_rate_seconds ? [{ yAxis: report.full_rate_seconds, label: { formatter: "100 % MFU", position: "insideEndTop" } }] : []),
    ] },
  })), marked()];
  const draw = (some) => {
    shown = some;
    count.textContent = `${some.length} of ${plans.length} plans, ${some.filter((plan) => plan.fits).length} of them fit or may do so. A click on a point tells what it is.`;
    if (drawn) drawn.setOption({ series: series() });
  };
  const seconds = plans.map((plan) => plan.seconds), least = Math.min(...seconds, report.full_rate_seconds || Infinity);
  const cloud = chart(520, {
    grid: { left: 64, right: 24, top: 40, bottom: 48 }, legend: { top: 0, data: FITS },
    tooltip: { formatter: (point) => (point.data.plan === undefined ? "" : `${plans[point.data.plan].text.replaceAll(",", ", ")}<br>${secondsText(point.value[1])}, ${bytesText(point.value[0] * GIB)}`), confine: true, extraCssText: "white-space: normal; max-width: 320px" },
    xAxis: { type: "log", logBase: 2, name: "memory of a device, GiB", nameLocation: "middle", nameGap: 28,
      min: 2 ** Math.floor(Math.log2(Math.min(...plans.map((plan) => plan.bytes)) / GIB)), axisLabel: { formatter: numberText, hideOverlap: true } },
    yAxis: { type: "log", logBase: 2, name: "step", min: 2 ** Math.floor(Math.log2(least)), axisLabel: { formatter: secondsText } },
    series: series(),
  }, (made) => {
    drawn = made;
    made.on("click", (point) => { if (point.data.plan !== undefined) choose(plans[point.data.plan]); });
  });
  draw(plans);
  const best = plans.find((plan) => plan.text === report.best) || plans[0];
  choose(best);
  return section("Plans", "Steps and memory of plans that may be the fastest are simulated; those of the others are lower bounds, by which they are slower than the best or do not fit.",
    filters(plans, draw), count, make("div", { class: "columns" }, cloud, place));
}

function curveView(report, curve) {
  const speed = curve.points.every((point) => point.tokens_per_second_per_device);
  const value = (point) => (speed ? point.tokens_per_second_per_device : point.step_seconds);
  const own = curve.points.find((point) => point.size === curve.own);
  return section(`Over ${curve.over}`, `The best of four plans that fit, those of the least bounds, with all else as it is${own ? `; asked for: ${curve.own.toLocaleString("en")}` : ""}.`,
    chart(220, {
      grid: { left: 72, right: 24, top: 24, bottom: 44 },
      tooltip: { trigger: "axis", confine: true, formatter: ([point]) => `${curve.points[point.dataIndex].plan.replaceAll(",", ", ")}<br>${secondsText(curve.points[point.dataIndex].step_seconds)}, ${bytesText(curve.points[point.dataIndex].memory_bytes)}`, extraCssText: "white-space: normal; max-width: 320px" },
      xAxis: { type: "category", data: curve.points.map((point) => point.size.toLocaleString("en")), name: curve.over, nameLocation: "middle", nameGap: 26 },
      yAxis: { name: speed ? "tokens/s on each device" : "step", min: 0, axisLabel: { formatter: (number) => (speed ? numberText(number) : secondsText(number)) } },
      series: [{ type: "line", symbolSize: 9, data: curve.points.map((point) => ({ value: value(point), itemStyle: { color: point.size === curve.own ? "#b85c00" : "#2463a8" } })) }],
    }),
    make("div", { class: "wide" }, table([
      [curve.over, (point) => point.size.toLocaleString("en"), (point) => point.size, true],
      ["fastest plan", (point) => make("span", { class: "mono" }, point.plan), (point) => point.plan],
      ["step", (point) => secondsText(point.step_seconds), (point) => point.step_seconds, true],
      ["tokens/s each", (point) => (point.tokens_per_second_per_device ? numberText(point.tokens_per_second_per_device) : ""), (point) => point.tokens_per_second_per_device, true],
      ["memory", (point) => bytesText(point.memory_bytes), (point) => point.memory_bytes, true],
    ], curve.points)));
}

function explorerFacts(report) {
  const built = report.built;
  const facts = built ? [
    ["step", secondsText(built.step_seconds), report.software ? `as ${report.software} runs it` : "built"],
    report.tokens ? ["tokens", `${numberText(report.tokens / built.step_seconds / report.devices)}/s`, "on each device"] : null,
    ["MFU", percent(built.model_flops_utilization), ""],
    ["memory", bytesText(built.memory_bytes), `of ${bytesText(report.limit_bytes)}`],
  ] : [["plans that fit", "0", "of those built"]];
  return factElements(facts);
}

function start() {
  const report = JSON.parse(document.getElementById("document").textContent), plans = plansOf(report);
  document.title = `${report.model}: fit, shardwright`;
  document.getElementById("title").textContent = report.model;
  document.getElementById("said").replaceChildren(...report.said.map(sentenceElement));
  document.getElementById("subtitle").textContent = `${report.devices} device${report.devices > 1 ? "s" : ""} of ${report.cluster}, batch ${report.batch}${report.sequence ? ` of ${report.sequence.toLocaleString("en")} tokens` : ""}, precision ${report.precision}, optimizer ${report.optimizer}`;
  document.getElementById("facts").replaceChildren(...explorerFacts(report));
  const view = document.getElementById("view");
  view.replaceChildren(...(plans.length ? [explorerView(report, plans)] : []), ...report.curves.filter((curve) => curve.points.length > 1).map((curve) => curveView(report, curve)));
}

start();
