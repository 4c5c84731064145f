"""Training on several devices: sharded over them with the losses of one, and on one while another judges.

What is learned from is the same whoever trains: a script writes kernels whose facts were measured on an H200, so losses
and norms of gradients must agree but for the order of sums. For a run a step ahead a small model is taught some
kernels by heart, writes them on the first device, and has them judged on the second.
"""

import asyncio
import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.multi_device.found import LOSS_TOLERANCE, Line, largest_difference
from benchmarks.multi_device.host_load import HostLoad
from benchmarks.multi_device.site import Order, Site
from drkernel_q.curriculum.conversation import walks
from drkernel_q.curriculum.exercise import Quality
from drkernel_q.curriculum.generate import generate
from drkernel_q.prompt import load_templates
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from drkernel_q.store.export import write_lines

FACTS = Path(__file__).parents[1] / "facts" / "h200.parquet"
#: NVLink multicast stays off in everything that might use it.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
#: What must be the same with one rank and with several.
COMPARED = ("policy/loss", "policy/grad_norm", "policy/entropy")
STEPS = 3
#: Answers a problem in the script: what it writes depends on the problem and on the turn's seed alone.
SCRIPT = """
import json
from pathlib import Path

from drkernel_q.prompt import fenced

KNOWN = json.loads((Path(__file__).parent / "kernels.json").read_text())


def answer(prompt, sampling):
    asked = prompt.messages[-1].content
    kernels = next(kernels for problem, kernels in KNOWN if problem.strip() in asked)
    return fenced(kernels[sampling.seed % len(kernels)], "python")
"""
#: Qualities that the small model is taught: kernels that earn differently.
TAUGHT = (Quality.FUSED, Quality.NAIVE, Quality.WRONG)


async def training(order: Order, folder: Path) -> None:
    """Train over all devices, and on one while another judges."""
    if len(order.devices) < 2:
        order.tell("training", "end", {"not_run": "there is one device only"})
        return
    site = Site(folder / "site")
    await sharded(order, site)
    await ahead(order, site)


async def sharded(order: Order, site: Site) -> None:
    """Take the same steps on one device and, in parts, on all of them."""
    folder = site.folder / "sharded"
    kinds = await asyncio.to_thread(write_script, folder)
    imported = await site.drkq("db", "import", str(FACTS), timeout_s=60.0)
    if imported.returncode:
        order.tell("training", "sharded", {"not_run": last_words(imported)})
        return
    found: dict[int, list[Line]] = {}
    for ranks in (1, len(order.devices)):
        began = time.monotonic()
        environment = NO_MULTICAST | visible(order.devices[:ranks])
        environment |= {"DRKQ_RECORDED": kinds, "OMP_NUM_THREADS": "1" if order.kind == "cpu" else "4"}
        environment |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{folder}/nccl.%p"}
        arguments = sharded_flags(order, folder, ranks)
        done = await site.drkq(*arguments, timeout_s=order.seconds, ranks=ranks, environment=environment)
        facts: Line = {"ranks": ranks, "seconds": round(time.monotonic() - began, 1)}
        if done.returncode:
            order.tell("training", "sharded", facts | {"not_run": last_words(done)})
            return
        found[ranks] = steps_of(done)
        shown = {
            name: [step.get(name) for step in found[ranks]] for name in (*COMPARED, "policy/tokens", "time/step_s")
        }
        order.tell("training", "steps", facts | shown | {"multicast": multicast(folder)})
    differences = {
        name: largest_difference(*([step[name] for step in steps if name in step] for steps in found.values()))
        for name in COMPARED
    }
    known = [each for each in differences.values() if each is not None]
    holds = max(known) <= LOSS_TOLERANCE if len(known) == len(COMPARED) else None
    bound = f"relative differences of at most {LOSS_TOLERANCE:g}, float32"
    facts = {"ranks": len(order.devices), "differences": differences}
    order.tell("training", "losses of one and of several ranks", facts, holds, bound)


def sharded_flags(order: Order, folder: Path, ranks: int) -> list[str]:
    """Write the command of a run on recorded facts."""
    settings = {
        "seed": 0,
        "judge_device": "recorded",
        "shared_device": "false",
        "sharding": "full",
        "sampler.name": f"scripted:{folder / 'script.py'}",
        "mismatch.enabled": "false",  # a script has no likelihoods of its own
        "laziness.enabled": "false",
        "loss.behave": "bypass",  # or the loss would be that of the advantages alone, whatever the weights are
        "rollout.turns": 1,
        "rollout.group_size": 8,
        "rollout.sampling.max_new_tokens": 2048,
        "model.size": "20m" if order.kind == "cuda" else "tiny",
        "model.vocabulary": 400,
        "tracking.trackers": "[]",
        "checkpoint.every_steps": 100,
    }
    sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    where = ["--problems", str(folder / "problems"), "--out", str(folder / f"ranks{ranks}")]
    return ["train", "--preset", "tiny", "--steps", str(STEPS), *where, *sets, "--json"]


def write_script(folder: Path) -> str:
    """Write two problems and a script of kernels whose facts are known; return the kind of device they are of."""
    (folder / "problems").mkdir(parents=True)
    kernels: dict[str, list[str]] = defaultdict(list)
    kinds = set()
    for row in pq.read_table(FACTS).to_pylist():
        if row["problem_name"].startswith("l1_"):
            kernels[row["problem_source"]].append(row["kernel_source"])
            kinds.add(json.loads(row["document"])["environment"]["device_kind"])
    chosen = sorted(kernels.items())[:2]
    for number, (source, _) in enumerate(chosen):
        (folder / "problems" / f"p{number}.py").write_text(source, encoding="utf-8")
    (folder / "kernels.json").write_text(json.dumps(chosen), encoding="utf-8")
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    (kind,) = kinds
    return str(kind)


async def ahead(order: Order, site: Site) -> None:
    """Train a step ahead on the first device, and have what it writes judged on the second."""
    folder, (first, second) = site.folder / "ahead", order.devices[:2]
    began = time.monotonic()
    lost = await asyncio.to_thread(teach_by_heart, folder, order)
    taught_s, began = time.monotonic() - began, time.monotonic()
    settings = {
        "shared_device": "false",
        "rollout.group_size": 8,
        "problems.per_step": 2,
        "tracking.trackers": "[]",
        "checkpoint.every_steps": 100,
        "protocol.timing_budget_s": order.budget_s,
    }
    sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    where = ["--model", str(folder / "model"), "--problems", str(folder / "problems"), "--out", str(folder / "run")]
    flags = ["--steps", str(STEPS), "--staleness", "1", "--device", second, *sets, "--json"]
    with HostLoad((first, second)) as load:
        done = await site.drkq(
            *("train", "--preset", "demo", *where, *flags),
            timeout_s=order.seconds,
            environment=NO_MULTICAST | visible([first]),
        )
    facts: Line = {"seconds": round(time.monotonic() - began, 1), "taught_s": round(taught_s, 1), "taught_loss": lost}
    facts |= {"trains": {first: load.device(first)}, "judges": {second: load.device(second)}, "host": load.host}
    if done.returncode:
        order.tell("training", "a step ahead", facts | {"not_run": last_words(done)})
        return
    steps, judged = steps_of(done), judged_on("run")
    names = ("staleness/max", "policy/loss", "rate/correct", "time/step_s", "time/generate_s", "time/judge_s")
    facts |= {name: [step.get(name) for step in steps] for name in (*names, "time/update_s", "time/wait_s")}
    facts["judged_on"] = dict(judged)
    holds = set(judged) == {second} and steps[-1].get("staleness/max") == 1.0
    order.tell("training", "a step ahead", facts, holds, "all is judged on the other device, and is one step stale")


def teach_by_heart(folder: Path, order: Order) -> float:
    """Make a small model that writes kernels of a few problems; return the loss at the end."""
    from benchmarks.claims.taught import teach  # torch takes seconds to import
    from policy.model.model import make_model

    few, epochs = (8, 150) if order.kind == "cuda" else (2, 30)
    exercises = [each for each in generate(0, 5 * few, [1]) if each.split == "train"][:few]
    (folder / "problems").mkdir(parents=True)
    for number, exercise in enumerate(exercises):
        (folder / "problems" / f"p{number}.py").write_text(exercise.problem.source, encoding="utf-8")
    talk = folder / "conversations.jsonl"
    templates = load_templates("compact")
    rows = (row for quality in TAUGHT for row in walks(exercises, templates, turns=1, mixture={quality: 1.0}))
    write_lines(rows, talk)
    texts = [json.loads(text)["messages"][-1]["content"] for text in talk.read_text().splitlines()]
    make_model(folder / "new", "0.9m", texts, context_tokens=2048, pieces="lines")
    device = "cpu" if order.kind == "cpu" else order.devices[0]
    teach(folder / "new", talk, folder / "model", epochs=epochs, batch=len(TAUGHT) * few, seed=0, device=device)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return round(float(json.loads(lines[-1])["loss"]), 4)


def judged_on(run: str) -> Counter[str]:
    """Count the evaluations of a run by the device that they were made on."""
    with Store.open(load_settings().store) as store:
        turns = [turn for trajectory in store.trajectories(run) for turn in trajectory.turns]
    return Counter(turn.evaluation.environment.device for turn in turns if turn.evaluation is not None)


def visible(devices: Sequence[str]) -> dict[str, str]:
    """Let a process see these devices alone; workers find theirs by the driver all the same."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(each.partition(":")[2] for each in devices if each.startswith("cuda"))}


def steps_of(done: "subprocess.CompletedProcess[str]") -> list[Line]:
    """Read what `drkq train --json` wrote."""
    return [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]


def last_words(done: "subprocess.CompletedProcess[str]") -> str:
    """Say how a command ended."""
    lines = [text.strip() for text in done.stderr.splitlines() if text.strip()]
    return f"code {done.returncode}: {' | '.join(lines[-3:])[-600:]}"


def multicast(folder: Path) -> list[str]:
    """Return what NCCL has said of NVLink multicast."""
    lines = [text for file in folder.glob("nccl.*") for text in file.read_text(errors="replace").splitlines()]
    return sorted({text.partition("NCCL INFO ")[2][:120] for text in lines if "NVLS" in text})[:5]
