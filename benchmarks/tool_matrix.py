"""Every form of ``tool_choice`` against a running daemon: do the finish reason and the body agree?

Asks with each choice (auto, none, required, a named function), streamed and not, with a question that wants a function and one that does
not, several times with different seeds. ``finish_reason`` must be ``tool_calls`` exactly where there are whole calls (or ``length`` where the
limit cut it off), forced calls must be there, arguments must be valid by the ``jsonschema`` package. Prints a table; ends with 1 if
anything disagrees.

    stretto serve --backend native &
    python benchmarks/tool_matrix.py --url http://127.0.0.1:8080 --seeds 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jsonschema

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city"],
}
CLOCK: dict[str, Any] = {"type": "object", "properties": {}}
PARAMETERS = {"get_weather": WEATHER, "clock": CLOCK}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city, today or for some days.",
            "parameters": WEATHER,
        },
    },
    {"type": "function", "function": {"name": "clock", "description": "The time now.", "parameters": CLOCK}},
]
CHOICES: dict[str, Any] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "named": {"type": "function", "function": {"name": "get_weather"}},
}
QUESTIONS = {"wants": "What is the weather in London?", "does not": "Say hello to my friend Ann."}
_LIMIT_S = 600


@dataclass
class Answer:
    """What came back, streamed or not."""

    reason: str = ""
    text: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)


def open_reply(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=_LIMIT_S)


def served(url: str) -> str:
    """The first model that the daemon lists."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=_LIMIT_S) as reply:
        return str(json.load(reply)["data"][0]["id"])


def ask(
    url: str, model: str, choice: Any, question: str, *, stream: bool, seed: int, max_tokens: int
) -> Answer:
    """One request."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "tools": TOOLS,
        "tool_choice": choice,
        "stream": stream,
        "max_tokens": max_tokens,
        **({"temperature": 0} if not seed else {"temperature": 0.8, "seed": seed}),
    }
    with open_reply(url, body) as reply:
        if not stream:
            message = json.load(reply)["choices"][0]
            calls = [call["function"] for call in message["message"].get("tool_calls") or ()]
            return Answer(message["finish_reason"], message["message"]["content"] or "", calls)
        answer = Answer()
        for chunk in chunks(reply):
            for part in chunk["choices"]:
                answer.reason = part["finish_reason"] or answer.reason
                answer.text += part["delta"].get("content") or ""
                for call in part["delta"].get("tool_calls") or ():
                    function = call["function"]
                    if "name" in function:
                        answer.calls.append({"name": function["name"], "arguments": ""})
                    answer.calls[call["index"]]["arguments"] += function.get("arguments") or ""
        return answer


def chunks(reply: Any) -> Iterator[Any]:
    """The JSON of a stream's events."""
    for line in reply:
        data = line.decode().strip().removeprefix("data: ")
        if data.startswith("{"):
            yield json.loads(data)


def faults(choice: str, answer: Answer) -> Iterator[str]:
    """What does not agree."""
    if answer.reason == "length":
        return
    if (answer.reason == "tool_calls") is not bool(answer.calls):
        yield f"{answer.reason} with {len(answer.calls)} calls"
    if choice == "none" and answer.calls:
        yield "a call that was not wanted"
    if choice in ("required", "named") and not answer.calls:
        yield "no call"
    if choice in ("required", "named") and answer.text:
        yield f"text beside calls: {answer.text[:60]!r}"
    if choice == "named" and [call["name"] for call in answer.calls] != ["get_weather"]:
        yield f"calls of {[call['name'] for call in answer.calls]}"
    if not answer.calls and not answer.text:
        yield "nothing at all"
    for call in answer.calls:
        try:
            jsonschema.validate(json.loads(call["arguments"]), PARAMETERS[call["name"]])
        except (ValueError, KeyError, jsonschema.ValidationError) as error:
            yield f"{call['name']}({call['arguments'][:80]}): {str(error).splitlines()[0]}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--seeds", type=int, default=3, help="the first is greedy")
    parser.add_argument("--max-tokens", type=int, default=100)
    args = parser.parse_args()
    wrong, model = 0, served(args.url)
    print(f"{'tool_choice':12}{'question':10}{'sent':8}{'finish reasons':34}calls")
    for name, asked, stream in itertools.product(CHOICES, QUESTIONS, (False, True)):
        reasons: Counter[str] = Counter()
        called: Counter[str] = Counter()
        found = []
        for seed in range(args.seeds):
            answer = ask(
                args.url,
                model,
                CHOICES[name],
                QUESTIONS[asked],
                stream=stream,
                seed=seed,
                max_tokens=args.max_tokens,
            )
            reasons[answer.reason] += 1
            called.update(call["name"] for call in answer.calls)
            found += list(faults(name, answer))
        wrong += len(found)
        row = f"{name:12}{asked:10}{'stream' if stream else 'whole':8}{show(reasons):34}{show(called)}"
        print(row, *(f"\n    WRONG: {fault}" for fault in found), flush=True)
    print(f"{len(CHOICES) * len(QUESTIONS) * 2 * args.seeds} answers, {wrong} wrong")
    return 1 if wrong else 0


def show(counts: Counter[str]) -> str:
    """Counts on one line."""
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "–"


if __name__ == "__main__":
    sys.exit(main())
