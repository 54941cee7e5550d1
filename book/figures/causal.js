/* <figure-causal>: causal attention on a ring: which rank computes which pair of query and key, step by step. */

"use strict";

(() => {
  const LENGTHS = [[8, "8"], [16, "16"], [24, "24"], [32, "32"]];

  /** Positions cut into `count` consecutive parts, the first ones longer by one where it does not divide. */
  function parts(length, count) {
    const [each, longer] = [Math.floor(length / count), length % count];
    let start = 0;
    return Array.from({ length: count }, (_, k) => {
      const size = each + (k < longer ? 1 : 0);
      start += size;
      return Array.from({ length: size }, (_, i) => start - size + i);
    });
  }

  /** The rank of each position. */
  function owners(length, ranks, layout) {
    const owner = Array(length);
    const give = (positions, rank) => positions.forEach((position) => (owner[position] = rank));
    if (layout === "striped") return owner.fill(0).map((_, position) => position % ranks);
    if (layout === "contiguous") parts(length, ranks).forEach(give);
    else parts(length, 2 * ranks).forEach((part, k) => give(part, k < ranks ? k : 2 * ranks - 1 - k));
    return owner;
  }

  /** The allowed pairs of each step and rank. */
  function pairs(length, ranks, layout) {
    const owner = owners(length, ranks, layout);
    const counts = Array.from({ length: ranks }, () => Array(ranks).fill(0));
    for (let query = 0; query < length; query += 1) {
      for (let key = 0; key <= query; key += 1) counts[(owner[query] - owner[key] + ranks) % ranks][owner[query]] += 1;
    }
    return counts;
  }

  const sum = (list) => list.reduce((a, b) => a + b, 0);

  /** The share of all ranks' time that is spent waiting, if a step lasts as long as its busiest rank. */
  function idle(counts) {
    const available = counts[0].length * sum(counts.map((step) => Math.max(...step)));
    return available ? 1 - sum(counts.map(sum)) / available : 0;
  }

  /** The same share if a rank goes on once both of its neighbors on the ring have begun the same step. */
  function idleInRing(counts) {
    const n = counts.length;
    let start = Array(n).fill(0);
    let end = start;
    for (const step of counts) {
      end = start.map((begun, rank) => begun + step[rank]);
      start = end.map((done, rank) => Math.max(done, start[(rank + 1) % n], start[(rank + n - 1) % n]));
    }
    const available = n * Math.max(...end);
    return available ? 1 - sum(counts.map(sum)) / available : 0;
  }

  /** The same share if a rank has all keys from the start and waits only at the end. */
  const idleAfterGather = (counts) => idle([counts[0].map((_, rank) => sum(counts.map((step) => step[rank])))]);

  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  /** The frames: one a step of the ring, and the whole. */
  function frames({ ranks, length, layout }) {
    const counts = pairs(length, ranks, layout);
    const rules = [idle(counts), idleInRing(counts), idleAfterGather(counts)];
    const whole = { owner: owners(length, ranks, layout), counts, idle: rules[0], rules };
    const steps = counts.map((now, step) => {
      const [most, least] = [Math.max(...now), Math.min(...now)];
      const from = step === 0 ? "its own keys" : step === 1 ? "the keys of the rank before it" : `the keys of the rank ${step} places before it`;
      const says = `Step ${step}: each rank has ${from}. The busiest computes ${most} pairs, the idlest ${least}.`;
      return { ...whole, step, says };
    });
    const [inStep, inRing, gathered] = rules.map(percent);
    const says = `${sum(counts.map(sum))} pairs in ${ranks} steps. ` +
      `The ranks wait ${inStep} of the time in step, ${inRing} in a ring, and ${gathered} after one gather.`;
    return [...steps, { ...whole, step: ranks, says }];
  }

  function draw(frame, { html, settings }) {
    const { owner, step, counts } = frame;
    const cell = (query, key) => {
      const when = (owner[query] - owner[key] + settings.ranks) % settings.ranks;
      const state = when === step ? "causal-now" : when < step ? "causal-done" : "causal-later";
      return html`<rect class=${state} x=${key} y=${query} width="1" height="1"
        style=${{ fill: when > step ? null : window.figures.color(owner[query]) }} />`;
    };
    const cells = owner.flatMap((_, query) => Array.from({ length: query + 1 }, (_, key) => cell(query, key)));
    const now = counts[Math.min(step, settings.ranks - 1)];
    const most = Math.max(...counts.flat());
    const shown = step < settings.ranks ? now : now.map(() => 0);
    return html`<div class="causal" aria-hidden="true">
        <div class="causal-square"><span>key →</span>
          <svg viewBox=${`0 0 ${settings.length} ${settings.length}`}>${cells}</svg></div>
        <div class="causal-work"><span>${step < settings.ranks ? `pairs in step ${step}` : "pairs of all steps"}</span>
          ${now.map((_, rank) => {
            const count = step < settings.ranks ? shown[rank] : sum(counts.map((one) => one[rank]));
            const top = step < settings.ranks ? most : Math.max(...now.map((_, r) => sum(counts.map((one) => one[r]))));
            return html`<div class="causal-rank">rank ${rank}</div><div class="causal-track"><div
              style=${{ width: `${(100 * count) / top}%`, background: window.figures.color(rank) }}></div></div>
              <div class="causal-count">${count}</div>`;
          })}</div>
      </div>
      <p class="figure-key">Rows are queries, in the color of their rank; full color: this step.</p>`;
  }

  window.figures.define("causal", {
    label: "Causal attention on a ring, step by step",
    settings: {
      layout: { label: "Positions", options: [["contiguous", "contiguous"], ["striped", "striped"], ["zigzag", "zigzag"]], value: "contiguous" },
      ranks: { label: "Ranks", from: 2, to: 8, value: 4 },
      length: { label: "Tokens", options: LENGTHS, value: 16 },
    },
    logic: { owners, pairs, idle, frames },
    draw,
  });
})();
