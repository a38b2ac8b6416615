"""A small indexer as sparse attention has it: which cached tokens matter to a query?

For a query with H heads q_h and weights w_h, and the cached key k_t of a token t, the score is
sum_h w_h * relu(q_h . k_t), the lightning indexer of DeepSeek-V3.2. The sizes are small; what counts
is where the scores come from and what is done with the positions.
"""

from __future__ import annotations

from typing import Any

import torch

HEADS, DIM = 8, 64


class Indexer:
    """Projections with random weights, and a cache of keys: [rows, tokens, DIM]."""

    def __init__(self, rows: int, tokens: int, device: str, seed: int) -> None:
        generator = torch.Generator(device=device).manual_seed(seed)

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, generator=generator, device=device)

        self.to_query = normal(DIM, HEADS * DIM) / DIM**0.5
        self.to_weight = normal(DIM, HEADS) / DIM**0.5
        self.keys = normal(rows, tokens, DIM)
        self.generator = generator
        self.rows, self.device = rows, device

    def hidden(self) -> Any:
        """What the model would have at this step: [rows, DIM]."""
        return torch.randn(self.rows, DIM, generator=self.generator, device=self.device)

    def scores(self, hidden: Any, out: Any) -> None:
        """float32 [rows, tokens] into ``out``."""
        query = (hidden @ self.to_query).view(self.rows, HEADS, DIM)
        weight = hidden @ self.to_weight
        logits = torch.relu(query @ self.keys.transpose(1, 2))  # [rows, HEADS, tokens]
        torch.sum(logits * weight[:, :, None], dim=1, out=out)

    def gather(self, indices: Any) -> Any:
        """The chosen keys, [rows, k, DIM]; what attention would go on with."""
        where = indices.clamp(min=0).long()[:, :, None].expand(-1, -1, DIM)
        return self.keys.gather(1, where)


def check_exact(scores: Any, indices: Any, lengths: Any, k: int) -> None:
    """Against torch.topk, aware of ties: the chosen scores are the K highest, as a multiset, from
    different positions; short rows end with -1."""
    tokens = scores.shape[1]
    beyond = torch.arange(tokens, device=scores.device)[None, :] >= lengths[:, None]
    masked = scores.masked_fill(beyond, float("-inf"))
    best = torch.topk(masked, min(k, tokens), dim=1).values
    taken = indices >= 0
    assert torch.equal(taken.sum(1), lengths.clamp(0, k).to(torch.int64)), "wrong number a row"
    found = masked.gather(1, indices.clamp(min=0).long()).masked_fill(~taken, float("-inf"))
    found = found.sort(1, descending=True).values[:, : best.shape[1]]
    assert torch.equal(found, best), "the chosen scores are not the highest"
    filled = indices.where(taken, -1 - torch.arange(k, device=indices.device, dtype=torch.int32))
    ordered = filled.sort(1).values
    assert bool((ordered[:, 1:] != ordered[:, :-1]).all()), "a position was chosen twice"
