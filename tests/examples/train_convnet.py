# SPDX-License-Identifier: Apache-2.0
"""The program examples/train_convnet, judged from outside: python3 train_convnet.py PROGRAM. Images are made up here, so
that no data set is needed; with SMP_TEST_FULL=1 a whole epoch of Fashion-MNIST has to give 85 % if it is installed."""

import gzip
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
FOLDER = tempfile.mkdtemp()
bad = 0
# What the environment at hand, not the program, has earned.
SLOW_BLAS = re.compile("^smp: OpenBLAS runs its kernels for .*\n", re.MULTILINE)


def check(ok, *what):
    """Counts and prints what is not as it should be."""
    global bad
    if not ok:
        bad += 1
        print("FAILED:", *what, flush=True)


def write_images(folder, name, count):
    """Images of class c: a bright stripe in rows 2c + 3 and 2c + 4, in columns that differ."""
    os.makedirs(folder, exist_ok=True)
    images, labels = bytearray(), bytearray()
    for i in range(count):
        label = i % 10
        labels.append(label)
        for row in range(28):
            for column in range(28):
                images.append(255 if row // 2 == label + 2 and (column + i) % 28 > 6 else (i * 31 + row * column) % 40)
    with gzip.open(os.path.join(folder, name + "-images-idx3-ubyte.gz"), "wb") as f:
        f.write(struct.pack(">IIII", 2051, count, 28, 28) + images)
    with gzip.open(os.path.join(folder, name + "-labels-idx1-ubyte.gz"), "wb") as f:
        f.write(struct.pack(">II", 2049, count) + labels)


def run(data, timeout=250, **options):
    """Exit code, stdout and stderr."""
    words = [word for name, value in options.items() for word in ("--" + name, str(value))]
    done = subprocess.run([PROGRAM, "--data", data, *words], capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, SLOW_BLAS.sub("", done.stderr)


def fails(sentence, data, **options):
    """Exit code 2, nothing on stdout, this sentence on stderr."""
    code, out, err = run(data, **options)
    check(code == 2 and out == "" and err == sentence + "\n", options, "expected", sentence, "found", code, out, err)


def logged(data, **options):
    """The lines of the log, and the last line of stdout."""
    log = os.path.join(FOLDER, "log")
    code, out, err = run(data, log=log, **options)
    check(code == 0 and err == "", options, "ends with", code, err)
    with open(log, encoding="utf-8") as file:
        return file.read(), json.loads(out.splitlines()[-1])


tiny = os.path.join(FOLDER, "tiny")
write_images(tiny, "train", 20)
write_images(tiny, "t10k", 10)

# It learns, and says what it has done.
log, summary = logged(tiny, batch=10, epochs=4, lr=1)
steps = [json.loads(line) for line in log.splitlines()]
check([(s["epoch"], s["step"]) for s in steps] == [(e, s) for e in (1, 2, 3, 4) for s in (1, 2)], "steps", log)
check(steps[-1]["loss"] < 0.8 * steps[0]["loss"], "does not learn", log)
check(0 <= summary["accuracy"] <= 1 and summary["epochs"] == 4 and summary["dtype"] == "f32", "summary", summary)

# Activations that are computed again have the same bits, with dropout too; fewer of them are kept.
common = {"batch": 4, "limit": 8, "dtype": "f64", "lr": 0.5, "dropout": 0.25}
plain, plain_summary = logged(tiny, **common)
again, again_summary = logged(tiny, checkpointing="each", **common)
check(plain == again and plain_summary["test_loss"] == again_summary["test_loss"], "checkpointing", plain, again)
check(again_summary["peak_activation_bytes"] < plain_summary["peak_activation_bytes"], plain_summary, again_summary)
other, _ = logged(tiny, **dict(common, seed=2))
check(plain != other, "the seed changes nothing")

# Two ranks, each with half of every batch, do what one does. What is dropped depends on the image, not on the rank.
shared, shared_summary = logged(tiny, ranks=2, **common)
for one, two in zip(plain.splitlines(), shared.splitlines()):
    a, b = json.loads(one), json.loads(two)
    check(abs(a["loss"] - b["loss"]) < 1e-9 and abs(a["grad_norm"] - b["grad_norm"]) < 1e-9, "ranks", one, two)
check(abs(shared_summary["test_loss"] - plain_summary["test_loss"]) < 1e-9, "ranks", plain_summary, shared_summary)

# Parts of the first linear layer, which has 98.4 % of the parameters, do what the whole does, with copies and without;
# it is computed again, too.
for options in ({"ranks": 2, "tp": 2}, {"ranks": 4, "tp": 4}, {"ranks": 4, "tp": 2, "checkpointing": "each"}):
    cut, cut_summary = logged(tiny, **common, **options)
    for one, two in zip(plain.splitlines(), cut.splitlines()):
        a, b = json.loads(one), json.loads(two)
        check(abs(a["loss"] / b["loss"] - 1) < 1e-12 and abs(a["grad_norm"] / b["grad_norm"] - 1) < 1e-12, options, one, two)
    check(abs(cut_summary["test_loss"] / plain_summary["test_loss"] - 1) < 1e-12, options, plain_summary, cut_summary)
    check(cut_summary["accuracy"] == plain_summary["accuracy"], options, plain_summary, cut_summary)
    whole, part = plain_summary["parameter_bytes"], cut_summary["parameter_bytes"]
    check(part == whole - 9216 * 128 * 8 // options["tp"] * (options["tp"] - 1), options, whole, part)

# Layers on several ranks, with micro-batches, do what one rank does; with images of one's own and parts of a layer, too.
for options in ({"ranks": 2, "pp": 2, "microbatches": 4}, {"ranks": 4, "pp": 2, "tp": 2, "microbatches": 2, "checkpointing": "each"},
                {"ranks": 3, "pp": 3, "microbatches": 3}):
    spread, spread_summary = logged(tiny, **common, **options)
    for one, two in zip(plain.splitlines(), spread.splitlines()):
        a, b = json.loads(one), json.loads(two)
        check(abs(a["loss"] / b["loss"] - 1) < 1e-12 and abs(a["grad_norm"] / b["grad_norm"] - 1) < 1e-12, options, one, two)
    check(abs(spread_summary["test_loss"] / plain_summary["test_loss"] - 1) < 1e-12, options, plain_summary, spread_summary)
    check(spread_summary["parameter_bytes"] < plain_summary["parameter_bytes"], options, plain_summary, spread_summary)

# What cannot work.
nowhere = os.path.join(FOLDER, "nowhere")
fails(f"smp: '{nowhere}/train-images-idx3-ubyte.gz' cannot be opened: No such file or directory", nowhere)
fails("smp: --batch 5 cannot be divided among --ranks 2", tiny, batch=5, ranks=2)
fails("smp: --ranks 4 cannot be divided among --tp 3", tiny, batch=4, ranks=4, tp=3)
fails("smp: --batch 64 is more than the 20 images", tiny)
broken = os.path.join(FOLDER, "broken")
write_images(broken, "train", 3)
write_images(broken, "t10k", 3)
with gzip.open(os.path.join(broken, "t10k-images-idx3-ubyte.gz"), "wb") as f:
    f.write(struct.pack(">IIII", 2051, 3, 28, 28) + bytes(100))
fails(f"smp: '{broken}/t10k-images-idx3-ubyte.gz' is damaged or too short", broken)
with gzip.open(os.path.join(broken, "train-images-idx3-ubyte.gz"), "wb") as f:
    f.write(struct.pack(">IIII", 2051, 3, 32, 32))
fails(f"smp: '{broken}/train-images-idx3-ubyte.gz' is no file of 28 x 28 images, or of their labels", broken)
code, out, err = run(tiny, dtype="f16")
check(code == 2 and err.startswith("--dtype:"), "dtype", code, out, err)

fashion = "/usr/share/datasets/fashion-mnist"
if os.environ.get("SMP_TEST_FULL") == "1" and os.path.isdir(fashion):
    code, out, err = run(fashion, timeout=3000)
    check(code == 0 and json.loads(out.splitlines()[-1])["accuracy"] >= 0.85, "Fashion-MNIST", code, out, err)

print("all as expected" if bad == 0 else f"{bad} checks failed")
sys.exit(bad > 0)
