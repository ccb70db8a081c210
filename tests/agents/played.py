"""The scene of each task, and its cost to an agent."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents import tasks, truths
from tests.agents.agent import Agent
from tests.agents.scenes import (
    Open,
    Scene,
    open_full_universe,
    open_handmade,
    open_low_quota,
    open_not_computed,
    open_simulated,
)


@dataclass(frozen=True)
class AgentTask:
    """A question, the script that answers it, the true answer, and the expected errors."""

    solve: Callable[[Agent], Awaitable[Any]]
    truth: Callable[[Scene], Any]
    scene: Open
    errors: int = 0
    has_key: bool = True

    @property
    def question(self) -> str:
        return (self.solve.__doc__ or "").split("\n")[0]


a_week = open_simulated()
TASKS = (
    AgentTask(tasks.bullish_metals, truths.bullish_metals, open_full_universe),
    AgentTask(tasks.reversal_last_tuesday, truths.reversal_last_tuesday, open_handmade),
    AgentTask(tasks.agreement, truths.agreement, open_full_universe),
    AgentTask(tasks.sectors, truths.sectors, open_full_universe),
    AgentTask(tasks.flips_from_the_feed, truths.flips_from_the_feed, open_full_universe),
    AgentTask(tasks.a_week, truths.a_week, a_week),
    AgentTask(tasks.alerts, truths.alerts, open_handmade),
    AgentTask(tasks.covered, truths.covered, open_handmade),
    AgentTask(tasks.misspelt, truths.misspelt, open_full_universe, errors=1),
    AgentTask(tasks.removed, truths.removed, open_handmade),
    AgentTask(tasks.emptiness, truths.emptiness, open_handmade),
    AgentTask(tasks.quota, truths.quota, open_low_quota, errors=1),
    AgentTask(tasks.first_compute, truths.first_compute, open_not_computed, errors=1),
    AgentTask(tasks.purchase, truths.purchase, open_handmade, errors=1, has_key=False),
)
SCENES = tuple(dict.fromkeys(task.scene for task in TASKS))


async def run_scene(
    scene: Open, folder: Path, of: tuple[AgentTask, ...] = TASKS
) -> dict[AgentTask, Agent]:
    """Solve each task of a scene with a new agent; fail if an answer is wrong."""
    agents = {}
    async with scene(folder) as opened:
        for task in of:
            if task.scene is scene:
                agents[task] = agent = opened.agent(has_key=task.has_key)
                await agent.start_session()
                answer, truth = await task.solve(agent), task.truth(opened)
                assert answer == truth, task.question
                assert answer, task.question
    return agents
