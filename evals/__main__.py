"""Asks a model the questions of evals/signals.xml and reports its answers.

docs/evals.md explains how to run it.
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

from evals.chats import AnthropicChat, OpenAiChat, OpenChat
from evals.conversation import ModelAnswerer
from evals.forms import SOLVER
from evals.market import open_eval_market
from evals.models import ModelError, build_command_send, build_http_send
from evals.questions import Question, read_questions
from evals.report import format_report, to_json_rows
from evals.run import Answerer, Outcome, ask_all

ANTHROPIC_VERSION = "2023-06-01"


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the questions; return 1 if an answer is wrong, 2 if the model cannot be used."""
    parser = _build_parser()
    options = parser.parse_args(arguments)
    if (options.openai or options.anthropic) and not options.model:
        parser.error("--model is required, such as --model NAME")
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
        options.json.write_text(json.dumps(to_json_rows(outcomes), indent=1) + "\n")
    return int(not all(outcome.is_right for outcome in outcomes))


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evals", description=__doc__)
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--solver", action="store_true", help="the scripted solver, without a model")
    who.add_argument("--openai", metavar="URL", help="an endpoint like https://HOST/v1")
    who.add_argument("--anthropic", metavar="URL", help="an endpoint like https://HOST")
    who.add_argument("--command", metavar="CMD", help="a local command that answers a request")
    parser.add_argument("--model", default="", metavar="NAME", help="the model of the endpoint")
    parser.add_argument("--only", action="append", metavar="ID", help="only this question")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all answers here")
    return parser


async def _run(
    options: argparse.Namespace, environ: Mapping[str, str], questions: Sequence[Question]
) -> list[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        async with open_eval_market(Path(folder)) as market, httpx.AsyncClient() as client:
            return await ask_all(market, questions, _choose_answerer(options, environ, client))


def _choose_answerer(
    options: argparse.Namespace, environ: Mapping[str, str], client: httpx.AsyncClient
) -> Answerer:
    if options.solver:
        return SOLVER.answer
    open_chat: OpenChat
    if options.anthropic:
        url = f"{options.anthropic.rstrip('/')}/v1/messages"
        headers = {
            "x-api-key": environ.get("ANTHROPIC_API_KEY", ""),
            "anthropic-version": ANTHROPIC_VERSION,
        }
        open_chat = partial(AnthropicChat, build_http_send(client, url, headers), options.model)
    elif options.openai:
        url = f"{options.openai.rstrip('/')}/chat/completions"
        headers = {"authorization": f"Bearer {environ.get('OPENAI_API_KEY', '')}"}
        open_chat = partial(OpenAiChat, build_http_send(client, url, headers), options.model)
    else:
        open_chat = partial(OpenAiChat, build_command_send(options.command), options.model)
    return ModelAnswerer(open_chat).answer


if __name__ == "__main__":
    sys.exit(main())
