"""Who computes blocks of assets, as the settings say: this process, or the workers of Dask."""

from functools import partial

from compute.executor import Crews, here
from service.config.settings import Settings, SettingsError


async def reached_crews(settings: Settings) -> Crews:
    """Return what opens the crew, which answers now: the operator hears of it before it is needed.

    OperatorError where its libraries are missing or nobody answers.
    """
    if settings.dask_scheduler is None:
        return here
    try:
        from service.processes.dask_executor import dask_crew
    except ImportError as error:
        raise SettingsError(
            f"SIGNALS_DASK_SCHEDULER needs more libraries ({error.name} is missing): "
            "pip install 'signals[distributed]'"
        ) from None
    crews = partial(dask_crew, settings.dask_scheduler)
    async with crews():
        return crews
