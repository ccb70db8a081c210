"""Asks a model the questions of evals/signals.xml and reports its answers.

CONTRIBUTING.md explains how to run it.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import httpx

from evals.chats import AnthropicChat, ModelError, OpenAiChat, post
from evals.market import SettableClock, open_eval_market
from evals.questions import Outcome, Question, ask_all, read_questions

TITLES = {
    "closed": "closed questions",
    "unanswerable": "questions without an answer",
    "data": "questions about simulated or outdated data",
}
HEAD = ("", "right", "wrong", "calls", "characters", "wrong tools", "bad arguments")


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the questions; return 1 if an answer is wrong, 2 if the model cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m evals", description=__doc__)
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--openai", metavar="URL", help="an endpoint like https://HOST/v1")
    who.add_argument("--anthropic", metavar="URL", help="an endpoint like https://HOST")
    parser.add_argument("--model", required=True, metavar="NAME", help="the model of the endpoint")
    parser.add_argument("--only", action="append", metavar="ID", help="only this question")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all answers here")
    options = parser.parse_args(arguments)
    questions = [q for q in read_questions() if not options.only or q.id in options.only]
    if not questions:
        parser.error("--only names no question; evals/signals.xml has the ids")
    try:
        outcomes = asyncio.run(_run(options, environ, questions))
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    print(format_report(outcomes))
    if options.json:
        rows = [
            {
                "id": outcome.question.id,
                "question": outcome.question.text,
                "expected": outcome.question.answer,
                "answer": outcome.answer,
                "right": outcome.is_right,
                "calls": [vars(call) for call in outcome.calls],
            }
            for outcome in outcomes
        ]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(not all(outcome.is_right for outcome in outcomes))


async def _run(
    options: argparse.Namespace, environ: Mapping[str, str], questions: Sequence[Question]
) -> list[Outcome]:
    chat: type[AnthropicChat | OpenAiChat] = OpenAiChat
    url = f"{str(options.openai).rstrip('/')}/chat/completions"
    headers = {"authorization": f"Bearer {environ.get('OPENAI_API_KEY', '')}"}
    if options.anthropic:
        chat = AnthropicChat
        url = f"{options.anthropic.rstrip('/')}/v1/messages"
        api_key = environ.get("ANTHROPIC_API_KEY", "")
        headers = {"x-api-key": api_key, "anthropic-version": "2023-06-01"}
    clock = SettableClock()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_eval_market(Path(folder), clock) as service,
            httpx.AsyncClient() as client,
        ):
            send = partial(post, client, url, headers)
            return await ask_all(service, clock, questions, partial(chat, options.model), send)


def format_report(outcomes: Sequence[Outcome]) -> str:
    """Return a table with a row for each kind of question, and below it each wrong answer."""
    kinds = [(TITLES[kind], [o for o in outcomes if o.question.kind == kind]) for kind in TITLES]
    rows: list[tuple[str, ...]] = [HEAD]
    for title, chosen in [*kinds, ("all", outcomes)]:
        calls = [call for outcome in chosen for call in outcome.calls]
        problems = [call.problem for call in calls]
        right = sum(outcome.is_right for outcome in chosen)
        figures = (
            right,
            len(chosen) - right,
            len(calls),
            sum(call.characters for call in calls),
            problems.count("wrong_tool"),
            problems.count("bad_arguments"),
        )
        rows.append((title, *map(str, figures)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    for outcome in outcomes:
        if not outcome.is_right:
            lines.append(f"{outcome.question.id}: {outcome.question.text}")
            lines.append(f"  expected {outcome.question.answer!r}, got {outcome.answer!r}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
