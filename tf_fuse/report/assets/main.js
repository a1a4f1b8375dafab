// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Draws each part; one that cannot be drawn says so, and leaves the others alone.

const PARTS = { step: stepPart, timeline: timelinePart, tasks: tasksPart, updates: updatesPart, layouts: layoutsPart, gains: gainsPart };

for (const [part, drawPart] of Object.entries(PARTS)) {
  if (!document.getElementById(part)) continue;
  try {
    drawPart();
  } catch (error) {
    bodyOf(part).append(make("p", { class: "failed" }, `This part cannot be drawn from what the report holds (${error.message}).`));
  }
}

document.getElementById("save-json").addEventListener("click", () => {
  const link = make("a", { href: URL.createObjectURL(new Blob([JSON.stringify(DATA, null, 1)], { type: "application/json" })), download: "report.json" });
  link.click();
});
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
