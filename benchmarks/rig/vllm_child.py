"""Run by the Python of an environment with vLLM: reads lists of requests from stdin, writes answers and seconds.

python vllm_child.py MODEL SEQUENCES CONTEXT
"""

from __future__ import annotations

import json
import sys
import time

from vllm import LLM, SamplingParams


def main(model: str, sequences: int, context: int) -> None:
    """Serve until stdin ends."""
    llm = LLM(
        model, skip_tokenizer_init=True, dtype="float32", max_model_len=context, max_num_seqs=sequences,
        enforce_eager=True, seed=0, disable_log_stats=True,
    )  # fmt: skip
    for line in sys.stdin:
        question = json.loads(line)
        reply = {} if question == "ready" else answered(llm, question)
        print(json.dumps(reply), flush=True)


def answered(llm: LLM, requests: list[tuple[list[int], int]]) -> dict[str, object]:
    """Return ids and log-probs of all answers, and the seconds they took."""
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in requests]
    rules = [
        SamplingParams(max_tokens=answer, temperature=1.0, ignore_eos=True, logprobs=0, detokenize=False)
        for _, answer in requests
    ]
    begun = time.perf_counter()
    found = [output.outputs[0] for output in llm.generate(prompts, rules, use_tqdm=False)]
    answers = [
        (list(one.token_ids), [place[token].logprob for place, token in zip(one.logprobs, one.token_ids, strict=True)])
        for one in found
    ]
    return {"seconds": time.perf_counter() - begun, "answers": answers}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
