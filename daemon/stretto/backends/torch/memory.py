"""How much memory is free on the device that computes."""

from __future__ import annotations

import torch

from stretto.backends.host import Memory, host_memory


def device_memory(device: torch.device) -> Memory:
    """Memory of the device that holds weights and KV; that of the host where the two are one (CPU, MPS)."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # What this process has freed but PyTorch keeps is as good as free.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Memory(free + kept, total)
    return host_memory()
