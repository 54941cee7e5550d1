/* <plan-a-run>: the page that plans a training run. It shows what the planner computes from the reader's settings, and
   writes all of them into the address. `makePlanner` is the book's Python, translated while the book is built
   (`book/_ext/to_javascript.py`); `book/_ext/plan_page.py` puts all on its page. */

"use strict";

(() => {
  const { html, render, Component } = window.htmPreact;
  const given = JSON.parse(document.getElementById("plan-constants").textContent);
  const planner = makePlanner(), { presets } = given;
  const { Layout, RECOMPUTE, SCHEDULES, CONTEXT, MODULES } = planner.layout, { Model } = planner.model;
  const { GB, OWN } = planner.cluster, { PRECISIONS } = planner.software, { FILLED } = planner.search;

  /** A machine from plain data. */
  function machineOf(planner, data) {
    return planner.cluster.Cluster.from({ ...data, flops: new planner.Dict(Object.entries(data.flops)) });
  }
  const objectOf = (dict) => Object.fromEntries(dict.items());
  const clusters = objectOf(planner.cluster.CLUSTERS), programs = objectOf(planner.software.SOFTWARE), models = objectOf(planner.model.MODELS);
  for (const [name, machine] of Object.entries(given.machines)) clusters[name] = machineOf(planner, machine);
  const margins = new planner.Dict(Object.entries(given.margins).map(([family, found]) => [family, planner.margin.Margin.from(found)]));
  /** Plain data as Python has it: objects are dictionaries. */
  const dictOf = (data) => (data && typeof data === "object" && !Array.isArray(data)
    ? new planner.Dict(Object.entries(data).map(([key, value]) => [key, dictOf(value)])) : data);

  // Settings: what they may be, and where they start

  /** The sizes of a model that a reader may type: name → [words, least]. */
  const SIZES = {
    layers: ["layers", 1], hidden: ["width (hidden)", 1], heads: ["query heads", 1], kv_heads: ["key and value heads", 1],
    head_dim: ["size of a head", 1], ffn: ["inner width of an MLP", 1], vocab: ["vocabulary", 1], experts: ["experts per layer", 0],
    experts_per_token: ["experts per token", 0], expert_ffn: ["inner width of an expert", 0], shared_experts: ["shared experts", 0],
    dense_layers: ["dense layers", 0],
  };
  /** A layout of one rank, which runs whatever the model. */
  const ONE = new Layout();
  const AXES = ["dp", "tp", "pp", "cp", "ep"];
  const base = Object.fromEntries([...Object.values(models), ...presets.map(({ model }) => model)].map((m) => [m.name, m]));
  const named = (all) => all.map(({ name }) => [name, name]);
  const MODELS = { "Models of this book": named(Object.values(models)), "Models of published runs": named(presets) };
  /** A model from a configuration, in the setting `sizes`, and a machine of one's own, in the setting `machine`. */
  const OWN_MODEL = "your own model", OWN_MACHINE = "your own machine";
  const baseOf = (s) => (s.model === OWN_MODEL ? s.sizes : base[s.model]);
  const clusterOf = (s) => (s.cluster === OWN_MACHINE ? planner.cluster.own(dictOf(s.machine)) : clusters[s.cluster]);
  /** Field of an own machine that is a number → of which field of a machine, and its unit. */
  const MACHINE = {
    memory_gb: ["memory", GB], memory_bandwidth_gb_s: ["memory_bandwidth", GB], domain: ["domain", 1], nvlink_gb_s: ["nvlink", GB],
    ports: ["ports", 1], port_gb_s: ["port", GB],
  };
  const rounded = (value) => Number(value.toPrecision(6));
  /** A machine as the fields of an own one. */
  const fieldsOf = (machine) => ({
    like: machine.like || machine.name, tflops: Object.fromEntries(machine.flops.items().map(([kind, rate]) => [kind, rounded(rate / 1e12)])),
    ...Object.fromEntries(Object.entries(MACHINE).map(([name, [field, unit]]) => [name, rounded(machine[field] / unit)])),
  });
  const START = {
    model: "Llama 3 70B", cluster: "H100", gpus: 512, batch: 512, precision: "bf16", software: "megatron",
    trained: "all", lora_rank: planner.software.LORA_RANK, sizes: null, machine: null, ...ONE, dp: null, tp: 8, pp: 4, virtual_stages: 4,
    tokens: 15, share: 90, price: 2, power: 1,
  };

  const whole = (least, most = 1e7) => (text) => (/^\d+$/.test(text) && text >= least && text <= most ? Number(text) : undefined);
  const amount = (least, most) => (text) => (text !== "" && text >= least && text <= most ? Number(text) : undefined);
  const among = (known) => (text) => known.find((one) => String(one) === text);
  const orNone = (read) => (text) => (text === "" ? null : read(text));
  /** What JSON says, if `use` can use it. */
  const json = (use) => (text) => {
    try {
      const data = JSON.parse(text);
      use(data);
      return data;
    } catch {
      return undefined;
    }
  };
  /** Modules in Python's order; undefined if one is none. */
  const inOrder = (names) => (names.every((name) => MODULES.includes(name)) ? MODULES.filter((name) => names.includes(name)) : undefined);
  /** Setting → what reads it from text; undefined for a text that is no such setting. */
  const READS = {
    model: among([...Object.keys(base), OWN_MODEL]), cluster: among([...Object.keys(clusters), OWN_MACHINE]), precision: among(PRECISIONS.keys()),
    software: among(Object.keys(programs)), gpus: whole(1), batch: whole(1), dp: orNone(whole(1)), tp: whole(1), pp: whole(1),
    cp: whole(1), ep: whole(1), etp: whole(1), lora_rank: whole(1), document: orNone(whole(1)), micro_batch: whole(1), virtual_stages: whole(1), zero_stage: among([0, 1, 2, 3]),
    shard: orNone(whole(2)), recompute: among(RECOMPUTE), sequence_parallel: among([true, false]), trained: among(["all", "lora"]),
    recompute_modules: (text) => inOrder(text.split(",").filter(Boolean)), recompute_layers: whole(0), offload_layers: whole(0),
    schedule: among(SCHEDULES), context: among(CONTEXT), sequence: whole(1), gated: among([true, false]),
    tied: among([true, false]), tokens: amount(0.000001, 1e6), share: amount(1, 100), price: amount(0, 1e6), power: amount(0, 100),
    machine: orNone(json((fields) => planner.cluster.own(dictOf(fields)))), sizes: orNone(json((sizes) => planner.model.flops_per_token(Model.from(sizes)))),
    ...Object.fromEntries(Object.entries(SIZES).map(([name, [, least]]) => [name, whole(least)])),
  };

  /** All settings from the address; what is missing or wrong is as at the start, or as the model has it. */
  function read(fragment) {
    const found = { ...START };
    for (const [name, text] of new URLSearchParams(fragment)) {
      const value = READS[name]?.(text);
      if (value !== undefined) found[name] = value;
    }
    if (found.model === OWN_MODEL && !found.sizes) found.model = START.model;
    if (found.cluster === OWN_MACHINE && !found.machine) found.cluster = START.cluster;
    return found;
  }

  /** What of an address is no setting of this page. */
  const unread = (fragment) => [...new URLSearchParams(fragment)].filter(([name, text]) => READS[name]?.(text) === undefined).map(([name, text]) => `${name} = ${text}`);

  /** The address of settings: all of them, and of the model's sizes those that are not its own. */
  function write(settings) {
    const known = baseOf(settings), plain = (value) => (value && typeof value === "object" && !Array.isArray(value) ? JSON.stringify(value) : value ?? "");
    const texts = Object.entries(settings).filter(([name, value]) => !(name in known) || value !== known[name]);
    return new URLSearchParams(texts.map(([name, value]) => [name, plain(value)])).toString();
  }

  /** The model with the sizes that the settings replace; with one of these it is the reader's own. */
  function modelOf(settings) {
    const known = baseOf(settings), model = { ...known };
    for (const name of Object.keys(model)) if (name !== "name" && settings[name] !== undefined) model[name] = settings[name];
    if (Object.keys(SIZES).some((name) => model[name] !== known[name])) model.name = `your own model (${known.name} with other sizes)`;
    return Model.from(model);
  }

  /** The layout; dp takes the GPUs that are left unless it is set. */
  function layoutOf(s) {
    return Layout.from({ ...s, dp: s.dp ?? Math.max(1, Math.floor(s.gpus / (s.tp * s.pp * s.cp))) });
  }

  /** What keeps these settings from running. */
  function problemsOf(s, model, layout) {
    const rules = planner.layout.broken_rules(model, clusterOf(s), layout, s.batch, s.gpus, s.precision, programs[s.software]);
    const found = [...rules].map(({ setting, message }) => ({ at: setting, says: message }));
    if (model.experts && model.dense_layers > model.layers) found.push({ at: "dense_layers", says: `the model has only ${model.layers} layers` });
    if (model.experts_per_token > model.experts) found.push({ at: "experts_per_token", says: `a layer has only ${model.experts} experts` });
    return found;
  }

  /** Everything that the page shows: problems, or a prediction and what follows for the whole run. */
  function computed(s) {
    const model = modelOf(s), layout = layoutOf(s), problems = problemsOf(s, model, layout), cluster = clusterOf(s);
    if (problems.length) return { model, layout, cluster, problems };
    const predict = (limit) => planner.prediction.predict(model, cluster, layout, s.batch, s.precision, programs[s.software], limit, s.trained, s.lora_rank);
    const prediction = predict(false), { seconds: step, nbytes, tokens_per_gpu_per_second } = prediction;
    const found = { seconds: step, nbytes, tokens_per_gpu_per_second, room: cluster.memory, time: objectOf(prediction.time), memory: objectOf(prediction.memory),
      mfu: (counting) => prediction.mfu(counting), flops: (counting) => prediction.flops_per_gpu_per_second(counting) };
    const perSecond = (s.batch * model.sequence) / step, seconds = (s.tokens * 1e12) / perSecond / (s.share / 100);
    const hours = (seconds / 3600) * s.gpus, margin = planner.margin.nearest(margins, prediction, s.precision, programs[s.software], s.trained);
    const run = { perSecond, days: seconds / 86400, hours, energy: hours * s.power, cost: hours * s.price };
    try {
      predict(true);
    } catch (error) {
      problems.push({ at: error.setting, says: error.message });
    }
    return { model, layout, cluster, problems, found, run, margin };
  }

  /** The search, in a worker: what it finds as plain data, or what it says. */
  function answer(planner, machineOf, { model, cluster, gpus, batch, precision, software, trained, lora_rank }) {
    const { SOFTWARE } = planner.software, { Model } = planner.model;
    try {
      const plan = planner.search.plan(Model.from(model), machineOf(planner, cluster), gpus, batch, precision, SOFTWARE.get(software), trained, null, null, lora_rank);
      const row = (found) => ({ layout: { ...found.layout }, seconds: found.seconds, nbytes: found.nbytes, grown: plan.grown(found) });
      return { best: row(plan.best), others: plan.alternatives(6).map(row), fitting: plan.fitting.length, rejected: plan.rejected.length, filled: plan.filled, tight: plan.tight };
    } catch (error) {
      if (!(error instanceof planner.layout.LayoutError)) throw error;
      return { says: error.message };
    }
  }
  const WORKER = URL.createObjectURL(new Blob([`const planner = (${makePlanner})(), answer = ${answer};
    onmessage = ({ data }) => postMessage(answer(planner, ${machineOf}, data));`], { type: "text/javascript" }));

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
    `ZeRO\u2011${l.zero_stage}${l.shard ? ` over ${l.shard}` : ""}`, Layout.from(l).recomputation,
  ].filter(Boolean).join(", ");
  const chapter = ([words, page]) => (page ? html`<a href=${`${page}.html`}>${words}</a>` : words);

  // Controls

  /** A size: a number to type, and a slider over the powers of two. */
  function Size({ name, label, value, most, set, problems, least = 1, disabled = false, children }) {
    const steps = [...new Set([...(least ? [] : [0]), ...planner.search.powers_of_two(most), value])].sort((a, b) => a - b);
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
      this.state = { settings: read(location.hash.slice(1)), search: null, copied: false, unread: unread(location.hash.slice(1)), wrongFields: {} };
      this.set = this.set.bind(this);
    }

    componentDidMount() {
      this.follow = () => {
        if (!location.hash.includes("=")) return;
        this.setState({ unread: unread(location.hash.slice(1)), wrongFields: {} });
        this.show(read(location.hash.slice(1)));
      };
      addEventListener("hashchange", this.follow);
      this.buttons();
      this.show(this.state.settings);
    }

    componentWillUnmount() {
      removeEventListener("hashchange", this.follow);
      clearTimeout(this.timer);
      clearTimeout(this.writing);
      this.worker?.terminate();
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
      this.setState({ unread: [], ...("cluster" in change ? { wrongFields: {} } : {}) });
      const settings = { ...this.state.settings, ...change };
      if (change.model) for (const name of Object.keys(baseOf(settings))) if (!(name in change)) delete settings[name];
      this.show(settings);
      clearTimeout(this.writing);
      this.writing = setTimeout(() => this.address(), 200); // Safari allows 100 changes of the address in 30 seconds
    }

    /** Take the model of a Hugging Face configuration, or say why not. */
    configure(text) {
      let refused = null;
      try {
        const config = JSON.parse(text);
        if (!config || typeof config !== "object" || Array.isArray(config)) throw new SyntaxError();
        this.set({ model: OWN_MODEL, sizes: { ...planner.huggingface.model_of(dictOf(config)) } });
      } catch (error) {
        refused = error instanceof SyntaxError ? "This is no JSON: paste the whole file, from { to }." : `${error.message}.`;
      }
      this.setState({ refused: text.trim() ? refused : null });
    }

    /** Take the own machine's numbers, or keep what was typed in the field and say what is wrong with it. */
    typeMachine(name, text, fields) {
      const wrongFields = { ...this.state.wrongFields };
      delete wrongFields[name];
      try {
        planner.cluster.own(dictOf(fields));
        this.set({ machine: fields });
      } catch (error) {
        wrongFields[name] = { text, says: error.message };
      }
      this.setState({ wrongFields });
    }

    address() {
      history.replaceState(null, "", `#${write(this.state.settings)}`);
    }

    /** Show settings, and look for the best layout once the reader has stopped moving them. */
    show(settings) {
      const { gpus, batch, precision, software, trained, lora_rank } = settings, model = modelOf(settings), machine = clusterOf(settings);
      const searched = { model: { ...model }, cluster: { ...machine, flops: objectOf(machine.flops) }, gpus, batch, precision, software, trained, lora_rank };
      const same = this.searched === JSON.stringify(searched);
      this.setState({ settings, copied: false, ...(same ? {} : { search: this.state.search && { ...this.state.search, stale: true } }) });
      if (same) return;
      this.searched = JSON.stringify(searched);
      this.wanted = false;
      clearTimeout(this.timer);
      this.worker?.terminate();
      const wrong = problemsOf(settings, model, ONE).some(({ at }) => at !== "gpus");
      if (!wrong) this.timer = setTimeout(() => this.search(searched), 250);
    }

    search(searched) {
      this.worker = new Worker(WORKER);
      this.worker.onmessage = ({ data }) => this.setState({ search: data }, () => this.wanted && this.best());
      this.worker.postMessage(searched);
    }

    /** Take the best layout, now or as soon as it is found. */
    best() {
      const { search } = this.state;
      this.wanted = !search || search.stale;
      if (!this.wanted && search.best) this.take(search.best.layout);
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

    render(_, { settings: s, search: searched, copied, unread: unknown, refused, wrongFields }) {
      const ofMachine = Object.entries(wrongFields).map(([at, { says }]) => ({ at, says })), noMachine = ofMachine.length > 0;
      const now = noMachine ? { ...computed(s), problems: ofMachine, noMachine, found: null, run: null, margin: null } : computed(s);
      const search = noMachine ? null : searched;
      const wrong = (name) => now.problems.filter(({ at }) => at === name).map(({ says }) => says).join(" ") || null;
      const drop = (event) => {
        event.preventDefault();
        event.dataTransfer.files[0]?.text().then((text) => this.configure(text));
      };
      return html`<div class="plan" onDragOver=${(event) => event.preventDefault()} onDrop=${drop}>
        <${Controls} s=${s} now=${now} set=${this.set} wrong=${wrong} best=${() => this.best()} search=${search} refused=${refused} configure=${(text) => this.configure(text)}
          wrongFields=${wrongFields} typeMachine=${(...typed) => this.typeMachine(...typed)} />
        <div class="plan-results">
          ${unknown.length > 0 && html`<p class="plan-wrong" role="status">This page does not know all of the link: ${unknown.join(", ")}.</p>`}
          <${Headline} s=${s} now=${now} />
          ${now.margin && html`<${Warnings} s=${s} search=${search} now=${now} />`}
          <${Compared} s=${s} now=${now} />
          ${now.found && html`<${Numbers} s=${s} shown=${now} /><${Memory} shown=${now} /><${Step} shown=${now} />`}
          <${Others} search=${search} now=${now} take=${(layout) => this.take(layout)} />
          ${now.found && html`<${Export} s=${s} now=${now} />`}
          <p class="plan-links"><button type="button" class="plan-button" onClick=${() => this.copy()}>Copy link</button>
            <button type="button" class="plan-button" onClick=${() => this.set({ ...START })}>Start again</button>
            <span role="status">${copied ? "The address holds all settings." : ""}</span></p>
        </div>
        <${Summary} s=${s} now=${now} />
      </div>`;
    }
  }

  /** The settings of a published run; what it does not tell stays as it is. */
  const presetSettings = (preset) => ({ model: preset.name, trained: "all", ...preset.settings, dp: null });

  /** What the best layout is to the one shown. */
  function against(search, { found, problems, layout }) {
    if (!search?.best || search.stale) return "";
    const { best, filled } = search, within = `within ${percent(filled, 0)} of the memory`;
    if (same(best.layout, layout)) return `this is the best ${within}`;
    if (problems.length) return `fits, ${seconds(best.seconds)}`;
    const faster = found.seconds / best.seconds - 1;
    if (faster > planner.search.TIE) return `${percent(faster)} faster`;
    return found.nbytes > filled * found.room ? `stays ${within}` : "is as fast";
  }

  const same = (one, other) => JSON.stringify({ ...one }) === JSON.stringify({ ...other });

  function Controls({ s, now, set, wrong, best, search, refused, configure, wrongFields, typeMachine }) {
    const { model, layout, cluster } = now, known = baseOf(s), size = { set }, layers = planner.layout.layers_of_fullest_stage(model, layout);
    const modules = (names) => set({ recompute_modules: inOrder(names), recompute: names.length ? "selective" : "none" });
    const axis = (name, label, most) => html`<${Size} ...${size} name=${name} label=${label} value=${s[name]} most=${most} problems=${wrong(name)} />`;
    const precisions = PRECISIONS.keys().map((name) => [name, name]);
    const has = MODULES.filter((name) => planner.layout.recomputation_rules(model, Layout.from({ ...ONE, recompute_modules: [name] })).next().done);
    return html`<form class="plan-controls" onSubmit=${(event) => event.preventDefault()}>
      <fieldset><legend>The run</legend>
        <${Choice} name="model" label="Model" value=${s.model} set=${set} groups=${Object.entries(s.sizes ? { "Your own": [[OWN_MODEL, s.sizes.name]], ...MODELS } : MODELS)} />
        <details><summary>A Hugging Face configuration</summary>
          <div class="plan-control"><label for="plan-config">Paste config.json here, or drop it anywhere</label>
            <textarea id="plan-config" class="plan-text" rows="3" spellcheck="false" aria-describedby="plan-config-says" onInput=${({ target }) => configure(target.value)}></textarea>
            <${Says} name="config" problems=${refused} /></div></details>
        ${refused && html`<p class="plan-wrong" role="status">The configuration cannot be used.</p>`}
        <details><summary>Type its sizes: ${large(planner.model.parameters(model).total)} parameters</summary>
          ${Object.entries(SIZES).map(([name, [label, least]]) => html`<${Size} ...${size} name=${name} label=${label} least=${least}
            value=${model[name] ?? 0} most=${Math.max(2, 2 * (known[name] ?? 1))} problems=${wrong(name)} />`)}
          <${Choice} name="gated" label="Activation" value=${model.gated} set=${set} options=${[[true, "gated (SwiGLU)"], [false, "plain"]]} />
          <${Choice} name="tied" label="Output layer" value=${model.tied} set=${set} options=${[[false, "its own"], [true, "the embedding"]]} />
        </details>
        ${html`<${Size} ...${size} name="sequence" label="Tokens per sequence" value=${model.sequence} most=${2 ** 20} />`}
        <${Choice} name="cluster" label="Machine" value=${s.cluster} options=${[...Object.keys(clusters), OWN_MACHINE].map((name) => [name, name])}
          set=${(change) => set({ ...change, machine: change.cluster === OWN_MACHINE ? fieldsOf(cluster) : null })} />
        ${s.machine && html`<${Machine} s=${s} set=${set} wrongFields=${wrongFields} type=${typeMachine} />`}
        <details><summary>Fine-tuning: ${s.trained === "lora" ? `LoRA of rank ${s.lora_rank}` : "all weights"}${model.document ? ", packed documents" : ""}</summary>
          <${Choice} name="trained" label="What is trained" value=${s.trained} set=${set} options=${[["all", "all weights"], ["lora", "LoRA adapters"]]} />
          ${s.trained === "lora" && axis("lora_rank", "Rank of the adapters", 256)}
          <${Size} name="document" label="Tokens per packed document, 0 for one per sequence" least=${0} value=${model.document ?? 0} most=${model.sequence} problems=${wrong("document")}
            set=${({ document }) => set({ document: document || null })} />
        </details>
        ${axis("gpus", "GPUs", 2 ** 17)}${axis("batch", "Sequences per step", 2 ** 14)}
        <${Choice} name="precision" label="Precision" value=${s.precision} set=${set} options=${precisions} problems=${wrong("precision")} />
      </fieldset>
      <fieldset><legend>The layout</legend>
        <p class="plan-best"><button type="button" class="plan-button plan-primary" onClick=${best}>Best layout</button>
          <span role="status">${against(search, now)}</span></p>
        ${axis("tp", "Tensor (tp)", Math.min(128, model.heads))}${axis("pp", "Pipeline (pp)", model.layers)}
        ${axis("cp", "Context (cp)", 64)}
        ${model.experts > 0 || s.ep > 1 ? axis("ep", "Expert (ep)", Math.max(2, model.experts)) : null}
        ${model.experts > 0 || s.etp > 1 ? axis("etp", "Within an expert (etp)", 8) : null}
        <${Size} ...${size} name="dp" label="Data (dp)" value=${layout.dp} most=${s.gpus} disabled=${s.dp === null} problems=${wrong("dp")}>
          <label class="plan-check"><input type="checkbox" checked=${s.dp === null} onChange=${(event) => set({ dp: event.target.checked ? null : layout.dp })} />
            the GPUs that are left</label></${Size}>
        <${Buttons} name="zero_stage" label="ZeRO stage" value=${s.zero_stage} set=${set} options=${[0, 1, 2, 3].map((n) => [n, n])} />
        <${Says} name="zero_stage" problems=${wrong("zero_stage")} />
        <${Buttons} name="recompute" label="Recomputation" value=${s.recompute} set=${({ recompute }) => set({ recompute, recompute_modules: [], recompute_layers: 0 })} options=${RECOMPUTE.map((word) => [word, word])} />
        ${axis("micro_batch", "Micro-batch", 16)}${axis("virtual_stages", "Virtual stages", 16)}
        <details><summary>More: parts of recomputation, offloading</summary>
          <fieldset class="plan-buttons"><legend>Recomputed modules</legend><div>${has.map((name) => html`<label><input type="checkbox" name="plan-recompute_modules"
            value=${name} checked=${s.recompute_modules.includes(name)} onChange=${({ target }) => modules(target.checked ? [...s.recompute_modules, name] : s.recompute_modules.filter((one) => one !== name))} /><span>${name}</span></label>`)}</div>
            <${Says} name="recompute_modules" problems=${wrong("recompute_modules")} /></fieldset>
          <${Size} ...${size} name="recompute_layers" label="Layers recomputed per rank" least=${0} value=${s.recompute_layers} most=${layers} problems=${wrong("recompute_layers")} />
          <${Size} ...${size} name="offload_layers" label="Layers offloaded per rank" least=${0} value=${s.offload_layers} most=${layers} problems=${wrong("offload_layers")} />
        </details>
        <details><summary>More: software, schedules</summary>
          <${Choice} name="software" label="Software" value=${s.software} set=${set} options=${Object.keys(programs).map((name) => [name, name])} />
          <${Choice} name="schedule" label="Pipeline schedule" value=${s.schedule} set=${set} options=${SCHEDULES.map((name) => [name, name.replaceAll("_", " ")])} />
          <${Choice} name="context" label="Context by" value=${s.context} set=${set} options=${CONTEXT.map((name) => [name, name.replaceAll("_", "-")])} />
          <${Choice} name="sequence_parallel" label="Sequence parallelism" value=${s.sequence_parallel} set=${set} options=${[[true, "with tp"], [false, "no"]]} />
          <${Choice} name="shard" label="ZeRO-3 shards over" value=${s.shard ?? ""} set=${set}
            options=${[["", "all data ranks"], ...new Set([...planner.search.powers_of_two(cluster.domain).slice(1), s.shard].filter(Boolean))].map((n) => (Array.isArray(n) ? n : [n, `${n} ranks (HSDP)`]))} />
        </details>
      </fieldset>
      <fieldset><legend>Your numbers</legend>
        <${Amount} name="tokens" label="Tokens to train on, trillions" value=${s.tokens} set=${set} />
        <${Amount} name="share" label="Time that counts (goodput), %" value=${s.share} set=${set} />
        <${Amount} name="price" label="Price of a GPU hour" value=${s.price} set=${set} />
        <${Amount} name="power" label="Power per GPU, all included, kW" value=${s.power} set=${set} />
      </fieldset></form>`;
  }

  /** The numbers of an own machine. Without one of them, which must be above 0, there is no result. */
  function Machine({ s, set, wrongFields, type }) {
    const number = (name, label, value, fields) => html`<div class="plan-control"><label for=${`plan-${name}`}>${label}</label>
      <input id=${`plan-${name}`} class="plan-number" type="number" step="any" min="0" value=${wrongFields[name]?.text ?? value}
        aria-describedby=${`plan-${name}-says`} aria-invalid=${String(name in wrongFields)}
        onInput=${({ target: { value: text } }) => type(name, text, fields(text === "" ? null : Number(text)))} />
      <${Says} name=${name} problems=${wrongFields[name]?.says} /></div>`;
    const like = ({ target }) => set({ cluster: OWN_MACHINE, machine: { ...s.machine, like: target.value, tflops: fieldsOf(clusters[target.value]).tflops } });
    return html`<details open><summary>Your machine's numbers</summary>
      <div class="plan-control"><label for="plan-like">${OWN.get("like")}</label><select id="plan-like" class="plan-select" value=${s.machine.like} onChange=${like}>
        ${planner.cluster.CLUSTERS.keys().map((name) => html`<option value=${name} selected=${name === s.machine.like}>${name}</option>`)}</select></div>
      ${Object.entries(s.machine.tflops).map(([kind, rate]) => number(`tflops-${kind}`, `dense ${kind} TFLOP/s per GPU`, rate, (value) => ({ ...s.machine, tflops: { ...s.machine.tflops, [kind]: value } })))}
      ${Object.keys(MACHINE).map((name) => number(name, OWN.get(name), s.machine[name], (value) => ({ ...s.machine, [name]: value })))}</details>`;
  }

  /** The settings as training programs write them. */
  class Export extends Component {
    render({ s, now: { model, cluster, layout, found } }, { program = Object.keys(EXPORTS).find((name) => s.software.includes(name)) ?? "megatron", copied }) {
      const step = new planner.arithmetic.Step(model, cluster, layout, programs[s.software], s.precision, false, s.trained, s.lora_rank);
      const refused = planner.export.refusal(program, s.trained), text = refused ? "" : planner.export.lines(program, step, s.batch, found).join("\n");
      const copy = () => navigator.clipboard.writeText(text).then(() => this.setState({ copied: text }), () => prompt("The settings", text));
      return html`<details class="plan-export"><summary>As settings of a training program</summary>
        <${Buttons} name="program" label="Program" value=${program} set=${({ program }) => this.setState({ program })} options=${Object.entries(EXPORTS)} />
        ${refused ? html`<p class="plan-wrong" role="status">${refused}.</p>` : html`<pre tabindex="0" aria-label="Settings">${text}</pre>
        <p class="plan-links"><button type="button" class="plan-button" onClick=${copy}>Copy settings</button><span role="status">${copied === text ? "Copied." : ""}</span></p>`}</details>`;
    }
  }
  const EXPORTS = { bridge: "Megatron-Bridge", torchtitan: "torchtitan", megatron: "Megatron-LM" };

  const Headline = ({ s, now: { model, layout, problems, noMachine, found, run, margin } }) => html`
    <div class="plan-headline" aria-live="polite" tabindex="-1"><p>${found
      ? html`${model.name} on ${fixed(s.gpus)} × ${s.cluster}: <strong>${seconds(found.seconds)}</strong> per step${s.trained === "all" && html`, <strong>${percent(found.mfu())}</strong> MFU`}.
        ${" "}${large(1e12 * s.tokens)} tokens take <strong>${short(run.days)} days</strong>.`
      : html`${model.name} on ${fixed(s.gpus)} × ${s.cluster}: ${noMachine ? "the machine lacks a number" : "this layout cannot run"}.`}</p>
      <p class="plan-layout">${axesOf(layout)}; ${restOf(layout)}; ${large(s.batch * model.sequence)} tokens per step</p>
      ${margin && html`<p class="plan-note">± ${percent(margin.error)}: ${margin.words}.</p>`}
      ${problems.map(({ says }) => html`<p class="plan-wrong">${says}.</p>`)}</div>`;

  /** The published value beside the predicted one, while the settings are those of a published run. */
  function Compared({ s, now }) {
    const equal = (one, other) => JSON.stringify(one) === JSON.stringify(other), mine = { ...s, ...now.layout };
    const isIt = ({ name, settings, model }) => s.model === name && Object.entries(settings).every(([key, value]) => equal(mine[key], value)) && same(now.model, Model.from(model));
    const preset = presets.find((one) => now.found && s.trained === "all" && isIt(one));
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
      ...(s.trained === "all" ? [["MFU", percent(found.mfu()).slice(0, -2), "%"]] : []), ["tokens per second", ...large(run.perSecond).split(" ")],
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

  /** What to know before choosing this layout, the best, or one within ± of it. */
  function Warnings({ s, search, now: { model, cluster, layout, margin } }) {
    const found = search?.best && !search.stale ? [search.best, ...search.others] : [];
    const close = found.filter(({ seconds }) => seconds <= search.best.seconds * (1 + margin.error)).map((one) => Layout.from(one.layout));
    const lines = planner.search.warnings(model, cluster, programs[s.software], [layout, ...close]);
    return html`<div class="plan-warnings">${lines.map((line) => html`<p class="plan-note">Note: ${line}.</p>`)}</div>`;
  }

  /** After a search: the best layout, and why others lose. */
  function Others({ search, now, take }) {
    if (!search) return null;
    const { best, others, fitting, rejected, filled, tight, says } = search, room = fixed((filled * now.cluster.memory) / GB);
    if (says) return html`<p class="plan-wrong" role="status">${says}.</p>`;
    const name = Object.assign({}, ...Object.values(given.TIME)), shown = (layout) => same(layout, now.layout);
    const row = (other, why) => html`<tr><td><button type="button" aria-pressed=${String(shown(other.layout))} onClick=${() => take(other.layout)}>${axesOf(other.layout)}</button>
      <br /><small>${restOf(other.layout)}</small></td><td>${seconds(other.seconds)}</td><td>${why}</td></tr>`;
    return html`<section class=${search.stale ? "plan-stale" : ""}><h2>Why others lose</h2><table class="plan-others"><thead><tr><th scope="col">layout</th><th scope="col">step</th><th scope="col">against the best</th></tr></thead>
      <tbody>${row(best, "the best")}${others.map((other) => {
        const slower = other.seconds / best.seconds - 1;
        const share = Math.abs(slower) < 5e-4 ? "hardly" : percent(Math.abs(slower));
        return row(other, slower < 0 ? `${share} faster, a tie: less simple`
          : `${share} slower: ${other.grown.map(([term, more]) => `${name[term][0]} +${seconds(more)}`).join(", ") || "the same"}`);
      })}</tbody></table>
      <p class="plan-note">${tight
        ? html`Tight: nothing fits ${percent(FILLED, 0)} of the memory, and these fill more, up to ${room} GB, ${percent(filled, 0)}. They may run out of it.`
        : html`All of these fit ${room} GB, ${percent(filled, 0)} of the memory; ${fixed(rejected)} other layouts do not.`}
        ${" "}Layouts within ${percent(planner.search.TIE)} count as equally fast, and the simplest of them as the best.</p></section>`;
  }

  /** What stays in sight on a phone while one moves the controls. */
  const Summary = ({ s, now: { found, problems } }) => html`<p class="plan-summary" aria-hidden="true">${found
    ? html`<strong>${seconds(found.seconds)}</strong>${s.trained === "all" && html`<strong>${percent(found.mfu(), 0)} MFU</strong>`}<strong class=${problems.length ? "plan-wrong" : ""}>${fixed(found.nbytes / GB)} of ${fixed(found.room / GB)} GB</strong>`
    : html`<span class="plan-wrong">${problems[0].says}</span>`}</p>`;

  customElements.define("plan-a-run", class extends HTMLElement {
    connectedCallback() {
      render(html`<${Plan} />`, this);
    }
  });
  window.planning = { read, unread, write, computed, modelOf, layoutOf, START, SIZES };
})();
