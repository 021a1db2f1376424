"""The cache on a real store: hits and misses, who sees what, forgetting, expiry, faults."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from stretto.cache import cache as cache_module
from stretto.cache import cacheable_answer
from stretto.conversation.events import Done, Finish, ReasoningDelta, TextDelta, Usage
from stretto.errors import EngineError, NotFound, StoreError
from stretto.store import MICROSECONDS, Store
from support.cache_requests import BagEmbedder, FixedJudge, answered, asked, keep, look, open_cache, said

CLOSE = "How do I close my account?"
CLOSE_TOO = "How can I close my account?"
OPEN = "How do I open my account?"


async def test_the_same_again_is_a_hit_without_an_embedding(tmp_path: Path) -> None:
    embedder = BagEmbedder()
    async with open_cache(tmp_path, embedder=embedder) as cache:
        assert await keep(cache, asked(CLOSE), answered("Press the button.", 4))
        embedder.seen.clear()
        found = await look(cache, asked(CLOSE, stream=True))
        assert (found.outcome, found.match, found.similarity) == ("hit", "exact", None)
        assert found.answer == answered("Press the button.", 4)
        assert embedder.seen == []
        assert (await look(cache, asked(CLOSE + " "))).match == "semantic"


async def test_other_words_hit_and_another_meaning_does_not(tmp_path: Path) -> None:
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        await keep(cache, asked(CLOSE), answered("Press the button."))
        found = await look(cache, asked(CLOSE_TOO))
        assert (found.outcome, found.match) == ("hit", "semantic")
        assert found.similarity is not None
        assert 0.8 <= found.similarity < 1
        assert (await look(cache, asked(OPEN))).outcome == "miss"
        assert (await look(cache, asked("Zzz?"))).outcome == "miss"
        stats = cache.stats()
        assert (stats["semantic_hits"], stats["misses"]) == (1, 3)
        assert stats["refused"] == {"content": 1}


async def test_without_an_embedder_only_the_very_same_hits(tmp_path: Path) -> None:
    async with open_cache(tmp_path) as cache:
        await keep(cache, asked(CLOSE))
        assert (await look(cache, asked(CLOSE))).match == "exact"
        assert (await look(cache, asked(CLOSE_TOO))).outcome == "miss"


@pytest.mark.parametrize(
    ("probability", "outcome"), [(1.0, "hit"), (0.9, "hit"), (0.89, "miss"), (None, "miss")]
)
async def test_the_judge_has_the_last_word(tmp_path: Path, probability: float | None, outcome: str) -> None:
    judge = FixedJudge(probability)
    async with open_cache(tmp_path, embedder=BagEmbedder(), judge=judge, judge_threshold=0.9) as cache:
        await keep(cache, asked(CLOSE))
        assert (await look(cache, asked(CLOSE_TOO))).outcome == outcome
        assert judge.asked == [(CLOSE, CLOSE_TOO)]
        assert (await look(cache, asked(OPEN))).outcome == "miss"
        assert len(judge.asked) == 1  # the gate had refused it
        assert (await look(cache, asked(CLOSE))).outcome == "hit"
        assert len(judge.asked) == 1  # word for word, there is nothing to judge
        assert cache.stats()["faults"] == int(probability is None)


async def test_at_most_three_candidates_are_judged_and_the_first_good_one_is_taken(tmp_path: Path) -> None:
    judge = FixedJudge(0.0)
    async with open_cache(tmp_path, embedder=BagEmbedder(), judge=judge, judge_threshold=0.5) as cache:
        for words in ("How do I", "How can I", "How might I", "How could I", "How would I"):
            request = asked(f"{words} close my account?")
            assert await cache.keep(await look(cache, request), answered(words))
        judge.asked.clear()
        assert (await look(cache, asked("How to close my account?"))).outcome == "miss"
        assert len(judge.asked) == 3
        judge.probability = 1.0
        assert (await look(cache, asked("How to close my account?"))).outcome == "hit"
        assert len(judge.asked) == 4


@pytest.mark.parametrize(
    "other",
    [
        asked(CLOSE, tenant="b"),
        asked(CLOSE, said("system", "Be brief."), tenant="a"),
        asked(CLOSE, said("user", "Hi."), said("assistant", "Hello."), tenant="a"),
        asked(CLOSE, tenant="a", stop=("x",)),
    ],
)
async def test_everything_else_must_be_the_same(tmp_path: Path, other: object) -> None:
    async with open_cache(tmp_path, embedder=BagEmbedder(), threshold=0.0) as cache:
        await keep(cache, asked(CLOSE, tenant="a"))
        assert (await look(cache, other)).outcome == "miss"  # type: ignore[arg-type]


async def test_sessions_and_answers_made_without_memory_are_apart(tmp_path: Path) -> None:
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        for session in (None, "a", "b"):
            await keep(cache, asked(CLOSE), answered(f"of {session}"), session=session)
        for session in (None, "a", "b"):
            for question in (CLOSE, CLOSE_TOO):
                found = await look(cache, asked(question), session=session)
                assert found.answer is not None
                assert found.answer.text == f"of {session}"
        assert await cache.forget("", "a") == 1
        assert (await look(cache, asked(CLOSE), session="a")).outcome == "miss"
        assert (await look(cache, asked(CLOSE), session="b")).outcome == "hit"


async def test_an_answer_longer_than_asked_for_is_not_reused(tmp_path: Path) -> None:
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        await keep(cache, asked(CLOSE), answered(tokens=8))
        for question in (CLOSE, CLOSE_TOO):
            assert (await look(cache, asked(question), max_tokens=8)).outcome == "hit"
            assert (await look(cache, asked(question), max_tokens=7)).outcome == "miss"


async def test_modes(tmp_path: Path) -> None:
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        await keep(cache, asked(CLOSE), answered("old"))
        off = await look(cache, asked(CLOSE, cache="off"))
        assert (off.outcome, off.reason, off.answer) == ("bypass", "off", None)
        assert not await cache.keep(off, answered("never"))
        assert await keep(cache, asked(CLOSE, cache="refresh"), answered("new"))
        found = await look(cache, asked(CLOSE))
        assert found.answer is not None
        assert found.answer.text == "new"
        assert cache.stats()["entries"] == 1


async def test_it_outlives_the_process_and_not_its_fingerprint(tmp_path: Path) -> None:
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        await keep(cache, asked(CLOSE), answered("kept"))
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        for question in (CLOSE, CLOSE_TOO):
            found = await look(cache, asked(question))
            assert found.answer == answered("kept")
    async with open_cache(tmp_path, fingerprint="another", embedder=BagEmbedder()) as cache:
        assert (await look(cache, asked(CLOSE))).outcome == "miss"
    with sqlite3.connect(tmp_path / "stretto.db") as connection:
        assert connection.execute("SELECT count(*) FROM cache_answer").fetchone() == (0,)
    connection.close()


async def test_the_oldest_make_room(tmp_path: Path) -> None:
    async with open_cache(tmp_path, max_entries=3) as cache:
        for number in range(5):
            await keep(cache, asked(f"Question {number}?"))
        assert [(await look(cache, asked(f"Question {number}?"))).outcome for number in range(5)] == [
            "miss", "miss", "hit", "hit", "hit",
        ]  # fmt: skip
    async with open_cache(tmp_path, max_entries=1) as cache:
        assert cache.stats()["entries"] == 1
        assert (await look(cache, asked("Question 4?"))).outcome == "hit"


async def test_answers_expire_and_a_clock_set_back_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000 * MICROSECONDS
    monkeypatch.setattr(cache_module, "now_us", lambda: now)
    async with open_cache(tmp_path, embedder=BagEmbedder(), ttl_s=60) as cache:
        await keep(cache, asked(CLOSE), answered("old"))
        now += 60 * MICROSECONDS
        assert (await look(cache, asked(CLOSE))).outcome == "hit"
        now += 1
        for question in (CLOSE, CLOSE_TOO):
            assert (await look(cache, asked(question))).outcome == "miss"
        await keep(cache, asked(CLOSE), answered("new"))
        now -= 500_000 * MICROSECONDS
        found = await look(cache, asked(CLOSE))
        assert found.answer is not None
        assert found.answer.text == "new"
        now += 600_000 * MICROSECONDS
    async with open_cache(tmp_path, embedder=BagEmbedder(), ttl_s=60) as cache:
        assert cache.stats()["entries"] == 0


async def test_forgetting_is_for_the_tenant_alone_and_at_once(tmp_path: Path) -> None:
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        await keep(cache, asked(CLOSE, tenant="a"))
        await keep(cache, asked(OPEN, tenant="a"), session="s")
        await keep(cache, asked(CLOSE, tenant="b"))
        being_made = await look(cache, asked("Another?", tenant="a"))
        assert await cache.forget("a") == 2
        assert not await cache.keep(being_made, answered())  # made from what was to be forgotten
        assert (await look(cache, asked("Another?", tenant="a"))).outcome == "miss"
        assert (await look(cache, asked(CLOSE, tenant="b"))).outcome == "hit"
        assert await cache.clear() == 1
        assert cache.stats()["entries"] == 0
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        assert cache.stats()["entries"] == 0


async def test_what_could_not_be_deleted_is_given_no_more_and_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cache(tmp_path) as cache:
        await keep(cache, asked(CLOSE, tenant="a"))
        await keep(cache, asked(OPEN, tenant="a"), session="s")
        with monkeypatch.context() as broken:

            async def full(*_: object, **__: object) -> None:
                raise StoreError("The disk is full.", code="store_full", status=507)

            broken.setattr(Store, "write", full)
            with pytest.raises(StoreError):
                await cache.forget("a")
            await cache.session_changed("a", "s")  # never fails
            assert (await look(cache, asked(CLOSE, tenant="a"))).outcome == "miss"
        assert await cache.forget("a") == 0
    async with open_cache(tmp_path) as cache:
        assert cache.stats()["entries"] == 0  # and not back again


async def test_a_question_too_long_to_embed_is_kept_word_for_word(tmp_path: Path) -> None:
    long = "What does this mean: " + "x" * 300
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        await keep(cache, asked(long))
        assert (await look(cache, asked(long))).match == "exact"
        assert cache.stats()["semantic_entries"] == 0


async def test_faults_are_misses(tmp_path: Path) -> None:
    embedder = BagEmbedder(failure=EngineError("broken", code="embedding_failed"))
    async with open_cache(tmp_path, embedder=embedder) as cache:
        lookup = await look(cache, asked(CLOSE))
        assert lookup.outcome == "miss"
        assert not await cache.keep(lookup, answered())
        embedder.failure = None
        assert await keep(cache, asked(CLOSE))
    # The store is closed now.
    found = await look(cache, asked(CLOSE))
    assert found.outcome == "miss"
    assert not await cache.keep(found, answered())
    assert cache.stats()["faults"] == 4
    with pytest.raises(StoreError):
        await cache.clear()


async def test_entries_can_be_looked_at(tmp_path: Path) -> None:
    async with open_cache(tmp_path, embedder=BagEmbedder()) as cache:
        for number in range(5):
            await keep(
                cache, asked(f"Question {number}?", tenant="ab"[number % 2]), answered(f"Answer {number}.")
            )
        await look(cache, asked("Question 4?", tenant="a"))
        newest = await cache.page(limit=2)
        assert [(entry.question, hits) for entry, hits in newest] == [("Question 4?", 1), ("Question 3?", 0)]
        rest = await cache.page(before=newest[-1][0].id)
        assert [entry.question for entry, _ in rest] == ["Question 2?", "Question 1?", "Question 0?"]
        assert [entry.tenant for entry, _ in await cache.page(tenant="b")] == ["b", "b"]
        entry, hits = await cache.entry(newest[0][0].id)
        assert (entry.answer.text, entry.semantic, hits) == ("Answer 4.", True, 1)
        with pytest.raises(NotFound) as missing:
            await cache.entry(999)
        assert missing.value.code == "cache_entry_not_found"


def test_only_whole_plain_answers_are_kept() -> None:
    usage = Done(Usage(3, 2, 1))
    whole = [TextDelta(0, "So "), TextDelta(0, "it is."), Finish(0, "stop", "END"), usage]
    found = cacheable_answer(whole)
    assert found is not None
    assert (found.text, found.stop_string, found.prompt_tokens, found.completion_tokens) == (
        "So it is.",
        "END",
        3,
        2,
    )
    assert found.events() == (TextDelta(0, "So it is."), Finish(0, "stop", "END"), usage)
    assert cacheable_answer(whole[:-1]) is None
    assert cacheable_answer([TextDelta(0, "So"), Finish(0, "length"), usage]) is None
    assert cacheable_answer([TextDelta(0, " \n"), Finish(0, "stop"), usage]) is None
    assert cacheable_answer([ReasoningDelta(0, "Hm."), *whole]) is None


async def test_what_is_forgotten_while_it_is_judged_is_not_given(tmp_path: Path) -> None:
    class Slow(FixedJudge):
        async def same(self, request_id: str, cached: str, asked: str) -> float:
            assert await cache.forget("") == 1
            return 1.0

    async with open_cache(tmp_path, embedder=BagEmbedder(), judge=Slow(), judge_threshold=0.5) as cache:
        await keep(cache, asked(CLOSE))
        found = await look(cache, asked(CLOSE_TOO))
        assert (found.outcome, found.answer) == ("miss", None)
