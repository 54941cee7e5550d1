/* <figure-race>: four all-reduces of a growing vector on a cluster of nodes, as bars of time.

   A round takes as long as its slowest message. Within a node that is one over NVLink. As soon as messages leave a node,
   or arrive there, it is one through the network, where they share the node's ports. A ring has no rounds for which all
   ranks wait: as in NCCL's model, a chunk pays the network's start-up only where it enters another node. */

"use strict";

(() => {
  /** Seconds per message, seconds per byte: NVLink inside a node, one port of the network between nodes. */
  const INSIDE = [3.4e-6, 1 / 450e9];
  const NETWORK = [14e-6, 1 / 50e9];
  const SIZES = [...Array(12).keys()].map((k) => 1e3 * 4 ** k);

  const ringTime = (bytes, n, alpha, beta) => 2 * (n - 1) * (alpha + (beta * bytes) / n);

  /** One ring through the GPUs of all nodes; the slowest link sets its pace. */
  function oneRing(bytes, nodes, gpus) {
    const [n, between] = [nodes * gpus, 2 * (nodes - 1)];
    const startUps = (2 * (n - 1) - between) * INSIDE[0] + between * NETWORK[0];
    return startUps + ringTime(bytes, n, 0, (between ? NETWORK : INSIDE)[1]);
  }

  const powerOfTwo = (n) => Number.isInteger(Math.log2(n));

  /** The rounds in which n ranks add up: arrays of [from, to]. The second half of an all-reduce is the same in reverse.

      order: "far" if partners come in the order of falling distance, "near" if in that of rising distance. */
  function rounds(n, order, partners) {
    const distances = Array.from({ length: Math.ceil(Math.log2(n)) }, (_, k) => 2 ** k);
    if (order === "far") distances.reverse();
    const ranks = [...Array(n).keys()];
    return distances.map((distance) => ranks.map((rank) => [rank, partners(rank, distance)]).filter(([, to]) => to !== null));
  }

  /** Every rank that has not yet sent its sum away sends it, or stays: rank 0 ends with all of it. */
  function treeRounds(n, order) {
    const sends = (rank, d) => (order === "far" ? rank >= d && rank < 2 * d : rank % (2 * d) === d);
    return rounds(n, order, (rank, d) => (sends(rank, d) ? rank - d : null));
  }

  /** Each rank exchanges with one partner a round. Undefined where n is no power of two. */
  const halvingRounds = (n, order) => rounds(n, order, (rank, d) => rank ^ d);

  /** The most messages of a round that leave one node, or arrive there. */
  function crowd(messages, gpus) {
    const [leave, arrive] = [{}, {}];
    for (const [from, to] of messages.map((ends) => ends.map((rank) => Math.floor(rank / gpus)))) {
      if (from === to) continue;
      leave[from] = (leave[from] ?? 0) + 1;
      arrive[to] = (arrive[to] ?? 0) + 1;
    }
    return Math.max(0, ...Object.values(leave), ...Object.values(arrive));
  }

  /** Seconds of an all-reduce that adds up in these rounds and spreads the sum in the same ones in reverse.

      crowds[k]: the crowd of round k. bytes(k): those of each of its messages. */
  function roundsTime(crowds, bytes, ports) {
    const seconds = crowds.map((crossing, k) => {
      const [alpha, beta] = crossing ? NETWORK : INSIDE;
      return alpha + beta * bytes(k) * Math.max(1, crossing / ports);
    });
    return 2 * seconds.reduce((sum, one) => sum + one, 0);
  }

  function twoLevelTime(bytes, nodes, gpus, ports, inside, network) {
    const [alpha, beta] = network;
    return ringTime(bytes, gpus, ...inside) + ringTime(bytes / gpus, nodes, alpha, beta * Math.max(1, gpus / ports));
  }

  const NAMES = ["one ring", "tree", "halving and doubling", "two levels"];

  /** For each of SIZES, the seconds of the four in the order of NAMES; null for halving where n is no power of two. */
  function times({ nodes, gpus, ports, order }) {
    const n = nodes * gpus;
    const crowds = (found) => found.map((messages) => crowd(messages, gpus));
    const tree = crowds(treeRounds(n, order));
    const halving = powerOfTwo(n) ? crowds(halvingRounds(n, order)) : null;
    return SIZES.map((bytes) => [
      oneRing(bytes, nodes, gpus),
      roundsTime(tree, () => bytes, ports),
      halving && roundsTime(halving, (k) => bytes / 2 ** (k + 1), ports),
      twoLevelTime(bytes, nodes, gpus, Math.min(ports, gpus), INSIDE, NETWORK),
    ]);
  }

  function duration(seconds) {
    const [unit, size] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6]].find(([, limit]) => seconds >= limit) ?? ["µs", 1e-6];
    return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  }

  /** The frames: one a size. */
  function frames(settings) {
    const n = settings.nodes * settings.gpus;
    return times(settings).map((seconds, k) => {
      const bytes = SIZES[k];
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
      gpus: { label: "GPUs per node", from: 1, to: 8, value: 8 },
      ports: { label: "Ports per node", from: 1, to: 8, value: 8 },
      order: {
        label: "Halving and the tree begin with",
        options: [["far", "far partners"], ["near", "near partners"]],
        value: "far",
      },
    },
    logic: { frames, treeRounds, halvingRounds, crowd },
    draw,
  });
})();
