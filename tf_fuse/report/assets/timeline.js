// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The timeline: when each task computed, waited and for whom, and the critical path of a step.

function timelinePart() {
  const body = bodyOf("timeline");
  const line = DATA.timeline;
  if (!line) {
    body.append(make("p", {}, "No steps were recorded. ", make("code", {}, "tf_fuse.report.record(seconds)"),
      " on the coordinator records those that run meanwhile; so does ", make("code", {}, "tf-fuse report --record SECONDS"), "."));
    return;
  }
  const variables = new Map();
  for (const fn of DATA.functions) {
    for (const group of fn.groups) for (const one of group.tensors) if (one.variable) variables.set(one.name, one.variable);
    for (const left of fn.left) if (left.tensor.variable) variables.set(left.tensor.name, left.tensor.variable);
  }
  const calledTensor = (name) => (variables.has(name) ? `${variables.get(name)} (${name})` : name || "not known");
  const lanes = inOrder([...line.lanes.map((lane) => lane.task), ...line.transfers.flatMap((one) => [one.receiver, one.sender])]);
  // Numbers of pixels, but for LEAST_US: the shortest time that can fill the width.
  const [NAME, RIGHT, TOP, MOST_LEVELS, LEAST_US] = [84, 12, 26, 8, 10];
  const windows = line.steps.map(({ start_us: start, end_us: end }) => {
    const margin = Math.max((end - start) * 0.04, 1);
    return [start - margin, end + margin];
  });
  const [first, last] = d3.extent([0, Math.max(line.duration_us, 1), ...windows.flat()]);
  const receives = stacked();
  const tops = new Map();
  let height = TOP;
  for (const task of lanes) {
    tops.set(task, height);
    height += 42 + 8 * (d3.max(receives, (one) => (one.transfer.receiver === task ? one.level + 1 : 0)) ?? 0);
  }
  let selected = -1;
  let shown = [first, last];
  let chosen = null;
  const choice = make("select", { id: "recorded-step", onchange: () => showStep(Number(choice.value)) },
    make("option", { value: -1 }, `all that was recorded (${FORMS.us(line.duration_us)})`),
    line.steps.map((step, index) => make("option", { value: index }, `step ${index + 1} on ${short(step.task)}: ${FORMS.us(step.end_us - step.start_us)}`)));
  const slider = make("input", {
    type: "range", id: "timeline-zoom", min: 0, max: Math.log2(mostTimes()), step: 0.01, "aria-label": "Zoom of the timeline",
    oninput: () => picture.call(zoom.scaleTo, 2 ** Number(slider.value)),
  });
  const reset = make("button", { type: "button", id: "timeline-reset", onclick: () => showStep(selected) }, "Reset");
  const parts = {
    axis: draw("g", { class: "axis", transform: `translate(0 ${TOP - 6})` }), lanes: draw("g"), busy: draw("g"), receives: draw("g"),
    path: draw("polyline", { class: "critical" }), names: draw("g"),
  };
  const picture = d3.select(draw("svg", { height, role: "group", "aria-label": "Timeline", id: "timeline-picture" }, Object.values(parts)));
  const view = make("div", {
    class: "scroll", id: "timeline-view", tabindex: "0", role: "group", "aria-label": "Timeline, which keys zoom and move",
    "aria-keyshortcuts": "+ - ArrowLeft ArrowRight 0", onkeydown: pressed,
  }, picture.node());
  const detail = make("div", { id: "timeline-detail", role: "status" });
  const path = make("div", { id: "critical-path" });
  body.append(
    make("p", { class: "soft" }, "Each lane is a task. Above: when its operations ran. Below: its requests, while the sender still computed and while bytes travelled. The line is the critical path: what the end of the step has waited for."),
    make("div", { class: "tools" }, make("label", { class: "grow" }, "Step", choice),
      make("div", { class: "range" }, make("span", { class: "ends" }, "Zoom", slider, reset))),
    make("p", { class: "soft" }, "Drag to move; pinch, or turn the wheel with Ctrl, to zoom (without Ctrl after a click). Keys: + and − zoom, ← and → move, 0 resets."),
    key(), view, detail, path, waits());
  const zoom = d3.zoom()
    .scaleExtent([1, mostTimes()])
    .clickDistance(4)
    .duration(matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 250)
    // The wheel and one finger scroll the page, until somebody has chosen the timeline.
    .filter((event) => !event.button && (view.contains(document.activeElement) || event.ctrlKey || event.metaKey
      || (event.type !== "wheel" && event.touches?.length !== 1)))
    // (A pinch comes as a wheel with Ctrl and small numbers.)
    .wheelDelta((event) => -event.deltaY * (event.deltaMode ? 0.05 : event.ctrlKey && Math.abs(event.deltaY) < 50 ? 0.02 : 0.002))
    .on("zoom", ({ transform }) => {
      shown = transform.rescaleX(scaleOf([first, last])).domain();
      slider.value = Math.log2(transform.k);
      paint();
    });
  picture.call(zoom);

  function key() {
    const box = (kind) => draw("svg", { width: 22, height: 12, "aria-hidden": "true" }, draw("rect", { class: kind, width: 22, height: 12, rx: 2 }));
    return make("ul", { class: "legend" },
      make("li", {}, box("busy"), "computes"),
      make("li", {}, box("wait"), "waits: the sender has not computed all"),
      make("li", {}, box("travel"), "bytes travel"),
      make("li", {}, draw("svg", { width: 22, height: 12, "aria-hidden": "true" }, draw("line", { class: "critical", x1: 0, x2: 22, y1: 6, y2: 6 })), "critical path"));
  }

  function mostTimes() {
    return Math.max(1, (last - first) / LEAST_US);
  }

  function scaleOf(window) {
    return d3.scaleLinear(window, [NAME, Math.max(300, view.clientWidth) - RIGHT]);
  }

  function look([from, to]) {
    const whole = scaleOf([first, last]);
    const [left, right] = whole.range();
    const times = (last - first) / (to - from);
    zoom.extent([[left, 0], [right, height]]).translateExtent([[left, 0], [right, height]]);
    picture.attr("width", right + RIGHT).call(zoom.transform, d3.zoomIdentity.translate(left - times * whole(from), 0).scale(times));
  }

  function showStep(index) {
    selected = index;
    chosen = null;
    detail.replaceChildren();
    showPath();
    look(windows[index] ?? [first, last]);
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { "+": 2, "=": 2, "-": 0.5 }[event.key];
    const to = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
    if (by) picture.call(zoom.scaleBy, by);
    // (In pixels of what is not zoomed.)
    else if (to) picture.call(zoom.translateBy, (to * 100 * (shown[1] - shown[0])) / (last - first), 0);
    else if (event.key === "0") showStep(selected);
    else return;
    event.preventDefault();
  }

  // Requests of one task that overlap lie below each other.
  function stacked() {
    const until = new Map(lanes.map((task) => [task, []]));
    return line.receives.map((receive, index) => ({ ...receive, index, transfer: line.transfers[receive.transfer] }))
      .filter((one) => one.transfer)
      .sort((a, b) => a.start_us - b.start_us)
      .map((one) => {
        const ends = until.get(one.transfer.receiver);
        let level = ends.findIndex((end) => end <= one.start_us);
        if (level < 0) level = ends.length;
        ends[level] = one.end_us;
        return { ...one, level: level % MOST_LEVELS };
      });
  }

  function paint() {
    const x = scaleOf(shown);
    const inside = scaleOf(shown).clamp(true);
    const isShown = (from, to) => to >= shown[0] && from <= shown[1];
    const zero = line.steps[selected]?.start_us ?? 0;
    const width = x.range()[1] + RIGHT;
    drawAxis(parts.axis, d3.axisTop, "us", shown.map((us) => us - zero), x.range(), width / 120, TOP - height);
    d3.select(parts.lanes).selectAll("line").data(lanes).join("line").attr("class", "axis-line")
      .attr("x2", width).attr("y1", (task) => tops.get(task)).attr("y2", (task) => tops.get(task));
    d3.select(parts.busy).selectAll("path").data(line.lanes).join("path").attr("class", "busy")
      .attr("d", ({ task, busy }) => {
        let [text, drawn] = ["", -1];
        for (const [from, to] of busy) {
          if (!isShown(from, to)) continue;
          const left = inside(from);
          const right = Math.max(inside(to), left + 0.7);
          // (Nobody sees half a pixel; there may be very many.)
          if (right < drawn + 0.5) continue;
          text += `M${left.toFixed(1)} ${tops.get(task) + 8}H${right.toFixed(1)}v18H${left.toFixed(1)}z`;
          drawn = right;
        }
        return text;
      });
    const hadFocus = parts.receives.contains(document.activeElement);
    d3.select(parts.receives).selectAll("g").data(receives.filter((one) => isShown(one.start_us, one.end_us)), (one) => one.index)
      .join((enter) => enter.append(receivePicture))
      .attr("tabindex", (one) => (isOwn(one) ? 0 : -1)).attr("opacity", (one) => (isOwn(one) ? 1 : 0.35))
      .attr("aria-pressed", (one) => String(one.index === chosen))
      .each(function place(one) {
        const [begin, ready, end] = [one.start_us, one.ready_us ?? one.start_us, one.end_us].map(inside);
        const [wait, travel] = this.querySelectorAll("rect");
        wait.setAttribute("x", begin);
        wait.setAttribute("width", Math.max(ready - begin, 0));
        travel.setAttribute("x", ready);
        travel.setAttribute("width", Math.max(end - ready, 1));
      });
    // (The keys still zoom and move when the request that had the focus is out of sight.)
    if (hadFocus && !parts.receives.contains(document.activeElement)) view.focus({ preventScroll: true });
    const points = (line.steps[selected]?.path ?? []).flatMap((part) => {
      const ends = [part.kind === "request" ? part.peer : part.task, part.kind === "compute" ? part.task : part.peer];
      return [part.start_us, part.end_us].map((us, index) => `${x(us).toFixed(1)},${tops.get(ends[index]) + 17}`);
    });
    parts.path.setAttribute("points", points.join(" "));
  }

  function isOwn(receive) {
    return selected < 0 || receive.step === selected;
  }

  function receivePicture(one) {
    const { transfer, index } = one;
    const [to, from, took] = [short(transfer.receiver), short(transfer.sender), FORMS.us(one.end_us - one.start_us)];
    const y = tops.get(transfer.receiver) + 31 + one.level * 8;
    return draw("g", {
      class: "receive", role: "button", "data-receive": index, "aria-label": `request of ${to} to ${from}, ${took}`,
      onclick: () => tell(index),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); tell(index); } },
    },
      draw("title", {}, `${to} ← ${from}: ${plural(transfer.tensors.length, "tensor")}, ${FORMS.bytes(one.bytes)}, ${took}`),
      draw("rect", { class: "wait", y, height: 7 }), draw("rect", { class: "travel", y, height: 7 }));
  }

  function tell(index) {
    chosen = index;
    paint();
    const receive = line.receives[index];
    const transfer = line.transfers[receive.transfer];
    const at = (key) => ["timeline", "receives", index, key];
    const late = receive.ready_us === null ? 0 : receive.ready_us - receive.start_us;
    detail.replaceChildren(make("div", { class: "detail" },
      make("h3", {}, `${short(transfer.receiver)} waited `, sum(`wait of receive ${index}`, receive.end_us - receive.start_us, "us"), ` for ${plural(transfer.tensors.length, "tensor")} of ${short(transfer.sender)}`),
      make("p", {}, number(at("bytes"), "bytes"), " came; ",
        receive.ready_us === null ? "the sender did not say when it had them. "
          : late > 0 ? ["for ", sum(`late of receive ${index}`, late, "us"), ` of that ${short(transfer.sender)} had not computed all of them. `]
            : `${short(transfer.sender)} had computed all of them before. `,
        receive.slowest ? `The last one was ${calledTensor(receive.slowest)}.` : "",
        receive.error ? ` It failed: ${receive.error}.` : "")));
  }

  function showPath() {
    const step = line.steps[selected];
    if (!step) {
      path.replaceChildren();
      return;
    }
    const at = (index, key) => ["timeline", "steps", selected, "path", index, key];
    const names = {
      compute: (part) => `${short(part.task)} computes`,
      transfer: (part) => `${short(part.task)} sends to ${short(part.peer)}`,
      request: (part) => `${short(part.peer)} asks ${short(part.task)}, and is answered`,
    };
    const whole = step.end_us - step.start_us || 1;
    path.replaceChildren(step.path.length ? table(`Critical path of step ${selected + 1}`, [
      ["from", ([, index]) => sum(`path from ${index}`, step.path[index].start_us - step.start_us, "us"), "n"],
      ["takes", ([part, index]) => sum(`path takes ${index}`, part.end_us - part.start_us, "us"), "n"],
      ["of the step", ([part, index]) => sum(`path share ${index}`, (part.end_us - part.start_us) / whole, "percent"), "n"],
      ["what", ([part]) => (names[part.kind] ?? (() => part.kind))(part), "wide"],
      ["the last tensor", ([part]) => (part.tensor ? calledTensor(part.tensor) : ""), "wide"],
    ], step.path.map((part, index) => [part, index])) : make("p", {}, "No request of this step was recorded, so it has no critical path."));
  }

  // Of each group: how long it was waited for, and which tensor was the last one most often.
  function waits() {
    const of = d3.rollups(line.receives, (ones) => ({
      count: ones.length,
      whole: d3.sum(ones, (one) => one.end_us - one.start_us),
      late: d3.sum(ones, (one) => (one.ready_us === null ? 0 : one.ready_us - one.start_us)),
      last: d3.rollups(ones.filter((one) => one.slowest), (last) => last.length, (one) => one.slowest).sort((a, b) => b[1] - a[1])[0],
    }), (one) => one.transfer);
    const rows = of.filter(([index]) => line.transfers[index]).sort(([, a], [, b]) => b.late - a.late);
    return table("Who waited for whom", [
      ["receiver", ([index]) => short(line.transfers[index].receiver)],
      ["sender", ([index]) => short(line.transfers[index].sender)],
      ["tensors", ([index]) => sum(`tensors of transfer ${index}`, line.transfers[index].tensors.length), "n"],
      ["times", ([index, one]) => sum(`receives of transfer ${index}`, one.count), "n"],
      ["mean wait", ([index, one]) => sum(`mean wait of transfer ${index}`, one.whole / one.count, "us"), "n"],
      ["of it the sender computed", ([index, one]) => sum(`mean late of transfer ${index}`, one.late / one.count, "us"), "n"],
      ["slowest tensor", ([, { last, count }]) => (last ? `${calledTensor(last[0])}, ${plural(last[1], "time")} of ${count}` : "not known"), "wide"],
    ], rows, 40);
  }

  parts.names.append(draw("rect", { class: "lane-names", width: NAME - 4, height }),
    ...lanes.map((task) => draw("text", { x: 6, y: tops.get(task) + 24 }, short(task), draw("title", {}, task))));
  // The step of the middle length.
  const usual = line.steps.map((step, index) => [step.end_us - step.start_us, index]).sort((a, b) => a[0] - b[0]);
  const middle = usual[Math.floor(usual.length / 2)]?.[1] ?? -1;
  choice.value = String(middle);
  showStep(middle);
  window.addEventListener("resize", () => look(shown));
}
