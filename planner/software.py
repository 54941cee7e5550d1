"""What the programs that trained the published runs do and do not hide, and the constants that were calibrated.

Every free constant is here. Each calibrated one names the published run from which it was solved
(`benchmarks/published_runs.json`); `planner.calibrate` solves all of them again. Those runs are no tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from machines.cluster import EFA_STEP, EFA_TREE, GB, Cluster

#: (machine, precision) → (the part of the dense peak that matrix multiplications of a whole step reach, the run that
#: gave it). Besides kernels this covers what has no term: power, clocks, gaps between kernels.
MATMUL_SHARE: dict[tuple[str, str], tuple[float, str]] = {
    ("A100", "bf16"): (0.76, "BLOOM 181B 02-25 DP8 TP4 PP12 MBS2"),
    ("H100", "bf16"): (0.567, "Llama 3 405B 8192 seq 8192"),
    ("H100", "fp8"): (0.619, "Llama3 8B H100 8 fp8"),
    ("B200", "fp8"): (0.526, "Llama3 8B B200 8 fp8"),
    ("GB200 NVL72", "fp8"): (0.478, "Llama3 8B GB200 8 fp8"),
    ("GB200 NVL72", "nvfp4"): (0.374, "Llama3 70B GB200 64 nvfp4"),
    ("GB300 NVL72", "fp8"): (0.64, "Llama3 8B GB300 8 fp8"),
}
#: Precision → the one whose rate its matrix multiplications have, bytes of an element, and bytes moved per element to
#: quantize it, along both dimensions (FP8's is the software's, MXFP8's is calibrated).
PRECISIONS = {
    "bf16": ("bf16", 2.0, 0.0), "fp8": ("fp8", 1.0, None), "mxfp8": ("fp8", 1.0, None), "nvfp4": ("nvfp4", 0.56, 7.0),
}  # fmt: skip
#: What a GPU reaches at least while it computes: the MFU of a large run, which also waits (Llama 3 405B on 16,384
#: H100s).
LEAST_SHARE = 0.40
#: Without a run of their own.
SAME_SHARE = {
    ("H200", "bf16"): ("H100", "bf16"), ("H200", "fp8"): ("H100", "fp8"), ("H800", "bf16"): ("H100", "bf16"),
    ("H800", "fp8"): ("H100", "fp8"), ("25 Gb/s", "bf16"): ("H100", "bf16"), ("25 Gb/s", "fp8"): ("H100", "fp8"),
    ("B200", "bf16"): ("B200", "fp8"), ("GB200 NVL72", "bf16"): ("GB200 NVL72", "fp8"),
    ("GB300 NVL72", "bf16"): ("GB300 NVL72", "fp8"), ("B200", "nvfp4"): ("GB200 NVL72", "nvfp4"),
    ("GB300 NVL72", "nvfp4"): ("GB200 NVL72", "nvfp4"),
}  # fmt: skip
#: Seconds of the host for forward and backward of one layer and micro-batch: (seconds, the run that gave it).
HOST_MOE = (0.00916, "Qwen3 30B-A3B H100 16 fp8")
#: Seconds of a layer with experts against what the terms say, by the age of Megatron's containers: (factor, the run
#: that gave it). Routing, permutation, grouped products and their overlap became faster with every release.
MOE_2025 = (1.151, "DeepSeek-V3 25.11 GB200 256 mxfp8")
MOE_2026 = (1.474, "Qwen3 30B-A3B B200 8 mxfp8")
MOE_LATEST = (1.061, "DeepSeek-V3 26.08 GB200 256 mxfp8")
#: Bytes moved per element to quantize it to MXFP8, along both dimensions and with its scales.
MXFP8_CAST = (9.602, "Llama3 8B B200 8 mxfp8")
#: The same where every kernel launch waits for its kernel (CUDA_LAUNCH_BLOCKING=1), for any layer; it adds to the
#: GPU's.
HOST_BLOCKING = (0.01303, "BLOOM 181B 02-21 DP4 TP8 PP12 MBS1")
#: The same for a dense layer, in eager PyTorch.
HOST_EAGER = (0.00431, "Ultra-Scale 8.86B 1 node DP1 TP8 PP1 MBS1")

#: (kernel, architecture) → the part of the bf16 peak that attention reaches forward and backward, at 8,192 tokens.
ATTENTION_SHARE = {
    ("flash 1", "A100"): (0.37, 0.33), ("flash 1", "H100"): (0.20, 0.18),
    ("flash 2", "A100"): (0.66, 0.56), ("flash 2", "H100"): (0.33, 0.29), ("flash 3", "H100"): (0.62, 0.50),
    ("flash 3", "B200"): (0.58, 0.42),
}  # fmt: skip
#: Tokens per sequence at which attention runs at half its final rate. Judged.
ATTENTION_HALF = 700
#: The part of the memory's bandwidth that element-wise kernels reach. Judged.
MEMORY_SHARE = 0.82
#: The part of a hidden message's time that still costs time, since it takes multiprocessors and bandwidth. Judged.
OVERLAP_COST = 0.20
#: The part of tensor parallelism's messages that is hidden where matrix multiplications are cut for it. Judged.
TENSOR_HIDDEN = 0.70
#: What zigzag sharding of a causal sequence reaches of an even share. From published measurements of ring attention.
CONTEXT_BALANCE = 0.90
#: The part of a host link's nominal bandwidth that pinned copies reach: 53.6 of 63 GB/s
#: (benchmarks/measured/h100.json).
HOST_SHARE = 0.85
#: The rank of LoRA's adapters where none is given, Megatron-Bridge's default.
LORA_RANK = 32
#: Bytes of a GPU's memory that no term explains: context, libraries, buffers of collectives. Judged.
FIXED_MEMORY = 3 * GB


#: What a layout may need of its program, in the words of messages (`planner.layout.needed`).
FEATURES = (
    "tensor parallelism", "a pipeline", "interleaving", "context parallelism", "ZeRO-2", "ZeRO-3",
    "ZeRO-3 in a pipeline", "recompute_modules", "recompute_layers", "offload_layers", "zero_bubble", "dualpipe",
    "uneven chunks", "ZeRO-1 without a pipeline",
)  # fmt: skip


def all_but(left_out: tuple[str, ...]) -> tuple[str, ...]:
    """The features besides these."""
    return tuple(feature for feature in FEATURES if feature not in left_out)


@dataclass(frozen=True)
class Software:
    """A training program.

    attention: "flash 3" (or cuDNN), "flash 2", or "unfused", which keeps scores in memory. elementwise: factor on the
    bytes that element-wise kernels move. tensor_overlap, data_overlap, gather_overlap: which messages travel behind
    computation: tensor parallelism's, gradients', parameters' before the forward. gradient_bytes: bytes of a gradient
    on the wire. recomputed: the part of the forward that selective recomputation repeats, besides attention's softmax.
    bucket: bytes of gradients per collective, None for one per layer. copy_bytes: bytes moved per weight and gather, in
    and out of flat buffers. cast_bytes: bytes moved per element to quantize it to FP8. blocking: every kernel launch
    waits. sequence_parallel, zero_stage: defaults of its layouts. features: of `FEATURES`, what its layouts may use.
    expert_overlap: all-to-alls travel behind computation. idle_multiprocessors: the part of the GPU that only
    communicates. eager: kernels are launched one by one from Python. balances_head: the last stage of a pipeline gets
    fewer layers, for the output layer. kept: factor on the bytes that a layer keeps until backward, for kernels that
    are not fused. logits_bytes: bytes per entry of the logits while the loss is computed. moe: "2025", "2026" or
    "latest", the age of what it does in layers with experts; the latest launches whole steps as CUDA graphs, so that it
    does not wait for the host. machines: changes to a machine, by name, for the hardware on which this program's
    published runs were measured: only reading those runs (`rows.read`) applies them. gradient_held, moment_bytes: bytes
    per parameter of the gradient and of each moment of Adam in memory. probabilities_inside: experts multiply by the
    router's probability before their last product, so that what comes back is not kept. gate_bytes: bytes per entry of
    what the activation function keeps. keeps_weights: bf16 weights live between micro-batches; PyTorch's FSDP has only
    the float32 shard, and casts what it gathers. remainders: in bf16 a master weight is the weight and 16 bits more
    (Transformer Engine's `store_param_remainders`). cuts_documents: context parallelism cuts each packed document into
    its parts, not the sequence.
    """

    name: str
    attention: str = "flash 3"
    elementwise: float = 1.0
    tensor_overlap: bool = True
    data_overlap: bool = True
    gather_overlap: bool = True
    gradient_bytes: float = 4
    recomputed: float = 0.0
    bucket: float | None = None
    copy_bytes: float = 0
    cast_bytes: float = 6
    blocking: bool = False
    sequence_parallel: bool = True
    zero_stage: int = 1
    features: tuple[str, ...] = FEATURES
    expert_overlap: bool = False
    idle_multiprocessors: float = 0.0
    eager: bool = False
    balances_head: bool = False
    kept: float = 1.0
    logits_bytes: float = 12
    moe: str = "2026"
    gradient_held: float = 4
    moment_bytes: float = 4
    probabilities_inside: bool = False
    gate_bytes: float = 2
    keeps_weights: bool = True
    remainders: bool = False
    cuts_documents: bool = False
    machines: dict[str, dict[str, object]] = field(default_factory=dict)

    def machine(self, cluster: Cluster) -> Cluster:
        """The cluster as this program's runs had it."""
        changes = self.machines.get(cluster.name, {})
        return replace(cluster, **changes) if changes else cluster  # type: ignore[arg-type]


#: Megatron-LM and Megatron-Bridge; of early 2026 unless a run tells its container. Its all-to-alls travel behind
#: computation since late 2025 (megatron/core/transformer/moe/README.md, "Arrival of features"). Of each packed document
#: a rank gets two parts (megatron/core/utils.py, `get_thd_batch_on_this_cp_rank`, core_v0.19.0).
MEGATRON = Software(
    "megatron", expert_overlap=True, cuts_documents=True,
    # Its optimizer has ZeRO-1; it shards more with Megatron-FSDP alone, of which published recipes use stage 3.
    features=all_but(("ZeRO-2", "ZeRO-3 in a pipeline", "zero_bubble", "dualpipe", "uneven chunks")),
)  # fmt: skip
MEGATRON_2025 = replace(MEGATRON, name="megatron 2025", moe="2025", expert_overlap=False)
#: NeMo's containers of 2024: FlashAttention 2 from cuDNN, and casts to FP8 that no other kernel takes along.
MEGATRON_2024 = replace(
    MEGATRON_2025, name="megatron 2024", attention="flash 2", elementwise=1.3, cast_bytes=10,
    gradient_bytes=2, gradient_held=2,  # grad_sync_dtype: bf16 in its recipes (gpu-recipes @2e1fd5e)
)  # fmt: skip
#: Programs like Megatron of 2023: `--tp-comm-overlap` came in October of that year (Megatron-LM 116ffddc, core 0.4).
MEGATRON_2023 = replace(MEGATRON_2024, name="megatron 2023", tensor_overlap=False)
MEGATRON_LATEST = replace(MEGATRON, name="megatron 26.06", moe="latest")
#: Megatron-Bridge's performance recipes: gradients accumulated and reduced in bf16 (`grad_reduce_in_fp32 = False` in
#: each), Transformer Engine's fused loss (`cross_entropy_fusion_impl = "te"`), probabilities inside the experts.
BRIDGE = replace(
    MEGATRON, name="megatron bridge", gradient_bytes=2, gradient_held=2, logits_bytes=4, probabilities_inside=True,
    remainders=True,  # use_precision_aware_optimizer with bf16 (utils/overrides.py, v0.4.2)
)  # fmt: skip
BRIDGE_LATEST = replace(BRIDGE, name="bridge 26.06", moe="latest")
BRIDGE_2025 = replace(BRIDGE, name="bridge 2025", moe="2025", expert_overlap=False)
#: Meta's of Llama 3, whose report names no overlap of tensor parallelism, and cuts the sequence (section 3.3.2).
META = replace(
    MEGATRON, name="meta", tensor_overlap=False, cuts_documents=False, features=all_but(("dualpipe", "uneven chunks"))
)
#: Meta's H100s of its published runs, in PyTorch's programs: 96 GB of HBM2e with 2.4 TB/s, and 500 W instead of 700
#: (torchtitan benchmarks/llama3_h100_202412_torchtitan.md @31a17bf). Power grows about with the cube of the clock.
_CLOCK = (500 / 700) ** (1 / 3)
H100_500_WATTS: dict[str, object] = {
    "name": "H100, 500 W, 96 GB", "like": "H100",
    "flops": {"bf16": 989e12 * _CLOCK, "fp8": 1979e12 * _CLOCK}, "memory_bandwidth": 2400 * GB, "memory": 96 * GB,
}  # fmt: skip
TORCHTITAN = Software(
    "torchtitan", "flash 2", 1.1, tensor_overlap=False, recomputed=0.5, copy_bytes=18, cast_bytes=10, zero_stage=3,
    keeps_weights=False, machines={"H100": H100_500_WATTS},
    # It recomputes layers or their cheap operations; its FSDP reduces in every micro-batch, unless there is a pipeline.
    features=all_but(("dualpipe", "offload_layers", "recompute_modules", "ZeRO-1 without a pipeline")),
)  # fmt: skip
#: PyTorch's FSDP without other axes.
ONLY_FSDP = ("ZeRO-2", "ZeRO-3", "recompute_modules", "recompute_layers")
TORCHTITAN_ASYNC = replace(TORCHTITAN, name="torchtitan async", tensor_overlap=True)
TORCHTITAN_EAGER = replace(TORCHTITAN, name="torchtitan eager", elementwise=2.2)
FSDP = replace(TORCHTITAN_EAGER, name="fsdp", machines={}, features=ONLY_FSDP)
#: IBM's nodes of its published runs (fms-fsdp README.md, table: 400 Gb/s for A100s, 800 Gb/s for H100s), and its bf16
#: gradients (policies/mixed_precision.py).
FMS_FSDP = replace(
    FSDP, name="fms-fsdp", gradient_bytes=2, machines={
        "A100": {"name": "A100, 400 Gb/s per node", "like": "A100", "ports": 4, "port": 12.5 * GB},
        "H100": {"name": "H100, 800 Gb/s per node", "like": "H100", "port": 12.5 * GB},
    },
)  # fmt: skip
OLMO = replace(TORCHTITAN, name="olmo", machines={}, features=(*TORCHTITAN.features, "recompute_modules"))
#: Its runs were on AWS, whose network delivers out of order.
NANOTRON = Software(
    "nanotron", "flash 2", 2.2, tensor_overlap=False, gather_overlap=False, bucket=25e6,
    eager=True, balances_head=True, kept=1.4, logits_bytes=8,
    machines={"H100": {"name": "H100, AWS", "like": "H100", "network_step": EFA_STEP, "network_level": EFA_TREE}},
    gradient_held=6,  # DDP's bf16 buckets beside the float32 buffer (optim/gradient_accumulator.py @069c21c)
    features=(
        "tensor parallelism", "a pipeline", "context parallelism", "recompute_layers", "ZeRO-1 without a pipeline",
    ),
)  # fmt: skip
LLM_FOUNDRY = Software(
    "llm-foundry", "flash 1", 1.8, tensor_overlap=False, gradient_bytes=2, sequence_parallel=False, zero_stage=3,
    keeps_weights=False, features=ONLY_FSDP,
)  # fmt: skip
#: BLOOM's: Megatron-DeepSpeed of 2022, on nodes with four ports of 100 Gb/s for eight GPUs.
DEEPSPEED = Software(
    "deepspeed", "unfused", 1.3, tensor_overlap=False, data_overlap=False, gather_overlap=False, gradient_bytes=2,
    blocking=True, sequence_parallel=False,
    machines={"A100": {"name": "A100, 4 x 100 Gb/s", "like": "A100", "ports": 4, "port": 12.5 * GB}},
    features=("tensor parallelism", "a pipeline", "recompute_layers", "ZeRO-1 without a pipeline"),
)  # fmt: skip
#: Megatron-LM before FlashAttention and overlap (2021, 2022).
MEGATRON_2022 = Software(
    "megatron 2022", "unfused", tensor_overlap=False, data_overlap=False, gather_overlap=False, gradient_bytes=2,
    sequence_parallel=False, zero_stage=0,
    features=("tensor parallelism", "a pipeline", "interleaving", "recompute_layers"),
)  # fmt: skip
#: DeepSeek's own, for V3: messages behind computation, on 20 of 132 multiprocessors (report, section 3.2.2).
HAI_LLM = Software(
    "hai-llm", expert_overlap=True, idle_multiprocessors=20 / 132, moment_bytes=2, logits_bytes=4,
    probabilities_inside=True, gate_bytes=1,  # report, section 3.3.3
)  # fmt: skip

SOFTWARE = {
    s.name: s
    for s in (
        MEGATRON, MEGATRON_2023, MEGATRON_2024, MEGATRON_2025, MEGATRON_LATEST, META,
        TORCHTITAN, TORCHTITAN_ASYNC, TORCHTITAN_EAGER, FSDP, FMS_FSDP, OLMO, NANOTRON, LLM_FOUNDRY, DEEPSPEED,
        MEGATRON_2022, HAI_LLM, BRIDGE, BRIDGE_LATEST, BRIDGE_2025,
    )
}  # fmt: skip
#: Name → which program and release it stands for; containers are NVIDIA's of NeMo, whose runs are the published ones.
ABOUT = {
    "megatron": "Megatron-LM of early 2026, with float32 gradients",
    "megatron 2022": "Megatron-LM of 2021 and 2022, before FlashAttention and overlap",
    "megatron 2023": "Megatron-LM before --tp-comm-overlap (October 2023)",
    "megatron 2024": "NeMo's containers of 2024, with FlashAttention 2 and bf16 gradients",
    "megatron 2025": "Megatron-LM of 2025, which hides no all-to-alls of experts",
    "megatron 26.06": "Megatron-LM, as in containers from 26.06 on: faster experts",
    "megatron bridge": "Megatron-Bridge's performance recipes, containers 26.02 to 26.04.01, with bf16 gradients",
    "bridge 2025": "the same, containers 25.09 and 25.11",
    "bridge 26.06": "the same, containers 26.06 and 26.08",
    "meta": "Meta's own program, which trained Llama 3 (2024)",
    "torchtitan": "torchtitan with torch.compile, runs of 2024-12 to 2025-06",
    "torchtitan async": "the same with asynchronous tensor parallelism",
    "torchtitan eager": "torchtitan without torch.compile",
    "fsdp": "PyTorch's FSDP and nothing else, not compiled",
    "fms-fsdp": "IBM's fms-fsdp, with bf16 gradients",
    "olmo": "AI2's OLMo-core, as for OLMo 2 and 3",
    "nanotron": "Hugging Face's nanotron, as in the Ultra-Scale Playbook",
    "llm-foundry": "MosaicML's llm-foundry, with FlashAttention 1",
    "deepspeed": "Megatron-DeepSpeed of 2022, which trained BLOOM",
    "hai-llm": "DeepSeek's own program, which trained V3",
}
