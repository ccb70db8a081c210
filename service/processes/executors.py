"""Selects the executors of rebuilds, audits and long catch-ups: local cores, or Dask workers."""

from compute.executor import LOCAL_EXECUTORS, ExecutorFactory
from service.config.settings import Settings, SettingsError


async def find_executors(settings: Settings) -> ExecutorFactory:
    """Return the executors for rebuilds, audits and catch-ups, after checking that they work.

    OperatorError if Dask's libraries are missing, or its scheduler or workers don't answer.
    """
    # Checked only at the start and when used: a rebuild needs a cluster once per version, and a
    # scheduler that goes away meanwhile must not end the service.
    if settings.dask_scheduler is None:
        return LOCAL_EXECUTORS
    try:
        from service.processes.dask_executor import find_dask_workers
    except ImportError as error:
        raise SettingsError(
            f"SIGNALS_DASK_SCHEDULER needs the extra libraries ({error.name} is missing): "
            "pip install 'signals-mcp[distributed]'"
        ) from None
    return await find_dask_workers(settings.dask_scheduler)
