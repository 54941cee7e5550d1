/* <figure-deadlock>: ranks in a ring that each send to the right and receive from the left, in an order of their own. */

"use strict";

(() => {
  const ORDERS = [
    ["receive", "all receive first"],
    ["send", "all send first"],
    ["one-receives", "rank 0 receives first, the others send first"],
    ["one-sends", "rank 0 sends first, the others receive first"],
    ["even", "even ranks send first, odd ranks receive first"],
  ];

  /** The two calls of a rank, in order. */
  function calls(rank, order) {
    const first = {
      receive: "recv",
      send: "send",
      "one-receives": rank === 0 ? "recv" : "send",
      "one-sends": rank === 0 ? "send" : "recv",
      even: rank % 2 === 0 ? "send" : "recv",
    }[order];
    return first === "send" ? ["send", "recv"] : ["recv", "send"];
  }

  /** How many calls each rank has finished after one more step, in which all calls end that can.

      at: how many each has finished now. A send that waits ends together with its receive. One that returns at once
      ends in any case, and its message then waits for the receive. */
  function advance(at, lists, atOnce) {
    const ranks = at.length;
    const call = (rank) => lists[rank][at[rank]];
    const sent = (rank) => lists[rank].indexOf("send") < at[rank];
    return at.map((done, rank) => {
      const [left, right] = [(rank - 1 + ranks) % ranks, (rank + 1) % ranks];
      if (call(rank) === "send") return done + (atOnce || call(right) === "recv" ? 1 : 0);
      if (call(rank) === "recv") return done + (call(left) === "send" || sent(left) ? 1 : 0);
      return done;
    });
  }

  /** The frames: before the first call, and after each step, until all ranks are done or none can move.

      If none can from the beginning, the only step is that all call. */
  function frames({ ranks, order, sends }) {
    const all = [...Array(ranks).keys()];
    const lists = all.map((rank) => calls(rank, order));
    const found = [];
    for (let at = all.map(() => 0), before = null; ; ) {
      const next = advance(at, lists, sends === "at-once");
      const done = at.every((count) => count === 2);
      const stuck = !done && next.every((count, rank) => count === at[rank]);
      const waits = all.map((rank) => (next[rank] === at[rank] && at[rank] < 2 ? whom(rank, ranks, lists[rank][at[rank]]) : null));
      if (!before) found.push({ at, lists, waits: all.map(() => null), says: "Every rank is before its first call." });
      if (before || stuck) found.push({ at, lists, done, stuck, waits, says: says(at, before, lists, waits, { done, stuck, step: found.length }) });
      if (done || stuck) return found;
      [before, at] = [at, next];
    }
  }

  /** The rank that a call waits for. */
  const whom = (rank, ranks, call) => (call === "send" ? (rank + 1) % ranks : (rank - 1 + ranks) % ranks);

  const list = (ranks) => (ranks.length === 1 ? `rank ${ranks[0]}` : `ranks ${ranks.slice(0, -1).join(", ")} and ${ranks.at(-1)}`);

  function says(at, before, lists, waits, { done, stuck, step }) {
    const received = (counts) => lists.map((calls, rank) => (counts && calls.indexOf("recv") < counts[rank] ? rank : -1));
    const late = received(before);
    const now = received(at).filter((rank, k) => rank >= 0 && late[k] < 0);
    const news = !before ? "All ranks have called" : now.length ? `Step ${step}: ${list(now)} received.` : `Step ${step}: no message was received.`;
    if (done) return `${news} All ranks are done.`;
    if (!stuck) return news;
    const cycle = [];
    for (let rank = 0; !cycle.includes(rank); rank = waits[rank]) cycle.push(rank); // in a stuck ring all ranks wait
    return `${news}${before ? " Nothing more can move" : ", and none can go on"}: each rank waits for the next in the cycle ${[...cycle, cycle[0]].join(" → ")}.`;
  }

  const RADIUS = 100;

  const place = (rank, ranks) => window.figures.around(rank, ranks, RADIUS);

  /** A straight line from one rank's circle to another's. */
  function line(from, to, ranks, node) {
    const [a, b] = [place(from, ranks), place(to, ranks)];
    const length = Math.hypot(b.x - a.x, b.y - a.y);
    const [dx, dy] = [(b.x - a.x) / length, (b.y - a.y) / length];
    // Two ranks that wait for each other: the lines lie next to each other.
    const [sx, sy] = ranks === 2 ? [dy * 7, -dx * 7] : [0, 0];
    return `M${a.x + dx * (node + 3) + sx} ${a.y + dy * (node + 3) + sy}L${b.x - dx * (node + 7) + sx} ${b.y - dy * (node + 7) + sy}`;
  }

  function draw(frame, { html, settings, step }) {
    const { at, lists, waits, stuck } = frame;
    const { ranks, sends } = settings;
    const node = 20;
    const name = (call) => (call === "send" && sends === "at-once" ? "isend" : call);
    const all = [...Array(ranks).keys()];
    const doing = (rank) => (step === 0 ? "has not called" : at[rank] === 2 ? "is done" : waits[rank] === null ? "can go on" : `waits for rank ${waits[rank]}`);
    const state = (rank, k) => (k < at[rank] ? "deadlock-done" : k === at[rank] && step > 0 ? "deadlock-now" : "");
    return html`<div class="deadlock">
      <svg class="deadlock-ring" viewBox="-130 -130 260 260" aria-hidden="true">
        <defs><marker id="deadlock-head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="9" markerHeight="9"
          markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" /></marker></defs>
        ${all.map((rank) => waits[rank] !== null && html`<path class=${stuck ? "deadlock-wait deadlock-stuck" : "deadlock-wait"}
          d=${line(rank, waits[rank], ranks, node)} marker-end="url(#deadlock-head)" />`)}
        ${all.map((rank) => window.figures.disk(rank, place(rank, ranks), node, waits[rank] !== null))}
      </svg>
      <table class="deadlock-table">
        <caption class="figure-hidden">The two calls of each rank, and what it does now</caption>
        <thead><tr><th scope="col">rank</th><th scope="col">first call</th><th scope="col">second call</th><th scope="col">now</th></tr></thead>
        <tbody>${all.map((rank) => html`<tr><th scope="row"><span class="figure-dot" style=${{ background: window.figures.color(rank) }}></span>${rank}</th>
          ${lists[rank].map((call, k) => html`<td><code class=${state(rank, k)}>${name(call)} ${call === "send" ? "→" : "←"} ${whom(rank, ranks, call)}</code></td>`)}
          <td>${doing(rank)}</td></tr>`)}</tbody></table>
      </div>
      <p class="figure-key">An arrow leads from a rank to the one it waits for. Struck out: done.</p>`;
  }

  window.figures.define("deadlock", {
    label: "Ranks in a ring that wait for each other",
    settings: {
      order: { label: "Order", options: ORDERS, value: "send" },
      sends: { label: "A send", options: [["waits", "waits for its receive"], ["at-once", "returns at once"]], value: "waits" },
      ranks: { label: "Ranks", from: 2, to: 8, value: 4 },
    },
    logic: { frames },
    draw,
  });
})();
