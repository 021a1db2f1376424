"""Who computes prompts beside the native kernels, by what the settings ask for and what the machine has."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from stretto import __version__
from stretto.backends.host import Processor, host_memory, shown, usable_cores
from stretto.backends.native.kv_format import resolved_kv_dtype
from stretto.backends.native.prefill import PrefillPlan, Prompts
from stretto.backends.prefill_record import PrefillRecord
from stretto.backends.torch import unimportable
from stretto.errors import SettingsError, StartupError

if TYPE_CHECKING:
    from stretto.backends.base import ProgressReport
    from stretto.settings import Settings
    from stretto.weights import ModelSource

AMX = "amx_bf16"
_SHARE_OF_FREE = 4
"""``auto`` takes no more than this part of the free memory for a second copy of the weights."""


def choose_prefill(settings: Settings, source: ModelSource, machine: Processor) -> PrefillPlan:
    """The plan for the native backend.

    Where the processor has no AMX there is nothing to measure: SmolLM2-135M in Q4_1 on 2 threads of an AMD EPYC with AVX-512 BF16, prompts of
    256 tokens, medians in turns: 174 tokens a second by the kernels, 73 by PyTorch in bfloat16, 66 in float32.

    Raises:
        SettingsError: ``prefill`` is torch, with a KV format or block size that PyTorch cannot write.
        StartupError: ``backend_unavailable``; it is torch, and there is no PyTorch.
    """
    if settings.prefill == "native":
        return PrefillPlan(reason="it was asked for")
    obstacle = _obstacle(settings)
    threads = settings.threads or usable_cores()
    installed = importlib.util.find_spec("torch") is not None
    if settings.prefill == "torch":
        if obstacle:
            raise SettingsError(f"prefill: torch cannot be used: {obstacle}.", param="prefill")
        if not installed:
            raise StartupError(
                "prefill: torch needs PyTorch, which is not installed.",
                code="backend_unavailable",
                remedy="Install it with: pip install 'stretto[torch]', or leave --prefill out.",
            )
        return PrefillPlan(_loader(source, threads), asked=True)
    if AMX not in machine.flags:
        obstacle = "this processor has no AMX, without which the kernels are faster"
    elif not installed:
        obstacle = "PyTorch is not installed"
    elif (
        not obstacle
        and (needed := prompt_bytes(source)) > (free := host_memory().free_bytes) // _SHARE_OF_FREE
    ):
        obstacle = (
            f"a second copy of the weights would take {shown(needed)} of the {shown(free)} that are free"
        )
    if obstacle:
        return PrefillPlan(reason=obstacle)
    return PrefillPlan(
        _loader(source, threads),
        record=PrefillRecord(settings.state_dir / "prefill.json", _key(settings, source, machine, threads)),
    )


def prompt_bytes(source: ModelSource) -> int:
    """Memory of the weights in bfloat16."""
    return 2 * sum(math.prod(shape) for shape in source.config.tensor_shapes().values())


def _obstacle(settings: Settings) -> str:
    if resolved_kv_dtype(settings.kv_dtype) == "int8":
        return "keys and values are kept in int8, which the kernels alone write"
    if settings.block_tokens % 16:
        return f"blocks of {settings.block_tokens} tokens are no multiple of 16"
    return ""


def _key(settings: Settings, source: ModelSource, machine: Processor, threads: int) -> str:
    parts = (
        source.fingerprint,
        machine.model,
        threads,
        settings.kv_dtype,
        settings.activation_bits,
        importlib.metadata.version("torch"),
        __version__,
    )
    return " | ".join(map(str, parts))


def _loader(source: ModelSource, threads: int) -> Callable[[ProgressReport], Prompts]:
    def load(report: ProgressReport) -> Prompts:
        report("starting PyTorch", 0.0)
        try:
            from stretto.backends.torch.prompts import TorchPrompts
        except ImportError as error:
            raise unimportable(error) from error
        return TorchPrompts(source, threads, report)

    return load
