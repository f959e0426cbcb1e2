#!/usr/bin/python3
"""Times one training step of model G on two ranks here and in PyTorch's DistributedDataParallel over gloo, in turn, one
core a rank and batch 4 a rank, and prints the ratio; and how many more samples a second two ranks of ours have than one.
With --zero PyTorch's optimizer is ZeroRedundancyOptimizer, ours Sharded over both ranks, nothing persistent, and our own
data parallelism is timed beside it.

    benchmarks/against_torch_ddp.py build/release/benchmarks/model_g [--zero] [--rounds 15] [--coretype SkylakeX]

Needs Debian's python3-torch and two idle cores.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("program", nargs="?")
parser.add_argument("--rounds", type=int, default=15)
# OpenBLAS 0.3.21 does not know newer processors and falls back to a kernel 4 times too slow: name one.
parser.add_argument("--coretype", default="SkylakeX")
parser.add_argument("--zero", action="store_true")
parser.add_argument("--rank", type=int, help="be a rank of PyTorch's")
options = parser.parse_args()
RANKS = 2


def torch_rank(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from torch_model_g import Gpt, Step

    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    optimizer = None
    if options.zero:
        from torch.distributed.optim import ZeroRedundancyOptimizer as optimizer
    step = Step(DistributedDataParallel(Gpt()), optimizer)
    for _ in sys.stdin:
        step()
        print("done", flush=True)


class Side:
    """Programs that do a step for each line they read."""

    def __init__(self, commands, cores):
        self.programs = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda c=core: os.sched_setaffinity(0, c),
            )
            for command, core in zip(commands, cores)
        ]

    def step(self):
        begin = time.perf_counter()
        for p in self.programs:
            p.stdin.write("step\n")
            p.stdin.flush()
        for p in self.programs:
            if not p.stdout.readline():
                sys.exit(f"{p.args[0]} ended")
        return 1e3 * (time.perf_counter() - begin)


if options.rank is not None:
    torch_rank(options.rank)
    sys.exit()
if options.program is None:
    parser.error("which model_g?")
os.environ.setdefault("OPENBLAS_CORETYPE", options.coretype)
for variable in "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS":
    os.environ[variable] = "1"
os.environ["MASTER_ADDR"] = "127.0.0.1"
os.environ["MASTER_PORT"] = "29517"
cores = sorted(os.sched_getaffinity(0))[:RANKS]
if len(cores) < RANKS:
    sys.exit(f"needs {RANKS} cores")
zero = ["--zero"] if options.zero else []
theirs = Side([[sys.executable, __file__, "--rank", str(r), *zero] for r in range(RANKS)], [{c} for c in cores])
ours = Side([[options.program, "--serve", str(RANKS), "sharded" if options.zero else "data_parallel"]], [set(cores)])
if options.zero:
    other = Side([[options.program, "--serve", str(RANKS), "data_parallel"]], [set(cores)])
else:
    other = Side([[options.program, "--serve", "1"]], [{cores[0]}])
sides = theirs, ours, other
for _ in range(3):
    for side in sides:
        side.step()
rounds = [[side.step() for side in sides] for _ in range(options.rounds)]
torch_ms, smp_ms, other_ms = (statistics.median(times) for times in zip(*rounds))
name = "ZeroRedundancyOptimizer" if options.zero else "DistributedDataParallel"
print(f"2 ranks: {torch_ms:.1f} ms a step with {name} over gloo, {smp_ms:.1f} ms with smp")
print(f"torch / smp = {statistics.median(t / s for t, s, _ in rounds):.2f} (median of {options.rounds} rounds)")
if options.zero:
    print(f"data parallel: {other_ms:.1f} ms; sharded takes {statistics.median(s / o for _, s, o in rounds):.2f} of it")
else:
    more = statistics.median(2 * o / s for _, s, o in rounds)
    print(f"1 rank: {other_ms:.1f} ms; 2 ranks have {more:.2f} times the samples a second")
