/* <plan-a-run>: the page that plans a training run. It shows what `planner.js` computes from the reader's settings, and
   writes all of them into the address. `book/_ext/plan_page.py` puts it on its page. */

"use strict";

(() => {
  const { html, render, Component } = window.htmPreact;
  const given = JSON.parse(document.getElementById("plan-constants").textContent);
  const planner = window.plannerInTheBrowser(given);
  const { clusters, programs, models, presets } = given;
  const GB = given.cluster.GB;

  // Settings: what they may be, and where they start

  /** The sizes of a model that a reader may type: name → [words, least]. */
  const SIZES = {
    layers: ["layers", 1], hidden: ["width (hidden)", 1], heads: ["query heads", 1], kv_heads: ["key and value heads", 1],
    head_dim: ["size of a head", 1], ffn: ["inner width of an MLP", 1], vocab: ["vocabulary", 1], experts: ["experts per layer", 0],
    experts_per_token: ["experts per token", 0], expert_ffn: ["inner width of an expert", 0], shared_experts: ["shared experts", 0],
    dense_layers: ["dense layers", 0],
  };
  /** A layout of one rank, which runs whatever the model. */
  const ONE = { dp: 1, tp: 1, pp: 1, cp: 1, ep: 1, micro_batch: 1, virtual_stages: 1, context: "ring" };
  const AXES = ["dp", "tp", "pp", "cp", "ep"];
  const base = Object.fromEntries([...Object.values(models), ...presets.map(({ model }) => model)].map((m) => [m.name, m]));
  const named = (all) => all.map(({ name }) => [name, name]);
  const MODELS = { "Models of this book": named(Object.values(models)), "Models of published runs": named(presets) };
  const START = {
    model: "Llama 3 70B", cluster: "H100", gpus: 512, batch: 512, precision: "bf16", software: "megatron",
    dp: null, tp: 8, pp: 4, cp: 1, ep: 1, micro_batch: 1, virtual_stages: 4, zero_stage: 1, shard: null, recompute: "none",
    sequence_parallel: true, schedule: "1f1b", context: "ring", tokens: 15, share: 100, price: 2, power: 1,
  };

  const whole = (least, most = 1e7) => (text) => (/^\d+$/.test(text) && text >= least && text <= most ? Number(text) : undefined);
  const amount = (least, most) => (text) => (text !== "" && text >= least && text <= most ? Number(text) : undefined);
  const among = (known) => (text) => known.find((one) => String(one) === text);
  const orNone = (read) => (text) => (text === "" ? null : read(text));
  /** Setting → what reads it from text; undefined for a text that is no such setting. */
  const READS = {
    model: among(Object.keys(base)), cluster: among(Object.keys(clusters)), precision: among(Object.keys(given.PRECISIONS)),
    software: among(Object.keys(programs)), gpus: whole(1), batch: whole(1), dp: orNone(whole(1)), tp: whole(1), pp: whole(1),
    cp: whole(1), ep: whole(1), micro_batch: whole(1), virtual_stages: whole(1), zero_stage: among([0, 1, 2, 3]),
    shard: orNone(whole(2)), recompute: among(given.RECOMPUTE), sequence_parallel: among([true, false]),
    schedule: among(given.SCHEDULES), context: among(given.CONTEXT), sequence: whole(1), gated: among([true, false]),
    tied: among([true, false]), tokens: amount(0.000001, 1e6), share: amount(1, 100), price: amount(0, 1e6), power: amount(0, 100),
    ...Object.fromEntries(Object.entries(SIZES).map(([name, [, least]]) => [name, whole(least)])),
  };

  /** All settings from the address; what is missing or wrong is as at the start, or as the model has it. */
  function read(fragment) {
    const found = { ...START };
    for (const [name, text] of new URLSearchParams(fragment)) {
      const value = READS[name]?.(text);
      if (value !== undefined) found[name] = value;
    }
    return found;
  }

  /** The address of settings: all of them, and of the model's sizes those that are not its own. */
  function write(settings) {
    const texts = Object.entries(settings).filter(([name, value]) => !(name in base[settings.model]) || value !== base[settings.model][name]);
    return new URLSearchParams(texts.map(([name, value]) => [name, value ?? ""])).toString();
  }

  /** The model with the sizes that the settings replace. */
  function modelOf(settings) {
    const model = { ...base[settings.model] };
    for (const name of Object.keys(model)) if (name !== "name" && settings[name] !== undefined) model[name] = settings[name];
    return model;
  }

  /** The layout; dp takes the GPUs that are left unless it is set. */
  function layoutOf(s) {
    const names = ["tp", "pp", "cp", "ep", "micro_batch", "virtual_stages", "zero_stage", "shard", "recompute", "sequence_parallel", "schedule", "context"];
    const layout = Object.fromEntries(names.map((name) => [name, s[name]]));
    return { dp: s.dp ?? Math.max(1, Math.floor(s.gpus / (s.tp * s.pp * s.cp))), ...layout };
  }

  /** What keeps these settings from running: [{at: setting, says}]. */
  function problemsOf(s, model, layout) {
    const cluster = clusters[s.cluster], found = planner.check(model, layout, s.batch, s.gpus), known = planner.precisions(cluster);
    if (!known.includes(s.precision)) found.push({ at: "precision", says: `${cluster.name} has no ${s.precision}; it has ${known.join(", ")}` });
    if (model.experts && model.dense_layers > model.layers) found.push({ at: "dense_layers", says: `the model has only ${model.layers} layers` });
    if (model.experts_per_token > model.experts) found.push({ at: "experts_per_token", says: `a layer has only ${model.experts} experts` });
    return found;
  }

  /** Everything that the page shows: problems, or a prediction and what follows for the whole run. */
  function computed(s) {
    const model = modelOf(s), layout = layoutOf(s), problems = problemsOf(s, model, layout), cluster = clusters[s.cluster];
    if (problems.length) return { model, layout, cluster, problems };
    const found = planner.predict(model, cluster, layout, s.batch, s.precision, programs[s.software]);
    const perSecond = (s.batch * model.sequence) / found.seconds, seconds = (s.tokens * 1e12) / perSecond / (s.share / 100);
    const hours = (seconds / 3600) * s.gpus;
    const run = { perSecond, days: seconds / 86400, hours, energy: hours * s.power, cost: hours * s.price };
    if (found.nbytes > found.room) {
      const [largest] = Object.entries(found.memory).reduce((a, b) => (b[1] > a[1] ? b : a));
      const need = `${fixed(found.nbytes / GB)} GB, and a GPU of ${cluster.name} has ${fixed(found.room / GB)}`;
      problems.push({ at: "memory", says: `this layout needs ${need}; most are ${largest}: split or recompute more` });
    }
    return { model, layout, cluster, problems, found, run };
  }

  // Words

  const fixed = (value, digits = 0) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const short = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
  const percent = (share, digits = 1) => `${fixed(100 * share, digits)} %`;
  const SCALES = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]];
  const large = (value) => {
    const [size, word] = SCALES.find(([least]) => value >= 0.9995 * least) ?? [1, ""];
    return `${short(value / size)}${word && ` ${word}`}`;
  };
  const joules = (kWh) => (kWh >= 1e6 ? [short(kWh / 1e6), "GWh"] : kWh >= 1e3 ? [short(kWh / 1e3), "MWh"] : [short(kWh), "kWh"]);
  const seconds = (value) => (value >= 1 ? `${short(value)} s` : value >= 1e-3 ? `${short(1e3 * value)} ms` : `${short(1e6 * value)} µs`);
  const UNITS = {
    tokens_per_gpu_per_second: (value) => `${fixed(value)} tokens/s per GPU`, step_seconds: (value) => `${short(value)} s per step`,
    tflops_per_gpu: (value) => `${fixed(value)} TFLOP/s per GPU`, mfu: (value) => `${percent(value)} MFU`,
  };
  const axesOf = (layout) => AXES.filter((axis) => layout[axis] > 1).map((axis) => `${axis} ${layout[axis]}`).join(", ") || "one GPU";
  const restOf = (l) => [
    l.pp > 1 && l.virtual_stages > 1 && `${l.virtual_stages} virtual stages`, l.micro_batch > 1 && `micro-batches of ${l.micro_batch}`,
    `ZeRO\u2011${l.zero_stage}${l.shard ? ` over ${l.shard}` : ""}`, l.recompute !== "none" && `${l.recompute} recomputation`,
  ].filter(Boolean).join(", ");
  const chapter = ([words, page]) => (page ? html`<a href=${`${page}.html`}>${words}</a>` : words);

  // Controls

  /** A size: a number to type, and a slider over the powers of two. */
  function Size({ name, label, value, most, set, problems, least = 1, disabled = false, children }) {
    const steps = [...new Set([...planner.powers_of_two(most), value])].sort((a, b) => a - b);
    const type = (event) => {
      const number = whole(least)(event.target.value);
      if (number !== undefined) set({ [name]: number });
    };
    const restore = (event) => (event.target.value = value);
    return html`<div class="plan-control">
      <label for=${`plan-${name}`}>${label}</label>
      <input id=${`plan-${name}`} class="plan-number" type="number" min=${least} step="1" value=${value} disabled=${disabled}
        aria-describedby=${`plan-${name}-says`} aria-invalid=${String(Boolean(problems))} onInput=${type} onBlur=${restore} />
      <input class="plan-slider" type="range" min="0" max=${steps.length - 1} value=${steps.indexOf(value)} disabled=${disabled}
        aria-label=${`${label}, in powers of two`} aria-valuetext=${fixed(value)} onInput=${(event) => set({ [name]: steps[event.target.value] })} />
      ${children}<${Says} name=${name} problems=${problems} /></div>`;
  }

  /** What is wrong with a setting, in a line below it. */
  const Says = ({ name, problems }) => html`<p class="plan-wrong" id=${`plan-${name}-says`}>${problems}</p>`;

  function Choice({ name, label, value, options, groups, set, problems }) {
    const list = (some) => some.map(([key, words]) => html`<option value=${String(key)} selected=${key === value}>${words}</option>`);
    return html`<div class="plan-control"><label for=${`plan-${name}`}>${label}</label>
      <select id=${`plan-${name}`} class="plan-select" value=${String(value)} onChange=${(event) => set({ [name]: READS[name](event.target.value) })}>
        ${options ? list(options) : groups.map(([words, some]) => html`<optgroup label=${words}>${list(some)}</optgroup>`)}</select>
      <${Says} name=${name} problems=${problems} /></div>`;
  }

  /** Few choices, all in sight: buttons of a radio group. */
  function Buttons({ name, label, value, options, set }) {
    return html`<fieldset class="plan-buttons"><legend>${label}</legend><div>${options.map(([key, words]) => html`<label>
      <input type="radio" name=${`plan-${name}`} value=${key} checked=${key === value} onChange=${() => set({ [name]: key })} /><span>${words}</span></label>`)}</div></fieldset>`;
  }

  function Amount({ name, label, value, set }) {
    const type = (event) => {
      const number = READS[name](event.target.value);
      if (number !== undefined) set({ [name]: number });
    };
    return html`<div class="plan-control"><label for=${`plan-${name}`}>${label}</label>
      <input id=${`plan-${name}`} class="plan-number" type="number" step="any" min="0" value=${value} onInput=${type}
        onBlur=${(event) => (event.target.value = value)} /></div>`;
  }

  // The page

  class Plan extends Component {
    constructor() {
      super();
      this.state = { settings: read(location.hash.slice(1)), search: null, copied: false };
      this.set = this.set.bind(this);
    }

    componentDidMount() {
      this.follow = () => location.hash.includes("=") && this.show(read(location.hash.slice(1)));
      addEventListener("hashchange", this.follow);
      this.buttons();
      this.show(this.state.settings);
    }

    componentWillUnmount() {
      removeEventListener("hashchange", this.follow);
      clearTimeout(this.timer);
      clearTimeout(this.writing);
    }

    /** The runs of the table below the figure become buttons. */
    buttons() {
      for (const [place, preset] of presets.entries()) {
        const cell = document.querySelectorAll(".plan-runs tbody tr")[place].cells[0], button = document.createElement("button");
        button.type = "button";
        button.textContent = preset.name;
        button.title = `Show this run. Source: ${preset.source}`;
        button.addEventListener("click", () => {
          this.set(presetSettings(preset));
          document.querySelector("plan-a-run").scrollIntoView();
          document.querySelector(".plan-headline").focus({ preventScroll: true });
        });
        cell.replaceChildren(button);
      }
    }

    /** Change some settings. Another model brings its own sizes; what was found by searching is of other settings. */
    set(change) {
      const settings = { ...this.state.settings, ...change };
      if (change.model) for (const name of Object.keys(base[change.model])) if (!(name in change)) delete settings[name];
      this.show(settings);
      clearTimeout(this.writing);
      this.writing = setTimeout(() => this.address(), 200); // Safari allows 100 changes of the address in 30 seconds
    }

    address() {
      history.replaceState(null, "", `#${write(this.state.settings)}`);
    }

    /** Show settings, and look for the best layout once the reader has stopped moving them. */
    show(settings) {
      const { cluster, gpus, batch, precision, software } = settings, searched = [modelOf(settings), cluster, gpus, batch, precision, software];
      const same = this.searched === JSON.stringify(searched);
      this.setState({ settings, copied: false, ...(same ? {} : { search: this.state.search && { ...this.state.search, stale: true } }) });
      if (same) return;
      this.searched = JSON.stringify(searched);
      this.wanted = false;
      clearTimeout(this.timer);
      const wrong = problemsOf(settings, modelOf(settings), layoutOf({ ...settings, ...ONE })).some(({ at }) => !(at in ONE) && at !== "gpus" && at !== "batch");
      if (!wrong) this.timer = setTimeout(() => this.search(searched), 250);
    }

    /** Search all layouts, a few milliseconds at a time. */
    async search([model, cluster, gpus, batch, precision, software]) {
      const mine = this.searched, steps = planner.plan(model, clusters[cluster], gpus, batch, precision, programs[software]);
      let next = { value: 0 };
      while (!next.done) {
        const until = performance.now() + 12;
        do next = steps.next(); while (!next.done && performance.now() < until);
        await new Promise((done) => setTimeout(done));
        if (this.searched !== mine) return;
      }
      const { fitting, rejected } = next.value;
      this.setState({ search: { fitting, rejected, others: planner.alternatives(fitting, 6) } });
      if (this.wanted) this.best();
    }

    /** Take the best layout, now or as soon as it is found. */
    best() {
      const { search } = this.state;
      this.wanted = !search || search.stale;
      if (!this.wanted && search.fitting.length) this.take(search.fitting[0].layout);
    }

    take(layout) {
      this.set({ ...layout, dp: null });
    }

    async copy() {
      this.address();
      try {
        await navigator.clipboard.writeText(location.href);
        this.setState({ copied: true });
      } catch {
        prompt("The address of these settings", location.href); // a page opened from disk may not copy
      }
    }

    render(_, { settings: s, search, copied }) {
      const now = computed(s);
      if (now.found) this.last = now;
      const shown = now.found ? now : this.last;
      const wrong = (name) => now.problems.filter(({ at }) => at === name).map(({ says }) => says).join(" ") || null;
      return html`<div class="plan">
        <${Controls} s=${s} now=${now} set=${this.set} wrong=${wrong} best=${() => this.best()} search=${search} />
        <div class="plan-results">
          <${Headline} s=${s} now=${now} />
          <${Compared} s=${s} now=${now} />
          ${shown && html`<div class=${now.found ? "" : "plan-stale"} aria-hidden=${now.found ? null : "true"} inert=${!now.found}>
            <${Numbers} s=${s} shown=${shown} /><${Memory} shown=${shown} /><${Step} shown=${shown} /></div>`}
          <${Others} search=${search} s=${s} now=${now} take=${(layout) => this.take(layout)} />
          <p class="plan-links"><button type="button" class="plan-button" onClick=${() => this.copy()}>Copy link</button>
            <button type="button" class="plan-button" onClick=${() => this.set({ ...START })}>Start again</button>
            <span role="status">${copied ? "The address holds all settings." : ""}</span></p>
        </div>
        <${Summary} now=${now} />
      </div>`;
    }
  }

  /** The settings of a published run; what it does not tell stays as it is. */
  const presetSettings = (preset) => ({ model: preset.name, ...preset.settings, dp: null });

  function Controls({ s, now, set, wrong, best, search }) {
    const { model, layout, cluster } = now, size = { set };
    const axis = (name, label, most) => html`<${Size} ...${size} name=${name} label=${label} value=${s[name]} most=${most} problems=${wrong(name)} />`;
    const precisions = Object.keys(given.PRECISIONS).map((name) => [name, name]);
    const first = search?.stale ? null : search?.fitting[0], faster = first && now.found ? now.found.seconds / first.seconds - 1 : 0;
    return html`<form class="plan-controls" onSubmit=${(event) => event.preventDefault()}>
      <fieldset><legend>The run</legend>
        <${Choice} name="model" label="Model" value=${s.model} set=${set} groups=${Object.entries(MODELS)} />
        <details><summary>Type its sizes: ${large(planner.parameters(model).total)} parameters</summary>
          ${Object.entries(SIZES).map(([name, [label, least]]) => html`<${Size} ...${size} name=${name} label=${label} least=${least}
            value=${model[name] ?? 0} most=${Math.max(2, 2 * (base[s.model][name] ?? 1))} problems=${wrong(name)} />`)}
          <${Choice} name="gated" label="Activation" value=${model.gated} set=${set} options=${[[true, "gated (SwiGLU)"], [false, "plain"]]} />
          <${Choice} name="tied" label="Output layer" value=${model.tied} set=${set} options=${[[false, "its own"], [true, "the embedding"]]} />
        </details>
        ${html`<${Size} ...${size} name="sequence" label="Tokens per sequence" value=${model.sequence} most=${2 ** 20} />`}
        <${Choice} name="cluster" label="Machine" value=${s.cluster} set=${set} options=${Object.keys(clusters).map((name) => [name, name])} />
        ${axis("gpus", "GPUs", 2 ** 17)}${axis("batch", "Sequences per step", 2 ** 14)}
        <${Choice} name="precision" label="Precision" value=${s.precision} set=${set} options=${precisions} problems=${wrong("precision")} />
      </fieldset>
      <fieldset><legend>The layout</legend>
        <p class="plan-best"><button type="button" class="plan-button plan-primary" onClick=${best}>Best layout</button>
          <span>${!first ? "" : now.problems.length ? `fits, ${seconds(first.seconds)}` : faster > 1e-9 ? `${percent(faster)} faster` : "is this one"}</span></p>
        ${axis("tp", "Tensor (tp)", Math.min(128, model.heads))}${axis("pp", "Pipeline (pp)", model.layers)}
        ${axis("cp", "Context (cp)", 64)}
        ${model.experts > 0 || s.ep > 1 ? axis("ep", "Expert (ep)", Math.max(2, model.experts)) : null}
        <${Size} ...${size} name="dp" label="Data (dp)" value=${layout.dp} most=${s.gpus} disabled=${s.dp === null} problems=${wrong("dp")}>
          <label class="plan-check"><input type="checkbox" checked=${s.dp === null} onChange=${(event) => set({ dp: event.target.checked ? null : layout.dp })} />
            the GPUs that are left</label></${Size}>
        <${Buttons} name="zero_stage" label="ZeRO stage" value=${s.zero_stage} set=${set} options=${[0, 1, 2, 3].map((n) => [n, n])} />
        <${Buttons} name="recompute" label="Recomputation" value=${s.recompute} set=${set} options=${given.RECOMPUTE.map((word) => [word, word])} />
        ${axis("micro_batch", "Micro-batch", 16)}${axis("virtual_stages", "Virtual stages", 16)}
        <details><summary>More: software, schedules</summary>
          <${Choice} name="software" label="Software" value=${s.software} set=${set} options=${Object.keys(programs).map((name) => [name, name])} />
          <${Choice} name="schedule" label="Pipeline schedule" value=${s.schedule} set=${set} options=${given.SCHEDULES.map((name) => [name, name.replaceAll("_", " ")])} />
          <${Choice} name="context" label="Context by" value=${s.context} set=${set} options=${given.CONTEXT.map((name) => [name, name.replaceAll("_", "-")])} />
          <${Choice} name="sequence_parallel" label="Sequence parallelism" value=${s.sequence_parallel} set=${set} options=${[[true, "with tp"], [false, "no"]]} />
          <${Choice} name="shard" label="ZeRO-3 shards over" value=${s.shard ?? ""} set=${set}
            options=${[["", "all data ranks"], ...new Set([...planner.powers_of_two(cluster.domain).slice(1), s.shard].filter(Boolean))].map((n) => (Array.isArray(n) ? n : [n, `${n} ranks (HSDP)`]))} />
        </details>
      </fieldset>
      <fieldset><legend>Your numbers</legend>
        <${Amount} name="tokens" label="Tokens to train on, trillions" value=${s.tokens} set=${set} />
        <${Amount} name="share" label="Time that counts (goodput), %" value=${s.share} set=${set} />
        <${Amount} name="price" label="Price of a GPU hour" value=${s.price} set=${set} />
        <${Amount} name="power" label="Power per GPU, all included, kW" value=${s.power} set=${set} />
      </fieldset></form>`;
  }

  const Headline = ({ s, now: { model, layout, problems, found, run } }) => html`
    <div class="plan-headline" aria-live="polite" tabindex="-1"><p>${found
      ? html`${s.model} on ${fixed(s.gpus)} × ${s.cluster}: <strong>${seconds(found.seconds)}</strong> per step, <strong>${percent(found.mfu())}</strong> MFU.
        ${" "}${large(1e12 * s.tokens)} tokens take <strong>${short(run.days)} days</strong>.`
      : html`${s.model} on ${fixed(s.gpus)} × ${s.cluster}: this layout cannot run.`}</p>
      <p class="plan-layout">${axesOf(layout)}; ${restOf(layout)}; ${large(s.batch * model.sequence)} tokens per step</p>
      ${problems.map(({ says }) => html`<p class="plan-wrong">${says}.</p>`)}</div>`;

  /** The published value beside the predicted one, while the settings are those of a published run. */
  function Compared({ s, now }) {
    const same = ({ name, settings }) => s.model === name && Object.entries(settings).every(([key, value]) => (key in now.layout ? now.layout : s)[key] === value);
    const preset = presets.find((one) => now.found && same(one) && JSON.stringify(now.model) === JSON.stringify(one.model));
    if (!preset) return null;
    const { unit, counting, published, source, recompute_told: told } = preset, { found } = now;
    const predicted = { tokens_per_gpu_per_second: found.tokens_per_gpu_per_second, step_seconds: found.seconds,
      tflops_per_gpu: found.flops(counting) / 1e12, mfu: found.mfu(counting) }[unit];
    const error = (unit === "step_seconds" ? published / predicted : predicted / published) - 1, most = Math.max(published, predicted);
    const row = (words, value) => html`<tr><th scope="row">${words}</th>
      <td class="plan-track"><div class="plan-lane"><span class=${`plan-bar plan-${words}`} style=${{ width: `${(100 * value) / most}%` }}></span></div></td>
      <td>${UNITS[unit](value)}</td></tr>`;
    return html`<div class="plan-compared"><table><caption>A published run, for which the planner is ${percent(Math.abs(error))} too ${error > 0 ? "fast" : "slow"}</caption>
      <tbody>${row("published", published)}${row("predicted", predicted)}</tbody></table><p class="plan-note">Source: ${source}</p>
      ${found.nbytes > found.room && html`<p class="plan-note">The run did fit, so the planner counts too much memory here.
        ${told ? "" : " What was recomputed is not known, and it assumes nothing."}</p>`}</div>`;
  }

  function Numbers({ s, shown: { found, run } }) {
    const full = found.nbytes > found.room, [energy, unit] = joules(run.energy);
    return html`<dl class="plan-numbers">${[
      ["memory per GPU", fixed(found.nbytes / GB), `of ${fixed(found.room / GB)} GB`, full], ["step", ...seconds(found.seconds).split(" ")],
      ["MFU", percent(found.mfu()).slice(0, -2), "%"], ["tokens per second", ...large(run.perSecond).split(" ")],
      ["time", short(run.days), "days"], ["GPU hours", ...large(run.hours).split(" ")], ["energy", energy, unit], ["cost", ...large(run.cost).split(" ")],
    ].map(([words, value, small, bad]) => html`<div class=${bad ? "plan-bad" : ""}><dt>${words}</dt><dd>${value} ${small && html`<small>${small}</small>`}</dd></div>`)}</dl>`;
  }

  function Memory({ shown: { found, cluster } }) {
    const most = 1.08 * Math.max(found.room, found.nbytes), parts = Object.entries(given.MEMORY).filter(([term]) => found.memory[term]);
    const width = (nbytes) => `${(100 * nbytes) / most}%`, full = found.nbytes > found.room;
    return html`<section><h2>Memory of the fullest GPU</h2>
      <div class="plan-memory" role="img" aria-label=${`${fixed(found.nbytes / GB)} GB of ${fixed(found.room / GB)}`}>
        ${parts.map(([term]) => html`<span class=${`plan-${term}`} style=${{ width: width(found.memory[term]) }}></span>`)}
        ${full && html`<span class="plan-over" style=${{ left: width(found.room), width: width(found.nbytes - found.room) }}></span>`}
        <span class="plan-limit" style=${{ left: width(found.room) }}></span></div>
      <p class="plan-limit-words" style=${{ paddingRight: width(most - found.room) }}>${cluster.name}: ${fixed(found.room / GB)} GB</p>
      <ul class="plan-key">${parts.map(([term, named]) => html`<li><span class=${`plan-sample plan-${term}`}></span>${chapter(named)} ${fixed(found.memory[term] / GB, 1)} GB</li>`)}</ul></section>`;
  }

  /** The step's terms, one below the other, each beginning where the one above it ends. */
  function Step({ shown: { found } }) {
    const spent = (term) => Math.max(0, found.time[term] ?? 0);
    let start = 0;
    const groups = Object.entries(given.TIME).map(([group, terms]) => {
      const rows = Object.entries(terms).filter(([term]) => spent(term) > 1e-9 * found.seconds).map(([term, named]) => {
        const row = { named, from: start, seconds: spent(term) };
        start += row.seconds;
        return row;
      });
      return { group, rows, seconds: rows.reduce((all, row) => all + row.seconds, 0) };
    }).filter(({ rows }) => rows.length);
    const share = (value) => `${(100 * value) / found.seconds}%`;
    return html`<section><h2>The step</h2>
      <div class="plan-whole" aria-hidden="true">${groups.map(({ group, seconds: all }) => html`<span class=${`plan-${group}`} style=${{ width: share(all) }}></span>`)}</div>
      <table class="plan-step"><thead><tr><th scope="col">term</th><th scope="col" class="plan-axis"><span>0</span><span>${seconds(found.seconds)}</span></th>
        <th scope="col">time</th><th scope="col">share</th></tr></thead>
        ${groups.map(({ group, rows, seconds: all }) => html`<tbody><tr class="plan-group"><th scope="rowgroup" colspan="2"><span class=${`plan-sample plan-${group}`}></span>
          ${{ computes: "Computing", communicates: "Communication that nothing hides", waits: "Waiting" }[group]}</th><td>${seconds(all)}</td><td>${percent(all / found.seconds)}</td></tr>
          ${rows.map((row) => html`<tr><th scope="row">${chapter(row.named)}</th>
            <td class="plan-track"><div class="plan-lane"><span class=${`plan-bar plan-${group}`} style=${{ marginLeft: share(row.from), width: share(row.seconds) }}></span></div></td>
            <td>${seconds(row.seconds)}</td><td>${percent(row.seconds / found.seconds)}</td></tr>`)}</tbody>`)}</table></section>`;
  }

  /** After a search: the best layout, and why others lose. */
  function Others({ search, s, now, take }) {
    if (!search) return null;
    const { fitting: [best], rejected, others } = search, room = fixed((given.FILLED * clusters[s.cluster].memory) / GB);
    if (!best && !rejected.length) return html`<p class="plan-wrong" role="status">No layout of ${fixed(s.gpus)} GPUs divides a batch of ${fixed(s.batch)} sequences; choose a multiple of dp.</p>`;
    if (!best) {
      const [layout, nbytes] = rejected[0];
      return html`<p class="plan-wrong" role="status">${s.model} does not fit ${fixed(s.gpus)} GPUs: ${axesOf(layout)} needs ${fixed(nbytes / GB)} GB of ${room}; use more GPUs.</p>`;
    }
    const name = Object.assign({}, ...Object.values(given.TIME)), shown = (layout) => JSON.stringify(layout) === JSON.stringify(now.layout);
    const row = (other, why) => html`<tr><td><button type="button" aria-pressed=${String(shown(other.layout))} onClick=${() => take(other.layout)}>${axesOf(other.layout)}</button>
      <br /><small>${restOf(other.layout)}</small></td><td>${seconds(other.seconds)}</td><td>${why}</td></tr>`;
    return html`<section class=${search.stale ? "plan-stale" : ""}><h2>Why others lose</h2><table class="plan-others"><thead><tr><th scope="col">layout</th><th scope="col">step</th><th scope="col">against the best</th></tr></thead>
      <tbody>${row(best, "the best")}${others.map((other) => {
        const { slower, largest } = planner.why_not(best, other);
        return row(other, `${slower < 5e-4 ? "hardly" : percent(slower)} slower: ${largest.map(([term, more]) => `${name[term][0]} +${seconds(more)}`).join(", ")}`);
      })}</tbody></table>
      <p class="plan-note">${fixed(search.fitting.length)} layouts fit ${room} GB, ${percent(given.FILLED, 0)} of the memory; ${fixed(rejected.length)} more do not.</p></section>`;
  }

  /** What stays in sight on a phone while one moves the controls. */
  const Summary = ({ now: { found, problems } }) => html`<p class="plan-summary" aria-hidden="true">${found
    ? html`<strong>${seconds(found.seconds)}</strong><strong>${percent(found.mfu(), 0)} MFU</strong><strong class=${problems.length ? "plan-wrong" : ""}>${fixed(found.nbytes / GB)} of ${fixed(found.room / GB)} GB</strong>`
    : html`<span class="plan-wrong">${problems[0].says}</span>`}</p>`;

  customElements.define("plan-a-run", class extends HTMLElement {
    connectedCallback() {
      render(html`<${Plan} />`, this);
    }
  });
  window.planning = { read, write, computed, modelOf, layoutOf, START, SIZES };
})();
