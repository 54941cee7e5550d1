/* <figure-fsdp>: one fully sharded step, in time: what is gathered, what computes, and what a rank holds. */

"use strict";

(() => {
  const LAYERS = 8;

  /** The gathers, computations and reductions of one step, in the order of their starts. A layer's forward takes 1, its
      backward 2, its gather and its reduce-scatter `gather` each. Every reduce-scatter is waited for. */
  function timeline({ layers, gather, ahead, keep }) {
    const units = LAYERS / layers;
    const jobs = [];
    const free = { network: 0, compute: 0 };
    const run = (kind, unit, from, lasts) => {
      const where = kind === "gather" || kind === "reduce" ? "network" : "compute";
      const start = Math.max(free[where], from);
      free[where] = start + lasts * layers;
      const job = { kind, unit, where, start, end: free[where] };
      jobs.push(job);
      return job;
    };
    const pass = (kind, lasts, order, gathers) => {
      let next = null;
      order.forEach((unit, place) => {
        const own = gathers ? (next ?? run("gather", unit, free.compute, gather)) : null;
        const job = run(kind, unit, own?.end ?? 0, lasts);
        const following = order[place + 1];
        next = gathers && ahead && following !== undefined ? run("gather", following, job.start, gather) : null;
        if (kind === "backward") free.compute = run("reduce", unit, job.end, gather).end;
      });
    };
    const order = Array.from({ length: units }, (_, unit) => unit);
    pass("forward", 1, order, true);
    pass("backward", 2, order.reverse(), !keep);
    return jobs.sort((a, b) => a.start - b.start);
  }

  const find = (jobs, kind, unit, last = false) => (last ? jobs.toReversed() : jobs).find((job) => job.kind === kind && job.unit === unit);

  /** [from, until] of each unit's whole parameters, of its whole gradient, and of the shard of that. */
  function lives(jobs, keep) {
    const whole = [], gradients = [], shards = [];
    for (const { kind, unit, start, end } of jobs) {
      if (kind === "gather") {
        const used = jobs.find((job) => job.unit === unit && job.where === "compute" && job.end > end - 1e-9);
        whole.push([unit, start, keep ? find(jobs, "backward", unit).end : used.end]);
      }
      if (kind === "backward") {
        gradients.push([unit, start, find(jobs, "reduce", unit).end]);
        shards.push([unit, start, Infinity]);
      }
    }
    return { whole, gradients, shards };
  }

  /** Bytes on a rank at a time, in units of a layer's parameters: float32 with Adam, as lesson 09 plans
      but for the copy that is laid out for the reduce-scatter. */
  function held(time, { whole, gradients, shards }, { layers, ranks }) {
    const now = (list) => list.filter(([, from, until]) => from <= time && time < until).length;
    return (3 * LAYERS) / ranks + (now(shards) * layers) / ranks + layers * (now(whole) + now(gradients));
  }

  const short = (number) => String(Number(number.toFixed(1)));
  const WORDS = { gather: "is gathered", forward: "computes its forward", backward: "computes its backward", reduce: "has its gradient reduced" };

  /** The frames: one whenever something starts, and the end of the step. */
  function frames(settings) {
    const jobs = timeline(settings);
    const existing = lives(jobs, settings.keep);
    const end = Math.max(...jobs.map((job) => job.end));
    const times = [...new Set(jobs.map((job) => job.start))];
    const memory = times.map((time) => held(time, existing, settings));
    const peak = Math.max(...memory);
    const computes = jobs.filter((job) => job.where === "compute").reduce((sum, job) => sum + job.end - job.start, 0);
    // One scale for all choices of what is waited for and kept, so that they can be compared.
    const longest = Math.max(...timeline({ ...settings, ahead: 0, keep: 0 }).map((job) => job.end));
    const most = (3 * LAYERS + settings.layers) / settings.ranks + LAYERS + settings.layers;
    const whole = { jobs, end, times, memory, peak, longest, most };
    const at = times.map((time, place) => {
      const running = jobs.filter((job) => job.start <= time && time < job.end);
      const what = running.map(({ kind, unit }) => `unit ${unit} ${WORDS[kind]}`).join(", ");
      const says = `${what[0].toUpperCase()}${what.slice(1)}. A rank holds ${short(memory[place])} S.`;
      return { ...whole, time, running, says };
    });
    const says = `The step has taken ${short(end)} forwards of a layer; for ${short(end - computes)} of them nothing was computed. ` +
      `At the peak a rank held ${short(peak)} S.`;
    return [...at, { ...whole, time: end, running: [], says }];
  }

  function draw(frame, { html, settings }) {
    const at = (time) => `${(100 * time) / frame.longest}%`;
    const bar = (job) => html`<div class=${`figure-bar fsdp-${job.kind} ${frame.running.includes(job) ? "fsdp-now" : ""}`}
      style=${{ left: at(job.start), width: at(job.end - job.start) }}>${job.unit}</div>`;
    const track = (where) => html`<div class="figure-row">${where}</div>
      <div class="figure-track">${frame.jobs.filter((job) => job.where === where && job.start <= frame.time).map(bar)}</div>`;
    const level = frame.times.map((time, k) => [time, frame.times[k + 1] ?? frame.end, frame.memory[k]]).filter(([from]) => from <= frame.time);
    return html`<div class="figure-rows" aria-hidden="true">
        ${track("network")}${track("compute")}
        <div class="figure-row">held</div>
        <div class="figure-track fsdp-memory">${level.map(([from, until, bytes]) => html`<div class="fsdp-level"
          style=${{ left: at(from), width: at(until - from), height: `${(100 * bytes) / frame.most}%` }}></div>`)}</div>
      </div>
      <ul class="fsdp-key">${Object.entries({ gather: "all-gather", forward: "forward", backward: "backward", reduce: "reduce-scatter" })
        .map(([kind, words]) => html`<li><span class=${`fsdp-sample fsdp-${kind}`}></span>${words}</li>`)}
        <li><span class="fsdp-sample fsdp-level"></span>bytes on a rank, S: a layer's parameters</li></ul>
      <p class="figure-key">The number is the unit. ${LAYERS} layers, ${settings.layers === 1 ? "each a unit" : `${settings.layers} in a unit`}.</p>`;
  }

  window.figures.define("fsdp", {
    label: "One fully sharded step in time",
    settings: {
      ahead: { label: "Next unit", options: [[0, "is waited for"], [1, "is gathered ahead"]], value: 0 },
      keep: { label: "After the forward", options: [[0, "freed"], [1, "kept until backward"]], value: 0 },
      layers: { label: "Layers per unit", options: [[1, "1"], [2, "2"], [4, "4"], [8, "8"]], value: 2 },
      gather: { label: "A gather takes", options: [[0.5, "half a forward"], [1, "a forward"], [2, "two forwards"]], value: 1 },
      ranks: { label: "Ranks", from: 2, to: 64, value: 8 },
    },
    logic: { timeline, held, frames },
    draw,
  });
})();
