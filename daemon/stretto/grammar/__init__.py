"""Grammars: from what a request wants its answer to keep to, to which tokens may come next. Pure, no I/O."""

from __future__ import annotations

from stretto.grammar.compiler import CompiledGrammar, GrammarCompiler
from stretto.grammar.follower import GrammarFollower

__all__ = ["CompiledGrammar", "GrammarCompiler", "GrammarFollower"]
