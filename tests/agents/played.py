"""Which task is played in which scene, and what it costs an agent."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.agents import tasks, truths
from tests.agents.agent import Agent
from tests.agents.scenes import Open, Scene, by_hand, full_board, not_computed, running, scarce


@dataclass(frozen=True)
class Task:
    """A question, how an agent answers it, what is true, and how many refusals lie on the way."""

    solve: Callable[[Agent], Awaitable[Any]]
    truth: Callable[[Scene], Any]
    scene: Open
    errors: int = 0
    has_key: bool = True

    @property
    def question(self) -> str:
        return (self.solve.__doc__ or "").split("\n")[0]


a_week = running()
TASKS = (
    Task(tasks.bullish_metals, truths.bullish_metals, full_board),
    Task(tasks.reversal_last_tuesday, truths.reversal_last_tuesday, by_hand),
    Task(tasks.agreement, truths.agreement, full_board),
    Task(tasks.sectors, truths.sectors, full_board),
    Task(tasks.flips_from_the_feed, truths.flips_from_the_feed, full_board),
    Task(tasks.a_week, truths.a_week, a_week),
    Task(tasks.alerts, truths.alerts, by_hand),
    Task(tasks.covered, truths.covered, by_hand),
    Task(tasks.misspelt, truths.misspelt, full_board, errors=1),
    Task(tasks.removed, truths.removed, by_hand),
    Task(tasks.emptiness, truths.emptiness, by_hand),
    Task(tasks.quota, truths.quota, scarce, errors=1),
    Task(tasks.first_compute, truths.first_compute, not_computed, errors=1),
    Task(tasks.purchase, truths.purchase, by_hand, errors=1, has_key=False),
)
SCENES = tuple(dict.fromkeys(task.scene for task in TASKS))


async def played(scene: Open, folder: Path, of: tuple[Task, ...] = TASKS) -> dict[Task, Agent]:
    """Have agents of their own answer the tasks of a scene; all answers must be true."""
    agents = {}
    async with scene(folder) as opened:
        for task in of:
            if task.scene is scene:
                agents[task] = agent = opened.agent(has_key=task.has_key)
                await agent.meet()
                answer, truth = await task.solve(agent), task.truth(opened)
                assert answer == truth, task.question
                assert answer, task.question
    return agents


async def every_task() -> dict[Task, Agent]:
    """Play all tasks; return them in their order, with the agents that solved them."""
    agents: dict[Task, Agent] = {}
    for scene in SCENES:
        with TemporaryDirectory() as folder:
            agents |= await played(scene, Path(folder))
    return {task: agents[task] for task in TASKS}
