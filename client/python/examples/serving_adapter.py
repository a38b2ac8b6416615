"""topkd behind the calls by which SGLang and vLLM select for their sparse attention indexer.

Both select with kernels of their own, called from Python with a score matrix, valid lengths and, for
ragged batches, row starts. ``IndexerTopk`` has methods of the same shapes; ``install_sglang`` and
``install_vllm`` put them in the place of the originals. Written from the public signatures of 2026
(SGLang's sgl_kernel, vLLM's _custom_ops) and tested with those shapes; it was not run inside either
server.

What must be patched, and where:

SGLang, before ``sglang.srt.layers.attention.nsa_backend`` is imported (it imports the names):
    sgl_kernel.fast_topk_v2(score, lengths, topk, row_starts)
    sgl_kernel.fast_topk_transform_fused(score, lengths, page_table_size_1, cu_seqlens_q, topk,
                                         row_starts)
    sgl_kernel.fast_topk_transform_ragged_fused(score, lengths, topk_indices_offset, topk, row_starts)
vLLM, any time (``sparse_attn_indexer`` calls them through the module; where a build prefers
torch.ops._C.persistent_topk, its branch must be made to call ``top_k_per_row_decode``):
    vllm._custom_ops.top_k_per_row_prefill(logits, row_starts, row_ends, indices, num_rows, stride0,
                                           stride1, topk)
    vllm._custom_ops.top_k_per_row_decode(logits, next_n, seq_lens, indices, num_rows, stride0,
                                          stride1, topk)

What differs from the originals: any topk up to 16384, not 2048 alone. A row of at most topk valid
scores gives 0 ... L-1 and then -1, as theirs. With row starts on the device the scores are moved
(one more read and write of them, in blocks), because a window that begins elsewhere in every row has
no stride; starts given on the host (a list) cost nothing, each run of equal starts is one selection.

In a CUDA graph a selection needs a lane: call ``prepare_capture`` for the largest shape before
capturing. Scores are then copied into the lane's tensors and the result out of them.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import topkd

# Choice: bytes of the index block that moves windows.
_BLOCK_BYTES = 64 << 20


class _Captured:
    """A lane and its tensors, for shapes up to rows x width."""

    def __init__(self, client: topkd.Client, rows: int, width: int, topk: int, device: Any) -> None:
        self.scores = torch.zeros(rows, width, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self.live = torch.zeros(1, dtype=torch.int32, device=device)
        self.rows, self.width, self.topk = rows, width, topk
        self.lane = client.lane(self.scores, self.lengths, topk, live_rows=self.live)

    def __call__(self, score: Any, lengths: Any, out: Any) -> None:
        rows, width = score.shape
        self.scores[:rows, :width].copy_(score)
        self.lengths[:rows].copy_(lengths.clamp(max=width))
        self.live.fill_(rows)
        out.copy_(self.lane()[:rows])


class IndexerTopk:
    """The selections of an indexer, through one client. One thread at a time, as with a stream."""

    def __init__(self, client: topkd.Client | None = None) -> None:
        self.client = topkd.Client() if client is None else client
        self._captured: list[_Captured] = []

    def prepare_capture(self, rows: int, width: int, topk: int, device: Any = "cuda") -> None:
        """Before a capture: makes a lane for up to ``rows`` rows of up to ``width`` scores."""
        self._captured.append(_Captured(self.client, rows, width, topk, device))

    # ---- SGLang ----------------------------------------------------------------------------------

    def fast_topk_v2(self, score: Any, lengths: Any, topk: int, row_starts: Any = None) -> Any:
        """int32 [B, topk]: positions in each row's window [row_starts, row_starts + lengths)."""
        out = score.new_empty((score.shape[0], topk), dtype=torch.int32)
        self._select(score, lengths, row_starts, out)
        return out

    def fast_topk_transform_fused(
        self, score: Any, lengths: Any, page_table_size_1: Any, cu_seqlens_q: Any, topk: int,
        row_starts: Any = None,
    ) -> Any:
        """int32 [B, topk]: entries of the page table (pages of one token) of each row's request."""
        table = page_table_size_1
        if table.shape[0] != score.shape[0]:  # several queries of a request share its table
            row = torch.arange(score.shape[0], device=score.device, dtype=cu_seqlens_q.dtype)
            request = torch.searchsorted(cu_seqlens_q[1:].contiguous(), row, right=True)
            table = table.index_select(0, request.clamp_(max=table.shape[0] - 1))
        out = score.new_empty((score.shape[0], topk), dtype=torch.int32)
        if row_starts is None and not _is_capturing(score) and table.shape[1] >= score.shape[1]:
            return self.client.select(
                score, _vector(lengths), topk, page_table=table, page_size=1, out=out
            )
        self._select(score, lengths, row_starts, out)
        return torch.where(out >= 0, table.gather(1, out.clamp(min=0).long()), out)

    def fast_topk_transform_ragged_fused(
        self, score: Any, lengths: Any, topk_indices_offset: Any, topk: int, row_starts: Any = None
    ) -> Any:
        """int32 [B, topk]: positions plus each row's offset in the packed keys."""
        out = score.new_empty((score.shape[0], topk), dtype=torch.int32)
        if row_starts is None and not _is_capturing(score):
            offsets = _vector(topk_indices_offset)
            return self.client.select(score, _vector(lengths), topk, row_offsets=offsets, out=out)
        self._select(score, lengths, row_starts, out)
        return torch.where(out >= 0, out + topk_indices_offset.view(-1, 1), out)

    # ---- vLLM ------------------------------------------------------------------------------------

    def top_k_per_row_prefill(
        self, logits: Any, row_starts: Any, row_ends: Any, indices: Any, num_rows: int,
        stride0: int, stride1: int, topk: int,
    ) -> None:
        """Positions in each row's window [row_starts, row_ends), into ``indices``."""
        logits = _matrix(logits, num_rows, stride0, stride1)
        lengths = row_ends[:num_rows] - row_starts[:num_rows]
        self._select(logits, lengths, row_starts[:num_rows], indices[:num_rows, :topk])

    def top_k_per_row_decode(
        self, logits: Any, next_n: int, seq_lens: Any, indices: Any, num_rows: int, stride0: int,
        stride1: int, topk: int,
    ) -> None:
        """Row r belongs to request r // next_n and sees its tokens up to the row's own."""
        logits = _matrix(logits, num_rows, stride0, stride1)
        lengths = seq_lens.reshape(-1)
        if lengths.shape[0] != num_rows:
            step = torch.arange(num_rows, device=lengths.device, dtype=lengths.dtype) % next_n
            lengths = lengths.repeat_interleave(next_n) - next_n + step + 1
        self._select(logits, lengths, None, indices[:num_rows, :topk])

    # ---- Both ------------------------------------------------------------------------------------

    def _select(self, score: Any, lengths: Any, row_starts: Any, out: Any) -> None:
        lengths = _vector(lengths)
        if isinstance(row_starts, (list, tuple)):
            begin = 0
            for row in range(1, len(row_starts) + 1):
                if row == len(row_starts) or row_starts[row] != row_starts[begin]:
                    rows = slice(begin, row)
                    self._one(score[rows, row_starts[begin] :], lengths[rows], out[rows])
                    begin = row
            return
        if row_starts is not None:
            score = _moved(score, _vector(row_starts))
        self._one(score, lengths, out)

    def _one(self, score: Any, lengths: Any, out: Any) -> None:
        if not _is_capturing(score):
            self.client.select(score, lengths, out.shape[1], out=out)
            return
        for captured in self._captured:
            fits = score.shape[0] <= captured.rows and score.shape[1] <= captured.width
            if fits and captured.topk == out.shape[1]:
                captured(score, lengths, out)
                return
        raise topkd.errors.UnsupportedError(
            f"a capture of shape {tuple(score.shape)}, topk {out.shape[1]}: call prepare_capture for "
            "such a shape before the capture"
        )


def _is_capturing(tensor: Any) -> bool:
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _vector(tensor: Any) -> Any:
    return tensor.reshape(-1).to(torch.int32).contiguous()


def _matrix(logits: Any, num_rows: int, stride0: int, stride1: int) -> Any:
    if stride1 != 1:
        raise topkd.errors.InvalidError(f"stride1 is {stride1}: rows must be dense")
    return logits.as_strided((num_rows, logits.shape[1]), (stride0, 1))


def _moved(score: Any, starts: Any) -> Any:
    """Every row moved so that its window begins at 0."""
    rows, width = score.shape
    moved = torch.empty((rows, width), dtype=torch.float32, device=score.device)
    columns = torch.arange(width, device=score.device)
    step = max(1, _BLOCK_BYTES // (8 * max(width, 1)))
    for row in range(0, rows, step):
        block = slice(row, row + step)
        index = (columns + starts[block, None].long()).clamp_(max=width - 1)
        torch.gather(score[block], 1, index, out=moved[block])
    return moved


# ---- In the place of the originals ---------------------------------------------------------------


def _install(module: str, adapter: IndexerTopk, names: tuple[str, ...]) -> None:
    target = sys.modules.get(module) or __import__(module, fromlist=["_"])
    missing = [name for name in names if not hasattr(target, name)]
    if missing:
        raise RuntimeError(
            f"{module} has no {', '.join(missing)}: this version selects in another way; compare its "
            "calls with the table in serving_adapter.py"
        )
    for name in names:
        setattr(target, name, getattr(adapter, name))


def install_sglang(adapter: IndexerTopk) -> None:
    """Call it before SGLang's attention backend is imported."""
    _install(
        "sgl_kernel", adapter,
        ("fast_topk_v2", "fast_topk_transform_fused", "fast_topk_transform_ragged_fused"),
    )


def install_vllm(adapter: IndexerTopk) -> None:
    _install("vllm._custom_ops", adapter, ("top_k_per_row_prefill", "top_k_per_row_decode"))
