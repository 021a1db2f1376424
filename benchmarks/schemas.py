"""Three hundred JSON Schemas against a running daemon: is every answer that ends by itself valid?

Each schema of ``tests/support/grammar_schemas.py`` is sent once as ``response_format``. An answer that stops must be valid by the
``jsonschema`` package, a refusal must be a 400 that names a place in the schema, and no answer may fill up with white space. Prints how each
went, and the counts; ends with 1 if anything is wrong.

    stretto serve --backend native &
    python benchmarks/schemas.py --url http://127.0.0.1:8080
    python benchmarks/schemas.py --count 40 --max-tokens 100 --at-once 4
    python benchmarks/schemas.py --skip 132
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.grammar_checks import check, longest_gap  # the tests' own judge
from support.grammar_schemas import Schema, collection

PARAM = "response_format.json_schema.schema"
QUESTION = "Make up a short example of such data."
MOST_GAP_CHARS = 13
_LIMIT_S = 600


@dataclass(frozen=True)
class Result:
    """How one schema went.

    Attributes:
        outcome: the finish reason, or ``400``, or the status of another refusal.
        tokens: of the answer.
        wrong: what is wrong with it, or nothing.
    """

    name: str
    outcome: str
    tokens: int = 0
    wrong: str = ""


def post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The status and the JSON of a reply."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_LIMIT_S) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def served(url: str) -> str:
    """The first model that the daemon lists."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=_LIMIT_S) as reply:
        return str(json.load(reply)["data"][0]["id"])


def ask(url: str, model: str, name: str, schema: Schema, max_tokens: int) -> Result:
    """Send one schema and judge the answer."""
    status, reply = post(
        f"{url}/v1/chat/completions",
        {
            "model": model,
            "messages": [{"role": "user", "content": QUESTION}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
            "max_tokens": max_tokens,
            "temperature": 0.7,
            "seed": 1,
        },
    )
    if status != 200:
        error = reply["error"]
        named = status == 400 and (error["param"] or "").startswith(f"{PARAM}.")
        return Result(name, str(status), wrong="" if named else f"{error['code']}: {error['message']}")
    choice = reply["choices"][0]
    text, reason = choice["message"]["content"] or "", choice["finish_reason"]
    wrong = f"{longest_gap(text)} characters of white space" if longest_gap(text) > MOST_GAP_CHARS else ""
    if reason == "stop":
        try:
            check(schema, text)
        except Exception as error:  # whatever a validator says
            wrong = f"{str(error).splitlines()[0]}: {text[:200]!r}"
    return Result(name, reason, reply["usage"]["completion_tokens"], wrong)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--skip", type=int, default=0, help="go on after so many, where a run was broken off")
    parser.add_argument("--max-tokens", type=int, default=250)
    parser.add_argument("--at-once", type=int, default=8)
    args = parser.parse_args()
    started, model = time.monotonic(), served(args.url)
    with ThreadPoolExecutor(args.at_once) as pool:
        asked = [
            pool.submit(ask, args.url, model, name, schema, args.max_tokens)
            for name, schema in islice(collection(args.count), args.skip, None)
        ]
        results = []
        for each in asked:
            result = each.result()
            results.append(result)
            told = f"WRONG: {result.wrong}" if result.wrong else f"{result.tokens} tokens"
            print(f"{result.outcome:8}{result.name}: {told}", flush=True)
    outcomes = Counter(result.outcome for result in results)
    tokens = sum(result.tokens for result in results)
    wrong = sum(bool(result.wrong) for result in results)
    print(
        f"{len(results)} schemas in {time.monotonic() - started:.0f} s, {tokens} tokens: "
        f"{', '.join(f'{count} {outcome}' for outcome, count in outcomes.most_common())}; {wrong} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
