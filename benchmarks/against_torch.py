#!/usr/bin/python3
"""Times one training step of model G here and in PyTorch, in turn, on one core, and prints the ratio.

    benchmarks/against_torch.py build/release/benchmarks/model_g [--rounds 15] [--coretype SkylakeX]

Model G: GPT-2's shape, 6 layers, width 384, 6 heads, sequence 128, vocabulary 8192 tied, batch 4, f32, AdamW. Needs
Debian's python3-torch. Both sides run the same step (forward, mean cross-entropy, backward, clip by global norm, AdamW) on
one core; `model_g --serve` does one for each line it reads and answers with its milliseconds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--rounds", type=int, default=15)
# OpenBLAS 0.3.21 does not know newer processors and falls back to a kernel 4 times too slow: name one.
parser.add_argument("--coretype", default="SkylakeX")
options = parser.parse_args()
os.environ.setdefault("OPENBLAS_CORETYPE", options.coretype)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch  # noqa: E402  (after the environment it reads)

from torch_model_g import Gpt, Step  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
torch_once = Step(Gpt())


def torch_step():
    begin = time.perf_counter()
    torch_once()
    return 1e3 * (time.perf_counter() - begin)


ours = subprocess.Popen([options.program, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def our_step():
    ours.stdin.write("step\n")
    ours.stdin.flush()
    answer = ours.stdout.readline()
    if not answer:
        sys.exit(f"{options.program} ended")
    return float(answer)


for _ in range(3):
    torch_step(), our_step()
rounds = [(torch_step(), our_step()) for _ in range(options.rounds)]
ours.stdin.close()
theirs, mine = (statistics.median(side) for side in zip(*rounds))
ratio = statistics.median(a / b for a, b in rounds)
print(f"torch {torch.__version__}, OPENBLAS_CORETYPE={os.environ['OPENBLAS_CORETYPE']}: {theirs:.1f} ms a step")
print(f"smp: {mine:.1f} ms a step; torch / smp = {ratio:.2f} (median of {options.rounds} pairs)")
