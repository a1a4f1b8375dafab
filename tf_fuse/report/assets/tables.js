// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tasks, updates, layouts, and what is gained.

function tasksPart() {
  const body = bodyOf("tasks");
  const rows = DATA.tasks.map((task, index) => [task, index]);
  const counter = (key, form) => ([task, index]) => (key in task.counters ? number(["tasks", index, "counters", key], form) : task.error ? "no answer" : "–");
  const columns = [
    ["task", ([task]) => short(task.name)],
    ["requests sent", counter("fused_rpcs"), "n"],
    ["tensors in them", counter("tensors"), "n"],
    ["single requests", counter("single_rpcs"), "n"],
    ["received", counter("bytes", "bytes"), "n"],
    ["groups made", counter("groups"), "n"],
    ["waiting now", counter("pending_receives"), "n"],
    ["without the plugin", counter("fallbacks"), "n"],
    ["failed", counter("errors"), "n"],
  ];
  if (rows.length) body.append(table("What each task has counted since it started", columns, rows));
  const reasons = DATA.tasks.flatMap((task, index) => Object.keys(task.skipped).map((reason) => [task, index, reason]));
  if (reasons.length) {
    body.append(table("Receives left alone, when functions were rewritten", [
      ["task", ([task]) => short(task.name)], ["reason", ([, , reason]) => reason],
      ["receives", ([, index, reason]) => number(["tasks", index, "skipped", reason]), "n"]], reasons));
  }
}

function updatesPart() {
  const body = bodyOf("updates");
  for (const [task, report] of Object.entries(DATA.weight_updates)) updatesOf(body, task, report);
  placements(body);
  serverUpdates(body);
}

function updatesOf(body, task, report) {
  const functions = Array.isArray(report.functions) ? report.functions : [];
  functions.forEach((fn, index) => {
    const at = (key) => ["weight_updates", task, "functions", index, key];
    const gradients = (fn.buckets ?? []).flatMap((bucket, of) => (bucket.gradients ?? []).map((one, row) => [one, bucket, [...at("buckets"), of, "gradients", row]]));
    const updates = gradients.filter(([one, bucket]) => (one.reason || bucket.reason) !== "no_update");
    body.append(make("h3", {}, `${traced(fn.function)} on ${short(task)}: `, make("span", { class: fn.sharded ? "pill" : "pill left" }, fn.sharded ? "sharded" : `whole: ${fn.reason}`)));
    if (!fn.sharded) body.append(make("p", {}, fn.meaning ?? ""));
    body.append(make("dl", { class: "cards" },
      card("replicas", number(at("replicas"))),
      card("optimizer's state here", number(at("state_bytes"), "bytes"), ["of ", number(at("whole_state_bytes"), "bytes")]),
      card("sent per step and replica", number(at("sent_bytes_per_step"), "bytes")),
      card("sharded updates", sum(`sharded ${task} ${index}`, updates.filter(([one]) => one.sharded).length), `of ${updates.length}`)));
    if (updates.length) {
      body.append(table("Updates of weights", [
        ["variable", ([one]) => one.variable || one.gradient, "wide"],
        ["shape", ([one]) => (one.shape ?? []).join(" × ")],
        ["bytes", ([, , place]) => number([...place, "bytes"]), "n"],
        ["update", ([one]) => (one.sharded ? "sharded" : "whole")],
        ["why not", ([one, bucket]) => (one.sharded ? "" : one.meaning || bucket.meaning || fn.meaning || ""), "wide"],
      ], updates, 40));
    }
  });
  const operations = Array.isArray(report.operations) ? report.operations : [];
  operations.forEach((one, index) => {
    const at = ["weight_updates", task, "operations", index];
    body.append(make("h3", {}, `${traced(one.function)} on ${short(task)}: updates in one operation`),
      make("p", {}, number([...at, "updates"]), ` updates of `, number([...at, "variables"]), ` variables are one operation each (${one.way}). Left: `, sum(`left of ${task} ${index}`, (one.left ?? []).length), "."));
    if (one.left?.length) {
      body.append(table("Assignments left", [["variable", (left) => left.variable, "wide"], ["reason", (left) => left.reason], ["meaning", (left) => left.meaning, "wide"]], one.left, 40));
    }
  });
}

function placements(body) {
  DATA.placements.forEach((placement, index) => {
    const servers = Array.isArray(placement.servers) ? placement.servers : [];
    if (!servers.length) return;
    const at = ["placements", index, "servers"];
    const of = (key) => servers.map((one, row) => [`ps:${one.server}`, [...at, row, key]]);
    body.append(make("h3", {}, "Placement on parameter servers"),
      make("div", { class: "bars" },
        bars("bytes kept", of("kept_bytes"), "bytes"),
        bars("bytes read in a step (estimate)", of("read_bytes_per_step"), "bytes"),
        bars("time of updates in a step (estimate)", of("update_s_per_step"), "seconds", "second")));
    body.append(table("Servers", [
      ["server", ([one]) => `ps:${one.server}`],
      ["variables", ([, row]) => number([...at, row, "variables"]), "n"],
      ["kept", ([, row]) => number([...at, row, "kept_bytes"], "bytes"), "n"],
      ["read / step", ([, row]) => number([...at, row, "read_bytes_per_step"], "bytes"), "n"],
      ["updated / step", ([, row]) => number([...at, row, "updated_bytes_per_step"], "bytes"), "n"],
      ["update time / step", ([, row]) => number([...at, row, "update_s_per_step"], "seconds"), "n"],
    ], servers.map((one, row) => [one, row])));
    const variables = Array.isArray(placement.variables) ? placement.variables : [];
    const rows = d3.groups(variables, (one) => `${prefixOf(String(one.variable))}|${one.server}|${one.why}`).map(([, ones]) => ones);
    body.append(table(`Where ${variables.length} variables are, by the begin of their names`, [
      ["variables", (ones) => (ones.length === 1 ? ones[0].variable : `${prefixOf(String(ones[0].variable))}…`), "wide"],
      ["how many", (ones) => sum(`placed variables ${index} ${rows.indexOf(ones)}`, ones.length), "n"],
      ["server", (ones) => `ps:${ones[0].server}`],
      ["bytes", (ones) => sum(`placed bytes ${index} ${rows.indexOf(ones)}`, d3.sum(ones, (one) => one.kept_bytes), "bytes"), "n"],
      ["why", (ones) => ones[0].meaning ?? "", "wide"],
    ], rows, 30));
  });
}

function serverUpdates(body) {
  const servers = Object.entries(DATA.server_updates.servers ?? {});
  if (!servers.length) return;
  const at = (task, key) => ["server_updates", "servers", task, key];
  const of = (key) => servers.map(([task]) => [short(task), at(task, key)]);
  body.append(make("h3", {}, "Updates on parameter servers, so far"),
    make("div", { class: "bars" }, bars("updates", of("updates"), "count"), bars("time of updates", of("update_us"), "us", "second"), bars("time waited for locks", of("wait_us"), "us", "third")));
  body.append(table("Updates by server", [
    ["server", ([task]) => short(task)],
    ["updates", ([task]) => number(at(task, "updates")), "n"],
    ["time", ([task]) => number(at(task, "update_us"), "us"), "n"],
    ["waits for locks", ([task]) => number(at(task, "waits")), "n"],
    ["time of waits", ([task]) => number(at(task, "wait_us"), "us"), "n"],
    ["longest", ([task]) => number(at(task, "max_wait_us"), "us"), "n"],
  ], servers));
  const workers = Object.entries(DATA.server_updates.workers ?? {});
  body.append(table("Staleness by worker: updates of the same variable by others since the step began", [
    ["worker", ([task]) => short(task)],
    ["updates", ([task]) => number(["server_updates", "workers", task, "updates"]), "n"],
    ["mean", ([task]) => number(["server_updates", "workers", task, "mean_staleness"]), "n"],
    ["most", ([task]) => number(["server_updates", "workers", task, "max_staleness"]), "n"],
  ], workers));
}

function layoutsPart() {
  const body = bodyOf("layouts");
  DATA.layouts.forEach((plan, index) => {
    const at = ["layouts", index];
    const sums = ["seconds", "compute_s", "communication_s", "relayout_s"];
    body.append(make("h3", {}, `${plan.function} on ${plan.mesh}`));
    const rows = [["found plan", "found"], ...(plan.data ? [["data parallel", "data"]] : [])];
    body.append(table("A call, by the cost model", [
      ["plan", ([title]) => title],
      ...["time", "operations", "collectives", "relayouts"].map((title, column) => [title, ([, key]) => number([...at, key, sums[column]], "seconds"), "n"]),
      ["bytes of a device", ([, key]) => number([...at, key, "bytes"], "bytes"), "n"],
    ], rows));
    if (!plan.data) body.append(make("p", { class: "soft" }, `No data-parallel plan: ${plan.data_reason}`));
    const parts = (key) => ["operations", "collectives", "relayouts"].map((name, column) => [name, [...at, key, sums[column + 1]]]);
    const end = d3.max(rows.flatMap(([, key]) => parts(key)), ([, path]) => valueAt(path));
    body.append(make("div", { class: "bars" }, rows.map(([title, key]) => bars(title, parts(key), "seconds", key === "found" ? "" : "second", end))));
    const dear = plan.operations.map((one, row) => [one, row, one.compute_s + one.communication_s + one.relayout_s]).sort((a, b) => b[2] - a[2] || a[1] - b[1]);
    body.append(table("Operations, the most expensive first", [
      ["operation", ([one]) => one.name, "wide"],
      ["strategy", ([one]) => one.strategy, "wide"],
      ["data parallel has", ([one]) => (one.data_strategy === one.strategy ? "the same" : one.data_strategy || "–"), "wide"],
      ["time", ([, row]) => number([...at, "operations", row, "compute_s"], "seconds"), "n"],
      ["collectives", ([, row]) => number([...at, "operations", row, "communication_s"], "seconds"), "n"],
      ["relayouts", ([, row]) => number([...at, "operations", row, "relayout_s"], "seconds"), "n"],
      ["bytes of a device", ([, row]) => number([...at, "operations", row, "bytes"], "bytes"), "n"],
    ], dear, 25));
    body.append(plan.relayouts.length ? table("Relayouts", [
      ["tensor", ([one]) => one.tensor, "wide"],
      ["from", ([one]) => one.layout, "wide"], ["to", ([one]) => one.wanted || "–", "wide"],
      ["for", ([one]) => one.target, "wide"],
      ["bytes received", ([one, row]) => (one.bytes === null ? "not known" : number([...at, "relayouts", row, "bytes"], "bytes")), "n"],
      ["time", ([, row]) => number([...at, "relayouts", row, "seconds"], "seconds"), "n"],
    ], plan.relayouts.map((one, row) => [one, row]), 25) : make("p", { class: "soft" }, "The plan needs no relayout."));
  });
}

function gainsPart() {
  const body = bodyOf("gains");
  const figures = [["steps/s", "steps_per_s", "count"], ["requests per step", "rpcs_per_step", "count"],
    ["bytes per step", "bytes_per_step", "bytes"], ["CPU ms per step", "cpu_ms_per_step", "count"]];
  DATA.gains.forEach((gain, index) => {
    const known = figures.filter(([, key]) => gain.ways.some((way) => typeof way[key] === "number"));
    const base = gain.ways[0]?.steps_per_s;
    body.append(make("h3", {}, gain.title));
    body.append(make("div", { class: "bars" }, known.map(([title, key, form], column) => bars(title,
      gain.ways.map((way, row) => [way.name, ["gains", index, "ways", row, key]]).filter(([, path]) => typeof valueAt(path) === "number"), form, ["", "second", "third", ""][column]))));
    body.append(table("", [
      ["way", ([way]) => way.name],
      ...known.map(([title, key, form]) => [title, ([, row]) => number(["gains", index, "ways", row, key], form), "n"]),
      ["speed", ([way, row]) => (base && way.steps_per_s ? sum(`speed ${index} ${row}`, way.steps_per_s / base, "times") : "–"), "n"],
    ], gain.ways.map((way, row) => [way, row])));
  });
}
