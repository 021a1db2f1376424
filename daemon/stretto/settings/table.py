"""The settings: each declared once, here. Flags, environment names, TOML keys, help, docs and checks follow from this table."""

# ruff: noqa: RUF009  (setting() makes dataclass fields; it is no default shared by instances)

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.settings.declare import (
    Choice,
    Duration,
    FilePath,
    Integer,
    Number,
    Switch,
    Text,
    TextList,
    fields_of,
    machine_setting,
    setting,
)
from stretto.settings.places import SOCKET_PATH_BYTES, default_models_dir, default_socket, default_state_dir

MODEL = "Model"
NETWORK = "Network"
ACCESS = "Access"
ENGINE = "Engine"
EMBEDDINGS = "Embeddings"
MEMORY = "Memory"
CACHE = "Answer cache"
LIMITS = "Limits"
FILES = "Files"
LOG = "Log"

_HOST_NAME = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_IPV6 = r"[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?"
_MAX_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of the daemon, checked. Made by ``load_settings``; the defaults alone are valid too."""

    model: str = setting(
        "smollm2",
        Text(r"[^\x00-\x1f\x7f]{1,4096}", "a name, a reference or a path", "MODEL"),
        "The model to serve: an installed model's name, or a path to a .gguf file or a Hugging Face directory.",
        MODEL,
    )
    served_name: str | None = setting(
        None,
        Text(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", "1 to 128 letters, digits, and . _ : / -", "NAME"),
        "The model id that clients see and ask for.",
        MODEL,
        unset="the installed model's name",
    )
    model_alias: tuple[str, ...] = setting(
        (),
        TextList(r"[^\s,\x00-\x1f\x7f]{1,128}", "1 to 128 characters without spaces and commas", "NAME"),
        "Further names under which clients may ask for the model; * stands for any text, so that claude-* or * alone serve "
        "clients with fixed names.",
        MODEL,
    )
    chat_template: Path | None = setting(
        None,
        FilePath(),
        "File with a Jinja chat template to use in place of the model's own.",
        MODEL,
        unset="the model's own template",
    )
    tool_dialect: str = setting(
        "auto",
        Choice(
            (
                "auto", "hermes", "llama3", "mistral", "mistral-args", "gemma4", "qwen3-coder", "deepseek", "deepseek-v31", "json",
            )
        ),
        "How the model writes calls of functions. auto goes by the chat template; json is for models whose template knows no functions: "
        "they are told of them in the system message.",
        MODEL,
    )  # fmt: skip
    backend: str = setting(
        "auto",
        Choice(("auto", "native", "torch", "mlx", "echo")),
        "What computes. auto is native for quantised models on the CPU, mlx for MLX checkpoints and PyTorch for all else; native "
        "computes from the file's own blocks, faster and with less memory; mlx computes directories of safetensors "
        "with the models of mlx-lm; echo needs no model and repeats what it is told.",
        MODEL,
    )
    device: str = setting(
        "auto",
        Text(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", "auto, cpu, mps, cuda or cuda:N", "DEVICE"),
        "Where it computes. auto is the first CUDA device if there is one, else the CPU; with mlx, the GPU (mps) of Apple's chips.",
        MODEL,
    )
    dtype: str = setting(
        "auto",
        Choice(("auto", "float32", "bfloat16", "float16")),
        "Number format of the computation. auto suits the device.",
        MODEL,
    )
    offload: str = setting(
        "none",
        Choice(("none", "cpu")),
        "With cpu, the matrices of some layers stay in the host's memory, where a model is larger than the device's.",
        MODEL,
    )
    gpu_layers: int | None = setting(
        None,
        Integer(0, 4096),
        "Layers whose matrices lie on the device, with --offload cpu.",
        MODEL,
        unset="as many as fit",
    )
    threads: int | None = setting(
        None,
        Integer(1, 1024),
        "Compute threads of the CPU backend.",
        MODEL,
        unset="as many as leave room for the event loop",
    )
    activation_bits: str = setting(
        "16",
        Choice(("16", "8")),
        "To how many bits the native backend rounds what it multiplies with quantised weights. 16 answers as float32 does; 8 computes "
        "prompts and batches up to twice as fast, and near ties may fall otherwise.",
        MODEL,
    )
    echo: str = setting(
        "",
        Text(r"[^\x00]{0,4096}", "a script of NAME=VALUE pairs, separated by commas", "SCRIPT"),
        "Script of the echo backend: delays and faults on demand, e.g. prefill_delay_s=0.1,fail_at_step=3.",
        MODEL,
    )

    host: str = setting(
        "127.0.0.1",
        Text(f"{_HOST_NAME}|{_IPV6}", "a host name or an IP address", "HOST"),
        "Address to listen on. Others than the loopback need an API key, or --allow-open.",
        NETWORK,
    )
    port: int = setting(
        8080,
        Integer(0, 65535, "0 picks a free port, and the ready line says which"),
        "TCP port to listen on.",
        NETWORK,
    )
    socket: Path = machine_setting(
        default_socket,
        "$XDG_RUNTIME_DIR/stretto/stretto.sock",
        FilePath(SOCKET_PATH_BYTES, "a path of at most 107 bytes once made absolute (103 on macOS)"),
        "Path of the Unix socket: the same routes and the control plane. Clients read this setting too.",
        NETWORK,
    )

    api_compat: tuple[str, ...] = setting(
        ("openai", "anthropic"),
        TextList("openai|anthropic", "openai or anthropic", "NAMES"),
        "The APIs that are served over TCP. The Unix socket always serves all of them.",
        NETWORK,
    )

    api_key: str | None = setting(
        None,
        Text(r"[\x21-\x7e]{1,512}", "1 to 512 visible ASCII characters without spaces", "KEY"),
        "Key that clients must send for /v1 and the routes of tokens over TCP. A flag can be seen by other users of the machine: "
        "prefer STRETTO_API_KEY or --api-key-file.",
        ACCESS,
        secret=True,
        unset="no key is asked for",
    )
    api_key_file: Path | None = setting(
        None,
        FilePath(),
        "File that holds the API key on its first line.",
        ACCESS,
        unset="no file is read",
    )
    provider_config: Path | None = setting(
        None,
        FilePath(),
        "JSON file of prices, keys and the admin token: every caller over TCP then needs a key of the credit ledger, in place of the API "
        "key, and pays for what it uses.",
        ACCESS,
        unset="nothing is billed",
    )
    allow_open: bool = setting(
        False,
        Switch(),
        "Serve without an API key where other machines or web pages can reach it.",
        ACCESS,
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        TextList(f"{_HOST_NAME}|{_IPV6}", "a host name or an IP address, without a port", "HOST"),
        "Names allowed in the Host header, besides localhost and the address listened on.",
        ACCESS,
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        TextList(
            r"\*|https?://[A-Za-z0-9.:\[\]-]{1,255}", "* or an origin such as https://app.example", "ORIGIN"
        ),
        "Web origins whose pages may read answers. None may unless named.",
        ACCESS,
    )

    max_context: int | None = setting(
        None,
        Integer(16, _MAX_TOKENS),
        "Longest context of a request (prompt and answer), in tokens.",
        ENGINE,
        unset="as much as the model knows and memory holds",
    )
    max_batch: int = setting(16, Integer(1, 1024), "Requests that run at once.", ENGINE)
    queue_limit: int = setting(
        4, Integer(0, 65536), "Requests that may wait for a place; one more is answered 429 at once.", ENGINE
    )
    kv_cache_gb: float | None = setting(
        None, Number(0, 65536, above=True, unit="gigabytes (1e9 bytes)"), "Memory for the KV cache, allocated once at start.",
        ENGINE, unset="a fraction of what is free once the model is loaded",
    )  # fmt: skip
    kv_dtype: str = setting(
        "auto", Choice(("auto", "float32", "bfloat16", "int8")),
        "What the native backend keeps keys and values in. auto is bfloat16; int8, like llama.cpp's q8_0, holds nearly twice the tokens "
        "and answers a little less exactly, Qwen2 clearly less.", ENGINE,
    )  # fmt: skip
    prefill: str = setting(
        "auto", Choice(("auto", "native", "torch")),
        "Who computes prompts for the native backend: torch takes two more bytes of memory a weight. auto measures it once, on processors that "
        "multiply bfloat16 matrices (AMX), and remembers.", ENGINE,
    )  # fmt: skip
    block_tokens: int = setting(16, Integer(1, 1024), "Tokens of a KV block.", ENGINE)
    prefill_chunk_tokens: int = setting(
        512, Integer(1, 65536), "Most prompt tokens that one step takes in.", ENGINE
    )
    prefix_cache: str = setting(
        "on",
        Choice(("on", "off")),
        "Whether text that was read once is kept in the KV cache, as long as there is room, and shared by all requests that "
        "begin with it.",
        ENGINE,
    )
    prefix_store: str = setting(
        "on",
        Choice(("on", "off")),
        "Whether known text is also kept on disk, in the state directory, so that it survives a restart. It is what was written and "
        "answered, readable by the daemon's user alone. Needs the prefix cache.",
        ENGINE,
    )
    prefix_store_gb: float = setting(
        2.0,
        Number(0, 65536, above=True, unit="gigabytes (1e9 bytes)"),
        "Most that is kept on disk; the least recently used goes first.",
        ENGINE,
    )
    speculation: str = setting(
        "on",
        Choice(("on", "off")),
        "Whether answers that repeat what was said before get on by several tokens a step, where that is measured to be faster. It "
        "changes no answer.",
        ENGINE,
    )
    stall_target_ms: float = setting(
        250.0,
        Number(1, 60_000, unit="milliseconds"),
        "How long a step that takes in a prompt may hold up running answers; sizes the prefill chunk.",
        ENGINE,
    )
    step_deadline_s: float = setting(
        60.0,
        Number(0, 86_400, above=True, unit="seconds"),
        "A step that takes longer makes the daemon not ready, and stops feeding the service manager's watchdog.",
        ENGINE,
    )
    default_max_tokens: int | None = setting(
        None, Integer(1, _MAX_TOKENS), "Longest answer of a request that does not say.",
        ENGINE, unset="what the context leaves",
    )  # fmt: skip

    embedder: str = setting(
        "auto", Text(r"[^\x00-\x1f\x7f]{1,4096}", "auto, off, or a name, a reference or a path", "MODEL"),
        "The model that computes embeddings: an installed model's name, or a path to its directory. auto is minilm where it is "
        "installed (with the echo backend none); off is none.", EMBEDDINGS,
    )  # fmt: skip
    reranker: str = setting(
        "off", Text(r"[^\x00-\x1f\x7f]{1,4096}", "off, or a name, a reference or a path", "MODEL"),
        "What scores documents for /v1/rerank: an installed model's name, or a BERT cross-encoder's directory.", EMBEDDINGS,
    )  # fmt: skip

    memory: bool = setting(
        False, Switch(),
        "Remember completed turns and pinned notes by session, and recall those that matter into later prompts.", MEMORY,
    )  # fmt: skip
    memory_recall: str = setting(
        "words", Choice(("words", "hybrid")),
        "How exchanges are found: by the words they share with the message, or (hybrid) by an embedding model as well.", MEMORY,
    )  # fmt: skip
    memory_top_k: int = setting(4, Integer(0, 100), "Exchanges that are recalled at most.", MEMORY)
    memory_max_entries: int = setting(
        1000, Integer(1, 10_000_000),
        "Entries that a session holds at most; the oldest exchanges make room, notes never do.", MEMORY,
    )  # fmt: skip

    semantic_cache: str = setting(
        "off",
        Choice(("on", "exact", "off")),
        "Whether answers are kept and given again to whoever asks the same in the same context. on finds questions in other words too, "
        "and needs an embedding model; exact finds those that are the same word for word.",
        CACHE,
    )
    cache_threshold: float = setting(
        0.8,
        Number(0, 1),
        "Least cosine similarity of two questions that may be the same.",
        CACHE,
    )
    cache_judge_threshold: float | None = setting(
        None,
        Number(0, 1),
        "Least probability, as the judge sees it, that two questions in other words are the same. The judge is the served model; "
        "with 0 none is asked, and the comparison of words decides.",
        CACHE,
        unset="0.9, or 0 where the served model has fewer than 1e9 parameters, too few to be a judge",
    )
    cache_ttl: float | None = setting(
        None,
        Duration(),
        "Age at which a kept answer is given no more.",
        CACHE,
        unset="however old",
    )
    cache_max_entries: int = setting(
        10_000,
        Integer(1, 10_000_000),
        "Most answers that are kept; the oldest make room.",
        CACHE,
    )

    max_body_mb: float = setting(
        32.0, Number(0, 4096, above=True, unit="megabytes (1e6 bytes)"), "Largest request body.", LIMITS
    )
    max_connections: int = setting(
        256, Integer(1, 65536), "Connections held at once, over TCP and the socket each.", LIMITS
    )
    header_timeout_s: float = setting(
        10.0,
        Number(0, 3600, above=True, unit="seconds"),
        "Time for a client to send a request's head.",
        LIMITS,
    )
    body_timeout_s: float = setting(
        30.0,
        Number(0, 3600, above=True, unit="seconds"),
        "Time for a client to send the next piece of a request's body.",
        LIMITS,
    )
    write_timeout_s: float = setting(
        30.0,
        Number(0, 3600, above=True, unit="seconds"),
        "Time for a client to take what is sent to it.",
        LIMITS,
    )
    ping_interval_s: float = setting(
        10.0,
        Number(0, 3600, above=True, unit="seconds"),
        "A stream that was silent this long is sent a comment, so that nothing in between gives it up.",
        LIMITS,
    )
    retry_grace_s: float = setting(
        5.0,
        Number(0, 60, unit="seconds"),
        "How long an answer is worked on for a client that is expected to ask again: one that gave up at its own time limit, or "
        "sent an Idempotency-Key.",
        LIMITS,
    )
    drain_grace_s: float = setting(
        30.0,
        Number(0, 86_400, unit="seconds"),
        "Time that running answers get to end when the daemon is told to stop.",
        LIMITS,
    )

    state_dir: Path = machine_setting(
        default_state_dir,
        "the platform's state directory, e.g. ~/.local/state/stretto",
        FilePath(),
        "Directory of the daemon's own files; one daemon a directory.",
        FILES,
    )
    models_dir: Path = machine_setting(
        default_models_dir,
        "the platform's data directory, e.g. ~/.local/share/stretto/models",
        FilePath(),
        "Directory of installed models.",
        FILES,
    )

    log_format: str = setting(
        "auto",
        Choice(("auto", "human", "json")),
        "Form of the log on stderr. auto is human, with priorities in place of times under journald.",
        LOG,
    )
    log_level: str = setting(
        "info", Choice(("debug", "info", "warning", "error")), "Least severity that is logged.", LOG
    )

    @property
    def stall_target_s(self) -> float:
        """``stall_target_ms`` in seconds."""
        return self.stall_target_ms / 1000

    @property
    def kv_cache_bytes(self) -> int | None:
        """``kv_cache_gb`` in bytes."""
        return None if self.kv_cache_gb is None else int(self.kv_cache_gb * 1_000_000_000)

    @property
    def prefix_store_bytes(self) -> int:
        """``prefix_store_gb`` in bytes."""
        return int(self.prefix_store_gb * 1_000_000_000)

    @property
    def max_body_bytes(self) -> int:
        """``max_body_mb`` in bytes."""
        return int(self.max_body_mb * 1_000_000)


SETTING_FIELDS = fields_of(Settings)
