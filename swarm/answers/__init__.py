"""Answers: how a model writes thinking, words and tool calls, read back from the text it sampled."""

from swarm.answers.answer import (
    Answer,
    AnswerFormat,
    Piece,
    Reader,
    Reasoning,
    Thinking,
    ToolCall,
    Words,
    gathered,
    joined,
)
from swarm.answers.detect import detect
from swarm.answers.plain import PLAIN, PlainFormat

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
