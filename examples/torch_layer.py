"""A PyTorch encoder with attention of linear cost, compiled and trained: is the rarer byte an "a"?

    python3 examples/torch_layer.py [steps]
"""
import sys

import torch
from torch import nn

import htransformer

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = htransformer.HAttention(width, heads, batch_first=True, block=16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))[0]
        return x + self.mlp(self.norms[1](x))


def batch(size=16, length=512):
    """Bytes "a" and "b" with one of them rarer, and which."""
    share = torch.rand(size, 1) * 0.6 + 0.2
    x = (torch.rand(size, length) < share).long()
    return x.to(DEVICE), (2 * x.sum(1) < length).long().to(DEVICE)


torch.manual_seed(0)
embed, head = nn.Embedding(2, 32), nn.Linear(32, 2)
model = nn.Sequential(embed, Layer(32, 4), Layer(32, 4)).to(DEVICE)
head.to(DEVICE)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
run = torch.compile(model, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
for step in range(1, STEPS + 1):
    x, y = batch()
    loss = nn.functional.cross_entropy(head(run(x).mean(1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == STEPS:
        print("step %d, loss %.3f" % (step, loss.item()))
