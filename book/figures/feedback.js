/* <figure-feedback>: two ranks, two weights, and one entry that each rank may send a step; what is kept, and what becomes of it. */

"use strict";

(() => {
  const STEPS = 40;
  const MINIMUM = [0, 1];
  const START = [2, 0];

  /** Each rank's gradient at w: that of the loss, with a disturbance of entry 0 that cancels between the ranks. */
  function gradients(w, disturbance) {
    return [disturbance, -disturbance].map((own) => [w[0] - MINIMUM[0] + own, w[1] - MINIMUM[1]]);
  }

  /** The entry of largest magnitude; the first one of two equal ones. */
  const largest = (c) => (Math.abs(c[1]) > Math.abs(c[0]) ? 1 : 0);

  const mean = (a, b) => [0, 1].map((i) => (a[i] + b[i]) / 2);

  /** The run: after each step the weights, what each rank wanted to send, sent, and owes. */
  function run({ send, disturbance, rate }) {
    const zeros = () => [[0, 0], [0, 0]];
    const all = [{ w: START, wanted: zeros(), sent: zeros(), owed: zeros() }];
    for (let step = 1; step <= STEPS; step += 1) {
      const { w, owed } = all[step - 1];
      const wanted = gradients(w, disturbance).map((g, r) => (send === "feedback" ? [g[0] + owed[r][0], g[1] + owed[r][1]] : g));
      const sent = wanted.map((c) => (send === "all" ? c : c.map((value, i) => (i === largest(c) ? value : 0))));
      const kept = wanted.map((c, r) => c.map((value, i) => value - sent[r][i]));
      const move = mean(...sent);
      all.push({
        w: w.map((value, i) => value - rate * move[i]),
        wanted,
        sent,
        owed: send === "feedback" ? kept : zeros(),
      });
    }
    return all;
  }

  const words = (number) => (Math.abs(number) < 0.005 ? "0" : number.toFixed(2).replace("-", "−"));
  const point = (w) => `(${words(w[0])}, ${words(w[1])})`;

  function frames(settings) {
    const all = run(settings);
    return all.map((now, step) => {
      const which = now.wanted.map((c, r) => `rank ${r} sends ${settings.send === "all" ? "both entries" : `entry ${largest(c)}`}`);
      const owed = settings.send === "feedback" ? ` Owed on average: ${point(mean(...now.owed))}.` : "";
      const says = step === 0 ? `Both ranks start at ${point(now.w)}. The minimum is at (0, 1).`
        : `Step ${step}: ${which.join(", ")}. The weights are ${point(now.w)}.${owed}`;
      return { ...now, step, path: all.slice(0, step + 1), says };
    });
  }

  const SCALE = 66; // of the plane, in units of the picture
  const place = (w) => [8 + SCALE * (w[0] + 1.1), SCALE * (2.7 - w[1])];

  function draw(frame, { html, settings }) {
    const [x, y] = place(frame.w);
    const [mx, my] = place(MINIMUM);
    const line = (points) => points.map((w) => place(w).map((one) => one.toFixed(1)).join(",")).join(" ");
    const paid = frame.w.map((value, i) => value - settings.rate * mean(...frame.owed)[i]);
    const most = Math.max(12, ...frame.path.flatMap((one) => one.wanted.flat().map(Math.abs)));
    const bar = (rank, i) => {
      const [value, sent] = [frame.wanted[rank][i], frame.sent[rank][i]];
      const share = (50 * Math.abs(value)) / most;
      const look = { left: `${value < 0 ? 50 - share : 50}%`, width: `${share}%`, "--mine": window.figures.color(rank) };
      return html`<div class="fb-name">${i ? "" : `rank ${rank}`}</div><div class="fb-name">entry ${i}</div>
        <div class="fb-track"><div class=${sent === 0 ? "fb-kept" : "fb-sent"} style=${look}></div></div>
        <div class="fb-value">${words(value)}</div>`;
    };
    return html`<div class="fb" aria-hidden="true">
        <svg viewBox="0 0 230 206">
          ${[0.5, 1, 1.5, 2].map((r) => html`<circle class="fb-level" cx=${mx} cy=${my} r=${r * SCALE} />`)}
          <path class="fb-cross" d=${`M${mx - 5} ${my}h10M${mx} ${my - 5}v10`} />
          <polyline class="fb-path" points=${line(frame.path.map((one) => one.w))} />
          ${settings.send === "feedback" && html`<circle class="fb-paid" cx=${place(paid)[0]} cy=${place(paid)[1]} r="5" />`}
          <circle class="fb-now" cx=${x} cy=${y} r="4" />
        </svg>
        <div class="fb-bars"><div class="fb-head">what a rank would send: its gradient${settings.send === "feedback" ? " and what it owes" : ""}</div>
          ${[0, 1].flatMap((rank) => [0, 1].map((i) => bar(rank, i)))}</div>
      </div>
      <p class="figure-key">Filled: sent. Outlined: not sent. Cross: the minimum. Dot: the weights.
        ${settings.send === "feedback" ? " Circle: the weights if what is owed were paid at once." : ""}</p>`;
  }

  window.figures.define("feedback", {
    label: "Two ranks that send one entry a step",
    settings: {
      send: { label: "Sent", options: [["one", "the larger entry"], ["feedback", "the larger entry, with feedback"], ["all", "both entries"]], value: "one" },
      disturbance: { label: "Disturbance", options: [[0, "none"], [2, "±2"], [5, "±5"], [8, "±8"]], value: 5 },
      rate: { label: "Learning rate", options: [[0.05, "0.05"], [0.1, "0.1"], [0.3, "0.3"]], value: 0.1 },
    },
    logic: { run, frames },
    draw,
  });
})();
