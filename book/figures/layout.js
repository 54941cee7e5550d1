/* <figure-layout>: the layouts of a model on a cluster, from the fastest to the slowest, as lesson 15 costs them. */

"use strict";

(() => {
  const TENSOR = [1, 2, 4, 8, 16], PIPELINE = [1, 2, 4, 8, 16];
  const PARTS = ["arithmetic", "tensor", "pipeline", "bubble", "data"];

  /** The first rule that a layout breaks, memory aside, or null. */
  function broken(model, gpus, { tp, pp, dp, micro, chunks }, batch) {
    if (tp * pp * dp !== gpus) return "GPUs";
    if (model.heads % tp) return "heads";
    // Embedding and output layer may stand for a layer each.
    const divides = [model.layers, model.layers + 2].some((layers) => layers % (pp * chunks) === 0);
    if (!divides || (chunks > 1 && pp === 1)) return "layers";
    if (batch % (dp * micro) || (chunks > 1 && (batch / (dp * micro)) % pp)) return "batch";
    return null;
  }

  /** Bytes of weights, optimizer state (ZeRO-1) and activations on a GPU. */
  function bytes(model, { tp, pp, dp, micro, chunks, recompute }, count) {
    const layer = (model.kept / tp) * micro * model.sequence;
    const kept = recompute ? (2 * model.hidden * micro * model.sequence) / tp : layer;
    const alive = Math.min(count, chunks === 1 ? pp : pp + (pp - 1) / chunks);
    return (model.parameters / (tp * pp)) * (6 + 12 / dp) + ((kept * model.layers) / pp) * alive + (recompute ? layer : 0);
  }

  /** Bytes per second of a ring through ranks that are `stride` apart, as `machines.cluster` has it. */
  function bandwidth({ domain, nvlink, ports, port }, size, stride) {
    if (size * stride <= domain) return nvlink;
    const together = Math.max(1, Math.min(size, Math.floor(2 ** Math.floor(Math.log2(domain)) / stride)));
    const through = ((ports * together) / domain) * port;
    return together > 1 ? Math.min(nvlink, through) : through;
  }

  /** What a step of a layout costs: `reason` if it does not fit, else memory, seconds, their parts, MFU. */
  function cost({ model, machine, share }, gpus, layout, batch) {
    const { tp, pp, dp, micro, chunks, recompute } = layout;
    const reason = broken(model, gpus, layout, batch);
    if (reason) return { ...layout, reason };
    const count = batch / (dp * micro);
    const memory = bytes(model, layout, count);
    if (memory > machine.memory) return { ...layout, reason: "memory", memory };
    const flops = model.flops * batch * model.sequence, peak = gpus * machine.peak;
    const activation = 2 * micro * model.sequence * model.hidden;
    const arithmetic = (flops * (recompute ? 4 / 3 : 1)) / (peak * share);
    const calls = (((recompute ? 6 : 4) * model.layers) / pp) * count;
    const tensor = tp > 1 ? (calls * 2 * (tp - 1) * activation) / tp / bandwidth(machine, tp, 1) : 0;
    const pipeline = pp > 1 ? (2 * chunks * count * activation) / tp / bandwidth(machine, 2, tp * dp) : 0;
    const data = dp > 1 ? (6 * (dp - 1) * model.parameters) / dp / (tp * pp) / bandwidth(machine, dp, tp) : 0;
    const idle = (pp - 1) / (chunks * count + pp - 1);
    const bubble = ((arithmetic + tensor + pipeline) * idle) / (1 - idle);
    const parts = { arithmetic, tensor, pipeline, bubble, data };
    const seconds = Object.values(parts).reduce((a, b) => a + b, 0);
    return { ...layout, reason: null, memory, parts, seconds, mfu: flops / (seconds * peak) };
  }

  /** The best of all micro-batches, chunks and choices of recomputation for a tp and a pp. */
  function best(given, gpus, tp, pp, batch) {
    const dp = gpus / (tp * pp);
    if (!Number.isInteger(dp)) return { tp, pp, reason: "GPUs" };
    const tried = [1, 2, 4].flatMap((micro) => [1, 2, 4, 8].flatMap((chunks) => [false, true].map((recompute) =>
      cost(given, gpus, { tp, pp, dp, micro, chunks, recompute }, batch))));
    const fit = tried.filter((one) => !one.reason);
    if (fit.length) return fit.reduce((a, b) => (b.seconds < a.seconds ? b : a));
    return tried.find((one) => one.reason === "memory") ?? tried[0];
  }

  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const gigabytes = (count) => `${(count / 1e9).toFixed(1)} GB`;
  const named = ({ tp, pp, dp }) => `tp ${tp}, pp ${pp}, dp ${dp}`;

  /** The frames: one per layout that fits, the fastest first. data: machines, models, and the share of the peak. */
  function frames({ machine, model, gpus, batch }, data) {
    const given = { model: data.models[model], machine: data.machines[machine], share: data.share };
    const cells = PIPELINE.flatMap((pp) => TENSOR.map((tp) => best(given, gpus, tp, pp, batch)));
    const fit = cells.filter((one) => !one.reason).sort((a, b) => a.seconds - b.seconds);
    if (!fit.length) {
      const says = `None of these layouts fits: ${cells.some((one) => one.reason === "memory") ? "memory is too small on so few GPUs" : "none divides GPUs, layers and batch"}.`;
      return [{ cells, fit, chosen: null, says, memory: given.machine.memory }];
    }
    return fit.map((chosen, place) => {
      const extra = `micro-batches of ${chosen.micro}, ${chosen.chunks === 1 ? "no chunks" : `${chosen.chunks} chunks`}, ` +
        `${chosen.recompute ? "recomputed" : "nothing recomputed"}`;
      const says = `Number ${place + 1} of ${fit.length}: ${named(chosen)} (${extra}). A step takes ${chosen.seconds.toPrecision(3)} s, ` +
        `MFU ${percent(chosen.mfu)}, ${gigabytes(chosen.memory)} per GPU.`;
      return { cells, fit, chosen, says, memory: given.machine.memory };
    });
  }

  function draw(frame, { html }) {
    const { cells, fit, chosen, memory } = frame;
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
          style=${{ width: `${(100 * chosen.memory) / memory}%` }}></div></div><div class="layout-sum">${gigabytes(chosen.memory)}</div>
      </div>`}
      <ul class="layout-key">${PARTS.map((name, k) => html`<li><span class=${`layout-sample layout-${k}`}></span>${name}</li>`)}</ul></div>
      <p class="figure-key">MFU of each layout, or why it does not fit. The bar of the step is in the scale of the slowest; that of memory ends at ${gigabytes(memory)}. Messages cost their bytes alone, and nothing hides.</p>`;
  }

  window.figures.define("layout", {
    label: "Layouts of a model on a cluster, the fastest first",
    settings: {
      machine: { label: "GPUs of", options: [["H100", "H100"], ["GB200 NVL72", "GB200 NVL72"]], value: "H100" },
      model: { label: "Model", options: ["Llama 3 8B", "Llama 3 70B", "Llama 3 405B"].map((name) => [name, name]), value: "Llama 3 70B" },
      gpus: { label: "How many", options: [16, 64, 256, 512, 1024, 4096, 16384].map((n) => [n, n.toLocaleString("en")]), value: 512 },
      batch: { label: "Sequences per batch", options: [256, 512, 1024, 2048].map((n) => [n, n.toLocaleString("en")]), value: 512 },
    },
    logic: { cost, best, frames },
    draw,
  });
})();
