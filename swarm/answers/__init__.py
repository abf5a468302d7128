"""Answers: how a model writes thinking, words and tool calls, read back from the text it sampled.

May enter: the text of answers, without ids; in this folder only which format is whose. One format's own code is in
`families`, what formats share in `grammar`; chat templates and tokenizers are in `swarm.backends.rendering`.
"""

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
    chat_message,
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
    "chat_message",
    "detect",
    "gathered",
    "joined",
]
