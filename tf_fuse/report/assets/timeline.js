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
  const NAME = 84;
  const TOP = 26;
  const MOST_LEVELS = 8;
  const steps = [1, 2, 5, 10, 20, 50];
  let selected = null;
  const choice = make("select", { id: "recorded-step", onchange: () => zoom(Number(choice.value)) },
    make("option", { value: -1 }, `all that was recorded (${FORMS.us(line.duration_us)})`),
    line.steps.map((step, index) => make("option", { value: index }, `step ${index + 1} on ${short(step.task)}: ${FORMS.us(step.end_us - step.start_us)}`)));
  const wider = make("input", { type: "range", min: 1, max: 20, value: 1, step: 0.5, "aria-label": "Magnification", oninput: () => paint() });
  const view = make("div", { class: "scroll", id: "timeline-view" });
  const detail = make("div", { id: "timeline-detail", role: "status" });
  const path = make("div", { id: "critical-path" });
  body.append(
    make("p", { class: "soft" }, "Each lane is a task. Above: when its operations ran. Below: its requests, while the sender still computed and while bytes travelled. The line is the critical path: what the end of the step has waited for."),
    make("div", { class: "tools" }, make("label", { class: "grow" }, "Step", choice),
      make("div", { class: "range" }, make("span", { class: "ends" }, "1×", wider, "20×"))),
    key(), view, detail, path, waits());
  let from = 0;
  let to = line.duration_us;

  function key() {
    const box = (kind) => draw("svg", { width: 22, height: 12, "aria-hidden": "true" }, draw("rect", { class: kind, width: 22, height: 12, rx: 2 }));
    return make("ul", { class: "legend" },
      make("li", {}, box("busy"), "computes"),
      make("li", {}, box("wait"), "waits: the sender has not computed all"),
      make("li", {}, box("travel"), "bytes travel"),
      make("li", {}, draw("svg", { width: 22, height: 12, "aria-hidden": "true" }, draw("line", { class: "critical", x1: 0, x2: 22, y1: 6, y2: 6 })), "critical path"));
  }

  function zoom(index) {
    const step = line.steps[index];
    const margin = step ? (step.end_us - step.start_us) * 0.04 : 0;
    from = step ? step.start_us - margin : 0;
    to = step ? step.end_us + margin : line.duration_us;
    selected = step ? index : null;
    detail.replaceChildren();
    paint();
    showPath();
  }

  // Requests of one task that overlap lie below each other; returns [receive, its number, its level].
  function stacked() {
    const until = new Map(lanes.map((task) => [task, []]));
    return line.receives.map((receive, index) => [receive, index])
      .filter(([receive]) => receive.end_us >= from && receive.start_us <= to && line.transfers[receive.transfer])
      .sort(([a], [b]) => a.start_us - b.start_us)
      .map(([receive, index]) => {
        const ends = until.get(line.transfers[receive.transfer].receiver);
        let level = ends.findIndex((end) => end <= receive.start_us);
        if (level < 0) level = ends.length;
        ends[level] = receive.end_us;
        return [receive, index, level % MOST_LEVELS];
      });
  }

  function paint() {
    const width = Math.max(300, view.clientWidth - 4 || 900) * Number(wider.value);
    const span = Math.max(to - from, 1);
    const x = (us) => NAME + ((us - from) / span) * (width - NAME - 12);
    const shown = stacked();
    const tops = new Map();
    let height = TOP;
    for (const task of lanes) {
      const levels = Math.max(0, ...shown.filter(([receive]) => line.transfers[receive.transfer].receiver === task).map(([, , level]) => level + 1));
      tops.set(task, height);
      height += 42 + 8 * levels;
    }
    const top = (task) => tops.get(task);
    const parts = [];
    const zero = selected === null ? 0 : line.steps[selected].start_us;
    const rough = (span / (width - NAME)) * 110;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const tick = unit * steps.find((one) => one * unit >= rough);
    const begin = Math.ceil((from - zero) / tick);
    // (A damaged file may have times to which no tick can be added.)
    for (let us = zero + begin * tick, count = 0; us <= to && count < 2000; us += tick, count += 1) {
      parts.push(draw("line", { class: "axis", x1: x(us), x2: x(us), y1: 20, y2: height }),
        draw("text", { class: "soft-text", x: x(us), y: 14, "text-anchor": "middle" }, FORMS.us(us - zero)));
    }
    lanes.forEach((task, index) => {
      const end = index + 1 < lanes.length ? top(lanes[index + 1]) : height;
      parts.push(draw("line", { class: "axis", x1: 0, x2: width, y1: end, y2: end }),
        draw("text", { x: 6, y: top(task) + 24 }, short(task), draw("title", {}, task)));
    });
    for (const lane of line.lanes) {
      for (const [begin, end] of lane.busy) {
        if (end < from || begin > to) continue;
        const left = x(Math.max(begin, from));
        parts.push(draw("rect", { class: "busy", x: left, y: top(lane.task) + 8, width: Math.max(x(Math.min(end, to)) - left, 0.7), height: 18 }));
      }
    }
    for (const [receive, index, level] of shown) {
      const transfer = line.transfers[receive.transfer];
      const y = top(transfer.receiver) + 31 + level * 8;
      const begin = x(Math.max(receive.start_us, from));
      const end = x(Math.min(receive.end_us, to));
      const ready = x(Math.min(Math.max(receive.ready_us ?? receive.start_us, from), to));
      const own = selected === null || receive.step === selected;
      parts.push(draw("g", {
        class: "receive", tabindex: own ? "0" : "-1", role: "button", "aria-pressed": "false", opacity: own ? 1 : 0.35, "data-receive": index,
        "aria-label": `request of ${short(transfer.receiver)} to ${short(transfer.sender)}, ${FORMS.us(receive.end_us - receive.start_us)}`,
        onclick: (event) => tell(index, event.currentTarget),
        onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); tell(index, event.currentTarget); } },
      },
        draw("title", {}, `${short(transfer.receiver)} ← ${short(transfer.sender)}: ${plural(transfer.tensors.length, "tensor")}, ${FORMS.bytes(receive.bytes)}, ${FORMS.us(receive.end_us - receive.start_us)}`),
        draw("rect", { class: "wait", x: begin, y, width: Math.max(ready - begin, 0), height: 7 }),
        draw("rect", { class: "travel", x: ready, y, width: Math.max(end - ready, 1), height: 7 })));
    }
    const step = line.steps[selected];
    if (step?.path.length) {
      const points = step.path.flatMap((part) => {
        const y = (task) => top(task) + 17;
        const begin = part.kind === "request" ? part.peer : part.task;
        const end = part.kind === "compute" ? part.task : part.peer;
        return [[x(part.start_us), y(begin)], [x(part.end_us), y(end)]];
      });
      parts.push(draw("polyline", { class: "critical", points: points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ") }));
    }
    view.replaceChildren(draw("svg", { width, height, role: "group", "aria-label": "Timeline", id: "timeline-picture" }, parts));
  }

  function tell(index, element) {
    for (const one of view.querySelectorAll(".receive")) one.setAttribute("aria-pressed", String(one === element));
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
    const of = new Map();
    for (const receive of line.receives) {
      if (!of.has(receive.transfer)) of.set(receive.transfer, { count: 0, late: 0, whole: 0, last: new Map() });
      const one = of.get(receive.transfer);
      one.count += 1;
      one.whole += receive.end_us - receive.start_us;
      one.late += receive.ready_us === null ? 0 : receive.ready_us - receive.start_us;
      if (receive.slowest) one.last.set(receive.slowest, (one.last.get(receive.slowest) ?? 0) + 1);
    }
    const rows = [...of].filter(([index]) => line.transfers[index]).sort(([, a], [, b]) => b.late - a.late);
    return table("Who waited for whom", [
      ["receiver", ([index]) => short(line.transfers[index].receiver)],
      ["sender", ([index]) => short(line.transfers[index].sender)],
      ["tensors", ([index]) => sum(`tensors of transfer ${index}`, line.transfers[index].tensors.length), "n"],
      ["times", ([index, one]) => sum(`receives of transfer ${index}`, one.count), "n"],
      ["mean wait", ([index, one]) => sum(`mean wait of transfer ${index}`, one.whole / one.count, "us"), "n"],
      ["of it the sender computed", ([index, one]) => sum(`mean late of transfer ${index}`, one.late / one.count, "us"), "n"],
      ["slowest tensor", ([, one]) => {
        const last = [...one.last].sort((a, b) => b[1] - a[1])[0];
        return last ? `${calledTensor(last[0])}, ${plural(last[1], "time")} of ${one.count}` : "not known";
      }, "wide"],
    ], rows, 40);
  }

  const usual = line.steps.map((step, index) => [step.end_us - step.start_us, index]).sort((a, b) => a[0] - b[0]);
  const first = usual.length ? usual[Math.floor(usual.length / 2)][1] : -1;
  choice.value = String(first);
  zoom(first);
  window.addEventListener("resize", paint);
}
