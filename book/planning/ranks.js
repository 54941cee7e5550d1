/* `ranks/cluster.py` and `ranks/model.py` once more, for the browser, function by function.

   Functions and fields have Python's names, so that both can be read side by side; what they mean stands there. No number
   of a machine or a model is here: window.ranksInTheBrowser gets them from Python (`constants` in
   `book/_ext/plan_page.py`) and returns the functions. `tests/book/test_plan_page.py` compares both. */

"use strict";

window.ranksInTheBrowser = ({ cluster: C }) => {
  const { floor, ceil, min, max, sqrt, log2 } = Math;
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  // ranks/cluster.py

  const pipelined = (seconds) => (sqrt(C.CHUNK) + sqrt(seconds)) ** 2;

  function together(cluster, group_size, stride = 1) {
    if (group_size * stride <= cluster.domain) return group_size;
    return max(1, min(group_size, floor(2 ** floor(log2(cluster.domain)) / stride)));
  }

  function bandwidth(cluster, group_size, stride = 1) {
    const k = together(cluster, group_size, stride);
    if (k >= group_size) return cluster.nvlink;
    const ports = (cluster.ports * k) / cluster.domain;
    return k > 1 ? min(cluster.nvlink, ports * cluster.port) : ports * cluster.port;
  }

  function effective_bandwidth(cluster, group_size, stride = 1) {
    if (together(cluster, group_size, stride) >= group_size) return cluster.nvlink * C.NVLINK_SHARE;
    return min(bandwidth(cluster, group_size, stride) * C.NETWORK_SHARE, cluster.nvlink * C.NVLINK_SHARE);
  }

  function ring_seconds(cluster, moving, steps, group_size, stride) {
    const domains = ceil(group_size / together(cluster, group_size, stride));
    const between = Math.round((steps * (domains - 1)) / (group_size - 1));
    const start = (base, inside, network) =>
      C.LAUNCH + base + (steps - between) * (domains === 1 ? inside : max(inside, C.POSTING)) + (between ? between * network : 0);
    const net = cluster.network_step;
    const speed = effective_bandwidth(cluster, group_size, stride);
    const ll = min(C.LL_SHARE * speed, domains === 1 ? cluster.ll : domains === 2 ? C.LL_TWO_NODES : C.LL_NODES);
    return [
      start(C.BASE.ll, C.NVLINK_STEP.ll, net.ll) + (moving * speed) / ll,
      start(C.BASE.ll128, C.NVLINK_STEP.ll128, net.ll128) + moving / C.LL128_SHARE,
      start(C.BASE.simple, C.NVLINK_STEP.simple, net.simple) + pipelined(moving),
    ];
  }

  function all_reduce_seconds(cluster, nbytes, group_size, stride = 1) {
    if (group_size <= 1 || nbytes <= 0) return 0;
    const steps = 2 * (group_size - 1), k = together(cluster, group_size, stride);
    const moving = (nbytes * steps) / group_size / effective_bandwidth(cluster, group_size, stride);
    const ways = ring_seconds(cluster, moving, steps, group_size, stride);
    const domains = ceil(group_size / k);
    if (domains > 1) {
      const levels = (k - 1) * C.TREE_NVLINK + log2(domains) * cluster.network_level;
      ways.push(C.LAUNCH + C.BASE.simple + 2 * levels + pipelined(moving / C.TREE_SHARE));
    } else if (cluster.switch_share && group_size > 4) {
      const speed = cluster.nvlink * C.NVLINK_SHARE * cluster.switch_share;
      ways.push(C.LAUNCH + pipelined((nbytes * (1 + 1 / group_size)) / speed));
    }
    return min(...ways);
  }

  function all_gather_seconds(cluster, nbytes, group_size, stride = 1) {
    if (group_size <= 1 || nbytes <= 0) return 0;
    const moving = (nbytes * (group_size - 1)) / group_size / effective_bandwidth(cluster, group_size, stride);
    return min(...ring_seconds(cluster, moving, group_size - 1, group_size, stride));
  }

  function all_to_all_seconds(cluster, nbytes, group_size, stride = 1, crossing = null) {
    if (group_size <= 1 || nbytes <= 0) return 0;
    const k = together(cluster, group_size, stride);
    const inside = (nbytes * (k - 1)) / group_size / (cluster.nvlink * C.NVLINK_SHARE);
    if (k >= group_size) return C.LAUNCH + C.NVLINK_STEP.simple + inside;
    crossing ??= (nbytes * (group_size - k)) / group_size;
    const outside = crossing / ((cluster.ports / cluster.domain) * cluster.port * C.NETWORK_SHARE);
    return C.LAUNCH + cluster.network_step.simple + max(inside, outside);
  }

  function send_seconds(cluster, nbytes, stride = 1) {
    const step = together(cluster, 2, stride) === 2 ? C.NVLINK_STEP.simple : cluster.network_step.simple;
    return step + nbytes / effective_bandwidth(cluster, 2, stride);
  }

  // ranks/model.py

  const moe_layers = (m) => (m.experts ? m.layers - (m.dense_layers ?? 0) : 0);
  const mlp_parameters = (m, width) => (m.gated ? 3 : 2) * m.hidden * width;
  const expert_parameters = (m) => moe_layers(m) * m.experts * mlp_parameters(m, m.expert_ffn);
  const attention_parameters = (m) => sum(attention_matrices(m).map(([inputs, outputs]) => inputs * outputs));

  function attention_matrices(m) {
    const h = m.hidden, c = m.latent;
    if (!c) return [[h, (m.heads + 2 * m.kv_heads) * m.head_dim, "columns"], [m.heads * m.head_dim, h, "rows"]];
    return [
      [h, c.query + c.key_value + c.rotary, "whole"],
      [c.query, m.heads * (c.plain + c.rotary), "columns"],
      [c.key_value, m.heads * (c.plain + c.value), "columns"],
      [m.heads * c.value, h, "rows"],
    ];
  }

  function parameters(m) {
    const latent = m.latent ? m.latent.query + m.latent.key_value : 0, moe = moe_layers(m);
    const norms = m.layers * (2 * m.hidden + latent) + m.hidden;
    let always = m.layers * attention_parameters(m) + (m.layers - moe) * mlp_parameters(m, m.ffn) + norms;
    always += moe * (m.shared_experts * mlp_parameters(m, m.expert_ffn) + m.hidden * m.experts);
    always += (m.tied ? 1 : 2) * m.vocab * m.hidden;
    const chosen = moe * m.experts_per_token * mlp_parameters(m, m.expert_ffn);
    return { total: always + expert_parameters(m), active: always + chosen };
  }

  function matmul_parameters(m) {
    const moe = moe_layers(m), dense = m.layers - moe, ahead = m.predicted_ahead;
    const [ahead_moe, ahead_dense] = m.experts ? [ahead, 0] : [0, ahead];
    const count = (m.layers + ahead) * attention_parameters(m) + (dense + ahead_dense) * mlp_parameters(m, m.ffn);
    const visited = (m.experts_per_token + m.shared_experts) * mlp_parameters(m, m.expert_ffn) + m.hidden * m.experts;
    return count + (moe + ahead_moe) * visited + (1 + ahead) * m.vocab * m.hidden;
  }

  function attention_width(m) {
    return m.latent ? (m.heads * (m.latent.plain + m.latent.rotary + m.latent.value)) / 2 : m.heads * m.head_dim;
  }

  function mean_context(m) {
    const s = m.sequence, window = min(m.window ?? s, s);
    return ((1 - m.windowed) * s) / 2 + m.windowed * (window - window ** 2 / (2 * s));
  }

  function flops_per_token(m, attention = "causal") {
    const pairs = attention === "causal" ? mean_context(m) : 2 * mean_context(m);
    return 6 * matmul_parameters(m) + 12 * (m.layers + m.predicted_ahead) * attention_width(m) * pairs;
  }

  function state_bytes_per_parameter(stage, ranks) {
    return sum([12, 4, 2].map((part, number) => part / (number < stage ? ranks : 1)));
  }

  function activation_bytes_per_token(m, moe, tensor, sequence_parallel) {
    const c = m.latent;
    const mixed = c
      ? 2 * (2 * m.heads * (c.plain + c.rotary + c.value) + 2 * (c.query + c.key_value + c.rotary))
      : 2 * (2 * m.heads + 2 * m.kv_heads) * m.head_dim;
    const inner = moe ? (m.experts_per_token + m.shared_experts) * m.expert_ffn : m.ffn;
    const split = mixed + (m.gated ? 6 : 4) * inner + (moe ? 4 * m.experts_per_token * m.hidden : 0);
    return split / tensor + (8 * m.hidden) / (sequence_parallel ? tensor : 1);
  }

  return {
    sum, together, all_reduce_seconds, all_gather_seconds, all_to_all_seconds, send_seconds,
    moe_layers, expert_parameters, attention_matrices, parameters, attention_width, mean_context, flops_per_token,
    state_bytes_per_parameter, activation_bytes_per_token,
  };
};
