# SPDX-License-Identifier: Apache-2.0
"""The program examples/train_gpt, judged from outside. What it writes is read with Python's json and struct, and the held-out
loss is computed again from the saved weights, in plain Python.
    python3 train_gpt.py PROGRAM              ranks as threads
    python3 train_gpt.py PROGRAM MPIEXEC...   the words that start PROGRAM on two ranks of an MPI
"""

import hashlib
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

PROGRAM, LAUNCHER = sys.argv[1], sys.argv[2:]
os.environ["OMP_NUM_THREADS"] = "1"
FOLDER = tempfile.mkdtemp()
TEXT = os.path.join(FOLDER, "text")
WORDS = "the cat sat on the mat and saw a bird; what a day, said the bird, and flew over the sea. "
with open(TEXT, "w", encoding="utf-8") as f:
    f.write((WORDS + "Übrigens: naïve cats é. \n") * 6)
LAYERS, HEADS, WIDTH, SEQ = 2, 2, 8, 8
TINY = {
    "--data": TEXT, "--tokens": "chars", "--layers": LAYERS, "--heads": HEADS, "--hidden": WIDTH, "--seq": SEQ,
    "--batch": 8, "--steps": 4, "--dtype": "f64", "--lr": 0.01, "--weight-decay": 0.1, "--clip": 1,
}
bad = 0
# What the environment at hand, not the program, has earned.
SLOW_BLAS = re.compile("^smp: OpenBLAS runs its kernels for .*\n", re.MULTILINE)


def check(ok, *what):
    """Counts and prints what is not as it should be."""
    global bad
    if not ok:
        bad += 1
        print("FAILED:", *what, flush=True)


def run(launcher=(), **changes):
    """Exit code, stdout and stderr of a tiny run with some options changed; None drops one."""
    options = dict(TINY, **{"--" + name.replace("_", "-"): value for name, value in changes.items()})
    arguments = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
    done = subprocess.run([*launcher, PROGRAM, *arguments], capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=120)
    return done.returncode, done.stdout, SLOW_BLAS.sub("", done.stderr)


def agrees_on_ranks(result, alone, ranks, transport):
    """Losses, traffic and degrees of a run on several ranks, against those of one rank."""
    steps, summary, _ = result
    check(close(losses(steps), losses(alone[0])), ranks, "ranks:", losses(steps), losses(alone[0]))
    check(close([summary["heldout_loss"]], [alone[1]["heldout_loss"]]), ranks, "ranks:", summary, alone[1])
    check((summary["transport"], summary["world"]) == (transport, ranks), ranks, "ranks:", summary)
    check(summary["degrees"] == {"pp": 1, "tp": 1, "rdp": ranks, "sdp": 1}, ranks, "ranks:", summary)
    gradient = alone[1]["peak_bytes"]["gradient"]
    check(summary["bytes"]["DP"]["all_reduce"]["gradient"] == 2 * (ranks - 1) * gradient, ranks, "ranks:", summary, gradient)
    check(len(summary["peak_bytes_per_rank"]["gradient"]) == ranks, ranks, "ranks:", summary)


def fails(sentence, **changes):
    """Exit code 2, nothing on stdout, this sentence on stderr."""
    code, out, err = run(**changes)
    check(code == 2 and out == "" and err == sentence + "\n", changes, "expected", sentence, "found", code, out, err)


def logged(**changes):
    """Steps and summary of a run."""
    log = os.path.join(FOLDER, "log")
    code, out, err = run(log=log, **changes)
    check(code == 0 and err == "", changes, "ends with", code, err)
    with open(log, encoding="utf-8") as file:
        *steps, last = [json.loads(line) for line in file]
    return steps, last["summary"], out


def foretold(summary, vocabulary, **options):
    """Bytes of a step on four ranks and of what each keeps, against those that the program `plan` foretells."""
    tp, ranks, sums = options.get("tp", 1), 4, {}
    names = {"tp": "--tp", "sdp": "--sdp", "persistence": "--persistence", "max_live": "--max-live", "microbatches": "--microbatches",
             "reduce_bucket": "--reduce-bucket", "tp_layout": "--tp-layout", "checkpointing": "--checkpointing"}
    job = {names[name]: value for name, value in options.items() if name in names}
    job |= {"--layers": LAYERS, "--hidden": WIDTH, "--heads": HEADS, "--seq": SEQ, "--vocab": vocabulary, "--world": ranks,
            "--dtype-bytes": 8, "--samples": TINY["--batch"] * tp // ranks // options.get("microbatches", 1)}
    for rank in range(ranks):
        arguments = [str(word) for pair in {**job, "--rank": rank}.items() for word in pair]
        lines = subprocess.run([os.path.join(os.path.dirname(PROGRAM), "plan"), *arguments], capture_output=True, text=True, check=True)
        for kind, *words in (line.split("\t") for line in lines.stdout.splitlines()):
            if kind == "memory" and words[0] in ("parameter", "gradient", "optimizer"):
                check(summary["peak_bytes_per_rank"][words[0]][rank] == int(words[1]), options, rank, words, summary)
            elif kind == "sent":
                call = ("DP" if words[0] == "RDP" and tp == 1 else words[0], words[1])
                sums[call] = sums.get(call, 0) + int(words[3])
    found = {(group, operation): sum(n for purpose, n in by.items() if purpose in ("gradient", "parameter") or group == "TP" and purpose != "norm")
             for group, operations in summary["bytes"].items() for operation, by in operations.items()}
    if tp > 1 and not options.get("prescaled"):  # ranks exchange their samples, too
        sums, found = ({call: n for call, n in all.items() if call[0] != "TP"} for all in (sums, found))
    check({c: n for c, n in sums.items() if n} == {c: n for c, n in found.items() if n}, options, "foretold", sums, "found", found)


def losses(steps):
    return [step["loss"] for step in steps]


def norms(steps):
    return [step["grad_norm"] for step in steps]


def close(a, b, tolerance=1e-12):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * abs(y) for x, y in zip(a, b))


def read_safetensors(name):
    """{name: (shape, list)}, names in order, data."""
    with open(name, "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    header.pop("__metadata__", None)
    tensors, end = {}, 0
    for path, t in header.items():
        begin, end_of_this = t["data_offsets"]
        letter, size = {"F32": ("f", 4), "F64": ("d", 8)}[t["dtype"]]
        check(begin == end and end_of_this - begin == size * math.prod(t["shape"]), path, "is not where it should be")
        end = end_of_this
        tensors[path] = (t["shape"], struct.unpack(f"<{math.prod(t['shape'])}{letter}", data[begin:end]))
    check(end == len(data), "the file is longer than its header says")
    return tensors, data


# ---- GPT-2's forward pass, once more, as its definition says


def rows(tensor):
    (count, width), values = tensor
    return [values[i * width:(i + 1) * width] for i in range(count)]


def linear(x, weight, bias=None):
    return [sum(a * b for a, b in zip(x, row)) + (bias[i] if bias else 0) for i, row in enumerate(weight)]


def layer_norm(x, w, b):
    mean = sum(x) / len(x)
    scale = 1 / math.sqrt(sum((v - mean)**2 for v in x) / len(x) + 1e-5)
    return [(v - mean) * scale * w[i] + b[i] for i, v in enumerate(x)]


def gelu(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]


def add(x, y):
    return [[a + b for a, b in zip(u, v)] for u, v in zip(x, y)]


def attention(x, p, path):
    qkv = [linear(v, rows(p[path + "c_attn.weight"]), p[path + "c_attn.bias"][1]) for v in x]
    out = [[] for _ in x]
    size = WIDTH // HEADS
    for head in range(HEADS):
        q, k, v = ([row[part * WIDTH + head * size:part * WIDTH + (head + 1) * size] for row in qkv] for part in range(3))
        for i, query in enumerate(q):
            weights = softmax([sum(a * b for a, b in zip(query, key)) / math.sqrt(size) for key in k[:i + 1]])
            out[i] += [sum(w * value[d] for w, value in zip(weights, v)) for d in range(size)]
    return [linear(v, rows(p[path + "c_proj.weight"]), p[path + "c_proj.bias"][1]) for v in out]


def mlp(x, p, path):
    inner = [[gelu(u) for u in linear(v, rows(p[path + "c_fc.weight"]), p[path + "c_fc.bias"][1])] for v in x]
    return [linear(v, rows(p[path + "c_proj.weight"]), p[path + "c_proj.bias"][1]) for v in inner]


def window_loss(p, tokens, targets):
    """The sum of -log p(target) over one window."""
    norm = lambda x, path: [layer_norm(v, p[path + ".weight"][1], p[path + ".bias"][1]) for v in x]
    wte, wpe = rows(p["wte.weight"]), rows(p["wpe.weight"])
    x = [[a + b for a, b in zip(wte[t], wpe[i])] for i, t in enumerate(tokens)]
    for layer in range(LAYERS):
        h = f"h.{layer}."
        x = add(x, attention(norm(x, h + "ln_1"), p, h + "attn."))
        x = add(x, mlp(norm(x, h + "ln_2"), p, h + "mlp."))
    return sum(-math.log(softmax(linear(v, wte))[t]) for v, t in zip(norm(x, "ln_f"), targets))


def heldout_loss(p, heldout):
    with open(TEXT, encoding="utf-8") as file:
        text = file.read()
    number = {c: i for i, c in enumerate(sorted(set(text)))}
    tokens = [number[c] for c in text]
    tokens = tokens[int(len(tokens) * (1 - heldout)):]
    total = sum(window_loss(p, tokens[i:min(i + SEQ, len(tokens) - 1)], tokens[i + 1:i + SEQ + 1])
                for i in range(0, len(tokens) - 1, SEQ))
    return total / (len(tokens) - 1)


# ---- under MPI: the numbers of threads, to the bit
if LAUNCHER:
    threads = logged(ranks=2, dropout=0.3)
    mpi = logged(launcher=LAUNCHER, dropout=0.3)
    check(losses(mpi[0]) == losses(threads[0]), "threads and MPI differ", losses(mpi[0]), losses(threads[0]))
    check(mpi[1]["weights_sha256"] == threads[1]["weights_sha256"], "weights under MPI", mpi[1], threads[1])
    agrees_on_ranks(mpi, logged(dropout=0.3), 2, "mpi")
    threads = logged(ranks=2, dropout=0.3, tp=2, tp_layout="memory")
    mpi = logged(launcher=LAUNCHER, dropout=0.3, tp=2, tp_layout="memory")
    check(mpi[1]["weights_sha256"] == threads[1]["weights_sha256"], "weights of cut layers under MPI", mpi[1], threads[1])
    threads = logged(ranks=2, dropout=0.3, shard_optimizer=1)
    mpi = logged(launcher=LAUNCHER, dropout=0.3, shard_optimizer=1)
    check(mpi[1]["weights_sha256"] == threads[1]["weights_sha256"], "weights of a sharded optimizer under MPI", mpi[1], threads[1])
    code, out, err = run(launcher=LAUNCHER, ranks=3)
    check(code != 0 and err.count("smp: --ranks is 3, but mpirun has started 2; it knows without --ranks\n") == 1, code, err)
    sys.exit(1 if bad else 0)

# ---- what goes wrong is one sentence
fails("--data is required", data=None)
fails("smp: cannot read '/nowhere/text', or it is empty", data="/nowhere/text")
fails("smp: cannot write '/nowhere/log'", log="/nowhere/log")
fails("smp: cannot write '/nowhere/weights'", save="/nowhere/weights")
fails("smp: --batch is 8, but must be a multiple of ranks x --microbatches x --accumulation = 1 x 3 x 1 = 3", microbatches=3)
fails("smp: --batch is 8, but must be a multiple of ranks x --microbatches x --accumulation = 1 x 4 x 4 = 16",
      microbatches=4, accumulation=4)
fails("smp: --hidden is 8, but must be a multiple of --heads = 3", heads=3)
fails("smp: --layers is 0, but must be at least 1", layers=0)
fails("smp: --steps is -1, but must be at least 0", steps=-1)
fails("smp: --dropout: expected a number from 0 to below 1, found 1.000000", dropout=1)
fails("smp: --lr: expected a finite number from 0, found nan", lr="nan")
fails("smp: --heldout leaves 1 of the 684 tokens, but a loss needs at least 2", heldout=0.001)
fails("smp: '" + TEXT + "' leaves 615 tokens to learn, but --seq 615 needs at least 616", seq=615)
for option, word in ("tokens", "words"), ("dtype", "f16"), ("optimizer", "lion"), ("lr_schedule", "step"), ("checkpointing", "all"):
    code, out, err = run(**{option: word})
    check(code == 2 and out == "" and err.count("\n") == 1 and word in err, option, word, code, out, err)
fails('--batch: "4x" is not a decimal 32-bit integer', batch="4x")
check("--weight-decay" in subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout, "--help")

# ---- the log, the file, and what they say of each other
weights = os.path.join(FOLDER, "weights")
steps, summary, out = logged(save=weights, eval_every=2)
check([list(s)[:4] for s in steps] == [["step", "loss", "grad_norm", "tokens_per_s"]] * 4, "keys", steps)
check([s["step"] for s in steps] == [1, 2, 3, 4], "steps", steps)
check(["heldout_loss" in s for s in steps] == [False, True, False, True], "--eval-every 2", steps)
check(all(s["grad_norm"] > 0 and s["tokens_per_s"] > 0 for s in steps), "numbers", steps)
check(list(summary) == ["transport", "world", "degrees", "bytes", "calls", "peak_bytes", "peak_bytes_per_rank",
                        "heldout_loss", "weights_sha256", "wall_s"], "keys of the summary", list(summary))
check((summary["transport"], summary["world"]) == ("threads", 1), summary)
check(summary["degrees"] == {"pp": 1, "tp": 1, "rdp": 1, "sdp": 1}, summary["degrees"])
check(sum(n for group in summary["bytes"].values() for by in group.values() for n in by.values()) == 0, summary["bytes"])
parameters, data = read_safetensors(weights)
check(list(parameters) == sorted(parameters), "order of the parameters", list(parameters))
check(hashlib.sha256(data).hexdigest() == summary["weights_sha256"], "weights_sha256")
blocks = [f"h.{i}.{part}.{kind}" for i in range(LAYERS) for kind in ("weight", "bias")
          for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")]
check(set(parameters) == {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias", *blocks}, "names", list(parameters))
check(summary["peak_bytes"]["parameter"] == len(data), "bytes of parameters", summary)
check(summary["peak_bytes"]["gradient"] == len(data), "bytes of gradients", summary)
check(summary["peak_bytes"]["optimizer"] == 2 * len(data), "bytes of AdamW's moments", summary)
check(summary["peak_bytes_per_rank"] == {use: [n] for use, n in summary["peak_bytes"].items()}, "bytes of ranks", summary)
expected = heldout_loss(parameters, 0.1)
check(close([summary["heldout_loss"], steps[-1]["heldout_loss"]], [expected] * 2), "held-out loss", summary, expected)
check(len(out) > 100, "sample", out)

# ---- the same again, and another seed
again_steps, again, _ = logged(eval_every=2)
check(losses(again_steps) == losses(steps) and again["weights_sha256"] == summary["weights_sha256"], "two runs differ")
check(logged(seed=2)[1]["weights_sha256"] != summary["weights_sha256"], "two seeds do not differ")

# ---- the samples of a step, its masks and its mean do not depend on how it is cut; nor do bits on recomputation
plain_steps, plain, _ = logged(dropout=0.3)
check(any(norm > TINY["--clip"] for norm in norms(plain_steps)), "nothing is clipped", norms(plain_steps))
for cut in {"microbatches": 4}, {"accumulation": 4}, {"microbatches": 2, "accumulation": 2}, {"microbatches": 8}:
    cut_steps, _, _ = logged(dropout=0.3, **cut)
    check(close(losses(cut_steps), losses(plain_steps)), cut, losses(cut_steps), losses(plain_steps))
recomputed_steps, recomputed, _ = logged(dropout=0.3, checkpointing="each")
check(losses(recomputed_steps) == losses(plain_steps), "checkpointing", losses(recomputed_steps), losses(plain_steps))
check(recomputed["weights_sha256"] == plain["weights_sha256"], "weights after checkpointing")
check(recomputed["peak_bytes"]["activation"] < plain["peak_bytes"]["activation"], "activations", recomputed, plain)

# ---- nor on the ranks that share them
fails("smp: --batch is 8, but must be a multiple of ranks x --microbatches x --accumulation = 3 x 1 x 1 = 3", ranks=3)
for ranks in 2, 4:
    agrees_on_ranks(logged(dropout=0.3, ranks=ranks), (plain_steps, plain), ranks, "threads")
agrees_on_ranks(logged(ranks=4, heldout=0.02), logged(heldout=0.02), 4, "threads")  # two windows for four ranks
bucketed_steps, bucketed, _ = logged(dropout=0.3, ranks=2, microbatches=2, bucket_mib=1 / 1024)
agrees_on_ranks((bucketed_steps, bucketed, ""), (plain_steps, plain), 2, "threads")
check(bucketed["calls"]["DP"]["all_reduce"]["gradient"] > 8, "buckets", bucketed["calls"])
check(bucketed["calls"]["DP"]["all_reduce"]["loss"] == 2, "losses", bucketed["calls"])

# ---- nor on who keeps the state of the optimizer; the sum of squares is another one, so bits are those of a run that clips nothing
size = plain["peak_bytes"]["gradient"]
for ranks, tp in (2, 1), (3, 1), (4, 2):
    options = {"dropout": 0.3, "batch": 12, "ranks": ranks, "tp": tp, "clip": 0, "bucket_mib": 1 / 1024}
    whole_steps, whole, _ = logged(**options)
    cut_steps, cut, _ = logged(**options, shard_optimizer=1)
    check([s["loss"] for s in cut_steps] == [s["loss"] for s in whole_steps], options, losses(cut_steps), losses(whole_steps))
    check(close(losses(cut_steps), losses(whole_steps)), options, losses(cut_steps), losses(whole_steps))
    check(cut["weights_sha256"] == whole["weights_sha256"], options, cut, whole)
    check(sum(cut["peak_bytes_per_rank"]["optimizer"]) == 2 * size, options, cut["peak_bytes_per_rank"], size)
    if tp == 1:
        traffic = cut["bytes"]["DP"]
        check(traffic["reduce_scatter"] == {"gradient": (ranks - 1) * size}, options, traffic)
        check(traffic["all_gather"] == {"parameter": (ranks - 1) * size}, options, traffic)
        check("gradient" not in traffic["all_reduce"], options, traffic)
clipped_steps, _, _ = logged(dropout=0.3, ranks=2, shard_optimizer=1)
check(close(losses(clipped_steps), losses(plain_steps)), "clipped", losses(clipped_steps), losses(plain_steps))

# ---- nor on the ranks that hold the model's state together
logged(save=weights)
VOCABULARY = read_safetensors(weights)[0]["wte.weight"][0][0]
fails("smp: --sdp is 8, but must divide the ranks that hold the same part of each layer: ranks / --tp = 8 / 2 = 4", ranks=8, tp=2, sdp=8)
fails("smp: --shard-optimizer is 1, but --sdp = 2 cuts the optimizer's state already; one of them is enough",
      ranks=2, sdp=2, shard_optimizer=1)
fails("smp: --reduce-bucket is 0, but must be at least 1", reduce_bucket=0)
for options in ({"sdp": 2}, {"sdp": 2, "persistence": 0}, {"sdp": 4, "persistence": 0, "max_live": 0, "reduce_bucket": 1},
                {"sdp": 4, "persistence": 20, "microbatches": 2, "ranks_per_node": 2},
                {"sdp": 4, "persistence": 0, "ranks_per_node": 2, "hierarchical": 0, "checkpointing": "each"},
                {"sdp": 2, "persistence": 0, "tp": 2, "tp_layout": "memory"}, {"sdp": 2, "persistence": 0, "tp": 2, "prescaled": 1}):
    steps, summary, _ = logged(dropout=0.3, ranks=4, **options)
    check(close(losses(steps), losses(plain_steps)), options, losses(steps), losses(plain_steps))
    check(close([summary["heldout_loss"]], [plain["heldout_loss"]]), options, summary, plain)
    check(close(norms(steps), norms(plain_steps)), options, norms(steps), norms(plain_steps))
    if "ranks_per_node" not in options:  # else gathers have two levels
        foretold(summary, VOCABULARY, **options)
    tp, sdp, kept = options.get("tp", 1), options["sdp"], options.get("persistence", 1)
    check(summary["degrees"] == {"pp": 1, "tp": tp, "rdp": 4 // tp, "sdp": sdp}, options, summary)
    if kept == 0 and tp == 1:
        check(summary["peak_bytes"]["optimizer"] <= 2 * size / sdp + 16 * 64, options, summary["peak_bytes"], size)
        check(summary["bytes"]["SHARD"]["reduce_scatter"]["gradient"] > 0, options, summary["bytes"])

# ---- nor on the ranks that each layer is cut over, whether they are given the same samples or each its own
fails("smp: --tp is 2, but must divide the ranks = 3", ranks=3, tp=2)
fails("smp: --seq is 8, but must be a multiple of --tp = 3 with --tp-layout memory", ranks=3, tp=3, tp_layout="memory", batch=9)
fails("smp: an attention of 2 heads cannot be cut over 4 ranks; tensor-parallel degrees that can: 1, 2", ranks=4, tp=4)
logged(dropout=0.3, save=weights)
whole, _ = read_safetensors(weights)
NORMS = 2 * LAYERS * 2 * WIDTH + 2 * WIDTH  # numbers in weights and biases of norms
UNCUT = NORMS + LAYERS * 2 * WIDTH + SEQ * WIDTH  # and biases that are added once, and places
ALL = sum(math.prod(shape) for shape, _ in whole.values())
for tp, ranks, layout, prescaled in (2, 2, "speed", 0), (2, 2, "memory", 0), (2, 4, "speed", 1), (2, 4, "memory", 1):
    what = (tp, ranks, layout, prescaled)
    steps, summary, _ = logged(dropout=0.3, ranks=ranks, tp=tp, tp_layout=layout, prescaled=prescaled, save=weights)
    check(close(losses(steps), losses(plain_steps)), what, losses(steps), losses(plain_steps))
    check(close([summary["heldout_loss"]], [plain["heldout_loss"]]), what, summary, plain)
    check(summary["degrees"] == {"pp": 1, "tp": tp, "rdp": ranks // tp, "sdp": 1}, what, summary)
    for path, (shape, values) in read_safetensors(weights)[0].items():
        most = max(abs(v) for v in whole[path][1])
        check(shape == whole[path][0] and all(abs(a - b) <= 1e-12 * most + 1e-13 for a, b in zip(values, whole[path][1])), what, path)
    # A rank has its part of what is cut, and of a vocabulary that does not divide at most the larger part.
    share = (ALL - UNCUT + WIDTH) // tp + UNCUT
    check(summary["peak_bytes"]["gradient"] <= 8 * share, what, summary["peak_bytes"], 8 * share)
    check(summary["peak_bytes"]["optimizer"] == 2 * summary["peak_bytes"]["gradient"], what, summary["peak_bytes"])
    # Each layer and direction: two all-reduces, or two all-gathers and two reduce-scatters of the same bytes in all. The
    # embedding adds one more forward, the head one more backward; in the memory layout each is one half of the pair.
    hidden = 8 * TINY["--batch"] * SEQ * WIDTH  # bytes of hidden states, of all groups together
    traffic = summary["bytes"]["TP"]
    if layout == "speed":
        check(traffic["all_reduce"]["activation"] == 2 * (tp - 1) * (4 * LAYERS + 2) * hidden, what, traffic, hidden)
    else:
        # Gathered: what the layers and the head take, the same again in backward, since only a slice is kept, and the
        # gradients of what was scattered.
        ids = 0 if prescaled else 2 * 4 * TINY["--batch"] * SEQ
        check(traffic["all_gather"]["activation"] == (tp - 1) * ((6 * LAYERS + 3) * hidden + ids), what, traffic, hidden)
        check(traffic["reduce_scatter"]["activation"] == (tp - 1) * (4 * LAYERS + 2) * hidden, what, traffic, hidden)

# ---- nor on the ranks that the layers are spread over, in whatever order, with or without the rest
fails("smp: --pp is 2, but --pp x --tp must divide the ranks = 3", ranks=3, pp=2, batch=9)
fails("smp: --partition is 1,2, but --layers is 2: the stages together must have all blocks", ranks=2, pp=2, partition="1,2")
fails("smp: --partition is 1,0,1, but there are 2 stages: --pp x the chunks of a rank", ranks=2, pp=2, partition="1,0,1")
fails("smp: looped on 2 ranks needs a multiple of 2 micro-batches; found 3, the nearest legal numbers are 2 and 4", ranks=2, pp=2,
      schedule="looped", chunks=2, microbatches=3, batch=9)
for options in (
    {"ranks": 2, "pp": 2, "microbatches": 4},
    {"ranks": 2, "pp": 2, "microbatches": 2, "accumulation": 2, "partition": "0,2", "active": 1},
    {"ranks": 3, "pp": 3, "microbatches": 4, "schedule": "zero_bubble", "checkpointing": "each"},
    {"ranks": 2, "pp": 2, "microbatches": 4, "partition": "2,0", "checkpointing": "contiguous"},
    {"ranks": 2, "pp": 2, "microbatches": 4, "schedule": "zero_bubble_v", "checkpointing": "group_2"},
    {"ranks": 2, "pp": 2, "microbatches": 4, "schedule": "looped", "chunks": 2},
    {"ranks": 4, "pp": 2, "microbatches": 2, "schedule": "simple", "shard_optimizer": 1},
    {"ranks": 4, "pp": 2, "tp": 2, "tp_layout": "memory", "prescaled": 1, "microbatches": 4, "schedule": "looped", "chunks": 2},
    {"ranks": 8, "pp": 2, "tp": 2, "prescaled": 1, "microbatches": 4, "sdp": 2, "persistence": 0, "schedule": "zero_bubble"},
    {"ranks": 8, "pp": 2, "tp": 2, "prescaled": 1, "microbatches": 4, "shard_optimizer": 1, "checkpointing": "each"},
):
    steps, summary, _ = logged(dropout=0.3, save=weights, **options)
    check(close(losses(steps), losses(plain_steps)), options, losses(steps), losses(plain_steps))
    check(close([summary["heldout_loss"]], [plain["heldout_loss"]]), options, summary, plain)
    check(close(norms(steps), norms(plain_steps)), options, norms(steps), norms(plain_steps))
    check(summary["degrees"]["pp"] == options["pp"], options, summary)
    for path, (shape, values) in read_safetensors(weights)[0].items():
        most = max(abs(v) for v in whole[path][1])
        check(shape == whole[path][0] and all(abs(a - b) <= 1e-12 * most + 1e-13 for a, b in zip(values, whole[path][1])), options, path)
    check(set(read_safetensors(weights)[0]) == set(whole), options, "names")
    # Ways between ranks: with two stages on each, along the ranks twice, or there and back.
    ways = {"looped": 2 * options["pp"] - 1, "zero_bubble_v": 2 * options["pp"] - 2}.get(options.get("schedule"), options["pp"] - 1)
    between = 2 * ways * 8 * TINY["--batch"] * SEQ * WIDTH  # of which each tensor-parallel rank sends a slice
    check(summary["bytes"]["PP"]["send"]["activation"] == between, options, summary["bytes"]["PP"], between)

# ---- what all ranks did when: all actions of the schedule, one after the other, and gradients of weights behind a later forward
trace = os.path.join(FOLDER, "trace.json")
logged(ranks=4, pp=4, layers=4, microbatches=8, schedule="zero_bubble", trace=trace)
with open(trace, encoding="utf-8") as f:
    events = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
with open(trace + ".svg", encoding="utf-8") as f:
    check(f.read().rstrip().endswith("</svg>"), "no SVG")
behind = False
for rank in range(4):
    actions = [e for e in events if e["pid"] == rank and e["cat"] in ("forward", "backward", "backward_input", "backward_params")]
    names = [e["name"] for e in actions]
    check(sorted(names) == sorted(kind + str(m) for kind in "FIW" for m in range(8)), rank, names)
    check(all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in zip(actions, actions[1:])), rank, actions)
    behind = behind or any(names.index("W%d" % m) > names.index("F%d" % (m + 1)) for m in range(7))
    check(any(e["pid"] == rank and e["name"] == "exchange" and e["cat"] == "activation" for e in events), rank, "messages")
check(behind, "no gradient of weights has waited")

# ---- what README.md says can be run: with a text and a model that are smaller, and no other options
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../README.md"), encoding="utf-8") as f:
    said = re.findall(r"`train_gpt\s+(--[^`]+)`", f.read())
check(len(said) >= 3, "commands of README.md", said)
for words in said:
    small = [str(word) for name in ("--data", "--layers", "--heads", "--hidden", "--seq") for word in (name, TINY[name])]
    done = subprocess.run([PROGRAM, *small, "--steps", "1", *words.split()], cwd=FOLDER, capture_output=True, timeout=120)
    check(done.returncode == 0, words, done.stderr)

# ---- the other types, optimizers and schedules
steps, summary, _ = logged(dtype="f32", save=weights, tokens="bytes", heldout=0, eval_every=1)
parameters, data = read_safetensors(weights)
check(summary["heldout_loss"] is None and not any("heldout_loss" in s for s in steps), "--heldout 0", summary)
check(parameters["wte.weight"][0] == [256, WIDTH] and len(parameters["wte.weight"][1]) == 256 * WIDTH, "bytes")
check(summary["peak_bytes"]["parameter"] == len(data) and hashlib.sha256(data).hexdigest() == summary["weights_sha256"], "f32")
check(close(losses(logged(dtype="f32")[0]), losses(logged()[0]), 1e-4), "f32 is far from f64")
seen = set()
for change in ({"optimizer": "adam"}, {"optimizer": "sgd"}, {"optimizer": "adadelta", "lr": 1},
               {"lr_schedule": "linear"}, {"lr_schedule": "cosine"}, {"lr_schedule": "cosine", "warmup": 2},
               {"lr_schedule": "cosine", "min_lr": 0.005}):
    steps, summary, _ = logged(**change)
    check(all(math.isfinite(x) for x in losses(steps)), change, losses(steps))
    seen.add(summary["weights_sha256"])
check(len(seen) == 7, "some optimizers or schedules do the same")
check(logged(steps=0)[1]["weights_sha256"] != "", "no steps")
check(losses(logged(steps=60, batch=16)[0])[-1] < 2.6, "nothing is learnt")

sys.exit(1 if bad else 0)
