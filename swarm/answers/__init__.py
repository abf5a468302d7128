"""Answers: how a model writes thinking, words and tool calls, read back from the text it sampled."""

from swarm.answers.detect import detect
from swarm.answers.families.plain import PLAIN, PlainFormat
from swarm.answers.grammar.answer import (
    Answer,
    AnswerFormat,
    Piece,
    Reader,
    Reasoning,
    Thinking,
    ToolCall,
    Words,
    gathered,
)
from swarm.answers.grammar.reading import joined

__all__ = [
    "PLAIN",
    "Answer",
    "AnswerFormat",
    "Piece",
    "PlainFormat",
    "Reader",
    "Reasoning",
    "Thinking",
    "ToolCall",
    "Words",
    "detect",
    "gathered",
    "joined",
]
