"""From settings to a model that can be loaded: which backend, which files, which tokenizer and template."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.backends.base import Backend
from stretto.conversation import ChatTemplate, Tokenizer
from stretto.errors import SettingsError, StartupError

if TYPE_CHECKING:
    from stretto.backends.native import NativeSupport
    from stretto.settings import Settings
    from stretto.weights import Checkpoint, ForeignCheckpoint, ModelFiles, ModelSource


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """Everything that depends on which model it is; the weights are not read yet.

    Attributes:
        name, aliases: what clients may call it.
        created: Unix seconds at which it was installed.
        backend_name: ``native``, ``torch``, ``mlx`` or ``echo``.
        fingerprint: of the weights, for what is kept of their work.
        template: None for a model that has none and was given none; it cannot chat.
        close: gives back what was opened (the mapped files).
    """

    name: str
    aliases: tuple[str, ...]
    created: int
    backend: Backend
    backend_name: str
    fingerprint: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    close: Callable[[], None]


def choose_model(settings: Settings) -> ChosenModel:
    """Find the model and open it; reads headers, the tokenizer and the template, no weights. Blocks: run it in a worker thread.

    Raises:
        StartupError: no such model, a broken or unsupported file, or a backend that this machine lacks.
        SettingsError: a setting that only the model can prove wrong.
    """
    if settings.backend == "echo":
        return _echo(settings)
    return _from_files(settings)


def _echo(settings: Settings) -> ChosenModel:
    from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoBackend, EchoScript, EchoTokenizer

    tokenizer = EchoTokenizer()
    source = _template_text(settings, ECHO_CHAT_TEMPLATE)
    return ChosenModel(
        name=settings.served_name or "echo",
        aliases=("echo",),
        created=0,
        backend=EchoBackend(EchoScript.parse(settings.echo)),
        backend_name="echo",
        fingerprint=f"echo {settings.echo}",
        tokenizer=tokenizer,
        template=_template(source, tokenizer),
        close=lambda: None,
    )


def _from_files(settings: Settings) -> ChosenModel:
    from stretto.weights import load_tokenizer
    from stretto.weights.library import ModelLibrary

    # The files first: to look at them takes far less time than to import PyTorch.
    installed = ModelLibrary(settings.models_dir).require(settings.model)
    source = open_source(settings, installed.path)
    try:
        backend_name, backend = _choose_backend(settings, source)
        tokenizer = load_tokenizer(source)
        template = _template(_template_text(settings, source.chat_template), tokenizer)
    except BaseException:
        source.close()
        raise
    name = settings.served_name or installed.name
    others = (installed.name, settings.model, source.name, installed.path.stem)
    return ChosenModel(
        name=name,
        aliases=tuple(dict.fromkeys(other for other in others if other != name and "/" not in other)),
        created=int(installed.pulled_at.timestamp())
        if installed.pulled_at
        else int(installed.path.stat().st_mtime),
        backend=backend,
        backend_name=backend_name,
        fingerprint=source.fingerprint,
        tokenizer=tokenizer,
        template=template,
        close=source.close,
    )


def open_source(settings: Settings, path: Path) -> ModelFiles:
    """Open a model for the backend that is to compute it: as a ``Checkpoint`` for MLX, as a ``ModelSource`` for the others, or as
    a ``ForeignCheckpoint`` where only ``transformers`` knows its architecture.

    ``auto`` is MLX for what is packed for it, which nothing else reads, and on Apple's chips for all that MLX wrote.

    Raises:
        StartupError: a broken or unsupported file, or one that the backend that is set does not read.
    """
    from stretto.weights import Checkpoint, open_any, open_files, open_model

    if settings.backend == "mlx":
        if not path.is_dir():
            raise StartupError(
                f"{path} is a GGUF file, and MLX computes directories of safetensors.",
                code="model_unsupported",
                remedy="Leave --backend out, or name a directory, such as mlx_lm.convert writes.",
            )
        return Checkpoint(path)
    if settings.backend == "auto":
        return open_files(path, mlx_first=_on_apple_chips(), otherwise=open_any)
    return open_any(path) if settings.backend == "torch" else open_model(path)


def native_may(settings: Settings, *, available: bool) -> bool:
    """Whether the kernels can do what is asked for: a device, a dtype or offloading that is named only PyTorch can have."""
    return (
        settings.backend != "torch"
        and settings.device in ("auto", "cpu")
        and settings.dtype == "auto"
        and settings.offload != "cpu"
        and available
    )


def native_is_best(settings: Settings, native: NativeSupport) -> bool:
    """Whether ``auto`` takes the kernels before PyTorch: for quantised weights that no GPU is to compute."""
    from stretto.backends.host import gpu_is_there

    return native.quantised and (settings.device == "cpu" or not gpu_is_there())


def _choose_backend(settings: Settings, source: ModelFiles) -> tuple[str, Backend]:
    """What was asked for. ``auto`` is what computes the model best here: the native kernels for quantised weights on a CPU,
    PyTorch for all else."""
    from stretto.backends.host import processor
    from stretto.backends.native import NativeBackend, native_support
    from stretto.backends.torch import probe
    from stretto.chosen_prefill import choose_prefill
    from stretto.weights import Checkpoint, ForeignCheckpoint, ModelSource

    if isinstance(source, Checkpoint) and not isinstance(source, ForeignCheckpoint):
        return "mlx", _mlx(settings, source)
    if isinstance(source, ForeignCheckpoint):
        return "torch", _torch(settings, source)
    assert isinstance(source, ModelSource)
    native = native_support(source)
    if native_may(settings, available=native.available) and (
        settings.backend == "native" or native_is_best(settings, native) or not probe().available
    ):
        bits = int(settings.activation_bits)
        return "native", NativeBackend(
            source,
            threads=settings.threads,
            kv_dtype=settings.kv_dtype,
            activation_bits=bits,
            prefill=choose_prefill(settings, source, processor()),
        )
    if settings.backend == "native":
        raise StartupError(
            f"The native backend cannot be used here: {native.reason}.",
            code="backend_unavailable",
            remedy="Leave --backend out, and PyTorch computes.",
        )
    return "torch", _torch(settings, source)


def _torch(settings: Settings, source: ModelSource | ForeignCheckpoint) -> Backend:
    from stretto.backends.torch import TorchBackend, probe
    from stretto.weights import ForeignCheckpoint

    found = probe()
    if not found.available and isinstance(source, ForeignCheckpoint):
        raise StartupError(
            f"{source.reason} Only transformers on the torch backend might compute it, and {found.reason}",
            code="backend_unavailable",
            remedy="Install both: pip install 'stretto[torch,transformers]'.",
        )
    if not found.available:
        raise StartupError(
            f"The torch backend cannot be used here: {found.reason}",
            code="backend_unavailable",
            remedy="Install it with: pip install 'stretto[torch]'.",
        )
    _refuse_native_only(settings, source.name, "PyTorch")
    return TorchBackend(
        source,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        context_tokens=settings.max_context,
        offload=settings.offload == "cpu",
        gpu_layers=settings.gpu_layers,
    )


def _mlx(settings: Settings, checkpoint: Checkpoint) -> Backend:
    from stretto.backends.mlx import MLXBackend, probe

    found = probe()
    if not found.available:
        raise StartupError(
            f"The MLX backend cannot be used here: {found.reason}",
            code="backend_unavailable",
            remedy=f"{checkpoint.name} is packed for MLX; a GGUF file of the model needs none."
            if checkpoint.quantization is not None
            else "Leave --backend out, and PyTorch computes.",
        )
    _refuse_native_only(settings, checkpoint.name, "MLX")
    if settings.threads is not None:
        raise SettingsError(
            f"threads: {settings.threads} has no effect on {checkpoint.name}, which MLX computes. Leave it out.",
            param="threads",
        )
    return MLXBackend(checkpoint, device=settings.device, dtype=settings.dtype)


def _refuse_native_only(settings: Settings, model: str, computes: str) -> None:
    if settings.prefill != "auto":
        raise SettingsError(
            f"prefill: {settings.prefill} has no effect on {model}, which {computes} computes, prompts and answers alike. Leave it out.",
            param="prefill",
        )
    if settings.activation_bits != "16":
        raise SettingsError(
            f"activation_bits: {settings.activation_bits} has no effect on {model}, which {computes} computes. Leave it out.",
            param="activation_bits",
        )
    if settings.kv_dtype != "auto":
        raise SettingsError(
            f"kv_dtype: {settings.kv_dtype} has no effect on {model}, which {computes} computes: it keeps keys and values in the "
            "dtype it computes in. Leave it out, or let the native backend compute a quantised model.",
            param="kv_dtype",
        )


def _on_apple_chips() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _template_text(settings: Settings, own: str | None) -> str | None:
    path: Path | None = settings.chat_template
    if path is None:
        return own
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"chat_template: the file {path} cannot be read as UTF-8 text ({error}).", param="chat_template"
        ) from error


def _template(source: str | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    if source is None:
        return None
    return ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
