"""The credit ledger in the real daemon: money under parallel requests and kill -9, and the whole of it from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from click.testing import CliRunner, Result

import clientlib
from stretto.cli import main
from support.daemon import ECHO, RunningDaemon, daemon_command, daemon_environment, running
from support.http1 import chat, connect, exchange, exchange_json, read_until, request_bytes
from support.ledger_books import ADMIN_TOKEN, ALICE, BOB, require_balanced, reservations, usd, write_provider
from support.ledger_crash import House

ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
ENDLESS = ("--echo", "repeat=0,decode_delay_s=0.002,context_tokens=100000")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    directory = tmp_path_factory.mktemp("credits")
    flat = {"echo": {"pricing": {"prompt": "0.000001", "completion": "0.000002"}}}
    provider = write_provider(directory, models=flat)
    flags = (*ECHO, *ENDLESS, "--provider-config", str(provider), "--max-batch", "64", "--memory")
    with running(directory, *flags) as started:
        yield started
    require_balanced(directory / "state" / "stretto.db")


def key_named(daemon: RunningDaemon, label: str) -> dict[str, Any]:
    _, listed = exchange_json(daemon.socket, "GET", "/admin/credits")
    (found,) = [key for key in listed["data"] if key["label"] == label]
    return found


def settled(daemon: RunningDaemon, label: str) -> dict[str, Any]:
    """The key, once nothing is held for it."""
    while usd((found := key_named(daemon, label))["held"]):
        pass
    return found


def test_fifty_parallel_requests_on_credit_for_three(daemon: RunningDaemon) -> None:
    body = chat("a question", max_tokens=8)
    _, reply = exchange_json(daemon.port, "POST", "/v1/chat/completions", body, bearer(BOB))
    each = usd(str(reply["usage"]["cost"]))
    assert each == reply["usage"]["prompt_tokens"] * 10**6 + 8 * 2 * 10**6
    balance = f"{Decimal(each * 7 // 2).scaleb(-12):f}"  # three and a half
    _, made = exchange_json(daemon.socket, "POST", "/admin/credits", {"label": "three", "balance": balance})
    outcomes: list[tuple[int, Any]] = []
    gate = threading.Barrier(50)

    def ask(stream: bool) -> None:
        gate.wait(60)
        status, _, data = exchange(
            daemon.port, "POST", "/v1/chat/completions", {**body, "stream": stream}, bearer(made["key"])
        )
        outcomes.append((status, data))

    threads = [threading.Thread(target=ask, args=(number % 2 == 0,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(status for status, _ in outcomes) == [200] * 3 + [402] * 47
    assert all(
        json.loads(data)["error"]["code"] == "insufficient_credits"
        for status, data in outcomes
        if status == 402
    )
    key = settled(daemon, "three")
    assert usd(key["spent"]) == 3 * each
    assert usd(key["available"]) == each * 7 // 2 - 3 * each
    _, page = exchange_json(daemon.socket, "GET", f"/admin/credits/{key['id']}/ledger?holds=true")
    assert min(usd(entry["credit_after"]) for entry in page["data"]) >= 0


def test_kill_9_loses_nothing_and_charges_nothing_twice(tmp_path: Path) -> None:
    with House(tmp_path, seed=11) as house:
        daemon = house.start()
        for _ in range(3):
            house.kill_under_load(daemon)
            daemon = house.start()
            house.settle_doubts(daemon)
            counts = house.require_good_books(daemon)
            assert counts["acknowledged"] > 0
        assert daemon.stop() == 0
        require_balanced(house.store)


def test_hanging_up_costs_what_was_made(daemon: RunningDaemon) -> None:
    _, made = exchange_json(daemon.socket, "POST", "/admin/credits", {"label": "leaver", "balance": "1"})
    with connect(daemon.port) as sock:
        sock.sendall(request_bytes("POST", "/v1/chat/completions", chat(stream=True), bearer(made["key"])))
        received = b""
        while received.count(b'"content":"') < 6:
            received += sock.recv(4096)
    key = settled(daemon, "leaver")
    _, page = exchange_json(daemon.socket, "GET", f"/admin/credits/{key['id']}/ledger")
    entry = page["data"][0]
    request = entry["request"]
    assert (entry["kind"], request["ended"]) == ("settle", "cancelled")
    assert request["completion_tokens"] >= 5
    cost = request["prompt_tokens"] * 10**6 + request["completion_tokens"] * 2 * 10**6
    assert usd(key["spent"]) == cost == -usd(entry["amount"])


def test_two_tenants_see_nothing_of_each_other(daemon: RunningDaemon) -> None:
    alice, bob = key_named(daemon, "Alice"), key_named(daemon, "Bob")
    secret = "the password is swordfish"
    exchange_json(daemon.port, "POST", "/v1/memory", {"text": secret}, bearer(ALICE))
    assert exchange_json(daemon.port, "GET", "/v1/memory", None, bearer(ALICE))[1]["data"]
    tricks: list[dict[str, str]] = [
        {},
        {"X-Stretto-Session": "default"},
        {"X-Stretto-Tenant": alice["id"]},
        {"X-Fuuga-Tenant": alice["id"]},
        {"X-Api-Key": BOB, "X-Stretto-Session": "work"},
    ]
    for trick in tricks:
        headers = {**bearer(BOB), **trick}
        for target in ("/v1/memory", "/v1/credits"):
            status, _, data = exchange(daemon.port, "GET", target, None, headers)
            assert status == 200
            assert b"swordfish" not in data
            assert alice["id"].encode() not in data
            assert b"Alice" not in data
    for target in (
        "/admin/credits",
        f"/admin/credits/{alice['id']}",
        f"/admin/credits/{alice['id']}/ledger",
        f"/admin/credits/{bob['id']}",
    ):
        assert exchange_json(daemon.port, "GET", target, None, bearer(BOB))[0] == 401
    for target in ("/admin/memory", "/admin/memory/sessions", "/admin/status", "/admin/requests"):
        assert exchange_json(daemon.port, "GET", target, None, bearer(BOB))[0] == 404
        assert exchange_json(daemon.port, "GET", target, None, ADMIN)[0] == 404


def test_official_clients_see_the_cost_and_the_refusal(daemon: RunningDaemon) -> None:
    _, made = exchange_json(
        daemon.socket, "POST", "/admin/credits", {"label": "official", "balance": "0.0005"}
    )
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=made["key"], max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        reply = client.chat.completions.create(model="echo", messages=messages, max_tokens=8)
        assert reply.usage is not None
        cost = reply.usage.prompt_tokens * 1e-6 + reply.usage.completion_tokens * 2e-6
        assert reply.usage.model_extra is not None
        assert reply.usage.model_extra["cost"] == pytest.approx(cost)
        chunks = list(
            client.chat.completions.create(
                model="echo",
                messages=messages,
                max_tokens=8,
                stream=True,
                extra_body={"usage": {"include": True}},
            )
        )
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.model_extra is not None
        assert chunks[-1].usage.model_extra["cost"] == pytest.approx(cost)
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="echo", messages=messages, max_tokens=1000)
    assert (caught.value.status_code, caught.value.code) == (402, "insufficient_credits")
    with clientlib.Client(base_url=daemon.url, api_key=made["key"]) as ours:
        with pytest.raises(clientlib.InsufficientCredits, match="lower max_tokens to"):
            ours.generate("hello", max_tokens=1000)
    status, body = exchange_json(
        daemon.port,
        "POST",
        "/v1/messages",
        {"model": "echo", "max_tokens": 1000, "messages": messages},
        {"x-api-key": made["key"], "anthropic-version": "2023-06-01"},
    )
    assert (status, body["error"]["type"]) == (402, "billing_error")


def test_the_socket_is_the_owners_and_free(daemon: RunningDaemon) -> None:
    before = exchange_json(daemon.socket, "GET", "/admin/credits")[1]["accounts"]["spent"]
    status, reply = exchange_json(daemon.socket, "POST", "/v1/chat/completions", chat(max_tokens=4))
    assert (status, "cost" in reply["usage"]) == (200, False)
    assert exchange_json(daemon.socket, "GET", "/admin/credits")[1]["accounts"]["spent"] == before


# The command line and clientlib ------------------------------------------------------------------------------------------


@pytest.fixture
def run(daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for name in [name for name in os.environ if name.startswith("STRETTO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STRETTO_SOCKET", str(daemon.socket))

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(main, ["credits", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def test_the_command_line_from_a_new_key_to_its_end(
    daemon: RunningDaemon, run: Callable[..., Result]
) -> None:
    made = run("create", "--label", "Dora", "--balance", "2")
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert secret.startswith("sk-stretto-")
    assert "not shown again" in made.stderr
    key = key_named(daemon, "Dora")["id"]
    exchange_json(daemon.port, "POST", "/v1/chat/completions", chat(max_tokens=8), bearer(secret))
    assert run("topup", key, "3.5", "--idempotency-key", "inv-1", "--note", "invoice 1").stdout.startswith(
        "done, entry "
    )
    assert run("topup", key, "3.5", "--idempotency-key", "inv-1", "--note", "invoice 1").stdout.startswith(
        "was done before"
    )
    assert run("adjust", key, "-0.5", "--note", "paid back").exit_code == 0
    lines = run("ledger", key).stdout.splitlines()
    assert lines[0].split() == ["ENTRY", "AT", "KIND", "AMOUNT", "CREDIT", "TOKENS", "FOR"]
    assert [line.split()[3] for line in lines[1:]] == ["adjust", "topup", "settle", "topup"]
    assert lines[1].endswith("paid back")
    assert lines[2].endswith("invoice 1")
    assert lines[3].endswith("(finished)")
    older = run("ledger", key, "--limit", "2", "--holds")
    assert "older ones: --before " in older.stderr
    (row,) = [line for line in run("list").stdout.splitlines() if "Dora" in line]
    assert row.split()[0] == key
    assert row.endswith("good")
    shown = run("show", key).stdout
    assert f"sk-stretto-…{secret[-4:]}" in shown
    assert secret not in shown
    assert "revoked" in run("revoke", key).stdout
    assert exchange_json(daemon.port, "GET", "/v1/models", None, bearer(secret))[0] == 401


def test_the_command_line_speaks_json(daemon: RunningDaemon, run: Callable[..., Result]) -> None:
    made = json.loads(run("create", "--label", "Emil", "--idempotency-key", "e", "--json").stdout)
    assert made["key"].startswith("sk-stretto-")
    assert json.loads(run("create", "--label", "Emil", "--idempotency-key", "e", "--json").stdout) == {
        **made,
        "key": None,
    }
    assert "made before" in run("create", "--label", "Emil", "--idempotency-key", "e").stderr
    assert json.loads(run("topup", made["id"], "1", "--json").stdout)["key"]["available"] == "1.00"
    assert json.loads(run("adjust", made["id"], "-1", "--json").stdout)["key"]["available"] == "0.00"
    assert json.loads(run("show", made["id"], "--json").stdout)["label"] == "Emil"
    assert [entry["kind"] for entry in json.loads(run("ledger", made["id"], "--json").stdout)["data"]] == [
        "adjust",
        "topup",
    ]
    assert any(key["id"] == made["id"] for key in json.loads(run("list", "--json").stdout))
    assert json.loads(run("revoke", made["id"], "--json").stdout)["revoked_at"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "key_none"], "There is no key 'key_none' in the ledger."),
        (["topup", "key_none", "five"], "'amount' is \"five\""),
        (["create", "--plan", "gold"], "There are no prices of the plan 'gold'"),
        (["create", "--balance", "2000000"], "a key has at most $1000000.00"),
    ],
)
def test_the_command_line_passes_refusals_on(
    run: Callable[..., Result], arguments: list[str], said: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert said in result.stderr


def test_clientlib_administers_over_tcp_with_the_token(daemon: RunningDaemon) -> None:
    with clientlib.Client(base_url=daemon.url, api_key=ADMIN_TOKEN) as client:
        made = client.admin.credits.create(label="Fred", balance="1")
        assert client.admin.credits.topup(made["id"], Decimal("0.5"))["key"]["available"] == "1.50"
        assert sum(Decimal(amount) for amount in client.admin.credits.accounts().values()) == 0
        with pytest.raises(clientlib.AuthenticationError):
            client.generate("hello", model="echo")  # the token is no key


# Starting ----------------------------------------------------------------------------------------------------------------


def start(directory: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """A daemon that is expected not to start."""
    command = daemon_command(
        "--port",
        "0",
        "--socket",
        str(directory / "s.sock"),
        "--state-dir",
        str(directory / "state"),
        *ECHO,
        *flags,
    )
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=daemon_environment(), check=False
    )


def test_a_truncated_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    provider = ("--provider-config", str(write_provider(tmp_path)))
    with running(tmp_path, *ECHO, *provider) as daemon:
        exchange_json(daemon.port, "POST", "/v1/chat/completions", chat(), bearer(ALICE))
    path = tmp_path / "state" / "stretto.db"
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 4096)
    ended = start(tmp_path, *provider)
    assert ended.returncode == 1
    assert f"The store {path} is damaged" in ended.stderr
    assert path.read_bytes() == whole[:-4096]
    assert ended.stdout == ""
    path.write_bytes(whole)
    require_balanced(path)
    assert {state for state, _, _ in reservations(path).values()} == {"settled"}


def test_a_provider_file_that_promises_too_much_stops_the_start(tmp_path: Path) -> None:
    free = {"prompt": "0", "completion": "0"}
    write_provider(tmp_path, models={"echo": {"pricing": free, "context_length": 10**6}})
    ended = start(tmp_path, "--provider-config", str(tmp_path / "provider.json"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "models.echo.context_length is 1000000, and this daemon has 4096 tokens" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_key_token_or_label_is_in_the_log(daemon: RunningDaemon) -> None:
    with connect(daemon.port) as sock:
        sock.sendall(
            request_bytes("POST", "/v1/chat/completions", chat(stream=True, max_tokens=3), bearer(ALICE))
        )
        read_until(sock, b"[DONE]")
    exchange_json(
        daemon.port, "GET", "/admin/credits", None, {"Authorization": "Bearer wrong-token-wrong-token"}
    )
    for secret in (ALICE, BOB, ADMIN_TOKEN, "wrong-token", "swordfish", "Alice"):
        assert secret not in daemon.log
