"""The executors that the settings name: this machine's cores, or the workers of Dask."""

from compute.executor import LOCAL_EXECUTORS, ExecutorFactory
from service.config.settings import Settings, SettingsError


async def find_executors(settings: Settings) -> ExecutorFactory:
    """Return the executors for rebuilds and audits, checked now, before they are needed.

    OperatorError if Dask's libraries are missing, or its scheduler or workers don't answer.
    """
    if settings.dask_scheduler is None:
        return LOCAL_EXECUTORS
    try:
        from service.processes.dask_executor import find_dask_workers
    except ImportError as error:
        raise SettingsError(
            f"SIGNALS_DASK_SCHEDULER needs more libraries ({error.name} is missing): "
            "pip install 'signals-mcp[distributed]'"
        ) from None
    return await find_dask_workers(settings.dask_scheduler)
