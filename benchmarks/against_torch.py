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
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
LAYERS, WIDTH, HEADS, SEQ, VOCABULARY, BATCH = 6, 384, 6, 128, 8192, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.c_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = (
            part.view(b, t, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(WIDTH, dim=2)
        )
        scores = (q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5).masked_fill(mask, float("-inf"))
        x = x + self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.register_buffer("mask", torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1))

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight
        for block in self.h:
            x = block(x, self.mask)
        return F.linear(self.ln_f(x), self.wte.weight)


model = Gpt()
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0}], lr=1e-3)
ids = torch.randint(VOCABULARY, (BATCH, SEQ + 1))


def torch_step():
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
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
