// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The step as a picture: tasks are lanes, a group of tensors is an arrow.

// Lines that are drawn of one group; the text says how many there are.
const MOST_LINES = 24;
const LEFT = 64;
const HEAD = 44;
const LEAST_LANE = 96;
const MOST_LANE = 340;
// Between the lines of a group before it was fused.
const SPREAD = 2.6;

// Rows of a function: its groups, then what was left alone, together by devices and reason.
function rowsOf(fn) {
  const rows = fn.groups.map((group, index) => ({
    key: `g${index}`, path: ["groups", index], sender: taskOf(group.sender), receiver: taskOf(group.receiver),
    ends: [group.sender, group.receiver], depth: group.depth, group, tensors: group.tensors, after: 1,
  }));
  rows.sort((a, b) => a.depth - b.depth || a.sender.localeCompare(b.sender) || a.receiver.localeCompare(b.receiver));
  const alone = d3.groups(fn.left, (left) => `${left.sender} ${left.receiver} ${left.reason}`).map(([, lefts], index) => ({
    key: `l${index}`, sender: taskOf(lefts[0].sender), receiver: taskOf(lefts[0].receiver),
    ends: [lefts[0].sender, lefts[0].receiver], left: lefts[0], tensors: lefts.map((left) => left.tensor), after: lefts.length,
  }));
  rows.push(...alone.sort((a, b) => b.after - a.after));
  for (const row of rows) {
    row.known = d3.sum(row.tensors, (one) => one.bytes);
    row.unknown = row.tensors.filter((one) => typeof one.bytes !== "number").length;
    row.lines = Math.min(row.tensors.length, MOST_LINES);
  }
  return rows;
}

// The place that each tensor of a function has in the JSON.
function placesOf(fn, at) {
  return new Map([
    ...fn.groups.flatMap((group, index) => group.tensors.map((one, number) => [one, [...at, "groups", index, "tensors", number]])),
    ...fn.left.map((left, index) => [left.tensor, [...at, "left", index, "tensor"]]),
  ]);
}

function sizeText(row) {
  if (row.unknown === row.tensors.length) return "size not known";
  return FORMS.bytes(row.known) + (row.unknown ? ` and ${row.unknown} of unknown size` : "");
}

// How many tensors and bytes a row has: parts of a text of the picture.
function countLabel(row) {
  const shown = (what, value, form) => draw("tspan", summed(`${what} of row ${row.key}`, value, form), FORMS[form](value));
  const known = row.unknown < row.tensors.length;
  return [
    shown("tensors", row.tensors.length, "count"), row.tensors.length === 1 ? " tensor · " : " tensors · ",
    known ? shown("bytes", row.known, "bytes") : "size not known",
    known && row.unknown ? [" and ", shown("unknown", row.unknown, "count"), " of unknown size"] : "",
  ];
}

function stepPart() {
  const body = bodyOf("step");
  if (!DATA.functions.length) {
    body.append(make("p", {}, "No function was rewritten, or no task reported one. ",
      "Fused receives need the option ", make("code", {}, "do_fuse_recv"), " and the protocol ",
      make("code", {}, "grpc+fuse"), " in every task."));
    return;
  }
  const totals = DATA.functions.map((fn) => ({
    before: d3.sum(fn.groups, (group) => group.tensors.length) + fn.left.length,
    after: fn.groups.length + fn.left.length,
  }));
  const order = DATA.functions.map((_, index) => index).sort((a, b) => totals[b].before - totals[a].before || b - a);
  const choice = make("select", { id: "function", onchange: () => show(Number(choice.value)) },
    order.map((index) => {
      const fn = DATA.functions[index];
      const name = traced(fn.name) || `function ${index + 1}`;
      return make("option", { value: index }, `${name} on ${short(fn.task)}: ${totals[index].before} → ${totals[index].after} requests`);
    }));
  const slider = make("input", {
    type: "range", id: "slider", min: 0, max: 100, value: 100, step: 1, "aria-label": "Before and after the rewrite",
    oninput: () => moved(),
  });
  const search = make("input", {
    type: "search", id: "search", placeholder: "variable, tensor or operation", autocomplete: "off", spellcheck: "false",
    oninput: () => found(),
  });
  const counts = make("dl", { class: "cards", id: "step-counts" });
  const hits = make("p", { id: "hits", role: "status", class: "hits" });
  const view = make("div", { class: "scroll step-view", id: "step-view" });
  const detail = make("div", { id: "step-detail" });
  body.append(
    make("p", { class: "soft" }, "Each column is a task, each arrow a request. The width of a group's arrow grows with the square root of its bytes. They stand in the order in which a step can answer them. Move the slider to see them before tf_fuse; choose an arrow to see its tensors."),
    make("div", { class: "tools" },
      make("label", { class: "grow" }, "Function", choice),
      make("label", { class: "grow" }, "Search", search),
      make("div", { class: "range" }, make("span", { class: "ends" }, "before", slider, "after"))),
    hits, counts, legend(), view, detail);
  let rows = [];
  let placeOf = new Map();
  let lines = [];
  let picture = null;
  let shown = 0;

  function show(index) {
    shown = index;
    rows = rowsOf(DATA.functions[index]);
    placeOf = placesOf(DATA.functions[index], ["functions", index]);
    const unknown = d3.sum(rows, (row) => row.unknown);
    const fewer = totals[index].before ? 1 - totals[index].after / totals[index].before : 0;
    counts.replaceChildren(
      card("requests before", sum("before", totals[index].before)),
      card("requests after", sum("after", totals[index].after), [sum("fewer", fewer, "percent"), " fewer"]),
      card("groups", sum("groups", DATA.functions[index].groups.length)),
      card("left alone", sum("left", DATA.functions[index].left.length)),
      card("bytes between tasks", sum("bytes", d3.sum(rows, (row) => row.known), "bytes"),
        unknown ? `and ${unknown} tensors of unknown size` : "of all tensors"),
      card("within a task", number(["functions", index, "local_receives"]), "receives without a request"));
    detail.replaceChildren();
    drawRows();
    found();
  }

  function depthLabel(row) {
    const known = typeof row.depth === "number";
    return draw("tspan", marked(["functions", shown, ...row.path, "depth"], "count"), known ? FORMS.count(row.depth) : "not known");
  }

  function drawRows() {
    const lanes = inOrder(rows.flatMap((row) => [row.sender, row.receiver]));
    const room = (Math.max(view.clientWidth, 300) - LEFT - 10) / lanes.length;
    const lane = Math.min(Math.max(room, LEAST_LANE), MOST_LANE);
    const end = LEFT + lane * lanes.length;
    const at = d3.scalePoint(lanes, [LEFT, end]).padding(0.5);
    const width = end + 8;
    // By the root, so that a thousandth of the bytes is still seen.
    const thick = d3.scaleSqrt([0, d3.max(rows, (row) => row.known) || 1], [2, 18]);
    const pill = Math.min(112, lane - 8);
    let depth = null;
    const parts = [];
    for (const row of rows) {
      const label = row.left ? "left alone" : row.group.dynamic ? "dynamic" : `depth ${row.depth}`;
      row.mark = null;
      if (label !== depth) {
        row.mark = draw("g", {}, depth === null ? [] : draw("line", { class: "rule", x1: 0, x2: width, y1: 0, y2: 0 }),
          draw("text", { class: "soft-text", x: 6, y: 20 },
            row.left || row.group.dynamic ? label : ["depth ", depthLabel(row)]));
        parts.push(row.mark);
        depth = label;
      }
      row.x = [at(row.sender), at(row.receiver)];
      row.thick = thick(row.known);
      parts.push(rowPicture(row, width));
    }
    const heads = lanes.map((task) => draw("g", {},
      draw("rect", { class: "lane-head", x: at(task) - pill / 2, y: 6, width: pill, height: 26, rx: 13 }),
      draw("text", { x: at(task), y: 23.5, "text-anchor": "middle" }, short(task), draw("title", {}, task))));
    lines = lanes.map((task) => draw("line", { class: "lane", x1: at(task), x2: at(task), y1: 32 }));
    picture = draw("svg", { width, role: "group", "aria-label": "Requests of the step", id: "step-picture" }, lines, parts, heads);
    view.replaceChildren(picture);
    moved();
  }

  function rowPicture(row, width) {
    const fused = !row.left;
    const count = plural(row.tensors.length, "tensor");
    const text = `${count} · ${sizeText(row)}`;
    const why = fused ? "one request" : `${plural(row.after, "request")}, ${row.left.reason}`;
    row.paths = Array.from({ length: row.lines }, () => draw("path"));
    row.tip = draw("polygon");
    row.back = draw("rect", { class: "hit", x: LEFT - 4, y: 1, width: width - LEFT + 2, rx: 6 });
    row.text = draw("text", { class: "name", "text-anchor": "middle", x: (row.x[0] + row.x[1]) / 2, y: 16 },
      countLabel(row), fused ? "" : ` · ${row.left.reason}`);
    const tip = [`${short(row.ends[0])} → ${short(row.ends[1])}: ${why}, ${text}`,
      ...(fused ? [] : [row.left.meaning]),
      ...row.tensors.slice(0, 30).map((one) => nameOf(one) + (typeof one.bytes === "number" ? ` (${FORMS.bytes(one.bytes)})` : "")),
      ...(row.tensors.length > 30 ? [`and ${row.tensors.length - 30} more`] : [])].join("\n");
    row.element = draw("g", {
      class: fused ? "row" : "row left", tabindex: "0", role: "button", "aria-expanded": "false", "data-row": row.key,
      "aria-label": `${short(row.ends[0])} to ${short(row.ends[1])}, ${why}, ${text}`,
      onclick: () => open(row), onkeydown: (event) => key(event, row),
    }, draw("title", {}, tip), row.back, row.paths, row.tip, row.text);
    return row.element;
  }

  // Draws all arrows for the slider's place: 0 before, 1 after the rewrite.
  function moved() {
    const place = Number(slider.value) / 100;
    slider.setAttribute("aria-valuetext", place === 1 ? "after" : place === 0 ? "before" : `${slider.value} % of the way`);
    let y = HEAD;
    for (const row of rows) {
      const [from, to] = row.x;
      const fused = row.left ? 0 : place;
      const spread = SPREAD * (1 - fused);
      const whole = fused === 1;
      const half = Math.max((spread * (row.lines - 1)) / 2, (row.thick * fused) / 2);
      const middle = 25 + half;
      const head = Math.max(4.5, half + 3 * fused + 1.5);
      const tip = to + (to >= from ? -10 : 10);
      row.paths.forEach((path, index) => {
        const off = whole ? 0 : (index - (row.lines - 1) / 2) * (spread + (row.thick / row.lines) * fused);
        path.setAttribute("d", from === to ? `M${from} ${middle + off - 5}h34v10h-28` : `M${from} ${middle + off}H${tip}`);
        path.setAttribute("stroke-width", whole ? row.thick : row.left ? 1.4 : 1.2 + (row.thick / row.lines) * fused);
        path.setAttribute("stroke-dasharray", row.left ? "5 3" : "none");
        path.setAttribute("visibility", whole && index ? "hidden" : "visible");
      });
      row.tip.setAttribute("points", `${tip},${middle - head} ${tip},${middle + head} ${to},${middle}`);
      const height = middle + head + 7;
      row.back.setAttribute("height", height - 3);
      row.element.setAttribute("transform", `translate(0 ${y})`);
      row.mark?.setAttribute("transform", `translate(0 ${y})`);
      y += height;
    }
    picture.setAttribute("height", y + 8);
    for (const one of lines) one.setAttribute("y2", y + 8);
  }

  function key(event, row) {
    if (event.key === "Enter" || event.key === " ") open(row);
    else if (event.key === "Escape") close();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      rows[rows.indexOf(row) + (event.key === "ArrowDown" ? 1 : -1)]?.element.focus();
    } else return;
    event.preventDefault();
  }

  function close() {
    detail.replaceChildren();
    for (const row of rows) row.element.setAttribute("aria-expanded", "false");
  }

  function open(row) {
    const was = row.element.getAttribute("aria-expanded") === "true";
    close();
    if (was) return;
    row.element.setAttribute("aria-expanded", "true");
    const fused = !row.left;
    detail.append(make("div", { class: fused ? "detail" : "detail left", id: "tensors" },
      make("button", { type: "button", class: "close", onclick: () => { close(); row.element.focus(); } }, "Close"),
      make("h3", {}, `${short(row.ends[0])} → ${short(row.ends[1])}: ${plural(row.tensors.length, "tensor")}, ${sizeText(row)}`),
      fused
        ? make("p", {}, "They travel in ", make("b", {}, row.group.dynamic ? "shared requests" : "one request"),
          ` in place of ${plural(row.tensors.length, "request")}.`,
          row.group.loop ? ` They are in the loop ${row.group.loop}.` : "")
        : make("p", {}, make("span", { class: "pill left" }, row.left.reason), " ", row.left.meaning),
      tensorList(row.tensors)));
  }

  // Searches all functions, and shows the rows of this one.
  function found() {
    const word = search.value.trim().toLowerCase();
    let tensors = 0;
    let matching = 0;
    for (const row of rows) {
      const count = word ? row.tensors.filter((one) => matches(one, word)).length : 0;
      tensors += count;
      matching += count ? 1 : 0;
      row.element.classList.toggle("found", count > 0);
      row.element.classList.toggle("dim", Boolean(word) && count === 0);
    }
    if (!word) {
      hits.replaceChildren();
      return;
    }
    const elsewhere = DATA.functions.filter((fn, index) => index !== shown
      && (fn.groups.some((group) => group.tensors.some((one) => matches(one, word))) || fn.left.some((left) => matches(left.tensor, word)))).length;
    const first = rows.find((row) => row.element.classList.contains("found"));
    hits.replaceChildren(
      tensors ? `${plural(tensors, "tensor")} in ${plural(matching, "arrow")}. ` : "No tensor of this function matches. ",
      elsewhere ? `${plural(elsewhere, "other function")} too. ` : "",
      first ? make("button", { type: "button", id: "show-hit", onclick: () => {
        if (first.element.getAttribute("aria-expanded") !== "true") open(first);
        first.element.focus();
      } }, "Show the first") : "");
  }

  function matches(tensor, word) {
    return tensor.name.toLowerCase().includes(word) || tensor.variable.toLowerCase().includes(word)
      || tensor.producer.toLowerCase().includes(word) || tensor.consumer.toLowerCase().includes(word);
  }

  // Tensors by the prefix of what they are called; few of them at once.
  function tensorList(tensors) {
    const columns = [
      ["variable", (one) => one.variable || make("span", { class: "soft" }, "–"), "wide"],
      ["computed by", (one) => one.producer, "wide"],
      ["read by", (one) => one.consumer || make("span", { class: "soft" }, "–"), "wide"],
      ["tensor", (one) => one.name, "wide"],
      ["type", (one) => one.dtype + (one.may_be_dead ? ", may be dead" : "")],
      ["bytes", (one) => number([...placeOf.get(one), "bytes"]), "n"],
    ];
    const word = search.value.trim().toLowerCase();
    const sorted = word ? [...tensors].sort((a, b) => matches(b, word) - matches(a, word)) : tensors;
    if (tensors.length <= 40) return table("Tensors", columns, sorted);
    const byPrefix = d3.groups(sorted, (one) => prefixOf(nameOf(one)));
    return make("div", {}, byPrefix.map(([prefix, ones]) => {
      const known = d3.sum(ones, (one) => one.bytes);
      const inner = make("details", {},
        make("summary", {}, make("b", {}, ones.length === 1 ? nameOf(ones[0]) : `${prefix}…`), ` ${plural(ones.length, "tensor")}, `, sum(`bytes of ${prefix}`, known, "bytes")));
      const fillIn = () => { if (inner.open && !inner.querySelector("table")) inner.append(table("", columns, ones)); };
      inner.addEventListener("toggle", fillIn);
      if (byPrefix.length === 1 || (word && matches(ones[0], word))) {
        inner.open = true;
        fillIn();
      }
      return inner;
    }));
  }

  show(order[0]);
  window.addEventListener("resize", () => {
    const open = rows.find((row) => row.element.getAttribute("aria-expanded") === "true");
    drawRows();
    open?.element.setAttribute("aria-expanded", "true");
    found();
  });
}

function card(title, value, small) {
  return make("div", {}, make("dt", {}, title), make("dd", {}, value, small ? make("small", {}, small) : null));
}

function legend() {
  const line = (kind, dash) => draw("svg", { width: 34, height: 12, "aria-hidden": "true" },
    draw("line", { x1: 0, x2: 34, y1: 6, y2: 6, stroke: `var(--${kind})`, "stroke-width": dash ? 2 : 6, "stroke-dasharray": dash }));
  return make("ul", { class: "legend" },
    make("li", {}, line("fused"), "fused: one request"),
    make("li", {}, line("left", "5 3"), "left alone: a request for each tensor"));
}
