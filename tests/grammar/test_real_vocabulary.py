"""Grammars over a real vocabulary: tokens that hold several characters, or part of one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from stretto.conversation import Constraint
from stretto.grammar import GrammarCompiler
from stretto.weights import load_tokenizer, open_model
from support.grammar_checks import check, longest_gap
from support.grammar_schemas import MODELS, Maker

pytestmark = pytest.mark.real_model


def test_random_tokens_of_the_real_vocabulary_give_valid_answers(smollm2_path: Path) -> None:
    source = open_model(smollm2_path)
    tokenizer = load_tokenizer(source)
    source.close()
    compiler = GrammarCompiler(tokenizer)
    rng = random.Random(1)
    closing = {
        token
        for token in range(tokenizer.vocab_size)
        if tokenizer.token_bytes(token) in (b'"', b"}", b"]", b'"}')
    }
    schemas = [model.model_json_schema() for model in MODELS] + [Maker(seed).object(0) for seed in range(20)]
    ended = 0
    for schema in schemas:
        grammar = compiler.compile(
            Constraint("json_schema", json.dumps(schema, ensure_ascii=False), "schema")
        )
        for _ in range(2):
            follower = grammar.follow()
            ids: list[int] = []
            while len(ids) < 200:
                allowed = follower.allowed()
                near = (
                    [token for token in allowed if token in closing]
                    if len(allowed) < 1000 or rng.random() < 0.5
                    else []
                )
                ids.append(int(rng.choice(near or allowed)))
                follower.accept(ids[-1])
                if ids[-1] in tokenizer.end_ids:
                    break
            data = b"".join(map(tokenizer.token_bytes, ids))
            assert longest_gap(data.decode(errors="replace")) <= 13
            if ids[-1] in tokenizer.end_ids:
                ended += 1
                check(schema, data.decode())
    assert ended > len(schemas)
