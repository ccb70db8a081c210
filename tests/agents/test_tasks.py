"""Questions of users, answered by agents that see only tools/list and results."""

from pathlib import Path

import pytest
from jsonschema import ValidationError

from tests.agents import tasks, truths
from tests.agents.played import SCENES, TASKS, AgentTask, run_scene
from tests.agents.scenes import Open, open_handmade, open_simulated
from tests.support.bad_inputs import STATE

pytestmark = pytest.mark.clause("answers")

MOST_TOKENS = 25_000
MANY = ("BTC", "ETH", "BNB", "SOL", "HYPE", "NVDA", "TSLA", "IBM", "XAU", "XAG")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_agents_find_the_true_answers_within_their_context(
    tmp_path: Path, scene: Open
) -> None:
    for task, agent in (await run_scene(scene, tmp_path)).items():
        assert agent.tokens <= MOST_TOKENS, task.question
        assert agent.errors == task.errors, task.question


@pytest.mark.prove
async def test_an_agent_that_reads_the_feed_every_hour_of_a_week_misses_nothing(
    tmp_path: Path,
) -> None:
    scene = open_simulated(MANY)
    by_the_hour = AgentTask(tasks.a_week_by_the_hour, truths.a_week_by_the_hour, scene)
    (agent,) = (await run_scene(scene, tmp_path, (by_the_hour,))).values()
    assert agent.errors == 0


def test_no_two_tasks_have_the_same_question() -> None:
    assert len({task.question for task in TASKS}) == len(TASKS) >= 12


async def test_an_agent_uses_only_addresses_that_results_named(tmp_path: Path) -> None:
    async with open_handmade(tmp_path) as scene:
        agent = scene.agent()
        await agent.start_session()
        with pytest.raises(KeyError):
            await agent.call("signals_get_prices")
        for arguments in ({"tickers": "BTC"}, {"timeframe": "2h"}, {"ticker": 5}):
            with pytest.raises(ValidationError):
                await agent.call(STATE, **arguments)
        with pytest.raises(AssertionError):
            await agent.send_request("POST", f"{scene.served.base_url}/api/v1/access/checkout", {})
    assert agent.calls == []
