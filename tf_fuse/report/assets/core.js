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

const FORMS = {
  count: (value) => value.toLocaleString("en-US", { maximumFractionDigits: 2 }),
  bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(value) >= 1024 && unit < units.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return `${value.toLocaleString("en-US", { maximumFractionDigits: unit ? 1 : 0 })} ${units[unit]}`;
  },
  us: (value) => FORMS.seconds(value / 1e6),
  seconds(value) {
    const [by, unit] = value === 0 || Math.abs(value) >= 1 ? [1, "s"]
      : Math.abs(value) >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return `${(value * by).toLocaleString("en-US", { maximumSignificantDigits: 3 })} ${unit}`;
  },
  times: (value) => `${value.toLocaleString("en-US", { maximumFractionDigits: 2 })}×`,
  percent: (value) => `${Math.round(100 * value).toLocaleString("en-US")} %`,
};

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
  const most = end || Math.max(...rows.map(([, value]) => value), 0) || 1;
  const height = 24;
  const parts = rows.map(([label, value, path], index) => [
    draw("text", { x: 0, y: index * height + 16 }, label),
    draw("rect", { class: "bar-back", x: 90, y: index * height + 5, width: 170, height: 14, rx: 3 }),
    draw("rect", { class: `bar-fill ${kind}`, x: 90, y: index * height + 5, width: Math.max(0, (170 * value) / most), height: 14, rx: 3 }),
    draw("text", { x: 268, y: index * height + 16, ...marked(path, form) }, FORMS[form](value)),
  ]);
  const text = rows.map(([label, value]) => `${label}: ${FORMS[form](value)}`).join("; ");
  return make("figure", {},
    make("figcaption", {}, title),
    draw("svg", { viewBox: `0 0 350 ${rows.length * height}`, role: "img", "aria-label": `${title}. ${text}` }, parts));
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
