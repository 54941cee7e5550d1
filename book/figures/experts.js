/* <figure-experts>: tokens choose experts, are counted, travel to the experts' ranks, and come back. */

"use strict";

(() => {
  const TOKENS = 16; // on each rank: a factor of 1, 1.5 or 2 then gives three capacities, with up to eight experts
  const DRAW = 68; // of 200 draws, one whose shares of waiting are near the mean of all
  const FAVORITE = 1; // the expert that a router with a favorite prefers

  /** A number from 0 to 9999 that looks random and is the same in every browser. */
  function shuffled(rank, token, expert) {
    let x = Math.imul(rank + DRAW, 0x9e3779b1) ^ Math.imul(token + 1, 0x85ebca6b) ^ Math.imul(expert + 1, 0xc2b2ae35);
    x = Math.imul(x ^ (x >>> 15), 0x2c1b3c6d);
    x = Math.imul(x ^ (x >>> 12), 0x297a2d39);
    return ((x ^ (x >>> 15)) >>> 0) % 10000;
  }

  /** scores[rank][token][expert], without ties within a token. */
  function scores({ ranks, router }) {
    const list = (length, make) => Array.from({ length }, (_, k) => make(k));
    return list(ranks, (rank) => list(TOKENS, (token) => list(ranks, (expert) =>
      8 * (shuffled(rank, token, expert) + (router === "favorite" && expert === FAVORITE ? 5000 : 0)) + expert)));
  }

  /** The k experts with the largest scores, the largest first. */
  function choose(row, k) {
    return row.map((_, expert) => expert).sort((a, b) => row[b] - row[a]).slice(0, k);
  }

  /** Which of a rank's places token · k + choice each expert serves: first choices first, at most `most` of them. */
  function plan(chosen, experts, most) {
    const served = Array.from({ length: experts }, () => []);
    for (let choice = 0; choice < chosen[0].length; choice += 1) {
      chosen.forEach((own, token) => {
        if (served[own[choice]].length < most) served[own[choice]].push(token * own.length + choice);
      });
    }
    return served;
  }

  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  /** The frames: choice, capacity, dispatch, computation, combine. */
  function frames(settings) {
    const { ranks, k, factor } = settings;
    const chosen = scores(settings).map((rows) => rows.map((row) => choose(row, k)));
    const most = factor ? Math.ceil((factor * k * TOKENS) / ranks) : Infinity;
    const served = chosen.map((own) => plan(own, ranks, most)); // [rank][expert] -> places
    const counts = served.map((own) => own.map((places) => places.length));
    const rows = counts.map((_, expert) => sum(counts.map((own) => own[expert])));
    const [busiest, mean] = [Math.max(...rows), sum(rows) / ranks];
    const sent = counts.map((own, rank) => sum(own) - own[rank]);
    const dropped = ranks * TOKENS * k - sum(rows);
    const first = sum(served.map((own) => TOKENS - own.flat().filter((place) => place % k === 0).length));
    const lost = sum(served.map((own) => TOKENS - new Set(own.flat().map((place) => Math.floor(place / k))).size));
    const wanted = counts.map((_, expert) => chosen.flat(2).filter((one) => one === expert).length);
    const whole = { chosen, served, counts, rows, sent, dropped, first, lost, idle: 1 - mean / busiest };
    const says = [
      `Each rank has ${TOKENS} tokens, and each token has chosen ${many(k, "expert")}; expert i lies on rank i. ` +
        `The most popular expert is chosen ${Math.max(...wanted)} times, the least popular ${Math.min(...wanted)} times.`,
      factor ? `An expert serves at most ${many(most, "choice")} of each rank. ${dropped} of ${ranks * TOKENS * k} choices are dropped` +
          (k > 1 ? `, ${first} of them first choices.` : ".")
        : "There is no capacity: every choice is served.",
      `Dispatch: ${many(sum(sent), "row")} travel, ${sum(rows) - sum(sent)} stay on their rank. One rank sends ${Math.max(...sent)}, another only ${Math.min(...sent)}.`,
      `The busiest expert computes on ${many(busiest, "row")}, the mean is ${Number(mean.toFixed(2))}` +
        (dropped ? `; without the capacity it would be ${Math.max(...wanted)} and ${TOKENS * k}. ` : ". ") +
        `The ranks wait for it ${(100 * whole.idle).toFixed(1)} % of the time.`,
      `Combine: the same ${sum(sent)} rows travel back. ` +
        (lost ? `${many(lost, "token")} got nothing from any expert.` : "Every token has been served by at least one expert."),
    ];
    return says.map((words, stage) => ({ ...whole, stage, says: words }));
  }

  const STAGES = ["choose", "capacity", "dispatch", "compute", "combine"];

  function draw(frame, { html, settings }) {
    const { stage, chosen, served } = frame;
    const away = stage === 2 || stage === 3;
    const square = (rank, expert, look) => html`<span class=${`experts-row ${look}`}
      style=${{ "--mine": window.figures.color(rank) }}>${expert}</span>`;
    const home = (rank) => chosen[rank].flatMap((own, token) => own.map((expert, choice) => {
      const kept = served[rank][expert].includes(token * own.length + choice);
      const look = stage > 0 && !kept ? "experts-dropped" : away ? "experts-away" : "";
      return square(rank, expert, `${look} ${choice === own.length - 1 ? "experts-last" : ""}`);
    }));
    const guests = (expert) => served.flatMap((own, rank) => own[expert].map(() => square(rank, expert, "")));
    return html`<div class="experts" aria-hidden="true">
        <div></div><div class="experts-head">choices of its tokens</div><div class="experts-head">rows at its expert</div>
        ${chosen.map((_, rank) => html`<div class="experts-rank">rank ${rank}</div>
          <div class="experts-home">${home(rank)}</div>
          <div class="experts-there">${away ? guests(rank) : ""}</div>`)}
      </div>
      <p class="figure-key">${STAGES.map((name, k) => html`${k ? " → " : ""}${k === stage ? html`<b>${name}</b>` : name}`)}.
        A square has the color of the token's rank and the number of the expert.</p>`;
  }

  window.figures.define("experts", {
    label: "A layer of experts, from the choice to the sum",
    settings: {
      router: { label: "Router", options: [["chance", "without favorites"], ["favorite", "with a favorite"]], value: "chance" },
      ranks: { label: "Ranks and experts", from: 2, to: 8, value: 4 },
      k: { label: "Experts per token", options: [[1, "1"], [2, "2"]], value: 2 },
      factor: { label: "Capacity factor", options: [[0, "none"], [1, "1"], [1.5, "1.5"], [2, "2"]], value: 0 },
    },
    logic: { scores, choose, plan, frames },
    draw,
  });
})();
