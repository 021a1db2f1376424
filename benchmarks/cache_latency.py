"""What a hit of the answer cache saves: the time of an exact hit, of a semantic hit and of a generation, through HTTP.

Start a daemon with ``--semantic-cache on``, then:

    python benchmarks/cache_latency.py http://127.0.0.1:8080 --model smollm2

Questions are new to the cache (it is emptied for the tenant first), answers at most ``--tokens`` long, one request at a time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import httpx2

CITIES = (
    "Lisbon Porto Madrid Seville Paris Lyon Nice Rome Turin Milan Vienna Graz Berlin Munich Bremen Prague Brno Warsaw Gdansk Riga "
    "Tallinn Oslo Bergen Malmo Turku Athens Patras Sofia Varna Split"
)


def ask(client: httpx2.Client, model: str, question: str, tokens: int) -> tuple[float, str]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0,
        "stop": ["."],
    }
    began = time.perf_counter()
    reply = client.post("/v1/chat/completions", json=body)
    took_s = time.perf_counter() - began
    reply.raise_for_status()
    return took_s, reply.headers.get("x-stretto-cache-match") or reply.headers["x-stretto-cache-result"]


def show(name: str, times_s: Sequence[float]) -> None:
    ordered = sorted(times_s)
    if not ordered:
        print(f"{name:16}     none")
        return
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    print(
        f"{name:16} {len(ordered):4}  p50 {statistics.median(ordered) * 1000:8.1f} ms  p95 {p95 * 1000:8.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="times that each hit is measured")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"miss": [], "exact": [], "semantic": []}
    with httpx2.Client(base_url=options.url, timeout=300) as client:
        client.request("DELETE", "/v1/cache").raise_for_status()
        for city in CITIES.split():
            took_s, result = ask(
                client, options.model, f"What is the most famous building in {city}?", options.tokens
            )
            found.setdefault(result, []).append(took_s)
        for _ in range(options.rounds):
            for city in CITIES.split():
                for question in (
                    f"What is the most famous building in {city}?",
                    f"Which building in {city} is the most famous?",
                ):
                    took_s, result = ask(client, options.model, question, options.tokens)
                    found.setdefault(result, []).append(took_s)
    for name, label in (("miss", "generation"), ("exact", "exact hit"), ("semantic", "semantic hit")):
        show(label, found[name])


if __name__ == "__main__":
    main()
