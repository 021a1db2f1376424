"""Whether coding agents work against the daemon: one real turn of each, with a call of a tool.

Starts a daemon with the echo backend, which says what the user said, and gives each agent that is on PATH a prompt that is a call of one of
its own tools: to read a file with a secret in it. So the model calls the tool, the agent runs it and sends the result back, and the model
repeats the result as its last words. What the agent shows then has the secret within the tags that only the model's prompt puts around
results. An agent that edits by text instead (aider) is given an edit, which must then be in the file.

    python benchmarks/agents.py                      # all that are installed
    python benchmarks/agents.py codex opencode -v    # these; with what they showed
    python benchmarks/agents.py --url http://127.0.0.1:8080 --model qwen codex   # against a running daemon: only that the turn ends

Each agent gets a home and a directory of its own, and its configuration there; nothing of the user's is read or written. The same configurations
are in docs/clients.md. Ends with 1 if a turn failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CONTEXT_TOKENS = 400_000
"""The echo model's tokens are bytes, and the instructions of these agents take up to 100,000 of them."""
START_LIMIT_S = 120
TURN_LIMIT_S = 900
NOTE = "note.txt"


@dataclass(frozen=True)
class Place:
    """Where an agent runs and what it is to ask: its home, its directory, the daemon and the model."""

    home: Path
    work: Path
    url: str
    model: str

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Agent:
    """How to run a turn of it without a terminal.

    Attributes:
        package: where it comes from.
        command: its arguments; the prompt comes on standard input, or where ``{prompt}`` stands.
        tool: the name of the tool to be called, and its arguments; None for one that edits by text.
        configure: writes its configuration.
        environment: variables that it needs.
    """

    name: str
    package: str
    command: Callable[[Place], Sequence[str]]
    tool: Callable[[Place], tuple[str, Mapping[str, object]]] | None
    configure: Callable[[Place], None] = lambda place: None
    environment: Callable[[Place], Mapping[str, str]] = field(default=lambda place: {})


def _codex(place: Place) -> None:
    place.write(
        place.home / ".codex" / "config.toml",
        f'model = "{place.model}"\nmodel_provider = "stretto"\n\n[model_providers.stretto]\nname = "Stretto"\n'
        f'base_url = "{place.url}/v1"\nwire_api = "responses"\n',
    )


def _opencode(place: Place) -> None:
    settings = {
        "model": f"stretto/{place.model}",
        "small_model": f"stretto/{place.model}",
        "autoupdate": False,
        "provider": {
            "stretto": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Stretto",
                "options": {"baseURL": f"{place.url}/v1", "apiKey": "local"},
                "models": {place.model: {"limit": {"context": CONTEXT_TOKENS, "output": 8192}}},
            }
        },
    }
    place.write(place.work / "opencode.json", json.dumps(settings))


def _pi(place: Place) -> None:
    provider = {
        "baseUrl": f"{place.url}/v1",
        "api": "openai-completions",
        "apiKey": "local",
        "models": [{"id": place.model, "contextWindow": CONTEXT_TOKENS, "maxTokens": 8192}],
    }
    place.write(place.home / ".pi/agent/models.json", json.dumps({"providers": {"stretto": provider}}))


def _continue(place: Place) -> None:
    model = {
        "name": "Stretto",
        "provider": "openai",
        "model": place.model,
        "apiBase": f"{place.url}/v1",
        "apiKey": "local",
        "roles": ["chat"],
        "capabilities": ["tool_use"],
        "contextLength": CONTEXT_TOKENS,
    }
    # JSON is YAML.
    settings = {"name": "Local", "version": "1.0.0", "schema": "v1", "models": [model]}
    place.write(place.home / ".continue/config.yaml", json.dumps(settings))


def _shell(name: str, argument: str, **more: object) -> Callable[[Place], tuple[str, Mapping[str, object]]]:
    return lambda place: (name, {argument: f"cat {NOTE}", **more})


AGENTS = {
    agent.name: agent
    for agent in (
        Agent(
            "claude",
            "npm @anthropic-ai/claude-code",
            lambda place: ("claude", "-p", "--model", place.model, "--allowedTools=Read"),
            lambda place: ("Read", {"file_path": str(place.work / NOTE)}),
            environment=lambda place: {
                "ANTHROPIC_BASE_URL": place.url,
                "ANTHROPIC_AUTH_TOKEN": "local",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
        ),
        Agent(
            "codex",
            "npm @openai/codex",
            lambda place: ("codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "-"),
            _shell("exec_command", "cmd"),
            _codex,
        ),
        Agent(
            "opencode",
            "npm opencode-ai",
            lambda place: ("opencode", "run"),
            _shell("bash", "command", description="Reads the note"),
            _opencode,
        ),
        Agent(
            "pi",
            "npm @earendil-works/pi-coding-agent",
            lambda place: ("pi", "--offline", "--provider", "stretto", "--model", place.model, "-p", "{prompt}"),
            _shell("bash", "command"),
            _pi,
        ),
        Agent(
            "cn",
            "npm @continuedev/cli",
            lambda place: (
                "cn", "-p", "--config", str(place.home / ".continue/config.yaml"), "--allow", "Read", "{prompt}",
            ),
            lambda place: ("Read", {"filepath": str(place.work / NOTE)}),
            _continue,
        ),
        Agent(
            "aider",
            "PyPI aider-chat",
            lambda place: (
                "aider", "--model", f"openai/{place.model}", "--edit-format", "whole", "--no-git", "--yes-always",
                "--no-stream", "--no-check-update", "--no-show-model-warnings", "--analytics-disable", "--map-tokens", "0",
                "--message", "{prompt}", NOTE,
            ),
            None,
            environment=lambda place: {
                "OPENAI_API_BASE": f"{place.url}/v1", "OPENAI_API_KEY": "local", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """What an agent did: its exit status, what it showed, and what the daemon's log says of its requests."""

    status: int | None
    shown: str
    requests: int
    calls: int
    prompt_tokens: int
    done: bool


def take_turn(agent: Agent, url: str, model: str, log: Path | None) -> Turn:
    """One turn in directories of its own."""
    secret = f"secret-{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix=f"stretto-{agent.name}-") as directory:
        place = Place(Path(directory, "home"), Path(directory, "work"), url, model)
        place.home.mkdir()
        place.write(place.work / NOTE, f"{secret}\n")
        agent.configure(place)
        if agent.tool is None:
            secret = f"new-{secret}"
            prompt = f"{NOTE}\n```\n{secret}\n```\n"
        else:
            name, arguments = agent.tool(place)
            call = json.dumps({"name": name, "arguments": arguments})
            prompt = f"I look.\n<tool_call>\n{call}\n</tool_call>"
        before = 0 if log is None else log.stat().st_size
        status, shown = _run(agent, place, prompt)
        written = place.work.joinpath(NOTE).read_text(encoding="utf-8")
    said = "" if log is None else log.read_bytes()[before:].decode(errors="replace")
    ends = re.findall(r" completed prompt=(\d+) .*finish=(\w+)", said)
    calls = sum(reason == "tool_calls" for _, reason in ends)
    if log is None:
        done = status == 0
    elif agent.tool is None:
        done = secret in written
    else:
        result = re.search(rf"<tool_response>(?:(?!</tool_response>)[\s\S])*{secret}", shown)
        done = calls > 0 and result is not None
    return Turn(status, shown, len(ends), calls, max((int(tokens) for tokens, _ in ends), default=0), done)


def _run(agent: Agent, place: Place, prompt: str) -> tuple[int | None, str]:
    command = [prompt if word == "{prompt}" else word for word in agent.command(place)]
    # Settings of the user's own agents and of XDG directories would be read instead of ours.
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "TERM")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"HOME": str(place.home), "NO_COLOR": "1", **agent.environment(place)}
    try:
        ended = subprocess.run(
            command, cwd=place.work, env=environment, timeout=TURN_LIMIT_S, encoding="utf-8", errors="replace",
            input="" if prompt in command else prompt, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        shown = late.stdout or b""
        return None, shown if isinstance(shown, str) else shown.decode(errors="replace")
    return ended.returncode, ended.stdout


def version_of(agent: Agent) -> str:
    with tempfile.TemporaryDirectory() as home:
        ended = subprocess.run(
            [agent.name, "--version"], env={"PATH": os.environ["PATH"], "HOME": home}, capture_output=True,
            encoding="utf-8", timeout=START_LIMIT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    found = re.search(r"\d+(\.\d+)+", ended.stdout + ended.stderr)
    return found[0] if found else "unknown"


@contextmanager
def echo_daemon() -> Iterator[tuple[str, Path]]:
    """The URL of a daemon, and its log."""
    with tempfile.TemporaryDirectory(prefix="stretto-agents-") as directory:
        log = Path(directory, "log")
        command = [
            sys.executable, "-m", "stretto", "serve", "--port", "0", "--socket", f"{directory}/s.sock",
            "--state-dir", f"{directory}/state", "--backend", "echo", "--echo", f"context_tokens={CONTEXT_TOKENS}",
            "--model-alias", "*",
        ]  # fmt: skip
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
        try:
            assert process.stdout is not None
            ready = re.search(r"url=(\S+)", process.stdout.readline().decode())
            if ready is None:
                raise SystemExit(f"The daemon did not start:\n{log.read_text()}")
            yield ready[1], log
        finally:
            process.terminate()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="One turn of each coding agent against the daemon.")
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"of: {', '.join(AGENTS)}")
    parser.add_argument("--url", help="a running daemon, instead of one with the echo backend")
    parser.add_argument("--model", default="echo", help="the model's name there")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what each agent showed")
    options = parser.parse_args()
    unknown = set(options.agents) - set(AGENTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    wanted = [AGENTS[name] for name in options.agents or AGENTS]
    present = [agent for agent in wanted if shutil.which(agent.name)]
    for agent in wanted:
        if agent not in present:
            print(f"{agent.name}: not installed ({agent.package})")
    if options.url:
        return _all(present, options.url, options.model, None, options.verbose)
    with echo_daemon() as (url, log):
        return _all(present, url, options.model, log, options.verbose)


def _all(agents: Sequence[Agent], url: str, model: str, log: Path | None, verbose: bool) -> int:
    failed = 0
    for agent in agents:
        turn = take_turn(agent, url, model, log)
        failed += not turn.done
        ended = "ran out of time" if turn.status is None else f"ended with {turn.status}"
        what = "edited the file" if agent.tool is None else "result received and shown"
        print(
            f"{agent.name} {version_of(agent)}: {what if turn.done else 'FAILED'}; {ended}, {turn.requests} requests, "
            f"{turn.calls} that called a tool, prompts up to {turn.prompt_tokens} tokens",
            flush=True,
        )
        if verbose or not turn.done:
            print(turn.shown)
    return 1 if failed or not agents else 0


if __name__ == "__main__":
    sys.exit(main())
