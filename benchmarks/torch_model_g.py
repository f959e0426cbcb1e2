"""Model G in PyTorch: GPT-2's shape, 6 layers, width 384, 6 heads, sequence 128, vocabulary 8192 tied, batch 4, f32."""

import torch
import torch.nn as nn
import torch.nn.functional as F

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
        self.mask = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)  # no buffer: gloo does not know bool

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight
        for block in self.h:
            x = block(x, self.mask)
        return F.linear(self.ln_f(x), self.wte.weight)


class Step:
    """A training step: forward, mean cross-entropy, backward, clip by global norm, AdamW."""

    def __init__(self, model, sharded_optimizer=None):
        """With the class of an optimizer whose state the ranks share: ZeroRedundancyOptimizer."""
        self.model = model
        decay = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0}]
        if sharded_optimizer is None:
            self.optimizer = torch.optim.AdamW(groups, lr=1e-3)
        else:
            self.optimizer = sharded_optimizer(groups, optimizer_class=torch.optim.AdamW, lr=1e-3)
        self.ids = torch.randint(VOCABULARY, (BATCH, SEQ + 1))

    def __call__(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(self.ids[:, :-1]).flatten(0, 1), self.ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
