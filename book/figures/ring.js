/* <figure-ring>: a ring all-reduce, one round a step. Chunks are shown as sets of the ranks whose parts they hold. */

"use strict";

(() => {
  const { bytes, color } = window.figures;
  const BYTES_PER_NUMBER = 4;
  const modulo = (a, n) => ((a % n) + n) % n;

  /** The lengths of the chunks into which `tensor_split` cuts `numel` numbers: the first ones get what is left over. */
  function lengths(numel, ranks) {
    return Array.from({ length: ranks }, (_, chunk) => Math.floor(numel / ranks) + (chunk < numel % ranks ? 1 : 0));
  }

  /** What the ranks send in round 1, 2, …, 2(N - 1): an array of {from, to, chunk} a round.

      start: "before" if rank r begins with chunk r - 1, as in the chapter; "own" if it begins with chunk r. */
  function rounds(ranks, start) {
    const ahead = start === "own" ? 1 : 0;
    return Array.from({ length: 2 * (ranks - 1) }, (_, k) => {
      const back = k < ranks - 1 ? k + 1 : k - (ranks - 1);
      return Array.from({ length: ranks }, (_, rank) => ({
        from: rank,
        to: modulo(rank + 1, ranks),
        chunk: modulo(rank - back + ahead, ranks),
      }));
    });
  }

  /** The frames: before the first round, and after each.

      parts[r][c]: the ranks whose parts rank r's chunk c holds, in the order in which they were added up.
      sent[r]: the bytes that rank r has sent. moves: the round's messages, each with its bytes. */
  function frames({ ranks, numel, start }) {
    const size = lengths(numel, ranks).map((length) => length * BYTES_PER_NUMBER);
    const sent = Array(ranks).fill(0);
    const bound = (2 * (ranks - 1) * numel * BYTES_PER_NUMBER) / ranks;
    const parts = Array.from({ length: ranks }, (_, rank) => Array.from({ length: ranks }, () => [rank]));
    const found = [{ round: 0, parts: copy(parts), sent: [...sent], moves: [], bound, size }];
    rounds(ranks, start).forEach((messages, k) => {
      const adding = k < ranks - 1;
      const moves = messages.map((m) => ({ ...m, adding, bytes: size[m.chunk], parts: [...parts[m.from][m.chunk]] }));
      for (const { from, to, chunk, bytes: cost, parts: got } of moves) {
        parts[to][chunk] = adding ? [...got, ...parts[to][chunk]] : got;
        sent[from] += cost;
      }
      found.push({ round: k + 1, parts: copy(parts), sent: [...sent], moves, bound, size });
    });
    return found.map((frame) => ({ ...frame, says: says(frame, ranks, numel) }));
  }

  const copy = (parts) => parts.map((chunks) => chunks.map((chunk) => [...chunk]));

  /** Each rank's vector at a frame, from the vectors that the ranks began with: the sum over each chunk's parts. */
  function buffers(frame, vectors) {
    const ends = frame.size.map((_, c) => frame.size.slice(0, c + 1).reduce((a, b) => a + b) / BYTES_PER_NUMBER);
    return frame.parts.map((chunks) =>
      vectors[0].map((_, j) => chunks[ends.findIndex((end) => j < end)].reduce((sum, q) => sum + vectors[q][j], 0)),
    );
  }

  function says(frame, ranks, numel) {
    const total = bytes(numel * BYTES_PER_NUMBER);
    if (frame.round === 0) return `${ranks} ranks, each with its own vector of ${total}, cut into ${ranks} chunks.`;
    const { from, to, chunk, bytes: cost, adding, parts } = frame.moves[0];
    const whole = parts.length === ranks;
    const what = adding
      ? `its ${parts.length === 1 ? "own part" : `sum of ${parts.length} parts`} of chunk ${chunk}`
      : `${whole ? "the finished" : "its"} chunk ${chunk}`;
    const done = adding ? `rank ${to} adds its own` : `rank ${to} keeps it`;
    const half = adding ? "reduce-scatter" : "all-gather";
    const begin = `Round ${frame.round}, ${half}. Every rank sends one chunk to the right: rank ${from} sends ${what} ` +
      `(${bytes(cost)}), and ${done}.`;
    if (frame.round === ranks - 1) {
      const shift = frame.parts[0][0].length === ranks;
      return `${begin} The reduce-scatter is over: rank r holds the finished chunk ${shift ? "r" : "r + 1"}.`;
    }
    if (frame.round < 2 * (ranks - 1)) return begin;
    const [least, most] = [Math.min(...frame.sent), Math.max(...frame.sent)];
    const each = least === most ? `Each rank has sent ${bytes(most)}` : `The ranks have sent ${bytes(least)} to ${bytes(most)}`;
    return `${begin} All ranks hold the whole sum. ${each}; 2(N − 1)/N · T is ${bytes(round(frame.bound))}.`;
  }

  const round = (number) => Math.round(number * 10) / 10;

  function draw(frame, { html, settings: { ranks }, forward, step }) {
    const most = Math.max(frame.bound, ...frame.sent);
    const all = [...Array(ranks).keys()];
    const arrives = (rank, chunk) => frame.moves.find((move) => move.to === rank && move.chunk === chunk);
    const cell = (rank, chunk) => {
      const have = frame.parts[rank][chunk];
      const move = arrives(rank, chunk);
      const arrow = move && html`<span class="ring-arrow" style=${{ color: color(move.from) }}></span>`;
      return html`<td class=${have.length === ranks ? "ring-chunk ring-done" : "ring-chunk"}>
        ${arrow}
        <span class=${move && forward ? "ring-parts ring-arrives" : "ring-parts"} key=${step}>
          ${all.map((q) => html`<span class="ring-part" style=${{ background: have.includes(q) ? color(q) : "none" }}></span>`)}
        </span>
        <span class="figure-hidden">${have.length === ranks ? "all parts" : `parts of ${[...have].sort().join(", ")}`}</span>
      </td>`;
    };
    return html`<table class="ring" style=${{ "--ranks": ranks }}>
      <caption class="figure-hidden">Whose parts each rank holds in each chunk, and the bytes that it has sent</caption>
      <thead><tr><th scope="col">chunk</th>${all.map((c) => html`<th scope="col">${c}</th>`)}
        <th scope="col" class="ring-bytes">bytes sent</th></tr></thead>
      <tbody>${all.map((rank) => html`<tr>
        <th scope="row"><span class="figure-dot" style=${{ background: color(rank) }}></span>rank ${rank}</th>
        ${all.map((chunk) => cell(rank, chunk))}
        <td class="ring-bytes"><span class="ring-bar" style=${{ "--share": frame.sent[rank] / most, "--bound": frame.bound / most, color: color(rank) }}></span>
          <span class="ring-number">${frame.sent[rank].toLocaleString("en")}</span></td>
      </tr>`)}</tbody></table>
      <p class="figure-key">Each chunk has a strip for each rank, filled in that rank's color once its part has been added.
        The line across the bars is the least that the busiest rank can send, 2(N − 1)/N · T = ${round(frame.bound).toLocaleString("en")} bytes.</p>`;
  }

  window.figures.define("ring", {
    label: "Ring all-reduce, step by step",
    settings: {
      ranks: { label: "Ranks N", from: 2, to: 8, value: 4 },
      numel: {
        label: "Vector",
        options: [[840, "840 numbers"], [10, "10 numbers"], [1000000, "1,000,000 numbers"]],
        value: 840,
      },
      start: {
        label: "Rank r begins with",
        options: [["before", "chunk r − 1"], ["own", "chunk r"]],
        value: "before",
      },
    },
    logic: { frames, rounds, lengths, buffers },
    draw,
  });
})();
