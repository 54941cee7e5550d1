/* <figure-layout>: the layouts of a model on a cluster, from the fastest to the slowest, as lesson 15 costs them. */

"use strict";

(() => {
  const MODELS = {
    7: { params: 7.1e9, layers: 30, hidden: 4096, heads: 32, seq: 4096, saved: 34 },
    70: { params: 70.6e9, layers: 80, hidden: 8192, heads: 64, seq: 8192, saved: 32 },
    405: { params: 405e9, layers: 128, hidden: 16384, heads: 128, seq: 8192, saved: 32 },
  };
  const GPU = { memory: 80 * 2 ** 30, peak: 989e12, efficiency: 0.54, intra: 450e9, inter: 50e9, node: 8 };
  const TENSOR = [1, 2, 4, 8, 16], PIPELINE = [1, 2, 4, 8, 16];
  const PARTS = ["products", "tensor", "pipeline", "bubble", "data"];

  /** The first rule that a layout breaks, memory aside, or null. */
  function broken(model, gpus, { tp, pp, dp, micro, chunks }, batch) {
    if (tp * pp * dp !== gpus) return "GPUs";
    if (model.heads % tp) return "heads";
    if (model.layers % (pp * chunks) || (chunks > 1 && pp === 1)) return "layers";
    if (batch % (dp * micro) || (chunks > 1 && (batch / (dp * micro)) % pp)) return "batch";
    return null;
  }

  /** Bytes of weights and activations on a GPU. */
  function bytes(model, { tp, pp, dp, micro, chunks, recompute }, count, stage) {
    const state = [16, 4 + 12 / dp, 2 + 14 / dp][stage];
    const whole = (model.saved * model.seq * micro * model.hidden) / tp;
    const kept = recompute ? (2 * model.seq * micro * model.hidden) / tp : whole;
    const underWay = Math.min(count, chunks === 1 ? pp : pp + (pp - 1) / chunks);
    return (model.params / (tp * pp)) * state + ((kept * model.layers) / pp) * underWay + (recompute ? whole : 0);
  }

  /** What a step of a layout costs: `reason` if it does not fit, else memory, seconds, their parts, MFU. */
  function cost(model, gpus, layout, batch, stage) {
    const { tp, pp, dp, micro, chunks, recompute } = layout;
    const reason = broken(model, gpus, layout, batch);
    if (reason) return { ...layout, reason };
    const count = batch / (dp * micro);
    const memory = bytes(model, layout, count, stage);
    if (memory > GPU.memory) return { ...layout, reason: "memory", memory };
    // Rings through a node use a port for each rank that their group has there; a message between stages uses one port.
    const speed = (together, ports = 1) => (together <= GPU.node ? GPU.intra : Math.min(GPU.intra, ports * GPU.inter));
    const operations = (6 * model.params + 12 * model.layers * model.hidden * model.seq) * batch * model.seq;
    const activation = 2 * micro * model.seq * model.hidden;
    const products = (operations * (recompute ? 4 / 3 : 1)) / (gpus * GPU.peak * GPU.efficiency);
    const calls = (((recompute ? 6 : 4) * model.layers) / pp) * count;
    const tensor = (calls * 2 * (tp - 1) * activation) / tp / speed(tp, GPU.node);
    const pipeline = pp > 1 ? (2 * chunks * count * activation) / tp / speed(tp * pp) : 0;
    const data = (4 * (dp - 1) * model.params) / dp / (tp * pp) / speed(gpus, Math.max(1, Math.floor(GPU.node / (tp * pp))));
    const share = (pp - 1) / (chunks * count + pp - 1);
    const bubble = ((products + tensor + pipeline) * share) / (1 - share);
    const parts = { products, tensor, pipeline, bubble, data };
    const seconds = Object.values(parts).reduce((a, b) => a + b, 0);
    return { ...layout, reason: null, memory, parts, seconds, mfu: operations / (seconds * gpus * GPU.peak) };
  }

  /** The best of all micro-batches, chunks and choices of recomputation for a tp and a pp. */
  function best(model, gpus, tp, pp, batch, stage) {
    const dp = gpus / (tp * pp);
    if (!Number.isInteger(dp)) return { tp, pp, reason: "GPUs" };
    const tried = [1, 2, 4].flatMap((micro) => [1, 2, 4, 8].flatMap((chunks) => [false, true].map((recompute) =>
      cost(model, gpus, { tp, pp, dp, micro, chunks, recompute }, batch, stage))));
    const fit = tried.filter((one) => !one.reason);
    if (fit.length) return fit.reduce((a, b) => (b.seconds < a.seconds ? b : a));
    return tried.find((one) => one.reason === "memory") ?? tried[0];
  }

  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const gib = (count) => `${(count / 2 ** 30).toFixed(1)} GiB`;
  const named = ({ tp, pp, dp }) => `tp ${tp}, pp ${pp}, dp ${dp}`;

  /** The frames: one a layout that fits, the fastest first. */
  function frames({ model, gpus, batch, stage }) {
    const cells = PIPELINE.flatMap((pp) => TENSOR.map((tp) => best(MODELS[model], gpus, tp, pp, batch, stage)));
    const fit = cells.filter((one) => !one.reason).sort((a, b) => a.seconds - b.seconds);
    if (!fit.length) {
      const says = `None of these layouts fits: ${cells.some((one) => one.reason === "memory") ? "memory is too small on so few GPUs" : "none divides GPUs, layers and batch"}.`;
      return [{ cells, fit, chosen: null, says }];
    }
    return fit.map((chosen, place) => {
      const extra = `micro-batches of ${chosen.micro}, ${chosen.chunks === 1 ? "no chunks" : `${chosen.chunks} chunks`}, ` +
        `${chosen.recompute ? "recomputed" : "nothing recomputed"}`;
      const says = `Number ${place + 1} of ${fit.length}: ${named(chosen)} (${extra}). A step takes ${chosen.seconds.toPrecision(3)} s, ` +
        `MFU ${percent(chosen.mfu)}, ${gib(chosen.memory)} a GPU.`;
      return { cells, fit, chosen, says };
    });
  }

  function draw(frame, { html }) {
    const { cells, fit, chosen } = frame;
    const top = fit.length ? fit[0].mfu : 1;
    const cell = (one) => html`<td class=${`layout-cell ${one === chosen ? "layout-chosen" : ""} ${one.reason ? "layout-no" : ""}`}
      style=${one.reason ? {} : { background: `color-mix(in srgb, var(--rank-2) ${Math.round((55 * one.mfu) / top)}%, var(--pst-color-background))` }}>
      ${one.reason ?? percent(one.mfu)}</td>`;
    const row = (pp, k) => html`<tr><th>pp ${pp}</th>${cells.slice(k * TENSOR.length, (k + 1) * TENSOR.length).map(cell)}</tr>`;
    const longest = fit.length ? fit.at(-1).seconds : 1;
    return html`<div aria-hidden="true"><div class="layout-box"><table class="layout">
        <thead><tr><th></th>${TENSOR.map((tp) => html`<th>tp ${tp}</th>`)}</tr></thead>
        <tbody>${PIPELINE.map(row)}</tbody></table></div>
      ${chosen && html`<div class="layout-bars">
        <div class="layout-name">step</div><div class="layout-track">${PARTS.map((name, k) => html`<div class=${`layout-part layout-${k}`}
          style=${{ width: `${(100 * chosen.parts[name]) / longest}%` }}></div>`)}</div><div class="layout-sum">${chosen.seconds.toPrecision(3)} s</div>
        <div class="layout-name">memory</div><div class="layout-track"><div class="layout-part layout-memory"
          style=${{ width: `${(100 * chosen.memory) / GPU.memory}%` }}></div></div><div class="layout-sum">${gib(chosen.memory)}</div>
      </div>`}
      <ul class="layout-key">${PARTS.map((name, k) => html`<li><span class=${`layout-sample layout-${k}`}></span>${name}</li>`)}</ul></div>
      <p class="figure-key">MFU of each layout, or why it does not fit. The bar of the step is in the scale of the slowest; that of memory ends at 80 GiB.</p>`;
  }

  window.figures.define("layout", {
    label: "Layouts of a model on a cluster, the fastest first",
    settings: {
      model: { label: "Parameters", options: [[7, "7 billion"], [70, "70 billion"], [405, "405 billion"]], value: 70 },
      gpus: { label: "GPUs", options: [16, 64, 256, 512, 1024, 4096, 16384].map((n) => [n, n.toLocaleString("en")]), value: 512 },
      batch: { label: "Sequences a batch", options: [256, 512, 1024, 2048].map((n) => [n, n.toLocaleString("en")]), value: 512 },
      stage: { label: "Cut over dp", options: [[0, "nothing"], [1, "the optimizer"], [2, "gradients, too"]], value: 1 },
    },
    logic: { cost, best, frames },
    draw,
  });
})();
