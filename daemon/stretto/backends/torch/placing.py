"""A planned step, put onto the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stretto.backends.torch.attention import plan_attention
from stretto.backends.torch.decoder import GroupTensors, StepTensors
from stretto.backends.torch.kv import Pool
from stretto.backends.torch.plan import StepPlan


def place_step(
    plan: StepPlan, pools: Sequence[Pool], device: torch.device, dtype: torch.dtype
) -> StepTensors:
    """Tensors of a step, and what is called for its attention; one pool a layer group."""

    def placed(values: object) -> torch.Tensor:
        return torch.as_tensor(values).to(device)

    return StepTensors(
        token_ids=placed(plan.token_ids),
        positions=placed(plan.positions),
        groups=tuple(
            GroupTensors(
                pool,
                placed(group.slots),
                group.slot_run,
                plan_attention(group, pool, device=device, dtype=dtype, batch_decodes=device.type != "cpu"),
            )
            for group, pool in zip(plan.groups, pools, strict=True)
        ),
        logit_rows=placed(plan.logit_rows),
    )
