/* <figure-cut>: two layers of an MLP, each cut by its outputs or by its inputs, and the messages that this takes. */

"use strict";

(() => {
  const WAYS = [["outputs", "its outputs"], ["inputs", "its inputs"]];
  /** The tensors from left to right, and the size in which they are drawn. */
  const TENSORS = [["x", 26, 18], ["W₁", 26, 52], ["h", 52, 18], ["W₂", 52, 26], ["y", 26, 18]];
  const ALL = "on all ranks", SHARD = "columns", ROWS = "rows", PARTIAL = "a partial sum";

  /** The frames: how each tensor is held, what was sent so far, and what this step did. Elements in units of BTC. */
  function frames({ first, second }) {
    const list = [], sent = [], held = { x: first === "outputs" ? ALL : SHARD };
    const show = (says) => list.push({ held: { ...held }, sent: [...sent], says });
    const send = (call, tensor, numbers) => {
      const parts = call === "reduce-scatter";
      sent.push({ call, tensor, numbers });
      held[tensor] = parts ? SHARD : ALL;
      const then = parts ? `each rank has some columns of ${tensor}, complete` : `${tensor} is on all ranks`;
      show(`${parts ? "A" : "An"} ${call} of ${numbers === 1 ? "BTC" : `${numbers} · BTC`} elements: ${then}.`);
    };
    const product = (weight, from, to, way) => {
      held[weight] = way === "outputs" ? ROWS : SHARD;
      held[to] = way === "outputs" ? SHARD : PARTIAL;
      const what = way === "outputs" ? `some columns of ${to}, complete` : `a partial sum of every element of ${to}`;
      show(`${weight} is cut by its ${way}. Each rank multiplies ${from} with its part and has ${what}.`);
    };
    show(first === "outputs" ? "x is on all ranks." : "x was on all ranks. Each takes its columns; nothing is sent.");
    product("W₁", "x", "h", first);
    if (held.h === PARTIAL) send(second === "inputs" ? "reduce-scatter" : "all-reduce", "h", 4);
    show("GELU acts on each element of h by itself.");
    if (second === "outputs" && held.h === SHARD) send("all-gather", "h", 4);
    product("W₂", "h", "y", second);
    send(held.y === PARTIAL ? "all-reduce" : "all-gather", "y", 1);
    const calls = sent.map(({ call, tensor, numbers }) => `${call === "reduce-scatter" ? "a" : "an"} ${call} of ${tensor}, ${numbers === 1 ? "" : `${numbers} · `}BTC elements`);
    show(`Forward takes ${calls.join(", and ")}.`);
    return list;
  }

  /** Elements that a rank on a ring sends, in units of BTC: an all-reduce is a reduce-scatter and an all-gather. */
  function onRing(sent, ranks) {
    return sent.reduce((sum, { call, numbers }) => sum + (call === "all-reduce" ? 2 : 1) * numbers * (ranks - 1) / ranks, 0);
  }

  function draw(frame, { html, settings }) {
    const ranks = Array.from({ length: settings.ranks }, (_, rank) => rank);
    const cell = ([name, wide, high], rank) => {
      const how = frame.held[name];
      const [w, h] = [how === SHARD ? wide / settings.ranks : wide, how === ROWS ? high / settings.ranks : high];
      const part = how && html`<rect class=${how === PARTIAL ? "cut-term" : "cut-part"} x=${how === SHARD ? rank * w : 0}
        y=${how === ROWS ? rank * h : 0} width=${w} height=${h} style=${{ fill: window.figures.color(rank) }} />`;
      return html`<td><svg viewBox=${`-1 -1 ${wide + 2} ${high + 2}`} style=${{ width: `${(wide + 2) / 14}rem` }}>
        <rect class="cut-whole" width=${wide} height=${high} />${part}
        ${how === PARTIAL && html`<text class="cut-plus" x=${wide / 2} y=${high / 2 + 4}>+</text>`}</svg></td>`;
    };
    return html`<div class="cut-box"><table class="cut" aria-hidden="true">
        <thead><tr><th></th>${TENSORS.map(([name]) => html`<th>${name}</th>`)}</tr></thead>
        <tbody>${ranks.map((rank) => html`<tr><th>rank ${rank}</th>${TENSORS.map((tensor) => cell(tensor, rank))}</tr>`)}</tbody>
      </table></div>
      <p class="figure-key">Full color: held. Pale with a plus: a partial sum. Sent by a rank on a ring so far:
        ${" "}${Number(onRing(frame.sent, settings.ranks).toFixed(2))} · BTC elements.</p>`;
  }

  window.figures.define("cut", {
    label: "Two layers of an MLP on several ranks",
    settings: {
      first: { label: "Cut the first layer by", options: WAYS, value: "outputs" },
      second: { label: "Cut the second layer by", options: WAYS, value: "outputs" },
      ranks: { label: "Ranks", from: 2, to: 4, value: 2 },
    },
    logic: { frames, onRing },
    draw,
  });
})();
