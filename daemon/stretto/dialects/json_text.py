"""Writing JSON for the wire."""

from __future__ import annotations

import json
import re
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

# Some readers of event streams cut lines where Unicode would, not only where SSE says; and half a surrogate pair has no UTF-8.
_UNSAFE = re.compile("[\u0085\u2028\u2029\ud800-\udfff]")


def dumps(value: Any) -> str:
    """Compact JSON that can be encoded as UTF-8 and has no line break of any kind in it."""
    text = _encode(value)
    return text if text.isascii() else _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
