/* <figure-race>: four all-reduces of a growing vector on a cluster of nodes, as bars of time. */

"use strict";

(() => {
  /** Seconds a message, seconds a byte: NVLink inside a node, one port of the network between nodes. */
  const INSIDE = [3.4e-6, 1 / 450e9];
  const NETWORK = [14e-6, 1 / 50e9];
  const SIZES = [...Array(12).keys()].map((k) => 1e3 * 4 ** k);

  const ringTime = (bytes, n, alpha, beta) => 2 * (n - 1) * (alpha + (beta * bytes) / n);
  const treeTime = (bytes, n, alpha, beta) => 2 * Math.ceil(Math.log2(n)) * (alpha + beta * bytes);
  const powerOfTwo = (n) => Number.isInteger(Math.log2(n));

  /** null where n is no power of two: the algorithm is not defined there. */
  function halvingTime(bytes, n, alpha, beta) {
    if (!powerOfTwo(n)) return null;
    return 2 * Math.log2(n) * alpha + 2 * ((n - 1) / n) * beta * bytes;
  }

  function twoLevelTime(bytes, nodes, gpus, ports, inside, network) {
    const [alpha, beta] = network;
    return ringTime(bytes, gpus, ...inside) + ringTime(bytes / gpus, nodes, alpha, beta * Math.max(1, gpus / ports));
  }

  const NAMES = ["ring", "tree", "halving and doubling", "two levels"];

  /** Seconds of the four for one size, in the order of NAMES. */
  function times(bytes, { nodes, gpus, ports }) {
    const n = nodes * gpus;
    return [
      ringTime(bytes, n, ...NETWORK),
      treeTime(bytes, n, ...NETWORK),
      halvingTime(bytes, n, ...NETWORK),
      twoLevelTime(bytes, nodes, gpus, Math.min(ports, gpus), INSIDE, NETWORK),
    ];
  }

  function duration(seconds) {
    const [unit, size] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6]].find(([, limit]) => seconds >= limit) ?? ["µs", 1e-6];
    return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  }

  /** The frames: one a size. */
  function frames(settings) {
    const n = settings.nodes * settings.gpus;
    return SIZES.map((bytes) => {
      const seconds = times(bytes, settings);
      const run = seconds.map((t, k) => [t, k]).filter(([t]) => t !== null);
      const [best, first] = run.reduce((a, b) => (b[0] < a[0] ? b : a));
      const others = run.filter(([, k]) => k !== first).map(([t, k]) => `${NAMES[k]} ${duration(t)}`);
      const what = `${window.figures.bytes(bytes)} on ${n} GPU${n === 1 ? "" : "s"}`;
      const says = n === 1 ? `${what}: nothing has to be sent.`
        : `${what}: ${NAMES[first]} is first after ${duration(best)}; ${others.join(", ")}.`;
      return { bytes, seconds, first: n === 1 ? null : first, says };
    });
  }

  function draw(frame, { html, settings }) {
    const most = Math.max(...frame.seconds.filter((t) => t !== null), 1e-12);
    const bar = (seconds, k) => html`<div class="race-name">${NAMES[k]}</div>
      <div class="race-track">${seconds === null
        ? html`<span class="race-none">${settings.nodes * settings.gpus} is no power of two</span>`
        : html`<div class=${`race-bar race-${k}`} style=${{ width: `${(100 * seconds) / most}%` }}></div>`}</div>
      <div class=${`race-time ${k === frame.first ? "race-first" : ""}`}>${seconds === null ? "" : duration(seconds)}</div>`;
    return html`<p class="race-title">All-reduce of ${window.figures.bytes(frame.bytes)}, ${settings.nodes * settings.gpus} GPUs</p>
      <div class="race" aria-hidden="true">${frame.seconds.map(bar)}</div>`;
  }

  window.figures.define("race", {
    label: "Four all-reduces of a growing vector",
    settings: {
      nodes: { label: "Nodes", from: 1, to: 64, value: 8 },
      gpus: { label: "GPUs a node", from: 1, to: 8, value: 8 },
      ports: { label: "Ports a node", from: 1, to: 8, value: 8 },
    },
    logic: { times, frames, ringTime, treeTime, halvingTime, twoLevelTime },
    draw,
  });
})();
