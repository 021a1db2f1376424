"""Grammars: from what a request wants its answer to keep to, to which tokens may come next. Pure, no I/O."""

from __future__ import annotations

from stretto.grammar.answer_follower import AnswerFollower
from stretto.grammar.compiler import CompiledAnswer, CompiledGrammar, GrammarCompiler
from stretto.grammar.follower import GrammarFollower
from stretto.grammar.rules import AnswerRules

__all__ = [
    "AnswerFollower",
    "AnswerRules",
    "CompiledAnswer",
    "CompiledGrammar",
    "GrammarCompiler",
    "GrammarFollower",
]
