// Moves the numbers of a page, and draws its charts, as the console's readings come. Pages work without it.
"use strict";

const CHARTED_MS = 300000;
const WIDTH = 600, HEIGHT = 160, TOP = 18;
const SVG = "http://www.w3.org/2000/svg";
let points = [];

function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return (value / size).toFixed(1) + unit;
  }
  return value < 10 ? value.toFixed(1) : value.toFixed(0);
}

function draw(chart) {
  const columns = chart.dataset.chart.split(",").map(Number);
  const top = Math.max(1, ...points.flatMap((point) => columns.map((column) => point[column])));
  const parts = columns.map((column, number) => {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("class", number ? "two" : "one");
    line.setAttribute("points", points.map((point) => {
      const x = WIDTH - (points.at(-1)[0] - point[0]) * WIDTH / CHARTED_MS;
      const y = HEIGHT - 2 - point[column] / top * (HEIGHT - TOP - 2);
      return x.toFixed(1) + "," + y.toFixed(1);
    }).join(" "));
    return line;
  });
  const label = document.createElementNS(SVG, "text");
  label.setAttribute("x", "4");
  label.setAttribute("y", "14");
  label.textContent = short(top);
  chart.replaceChildren(label, ...parts);
}

function drawAll() {
  if (points.length) points = points.filter((point) => point[0] >= points.at(-1)[0] - CHARTED_MS);
  document.querySelectorAll("svg[data-chart]").forEach(draw);
}

function move(cells) {
  document.querySelectorAll("[data-live]").forEach((element) => {
    const text = cells[element.dataset.live];
    if (text !== undefined && element.textContent !== text) element.textContent = text;
  });
  document.querySelectorAll("progress[data-progress]").forEach((bar) => {
    const percent = cells[bar.dataset.progress];
    const state = cells[bar.dataset.progress.replace(/percent$/, "state")];
    if (state && state !== "runs") bar.value = 100;
    else if (percent) bar.value = Number(percent);
  });
}

function tell(text) {
  const place = document.getElementById("failed");
  place.hidden = !text;
  place.textContent = text;
}

if (document.querySelector("[data-live], svg[data-chart]")) {
  const source = new EventSource("/events");
  source.addEventListener("points", (event) => { points = JSON.parse(event.data); drawAll(); });
  source.addEventListener("reading", (event) => {
    const reading = JSON.parse(event.data);
    points.push(reading.point);
    tell("");
    move(reading.cells);
    drawAll();
  });
  source.addEventListener("failed", (event) => {
    const failure = JSON.parse(event.data);
    tell(failure.error + "\n" + failure.advice);
  });
  source.onerror = () => tell("The console does not answer. The page tries again.");
}
