"""The mended agent: the prompt the model was warm-started on, and a reward for the right sum."""


async def agent(episode):
    left, right = episode.task.data["left"], episode.task.data["right"]
    reply = await episode.chat([{"role": "user", "content": f"{left}+{right}"}])
    solved = reply.content.strip() == str(left + right)
    return float(solved), solved
