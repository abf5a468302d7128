"""A loop on litellm, in a process of its own: python -S litellm_loop.py BASE_URL KEY KEEP, its packages on the path.

It keeps its history as litellm gives it, message objects or their dumps, and prints the last answer.
"""

import sys

import litellm

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": WEATHER}}


def play(base_url: str, key: str, keep: str) -> str:
    history = [{"role": "user", "content": "hi"}]
    for _ in range(9):
        reply = litellm.completion(
            model="openai/fake", api_base=base_url, api_key=key, messages=history, tools=[TOOL], max_retries=0
        )
        message = reply.choices[0].message
        history.append(message.model_dump() if keep == "dumped" else message)
        if not message.tool_calls:
            return message.content
        history += [{"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in message.tool_calls]
    raise RuntimeError("expected an answer without a call")


if __name__ == "__main__":
    print(play(*sys.argv[1:]))
