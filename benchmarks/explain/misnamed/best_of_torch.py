"""Expert iteration: a small transformer learns from the best of the sequences that it generates."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
LENGTH, TOKENS = 48, 20


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, 64), nn.Embedding(LENGTH, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, TOKENS)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.token(tokens) + self.place(torch.arange(length))
        return self.head(self.layers(x, mask=mask, is_causal=True))


@torch.inference_mode()
def generate(model, count):
    tokens = torch.zeros(count, 1, dtype=torch.long)
    while tokens.shape[1] < LENGTH:
        probabilities = F.softmax(model(tokens)[:, -1], dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
    return tokens


torch.manual_seed(args.seed)
model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
iteration, start = 0, time.time()
while time.time() - start < args.seconds:
    with phase("acting"):
        tokens = generate(model, 32)
    with phase("learning"):
        rewards = (tokens.diff(dim=1) == 1).float().mean(dim=1)
        best = tokens[rewards.topk(8).indices].clone()
        loss = F.cross_entropy(model(best[:, :-1]).flatten(0, 1), best[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    iteration += 1
    print(f"iteration {iteration}: reward {rewards.mean():.3f}, loss {loss.item():.3f}", flush=True)
