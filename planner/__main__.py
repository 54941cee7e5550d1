"""The best layout of a training run, or what a given one takes: `planner/README.md` has examples."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from machines.cluster import CLUSTERS, GB, MAY_OWN, OWN, Cluster, find, own
from machines.model import MODELS, Model, parameters
from planner import accuracy, export, huggingface
from planner.arithmetic import Step
from planner.layout import Layout, LayoutError, check
from planner.prediction import Prediction, predict
from planner.search import FIXED, Plan, plan, warnings
from planner.software import ABOUT, LORA_RANK, PRECISIONS, SOFTWARE

#: The part of a run's time that counts, where none is given, and where it was published.
GOODPUT = 0.9
GOODPUT_SOURCE = "Llama 3 405B, 54 days on up to 16,384 H100s: more than 90 % (arXiv 2407.21783, section 3.3.4)"
DAY = 24 * 3600


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"planner: {message}\n")


def whole(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def above_0(text: str) -> float:
    """A number above 0, such as 15e12."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def parser() -> Parser:
    """The options."""
    found = Parser("python -m planner", description=__doc__, allow_abbrev=False)
    add = found.add_argument
    add("model", nargs="?", help='a known model (--list), such as "Llama 3 70B"')
    add("--config", type=Path, help="a Hugging Face configuration (config.json) instead")
    add("--machine", default="H100", help="a known machine, or a TOML file with one's own; H100 by default")
    add("--gpus", type=whole, help="how many; with a whole --layout its own number")
    add("--batch", type=whole, help="sequences per step")
    add("--sequence", type=whole, help="tokens per sequence; by default the model's, 8,192 at most")
    add("--precision", default="bf16", help=f"{', '.join(PRECISIONS)}; bf16 by default")
    add("--software", help="the training program (--list); by default megatron, or the one of --export")
    add("--layout", help="predict this one: dp=64,tp=4,pp=2,recompute_modules=layernorm+mlp")
    add("--fix", help="search only layouts with these values: tp=8,cp=1")
    add("--documents", type=whole, help="tokens per packed document (several per sequence: SFT)")
    add(
        "--lora", type=whole, nargs="?", const=LORA_RANK, metavar="RANK", help=f"train adapters; {LORA_RANK} by default"
    )
    add("--tokens", type=above_0, help="of the whole run: for days, GPU hours and cost")
    add("--price", type=above_0, help="of a GPU hour")
    add("--currency", default="USD", help="of the price")
    add("--goodput", type=above_0, help=f"the part of the time that counts; {GOODPUT} by default")
    add("--export", choices=export.PROGRAMS, help="the layout as settings of this program, and nothing else")
    add("--json", action="store_true", help="all numbers as JSON")
    add("--list", action="store_true", help="known models, machines, programs and architectures")
    return found


def known_lists() -> list[str]:
    """What `--list` prints."""
    models = [f"  {name}: {parameters(model).total / 1e9:,.1f} billion parameters" for name, model in MODELS.items()]
    machines = [f"  {name}: {', '.join(machine.flops)}, {machine.source}" for name, machine in CLUSTERS.items()]
    programs = [f"  {name}: {program}" for name, (program, _) in export.PROGRAMS.items()]
    kinds = f"  {', '.join(sorted([*huggingface.DENSE, *huggingface.EXPERTS]))}"
    software = [f"  {name}: {ABOUT[name]}" for name in SOFTWARE]
    lists = {"models": models, "machines": machines, "software": software, "--export": programs}
    return [line for title, lines in {**lists, "--config (model_type)": [kinds]}.items() for line in (title, *lines)]


def read(path: Path, load: Any, what: str) -> Any:
    """A file's content; ValueError if there is none."""
    try:
        content = load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a file with {what}") from None
    except ValueError as error:
        raise ValueError(f"{path} has no {what}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} has no {what}: it is no table of names and values")
    return content


def model_of(options: argparse.Namespace) -> Model:
    """The model that the options name, with their sequences and documents. ValueError."""
    if (options.config is None) == (options.model is None):
        raise ValueError("name one model, known or by --config; --list shows those that are known")
    if options.config:
        given = read(options.config, json.loads, "configuration in JSON")
        model = huggingface.model_of(given, sequence=options.sequence)
    else:
        plain = {"".join(filter(str.isalnum, name.lower())): model for name, model in MODELS.items()}
        key = "".join(filter(str.isalnum, options.model.lower()))
        if key not in plain:
            raise ValueError(f"no model {options.model!r}; there are {', '.join(MODELS)}, and --config for others")
        model = plain[key]
    return replace(model, sequence=options.sequence or model.sequence, document=options.documents)


def machine_of(name: str) -> Cluster:
    """A known machine, or one's own in a TOML file. ValueError."""
    if not name.endswith(".toml"):
        return find(name)
    given, known = read(Path(name), tomllib.loads, "machine in TOML"), [*OWN, *MAY_OWN]
    for field in given:
        if field not in known and (near := difflib.get_close_matches(field, known, 1)):
            raise ValueError(f"{name}: {field} is no field; did you mean {near[0]}?")
    try:
        return own({"name": Path(name).stem, **given})
    except (AttributeError, TypeError):
        raise ValueError(f"{name}: tflops must be a table, such as tflops = {{ bf16 = 989 }}") from None


def layout_of(text: str, gpus: int | None) -> Layout:
    """The layout of dp=64,tp=4,…; dp may be left out where the number of GPUs tells it. ValueError."""
    defaults = {field.name: field.default for field in fields(Layout) if field.default is not MISSING}
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in defaults:
            raise ValueError(f"--layout has {name!r}; it may have {', '.join(defaults)}")
        default = defaults[name]
        if isinstance(default, tuple):
            given[name] = tuple(value.split("+"))
        elif isinstance(default, bool):
            given[name] = value.lower() != "false"
        elif isinstance(default, str):
            given[name] = value
        elif value.isdecimal():
            given[name] = int(value)
        else:
            raise ValueError(f"--layout has {part.strip()!r}; {name} must be a whole number")
    rest = Layout(**{**given, "dp": 1}).gpus
    if "dp" not in given and gpus and rest and gpus % rest == 0:
        given["dp"] = gpus // rest
    return Layout(**given)


def fixed_of(text: str) -> dict[str, int]:
    """The fields of tp=8,cp=1 and their values. ValueError."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    for name, _, value in pairs:
        if name not in FIXED or not value.isdecimal():
            raise ValueError(f"--fix has '{name}={value}'; it may have whole numbers for {', '.join(FIXED)}")
    return {name: int(value) for name, _, value in pairs}


def as_text(layout: Layout) -> str:
    """What `layout_of` reads: the fields that differ from a layout's defaults."""
    changed = {f.name: getattr(layout, f.name) for f in fields(Layout) if getattr(layout, f.name) != f.default}
    parts = {name: "+".join(value) if isinstance(value, tuple) else value for name, value in changed.items()}
    return ",".join(f"{name}={value}" for name, value in parts.items())


def answer(options: argparse.Namespace) -> dict[str, Any]:
    """All that the command says, as numbers and texts. ValueError, in one line."""
    model, machine = model_of(options), machine_of(options.machine)
    wanted = options.software or (export.PROGRAMS[options.export][1].name if options.export else "megatron")
    if wanted not in SOFTWARE:
        raise ValueError(f"no software {wanted!r}; there are {', '.join(SOFTWARE)}")
    trained, rank = "lora" if options.lora else "all", options.lora or LORA_RANK
    if options.export and (refused := export.refusal(options.export, trained)):
        raise ValueError(refused)
    if options.batch is None or (options.gpus is None and options.layout is None):
        raise ValueError(f"--{'batch' if options.batch is None else 'gpus'} is missing")
    software = SOFTWARE[wanted]
    found: Plan | None = None
    if options.layout and options.fix:
        raise ValueError("--layout predicts one layout, and --fix searches; give one of them")
    if options.layout:
        layout = layout_of(options.layout, options.gpus)
        check(model, machine, layout, options.batch, options.gpus, options.precision, software)
        best = predict(model, machine, layout, options.batch, options.precision, software, False, trained, rank)
    else:
        fixed = fixed_of(options.fix) if options.fix else None
        given = (model, machine, options.gpus, options.batch, options.precision, software, trained)
        found = plan(*given, lora_rank=rank, fixed=fixed)
        best = found.best
    near = accuracy.margin(best, options.precision, software, trained)
    step = Step(model, machine, best.layout, software, options.precision, trained=trained, lora_rank=rank)
    enough = best.seconds * (1 + near.error)
    alternatives = found.alternatives() if found else []
    within = [other.layout for other in alternatives if other.seconds <= enough]
    said = {
        "model": model.name, "parameters": parameters(model).total, "machine": machine.name,
        "gpus": best.layout.gpus, "batch": options.batch, "sequence": model.sequence, "document": model.document,
        "precision": options.precision, "software": software.name, "trained": trained,
        "lora_rank": rank if options.lora else None, "layout": asdict(best.layout), "layout_text": as_text(best.layout),
        "layout_words": str(best.layout), "seconds": best.seconds,
        "tokens_per_gpu_per_second": best.tokens_per_gpu_per_second, "mfu": best.mfu(),
        "margin": {**asdict(near), "words": near.words}, "time": dict(best.time), "memory": dict(best.memory),
        "memory_per_gpu": machine.memory, "fits": best.nbytes <= machine.memory, "tight": bool(found and found.tight),
        "warnings": warnings(model, machine, software, [best.layout, *within]), "within_margin": len(within),
        "others": others(found, alternatives) if found else [], "rejected": rejected(found) if found else None,
    }  # fmt: skip
    if options.tokens:
        said["run"] = run(best, options)
    elif options.price or options.goodput:
        raise ValueError("--price and --goodput need --tokens, the tokens of the whole run")
    if options.export:
        head, *rest = export.lines(options.export, step, options.batch, best)
        done = "searched" if found else "computed"
        own = f"# {done} with {software.name}'s own formats and rules, since --software names no other"
        said["export"] = [head, *([] if options.software else [own]), *rest]
    return said


def others(found: Plan, alternatives: list[Prediction]) -> list[dict[str, Any]]:
    """The next layouts, and why each loses."""
    return [
        {"layout_words": str(other.layout), "layout_text": as_text(other.layout), "seconds": other.seconds,
         "why": found.why_not(other)}
        for other in alternatives
    ]  # fmt: skip


def rejected(found: Plan) -> dict[str, Any] | None:
    """How many layouts do not fit, and the one that needs least memory."""
    if not found.rejected:
        return None
    layout, needs = found.rejected[0]
    return {"layouts": len(found.rejected), "room": found.room, "smallest": str(layout), "needs": needs}


def run(best: Prediction, options: argparse.Namespace) -> dict[str, Any]:
    """Days, GPU hours and cost of the whole run. ValueError."""
    goodput = options.goodput or GOODPUT
    if goodput > 1:
        raise ValueError(f"--goodput is {goodput:g}; it is a part of the time, at most 1")
    seconds = options.tokens / (best.tokens_per_gpu_per_second * best.layout.gpus) / goodput
    hours = seconds / 3600 * best.layout.gpus
    return {
        "tokens": options.tokens, "steps": options.tokens / (best.batch * best.model.sequence), "days": seconds / DAY,
        "gpu_hours": hours, "goodput": goodput, "goodput_source": None if options.goodput else GOODPUT_SOURCE,
        "cost": hours * options.price if options.price else None, "currency": options.currency,
    }  # fmt: skip


def table(said: dict[str, Any]) -> list[str]:
    """The answer as lines to read."""
    held, near = sum(said["memory"].values()), said["margin"]
    lora = f", LoRA of rank {said['lora_rank']}" if said["lora_rank"] else ""
    packed = f" (documents of {said['document']:,})" if said["document"] else ""
    mfu = f", MFU {said['mfu']:.1%} of bf16"
    tight = ", tight" if said["tight"] else "" if said["fits"] else ": DOES NOT FIT"
    lines = [
        f"{said['model']} ({said['parameters'] / 1e9:,.1f} billion) on {said['gpus']:,} x {said['machine']}, "
        f"{said['precision']}, {said['software']}{lora}",
        f"{said['batch']:,} sequences of {said['sequence']:,} tokens{packed} per step", "",
        f"layout   {said['layout_words']}",
        f"         --layout {said['layout_text'] or 'dp=1'}",
        f"step     {said['seconds']:.3g} s ± {near['error']:.1%}, {near['words']}",
        f"speed    {said['tokens_per_gpu_per_second']:,.0f} tokens/s per GPU{'' if lora else mfu}",
        f"memory   {held / GB:.0f} of {said['memory_per_gpu'] / GB:.0f} GB{tight}",
    ]  # fmt: skip
    lines += [f"note     {line}" for line in said["warnings"]]
    if whole_run := said.get("run"):
        cost = f", {whole_run['cost']:,.0f} {whole_run['currency']}" if whole_run["cost"] else ""
        source = f" ({whole_run['goodput_source']})" if whole_run["goodput_source"] else ""
        lines += [
            f"run      {whole_run['tokens'] / 1e9:,.6g} billion tokens, {whole_run['steps']:,.0f} steps: "
            f"{whole_run['days']:,.1f} days, {whole_run['gpu_hours']:,.0f} GPU hours{cost}",
            f"         at a goodput of {whole_run['goodput']:g}{source}",
        ]
    lines += ["", f"{'a step':20} {'s':>7} {'share':>6}   {'a GPU holds':12} {'GB':>6}"]
    for time, memory in zip_longest(largest_first(said["time"]), largest_first(said["memory"])):
        left = f"{time[0]:20} {time[1]:7.3g} {time[1] / said['seconds']:6.1%}" if time else " " * 35
        lines.append(f"{left}   {f'{memory[0]:12} {memory[1] / GB:6.1f}' if memory else ''}".rstrip())
    if said["others"]:
        close = said["within_margin"]
        lines += ["", f"others{f', {close} of them within ±: measure these, too, before you choose' if close else ''}"]
    for other in said["others"]:
        lines += [f"{other['seconds']:7.3g} s  {other['layout_words']}", f"           {other['why']}"]
    if rejected := said["rejected"]:
        lines.append(f"{rejected['layouts']:,} more do not fit {rejected['room'] / GB:.0f} GB; "
                     f"{rejected['smallest']} needs {rejected['needs'] / GB:.0f}")  # fmt: skip
    return lines


def largest_first(terms: dict[str, float]) -> list[tuple[str, float]]:
    """The terms and their values."""
    return sorted(terms.items(), key=lambda term: -term[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 for what cannot be answered, with one line that says why."""
    options = parser().parse_args(arguments)
    if options.list:
        print("\n".join(known_lists()))
        return 0
    try:
        said = answer(options)
    except (LayoutError, ValueError) as error:
        print(f"planner: {error}", file=sys.stderr)
        return 2
    print(json.dumps(said, indent=1) if options.json else "\n".join(said.get("export") or table(said)))
    return 0


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
