/* <figure-pipeline>: a schedule of pipeline stages as a Gantt chart that can be played, with its bubble and its peaks. */

"use strict";

(() => {
  const { color } = window.figures;
  const numbers = (count) => [...Array(count).keys()];

  /** For each stage its entries ["F", m] and ["B", m] in order. name: "gpipe", "1f1b", or "single" for one
      micro-batch at a time. */
  function schedule(name, stages, micro) {
    const entries = (kind, from, to) => numbers(Math.max(0, to - from)).map((k) => [kind, from + k]);
    return numbers(stages).map((stage) => {
      if (name === "gpipe") return [...entries("F", 0, micro), ...entries("B", 0, micro)];
      if (name === "single") return numbers(micro).flatMap((m) => [["F", m], ["B", m]]);
      const warmup = Math.min(micro, stages - 1 - stage);
      const pairs = numbers(micro - warmup).flatMap((k) => [["F", warmup + k], ["B", k]]);
      return [...entries("F", 0, warmup), ...pairs, ...entries("B", micro - warmup, micro)];
    });
  }

  /** [start, end] of each entry, stage by stage: each starts as soon as its stage is free and what it needs is over. */
  function simulate(order, forward, backward) {
    const over = new Map();
    const spans = order.map(() => []);
    const last = order.length - 1;
    for (let moved = true; moved; ) {
      moved = false;
      order.forEach((entries, stage) => {
        while (spans[stage].length < entries.length) {
          const [kind, m] = entries[spans[stage].length];
          const needs = kind === "F" ? (stage > 0 ? [`F ${m} ${stage - 1}`] : []) : [`F ${m} ${stage}`];
          if (kind === "B" && stage < last) needs.push(`B ${m} ${stage + 1}`);
          if (needs.some((need) => !over.has(need))) break;
          const start = Math.max(spans[stage].at(-1)?.[1] ?? 0, ...needs.map((need) => over.get(need)));
          const end = start + (kind === "F" ? forward : backward);
          over.set(`${kind} ${m} ${stage}`, end);
          spans[stage].push([start, end]);
          moved = true;
        }
      });
    }
    return spans;
  }

  const makespan = (spans) => Math.max(...spans.flat().map(([, end]) => end));

  /** The idle share of the stages' time. */
  function bubble(spans) {
    const busy = spans.flat().reduce((sum, [start, end]) => sum + end - start, 0);
    return 1 - busy / (spans.length * makespan(spans));
  }

  /** For each stage the most activations that are alive by a time: forwards done minus backwards done. */
  function peaks(order, spans, until = Infinity) {
    return order.map((entries, stage) => {
      let [alive, most] = [0, 0];
      entries.forEach(([kind], k) => {
        if (spans[stage][k][1] > until) return;
        alive += kind === "F" ? 1 : -1;
        most = Math.max(most, alive);
      });
      return most;
    });
  }

  /** The frames: one for each time at which an entry starts or ends, and the end as the last one. */
  function frames({ stages, micro, order: name, ratio }) {
    const order = schedule(name, stages, micro);
    const spans = simulate(order, 1, ratio);
    const whole = { order, spans, makespan: makespan(spans), bubble: bubble(spans), least: (stages - 1) / (micro + stages - 1) };
    const times = [...new Set(spans.flat(2))].sort((a, b) => a - b);
    return times.map((time) => {
      const bars = order.map((entries, stage) =>
        entries.map(([kind, m], k) => {
          const [start, end] = spans[stage][k];
          return { kind, m, start, end, state: end <= time ? "over" : start <= time ? "running" : "later" };
        }),
      );
      const done = (stage, kind) => bars[stage].filter((bar) => bar.kind === kind && bar.state === "over").length;
      const frame = {
        ...whole, time, bars,
        alive: numbers(stages).map((stage) => done(stage, "F") - done(stage, "B")),
        peaks: peaks(order, spans, time),
      };
      return { ...frame, says: says(frame, time === whole.makespan) };
    });
  }

  const WORDS = { F: "forward", B: "backward" };

  function says(frame, atTheEnd) {
    if (atTheEnd) {
      return `The last backward is over at ${frame.makespan}. The stages were idle for ${percent(frame.bubble)} of their ` +
        `time; at least ${percent(frame.least)} cannot be avoided. Most activations alive, by stage: ${frame.peaks.join(", ")}.`;
    }
    const what = frame.bars.map((bars, stage) => {
      const bar = bars.find((one) => one.state === "running");
      return `stage ${stage} ${bar ? `${WORDS[bar.kind]} ${bar.m}` : "idle"}`;
    });
    return `Time ${frame.time}: ${what.join(", ")}. Alive: ${frame.alive.join(", ")}.`;
  }

  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  function draw(frame, { html }) {
    const at = (time) => `${(100 * time) / frame.makespan}%`;
    const label = (stage) => html`<div class="pipe-label"><span class="figure-dot" style=${{ background: color(stage) }}></span>stage ${stage}</div>`;
    const bar = (stage) => ({ kind, m, start, end, state }) => html`<div class=${`pipe-bar pipe-${kind} pipe-${state}`}
      style=${{ left: at(start), width: at(end - start), "--rank": color(stage) }}>${m}</div>`;
    return html`<div class="pipe" aria-hidden="true">
        <div class="pipe-side"><div class="pipe-head"></div>${frame.bars.map((_, stage) => label(stage))}</div>
        <div class="pipe-scroll"><div class="pipe-chart" style=${{ "--units": frame.makespan }}>
          <div class="pipe-head">time, in forwards</div>
          ${frame.bars.map((bars, stage) => html`<div class="pipe-track">${bars.map(bar(stage))}</div>`)}
          <div class="pipe-now" style=${{ left: at(frame.time) }}></div>
        </div></div>
        <div class="pipe-side"><div class="pipe-head">alive (most)</div>
          ${frame.alive.map((count, stage) => html`<div class="pipe-label pipe-alive">${count} (${frame.peaks[stage]})</div>`)}</div>
      </div>
      <dl class="pipe-sums">
        <div><dt>makespan</dt><dd>${frame.makespan}</dd></div>
        <div><dt>bubble</dt><dd>${percent(frame.bubble)}</dd></div>
        <div><dt>least bubble, (N − 1)/(M + N − 1)</dt><dd>${percent(frame.least)}</dd></div>
        <div><dt>most alive on stage 0</dt><dd>${peaks(frame.order, frame.spans)[0]}</dd></div>
      </dl>
      <p class="figure-key">Pale bars are forwards, full bars backwards; the number is the micro-batch. One forward takes 1.</p>`;
  }

  window.figures.define("pipeline", {
    label: "Pipeline schedule, step by step",
    whole: true,
    settings: {
      order: { label: "Schedule", options: [["gpipe", "GPipe"], ["1f1b", "1F1B"], ["single", "one at a time"]], value: "gpipe" },
      stages: { label: "Stages N", from: 1, to: 8, value: 4 },
      micro: { label: "Micro-batches M", from: 1, to: 12, value: 6 },
      ratio: { label: "A backward takes", options: [[1, "1 forward"], [2, "2 forwards"], [3, "3 forwards"]], value: 2 },
    },
    logic: { frames, schedule, simulate, bubble, peaks },
    draw,
  });
})();
