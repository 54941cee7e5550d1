/* `planner/` once more, for the browser: each term is one function with Python's name, and what it means stands there.

   No number of a machine, a model or a program is here: window.plannerInTheBrowser gets them from Python (`constants` in
   `book/_ext/plan_page.py`). `tests/book/test_plan_page.py` compares every term with Python's. */

"use strict";

window.plannerInTheBrowser = (constants) => {
  const { PRECISIONS, FILLED, LONG, RECOMPUTE, software: S } = constants;
  const { floor, ceil, min, max } = Math;
  const {
    sum, together, all_reduce_seconds, all_gather_seconds, all_to_all_seconds, send_seconds,
    moe_layers, expert_parameters, attention_matrices, parameters, attention_width, mean_context, flops_per_token,
    state_bytes_per_parameter, activation_bytes_per_token,
  } = window.ranksInTheBrowser(constants);

  // planner/layout.py

  const gpus_of = (l) => l.dp * l.tp * l.pp * l.cp;
  const data_ranks = (l) => l.dp * l.cp;
  const shards = (l) => min(l.shard || data_ranks(l), data_ranks(l));
  const expert_data_ranks = (l) => max(1, floor((data_ranks(l) * l.tp) / l.ep));
  const micro_batches = (l, batch) => floor(batch / (l.dp * l.micro_batch));

  /** What keeps a layout from running this model and batch, memory aside: [{at: its control, says}], as `check` says. */
  function check(m, l, batch, gpus) {
    const found = [], add = (at, says) => found.push({ at, says });
    if (gpus_of(l) !== gpus) {
      const product = `dp ${l.dp} x tp ${l.tp} x pp ${l.pp} x cp ${l.cp} = ${gpus_of(l)} ranks`;
      add("gpus", `${product}, but there are ${gpus} GPUs; make the product equal`);
    }
    for (const [at, what, whole, parts, axis] of [
      ["tp", "query heads", m.heads, l.tp, "tp"],
      ["batch", "sequences", batch, l.dp * l.micro_batch, "dp x micro_batch"],
      ["cp", "tokens per sequence", m.sequence, l.cp, "cp"],
    ]) {
      if (whole % parts) add(at, `${axis} = ${parts} does not divide ${whole} ${what}; choose a divisor`);
    }
    if (l.pp * l.virtual_stages > m.layers + 2) {
      const stages = `pp ${l.pp} x ${l.virtual_stages} virtual stages`;
      add("pp", `${stages} need more than the model's ${m.layers} layers; choose fewer`);
    }
    if (l.ep > 1 && !m.experts) add("ep", `ep is ${l.ep}, but the model has no experts; set it to 1`);
    else if (l.ep > 1) {
      const ranks = data_ranks(l) * l.tp;
      if (m.experts % l.ep) add("ep", `ep = ${l.ep} does not divide ${m.experts} experts; choose a divisor`);
      if (ranks % l.ep) {
        add("ep", `ep = ${l.ep} does not divide the ${ranks} ranks of a pipeline stage (dp x cp x tp); choose a divisor`);
      }
    }
    if (l.context === "all_to_all" && l.cp > 1 && m.kv_heads % (l.cp * l.tp)) {
      const heads = `cp x tp = ${l.cp * l.tp} does not divide ${m.kv_heads} heads of keys and values`;
      add("cp", `${heads}, as context parallelism by all-to-all needs; use the ring`);
    }
    return found;
  }

  /** The precisions that a machine has. */
  const precisions = (cluster) => Object.keys(PRECISIONS).filter((name) => PRECISIONS[name][0] in cluster.flops);
  const machine = (software, cluster) => ({ ...cluster, ...(software.machines[cluster.name] ?? {}) });

  // planner/arithmetic.py: (forward, backward) seconds of one layer and micro-batch on one rank

  /** What every term needs. */
  function step_of(m, cluster, layout, software, precision, moe = false) {
    const tokens = (layout.micro_batch * m.sequence) / layout.cp;
    const own_tokens = tokens / (layout.sequence_parallel ? layout.tp : 1);
    return { model: m, cluster: machine(software, cluster), layout, software, precision, moe, tokens, own_tokens };
  }

  const memory_seconds = (step, nbytes) => nbytes / (step.cluster.memory_bandwidth * S.MEMORY_SHARE);

  function matmul_rate(step, precision) {
    const kind = PRECISIONS[precision][0], key = `${step.cluster.name} ${kind}`;
    const share = S.MATMUL_SHARE[S.SAME_SHARE[key] ?? key];
    return step.cluster.flops[kind] * share * (1 - step.software.idle_multiprocessors);
  }

  function matmul_seconds(step, rows, inner, outer, precision, copies) {
    const moved = (rows * inner + inner * outer) * PRECISIONS[precision][1] + rows * outer * 2;
    return copies * max((2 * rows * inner * outer) / matmul_rate(step, precision), memory_seconds(step, moved));
  }

  function linear_seconds(step, rows, inner, outer, precision, copies = 1) {
    const once = matmul_seconds(step, rows, inner, outer, precision, copies);
    return [once, 2 * once];
  }

  function layer_matrices(step) {
    const m = step.model, t = step.layout.tp, wide = m.gated ? 2 : 1, width = m.shared_experts * m.expert_ffn;
    const found = attention_matrices(m).map(([inputs, outputs, cut]) => {
      const rows = cut === "whole" && step.layout.sequence_parallel ? step.tokens / t : step.tokens;
      return [rows, inputs / (cut === "rows" ? t : 1), outputs / (cut === "columns" ? t : 1), 1];
    });
    if (!step.moe) return [...found, [step.tokens, m.hidden, (wide * m.ffn) / t, 1], [step.tokens, m.ffn / t, m.hidden, 1]];
    const visits = (step.tokens / t) * m.experts_per_token, local = m.experts / step.layout.ep;
    found.push([visits / local, m.hidden, wide * m.expert_ffn, local], [visits / local, m.expert_ffn, m.hidden, local]);
    if (width) found.push([step.tokens / t, m.hidden, wide * width, 1], [step.tokens / t, width, m.hidden, 1]);
    return found;
  }

  function matmuls(step) {
    const pairs = layer_matrices(step).map(([rows, i, o, copies]) => linear_seconds(step, rows, i, o, step.precision, copies));
    return [0, 1].map((pass) => sum(pairs.map((pair) => pair[pass])));
  }

  function quantizing(step) {
    const per_element = PRECISIONS[step.precision][2] ?? (step.precision === "mxfp8" ? S.MXFP8_CAST : step.software.cast_bytes);
    const forward = sum(layer_matrices(step).map(([rows, i, , copies]) => rows * i * copies));
    const backward = sum(layer_matrices(step).map(([rows, , o, copies]) => rows * o * copies));
    return [memory_seconds(step, per_element * forward), memory_seconds(step, per_element * backward)];
  }

  function attention_shares(step) {
    const name = step.cluster.name;
    const family = name === "A100" ? "A100" : ["H100", "H800", "H200", "25 Gb/s"].includes(name) ? "H100" : "B200";
    const latest = { A100: "flash 2", H100: "flash 3", B200: "flash 3" }[family];
    return S.ATTENTION_SHARE[`${step.software.attention} ${family}`] ?? S.ATTENTION_SHARE[`${latest} ${family}`];
  }

  function attention(step) {
    const { model: m, layout, software, tokens } = step, width = attention_width(m) / layout.tp;
    const peak = step.cluster.flops.bf16 * (1 - software.idle_multiprocessors);
    if (software.attention === "unfused") {
      const flops = 4 * tokens * m.sequence * width, scores = (tokens * m.sequence * m.heads) / layout.tp;
      const slow = (m.head_dim % 8 === 0 ? 1 : 3) / (0.5 * matmul_rate(step, "bf16"));
      return [flops * slow + memory_seconds(step, 12 * scores), 2 * flops * slow + memory_seconds(step, 16 * scores)];
    }
    const [forward, backward] = attention_shares(step), context = mean_context(m), half = S.ATTENTION_HALF;
    let speed = (((peak * 2 * context) / (2 * context + half)) * (8192 + half)) / 8192;
    speed *= m.head_dim <= 64 && !m.latent ? 0.75 : 1;
    const flops = (4 * tokens * context * width) / (layout.cp > 1 ? S.CONTEXT_BALANCE : 1);
    return [flops / (speed * forward), (2.5 * flops) / (speed * backward)];
  }

  function elementwise(step) {
    const { model: m, layout, tokens, own_tokens } = step, wide = m.gated ? 2 : 1;
    const heads = (((m.heads + m.kv_heads) * m.head_dim) / layout.tp) * tokens;
    let inner = (m.ffn / layout.tp) * tokens, extra = 0;
    if (step.moe) {
      const visits = (tokens / layout.tp) * m.experts_per_token;
      inner = m.expert_ffn * (visits + (tokens / layout.tp) * m.shared_experts);
      extra = 6 * visits * m.hidden;
    }
    const forward = 10 * m.hidden * own_tokens + 2 * heads + (wide + 1) * inner;
    const backward = 12 * m.hidden * own_tokens + 2 * heads + (2 * wide + 1) * inner;
    const factor = 2 * step.software.elementwise;
    return [memory_seconds(step, factor * forward + 2 * extra), memory_seconds(step, factor * backward + 2 * extra)];
  }

  function logits(step) {
    const m = step.model, columns = m.vocab / step.layout.tp, heads = 1 + m.predicted_ahead, entries = step.tokens * columns;
    const [forward, backward] = linear_seconds(step, step.tokens, m.hidden, columns, "bf16");
    return [heads * (forward + memory_seconds(step, 16 * entries)), heads * (backward + memory_seconds(step, 12 * entries))];
  }

  function experts_overhead(step, busy) {
    if (!step.moe) return [0, 0];
    const factor = { 2025: S.MOE_2025, 2026: S.MOE_2026, latest: S.MOE_LATEST }[step.software.moe] - 1;
    return [(factor * busy) / 3, (factor * busy * 2) / 3];
  }

  function recomputed(step, parts) {
    const whole = sum(Object.values(parts).map(([forward]) => forward));
    if (step.layout.recompute === "full") return whole;
    if (step.layout.recompute === "none") return 0;
    const cheap = step.software.attention === "unfused" ? parts.attention[0] : parts.elementwise[0] / 2;
    return cheap + step.software.recomputed * whole;
  }

  function host(step, busy) {
    let waits = S.HOST_BLOCKING;
    if (!step.software.blocking) {
      const moe = step.software.moe !== "latest" ? S.HOST_MOE : 0;
      waits = max(0, (step.moe ? moe : step.software.eager ? S.HOST_EAGER : 0) - busy);
    }
    return [waits / 3, (waits * 2) / 3];
  }

  // planner/communication.py

  function exposed(seconds, hidden) {
    hidden = min(seconds, max(0, hidden));
    return seconds - hidden + S.OVERLAP_COST * hidden;
  }

  function tensor(step) {
    const { layout, cluster } = step, t = layout.tp, nbytes = 2 * step.tokens * step.model.hidden;
    if (t === 1) return [0, 0];
    const once = layout.sequence_parallel ? 2 * all_gather_seconds(cluster, nbytes, t) : all_reduce_seconds(cluster, nbytes, t);
    const overlaps = step.software.tensor_overlap && together(cluster, t) === t;
    const shown = (step.moe ? 1 : 2) * exposed(once, overlaps ? S.TENSOR_HIDDEN * once : 0);
    return [shown, shown];
  }

  function context(step, attending) {
    const { layout, model: m, cluster, tokens } = step;
    if (layout.cp === 1) return [0, 0];
    const keys = (2 * 2 * tokens * m.kv_heads * m.head_dim) / layout.tp;
    if (layout.context === "all_to_all") {
      const queries = (2 * 2 * tokens * m.heads * m.head_dim) / layout.tp;
      const once = all_to_all_seconds(cluster, keys + queries, layout.cp, layout.tp);
      return [once, once];
    }
    if (layout.context === "all_gather") {
      const once = all_gather_seconds(cluster, keys * layout.cp, layout.cp, layout.tp);
      return [once, 2 * once];
    }
    const near = together(cluster, layout.cp, layout.tp) === layout.cp;
    const ring = (layout.cp - 1) * send_seconds(cluster, keys, near ? 1 : layout.tp);
    return [exposed(ring, attending[0]), exposed(2 * ring, attending[1])];
  }

  function experts(step, computing) {
    const { layout, model: m, cluster } = step;
    if (!step.moe || layout.ep === 1) return [0, 0];
    const near = together(cluster, layout.ep), nodes = layout.ep / near, row = ((2 * step.tokens) / layout.tp) * m.hidden;
    const visited = nodes * (1 - (1 - 1 / nodes) ** m.experts_per_token);
    const crossing = (row * min(visited, m.nodes_per_token || visited) * (nodes - 1)) / nodes;
    const everything = row * m.experts_per_token;
    let once = near > 1 ? all_to_all_seconds(cluster, everything, near) : 0;
    if (nodes > 1) once = max(once, all_to_all_seconds(cluster, everything, layout.ep, 1, crossing));
    const [forward, backward] = step.software.expert_overlap ? computing : [0, 0];
    return [exposed(2 * once, forward), exposed(2 * once, backward)];
  }

  function bubble(step, forward, backward) {
    const { pp: p, virtual_stages: v, schedule } = step.layout, weights = backward / 2;
    if (p === 1) return 0;
    if (schedule === "zero_bubble") return (p - 1) * max(0, forward + backward - 2 * weights);
    if (schedule === "dualpipe") return (p / 2 - 1) * max(0, forward + 2 * backward - 3 * weights);
    return ((p - 1) / v) * (forward + backward);
  }

  function stages(step, count) {
    const l = step.layout, nbytes = (2 * step.tokens * step.model.hidden) / l.tp;
    if (l.pp === 1) return 0;
    const hop = send_seconds(step.cluster, nbytes, l.tp * data_ranks(l)), sent = count * 2 * l.virtual_stages * hop;
    return 2 * (l.pp - 1) * hop + exposed(sent, l.virtual_stages === 1 ? 0 : sent);
  }

  function rank_parameters(step) {
    const routed = expert_parameters(step.model), l = step.layout;
    return [(parameters(step.model).total - routed) / (l.tp * l.pp), routed / (l.ep * l.pp)];
  }

  function data(step, forward, backward, count) {
    const { layout: l, software, cluster } = step, [ordinary, routed] = rank_parameters(step);
    const layers = max(1, step.model.layers / l.pp);
    const collective = (kind, size) => {
      const pieces = software.bucket ? max(layers, (ordinary * size) / software.bucket) : layers;
      const seconds = pieces * kind(cluster, (ordinary * size) / pieces, shards(l), l.tp);
      return seconds + pieces * kind(cluster, (routed * size) / pieces, expert_data_ranks(l), l.ep);
    };
    const shown = (seconds, window, overlap) => exposed(seconds, overlap ? min(seconds * (1 - 1 / layers), window) : 0);
    if (l.zero_stage === 0) {
      return shown(collective(all_reduce_seconds, software.gradient_bytes), backward, software.data_overlap);
    }
    const reduce = collective(all_gather_seconds, software.gradient_bytes), gather = collective(all_gather_seconds, 2);
    if (l.zero_stage < 3) {
      return shown(reduce, backward, software.data_overlap) + shown(gather, forward, software.gather_overlap);
    }
    const again = l.pp > 1 ? 0 : gather, replicas = floor(data_ranks(l) / shards(l));
    let once = shown(gather, forward, software.data_overlap) + shown(again + reduce, backward, software.data_overlap);
    once += memory_seconds(step, software.copy_bytes * (ordinary + routed));
    let seconds = once * (l.pp === 1 ? count : 1);
    if (replicas > 1) {
      const nbytes = (ordinary * software.gradient_bytes) / shards(l);
      seconds += shown(all_reduce_seconds(cluster, nbytes, replicas, l.tp * shards(l)), backward, software.data_overlap);
    }
    return seconds;
  }

  function optimizer(step) {
    const l = step.layout, [ordinary, routed] = rank_parameters(step);
    let kept = ordinary / ({ 0: 1, 3: shards(l) }[l.zero_stage] ?? data_ranks(l));
    kept += routed / (l.zero_stage ? expert_data_ranks(l) : 1);
    const held = (ordinary + routed) / (l.zero_stage === 3 ? shards(l) : 1);
    return memory_seconds(step, 30 * kept + 8 * held);
  }

  // planner/memory.py: bytes

  const layers_of_fullest_stage = (step) => ceil(step.model.layers / step.layout.pp);

  function states(step) {
    const { layout: l, model: m } = step, fullest = layers_of_fullest_stage(step);
    let [ordinary, routed] = rank_parameters(step);
    if (l.pp > 1) {
      const layers = ordinary * l.pp - ((m.tied ? 1 : 2) * m.vocab * m.hidden) / l.tp;
      ordinary = (layers / m.layers) * fullest + (m.vocab * m.hidden) / l.tp;
      routed *= (fullest * l.pp) / m.layers;
    }
    const stage = l.zero_stage === 3 && l.pp > 1 ? 1 : l.zero_stage, over = l.zero_stage === 3 ? shards(l) : data_ranks(l);
    const total = ordinary * state_bytes_per_parameter(stage, over) + routed * state_bytes_per_parameter(stage, expert_data_ranks(l));
    return stage === 3 ? total + (3 * 2 * parameters(m).total) / (m.layers * l.tp * l.ep) : total;
  }

  function alive(step, count) {
    const { pp: p, virtual_stages: v } = step.layout;
    return min(count, v > 1 ? p + (p - 1) / v : p);
  }

  function activations(step, count) {
    const { model: m, layout: l, software } = step;
    let layer = activation_bytes_per_token(m, Boolean(m.experts), l.tp, l.sequence_parallel) * step.tokens;
    if (software.attention === "unfused" && l.recompute === "none") layer += (5 * step.tokens * m.sequence * m.heads) / l.tp;
    layer *= software.kept;
    const kept = l.recompute === "full" ? 2 * m.hidden * step.own_tokens : l.recompute === "none" ? layer : layer * (1 - software.recomputed);
    return kept * layers_of_fullest_stage(step) * count + (l.recompute === "none" ? 0 : layer);
  }

  function memory_terms(step, count) {
    const found = { states: states(step), activations: activations(step, alive(step, count)), fixed: S.FIXED_MEMORY };
    const nbytes = (step.software.logits_bytes * step.model.vocab) / step.layout.tp * step.tokens;
    const last = { ...found, activations: activations(step, 1), logits: nbytes };
    return step.layout.pp === 1 || sum(Object.values(last)) > sum(Object.values(found)) ? last : found;
  }

  // planner/prediction.py

  /** FLOPs per token in the way that a source counts them. */
  function counted_flops(m, counting = "causal_half", recompute = "none") {
    if (counting === "six_n") return 6 * parameters(m).active;
    if (counting === "causal_half") return flops_per_token(m);
    return flops_per_token(m, "full") * (counting === "hardware" && recompute === "full" ? 4 / 3 : 1);
  }

  function layer_terms(step) {
    const found = {
      matmuls: matmuls(step), attention: attention(step), elementwise: elementwise(step), quantizing: quantizing(step),
      tensor: tensor(step),
    };
    found.context = context(step, found.attention);
    found.experts = experts(step, [0, 1].map((pass) => sum(Object.values(found).map((pair) => pair[pass]))));
    found.recomputing = [0, recomputed(step, found)];
    const busy = () => sum(Object.values(found).map(([forward, backward]) => forward + backward));
    found["experts' overhead"] = experts_overhead(step, busy());
    found.host = host(step, busy());
    return found;
  }

  function slowest_stage(step, layers, head) {
    const m = step.model, { pp: p, virtual_stages: v } = step.layout, one = layers / m.layers;
    if (p === 1) return layers + head;
    if (step.software.balances_head) {
      const with_last = (last) => max(last * one + head, ceil((m.layers - last) / (p - 1)) * one);
      return min(...Array.from({ length: m.layers }, (_, last) => with_last(last)));
    }
    if (m.layers % p === 0) return layers / p + head;
    const extra = step.software.blocking ? 1 : 2;
    const most = min(ceil((m.layers + extra) / (p * v)) * v, ceil(m.layers / p));
    return max((layers + head) / p, most * one);
  }

  /** Memory and seconds of a step, term by term, of a layout that passes `check`; and what follows from them. */
  function predict(m, cluster, layout, batch, precision, software) {
    const step = step_of(m, cluster, layout, software, precision), count = micro_batches(layout, batch), p = layout.pp;
    const moe = moe_layers(m) + (m.experts ? m.predicted_ahead : 0);
    const whole = { logits: logits(step) };
    for (const [layers, kind] of [[m.layers + m.predicted_ahead - moe, step], [moe, { ...step, moe: true }]]) {
      for (const [term, [forward, backward]] of layers ? Object.entries(layer_terms(kind)) : []) {
        const before = whole[term] ?? [0, 0];
        whole[term] = [before[0] + layers * forward, before[1] + layers * backward];
      }
    }
    const [forward, backward] = [0, 1].map((pass) => sum(Object.values(whole).map((pair) => pair[pass])) / p);
    const mean = forward + backward, head = sum(whole.logits), time = {};
    for (const [term, pair] of Object.entries(whole)) time[term] = (count * sum(pair)) / p;
    time.imbalance = count * (slowest_stage(step, p * mean - head, head) - mean);
    time.bubble = bubble(step, forward, backward);
    time.stages = stages(step, count);
    time.data = data(step, forward, backward, count);
    time.optimizer = optimizer(step);
    for (const term of Object.keys(time)) if (!time[term]) delete time[term];
    const memory = memory_terms(step, count), seconds = sum(Object.values(time)), nbytes = sum(Object.values(memory));
    const rate = (batch * m.sequence) / seconds / gpus_of(layout); // tokens per GPU and second
    const flops = (counting) => rate * counted_flops(m, counting, layout.recompute);
    const mfu = (counting) => flops(counting) / cluster.flops.bf16;
    return { layout, batch, time, memory, seconds, nbytes, tokens_per_gpu_per_second: rate, flops, mfu, room: step.cluster.memory };
  }

  // planner/search.py

  const powers_of_two = (most) => Array.from({ length: floor(Math.log2(most)) + 1 }, (_, i) => 2 ** i);

  /** Every layout that `plan` tries. */
  function* layouts(m, cluster, gpus, batch, software) {
    for (const tp of powers_of_two(min(gpus, m.heads))) for (const pp of powers_of_two(m.layers)) {
      for (const cp of m.sequence >= LONG ? powers_of_two(16) : [1]) {
        if (gpus % (tp * pp * cp)) continue;
        const dp = gpus / (tp * pp * cp), near = floor(cluster.domain / tp);
        const even = [1, 2, 4, 8].filter((v) => m.layers % (pp * v) === 0 || (m.layers + 2) % (pp * v) === 0);
        const chunks = pp > 1 && software.interleaves && even.length ? even : [1];
        const sharded = [[0, null], [1, null], [2, null], [3, null], ...(near > 1 && near < dp * cp ? [[3, near]] : [])];
        for (const ep of m.experts ? powers_of_two(m.experts) : [1]) {
          for (const micro_batch of [1, 2, 4]) for (const virtual_stages of chunks) for (const [zero_stage, shard] of sharded) {
            for (const recompute of RECOMPUTE) {
              const found = {
                dp, tp, pp, cp, ep, micro_batch, virtual_stages, zero_stage, shard, recompute,
                sequence_parallel: true, schedule: "1f1b", context: "ring",
              };
              if (!check(m, found, batch, gpus).length) yield found;
            }
          }
        }
      }
    }
  }

  /** `plan`, a layout at a time: yields how many it has looked at; returns {fitting, rejected}, the best first. */
  function* plan(m, cluster, gpus, batch, precision, software) {
    const fitting = [], rejected = [], room = FILLED * machine(software, cluster).memory;
    for (const layout of layouts(m, cluster, gpus, batch, software)) {
      const step = step_of(m, cluster, layout, software, precision);
      const nbytes = sum(Object.values(memory_terms(step, micro_batches(layout, batch))));
      if (nbytes > room) rejected.push([layout, nbytes]);
      else fitting.push(predict(m, cluster, layout, batch, precision, software));
      yield fitting.length + rejected.length;
    }
    fitting.sort((a, b) => a.seconds - b.seconds);
    rejected.sort((a, b) => a[1] - b[1]);
    return { fitting, rejected };
  }

  /** Why a layout loses against the best: by how much, and the two terms that grew most. */
  function why_not(best, other) {
    const grown = Object.entries(other.time).map(([term, s]) => [term, s - (best.time[term] ?? 0)]).filter(([, more]) => more > 0);
    const largest = grown.sort((a, b) => b[1] - a[1]).slice(0, 2);
    return { slower: other.seconds / best.seconds - 1, largest };
  }

  /** The best layout of each other combination of tensor, pipeline, context and expert parallelism. */
  function alternatives(fitting, most) {
    const found = new Map();
    for (const prediction of fitting) {
      const { tp, pp, cp, ep } = prediction.layout, key = [tp, pp, cp, ep].join();
      if (!found.has(key)) found.set(key, prediction);
    }
    return [...found.values()].slice(1, most + 1);
  }

  return { check, precisions, predict, plan, why_not, alternatives, parameters, powers_of_two, step_of, gpus_of };
};
