/* <figure-faults>: recorded runs of four ranks, each with another fault, and what eleven detectors say, step by step. */

"use strict";

(() => {
  const { color } = window.figures;
  /** Of each fault: the setting's words, the head of its column, and what happens on its rank. */
  const FAULTS = {
    bit: ["a bit of a weight flips", "a bit flips", "a bit of a weight flips before forward"],
    batch: ["another rank's batch", "wrong batch", "the batch is another rank's"],
    gradient: ["a gradient twice as large", "gradient × 2", "the gradient is twice as large"],
    moments: ["momentum is lost", "momentum lost", "the momentum is zeroed before the update"],
    rate: ["twice the rate on a shard", "rate × 2", "the shard is updated with twice the rate"],
    copy: ["a copy changes after the all-gather", "copy changes", "a copied weight changes after the all-gather"],
  };

  const ALL = "all six, side by side";

  const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
  const differs = (a, b, share) => !(Math.abs(a - b) <= share * b);

  function median(list) {
    const sorted = [...list].sort((a, b) => a - b);
    return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
  }

  /** What occurs most often, in a tie the first. */
  function most(list) {
    const count = (own) => list.filter((other) => other === own).length;
    return list.reduce((best, own) => (count(own) > count(best) ? own : best));
  }

  /** The up to five entries before place t. */
  const before = (list, t) => list.slice(Math.max(0, t - 5), t);

  /** The loss of each step: the mean over the ranks. */
  const losses = (run) => run.loss[0].map((_, t) => mean(run.loss.map((mine) => mine[t])));

  /** A detector that looks at each rank names the first of which `wrong(rank, t)` is true; one that looks at the mean
      loss names none. Each returns whom it accuses at place t: a list of ranks, or [null], or []. */
  const each = (wrong) => (run, t, reference) =>
    run.loss.map((_, rank) => rank).filter((rank) => wrong(run, rank, t, reference));
  const ofLoss = (wrong) => (run, t, reference) => (wrong(losses(run), t, reference) ? [null] : []);
  const changed = (what) => each((run, r, t) => t > 0 && run[`${what}_in`][r][t] !== run[`${what}_out`][r][t - 1]);
  const off = (what) => each((run, r, t, alone) => differs(run[what][r][t], alone[what][r][t], 1e-3));

  const DETECTORS = {
    "(a) the loss": ofLoss((loss, t) => t > 0 && !(loss[t] < loss[t - 1])),
    guard: ofLoss((loss, t) => t > 0 && loss[t] > 1.5 * median(before(loss, t))),
    "batches, all ranks": ({ batch }, t) => (new Set(batch.map((mine) => mine[t])).size < batch.length ? [null] : []),
    "local norm, own past": each(({ gradient }, r, t) => t > 0 && gradient[r][t] > 2 * median(before(gradient[r], t))),
    "local norm, all ranks": each(({ gradient }, r, t) => gradient[r][t] > 1.5 * median(gradient.map((own) => own[t]))),
    "(b) after the step": each(({ parameters_out: out }, r, t) => out[r][t] !== most(out.map((own) => own[t]))),
    "(b) before forward": changed("parameters"),
    "state before the step": changed("state"),
    "update, own past": each(({ update }, r, t) => t > 1 && update[r][t] > 1.3 * median(before(update[r], t))),
    "norms, one process": (...given) => [...off("gradient")(...given), ...off("update")(...given)],
    "losses, one process": ofLoss((loss, t, alone) => Math.abs(loss[t] - losses(alone)[t]) > 1e-5),
  };
  const NAMES = Object.keys(DETECTORS);

  /** For each detector: the first step at which it sees something wrong, and the rank that it names; null for never. */
  function lamps(run, reference) {
    return NAMES.map((name) => {
      const accused = losses(run).map((_, t) => DETECTORS[name](run, t, reference));
      const t = accused.findIndex((list) => list.length > 0);
      return t < 0 ? null : { step: t + 1, rank: accused[t][0] };
    });
  }

  /** For each rank: the lowest rank that holds the same. */
  const groups = (digests) => digests.map((digest) => digests.indexOf(digest));

  const and = (list) => (list.length < 2 ? list.join("") : `${list.slice(0, -1).join(", ")} and ${list.at(-1)}`);
  const four = (number) => number.toFixed(4);

  /** The frames: before the first step, and after each. A run has its losses and lamps up to the step. */
  function frames({ fault }, data) {
    const kinds = fault === "all" ? Object.keys(FAULTS) : [fault];
    const whole = kinds.map((kind) => {
      const run = data.runs[kind];
      return { kind, losses: losses(run), lamps: lamps(run, data.reference) };
    });
    return [0, ...whole[0].losses.map((_, t) => t + 1)].map((step) => {
      const runs = whole.map((run) => ({
        ...run,
        losses: run.losses.slice(0, step),
        lamps: run.lamps.map((lamp) => (lamp && lamp.step <= step ? lamp : null)),
      }));
      const held = (what) => (step ? data.runs[fault][what].map((mine) => mine[step - 1]) : null);
      const ranks = fault === "all" ? {} : { start: held("parameters_in"), end: held("parameters_out") };
      const frame = { step, last: step === whole[0].losses.length, runs, ...ranks };
      return { ...frame, says: fault === "all" ? saysAll(frame, data) : says(frame, data) };
    });
  }

  /** One run's step in words. */
  function says({ step, last, runs: [run], start, end }, { at, on }) {
    const planted = run.kind !== "none";
    if (step === 0) {
      return "All four ranks hold rank 0's parameters. " +
        (planted ? `In step ${at}, on rank ${on}, ${FAULTS[run.kind][2]}.` : "No fault is planted.");
    }
    const happens = planted && step === at ? `On rank ${on} ${FAULTS[run.kind][2]}. ` : "";
    const whom = ({ rank }) => (rank === null ? "names no rank" : `names rank ${rank}`);
    const lit = NAMES.flatMap((name, k) => (run.lamps[k]?.step === step ? [`“${name}” ${whom(run.lamps[k])}`] : []));
    const light = lit.length ? ` ${lit.length > 1 ? "Lamps light" : "A lamp lights"}: ${and(lit)}.` : "";
    const count = run.lamps.filter(Boolean).length;
    const sum = last ? ` At the end ${count || "none"} of ${NAMES.length} lamps ${count > 1 ? "are" : "is"} lit.` : "";
    return `Step ${step}: ${happens}${fell(run.losses)}${light} ${parity(start, end)}${sum}`;
  }

  function fell(list) {
    const [now, old] = [list.at(-1), list.at(-2)];
    if (old === undefined) return `The loss is ${four(now)}.`;
    return now < old ? `The loss falls to ${four(now)}.` : `The loss rises to ${four(now)}.`;
  }

  /** Which ranks hold equal parameters, in words. */
  function parity(start, end) {
    const odd = (digests) => groups(digests).flatMap((group, rank) => (group ? [rank] : []));
    const [was, is] = [odd(start), odd(end)];
    const differ = (list) => `rank ${and(list)} ${list.length > 1 ? "differ" : "differs"} from rank 0`;
    if (is.length) return `After the step ${differ(is)}.`;
    return was.length ? `Before forward ${differ(was)}; after the step all ranks are equal.` : "All ranks are equal.";
  }

  /** Six runs' step in words. */
  function saysAll({ step, last, runs }, { at, on }) {
    if (step === 0) return `Six runs, each with its own fault in step ${at} on rank ${on}. No lamp is lit.`;
    const falling = runs.filter((run) => step === 1 || run.losses.at(-1) < run.losses.at(-2)).length;
    const loss = step === 1 ? "" : ` The loss falls in ${falling} of ${runs.length} runs.`;
    const dark = NAMES.filter((_, k) => runs.every((run) => !run.lamps[k]));
    const most = Math.max(...NAMES.map((_, k) => runs.filter((run) => run.lamps[k]).length));
    const lit = runs.flatMap((run) => run.lamps).filter(Boolean).length;
    const words = lit ? ` ${lit} lamps are lit. A detector sees ${most} of the six faults at most.` : " No lamp is lit.";
    return `Step ${step}:${loss}${words}${last ? ` Never lit: ${and(dark)}.` : ""}`;
  }

  /* The picture of the losses: its size and the margins for the numbers at its axes. */
  const WIDE = 320, HIGH = 150, LEFT = 26, TOP = 9, BOTTOM = 20;

  function chart(html, { runs, step }, { runs: all, at }) {
    const healthy = losses(all.none), steps = healthy.length;
    const [top, low] = [Math.ceil(2 * Math.max(...healthy)) / 2, Math.floor(2 * Math.min(...healthy)) / 2];
    const x = (number) => LEFT + ((WIDE - LEFT - 8) * (number - 1)) / (steps - 1);
    const y = (loss) => TOP + ((HIGH - BOTTOM - TOP) * (top - loss)) / (top - low);
    const line = (list) => list.map((loss, t) => `${x(t + 1).toFixed(1)},${y(loss).toFixed(1)}`).join(" ");
    const levels = Array.from({ length: 2 * (top - low) + 1 }, (_, k) => low + k / 2);
    return html`<svg class="faults-chart" viewBox=${`0 0 ${WIDE} ${HIGH}`} aria-hidden="true">
      ${levels.map((level) => html`<path class="faults-level" d=${`M${LEFT} ${y(level)}H${WIDE}`} />
        <text x=${LEFT - 5} y=${y(level) + 3} text-anchor="end">${level.toFixed(1)}</text>`)}
      ${[1, 5, 10, 15, 20].map((number) =>
        html`<text x=${x(number)} y=${HIGH - 6} text-anchor="middle">${number}</text>`)}
      ${runs[0].kind !== "none" && html`<path class="faults-at" d=${`M${x(at)} ${TOP}V${HIGH - BOTTOM}`} />
        <text x=${x(at) + 4} y="20">fault</text>`}
      <polyline class="faults-healthy" points=${line(healthy)} />
      ${runs.map((run) => html`<polyline class="faults-run" points=${line(run.losses)} />`)}
      ${step > 0 && html`<circle cx=${x(step)} cy=${y(runs[0].losses.at(-1))} r="3.5" />`}
    </svg>`;
  }

  /** What each rank holds, a column a rank; equal ones have the color of the lowest rank among them. */
  function holdings(html, { start, end }, data) {
    const all = data.digests.split(" ");
    const ranks = data.reference.loss.map((_, rank) => rank);
    const cell = (digests, rank) => digests === null ? html`<td>–</td>`
      : html`<td class="faults-held" style=${{ "--own": color(groups(digests)[rank]) }}>${all[digests[rank]]}</td>`;
    const row = (words, digests) =>
      html`<tr><th scope="row">${words}</th>${ranks.map((rank) => cell(digests, rank))}</tr>`;
    const dot = (rank) => html`<span class="figure-dot" style=${{ background: color(rank) }}></span>rank ${rank}`;
    return html`<table class="faults-ranks">
      <caption>first digits of the hash of the parameters</caption>
      <thead><tr><td></td>${ranks.map((rank) => html`<th scope="col">${dot(rank)}</th>`)}</tr></thead>
      <tbody>${row("before forward", start)}${row("after the step", end)}</tbody></table>`;
  }

  const bulb = (html, lamp, words) => html`<span class=${`faults-lamp ${lamp ? "faults-lit" : ""}`}>${words}</span>`;

  /** One run's lamps in words. */
  function list(html, { lamps: shown }) {
    const dot = (rank) => html`<span class="figure-dot" style=${{ background: color(rank) }}></span>`;
    const where = ({ step, rank }) => html`step ${step}${rank !== null && html`, ${dot(rank)}rank ${rank}`}`;
    return html`<table class="faults-list">
      <caption class="figure-hidden">What each detector has seen first</caption>
      <tbody>${NAMES.map((name, k) => html`<tr class=${shown[k] ? "faults-seen" : ""}>
        <th scope="row">${bulb(html, shown[k])}${name}</th>
        <td>${shown[k] ? where(shown[k]) : "silent"}</td></tr>`)}</tbody></table>`;
  }

  /** The lamps of all runs, each with the number of its step. */
  function matrix(html, runs) {
    return html`<table class="faults-matrix">
      <caption class="figure-hidden">The step in which each detector sees each fault</caption>
      <thead><tr><td></td>
        ${runs.map(({ kind }) => html`<th scope="col"><span>${FAULTS[kind][1]}</span></th>`)}</tr></thead>
      <tbody>${NAMES.map((name, k) => html`<tr><th scope="row">${name}</th>
        ${runs.map(({ lamps: its }) => html`<td>${bulb(html, its[k], its[k]?.step)}</td>`)}</tr>`)}</tbody></table>`;
  }

  /** How far the loss is from that of the healthy run, in words. */
  function offset({ step, runs: [run] }, healthy) {
    if (step === 0 || run.kind === "none") return "";
    const gap = run.losses.at(-1) - losses(healthy)[step - 1];
    return ` Off from it: ${Math.abs(gap) < 1e-6 ? "less than 10⁻⁶" : gap.toFixed(6).replace("-", "−")}.`;
  }

  function draw(frame, { html, settings, data }) {
    const one = settings.fault !== "all";
    return html`<div class="faults">
        <div>${chart(html, frame, data)}
          <p class="figure-key">Mean loss of each step, drawn over that of the run without a fault (gray).
            ${one && offset(frame, data.runs.none)}</p>
          ${one && holdings(html, frame, data)}</div>
        <div>${one ? list(html, frame.runs[0]) : matrix(html, frame.runs)}</div>
      </div>`;
  }

  window.figures.define("faults", {
    label: "Four ranks train with a planted fault, step by step, under eleven detectors",
    keeps: true,
    settings: {
      fault: {
        label: "The fault",
        options: [["none", "none"], ...Object.entries(FAULTS).map(([kind, [words]]) => [kind, words]), ["all", ALL]],
        value: "bit",
      },
    },
    logic: { frames, lamps, losses, groups, names: NAMES },
    draw,
  });
})();
