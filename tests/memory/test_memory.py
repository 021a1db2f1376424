"""What is remembered, what is recalled, and for whom."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stretto.errors import InvalidRequest, NotFound
from stretto.memory import NOTE_CHARS, RECALL_CHARS, SCHEMA, TURN_CHARS, Recollection, SessionMemory, entries
from stretto.memory.words import words
from stretto.store import Store, check
from support.memory_bm25 import bm25

ME = ("", "default")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await Store.open(tmp_path / "stretto.db", [SCHEMA]) as opened:
        yield opened
        report = check(opened.path, [SCHEMA])
    assert report.problems == ()


@pytest.fixture
def memory(store: Store) -> SessionMemory:
    return SessionMemory(store, top_k=4, max_entries=100)


def said(recollection: Recollection | None) -> list[str]:
    """User messages of the recalled exchanges, most relevant last, as they stand in the prompt."""
    return [] if recollection is None else [entry.text for entry in recollection.exchanges]


async def test_an_exchange_that_shares_a_word_is_recalled(memory: SessionMemory) -> None:
    await memory.record(*ME, "My cat is called Miso.", "What a lovely name!")
    await memory.record(*ME, "What is the capital of Peru?", "Lima.")
    recollection = await memory.recall(*ME, "How old do cats, or a CAT, become?")
    assert recollection is not None
    assert said(recollection) == ["My cat is called Miso."]
    assert recollection.text == (
        "From earlier conversations:\n\nUser: My cat is called Miso.\nAssistant: What a lovely name!"
    )


@pytest.mark.parametrize(
    "asked", ["What is the name of it, and how was that?", "", "!!!", '" OR 1', "NOT AND OR", "lovely*"]
)
async def test_nothing_is_recalled_by_words_that_mean_nothing(memory: SessionMemory, asked: str) -> None:
    await memory.record(
        *ME, "What is the capital of Peru?", "It is the city of Lima, and that is how it was."
    )
    assert await memory.recall(*ME, asked) is None


async def test_words_of_an_answer_count_too(memory: SessionMemory) -> None:
    await memory.record(*ME, "Name a city.", "Lima in Peru.")
    assert said(await memory.recall(*ME, "Tell me of Peru")) == ["Name a city."]


async def test_a_word_that_most_exchanges_have_recalls_nothing(memory: SessionMemory) -> None:
    for number in range(60):
        await memory.record(*ME, f"Ticket {number}: printer{number} is broken", "Noted.")
    assert await memory.recall(*ME, "Which ticket is broken?") is None
    assert said(await memory.recall(*ME, "Is ticket printer7 broken?")) == ["Ticket 7: printer7 is broken"]


async def test_in_a_large_session_words_are_weighed_by_what_is_newest(store: Store) -> None:
    def fill(connection: sqlite3.Connection) -> None:
        for number in range(1500):
            kind = (
                "ticket" if number % 3 else "ticket printer"
            )  # all have one word, a third the other, which is too many
            rare = " scanner" if number % 6 == 0 else ""  # 250 have it, which is not
            entries.add_exchange(connection, *ME, f"{kind}{rare} item{number}", "yes", 2000)

    await store.write(fill)
    memory = SessionMemory(store, top_k=3, max_entries=2000)
    assert await memory.recall(*ME, "ticket printer") is None
    newest = [
        "ticket printer scanner item1482",
        "ticket printer scanner item1488",
        "ticket printer scanner item1494",
    ]
    assert said(await memory.recall(*ME, "scanner")) == newest
    assert said(await memory.recall(*ME, "scanner item6"))[-1] == "ticket printer scanner item6"
    for number in range(300):
        await memory.record("t2", "default", f"scanner {number}", "yes")
    assert said(await memory.recall(*ME, "scanner")) == newest


async def test_the_order_is_that_of_bm25(store: Store) -> None:
    draw = random.Random(3)
    vocabulary = [f"word{number}" for number in range(60)]
    weights = [1 / (1 + rank) for rank in range(60)]
    memory = SessionMemory(store, top_k=5, max_entries=100)
    documents = [" ".join(draw.choices(vocabulary, weights, k=draw.randrange(3, 30))) for _ in range(30)]
    for number, document in enumerate(documents):
        await memory.record(*ME, f"q{number:02} {document}", "yes")
    seen = [words(f"q{number:02} {document}\nyes") for number, document in enumerate(documents)]
    compared = 0
    for _ in range(40):
        asked = draw.sample(vocabulary, 4)
        rare = [word for word in asked if sum(word in each for each in seen) <= 8]
        scores = bm25(seen, rare)
        expected = sorted((n for n in range(30) if scores[n] > 0), key=lambda n: (scores[n], n), reverse=True)
        recollection = await memory.recall(*ME, " ".join(asked))
        found = [int(text[1:3]) for text in said(recollection)][::-1]
        assert found == expected[:5]
        compared += len(found)
    assert compared > 50


async def test_both_sides_are_cut_and_what_cannot_be_stored_is_replaced(memory: SessionMemory) -> None:
    await memory.record(*ME, "é" * 999 + "zebra", "\ud800 stripes " + "x" * 2000)
    (entry,) = await memory.page(*ME)
    assert entry.text == "é" * 999 + "z"
    assert entry.answer is not None
    assert (entry.answer[:9], len(entry.answer)) == ("\ufffd\ufffd\ufffd strip"[:9], TURN_CHARS)
    assert said(await memory.recall(*ME, "stripes \udfff")) == [entry.text]


async def test_notes_are_always_recalled_and_come_first(memory: SessionMemory) -> None:
    await memory.record(*ME, "Where is Lima?", "In Peru.")
    for text in ("The user is called Ada.", "Answer in French."):
        await memory.add_note(*ME, text)
    recollection = await memory.recall(*ME, "And Lima?")
    assert recollection is not None
    assert recollection.text == (
        "Notes to keep in mind:\n- The user is called Ada.\n- Answer in French.\n\n"
        "From earlier conversations:\n\nUser: Where is Lima?\nAssistant: In Peru."
    )
    unrelated = await memory.recall(*ME, "Hello")
    assert unrelated is not None
    assert (len(unrelated.notes), unrelated.exchanges) == (2, ())


async def test_the_budget_holds_and_nothing_in_it_is_cut(memory: SessionMemory) -> None:
    for number in range(3):
        await memory.add_note(*ME, str(number) * (NOTE_CHARS - 100))
    for number in range(4):
        await memory.record(*ME, f"zebra {number}", "x" * (300 if number < 3 else 60))
    recollection = await memory.recall(*ME, "zebra")
    assert recollection is not None
    assert len(recollection.text) <= RECALL_CHARS
    assert [note.text[0] for note in recollection.notes] == ["1", "2"]  # the newest
    assert said(recollection) == ["zebra 3"]  # the one that fits
    for entry in (*recollection.notes, *recollection.exchanges):
        assert entry.text in recollection.text
    notes = [entry for entry in await memory.page(*ME) if entry.kind == "note"]
    assert await memory.in_context(*ME) == {note.id for note in notes[1:]}


async def test_at_most_top_k_and_the_newest_of_equals(store: Store) -> None:
    memory = SessionMemory(store, top_k=2, max_entries=100)
    for number in range(6):
        await memory.record(*ME, f"zebra a{number}", "yes")
    assert said(await memory.recall(*ME, "zebra")) == ["zebra a4", "zebra a5"]
    assert await SessionMemory(store, top_k=0, max_entries=100).recall(*ME, "zebra") is None


async def test_what_the_conversation_has_anyway_is_not_recalled(memory: SessionMemory) -> None:
    for text in ("zebra one", "zebra two " + "y" * 2000, "zebra three"):
        await memory.record(*ME, text, "yes")
    present = ["zebra two " + "y" * 2000, "zebra three"]
    assert said(await memory.recall(*ME, "zebra", present)) == ["zebra one"]


async def test_an_exchange_said_twice_is_remembered_and_recalled_once(memory: SessionMemory) -> None:
    assert await memory.record(*ME, "zebra", "yes")
    assert not await memory.record(*ME, "zebra", "yes")  # a client that asked the same again
    assert await memory.record(*ME, "zebra", "no")
    recollection = await memory.recall(*ME, "zebra")
    assert recollection is not None
    assert [entry.answer for entry in recollection.exchanges] == ["no"]


async def test_sessions_and_tenants_are_apart(memory: SessionMemory) -> None:
    places = [("", "default"), ("", "work"), ("t1", "default"), ("t1", "work"), ("t2", "default")]
    for tenant, session in places:
        await memory.record(tenant, session, f"zebra of {tenant}/{session}", "yes")
        await memory.add_note(tenant, session, f"note of {tenant}/{session}")
    for tenant, session in places:
        recollection = await memory.recall(tenant, session, "zebra note")
        assert said(recollection) == [f"zebra of {tenant}/{session}"]
        assert recollection is not None
        assert [note.text for note in recollection.notes] == [f"note of {tenant}/{session}"]
        assert len(await memory.page(tenant, session)) == 2
    (own, _) = await memory.page("t1", "default")
    for tenant, session in places:
        if (tenant, session) != ("t1", "default"):
            with pytest.raises(NotFound):
                await memory.forget(tenant, session, own.id)
            with pytest.raises(NotFound):
                await memory.page(tenant, session, after=own.id)
    assert await memory.forget_all("t1", "default") == 2
    assert [count.session for count in await memory.sessions()] == ["default", "work", "work", "default"]
    assert await memory.recall("t1", "default", "zebra") is None
    assert await memory.recall("nobody", "default", "zebra") is None


async def test_what_others_remember_changes_nothing(memory: SessionMemory) -> None:
    for number in range(9):
        await memory.record("t1", "default", f"zebra {number} " + "stripe " * number, "yes")
    before = await memory.recall("t1", "default", "zebra stripe")
    for number in range(100):
        await memory.record("t2", "default", f"zebra stripe {number}", "yes")
    assert await memory.recall("t1", "default", "zebra stripe") == before


async def test_the_oldest_exchanges_make_room_and_notes_never_do(store: Store) -> None:
    memory = SessionMemory(store, top_k=4, max_entries=4)
    await memory.add_note(*ME, "note 0")
    for number in range(5):
        await memory.record(*ME, f"zebra {number}", "yes")
    assert [entry.text for entry in await memory.page(*ME)] == ["note 0", "zebra 2", "zebra 3", "zebra 4"]
    for number in range(1, 4):
        await memory.add_note(*ME, f"note {number}")
    assert [entry.text for entry in await memory.page(*ME)] == ["note 0", "note 1", "note 2", "note 3"]
    assert not await memory.record(*ME, "zebra 9", "yes")
    with pytest.raises(InvalidRequest) as caught:
        await memory.add_note(*ME, "one more")
    assert (caught.value.code, caught.value.status) == ("memory_full", 400)
    assert len(await memory.page(*ME)) == 4


async def test_a_limit_that_was_lowered_is_reached_by_and_by(store: Store) -> None:
    wide = SessionMemory(store, top_k=4, max_entries=1000)
    for number in range(450):
        await wide.record(*ME, f"zebra {number}", "yes")
    narrow = SessionMemory(store, top_k=4, max_entries=10)
    for number in range(3):
        await narrow.record(*ME, f"lion {number}", "yes")
    kept = [entry.text for entry in await narrow.page(*ME)]
    assert len(kept) == 10
    assert kept[-3:] == ["lion 0", "lion 1", "lion 2"]


@pytest.mark.parametrize("text", ["", "  \n", "x" * (NOTE_CHARS + 1)])
async def test_notes_that_are_refused(memory: SessionMemory, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await memory.add_note(*ME, text)
    assert caught.value.param == "text"
    assert await memory.sessions() == []


async def test_pages(memory: SessionMemory) -> None:
    ids = [(await memory.add_note(*ME, f"note {number}")).id for number in range(7)]
    first = await memory.page(*ME, limit=3)
    second = await memory.page(*ME, after=first[-1].id, limit=3)
    third = await memory.page(*ME, after=second[-1].id, limit=3)
    assert [entry.id for entry in (*first, *second, *third)] == ids
    assert await memory.page(*ME, after=ids[-1]) == []
    for wrong in ("mem_0000000000000000", "mem_x", "", "mem_ffffffffffffffff"):
        with pytest.raises(NotFound) as caught:
            await memory.page(*ME, after=wrong)
        assert caught.value.code == "memory_not_found"


async def test_forgetting_one_entry(memory: SessionMemory) -> None:
    await memory.record(*ME, "zebra one", "yes")
    await memory.record(*ME, "zebra two", "yes")
    one = (await memory.page(*ME))[0]
    await memory.forget(*ME, one.id)
    assert said(await memory.recall(*ME, "zebra one")) == ["zebra two"]
    with pytest.raises(NotFound):
        await memory.forget(*ME, one.id)


async def test_a_session_that_was_half_forgotten_is_out_of_reach_and_goes_at_the_next_start(
    store: Store, memory: SessionMemory
) -> None:
    for number in range(20):
        await memory.record(*ME, f"zebra {number}", "yes")
    # What a process that died right after the first step leaves behind.
    assert await store.write(lambda connection: entries.detach(connection, *ME)) == 20
    assert await memory.recall(*ME, "zebra") is None
    assert await memory.page(*ME) == []
    await memory.record(*ME, "lion", "yes")
    await memory.purge()
    assert await store.read(lambda c: c.execute("SELECT count(*) FROM memory_entry").fetchone()) == (1,)
    assert [entry.text for entry in await memory.page(*ME)] == ["lion"]


async def test_forgetting_many_takes_several_steps(store: Store) -> None:
    memory = SessionMemory(store, top_k=4, max_entries=2000)

    def fill(connection: sqlite3.Connection) -> None:
        for number in range(1200):
            entries.add_exchange(connection, *ME, f"zebra {number}", "yes", 2000)

    await store.write(fill)
    assert await memory.forget_all(*ME) == 1200
    for table in ("memory_session", "memory_entry"):
        query = f"SELECT count(*) FROM {table}"
        assert await store.read(lambda c, query=query: c.execute(query).fetchone()) == (0,)  # type: ignore[misc]
    assert await memory.forget_all(*ME) == 0


async def test_a_clock_that_is_set_back_changes_no_order(
    memory: SessionMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = iter([9_000_000, 5_000_000, 1_000_000])
    monkeypatch.setattr(entries, "now_us", lambda: next(stamps, 0))
    for number in range(3):
        await memory.add_note(*ME, f"note {number}")
    assert [entry.text for entry in await memory.page(*ME)] == ["note 0", "note 1", "note 2"]
    recollection = await memory.recall(*ME, "x")
    assert recollection is not None
    assert recollection.text.endswith("\n- note 0\n- note 1\n- note 2")


async def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    async with await Store.open(path, [SCHEMA]) as store:
        await SessionMemory(store, top_k=4, max_entries=10).record(*ME, "zebra", "yes")
    async with await Store.open(path, [SCHEMA]) as store:
        assert said(await SessionMemory(store, top_k=4, max_entries=10).recall(*ME, "zebra")) == ["zebra"]
