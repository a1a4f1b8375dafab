// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What all parts of the page share. Every text comes in as a text node, never as markup.

const DATA = JSON.parse(document.getElementById("report-data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// Makes an element: attributes by name, "on…" as listeners, then children (texts or elements).
function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined));
  return element;
}

function bodyOf(part) {
  return document.querySelector(`#${part} > .body`);
}

// What a second and a byte are in other units, the largest unit first.
const UNITS = {
  seconds: [[1, "s"], [1e3, "ms"], [1e6, "µs"]],
  bytes: [[2 ** -40, "TiB"], [2 ** -30, "GiB"], [2 ** -20, "MiB"], [2 ** -10, "KiB"], [1, "B"]],
};

// The largest unit in which a value is 1 or more, and its name.
function unitOf(form, value) {
  const units = UNITS[form] ?? [[1, ""]];
  return units.find(([times]) => (value === 0 ? times === 1 : Math.abs(value) >= 1 / times)) ?? units.at(-1);
}

const FORMS = {
  count: (value) => value.toLocaleString("en-US", { maximumFractionDigits: 2 }),
  bytes(value) {
    const [times, unit] = unitOf("bytes", value);
    return `${(value * times).toLocaleString("en-US", { maximumFractionDigits: times === 1 ? 0 : 1 })} ${unit}`;
  },
  us: (value) => FORMS.seconds(value / 1e6),
  seconds(value) {
    const [times, unit] = unitOf("seconds", value);
    return `${(value * times).toLocaleString("en-US", { maximumSignificantDigits: 3 })} ${unit}`;
  },
  times: (value) => `${value.toLocaleString("en-US", { maximumFractionDigits: 2 })}×`,
  percent: (value) => `${Math.round(100 * value).toLocaleString("en-US")} %`,
};

// Draws an axis into an element. Its ticks are round numbers of one unit.
function drawAxis(element, kind, form, domain, range, count, length) {
  const [name, values] = form === "us" ? ["seconds", domain.map((value) => value / 1e6)] : [form, domain];
  const [times, unit] = unitOf(name, d3.max(values, Math.abs));
  const scale = d3.scaleLinear(values.map((value) => value * times), range);
  const digits = scale.tickFormat(count);
  d3.select(element).call(kind(scale).ticks(count).tickSizeInner(length).tickSizeOuter(0)
    .tickFormat((value) => (unit ? `${digits(value)} ${unit}` : digits(value))));
}

// A number of the report, with the place that it has in the JSON; "not known" if there is none.
function number(path, form = "count") {
  const value = valueAt(path);
  if (typeof value !== "number") return make("span", { class: "soft" }, "not known");
  return make("span", marked(path, form), FORMS[form](value));
}

function valueAt(path) {
  return path.reduce((at, key) => at?.[key], DATA);
}

// Attributes of an element that shows a number of the report.
function marked(path, form) {
  return typeof valueAt(path) === "number" ? { "data-path": JSON.stringify(path), "data-form": form } : {};
}

// A sum of numbers of the report; `what` names it.
function sum(what, value, form = "count") {
  return make("span", summed(what, value, form), FORMS[form](value));
}

// Attributes of an element that shows such a sum.
function summed(what, value, form) {
  return { "data-sum": what, "data-value": value, "data-form": form };
}

function plural(count, one, many = `${one}s`) {
  return `${FORMS.count(count)} ${count === 1 ? one : many}`;
}

// "ps:0" of "/job:ps/replica:0/task:0/device:CPU:0"; other devices than CPU:0 stay named.
function short(device) {
  const found = /^\/job:([^/]+)(?:\/replica:(\d+))?\/task:(\d+)(?:\/device:(.+))?$/.exec(device);
  if (!found) return device || "this process";
  const [, job, , task, unit] = found;
  return `${job}:${task}${!unit || unit === "CPU:0" ? "" : ` ${unit}`}`;
}

// Servers after the others, then by name and number.
function inOrder(tasks) {
  return [...new Set(tasks)].sort((a, b) => (a.includes("/job:ps") - b.includes("/job:ps"))
    || a.localeCompare(b, "en", { numeric: true }));
}

function taskOf(device) {
  return device.split("/device:")[0];
}

// Columns: [title, cell of a row, "n" for numbers or "wide"].
function table(caption, columns, rows, most = 100) {
  const body = make("tbody");
  const whole = make("table", {},
    caption ? make("caption", {}, caption) : null,
    make("thead", {}, make("tr", {}, columns.map(([title, , kind]) => make("th", { scope: "col", class: kind }, title)))),
    body);
  const box = make("div", { class: "tabled", tabindex: "0", role: "region", "aria-label": caption || "table" }, whole);
  let shown = 0;
  const more = make("button", { type: "button", onclick: add }, "");
  function add() {
    for (const row of rows.slice(shown, shown + most)) {
      body.append(make("tr", {}, columns.map(([, cell, kind]) => make("td", { class: kind }, cell(row)))));
    }
    shown = Math.min(rows.length, shown + most);
    more.textContent = `Show ${Math.min(most, rows.length - shown)} more of ${rows.length - shown}`;
    if (shown === rows.length) more.remove();
  }
  add();
  return make("div", {}, box, shown < rows.length ? more : null);
}

// Bars from 0, one for each row: [label, place of the value in the JSON]. `end` is the value of a whole bar.
function bars(title, places, form, kind = "", end = 0) {
  const rows = places.map(([label, path]) => [label, valueAt(path) ?? 0, path]);
  const most = end || Math.max(d3.max(rows, ([, value]) => value) ?? 0, 0);
  const range = [90, 260];
  const x = d3.scaleLinear([0, most || 1], range).clamp(true);
  const height = 24;
  const foot = rows.length * height;
  const axis = draw("g", { class: "axis", transform: `translate(0 ${foot})` });
  if (most) drawAxis(axis, d3.axisBottom, form, [0, most], range, 2, -foot);
  const parts = rows.map(([label, value, path], index) => [
    draw("text", { x: 0, y: index * height + 16 }, label),
    draw("rect", { class: `bar-fill ${kind}`, x: x(0), y: index * height + 5, width: x(value) - x(0), height: 14, rx: 3 }),
    draw("text", { x: 268, y: index * height + 16, ...marked(path, form) }, FORMS[form](value)),
  ]);
  const text = rows.map(([label, value]) => `${label}: ${FORMS[form](value)}`).join("; ");
  return make("figure", {},
    make("figcaption", {}, title),
    draw("svg", { viewBox: `0 0 350 ${foot + 22}`, role: "img", "aria-label": `${title}. ${text}` }, axis, parts));
}

// What a tensor is called for people: its variable, else the operation that makes it.
function nameOf(tensor) {
  return tensor.variable || tensor.producer || tensor.name;
}

// "train" of "__inference_train_17", as TensorFlow calls a traced function.
function traced(name) {
  return String(name).replace(/^__(?:inference|forward|backward)_(.+?)_\d+$/, "$1");
}

// The first part of a name: "table" of "table_0003", "deep" of "deep/layer_0/kernel".
function prefixOf(name) {
  const cut = name.lastIndexOf("/");
  if (cut > 0) return `${name.slice(0, cut)}/`;
  return name.replace(/(?:[_:.]?\d+)+$/, "") || name;
}
