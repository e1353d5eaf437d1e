"""Samples for a GPU that has no room for them all.

A thread gathers the next few batches, as they are stored, into pinned memory. From there they are copied on a CUDA stream of
their own, while the GPU works on earlier batches. Shuffling and augmentation are not done here, so the numbers are those of
data that fits on the GPU.

The thread never calls CUDA: such a call would break the capture of a step as a graph.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

AHEAD = 4  # batches in preparation or in use; the GPU has room for so many


class Slot:
    """Room for one batch: pinned memory, and as much on the GPU. Without a stream, on a device that is none, memory only."""

    def __init__(self, rows: Tensor, size: int, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        self.rows, self.device, self.stream = rows, device, stream
        shape = (size, *rows.shape[1:])
        with torch.inference_mode(False):  # or the thread could not write into it
            self.here = torch.empty(shape, dtype=rows.dtype, pin_memory=stream is not None)
            if stream is not None:
                self.there = torch.empty(shape, dtype=rows.dtype, device=device)
                self.used, self.copied = (torch.cuda.Event(blocking=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def gather(self, index: Tensor) -> int:
        torch.index_select(self.rows, 0, index, out=self.here[: len(index)])
        return len(index)

    def brought(self, n: int) -> Tensor:
        """What was gathered, on the device: its current stream waits for the copy."""
        if self.stream is None:
            return self.here[:n].to(self.device)
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.used)  # by what the device does with the batch before
            self.there[:n].copy_(self.here[:n], non_blocking=True)
            self.copied.record(self.stream)
        torch.cuda.current_stream(self.device).wait_event(self.copied)
        return self.there[:n]

    def release(self) -> None:
        """All work on the batch is queued. Returns when the memory may be written again: at most AHEAD batches are queued."""
        if self.stream is not None:
            self.used.record(torch.cuda.current_stream(self.device))
            self.copied.synchronize()


def stream(rows: Tensor, indices: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """rows[index] on the device, for one index after the other; each is valid until the next is asked for."""
    size, rows, side = max(map(len, indices)), rows.detach(), None
    if device.type == "cuda":
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    slots = [Slot(rows, size, device, side) for _ in indices[:AHEAD]]
    if side is not None:
        side.wait_stream(torch.cuda.current_stream(device))  # earlier work may still use the room on the GPU
    pool = ThreadPoolExecutor(1, "csada-stream")
    try:
        filling = deque((slot, pool.submit(slot.gather, index)) for slot, index in zip(slots, indices, strict=False))
        for following in [*indices[AHEAD:], *[None] * len(slots)]:
            slot, gathered = filling.popleft()
            yield slot.brought(gathered.result())
            slot.release()
            if following is not None:
                filling.append((slot, pool.submit(slot.gather, following)))
    finally:
        pool.shutdown(cancel_futures=True)
